//! How a request ended that no engine answered, or not to its end, as Envoy tells it.

use crate::host;

/// Why an upstream gave no (whole) answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Ending {
    /// It took no connection: the request never got there.
    NoConnection,
    /// It had the request and dropped it.
    Dropped,
    /// Something else: a time that was over, a stream it didn't take, a breach of protocol.
    #[default]
    Other,
}

impl Ending {
    /// By Envoy's response code details (`Filter::onUpstreamReset` in `source/common/router/router.cc`,
    /// `Utility::resetReasonToString` in `source/common/http/utility.cc`).
    pub(super) fn of(details: &str) -> Self {
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

/// Who sent a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Client {
    /// Envoy's number of the connection.
    pub(super) connection: u64,
    /// The address, less what one client can choose of it.
    pub(super) address: String,
}

impl Client {
    /// Of the stream of this callback. Two calls out of the VM: for what went wrong only.
    pub(super) fn read() -> host::Result<Self> {
        let address = host::property("source\0address")?.unwrap_or_default();
        Ok(Self {
            connection: host::number("connection\0id")?.unwrap_or(0),
            address: place(&String::from_utf8_lossy(&address)),
        })
    }
}

/// An address without its port, and of IPv6 the network: its hosts can take any of its addresses.
fn place(address: &str) -> String {
    use std::net::{IpAddr, SocketAddr};
    let ip = address.parse::<SocketAddr>().map(|address| address.ip());
    match ip.or_else(|_| address.parse::<IpAddr>()) {
        Ok(IpAddr::V4(ip)) => ip.to_string(),
        Ok(IpAddr::V6(ip)) => match ip.to_ipv4_mapped() {
            Some(ip) => ip.to_string(),
            None => format!("{:x}/64", ip.to_bits() >> 64),
        },
        Err(_) => address.to_owned(),
    }
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
    fn a_client_is_where_it_can_not_help_being() {
        for (address, expected) in [
            ("10.0.0.1:80", "10.0.0.1"),
            ("10.0.0.1", "10.0.0.1"),
            ("[2001:db8:1:2:3::4]:80", "20010db800010002/64"),
            ("2001:db8:1:2:ffff::", "20010db800010002/64"),
            ("[::ffff:10.0.0.1]:7", "10.0.0.1"),
            ("@socket", "@socket"),
            ("", ""),
        ] {
            assert_eq!(place(address), expected, "{address}");
        }
    }
}
