//! Where a request's zone is read: an ordered list of sources that a client can't write to.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::Deserialize;

/// What the trusted sources say of a request's zone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Claim<'a> {
    /// Nothing: the policy's default applies, if it has one.
    #[default]
    Silent,
    /// A zone's name, which may be unknown.
    Zone(&'a str),
    /// A source had a value that it maps to no zone. That is no zone, whatever zones there are.
    Unmapped,
}

/// Where a request's zone is read, and what happens without one.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ZoneSource {
    /// Without `from`: a request header that the gateway itself sets; Envoy has to strip the
    /// client's own.
    pub header: String,
    /// The sources, in their order. The first that says anything is believed; if what it says is
    /// no zone, the request is refused, whatever the others say.
    pub from: Vec<Source>,
    /// The zone of requests of which no source says anything. Without it they are refused.
    pub default: Option<String>,
}

/// One source.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Source {
    /// A request header that the gateway itself sets; Envoy has to strip the client's own.
    Header(String),
    /// A property of Envoy's by its path, one name per element: filter state
    /// (`["filter_state", "…"]`), dynamic metadata such as a claim that jwt_authn has checked
    /// (`["metadata", "filter_metadata", "envoy.filters.http.jwt_authn", "payload", "zone"]`), a
    /// route's metadata (`["xds", "route_metadata", "filter_metadata", "warmpath", "zone"]`), a
    /// certificate's subject (`["connection", "subject_peer_certificate"]`).
    Property(Vec<String>),
    /// The zone by the host that is asked. A client chooses that, so it is worth something only
    /// where hosts are distinguished before, by certificates or networks.
    Host(BTreeMap<String, String>),
    /// The zone by the value of another source: tenants' names, say. A value that is not listed
    /// is no zone.
    Mapped {
        /// Where the value is read.
        of: Box<Source>,
        /// Zones by value.
        zones: BTreeMap<String, String>,
    },
}

/// What a source may ask of the request.
pub trait Request {
    /// A request header's value, `:authority` among them; `None` if it isn't there or is empty.
    fn header(&self, name: &str) -> Option<String>;
    /// A property's value; `None` if it isn't there or is empty.
    fn property(&self, path: &[String]) -> Option<String>;
}

/// A zone as a source names it, and which source that is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedZone {
    /// What the source says, which may be no zone at all; `None` where its value is mapped to none.
    pub zone: Option<String>,
    /// The source, for the record: its kind and its place in the list, from 0.
    pub source: Cow<'static, str>,
}

impl NamedZone {
    /// What this says of the zone.
    pub fn claim(&self) -> Claim<'_> {
        self.zone.as_deref().map_or(Claim::Unmapped, Claim::Zone)
    }
}

impl Default for ZoneSource {
    fn default() -> Self {
        Self { header: "x-warmpath-zone".into(), from: Vec::new(), default: None }
    }
}

impl ZoneSource {
    /// Asks the sources in their order.
    pub fn find(&self, request: &impl Request) -> Option<NamedZone> {
        if self.from.is_empty() {
            let zone = request.header(&self.header)?;
            return Some(NamedZone { zone: Some(zone), source: "header".into() });
        }
        self.from.iter().enumerate().find_map(|(at, source)| {
            let zone = source.read(request)?.0;
            Some(NamedZone { zone, source: format!("{}.{at}", source.kind()).into() })
        })
    }

    /// The first source that can never say anything, by its place in `from`.
    pub(crate) fn void(&self) -> Option<usize> {
        self.from.iter().position(Source::is_void)
    }

    /// Zones that the sources themselves name, with their place in `from`.
    pub(crate) fn named(&self) -> impl Iterator<Item = (usize, &String)> {
        self.from.iter().enumerate().flat_map(|(at, source)| {
            let zones = match source {
                Source::Host(zones) | Source::Mapped { zones, .. } => Some(zones),
                Source::Header(_) | Source::Property(_) => None,
            };
            zones.into_iter().flat_map(BTreeMap::values).map(move |zone| (at, zone))
        })
    }
}

/// Whether a host of this name can be asked for, as it is compared: without a port and the root's dot.
fn is_host(name: &str) -> bool {
    let bytes = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(name);
    let is_ip = bytes.len() < name.len();
    let fits =
        |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_') || is_ip && b == b':';
    !bytes.is_empty() && !bytes.ends_with('.') && bytes.bytes().all(fits)
}

/// What a source says; nothing that could name a zone, where it maps its value to none.
struct Value(Option<String>);

impl Source {
    fn kind(&self) -> &'static str {
        match self {
            Self::Header(_) => "header",
            Self::Property(_) => "property",
            Self::Host(_) => "host",
            Self::Mapped { of, .. } => of.kind(),
        }
    }

    fn is_void(&self) -> bool {
        match self {
            Self::Header(name) => name.is_empty(),
            Self::Property(path) => path.is_empty() || path.iter().any(String::is_empty),
            Self::Host(zones) => zones.is_empty() || zones.keys().any(|host| !is_host(host)),
            Self::Mapped { of, zones } => zones.is_empty() || of.is_void(),
        }
    }

    fn read(&self, request: &impl Request) -> Option<Value> {
        match self {
            Self::Header(name) => request.header(name).map(|value| Value(Some(value))),
            Self::Property(path) => request.property(path).map(|value| Value(Some(value))),
            Self::Host(zones) => {
                let host = request.header(":authority")?;
                // A port is no part of the name; brackets keep IPv6's colons.
                let name = match host.rsplit_once(':') {
                    Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
                    _ => &host,
                };
                // Case and the root's dot make no other host.
                let name = name.strip_suffix('.').unwrap_or(name);
                let same = |(host, _): &(&String, &String)| host.eq_ignore_ascii_case(name);
                zones.iter().find(same).map(|(_, zone)| Value(Some(zone.clone())))
            }
            Self::Mapped { of, zones } => {
                // Something was said: what is not listed must be refused, not passed over.
                let Value(value) = of.read(request)?;
                Some(Value(value.and_then(|value| zones.get(&value)).cloned()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[derive(Default)]
    struct TestRequest(BTreeMap<&'static str, &'static str>);

    impl Request for TestRequest {
        fn header(&self, name: &str) -> Option<String> {
            self.0.get(name).map(|value| (*value).to_owned())
        }
        fn property(&self, path: &[String]) -> Option<String> {
            self.header(&path.join("."))
        }
    }

    fn read(config: serde_json::Value, says: &[(&'static str, &'static str)]) -> String {
        let source: ZoneSource = serde_json::from_value(config).unwrap();
        assert_eq!(source.void(), None);
        let found = source.find(&TestRequest(says.iter().copied().collect()));
        found.map_or("-".into(), |found| {
            let zone = match found.claim() {
                Claim::Zone(zone) => zone,
                Claim::Unmapped => "no zone",
                Claim::Silent => unreachable!("what is found says something"),
            };
            format!("{zone} by {}", found.source)
        })
    }

    #[test]
    fn the_first_source_that_says_anything_is_believed() {
        assert_eq!(read(json!({}), &[("x-warmpath-zone", "eu")]), "eu by header");
        assert_eq!(read(json!({"header": "x-z"}), &[("x-warmpath-zone", "eu")]), "-");
        let list = json!({"from": [
            {"property": ["metadata", "zone"]},
            {"mapped": {"of": {"header": "x-tenant"}, "zones": {"bank": "eu", "shop": "us"}}},
            {"host": {"Eu.example.com": "eu"}},
            {"header": "x-zone"}
        ]});
        for (says, expected) in [
            (vec![("metadata.zone", "a"), ("x-tenant", "bank")], "a by property.0"),
            (vec![("x-tenant", "bank"), ("x-zone", "b")], "eu by header.1"),
            (vec![("x-tenant", "thief"), ("x-zone", "b")], "no zone by header.1"),
            (vec![(":authority", "EU.example.com:8443"), ("x-zone", "b")], "eu by host.2"),
            (vec![(":authority", "eu.example.com."), ("x-zone", "b")], "eu by host.2"),
            (vec![(":authority", "eu.example.com.:80"), ("x-zone", "b")], "eu by host.2"),
            (vec![(":authority", "other.example.com"), ("x-zone", "b")], "b by header.3"),
            (vec![], "-"),
        ] {
            assert_eq!(read(list.clone(), &says), expected, "{says:?}");
        }
    }

    #[test]
    fn what_can_say_nothing_is_found() {
        for (source, void) in [
            (json!({"header": ""}), Some(0)),
            (json!({"property": []}), Some(0)),
            (json!({"host": {}}), Some(0)),
            (json!({"host": {"a.example:443": "eu"}}), Some(0)),
            (json!({"host": {"a.example.": "eu"}}), Some(0)),
            (json!({"host": {"a b": "eu"}}), Some(0)),
            (json!({"host": {"": "eu"}}), Some(0)),
            (json!({"host": {"[::1]": "eu", "A.example": "eu", "10.0.0.1": "eu"}}), None),
            (json!({"mapped": {"of": {"header": ""}, "zones": {"a": "b"}}}), Some(0)),
            (json!({"property": ["filter_state", "zone"]}), None),
        ] {
            let config = json!({"from": [source.clone()]});
            let parsed: ZoneSource = serde_json::from_value(config).unwrap();
            assert_eq!(parsed.void(), void, "{source}");
        }
        let wrong = serde_json::from_value::<ZoneSource>(json!({"from": [{"heder": "x"}]}));
        assert!(wrong.unwrap_err().to_string().contains("heder"));
    }
}
