//! Puts the tasks together and ends them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tonic::transport::server::TcpIncoming;
use tracing::{info, warn};
use warmpath_proto::v1;
use warmpath_proto::v1::side_stream_server::SideStreamServer;

use crate::artefact::{self, Artefact, Build, Catalogue};
use crate::config::{Config, Model};
use crate::counters::Counters;
use crate::index::{ModelScope, View};
use crate::load::{Alarms, Poller};
use crate::sidestream::Server;
use crate::state::{Known, State};
use crate::subscriber::{Source, Subscriber, Way};
use crate::{admin, index};

/// Messages between the tasks and the state.
const MESSAGES: usize = 256;
/// Bytes of an [`v1::Up`] that are taken: a Hello with thousands of artefacts.
const MAX_UP: usize = 256 * 1024;
/// Time for streams to end when the relay stops.
const STOP: Duration = Duration::from_secs(2);

/// Why the relay didn't start, or stopped.
#[derive(Debug, thiserror::Error)]
pub enum RelayError {
    /// A model's files can't be used.
    #[error("model {model}: {what}")]
    Model {
        /// Its name.
        model: String,
        /// What is wrong.
        what: String,
    },
    /// An address can't be bound.
    #[error("can't listen on {address} for {purpose}: {error}")]
    Listen {
        /// The address.
        address: String,
        /// What for.
        purpose: &'static str,
        /// Why.
        error: std::io::Error,
    },
    /// The gRPC server failed.
    #[error("the side-stream's server failed: {0}")]
    Serve(#[from] tonic::transport::Error),
}

/// Checks what reading a configuration alone doesn't: that each model's files can be used.
///
/// # Errors
/// [`RelayError::Model`].
pub async fn check(config: &Config) -> Result<(), RelayError> {
    catalogue(&config.models, artefact::build).await.map(|_| ())
}

/// Runs a relay until `shutdown`.
///
/// # Errors
/// [`RelayError`] where it can't start or can't go on.
pub async fn run(config: Config, shutdown: impl Future<Output = ()>) -> Result<(), RelayError> {
    run_with(config, artefact::build, |_| {}, shutdown).await
}

/// As [`run`]; `build` makes artefacts, and `listening` hears the side-stream's address, which is of
/// use where the configured port is 0.
///
/// # Errors
/// As [`run`].
pub async fn run_with(
    config: Config,
    build: Build,
    listening: impl FnOnce(SocketAddr),
    shutdown: impl Future<Output = ()>,
) -> Result<(), RelayError> {
    let (catalogue, scopes) = catalogue(&config.models, build).await?;
    let listener = bind(&config.listen.to_string(), "the side-stream").await?;
    let admin = match config.admin {
        Some(address) => Some(bind(&address.to_string(), "the admin endpoint").await?),
        None => None,
    };
    let stop = CancellationToken::new();
    let mut tasks = JoinSet::new();
    let (sender, messages) = mpsc::channel(MESSAGES);
    let mut known = Vec::new();
    for (replica, config_of) in config.replicas.iter().enumerate() {
        let Some(scope) = scopes.get(config_of.model) else { continue };
        let Some(model) = config.models.get(config_of.model) else { continue };
        let counters = Arc::new(Counters::default());
        let alarms = Arc::new(Alarms::default());
        let duplicates = config_of.events.as_ref().map(|events| events.duplicates);
        let duplicates: index::Duplicates = duplicates.unwrap_or_default();
        known.push(Known {
            endpoint: config_of.endpoint.to_string(),
            rank: config_of.rank,
            pool: config_of.pool.clone(),
            model: model.name.clone(),
            draining: config_of.draining,
            has_events: config_of.events.is_some(),
            view: View::new(Arc::clone(scope), duplicates, config.limits),
            counters: Arc::clone(&counters),
        });
        if let Some(events) = &config_of.events {
            let listener = match &events.way {
                Way::Bind(address) => Some(bind(address, "an engine's events").await?),
                Way::Connect(_) => None,
            };
            let source = Source {
                replica,
                name: match config_of.rank {
                    Some(rank) => format!("{}#{rank}", config_of.endpoint),
                    None => config_of.endpoint.to_string(),
                },
                way: events.way.clone(),
                replay: events.replay.clone(),
                rank: config_of.rank,
            };
            let subscriber =
                Subscriber::new(source, sender.clone(), Arc::clone(&counters), Arc::clone(&alarms));
            tasks.spawn(subscriber.run(listener));
        }
        let poller = Poller {
            replica,
            endpoint: config_of.endpoint.to_string(),
            rank: config_of.rank,
            polling: config.polling,
            alarms,
            counters,
            state: sender.clone(),
        };
        tasks.spawn(poller.run());
    }
    tasks.spawn(State::new(known).run(messages, stop.clone()));
    if let Some(listener) = admin {
        tasks.spawn(admin::serve(listener, sender.clone(), stop.clone()));
    }
    let address = listener.local_addr().unwrap_or(config.listen);
    info!(%address, replicas = config.replicas.len(), models = config.models.len(), "the relay serves");
    listening(address);

    let service = SideStreamServer::new(Server::new(sender, Arc::new(catalogue)))
        .max_decoding_message_size(MAX_UP);
    let serving = tonic::transport::Server::builder()
        .http2_keepalive_interval(Some(Duration::from_secs(10)))
        .http2_keepalive_timeout(Some(Duration::from_secs(10)))
        .add_service(service)
        .serve_with_incoming_shutdown(
            TcpIncoming::from(listener).with_nodelay(Some(true)),
            stop.clone().cancelled_owned(),
        );
    tokio::pin!(serving);
    let result = tokio::select! {
        result = &mut serving => result,
        () = shutdown => {
            info!("the relay stops");
            stop.cancel();
            if let Ok(result) = tokio::time::timeout(STOP, &mut serving).await {
                result
            } else {
                warn!("side-streams didn't end in time");
                Ok(())
            }
        }
    };
    stop.cancel();
    tasks.shutdown().await;
    Ok(result?)
}

async fn bind(address: &str, purpose: &'static str) -> Result<TcpListener, RelayError> {
    TcpListener::bind(address).await.map_err(|error| RelayError::Listen {
        address: address.to_owned(),
        purpose,
        error,
    })
}

/// Models as the side-stream tells them, and what their fingerprints are rooted in.
async fn catalogue(
    models: &[Model],
    build: Build,
) -> Result<(Catalogue, Vec<Arc<ModelScope>>), RelayError> {
    let mut catalogue = Catalogue::default();
    let mut scopes = Vec::new();
    for model in models {
        let artefact = artefact_of(model, build).await?;
        let tokenizer_hash = match &artefact {
            Some(artefact) => artefact.tokenizer_hash,
            None => model.tokenizer_hash.unwrap_or_default(),
        };
        let bytes = artefact.as_ref().map_or(0, |artefact| artefact.bytes.len());
        info!(
            model = model.name,
            version = model.version,
            tokenizer = %blake3::Hash::from_bytes(tokenizer_hash),
            artefact_bytes = bytes,
            "model"
        );
        scopes.push(Arc::new(ModelScope { version: model.version.clone(), tokenizer_hash }));
        let message = v1::Model {
            name: model.name.clone(),
            served_names: model.served_names.clone(),
            adapters: model.adapters.clone(),
            version: model.version.clone(),
            tokenizer_hash: tokenizer_hash.to_vec(),
            artefact: Vec::new(),
        };
        catalogue.add(message, artefact);
    }
    Ok((catalogue, scopes))
}

/// Preprocessing takes seconds for a large vocabulary, off the runtime's threads.
async fn artefact_of(model: &Model, build: Build) -> Result<Option<Artefact>, RelayError> {
    let Some(path) = model.path.clone() else { return Ok(None) };
    let failed = |what| RelayError::Model { model: model.name.clone(), what };
    match tokio::task::spawn_blocking(move || build(&path)).await {
        Ok(Ok(artefact)) => Ok(Some(artefact)),
        Ok(Err(what)) => Err(failed(what)),
        Err(error) => Err(failed(format!("preprocessing failed: {error}"))),
    }
}
