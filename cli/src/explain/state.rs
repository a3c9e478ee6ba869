//! The dumped state: replicas, loads, models, and what is held.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use serde::Deserialize;
use warmpath_prompt::Serving;
use warmpath_routing::fingerprint::Key;
use warmpath_routing::policy::Policy;
use warmpath_routing::prefix_map::{Lookup, Match, Matches, Wanted};
use warmpath_routing::view::{Load, Medium, Model, Replica, ReplicaState, Tier, World};

/// As it is written.
#[derive(Deserialize)]
struct Dump {
    #[serde(default = "yes")]
    fresh: bool,
    replicas: Vec<DumpReplica>,
    #[serde(default)]
    models: Vec<DumpModel>,
    #[serde(default)]
    held: Vec<Held>,
}

fn yes() -> bool {
    true
}

/// The relay's own words; what else it says of a replica is passed over.
#[derive(Deserialize)]
struct DumpReplica {
    endpoint: String,
    rank: Option<u32>,
    pool: String,
    slot: Option<u16>,
    state: Option<String>,
    #[serde(default)]
    block_tokens: u32,
    #[serde(default)]
    dropped_tokens: u32,
    weight: Option<f64>,
    requests_waiting: Option<u32>,
    requests_running: Option<u32>,
    kv_usage: Option<f32>,
    rtt_ms: Option<f64>,
    #[serde(default)]
    in_flight: u32,
    #[serde(default)]
    tiers: Vec<DumpTier>,
    /// As the relay names it.
    model: Option<String>,
    /// LoRA adapters that are loaded there; null where that isn't known.
    adapters: Option<Vec<String>>,
}

/// A slower tier of a replica, as the relay's `/status` shows it.
#[derive(Deserialize)]
struct DumpTier {
    tier: String,
    slot: u16,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DumpModel {
    name: String,
    path: Option<PathBuf>,
    #[serde(default)]
    version: String,
    served_names: Option<Vec<String>>,
    #[serde(default)]
    adapters: Vec<String>,
    /// The relay's configuration says it.
    #[serde(skip)]
    serving: Serving,
}

/// What a replica holds.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Held {
    endpoint: String,
    rank: Option<u32>,
    /// Where: on the GPU, if it doesn't say.
    tier: Option<String>,
    /// So many first blocks of the prompt in question.
    #[serde(default)]
    blocks: u32,
    /// Keys or fingerprints, in hexadecimal.
    #[serde(default)]
    keys: Vec<String>,
}

/// The state, understood.
pub(super) struct State {
    pub(super) world: World,
    /// With the directory of each model that has one, and what serves it.
    pub(super) models: Vec<(Model, Option<PathBuf>, Serving)>,
    held: Vec<(u16, u32, BTreeSet<Key>)>,
    /// The model of each replica, where the state says it.
    serves: Vec<Option<String>>,
}

impl State {
    /// Reads a state, and models from the relay's configuration where the state has none.
    pub(super) fn read(path: &Path, relay: Option<&Path>) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("can't read the state {}", path.display()))?;
        let mut json = serde_json::Deserializer::from_str(&text);
        let mut dump: Dump = serde_path_to_error::deserialize(&mut json)
            .with_context(|| format!("in the state {}", path.display()))?;
        for model in &mut dump.models {
            model.path = model.path.as_ref().map(|dir| beside(path, dir));
        }
        if let Some(relay) = relay.filter(|_| dump.models.is_empty()) {
            let config = warmpath_relay::Config::read(relay)?;
            dump.models = config
                .models
                .into_iter()
                .map(|model| DumpModel {
                    name: model.name,
                    path: model.path,
                    version: model.version,
                    served_names: Some(model.served_names),
                    adapters: model.adapters,
                    serving: model.serving,
                })
                .collect();
        }
        Self::new(dump).with_context(|| format!("in the state {}", path.display()))
    }

    fn new(dump: Dump) -> anyhow::Result<Self> {
        let mut world = World { fresh: dump.fresh, ..World::default() };
        let mut slots = BTreeSet::new();
        let mut serves = Vec::new();
        for (number, replica) in dump.replicas.into_iter().enumerate() {
            let at = || format!("replicas[{number}] ({})", replica.endpoint);
            let slot = match replica.slot {
                Some(slot) => slot,
                None => u16::try_from(number).with_context(at)?,
            };
            if !slots.insert(slot) {
                bail!("{}: another replica has slot {slot}, too", at());
            }
            let state = match replica.state.as_deref() {
                None | Some("READY") => ReplicaState::Ready,
                Some("DRAINING") => ReplicaState::Draining,
                Some("DOWN") => ReplicaState::Down,
                Some("SUSPECT" | "STATE_UNSPECIFIED" | "UNSPECIFIED") => ReplicaState::Suspect,
                Some(other) => {
                    bail!("{}: state {other:?} is not READY, SUSPECT, DRAINING or DOWN", at())
                }
            };
            let mut tiers = Vec::new();
            for DumpTier { tier, slot } in &replica.tiers {
                tiers.push(Tier { medium: medium(tier).with_context(at)?, slot: *slot });
            }
            tiers.sort_unstable();
            world.loads.push(Load {
                waiting: replica.requests_waiting.unwrap_or(0),
                running: replica.requests_running.unwrap_or(0),
                kv_usage: replica.kv_usage.unwrap_or(0.0),
                in_flight: replica.in_flight,
                rtt_us: replica.rtt_ms.map_or(0, |ms| (ms * 1e3) as u32),
            });
            world.replicas.push(Replica {
                slot,
                endpoint: replica.endpoint,
                rank: replica.rank,
                pool: replica.pool,
                block_tokens: replica.block_tokens,
                dropped_tokens: replica.dropped_tokens,
                weight: replica
                    .weight
                    .map_or(Replica::PLAIN, |weight| (weight * 100.0).round() as u16),
                state,
                tiers,
                // What is held is given, and with it the hits.
                ends: None,
                adapters: replica.adapters,
            });
            serves.push(replica.model);
        }
        let mut held = Vec::new();
        for (number, entry) in dump.held.into_iter().enumerate() {
            let of = |r: &&Replica| r.endpoint == entry.endpoint && r.rank == entry.rank;
            let Some(replica) = world.replicas.iter().find(of) else {
                bail!("held[{number}]: no replica is {:?} rank {:?}", entry.endpoint, entry.rank);
            };
            let keys: anyhow::Result<BTreeSet<Key>> = entry.keys.iter().map(|k| key(k)).collect();
            let keys = keys.with_context(|| format!("held[{number}].keys"))?;
            let slot = match entry.tier.as_deref() {
                None | Some("GPU" | "gpu") => replica.slot,
                Some(name) => {
                    let medium = medium(name).with_context(|| format!("held[{number}].tier"))?;
                    let of = |tier: &&Tier| tier.medium == medium;
                    let Some(tier) = replica.tiers.iter().find(of) else {
                        bail!("held[{number}].tier: {} has no tier {name:?}", replica.endpoint);
                    };
                    tier.slot
                }
            };
            held.push((slot, entry.blocks, keys));
        }
        let models = dump.models.into_iter().map(|model| {
            let served_names = model.served_names.unwrap_or_else(|| vec![model.name.clone()]);
            let known = Model {
                name: model.name,
                served_names,
                adapters: model.adapters,
                version: model.version,
                tokenizer_hash: [0; 32],
            };
            (known, model.path, model.serving)
        });
        Ok(Self { world, models: models.collect(), held, serves })
    }

    /// Takes replicas out that the filter would not use, as they are filed under a pool of another
    /// model.
    pub(super) fn file(&mut self, policy: &Policy) {
        for (replica, model) in self.world.replicas.iter_mut().zip(&self.serves) {
            if model.as_ref().is_some_and(|model| !policy.files(&replica.pool, model)) {
                replica.state = ReplicaState::Misfiled;
            }
        }
    }

    /// What is held of a prompt, as the prefix map would say it.
    pub(super) fn held<'a>(&'a self, prompt: &[Key]) -> HeldOf<'a> {
        HeldOf { state: self, prompt_blocks: prompt.len() }
    }
}

/// A lookup in the dumped state.
pub(super) struct HeldOf<'a> {
    state: &'a State,
    prompt_blocks: usize,
}

impl Lookup for HeldOf<'_> {
    fn matches(&self, keys: &[Key], wanted: &dyn Wanted) -> Matches {
        let mut found: Vec<Match> = Vec::new();
        for (slot, blocks, held) in &self.state.held {
            let told = (*blocks as usize).min(self.prompt_blocks).min(keys.len());
            let known = keys.iter().take_while(|key| held.contains(key)).count();
            let blocks = told.max(known) as u32;
            if blocks > 0 && wanted.wants(*slot) {
                match found.iter_mut().find(|found| found.slot == *slot) {
                    Some(found) => found.blocks = found.blocks.max(blocks),
                    None => found.push(Match { slot: *slot, blocks }),
                }
            }
        }
        found.sort_by_key(|found| found.slot);
        Matches { found, ..Matches::default() }
    }
}

fn medium(name: &str) -> anyhow::Result<Medium> {
    let of = |medium: &Medium| medium.name().eq_ignore_ascii_case(name);
    let found = Medium::ALL.into_iter().find(of);
    found.with_context(|| format!("tier {name:?} is not cpu, disk or shared"))
}

/// A key, or the key of a fingerprint.
fn key(hex: &str) -> anyhow::Result<Key> {
    let mut key = [0; 16];
    if !matches!(hex.len(), 32 | 64) || !hex.is_ascii() {
        bail!("{hex:?} is neither a key of 32 hexadecimal digits nor a fingerprint of 64");
    }
    for (byte, digits) in key.iter_mut().zip(hex.as_bytes().chunks(2)) {
        let digits = std::str::from_utf8(digits)?;
        *byte = u8::from_str_radix(digits, 16).with_context(|| format!("{hex:?}"))?;
    }
    Ok(Key(key))
}

/// A path that is relative to a file's directory.
fn beside(file: &Path, path: &Path) -> PathBuf {
    file.parent().unwrap_or(Path::new("")).join(path)
}
