//! Responses and Messages, as vLLM 0.32 answers them; and requests that read no cache.

use super::*;

const RESPONSES: &str = "/v1/responses";
const MESSAGES: &str = "/v1/messages";

const LONG: &str = "What is to be said about the swimming pool, the library and the old harbour, in \
    so many words that a few blocks are full of them, and a bit more than that, once and again?";

fn response(stream: bool) -> Value {
    json!({"model": "tiny", "input": LONG, "instructions": "Be brief.", "max_output_tokens": 9,
           "stream": stream, "user": "somebody", "metadata": {"usage": "none"}})
}

fn message(stream: bool) -> Value {
    json!({"model": "tiny", "messages": [{"role": "user", "content": LONG}], "max_tokens": 9,
           "stream": stream})
}

impl Answer {
    /// Names and data of a stream's events.
    fn named_events(&self) -> Vec<(String, Value)> {
        let text = std::str::from_utf8(&self.body).unwrap();
        let event = |event: &str| {
            let (name, data) = event.split_once('\n').unwrap();
            let data = data.strip_prefix("data: ").unwrap();
            (name.strip_prefix("event: ").unwrap().to_owned(), serde_json::from_str(data).unwrap())
        };
        text.split_terminator("\n\n").map(event).collect()
    }

    /// The names of the fields of the outermost object, in their order.
    fn fields(&self) -> Vec<String> {
        let Keys(names) = serde_json::from_slice(&self.body).unwrap();
        names
    }
}

/// Names of an object's fields.
struct Keys(Vec<String>);

impl<'de> serde::Deserialize<'de> for Keys {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Self(Vec::new()))
    }
}

impl<'de> serde::de::Visitor<'de> for Keys {
    type Value = Self;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: serde::de::MapAccess<'de>>(mut self, mut map: A) -> Result<Self, A::Error> {
        while let Some((name, serde::de::IgnoredAny)) = map.next_entry()? {
            self.0.push(name);
        }
        Ok(self)
    }
}

/// Names of events, equal ones in a row once.
fn kinds(events: &[(String, Value)]) -> Vec<&str> {
    let mut kinds: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
    kinds.dedup();
    kinds
}

fn texts(events: &[(String, Value)], pointer: &str) -> String {
    events.iter().filter_map(|(_, event)| event.pointer(pointer)?.as_str()).collect()
}

#[tokio::test]
async fn a_response_is_answered_in_vllms_shape() {
    let engine = Engine::new(&["--block-size", "16"]).await;
    let cold = engine.post(RESPONSES, &response(false)).await;
    assert_eq!(cold.status, StatusCode::OK, "{:?}", cold.body);
    let fields = cold.fields();
    assert_eq!(fields.first().map(String::as_str), Some("id"));
    assert_eq!(fields.last().map(String::as_str), Some("output_messages"));
    let place = |name: &str| fields.iter().position(|field| field == name).unwrap();
    assert_eq!(place("usage") + 1, place("user"), "{fields:?}");
    let json = cold.json();
    assert_eq!(json["object"], "response");
    assert_eq!(
        (&json["status"], &json["incomplete_details"]["reason"]),
        (&json!("incomplete"), &json!("max_output_tokens"))
    );
    assert_eq!(json["instructions"], "Be brief.");
    let [item] = json["output"].as_array().unwrap().as_slice() else { panic!("{json}") };
    assert_eq!((&item["type"], &item["role"]), (&json!("message"), &json!("assistant")));
    assert!(item["content"][0]["text"].as_str().unwrap().starts_with("This is a simulated"));
    let usage = &json["usage"];
    let prompt = usage["input_tokens"].as_u64().unwrap();
    let full = prompt / 16 * 16;
    assert_eq!(usage["input_tokens_details"]["cached_tokens"], 0);
    assert_eq!(usage["input_tokens_details"]["cache_write_tokens"], full);
    assert_eq!((&usage["output_tokens"], &usage["total_tokens"]), (&json!(9), &json!(prompt + 9)));

    let warm = engine.post(RESPONSES, &response(false)).await.json();
    assert_eq!(warm["usage"]["input_tokens"], prompt);
    assert_eq!(warm["usage"]["input_tokens_details"]["cached_tokens"], (prompt - 1) / 16 * 16);
    assert_ne!(warm["id"], json["id"]);

    // The stream says the same.
    let events = engine.post(RESPONSES, &response(true)).await.named_events();
    assert_eq!(
        kinds(&events),
        [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added",
            "response.output_text.delta",
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.completed",
        ]
    );
    for (at, (name, event)) in events.iter().enumerate() {
        assert_eq!((&event["sequence_number"], &event["type"]), (&json!(at), &json!(name)));
    }
    assert_eq!(events[0].1["response"]["usage"], Value::Null);
    assert_eq!(events[0].1["response"]["status"], "in_progress");
    let last = &events.last().unwrap().1["response"];
    let text = texts(&events, "/delta");
    assert_eq!(text, item["content"][0]["text"].as_str().unwrap());
    assert_eq!(last["output"][0]["content"][0]["text"], text);
    assert_eq!((&last["usage"], &last["status"]), (&warm["usage"], &warm["status"]));
}

#[tokio::test]
async fn a_message_is_answered_in_vllms_shape() {
    let engine = Engine::new(&["--block-size", "16"]).await;
    let cold = engine.post(MESSAGES, &message(false)).await;
    assert_eq!(cold.status, StatusCode::OK, "{:?}", cold.body);
    assert_eq!(cold.fields(), ["id", "type", "role", "content", "model", "stop_reason", "usage",]);
    let json = cold.json();
    assert_eq!((&json["type"], &json["stop_reason"]), (&json!("message"), &json!("max_tokens")));
    let count = engine.post("/v1/messages/count_tokens", &message(false)).await.json();
    let prompt = count["input_tokens"].as_u64().unwrap();
    assert_eq!(count["context_management"]["original_input_tokens"], prompt);
    let (full, warm) = (prompt / 16 * 16, (prompt - 1) / 16 * 16);
    assert!(full > 16);
    assert_eq!(
        json["usage"],
        json!({
            "input_tokens": prompt - full, "output_tokens": 9,
            "cache_creation_input_tokens": full, "cache_read_input_tokens": 0
        })
    );
    let again = engine.post(MESSAGES, &message(false)).await.json();
    assert_eq!(again["usage"]["cache_read_input_tokens"], warm);
    assert_eq!(again["usage"]["input_tokens"], prompt - full);

    let events = engine.post(MESSAGES, &message(true)).await.named_events();
    assert_eq!(
        kinds(&events),
        [
            "message_start",
            "content_block_start",
            "content_block_delta",
            "content_block_stop",
            "message_delta",
            "message_stop",
        ]
    );
    let start = &events[0].1["message"];
    assert_eq!(start["usage"], json!({"input_tokens": prompt, "output_tokens": 0}));
    assert_eq!(start["content"], json!([]));
    assert_eq!(texts(&events, "/delta/text"), json["content"][0]["text"].as_str().unwrap());
    let [.., (_, delta), (_, stop)] = events.as_slice() else { panic!("{events:?}") };
    assert_eq!(delta["usage"], again["usage"]);
    assert_eq!(delta["delta"], json!({"stop_reason": "max_tokens", "stop_sequence": null}));
    assert_eq!(*stop, json!({"type": "message_stop"}));
}

#[tokio::test]
async fn what_these_apis_cant_serve_is_refused_in_their_own_shapes() {
    let engine = Engine::new(&[]).await;
    let with = |mut body: Value, name: &str, value: Value| {
        body[name] = value;
        body
    };
    let unknown = engine.post(RESPONSES, &with(response(true), "model", json!("other"))).await;
    assert_eq!(unknown.status, StatusCode::NOT_FOUND);
    assert_eq!(unknown.json()["error"]["code"], 404);
    let stored = with(response(false), "previous_response_id", json!("resp_1"));
    let stored = engine.post(RESPONSES, &stored).await;
    assert_eq!(stored.status, StatusCode::NOT_FOUND);
    assert_eq!(stored.json()["error"]["message"], "Response with id 'resp_1' not found.");
    let unknown = with(message(true), "model", json!("other"));
    for path in [MESSAGES, "/v1/messages/count_tokens"] {
        let answer = engine.post(path, &unknown).await;
        assert_eq!(answer.status, StatusCode::NOT_FOUND);
        assert_eq!(
            answer.json(),
            json!({"type": "error", "error": {
                "type": "NotFoundError", "message": "The model `other` does not exist."
            }})
        );
    }
    for (path, body) in [(RESPONSES, json!({})), (MESSAGES, json!({"messages": []}))] {
        let answer = engine.post(path, &body).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST);
        let error = &answer.json()["error"];
        assert_eq!((&error["type"], &error["code"]), (&json!("Bad Request"), &json!(400)));
    }
}

#[tokio::test]
async fn a_prompt_whose_log_probabilities_are_asked_for_is_computed_whole() {
    let engine = Engine::new(&["--block-size", "16"]).await;
    let prompt: Vec<u32> = (0..64).collect();
    let ask = async |more: Value| {
        let mut body = json!({"model": "tiny", "prompt": prompt, "max_tokens": 1});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        engine.post("/v1/completions", &body).await.cached()
    };
    let held = json!({"cached_tokens": 48});
    assert_eq!(ask(json!({"echo": true, "logprobs": 1})).await, Value::Null);
    assert_eq!(ask(json!({})).await, held, "it was stored all the same");
    assert_eq!(ask(json!({"echo": true})).await, held);
    assert_eq!(ask(json!({"logprobs": 1})).await, held);
    assert_eq!(ask(json!({"echo": true, "logprobs": 0})).await, Value::Null);
    assert_eq!(ask(json!({"prompt_logprobs": 0})).await, Value::Null);
    let ask_chat = async |more: Value| {
        let mut body = chat(LONG);
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        engine.post(CHAT, &body).await.cached()
    };
    assert_eq!(ask_chat(json!({"echo": true})).await, Value::Null);
    assert_ne!(ask_chat(json!({})).await, Value::Null);
    assert_eq!(ask_chat(json!({"echo": true})).await, Value::Null);
    assert_ne!(ask_chat(json!({"echo": true, "top_logprobs": null})).await, Value::Null);
}

#[tokio::test]
async fn of_several_prompts_the_cached_tokens_of_one_are_told() {
    let engine = Engine::new(&["--block-size", "16"]).await;
    let held: Vec<u32> = (0..64).collect();
    let other: Vec<u32> = (100..164).collect();
    engine.post("/v1/completions", &json!({"prompt": held, "max_tokens": 1})).await;
    let whole = json!({"prompt": [other, held], "max_tokens": 1});
    let usage = engine.post("/v1/completions", &whole).await.json()["usage"].clone();
    assert_eq!(usage["prompt_tokens"], 128);
    assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], 48, "the last one's");
    let stream = json!({"prompt": [held, (200..264).collect::<Vec<u32>>()], "max_tokens": 1,
        "stream": true, "stream_options": {"include_usage": true}});
    let events = engine.post("/v1/completions", &stream).await.events();
    let usage: Value = serde_json::from_str(&events[events.len() - 2]).unwrap();
    assert_eq!(usage["usage"]["prompt_tokens_details"]["cached_tokens"], 48, "the first one's");
}

#[tokio::test]
async fn a_response_is_kept_and_gone_on_from() {
    let plain = Engine::new(&[]).await;
    let id = plain.post(RESPONSES, &response(false)).await.json()["id"].clone();
    let path = format!("{RESPONSES}/{}", id.as_str().unwrap());
    assert_eq!(plain.get(&path).await.status, StatusCode::NOT_FOUND, "none is, by default");

    let engine = Engine::new(&["--enable-response-store"]).await;
    for stream in [false, true] {
        let answer = engine.post(RESPONSES, &response(stream)).await;
        let first = if stream {
            answer.named_events().last().unwrap().1["response"].clone()
        } else {
            answer.json()
        };
        let id = first["id"].as_str().unwrap();
        let path = format!("{RESPONSES}/{id}");
        assert_eq!(engine.get(&path).await.json(), first);
        let next = json!({"model": "tiny", "input": "And?", "previous_response_id": id,
                          "max_output_tokens": 4});
        let next = engine.post(RESPONSES, &next).await;
        assert_eq!(next.status, StatusCode::OK, "{:?}", next.body);
        let next = next.json();
        assert_eq!(next["previous_response_id"], id);
        // All of the conversation but its instructions, as if it had been sent.
        let whole = json!({"model": "tiny", "max_output_tokens": 4, "input": [
            {"role": "user", "content": LONG},
            {"role": "assistant", "content": first["output"][0]["content"][0]["text"]},
            {"role": "user", "content": "And?"},
        ]});
        let whole = engine.post(RESPONSES, &whole).await.json();
        assert_eq!(whole["usage"]["input_tokens"], next["usage"]["input_tokens"]);
        let third = json!({"input": "Then?", "previous_response_id": next["id"]});
        assert_eq!(engine.post(RESPONSES, &third).await.status, StatusCode::OK);
        let cancel = engine.post(&format!("{path}/cancel"), &json!({})).await;
        assert_eq!(cancel.status, StatusCode::BAD_REQUEST, "it is over");
        let delete = Request::delete(&path).body(Body::empty()).unwrap();
        assert_eq!(engine.send(delete).await.status, StatusCode::METHOD_NOT_ALLOWED, "as in vLLM");
    }
    let mut unkept = response(false);
    unkept["store"] = json!(false);
    let id = engine.post(RESPONSES, &unkept).await.json()["id"].clone();
    let path = format!("{RESPONSES}/{}", id.as_str().unwrap());
    assert_eq!(engine.get(&path).await.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn a_response_in_the_background_can_be_asked_for_and_cancelled() {
    let slow = ["--enable-response-store", "--speedup", "1", "--prefill-base-ms", "60000"];
    let engine = Engine::new(&slow).await;
    let body = json!({"input": LONG, "background": true, "request_id": "resp_mine"});
    let queued = engine.post(RESPONSES, &body).await.json();
    assert_eq!((&queued["id"], &queued["status"]), (&json!("resp_mine"), &json!("queued")));
    let path = format!("{RESPONSES}/resp_mine");
    assert_eq!(engine.get(&path).await.json()["status"], "queued");
    let cancelled = engine.post(&format!("{path}/cancel"), &json!({})).await;
    assert_eq!(
        (cancelled.status, &cancelled.json()["status"]),
        (StatusCode::OK, &json!("cancelled"))
    );
    assert_eq!(engine.get(&path).await.json()["status"], "cancelled");
    let gone = engine.post(&format!("{RESPONSES}/resp_x/cancel"), &json!({})).await;
    assert_eq!(gone.status, StatusCode::NOT_FOUND);
    let plain = Engine::new(&[]).await;
    assert_eq!(plain.post(RESPONSES, &body).await.status, StatusCode::BAD_REQUEST);
}
