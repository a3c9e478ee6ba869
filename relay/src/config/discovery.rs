//! Sources of replicas, checked.

use std::collections::HashMap;

use serde_saphyr::Spanned;

use super::check::Checker;
use super::raw::{RawDiscovery, RawKubernetes};
use super::{ConfigError, Discovery, Model, Place, Port, Ranks};

/// Data-parallel ranks at one address.
const MAX_RANKS: u32 = 1024;

impl Checker<'_> {
    pub(super) fn discovery(
        &self,
        i: usize,
        raw: &RawDiscovery,
        models: &[Model],
        by_name: &HashMap<String, usize>,
    ) -> Result<Discovery, ConfigError> {
        let field = |name: &str| format!("discovery[{i}].{name}");
        let at = raw.port.referenced;
        let place = match (&raw.dns, &raw.kubernetes) {
            (Some(dns), None) => Place::Dns {
                name: self.named(&field("dns"), dns)?,
                every: self.millis(&field("every_ms"), raw.every_ms.as_ref(), 5_000, 3_600_000)?,
            },
            (None, Some(of)) => {
                if let Some(every) = &raw.every_ms {
                    let what = "is of no use: Kubernetes tells what changes";
                    return Err(self.error(every.referenced, &field("every_ms"), what));
                }
                self.kubernetes(&field("kubernetes"), &of.value)?
            }
            _ => {
                let what = "needs either dns or kubernetes";
                return Err(self.error(at, &format!("discovery[{i}]"), what));
            }
        };
        let port = |name: &str, port: &Spanned<Port>| {
            let what = match (&port.value, &place) {
                (Port::Number(0), _) => "0 is no port",
                (Port::Name(_), Place::Dns { .. }) => "must be a number, as DNS names no ports",
                (port, _) => return Ok(port.clone()),
            };
            Err(self.error(port.referenced, &field(name), what))
        };
        let optional = |name: &str, raw: &Option<Spanned<Port>>| {
            raw.as_ref().map(|raw| port(name, raw)).transpose()
        };
        if raw.replay_port.is_some() && raw.events_port.is_none() {
            let what = "is of no use without events_port";
            return Err(self.error(at, &field("replay_port"), what));
        }
        let model = self.model_of(&field("model"), &raw.model, by_name)?;
        let adapters =
            self.adapters(&format!("discovery[{i}]"), raw.adapters.as_ref(), models.get(model))?;
        Ok(Discovery {
            port: port("port", &raw.port)?,
            pool: self.named(&field("pool"), &raw.pool)?,
            model,
            store: self.store(&format!("discovery[{i}]"), raw.shared_store.as_ref())?,
            weight: self.weight(&format!("discovery[{i}]"), raw.weight.as_ref())?,
            adapters,
            events_port: optional("events_port", &raw.events_port)?,
            replay_port: optional("replay_port", &raw.replay_port)?,
            duplicates: raw.duplicates,
            ranks: self.ranks(i, raw)?,
            place,
        })
    }

    /// The ranks at each address that is found, and room for their ports.
    fn ranks(&self, i: usize, raw: &RawDiscovery) -> Result<Option<Ranks>, ConfigError> {
        let field = |name: &str| format!("discovery[{i}].{name}");
        let Some(count) = &raw.ranks else {
            return match &raw.first_rank {
                Some(first) => {
                    let what = "is of no use without ranks";
                    Err(self.error(first.referenced, &field("first_rank"), what))
                }
                None => Ok(None),
            };
        };
        if !(1..=MAX_RANKS).contains(&count.value) {
            let what = format!("{} is not from 1 to {MAX_RANKS}", count.value);
            return Err(self.error(count.referenced, &field("ranks"), what));
        }
        let ranks = Ranks {
            count: count.value,
            first: raw.first_rank.as_ref().map_or(0, |first| first.value),
        };
        let last = ranks.first.saturating_add(ranks.count - 1);
        for (name, port) in [("events_port", &raw.events_port), ("replay_port", &raw.replay_port)] {
            let Some(port) = port else { continue };
            if let Port::Number(number) = port.value
                && u32::from(number).saturating_add(last) > u32::from(u16::MAX)
            {
                let what = format!("{number} + rank {last} is no port");
                return Err(self.error(port.referenced, &field(name), what));
            }
        }
        Ok(Some(ranks))
    }

    fn kubernetes(&self, field: &str, raw: &RawKubernetes) -> Result<Place, ConfigError> {
        let kubeconfig = match &raw.kubeconfig {
            None => None,
            Some(file) => {
                let full = self.directory.join(&file.value);
                if !full.is_file() {
                    let what = format!("{} is no file", full.display());
                    return Err(self.error(file.referenced, &format!("{field}.kubeconfig"), what));
                }
                Some(full)
            }
        };
        let namespace = raw.namespace.as_ref();
        Ok(Place::Kubernetes {
            service: self.named(&format!("{field}.service"), &raw.service)?,
            namespace: namespace
                .map(|name| self.named(&format!("{field}.namespace"), name))
                .transpose()?,
            kubeconfig,
        })
    }
}
