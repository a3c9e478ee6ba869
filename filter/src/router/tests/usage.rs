//! What engines tell of their caches, by what they were asked and by which API.

use warmpath_prompt::CacheUse;
use warmpath_routing::usage::{Reported, Usage};

use super::*;

pub(super) const COMPLETIONS: &str = "/v1/completions";

/// A stream's first token comes so much later, in nanoseconds.
const FIRST_TOKEN: u64 = 3_000_000_000;

impl Gateway {
    pub(super) fn told(&mut self, path: &str, body: &serde_json::Value) -> Told {
        match self.ask(Some("eu"), path, Body::Whole(body.to_string().as_bytes())) {
            Decided::Route(told) => told,
            other => panic!("{other:?}"),
        }
    }

    /// The engine answers, and says this; gives the totals of drift.
    pub(super) fn answered_by(&mut self, mut told: Told, usage: Usage) -> [usize; 2] {
        let foreseen = told.ticket.named.foreseen().unwrap().to_owned();
        let answer = Answer {
            status: 200,
            of_engine: true,
            upstream: Some(foreseen),
            attempts: 1,
            ..Answer::default()
        };
        self.router.answered(&mut told.ticket, &answer, || NOW);
        let at = told.ticket.sent_ns + FIRST_TOKEN;
        self.router.first_token(&mut told.ticket, Some(at));
        self.router.finished(&told.ticket, Some(usage));
        self.router.landed(&mut told.ticket);
        self.settle();
        drifting(&self.router)
    }
}

/// One of whose replicas the first holds this prompt.
fn warm(ids: &[u32]) -> Gateway {
    let mut gateway = Gateway::new();
    let replicas = [1, 2].map(replica).into();
    gateway.say(Said::Replicas(Replicas { replicas }));
    gateway.tick();
    gateway.hold(1, ids, "", "");
    gateway
}

pub(super) fn usage(prompt: usize, cached: u32) -> Usage {
    Usage { prompt: u32::try_from(prompt).ok(), cached: Reported::Tokens(cached) }
}

#[test]
fn where_no_cache_is_read_none_is_expected_and_nothing_learned() {
    let ids: Vec<u32> = (0..320).collect();
    let mut gateway = warm(&ids);
    let usual = json!({"model": "demo", "prompt": ids});
    let echo = json!({"model": "demo", "prompt": ids, "echo": true, "logprobs": 1});
    let logprobs = json!({"model": "demo", "prompt": ids, "prompt_logprobs": 0});
    for body in [echo, logprobs].iter().cycle().take(20) {
        let told = gateway.told(COMPLETIONS, body);
        says(&told, "reason", &quoted("cold"));
        says(&told, "cached", &0);
        assert_eq!(told.ticket.cold_tokens, 320, "all of it is computed");
        let expected = told.ticket.expected.unwrap();
        assert_eq!((expected.cached, told.ticket.cache_use), (0, CacheUse::Unread));
        assert_eq!(gateway.answered_by(told, usage(320, 0)), [0, 0]);
    }
    // An engine that knows no such field reads its cache as ever, of which the map says nothing here.
    for _ in 0..20 {
        let told = gateway.told(COMPLETIONS, &json!({"prompt": ids, "prompt_logprobs": 1}));
        assert_eq!(gateway.answered_by(told, usage(320, 304)), [0, 0]);
    }
    assert_eq!(gateway.router.feedback.prices.len(), 0, "its time is not a usual prefill's");
    let told = gateway.told(COMPLETIONS, &usual);
    assert_eq!((told.slot, told.ticket.expected.unwrap().cached), (Some(1), 304));
    gateway.answered_by(told, usage(320, 304));
    assert_eq!(gateway.router.feedback.prices.len(), 1);
}

#[test]
fn where_usage_is_not_the_prompt_s_nothing_is_held_against_it() {
    let ids: Vec<u32> = (0..320).collect();
    let mut gateway = warm(&ids);
    for more in [
        json!({"prompt": [ids, [1, 2, 3]]}),
        json!({"prompt": ids, "n": 3}),
        json!({"prompt": ids, "use_beam_search": true}),
        json!({"prompt": ids, "kv_transfer_params": {"do_remote_prefill": true}}),
    ] {
        for cached in [0, 640].repeat(10) {
            let told = gateway.told(COMPLETIONS, &more);
            assert_eq!(told.slot, Some(1), "it goes where it is warm: {more}");
            assert_eq!(told.ticket.expected, None, "{more}");
            assert_eq!(gateway.answered_by(told, usage(660, cached)), [0, 0], "{more}");
        }
    }
    assert_eq!(gateway.router.feedback.prices.len(), 0);
}

#[test]
fn a_chat_that_begins_as_others_did_is_not_taken_for_one_that_reads_no_cache() {
    let mut gateway = warm(&[]);
    let system = "word ".repeat(600);
    let chat = |question: &str, echo: bool| {
        json!({"model": "demo", "echo": echo, "messages": [
            {"role": "system", "content": system}, {"role": "user", "content": question}]})
    };
    for n in 0..12 {
        for echo in [true, false] {
            let told = gateway.told(CHAT, &chat(&format!("Question {n}?"), echo));
            let wanted = if echo { CacheUse::Unread } else { CacheUse::Counted };
            assert_eq!(told.ticket.cache_use, wanted, "question {n}");
            assert!(told.ticket.expected.is_some());
        }
    }
}

#[test]
fn an_api_that_always_tells_says_nothing_of_those_that_may_not() {
    // vLLM's Responses have cached tokens in them whether or not it was started with
    // `--enable-prompt-tokens-details`, its other APIs only then.
    let ids: Vec<u32> = (0..320).collect();
    let mut gateway = warm(&ids);
    let mut told_of = |api, cached| {
        let mut told = gateway.told(COMPLETIONS, &json!({"model": "demo", "prompt": ids}));
        told.ticket.api = Some(api);
        gateway.answered_by(told, Usage { prompt: Some(320), cached })
    };
    for _ in 0..20 {
        assert_eq!(told_of(Api::Responses, Reported::Tokens(304)), [0, 0]);
        for api in [Api::Chat, Api::Completions, Api::Messages] {
            assert_eq!(told_of(api, Reported::Absent), [0, 0], "{api:?} is silent");
        }
    }
    // One that tells of cached tokens at times means none where it doesn't.
    assert_eq!(told_of(Api::Messages, Reported::Tokens(304)), [0, 0]);
    let mut drifted = [0, 0];
    for _ in 0..10 {
        drifted = told_of(Api::Messages, Reported::Absent);
    }
    assert_eq!(drifted, [1, 0]);
}

#[test]
fn what_lies_beyond_what_is_looked_at_is_no_surprise() {
    let ids: Vec<u32> = (0..320).collect();
    let mut gateway = Gateway::with(json!({"prefix_tokens": 160}));
    gateway.say(Said::Replicas(Replicas { replicas: [1, 2].map(replica).into() }));
    gateway.tick();
    gateway.hold(1, &ids, "", "");
    for _ in 0..20 {
        let told = gateway.told(COMPLETIONS, &json!({"model": "demo", "prompt": ids}));
        assert_eq!(told.ticket.expected.unwrap().cached, 160);
        assert_eq!(gateway.answered_by(told, usage(320, 304)), [0, 0]);
    }
    // That less is cached than was looked at is.
    let mut last = [0, 0];
    for _ in 0..20 {
        let told = gateway.told(COMPLETIONS, &json!({"model": "demo", "prompt": ids}));
        last = gateway.answered_by(told, usage(320, 0));
    }
    assert_eq!(last, [1, 0]);
}
