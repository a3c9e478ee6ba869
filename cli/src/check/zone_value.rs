//! Where a request's zone comes from, and whether a client can choose it.
//!
//! Known are the values that Envoy has checked (claims of a token, a certificate's names, what an
//! authorization service has answered) and those that stand in the configuration. What a client
//! sends is its own choice. Of all else it isn't known. Sources: Envoy's "Attributes" and
//! "Substitution formatter" (docs/root/intro/arch_overview/advanced/attributes.rst,
//! docs/root/configuration/advanced/substitution_formatter.rst).

mod properties;

use std::collections::BTreeSet;

use warmpath_routing::zone_source::Source;

use super::config::Envoy;
use super::finding::Findings;
use super::hosts::Regions;
use super::node::{At, Node, same};
use super::operator::operators;
use super::plugin::Router;
use super::strip::Stripped;
use properties::{is_proxied, unread};

/// Fields that name a header to take it away, to read it, or to set it to a value that is looked at
/// (`key`).
const READ_BY: [&str; 25] = [
    "remove",
    "request_headers_to_remove",
    "response_headers_to_remove",
    "exact",
    "prefix",
    "key",
    "headers",
    "hash_policy",
    "cluster_header",
    "host_rewrite_header",
    "vhost_header",
    "request_headers",
    "request_header",
    "request_rules",
    "from_headers",
    "header_filter",
    "permissions",
    "principals",
    "ids",
    "rules",
    "not_id",
    "not_rule",
    "override_host_sources",
    "key_sources",
    "stat_prefix",
];

/// Fields that name the header in which an authentication says whom it has recognized.
const CHECKED_BY: [&str; 2] = ["forward_username_header", "forwarding"];

/// Who chooses a value. The worst comes last.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Origin {
    /// It stands in the configuration, or Envoy has checked it.
    Gateway,
    /// The configuration, by the host or the path that the client asks for.
    Route,
    /// Nobody knows.
    Unknown(String),
    /// The client.
    Client(String),
}

pub(super) fn check(envoy: &Envoy<'_>, router: &Router<'_>, findings: &mut Findings) {
    let manager = &router.manager.config;
    let checked = ZoneSources {
        manager,
        listener: &router.manager.listener,
        table: super::routes::table(envoy, manager),
        stripped: Stripped::of(manager),
        number: router.number,
        default: router.policy.zone_source.default.as_deref(),
        said: &router.said,
    };
    let sources = &router.policy.zone_source.from;
    for source in sources {
        let (what, origin) = checked.source(source, 0);
        // Of a header's value it is said where that is set.
        if let Source::Header(_) = innermost(source) {
            continue;
        }
        tell(&router.said, &what, origin, findings);
    }
    for header in &router.zone_headers {
        checked.setters(header, findings);
    }
}

/// Filter chains of one listener that lead to several zones: where TLS's server name or protocol
/// tells them apart, a client does; where addresses do, so does whoever says these.
pub(super) fn chains(
    envoy: &Envoy<'_>,
    routers: &[(Router<'_>, Regions)],
    findings: &mut Findings,
) {
    for listener in envoy.root.items("static_resources.listeners") {
        let mut zones = BTreeSet::new();
        let here = |(router, _): &&(Router<'_>, Regions)| {
            std::ptr::eq(router.manager.listener.node, listener.node)
        };
        for (router, _) in routers.iter().filter(here) {
            zones.extend(router.policy.zone_source.default.clone());
            let set = router.manager.config.find_all(&["header"]).into_iter().filter(|set| {
                let key = set.text("key").map(str::to_ascii_lowercase);
                key.is_some_and(|key| router.zone_headers.contains(&key))
            });
            let fixed = set.filter_map(|set| set.text("value"));
            zones.extend(fixed.filter(|value| operators(value).is_empty()).map(str::to_owned));
            let states: Vec<&str> =
                router.policy.zone_source.from.iter().filter_map(state_of).collect();
            let set = listener
                .holders("object_key")
                .into_iter()
                .filter(|set| set.text("object_key").is_some_and(|key| states.contains(&key)));
            zones.extend(set.filter_map(|set| {
                let value = set.find_all(&["inline_string", "text_format"]);
                value.first().and_then(|value| value.node.text()).map(str::to_owned)
            }));
        }
        let chosen =
            ["server_names", "application_protocols", "transport_protocol", "source_ports"];
        let matches = listener.find_all(&["filter_chain_match", "filter_chain_matcher"]);
        let told = matches.iter().any(|at| {
            at.path.ends_with("matcher") || chosen.iter().any(|name| at.get(name).is_some())
        });
        let several = routers.iter().filter(here).count() > 1;
        if several && told && zones.len() > 1 {
            by_host(&listener, "The filter chain, which sets the zone here,", findings);
        }
        let said = ["source_prefix_ranges", "source_type", "prefix_ranges", "destination_port"];
        let by_address = matches.iter().any(|at| said.iter().any(|name| at.get(name).is_some()));
        if several && by_address && zones.len() > 1 && is_proxied(&listener) {
            let why = Origin::Unknown("a PROXY protocol header says its addresses".into());
            tell(&listener, "The filter chain, chosen by addresses,", why, findings);
        }
    }
}

/// The filter state that a source reads.
fn state_of(source: &Source) -> Option<&str> {
    match innermost(source) {
        Source::Property(path) => match path.as_slice() {
            [kind, name, ..] if kind == "filter_state" => Some(name),
            _ => None,
        },
        _ => None,
    }
}

fn innermost(source: &Source) -> &Source {
    match source {
        Source::Mapped { of, .. } => innermost(of),
        other => other,
    }
}

fn tell(at: &At<'_>, what: &str, origin: Origin, findings: &mut Findings) {
    match origin {
        Origin::Gateway => {}
        Origin::Route => by_host(at, what, findings),
        Origin::Unknown(why) => findings.unproved(
            "zone-source",
            at,
            format!("{what} is a source of the zone, and {why}."),
            "Take the zone from what your authentication has checked; or acknowledge it with the \
             reason why no client can choose it (see --acknowledge).",
        ),
        Origin::Client(why) => findings.leak(
            "zone-from-client",
            at,
            format!("{what} is a source of the zone, and {why}: a client chooses its zone."),
            "Take the zone from what your authentication has checked.",
        ),
    }
}

fn by_host(at: &At<'_>, what: &str, findings: &mut Findings) {
    findings.leak(
        "zone-by-host",
        at,
        format!(
            "{what} goes by the host or path that is asked for, which a client chooses, and its \
             zone with it."
        ),
        "Take the zone from what your authentication has checked. Where hosts are told apart \
         before (by networks, by certificates), acknowledge it with that reason (see \
         --acknowledge).",
    );
}

struct ZoneSources<'s, 'a> {
    manager: &'s At<'a>,
    listener: &'s At<'a>,
    /// The route table, where it is known.
    table: Option<At<'a>>,
    stripped: Stripped,
    /// Number of our filter among the manager's.
    number: usize,
    /// The zone of requests that have none.
    default: Option<&'s str>,
    /// The filter's own configuration.
    said: &'s At<'a>,
}

impl<'a> ZoneSources<'_, 'a> {
    fn source(&self, source: &Source, depth: usize) -> (String, Origin) {
        match source {
            Source::Header(name) => {
                (format!("The header {name}"), self.header(&name.to_ascii_lowercase(), depth))
            }
            Source::Property(path) => {
                (format!("The property {}", path.join(".")), self.property(path, depth))
            }
            Source::Host(_) => ("The zone".into(), Origin::Route),
            Source::Mapped { of, .. } => self.source(of, depth),
        }
    }

    /// What sets a header that names zones, each told where it stands.
    fn setters(&self, header: &str, findings: &mut Findings) {
        let (mut fixed, mut routed) = (BTreeSet::new(), false);
        for set in self.set(header) {
            let value = set.text("value").unwrap_or_default();
            let raw = set.get("raw_value").is_some();
            let origin = if raw { unread() } else { self.format(value, 0) };
            if let Origin::Client(why) = origin {
                findings.leak(
                    "zone-from-client",
                    &set,
                    format!("{header} is set to {value}, and {why}: a client chooses its zone."),
                    "Copy it from what your authentication has set, and remove the client's own \
                     header of that name by early_header_mutation_extensions.",
                );
            } else {
                tell(&set, &format!("{value:?} in {header}"), origin, findings);
            }
            // Another chain's connection manager is none of the routes' business.
            if self.routed(&set) || set.path.starts_with(&self.manager.path) {
                fixed.insert(value.to_owned());
            }
            routed |= self.routed(&set);
        }
        for (at, origin) in self.writers(header) {
            tell(&at, &format!("What is written into {header}"), origin, findings);
        }
        // Of one zone only, a client chooses at most that it has none.
        fixed.extend(self.default.map(str::to_owned));
        if let Some(table) = self.table.as_ref().filter(|_| routed && fixed.len() > 1) {
            by_host(table, &format!("{header} is set by virtual host or route: it"), findings);
        }
    }

    /// Whether this stands among the routes, whose choice is by the host and path that are asked for.
    fn routed(&self, at: &At<'_>) -> bool {
        self.table.as_ref().is_some_and(|table| at.path.starts_with(&table.path))
    }

    /// At the best what the route chooses, where it stands there.
    fn at_best(&self, at: &At<'_>, origin: Origin) -> Origin {
        if self.routed(at) { origin.max(Origin::Route) } else { origin }
    }

    /// What else writes a header by its name, and who chooses that.
    fn writers(&self, header: &str) -> Vec<(At<'a>, Origin)> {
        let mut found = Vec::new();
        let said: *const Node = self.said.node;
        for place in [Some(self.manager), self.named_table()].into_iter().flatten() {
            place.texts("", &mut |at, text, by| {
                let own = at.path.starts_with(&self.said.path) || std::ptr::eq(at.node, said);
                let is = |names: &[&str]| names.iter().any(|name| same(by, name));
                if own || !text.eq_ignore_ascii_case(header) || is(&READ_BY) || is(&CHECKED_BY) {
                    return;
                }
                let origin = match by {
                    _ if is(&["ip_tag_header"]) => self.address(),
                    _ if is(&["claim_to_headers", "forward_payload_header"]) => self.claims(),
                    _ => Origin::Unknown(format!("what {by} does with it isn't known")),
                };
                found.push((at.clone(), self.at_best(at, origin)));
            });
        }
        // Who comes often chooses that it is there.
        for added in self.all(&["request_headers_to_add_when_not_enforced"]) {
            let here = added.find_all(&["key"]);
            let here = here
                .into_iter()
                .filter(|key| key.node.text().is_some_and(|key| key.eq_ignore_ascii_case(header)));
            let why = || Origin::Unknown("whoever is over a rate limit has it".into());
            found.extend(here.map(|key| (key, why())));
        }
        found
    }

    /// Claims of tokens, by what checks these.
    fn claims(&self) -> Origin {
        if self.all(&["extract_only_without_validation"]).is_empty() {
            Origin::Gateway
        } else {
            Origin::Client("tokens are taken there without being checked".into())
        }
    }

    /// All fields of these names, in the listener and in routes that it names.
    fn all(&self, names: &[&str]) -> Vec<At<'a>> {
        let mut found = self.listener.find_all(names);
        found.extend(self.named_table().into_iter().flat_map(|table| table.find_all(names)));
        found
    }

    /// The route table, where it isn't in the listener itself.
    fn named_table(&self) -> Option<&At<'a>> {
        self.table.as_ref().filter(|_| self.manager.get("route_config").is_none())
    }

    /// Each `header: { key, value }` that sets this header.
    fn set(&self, header: &str) -> Vec<At<'a>> {
        let mut found = self.all(&["header"]);
        found.retain(|at| at.text("key").is_some_and(|key| key.eq_ignore_ascii_case(header)));
        found
    }

    /// A request header's value, as our filter finds it.
    fn header(&self, header: &str, depth: usize) -> Origin {
        // What a request can't be without can't be removed.
        if !self.stripped.has(header) || header.starts_with(':') || header == "host" {
            return Origin::Client(format!("clients can send the header {header}"));
        }
        let set = self.set(header);
        let values = set.iter().map(|set| {
            let origin = match set.get("raw_value") {
                Some(_) => unread(),
                None => self.format(set.text("value").unwrap_or_default(), depth + 1),
            };
            self.at_best(set, origin)
        });
        let written = self.writers(header).into_iter().map(|(_, origin)| origin);
        values.chain(written).max().unwrap_or(Origin::Gateway)
    }

    /// What a format string comes to.
    fn format(&self, text: &str, depth: usize) -> Origin {
        // Headers can be set from each other in a circle.
        if depth > 8 {
            return Origin::Unknown("where it comes from can't be followed".into());
        }
        let made = operators(text).into_iter().map(|operator| self.operator(&operator, depth));
        made.max().unwrap_or(Origin::Gateway)
    }
}
