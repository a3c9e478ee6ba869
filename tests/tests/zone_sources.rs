//! A request's zone comes from where the operator says, in that order, and the record says whence.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::expect_used, clippy::panic)]

use warmpath_tests::{Answer, Options, Stack};

/// Stands for what checks who asks (jwt_authn writes dynamic metadata, ext_authz filter state):
/// these write the same, out of headers, so that a test can choose.
const WRITERS: &str = r#"http_filters:
                  - name: envoy.filters.http.header_to_metadata
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.header_to_metadata.v3.Config
                      request_rules:
                        - header: x-test-claim
                          on_header_present: { metadata_namespace: envoy.filters.http.jwt_authn, key: zone, type: STRING }
                  - name: envoy.filters.http.set_filter_state
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.set_filter_state.v3.Config
                      on_request_headers:
                        - object_key: tenant
                          factory_key: envoy.string
                          skip_if_empty: true
                          format_string: { text_format_source: { inline_string: "%REQ(x-test-tenant)%" }, omit_empty_values: true }"#;

const SOURCES: &str = r#""role": "router",
                              "zone_source": {"from": [
                                {"property": ["metadata", "filter_metadata", "envoy.filters.http.jwt_authn", "zone"]},
                                {"mapped": {"of": {"property": ["filter_state", "tenant"]}, "zones": {"bank": "eu", "shop": "global"}}},
                                {"property": ["xds", "route_metadata", "filter_metadata", "warmpath", "zone"]},
                                {"host": {"host.example": "eu"}},
                                {"header": "x-warmpath-zone"}
                              ]},"#;

const ROUTE: &str = r#"domains: ["*"]
                      routes:
                        - match: { prefix: /, headers: [{ name: x-warmpath-cluster, present_match: true }] }
                          route: { cluster_header: x-warmpath-cluster, timeout: 0s }
                        - match: { prefix: /, headers: [{ name: x-test-route, present_match: true }] }
                          metadata: { filter_metadata: { warmpath: { zone: eu } } }
                          direct_response: { status: 503 }
                        - match: { prefix: / }
                          direct_response: { status: 503 }"#;

/// Envoy's own check of JSON Web Tokens; the key is the tests' own, symmetric and known to all.
const JWT: &str = r#"http_filters:
                  - name: envoy.filters.http.jwt_authn
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.jwt_authn.v3.JwtAuthentication
                      providers:
                        test:
                          issuer: https://auth.example
                          payload_in_metadata: payload
                          local_jwks:
                            inline_string: '{"keys":[{"kty":"oct","alg":"HS256","kid":"test","k":"YSBrZXkgb2YgdGhlIHRlc3RzLCBrbm93biB0byBhbGw"}]}'
                      rules:
                        - { match: { prefix: / }, requires: { provider_name: test } }"#;

/// HS256 over `{"iss":"https://auth.example","sub":"tenant","zone":…}`; the last has no zone.
const TOKENS: [(&str, &str); 4] = [
    (
        "eu",
        "eyJhbGciOiJIUzI1NiIsImtpZCI6InRlc3QiLCJ0eXAiOiJKV1QifQ.eyJpc3MiOiJodHRwczovL2F1dGguZXhhbXBsZSIsInN1YiI6InRlbmFudCIsInpvbmUiOiJldSJ9.2cEF8WQV2o9tqumnx8tYWnEdSjpGRYZzNMG7ty3AE_c",
    ),
    (
        "global",
        "eyJhbGciOiJIUzI1NiIsImtpZCI6InRlc3QiLCJ0eXAiOiJKV1QifQ.eyJpc3MiOiJodHRwczovL2F1dGguZXhhbXBsZSIsInN1YiI6InRlbmFudCIsInpvbmUiOiJnbG9iYWwifQ.u6N2nhveKvYrQO4l6Xpjwq62kvx6dcpopFRe7R5m7N0",
    ),
    (
        "mars",
        "eyJhbGciOiJIUzI1NiIsImtpZCI6InRlc3QiLCJ0eXAiOiJKV1QifQ.eyJpc3MiOiJodHRwczovL2F1dGguZXhhbXBsZSIsInN1YiI6InRlbmFudCIsInpvbmUiOiJtYXJzIn0.aff1Fl-ooMQaR8OxgYijz_LDHXQFki20FyhFeA6nnjc",
    ),
    (
        "none",
        "eyJhbGciOiJIUzI1NiIsImtpZCI6InRlc3QiLCJ0eXAiOiJKV1QifQ.eyJpc3MiOiJodHRwczovL2F1dGguZXhhbXBsZSIsInN1YiI6InRlbmFudCJ9.RO3bh00WMFFyyuhXIWyB1ChpOalxYSXA54HR6thiV9k",
    ),
];

#[test]
fn a_claim_that_envoy_has_checked_binds() {
    const CLAIM: &str = r#""role": "router",
                              "zone_source": {"from": [
                                {"property": ["metadata", "filter_metadata", "envoy.filters.http.jwt_authn", "payload", "zone"]}
                              ]},"#;
    let mut options = Options::quickstart().unwrap();
    options.envoy_edits =
        vec![("http_filters:".into(), JWT.into()), ("\"role\": \"router\",".into(), CLAIM.into())];
    let bearer = |claim: &str| {
        let token = TOKENS.iter().find(|(name, _)| *name == claim).unwrap().1;
        format!("Bearer {token}")
    };
    options.ready_headers = vec![("authorization".into(), bearer("eu"))];
    let stack = Stack::start(options).unwrap();
    let client = stack.client();
    let body = br#"{"model":"demo","prompt":"hello","max_tokens":1}"#;
    let ask = |host: &str, headers: &[(&str, &str)]| {
        client.post(host, "/v1/completions", headers, body).unwrap()
    };
    // The host's zone is another; the claim is what counts.
    for (host, claim) in [("eu", "global"), ("global", "eu"), ("eu", "eu")] {
        let answer = ask(host, &[("authorization", &bearer(claim)), ("x-warmpath-zone", "global")]);
        assert_eq!(answer.status, 200, "{host} {claim}");
        assert_eq!(
            (answer.explained("zone"), answer.explained("zone_from")),
            (claim, "property.0")
        );
    }
    for (claim, code) in [("mars", "zone_unknown"), ("none", "zone_missing")] {
        let answer = ask("eu", &[("authorization", &bearer(claim))]);
        assert_eq!(answer.status, 403, "{claim}");
        assert_eq!(answer.json().unwrap()["error"]["code"], code);
    }
    // Without a token, or with another zone written into a signed one, Envoy doesn't let it pass.
    assert_eq!(ask("eu", &[]).status, 401);
    let [eu, global] = [bearer("eu"), bearer("global")];
    let (head, signature) = (eu.rsplit_once('.').unwrap().0, global.rsplit_once('.').unwrap().1);
    let forged = format!("{head}.{signature}");
    assert_eq!(ask("eu", &[("authorization", &forged)]).status, 401);
}

#[test]
fn the_first_source_that_says_anything_binds() {
    let mut options = Options::quickstart().unwrap();
    options.envoy_edits = vec![
        ("http_filters:".into(), WRITERS.into()),
        ("\"role\": \"router\",".into(), SOURCES.into()),
        ("domains: [\"*\"]\n                      routes: *routes".into(), ROUTE.into()),
    ];
    let stack = Stack::start(options).unwrap();
    let client = stack.client();
    let ask = |host: &str, headers: &[(&str, &str)]| -> Answer {
        let body = br#"{"model":"demo","prompt":"hello","max_tokens":1}"#;
        client.post(host, "/v1/completions", headers, body).unwrap()
    };
    let zone = |answer: &Answer| {
        format!("{} {} {}", answer.status, answer.explained("zone"), answer.explained("zone_from"))
    };
    for (host, headers, expected) in [
        ("eu", vec![], "200 eu header.4"),
        ("global", vec![], "200 global header.4"),
        ("global", vec![("x-test-claim", "eu")], "200 eu property.0"),
        ("global", vec![("x-test-tenant", "bank")], "200 eu property.1"),
        ("nowhere", vec![("x-test-tenant", "shop")], "200 global property.1"),
        ("nowhere", vec![("x-test-route", "1")], "200 eu property.2"),
        (
            "nowhere",
            vec![("x-test-claim", "global"), ("x-test-route", "1")],
            "200 global property.0",
        ),
    ] {
        assert_eq!(zone(&ask(host, &headers)), expected, "{host} {headers:?}");
    }
    // What is said and is no zone is refused, whatever comes after it; and so is silence.
    for (headers, code, from) in [
        (vec![("x-test-claim", "mars")], "zone_unknown", "property.0"),
        (vec![("x-test-tenant", "thief")], "zone_unknown", "property.1"),
    ] {
        let answer = ask("eu", &headers);
        assert_eq!((answer.status, answer.explained("zone_from")), (403, from), "{headers:?}");
        assert_eq!(answer.json().unwrap()["error"]["code"], code);
    }
    let silent = ask("nowhere", &[]);
    assert_eq!((silent.status, silent.explained("zone_from")), (403, "none"));
    // The host map asks for the very name, a port aside.
    let body = br#"{"model":"demo","prompt":"hello","max_tokens":1}"#;
    let request = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: host.example:1234\r\nconnection: close\r\n\
         content-length: {}\r\n\r\n{}",
        body.len(),
        String::from_utf8_lossy(body)
    );
    let answer = client.raw(request.as_bytes()).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("host.3"), "{answer}");
}
