//! What answers teach of replicas that hold more than the map says.

use warmpath_proto::v1::{Lesson, up};

use super::usage::{COMPLETIONS, usage};
use super::*;

impl Gateway {
    /// The replicas 1 and 2 of the EU; of the first one's events the relay did not hear all.
    fn with_partial() -> Self {
        let mut gateway = Self::new();
        let replicas = vec![Replica { partial: true, ..replica(1) }, replica(2)];
        gateway.say(Said::Replicas(Replicas { replicas }));
        gateway.tick();
        gateway
    }

    /// What the service would tell the relay now.
    fn lessons(&mut self) -> Vec<Lesson> {
        self.tick();
        let mut follower = Follower::new(self.router.map.0.clone(), Layout::default());
        // It follows the same stream.
        let down = Down { epoch: 7, sequence: 0, body: Some(Said::SnapshotEnd(SnapshotEnd {})) };
        follower.receive(&down.encode_to_vec(), NOW).unwrap();
        let told = follower.lessons().unwrap();
        self.router.map.0.set(shared::LESSONS, &[]).unwrap();
        match told.and_then(|told| told.body) {
            Some(up::Body::Lessons(lessons)) => lessons.lessons,
            Some(other) => panic!("{other:?}"),
            None => Vec::new(),
        }
    }
}

#[test]
fn only_those_whose_events_were_not_all_heard_are_learned_of() {
    let ids: Vec<u32> = (0..327).collect();
    let body = json!({"model": "demo", "prompt": ids});
    for slot in [1, 2] {
        let mut gateway = Gateway::with_partial();
        gateway.hold(slot, &ids[..32], "", "");
        let told = gateway.told(COMPLETIONS, &body);
        assert_eq!(told.slot, Some(slot as u16));
        assert_eq!((told.ticket.partial, told.ticket.kept.is_some()), (slot == 1, slot == 1));
        gateway.answered_by(told, usage(327, 160));
        let lessons = gateway.lessons();
        assert_eq!(lessons.len(), usize::from(slot == 1));
        let Some(lesson) = lessons.first() else { continue };
        assert_eq!((lesson.slot, lesson.blocks, lesson.keys.len()), (1, 2, 18 * 16));
        assert!(lesson.missing.is_empty() && gateway.lessons().is_empty());
    }
}

#[test]
fn what_it_holds_beyond_the_map_is_no_drift_but_a_wrong_tokenizer_is() {
    let ids: Vec<u32> = (0..327).collect();
    let body = json!({"model": "demo", "prompt": ids});
    for (counted, drifted, learned) in [(327, 0, 20), (330, 1, 0)] {
        let mut gateway = Gateway::with_partial();
        gateway.hold(1, &ids[..32], "", "");
        let mut drift = [0, 0];
        for n in 1..=20 {
            // Others each time: what was sent a moment ago is no surprise anyway.
            let ids: Vec<u32> = (0..32).chain(n * 1_000..n * 1_000 + 295).collect();
            let told = gateway.told(COMPLETIONS, &json!({"model": "demo", "prompt": ids}));
            drift = gateway.answered_by(told, usage(counted, 320));
        }
        assert_eq!((drift, gateway.lessons().len()), ([0, drifted], learned), "{counted}");
    }
    // Broken promises are told of, partial or not.
    let mut gateway = Gateway::with_partial();
    gateway.hold(1, &ids, "", "");
    let mut drift = [0, 0];
    for _ in 0..20 {
        let told = gateway.told(COMPLETIONS, &body);
        drift = gateway.answered_by(told, usage(327, 16));
    }
    assert_eq!(drift, [1, 0]);
}

#[test]
fn what_answers_to_other_questions_say_teaches_nothing() {
    let ids: Vec<u32> = (0..327).collect();
    let mut gateway = Gateway::with_partial();
    gateway.hold(1, &ids[..160], "", "");
    let echo = json!({"model": "demo", "prompt": ids, "echo": true, "logprobs": 1});
    let two = json!({"model": "demo", "prompt": [ids, ids]});
    for body in [echo, two] {
        let told = gateway.told(COMPLETIONS, &body);
        assert!(told.ticket.kept.is_none(), "{body}");
        gateway.answered_by(told, usage(327, 320));
    }
    // The relay was another one when it was asked.
    let told = gateway.told(COMPLETIONS, &json!({"model": "demo", "prompt": ids}));
    assert!(told.ticket.kept.is_some());
    gateway.follower.hello("n".into());
    gateway.next = 0;
    let partial = Replica { partial: true, ..replica(1) };
    let table = Said::Replicas(Replicas { replicas: vec![partial] });
    let down = Down { epoch: 8, sequence: 0, body: Some(table) };
    gateway.follower.receive(&down.encode_to_vec(), NOW).unwrap();
    gateway.router.map.0.clone_from(gateway.follower.data());
    gateway.tick();
    gateway.answered_by(told, usage(327, 320));
    assert!(gateway.lessons().is_empty());
}
