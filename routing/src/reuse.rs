//! What an engine reuses of the blocks that it holds.

use crate::fingerprint::BLOCK_TOKENS;

/// The tokens that an engine will really find cached, of a prompt whose first `blocks` blocks of
/// 16 tokens it holds.
///
/// An engine reuses whole blocks of its own size (`block_tokens`, 0 if unknown), of the first `most`
/// tokens only: it always computes the last prompt token again (vLLM: `max_cache_hit_length =
/// num_tokens - 1`). Of what it finds so it gives back the last `dropped` tokens, a block of its own
/// or none: vLLM 0.32.0, `v1/core/single_type_kv_cache_manager.py`, `drop_eagle_block`.
pub fn cached_tokens(blocks: u32, block_tokens: u32, dropped: u32, most: u32) -> u32 {
    let size = block_tokens.max(1);
    let held = (blocks * BLOCK_TOKENS as u32).min(most);
    held.saturating_sub(dropped) / size * size
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_engine_blocks_and_never_the_last_token_are_reused() {
        // Figures of vLLM 0.23 with blocks of 32: 162 prompt tokens, 160 of them stored.
        let tokens =
            |blocks, size, prompt| cached_tokens(blocks, size, 0, u32::saturating_sub(prompt, 1));
        assert_eq!(tokens(10, 32, 162), 160);
        assert_eq!(tokens(10, 32, 160), 128, "the last token is computed again");
        assert_eq!(tokens(9, 32, 162), 128, "144 tokens are four whole blocks");
        assert_eq!(tokens(12, 128, 300), 128);
        assert_eq!(tokens(2, 24, 100), 24, "blocks of 24 that 16 does not divide");
        assert_eq!(tokens(2, 0, 100), 32, "an unknown size rounds nothing");
        assert_eq!(tokens(2, 1, 32), 31);
        assert_eq!(tokens(0, 16, 0), 0);
    }

    #[test]
    fn who_speculates_by_hidden_states_gives_back_a_block() {
        assert_eq!(cached_tokens(10, 32, 32, 161), 128);
        assert_eq!(cached_tokens(10, 32, 32, 159), 96, "of what the prompt allows");
        assert_eq!(cached_tokens(3, 32, 32, 161), 0, "the only one");
        assert_eq!(cached_tokens(0, 32, 32, 161), 0);
        assert_eq!(cached_tokens(10, 64, 32, 160), 128, "lengths of 64, of which 32 go");
        assert_eq!(cached_tokens(8, 64, 32, 160), 64);
    }
}
