//! KV events as vLLM puts them on the wire (msgpack).
//!
//! The batch is always an array `[ts, events, dp_rank]`. An event is a map with the key `type`
//! from vLLM 0.24, an array that begins with it before. Order and number of the fields are those
//! of captured frames: 0.32.0 for maps, 0.23.0 for arrays.

use std::sync::Arc;

use rmp::encode;

use super::hash::{BlockHash, Lora};

/// One change of the cache.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Event {
    /// Blocks that one request filled, in order.
    Stored {
        hashes: Vec<BlockHash>,
        /// The block before the first; none at a prompt's start.
        parent: Option<BlockHash>,
        /// The tokens of all the blocks: `hashes.len() * block_size`.
        tokens: Vec<u32>,
        block_size: usize,
        lora: Option<Lora>,
        /// Per block: adapter and salt, where they apply.
        extra_keys: Vec<Vec<Arc<str>>>,
    },
    /// One physical copy of a block went.
    Removed(BlockHash),
    /// Everything went.
    Cleared,
}

/// Form of an event on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Form {
    /// As vLLM 0.24 and later
    Map,
    /// As vLLM 0.23 and earlier
    Array,
}

/// Form of a block hash on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum HashForm {
    /// 64-bit numbers, vLLM's default
    Int,
    /// 32 bytes, as with `VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=0`
    Bytes,
}

/// How events are written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Encoding {
    pub(crate) form: Form,
    pub(crate) hashes: HashForm,
}

const MEDIUM: &str = "GPU";
const GROUP: u64 = 0;
const SPEC_KIND: &str = "full_attention";

impl Encoding {
    /// Writes a batch: seconds since 1970, its events, the data-parallel rank.
    pub(crate) fn batch(self, seconds: f64, events: &[Event], rank: u32) -> Vec<u8> {
        let mut out = Writer { out: Vec::with_capacity(256), encoding: self };
        out.array(3);
        out.float(seconds);
        out.array(events.len());
        for event in events {
            out.event(event);
        }
        out.number(u64::from(rank));
        out.out
    }
}

/// Writes msgpack. Writing into a Vec can't fail, so results are dropped here.
struct Writer {
    out: Vec<u8>,
    encoding: Encoding,
}

impl Writer {
    fn event(&mut self, event: &Event) {
        match event {
            Event::Stored { hashes, parent, tokens, block_size, lora, extra_keys } => {
                // The array of 0.23 has one field more: the sliding window, nil here.
                self.begin("BlockStored", 10, 11);
                self.key("block_hashes");
                self.array(hashes.len());
                for hash in hashes {
                    self.hash(hash);
                }
                self.key("parent_block_hash");
                self.optional(parent.as_ref(), Self::hash);
                self.key("token_ids");
                self.array(tokens.len());
                for &token in tokens {
                    self.number(u64::from(token));
                }
                self.key("block_size");
                self.number(*block_size as u64);
                self.key("lora_id");
                self.optional(lora.as_ref(), |out, lora| out.number(lora.id));
                self.key("medium");
                self.text(MEDIUM);
                self.key("lora_name");
                self.optional(lora.as_ref(), |out, lora| out.text(&lora.name));
                self.key("extra_keys");
                self.array(extra_keys.len());
                for keys in extra_keys {
                    self.optional(Some(keys).filter(|keys| !keys.is_empty()), |out, keys| {
                        out.array(keys.len());
                        for key in keys {
                            out.text(key);
                        }
                    });
                }
                self.key("group_idx");
                self.number(GROUP);
                self.key("kv_cache_spec_kind");
                self.text(SPEC_KIND);
                if self.encoding.form == Form::Array {
                    self.nil();
                }
            }
            Event::Removed(hash) => {
                self.begin("BlockRemoved", 3, 3);
                self.key("block_hashes");
                self.array(1);
                self.hash(hash);
                self.key("medium");
                self.text(MEDIUM);
                self.key("group_idx");
                self.number(GROUP);
            }
            Event::Cleared => self.begin("AllBlocksCleared", 0, 0),
        }
    }

    /// Begins an event; the counts are of its fields besides the tag.
    fn begin(&mut self, tag: &str, map_fields: usize, array_fields: usize) {
        match self.encoding.form {
            Form::Map => {
                let _ = encode::write_map_len(&mut self.out, count(map_fields + 1));
                self.text("type");
            }
            Form::Array => self.array(array_fields + 1),
        }
        self.text(tag);
    }

    /// A field's name, where the form has names.
    fn key(&mut self, name: &str) {
        if self.encoding.form == Form::Map {
            self.text(name);
        }
    }

    fn optional<T>(&mut self, value: Option<&T>, write: impl FnOnce(&mut Self, &T)) {
        match value {
            Some(value) => write(self, value),
            None => self.nil(),
        }
    }

    fn hash(&mut self, hash: &BlockHash) {
        match self.encoding.hashes {
            HashForm::Int => self.number(hash.number()),
            HashForm::Bytes => {
                let _ = encode::write_bin(&mut self.out, &hash.0);
            }
        }
    }

    fn array(&mut self, len: usize) {
        let _ = encode::write_array_len(&mut self.out, count(len));
    }

    fn text(&mut self, text: &str) {
        let _ = encode::write_str(&mut self.out, text);
    }

    fn number(&mut self, number: u64) {
        let _ = encode::write_uint(&mut self.out, number);
    }

    fn float(&mut self, number: f64) {
        let _ = encode::write_f64(&mut self.out, number);
    }

    fn nil(&mut self) {
        let _ = encode::write_nil(&mut self.out);
    }
}

fn count(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}
