//! Requests that refer to responses which one replica stores.

use super::answers::answer;
use super::*;
use crate::router::stored::Stored;

const RESPONSES: &str = "/v1/responses";

impl Gateway {
    /// A gateway without ranks, of two equal replicas in the EU and one in the US.
    fn of_equals() -> Self {
        let mut gateway = Self::new();
        let replicas =
            vec![replica(1), replica(2), Replica { pool: "demo-us".into(), ..replica(3) }];
        gateway.say(Said::Replicas(Replicas { replicas }));
        gateway.tick();
        gateway
    }

    fn posts(&mut self, zone: &str, body: &serde_json::Value) -> Told {
        let body = body.to_string();
        let Decided::Route(mut told) =
            self.ask(Some(zone), RESPONSES, Body::Whole(body.as_bytes()))
        else {
            panic!()
        };
        self.router.landed(&mut told.ticket);
        told
    }

    fn gets(&mut self, zone: &str, id: &str) -> Told {
        let asked = Asked {
            zone: Claim::Zone(zone),
            api: None,
            body: NO_BODY,
            response: Some(id),
            content_length: None,
            form: None,
            batch: false,
            may_wait: false,
        };
        let Decided::Route(mut told) = self.router.dispatch(&asked, NOW + 100) else { panic!() };
        self.router.landed(&mut told.ticket);
        told
    }

    fn stores(&mut self, zone: &str, id: &str, endpoint: &str) {
        let told = self.posts(zone, &json!({"model": "demo", "input": "Hi"}));
        let holder = self.router.who_answered(&told.ticket, &answer(200, endpoint, 1)).unwrap();
        self.router.remember(Claim::Zone(zone), id, holder, NOW);
    }
}

#[test]
fn what_refers_to_a_response_goes_where_that_is() {
    let mut gateway = Gateway::of_equals();
    let told = gateway.posts("eu", &json!({"model": "demo", "input": "Hi"}));
    assert!(told.stored.keeps && told.stored.sought.is_none());
    for n in 1..=2 {
        gateway.stores("eu", &format!("resp_{n}"), &format!("10.0.0.{n}:8000"));
    }
    for n in [1, 2, 1] {
        let (id, endpoint) = (format!("resp_{n}"), format!("10.0.0.{n}:8000"));
        let body = json!({"model": "demo", "input": "And?", "previous_response_id": id});
        for told in [gateway.posts("eu", &body), gateway.gets("eu", &id)] {
            says(&told, "reason", &quoted("response"));
            assert!(!told.explain.contains("degrade"), "{}", told.explain);
            assert_eq!(told.ticket.named.endpoints(), endpoint);
            assert!(told.only_named, "no other one has it");
            assert_eq!((told.ticket.seeks, told.ticket.expected), (false, None));
        }
        assert!(gateway.posts("eu", &body).stored.keeps);
        assert!(!gateway.gets("eu", &id).stored.matters());
    }
    let unkept = json!({"model": "demo", "input": "Hi", "store": false});
    assert!(!gateway.posts("eu", &unkept).stored.matters());
}

#[test]
fn one_that_nobody_knows_is_sought_within_its_zone() {
    let mut gateway = Gateway::of_equals();
    gateway.stores("eu", "resp_1", "10.0.0.1:8000");
    gateway.stores("global", "resp_3", "10.0.0.3:8000");
    // Another zone's id says nothing, and no zone is left for one.
    for (zone, id, most) in [("eu", "resp_0", 2), ("eu", "resp_3", 2), ("global", "resp_1", 3)] {
        let mut told = gateway.gets(zone, id);
        says(&told, "degrade", &quoted(Degrade::UnknownResponse.name()));
        let named = told.ticket.named.endpoints().to_owned();
        assert_eq!(named.split(',').count(), most, "{named}");
        assert!(zone == "global" || !named.contains("10.0.0.3"), "{named}");
        assert!(told.ticket.seeks && told.stored.sought.as_deref() == Some(id));
        // The last one has it: the others did not fail by that.
        let last = named.rsplit(',').next().unwrap().to_owned();
        let found = answer(200, &last, most);
        for _ in 0..5 {
            gateway.router.answered(&mut told.ticket, &found, || NOW);
        }
        assert_eq!(gateway.router.traffic.totals(NOW).ejected, 0);
        let holder = gateway.router.who_answered(&told.ticket, &found).unwrap();
        let id = told.stored.answered(holder, false).unwrap();
        gateway.router.landed(&mut told.ticket);
        gateway.router.remember(Claim::Zone(zone), &id, holder, NOW);
        let again = gateway.gets(zone, &id);
        assert_eq!(again.ticket.named.endpoints(), last);
    }
    // A 404 of the last one is no find.
    let told = gateway.gets("eu", "resp_9");
    assert_eq!(gateway.router.who_answered(&told.ticket, &answer(404, "10.0.0.1:8000", 2)), None);
}

#[test]
fn a_replica_that_went_is_sought_in_vain_and_a_silent_relay_is_no_reason_to() {
    let mut gateway = Gateway::of_equals();
    gateway.stores("eu", "resp_2", "10.0.0.2:8000");
    gateway.router.tick(NOW + 60_000);
    assert_eq!(gateway.gets("eu", "resp_2").ticket.named.endpoints(), "10.0.0.2:8000");
    gateway.say(Said::Replicas(Replicas { replicas: vec![replica(1)] }));
    gateway.tick();
    let told = gateway.gets("eu", "resp_2");
    assert_eq!(told.ticket.named.endpoints(), "10.0.0.1:8000");
    assert!(told.ticket.seeks);
    // Also where no body could be read.
    let told = gateway.gets("eu", &"x".repeat(100_000));
    assert_eq!(told.stored.sought.map(|id| id.len()), Some(100_000));
    assert_eq!(Stored::default(), Stored::new(None, false));
}
