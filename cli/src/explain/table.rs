//! What each replica would have cost, and why it was not chosen.

use serde::Serialize;
use warmpath_routing::catalogue::Wants;
use warmpath_routing::decision::{Ask, Outcome, Route, decide};
use warmpath_routing::policy::Policy;
use warmpath_routing::prefix_map::Lookup;
use warmpath_routing::residency::zone_of;
use warmpath_routing::ring;
use warmpath_routing::view::{Load, Medium, Replica, ReplicaState, World};

/// A replica, as the decision saw it.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    /// From 1, the chosen one first; none where it could not be chosen.
    #[serde(rename = "order")]
    pub(super) rank_in_order: Option<usize>,
    pub(super) endpoint: String,
    pub(super) rank: Option<u32>,
    pub(super) pool: String,
    pub(super) region: String,
    pub(super) state: &'static str,
    pub(super) cached_tokens: Option<u32>,
    /// Those of them that only slower tiers hold, and the slowest of these.
    pub(super) offloaded_tokens: Option<u32>,
    pub(super) tier: Option<&'static str>,
    pub(super) prefill_ms: Option<f64>,
    pub(super) load_ms: Option<f64>,
    pub(super) network_ms: Option<f64>,
    pub(super) queue_ms: Option<f64>,
    /// The sum, with parts that have no column.
    pub(super) total_ms: Option<f64>,
    /// Requests there, of this gateway or by the engine's word.
    pub(super) busy: u32,
    /// So many make it full; what the gateway's own memory adds to that is not in a dump.
    pub(super) full_at: Option<u32>,
    /// Its place on the ring for this prompt, 0 to 1: the highest comes first.
    pub(super) ring_place: Option<f64>,
    pub(super) why: String,
}

/// All replicas, in the order in which they would be taken.
pub(super) fn rows(
    policy: &Policy,
    world: &World,
    ask: &Ask<'_>,
    held: &dyn Lookup,
    outcome: &Outcome<'_>,
) -> Vec<Row> {
    let order = order(policy, world, ask, held);
    let chosen = match outcome {
        Outcome::Route(route) => Some(route),
        Outcome::Refuse(_) => None,
    };
    let mut rows: Vec<(usize, Row)> = (0..world.replicas.len())
        .filter_map(|at| {
            let place = order.iter().position(|index| *index == at);
            Some((at, row(policy, world, ask, held, chosen, (at, place))?))
        })
        .collect();
    rows.sort_by_key(|(at, row)| (row.rank_in_order.unwrap_or(usize::MAX), *at));
    let rows: Vec<Row> = rows.into_iter().map(|(_, row)| row).collect();
    let best = rows.first().cloned();
    rows.into_iter()
        .map(|row| match &best {
            Some(best) if row.why.is_empty() => Row { why: why(policy, best, &row), ..row },
            _ => row,
        })
        .collect()
}

/// The indices of all replicas that could be named to Envoy, best first.
fn order(policy: &Policy, world: &World, ask: &Ask<'_>, held: &dyn Lookup) -> Vec<usize> {
    let policy = Policy { endpoints: world.replicas.len().max(1), ..policy.clone() };
    match decide(&policy, world, ask, held) {
        Outcome::Route(route) => route.replicas,
        Outcome::Refuse(_) => Vec::new(),
    }
}

fn row(
    policy: &Policy,
    world: &World,
    ask: &Ask<'_>,
    held: &dyn Lookup,
    chosen: Option<&Route<'_>>,
    (at, place): (usize, Option<usize>),
) -> Option<Row> {
    let replica = world.replicas.get(at)?;
    let load = load(world, at);
    let pool = policy.pools.get(&replica.pool);
    let mut row = Row {
        rank_in_order: place.map(|place| place + 1),
        endpoint: replica.endpoint.clone(),
        rank: replica.rank,
        pool: replica.pool.clone(),
        region: pool.map_or_else(|| "?".into(), |pool| pool.region.clone()),
        state: match replica.state {
            ReplicaState::Ready => "ready",
            ReplicaState::Suspect => "suspect",
            ReplicaState::Draining => "draining",
            ReplicaState::Down => "down",
            ReplicaState::Misfiled => "misfiled",
        },
        cached_tokens: None,
        offloaded_tokens: None,
        tier: None,
        prefill_ms: None,
        load_ms: None,
        network_ms: None,
        queue_ms: None,
        total_ms: None,
        busy: busy(&load),
        full_at: None,
        ring_place: None,
        why: String::new(),
    };
    let Some(chosen) = chosen else {
        row.why = "the request is refused".into();
        let zone = zone_of(&policy.zones, policy.zone_source.default.as_deref(), ask.zone);
        if let Ok((name, _)) = zone {
            row.why = barred(policy, name, replica).unwrap_or(row.why);
        }
        if let Some(state) = unable(replica) {
            row.why = state.into();
        }
        return Some(row);
    };
    if let Some(why) = barred(policy, chosen.zone, replica) {
        row.why = why;
        return Some(row);
    }
    let (weights, in_flight) = peers(policy, world, chosen, replica);
    row.full_at = Some(ring::bound(&policy.ring, in_flight, replica.weight, weights));
    row.ring_place = Some(ring::place(chosen.ring_key, replica) as f64 / u64::MAX as f64);
    // Alone it would be chosen, if it can be at all: that is what it costs.
    let alone = World { replicas: vec![replica.clone()], loads: vec![load], fresh: world.fresh };
    if let Outcome::Route(route) = decide(policy, &alone, ask, held)
        && !route.replicas.is_empty()
    {
        row.cached_tokens = Some(route.cached_tokens);
        row.offloaded_tokens = Some(route.offloaded_tokens);
        row.tier = route.tier.map(Medium::name);
        row.prefill_ms = Some(route.cost.prefill);
        row.load_ms = Some(route.cost.load);
        row.network_ms = Some(route.cost.network);
        row.queue_ms = Some(route.cost.queue);
        row.total_ms = Some(route.cost.total());
    }
    if place == Some(0) {
        row.why = format!("chosen: {}", chosen.reason.name());
    } else if place.is_none() {
        row.why = match unable(replica) {
            Some(state) => state.into(),
            None if serves_other(policy, ask, replica) => {
                format!("it serves {}", pool.map_or("?", |pool| pool.model.as_str()))
            }
            None if !has_adapter(ask, replica) => "it has not loaded the adapter".into(),
            None => "its endpoint is named already, for another rank".into(),
        };
    }
    Some(row)
}

/// Why the zone keeps it out, if it does.
fn barred(policy: &Policy, zone: &str, replica: &Replica) -> Option<String> {
    let Some(pool) = policy.pools.get(&replica.pool) else {
        return Some(format!("the policy has no pool {:?}", replica.pool));
    };
    let (Some(rule), Some(region)) = (policy.zones.get(zone), policy.regions.get(&pool.region))
    else {
        return Some(format!("there is no zone {zone:?}"));
    };
    rule.judge(&pool.region, region).err().map(|why| {
        format!(
            "outside zone {zone}: jurisdiction {}, operator {:?}: {why}",
            region.jurisdiction, region.operator
        )
    })
}

fn unable(replica: &Replica) -> Option<&'static str> {
    match replica.state {
        ReplicaState::Draining => Some("it takes nothing new"),
        ReplicaState::Down => Some("it does not answer"),
        ReplicaState::Misfiled => Some("it is filed under a pool of another model"),
        ReplicaState::Ready | ReplicaState::Suspect => None,
    }
}

fn serves_other(policy: &Policy, ask: &Ask<'_>, replica: &Replica) -> bool {
    let model = policy.pools.get(&replica.pool).map(|pool| pool.model.as_str());
    matches!(ask.model, Wants::Model { name, .. } if Some(name) != model)
}

fn has_adapter(ask: &Ask<'_>, replica: &Replica) -> bool {
    !matches!(ask.model, Wants::Model { adapter, .. } if !replica.has_adapter(adapter))
}

fn load(world: &World, at: usize) -> Load {
    let told = world.loads.get(at).copied().unwrap_or_default();
    // As in the decision: what engines reported is as old as the silence.
    if world.fresh { told } else { Load { in_flight: told.in_flight, ..Load::default() } }
}

fn busy(load: &Load) -> u32 {
    load.in_flight.max(load.waiting.saturating_add(load.running))
}

/// The weights of the usable replicas of its pool, and what they have to do, together.
fn peers(policy: &Policy, world: &World, chosen: &Route<'_>, replica: &Replica) -> (u64, u64) {
    let members = world.replicas.iter().enumerate().filter(|(_, other)| {
        other.pool == replica.pool
            && unable(other).is_none()
            && barred(policy, chosen.zone, other).is_none()
    });
    members.fold((0, 0), |(weights, sum), (at, other)| {
        (weights + u64::from(other.weight), sum + u64::from(busy(&load(world, at))))
    })
}

/// Why a replica that could have been chosen comes behind the best.
fn why(policy: &Policy, best: &Row, row: &Row) -> String {
    let (Some(total), Some(least)) = (row.total_ms, best.total_ms) else {
        return "it can't be chosen".into();
    };
    let full = |row: &Row| row.full_at.is_some_and(|bound| row.busy >= bound);
    if full(row) && !full(best) {
        return format!("full: {} of {}", row.busy, row.full_at.unwrap_or(0));
    }
    let dearer = total - least;
    if dearer > policy.cost.tie_ms {
        let parts = [
            ("prefill", row.prefill_ms, best.prefill_ms),
            ("load", row.load_ms, best.load_ms),
            ("network", row.network_ms, best.network_ms),
            ("queue", row.queue_ms, best.queue_ms),
        ];
        let parts = parts.into_iter().filter_map(|(name, mine, its)| {
            let more = mine? - its?;
            (more.abs() >= 0.05).then(|| format!("{name} {more:+.1}"))
        });
        let parts: Vec<String> = parts.collect();
        return format!("{dearer:.1} ms dearer: {}", parts.join(", "));
    }
    if row.region != best.region {
        return "as cheap, but the prefix lives in the nearest region".into();
    }
    if row.ring_place < best.ring_place {
        "as cheap, later on the ring".into()
    } else {
        "as cheap, but fuller or dearer within the tie".into()
    }
}
