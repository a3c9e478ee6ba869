//! What configurations mean, and what their errors say.

use super::*;

const GOOD: &str = r#"
listen: 127.0.0.1:18900
admin: 127.0.0.1:18901
models:
  - name: demo
    version: "1"
    adapters: [demo-lora, other]
replicas:
  - endpoint: 127.0.0.1:18001
    pool: demo-eu-west
    model: demo
    events: { connect: "tcp://127.0.0.1:18101", replay: "tcp://localhost:18201" }
  - endpoint: 127.0.0.1:18002
    rank: 1
    pool: demo-eu-west
    model: demo
    draining: true
    events: { bind: "tcp://*:18102", duplicates: doubt, rank: 3 }
discovery:
  - dns: engines.svc
    port: 8000
    pool: demo-eu-west
    model: demo
    events_port: 5557
    every_ms: 1000
  - kubernetes: { service: engines, namespace: llm }
    port: http
    pool: demo-eu-west
    model: demo
    shared_store: hot
    events_port: 5557
    replay_port: replay
    weight: 1.5
    adapters: [other, demo-lora]
    ranks: 2
    first_rank: 4
polling: { interval_ms: 100, silence_ms: 0 }
limits: { blocks_per_replica: 5000 }
"#;

fn parse(text: &str) -> Result<Config, ConfigError> {
    Config::parse(text, "relay.yaml", Path::new("."))
}

#[test]
fn a_value_of_the_wrong_kind_is_named_with_its_place() {
    for (text, told) in [
        ("models:\n  - name: [1]\n", "relay.yaml: models[0].name: error: line 2 column 11: "),
        ("polling:\n  rtt_ms: abc\n", "relay.yaml: polling.rtt_ms: error: line 2 column 11: "),
        ("bogus: 2\n", "relay.yaml: bogus: error: line 1 column 1: unknown field"),
        ("[]\n", "relay.yaml: error: line 1 column 1: "),
    ] {
        let error = parse(text).unwrap_err().to_string();
        assert!(error.starts_with(told), "{error}");
    }
}

#[test]
fn a_good_one_is_understood() {
    let config = parse(GOOD).unwrap();
    assert_eq!(config.models[0].served_names, ["demo"]);
    let [first, second] = config.replicas.as_slice() else { panic!() };
    let events = first.events.as_ref().unwrap();
    assert_eq!(events.way, Way::Connect("127.0.0.1:18101".into()));
    assert_eq!(events.replay.as_deref(), Some("localhost:18201"));
    assert_eq!(events.duplicates, Duplicates::Count);
    let events = second.events.as_ref().unwrap();
    assert_eq!(events.way, Way::Bind("0.0.0.0:18102".into()));
    assert_eq!(events.duplicates, Duplicates::Doubt);
    assert!(second.draining && second.rank == Some(1) && events.rank == Some(3));
    let ranks: Vec<_> = config.discovery.iter().map(|source| source.ranks).collect();
    assert_eq!(ranks, [None, Some(Ranks { count: 2, first: 4 })]);
    assert_eq!(config.polling.interval, Duration::from_millis(100));
    assert_eq!(config.polling.silence, None);
    assert_eq!(config.polling.round_trips, Some(Duration::from_secs(5)));
    assert_eq!(config.limits.blocks, 5000);
    assert_eq!((first.weight, config.discovery[1].weight), (100, 150));
    let adapters = config.discovery[1].adapters.as_ref().unwrap();
    assert_eq!(
        (&first.adapters, adapters.names()),
        (&None, &["demo-lora", "other"].map(String::from)[..])
    );
    let [dns, slices] = config.discovery.as_slice() else { panic!() };
    let place = Place::Dns { name: "engines.svc".into(), every: Duration::from_secs(1) };
    assert_eq!((&dns.place, &dns.port), (&place, &Port::Number(8000)));
    assert_eq!((&dns.events_port, &dns.replay_port), (&Some(Port::Number(5557)), &None));
    assert_eq!(slices.place.to_string(), "kubernetes/llm/engines");
    assert_eq!((&slices.port, &slices.store), (&Port::Name("http".into()), &Some("hot".into())));
}

#[test]
fn how_a_models_engine_was_started_is_understood() {
    use warmpath_prompt::{ContentFormat, Engine};

    let dir = std::env::temp_dir().join(format!("warmpath-serving-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join("chat.jinja"), "{{ messages }}\n").unwrap();
    let serving = |fields: &str| {
        let fields = fields.replace("; ", "\n    ");
        let text = GOOD.replacen("version: \"1\"", &format!("version: \"1\"\n    {fields}"), 1);
        let config = Config::parse(&text, "relay.yaml", &dir).map_err(|error| error.to_string());
        config.map(|config| config.models[0].serving.clone())
    };
    assert_eq!(parse(GOOD).unwrap().models[0].serving, Serving::default());
    let all = serving(
        "engine: vllm; engine_version: 0.32.0; chat_template: chat.jinja; \
         chat_template_content_format: openai; \
         default_chat_template_kwargs: {enable_thinking: false, x: {y: null}}; \
         exclude_tools_when_tool_choice_none: true; time_zone: America/Los_Angeles",
    )
    .unwrap();
    assert_eq!((all.engine, all.content_format), (Engine::Vllm, ContentFormat::OpenAi));
    assert_eq!(all.chat_template.as_deref(), Some("{{ messages }}\n"));
    assert_eq!(all.template_kwargs, r#"{"enable_thinking":false,"x":{"y":null}}"#);
    assert!(all.excludes_tools);
    assert_eq!(all.clock.local(1_793_523_599), 1_793_523_599 - 7 * 3600);
    assert_eq!(serving("engine: sglang").unwrap().engine, Engine::Sglang);
    assert_eq!(serving("engine_version: '0.23'").unwrap().engine, Engine::Vllm023);
    for (fields, words) in [
        ("engine: tgi", "models[0].engine: \"tgi\" is neither vllm nor sglang"),
        (
            "engine_version: '0.31'",
            "models[0].engine_version: \"0.31\" is not known here, only 0.32",
        ),
        ("engine: sglang; engine_version: '0.4'", "models[0].engine_version: \"0.4\""),
        ("chat_template: no.jinja", "models[0].chat_template: can't read"),
        ("chat_template_content_format: text", "chat_template_content_format"),
        ("default_chat_template_kwargs: {tools: []}", "default_chat_template_kwargs: \"tools\""),
        ("default_chat_template_kwargs: 3", "default_chat_template_kwargs"),
        ("time_zone: Mars/Olympus", "models[0].time_zone: \"Mars/Olympus\" is no time zone"),
        (
            "engine: sglang; exclude_tools_when_tool_choice_none: true",
            "models[0].exclude_tools_when_tool_choice_none: is an option of vLLM's",
        ),
    ] {
        let error = serving(fields).unwrap_err();
        assert!(error.contains(words), "{fields}: {error}");
    }
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn what_a_models_engine_drops_is_told_by_how_it_speculates() {
    let drop = |fields: &str| {
        let with = format!("version: \"1\"\n    {}", fields.replace("; ", "\n    "));
        let config = parse(&GOOD.replacen("version: \"1\"", &with, 1));
        config.map(|config| config.models[0].drop).map_err(|error| error.to_string())
    };
    let of = |json: &str| drop(&format!("speculative_config: {json}")).unwrap();
    assert_eq!(parse(GOOD).unwrap().models[0].drop, None);
    for (json, expected) in [
        ("{method: mtp, num_speculative_tokens: 2}", BlockDrop::Draft),
        ("{\"method\": \"qwen3_next_mtp\"}", BlockDrop::Draft),
        ("{method: eagle3, model: some/draft, draft_tensor_parallel_size: 1}", BlockDrop::All),
        ("{method: dspark}", BlockDrop::All),
        ("{method: eagle, disable_eagle_block_drop: true}", BlockDrop::None),
        ("{method: ngram}", BlockDrop::None),
        ("{model: \"[ngram]\"}", BlockDrop::None),
        ("{method: extract_hidden_states}", BlockDrop::None),
        ("{method: draft_model, model: some/Llama-1B}", BlockDrop::None),
        // vLLM takes a draft for what it is called.
        ("{method: draft_model, model: AngelSlim/Qwen3-8B_eagle3}", BlockDrop::All),
        ("{model: yuhuili/EAGLE-LLaMA3-Instruct-8B}", BlockDrop::All),
    ] {
        assert_eq!(of(json), Some(expected), "{json}");
    }
    for (fields, words) in [
        (
            "speculative_config: {method: lookahead}",
            "method: \"lookahead\" is none of vLLM's: mtp, ",
        ),
        (
            "speculative_config: {model: some/draft}",
            "models[0].speculative_config.method: is missing",
        ),
        ("speculative_config: mtp", "speculative_config"),
        ("engine: sglang; speculative_config: {method: eagle}", "is an option of vLLM's"),
    ] {
        let error = drop(fields).unwrap_err();
        assert!(error.contains(words), "{fields}: {error}");
    }
}

#[test]
fn errors_name_line_and_field() {
    for (from, to, line, words) in [
        ("admin: 127.0.0.1:18901", "admin: 0.0.0.0:18901", 3, "admin: must be a loopback"),
        ("listen: 127.0.0.1:18900", "listen: nowhere", 2, "listen: \"nowhere\" is not ip:port"),
        (
            "    model: demo\n    events",
            "    model: dome\n    events",
            11,
            "replicas[0].model: there is no model \"dome\"",
        ),
        ("127.0.0.1:18002\n    rank: 1", "127.0.0.1:18001", 13, "replicas[1]: another replica"),
        ("{ connect: \"tcp://127.0.0.1:18101\",", "{", 12, "replicas[0].events: needs either"),
        ("tcp://127.0.0.1:18101", "tcp://*:18101", 12, "replicas[0].events.connect"),
        (
            "adapters: [demo-lora, other]",
            "adapters: [demo]",
            7,
            "models[0].adapters[0]: \"demo\" names",
        ),
        (
            "version: \"1\"",
            "version: \"1\"\n    path: /nowhere",
            7,
            "models[0].path: /nowhere is not",
        ),
        ("port: 8000", "port: http", 21, "discovery[0].port: must be a number"),
        (
            "events_port: 5557\n    every",
            "replay_port: 1\n    every",
            21,
            "discovery[0].replay_port",
        ),
        ("port: http", "port: 0", 27, "discovery[1].port: 0 is no port"),
        (
            "kubernetes: { service: engines, namespace: llm }",
            "duplicates: doubt",
            27,
            "either dns or",
        ),
        ("namespace: llm", "kubeconfig: /no", 26, "discovery[1].kubernetes.kubeconfig: /no is no"),
        (
            "replay: \"tcp://localhost:18201\"",
            "replay: \"tcp://127.0.0.1:18101\"",
            9,
            "replicas[0].events.replay",
        ),
        (
            "bind: \"tcp://*:18102\"",
            "connect: \"tcp://127.0.0.1:18101\"",
            13,
            "replicas[1].events.connect",
        ),
        ("shared_store: hot", "shared_store: ''", 30, "discovery[1].shared_store: is empty"),
        ("weight: 1.5", "weight: 0", 33, "discovery[1].weight: 0 is not from 0.01 to 100"),
        (
            "adapters: [other, demo-lora]",
            "adapters: [other, demo]",
            34,
            "discovery[1].adapters[1]: \"demo\" is none of the adapters of model \"demo\"",
        ),
        ("ranks: 2", "ranks: 0", 35, "discovery[1].ranks: 0 is not from 1 to 1024"),
        ("    ranks: 2\n", "", 35, "discovery[1].first_rank: is of no use without ranks"),
        ("first_rank: 4", "first_rank: 60000", 31, "events_port: 5557 + rank 60001 is no port"),
        ("draining: true", "adapters: [x]", 17, "replicas[1].adapters[0]: \"x\" is none of the"),
        ("interval_ms: 100", "interval_ms: 0", 37, "polling.interval_ms: 0 is not from 10"),
    ] {
        assert!(GOOD.contains(from), "{from}");
        let error = parse(&GOOD.replacen(from, to, 1)).unwrap_err().to_string();
        assert!(error.starts_with(&format!("relay.yaml:{line}:")), "{error}");
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn ranks_of_an_engine_share_a_publisher_if_their_batches_differ() {
    let two = |first: &str, second: &str| {
        let replica = |rank: u32, events: &str| {
            format!(
                "  - {{endpoint: 127.0.0.1:1, rank: {rank}, pool: p, model: demo, events: \
                 {{connect: \"tcp://127.0.0.1:2\"{events}}}}}\n"
            )
        };
        let head = "listen: 127.0.0.1:18900\nmodels: [{name: demo, version: \"1\"}]\nreplicas:\n";
        parse(&format!("{head}{}{}", replica(0, first), replica(1, second)))
    };
    assert!(two("", "").is_ok());
    assert!(two(", rank: 2", ", rank: 3").is_ok());
    let error = two(", rank: 1", "").unwrap_err().to_string();
    assert!(error.contains("replicas[1].events.connect: another replica's"), "{error}");
}

#[test]
fn a_token_is_compared_whole_and_never_shown() {
    let token = Token::new("a secret of some length");
    assert!(token.admits(Some(b"Bearer a secret of some length")));
    for header in
        [None, Some(&b"Bearer "[..]), Some(b"a secret of some length"), Some(b"Bearer a secret")]
    {
        assert!(!token.admits(header));
    }
    assert!(!format!("{token:?}").contains("secret"));
}

#[test]
fn unknown_fields_are_refused_by_name_and_line() {
    for (from, to, word) in [
        ("draining: true", "drained: true", "drained"),
        ("interval_ms", "interval", "interval"),
        ("admin:", "amdin:", "amdin"),
    ] {
        let error = parse(&GOOD.replacen(from, to, 1)).unwrap_err().to_string();
        assert!(error.contains("relay.yaml") && error.contains(word), "{error}");
        assert!(error.contains("line"), "{error}");
    }
}
