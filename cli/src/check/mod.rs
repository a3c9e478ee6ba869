//! `warmpath check`: proves from Envoy's configuration that no request can leave its zone, and
//! finds every trap that is known.
//!
//! It reads files only. What it can't follow (what comes by xDS, what a foreign filter does to a
//! request after the decision) it says, as an error where residency hangs on it.

mod clusters;
mod config;
mod finding;
mod hosts;
mod istio;
mod listener;
mod node;
mod plugin;
mod residency;
mod routes;
#[cfg(test)]
mod tests;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use self::config::{Envoy, Input};
use self::finding::{Finding, Findings, Severity};
use self::hosts::Regions;
use self::residency::Proof;
use warmpath_routing::policy::Policy;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Write one JSON object per finding
    #[arg(long)]
    json: bool,
    /// End with 1 for warnings, too
    #[arg(long)]
    strict: bool,
    /// Envoy bootstraps, an Envoy's /config_dump?include_eds, Istio objects (together one gateway), ClusterLoadAssignments of EDS
    /// clusters, and relays' configurations; YAML or JSON
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
}

/// A file can't be read, or is no configuration.
const UNREADABLE: u8 = 2;

/// What was found, and what was proved where nothing bad was.
struct Report {
    findings: Vec<Finding>,
    proofs: Vec<Proof>,
}

/// Ends with 0 if all is well or there are warnings only, 1 with errors, 2 for unreadable files.
pub(crate) fn run(args: &Args) -> ExitCode {
    let mut input = Input::default();
    let files: Vec<String> = args.files.iter().map(|path| path.display().to_string()).collect();
    for (number, (path, name)) in args.files.iter().zip(&files).enumerate() {
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) => return unreadable(name, &error),
        };
        if let Err(error) = take(&mut input, &text, number) {
            return unreadable(name, &error);
        }
    }
    let report = check(&input, &Path::exists);
    let count = |severity| report.findings.iter().filter(|f| f.severity == severity).count();
    let (errors, warnings) = (count(Severity::Error), count(Severity::Warning));
    let line = |finding: &Finding| {
        if args.json { finding.json(&files) } else { finding.text(&files) }
    };
    let mut lines: Vec<String> = report.findings.iter().map(line).collect();
    if !args.json {
        if errors == 0 {
            lines.extend(report.proofs.iter().map(Proof::text));
        }
        lines.push(format!("{}, {}", number(errors, "error"), number(warnings, "warning")));
    }
    // Whoever reads may stop reading.
    for line in &lines {
        if writeln!(std::io::stdout(), "{line}").is_err() {
            break;
        }
    }
    let bad = errors > 0 || (args.strict && warnings > 0);
    if bad { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// So many of something.
fn number(count: usize, of: &str) -> String {
    if count == 1 { format!("1 {of}") } else { format!("{count} {of}s") }
}

/// The policies of a file that configures Envoy, or the one that is all of it.
///
/// # Errors
/// Nothing in it is a policy, or what is does not hold together.
pub(crate) fn policies(text: &str) -> anyhow::Result<Vec<Policy>> {
    let mut findings = Findings::default();
    let mut input = Input::default();
    let mut alone = Vec::new();
    for document in node::read(text, 0)? {
        if document.get("zones").is_some() {
            alone.push(plugin::read_policy(document.to_json()).map_err(anyhow::Error::msg)?);
        } else {
            input.add(document)?;
        }
    }
    for node in input.envoys(&mut findings) {
        let envoy = Envoy::new(&node, &input);
        let routers = plugin::routers(&envoy, &|_| true, &mut findings);
        alone.extend(routers.into_iter().map(|router| router.policy));
    }
    if alone.is_empty() {
        let of = |finding: &Finding| matches!(finding.rule, "policy" | "no-router");
        let why = findings.sorted().into_iter().find(of).map(|finding| finding.what);
        anyhow::bail!("{}", why.unwrap_or_else(|| "there is no policy in it".into()));
    }
    Ok(alone)
}

fn unreadable(file: &str, error: &dyn std::fmt::Display) -> ExitCode {
    eprintln!("warmpath check: {file}: {error}");
    ExitCode::from(UNREADABLE)
}

fn take(input: &mut Input, text: &str, file: usize) -> anyhow::Result<()> {
    for document in node::read(text, file)? {
        input.add(document)?;
    }
    Ok(())
}

fn check(input: &Input, exists: &dyn Fn(&Path) -> bool) -> Report {
    let mut findings = Findings::default();
    let mut proofs = Vec::new();
    let envoys = input.envoys(&mut findings);
    if envoys.is_empty() {
        let nothing = node::Node::scalar(node::Place::default(), "");
        findings.error(
            "no-router",
            &node::At::root(&nothing),
            "There is neither an Envoy bootstrap nor an EnvoyFilter in these files.",
            "Give the file that configures Envoy.",
        );
    }
    for node in &envoys {
        let envoy = Envoy::new(node, input);
        let routers = plugin::routers(&envoy, exists, &mut findings);
        for router in &routers {
            let regions = Regions::new(&envoy, &router.policy);
            proofs.extend(residency::check(&envoy, router, &regions, &mut findings));
            routes::check(&envoy, router, &regions, &mut findings);
            routes::bypasses(&envoy, router, &routers, &regions, &mut findings);
            listener::check(&envoy, router, &regions, &mut findings);
            clusters::check(&envoy, router, &mut findings);
        }
        dynamic(&envoy, !routers.is_empty(), &mut findings);
    }
    Report { findings: findings.sorted(), proofs }
}

/// What comes from a control plane, or shows nothing.
fn dynamic(envoy: &Envoy<'_>, routed: bool, findings: &mut Findings) {
    for name in ["lds_config", "cds_config"] {
        if let Some(at) = envoy.root.get(&format!("dynamic_resources.{name}")) {
            findings.warning(
                "dynamic",
                &at,
                "More listeners or clusters come from a control plane: they are not checked.",
                "Check the configuration that Envoy has (admin page, /config_dump?include_eds), too.",
            );
        }
    }
    let filters = envoy.managers.iter().flat_map(|manager| manager.config.items("http_filters"));
    for filter in filters.chain(envoy.others.iter().cloned()) {
        if let Some(at) = filter.get("config_discovery") {
            findings.warning(
                "dynamic",
                &at,
                "This filter comes from a control plane: what it does is not checked.",
                "Configure it here, or check it by hand.",
            );
        }
    }
    let tags = envoy.root.items("stats_config.stats_tags");
    let tagged = |name: &str| {
        tags.iter().any(|tag| tag.text("regex").is_some_and(|regex| regex.contains(name)))
    };
    if routed && !tagged("wasmcustom") {
        findings.warning(
            "stats-tags",
            &envoy.root,
            "Wasm metrics have no labels: Prometheus sees one metric per reason.",
            "Add stats_config.stats_tags for the wasmcustom metrics, as in envoy/quickstart.yaml.",
        );
    }
}
