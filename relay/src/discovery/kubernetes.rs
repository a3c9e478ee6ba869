//! The EndpointSlices of a Kubernetes Service, listed once and then watched.
//!
//! `kube`'s watcher does what is easy to get wrong: pages of a list, and going on where a watch ended.
//! After anything that fails (a connection that is cut, a place that the API server no longer
//! remembers: 410) all is listed anew, so that a source that answers again is known to. Until such a
//! list is whole the last known slices stay.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::pin::pin;
use std::time::Duration;

use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::watcher;
use kube::{Api, Client, Config, ResourceExt as _};
use tokio_stream::StreamExt as _;
use tracing::warn;

use super::{Ended, Source, slices};
use crate::engine::jitter::jittered;

/// Time between attempts, after a failure: from, and up to.
const AGAIN: Duration = Duration::from_millis(500);
const AGAIN_AT_MOST: Duration = Duration::from_secs(15);
const CONNECT: Duration = Duration::from_secs(5);
/// A watch ends on its own after that long, and goes on; one that hangs is found out so.
const WATCH_SECONDS: u32 = 120;

impl Source {
    /// Follows the Service's slices.
    pub(super) async fn follow_kubernetes(
        mut self,
        service: &str,
        namespace: Option<String>,
        kubeconfig: Option<PathBuf>,
    ) {
        let mut wait = AGAIN;
        loop {
            let watching = watch(&mut self, service, namespace.as_deref(), kubeconfig.clone());
            match watching.await {
                Err(Ended) => return,
                // The client could not be made: credentials may come with time.
                Ok(error) => self.failed(&error),
            }
            tokio::select! {
                () = tokio::time::sleep(jittered(wait)) => {}
                () = self.found.closed() => return,
            }
            wait = (wait * 2).min(AGAIN_AT_MOST);
        }
    }
}

/// Watches for good; the text says why it couldn't begin.
async fn watch(
    source: &mut Source,
    service: &str,
    namespace: Option<&str>,
    kubeconfig: Option<PathBuf>,
) -> Result<String, Ended> {
    let made = async {
        let mut config = configuration(kubeconfig).await?;
        config.connect_timeout = Some(CONNECT);
        config.read_timeout = Some(Duration::from_secs(u64::from(WATCH_SECONDS) + 15));
        let namespace = namespace.map_or_else(|| config.default_namespace.clone(), str::to_owned);
        let client = Client::try_from(config).map_err(|error| error.to_string())?;
        Ok::<_, String>(Api::<EndpointSlice>::namespaced(client, &namespace))
    };
    let api = match made.await {
        Ok(api) => api,
        Err(error) => return Ok(error),
    };
    let asked = watcher::Config::default()
        .labels(&format!("kubernetes.io/service-name={service}"))
        .timeout(WATCH_SECONDS);
    let mut events = pin!(watcher(api.clone(), asked.clone()));
    let mut known: BTreeMap<String, EndpointSlice> = BTreeMap::new();
    let mut listing = BTreeMap::new();
    let mut portless = 0;
    let mut wait = AGAIN;
    loop {
        let event = tokio::select! {
            event = events.next() => event,
            () = source.found.closed() => return Err(Ended),
        };
        match event {
            Some(Ok(watcher::Event::Init)) => {
                listing.clear();
                continue;
            }
            Some(Ok(watcher::Event::InitApply(slice))) => {
                listing.insert(slice.name_any(), slice);
                continue;
            }
            Some(Ok(watcher::Event::InitDone)) => known = std::mem::take(&mut listing),
            Some(Ok(watcher::Event::Apply(slice))) => {
                known.insert(slice.name_any(), slice);
            }
            Some(Ok(watcher::Event::Delete(slice))) => {
                known.remove(&slice.name_any());
            }
            Some(Err(error)) => {
                source.failed(&error.to_string());
                tokio::select! {
                    () = tokio::time::sleep(jittered(wait)) => {}
                    () = source.found.closed() => return Err(Ended),
                }
                wait = (wait * 2).min(AGAIN_AT_MOST);
                events.set(watcher(api.clone(), asked.clone()));
                continue;
            }
            None => return Ok("the watch ended".to_owned()),
        }
        wait = AGAIN;
        let (replicas, without) = slices::replicas(&source.discovery, known.values());
        if without > 0 && portless == 0 {
            let place = &source.discovery.place;
            warn!(source = %place, endpoints = without, "endpoints lack the configured port name");
        }
        portless = without;
        source.tell(replicas).await?;
    }
}

async fn configuration(kubeconfig: Option<PathBuf>) -> Result<Config, String> {
    let Some(path) = kubeconfig else {
        return Config::infer().await.map_err(|error| error.to_string());
    };
    let file = Kubeconfig::read_from(path).map_err(|error| error.to_string())?;
    let made = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await;
    made.map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests;
