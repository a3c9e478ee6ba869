//! Answers as they are generated.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use super::plan::Job;
use crate::engine::counters::Finish;
use crate::engine::fault;
use crate::engine::filler::Token;
use crate::engine::rank::{Rank, Running};

/// One prompt being answered, token by token.
pub(super) struct Generation {
    running: Running,
    tokens: std::iter::Enumerate<std::vec::IntoIter<Token>>,
    previous: Option<u32>,
    finish: Finish,
}

impl Generation {
    /// Waits for the prefill.
    pub(super) async fn start(rank: &Arc<Rank>, job: Job, repeat: bool) -> Self {
        let Job { prompt, answer, deadly, .. } = job;
        let running = rank.start(prompt, answer.tokens.len(), repeat).await;
        if deadly {
            fault::crash();
        }
        let tokens = answer.tokens.into_iter().enumerate();
        Self { running, tokens, previous: None, finish: answer.finish }
    }

    pub(super) fn prompt_ids(&self) -> Vec<u32> {
        self.running.prompt().tokens().to_vec()
    }

    /// Tokens of the prompt, and those of them that were cached.
    pub(super) fn prompt_tokens(&self) -> (usize, usize) {
        (self.running.prompt().len(), self.running.cached_tokens())
    }

    /// The next token, and why it was the last if it was.
    pub(super) async fn next(&mut self) -> Option<(Token, Option<Finish>)> {
        let (index, token) = self.tokens.next()?;
        self.running.decode(index, self.previous.replace(token.id)).await;
        let last = self.tokens.len() == 0;
        if last {
            self.running.rank().counters().finished(self.finish);
        }
        Some((token, last.then_some(self.finish)))
    }
}

/// An answer that has come to its end.
pub(super) struct Whole {
    pub(super) index: usize,
    pub(super) prompt_ids: Vec<u32>,
    pub(super) cached: usize,
    pub(super) text: String,
    pub(super) ids: Vec<u32>,
    pub(super) finish: Finish,
}

pub(super) async fn run(rank: Arc<Rank>, job: Job, index: usize, repeat: bool) -> Whole {
    let mut generation = Generation::start(&rank, job, repeat).await;
    let mut whole = Whole {
        index,
        prompt_ids: generation.prompt_ids(),
        cached: generation.prompt_tokens().1,
        text: String::new(),
        ids: Vec::new(),
        finish: Finish::Length,
    };
    while let Some((token, finish)) = generation.next().await {
        whole.text.push_str(&token.text);
        whole.ids.push(token.id);
        whole.finish = finish.unwrap_or(whole.finish);
    }
    whole
}

/// Seconds since 1970.
pub(super) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// What makes an id another one than any before.
pub(super) fn unique() -> String {
    // Each RandomState has keys of its own.
    format!("{:016x}", RandomState::new().hash_one(now()))
}
