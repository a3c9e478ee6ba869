//! Envoy without and with Warmpath: the quick start's own configuration, less what a benchmark
//! must not measure (access log, explanations), with all engines in one region.

use std::process::Command;
use std::time::Duration;

use anyhow::Context;
use serde_json::{Value, json};
use warmpath_tests::{Client, Process, host};

use super::ground::{Ground, PATIENCE, answers, free_ports, local, quickstart};
use super::started::{Started, System};
use super::stats::{all_decisions, decisions};
use crate::bodies::{Bodies, Kind};

/// A replica holds the prefix, or will in a moment: it was sent there just now.
const WARM: &str = "warm|recent";
const POOL: &str = "demo-eu-west";
pub(super) const ZONE: &str = "eu";
const CLUSTER: &str = "eu.demo-eu-west";
/// Where the connection manager lies in the configuration.
const MANAGER: &str = "/static_resources/listeners/0/filter_chains/0/filters/0/typed_config";

/// Starts plain Envoy, Envoy with Warmpath, and another whose relay is dead.
pub(super) fn start(
    ground: &Ground,
    wanted: &dyn Fn(&str) -> bool,
    started: &mut Started,
) -> anyhow::Result<()> {
    if wanted("envoy") {
        let [port, admin] = two_ports()?;
        let envoy = run(ground, "envoy", [port, admin], None, false).context("plain Envoy")?;
        started.systems.push(system("envoy", Kind::Shared, port, vec![envoy.id()], None));
        started.processes.push(envoy);
    }
    if wanted("warmpath warm") || wanted("warmpath cold") {
        let (port, admin, [relay, envoy]) =
            warmpath(ground, "warmpath", events(ground, 0)?, false)?;
        let ids = vec![envoy.id(), relay.id()];
        let mut push = |name: &str, kind, reason| {
            if wanted(name) {
                let reason = Some((reason, admin));
                started.systems.push(system(name, kind, port, ids.clone(), reason));
            }
        };
        push("warmpath warm", Kind::Shared, WARM);
        push("warmpath cold", Kind::Unique, "cold");
        started.processes.extend([relay, envoy]);
    }
    if wanted("warmpath stale") {
        let (port, admin, [relay, mut envoy]) =
            warmpath(ground, "stale", events(ground, 1)?, false)?;
        drop(relay);
        await_reason(port, admin, "ring", &mut envoy)?;
        let reason = Some(("ring", admin));
        started.systems.push(system(
            "warmpath stale",
            Kind::Shared,
            port,
            vec![envoy.id()],
            reason,
        ));
        started.processes.push(envoy);
    }
    Ok(())
}

/// Starts Envoy with another build of the filter.
pub(super) fn start_against(ground: &Ground, started: &mut Started) -> anyhow::Result<()> {
    let (port, admin, [relay, envoy]) = warmpath(ground, "against", events(ground, 3)?, false)?;
    let reason = Some((WARM, admin));
    let ids = vec![envoy.id(), relay.id()];
    started.systems.push(system("warmpath warm, other filter", Kind::Shared, port, ids, reason));
    started.processes.extend([relay, envoy]);
    Ok(())
}

fn system(
    name: &str,
    kind: Kind,
    port: u16,
    processes: Vec<u32>,
    reason: Option<(&'static str, u16)>,
) -> System {
    System { name: name.into(), address: local(port), host: host(ZONE), kind, processes, reason }
}

fn two_ports() -> anyhow::Result<[u16; 2]> {
    free_ports(2)?.try_into().ok().context("two ports")
}

fn events(ground: &Ground, listener: usize) -> anyhow::Result<&[u16]> {
    Ok(ground.events.get(listener).context("no such listener")?)
}

/// Relay and Envoy, the map filled by those who publish on `events`, one for each engine.
pub(super) fn warmpath(
    ground: &Ground,
    name: &str,
    events: &[u16],
    explain: bool,
) -> anyhow::Result<(u16, u16, [Process; 2])> {
    let relay_port = *free_ports(1)?.first().context("a port")?;
    let replicas: Vec<Value> = ground
        .engines
        .iter()
        .zip(events)
        .map(|(port, events)| {
            json!({
                "endpoint": format!("127.0.0.1:{port}"),
                "pool": POOL,
                "model": "demo",
                "events": {"connect": format!("tcp://127.0.0.1:{events}")},
            })
        })
        .collect();
    let config = json!({
        "listen": format!("127.0.0.1:{relay_port}"),
        "models": models(ground)?,
        "replicas": replicas,
    });
    // JSON is YAML.
    let path = ground.dir.join(format!("{name}.relay.yaml"));
    std::fs::write(&path, serde_json::to_vec_pretty(&config)?)?;
    let mut command = Command::new(&ground.tools.warmpath);
    command.arg("relay").arg("--config").arg(path);
    let relay = Process::start(&format!("{name}-relay"), &ground.dir, &mut command)?;

    let [port, admin] = two_ports()?;
    let relay_at = Some(relay_port);
    let mut envoy = run(ground, name, [port, admin], relay_at, explain).context("Envoy")?;
    await_reason(port, admin, WARM, &mut envoy)
        .with_context(|| format!("the relay says: {}", relay.tail()))?;
    Ok((port, admin, [relay, envoy]))
}

/// The model that is asked for, and more, each with a template, and so an artefact, of its own.
fn models(ground: &Ground) -> anyhow::Result<Vec<Value>> {
    let mut models = vec![json!({"name": "demo", "path": ground.model, "version": "1"})];
    for number in 1..ground.models {
        let name = format!("demo-{number}");
        let path = ground.dir.join(&name);
        std::fs::create_dir_all(&path)?;
        for entry in std::fs::read_dir(&ground.model)? {
            let entry = entry?;
            std::fs::copy(entry.path(), path.join(entry.file_name()))?;
        }
        let file = path.join("tokenizer_config.json");
        let mut config: Value = serde_json::from_slice(&std::fs::read(&file)?)?;
        let template = config.get_mut("chat_template").context("a model without chat_template")?;
        *template = format!("{}{{# {number} #}}", template.as_str().unwrap_or_default()).into();
        std::fs::write(&file, config.to_string())?;
        models.push(json!({"name": name, "path": path, "version": "1"}));
    }
    Ok(models)
}

/// Waits until requests of all sizes on fresh connections are decided for this reason.
fn await_reason(port: u16, admin: u16, reason: &str, envoy: &mut Process) -> anyhow::Result<()> {
    let bodies = [Bodies::new(8 << 10)];
    let mut rng = fastrand::Rng::new();
    envoy
        .until(PATIENCE, || {
            let before = decisions(admin, reason);
            let sent = 16u64;
            for at in 0..sent as usize {
                for bodies in &bodies {
                    let body = bodies.shared(at, &mut rng);
                    // A client each: the kernel spreads connections over the workers.
                    let _ = Client::new(port).post(ZONE, "/v1/chat/completions", &[], &body);
                }
            }
            std::thread::sleep(Duration::from_millis(100));
            decisions(admin, reason) - before == sent
        })
        .with_context(|| format!("no steady decision {reason:?}: {}", all_decisions(admin)))
}

/// Envoy; with Warmpath where a relay is named.
fn run(
    ground: &Ground,
    name: &str,
    [port, admin]: [u16; 2],
    relay: Option<u16>,
    explain: bool,
) -> anyhow::Result<Process> {
    let mut config: Value = serde_saphyr::from_str(&std::fs::read_to_string(quickstart())?)?;
    change(&mut config, ground, [port, admin], relay, explain)
        .context("envoy/quickstart.yaml is not as the benchmark knows it")?;
    let path = ground.dir.join(format!("{name}.json"));
    std::fs::write(&path, serde_json::to_vec_pretty(&config)?)?;
    let mut command = Command::new(&ground.tools.envoy);
    command.arg("-c").arg(path);
    command.args(["--use-dynamic-base-id", "-l", "warning"]);
    command.arg("--concurrency").arg(ground.workers.to_string());
    let mut envoy = Process::start(name, &ground.dir, &mut command)?;
    envoy.until(PATIENCE, || answers(admin, "/ready"))?;
    Ok(envoy)
}

fn change(
    config: &mut Value,
    ground: &Ground,
    [port, admin]: [u16; 2],
    relay: Option<u16>,
    explain: bool,
) -> Option<()> {
    let set_port = |config: &mut Value, pointer: &str, port: u16| {
        *config.pointer_mut(&format!("{pointer}/address/socket_address/port_value"))? = port.into();
        Some(())
    };
    set_port(config, "/admin", admin)?;
    set_port(config, "/static_resources/listeners/0", port)?;
    let manager = config.pointer_mut(MANAGER)?.as_object_mut()?;
    manager.remove("access_log")?;

    let wasm = ground.tools.filter.to_string_lossy().into_owned();
    let code = |vm: &mut Value| {
        *vm.pointer_mut("/vm_config/code/local/filename")? = wasm.clone().into();
        Some(())
    };
    if relay.is_some() {
        code(config.pointer_mut("/bootstrap_extensions/0/typed_config/config")?)?;
        let filter =
            config.pointer_mut(&format!("{MANAGER}/http_filters/1/typed_config/config"))?;
        code(filter)?;
        let text = filter.pointer_mut("/configuration/value")?;
        let mut router: Value = serde_json::from_str(text.as_str()?).ok()?;
        *router.get_mut("explain")? = explain.into();
        // There is no access log to read it.
        router.as_object_mut()?.insert("log_decision".into(), explain.into());
        *text = router.to_string().into();
    } else {
        config.as_object_mut()?.remove("bootstrap_extensions")?;
        let filters = config.pointer_mut(&format!("{MANAGER}/http_filters"))?.as_array_mut()?;
        filters.retain(|filter| filter.get("name").is_none_or(|name| name != "warmpath"));
        for host in
            config.pointer_mut(&format!("{MANAGER}/route_config/virtual_hosts"))?.as_array_mut()?
        {
            let route = host.pointer_mut("/routes/0")?;
            route.pointer_mut("/match")?.as_object_mut()?.remove("headers")?;
            let action = route.pointer_mut("/route")?.as_object_mut()?;
            action.remove("cluster_header")?;
            action.remove("hash_policy")?;
            action.insert("cluster".into(), CLUSTER.into());
        }
    }

    let clusters = config.pointer_mut("/static_resources/clusters")?.as_array_mut()?;
    clusters.retain(|cluster| {
        let name = cluster.get("name").and_then(Value::as_str);
        name == Some(CLUSTER) || (relay.is_some() && name.is_some())
    });
    for cluster in clusters {
        match cluster.get("name").and_then(Value::as_str)? {
            "warmpath-relay" => {
                let endpoint =
                    cluster.pointer_mut("/load_assignment/endpoints/0/lb_endpoints/0")?;
                set_port(endpoint, "/endpoint", relay?)?;
            }
            CLUSTER => {
                let endpoint = |port: &u16| {
                    json!({"endpoint": {"address": {"socket_address":
                    {"address": "127.0.0.1", "port_value": port}}}})
                };
                *cluster.pointer_mut("/load_assignment/endpoints/0/lb_endpoints")? =
                    ground.engines.iter().map(endpoint).collect();
                if relay.is_none() {
                    *cluster.get_mut("load_balancing_policy")? = json!({"policies": [
                        {"typed_extension_config": {
                            "name": "envoy.load_balancing_policies.round_robin",
                            "typed_config": {"@type": "type.googleapis.com/envoy.extensions.load_balancing_policies.round_robin.v3.RoundRobin"}
                        }}
                    ]});
                }
            }
            // Zones that nobody asks for; nothing answers there.
            _ => {}
        }
    }
    Some(())
}
