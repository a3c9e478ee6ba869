//! How a request ended, as Envoy tells it, and what that says of the replica.

/// Why an upstream gave no (whole) answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ending {
    /// It took no connection: the request never got there.
    NoConnection,
    /// It had the request and dropped it.
    Dropped,
    /// Something else: a time that was over, a stream it didn't take, a breach of protocol.
    #[default]
    Other,
}

impl Ending {
    /// By Envoy's response code details, e.g. `upstream_reset_before_response_started{remote_reset}` (`Filter::onUpstreamReset` in `source/common/router/router.cc`,
    /// `Utility::resetReasonToString` in `source/common/http/utility.cc`).
    pub fn of(details: &str) -> Self {
        let reset = |when: &str| {
            let rest = details.strip_prefix("upstream_reset_")?.strip_prefix(when)?;
            // Behind it may be what the transport said of it.
            rest.strip_prefix("_response_started{")?.split(['}', '|', ',']).next()
        };
        match (reset("before"), reset("after")) {
            (Some("connection_termination" | "remote_reset"), _)
            // So Envoy 1.40 calls an HTTP/1 answer whose connection was closed before its end.
            | (_, Some("connection_termination" | "remote_reset" | "protocol_error")) => Self::Dropped,
            (
                Some(
                    "remote_connection_failure"
                    | "local_connection_failure"
                    | "connection_failure"
                    | "connection_timeout",
                ),
                _,
            ) => Self::NoConnection,
            _ => Self::Other,
        }
    }
}

/// Whether Envoy's response code details say that engines failed. A tripped circuit breaker (`…{overflow}`)
/// is its own doing.
pub fn engines_failed(details: &str) -> bool {
    details.starts_with("upstream_") && !details.contains("overflow")
}

/// Whether an engine says by this status that it can't serve.
pub fn is_overloaded(status: u16) -> bool {
    matches!(status, 502..=504)
}

/// Whether an engine that answers with this status has taken the request: it could, and would.
pub fn is_taken(status: u16) -> bool {
    status < 500 && status != 429
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_envoy_says_tells_a_drop_from_a_refused_connection() {
        let before = |reason: &str| format!("upstream_reset_before_response_started{{{reason}}}");
        for (details, ending) in [
            (before("connection_termination"), Ending::Dropped),
            (before("remote_reset"), Ending::Dropped),
            (before("connection_termination|TLS_error"), Ending::Dropped),
            (before("connection_termination,TLS_error"), Ending::Dropped),
            (before("remote_connection_failure|delayed_connect_error"), Ending::NoConnection),
            (before("local_connection_failure"), Ending::NoConnection),
            (before("connection_timeout"), Ending::NoConnection),
            (before("remote_refused_stream_reset"), Ending::Other),
            (before("overflow"), Ending::Other),
            (before("protocol_error"), Ending::Other),
            ("upstream_reset_after_response_started{remote_reset}".into(), Ending::Dropped),
            ("upstream_reset_after_response_started{protocol_error}".into(), Ending::Dropped),
            ("upstream_reset_after_response_started{local_reset}".into(), Ending::Other),
            ("upstream_response_timeout".into(), Ending::Other),
            ("upstream_per_try_idle_timeout".into(), Ending::Other),
            ("downstream_remote_disconnect".into(), Ending::Other),
            ("via_upstream".into(), Ending::Other),
            (String::new(), Ending::Other),
        ] {
            assert_eq!(Ending::of(&details), ending, "{details}");
        }
    }

    #[test]
    fn a_tripped_circuit_breaker_is_no_failure_of_engines() {
        for (details, failed) in [
            ("upstream_reset_before_response_started{remote_reset}", true),
            ("upstream_response_timeout", true),
            ("upstream_reset_before_response_started{overflow}", false),
            ("via_upstream", false),
            ("downstream_remote_disconnect", false),
            ("", false),
        ] {
            assert_eq!(engines_failed(details), failed, "{details}");
        }
    }

    #[test]
    fn an_engine_that_turns_a_request_away_has_not_taken_it() {
        let of = |status| (is_taken(status), is_overloaded(status));
        for status in [200, 400, 404, 422] {
            assert_eq!(of(status), (true, false), "{status}");
        }
        assert_eq!((of(429), of(500)), ((false, false), (false, false)));
        for status in [502, 503, 504] {
            assert_eq!(of(status), (false, true), "{status}");
        }
    }
}
