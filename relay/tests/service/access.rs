//! Who may follow the side-stream: those with the token, those with a certificate.

use warmpath_proto::v1::side_stream_client::SideStreamClient;
use warmpath_proto::v1::{Hello, Up, up};

use crate::common::relay::{Relay, api, one_replica, retry};

#[tokio::test]
async fn without_the_token_nobody_follows() {
    let file = std::env::temp_dir().join(format!("warmpath-token-{}", std::process::id()));
    std::fs::write(&file, "0123456789abcdef-secret\n").unwrap();
    let api = api().await;
    let yaml = one_replica(api.address, "{ connect: \"tcp://127.0.0.1:9\" }");
    let relay = Relay::with(&format!("token_file: {}\n{yaml}", file.display())).await;
    std::fs::remove_file(&file).unwrap();
    let endpoint = tonic::transport::Endpoint::new(format!("http://{}", relay.address)).unwrap();
    let channel = retry(async || endpoint.connect().await.ok()).await;
    for (header, admitted) in [
        (None, false),
        (Some("Bearer 0123456789abcdef-secreT"), false),
        (Some("Bearer 0123456789abcdef-secret"), true),
    ] {
        let hello = Up { body: Some(up::Body::Hello(Hello::default())) };
        let ups =
            tokio_stream::StreamExt::chain(tokio_stream::once(hello), tokio_stream::pending());
        let mut request = tonic::Request::new(ups);
        if let Some(header) = header {
            request.metadata_mut().insert("authorization", header.parse().unwrap());
        }
        let answer = SideStreamClient::new(channel.clone()).follow(request).await;
        match answer {
            Ok(answer) => {
                assert!(admitted, "{header:?}");
                assert!(answer.into_inner().message().await.unwrap().is_some());
            }
            Err(status) => {
                assert!(!admitted, "{header:?}");
                assert_eq!(status.code(), tonic::Code::Unauthenticated);
            }
        }
    }
    relay.stop().await;
}

/// An authority, and a certificate of its own making with its key, as PEM.
struct Authority {
    certificate: String,
    issuer: rcgen::Issuer<'static, rcgen::KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(vec![]).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).unwrap().pem();
        Self { certificate, issuer: rcgen::Issuer::new(params, key) }
    }

    fn sign(&self) -> (String, String) {
        let key = rcgen::KeyPair::generate().unwrap();
        let params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        (params.signed_by(&key, &self.issuer).unwrap().pem(), key.serialize_pem())
    }
}

#[tokio::test]
async fn with_mutual_tls_only_those_with_a_certificate_follow() {
    use tonic::transport::{Certificate, ClientTlsConfig, Identity};
    let (ours, others) = (Authority::new(), Authority::new());
    let directory = std::env::temp_dir().join(format!("warmpath-tls-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let (certificate, key) = ours.sign();
    for (name, text) in
        [("relay.pem", &certificate), ("key.pem", &key), ("ca.pem", &ours.certificate)]
    {
        std::fs::write(directory.join(name), text).unwrap();
    }
    let api = api().await;
    let at = directory.display();
    let yaml = one_replica(api.address, "{ connect: \"tcp://127.0.0.1:9\" }");
    let relay = Relay::with(&format!(
        "tls: {{ certificate: {at}/relay.pem, key: {at}/key.pem, client_ca: {at}/ca.pem }}\n{yaml}"
    ))
    .await;
    std::fs::remove_dir_all(&directory).unwrap();
    for (shown, admitted) in
        [(None, false), (Some(others.sign()), false), (Some(ours.sign()), true)]
    {
        let mut tls = ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(&ours.certificate))
            .domain_name("localhost");
        if let Some((certificate, key)) = shown {
            tls = tls.identity(Identity::from_pem(certificate, key));
        }
        let endpoint = tonic::transport::Endpoint::new(format!("https://{}", relay.address));
        let channel = endpoint.unwrap().tls_config(tls).unwrap().connect_lazy();
        let hello = Up { body: Some(up::Body::Hello(Hello::default())) };
        let ups =
            tokio_stream::StreamExt::chain(tokio_stream::once(hello), tokio_stream::pending());
        let answer = SideStreamClient::new(channel).follow(ups).await;
        let followed = match answer {
            Ok(answer) => matches!(answer.into_inner().message().await, Ok(Some(_))),
            Err(_) => false,
        };
        assert_eq!(followed, admitted);
    }
    relay.stop().await;
}
