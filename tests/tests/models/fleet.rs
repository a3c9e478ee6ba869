//! Three models in two regions, one engine for each model in a region: the quick start with other
//! pools.

use warmpath_tests::{Options, Serves, repository};

/// A name that a request can give its model, and who serves it.
pub(crate) struct Asked {
    /// The name.
    pub(crate) name: &'static str,
    /// Numbers of the engines.
    pub(crate) engines: &'static [usize],
    /// The filter's policy has it; otherwise only the relay tells of it.
    pub(crate) policy: bool,
    /// Of ten requests, how many ask for it.
    pub(crate) share: u64,
}

/// The names, and one that nobody serves.
pub(crate) const NAMES: [Asked; 7] = [
    Asked { name: "demo", engines: &[0, 2], policy: true, share: 5 },
    Asked { name: "beta", engines: &[1], policy: true, share: 5 },
    Asked { name: "gamma", engines: &[3], policy: true, share: 4 },
    Asked { name: "beta-alias", engines: &[1], policy: true, share: 2 },
    Asked { name: "beta-lora", engines: &[1], policy: true, share: 2 },
    Asked { name: "demo-lora", engines: &[0, 2], policy: false, share: 2 },
    Asked { name: "gpt-9", engines: &[], policy: false, share: 2 },
];

/// The zones, with the engines that may see their requests.
pub(crate) const ZONES: [(&str, &[usize]); 2] = [("eu", &[0, 1]), ("global", &[0, 1, 2, 3])];

/// The engines of a zone that serve a name.
pub(crate) fn engines(zone: &str, name: &str) -> Vec<usize> {
    let (_, inside) = ZONES.iter().find(|(other, _)| *other == zone).unwrap();
    let name = NAMES.iter().find(|other| other.name == name).unwrap();
    name.engines.iter().copied().filter(|engine| inside.contains(engine)).collect()
}

/// The stack, without a relay; its files name the quick start's ports. `more` are further members of the filter's policy, each with a comma
/// behind it.
pub(crate) fn options(more: &str) -> Options {
    let mut options = Options::quickstart().unwrap();
    options.serves = [
        Serves::new(&["demo"], &["demo-lora"]),
        Serves::new(&["beta", "beta-alias"], &["beta-lora"]),
        Serves::new(&["demo"], &["demo-lora"]),
        Serves::new(&["gamma"], &[]),
    ];
    // Time is not what is tried here.
    options.engine_flags = vec!["--speedup=1e6".into()];
    options.envoy_config = Some(envoy_config(more));
    options.relay_config = Some(RELAY.to_owned());
    options.relay = false;
    options
}

const RELAY: &str = r#"
listen: 127.0.0.1:18900
admin: 127.0.0.1:18901
polling: { rtt_ms: 0 }
models:
  - { name: demo, path: ../tests/fixtures/models/demo, version: "1", served_names: [demo], adapters: [demo-lora] }
  - { name: beta, path: ../tests/fixtures/models/demo, version: "1", served_names: [beta, beta-alias], adapters: [beta-lora] }
  - { name: gamma, path: ../tests/fixtures/models/demo, version: "1" }
replicas:
  - endpoint: 127.0.0.1:18001
    pool: demo-eu-west
    model: demo
    events: { connect: "tcp://127.0.0.1:18101", replay: "tcp://127.0.0.1:18201" }
  - endpoint: 127.0.0.1:18002
    pool: beta-eu-west
    model: beta
    events: { connect: "tcp://127.0.0.1:18102", replay: "tcp://127.0.0.1:18202" }
  - endpoint: 127.0.0.1:18003
    pool: demo-us-east
    model: demo
    events: { connect: "tcp://127.0.0.1:18103", replay: "tcp://127.0.0.1:18203" }
  - endpoint: 127.0.0.1:18004
    pool: gamma-us-east
    model: gamma
    events: { connect: "tcp://127.0.0.1:18104", replay: "tcp://127.0.0.1:18204" }
"#;

/// What the filter's policy says of models beside their pools.
const MODELS: &str =
    r#""models": {"beta": {"served_names": ["beta", "beta-alias"], "adapters": ["beta-lora"]}},"#;

/// The quick start's configuration with the pools, and the clusters to them.
fn envoy_config(more: &str) -> String {
    let text = std::fs::read_to_string(repository().join("envoy/quickstart.yaml")).unwrap();
    let host = |port: u16| {
        format!(
            "\n              - endpoint: {{ address: {{ socket_address: {{ address: 127.0.0.1, \
             port_value: {port} }} }} }}"
        )
    };
    let eu = r#""demo-eu-west": {"region": "eu-west", "model": "demo"},"#;
    let us = r#""demo-us-east": {"region": "us-east", "model": "demo"}"#;
    let text = edited(&text, eu, &format!("{eu} {}", eu.replace("demo", "beta")));
    let text = edited(&text, us, &format!("{us}, {}", us.replace("demo", "gamma")));
    let zone = r#"{"demo-eu-west": "eu.demo-eu-west"}"#;
    let both = r#"{"demo-eu-west": "eu.demo-eu-west", "beta-eu-west": "eu.beta-eu-west"}"#;
    let text = edited(&text, zone, both);
    let last = r#""demo-us-east": "global.demo-us-east""#;
    let more_pools =
        r#", "beta-eu-west": "global.beta-eu-west", "gamma-us-east": "global.gamma-us-east""#;
    let text = edited(&text, last, &format!("{last}{more_pools}"));
    let text = edited(&text, r#""zones": {"#, &format!(r#"{MODELS} {more} "zones": {{"#));
    // One engine of demo is left in each region.
    let text = edited(&text, &host(18002), "");
    let text = edited(&text, &host(18004), "");

    // The other models' clusters are like demo's, with nobody behind their one pool.
    let start = text.find("    - name: global.demo-us-east").unwrap();
    let end = start + 1 + text[start + 1..].find("\n    - name: ").unwrap();
    let template = &text[start..end];
    let hosts = template.find("          - priority: 0").unwrap()
        ..template.find("      load_balancing_policy:").unwrap();
    let mut clusters = String::new();
    for (zone, pool, region, port) in [
        ("eu", "beta-eu-west", "eu-west", 18002),
        ("global", "beta-eu-west", "eu-west", 18002),
        ("global", "gamma-us-east", "us-east", 18004),
    ] {
        let mut cluster = template.to_owned();
        let only = format!(
            "          - priority: 0\n            locality: {{ region: {region} }}\n            \
             lb_endpoints:{}\n",
            host(port)
        );
        cluster.replace_range(hosts.clone(), &only);
        clusters += &cluster.replace("global.demo-us-east", &format!("{zone}.{pool}"));
        clusters += "\n";
    }
    let mut text = text;
    text.insert_str(end + 1, &clusters);
    text
}

fn edited(text: &str, from: &str, to: &str) -> String {
    assert_eq!(text.matches(from).count(), 1, "envoy/quickstart.yaml has {from:?} once");
    text.replace(from, to)
}
