//! One data-parallel rank: a cache, its clock, its queue, its events.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::cache::{Cache, Prompt, Sequence};
use super::counters::Counters;
use super::event::Encoding;
use super::lock::lock;
use super::publisher::Publisher;
use super::timing::{Timing, sleep_until};

/// See the module.
pub(crate) struct Rank {
    number: u32,
    state: Mutex<State>,
    timing: Timing,
    encoding: Encoding,
    publisher: Option<Publisher>,
    /// Whoever holds it is next to be let in: first come, first served.
    turn: tokio::sync::Mutex<()>,
    seats: Arc<Semaphore>,
    freed: Notify,
    waiting: AtomicUsize,
    running: AtomicUsize,
    counters: Counters,
}

struct State {
    cache: Cache,
    /// When the prefills accepted so far end.
    busy_until: Instant,
    sequence: u64,
}

impl Rank {
    /// `seats`: how many requests run at once; the others wait.
    pub(crate) fn new(
        number: u32,
        cache: Cache,
        timing: Timing,
        seats: usize,
        encoding: Encoding,
        publisher: Option<Publisher>,
    ) -> Self {
        Self {
            number,
            state: Mutex::new(State { cache, busy_until: Instant::now(), sequence: 0 }),
            timing,
            encoding,
            publisher,
            turn: tokio::sync::Mutex::new(()),
            seats: Arc::new(Semaphore::new(seats)),
            freed: Notify::new(),
            waiting: AtomicUsize::new(0),
            running: AtomicUsize::new(0),
            counters: Counters::default(),
        }
    }

    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    pub(crate) fn running(&self) -> usize {
        self.running.load(Ordering::Relaxed)
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Blocks in use by running requests, and all blocks.
    pub(crate) fn blocks(&self) -> (usize, usize) {
        let state = lock(&self.state);
        (state.cache.used(), state.cache.size())
    }

    /// Whether it keeps a prefix cache.
    pub(crate) fn finds_prefixes(&self) -> bool {
        lock(&self.state).cache.finds_prefixes()
    }

    /// Share of the blocks in use by running requests, 0 to 1.
    pub(crate) fn usage(&self) -> f64 {
        let (used, all) = self.blocks();
        used as f64 / all.max(1) as f64
    }

    /// Empties the cache; false when requests are running.
    pub(crate) fn reset(&self) -> bool {
        lock(&self.state).cache.reset()
    }

    /// Waits for a seat and for blocks, then for the prefill. `generated` tokens will follow at
    /// most; prompt and they must fit into the cache.
    pub(crate) async fn start(
        self: &Arc<Self>,
        prompt: Prompt,
        generated: usize,
        report: bool,
    ) -> Running {
        let arrived = Instant::now();
        let waiting = Gauge::new(self, |rank| &rank.waiting);
        let (seat, sequence) = self.admit(prompt, generated, report).await;
        drop(waiting);
        let mut running = Running {
            gauge: Gauge::new(self, |rank| &rank.running),
            sequence,
            first_token: arrived,
            _seat: seat,
        };
        let prompt_tokens = running.prompt().len();
        let cached = running.cached_tokens();
        self.counters.admitted(prompt_tokens, cached);
        let done = {
            let mut state = lock(&self.state);
            self.timing.prefill(Instant::now(), &mut state.busy_until, prompt_tokens - cached)
        };
        sleep_until(done).await;
        running.first_token = done;
        self.counters.first_token(arrived.elapsed());
        self.publish(&mut lock(&self.state));
        running
    }

    async fn admit(
        self: &Arc<Self>,
        mut prompt: Prompt,
        generated: usize,
        report: bool,
    ) -> (Option<OwnedSemaphorePermit>, Sequence) {
        let _turn = self.turn.lock().await;
        // The semaphore is never closed, so there is always a seat in the end.
        let seat = Arc::clone(&self.seats).acquire_owned().await.ok();
        loop {
            let freed = self.freed.notified();
            let admitted = lock(&self.state).cache.admit(prompt, generated, report);
            match admitted {
                Ok(sequence) => return (seat, sequence),
                Err(refused) => prompt = refused,
            }
            freed.await;
        }
    }

    /// Publishes what happened to the cache as one batch, in the order of the changes: as in vLLM
    /// when a step has been computed, which tells of what was scheduled meanwhile, too.
    fn publish(&self, state: &mut State) {
        let events = state.cache.take_events();
        let Some(publisher) = self.publisher.as_ref().filter(|_| !events.is_empty()) else {
            return;
        };
        let seconds =
            SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let batch = self.encoding.batch(seconds, &events, self.number);
        publisher.publish(state.sequence, Bytes::from(batch));
        state.sequence += 1;
    }
}

/// A request between its prefill and its end. Dropping it gives its blocks and its seat back,
/// also when the client went away.
pub(crate) struct Running {
    gauge: Gauge,
    sequence: Sequence,
    first_token: Instant,
    _seat: Option<OwnedSemaphorePermit>,
}

impl Running {
    /// Prompt tokens that were found in the cache.
    pub(crate) fn cached_tokens(&self) -> usize {
        self.sequence.hit_tokens()
    }

    pub(crate) fn prompt(&self) -> &Prompt {
        self.sequence.prompt()
    }

    pub(crate) fn rank(&self) -> &Arc<Rank> {
        &self.gauge.rank
    }

    /// Waits until generated token `index` is due; `previous` is the one before it, which is in
    /// the cache by then.
    pub(crate) async fn decode(&mut self, index: usize, previous: Option<u32>) {
        let rank = &self.gauge.rank;
        if let Some(token) = previous {
            sleep_until(rank.timing.token(self.first_token, index)).await;
            let mut state = lock(&rank.state);
            state.cache.append(&mut self.sequence, token);
            rank.publish(&mut state);
        }
        rank.counters.generated();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        lock(&self.gauge.rank.state).cache.release(&mut self.sequence);
        self.gauge.rank.freed.notify_waiters();
    }
}

/// Counts one while it lives.
struct Gauge {
    rank: Arc<Rank>,
    of: fn(&Rank) -> &AtomicUsize,
}

impl Gauge {
    fn new(rank: &Arc<Rank>, of: fn(&Rank) -> &AtomicUsize) -> Self {
        of(rank).fetch_add(1, Ordering::Relaxed);
        Self { rank: Arc::clone(rank), of }
    }
}

impl Drop for Gauge {
    fn drop(&mut self) {
        (self.of)(&self.rank).fetch_sub(1, Ordering::Relaxed);
    }
}
