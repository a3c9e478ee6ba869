//! What one answer shows of the map, and what it can't be blamed for.

/// What was asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Asked {
    /// A prompt of token ids.
    Ids,
    /// A text.
    Text,
    /// So many messages, which a template makes a text of; 0 where they were not counted.
    #[default]
    Chat,
}

/// What was seen of a replica's events from the decision to a moment after the answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct After {
    /// Whether the first block that the map did not promise is in the map by now; `None` where that
    /// was not looked up.
    pub came: Option<bool>,
    /// Blocks of the replica came into the map; where its engine had none to compute, at any time.
    pub announced: bool,
    /// Blocks of the replica left the map, or all of them did.
    pub removed: bool,
}

/// What one answer showed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Observation {
    /// Tokens that the prefix map promised.
    pub expected: u32,
    /// Tokens that may be cached because of requests sent a moment before; counts where it is more, and
    /// where nobody looked whether their events came.
    pub hoped: u32,
    /// Tokens of requests sent before, whether or not a moment ago.
    pub sent_before: u32,
    /// Tokens that the engine says were cached.
    pub actual: u32,
    /// Tokens of the prompt by our count, where they were counted to the end.
    pub our_prompt: Option<u32>,
    /// Tokens of the prompt by the engine's count.
    pub their_prompt: Option<u32>,
    /// What the prompt was made of.
    pub asked: Asked,
    /// Messages of a chat, as far as counted.
    pub turns: u8,
    /// What became of it.
    pub after: After,
}

impl Observation {
    /// Whether nothing says that engine and gateway read the prompt otherwise.
    pub fn counts_agree(&self) -> bool {
        self.our_prompt.zip(self.their_prompt).is_none_or(|(ours, theirs)| ours == theirs)
    }

    /// Whether a forecast of something cached held to the token.
    pub fn holds(&self) -> bool {
        self.actual > 0 && self.actual == self.expected
    }

    /// Whether the answer was as foreseen, or its event but late.
    pub fn is_right(&self) -> bool {
        match self.after.came {
            Some(came) => came,
            None => self.actual >= self.expected && self.actual <= self.expected.max(self.hoped),
        }
    }

    /// Whether it shows no more than what the relay has said of the replica, whose map is `partial`:
    /// that it may hold more. What it lacks is no such thing, nor what is read otherwise.
    pub fn is_excused(&self, partial: bool) -> bool {
        partial && self.actual > self.expected && self.counts_agree()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(expected: u32, actual: u32) -> Observation {
        Observation { expected, actual, ..Observation::default() }
    }

    #[test]
    fn a_partial_map_excuses_what_an_engine_holds_beyond_it_and_nothing_else() {
        assert!(seen(0, 160).is_excused(true) && seen(80, 160).is_excused(true));
        assert!(!seen(0, 160).is_excused(false), "it was heard from its first event on");
        assert!(!seen(160, 80).is_excused(true) && !seen(160, 160).is_excused(true));
        let counted = |ours, theirs| Observation {
            our_prompt: Some(ours),
            their_prompt: theirs,
            ..seen(0, 160)
        };
        assert!(counted(200, Some(200)).is_excused(true) && counted(200, None).is_excused(true));
        assert!(!counted(200, Some(201)).is_excused(true), "its tokens are others");
    }

    #[test]
    fn requests_under_way_excuse_a_surprise_until_it_is_known_whether_their_events_came() {
        let hoped = Observation { hoped: 320, ..seen(80, 160) };
        assert!(hoped.is_right() && !seen(80, 160).is_right() && !seen(160, 80).is_right());
        assert!(seen(80, 80).is_right());
        for came in [true, false] {
            let after = After { came: Some(came), ..After::default() };
            assert_eq!(Observation { after, ..hoped }.is_right(), came);
            assert_eq!(Observation { after, ..seen(80, 160) }.is_right(), came);
        }
    }

    #[test]
    fn that_nothing_is_cached_holds_no_forecast() {
        assert!(seen(80, 80).holds());
        assert!(!seen(0, 0).holds() && !seen(80, 96).holds() && !seen(96, 80).holds());
    }
}
