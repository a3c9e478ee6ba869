//! What answers teach: who fails, how busy engines are, whether forecasts hold.

use super::*;
use crate::router::client::Client;

pub(super) fn answer(status: u16, endpoint: &str, attempts: usize) -> Answer {
    Answer {
        status,
        of_engine: true,
        upstream: Some(endpoint.into()),
        attempts,
        ..Answer::default()
    }
}

/// A gateway without ranks, so that the two replicas of the EU can stand in for each other.
fn of_equals() -> Gateway {
    let mut gateway = Gateway::new();
    let replicas = [1, 2].map(replica).into();
    gateway.say(Said::Replicas(Replicas { replicas }));
    gateway.tick();
    gateway
}

impl Gateway {
    fn send(&mut self, ids: &[u32]) -> Told {
        let body = json!({"model": "demo", "prompt": ids}).to_string();
        match self.ask(Some("eu"), "/v1/completions", Body::Whole(body.as_bytes())) {
            Decided::Route(told) => told,
            other => panic!("{other:?}"),
        }
    }

    fn in_flight(&self) -> Vec<u32> {
        self.router.view.world.loads.iter().map(|load| load.in_flight).collect()
    }
}

#[test]
fn a_replica_that_fails_is_left_alone_until_it_serves_again() {
    let mut gateway = of_equals();
    let ids: Vec<u32> = (0..320).collect();
    gateway.hold(1, &ids, "", "");
    for prompt in 0..3 {
        // Of the same beginning, and each another one.
        let mut told = gateway.send(&[&ids[..], &[prompt]].concat());
        assert_eq!(told.ticket.named.endpoints(), "10.0.0.1:8000,10.0.0.2:8000");
        // Envoy tried the first, which did not answer, and then the second.
        gateway.router.answered(&mut told.ticket, &answer(200, "10.0.0.2:8000", 2), || NOW + 100);
        assert_eq!(gateway.in_flight(), [0, 1], "it counts where it is");
        assert_eq!(told.ticket.expected, None, "nothing was promised of that one");
        gateway.router.landed(&mut told.ticket);
        assert_eq!(gateway.in_flight(), [0, 0]);
    }
    let told = gateway.routed("eu", &json!({"model": "demo", "prompt": ids}));
    assert_eq!(told.ticket.named.endpoints(), "10.0.0.2:8000");
    gateway.router.tick(NOW + 2_000);
    let told = gateway.routed("eu", &json!({"model": "demo", "prompt": ids}));
    assert_eq!(told.ticket.named.endpoints(), "10.0.0.2:8000", "still");
    gateway.router.tick(NOW + 2_200);
    let mut told = gateway.send(&ids);
    assert_eq!(told.ticket.named.endpoints(), "10.0.0.1:8000,10.0.0.2:8000", "on trial");
    gateway.router.answered(&mut told.ticket, &answer(503, "10.0.0.1:8000", 1), || NOW + 2_200);
    gateway.router.landed(&mut told.ticket);
    assert_eq!(
        gateway.send(&ids).ticket.named.endpoints(),
        "10.0.0.2:8000",
        "one failure is enough"
    );
}

#[test]
fn a_reported_load_counts_until_the_relay_says_something_newer() {
    use warmpath_routing::orca::Orca;
    let mut gateway = of_equals();
    let load = |slot, waiting| Load { slot, waiting, running: 2, kv_usage: 0.5, rtt_us: 0 };
    let tell = |gateway: &mut Gateway, loads: Vec<Load>, at| {
        gateway.say(Said::Loads(Loads { loads }));
        gateway.router.tick(at);
    };
    let waiting = |gateway: &Gateway| {
        let loads = &gateway.router.view.world.loads;
        assert_eq!(loads[0].running, 2, "what isn't reported stays");
        [loads[0].waiting, loads[1].waiting]
    };
    tell(&mut gateway, vec![load(1, 4), load(2, 4)], NOW);
    let report = |gateway: &mut Gateway, waiting, at| {
        let mut told = gateway.send(&[1, 2, 3]);
        let orca = Orca { waiting: Some(waiting), ..Orca::default() };
        let answer = Answer { orca: Some(orca), ..answer(200, "10.0.0.1:8000", 1) };
        told.ticket.named = [("10.0.0.1:8000", gateway.router.view.names[0])].into_iter().collect();
        gateway.router.answered(&mut told.ticket, &answer, || at);
        gateway.router.landed(&mut told.ticket);
    };
    report(&mut gateway, 9, NOW + 10);
    assert_eq!(waiting(&gateway), [9, 4]);
    // Ticks, and news of another replica, leave it; news of its own don't.
    gateway.router.tick(NOW + 50);
    tell(&mut gateway, vec![load(2, 5)], NOW + 60);
    assert_eq!(waiting(&gateway), [9, 5]);
    tell(&mut gateway, vec![load(1, 3)], NOW + 70);
    assert_eq!(waiting(&gateway), [3, 5]);
    // Nor does it count for long where no news come; the last of several reports does.
    report(&mut gateway, 8, NOW + 80);
    report(&mut gateway, 7, NOW + 90);
    gateway.router.tick(NOW + 1_080);
    assert_eq!(waiting(&gateway), [7, 5]);
    gateway.router.tick(NOW + 1_090);
    assert_eq!(waiting(&gateway), [3, 5]);
}

#[test]
fn answers_of_envoy_itself_eject_only_for_what_engines_did() {
    let ids: Vec<u32> = (0..320).collect();
    let own = |upstream_failed, attempts| Answer {
        status: 503,
        upstream_failed,
        attempts,
        ..Answer::default()
    };
    let refused_all = own(true, 2);
    for (answer, alone) in [
        (own(false, 0), false),
        (answer(500, "10.0.0.1:8000", 1), false),
        (answer(429, "10.0.0.1:8000", 1), false),
        // Both failed: nobody is left alone, as nobody would be left.
        (refused_all, false),
        (answer(503, "10.0.0.1:8000", 1), true),
    ] {
        let mut gateway = of_equals();
        gateway.hold(1, &ids, "", "");
        for other in 0..3 {
            let mut told = gateway.send(&[&ids[..], &[other]].concat());
            assert_eq!(told.slot, Some(1));
            let client = Client { connection: other.into(), ..Client::default() };
            let answer = Answer { client: Some(client), ..answer.clone() };
            gateway.router.answered(&mut told.ticket, &answer, || NOW + 100);
            gateway.router.landed(&mut told.ticket);
        }
        let told = gateway.send(&ids);
        assert_eq!(told.slot == Some(2), alone, "{answer:?}");
        assert_eq!(told.ticket.named.endpoints().contains(','), !alone, "{answer:?}");
    }
}

#[test]
fn a_forecast_that_fails_shows_and_one_that_holds_does_not() {
    use warmpath_routing::usage::{Reported, Usage};
    let mut gateway = of_equals();
    let ids: Vec<u32> = (0..320).collect();
    gateway.hold(1, &ids, "", "");
    let usage = |cached| Some(Usage { prompt: Some(320), cached });
    let mut finish = |usage: Option<Usage>, times: u32| {
        for _ in 0..times {
            let mut told = gateway.send(&ids);
            assert_eq!(told.ticket.expected.unwrap().prompt, Some(320));
            gateway.router.answered(&mut told.ticket, &answer(200, "10.0.0.1:8000", 1), || NOW);
            gateway.router.first_token(&mut told.ticket, None);
            gateway.router.finished(&told.ticket, usage);
            gateway.router.landed(&mut told.ticket);
            gateway.settle();
        }
        let totals = gateway.router.traffic.totals(NOW);
        assert_eq!((totals.in_flight, totals.cold_tokens), (0, 0));
        let [missing, surprise] = drifting(&gateway.router);
        assert_eq!(surprise, 0);
        missing
    };
    assert_eq!(finish(usage(Reported::Null), 20), 0, "it has never told: that is no zero");
    assert_eq!(finish(None, 20), 0);
    assert_eq!(finish(usage(Reported::Tokens(304)), 5), 0);
    assert_eq!(finish(usage(Reported::Null), 4), 0);
    assert_eq!(finish(usage(Reported::Null), 4), 1, "it tells, so that this is none");
    assert_eq!(finish(usage(Reported::Tokens(304)), 60), 0, "all is well again");
}

#[test]
fn a_burst_meets_before_any_event() {
    let mut gateway = of_equals();
    let system: Vec<u32> = (0..112).collect();
    let mut slots = Vec::new();
    for tail in 0..6_u32 {
        let ids: Vec<u32> = system.iter().copied().chain((0..40).map(|i| i + tail * 50)).collect();
        let mut told = gateway.send(&ids);
        says(&told, "reason", &quoted(if tail == 0 { "cold" } else { "recent" }));
        slots.push(told.slot);
        gateway.router.landed(&mut told.ticket);
    }
    slots.dedup();
    assert_eq!(slots.len(), 1);
}

#[test]
fn of_many_answers_some_are_looked_into_but_all_of_a_replica_that_fails() {
    let mut gateway = of_equals();
    let mut told = gateway.send(&[1, 2, 3]);
    let served_by = told.ticket.named.foreseen().unwrap().to_owned();
    let mut looked_into = |gateway: &mut Gateway, status| {
        if let Some(status) = status {
            let answer = answer(status, &served_by, 1);
            gateway.router.answered(&mut told.ticket, &answer, || NOW);
        }
        (0..1_000).filter(|_| gateway.router.looks_into(&told.ticket)).count()
    };
    let first = looked_into(&mut gateway, None);
    assert!((1..1_000).contains(&first), "{first}");
    gateway.router.tick(NOW + 100);
    assert!((1..first).contains(&looked_into(&mut gateway, None)));
    assert_eq!(looked_into(&mut gateway, Some(503)), 1_000);
    assert_eq!(looked_into(&mut gateway, Some(200)), 0);
    assert!(!gateway.router.looks_into(&Ticket::default()), "where Envoy chose");
}

#[test]
fn who_looks_around_less_often_does_so_before_deciding() {
    let mut gateway = of_equals();
    let quiet = |gateway: &mut Gateway| {
        (0..100).for_each(|_| gateway.tick());
        gateway.router.tick_ms()
    };
    assert_eq!(quiet(&mut gateway), Some(500));
    assert_eq!(gateway.router.tick_ms(), None);
    let mut told = gateway.send(&[1, 2, 3]);
    assert_eq!(gateway.router.tick_ms(), Some(50));
    // Others are to hear how that ends.
    assert_eq!(quiet(&mut gateway), None);
    gateway.router.landed(&mut told.ticket);
    assert_eq!(quiet(&mut gateway), Some(500));

    // All but one go, and no tick looks.
    let left = replica(if told.slot == Some(1) { 2 } else { 1 });
    gateway.say(Said::Replicas(Replicas { replicas: vec![left.clone()] }));
    let told = gateway.send(&[1, 2, 3]);
    assert_eq!(told.ticket.named.endpoints(), left.endpoint);
}

#[test]
fn who_waits_for_a_map_looks_often() {
    let mut gateway = of_equals();
    let later = NOW + 60_000;
    (0..100).for_each(|_| gateway.router.tick(later));
    assert!(!gateway.router.view.world.fresh);
    assert_eq!(gateway.router.tick_ms(), None);
}
