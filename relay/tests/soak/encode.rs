//! Events as engines write them.

use rmp::encode::{
    write_array_len, write_bin, write_f64, write_map_len, write_nil, write_str, write_u32,
    write_u64,
};

use super::cache::{ADAPTER, Event};

/// How an engine's version writes.
#[derive(Clone, Copy)]
pub struct Form {
    /// Events as maps (vLLM from 0.24 on), not arrays.
    pub maps: bool,
    /// Hashes as bytes, not integers.
    pub bytes: bool,
}

impl Form {
    /// One batch, as msgpack.
    pub fn batch(self, block_tokens: usize, events: &[Event]) -> Vec<u8> {
        let mut out = Vec::with_capacity(64 * events.len());
        let to = &mut out;
        write_array_len(to, 3).unwrap();
        write_f64(to, 1.5).unwrap();
        write_array_len(to, events.len() as u32).unwrap();
        for event in events {
            self.event(to, block_tokens, event);
        }
        write_nil(to).unwrap();
        out
    }

    fn event(self, to: &mut Vec<u8>, block_tokens: usize, event: &Event) {
        match event {
            Event::Stored { hashes, parent, tokens, adapter } => {
                self.head(to, "BlockStored", 8);
                self.name(to, "block_hashes");
                write_array_len(to, hashes.len() as u32).unwrap();
                for hash in hashes {
                    self.hash(to, *hash);
                }
                self.name(to, "parent_block_hash");
                match parent {
                    Some(hash) => self.hash(to, *hash),
                    None => write_nil(to).unwrap(),
                }
                self.name(to, "token_ids");
                write_array_len(to, tokens.len() as u32).unwrap();
                for token in tokens {
                    write_u32(to, *token).unwrap();
                }
                self.name(to, "block_size");
                write_u64(to, block_tokens as u64).unwrap();
                self.name(to, "lora_id");
                if *adapter {
                    write_u64(to, 3).unwrap();
                } else {
                    write_nil(to).unwrap();
                }
                self.name(to, "medium");
                write_str(to, "GPU").unwrap();
                self.name(to, "lora_name");
                if *adapter {
                    write_str(to, ADAPTER).unwrap();
                } else {
                    write_nil(to).unwrap();
                }
                self.name(to, "extra_keys");
                write_array_len(to, hashes.len() as u32).unwrap();
                for _ in hashes {
                    if *adapter {
                        write_array_len(to, 1).unwrap();
                        write_str(to, ADAPTER).unwrap();
                    } else {
                        write_nil(to).unwrap();
                    }
                }
            }
            Event::Removed(hash) => {
                self.head(to, "BlockRemoved", 2);
                self.name(to, "block_hashes");
                write_array_len(to, 1).unwrap();
                self.hash(to, *hash);
                self.name(to, "medium");
                write_str(to, "GPU").unwrap();
            }
            Event::Cleared => self.head(to, "AllBlocksCleared", 0),
        }
    }

    fn head(self, to: &mut Vec<u8>, kind: &str, fields: u32) {
        if self.maps {
            write_map_len(to, fields + 1).unwrap();
            write_str(to, "type").unwrap();
        } else {
            write_array_len(to, fields + 1).unwrap();
        }
        write_str(to, kind).unwrap();
    }

    fn name(self, to: &mut Vec<u8>, name: &str) {
        if self.maps {
            write_str(to, name).unwrap();
        }
    }

    fn hash(self, to: &mut Vec<u8>, hash: u64) {
        if self.bytes {
            let mut bytes = [7; 32];
            bytes[..8].copy_from_slice(&hash.to_be_bytes());
            write_bin(to, &bytes).unwrap();
        } else {
            write_u64(to, hash).unwrap();
        }
    }
}
