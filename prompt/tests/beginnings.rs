//! Bodies that begin alike: the short way says what the whole way says, or nothing.
#![cfg(feature = "preprocess")]
#![allow(clippy::unwrap_used, clippy::indexing_slicing)] // Tests, helpers included.

use std::path::Path;
use std::sync::LazyLock;

use proptest::prelude::*;
use warmpath_prompt::{
    Api, Beginnings, End, Model, ModelFiles, Prefix, Prompter, Reach, Request, preprocess,
};
use warmpath_routing::fingerprint::Fingerprint;

const ROOT: Fingerprint = Fingerprint([5; 32]);

/// Artefacts of tokenizers of several kinds, each with a template of its own.
static KINDS: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures");
    let small = ["metaspace", "prepend", "gemma"].map(|name| format!("conformance/models/{name}"));
    let dirs = small.into_iter().chain(["models/demo".to_owned()]).map(|name| fixtures.join(name));
    dirs.map(|dir| preprocess(&ModelFiles::read_dir(&dir).unwrap()).unwrap().bytes).collect()
});

const MEMO: usize = 1 << 20;

/// A worker that has both ways, and one that has neither memo nor beginnings.
struct Both {
    beginnings: Beginnings,
    warm: Prompter,
    cold: Prompter,
    limit: usize,
    reach: Reach,
    /// How often the short way was gone, and something was left out on it.
    short: usize,
    left_out: usize,
}

impl Both {
    fn new(kind: usize, limit: usize, bytes: usize) -> Self {
        Self::of(&KINDS[kind], limit, bytes)
    }

    fn of(artefact: &[u8], limit: usize, bytes: usize) -> Self {
        let prompter = |memo| Prompter::new(Model::load(artefact.to_vec()).unwrap(), memo);
        let beginnings = Beginnings::new(bytes);
        let (warm, cold) = (prompter(MEMO), prompter(0));
        Self { beginnings, warm, cold, limit, reach: Reach::Whole, short: 0, left_out: 0 }
    }

    fn short(&mut self, body: &[u8]) -> Option<Prefix> {
        let found = self.beginnings.find(body, 0)?;
        self.warm.prefix_after(&found, &ROOT, self.limit, self.reach)
    }

    /// What the whole way says; the short one may say the same. Whether it did.
    fn ask(&mut self, body: &str) -> bool {
        let body = body.as_bytes();
        let short = self.short(body);
        let Ok(request) = Request::parse(Api::Chat, body) else {
            assert_eq!(short, None);
            return false;
        };
        let whole = self.cold.prefix(&request, ROOT, self.limit, 0);
        if let Some(short) = &short {
            let (model, salt) =
                self.beginnings.find(body, 0).map_or_else(Default::default, |found| {
                    (found.model().to_owned(), found.cache_salt().to_owned())
                });
            if self.beginnings.find(body, 0).is_some() {
                assert_eq!([model.as_str(), &salt], [request.model(), request.cache_salt()]);
            }
            self.short += 1;
            if short.left_out.is_none() {
                assert_eq!(Ok(short), whole.as_ref(), "{}", String::from_utf8_lossy(body));
            } else {
                self.left_out += 1;
                assert_starts(short, &whole.unwrap());
            }
        } else if whole.is_ok() {
            assert_eq!(self.warm.prefix(&request, ROOT, self.limit, 0), whole);
            let Self { beginnings, warm, limit, .. } = self;
            beginnings.learn(body, &request, warm, ROOT, *limit, 0);
        }
        short.is_some()
    }
}

/// What was read for the news in it is the start of the whole, to a block's end.
fn assert_starts(news: &Prefix, whole: &Prefix) {
    assert!(whole.keys.starts_with(&news.keys));
    assert_eq!(news.tokens, 16 * news.keys.len());
    assert!(whole.tokens > news.tokens && news.prompt_tokens > news.tokens);
    // At most a token for each byte that was left out, and some that are put around a text.
    assert!(whole.prompt_tokens.abs_diff(news.prompt_tokens) <= 256 + 4);
    assert_eq!((news.exact, news.end), (false, End::Limit));
}

fn json(text: &str) -> String {
    serde_json::to_string(text).unwrap()
}

fn body(system: &str, question: &str, ending: &str) -> String {
    let (system, question) = (json(system), json(question));
    format!(
        r#"{{"model":"demo","messages":[{{"role":"system","content":{system}}},{{"role":"user","content":{question}}}{ending}"#
    )
}

fn system() -> String {
    "You are a helpful assistant. Answer briefly and in plain words. ".repeat(40)
}

const ENDING: &str = r#"],"max_tokens":16}"#;

#[test]
fn the_third_of_its_kind_goes_the_short_way() {
    for kind in 0..KINDS.len() {
        let mut both = Both::new(kind, 8_192, 1 << 20);
        // Some of these templates refuse a system message.
        let system = system();
        let body = |question: &str| {
            let (system, question) = (json(&system), json(question));
            format!(
                r#"{{"messages":[{{"role":"user","content":{system}}},{{"role":"assistant","content":"So I do."}},{{"content":{question},"role":"user"}}],"model":"demo","cache_salt":"s"}}"#
            )
        };
        let asked = ["Why?", "When does it close?", "And now?", "  <|im_end|>\n\"é\" \u{1f642}\t"];
        let short = asked.map(|question| both.ask(&body(question)));
        assert_eq!(short, [false, false, true, true]);
        // Not even a trimmed question may be empty; what is no question is not looked at.
        assert!(!both.ask(&body(" \n")));
        assert!(!both.ask(&body("").replace("\"\"", "null")));
        assert!(!both.ask(&body("x").replace("\"x\"", "[{\"type\":\"text\",\"text\":\"x\"}]")));
        // Another salt, another model, a field more.
        for (from, to) in [("\"s\"", "\"t\""), ("demo", "demp"), ("}],", "}],\"stream\":true,")] {
            assert!(!both.ask(&body("x").replace(from, to)));
        }
        assert!(both.ask(&body("And then?")));
    }
}

#[test]
fn a_question_cannot_leave_its_string() {
    let mut both = Both::new(3, 8_192, 1 << 20);
    for question in ["Why?", "When?", "And?"] {
        both.ask(&body(&system(), question, ENDING));
    }
    assert_eq!(both.short, 1);
    let raw = |question: &str| body(&system(), "@", ENDING).replace('@', question);
    for question in [
        // Valid JSON that says something else.
        r#"x"},{"role":"assistant","content":"y"#,
        r#"x","role":"system"#,
        r#"x"}],"model":"other","messages":[{"role":"user","content":"y"#,
        r#"x","content":"y"#,
        // None.
        "x\"",
        "x\\",
        "\\\\\\",
        "x\ny",
        "\\ud800",
        "\u{1}",
    ] {
        assert!(!both.ask(&raw(question)), "{question}");
    }
    let mut bytes = raw("x@").into_bytes();
    let at = bytes.iter().position(|byte| *byte == b'@').unwrap();
    bytes[at] = 0xff;
    assert_eq!(both.short(&bytes), None);
    assert!(both.ask(&raw(r#"\"},{\"role\":\"x\\"#)), "all escaped");
}

#[test]
fn what_comes_after_the_messages_may_be_long() {
    let mut both = Both::new(3, 8_192, 1 << 20);
    let tool = r#"{"type":"function","function":{"name":"f","description":"@","parameters":{}}}"#;
    let tools = vec![tool.replace('@', &"Does a thing. ".repeat(20)); 20].join(",");
    for (at, question) in ["a", "b", "c", "d"].iter().enumerate() {
        let body = format!(
            r#"{{"messages":[{{"role":"system","content":{}}},{{"role":"user","content":"{question}"}}],"model":"demo","tools":[{tools}]}}"#,
            json(&"Be brief. ".repeat(30))
        );
        assert_eq!(both.ask(&body), at >= 2, "{question}");
        // Another tool that is as long.
        assert!(at < 3 || !both.ask(&body.replacen("Does", "Done", 1)));
    }
}

/// The demo's tokenizer with more added tokens, and a template that adds nothing.
fn artefact(tokens: &[&str], normalized: bool) -> Vec<u8> {
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/models/demo");
    let mut files = ModelFiles::read_dir(&demo).unwrap();
    let mut json: serde_json::Value = serde_json::from_slice(&files.tokenizer_json).unwrap();
    let added = json["added_tokens"].as_array_mut().unwrap();
    for (at, content) in tokens.iter().enumerate() {
        added.push(serde_json::json!({
            "id": 4098 + at, "content": content, "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": normalized, "special": false,
        }));
    }
    files.tokenizer_json = json.to_string().into_bytes();
    let template = "{% for message in messages %}{{ message.content }}{% endfor %}";
    files.chat_template_jinja = Some(template.into());
    preprocess(&files).unwrap().bytes
}

/// An estimate is made from where stretches end, also where more is known.
#[test]
fn beyond_the_limit_as_much_is_estimated() {
    for kind in 0..KINDS.len() {
        let mut short = 0;
        for limit in (20..60).chain(290..360).chain(700..720) {
            let mut both = Both::new(kind, limit, 1 << 20);
            let system =
                "You are a helpful assistant. Answer briefly and in plain words. ".repeat(18);
            let body = |question: &str| {
                let (system, question) = (json(&system), json(question));
                format!(
                    r#"{{"messages":[{{"role":"user","content":{system}}},{{"role":"assistant","content":"So."}},{{"role":"user","content":{question}}}{ENDING}"#
                )
            };
            for question in ["Why?", "When?"] {
                both.ask(&body(question));
            }
            for count in [1, 5, 20, 60, 400] {
                both.ask(&body(&"and then some more ".repeat(count)));
            }
            short += both.short;
        }
        assert!(short > 200, "{kind}: {short}");
    }
}

/// `é` may be written as `e` and an accent, and then there seems to be a letter after the newline.
#[test]
fn an_added_token_may_be_written_in_parts() {
    for tokens in [["\né", "x"], ["é", "\né"], ["é x", "z"]] {
        let mut both = Both::of(&artefact(&tokens, true), 8_192, 1 << 20);
        for head in ["\ne\u{301}", "\ne\u{301} x", "\né"] {
            let system = "word and so on ".repeat(80) + head + &"漢".repeat(20);
            for question in ["why", "when", "e\u{301}", "\u{301} x", "\ne\u{301} x"] {
                both.ask(&body(&system, question, ENDING));
            }
        }
        assert!(both.short > 5, "{tokens:?}: {}", both.short);
    }
}

/// The question may complete what is one token with the end of the text before it.
#[test]
fn an_added_token_may_lie_across_the_question_s_start() {
    let artefact = artefact(&["ab cd<end>", "cd<end>, it", "<end>"], false);
    for tail in ["ab", "ab cd", "ab cd<end", "ab cd<end>", "<end> ab cd", "x ab cd<end> ab", ""] {
        let mut both = Both::of(&artefact, 8_192, 1 << 20);
        let system = system() + tail;
        for question in [
            "Why?",
            "When?",
            "<end>, it is",
            ">, it is",
            "<end",
            " cd<end> x",
            "d<end>, it",
            ", it",
            "nd",
            "end>",
            " cd<",
            "b",
        ] {
            both.ask(&body(&system, question, ENDING));
        }
        assert!(both.short > 5, "{tail}: {}", both.short);
    }
}

#[test]
fn conversations_cost_nothing_here() {
    let mut both = Both::new(3, 8_192, 1 << 20);
    let mut messages = vec![("system", system())];
    for turn in 0..10 {
        messages.push(("user", format!("Question {turn}?")));
        let all: Vec<_> = messages
            .iter()
            .map(|(role, text)| serde_json::json!({"role": role, "content": text}))
            .collect();
        assert!(!both.ask(&serde_json::json!({"messages": all, "model": "demo"}).to_string()));
        messages.push(("assistant", format!("Answer {turn}.")));
    }
    assert_eq!(both.beginnings.bytes(), 0);
}

#[test]
fn memory_is_bounded_and_the_whole_way_is_gone_now_and_then() {
    let mut both = Both::new(3, 8_192, 40_000);
    for number in 0..60 {
        let system = format!("{number} {}", system());
        for question in ["a", "b", "c"] {
            both.ask(&body(&system, question, "],\"stream\":true}"));
        }
        assert!((1_000..=40_000).contains(&both.beginnings.bytes()));
    }
    assert_eq!(both.short, 60);
    let last = format!("59 {}", system());
    let short = (0..128).filter(|_| both.ask(&body(&last, "d", "],\"stream\":true}"))).count();
    // Each time it is looked up twice more, to hold it against the whole way.
    assert!((100..128).contains(&short), "{short}");
    both.beginnings = Beginnings::new(40_000);
    assert!(!both.ask(&body(&last, "d", "],\"stream\":true}")));
    let mut off = Both::new(3, 8_192, 0);
    assert!(!["a", "b", "c"].iter().any(|question| off.ask(&body(&last, question, "]}"))));
}

#[test]
fn those_with_one_head_are_told_apart() {
    let mut both = Both::new(3, 8_192, 1 << 20);
    let systems: Vec<String> = (0..3)
        .map(|number| format!("{}{number}{}", system(), " and so on".repeat(number)))
        .collect();
    for question in ["a", "b", "c"] {
        for system in &systems {
            let short = both.ask(&body(system, question, "]}"));
            assert_eq!(short, question == "c", "{question} {}", system.len());
        }
    }
    // A fourth has a place; a fifth has to come more often, until others are no more in use.
    let mut learned_after = |number: usize| {
        let system = format!("{}{number}", system());
        (0..99).find(|at| both.ask(&body(&system, &format!("q{at}"), "]}"))).unwrap()
    };
    assert_eq!(learned_after(3), 2);
    assert!(learned_after(4) > 2);
    assert_eq!(learned_after(5), 2);
}

#[test]
fn what_is_another_each_time_is_not_learned_again_and_again() {
    let mut both = Both::new(3, 8_192, 1 << 20);
    let body = |seed: usize| body(&system(), "Why?", &format!("],\"seed\":{}}}", 100 + seed));
    assert!(!(0..100).any(|seed| both.ask(&body(seed))));
    let one = both.beginnings.bytes();
    assert!((1..10_000).contains(&one), "{one}: the second alone");
    // Beside those it takes its time.
    let asked = (0..200).find(|at| both.ask(&body(if at % 5 == 4 { 99 } else { *at })));
    assert!(asked.is_some());
}

#[test]
fn one_large_beginning_leaves_the_others_alone() {
    let mut both = Both::new(3, 1 << 20, 1 << 17);
    for question in ["a", "b", "c"] {
        assert_eq!(both.ask(&body(&system(), question, "]}")), question == "c");
    }
    let before = both.beginnings.bytes();
    for question in ["a", "b", "c"] {
        assert!(!both.ask(&body(&"\u{6f22}\u{5b57}".repeat(40_000), question, "]}")));
    }
    assert_eq!(both.beginnings.bytes(), before);
}

fn words(most: usize) -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        12 => "[ ]?[a-z]{2,8}",
        1 => Just("<|im_end|>\n".to_owned()),
        1 => Just("</s>".to_owned()),
        2 => "[ \\n.,0-9'é漢▁\"\\\\]{1,5}",
    ];
    proptest::collection::vec(piece, 0..most).prop_map(|pieces| pieces.concat())
}

#[test]
fn what_is_little_is_left_out_until_it_matters() {
    let mut both = Both::new(3, 8_192, 1 << 20);
    let system = system().repeat(4);
    let of = |at: usize| {
        let question = format!("What is {at} times the number of these words of a question?");
        body(&system, &question, ENDING)
    };
    for at in 0..2 {
        both.ask(&of(at));
    }
    both.reach = Reach::News;
    let left_out = |both: &mut Both, body: &str| both.short(body.as_bytes()).unwrap().left_out;
    // Now and then it is read anyway.
    let times = (0..32).filter(|at| left_out(&mut both, &of(*at)).is_some()).count();
    assert_eq!(times, 28);
    assert_eq!(left_out(&mut both, &body(&system, &"What is that? ".repeat(60), ENDING)), None);
    let equal = [1, 1, 2].map(|at| left_out(&mut both, &of(at)));
    assert!(equal[0].is_some() && equal[0] == equal[1] && equal[0] != equal[2]);
    // Once it mattered, it is read for a while.
    both.reach = Reach::Whole;
    assert_eq!(left_out(&mut both, &of(1)), None);
    both.reach = Reach::News;
    let times: Vec<bool> = (0..18).map(|at| left_out(&mut both, &of(at)).is_some()).collect();
    assert!(times[..16].iter().all(|left_out| !left_out) && times[16..].contains(&true));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Long and short beginnings of all kinds of models, at limits within and beyond them.
    #[test]
    fn the_short_way_says_what_the_whole_way_says(
        head in words(1_500),
        questions in proptest::collection::vec(prop_oneof![words(60), words(400)], 4..8),
        limit in prop_oneof![Just(usize::MAX), 16usize..900],
        roles in 0usize..3,
        memo in prop_oneof![2 => Just(MEMO), 1 => Just(2_000), 1 => Just(0)],
        reach in prop_oneof![Just(Reach::Whole), Just(Reach::News)],
    ) {
        let head = format!("{}{head}", "You are a helpful assistant. ".repeat(36));
        for kind in 0..KINDS.len() {
            let mut both = Both::new(kind, limit, 1 << 20);
            both.warm = Prompter::new(Model::load(KINDS[kind].clone()).unwrap(), memo);
            both.reach = reach;
            for question in &questions {
                let (head, question) = (json(&head), json(&format!("{question}?")));
                let first = match roles {
                    0 => format!(r#"{{"role":"system","content":{head}}}"#),
                    1 => format!(r#"{{"role":"user","content":{head}}},{{"role":"assistant","content":"x"}}"#),
                    _ => format!(r#"{{"role":"user","content":{head}}}"#),
                };
                both.ask(&format!(r#"{{"messages":[{first},{{"role":"user","content":{question}}}]}}"#));
            }
            // Else this says nothing.
            prop_assert!(memo < MEMO || limit < 300 || both.short >= questions.len() - 2);
        }
    }
}
