//! Chats that begin as others did.

use super::*;

#[test]
fn bodies_that_begin_alike_are_read_as_each_alone_would_be() {
    let system = "You are a helpful assistant. Answer briefly and in plain words. ".repeat(40);
    let body = |model: &str, question: &str| {
        let question =
            format!("{question} {}", "When does it close, and is there a train? ".repeat(3));
        json!({"model": model, "messages": [
            {"role": "system", "content": system}, {"role": "user", "content": question},
        ]})
    };
    let mut gateway = Gateway::new();
    let mut keys = std::collections::BTreeSet::new();
    for version in ["1", "2"] {
        gateway.serve_version(version);
        gateway.tick();
        for model in ["demo", "alias", "lora"] {
            for question in ["Why?", "And the \"night train\"?\n", "\u{e9}", "Why?"] {
                let unknown = body("unknown", question).to_string();
                let decided = gateway.ask(Some("eu"), CHAT, Body::Whole(unknown.as_bytes()));
                assert!(matches!(decided, Decided::Refuse(refusal) if refusal.status == 404));
                let body = body(model, question);
                let key = gateway.routed("eu", &body).last_key;
                // Another VM, which has read nothing else.
                let alone = std::thread::spawn(move || {
                    let mut gateway = Gateway::new();
                    gateway.serve_version(version);
                    gateway.tick();
                    gateway.routed("eu", &body).last_key
                });
                assert_eq!(key, alone.join().unwrap(), "{model} {version} {question}");
                keys.insert(key);
            }
        }
    }
    assert_eq!(keys.len(), 2 * 2 * 3, "two versions, with and without adapter, three questions");
}

#[test]
fn a_question_is_read_to_its_end_where_somebody_holds_its_start() {
    let system = "You are a helpful assistant. Answer briefly and in plain words. ".repeat(160);
    let body = |question: &str| {
        json!({"model": "demo", "messages": [
            {"role": "system", "content": system},
            {"role": "user", "content": format!("{question} When does the library close today?")},
        ]})
    };
    let mut gateway = Gateway::new();
    let mut prompter = Prompter::new(Loadable::load(gateway.artefact.clone()).unwrap(), 0);
    let mut ids = |body: &serde_json::Value| {
        let body = body.to_string();
        let request = Request::parse(Api::Chat, body.as_bytes()).unwrap();
        prompter.tokens(&request, None, 0).unwrap().ids
    };
    let asked = body("We have asked this one before, in the very same words, and more than once.");
    let (known, other) = (ids(&asked), ids(&body("Another one.")));
    let shared = known.iter().zip(&other).take_while(|(a, b)| a == b).count();
    gateway.hold(1, &known, "", "");
    gateway.hold(3, &known[..shared], "", "");
    let whole = |told: &Told| told.ticket.expected.unwrap().prompt.is_some();
    let mut left_out = 0;
    for at in 0..24 {
        let told = gateway.routed("eu", &body(&format!("Number {at} is another one.")));
        says(&told, "cached", &(shared / 16 * 16));
        left_out += usize::from(!whole(&told));
    }
    assert!((15..24).contains(&left_out), "{left_out}: mostly, and not always");
    // What some replica holds that the zone doesn't admit is nobody's.
    let elsewhere = body("And this one has been asked elsewhere, by others, in the same words.");
    gateway.hold(3, &ids(&elsewhere), "", "");
    for others in 20..24 {
        let told = gateway.routed("eu", &asked);
        assert!(whole(&told));
        says(&told, "cached", &((known.len() - 1) / 16 * 16));
        says(&told, "prompt", &known.len());
        let told = gateway.routed("eu", &elsewhere);
        says(&told, "cached", &(shared / 16 * 16));
        assert_eq!(told.slot, Some(1));
        // As it mattered, all are read for a while.
        let told: Vec<Told> =
            (0..others).map(|_| gateway.routed("eu", &body("One that nobody asked."))).collect();
        assert!(!told[16..].iter().all(whole));
    }
}

#[test]
fn questions_are_read_whole_where_leaving_out_would_mislead() {
    let body = |question: &str, times: usize| {
        let system =
            "You are a helpful assistant. Answer briefly and in plain words. ".repeat(times);
        json!({"model": "demo", "messages": [
            {"role": "system", "content": system},
            {"role": "user", "content": question},
        ]})
    };
    let whole = |told: &Told| told.ticket.expected.unwrap().prompt.is_some();
    let left_out = |gateway: &mut Gateway, question: &str| {
        let all = (0..8).map(|_| gateway.routed("eu", &body(question, 160)));
        all.filter(|told| !whole(told)).count()
    };
    let mut gateway = Gateway::new();
    left_out(&mut gateway, "What is it?");
    assert!(left_out(&mut gateway, "What is it?") > 5);
    assert!(left_out(&mut gateway, "\u{6f22}\u{5b57} \u{e9}t\u{e9}?") > 5);
    // Each of these is three characters when it is normalised, and many tokens.
    assert_eq!(left_out(&mut gateway, &"\u{1d160}".repeat(30)), 0);
    assert_eq!(left_out(&mut gateway, &"0123456789".repeat(30)), 0);

    // While the map and an engine may drift apart, its counts of tokens are wanted.
    for at in 0..8 {
        let mut told = gateway.routed("eu", &body("What is it?", 160));
        told.ticket.at = gateway.router.view.names.first().copied();
        let expected = told.ticket.expected.as_mut().unwrap();
        expected.cached = 1_600;
        expected.next.slot = 1;
        let cached = warmpath_routing::usage::Reported::Tokens(0);
        let usage = warmpath_routing::usage::Usage { prompt: Some(2_000), cached };
        gateway.router.finished(&told.ticket, Some(usage));
        gateway.settle();
        assert!(at < 3 || whole(&gateway.routed("eu", &body("What is it?", 160))));
    }

    // What names a prompt on the ring is read.
    let mut gateway = Gateway::with(json!({"ring": {"blocks": 500}}));
    let mut keys = std::collections::BTreeSet::new();
    for _ in 0..20 {
        keys.insert(gateway.routed("eu", &body(&"What is it? ".repeat(9), 160)).last_key);
    }
    assert_eq!(keys.len(), 1);
}
