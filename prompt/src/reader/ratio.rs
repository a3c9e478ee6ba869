//! How long a prompt may be of which only the body's length is known.

/// How many bytes of a body are a token of its prompt, by those that were read of late: that differs
/// with languages, tokenizers, and what clients write around a prompt.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Ratio(f64);

impl Default for Ratio {
    /// English.
    fn default() -> Self {
        Self(4.0)
    }
}

impl Ratio {
    /// A body of so many bytes was a prompt of so many tokens.
    pub(super) fn observe(&mut self, bytes: usize, tokens: u32) {
        const NEWEST: f64 = 1.0 / 16.0;
        // Long ones are guessed, so it is of those that it has to be right.
        const ENOUGH: u32 = 256;
        if tokens >= ENOUGH {
            let seen = (bytes as f64 / f64::from(tokens)).clamp(1.0, 64.0);
            self.0 += NEWEST * (seen - self.0);
        }
    }

    /// What a body of so many bytes may come to.
    pub(super) fn tokens(self, bytes: usize) -> u32 {
        // A float that is too large becomes the largest.
        (bytes as f64 / self.0) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_read_is_guessed_by_what_was() {
        let mut ratio = Ratio::default();
        assert_eq!(ratio.tokens(4_000_000), 1_000_000);
        for _ in 0..100 {
            ratio.observe(20_000, 10_000);
            // Mostly what is written around the prompt.
            ratio.observe(100_000, 20);
        }
        let near = |tokens: u32, is: u32| tokens.abs_diff(is) < is / 50;
        assert!(near(ratio.tokens(4_000_000), 2_000_000), "{ratio:?}");
        for _ in 0..1_000 {
            ratio.observe(usize::MAX, 256);
        }
        assert!(near(ratio.tokens(6_400), 100) && ratio.tokens(usize::MAX) == u32::MAX);
    }
}
