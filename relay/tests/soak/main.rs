//! The soak: simulated engines publish at a fixed rate, lose batches, clear, die and come back at
//! random; readers come and go and stall. Now and then all rest, and then the relay's view and the
//! filter's shared data must equal the engines' own caches exactly.
//!
//! As a test it takes half a minute; `scripts/soak` runs it for as long and as hard as it is told.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::pedantic, unreachable_pub, missing_docs)]

mod cache;
mod encode;
mod engine;
mod gateway;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use prost::Message as _;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::oneshot;
use warmpath_filter::sidestream::Follower;
use warmpath_prompt::Serving;
use warmpath_proto::v1::down::Body;
use warmpath_proto::v1::replica::State;
use warmpath_proto::v1::{Down, Replica, Replicas, SnapshotBegin, SnapshotEnd};
use warmpath_relay::artefact::Artefact;
use warmpath_relay::{Config, run_with};
use warmpath_routing::fingerprint::Key;
use warmpath_routing::prefix_map::Layout;

use cache::{TOKENIZER, VERSION};
use encode::Form;
use engine::{END, Engine, FRESH, REST, RUN, Shared, Spec, lock};
use gateway::{Gateway, Memory, place, shared_data, snapshot};

/// Time for everything to come to rest and be equal, on a busy machine too. A gap at the very end
/// shows after ten seconds.
const PATIENCE: Duration = Duration::from_secs(120);

struct Plan {
    seconds: u64,
    events: u64,
    seed: u64,
    engines: u64,
    blocks: usize,
    rests: u64,
    life: (u64, u64),
}

impl Plan {
    fn read() -> Self {
        let number = |name: &str, default: u64| match std::env::var(name) {
            Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name}={text}: not a number")),
            Err(_) => default,
        };
        let seconds = number("WARMPATH_SOAK_SECONDS", 20);
        let long = seconds > 120;
        Self {
            seconds,
            events: number("WARMPATH_SOAK_EVENTS", 4_000),
            seed: number("WARMPATH_SOAK_SEED", u64::from(getrandom::u32().unwrap())),
            engines: number("WARMPATH_SOAK_ENGINES", 8).max(8),
            blocks: number("WARMPATH_SOAK_BLOCKS", if long { 20_000 } else { 2_000 }) as usize,
            rests: (seconds / 60).max(2),
            life: if long { (2, 60) } else { (2, 12) },
        }
    }
}

/// Ports that are free now, outside of the range that systems give out by themselves.
fn ports(count: usize) -> Vec<u16> {
    let start = 20_000 + (std::process::id() % 200) as u16 * 60;
    let free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    let ports: Vec<u16> = (start..32_000).filter(free).take(count).collect();
    assert_eq!(ports.len(), count, "too few free ports");
    ports
}

fn specs(plan: &Plan) -> Vec<Spec> {
    let ports = ports(plan.engines as usize * 3);
    (0..plan.engines)
        .zip(ports.chunks_exact(3))
        .map(|(name, ports)| Spec {
            name,
            block_tokens: [16, 16, 32, 8, 16, 48, 64, 20][name as usize % 8],
            capacity: plan.blocks,
            form: Form { maps: name % 2 == 0, bytes: name % 3 == 1 },
            // One of eight has no replay.
            replay: (name % 8 != 4).then_some((ports[2], name % 2 == 0)),
            api: ports[0],
            events: ports[1],
            connects: name % 8 == 6,
            rate: plan.events as f64 / plan.engines as f64,
            life: plan.life,
        })
        .collect()
}

fn configuration(specs: &[Spec]) -> Config {
    let mut yaml = format!(
        "listen: 127.0.0.1:0\nadmin: 127.0.0.1:{}\n\
         models: [{{ name: m, version: \"{VERSION}\", path: tests, adapters: [lora-a] }}]\nreplicas:\n",
        admin_port(specs)
    );
    for spec in specs {
        let way = if spec.connects { "bind" } else { "connect" };
        let mut events = format!("{way}: \"tcp://127.0.0.1:{}\", duplicates: count", spec.events);
        if let Some((port, _)) = spec.replay {
            events = format!("{events}, replay: \"tcp://127.0.0.1:{port}\"");
        }
        yaml = format!(
            "{yaml}- {{ endpoint: \"127.0.0.1:{}\", pool: p, model: m, events: {{ {events} }} }}\n",
            spec.api
        );
    }
    Config::parse(&yaml, "soak.yaml", Path::new(env!("CARGO_MANIFEST_DIR"))).unwrap()
}

fn admin_port(specs: &[Spec]) -> u16 {
    let last = specs.iter().map(|spec| spec.api + 2).max().unwrap();
    (last + 1..33_000).find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok()).unwrap()
}

fn slots(engines: &[Engine], replicas: &[Replica]) -> BTreeMap<u64, (u32, State)> {
    let slot = |engine: &Engine| {
        let endpoint = format!("127.0.0.1:{}", engine.spec.api);
        let replica = replicas.iter().find(|replica| replica.endpoint == endpoint)?;
        Some((engine.spec.name, (replica.slot, replica.state())))
    };
    engines.iter().filter_map(slot).collect()
}

/// Where the view or shared data differ from the engines; none where they don't. `whole`: what the
/// engines without replay hold must be known too, not only nothing else.
async fn differences(
    engines: &[Engine],
    relay: SocketAddr,
    gateways: &[Gateway],
    whole: bool,
) -> Option<String> {
    let truth: BTreeMap<u64, BTreeSet<Key>> =
        engines.iter().map(|engine| (engine.spec.name, lock(&engine.cache).keys())).collect();
    let (replicas, mut view) = snapshot(relay).await;
    let known = slots(engines, &replicas);
    for engine in engines {
        let name = engine.spec.name;
        let Some(&(slot, state)) = known.get(&name) else {
            return Some(format!("engine {name} is not in the table"));
        };
        if state != State::Ready {
            return Some(format!("engine {name} is {state:?}"));
        }
        let held = view.remove(&slot).unwrap_or_default();
        let truth = &truth[&name];
        let (false_ones, missing) =
            (held.difference(truth).count(), truth.difference(&held).count());
        let exact = whole || engine.spec.replay.is_some();
        if false_ones > 0 || (exact && missing > 0) {
            return Some(format!(
                "the relay's view of engine {name}: {false_ones} false, {missing} missing of {}; \
                 it published {} batches",
                truth.len(),
                engine.published.load(Ordering::SeqCst)
            ));
        }
    }
    if let Some(slot) = view.keys().next() {
        return Some(format!("the relay's snapshot names slot {slot}, which nobody has"));
    }
    for (i, gateway) in gateways.iter().enumerate() {
        if !gateway.synced() {
            return Some(format!("gateway {i} is stale"));
        }
        let (replicas, places) = gateway.shared_data();
        let known = slots(engines, &replicas);
        let mut expected = Vec::new();
        let mut partly = Vec::new();
        for engine in engines {
            let slot = known.get(&engine.spec.name)?.0 as u16;
            let keys = truth[&engine.spec.name].iter().map(|key| place(*key, slot));
            if whole || engine.spec.replay.is_some() {
                expected.extend(keys);
            } else {
                partly.extend(keys);
            }
        }
        let places: BTreeSet<_> = places.into_iter().collect();
        let expected: BTreeSet<_> = expected.into_iter().collect();
        let partly: BTreeSet<_> = partly.into_iter().collect();
        let missing = expected.difference(&places).count();
        let false_ones = places.iter().filter(|p| !expected.contains(p) && !partly.contains(p));
        let false_ones = false_ones.count();
        if missing + false_ones > 0 {
            return Some(format!(
                "shared data of gateway {i}: {false_ones} false, {missing} missing of {}",
                expected.len()
            ));
        }
    }
    None
}

async fn agree(engines: &[Engine], relay: SocketAddr, gateways: &[Gateway], phase: u8) -> Duration {
    let start = Instant::now();
    let mut told = start;
    let waits = |engine: &&Engine| engine.reached.load(Ordering::SeqCst) != phase;
    loop {
        let waiting = engines.iter().find(waits).map(|engine| engine.spec.name);
        let difference = match waiting {
            Some(name) => Some(format!("engine {name} doesn't rest")),
            None => differences(engines, relay, gateways, phase == FRESH).await,
        };
        let Some(difference) = difference else { return start.elapsed() };
        assert!(start.elapsed() < PATIENCE, "after {PATIENCE:?}: {difference}");
        if told.elapsed() > Duration::from_secs(10) {
            told = Instant::now();
            let streams: Vec<_> =
                gateways.iter().map(|gateway| gateway.streams.load(Ordering::Relaxed)).collect();
            eprintln!("  {:.0?}, streams {streams:?}: {difference}", start.elapsed());
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// The relay's own counts, summed over replicas.
async fn status(admin: SocketAddr) -> serde_json::Value {
    let mut stream = tokio::net::TcpStream::connect(admin).await.unwrap();
    stream.write_all(b"GET /status HTTP/1.0\r\n\r\n").await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    serde_json::from_str(text.split_once("\r\n\r\n").unwrap().1).unwrap()
}

fn resident_mb() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok()).unwrap_or(0) / 256
}

async fn soak(plan: &Plan) {
    let specs = specs(plan);
    let config = configuration(&specs);
    let admin = config.admin.unwrap();
    let build = |_: &Path, _: &Serving| {
        Ok(Artefact { id: [1; 32], bytes: Vec::new(), tokenizer_hash: TOKENIZER })
    };
    let (tell, listening) = oneshot::channel();
    let (stop, stopped) = oneshot::channel::<()>();
    let relay =
        tokio::spawn(run_with(config, build, |address| tell.send(address).unwrap(), async {
            let _ = stopped.await;
        }));
    let address = listening.await.unwrap();
    let shared = Arc::new(Shared::default());
    let engines: Vec<Engine> =
        specs.into_iter().map(|spec| Engine::start(spec, plan.seed, Arc::clone(&shared))).collect();
    let stall = 200 * plan.life.1;
    let gateways = [false, true]
        .map(|troubled| Gateway::new(address, troubled.then_some(stall), Arc::clone(&shared)));
    let reading: Vec<_> =
        gateways.iter().cloned().map(|gateway| tokio::spawn(gateway.run(plan.seed))).collect();

    let start = Instant::now();
    let mut busy = Duration::ZERO;
    for rest in 1..=plan.rests {
        let running = Instant::now();
        shared.phase.store(RUN, Ordering::SeqCst);
        while running.elapsed().as_secs_f64() < plan.seconds as f64 / plan.rests as f64 {
            tokio::time::sleep(Duration::from_millis(50)).await;
            assert!(!relay.is_finished(), "the relay ended");
            assert!(reading.iter().all(|task| !task.is_finished()), "a gateway ended");
        }
        busy += running.elapsed();
        let events = shared.events.load(Ordering::Relaxed);
        shared.phase.store(REST, Ordering::SeqCst);
        let took = agree(&engines, address, &gateways, REST).await;
        shared.phase.store(FRESH, Ordering::SeqCst);
        agree(&engines, address, &gateways, FRESH).await;
        let held: usize = engines.iter().map(|engine| lock(&engine.cache).keys().len()).sum();
        eprintln!(
            "rest {rest} at {:.0} s: equal after {took:.1?}; {held} prefixes held; \
             {:.0} events/s so far; {} kills; {} MB resident",
            start.elapsed().as_secs_f64(),
            events as f64 / busy.as_secs_f64(),
            shared.kills.load(Ordering::Relaxed),
            resident_mb()
        );
    }
    report(&shared, &gateways, busy, &status(admin).await);
    shared.phase.store(END, Ordering::SeqCst);
    for engine in engines {
        tokio::task::spawn_blocking(|| engine.join()).await.unwrap();
    }
    let _ = stop.send(());
    relay.await.unwrap().unwrap();
}

fn report(shared: &Shared, gateways: &[Gateway], busy: Duration, status: &serde_json::Value) {
    let count = |name: &str| -> u64 {
        let replicas = status["replicas"].as_array().unwrap();
        replicas.iter().map(|replica| replica[name].as_u64().unwrap()).sum()
    };
    let get = |count: &std::sync::atomic::AtomicU64| count.load(Ordering::Relaxed);
    let (events, stored) = (get(&shared.events), get(&shared.stored));
    let seconds = busy.as_secs_f64();
    eprintln!(
        "{events} events in {seconds:.0} s: {:.0} events/s, {:.0} blocks stored/s, {} batches",
        events as f64 / seconds,
        stored as f64 / seconds,
        get(&shared.batches)
    );
    eprintln!(
        "engines: {} kills, {} clears, {} batches lost on the way",
        get(&shared.kills),
        get(&shared.clears),
        get(&shared.lost)
    );
    eprintln!(
        "relay: {} gaps, {} restarts, {} disconnects, {} replays ({} failed), {} streams ended for slowness",
        count("gaps"),
        count("restarts"),
        count("disconnects"),
        count("replays"),
        count("replays_failed"),
        status["streams_too_slow"]
    );
    eprintln!("gateways: {} and {} streams", get(&gateways[0].streams), get(&gateways[1].streams));
    let mut latencies = std::mem::take(&mut *lock(&gateways[0].latencies));
    latencies.sort_unstable();
    let at = |share: f64| latencies[(latencies.len() as f64 * share) as usize];
    eprintln!(
        "engine's event to where a decision finds it: p50 {:?}, p90 {:?}, p99 {:?}, p99.9 {:?} ({} probes)",
        at(0.5),
        at(0.9),
        at(0.99),
        at(0.999),
        latencies.len()
    );
    assert!(get(&shared.kills) > 0 && get(&shared.lost) > 0, "nothing happened");
    assert!(count("gaps") > 0 && count("disconnects") > 0 && count("replays") > 0);
}

#[test]
fn the_view_and_shared_data_equal_the_engines_caches() {
    let plan = Plan::read();
    eprintln!(
        "soak: {} engines, {} events/s, {} s, seed {} (WARMPATH_SOAK_SEED repeats it)",
        plan.engines, plan.events, plan.seconds, plan.seed
    );
    let filter = tracing_subscriber::EnvFilter::try_from_default_env();
    let filter = filter.unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("off"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(soak(&plan));
}

/// The same law without sockets and time: cache, encoding, decoding, view, changes, shared data.
#[test]
fn view_and_shared_data_equal_the_cache_batch_by_batch() {
    use warmpath_relay::events::{Event, decode};
    use warmpath_relay::index::{Changes, Duplicates, Limits, ModelScope, View};
    for (seed, block_tokens, capacity) in [(1, 16, 2_000), (2, 20, 300), (3, 8, 100), (4, 48, 50)] {
        let mut random = cache::Random(seed);
        let mut engine = cache::Cache::new(block_tokens, capacity);
        let scope = Arc::new(ModelScope { version: VERSION.into(), tokenizer_hash: TOKENIZER });
        let mut view = View::new(scope, Duplicates::Count, Limits::default());
        let form = Form { maps: seed % 2 == 0, bytes: seed % 2 == 1 };
        let mut follower = Follower::new(Memory::default(), Layout::default());
        let mut sequence = 0;
        let mut tell = |follower: &mut Follower<Memory>, body| {
            let down = Down { epoch: 1, sequence, body: Some(body) };
            sequence += 1;
            follower.receive(&down.encode_to_vec(), 1).unwrap();
        };
        let replicas = vec![Replica { slot: 9, ..Replica::default() }];
        tell(&mut follower, Body::Replicas(Replicas { replicas }));
        tell(&mut follower, Body::SnapshotBegin(SnapshotBegin { blocks: 0 }));
        tell(&mut follower, Body::SnapshotEnd(SnapshotEnd {}));
        for batch in 0..60 {
            let mut events = Vec::new();
            for _ in 0..capacity / 40 + 5 {
                engine.prompt(&mut random, &mut events);
            }
            let mut changes = Changes::default();
            for event in &decode(&form.batch(block_tokens, &events)).unwrap().events {
                assert!(!matches!(event, Event::Unknown | Event::Unusable(_)), "{event:?}");
                view.apply(event, 9, &mut changes);
            }
            for blocks in changes.take() {
                tell(&mut follower, Body::Blocks(blocks));
            }
            let (truth, held) = (engine.keys(), view.keys().collect::<BTreeSet<_>>());
            let (wrong, missing) =
                (held.difference(&truth).count(), truth.difference(&held).count());
            assert_eq!((wrong, missing), (0, 0), "seed {seed}, batch {batch}, of {}", truth.len());
            if batch % 12 != 11 {
                continue;
            }
            let mut expected: Vec<_> = truth.iter().map(|key| place(*key, 9)).collect();
            expected.sort_unstable();
            assert!(
                shared_data(&mut follower).1 == expected,
                "seed {seed}, batch {batch}: the map"
            );
        }
    }
}
