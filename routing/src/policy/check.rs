//! What a policy must hold to before anything is routed by it.

use std::collections::BTreeMap;

use super::zone::{could_mean, loose, says_nothing};
use super::{Policy, PolicyError, Zone};
use crate::poison::MOST_ENGINES;

impl Policy {
    /// Checks that names resolve, numbers make sense and no zone reaches outside itself.
    ///
    /// # Errors
    /// When something is wrong: [`PolicyError`], the first thing that is, with its field.
    pub fn check(&self) -> Result<(), PolicyError> {
        let known_region = |field: String, name: &String| {
            if self.regions.contains_key(name) {
                Ok(())
            } else {
                Err(PolicyError::Unknown { field, name: name.clone(), under: "regions" })
            }
        };
        for (field, empty) in [
            ("regions", self.regions.is_empty()),
            ("pools", self.pools.is_empty()),
            ("zones", self.zones.is_empty()),
            ("zone_source.header", self.zone_source.header.is_empty()),
        ] {
            if empty {
                return Err(PolicyError::Empty { field: field.into() });
            }
        }
        self.check_names()?;
        known_region("region".into(), &self.region)?;
        for (name, pool) in &self.pools {
            known_region(format!("pools.{name}.region"), &pool.region)?;
        }
        self.check_models()?;
        if let Some(name) = &self.zone_source.default
            && !self.zones.contains_key(name)
        {
            let field = "zone_source.default".into();
            return Err(PolicyError::Unknown { field, name: name.clone(), under: "zones" });
        }
        if let Some(at) = self.zone_source.void() {
            return Err(PolicyError::VoidSource { at });
        }
        for (at, name) in self.zone_source.named() {
            if !self.zones.contains_key(name) {
                let field = format!("zone_source.from[{at}]");
                return Err(PolicyError::Unknown { field, name: name.clone(), under: "zones" });
            }
        }
        for (zone, rule) in &self.zones {
            self.check_zone(zone, rule)?;
        }
        self.check_clusters()?;
        self.check_numbers()
    }

    fn check_zone(&self, zone: &str, rule: &Zone) -> Result<(), PolicyError> {
        if rule.is_unbounded() {
            return Err(PolicyError::Unbounded { zone: zone.into() });
        }
        if rule.regions.len() > 1 && rule.regions.iter().any(|name| name == "*") {
            return Err(PolicyError::StarAmongNames { zone: zone.into() });
        }
        // A name that no region has admits or forbids nothing: a slip of the pen, in a rule of law.
        for (list, names, under) in [
            ("regions", &rule.regions, "regions"),
            ("jurisdictions", &rule.jurisdictions, "regions.*.jurisdiction"),
            ("operators", &rule.operators, "regions.*.operator"),
            ("forbidden_operators", &rule.forbidden_operators, "regions.*.operator"),
        ] {
            let is_any = |name: &&String| list == "regions" && *name == "*";
            for name in names.iter().filter(|name| !is_any(name)) {
                let known = self.regions.iter().any(|(region, of)| match under {
                    "regions" => region == name,
                    "regions.*.jurisdiction" => of.jurisdiction == *name,
                    _ => of.operator == *name,
                });
                if !known {
                    let field = format!("zones.{zone}.{list}");
                    return Err(PolicyError::Unknown { field, name: name.clone(), under });
                }
            }
        }
        for pool in rule.clusters.keys() {
            if !self.pools.contains_key(pool) {
                let field = format!("zones.{zone}.clusters");
                return Err(PolicyError::Unknown { field, name: pool.clone(), under: "pools" });
            }
        }
        let mut any = false;
        for (name, pool) in &self.pools {
            let Some(region) = self.regions.get(&pool.region) else { continue };
            let judged = rule.judge(&pool.region, region);
            any |= judged.is_ok();
            match (judged, rule.clusters.contains_key(name)) {
                (Err(why), true) => {
                    return Err(PolicyError::Outside {
                        zone: zone.into(),
                        pool: name.clone(),
                        region: pool.region.clone(),
                        why,
                    });
                }
                (Ok(()), false) => {
                    return Err(PolicyError::NoCluster { zone: zone.into(), pool: name.clone() });
                }
                _ => {}
            }
        }
        if any { Ok(()) } else { Err(PolicyError::NoPool { zone: zone.into() }) }
    }

    /// No cluster is of two models: where the filter names no replica, Envoy takes any of its hosts.
    fn check_clusters(&self) -> Result<(), PolicyError> {
        let mut models: BTreeMap<&str, &str> = BTreeMap::new();
        for (zone, rule) in &self.zones {
            for (pool, cluster) in &rule.clusters {
                let Some(model) = self.pools.get(pool).map(|pool| pool.model.as_str()) else {
                    continue;
                };
                let other = *models.entry(cluster).or_insert(model);
                if other != model {
                    return Err(PolicyError::SharedCluster {
                        zone: zone.clone(),
                        pool: pool.clone(),
                        cluster: cluster.clone(),
                        other: other.into(),
                    });
                }
            }
        }
        Ok(())
    }

    /// Names are what operators think that they are: no two could be taken for each other, and none
    /// breaks out of a header, a list or a line of a log.
    fn check_names(&self) -> Result<(), PolicyError> {
        for (field, names) in [
            ("regions", self.regions.keys().collect::<Vec<_>>()),
            ("pools", self.pools.keys().collect()),
            ("zones", self.zones.keys().collect()),
        ] {
            let plain = |name: &&String| {
                let plain =
                    |byte: u8| matches!(byte, b'.' | b'_' | b'-') || byte.is_ascii_alphanumeric();
                !says_nothing(name) && name.bytes().all(plain)
            };
            if let Some(name) = names.iter().find(|name| !plain(name)) {
                return Err(PolicyError::Name {
                    field: field.into(),
                    name: (*name).clone(),
                    expected: "use ASCII letters, digits, '.', '_' and '-', with a letter or digit",
                });
            }
            // Punctuation parts regions (`eu-1-2`, `eu-12`); case alone doesn't.
            alike(field, &names, str::to_ascii_lowercase)?;
        }
        let mut jurisdictions = Vec::new();
        let mut operators = Vec::new();
        for (region, of) in &self.regions {
            for (what, name, all) in [
                ("jurisdiction", &of.jurisdiction, &mut jurisdictions),
                ("operator", &of.operator, &mut operators),
            ] {
                // Left out is allowed: zones whose rule asks for it then don't admit the region.
                let fits = name.is_empty() || (!says_nothing(name) && is_clear(name));
                if !fits {
                    return Err(PolicyError::Name {
                        field: format!("regions.{region}.{what}"),
                        name: name.clone(),
                        expected: "use printable ASCII with a letter or digit, and no blank at an \
                                   end",
                    });
                }
                if !name.is_empty() {
                    all.push(name);
                }
            }
        }
        alike("regions.*.jurisdiction", &jurisdictions, loose)?;
        alike("regions.*.operator", &operators, loose)?;
        self.check_spellings(&jurisdictions, &operators)
    }

    /// Rules spell jurisdictions and operators as regions do.
    fn check_spellings(
        &self,
        jurisdictions: &[&String],
        operators: &[&String],
    ) -> Result<(), PolicyError> {
        for (zone, rule) in &self.zones {
            let rules = rule.operators.iter().chain(&rule.forbidden_operators);
            for (what, names, known) in [
                ("operators", rules.collect::<Vec<_>>(), operators),
                ("jurisdictions", rule.jurisdictions.iter().collect(), jurisdictions),
            ] {
                // What has no letter is no name of a region's, which is told below.
                for name in names.into_iter().filter(|name| !says_nothing(name)) {
                    let other =
                        known.iter().find(|other| ***other != *name && could_mean(other, name));
                    if let Some(other) = other {
                        return Err(PolicyError::Alike {
                            field: format!("zones.{zone}.{what}"),
                            name: name.clone(),
                            other: (*other).clone(),
                        });
                    }
                }
            }
        }
        Ok(())
    }

    /// Each name in requests means one thing, and pools have what is configured.
    fn check_models(&self) -> Result<(), PolicyError> {
        let has_pool = |model: &String| self.pools.values().any(|pool| pool.model == *model);
        let mut meanings: BTreeMap<&str, String> = BTreeMap::new();
        for (name, pool) in &self.pools {
            if pool.model.is_empty() {
                return Err(PolicyError::Empty { field: format!("pools.{name}.model") });
            }
            if !self.models.contains_key(&pool.model) {
                meanings.insert(&pool.model, format!("the model {:?}", pool.model));
            }
        }
        for (model, names) in &self.models {
            if !has_pool(model) {
                return Err(PolicyError::Unknown {
                    field: "models".into(),
                    name: model.clone(),
                    under: "pools.*.model",
                });
            }
            let served = names.served_names(model);
            if served.is_empty() {
                return Err(PolicyError::Empty { field: format!("models.{model}.served_names") });
            }
            for (name, meaning) in served
                .iter()
                .map(|name| (name, format!("the model {model:?}")))
                .chain(names.adapters.iter().map(|name| (name, format!("an adapter of {model:?}"))))
            {
                if name.trim() != name || name.is_empty() || name.chars().any(char::is_control) {
                    return Err(PolicyError::Name {
                        field: format!("models.{model}"),
                        name: name.clone(),
                        expected: "write it as requests do, without blanks at an end or control \
                                   characters",
                    });
                }
                if let Some(other) = meanings.insert(name, meaning) {
                    let (model, name) = (model.clone(), name.clone());
                    return Err(PolicyError::NameTaken { model, name, other });
                }
            }
        }
        match &self.default_model {
            Some(name) if !meanings.contains_key(name.as_str()) => Err(PolicyError::Unknown {
                field: "default_model".into(),
                name: name.clone(),
                under: "models or pools.*.model",
            }),
            _ => Ok(()),
        }
    }

    fn check_numbers(&self) -> Result<(), PolicyError> {
        let range = |field, value: f64, low: f64, high: f64, expected| {
            if (low..=high).contains(&value) {
                Ok(())
            } else {
                Err(PolicyError::Range { field, value, expected })
            }
        };
        let cost = &self.cost;
        for (field, value) in [
            ("cost.prefill_base_ms", cost.prefill_base_ms),
            ("cost.prefill_ms_per_1k_tokens", cost.prefill_ms_per_1k_tokens),
            ("cost.prefill_ms_per_1m_pairs", cost.prefill_ms_per_1m_pairs),
            ("cost.cpu_ms_per_1k_tokens", cost.cpu_ms_per_1k_tokens),
            ("cost.disk_ms_per_1k_tokens", cost.disk_ms_per_1k_tokens),
            ("cost.shared_ms_per_1k_tokens", cost.shared_ms_per_1k_tokens),
            ("cost.queued_ms", cost.queued_ms),
            ("cost.running_ms", cost.running_ms),
            ("cost.tie_ms", cost.tie_ms),
            ("cost.abroad_ms_per_mb", cost.abroad_ms_per_mb),
            ("ejection.base_ms", self.ejection.base_ms as f64),
            ("ejection.most_ms", self.ejection.most_ms as f64),
        ] {
            range(field, value, 0.0, 3.6e6, "0 to 3600000 ms")?;
        }
        let poison = &self.poison;
        range("poison.engines", poison.engines as f64, 0.0, MOST_ENGINES as f64, "0 to 4")?;
        range("poison.refuse_ms", poison.refuse_ms as f64, 1e3, 3.6e6, "1000 to 3600000 ms")?;
        range("admission.batch_share", self.admission.batch_share, 0.0, 1.0, "0 to 1")?;
        let (wait_ms, waiting) = (self.admission.wait_ms as f64, self.admission.waiting as f64);
        range("admission.wait_ms", wait_ms, 0.0, 60_000.0, "0 to 60000 ms")?;
        range("admission.waiting", waiting, 0.0, 10_000.0, "0 to 10000")?;
        for region in self.regions.values() {
            range("regions.*.weight", region.weight, 0.0, 1e6, "0 to 1000000")?;
            range("regions.*.rtt_ms", region.rtt_ms, 0.0, 60_000.0, "0 to 60000 ms")?;
        }
        range("ring.load_factor", self.ring.load_factor, 1.0, 100.0, "1 to 100")?;
        range("ring.blocks", self.ring.blocks as f64, 1.0, 65_536.0, "1 to 65536")?;
        range("ring.load_floor", f64::from(self.ring.load_floor), 1.0, 1e6, "1 to 1000000")?;
        range("prefix_tokens", self.prefix_tokens as f64, 16.0, 1e6, "16 to 1000000")?;
        range("max_body_bytes", self.max_body_bytes as f64, 0.0, 6.4e7, "0 to 64000000")?;
        let (awaited, one) = (self.max_awaited_bytes as f64, self.max_body_bytes as f64);
        range("max_awaited_bytes", awaited, one, 4e9, "max_body_bytes to 4000000000")?;
        let inflated = self.max_inflated_bytes as f64;
        range("max_inflated_bytes", inflated, 0.0, 3.2e7, "0 to 32000000")?;
        range("stale_after_ms", self.stale_after_ms as f64, 100.0, 6e5, "100 to 600000 ms")?;
        range("endpoints", self.endpoints as f64, 1.0, 16.0, "1 to 16")
    }
}

/// Printable ASCII without a blank at an end.
fn is_clear(name: &str) -> bool {
    name.trim() == name && name.bytes().all(|byte| matches!(byte, b' '..=b'~'))
}

/// No two of the names come to the same when they are compared loosely.
fn alike(
    field: &str,
    names: &[&String],
    loosely: impl Fn(&str) -> String,
) -> Result<(), PolicyError> {
    let mut seen: BTreeMap<String, &String> = BTreeMap::new();
    for name in names {
        match seen.insert(loosely(name), name) {
            Some(other) if other != *name => {
                return Err(PolicyError::Alike {
                    field: field.into(),
                    name: (*name).clone(),
                    other: other.clone(),
                });
            }
            _ => {}
        }
    }
    Ok(())
}
