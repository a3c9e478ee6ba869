//! An engine's KV events, as vLLM 0.24 and later writes them: everything to whoever subscribes.

use bytes::Bytes;
use rmpv::Value;
use zeromq::{Socket, SocketRecv, SocketSend, XPubSocket, ZmqMessage};

/// Tokens of a block that engines hold and tell of.
pub const BLOCK_TOKENS: usize = 16;

/// Publishes on this port, to each subscriber anew, that these prompts are held.
pub(super) async fn start(port: u16, prompts: Vec<Vec<u32>>) -> anyhow::Result<()> {
    let mut socket = XPubSocket::new();
    socket.bind(&format!("tcp://127.0.0.1:{port}")).await?;
    let frames: Vec<Bytes> = (0..).zip(&prompts).map(|(n, ids)| stored(n, ids)).collect();
    tokio::spawn(async move {
        // A message is a subscription or its end.
        while let Ok(message) = socket.recv().await {
            if message.get(0).and_then(|frame| frame.first()) != Some(&1) {
                continue;
            }
            for (sequence, frame) in (0u64..).zip(&frames) {
                let sequence = Bytes::copy_from_slice(&sequence.to_be_bytes());
                let parts = vec![Bytes::new(), sequence, frame.clone()];
                let Ok(message) = ZmqMessage::try_from(parts) else { continue };
                let _ = socket.send(message).await;
            }
        }
    });
    Ok(())
}

/// A batch that says that the prompt of this number is held, in blocks of [`BLOCK_TOKENS`].
pub fn stored(prompt: u64, ids: &[u32]) -> Bytes {
    let blocks = (ids.len() / BLOCK_TOKENS) as u64;
    // Spread over 64 bits, as an engine's hashes are.
    let hash = |block: u64| ((prompt << 20) + block + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let field = |name: &str, value: Value| (Value::from(name), value);
    let event = Value::Map(vec![
        field("type", "BlockStored".into()),
        field("block_hashes", Value::Array((0..blocks).map(|b| hash(b).into()).collect())),
        field("parent_block_hash", Value::Nil),
        field("token_ids", Value::Array(ids.iter().map(|id| (*id).into()).collect())),
        field("block_size", (BLOCK_TOKENS as u64).into()),
        field("lora_id", Value::Nil),
        field("medium", "GPU".into()),
        field("lora_name", Value::Nil),
        field("extra_keys", Value::Array((0..blocks).map(|_| Value::Nil).collect())),
        field("group_idx", 0.into()),
        field("kv_cache_spec_kind", "full_attention".into()),
    ]);
    let batch = Value::Array(vec![1.0.into(), Value::Array(vec![event]), 0.into()]);
    let mut out = Vec::new();
    // Writing into memory can't fail.
    let _ = rmpv::encode::write_value(&mut out, &batch);
    out.into()
}
