//! One worker's view of the world: what shared data said when a tick last looked.

use std::collections::{BTreeMap, BTreeSet};

use prost::Message;
use warmpath_prompt::KnownModel;
use warmpath_proto::v1::{self, replica, tier};
use warmpath_routing::drift::Hints;
use warmpath_routing::policy::Policy;
use warmpath_routing::state::State;
use warmpath_routing::traffic::Places;
use warmpath_routing::view::{Load, Medium, Model, Replica, ReplicaState, Tier, World};

use crate::host::HostError;
use crate::shared::{self, Artefacts, Data};

/// Replicas, loads and models.
#[derive(Debug, Default)]
pub(super) struct View {
    seen: Option<State>,
    loads_read: Option<u32>,
    pub(super) world: World,
    /// The replicas' names, in their order.
    pub(super) names: Vec<u64>,
    /// Slots of those that may hold more than the map says.
    partial: BTreeSet<u16>,
    /// What the relay knows of their caches, in their order.
    hints: Vec<Hints>,
    pub(super) models: Vec<KnownModel>,
    /// Place in shared data, by artefact.
    pub(super) artefacts: BTreeMap<[u8; 32], u32>,
}

impl View {
    /// Reads again what has changed; says whether slots now mean something else.
    ///
    /// # Errors
    /// Where shared data can't be read or written: the status that Envoy gave; the next tick tries again.
    pub(super) fn refresh(&mut self, policy: &Policy, data: &impl Data) -> Result<bool, HostError> {
        let Some(state) = read_state(data)? else { return Ok(false) };
        let seen = self.seen.unwrap_or_default();
        let first = self.seen.is_none();
        let replicas = first || state.replicas != seen.replicas || state.epoch != seen.epoch;
        let models = first || state.models != seen.models || state.epoch != seen.epoch;
        if replicas {
            self.read_replicas(policy, data)?;
        }
        if replicas || state.loads != seen.loads {
            self.read_loads(data)?;
        }
        if models {
            self.read_models(data)?;
        }
        // Only what was read whole counts as seen.
        self.seen = Some(state);
        Ok(state.epoch != seen.epoch)
    }

    /// Says whether the prefix map can be believed now, and which generation of it: that of this
    /// view's slots. Buckets of any other are void, so that a view that is older than the map finds
    /// nothing in it rather than something wrong.
    pub(super) fn look(&mut self, now_ms: u64, limit_ms: u64) -> u32 {
        let seen = self.seen.unwrap_or_default();
        self.world.fresh = seen.fresh(now_ms, limit_ms);
        seen.map_generation
    }

    /// The epoch in which slots are what they are in this view.
    pub(super) fn epoch(&self) -> u64 {
        self.seen.map_or(0, |seen| seen.epoch)
    }

    /// Whether the replica with this slot may hold more than the map says, so that answers teach.
    pub(super) fn is_partial(&self, slot: u16) -> bool {
        self.partial.contains(&slot)
    }

    /// Whether some may.
    pub(super) fn has_partial(&self) -> bool {
        !self.partial.is_empty()
    }

    /// The replicas, for what this gateway knows of them itself.
    pub(super) fn places(&mut self) -> Places<'_> {
        Places { names: &self.names, loads: &mut self.world.loads }
    }

    /// The models that the relay has told of; none before it was first heard.
    pub(super) fn told(&self) -> impl Iterator<Item = &Model> + Clone {
        self.models.iter().map(|known| &known.model)
    }

    /// Replicas that are filed under a pool of another model.
    pub(super) fn misfiled(&self) -> impl Iterator<Item = &Replica> {
        let replicas = self.world.replicas.iter();
        replicas.filter(|replica| replica.state == ReplicaState::Misfiled)
    }

    /// All, with their names and what the relay knows of their caches.
    pub(super) fn replicas(&self) -> impl Iterator<Item = ((&Replica, u64), Hints)> {
        let names = self.names.iter().copied();
        self.world.replicas.iter().zip(names).zip(self.hints.iter().copied())
    }

    /// Changes whenever the loads were read again.
    pub(super) fn loads_version(&self) -> Option<u32> {
        self.loads_read
    }

    fn read_replicas(&mut self, policy: &Policy, data: &impl Data) -> Result<(), HostError> {
        let Some(table) = decode::<v1::Replicas>(data.get(shared::REPLICAS)?) else {
            return Ok(());
        };
        let partial = table.replicas.iter().filter(|it| it.partial);
        self.partial = partial.filter_map(|it| u16::try_from(it.slot).ok()).collect();
        let all = table.replicas.into_iter();
        (self.world.replicas, self.hints) = all
            .filter_map(|it| {
                let hints = Hints {
                    caches_nothing: it.caches_nothing,
                    silent: it.state() == replica::State::Suspect,
                    other_root: it.other_root,
                    others_agree: false,
                };
                Some((to_replica(policy, it)?, hints))
            })
            .unzip();
        self.names = self.world.replicas.iter().map(Replica::name).collect();
        Ok(())
    }

    fn read_loads(&mut self, data: &impl Data) -> Result<(), HostError> {
        let table = decode::<v1::Loads>(data.get(shared::LOADS)?).unwrap_or_default();
        let told: BTreeMap<u32, &v1::Load> = table.loads.iter().map(|l| (l.slot, l)).collect();
        // What is in flight this gateway knows better: see `Traffic`.
        let load = |replica: &Replica| {
            told.get(&u32::from(replica.slot)).map_or(Load::default(), |told| Load {
                waiting: told.waiting,
                running: told.running,
                kv_usage: told.kv_usage,
                rtt_us: told.rtt_us,
                in_flight: 0,
            })
        };
        self.world.loads = self.world.replicas.iter().map(load).collect();
        self.loads_read = Some(self.loads_read.map_or(0, |times| times.wrapping_add(1)));
        Ok(())
    }

    fn read_models(&mut self, data: &impl Data) -> Result<(), HostError> {
        let table = decode::<v1::Models>(data.get(shared::MODELS)?).unwrap_or_default();
        let index = decode::<Artefacts>(data.get(shared::ARTEFACTS)?).unwrap_or_default();
        self.models = table.models.into_iter().filter_map(to_model).collect();
        self.artefacts = index
            .at
            .iter()
            .filter_map(|at| Some((at.id.as_slice().try_into().ok()?, at.place)))
            .collect();
        Ok(())
    }
}

fn read_state(data: &impl Data) -> Result<Option<State>, HostError> {
    Ok(data.get(shared::STATE)?.and_then(|bytes| State::decode(&bytes)))
}

// Foreign bytes (of another version, say) count as nothing.
fn decode<M: Message + Default>(bytes: Option<Vec<u8>>) -> Option<M> {
    M::decode(bytes?.as_slice()).ok()
}

fn to_replica(policy: &Policy, replica: v1::Replica) -> Option<Replica> {
    let state = match replica.state() {
        _ if !policy.files(&replica.pool, &replica.model) => ReplicaState::Misfiled,
        replica::State::Ready => ReplicaState::Ready,
        replica::State::Draining => ReplicaState::Draining,
        replica::State::Down => ReplicaState::Down,
        // What a newer relay may say and this filter doesn't know: served, but not believed.
        replica::State::Suspect | replica::State::Unspecified => ReplicaState::Suspect,
    };
    let mut tiers: Vec<Tier> = replica.tiers.iter().copied().filter_map(to_tier).collect();
    tiers.sort_unstable();
    Some(Replica {
        slot: u16::try_from(replica.slot).ok()?,
        endpoint: replica.endpoint,
        rank: replica.rank,
        pool: replica.pool,
        block_tokens: replica.block_tokens,
        dropped_tokens: replica.dropped_tokens,
        state,
        weight: match u16::try_from(replica.weight) {
            Ok(0) => Replica::PLAIN,
            Ok(weight) => weight,
            Err(_) => u16::MAX,
        },
        tiers,
        ends: match replica.ends {
            Some(ends) => Some(u16::try_from(ends.slot).ok()?),
            None => None,
        },
        adapters: replica.adapters_known.then_some(replica.adapters),
    })
}

// What a newer relay may say of tiers and this filter doesn't know counts as not held.
fn to_tier(told: v1::Tier) -> Option<Tier> {
    let medium = match told.medium() {
        tier::Medium::Cpu => Medium::Cpu,
        tier::Medium::Disk => Medium::Disk,
        tier::Medium::Shared => Medium::Shared,
        tier::Medium::Unspecified => return None,
    };
    Some(Tier { medium, slot: u16::try_from(told.slot).ok()? })
}

fn to_model(model: v1::Model) -> Option<KnownModel> {
    let artefact = model.artefact.as_slice().try_into().ok();
    let model = Model {
        name: model.name,
        served_names: model.served_names,
        adapters: model.adapters,
        version: model.version,
        // Without a hash no fingerprint is right.
        tokenizer_hash: model.tokenizer_hash.as_slice().try_into().ok()?,
    };
    Some(KnownModel::new(model, artefact))
}
