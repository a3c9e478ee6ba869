//! Models are loaded when they are known.

use super::*;

#[test]
fn text_is_tokenized_once_the_model_is_loaded() {
    let mut gateway = Gateway::new();
    let text = "The library on Harbour Street lends books, tools and a cello. ".repeat(20);
    let body = json!({"model": "demo", "messages": [{"role": "user", "content": text}]});
    let told = gateway.routed("eu", &body);
    says(&told, "reason", &quoted("cold"));
    assert!(!told.explain.contains("blocks=0"), "{}", told.explain);
    assert_eq!(
        gateway.routed("eu", &body).ticket.named.endpoints(),
        told.ticket.named.endpoints(),
        "equal prompts meet"
    );
}

#[test]
fn a_tokenizer_is_loaded_once_and_a_damaged_one_refused_once() {
    let mut gateway = Gateway::new();
    gateway.connect();
    assert_eq!(gateway.load_one(), Loaded::Nothing);

    let mut gateway = Gateway::new();
    gateway.artefact = b"no artefact".to_vec();
    gateway.connect();
    assert_eq!(gateway.load_one(), Loaded::Nothing, "the tick has tried it");
    let told = gateway.routed("eu", &json!({"model": "demo", "prompt": [1, 2, 3]}));
    says(&told, "degrade", &quoted("no_tokenizer"));
}
