//! Configurations, and what the check says of them.

mod change;
mod changes;
mod foreign;
mod istio;
mod listeners;
mod models;
mod sends;
mod unknown;
mod zones;

use super::finding::Severity;
use super::*;

fn shipped(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../envoy").join(file);
    std::fs::read_to_string(path).unwrap()
}

fn quickstart() -> String {
    shipped("quickstart.yaml")
}

/// Exceptions of a shipped file, as if it had been named.
fn exceptions(file: &str) -> Acknowledged {
    let mut acknowledged = Acknowledged::default();
    acknowledge(&mut acknowledged, &shipped(file), 100, None).unwrap();
    acknowledged
}

/// What is found in these files with nothing acknowledged.
fn bare(texts: &[&str]) -> Report {
    with(texts, Acknowledged::default())
}

/// What is found in these files, but for what the quick start's exceptions answer for.
fn report(texts: &[&str]) -> Report {
    with(texts, exceptions("quickstart.check.yaml"))
}

fn with(texts: &[&str], acknowledged: Acknowledged) -> Report {
    let mut input = Input::default();
    for (number, text) in texts.iter().enumerate() {
        take(&mut input, text, number).unwrap();
    }
    check(&input, acknowledged, &|_| true)
}

/// What isn't acknowledged. That an exception of the quick start's has nothing left to fit, where
/// what it is about was taken away, is left out.
fn rules(report: &Report) -> Vec<&'static str> {
    let open = report.findings.iter().filter(|finding| finding.acknowledged.is_none());
    let mut rules: Vec<_> = open.map(|finding| finding.rule).collect();
    rules.retain(|rule| *rule != "stale-acknowledgement");
    rules.sort_unstable();
    rules.dedup();
    rules
}

fn verdict(report: &Report) -> Verdict {
    Verdict::of(&report.findings, &report.proofs)
}

#[test]
fn the_quick_start_is_clean() {
    let report = report(&[&quickstart()]);
    let texts: Vec<String> =
        report.findings.iter().map(|f| f.text(&["quickstart".into()])).collect();
    assert_eq!(rules(&report), Vec::<&str>::new(), "{}", texts.concat());
    assert_eq!(texts.len(), 1, "{}", texts.concat());
    assert!(texts[0].contains("acknowledged[zone-by-host]"), "{}", texts.concat());
    assert_eq!(verdict(&report), Verdict::Proved);
    assert_eq!(report.proofs.len(), 2);
    assert_eq!(report.proofs[0].hosts, 2);
    assert_eq!(report.proofs[1].hosts, 4);
}

#[test]
fn the_filters_own_fields_are_known() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../filter/src/config.rs");
    let source = std::fs::read_to_string(path).unwrap();
    let list = source.split_once("const SHELL_FIELDS").unwrap().1;
    let list = list.split_once("= [").unwrap().1.split_once(']').unwrap().0;
    let fields: Vec<&str> = list.split(',').map(|name| name.trim().trim_matches('"')).collect();
    let fields: Vec<&str> = fields.into_iter().filter(|name| !name.is_empty()).collect();
    assert_eq!(fields, plugin::SHELL_FIELDS, "the filter's fields and the check's differ");
}

#[test]
fn every_header_that_a_zone_is_read_from_is_looked_for() {
    let json = serde_json::json!({"zone_source": {"from": [
        {"header": "X-Tenant-Zone"}, {"mapped": {"of": {"header": "x-org"}, "zones": {"a": "eu"}}}]}});
    assert_eq!(plugin::zone_headers(Some(&json)), ["x-tenant-zone", "x-org"]);
    let json = serde_json::json!({"zone_source": {"header": "x-z"}});
    assert_eq!(plugin::zone_headers(Some(&json)), ["x-z"]);
    assert_eq!(plugin::zone_headers(None), ["x-warmpath-zone"]);
}

#[test]
fn a_missing_wasm_file_is_a_warning() {
    let mut input = Input::default();
    take(&mut input, &quickstart(), 0).unwrap();
    let report = check(&input, exceptions("quickstart.check.yaml"), &|_| false);
    assert_eq!(rules(&report), ["wasm-file"]);
    let open = report.findings.iter().filter(|finding| finding.acknowledged.is_none());
    assert!(open.into_iter().all(|finding| finding.severity == Severity::Warning));
    assert_eq!(verdict(&report), Verdict::Proved);
}

#[test]
fn policies_are_found_in_both_forms() {
    assert_eq!(policies(&quickstart()).unwrap().len(), 1);
    let policy = r#"{"region": "a", "regions": {"a": {"jurisdiction": "EU"}},
        "pools": {"p": {"region": "a", "model": "m"}},
        "zones": {"z": {"regions": ["a"], "clusters": {"p": "c"}}}}"#;
    assert_eq!(policies(policy).unwrap()[0].region, "a");
    assert!(policies("static_resources: {}").unwrap_err().to_string().contains("router"));
    assert!(policies("zones: {}").unwrap_err().to_string().contains("missing field"));
}

#[test]
fn a_dump_is_checked_like_the_files_that_made_it() {
    use serde_json::json;
    let mut made = node::read(&quickstart(), 0).unwrap().remove(0).to_json();
    let mut resources = made["static_resources"].take();
    let manager = &mut resources["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"];
    let table = manager.as_object_mut().unwrap().remove("route_config").unwrap();
    manager["rds"] = json!({"route_config_name": table["name"]});
    made["dynamic_resources"] = json!({"cds_config": {"ads": {}}});
    let mut eds = json!([]);
    for cluster in resources["clusters"].as_array_mut().unwrap() {
        let assigned = cluster.as_object_mut().unwrap().remove("load_assignment").unwrap();
        cluster["type"] = json!("EDS");
        eds.as_array_mut().unwrap().push(json!({"endpoint_config": assigned}));
    }
    let wrap = |list: &serde_json::Value, name: &str| -> Vec<_> {
        list.as_array().unwrap().iter().map(|item| json!({name: item})).collect()
    };
    let dump = |routes: &serde_json::Value, eds: &serde_json::Value| {
        json!({"configs": [
            {"bootstrap": made},
            {"dynamic_active_clusters": wrap(&resources["clusters"], "cluster")},
            {"dynamic_listeners": [{"name": "x", "active_state": {"listener": resources["listeners"][0]}}]},
            {"dynamic_route_configs": routes},
            {"dynamic_endpoint_configs": eds},
        ]})
        .to_string()
    };
    let routes = json!([{"route_config": table}]);
    let report = |texts: &[&str]| {
        let mut acknowledged = Acknowledged::default();
        let text = "[{rule: zone-by-host, path: 'routes[openai]', reason: a demo}]";
        acknowledge(&mut acknowledged, text, 100, None).unwrap();
        with(texts, acknowledged)
    };
    let whole = report(&[&dump(&routes, &eds)]);
    assert_eq!(rules(&whole), Vec::<&str>::new(), "{:?}", whole.findings);
    assert_eq!(whole.proofs[1].hosts, 4);
    assert_eq!(rules(&report(&[&dump(&json!([]), &eds)])), ["unproven"]);
    assert_eq!(rules(&report(&[&dump(&routes, &json!([]))])), ["unproven"]);
    eds[0]["endpoint_config"]["endpoints"][0]["locality"]["region"] = json!("us-east");
    assert!(rules(&report(&[&dump(&routes, &eds)])).contains(&"outside"));
}
