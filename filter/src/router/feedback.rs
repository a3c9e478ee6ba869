//! What answers teach: whether the prefix map is right, and what prefill and waiting really take.

use std::collections::BTreeMap;

use warmpath_prompt::{Api, CacheUse};
use warmpath_routing::cost::CostModel;
use warmpath_routing::drift::{Aftermath, Answered, Id, MapView, Observation};
use warmpath_routing::learn::{Learned, Timing, counted};
use warmpath_routing::usage::{Reported, Usage};

use super::drifts::Drifts;
use super::ticket::Ticket;
use crate::host::{Counter, Gauge};

/// Models that are told apart in metrics; those beyond count as one.
const MOST_MODELS: usize = 32;
/// Prompts that are counted to their ends after an answer by which a replica may drift.
const DOUBTFUL: u32 = 64;

/// One that answers came from. The last one stands for all that are too many.
struct Model {
    name: String,
    /// What it is called in the table of drifts.
    hash: u64,
    /// Its engines tell of cached tokens: their silence then means none. Not in Responses, which tell
    /// always, and of engines that otherwise don't.
    telling: bool,
    /// Cached tokens, expected and actual.
    tokens: [Counter; 2],
}

impl Model {
    fn new(name: &str) -> Self {
        let counter = |what: &str| {
            Counter::define(&format!("warmpath.router.{what}_cached_tokens.{}", label(name)))
        };
        let tokens = ["told_expected", "told_actual"].map(counter);
        Self { name: name.to_owned(), hash: Id::model(name), telling: false, tokens }
    }
}

/// What one worker has learned.
pub(super) struct Feedback {
    /// Answers of which it isn't known yet what became of them.
    aftermath: Aftermath,
    pub(super) drifts: Drifts,
    /// So many of the next prompts are to be counted to their ends.
    doubtful: u32,
    models: Vec<Model>,
    learned: BTreeMap<String, (Learned, [Gauge; 3])>,
    /// Learned prices by pool.
    pub(super) prices: BTreeMap<String, CostModel>,
    told: Counter,
    untold: Counter,
}

impl Feedback {
    pub(super) fn define() -> Self {
        let counter = |name: &str| Counter::define(&format!("warmpath.router.{name}"));
        Self {
            aftermath: Aftermath::default(),
            drifts: Drifts::define(),
            doubtful: 0,
            models: Vec::new(),
            learned: BTreeMap::new(),
            prices: BTreeMap::new(),
            told: counter("answers.told"),
            untold: counter("answers.untold"),
        }
    }

    /// Takes in how many tokens were cached.
    pub(super) fn usage(&mut self, ticket: &Ticket, usage: Option<Usage>) {
        let (Some(replica), Some(model), Some(expected)) =
            (ticket.at, ticket.model.as_ref(), ticket.expected.as_ref())
        else {
            return;
        };
        let place = self.place(model);
        let Some(known) = self.models.get_mut(place) else { return };
        let always = ticket.api == Some(Api::Responses);
        let reported = usage.map(|usage| usage.cached);
        known.telling |= !always && matches!(reported, Some(Reported::Tokens(_)));
        let cached = reported.and_then(|it| it.tokens(known.telling && !always));
        let Some(actual) = cached else {
            self.untold.add(1);
            return;
        };
        self.told.add(1);
        let [expected_tokens, actual_tokens] = known.tokens;
        expected_tokens.add(u64::from(expected.cached));
        actual_tokens.add(u64::from(actual));

        if ticket.cache_use != CacheUse::Counted {
            // The map was not asked.
            return;
        }
        let (asked, turns) = ticket.asked;
        let seen = Observation {
            expected: expected.cached,
            hoped: expected.excused,
            sent_before: expected.sent_before,
            actual,
            our_prompt: expected.prompt,
            their_prompt: usage.and_then(|usage| usage.prompt),
            asked,
            turns,
            ..Observation::default()
        };
        if seen.is_excused(ticket.partial) {
            // The relay has said that it knows no more, and this answer tells it.
            return;
        }
        let id = Id { model: known.hash, replica };
        if seen.holds() && self.drifts.held(id, &seen) {
            return;
        }
        let (model, endpoint) = (model.clone(), ticket.named.foreseen().unwrap_or_default().into());
        let answered = Answered { id, model, endpoint, seen };
        let sent_ms = ticket.sent_ns / 1_000_000;
        if let Some(answered) = self.aftermath.take(answered, expected.next, sent_ms) {
            self.drifts.push(answered);
        }
    }

    /// Looks what became of answers that were not as foreseen.
    pub(super) fn settle(&mut self, map: &impl MapView, now_ms: u64) {
        for answered in self.aftermath.settle(map, now_ms) {
            self.drifts.push(answered);
        }
        if self.drifts.is_in_doubt() || self.aftermath.is_in_doubt() {
            self.doubtful = DOUBTFUL;
        }
    }

    /// Whether there is more to do about answers that have come.
    pub(super) fn is_busy(&self) -> bool {
        !self.aftermath.is_empty() || self.drifts.has_news()
    }

    /// The map says nothing now, or something else.
    pub(super) fn forget_pending(&mut self) {
        self.aftermath.clear();
    }

    /// The cached tokens of an answer that [`Self::usage`] took in, where it tells of a prompt that is
    /// what it was taken for.
    pub(super) fn cached(&self, ticket: &Ticket, usage: Option<Usage>) -> Option<u32> {
        let expected = ticket.expected.as_ref()?;
        let usage = usage?;
        let seen = Observation {
            our_prompt: expected.prompt,
            their_prompt: usage.prompt,
            ..Observation::default()
        };
        if ticket.cache_use != CacheUse::Counted || !seen.counts_agree() {
            return None;
        }
        let known = self.models.iter().find(|known| ticket.model.as_ref() == Some(&known.name))?;
        usage.cached.tokens(known.telling && ticket.api != Some(Api::Responses))
    }

    /// Whether the next prompt is to be counted to its end, as some replica may drift: why, engines'
    /// own counts tell.
    pub(super) fn counts_next(&mut self) -> bool {
        let counts = self.doubtful > 0;
        self.doubtful = self.doubtful.saturating_sub(1);
        counts
    }

    /// Takes in how long the first token of a stream took.
    pub(super) fn timing(&mut self, cost: &CostModel, ticket: &Ticket, usage: Option<Usage>) {
        // Bringing tokens in from a slower tier takes time, too, which is not prefill's; so do log
        // probabilities of prompts, and further prompts and answers.
        let plain = ticket.offloaded == 0 && ticket.cache_use == CacheUse::Counted;
        let Some(first_ns) = ticket.first_token_ns.filter(|_| plain) else {
            return;
        };
        let Some((prompt, cached)) = counted(usage, ticket.expected) else { return };
        let seen = Timing {
            uncached: prompt.saturating_sub(cached),
            cached,
            queued: ticket.queued,
            rtt_ms: ticket.rtt_ms,
            first_token_ms: first_ns.saturating_sub(ticket.sent_ns) as f64 / 1e6,
        };
        // Pools come from the configuration, so that these are bounded.
        let (learned, gauges) = self.learned.entry(ticket.pool.clone()).or_insert_with(|| {
            let gauge = |what: &str| {
                let pool = label(&ticket.pool);
                Gauge::define(&format!("warmpath.router.learned_{what}.{pool}"))
            };
            let names = ["prefill_base_us", "prefill_us_per_1k_tokens", "queued_us"];
            (Learned::default(), names.map(gauge))
        });
        learned.observe(cost, &seen);
        let prices = learned.prices(cost);
        for (gauge, ms) in gauges.iter().zip([
            prices.prefill_base_ms,
            prices.prefill_ms_per_1k_tokens,
            prices.queued_ms,
        ]) {
            gauge.set((ms * 1_000.0) as u64);
        }
        self.prices.insert(ticket.pool.clone(), prices);
    }

    /// A model's place.
    fn place(&mut self, model: &str) -> usize {
        self.models.iter().position(|known| known.name == model).unwrap_or_else(|| {
            match self.models.len() {
                0..MOST_MODELS => self.models.push(Model::new(model)),
                MOST_MODELS => self.models.push(Model::new("others")),
                _ => {}
            }
            self.models.len() - 1
        })
    }
}

/// A name as the last part of a metric's name.
fn label(name: &str) -> String {
    let safe = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '/' | '.');
    name.chars().take(100).map(|c| if safe(c) { c } else { '_' }).collect()
}
