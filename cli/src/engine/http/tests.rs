//! The API as a client sees it, in process.

use std::sync::Arc;

use axum::body::Body;
use axum::http::{HeaderMap, Request, StatusCode};
use bytes::Bytes;
use clap::Parser;
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use tower::ServiceExt as _;
use zeromq::{DealerSocket, Socket as _, SocketRecv as _, SocketSend as _, ZmqMessage};

use crate::engine::{Args, tokens};

#[derive(Parser)]
#[command(args_override_self = true)]
struct Cli {
    #[command(flatten)]
    args: Args,
}

struct Engine {
    router: axum::Router,
    app: Arc<super::App>,
}

struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("{:?}", self.body))
    }

    /// The `data:` lines of a stream.
    fn events(&self) -> Vec<String> {
        let text = std::str::from_utf8(&self.body).unwrap();
        text.split_terminator("\n\n").map(|e| e.strip_prefix("data: ").unwrap().into()).collect()
    }

    fn cached(&self) -> Value {
        self.json()["usage"]["prompt_tokens_details"].clone()
    }
}

impl Engine {
    async fn new(more: &[&str]) -> Self {
        let fixed = ["engine", "--model", ".", "--served-model-name", "tiny", "--speedup", "1e6"];
        let events = ["--kv-events-endpoint=tcp://*:0", "--kv-events-replay-endpoint=tcp://*:0"];
        let args = Cli::parse_from(fixed.iter().chain(&events).chain(more)).args;
        args.check().unwrap();
        let tokenizer = tokens::tests::tokenizer();
        let app = crate::engine::app(&args, tokenizer, "10.0.0.1:8000".into()).await.unwrap();
        Self { router: super::router(Arc::clone(&app)), app }
    }

    async fn send(&self, request: Request<Body>) -> Answer {
        let response = self.router.clone().oneshot(request).await.unwrap();
        let (status, headers) = (response.status(), response.headers().clone());
        let body = response.into_body().collect().await.unwrap().to_bytes();
        Answer { status, headers, body }
    }

    async fn get(&self, path: &str) -> Answer {
        self.send(Request::get(path).body(Body::empty()).unwrap()).await
    }

    async fn post_raw(&self, path: &str, body: &str) -> Answer {
        let request = Request::post(path).header("content-type", "application/json");
        self.send(request.body(Body::from(body.to_owned())).unwrap()).await
    }

    async fn post(&self, path: &str, body: &Value) -> Answer {
        self.post_raw(path, &body.to_string()).await
    }

    /// All events so far, by the replay socket; each batch as the wire has it.
    async fn replay(&self, rank: u32) -> Vec<rmpv::Value> {
        let source = &self.app.event_sources[rank.to_string()];
        let endpoint = source["replay_endpoint"].as_str().unwrap().replace('*', "127.0.0.1");
        let mut dealer = DealerSocket::new();
        dealer.connect(&endpoint).await.unwrap();
        let request = vec![Bytes::new(), Bytes::copy_from_slice(&0u64.to_be_bytes())];
        dealer.send(ZmqMessage::try_from(request).unwrap()).await.unwrap();
        let mut batches = Vec::new();
        loop {
            let frames = dealer.recv().await.unwrap().into_vec();
            let [.., sequence, batch] = frames.as_slice() else { panic!("{frames:?}") };
            if sequence[..] == [0xff; 8] {
                return batches;
            }
            assert_eq!(sequence[..], (batches.len() as u64).to_be_bytes());
            batches.push(rmpv::decode::read_value(&mut &batch[..]).unwrap());
        }
    }
}

fn chat(text: &str) -> Value {
    json!({
        "model": "tiny",
        "messages": [{"role": "user", "content": text}],
        "max_tokens": 4,
        "return_token_ids": true,
    })
}

fn ids(range: std::ops::Range<u32>) -> Value {
    json!({
        "model": "tiny",
        "prompt": range.collect::<Vec<_>>(),
        "max_tokens": 2,
        "return_token_ids": true,
    })
}

const CHAT: &str = "/v1/chat/completions";

mod apis;
mod ranks;

const COMPLETIONS: &str = "/v1/completions";

#[tokio::test]
async fn a_chat_answers_in_vllms_shape_and_says_that_it_is_simulated() {
    let engine = Engine::new(&["--region", "eu-1"]).await;
    let answer = engine.post(CHAT, &chat(&"Hello there. ".repeat(20))).await;
    assert_eq!(answer.status, StatusCode::OK);
    assert_eq!(answer.headers["x-warmpath-simulated"], "true");
    assert_eq!(answer.headers["x-warmpath-engine"], "10.0.0.1:8000");
    assert_eq!(answer.headers["x-warmpath-engine-region"], "eu-1");
    let body = answer.json();
    // Every field that vLLM 0.32.0 was seen to send.
    let mut fields: Vec<&str> = body.as_object().unwrap().keys().map(String::as_str).collect();
    fields.sort_unstable();
    assert_eq!(
        fields,
        [
            "choices",
            "created",
            "ec_transfer_params",
            "id",
            "kv_transfer_params",
            "metrics",
            "model",
            "object",
            "prompt_logprobs",
            "prompt_text",
            "prompt_token_ids",
            "service_tier",
            "system_fingerprint",
            "usage"
        ]
    );
    assert_eq!(body["object"], "chat.completion");
    assert_eq!(body["system_fingerprint"], "warmpath-simulated");
    let choice = &body["choices"][0];
    assert_eq!(choice["finish_reason"], "length");
    assert_eq!(choice["token_ids"].as_array().unwrap().len(), 4);
    let prompt = body["prompt_token_ids"].as_array().unwrap().len();
    assert_eq!(
        body["usage"],
        json!({
            "prompt_tokens": prompt, "total_tokens": prompt + 4, "completion_tokens": 4,
            "prompt_tokens_details": null, "completion_tokens_details": null,
        })
    );
    let again = engine.post(CHAT, &chat(&"Hello there. ".repeat(20))).await;
    assert_eq!(again.cached(), json!({"cached_tokens": (prompt - 1) / 16 * 16}));
}

#[tokio::test]
async fn tokenize_gives_the_ids_of_the_request_itself() {
    let engine = Engine::new(&[]).await;
    let body = chat("Hi");
    let answer = engine.post(CHAT, &body).await.json();
    let tokenized = engine.post("/tokenize", &body).await.json();
    assert_eq!(tokenized["tokens"], answer["prompt_token_ids"]);
    assert_eq!(tokenized["count"], answer["usage"]["prompt_tokens"]);
    assert_eq!(tokenized["token_strs"], Value::Null);
    let text = engine.post("/tokenize", &json!({"prompt": "Hi"})).await;
    assert_eq!(text.status, StatusCode::OK);
    let neither = engine.post("/tokenize", &json!({"model": "tiny"})).await;
    assert_eq!(neither.status, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn a_stream_says_the_same_as_the_whole() {
    let engine = Engine::new(&[]).await;
    for (path, mut body) in [(CHAT, chat("Hi")), (COMPLETIONS, ids(0..50))] {
        body["max_tokens"] = json!(20);
        let whole = engine.post(path, &body).await.json();
        body["stream"] = json!(true);
        body["stream_options"] = json!({"include_usage": true});
        let answer = engine.post(path, &body).await;
        assert_eq!(answer.headers["content-type"], "text/event-stream; charset=utf-8");
        let mut events = answer.events();
        assert_eq!(events.pop().unwrap(), "[DONE]");
        let chunks: Vec<Value> = events.iter().map(|e| serde_json::from_str(e).unwrap()).collect();
        let (usage, parts) = chunks.split_last().unwrap();
        assert_eq!(usage["choices"], json!([]));
        assert_eq!(usage["usage"]["completion_tokens"], 20);
        assert!(parts.iter().all(|part| part.get("usage").is_none()));
        let choices: Vec<&Value> = parts.iter().map(|part| &part["choices"][0]).collect();
        let text: String = choices
            .iter()
            .map(|c| c["delta"]["content"].as_str().or(c["text"].as_str()).unwrap())
            .collect();
        let expected = &whole["choices"][0];
        assert_eq!(
            text,
            expected["message"]["content"].as_str().or(expected["text"].as_str()).unwrap()
        );
        let streamed: Vec<Value> = choices
            .iter()
            .flat_map(|c| c["token_ids"].as_array().cloned().unwrap_or_default())
            .collect();
        assert_eq!(json!(streamed), expected["token_ids"]);
        assert_eq!(choices.last().unwrap()["finish_reason"], "length");
        if path == CHAT {
            assert_eq!(parts[0]["object"], "chat.completion.chunk");
            assert_eq!(choices[0]["delta"], json!({"role": "assistant", "content": ""}));
            assert_eq!(parts[0]["prompt_token_ids"], whole["prompt_token_ids"]);
        } else {
            assert_eq!(choices[0]["prompt_token_ids"], expected["prompt_token_ids"]);
            assert_eq!(usage["usage"]["prompt_tokens_details"], json!({"cached_tokens": 48}));
        }
    }
}

#[tokio::test]
async fn salt_and_adapter_part_the_cache_and_the_events_say_so() {
    let engine = Engine::new(&["--lora", "lora-a", "--lora", "lora-b"]).await;
    let with = |model: &str, salt: Option<&str>| {
        let mut body = ids(100..140);
        body["model"] = json!(model);
        if let Some(salt) = salt {
            body["cache_salt"] = json!(salt);
        }
        body
    };
    for (model, salt) in [
        ("tiny", None),
        ("lora-a", None),
        ("lora-b", None),
        ("tiny", Some("t1")),
        ("lora-b", Some("t1")),
    ] {
        let first = engine.post(COMPLETIONS, &with(model, salt)).await;
        assert_eq!(first.cached(), Value::Null, "{model} {salt:?}");
        assert_eq!(first.json()["model"], model);
        let second = engine.post(COMPLETIONS, &with(model, salt)).await;
        assert_eq!(second.cached(), json!({"cached_tokens": 32}), "{model} {salt:?}");
    }
    let batches = engine.replay(0).await;
    assert_eq!(batches.len(), 5, "hits emit nothing");
    let event: Value = rmpv::ext::from_value(batches[4][1][0].clone()).unwrap();
    assert_eq!(event["lora_name"], "lora-b");
    assert_eq!(event["lora_id"], 2);
    assert_eq!(event["extra_keys"], json!([["lora-b", "t1"], ["lora-b"]]));
    assert_eq!(event["token_ids"], json!((100..132).collect::<Vec<_>>()));
    let models = engine.get("/v1/models").await.json();
    assert_eq!(models["data"][0]["id"], "tiny");
    assert_eq!(
        (&models["data"][2]["id"], &models["data"][2]["parent"]),
        (&json!("lora-b"), &json!("tiny"))
    );
}

#[tokio::test]
async fn a_reset_shows_with_the_next_request() {
    let engine = Engine::new(&[]).await;
    engine.post(COMPLETIONS, &ids(0..40)).await;
    let reset = engine.post("/reset_prefix_cache", &json!({})).await;
    assert_eq!(reset.json(), json!({"success": true}));
    assert_eq!(engine.replay(0).await.len(), 1);
    assert_eq!(engine.post(COMPLETIONS, &ids(0..40)).await.cached(), Value::Null);
    let batches = engine.replay(0).await;
    let events: Value = rmpv::ext::from_value(batches[1][1].clone()).unwrap();
    assert_eq!(events[0]["type"], "AllBlocksCleared");
    assert_eq!(events[1]["type"], "BlockStored");
}

#[tokio::test]
async fn several_prompts_are_several_choices() {
    let engine = Engine::new(&[]).await;
    for prompt in [json!([[1, 2, 3], [4, 5, 6, 7]]), json!(["one", "two"])] {
        let body = json!({"prompt": prompt, "max_tokens": 3, "return_token_ids": true});
        let answer = engine.post(COMPLETIONS, &body).await.json();
        let choices = answer["choices"].as_array().unwrap();
        assert_eq!((choices.len(), &choices[1]["index"]), (2, &json!(1)));
        assert_eq!(answer["usage"]["completion_tokens"], 6);
        if prompt[0].is_array() {
            assert_eq!(choices[1]["prompt_token_ids"], prompt[1]);
        }
    }
}

#[tokio::test]
async fn what_cant_be_served_is_refused_in_vllms_shape() {
    let engine = Engine::new(&["--max-model-len", "100"]).await;
    let with = |key: &str, value: Value| {
        let mut body = ids(0..50);
        body[key] = value;
        body.to_string()
    };
    for (path, body, status, kind) in [
        (CHAT, "{".to_owned(), 400, "Bad Request"),
        (CHAT, "[]".to_owned(), 400, "Bad Request"),
        (CHAT, String::new(), 400, "Bad Request"),
        (CHAT, json!({"model": "tiny"}).to_string(), 400, "Bad Request"),
        (COMPLETIONS, json!({"model": "tiny"}).to_string(), 400, "Bad Request"),
        (COMPLETIONS, with("prompt", json!([-1])), 400, "Bad Request"),
        (COMPLETIONS, with("prompt", json!([])), 400, "BadRequestError"),
        (COMPLETIONS, with("model", json!("other")), 404, "NotFoundError"),
        (COMPLETIONS, with("max_tokens", json!(51)), 400, "BadRequestError"),
        (COMPLETIONS, with("max_tokens", json!(0)), 400, "BadRequestError"),
        (COMPLETIONS, with("max_tokens", json!(u64::MAX)), 400, "BadRequestError"),
        (COMPLETIONS, with("cache_salt", json!("")), 400, "BadRequestError"),
        (COMPLETIONS, with("n", json!(2)), 400, "BadRequestError"),
        ("/tokenize", "nonsense".to_owned(), 400, "Bad Request"),
    ] {
        let answer = engine.post_raw(path, &body).await;
        assert_eq!(answer.status.as_u16(), status, "{path} {body}");
        let error = &answer.json()["error"];
        assert_eq!((&error["type"], &error["code"]), (&json!(kind), &json!(status)), "{body}");
        assert!(error["message"].is_string());
        assert_eq!(answer.headers["x-warmpath-simulated"], "true");
    }
    let unknown = engine.post(COMPLETIONS, &json!({"model": "gone", "prompt": "x"})).await.json();
    assert_eq!(unknown["error"]["message"], "The model `gone` does not exist.");
    assert_eq!(engine.post_raw(COMPLETIONS, &with("max_tokens", json!(50))).await.status, 200);
    assert_eq!(engine.get("/v2/nothing").await.status, 404);
}

#[tokio::test]
async fn a_transcription_goes_by_the_forms_model() {
    let engine = Engine::new(&["--lora", "lora-a"]).await;
    let file = "Content-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n\r\nRIFF";
    let model = |name: &str| format!("Content-Disposition: form-data; name=model\r\n\r\n{name}");
    for (parts, status) in [
        (vec![file.to_owned()], 200),
        (vec![model("tiny"), file.to_owned()], 200),
        (vec![file.to_owned(), model("lora-a")], 200),
        (vec![model("other"), model("tiny"), file.to_owned()], 200),
        (vec![file.to_owned(), model("other")], 404),
        (vec![model("tiny")], 400),
    ] {
        let body = format!("--B\r\n{}\r\n--B--\r\n", parts.join("\r\n--B\r\n"));
        let request = Request::post("/v1/audio/transcriptions")
            .header("content-type", "multipart/form-data; boundary=B")
            .body(Body::from(body));
        let answer = engine.send(request.unwrap()).await;
        assert_eq!(answer.status.as_u16(), status, "{parts:?}");
        if status == 200 {
            let text = answer.json()["text"].as_str().unwrap().to_owned();
            assert!(text.starts_with("This is a simulated answer"), "{text}");
            assert_eq!(answer.json()["usage"], json!({"type": "duration", "seconds": 1}));
        }
    }
    let json = engine.post("/v1/audio/transcriptions", &json!({"model": "tiny"})).await;
    assert_eq!(json.status, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn the_other_endpoints() {
    let engine = Engine::new(&[]).await;
    assert_eq!(engine.get("/health").await.status, StatusCode::OK);
    assert_eq!(engine.get("/load").await.json(), json!({"server_load": 0}));
    let version = engine.get("/version").await.json();
    assert_eq!(version, json!({"version": "0.32.0+warmpath.simulated", "simulated": true}));
    engine.post(COMPLETIONS, &ids(0..40)).await;
    engine.post(COMPLETIONS, &ids(0..40)).await;
    let page = String::from_utf8(engine.get("/metrics").await.body.to_vec()).unwrap();
    let label = "{engine=\"0\",model_name=\"tiny\"";
    for line in [
        format!("vllm:num_requests_running{label}}} 0\n"),
        format!("vllm:num_requests_waiting{label}}} 0\n"),
        format!("vllm:kv_cache_usage_perc{label}}} 0\n"),
        format!("vllm:prefix_cache_queries_total{label}}} 80\n"),
        format!("vllm:prefix_cache_hits_total{label}}} 32\n"),
        format!("vllm:prompt_tokens_total{label}}} 80\n"),
        format!("vllm:generation_tokens_total{label}}} 4\n"),
        format!("vllm:request_success_total{label},finished_reason=\"length\"}} 2\n"),
        format!("vllm:time_to_first_token_seconds_bucket{label},le=\"+Inf\"}} 2\n"),
    ] {
        assert!(page.contains(&line), "{line}\n{page}");
    }
}
