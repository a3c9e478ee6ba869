//! Reading small pages from an admin endpoint.

use std::time::Duration;

use anyhow::{Context as _, bail};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;

/// Longer answers are refused, in bytes.
const MOST_BYTES: usize = 64 << 20;
const PATIENCE: Duration = Duration::from_secs(5);

/// The body of a page.
///
/// # Errors
/// Where the URL can't be parsed, the connection fails, the answer isn't 200, is too long or takes too
/// long.
pub(crate) async fn get(base: &str, path: &str) -> anyhow::Result<String> {
    let url = format!("{}{path}", base.trim_end_matches('/'));
    let uri: http::Uri = url.parse().with_context(|| format!("{url} is not a URL"))?;
    if uri.scheme_str() != Some("http") {
        bail!("{url}: only http:// is spoken here; admin endpoints listen on loopback");
    }
    let client: Client<HttpConnector, Empty<bytes::Bytes>> =
        Client::builder(TokioExecutor::new()).build_http();
    let answer = async {
        let response = client
            .get(uri)
            .await
            .with_context(|| format!("{url} can't be reached; is it running?"))?;
        if !response.status().is_success() {
            bail!("{url} answers {}", response.status());
        }
        let body = Limited::new(response.into_body(), MOST_BYTES).collect().await;
        let body = body.map_err(|error| anyhow::anyhow!("{url}: {error}"))?;
        Ok(String::from_utf8_lossy(&body.to_bytes()).into_owned())
    };
    tokio::time::timeout(PATIENCE, answer)
        .await
        .unwrap_or_else(|_| bail!("{url}: no answer within {PATIENCE:?}"))
}
