//! Prompts that kill engines, and engines that are not to be ejected for what a request did.

use warmpath_routing::health::Ending;

use super::*;
use crate::router::client::Client;

const BODY: &[u8] = br#"{"model": "demo", "prompt": "Nobody lives through this one."}"#;

/// A gateway without ranks, of three equal replicas in the EU.
fn of_three() -> Gateway {
    let mut gateway = Gateway::new();
    let replicas = [1, 2, 3].map(replica).into();
    gateway.say(Said::Replicas(Replicas { replicas }));
    gateway.tick();
    gateway
}

fn from(connection: u64, address: &str) -> Client {
    Client { connection, address: address.into() }
}

/// Envoy's own answer, after so many attempts, the last of which ended so.
fn none_answered(attempts: usize, ending: Ending) -> Answer {
    let client = Some(from(1, "10.9.9.9"));
    Answer { status: 503, upstream_failed: true, ending, client, attempts, ..Answer::default() }
}

impl Gateway {
    fn send_body(&mut self, body: Body<'_>, now: u64) -> Decided {
        let api = Api::of_path("/v1/completions");
        let asked = Asked {
            zone: Claim::Zone("eu"),
            api,
            body,
            response: None,
            content_length: None,
            form: None,
            batch: false,
            may_wait: false,
        };
        self.router.tick(now);
        self.router.dispatch(&asked, now)
    }

    /// Sends the body, and Envoy says this of it.
    fn fails(&mut self, body: Body<'_>, answer: &Answer, now: u64) -> Vec<String> {
        match self.send_body(body, now) {
            Decided::Route(mut told) => {
                self.router.answered(&mut told.ticket, answer, || now);
                self.router.landed(&mut told.ticket);
                told.ticket.named.endpoints().split(',').map(str::to_owned).collect()
            }
            other => panic!("{other:?}"),
        }
    }

    fn is_refused(&mut self, body: Body<'_>, now: u64) -> bool {
        match self.send_body(body, now) {
            Decided::Route(mut told) => {
                self.router.landed(&mut told.ticket);
                false
            }
            Decided::Refuse(refusal) => {
                let told = (refusal.status, refusal.kind, refusal.code, refusal.retry_after);
                assert_eq!(told, (422, "invalid_request_error", "poison", None));
                assert!(refusal.message.contains("Don't retry"));
                true
            }
            Decided::Wait => panic!(),
        }
    }

    /// Those that are ejected, by a prompt that nobody else sends.
    fn ejected(&mut self, now: u64) -> u64 {
        self.router.tick(now);
        self.router.traffic.totals(now).ejected
    }
}

#[test]
fn a_prompt_that_kills_two_engines_is_refused_for_a_while_and_no_other() {
    let large = Large::new(None);
    let mut gateway = of_three();
    let body = Body::Whole(BODY);
    gateway.fails(body, &none_answered(2, Ending::Dropped), NOW);
    let later = NOW + 2_000;
    assert!(gateway.is_refused(body, later));
    let mut other = BODY.to_vec();
    *other.last_mut().unwrap() = b' ';
    other.push(b'}');
    assert!(!gateway.is_refused(Body::Whole(&other), later));
    assert!(!gateway.is_refused(NO_BODY, later));
    // Only its start was looked at: as far as anybody knows that is another one.
    assert!(!gateway.is_refused(Body::TooLarge(&large, BODY), later));
    // Then it may try again, and one death is enough.
    let later = NOW + 300_000;
    gateway.fails(body, &none_answered(1, Ending::Dropped), later);
    assert!(gateway.is_refused(body, later + 599_999));
    assert!(!gateway.is_refused(body, later + 600_000));
}

#[test]
fn a_body_that_is_too_large_to_be_read_is_known_again_too() {
    let large = Large::new(None);
    let mut gateway = of_three();
    let body = Body::TooLarge(&large, BODY);
    gateway.fails(body, &none_answered(2, Ending::Dropped), NOW);
    assert!(gateway.is_refused(body, NOW + 2_000));
    assert!(!gateway.is_refused(Body::Whole(BODY), NOW + 2_000));
}

#[test]
fn what_killed_nobody_is_no_poison() {
    for (attempts, ending) in [
        (3, Ending::NoConnection),
        (3, Ending::Other),
        // One engine, once.
        (1, Ending::Dropped),
    ] {
        let mut gateway = of_three();
        gateway.fails(Body::Whole(BODY), &none_answered(attempts, ending), NOW);
        assert!(!gateway.is_refused(Body::Whole(BODY), NOW + 2_000), "{attempts} {ending:?}");
    }
    // Another status is an answer.
    let mut gateway = of_three();
    for status in [500, 502, 503, 504] {
        let answer = Answer {
            status,
            of_engine: true,
            upstream: Some("10.0.0.1:8000".into()),
            attempts: 1,
            ..Answer::default()
        };
        gateway.fails(Body::Whole(BODY), &answer, NOW);
    }
    assert!(!gateway.is_refused(Body::Whole(BODY), NOW + 2_000));
    // And it can be switched off.
    let mut gateway = Gateway::with(json!({"poison": {"engines": 0}}));
    for _ in 0..5 {
        gateway.fails(Body::Whole(BODY), &none_answered(2, Ending::Dropped), NOW);
    }
    assert!(!gateway.is_refused(Body::Whole(BODY), NOW));
}

#[test]
fn an_engine_that_was_ill_before_did_not_die_of_it() {
    let mut gateway = of_three();
    // It takes no connections, as another request finds.
    let other = Body::Whole(br#"{"model": "demo", "prompt": "Another one."}"#);
    let ill = |endpoint: &str| Answer {
        upstream: Some(endpoint.into()),
        ..none_answered(1, Ending::NoConnection)
    };
    // Whoever is asked first for the poison.
    let Decided::Route(mut told) = gateway.send_body(Body::Whole(BODY), NOW) else { panic!() };
    gateway.router.landed(&mut told.ticket);
    let first = told.ticket.named.foreseen().unwrap().to_owned();
    gateway.fails(other, &ill(&first), NOW);
    let order = gateway.fails(Body::Whole(BODY), &none_answered(2, Ending::Dropped), NOW + 1);
    assert_eq!(order.first(), Some(&first));
    assert!(!gateway.is_refused(Body::Whole(BODY), NOW + 2), "one died, the other was dead");
    // The second one did; the next makes two.
    let last = Answer { upstream: order.last().cloned(), ..none_answered(1, Ending::Dropped) };
    gateway.fails(Body::Whole(BODY), &last, NOW + 3);
    assert!(gateway.is_refused(Body::Whole(BODY), NOW + 4));
}

#[test]
fn streams_that_break_off_count_and_whoever_lives_through_it_acquits_it() {
    let mut gateway = of_three();
    let client = from(1, "10.9.9.9");
    let breaks_off = |gateway: &mut Gateway, endpoint: &str| {
        let Decided::Route(mut told) = gateway.send_body(Body::Whole(BODY), NOW) else { panic!() };
        gateway.router.broke_off(&told.ticket, endpoint, Some(&client), NOW);
        gateway.router.landed(&mut told.ticket);
    };
    let refused = |gateway: &mut Gateway| gateway.is_refused(Body::Whole(BODY), NOW);
    breaks_off(&mut gateway, "10.0.0.1:8000");
    breaks_off(&mut gateway, "10.0.0.1:8000");
    assert!(!refused(&mut gateway), "the same one again");
    // All of its answers are looked into now, or nobody would see that one is.
    let Decided::Route(told) = gateway.send_body(Body::Whole(BODY), NOW) else { panic!() };
    assert!((0..1_000).all(|_| gateway.router.looks_into(&told.ticket)));
    gateway.router.lived(&told.ticket);
    assert!(!(0..1_000).all(|_| gateway.router.looks_into(&told.ticket)));
    breaks_off(&mut gateway, "10.0.0.2:8000");
    assert!(!refused(&mut gateway), "the first was forgiven");
    breaks_off(&mut gateway, "10.0.0.3:8000");
    assert!(refused(&mut gateway));
    // Also by one that was under way.
    gateway.router.lived(&told.ticket);
    assert!(!refused(&mut gateway));
}

/// Sends eight bodies, by eight connections of as many addresses as asked for, each of which all
/// that are tried drop. Gives how many replicas are ejected then.
fn ejected(addresses: u64, body: &dyn Fn(u64) -> Vec<u8>, large: bool, ending: Ending) -> u64 {
    let mut gateway = of_three();
    let unread = Large::new(None);
    for at in 0..8 {
        let bytes = body(at);
        let body = if large { Body::TooLarge(&unread, &bytes) } else { Body::Whole(&bytes) };
        let address = format!("10.9.9.{}", at % addresses);
        let client = Some(from(at, &address));
        gateway.fails(body, &Answer { client, ..none_answered(1, ending) }, NOW);
    }
    gateway.ejected(NOW + 1)
}

#[test]
fn bodies_that_engines_reset_eject_nobody_for_the_others() {
    let each = |at: u64| format!(r#"{{"model": "demo", "prompt": "Number {at}."}}"#).into_bytes();
    let same = |_| BODY.to_vec();
    // One client, many bodies that nobody reads to their end.
    assert_eq!(ejected(1, &each, true, Ending::Dropped), 0);
    // Nor one prompt of many clients.
    let off = json!({"poison": {"engines": 0}});
    let mut gateway = Gateway::with(off);
    for at in 0..8 {
        let client = Some(from(at, &format!("10.9.9.{at}")));
        gateway.fails(
            Body::Whole(&same(at)),
            &Answer { client, ..none_answered(1, Ending::Dropped) },
            NOW,
        );
    }
    assert_eq!(gateway.ejected(NOW + 1), 0);
    // Nor one connection.
    let mut gateway = of_three();
    for at in 0..8 {
        gateway.fails(Body::Whole(&each(at)), &none_answered(1, Ending::Dropped), NOW);
    }
    assert_eq!(gateway.ejected(NOW + 1), 0);
    // Many clients with a prompt each are no chance.
    assert!(ejected(8, &each, false, Ending::Dropped) > 0);
    assert!(ejected(8, &each, true, Ending::Dropped) > 0);
    // Who takes no connection is ejected by whatever finds that.
    assert!(ejected(1, &same, false, Ending::NoConnection) > 0);
    assert!(ejected(1, &each, true, Ending::NoConnection) > 0);
}

#[test]
fn an_engine_that_answers_a_prompt_with_an_error_is_not_ejected_by_that_prompt_alone() {
    for (connections, prompts, expected) in [(8, 1, 0), (1, 8, 0), (8, 8, 1)] {
        for status in [502, 503, 504] {
            let mut gateway = of_three();
            for at in 0..8_u64 {
                let answer = Answer {
                    status,
                    of_engine: true,
                    upstream: Some("10.0.0.1:8000".into()),
                    attempts: 1,
                    client: Some(from(at % connections, "10.9.9.9")),
                    ..Answer::default()
                };
                let prompt = at % prompts;
                let body = format!(r#"{{"model": "demo", "prompt": "Number {prompt}."}}"#);
                let Decided::Route(mut told) = gateway.send_body(Body::Whole(body.as_bytes()), NOW)
                else {
                    panic!()
                };
                told.ticket.named =
                    [("10.0.0.1:8000", gateway.router.view.names[0])].into_iter().collect();
                gateway.router.answered(&mut told.ticket, &answer, || NOW);
                gateway.router.landed(&mut told.ticket);
            }
            assert_eq!(gateway.ejected(NOW + 1), expected, "{status} {connections} {prompts}");
        }
    }
}

#[test]
fn an_engine_that_says_that_it_failed_and_goes_down_died_of_it() {
    let mut gateway = of_three();
    let body = Body::Whole(BODY);
    let down = |slot: u32| Replica { state: v1::replica::State::Down.into(), ..replica(slot) };
    let mut dead = Vec::new();
    for at in 0..2 {
        assert!(!gateway.is_refused(body, NOW + at));
        let Decided::Route(mut told) = gateway.send_body(body, NOW + at) else { panic!() };
        let first = told.ticket.named.foreseen().unwrap().to_owned();
        let client = Some(from(at, "10.9.9.9"));
        let last_words = Answer { client, ..answers::answer(500, &first, 1) };
        gateway.router.answered(&mut told.ticket, &last_words, || NOW + at);
        gateway.router.landed(&mut told.ticket);
        assert!(!gateway.is_refused(body, NOW + at), "it may live");
        dead.extend((1..=3).filter(|slot| first == format!("10.0.0.{slot}:8000")));
        let state = |slot: u32| if dead.contains(&slot) { down(slot) } else { replica(slot) };
        gateway.say(Said::Replicas(Replicas { replicas: (1..=3).map(state).collect() }));
        gateway.tick();
    }
    assert!(gateway.is_refused(body, NOW + 2));
}
