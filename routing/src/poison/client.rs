//! Who a prompt came from: a client has so many places among those that are suspected, and no more.

/// The part of a client's address that it can't choose, by which its prompts are counted: without the port,
/// and of IPv6 the network, as its hosts can take any of its addresses.
pub fn client_of(address: &str) -> String {
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
            assert_eq!(client_of(address), expected, "{address}");
        }
    }
}
