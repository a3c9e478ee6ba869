//! Engines, relay and Envoy together.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde_json::Value;

use crate::{Client, Ports, Process, Tools, repository};

/// One engine of the quick start.
#[derive(Clone, Copy, Debug)]
pub struct EngineSpec {
    /// The region that it stands in.
    pub region: &'static str,
}

/// The quick start's engines, in the order of their ports.
pub const ENGINES: [EngineSpec; 4] = [
    EngineSpec { region: "eu-west" },
    EngineSpec { region: "eu-west" },
    EngineSpec { region: "us-east" },
    EngineSpec { region: "us-east" },
];

/// The names under which an engine serves its model.
#[derive(Clone, Debug, Default)]
pub struct Serves {
    /// The model's; the first is what it calls itself.
    pub names: Vec<String>,
    /// Adapters' on it.
    pub adapters: Vec<String>,
}

impl Serves {
    /// These names.
    pub fn new(names: &[&str], adapters: &[&str]) -> Self {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        Self { names: owned(names), adapters: owned(adapters) }
    }
}

/// What a stack is made of.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where the parts lie.
    pub tools: Tools,
    /// The ports to use.
    pub ports: Ports,
    /// The model's directory.
    pub model: PathBuf,
    /// Flags for every engine.
    pub engine_flags: Vec<String>,
    /// The directory of one engine's model, where that is another one.
    pub models: [Option<PathBuf>; ENGINES.len()],
    /// What each engine serves, in the order of their ports. All run the same model.
    pub serves: [Serves; ENGINES.len()],
    /// The relay's configuration instead of the quick start's.
    pub relay_config: Option<String>,
    /// Envoy's configuration instead of the quick start's.
    pub envoy_config: Option<String>,
    /// Changes to the relay's configuration: text to be found, and what takes its place.
    pub relay_edits: Vec<(String, String)>,
    /// The same for Envoy's.
    pub envoy_edits: Vec<(String, String)>,
    /// Headers of the requests that ask whether all is up.
    pub ready_headers: Vec<(String, String)>,
    /// Engines to start; without, something else answers on their ports.
    pub engines: bool,
    /// The relay to start; without, Envoy never hears of one until [`Stack::start_relay`].
    pub relay: bool,
    /// Set from elsewhere to give up starting.
    pub stop: Arc<AtomicBool>,
}

impl Options {
    /// The quick start with its own small model, on free ports.
    ///
    /// # Errors
    /// Something to start is missing.
    pub fn quickstart() -> anyhow::Result<Self> {
        Ok(Self {
            tools: Tools::find()?,
            ports: Ports::free()?,
            model: repository().join("tests/fixtures/models/demo"),
            engine_flags: Vec::new(),
            models: std::array::from_fn(|_| None),
            serves: std::array::from_fn(|_| Serves::new(&["demo"], &[])),
            relay_config: None,
            envoy_config: None,
            relay_edits: Vec::new(),
            envoy_edits: Vec::new(),
            ready_headers: Vec::new(),
            engines: true,
            relay: true,
            stop: Arc::default(),
        })
    }
}

/// A running stack. All of it ends when this is dropped.
#[derive(Debug)]
pub struct Stack {
    options: Options,
    dir: tempfile::TempDir,
    engines: Vec<Option<Process>>,
    relay: Option<Process>,
    envoy: Option<Process>,
}

impl Stack {
    /// Starts everything and waits until Envoy holds the relay's snapshot, if there is a relay.
    ///
    /// # Errors
    /// A part ended or did not get ready; its output is in the error.
    pub fn start(options: Options) -> anyhow::Result<Self> {
        options.ports.check_free(options.engines)?;
        let dir = tempfile::Builder::new().prefix("warmpath-").tempdir()?;
        let mut stack = Self { options, dir, engines: Vec::new(), relay: None, envoy: None };
        if stack.options.engines {
            stack.engines.resize_with(ENGINES.len(), || None);
            for engine in 0..ENGINES.len() {
                stack.start_engine(engine)?;
            }
        }
        if stack.options.relay {
            stack.start_relay()?;
        }
        stack.start_envoy()?;
        if stack.options.relay {
            stack.wait_fresh()?;
        }
        Ok(stack)
    }

    /// A client of this stack's gateway.
    pub fn client(&self) -> Client {
        Client::new(self.options.ports.gateway())
    }

    /// The ports in use.
    pub fn ports(&self) -> &Ports {
        &self.options.ports
    }

    /// An engine's address as Envoy and the relay know it.
    pub fn endpoint(&self, engine: usize) -> String {
        let [http, ..] = self.options.ports.engine(engine as u16);
        format!("127.0.0.1:{http}")
    }

    /// The number of the engine with this address.
    pub fn engine_at(&self, endpoint: &str) -> Option<usize> {
        (0..ENGINES.len()).find(|engine| self.endpoint(*engine) == endpoint)
    }

    /// Starts an engine that is not running and waits until it serves.
    ///
    /// # Errors
    /// It ended, or did not serve in time.
    pub fn start_engine(&mut self, engine: usize) -> anyhow::Result<()> {
        let spec = ENGINES.get(engine).context("no such engine")?;
        let serves = self.options.serves.get(engine).context("no such engine")?;
        let model = self.options.models.get(engine).and_then(Option::as_ref);
        let model = model.unwrap_or(&self.options.model);
        let [http, events, replay] = self.options.ports.engine(engine as u16);
        let mut command = Command::new(&self.options.tools.warmpath);
        command
            .arg("engine")
            .args(["--model".as_ref(), model.as_os_str()])
            .arg("--served-model-name")
            .args(&serves.names)
            .args(serves.adapters.iter().flat_map(|adapter| ["--lora", adapter.as_str()]))
            .args(["--host", "127.0.0.1"])
            .args(["--port", &http.to_string(), "--region", spec.region])
            .args(["--kv-events-endpoint", &format!("tcp://*:{events}")])
            .args(["--kv-events-replay-endpoint", &format!("tcp://*:{replay}")])
            .args(&self.options.engine_flags);
        let mut process =
            Process::start(&format!("engine-{engine}"), self.dir.path(), &mut command)?;
        let client = Client::new(http);
        self.wait(&format!("engine {engine}"), &mut [&mut process], || {
            Ok(client.get("eu", "/health").is_ok_and(|answer| answer.status == 200))
        })?;
        *self.engines.get_mut(engine).context("no such engine")? = Some(process);
        Ok(())
    }

    /// Ends an engine as a crash would.
    pub fn kill_engine(&mut self, engine: usize) {
        if let Some(place) = self.engines.get_mut(engine) {
            *place = None;
        }
    }

    /// Starts the relay, which must not be running, and waits until it answers.
    ///
    /// # Errors
    /// It ended, or did not answer in time.
    pub fn start_relay(&mut self) -> anyhow::Result<()> {
        let config = self.write("quickstart.relay.yaml", &self.options.relay_edits)?;
        let mut command = Command::new(&self.options.tools.warmpath);
        command.args(["relay".as_ref(), "--config".as_ref(), config.as_os_str()]);
        let mut process = Process::start("relay", self.dir.path(), &mut command)?;
        let admin = Client::new(self.options.ports.relay_admin());
        self.wait("the relay", &mut [&mut process], || {
            Ok(admin.get("", "/healthz").is_ok_and(|answer| answer.status == 200))
        })?;
        self.relay = Some(process);
        Ok(())
    }

    /// Ends the relay as a crash would.
    pub fn kill_relay(&mut self) {
        self.relay = None;
    }

    /// Ends Envoy as a crash would.
    pub fn kill_envoy(&mut self) {
        self.envoy = None;
    }

    /// Starts Envoy, which must not be running, and waits until it listens.
    ///
    /// # Errors
    /// It ended, or did not listen in time.
    pub fn start_envoy(&mut self) -> anyhow::Result<()> {
        let config = self.write("quickstart.yaml", &self.options.envoy_edits)?;
        let mut command = Command::new(&self.options.tools.envoy);
        command
            .args(["-c".as_ref(), config.as_os_str()])
            .args(["--use-dynamic-base-id", "--concurrency", "2", "-l", "info"])
            .current_dir(repository());
        let mut process = Process::start("envoy", self.dir.path(), &mut command)?;
        let admin = Client::new(self.options.ports.admin());
        self.wait("Envoy", &mut [&mut process], || {
            Ok(admin.get("", "/ready").is_ok_and(|answer| answer.status == 200))
        })?;
        self.envoy = Some(process);
        Ok(())
    }

    /// Waits until Envoy's workers believe the prefix map and hold the model's tokenizer.
    ///
    /// # Errors
    /// They do not in time.
    pub fn wait_fresh(&mut self) -> anyhow::Result<()> {
        let client = self.client();
        let headers = self.options.ready_headers.clone();
        let headers: Vec<_> =
            headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let mut relay = self.relay.take();
        let mut envoy = self.envoy.take();
        let mut parts: Vec<&mut Process> = relay.iter_mut().chain(envoy.iter_mut()).collect();
        let ready = self.wait("a fresh prefix map", &mut parts, || {
            // Every worker has a view of its own: several connections ask several workers.
            for _ in 0..8 {
                let body = br#"{"model":"demo","max_tokens":1,"prompt":"ready?"}"#;
                let fresh =
                    Client::new(client.port()).post("eu", "/v1/completions", &headers, body);
                let fresh = fresh.is_ok_and(|a| {
                    matches!(a.explained("reason"), "cold" | "warm") && a.status == 200
                });
                if !fresh {
                    return Ok(false);
                }
            }
            Ok(true)
        });
        (self.relay, self.envoy) = (relay, envoy);
        ready
    }

    /// A statistic of Envoy's by its full name, once it stands still: workers tell what they have
    /// counted with each tick. 0 if it does not exist (yet).
    ///
    /// # Errors
    /// Envoy's admin interface does not answer.
    pub fn stat(&self, name: &str) -> anyhow::Result<u64> {
        /// More than two of a worker's ticks.
        const TICKS: Duration = Duration::from_millis(120);
        let mut before = self.stat_now(name)?;
        // What goes on changing is told as it is.
        for _ in 0..20 {
            std::thread::sleep(TICKS);
            let now = self.stat_now(name)?;
            if now == before {
                break;
            }
            before = now;
        }
        Ok(before)
    }

    fn stat_now(&self, name: &str) -> anyhow::Result<u64> {
        let admin = Client::new(self.options.ports.admin());
        let answer = admin.get("", "/stats?format=json&histogram_buckets=none")?.json()?;
        let stats = answer.get("stats").and_then(Value::as_array).context("no stats")?;
        let found = stats.iter().find(|stat| stat.get("name").is_some_and(|n| n == name));
        Ok(found.and_then(|stat| stat.get("value")?.as_u64()).unwrap_or(0))
    }

    /// What the relay, Envoy and the engines printed.
    pub fn logs(&self) -> String {
        let engines = self.engines.iter().flatten();
        let parts = self.relay.iter().chain(&self.envoy).chain(engines);
        parts.map(Process::output).collect()
    }

    /// A client of an engine, past the gateway.
    pub fn engine_client(&self, engine: usize) -> Client {
        let [http, ..] = self.options.ports.engine(engine as u16);
        Client::new(http)
    }

    /// A number of an engine's `/metrics`, summed over its labels.
    ///
    /// # Errors
    /// The engine does not answer.
    pub fn engine_metric(&self, engine: usize, name: &str) -> anyhow::Result<f64> {
        let answer = self.engine_client(engine).get("eu", "/metrics")?;
        let text = String::from_utf8_lossy(&answer.body).into_owned();
        let lines = text.lines().filter(|line| {
            line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']))
        });
        Ok(lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum())
    }

    /// Waits for a condition, watching the processes that have to bring it about.
    fn wait(
        &self,
        what: &str,
        processes: &mut [&mut Process],
        mut ready: impl FnMut() -> anyhow::Result<bool>,
    ) -> anyhow::Result<()> {
        let start = Instant::now();
        loop {
            if self.options.stop.load(Ordering::Relaxed) {
                bail!("stopped while {what} was starting");
            }
            let done = ready()?;
            // Also of a process that seems ready: another one may be answering on its port.
            for process in &mut *processes {
                process.check()?;
            }
            if done {
                return Ok(());
            }
            if start.elapsed() > Duration::from_mins(1) {
                let output: String = processes.iter().map(|process| process.output()).collect();
                bail!("{what} was not ready within 60 s:\n{output}");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Puts one of the quick start's files into the stack's folder, ports and paths changed.
    fn write(&self, name: &str, edits: &[(String, String)]) -> anyhow::Result<PathBuf> {
        let instead = if name.ends_with(".relay.yaml") {
            &self.options.relay_config
        } else {
            &self.options.envoy_config
        };
        let text = match instead {
            Some(text) => text.clone(),
            None => std::fs::read_to_string(repository().join("envoy").join(name))?,
        };
        let mut text = self.options.ports.apply(&text);
        let model = self.options.model.canonicalize()?;
        let paths = [
            ("target/wasm32-wasip1/filter/warmpath_filter.wasm", &self.options.tools.filter),
            ("../tests/fixtures/models/demo", &model),
        ];
        for (from, to) in paths {
            text = text.replace(from, &to.to_string_lossy());
        }
        for (from, to) in edits {
            if !text.contains(from.as_str()) {
                bail!("{name} does not contain {from:?}");
            }
            text = text.replace(from.as_str(), to);
        }
        let path = self.dir.path().join(name);
        std::fs::write(&path, text)?;
        Ok(path)
    }
}

/// Waits up to 10 s until something holds: what engines do takes a moment to reach Envoy.
///
/// # Panics
/// It does not come to hold. This is for tests.
#[allow(clippy::panic)]
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(10), "waited 10 s for {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
