//! Which model a request asks for: by what the policy and the relay know of names.
//!
//! A name that nobody knows stays unknown. Nothing here falls back to another model.

use serde_json::{Value, json};

use crate::decision::residency::pools_of;
use crate::policy::{Policy, Zone};
use crate::requested::Requested;
use crate::view::{Model, Replica};

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wants<'a> {
    /// A model that is known.
    Model {
        /// Its name in the policy's `pools`.
        name: &'a str,
        /// The LoRA adapter on it; empty for none.
        adapter: &'a str,
    },
    /// A name that nobody knows.
    Unknown {
        /// The name.
        name: &'a str,
        /// The relay has announced its models: the name is wrong, and not only new.
        certain: bool,
    },
    /// Nothing, and there are several models.
    Unnamed,
    /// What it names could not be read, and there are several models.
    Unreadable,
}

/// What a request asks for, and what the relay has announced of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resolved<'a> {
    /// For the decision.
    pub wants: Wants<'a>,
    /// The model's place among those that the relay has announced.
    pub told: Option<usize>,
}

impl<'a> Resolved<'a> {
    fn only(wants: Wants<'a>) -> Self {
        Self { wants, told: None }
    }
}

/// Finds the model that a request means. `announced`: the models that the relay has announced, in an order
/// of their own; none before it was first heard.
///
/// The policy's names go first, then the relay's. Before the relay was heard, and where all pools are
/// of one model, an unknown name is taken for that one's: its engines know better.
pub fn resolve<'a>(
    policy: &'a Policy,
    announced: impl Iterator<Item = &'a Model> + Clone,
    requested: &'a Requested<'_>,
) -> Resolved<'a> {
    match requested {
        Requested::Name(name) => by_name(policy, announced, name),
        Requested::Nothing => match &policy.default_model {
            Some(default) => by_name(policy, announced, default),
            None => unnamed(policy, announced, Wants::Unnamed),
        },
        Requested::Unreadable => unnamed(policy, announced, Wants::Unreadable),
    }
}

fn by_name<'a>(
    policy: &'a Policy,
    announced: impl Iterator<Item = &'a Model> + Clone,
    name: &'a str,
) -> Resolved<'a> {
    if let Some((model, adapter)) = by_policy(policy, name) {
        return known(announced, model, adapter);
    }
    let mut models = announced.clone().enumerate();
    if let Some((at, model, adapter)) =
        models.find_map(|(at, model)| Some((at, model, model.adapter(name)?)))
    {
        let wants = Wants::Model { name: &model.name, adapter };
        return Resolved { wants, told: Some(at) };
    }
    // A pool's model goes by its own name where nothing lists others.
    let listed = policy.models.contains_key(name) || announced.clone().any(|it| it.name == name);
    if let Some(pool) = policy.pools.values().find(|pool| pool.model == name && !listed) {
        return Resolved::only(Wants::Model { name: &pool.model, adapter: "" });
    }
    let certain = announced.clone().next().is_some();
    match policy.only_model() {
        Some(only) if !certain && !policy.models.contains_key(only) => {
            Resolved::only(Wants::Model { name: only, adapter: "" })
        }
        _ => Resolved::only(Wants::Unknown { name, certain }),
    }
}

/// The only model there is, or what is wanted where there are several.
fn unnamed<'a>(
    policy: &'a Policy,
    announced: impl Iterator<Item = &'a Model> + Clone,
    several: Wants<'a>,
) -> Resolved<'a> {
    match policy.only_model() {
        Some(only) => known(announced, only, ""),
        None => Resolved::only(several),
    }
}

fn known<'a>(
    mut announced: impl Iterator<Item = &'a Model>,
    name: &'a str,
    adapter: &'a str,
) -> Resolved<'a> {
    let told = announced.position(|model| model.name == name);
    Resolved { wants: Wants::Model { name, adapter }, told }
}

/// By the policy's own lists.
fn by_policy<'a>(policy: &'a Policy, name: &'a str) -> Option<(&'a str, &'a str)> {
    policy.models.iter().find_map(|(model, names)| {
        if names.served_names(model).iter().any(|served| served == name) {
            Some((model.as_str(), ""))
        } else {
            names.adapters.iter().any(|adapter| adapter == name).then_some((model.as_str(), name))
        }
    })
}

/// A name that a zone's requests can ask for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The name.
    pub id: &'a str,
    /// The model, as pools name it.
    pub model: &'a str,
    /// The model's first name, if this is one of its adapters.
    pub parent: Option<&'a str>,
}

/// The models of the zone's pools, each once.
fn models_of<'a>(policy: &'a Policy, zone: &'a Zone) -> Vec<&'a str> {
    let mut models: Vec<&str> = Vec::new();
    for admitted in pools_of(policy, zone) {
        if !models.contains(&admitted.pool.model.as_str()) {
            models.push(&admitted.pool.model);
        }
    }
    models
}

/// All names that requests of a zone can ask for: served names first, each model's adapters after
/// them, in the policy's order.
pub fn of_zone<'a>(
    policy: &'a Policy,
    announced: &(impl Iterator<Item = &'a Model> + Clone),
    zone: &'a Zone,
) -> Vec<Entry<'a>> {
    let mut entries: Vec<Entry<'a>> = Vec::new();
    for model in models_of(policy, zone) {
        let names = policy.models.get_key_value(model);
        let known = announced.clone().find(|it| it.name == model);
        let mut served: Vec<&str> = Vec::new();
        served.extend(
            names.iter().flat_map(|(model, names)| names.served_names(model)).map(String::as_str),
        );
        served.extend(known.iter().flat_map(|it| &it.served_names).map(String::as_str));
        if served.is_empty() {
            served.push(model);
        }
        let adapters = names.iter().flat_map(|(_, names)| &names.adapters);
        let adapters = adapters.chain(known.iter().flat_map(|it| &it.adapters));
        let parent = served.first().copied();
        let all = served.iter().map(|id| (*id, None));
        for (id, parent) in all.chain(adapters.map(|id| (id.as_str(), parent))) {
            // What it means, and not only who lists it: the policy may have given the name away.
            let means = by_name(policy, announced.clone(), id).wants
                == Wants::Model { name: model, adapter: if parent.is_some() { id } else { "" } };
            if means && !entries.iter().any(|entry| entry.id == id) {
                entries.push(Entry { id, model, parent });
            }
        }
    }
    entries
}

/// Leaves out adapters that no replica of the zone has loaded, where that is known.
pub fn retain_loaded(
    policy: &Policy,
    replicas: &[Replica],
    zone: &Zone,
    entries: &mut Vec<Entry<'_>>,
) {
    entries.retain(|entry| {
        let is_of_model = |replica: &&Replica| {
            pools_of(policy, zone).any(|it| it.name == replica.pool && it.pool.model == entry.model)
        };
        let mut all = replicas.iter().filter(is_of_model).peekable();
        entry.parent.is_none() || all.peek().is_none() || all.any(|it| it.has_adapter(entry.id))
    });
}

/// The answer to `GET /v1/models`, as OpenAI's API and vLLM give it. `created`: seconds since 1970.
pub fn list(entries: &[Entry<'_>], created: u64) -> Value {
    let data: Vec<Value> = entries.iter().map(|entry| card(entry, created)).collect();
    json!({ "object": "list", "data": data })
}

/// The answer to `GET /v1/models/NAME`.
pub fn card(entry: &Entry<'_>, created: u64) -> Value {
    json!({
        "id": entry.id,
        "object": "model",
        "created": created,
        "owned_by": "warmpath",
        "root": entry.model,
        "parent": entry.parent,
    })
}

#[cfg(test)]
mod tests;
