//! Requests of all kinds, each with what is to become of it.

use std::collections::HashMap;
use std::io::Write;
use std::sync::{LazyLock, Mutex};

use bytes::Bytes;
use serde_json::{Value, json};

use crate::fleet::{NAMES, ZONES};
use crate::send::{Pieces, Request};

/// What is to become of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    /// An engine that serves this name answers, with one of these.
    Model(&'static str, &'static [u16]),
    /// It names no model.
    NoModel,
    /// What it names can't be read: the gateway refuses it.
    Unreadable,
    /// The same, or an engine that serves this name refuses it.
    Broken(&'static str),
    /// It is encoded in a way that nobody reads.
    Encoding,
    /// The gateway tells the zone's models.
    List,
    /// The gateway tells of this one.
    Card(&'static str),
}

/// A request, and what is to become of it.
pub(crate) struct Case {
    /// Its kind.
    pub(crate) kind: &'static str,
    /// The zone that it is of.
    pub(crate) zone: &'static str,
    /// What is sent.
    pub(crate) request: Request,
    /// What has to come.
    pub(crate) expected: Expected,
}

/// xorshift64*, so that a run can be had again.
pub(crate) struct Dice(u64);

impl Dice {
    /// The same for the same seed.
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A number below `sides`.
    pub(crate) fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % sides
    }

    fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.roll(from.len() as u64) as usize]
    }
}

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";
const AUDIO: &str = "/v1/audio/transcriptions";
const JSON: &str = "application/json";
/// Paths of the API that the filter doesn't read; the simulated engine answers 404.
const OTHERS: [&str; 4] = ["/v1/embeddings", "/v1/responses", "/v1/messages", "/v1/rerank"];

/// The kinds of requests with their shares.
const KINDS: [(&str, u64); 28] = [
    ("chat", 160),
    ("completions", 60),
    ("stream", 60),
    ("escaped", 60),
    ("spaced", 30),
    ("byte order mark", 10),
    ("large, model first", 35),
    ("large, model last", 45),
    ("large image, model last", 15),
    ("very large", 2),
    ("form, model first", 50),
    ("form, model last", 50),
    ("large form", 20),
    ("gzip", 60),
    ("br", 30),
    ("zstd", 30),
    ("large gzip", 12),
    ("chunked", 50),
    ("large chunked", 20),
    ("other API", 40),
    ("list", 30),
    ("card", 50),
    ("no model", 35),
    ("unreadable", 40),
    ("truncated", 16),
    ("truncated, no model", 10),
    ("unknown encoding", 15),
    ("not what its encoding says", 15),
];

/// Text like that of media in base64, which nobody can compress much.
static TEXT: LazyLock<Bytes> = LazyLock::new(|| {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut text = Vec::with_capacity(24 << 20);
    while text.len() < 24 << 20 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        text.extend((0..10).map(|digit| DIGITS[(state >> (6 * digit) & 63) as usize]));
    }
    text.into()
});

/// What may be in a file: bytes of all kinds, and many ends of lines.
static NOISE: LazyLock<Bytes> = LazyLock::new(|| {
    let mut noise: Vec<u8> = TEXT[..2 << 20].iter().map(|byte| byte.wrapping_mul(37)).collect();
    for at in (0..noise.len() - 64).step_by(61) {
        noise[at..at + 4].copy_from_slice(b"\r\n--");
    }
    noise.into()
});

/// The next request.
pub(crate) fn next(dice: &mut Dice) -> Case {
    let zone = dice.pick(&ZONES).0;
    let mut ticket = dice.roll(NAMES.iter().map(|name| name.share).sum());
    let name = NAMES.iter().find(|name| {
        let hit = ticket < name.share;
        ticket = ticket.wrapping_sub(name.share);
        hit
    });
    let name = name.unwrap().name;
    let mut ticket = dice.roll(KINDS.iter().map(|(_, share)| share).sum());
    let (kind, _) = KINDS
        .iter()
        .find(|(_, share)| {
            let hit = ticket < *share;
            ticket = ticket.wrapping_sub(*share);
            hit
        })
        .unwrap();
    let (request, expected) = make(kind, name, dice);
    Case { kind, zone, request, expected }
}

fn make(kind: &'static str, name: &'static str, dice: &mut Dice) -> (Request, Expected) {
    let served = Expected::Model(name, &[200]);
    let chat = |dice: &mut Dice| chat(name, dice.roll(10_000)).to_string();
    let json = |body: String| Request::post(CHAT, JSON, Pieces::new([Bytes::from(body)]));
    let large = 1_100_000 + dice.roll(700_000) as usize;
    match kind {
        "chat" => (json(chat(dice)), served),
        "completions" => {
            let body = json!({"model": name, "max_tokens": 1, "prompt": prompt(dice.roll(10_000))});
            let body = Pieces::new([Bytes::from(body.to_string())]);
            (Request::post(COMPLETIONS, JSON, body), served)
        }
        "stream" => (json(chat(dice).replacen('{', r#"{"stream":true,"#, 1)), served),
        "escaped" => {
            let escape = |text: &str, dice: &mut Dice| -> String {
                let mut one = |c: char| match dice.roll(3) {
                    0 => format!("\\u{:04x}", c as u32),
                    1 => format!("\\u{:04X}", c as u32),
                    _ => c.to_string(),
                };
                text.chars().map(&mut one).collect()
            };
            let member = format!(r#""{}":"{}""#, escape("model", dice), escape(name, dice));
            (json(chat(dice).replacen(&format!(r#""model":"{name}""#), &member, 1)), served)
        }
        "spaced" => {
            let value: Value = serde_json::from_str(&chat(dice)).unwrap();
            let body = serde_json::to_string_pretty(&value).unwrap().replace('\n', "\r\n\t");
            (json(format!(" \r\n{body}\n\n")), served)
        }
        "byte order mark" => (json(format!("\u{feff}{}", chat(dice))), Expected::Broken(name)),
        "large, model first" => (Request::post(CHAT, JSON, long(name, large, true, dice)), served),
        "large, model last" => (Request::post(CHAT, JSON, long(name, large, false, dice)), served),
        "large image, model last" => {
            // The simulated engine doesn't read images, and says so.
            (Request::post(CHAT, JSON, image(name, large)), Expected::Model(name, &[400]))
        }
        "very large" => {
            let length = (6 << 20) + dice.roll(14 << 20) as usize;
            let first = dice.roll(2) == 0;
            (Request::post(CHAT, JSON, long(name, length, first, dice)), served)
        }
        "form, model first" => (form(&[Part::Model(name), Part::File(5_000)], dice), served),
        "form, model last" => {
            let file = Part::File(dice.roll(200_000) as usize);
            (form(&[file, Part::Other, Part::Model(name)], dice), served)
        }
        "large form" => {
            let mut parts = [Part::File(large), Part::Model(name)];
            if dice.roll(2) == 0 {
                parts.reverse();
            }
            (form(&parts, dice), served)
        }
        "gzip" | "br" | "zstd" => (compressed(kind, name, false), served),
        "large gzip" => (compressed("gzip", name, true), served),
        "chunked" => {
            let mut request = json(chat(dice));
            request.body = request.body.in_chunks(&[1 + dice.roll(90) as usize, 7, 1]);
            (request, served)
        }
        "large chunked" => {
            let body = long(name, large, dice.roll(2) == 0, dice);
            let body = body.in_chunks(&[10_000 + dice.roll(50_000) as usize, 1, 77]);
            (Request::post(CHAT, JSON, body), served)
        }
        "other API" => {
            let body = json!({"model": name, "input": prompt(dice.roll(10_000))}).to_string();
            let body = Pieces::new([Bytes::from(body)]);
            let path = dice.pick(&OTHERS);
            (Request::post(path, JSON, body), Expected::Model(name, &[200, 400, 404]))
        }
        "list" => (Request::get("/v1/models"), Expected::List),
        "card" => (Request::get(format!("/v1/models/{name}")), Expected::Card(name)),
        "no model" => (without_model(dice), Expected::NoModel),
        "unreadable" => (unreadable(name, dice), Expected::Unreadable),
        "truncated" => {
            let body = long(name, large, true, dice).cut(large - 1_000);
            (Request::post(CHAT, JSON, body), Expected::Broken(name))
        }
        "truncated, no model" => {
            let body = long(name, large, false, dice).cut(large - 1_000);
            (Request::post(CHAT, JSON, body), Expected::Unreadable)
        }
        "unknown encoding" => {
            let encoding = *dice.pick(&["compress", "gzip, br", "x-snappy-framed", "rot13"]);
            (json(chat(dice)).with("content-encoding", encoding), Expected::Encoding)
        }
        "not what its encoding says" => {
            let request = if dice.roll(2) == 0 {
                json(chat(dice))
            } else {
                // It ends in the middle.
                let mut request = compressed("gzip", name, true);
                request.headers.retain(|(header, _)| *header != "content-encoding");
                request.body = request.body.cut(400_000);
                request
            };
            (request.with("content-encoding", "gzip"), Expected::Broken(name))
        }
        other => panic!("{other}?"),
    }
}

fn prompt(number: u64) -> String {
    format!("How long may I keep item {number}? Say it in a word.")
}

fn chat(name: &str, number: u64) -> Value {
    json!({
        "model": name,
        "max_tokens": 1,
        "messages": [
            {"role": "system", "content": "You know \"model\":\"gpt-9\", and {\"model\": \"demo\"}."},
            {"role": "user", "content": prompt(number)}
        ]
    })
}

/// A chat with something long beside it, which engines don't read. As clients write it: `model` in
/// front, or behind the messages.
fn long(name: &str, length: usize, first: bool, dice: &mut Dice) -> Pieces {
    let messages = json!([{"role": "user", "content": prompt(dice.roll(10_000))}]);
    let model = format!(r#""model":"{name}","max_tokens":1"#);
    let text = TEXT.slice(..length);
    let (head, tail) = if first {
        (
            format!(r#"{{{model},"metadata":{{"model":"gpt-9","x":""#),
            format!(r#""}},"messages":{messages}}}"#),
        )
    } else {
        (
            format!(r#"{{"messages":{messages},"metadata":{{"model":"gpt-9","x":""#),
            format!(r#""}},{model}}}"#),
        )
    };
    Pieces::new([Bytes::from(head), text, Bytes::from(tail)])
}

fn image(name: &str, length: usize) -> Pieces {
    let head = r#"{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,"#;
    let tail = format!(r#""}}}},{{"type":"text","text":"What is it?"}}]}}],"model":"{name}"}}"#);
    Pieces::new([Bytes::from(head), TEXT.slice(..length), Bytes::from(tail)])
}

enum Part {
    Model(&'static str),
    File(usize),
    Other,
}

fn form(parts: &[Part], dice: &mut Dice) -> Request {
    let boundary = format!("------------------------{:x}", 1 << 40 | dice.roll(1 << 31));
    let mut pieces = Vec::new();
    let model = *dice.pick(&["name=\"model\"", "name=model", "name=\"model\"; x=y"]);
    for part in parts {
        let (disposition, data) = match part {
            Part::Model(name) => (model, Bytes::from(*name)),
            Part::File(length) => (
                "name=\"file\"; filename=\"model\"\r\nContent-Type: audio/wav",
                NOISE.slice(..*length),
            ),
            Part::Other => ("name=\"prompt\"", Bytes::from("name=\"model\"\r\n\r\ngpt-9")),
        };
        let head = format!("--{boundary}\r\nContent-Disposition: form-data; {disposition}\r\n\r\n");
        pieces.extend([Bytes::from(head), data, Bytes::from("\r\n")]);
    }
    pieces.push(Bytes::from(format!("--{boundary}--\r\n")));
    let quote = *dice.pick(&["", "\""]);
    let content_type = format!("multipart/form-data; boundary={quote}{boundary}{quote}");
    Request::post(AUDIO, &content_type, Pieces::new(pieces))
}

/// The same body for the same arguments: compressing takes its time in a test.
fn compressed(encoding: &'static str, name: &'static str, large: bool) -> Request {
    type Bodies = HashMap<(&'static str, &'static str, bool), Bytes>;
    static BODIES: LazyLock<Mutex<Bodies>> = LazyLock::new(Mutex::default);
    let mut bodies = BODIES.lock().unwrap();
    let body = bodies.entry((encoding, name, large)).or_insert_with(|| {
        let plain = if large {
            long(name, 1_200_000, false, &mut Dice::new(1)).bytes()
        } else {
            chat(name, 1).to_string().into_bytes()
        };
        match encoding {
            "gzip" => {
                let fast = flate2::Compression::fast();
                let mut encoder = flate2::write::GzEncoder::new(Vec::new(), fast);
                encoder.write_all(&plain).unwrap();
                encoder.finish().unwrap().into()
            }
            "br" => {
                let mut out = Vec::new();
                brotli::CompressorWriter::new(&mut out, 4096, 4, 18).write_all(&plain).unwrap();
                out.into()
            }
            _ => {
                let level = ruzstd::encoding::CompressionLevel::Fastest;
                ruzstd::encoding::compress_to_vec(plain.as_slice(), level).into()
            }
        }
    });
    Request::post(CHAT, JSON, Pieces::new([body.clone()])).with("content-encoding", encoding)
}

fn without_model(dice: &mut Dice) -> Request {
    let json = |body: &str| Request::post(CHAT, JSON, Pieces::new([Bytes::from(body.to_owned())]));
    match dice.roll(8) {
        0 => Request::get("/v1/responses/resp_1"),
        1 => json(r#"{"messages":[{"role":"user","content":"Hi"}]}"#),
        2 => json(r#"{"model":null,"messages":[{"role":"user","content":"Hi"}]}"#),
        3 => json(r#"{"model":"","messages":[{"role":"user","content":"Hi"}]}"#),
        4 => json(r#"{"messages":[{"role":"user","content":"Hi"}],"metadata":{"model":"demo"}}"#),
        5 => form(&[Part::File(20_000), Part::Other], dice),
        6 => {
            let tail = Bytes::from(r#""},"messages":[{"role":"user","content":"Hi"}]}"#);
            let body = [Bytes::from(r#"{"metadata":{"x":""#), TEXT.slice(..1_200_000), tail];
            Request::post(CHAT, JSON, Pieces::new(body))
        }
        _ => Request::post(COMPLETIONS, JSON, Pieces::default()),
    }
}

fn unreadable(name: &str, dice: &mut Dice) -> Request {
    let named = format!(r#"{{"model":"{name}"}}"#);
    let body: Vec<u8> = match dice.roll(9) {
        0 => b"{".to_vec(),
        1 => b"\xff\xfe\x00".to_vec(),
        2 => format!("[{named}]").into_bytes(),
        3 => format!("\"{name}\"").into_bytes(),
        4 => named.encode_utf16().flat_map(u16::to_le_bytes).collect(),
        5 => br#"{"model":{"name":"demo"},"messages":[]}"#.to_vec(),
        6 => format!(r#"{{"model":"{}"}}"#, "x".repeat(5_000)).into_bytes(),
        7 => {
            // A form whose boundary is another one.
            let content_type = "multipart/form-data; boundary=A";
            let body = format!(
                "--B\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\n{name}\r\n--B--\r\n"
            );
            return Request::post(AUDIO, content_type, Pieces::new([Bytes::from(body)]));
        }
        _ => TEXT.slice(..1_200_000).to_vec(),
    };
    Request::post(CHAT, JSON, Pieces::new([Bytes::from(body)]))
}
