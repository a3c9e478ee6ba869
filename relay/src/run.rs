//! Puts the tasks together and ends them.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Certificate, Identity, ServerTlsConfig};
use tracing::{error, info, warn};
use warmpath_proto::v1;
use warmpath_proto::v1::side_stream_server::SideStreamServer;

use crate::artefact::{self, Artefact, Build, Catalogue, Unbuilt};
use crate::config::{Config, MAX_REPLICAS, Model, Replica, Tls};
use crate::discovery::{Sightings, Source};
use crate::engine::listing::Listings;
use crate::error::RelayError;
use crate::fleet::{Fleet, Spec};
use crate::index::ModelScope;
use crate::listen::bind;
use crate::sidestream::Server;
use crate::state::State;
use crate::{admin, discovery};

/// Messages between the tasks and the state.
const MESSAGES: usize = 256;
/// Bytes of an [`v1::Up`] that are taken: a Hello with thousands of artefacts.
const MAX_UP: usize = 256 * 1024;
/// Time for streams to end when the relay stops.
const STOP: Duration = Duration::from_secs(2);

/// Checks what reading a configuration alone doesn't: that each model's files can be used.
///
/// # Errors
/// [`RelayError::Model`] for the first model whose files are missing, damaged or can't be
/// preprocessed.
pub async fn check(config: &Config) -> Result<(), RelayError> {
    catalogue(&config.models, artefact::build).await.map(|_| ())
}

/// Runs a relay until `shutdown`.
///
/// # Errors
/// At start [`RelayError::Model`] where a model's files can't be used and [`RelayError::Listen`] where
/// an address can't be bound; [`RelayError::Serve`] where TLS can't be set up or the gRPC server
/// fails.
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
    let (_keep, none) = mpsc::channel(1);
    run_reloading(config, build, listening, none, shutdown).await
}

/// As [`run_with`]; each configuration that comes by `reloads` takes the place of the one before:
/// models and replicas come, go and change while side-streams go on. One whose models can't be used
/// is left out, and that is logged. Addresses and the token stay as they were at start.
///
/// # Errors
/// As [`run`], for the first configuration.
pub async fn run_reloading(
    config: Config,
    build: Build,
    listening: impl FnOnce(SocketAddr),
    reloads: mpsc::Receiver<Config>,
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
    let sightings = Sightings::default();
    let found = discovery::once(&config).await;
    let listings = Arc::new(Listings::default());
    listings.configure(&config.models);
    let mut fleet = Fleet::new(sender.clone(), Arc::clone(&listings));
    let known = fleet.start(specs(&config, &scopes, &found)).await?;
    tasks.spawn(State::new(known).run(messages, stop.clone()));
    if let Some(listener) = admin {
        tasks.spawn(admin::serve(listener, sender.clone(), sightings.clone(), stop.clone()));
    }
    let address = listener.local_addr().unwrap_or(config.listen);
    info!(%address, replicas = config.replicas.len(), models = config.models.len(), "relay started");
    listening(address);

    let tls = config.tls.clone();
    let configured = Arc::new(catalogue);
    let (models, catalogue) = watch::channel(Arc::clone(&configured));
    let service = SideStreamServer::new(Server::new(sender, catalogue, config.token))
        .max_decoding_message_size(MAX_UP);
    let keeper =
        Keeper { fleet, config, scopes, found, sightings, listings, configured, models, build };
    tasks.spawn(keeper.run(reloads));
    let mut server = tonic::transport::Server::builder();
    if let Some(Tls { certificate, key, client_ca }) = tls {
        let identity = Identity::from_pem(certificate, key);
        let mut tls = ServerTlsConfig::new().identity(identity);
        if let Some(client_ca) = client_ca {
            tls = tls.client_ca_root(Certificate::from_pem(client_ca));
        }
        server = server.tls_config(tls)?;
    }
    let serving = server
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
                warn!("side-streams did not end in time");
                Ok(())
            }
        }
    };
    stop.cancel();
    tasks.shutdown().await;
    Ok(result?)
}

/// Keeps the fleet what configuration and discovery say.
struct Keeper {
    fleet: Fleet,
    config: Config,
    scopes: Vec<Arc<ModelScope>>,
    found: Vec<Vec<Replica>>,
    sightings: Sightings,
    listings: Arc<Listings>,
    /// The models as configured, without what engines list beside.
    configured: Arc<Catalogue>,
    models: watch::Sender<Arc<Catalogue>>,
    build: Build,
}

impl Keeper {
    async fn run(mut self, mut reloads: mpsc::Receiver<Config>) {
        let mut reloading = true;
        loop {
            let (sender, mut news) = mpsc::channel(1);
            // They end when the receiver is gone.
            let mut sources = JoinSet::new();
            self.sightings.retain(self.config.discovery.iter().map(|source| &source.place));
            for (place, source) in self.config.discovery.iter().cloned().enumerate() {
                let source = Source::new(place, source, sender.clone(), &self.sightings);
                sources.spawn(source.follow());
            }
            loop {
                tokio::select! {
                    Some((place, replicas)) = news.recv() => {
                        if let Some(found) = self.found.get_mut(place) {
                            *found = replicas;
                        }
                        self.settle().await;
                    }
                    () = self.listings.changed.notified() => self.publish_models(),
                    config = reloads.recv(), if reloading => match config {
                        Some(config) => {
                            self.reload(config).await;
                            break;
                        }
                        None => reloading = false,
                    },
                }
            }
        }
    }

    async fn reload(&mut self, config: Config) {
        let (new, scopes) = match catalogue(&config.models, self.build).await {
            Ok(made) => made,
            Err(error) => {
                error!(%error, "the new configuration can't be used; the old one stays");
                return;
            }
        };
        let old = &self.config;
        if (config.listen, config.admin) != (old.listen, old.admin)
            || config.token != old.token
            || config.tls != old.tls
        {
            warn!("changes of listen, admin, token_file and tls take effect after a restart only");
        }
        // What discovery found is still true of sources that stay.
        let found = config.discovery.iter().map(|source| {
            let at = old.discovery.iter().position(|other| other == source);
            at.and_then(|at| self.found.get(at)).cloned().unwrap_or_default()
        });
        self.found = found.collect();
        let replicas = config.replicas.len();
        (self.config, self.scopes) = (config, scopes);
        // Models first: a replica's model is to be known when it comes.
        self.configured = Arc::new(new);
        self.listings.configure(&self.config.models);
        self.publish_models();
        self.settle().await;
        info!(replicas, models = self.scopes.len(), "configuration reloaded");
    }

    /// The table of models, with what engines list; side-streams hear of it if it changed.
    fn publish_models(&self) {
        let new = self.configured.with(&self.listings);
        self.models.send_if_modified(|sent| {
            let changed = sent.models() != new.models() || sent.ids() != new.ids();
            if changed {
                *sent = Arc::new(new);
            }
            changed
        });
    }

    async fn settle(&mut self) {
        self.fleet.reconcile(specs(&self.config, &self.scopes, &self.found)).await;
    }
}

/// The configured replicas, then those that were found.
fn specs(config: &Config, scopes: &[Arc<ModelScope>], found: &[Vec<Replica>]) -> Vec<Spec> {
    let all = config.replicas.iter().chain(found.iter().flatten());
    let spec = |replica: &Replica| {
        Some(Spec {
            endpoint: replica.endpoint,
            rank: replica.rank,
            pool: replica.pool.clone(),
            model: config.models.get(replica.model)?.name.clone(),
            engine: config.models.get(replica.model)?.serving.engine.name(),
            scope: Arc::clone(scopes.get(replica.model)?),
            drop: config.models.get(replica.model)?.drop,
            draining: replica.draining,
            store: replica.store.clone(),
            weight: replica.weight,
            adapters: replica.adapters.clone(),
            events: replica.events.clone(),
            limits: config.limits,
            polling: config.polling,
            names: config
                .models
                .get(replica.model)
                .filter(|m| m.from_engine)
                .map(|m| m.served_names.clone()),
        })
    };
    let mut seen = HashSet::new();
    let first = |spec: &Spec| seen.insert((spec.endpoint, spec.rank));
    all.filter_map(spec).filter(first).take(MAX_REPLICAS).collect()
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
            engine = %model.serving.engine,
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
    let serving = model.serving.clone();
    match tokio::task::spawn_blocking(move || build(&path, &serving)).await {
        Ok(Ok(artefact)) => Ok(Some(artefact)),
        Ok(Err(Unbuilt::Unsupported(what))) => {
            warn!(
                model = model.name,
                what,
                "unsupported tokenizer; requests for this model are routed by consistent hashing"
            );
            Ok(None)
        }
        Ok(Err(Unbuilt::Unusable(what))) => Err(failed(what)),
        Err(error) => Err(failed(format!("preprocessing failed: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_model_whose_tokenizer_is_unsupported_is_listed_without_one() {
        let model = Model {
            name: "m".into(),
            path: Some("anywhere".into()),
            version: "1".into(),
            tokenizer_hash: None,
            served_names: vec!["m".into()],
            adapters: Vec::new(),
            from_engine: false,
            serving: warmpath_prompt::Serving::default(),
            drop: None,
        };
        let models = [model];
        let unsupported: Build = |_, _| Err(Unbuilt::Unsupported("Unigram".into()));
        let (catalogue, scopes) = catalogue(&models, unsupported).await.unwrap();
        assert!(catalogue.artefacts().is_empty());
        assert!(catalogue.models().models[0].artefact.is_empty());
        assert_eq!(scopes.len(), 1);
        let damaged: Build = |_, _| Err(Unbuilt::Unusable("no file".into()));
        let error = super::catalogue(&models, damaged).await.err().unwrap();
        assert!(error.to_string().contains("no file"), "{error}");
    }
}
