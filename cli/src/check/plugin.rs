//! Warmpath's two plugins: what they are configured to be, and how Envoy has to load them.

use std::path::Path;

use serde_json::{Map, Value as Json};
use warmpath_routing::policy::Policy;
use warmpath_routing::unique_keys;

use super::config::{Envoy, Manager};
use super::finding::Findings;
use super::node::{At, Node, Place, Value};

/// Fields of the router's configuration that are the filter's own and none of the policy's.
pub(super) const SHELL_FIELDS: [&str; 5] =
    ["explain", "log_decision", "orca", "refresh_ms", "memo_bytes"];

/// The filter in one HTTP connection manager.
#[derive(Clone, Debug)]
pub(super) struct Router<'a> {
    pub(super) manager: Manager<'a>,
    /// The entry in `http_filters`.
    pub(super) filter: At<'a>,
    /// Its number there.
    pub(super) number: usize,
    /// The plugin's own configuration.
    pub(super) said: At<'a>,
    pub(super) policy: Policy,
    /// Headers in which the request's zone is believed, in lower case.
    pub(super) zone_headers: Vec<String>,
}

/// Whether a wasm extension is one of this project's two roles.
pub(super) fn is_ours(wasm: &At<'_>) -> bool {
    ["router", "sidestream"].iter().any(|role| plugin(wasm, role).is_some())
}

/// An Envoy `PluginConfig` and the JSON in it.
struct Plugin<'a> {
    config: At<'a>,
    said: At<'a>,
    json: Result<Json, (u64, String)>,
}

/// Finds all routers and checks them and the side-stream's service.
pub(super) fn routers<'a>(
    envoy: &Envoy<'a>,
    exists: &dyn Fn(&Path) -> bool,
    findings: &mut Findings,
) -> Vec<Router<'a>> {
    let services: Vec<(At<'a>, Plugin<'a>)> = envoy
        .root
        .items("bootstrap_extensions")
        .iter()
        .filter_map(|extension| extension.typed("WasmService"))
        .filter_map(|service| Some((service.clone(), plugin(&service, "sidestream")?)))
        .collect();
    for (service, plugin) in &services {
        check_service(envoy, service, plugin, findings);
        check_code(&plugin.config, exists, findings);
    }
    let mut routers = Vec::new();
    let mut any = false;
    for manager in &envoy.managers {
        for (number, filter) in manager.config.items("http_filters").into_iter().enumerate() {
            let Some(wasm) = filter.typed("Wasm") else { continue };
            let Some(plugin) = plugin(&wasm, "router") else { continue };
            any = true;
            check_filter(&plugin.config, findings);
            check_code(&plugin.config, exists, findings);
            check_pair(&plugin, &services, findings);
            if let Some(policy) = policy(&plugin, findings) {
                let zone_headers = zone_headers(plugin.json.as_ref().ok());
                let (manager, said) = (manager.clone(), plugin.said);
                routers.push(Router { manager, filter, number, said, policy, zone_headers });
            }
        }
    }
    if !any {
        findings.unproved(
            "no-router",
            &envoy.root,
            "No wasm filter with the role \"router\" stands in any http_filters: nothing keeps \
             requests in their zones.",
            "Add the filter as in envoy/quickstart.yaml, or check the file that has it.",
        );
    }
    routers
}

/// By the configuration's own words, so that each kind of source that has a header is seen.
pub(super) fn zone_headers(json: Option<&Json>) -> Vec<String> {
    fn into(json: &Json, headers: &mut Vec<String>) {
        match json {
            Json::Array(items) => items.iter().for_each(|item| into(item, headers)),
            Json::Object(fields) => {
                for (name, value) in fields {
                    match value.as_str() {
                        Some(header) if name == "header" => {
                            headers.push(header.to_ascii_lowercase());
                        }
                        _ => into(value, headers),
                    }
                }
            }
            _ => {}
        }
    }
    let source = json.and_then(|json| json.get("zone_source"));
    let mut headers = Vec::new();
    let of = |name| source.and_then(|source| source.get(name));
    if let Some(Json::Array(from)) = of("from")
        && !from.is_empty()
    {
        for item in from {
            into(item, &mut headers);
        }
    } else {
        let header = of("header").and_then(Json::as_str).unwrap_or("x-warmpath-zone");
        headers.push(header.to_ascii_lowercase());
    }
    headers
}

/// The plugin if it has this role, or its configuration can't be read and its `root_id` is this.
fn plugin<'a>(wasm: &At<'a>, role: &str) -> Option<Plugin<'a>> {
    let config = wasm.get("config")?;
    let Some(said) = config.get("configuration.value").or(config.get("configuration")) else {
        return (config.text("root_id") == Some(role)).then(|| Plugin {
            said: config.clone(),
            json: Err((0, "there is none".into())),
            config,
        });
    };
    let json = match said.node.text() {
        Some(text) => unique_keys::check(text.as_bytes())
            .and_then(|()| serde_json::from_str(text))
            .map_err(|error| (error.line().saturating_sub(1) as u64, error.to_string())),
        None => Ok(said.node.to_json()),
    };
    let ours = match &json {
        Ok(json) => json.get("role").and_then(Json::as_str) == Some(role),
        Err(_) => config.text("root_id") == Some(role),
    };
    ours.then_some(Plugin { config, said, json })
}

fn policy(plugin: &Plugin<'_>, findings: &mut Findings) -> Option<Policy> {
    let mend = "README.md (Configuration) has the fields; Envoy refuses the listener until then.";
    let json = match &plugin.json {
        Ok(json) => json.clone(),
        Err((down, error)) => {
            bad_json(plugin, *down, error, findings);
            return None;
        }
    };
    match read_policy(json) {
        Ok(policy) => Some(policy),
        Err(what) => {
            findings.error("policy", &plugin.said, what, mend);
            None
        }
    }
}

/// Reads the policy out of the router's configuration, and checks it.
///
/// # Errors
/// Where a value is out of its range or the policy doesn't hold together: one sentence about it.
pub(super) fn read_policy(mut json: Json) -> Result<Policy, String> {
    // As the filter has it (filter/src/config.rs).
    for (name, least, most) in [("refresh_ms", 10, 1_000), ("memo_bytes", 0, 256 << 20)] {
        let value = json.get(name).and_then(Json::as_u64);
        if let Some(value) = value.filter(|value| !(least..=most).contains(value)) {
            return Err(format!("{name}: {value} is not within {least} to {most}."));
        }
    }
    for name in ["explain", "log_decision", "orca"] {
        if let Some(value) = json.get(name).filter(|value| !value.is_boolean()) {
            return Err(format!("{name}: {value} is neither true nor false."));
        }
    }
    if let Json::Object(fields) = &mut json {
        fields.retain(|name, _| name != "role" && !SHELL_FIELDS.contains(&name.as_str()));
    }
    let policy: Policy = serde_path_to_error::deserialize(json)
        .map_err(|error| format!("The router's configuration is wrong: {error}."))?;
    policy.check().map_err(|error| format!("The policy does not hold together: {error}."))?;
    Ok(policy)
}

fn bad_json(plugin: &Plugin<'_>, down: u64, error: &str, findings: &mut Findings) {
    let place = plugin.said.node.place;
    let node = Node {
        place: Place { line: place.line + down, ..place },
        value: Value::Scalar(Json::Null),
    };
    let at = At { node: &node, path: plugin.said.path.clone() };
    findings.error(
        "policy",
        &at,
        format!("The plugin's configuration is not valid JSON: {error}."),
        "Write one JSON object with a role; Envoy refuses the whole configuration until then.",
    );
}

fn check_filter(config: &At<'_>, findings: &mut Findings) {
    if !config.is_true("allow_on_headers_stop_iteration") {
        findings.error(
            "stop-iteration",
            config,
            "Every request with a body hangs: a filter that waits on the headers never sees the \
             body.",
            "Set allow_on_headers_stop_iteration: true in the plugin's config.",
        );
    }
    let policies = ["UNSPECIFIED", "FAIL_RELOAD", "FAIL_CLOSED", "FAIL_OPEN"];
    let policy = config.enumeration("failure_policy", &policies).unwrap_or("UNSPECIFIED");
    if config.is_true("fail_open") || policy == "FAIL_OPEN" {
        findings.leak(
            "fail-open",
            config,
            "When the filter fails, requests go on without it: nobody has looked at their zone.",
            "Set failure_policy: FAIL_RELOAD (and no fail_open).",
        );
    } else if policy != "FAIL_RELOAD" {
        findings.warning(
            "no-reload",
            config,
            "After a trap the filter stays dead, and every request is refused until Envoy is \
             restarted.",
            "Set failure_policy: FAIL_RELOAD.",
        );
    }
}

fn check_service(
    envoy: &Envoy<'_>,
    service: &At<'_>,
    plugin: &Plugin<'_>,
    findings: &mut Findings,
) {
    if !service.is_true("singleton") {
        findings.error(
            "singleton",
            service,
            "Every worker runs a side-stream of its own, and they overwrite each other's map.",
            "Set singleton: true.",
        );
    }
    let fields: Map<String, Json> = match &plugin.json {
        Ok(Json::Object(fields)) => fields.clone(),
        Ok(_) => return,
        Err((down, error)) => return bad_json(plugin, *down, error, findings),
    };
    let Some(name) = fields.get("cluster").and_then(Json::as_str) else {
        findings.error(
            "policy",
            &plugin.said,
            "The side-stream's configuration names no cluster; Envoy refuses it.",
            "Give it \"cluster\": the name of the relay's cluster.",
        );
        return;
    };
    let Some(relay) = envoy.clusters.get(name) else {
        findings.error(
            "unknown-cluster",
            &plugin.said,
            format!("The relay's cluster {name:?} does not exist: the map stays empty and stale."),
            format!("Add a cluster {name:?} with the relay's address."),
        );
        return;
    };
    let http2 =
        ["http2_protocol_options", "explicit_http_config", "use_downstream_protocol_config"];
    let is_http2 = relay.find_all(&http2).iter().any(|at| {
        at.path.ends_with("http2_protocol_options") || at.get("http2_protocol_options").is_some()
    });
    if !is_http2 {
        findings.error(
            "relay-http2",
            relay,
            "The side-stream is gRPC, which needs HTTP/2, and this cluster speaks HTTP/1.1: the \
             map stays empty and stale.",
            "Give the relay's cluster http2_protocol_options, as in envoy/quickstart.yaml.",
        );
    }
}

fn check_pair(router: &Plugin<'_>, services: &[(At<'_>, Plugin<'_>)], findings: &mut Findings) {
    let id = |plugin: &Plugin<'_>| plugin.config.text("vm_config.vm_id").unwrap_or("").to_owned();
    let configuration = |plugin: &Plugin<'_>| {
        plugin.config.get("vm_config.configuration").map(|at| at.node.to_json())
    };
    let Some((_, first)) = services.first() else {
        findings.error(
            "no-sidestream",
            &router.config,
            "No bootstrap extension has the role \"sidestream\": nothing follows the relay, and \
             every decision falls back to consistent hashing.",
            "Add the envoy.bootstrap.wasm extension as in envoy/quickstart.yaml.",
        );
        return;
    };
    if !services.iter().any(|(_, service)| id(service) == id(router)) {
        findings.error(
            "vm-id",
            &router.config,
            format!(
                "The router's vm_id {:?} is not the side-stream's {:?}: it never sees what the \
                 relay tells, and every decision falls back to consistent hashing.",
                id(router),
                id(first)
            ),
            "Give both the same vm_config.vm_id.",
        );
    }
    if services.iter().any(|(_, service)| configuration(service) == configuration(router)) {
        findings.error(
            "vm-configuration",
            &router.config,
            "Both roles have the same VM configuration and can share one VM of the main thread, \
             where a trap of one ends the other.",
            "Give them different vm_config.configuration values, such as their roles.",
        );
    }
}

fn check_code(config: &At<'_>, exists: &dyn Fn(&Path) -> bool, findings: &mut Findings) {
    let Some(code) = config.get("vm_config.code.local.filename") else { return };
    let Some(file) = code.node.text() else { return };
    if !exists(Path::new(file)) {
        findings.warning(
            "wasm-file",
            &code,
            format!("{file} does not exist here. Envoy looks from its own working directory."),
            "Build it with scripts/build-filter and start Envoy (and this check) at the \
             repository's root, or give an absolute path.",
        );
    }
}
