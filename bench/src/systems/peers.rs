//! vLLM Router and SGLang's router, from PyPI.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, bail};
use fastrand::Rng;
use warmpath_tests::{Client, Process};

use super::ground::{Ground, PATIENCE, free_ports, local};
use super::started::{Started, System};
use crate::bodies::{Bodies, Kind, MODEL};

/// The arguments that Python starts a peer with.
type Arguments = fn(&Ground) -> Vec<String>;

/// Starts those that can be.
pub(super) fn start(
    ground: &Ground,
    python: Option<&Path>,
    wanted: &dyn Fn(&str) -> bool,
    started: &mut Started,
) {
    let peers: [(&str, Arguments); 3] = [
        ("vllm-router kv_aware", kv_aware),
        ("vllm-router cache_aware", |_| module("vllm_router.launch_router", "cache_aware")),
        ("sglang-router cache_aware", |_| module("sglang_router.launch_router", "cache_aware")),
    ];
    for (name, arguments) in peers {
        if !wanted(name) {
            continue;
        }
        let peer = python
            .context("left out, as WARMPATH_BENCH_NO_PEERS says")
            .and_then(|python| run(ground, name, python, arguments(ground)));
        match peer {
            Ok((system, process)) => {
                started.systems.push(system);
                started.processes.push(process);
            }
            Err(error) => started.missing.push((name.into(), format!("{error:#}"))),
        }
    }
}

fn module(module: &str, policy: &str) -> Vec<String> {
    ["-m", module, "--policy", policy].map(String::from).into()
}

fn kv_aware(ground: &Ground) -> Vec<String> {
    let mut arguments = module("vllm_router.launch_router", "kv_aware");
    let events = ground.events.get(2).map(Vec::as_slice).unwrap_or_default();
    for (engine, events) in ground.engines.iter().zip(events) {
        arguments.push("--kv-event-source".into());
        arguments.push(format!("http://127.0.0.1:{engine}=tcp://127.0.0.1:{events}"));
    }
    arguments.extend(["--kv-event-block-size", "16", "--kv-event-model", MODEL].map(String::from));
    arguments
}

fn run(
    ground: &Ground,
    name: &str,
    python: &Path,
    arguments: Vec<String>,
) -> anyhow::Result<(System, Process)> {
    let ports = free_ports(2)?;
    let [port, metrics] = ports.as_slice() else { bail!("no ports") };
    let mut command = Command::new(python);
    command
        .args(arguments)
        .args(["--host", "127.0.0.1", "--port", &port.to_string()])
        .args(["--prometheus-port", &metrics.to_string()])
        .arg("--worker-urls")
        .args(ground.engines.iter().map(|engine| format!("http://127.0.0.1:{engine}")));
    // Logs of every request would be measured too.
    command.args(["--log-level", "error"]).current_dir(&ground.dir);
    let mut process = Process::start(&name.replace(' ', "-"), &ground.dir, &mut command)?;
    let bodies = Bodies::new(8 << 10);
    let mut rng = Rng::new();
    let client = Client::new(*port);
    process.until(PATIENCE, || {
        let body = bodies.shared(0, &mut rng);
        let answer = client.post("eu", "/v1/chat/completions", &[], &body);
        let ready = answer.is_ok_and(|answer| answer.status == 200);
        if !ready {
            std::thread::sleep(Duration::from_millis(200));
        }
        ready
    })?;
    let system = System {
        name: name.into(),
        address: local(*port),
        host: "localhost".into(),
        kind: Kind::Shared,
        processes: vec![process.id()],
        reason: None,
    };
    Ok((system, process))
}
