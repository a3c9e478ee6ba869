//! The admin endpoint, on loopback: `/healthz`, `/status` (JSON), `/metrics` (Prometheus text),
//! `/holders?key=` (JSON: who holds a prefix, by the first 32 hexadecimal digits of its
//! fingerprint), and `POST` or `DELETE /drain?endpoint=ip:port[&rank=N]`, by which a replica takes
//! nothing new, or does again.

use std::fmt::Write as _;

use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tracing::warn;
use warmpath_routing::fingerprint::Key;

use crate::discovery::Sightings;
use crate::index::GroupSummary;
use crate::state::message::{Message, Sender};
use crate::state::{Holder, PoolMismatch, ReplicaSummary, StoreSummary, Summary};

/// Serves until `stop`.
pub(crate) async fn serve(
    listener: TcpListener,
    state: Sender,
    sightings: Sightings,
    stop: CancellationToken,
) {
    let app = Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/status", get(status))
        .route("/metrics", get(move |state| metrics(state, sightings)))
        .route("/holders", get(holders))
        .route("/drain", post(drain).delete(undrain))
        .with_state(state);
    if let Err(error) =
        axum::serve(listener, app).with_graceful_shutdown(stop.cancelled_owned()).await
    {
        warn!(%error, "the admin endpoint failed");
    }
}

async fn summary(state: &Sender) -> Result<Summary, StatusCode> {
    let (reply, answer) = oneshot::channel();
    let gone = StatusCode::SERVICE_UNAVAILABLE;
    state.send(Message::Summarize { reply }).await.map_err(|_| gone)?;
    answer.await.map_err(|_| gone)
}

async fn status(State(state): State<Sender>) -> Result<Json<Summary>, StatusCode> {
    summary(&state).await.map(Json)
}

/// An answer that says what was wrong.
type Refused = (StatusCode, &'static str);

const GONE: Refused = (StatusCode::SERVICE_UNAVAILABLE, "the relay stops\n");

#[derive(serde::Deserialize)]
struct OfKey {
    key: String,
}

async fn holders(
    State(state): State<Sender>,
    Query(OfKey { key }): Query<OfKey>,
) -> Result<Json<Vec<Holder>>, Refused> {
    const WRONG: Refused = (
        StatusCode::BAD_REQUEST,
        "key must be a fingerprint, or its first 32 hexadecimal digits\n",
    );
    // What follows of a whole fingerprint isn't in the map.
    let digits = key.get(..32).filter(|_| key.len() == 32 || key.len() == 64).ok_or(WRONG)?;
    if !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(WRONG);
    }
    let key = Key(u128::from_str_radix(digits, 16).map_err(|_| WRONG)?.to_be_bytes());
    let (reply, answer) = oneshot::channel();
    state.send(Message::Holders { key, reply }).await.map_err(|_| GONE)?;
    answer.await.map(Json).map_err(|_| GONE)
}

#[derive(serde::Deserialize)]
struct OfReplica {
    endpoint: String,
    rank: Option<u32>,
}

async fn drain(
    state: State<Sender>,
    replica: Query<OfReplica>,
    headers: HeaderMap,
) -> Result<String, Refused> {
    by_no_page(&headers)?;
    set_draining(state, replica, true).await
}

async fn undrain(
    state: State<Sender>,
    replica: Query<OfReplica>,
    headers: HeaderMap,
) -> Result<String, Refused> {
    by_no_page(&headers)?;
    set_draining(state, replica, false).await
}

/// Loopback is open to every page that a browser on this machine shows; those name their origin.
fn by_no_page(headers: &HeaderMap) -> Result<(), Refused> {
    if headers.contains_key(header::ORIGIN) {
        return Err((StatusCode::FORBIDDEN, "this is not for pages in a browser\n"));
    }
    Ok(())
}

async fn set_draining(
    State(state): State<Sender>,
    Query(OfReplica { endpoint, rank }): Query<OfReplica>,
    drain: bool,
) -> Result<String, Refused> {
    let (reply, answer) = oneshot::channel();
    let message = Message::Drain { endpoint, rank, drain, reply };
    state.send(message).await.map_err(|_| GONE)?;
    match answer.await.map_err(|_| GONE)? {
        0 => Err((StatusCode::NOT_FOUND, "no replica has this endpoint and rank\n")),
        count => {
            Ok(format!("{count} replicas {}\n", if drain { "drain" } else { "take requests" }))
        }
    }
}

async fn metrics(
    State(state): State<Sender>,
    sightings: Sightings,
) -> Result<Response, StatusCode> {
    let mut text = render(&summary(&state).await?);
    render_sources(&mut text, &sightings);
    let kind = [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
    Ok((kind, text).into_response())
}

/// A metric of each replica.
struct Metric {
    name: &'static str,
    kind: &'static str,
    help: &'static str,
    value: fn(&ReplicaSummary) -> f64,
}

macro_rules! metrics {
    ($($kind:ident $name:literal $help:literal $value:expr;)*) => {
        [$(Metric { name: $name, kind: stringify!($kind), help: $help, value: $value }),*]
    };
}

fn render(summary: &Summary) -> String {
    let mut text = String::new();
    let mut plain = |name: &str, kind: &str, help: &str, value: u64| {
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}");
    };
    plain("warmpath_relay_streams", "gauge", "Side-streams open.", summary.streams as u64);
    plain(
        "warmpath_relay_streams_opened_total",
        "counter",
        "Side-streams opened.",
        summary.streams_opened,
    );
    plain(
        "warmpath_relay_streams_too_slow_total",
        "counter",
        "Side-streams ended because they did not keep up.",
        summary.streams_too_slow,
    );
    for (name, kind, help, value) in [
        (
            "prefixes",
            "gauge",
            "Prefixes of 16 tokens each that are announced as held.",
            (|store| store.announced_prefixes as u64) as fn(&StoreSummary) -> u64,
        ),
        ("blocks_stored_total", "counter", "Blocks stored.", |s| s.events.blocks_stored),
        ("blocks_removed_total", "counter", "Blocks removed.", |s| s.events.blocks_removed),
        ("view_cleared_total", "counter", "Times that its view was cleared.", |s| s.view_cleared),
    ] {
        let name = format!("warmpath_relay_store_{name}");
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for store in &summary.stores {
            let label = escape(&store.store);
            let _ = writeln!(text, "{name}{{store=\"{label}\"}} {}", value(store));
        }
    }
    let name = "warmpath_relay_pool_mismatches";
    let help = "Gateways whose policy sends no requests to this pool's replicas, by the problem.";
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} gauge");
    for PoolMismatch { pool, model, problem, gateways, .. } in &summary.pool_mismatches {
        let (pool, model) = (escape(pool), escape(model));
        let labels = format!("pool=\"{pool}\",model=\"{model}\",problem=\"{problem}\"");
        let _ = writeln!(text, "{name}{{{labels}}} {gateways}");
    }
    let name = "warmpath_relay_replica_tier_prefixes";
    let help = "Prefixes announced as held in a slower tier or in a faster one.";
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} gauge");
    for replica in &summary.replicas {
        for tier in &replica.tiers {
            let (labels, count) = (labels(replica), tier.announced_prefixes);
            let _ = writeln!(text, "{name}{{{labels},tier=\"{}\"}} {count}", tier.tier);
        }
    }
    let name = "warmpath_relay_replica_group_block_tokens";
    let help = "Tokens of one block of a KV cache group; counted: hits are told with it.";
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} gauge");
    for replica in &summary.replicas {
        let labels = labels(replica);
        for GroupSummary { group, what, block_tokens, counted } in &replica.groups {
            let of = format!("group=\"{group}\",what=\"{what}\",counted=\"{counted}\"");
            let _ = writeln!(text, "{name}{{{labels},{of}}} {block_tokens}");
        }
    }
    let list = metrics![
        gauge "ends" "Blocks at which hits may end, of an engine of several KV cache groups." |r| r.ends.as_ref().map_or(0, |ends| ends.announced) as f64;
        gauge "up" "Whether the replica may be sent requests." |r| f64::from(u8::from(r.state == "READY" || r.state == "SUSPECT"));
        gauge "hears_events" "Whether the engine's events are heard." |r| f64::from(u8::from(r.hears_events));
        gauge "silent_under_load" "Whether the engine runs requests but publishes no events." |r| f64::from(u8::from(r.silent_under_load));
        gauge "wrong_model" "Whether the engine serves another model than it is said to." |r| f64::from(u8::from(r.wrong_model.is_some()));
        gauge "other_root" "Whether another replica of its model has it from elsewhere." |r| f64::from(u8::from(r.other_root));
        gauge "caches_nothing" "Whether the engine says that it keeps no prefix cache." |r| f64::from(u8::from(r.caches_nothing));
        gauge "asleep" "Whether the engine sleeps." |r| f64::from(u8::from(r.asleep.is_some()));
        gauge "rank_problem" "Whether the engine's data-parallel ranks are others than configured." |r| f64::from(u8::from(r.rank_problem.is_some()));
        gauge "adapters_known" "Whether it is known which LoRA adapters the engine has loaded." |r| f64::from(u8::from(r.adapters.is_some()));
        gauge "adapters" "LoRA adapters that the engine is known to have loaded." |r| r.adapters.as_ref().map_or(0, Vec::len) as f64;
        gauge "held_engine_blocks" "Engine blocks held." |r| r.held_engine_blocks as f64;
        gauge "known_engine_blocks" "Engine blocks remembered: held, waiting, or kept for what follows them." |r| r.known_engine_blocks as f64;
        gauge "announced_prefixes" "Prefixes of 16 tokens each that are announced as held." |r| r.announced_prefixes as f64;
        gauge "joined_late" "Whether the engine's events were not heard from the first one on." |r| f64::from(u8::from(r.joined_late));
        gauge "taught_prefixes" "Prefixes that are announced because answers showed them." |r| r.taught_prefixes as f64;
        counter "taught_learned_total" "Prefixes that answers taught." |r| r.taught.learned as f64;
        counter "taught_refuted_total" "Taught prefixes that an answer showed to be gone." |r| r.taught.refuted as f64;
        counter "taught_expired_total" "Taught prefixes that no answer spoke for any more." |r| r.taught.expired as f64;
        counter "taught_crowded_total" "Prefixes that were not learned or were forgotten for want of room." |r| r.taught.crowded as f64;
        counter "taught_loose_total" "Lessons that follow on what is not known any more." |r| r.taught.loose as f64;
        gauge "waiting_tokens" "Tokens of blocks whose parent is not known." |r| r.waiting_tokens as f64;
        counter "batches_total" "Event batches taken." |r| r.batches as f64;
        counter "connects_total" "Connections to the engine's publisher." |r| r.connects as f64;
        counter "disconnects_total" "Connections that ended." |r| r.disconnects as f64;
        counter "gaps_total" "Gaps in the engine's sequence." |r| r.gaps as f64;
        counter "restarts_total" "Sequences that began anew." |r| r.restarts as f64;
        counter "replays_total" "Replays asked for." |r| r.replays as f64;
        counter "replays_failed_total" "Replays without an end." |r| r.replays_failed as f64;
        counter "polls_failed_total" "Polls of the engine's API that failed." |r| r.polls_failed as f64;
        counter "blocks_stored_total" "Engine blocks stored." |r| r.events.blocks_stored as f64;
        counter "blocks_removed_total" "Engine blocks removed." |r| r.events.blocks_removed as f64;
        counter "stores_repeated_total" "Stores taken for reports of what is held." |r| r.events.stores_repeated as f64;
        counter "removals_unknown_total" "Removals of blocks that were not held." |r| r.events.removals_unknown as f64;
        counter "blocks_nameless_total" "Blocks that fingerprints cannot name." |r| r.events.blocks_nameless as f64;
        counter "waiting_dropped_total" "Blocks that waited too long for their parent." |r| r.events.waiting_dropped as f64;
        counter "evicted_total" "Blocks forgotten because the view was full." |r| r.events.evicted as f64;
        counter "events_other_group_total" "Events of KV cache groups that do not count." |r| r.events.other_group as f64;
        counter "events_other_medium_total" "Events of tiers that do not count." |r| r.events.other_medium as f64;
        counter "events_unknown_total" "Events of unknown kinds." |r| r.events.events_unknown as f64;
        counter "events_unusable_total" "Events that contradict themselves." |r| r.events.events_unusable as f64;
    ];
    for Metric { name, kind, help, value } in list {
        let name = format!("warmpath_relay_replica_{name}");
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for replica in &summary.replicas {
            let _ = writeln!(text, "{name}{{{}}} {}", labels(replica), value(replica));
        }
    }
    for (name, help, values) in [
        (
            "frames_skipped_total",
            "Frames skipped, by reason.",
            (|r| &r.frames_skipped) as fn(&ReplicaSummary) -> &std::collections::BTreeMap<_, _>,
        ),
        ("view_cleared_total", "Views cleared, by reason.", |r| &r.view_cleared),
    ] {
        let name = format!("warmpath_relay_replica_{name}");
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} counter");
        for replica in &summary.replicas {
            for (reason, value) in values(replica) {
                let _ = writeln!(text, "{name}{{{},reason=\"{reason}\"}} {value}", labels(replica));
            }
        }
    }
    text
}

fn render_sources(text: &mut String, sightings: &Sightings) {
    let all = sightings.all();
    for (at, name, kind, help) in [
        (0, "answers", "gauge", "Whether the source of replicas answered when last asked."),
        (1, "replicas", "gauge", "Replicas that the source named last."),
        (2, "failures_total", "counter", "Times that the source could not be asked."),
    ] {
        let name = format!("warmpath_relay_discovery_{name}");
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for (source, numbers) in &all {
            let value = numbers.get(at).copied().unwrap_or_default();
            let _ = writeln!(text, "{name}{{source=\"{}\"}} {value}", escape(source));
        }
    }
}

fn escape(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

fn labels(replica: &ReplicaSummary) -> String {
    let rank = replica.rank.map(|rank| rank.to_string()).unwrap_or_default();
    format!(
        "endpoint=\"{}\",rank=\"{rank}\",pool=\"{}\",model=\"{}\"",
        replica.endpoint,
        escape(&replica.pool),
        escape(&replica.model)
    )
}
