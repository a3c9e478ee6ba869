//! The relay's metrics, in Prometheus' text format.
//!
//! They are taken from a summary with each scrape, so there is nothing to register and to keep: the
//! summary is the collector. The names of counters stand here without their `_total`, which the
//! encoder appends.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, prometheus_text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use crate::state::{PoolMismatch, ReplicaSummary, StoreSummary, Summary};

/// What [`render`] writes.
pub(super) use prometheus_text::CONTENT_TYPE;

/// A source of replicas: its name; whether it answers, replicas that it named last, failures.
type Source = (String, [u64; 3]);

/// The metrics of a summary and of the sources of replicas.
///
/// # Errors
/// [`fmt::Error`] where the encoder fails, which it doesn't when it writes to a string.
pub(super) fn render(summary: Summary, sources: Vec<Source>) -> Result<String, fmt::Error> {
    let mut registry = Registry::with_prefix("warmpath_relay");
    registry.register_collector(Box::new(Metrics { summary, sources }));
    let mut text = String::new();
    prometheus_text::encode(&mut text, &registry)?;
    Ok(text)
}

/// What is encoded.
#[derive(Debug)]
struct Metrics {
    summary: Summary,
    sources: Vec<Source>,
}

/// Labels in the order in which they are written.
type Labels<'a> = Vec<(&'static str, Cow<'a, str>)>;

/// A metric: its name without the prefix and `_total`, its type, its help.
#[derive(Clone, Copy)]
struct Metric {
    name: &'static str,
    kind: MetricType,
    help: &'static str,
}

/// A metric that each `T` has one value of.
struct Of<T> {
    metric: Metric,
    value: fn(&T) -> u64,
}

macro_rules! kind {
    (gauge) => {
        MetricType::Gauge
    };
    (counter) => {
        MetricType::Counter
    };
}

macro_rules! metrics {
    ($($kind:ident $name:literal $help:literal $value:expr;)*) => {
        &[$(Of { metric: Metric { name: $name, kind: kind!($kind), help: $help }, value: $value }),*]
    };
}

const RELAY: &[Of<Summary>] = metrics![
    gauge "streams" "Side-streams open." |s| s.streams as u64;
    counter "streams_opened" "Side-streams opened." |s| s.streams_opened;
    counter "streams_too_slow" "Side-streams ended because they did not keep up." |s| s.streams_too_slow;
];

const STORE: &[Of<StoreSummary>] = metrics![
    gauge "store_prefixes" "Prefixes of 16 tokens each that are announced as held." |s| s.announced_prefixes as u64;
    counter "store_blocks_stored" "Blocks stored." |s| s.events.blocks_stored;
    counter "store_blocks_removed" "Blocks removed." |s| s.events.blocks_removed;
    counter "store_view_cleared" "Times that its view was cleared." |s| s.view_cleared;
];

const POOL_MISMATCHES: Metric = Metric {
    name: "pool_mismatches",
    kind: MetricType::Gauge,
    help: "Gateways whose policy sends no requests to this pool's replicas, by the problem.",
};

const TIER_PREFIXES: Metric = Metric {
    name: "replica_tier_prefixes",
    kind: MetricType::Gauge,
    help: "Prefixes announced as held in a slower tier or in a faster one.",
};

const GROUP_BLOCK_TOKENS: Metric = Metric {
    name: "replica_group_block_tokens",
    kind: MetricType::Gauge,
    help: "Tokens of one block of a KV cache group; counted: hits are told with it.",
};

const REPLICA: &[Of<ReplicaSummary>] = metrics![
    gauge "replica_ends" "Blocks at which hits may end, of an engine of several KV cache groups." |r| r.ends.as_ref().map_or(0, |ends| ends.announced as u64);
    gauge "replica_up" "Whether the replica may be sent requests." |r| u64::from(r.state == "READY" || r.state == "SUSPECT");
    gauge "replica_hears_events" "Whether the engine's events are heard." |r| u64::from(r.hears_events);
    gauge "replica_silent_under_load" "Whether the engine runs requests but publishes no events." |r| u64::from(r.silent_under_load);
    gauge "replica_wrong_model" "Whether the engine serves another model than it is said to." |r| u64::from(r.wrong_model.is_some());
    gauge "replica_other_root" "Whether another replica of its model has it from elsewhere." |r| u64::from(r.other_root);
    gauge "replica_speculates_unsaid" "Whether the engine speculates and its model's configuration doesn't say how." |r| u64::from(r.speculates_unsaid);
    gauge "replica_caches_nothing" "Whether the engine says that it keeps no prefix cache." |r| u64::from(r.caches_nothing);
    gauge "replica_asleep" "Whether the engine sleeps." |r| u64::from(r.asleep.is_some());
    gauge "replica_rank_problem" "Whether the engine's data-parallel ranks are others than configured." |r| u64::from(r.rank_problem.is_some());
    gauge "replica_adapters_known" "Whether it is known which LoRA adapters the engine has loaded." |r| u64::from(r.adapters.is_some());
    gauge "replica_adapters" "LoRA adapters that the engine is known to have loaded." |r| r.adapters.as_ref().map_or(0, |adapters| adapters.len() as u64);
    gauge "replica_held_engine_blocks" "Engine blocks held." |r| r.held_engine_blocks as u64;
    gauge "replica_known_engine_blocks" "Engine blocks remembered: held, waiting, or kept for what follows them." |r| r.known_engine_blocks as u64;
    gauge "replica_announced_prefixes" "Prefixes of 16 tokens each that are announced as held." |r| r.announced_prefixes as u64;
    gauge "replica_joined_late" "Whether the engine's events were not heard from the first one on." |r| u64::from(r.joined_late);
    gauge "replica_taught_prefixes" "Prefixes that are announced because answers showed them." |r| r.taught_prefixes as u64;
    counter "replica_taught_learned" "Prefixes that answers taught." |r| r.taught.learned;
    counter "replica_taught_refuted" "Taught prefixes that an answer showed to be gone." |r| r.taught.refuted;
    counter "replica_taught_expired" "Taught prefixes that no answer spoke for any more." |r| r.taught.expired;
    counter "replica_taught_crowded" "Prefixes that were not learned or were forgotten for want of room." |r| r.taught.crowded;
    counter "replica_taught_loose" "Lessons that follow on what is not known any more." |r| r.taught.loose;
    gauge "replica_waiting_tokens" "Tokens of blocks whose parent is not known." |r| r.waiting_tokens as u64;
    counter "replica_batches" "Event batches taken." |r| r.batches;
    counter "replica_connects" "Connections to the engine's publisher." |r| r.connects;
    counter "replica_disconnects" "Connections that ended." |r| r.disconnects;
    counter "replica_gaps" "Gaps in the engine's sequence." |r| r.gaps;
    counter "replica_restarts" "Sequences that began anew." |r| r.restarts;
    counter "replica_replays" "Replays asked for." |r| r.replays;
    counter "replica_replays_failed" "Replays without an end." |r| r.replays_failed;
    counter "replica_polls_failed" "Polls of the engine's API that failed." |r| r.polls_failed;
    counter "replica_blocks_stored" "Engine blocks stored." |r| r.events.blocks_stored;
    counter "replica_blocks_removed" "Engine blocks removed." |r| r.events.blocks_removed;
    counter "replica_stores_repeated" "Stores taken for reports of what is held." |r| r.events.stores_repeated;
    counter "replica_removals_unknown" "Removals of blocks that were not held." |r| r.events.removals_unknown;
    counter "replica_blocks_nameless" "Blocks that fingerprints cannot name." |r| r.events.blocks_nameless;
    counter "replica_waiting_dropped" "Blocks that waited too long for their parent." |r| r.events.waiting_dropped;
    counter "replica_evicted" "Blocks forgotten because the view was full." |r| r.events.evicted;
    counter "replica_events_other_group" "Events of KV cache groups that do not count." |r| r.events.other_group;
    counter "replica_events_other_medium" "Events of tiers that do not count." |r| r.events.other_medium;
    counter "replica_events_unknown" "Events of unknown kinds." |r| r.events.events_unknown;
    counter "replica_events_unusable" "Events that contradict themselves." |r| r.events.events_unusable;
];

const FRAMES_SKIPPED: Metric = Metric {
    name: "replica_frames_skipped",
    kind: MetricType::Counter,
    help: "Frames skipped, by reason.",
};

const VIEW_CLEARED: Metric = Metric {
    name: "replica_view_cleared",
    kind: MetricType::Counter,
    help: "Views cleared, by reason.",
};

const SOURCE: &[Of<Source>] = metrics![
    gauge "discovery_answers" "Whether the source of replicas answered when last asked." |(_, [answers, ..])| *answers;
    gauge "discovery_replicas" "Replicas that the source named last." |(_, [_, replicas, _])| *replicas;
    counter "discovery_failures" "Times that the source could not be asked." |(_, [.., failures])| *failures;
];

impl Collector for Metrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Summary { replicas, stores, pool_mismatches, .. } = &self.summary;
        let encoder = &mut encoder;
        each(encoder, RELAY, std::slice::from_ref(&self.summary), |_| Labels::new())?;
        each(encoder, STORE, stores, |store| vec![("store", store.store.as_str().into())])?;
        write(encoder, POOL_MISMATCHES, pool_mismatches.iter().map(mismatch))?;
        write(encoder, TIER_PREFIXES, replicas.iter().flat_map(tiers))?;
        write(encoder, GROUP_BLOCK_TOKENS, replicas.iter().flat_map(groups))?;
        each(encoder, REPLICA, replicas, labels)?;
        let skipped = replicas.iter().flat_map(|r| by_reason(r, &r.frames_skipped));
        write(encoder, FRAMES_SKIPPED, skipped)?;
        let cleared = replicas.iter().flat_map(|r| by_reason(r, &r.view_cleared));
        write(encoder, VIEW_CLEARED, cleared)?;
        each(encoder, SOURCE, &self.sources, |(name, _)| vec![("source", name.as_str().into())])
    }
}

/// Writes metrics of which each of `all` has one value.
fn each<'a, T>(
    encoder: &mut DescriptorEncoder<'_>,
    metrics: &[Of<T>],
    all: &'a [T],
    labels: fn(&'a T) -> Labels<'a>,
) -> fmt::Result {
    for Of { metric, value } in metrics {
        write(encoder, *metric, all.iter().map(|one| (labels(one), value(one))))?;
    }
    Ok(())
}

/// Writes one metric; a metric without values still has its help and type.
fn write<'a>(
    encoder: &mut DescriptorEncoder<'_>,
    Metric { name, kind, help }: Metric,
    samples: impl Iterator<Item = (Labels<'a>, u64)>,
) -> fmt::Result {
    let mut metric = encoder.encode_descriptor(name, help, None, kind)?;
    for (labels, value) in samples {
        let sample = metric.encode_family(&labels)?;
        match kind {
            MetricType::Counter => ConstCounter::new(value).encode(sample)?,
            _ => ConstGauge::new(value).encode(sample)?,
        }
    }
    Ok(())
}

fn labels(replica: &ReplicaSummary) -> Labels<'_> {
    let rank = replica.rank.map(|rank| rank.to_string()).unwrap_or_default();
    vec![
        ("endpoint", replica.endpoint.as_str().into()),
        ("rank", rank.into()),
        ("pool", replica.pool.as_str().into()),
        ("model", replica.model.as_str().into()),
    ]
}

/// A replica's labels, and more.
fn labels_and<'a>(replica: &'a ReplicaSummary, more: Labels<'a>) -> Labels<'a> {
    let mut labels = labels(replica);
    labels.extend(more);
    labels
}

fn mismatch(row: &PoolMismatch) -> (Labels<'_>, u64) {
    let labels = vec![
        ("pool", row.pool.as_str().into()),
        ("model", row.model.as_str().into()),
        ("problem", row.problem.into()),
    ];
    (labels, row.gateways as u64)
}

fn tiers(replica: &ReplicaSummary) -> impl Iterator<Item = (Labels<'_>, u64)> {
    replica.tiers.iter().map(|tier| {
        let labels = labels_and(replica, vec![("tier", tier.tier.into())]);
        (labels, tier.announced_prefixes as u64)
    })
}

fn groups(replica: &ReplicaSummary) -> impl Iterator<Item = (Labels<'_>, u64)> {
    replica.groups.iter().map(|group| {
        let more = vec![
            ("group", group.group.to_string().into()),
            ("what", group.what.as_str().into()),
            ("counted", group.counted.to_string().into()),
        ];
        (labels_and(replica, more), u64::from(group.block_tokens))
    })
}

fn by_reason<'a>(
    replica: &'a ReplicaSummary,
    counts: &'a BTreeMap<&'static str, u64>,
) -> impl Iterator<Item = (Labels<'a>, u64)> {
    counts
        .iter()
        .map(|(reason, count)| (labels_and(replica, vec![("reason", (*reason).into())]), *count))
}

#[cfg(test)]
mod tests;
