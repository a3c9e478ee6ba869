//! `/metrics` under vLLM's names (as captured from 0.32.0): those that routers and dashboards read.

use std::fmt::{Display, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::rank::Rank;

/// vLLM's buckets of `time_to_first_token_seconds`, as it writes them.
const BUCKETS: [(f64, &str); 22] = [
    (0.001, "0.001"),
    (0.005, "0.005"),
    (0.01, "0.01"),
    (0.02, "0.02"),
    (0.04, "0.04"),
    (0.06, "0.06"),
    (0.08, "0.08"),
    (0.1, "0.1"),
    (0.25, "0.25"),
    (0.5, "0.5"),
    (0.75, "0.75"),
    (1.0, "1.0"),
    (2.5, "2.5"),
    (5.0, "5.0"),
    (7.5, "7.5"),
    (10.0, "10.0"),
    (20.0, "20.0"),
    (40.0, "40.0"),
    (80.0, "80.0"),
    (160.0, "160.0"),
    (640.0, "640.0"),
    (2560.0, "2560.0"),
];

/// Why a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Finish {
    /// The answer was over.
    Stop,
    /// `max_tokens` was reached.
    Length,
}

impl Finish {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
        }
    }
}

/// What one rank counts.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    queries: AtomicU64,
    hits: AtomicU64,
    generated: AtomicU64,
    stopped: AtomicU64,
    cut: AtomicU64,
    first_tokens: [AtomicU64; BUCKETS.len()],
    first_token_count: AtomicU64,
    first_token_micros: AtomicU64,
}

impl Counters {
    /// A request got its blocks: its prompt tokens, and those of them that were cached.
    pub(crate) fn admitted(&self, prompt_tokens: usize, cached_tokens: usize) {
        self.queries.fetch_add(prompt_tokens as u64, Ordering::Relaxed);
        self.hits.fetch_add(cached_tokens as u64, Ordering::Relaxed);
    }

    /// Time from a request's arrival to its first token.
    pub(crate) fn first_token(&self, after: Duration) {
        let seconds = after.as_secs_f64();
        for ((bound, _), count) in BUCKETS.iter().zip(&self.first_tokens) {
            if seconds <= *bound {
                count.fetch_add(1, Ordering::Relaxed);
            }
        }
        self.first_token_count.fetch_add(1, Ordering::Relaxed);
        self.first_token_micros.fetch_add(after.as_micros() as u64, Ordering::Relaxed);
    }

    /// A token was generated.
    pub(crate) fn generated(&self) {
        self.generated.fetch_add(1, Ordering::Relaxed);
    }

    /// A request ended well.
    pub(crate) fn finished(&self, finish: Finish) {
        match finish {
            Finish::Stop => self.stopped.fetch_add(1, Ordering::Relaxed),
            Finish::Length => self.cut.fetch_add(1, Ordering::Relaxed),
        };
    }
}

/// The page in Prometheus' text form.
pub(crate) fn page(
    ranks: &[Arc<Rank>],
    model: &str,
    block_size: usize,
    speculates: bool,
) -> String {
    let mut page = Page { out: String::with_capacity(8192), ranks, model };
    page.family("num_requests_running", "gauge", "Number of requests in model execution batches.");
    page.each("num_requests_running", "", Rank::running);
    page.family("num_requests_waiting", "gauge", "Number of requests waiting to be processed.");
    page.each("num_requests_waiting", "", Rank::waiting);
    page.family("kv_cache_usage_perc", "gauge", "KV-cache usage. 1 means 100 percent usage.");
    page.each("kv_cache_usage_perc", "", Rank::usage);

    page.counter(
        "prefix_cache_queries_total",
        "Prefix cache queries, in terms of number of queried tokens.",
        |counters| &counters.queries,
    );
    page.counter(
        "prefix_cache_hits_total",
        "Prefix cache hits, in terms of number of cached tokens.",
        |counters| &counters.hits,
    );
    page.counter("prompt_tokens_total", "Number of prefill tokens processed.", |counters| {
        &counters.queries
    });
    page.counter("generation_tokens_total", "Number of generation tokens processed.", |counters| {
        &counters.generated
    });

    page.family("request_success_total", "counter", "Count of successfully processed requests.");
    page.each("request_success_total", ",finished_reason=\"stop\"", |rank| {
        rank.counters().stopped.load(Ordering::Relaxed)
    });
    page.each("request_success_total", ",finished_reason=\"length\"", |rank| {
        rank.counters().cut.load(Ordering::Relaxed)
    });

    let name = "time_to_first_token_seconds";
    page.family(name, "histogram", "Histogram of time to first token in seconds.");
    for rank in ranks {
        let counters = rank.counters();
        for ((_, bound), count) in BUCKETS.iter().zip(&counters.first_tokens) {
            let label = format!(",le=\"{bound}\"");
            let count = count.load(Ordering::Relaxed);
            page.line("time_to_first_token_seconds_bucket", &label, rank, count);
        }
        let count = counters.first_token_count.load(Ordering::Relaxed);
        let seconds = counters.first_token_micros.load(Ordering::Relaxed) as f64 / 1e6;
        page.line("time_to_first_token_seconds_bucket", ",le=\"+Inf\"", rank, count);
        page.line("time_to_first_token_seconds_count", "", rank, count);
        page.line("time_to_first_token_seconds_sum", "", rank, seconds);
    }

    if speculates {
        // No draft is ever made here; vLLM has the counter from its start on.
        page.family("spec_decode_num_drafts_total", "counter", "Number of spec decoding drafts.");
        page.each("spec_decode_num_drafts_total", "", |_| 0);
    }

    page.family("cache_config_info", "gauge", "Information of the LLMEngine CacheConfig");
    for rank in ranks {
        let caches = if rank.finds_prefixes() { "True" } else { "False" };
        let label = format!(
            ",block_size=\"{block_size}\",enable_prefix_caching=\"{caches}\",num_gpu_blocks=\"{}\"",
            rank.blocks().1
        );
        page.line("cache_config_info", &label, rank, 1);
    }
    page.out
}

struct Page<'a> {
    out: String,
    ranks: &'a [Arc<Rank>],
    model: &'a str,
}

// Writing into a String can't fail.
impl Page<'_> {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.out, "# HELP vllm:{name} {help}\n# TYPE vllm:{name} {kind}");
    }

    fn each<T: Display>(&mut self, name: &str, label: &str, value: impl Fn(&Rank) -> T) {
        for rank in self.ranks {
            self.line(name, label, rank, value(rank));
        }
    }

    fn counter(&mut self, name: &str, help: &str, counter: fn(&Counters) -> &AtomicU64) {
        self.family(name, "counter", help);
        self.each(name, "", |rank| counter(rank.counters()).load(Ordering::Relaxed));
    }

    fn line(&mut self, name: &str, label: &str, rank: &Rank, value: impl Display) {
        let model = self.model.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        let _ = writeln!(
            self.out,
            "vllm:{name}{{engine=\"{}\",model_name=\"{model}\"{label}}} {value}",
            rank.number()
        );
    }
}
