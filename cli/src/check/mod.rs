//! `warmpath check`: proves from Envoy's configuration that no request can leave its zone, and
//! finds every trap that is known.
//!
//! It reads files only, and says *proved* only where it knows all that it read: each host that a
//! zone's clusters lead to, each field and each type. What it can't follow (what comes by xDS, what
//! a program or an unknown filter does to a request) makes the verdict *not proved*.

mod acknowledged;
mod bad_yaml;
mod bodies;
mod bypass;
mod closed;
mod clusters;
mod config;
mod fields;
mod finding;
mod hosts;
mod istio;
mod known;
mod listener;
mod models;
mod node;
mod number;
mod operator;
mod plugin;
mod ranks;
mod residency;
mod retries;
mod routes;
mod sends;
mod spelling;
mod strip;
#[cfg(test)]
mod tests;
mod verdict;
mod zone_value;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use self::acknowledged::Acknowledged;
use self::config::{Envoy, Input};
use self::finding::{Finding, Findings};
use self::hosts::Regions;
use self::number::number;
use self::plugin::Router;
use self::residency::Proof;
use self::verdict::{Counts, Verdict};
use crate::output;
use warmpath_routing::policy::Policy;

/// Ends with 0: proved · 1: leaks, or something else is wrong · 2: a file can't be read · 3: not proved
#[derive(clap::Args)]
#[command(after_help = ENDS)]
pub(crate) struct Args {
    /// Write one JSON object per finding, and the verdict as the last one
    #[arg(long)]
    json: bool,
    /// End with 1 for warnings, too
    #[arg(long)]
    strict: bool,
    /// A file of acknowledged exceptions: a YAML list of rule, path and reason. Beside a configuration
    /// NAME.yaml, NAME.check.yaml is taken without being named, for that configuration
    #[arg(long, value_name = "FILE")]
    acknowledge: Vec<PathBuf>,
    /// Envoy bootstraps, an Envoy's /config_dump?include_eds, Istio objects (together one gateway), ClusterLoadAssignments of EDS
    /// clusters, and relays' configurations; YAML or JSON
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
}

const ENDS: &str = "\
Ends with:
  0  proved: every way is known, and none leads out of a zone
  1  leaks: a way leads out of a zone; or something else is wrong
  2  a file can't be read, or is no configuration
  3  not proved: something might lead out";

/// A file can't be read, or is no configuration.
const UNREADABLE: u8 = 2;
const NOT_PROVED: u8 = 3;

/// What a file of acknowledged exceptions ends in.
const EXCEPTIONS: &str = ".check.yaml";

/// What was found, and what was proved where nothing bad was.
struct Report {
    findings: Vec<Finding>,
    proofs: Vec<Proof>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut input = Input::default();
    let mut acknowledged = Acknowledged::default();
    let is_exceptions = |path: &&PathBuf| {
        path.file_name().is_some_and(|n| n.to_string_lossy().ends_with(EXCEPTIONS))
    };
    let (mut exceptions, paths): (Vec<&PathBuf>, Vec<&PathBuf>) =
        args.files.iter().partition(is_exceptions);
    exceptions.extend(&args.acknowledge);
    let mut files: Vec<String> = Vec::new();
    let mut beside: Vec<(PathBuf, usize)> = Vec::new();
    for (number, path) in paths.iter().enumerate() {
        let name = path.display().to_string();
        let read = read(path).and_then(|text| take(&mut input, &text, number));
        if let Err(error) = read {
            return Ok(unreadable(&name, &error));
        }
        files.push(name);
        let own = path.with_extension("check.yaml");
        let named = |other: &&PathBuf| other.as_path() == own;
        if own.is_file() && !args.acknowledge.iter().any(|other| named(&other)) {
            beside.push((own, number));
        }
    }
    // One that stands beside a configuration and is named, too, is taken once.
    exceptions.retain(|path| {
        args.acknowledge.contains(path) || !beside.iter().any(|(own, _)| own == *path)
    });
    let named = exceptions.into_iter().map(|path| (path.clone(), None));
    let beside = beside.into_iter().map(|(path, number)| (path, Some(input.beside(number))));
    for (path, of) in beside.chain(named).collect::<Vec<_>>() {
        let name = path.display().to_string();
        let read = read(&path)
            .and_then(|text| acknowledge(&mut acknowledged, &text, files.len(), of.as_deref()));
        if let Err(error) = read {
            return Ok(unreadable(&name, &error));
        }
        files.push(name);
    }
    let report = check(&input, acknowledged, &Path::exists);
    let counts = Counts::of(&report.findings);
    let verdict = Verdict::of(&report.findings, &report.proofs);
    let line = |finding: &Finding| {
        if args.json { finding.json(&files) } else { finding.text(&files) }
    };
    let mut lines: Vec<String> = report.findings.iter().map(line).collect();
    if args.json {
        lines.push(verdict.json(counts));
    } else {
        if verdict == Verdict::Proved {
            lines.extend(report.proofs.iter().map(Proof::text));
        }
        let bad = number(counts.leaks + counts.errors, "error");
        lines.push(format!("{bad}, {}", number(counts.warnings, "warning")));
        lines.push(verdict.text(counts));
    }
    for line in &lines {
        output::line(line)?;
    }
    let bad = counts.leaks + counts.errors > 0 || (args.strict && counts.warnings > 0);
    Ok(match verdict {
        _ if bad => ExitCode::FAILURE,
        Verdict::Proved => ExitCode::SUCCESS,
        Verdict::NotProved | Verdict::Leaks => ExitCode::from(NOT_PROVED),
    })
}

fn read(path: &Path) -> anyhow::Result<String> {
    Ok(std::fs::read_to_string(path)?)
}

fn acknowledge(
    acknowledged: &mut Acknowledged,
    text: &str,
    file: usize,
    of: Option<&[usize]>,
) -> anyhow::Result<()> {
    for document in node::read(text, file)? {
        acknowledged.add(&document, of)?;
    }
    Ok(())
}

/// The policies of a file that configures Envoy, or the one that is all of it.
///
/// # Errors
/// Where the file can't be read as YAML, contains no policy, or its policy doesn't hold together.
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
        anyhow::bail!("{}", why.unwrap_or_else(|| "it contains no policy".into()));
    }
    Ok(alone)
}

fn unreadable(file: &str, error: &anyhow::Error) -> ExitCode {
    output::tell(format_args!("warmpath check: {file}: {error}"));
    ExitCode::from(UNREADABLE)
}

fn take(input: &mut Input, text: &str, file: usize) -> anyhow::Result<()> {
    for document in node::read(text, file)? {
        input.add(document)?;
    }
    Ok(())
}

fn check(input: &Input, acknowledged: Acknowledged, exists: &dyn Fn(&Path) -> bool) -> Report {
    let mut findings = Findings::default();
    let mut proofs = Vec::new();
    let envoys = input.envoys(&mut findings);
    if envoys.is_empty() {
        let nothing = node::Node::scalar(node::Place::default(), "");
        findings.error(
            "no-router",
            &node::At::root(&nothing),
            "There is neither an Envoy bootstrap nor an EnvoyFilter in these files.",
            "Pass the file that configures Envoy.",
        );
    }
    for node in &envoys {
        let envoy = Envoy::new(node, input);
        let routers = plugin::routers(&envoy, exists, &mut findings);
        let routers: Vec<(Router<'_>, Regions)> = routers
            .into_iter()
            .map(|router| {
                let regions = Regions::new(&envoy, &router.policy);
                (router, regions)
            })
            .collect();
        for (router, regions) in &routers {
            proofs.extend(residency::check(&envoy, router, regions, &mut findings));
            routes::check(&envoy, router, regions, &mut findings);
            sends::check(&envoy, router, regions, &mut findings);
            strip::check(router, &mut findings);
            zone_value::check(&envoy, router, &mut findings);
            listener::check(router, &mut findings);
            models::check(&envoy, router, regions, &mut findings);
            bodies::check(&envoy, router, &mut findings);
            retries::clusters(&envoy, router, &mut findings);
            retries::headers(router, &mut findings);
            clusters::check(&envoy, router, &mut findings);
        }
        zone_value::chains(&envoy, &routers, &mut findings);
        let routed = !routers.is_empty();
        // Without the filter there is nothing to prove.
        if routed {
            bypass::check(&envoy, &routers, &mut findings);
            closed::check(&envoy, &routers, &mut findings);
        }
        dynamic(&envoy, routed, &mut findings);
    }
    ranks::check(&input.relays, &mut findings);
    acknowledged.apply(&mut findings);
    Report { findings: findings.sorted(), proofs }
}

/// What comes from a control plane, or shows nothing.
fn dynamic(envoy: &Envoy<'_>, routed: bool, findings: &mut Findings) {
    let resources = envoy.root.get("dynamic_resources");
    for (name, at) in resources.iter().flat_map(node::At::fields) {
        // This one says only where the others are asked for.
        if !node::same(name, "ads_config") && !at.node.is_null() {
            findings.unproved(
                "dynamic",
                &at,
                "More listeners or clusters come from a control plane: they are not checked.",
                "Check the configuration that Envoy has (admin page, /config_dump?include_eds), too.",
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
