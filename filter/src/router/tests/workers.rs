//! Several workers of one Envoy see an engine go wrong together.

use warmpath_routing::drift::Suspect;
use warmpath_routing::usage::{Reported, Usage};

use super::*;

/// However many workers share the answers, the alarm comes after as many of them.
#[test]
fn the_alarm_does_not_wait_for_each_worker_to_see_it_all() {
    let ids: Vec<u32> = (0..320).collect();
    for workers in [1_usize, 2, 16, 64] {
        let mut gateway = Gateway::new();
        gateway.say(Said::Replicas(Replicas { replicas: vec![replica(1)] }));
        gateway.hold(1, &ids, "", "");
        let mut data = gateway.router.map.0.clone();
        let mut all: Vec<Dispatch<Memory>> =
            (0..workers).map(|id| gateway.worker(id as u64 + 2)).collect();
        let mut now = NOW;
        let mut asked = 0;
        while all.first().unwrap().feedback.drifts.table().suspected(Suspect::Events) == 0 {
            assert!(asked < 25, "{workers} workers");
            let worker = all.get_mut(asked % workers).unwrap();
            asked += 1;
            std::mem::swap(&mut worker.map.0, &mut data);
            worker.tick(now);
            let body = json!({"model": "demo", "prompt": ids}).to_string();
            let asked = Asked {
                zone: Claim::Zone("eu"),
                api: Api::of_path("/v1/completions"),
                body: Body::Whole(body.as_bytes()),
                response: None,
                content_length: None,
                form: None,
                batch: false,
                may_wait: false,
            };
            let Decided::Route(mut told) = worker.dispatch(&asked, now) else { panic!() };
            assert_eq!(told.ticket.expected.unwrap().cached, 304);
            let usage = Usage { prompt: Some(320), cached: Reported::Tokens(0) };
            told.ticket.sent_ns = now * 1_000_000;
            worker.finished(&told.ticket, Some(usage));
            worker.landed(&mut told.ticket);
            worker.tick(now);
            worker.tick(now + 760);
            std::mem::swap(&mut worker.map.0, &mut data);
            let first = all.first_mut().unwrap();
            std::mem::swap(&mut first.map.0, &mut data);
            first.tick(now + 760);
            std::mem::swap(&mut first.map.0, &mut data);
            now += 10;
        }
        assert_eq!(asked, 5, "{workers} workers");
    }
}
