//! Simulated engines: one prefill at a time, decoding beside it, a cache of blocks.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};

use super::args::Args;
use super::trace::{ID_TOKENS, Request};

pub(super) struct Fleet {
    pub(super) engines: Vec<Engine>,
    prefill_ms_per_token: f64,
    decode_ms_per_token: f64,
    event_ms: f64,
    cache_ids: usize,
}

#[derive(Default)]
pub(super) struct Engine {
    /// Ids held, with when they were last used.
    held: HashMap<u64, u64>,
    by_use: BTreeSet<(u64, u64)>,
    uses: u64,
    /// Ids that the map knows of: what the engine held `event_ms` ago.
    pub(super) announced: HashSet<u64>,
    news: VecDeque<(f64, News)>,
    prefill_free_ms: f64,
    /// Start of prefill and end of each request that is there.
    there: Vec<(f64, f64)>,
}

enum News {
    Held(Vec<u64>),
    Lost(Vec<u64>),
}

pub(super) struct Served {
    pub(super) cached: u64,
    pub(super) first_token_ms: f64,
    /// From its arrival to its last token.
    pub(super) end_ms: f64,
}

impl Fleet {
    pub(super) fn new(args: &Args) -> Self {
        Self {
            engines: (0..args.replicas).map(|_| Engine::default()).collect(),
            prefill_ms_per_token: args.prefill_ms_per_1k_tokens / 1000.0,
            decode_ms_per_token: args.decode_ms_per_token,
            event_ms: args.event_ms,
            cache_ids: args
                .cache_tokens
                .map_or(usize::MAX, |tokens| (tokens / ID_TOKENS).max(1) as usize),
        }
    }

    /// Lets time pass: requests end, news arrive.
    pub(super) fn advance(&mut self, now: f64) {
        for engine in &mut self.engines {
            engine.there.retain(|(_, end)| *end > now);
            while engine.news.front().is_some_and(|(at, _)| *at <= now) {
                match engine.news.pop_front() {
                    Some((_, News::Held(ids))) => {
                        engine.announced.extend(ids);
                    }
                    Some((_, News::Lost(ids))) => {
                        for id in ids {
                            engine.announced.remove(&id);
                        }
                    }
                    None => {}
                }
            }
        }
    }

    pub(super) fn serve(&mut self, replica: usize, request: &Request, now: f64) -> Served {
        let event_ms = self.event_ms;
        let Some(engine) = self.engines.get_mut(replica) else {
            return Served { cached: 0, first_token_ms: 0.0, end_ms: 0.0 };
        };
        let ids = request.whole();
        // An approximation: a request that comes while the first of its prefix is in prefill finds
        // it cached, as it waits for its turn behind it.
        let hits = ids.iter().take_while(|id| engine.held.contains_key(id)).count();
        let cached = request.saved(hits);
        let start = engine.prefill_free_ms.max(now);
        let prefill = (request.input_tokens - cached) as f64 * self.prefill_ms_per_token;
        let first = start + prefill;
        engine.prefill_free_ms = first;
        let end = first + request.output_tokens as f64 * self.decode_ms_per_token;
        engine.there.push((start, end));

        let lost = engine.hold(ids, self.cache_ids);
        if !lost.is_empty() {
            engine.news.push_back((first + event_ms, News::Lost(lost)));
        }
        engine.news.push_back((first + event_ms, News::Held(ids.to_vec())));
        Served { cached, first_token_ms: first - now, end_ms: end - now }
    }
}

impl Engine {
    /// Requests that wait and that run.
    pub(super) fn load(&self, now: f64) -> (u32, u32) {
        let waiting = self.there.iter().filter(|(start, _)| *start > now).count() as u32;
        (waiting, self.there.len() as u32 - waiting)
    }

    /// Holds a prefix; what had to leave for it, the tail of the oldest first.
    fn hold(&mut self, ids: &[u64], most: usize) -> Vec<u64> {
        // The tail is used before the head, so that it leaves before it.
        for id in ids.iter().rev() {
            self.uses += 1;
            if let Some(before) = self.held.insert(*id, self.uses) {
                self.by_use.remove(&(before, *id));
            }
            self.by_use.insert((self.uses, *id));
        }
        let mut lost = Vec::new();
        while self.held.len() > most {
            let Some((_, id)) = self.by_use.pop_first() else { break };
            self.held.remove(&id);
            lost.push(id);
        }
        lost
    }
}
