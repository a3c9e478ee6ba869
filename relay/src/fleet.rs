//! The replicas that the relay follows, and the tasks about each: they come and go with the
//! configuration and with discovery.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tracing::info;

use crate::config::Events;
use crate::engine::adapters::Adapters;
use crate::engine::alarms::Alarms;
use crate::engine::counters::Counters;
use crate::engine::listing::{Asking, Listings};
use crate::engine::poller::Poller;
use crate::engine::polling::Polling;
use crate::engine::ranks::Rank;
use crate::engine::rounds::Rounds;
use crate::engine::subscriber::{Publisher, Subscriber};
use crate::engine::way::Way;
use crate::error::RelayError;
use crate::index::{BlockDrop, Limits, ModelScope, View};
use crate::listen::{bind, bind_when_free};
use crate::state::Registration;
use crate::state::message::{Message, ReplicaId, Sender};

/// What an engine's publisher connects to, in errors.
const EVENTS: &str = "an engine's events";

/// What there is to know to follow a replica.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Spec {
    pub(crate) endpoint: SocketAddr,
    pub(crate) rank: Option<u32>,
    pub(crate) pool: String,
    pub(crate) model: String,
    /// Its engine's kind.
    pub(crate) engine: &'static str,
    pub(crate) scope: Arc<ModelScope>,
    /// What its engine drops of its hits, where its model says how it speculates.
    pub(crate) drop: Option<BlockDrop>,
    pub(crate) draining: bool,
    pub(crate) store: Option<String>,
    pub(crate) weight: u16,
    pub(crate) adapters: Option<Adapters>,
    pub(crate) events: Option<Events>,
    pub(crate) limits: Limits,
    pub(crate) polling: Polling,
    /// Names of which the engine has to list one at `/v1/models`; none where it isn't asked.
    pub(crate) names: Option<Vec<String>>,
}

type Name = (SocketAddr, Option<u32>);

struct Member {
    id: ReplicaId,
    spec: Spec,
    tasks: Vec<JoinHandle<()>>,
}

/// All replicas, by endpoint and rank.
pub(crate) struct Fleet {
    state: Sender,
    next: ReplicaId,
    listings: Arc<Listings>,
    members: HashMap<Name, Member>,
    /// When it began to poll.
    start: Instant,
}

impl Spec {
    fn known(&self, counters: &Arc<Counters>) -> Registration {
        let duplicates = self.events.as_ref().map(|events| events.duplicates).unwrap_or_default();
        Registration {
            endpoint: self.endpoint.to_string(),
            rank: self.rank,
            events_rank: self.ranks().events,
            pool: self.pool.clone(),
            model: self.model.clone(),
            engine: self.engine,
            draining: self.draining,
            has_events: self.events.is_some(),
            silence: self.polling.silence,
            store: self.store.clone(),
            weight: self.weight,
            adapters: self.adapters.clone(),
            says_speculation: self.drop.is_some(),
            view: View::new(Arc::clone(&self.scope), duplicates, self.limits)
                .dropping(self.drop.unwrap_or_default()),
            counters: Arc::clone(counters),
        }
    }

    /// The ranks that requests and batches name.
    fn ranks(&self) -> Rank {
        let events = self.events.as_ref().and_then(|events| events.rank);
        Rank { header: self.rank, events: events.or(self.rank) }
    }

    /// Its name in logs.
    fn name(&self) -> String {
        match self.rank {
            Some(rank) => format!("{}#{rank}", self.endpoint),
            None => self.endpoint.to_string(),
        }
    }
}

impl Fleet {
    /// An empty one, that tells `state` who joins and leaves.
    pub(crate) fn new(state: Sender, listings: Arc<Listings>) -> Self {
        Self { state, next: 0, listings, members: HashMap::new(), start: Instant::now() }
    }

    /// The first replicas; what the state begins with. An address that can't be bound is an error.
    pub(crate) async fn start(
        &mut self,
        specs: Vec<Spec>,
    ) -> Result<Vec<Registration>, RelayError> {
        let mut all = Vec::new();
        for spec in specs {
            let listener = match spec.events.as_ref().map(|events| &events.way) {
                Some(Way::Bind(address)) => Some(bind(address, EVENTS).await?),
                _ => None,
            };
            let counters = Arc::default();
            all.push(spec.known(&counters));
            self.follow(spec, listener, counters);
        }
        Ok(all)
    }

    /// Makes the replicas those of `specs`. One whose settings changed, but for its
    /// draining, its weight and its adapters, begins anew.
    pub(crate) async fn reconcile(&mut self, specs: Vec<Spec>) {
        let mut wanted: HashMap<Name, Spec> = HashMap::new();
        for spec in specs {
            wanted.entry((spec.endpoint, spec.rank)).or_insert(spec);
        }
        let stays = |name: &Name, member: &Member| {
            let spec = wanted.get(name);
            spec.is_some_and(|spec| {
                let Spec { draining, weight, .. } = *spec;
                let adapters = spec.adapters.clone();
                *spec == Spec { draining, weight, adapters, ..member.spec.clone() }
            })
        };
        let leaving: Vec<Name> = self
            .members
            .iter()
            .filter(|(name, member)| !stays(name, member))
            .map(|(name, _)| *name)
            .collect();
        for name in leaving {
            let Some(member) = self.members.remove(&name) else { continue };
            for task in member.tasks {
                // Its socket is closed when it has ended.
                task.abort();
                let _ = task.await;
            }
            info!(engine = member.spec.name(), "replica left");
            self.listings.put(&member.spec.model, &member.spec.name(), None);
            let _ = self.state.send(Message::Leave { replica: member.id }).await;
        }
        for (name, spec) in wanted {
            if let Some(member) = self.members.get_mut(&name) {
                if member.spec != spec {
                    let (replica, draining, weight) = (member.id, spec.draining, spec.weight);
                    let adapters = spec.adapters.clone();
                    member.spec = spec;
                    let message = Message::Reconfigure { replica, draining, weight, adapters };
                    let _ = self.state.send(message).await;
                }
                continue;
            }
            info!(engine = spec.name(), pool = spec.pool, model = spec.model, "replica joined");
            let counters = Arc::default();
            let known = Box::new(spec.known(&counters));
            let _ = self.state.send(Message::Join { replica: self.next, known }).await;
            self.follow(spec, None, counters);
        }
    }

    fn follow(&mut self, spec: Spec, listener: Option<TcpListener>, counters: Arc<Counters>) {
        let replica = self.next;
        self.next += 1;
        let alarms = Arc::new(Alarms::default());
        let mut tasks = Vec::new();
        if let Some(events) = &spec.events {
            let source = Publisher {
                replica,
                name: spec.name(),
                way: events.way.clone(),
                replay: events.replay.clone(),
                rank: spec.ranks().events,
            };
            let subscriber = Subscriber::new(
                source,
                self.state.clone(),
                Arc::clone(&counters),
                Arc::clone(&alarms),
            );
            let way = events.way.clone();
            tasks.push(tokio::spawn(async move {
                let listener = match (&way, listener) {
                    (Way::Bind(address), None) => Some(bind_when_free(address, EVENTS).await),
                    (_, listener) => listener,
                };
                subscriber.run(listener).await;
            }));
        }
        let poller = Poller {
            replica,
            endpoint: spec.endpoint.to_string(),
            rank: spec.ranks(),
            polling: spec.polling,
            rounds: match spec.rank {
                Some(rank) => Rounds::of_rank(self.start, &spec.endpoint, rank),
                None => Rounds::of(self.start, replica),
            },
            asking: spec.names.clone().map(|names| Asking {
                model: spec.model.clone(),
                names,
                listings: Arc::clone(&self.listings),
            }),
            alarms,
            counters,
            state: self.state.clone(),
        };
        tasks.push(tokio::spawn(poller.run()));
        self.members.insert((spec.endpoint, spec.rank), Member { id: replica, spec, tasks });
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        for task in self.members.values().flat_map(|member| &member.tasks) {
            task.abort();
        }
    }
}
