//! Load that an engine reports with an answer: the header `endpoint-load-metrics` of ORCA.
//!
//! `TEXT named_metrics.num_requests_waiting=3.0, named_metrics.kv_cache_usage_perc=0.4`, or `JSON`
//! and an object with `named_metrics`. vLLM says these two, of all ranks together.

use crate::view::Load;

/// Bytes of a header that are read.
pub const MAX_BYTES: usize = 4_096;

/// What a report says of load; the rest of it doesn't matter here.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Orca {
    /// Requests that wait.
    pub waiting: Option<u32>,
    /// Requests that run.
    pub running: Option<u32>,
    /// Share of the KV cache in use, 0 to 1.
    pub kv_usage: Option<f32>,
}

impl Orca {
    /// Reads a header's value; none where it says nothing of load.
    pub fn parse(value: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(value).ok().filter(|text| text.len() <= MAX_BYTES)?.trim();
        let mut orca = Self::default();
        let (format, rest) = text.split_once(' ')?;
        if format.eq_ignore_ascii_case("TEXT") {
            for (name, value) in rest.split(',').filter_map(|pair| pair.split_once('=')) {
                let name = name.trim();
                let name = name.strip_prefix("named_metrics.").unwrap_or(name);
                if let Ok(value) = value.trim().parse() {
                    orca.take(name, value);
                }
            }
        } else if format.eq_ignore_ascii_case("JSON") {
            let object: serde_json::Value = serde_json::from_str(rest).ok()?;
            for (name, value) in object.get("named_metrics")?.as_object()? {
                if let Some(value) = value.as_f64() {
                    orca.take(name, value);
                }
            }
        }
        (orca != Self::default()).then_some(orca)
    }

    fn take(&mut self, name: &str, value: f64) {
        if !value.is_finite() || value < 0.0 {
            return;
        }
        match name {
            "num_requests_waiting" => self.waiting = Some(value as u32),
            "num_requests_running" => self.running = Some(value as u32),
            "kv_cache_usage_perc" | "kv_cache_utilization" => {
                self.kv_usage = Some(value.min(1.0) as f32);
            }
            _ => {}
        }
    }

    /// A load with what the report says in place of what it said.
    #[must_use]
    pub fn over(&self, load: Load) -> Load {
        Load {
            waiting: self.waiting.unwrap_or(load.waiting),
            running: self.running.unwrap_or(load.running),
            kv_usage: self.kv_usage.unwrap_or(load.kv_usage),
            ..load
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn both_formats_of_vllm_are_read() {
        let both = Orca { waiting: Some(3), running: None, kv_usage: Some(0.4) };
        for text in [
            "TEXT named_metrics.kv_cache_usage_perc=0.4, named_metrics.num_requests_waiting=3.0",
            "text num_requests_waiting=3,cpu_utilization=0.2, kv_cache_usage_perc=0.4",
            r#"JSON {"named_metrics": {"kv_cache_usage_perc": 0.4, "num_requests_waiting": 3.0}}"#,
        ] {
            assert_eq!(Orca::parse(text.as_bytes()), Some(both), "{text}");
        }
        let load = Load { waiting: 9, running: 8, kv_usage: 0.1, in_flight: 7, rtt_us: 6 };
        let over = Load { waiting: 3, kv_usage: 0.4, ..load };
        assert_eq!(both.over(load), over);
    }

    #[test]
    fn what_says_nothing_of_load_is_left() {
        let long = format!("TEXT num_requests_waiting=3,{}", "x".repeat(MAX_BYTES));
        for text in [
            "",
            "TEXT",
            "BIN AAAA",
            "TEXT cpu_utilization=0.3",
            "TEXT num_requests_waiting=-1, kv_cache_usage_perc=nan",
            "JSON {",
            r#"JSON {"named_metrics": {"num_requests_waiting": "3"}}"#,
            &long,
        ] {
            assert_eq!(Orca::parse(text.as_bytes()), None, "{text}");
        }
        assert_eq!(Orca::parse(b"TEXT num_requests_waiting=3\xff"), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_left(tail in proptest::collection::vec(any::<u8>(), 0..200)) {
            for format in ["TEXT ", "JSON "] {
                let value = [format.as_bytes(), &tail].concat();
                if let Some(Orca { kv_usage: Some(share), .. }) = Orca::parse(&value) {
                    prop_assert!((0.0..=1.0).contains(&share));
                }
            }
        }
    }
}
