//! A client of the gateway.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::Context;
use serde_json::{Value, json};

/// Sends requests to one Envoy.
#[derive(Clone, Debug)]
pub struct Client {
    agent: ureq::Agent,
    port: u16,
}

/// A response, read to its end.
#[derive(Clone, Debug)]
pub struct Answer {
    /// HTTP status.
    pub status: u16,
    /// Headers, by lower-case name; of several the last.
    pub headers: BTreeMap<String, String>,
    /// The body.
    pub body: Vec<u8>,
}

impl Client {
    /// A client of the gateway on this loopback port.
    pub fn new(port: u16) -> Self {
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(Duration::from_secs(30)))
            .build();
        Self { agent: config.into(), port }
    }

    /// The port that it asks.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Posts a body for a zone. The quick start tells zones apart by the host that is asked.
    ///
    /// # Errors
    /// No whole response came.
    pub fn post(
        &self,
        zone: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> anyhow::Result<Answer> {
        let mut request = self
            .agent
            .post(format!("http://127.0.0.1:{}{path}", self.port))
            .header("host", host(zone))
            .header("content-type", "application/json");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        read(request.send(body)?)
    }

    /// Gets a path for a zone.
    ///
    /// # Errors
    /// No whole response came.
    pub fn get(&self, zone: &str, path: &str) -> anyhow::Result<Answer> {
        let url = format!("http://127.0.0.1:{}{path}", self.port);
        read(self.agent.get(url).header("host", host(zone)).call()?)
    }

    /// A chat of one system and one user message, answered with a single token.
    ///
    /// # Errors
    /// No whole response came.
    pub fn chat(&self, zone: &str, system: &str, user: &str) -> anyhow::Result<Answer> {
        let body = json!({
            "model": "demo",
            "max_tokens": 1,
            "messages": [
                {"role": "system", "content": system},
                {"role": "user", "content": user}
            ]
        });
        self.post(zone, "/v1/chat/completions", &[], body.to_string().as_bytes())
    }

    /// Sends bytes as they are and reads until the peer closes or falls silent for 10 s.
    ///
    /// # Errors
    /// The connection failed.
    pub fn raw(&self, bytes: &[u8]) -> anyhow::Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        stream.write_all(bytes)?;
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        Ok(String::from_utf8_lossy(&answer).into_owned())
    }
}

/// The host name by which the quick start knows a zone's clients.
pub fn host(zone: &str) -> String {
    format!("{zone}.demo.local")
}

fn read(response: ureq::http::Response<ureq::Body>) -> anyhow::Result<Answer> {
    let (parts, mut body) = response.into_parts();
    let headers = parts
        .headers
        .iter()
        .map(|(name, value)| {
            (name.as_str().to_owned(), String::from_utf8_lossy(value.as_bytes()).into_owned())
        })
        .collect();
    let body = body.with_config().limit(64 << 20).read_to_vec()?;
    Ok(Answer { status: parts.status.as_u16(), headers, body })
}

impl Answer {
    /// A header's value; empty without it.
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }

    /// The body as JSON.
    ///
    /// # Errors
    /// It is none.
    pub fn json(&self) -> anyhow::Result<Value> {
        serde_json::from_slice(&self.body).with_context(|| {
            format!("status {}: {}", self.status, String::from_utf8_lossy(&self.body))
        })
    }

    /// A member of the decision that `x-warmpath-explain` tells; empty if it isn't there.
    pub fn explained(&self, name: &str) -> &str {
        let line = self.header("x-warmpath-explain");
        line.split(", ")
            .find_map(|member| member.strip_prefix(name)?.strip_prefix('='))
            .map_or("", |value| value.trim_matches('"'))
    }

    /// Tokens that the engine had cached, by its own word.
    pub fn cached_tokens(&self) -> u64 {
        let usage = self.json().ok();
        let count = usage
            .as_ref()
            .and_then(|body| body.pointer("/usage/prompt_tokens_details/cached_tokens")?.as_u64());
        count.unwrap_or(0)
    }

    /// The engine that answered (`ip:port`), by its own word.
    pub fn engine(&self) -> &str {
        self.header("x-warmpath-engine")
    }

    /// The region of the engine that answered, by its own word.
    pub fn engine_region(&self) -> &str {
        self.header("x-warmpath-engine-region")
    }
}
