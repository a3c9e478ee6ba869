//! `/metrics` under vLLM's names (as captured from 0.32.0): those that routers and dashboards read.

use std::fmt::{Display, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::counters::{BUCKETS, Counters};
use super::rank::Rank;

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
