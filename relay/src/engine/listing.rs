//! What an engine says at `/v1/models`: the model that it serves, under which names, and adapters.
//!
//! vLLM and SGLang list the model once per served name (`id`, with the path in `root`) and each LoRA
//! adapter with its model as `parent`. What configuration says wins: names that it gives to
//! something else are not taken from an engine.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use serde::Deserialize;
use tokio::sync::Notify;
use warmpath_proto::v1;

use super::adapters::Adapters;
use crate::config::Model;

/// Bytes of an answer that are read.
pub(crate) const MAX_ANSWER: usize = 1 << 20;
/// Names of one engine, and of one model, that are taken, and the bytes of one.
const MAX_NAMES: usize = 1024;
const MAX_NAME: usize = 256;

/// An engine's list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// Names of the model.
    pub served: BTreeSet<String>,
    /// Where the engine has it from.
    roots: BTreeSet<String>,
    /// Names of LoRA adapters.
    pub adapters: BTreeSet<String>,
    /// Nothing was left out.
    whole: bool,
}

#[derive(Deserialize)]
struct Answer {
    data: Vec<Card>,
}

#[derive(Deserialize)]
struct Card {
    id: String,
    root: Option<String>,
    parent: Option<String>,
}

impl Listing {
    /// Reads an answer; none where it is none.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let answer: Answer = serde_json::from_slice(bytes).ok()?;
        let mut listing = Self::default();
        let fits = |name: &String| !name.is_empty() && name.len() <= MAX_NAME;
        let cards = answer.data.len();
        let fitting: Vec<_> =
            answer.data.into_iter().filter(|card| fits(&card.id)).take(MAX_NAMES).collect();
        listing.whole = fitting.len() == cards;
        for card in fitting {
            if card.parent.is_some_and(|parent| !parent.is_empty()) {
                listing.adapters.insert(card.id);
            } else {
                listing.served.insert(card.id);
                listing.roots.extend(card.root.filter(fits));
            }
        }
        Some(listing)
    }

    /// Where the engine has its model from: vLLM's `--model` (0.32.0,
    /// `entrypoints/openai/models/serving.py`). None where it says several, or just its name, as
    /// SGLang does.
    pub(crate) fn root(&self) -> Option<&str> {
        let mut roots = self.roots.iter().filter(|root| !self.served.contains(*root));
        roots.next().filter(|_| roots.next().is_none()).map(String::as_str)
    }

    /// Whether the engine serves a model that has one of these names.
    pub(crate) fn serves(&self, names: &[String]) -> bool {
        names.iter().any(|name| self.served.contains(name) || self.roots.contains(name))
    }
}

/// What the engines of all models say, for the table of models.
#[derive(Debug, Default)]
pub(crate) struct Listings {
    /// By model, then by engine.
    all: Mutex<BTreeMap<String, BTreeMap<String, Listing>>>,
    /// Adapters of each model by configuration.
    adapters: Mutex<BTreeMap<String, BTreeSet<String>>>,
    /// Something changed.
    pub(crate) changed: Notify,
}

impl Listings {
    /// What the configuration calls an adapter.
    pub(crate) fn configure(&self, models: &[Model]) {
        let of = |model: &Model| (model.name.clone(), model.adapters.iter().cloned().collect());
        if let Ok(mut adapters) = self.adapters.lock() {
            *adapters = models.iter().map(of).collect();
        }
    }

    /// The adapters that an engine of this model has loaded, by its list: those with a parent, and
    /// those without one that the configuration calls adapters. None where it isn't told whole.
    pub(crate) fn loaded(&self, model: &str, listing: &Listing) -> Option<Adapters> {
        let adapters = self.adapters.lock().ok()?;
        let configured = adapters.get(model);
        let without_parent =
            listing.served.iter().filter(|name| configured.is_some_and(|of| of.contains(*name)));
        let names = listing.adapters.iter().chain(without_parent).cloned();
        listing.whole.then(|| names.collect())
    }

    /// An engine's list, or none any more.
    pub(crate) fn put(&self, model: &str, engine: &str, listing: Option<Listing>) {
        let Ok(mut all) = self.all.lock() else { return };
        let before = all.get(model).and_then(|engines| engines.get(engine)).cloned();
        if before == listing {
            return;
        }
        let engines = all.entry(model.to_owned()).or_default();
        match listing {
            Some(listing) => engines.insert(engine.to_owned(), listing),
            None => engines.remove(engine),
        };
        self.changed.notify_one();
    }

    /// Adds to configured models what their engines list beside.
    pub(crate) fn add_to(&self, models: &mut [v1::Model]) {
        let Ok(all) = self.all.lock() else { return };
        let mut taken: BTreeSet<String> = BTreeSet::new();
        for model in models.iter() {
            taken.extend(model.served_names.iter().chain(&model.adapters).cloned());
        }
        for model in models {
            let engines = all.get(&model.name).into_iter().flat_map(BTreeMap::values);
            for listing in engines {
                for name in &listing.served {
                    if model.served_names.len() < MAX_NAMES && taken.insert(name.clone()) {
                        model.served_names.push(name.clone());
                    }
                }
                for name in &listing.adapters {
                    if model.adapters.len() < MAX_NAMES && taken.insert(name.clone()) {
                        model.adapters.push(name.clone());
                    }
                }
            }
        }
    }
}

/// What the poller of one replica asks its engine for.
#[derive(Clone, Debug)]
pub struct Asking {
    /// The model's name in the configuration.
    pub(crate) model: String,
    /// The names of which the engine has to list one.
    pub(crate) names: Vec<String>,
    /// Where its list goes.
    pub(crate) listings: Arc<Listings>,
}

#[cfg(test)]
mod tests {
    use super::*;

    const VLLM: &str = r#"{"object": "list", "data": [
        {"id": "demo", "object": "model", "root": "/models/demo", "parent": null, "max_model_len": 8},
        {"id": "alias", "root": "/models/demo", "parent": null},
        {"id": "sql", "root": "/loras/sql", "parent": "demo"}]}"#;

    fn names(list: &[&str]) -> Vec<String> {
        list.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn models_and_adapters_are_told_apart() {
        let listing = Listing::parse(VLLM.as_bytes()).unwrap();
        assert!(listing.served.iter().eq(["alias", "demo"]));
        assert!(listing.adapters.iter().eq(["sql"]));
        assert!(listing.serves(&names(&["other", "demo"])));
        assert!(listing.serves(&names(&["/models/demo"])), "by what the engine has it from");
        assert!(!listing.serves(&names(&["sql", "/loras/sql"])), "an adapter is not the model");
        assert_eq!(listing.root(), Some("/models/demo"));
        let sglang = br#"{"data": [{"id": "demo", "root": "demo"}]}"#;
        assert_eq!(Listing::parse(sglang).unwrap().root(), None);
        for wrong in ["", "[]", "{}", r#"{"data": [{"id": 5}]}"#, r#"{"data": 1}"#] {
            assert_eq!(Listing::parse(wrong.as_bytes()), None, "{wrong}");
        }
        let many: Vec<_> =
            (0..5_000).map(|i| serde_json::json!({"id": format!("a{i}"), "parent": "m"})).collect();
        let many = serde_json::json!({ "data": many }).to_string();
        assert_eq!(Listing::parse(many.as_bytes()).unwrap().adapters.len(), MAX_NAMES);
        let long = serde_json::json!({"data": [{"id": "x".repeat(300)}]}).to_string();
        assert_eq!(Listing::parse(long.as_bytes()).unwrap(), Listing::default());
    }

    #[test]
    fn what_an_engine_has_loaded_is_known_where_its_list_is_whole() {
        let listings = Listings::default();
        let loaded = |text: &str| {
            let adapters = listings.loaded("demo", &Listing::parse(text.as_bytes()).unwrap());
            adapters.map(|adapters| adapters.names().to_vec())
        };
        assert_eq!(loaded(VLLM), Some(names(&["sql"])));
        assert_eq!(loaded(r#"{"data": [{"id": "demo"}]}"#), Some(names(&[])));
        // Some list adapters without a parent.
        let model = Model {
            name: "demo".into(),
            path: None,
            version: "1".into(),
            tokenizer_hash: None,
            served_names: names(&["demo"]),
            adapters: names(&["alias"]),
            from_engine: true,
            serving: warmpath_prompt::Serving::default(),
            drop: None,
        };
        listings.configure(&[model]);
        assert_eq!(loaded(VLLM), Some(names(&["alias", "sql"])));
        let cards = |count: usize, id: &str| {
            let cards: Vec<_> = (0..count)
                .map(|i| serde_json::json!({"id": format!("{id}{i}"), "parent": "demo"}))
                .collect();
            serde_json::json!({ "data": cards }).to_string()
        };
        assert_eq!(loaded(&cards(MAX_NAMES, "a")).map(|names| names.len()), Some(MAX_NAMES));
        assert_eq!(loaded(&cards(MAX_NAMES + 1, "a")), None);
        assert_eq!(loaded(&cards(2, &"x".repeat(MAX_NAME))), None);
    }

    #[test]
    fn what_engines_list_is_added_and_configuration_wins() {
        let model = |name: &str, adapters: &[&str]| v1::Model {
            name: name.into(),
            served_names: names(&[name]),
            adapters: names(adapters),
            ..v1::Model::default()
        };
        let configured = [model("demo", &["own"]), model("other", &["sql"])];
        let listings = Listings::default();
        let table = || {
            let mut models = configured.clone();
            listings.add_to(&mut models);
            models.map(|model| (model.served_names, model.adapters))
        };
        let listing = Listing::parse(VLLM.as_bytes());
        let mut more = listing.clone().unwrap();
        more.adapters.extend(names(&["math", "own"]));
        listings.put("demo", "a", listing);
        listings.put("demo", "b", Some(more));
        let [demo, other] = table();
        assert_eq!(demo, (names(&["demo", "alias"]), names(&["own", "math"])), "sql is other's");
        assert_eq!(other, (names(&["other"]), names(&["sql"])));
        listings.put("demo", "b", None);
        assert_eq!(table()[0], (names(&["demo", "alias"]), names(&["own"])));
    }
}
