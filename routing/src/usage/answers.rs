//! Answers as engines write them, for the tests of usage.

/// vLLM 0.32, `/v1/chat/completions`.
pub(super) const CHAT: &str = r#"{"id":"chatcmpl-1","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"the \"usage\":{\"prompt_tokens\":9} of {it"}}],"service_tier":null,"usage":{"prompt_tokens":162,"total_tokens":163,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":160},"completion_tokens_details":null},"prompt_logprobs":null,"kv_transfer_params":null}"#;

/// vLLM 0.32, `/v1/responses`; what the client sent is in it on both sides of `usage`.
pub(super) fn vllm_response(client: &str) -> String {
    format!(
        r#"{{"id":"resp_1","created_at":1,"incomplete_details":null,"instructions":"{client}","metadata":{{"usage":"{client}"}},"model":"demo","object":"response","output":[{{"id":"msg_1","content":[{{"annotations":[],"text":"the \"usage\":{{\"input_tokens\":9}} of it","type":"output_text","logprobs":null}}],"role":"assistant","status":"completed","type":"message"}}],"parallel_tool_calls":true,"tools":[{{"type":"function","name":"f","parameters":{{"properties":{{"usage":{{"input_tokens":7,"input_tokens_details":{{"cached_tokens":7}}}}}}}}}}],"status":"completed","truncation":"disabled","usage":{{"input_tokens":964,"input_tokens_details":{{"cached_tokens":960,"cache_write_tokens":4,"input_tokens_per_turn":[],"cached_tokens_per_turn":[]}},"output_tokens":3,"output_tokens_details":{{"reasoning_tokens":0,"tool_output_tokens":0,"output_tokens_per_turn":[],"tool_output_tokens_per_turn":[]}},"total_tokens":967}},"user":"{client}","presence_penalty":0.0,"frequency_penalty":0.0,"kv_transfer_params":null,"ec_transfer_params":null,"input_messages":null,"output_messages":null}}"#
    )
}

/// SGLang 0.5.23, `/v1/responses`: most of what the client sent comes after `usage`.
pub(super) fn sglang_response(client: &str) -> String {
    format!(
        r#"{{"id":"resp_1","object":"response","created_at":1,"model":"demo","output":[],"status":"completed","usage":{{"input_tokens":964,"input_tokens_details":{{"cached_tokens":960,"cache_write_tokens":0}},"output_tokens":3,"output_tokens_details":{{"reasoning_tokens":0}},"total_tokens":967}},"parallel_tool_calls":true,"tool_choice":"auto","tools":[{{"type":"function","parameters":{{"properties":{{"usage":{{"input_tokens":7,"input_tokens_details":{{"cached_tokens":7}}}}}}}}}}],"error":null,"instructions":"{client}","user":"{client}","metadata":{{"usage":{{"input_tokens":5,"input_tokens_details":{{"cached_tokens":5}}}}}}}}"#
    )
}

/// A stream of `/v1/responses` that ends with this response.
pub(super) fn responses_stream(response: &str) -> String {
    let begun = response.replace("\"usage\":{\"input_tokens\":964", "\"was\":{\"input_tokens\":1");
    format!(
        "event: response.created\ndata: {{\"response\":{begun},\"sequence_number\":0,\"type\":\"response.created\"}}\n\n\
         event: response.output_text.delta\ndata: {{\"content_index\":0,\"delta\":\"\\\"usage\\\":{{\",\"item_id\":\"msg_1\",\"type\":\"response.output_text.delta\"}}\n\n\
         event: response.completed\ndata: {{\"response\":{response},\"sequence_number\":9,\"type\":\"response.completed\"}}\n\n"
    )
}

/// vLLM 0.32, `/v1/messages`.
pub(super) const MESSAGE: &str = r#"{"id":"chatcmpl-1","type":"message","role":"assistant","content":[{"type":"text","text":"hi"}],"model":"demo","stop_reason":"end_turn","usage":{"input_tokens":4,"output_tokens":3,"cache_read_input_tokens":960}}"#;

/// vLLM 0.32, `/v1/messages`, streamed: cached tokens are in the first `usage` only if the first
/// chunk tells of them, and always in the last.
pub(super) const MESSAGES_STREAM: &str = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"chatcmpl-1\",\"type\":\"message\",\"role\":\"assistant\",\"content\":[],\"model\":\"demo\",\"stop_reason\":null,\"stop_sequence\":null,\"usage\":{\"input_tokens\":964,\"output_tokens\":0}}}\n\n\
     event: content_block_start\ndata: {\"type\":\"content_block_start\",\"content_block\":{\"type\":\"tool_use\",\"input\":{\"usage\":{\"input_tokens\":1}}},\"index\":0}\n\n\
     event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\",\"stop_sequence\":null},\"usage\":{\"input_tokens\":4,\"output_tokens\":3,\"cache_read_input_tokens\":960}}\n\n\
     event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";

/// SGLang 0.5.23, `/v1/messages`, streamed: the last `usage` says nothing of the prompt.
pub(super) const SGLANG_MESSAGES_STREAM: &str = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"msg_1\",\"type\":\"message\",\"role\":\"assistant\",\"content\":[],\"model\":\"demo\",\"usage\":{\"input_tokens\":4,\"output_tokens\":0,\"cache_read_input_tokens\":960}}}\n\n\
     event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"hi\"}}\n\n\
     event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"output_tokens\":3}}\n\n\
     event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";
