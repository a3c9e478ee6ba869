//! What this gateway sees fail it leaves alone, also when nobody tells it.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::expect_used, clippy::panic)]

use warmpath_tests::{Answer, Options, Stack, eventually};

fn ask(stack: &Stack, what: usize) -> Answer {
    stack.client().chat("eu", &format!("You are number {what}."), "Hello?").unwrap()
}

#[test]
fn a_dead_replica_is_left_alone_without_a_relay() {
    let mut options = Options::quickstart().unwrap();
    options.engine_flags = ["--speedup", "50"].map(String::from).into();
    // Envoy's own checks would hide what is to be seen here.
    options.envoy_edits = vec![
        ("interval: 1s\n          no_traffic".into(), "interval: 60s\n          no_traffic".into()),
        ("no_traffic_interval: 1s".into(), "no_traffic_interval: 60s".into()),
    ];
    let mut stack = Stack::start(options).unwrap();
    let stat = |stack: &Stack, name: &str| {
        stack.stat(&format!("wasmcustom.warmpath.router.{name}")).unwrap()
    };
    // Nobody tells the filter any more: both replicas stay as they were last.
    stack.kill_relay();
    eventually("a stale map", || ask(&stack, 0).explained("degrade") == "stale_map");
    let dead = stack.endpoint(0);
    let named = |stack: &Stack, from: usize| {
        let client = stack.client();
        let answers = (from..from + 60)
            .map(|what| client.chat("eu", &format!("You are number {what}."), "Hello?").unwrap());
        answers
            .map(|answer| {
                assert_eq!((answer.status, answer.engine_region()), (200, "eu-west"), "{answer:?}");
                usize::from(answer.explained("replica") == dead)
            })
            .sum::<usize>()
    };
    let well = named(&stack, 0);
    assert!((15..45).contains(&well), "the ring gives each its half: {well}");
    assert_eq!(stat(&stack, "ejections"), 0);

    stack.kill_engine(0);
    let ill = named(&stack, 0);
    assert!(ill < well / 2, "named {ill} times, {well} when it was well");
    assert!(stat(&stack, "ejections") > 0);
    assert!(stat(&stack, "replica_failures") as usize >= ill.min(3));

    // It is back, and after its time it gets its half again.
    stack.start_engine(0).unwrap();
    eventually("a trial", || ask(&stack, 1).engine() == dead || named(&stack, 0) > well / 2);

    // The last of a zone is never left alone: whoever is back is asked at once.
    stack.kill_engine(0);
    stack.kill_engine(1);
    for what in 0..20 {
        let answer = ask(&stack, what);
        assert_eq!(answer.status, 503, "{answer:?}");
        assert_eq!(answer.header("retry-after"), "1", "{answer:?}");
        assert!(answer.json().unwrap()["error"]["message"].is_string());
    }
    stack.start_engine(1).unwrap();
    eventually("service", || ask(&stack, 3).status == 200);
}
