//! What an engine block is called: its place in a chain of fingerprints.

use warmpath_routing::fingerprint::{Chain, Scope};

use super::node::{Id, Name, Named};
use super::view::{MIN_SWEEP, View};
use crate::events::{EngineHash, ExtraKeys, Stored};

impl View {
    /// Gives a node its place and content, if it lacks them; whether it did.
    pub(super) fn describe(
        &mut self,
        id: Id,
        parent: Id,
        first: bool,
        event: &Stored,
        index: usize,
        tokens: &[u32],
    ) -> bool {
        if !self.nodes.get(id).is_some_and(|node| matches!(node.name, Name::Unknown)) {
            // An engine's hash covers all that comes before: one hash, one content.
            return false;
        }
        let extra = event.extra_keys.get(index);
        let name = if first {
            self.nodes.unlink(id);
            self.root(event, extra).map(|chain| Name::Named(Named::new(chain, tokens)))
        } else if !self.nodes.link(id, parent) {
            self.seen.events_unusable += 1;
            return false;
        } else if covered(event, extra) {
            match self.nodes.get(parent).map(|parent| &parent.name) {
                Some(Name::Named(named)) => Some(Name::Named(Named::new(named.chain(), tokens))),
                Some(Name::Nameless) => None,
                _ => {
                    self.wait(id, tokens.len());
                    Some(Name::Waiting(tokens.into()))
                }
            }
        } else {
            None
        };
        if name.is_none() {
            self.seen.blocks_nameless += 1;
        }
        if let Some(node) = self.nodes.get_mut(id) {
            node.name = name.unwrap_or(Name::Nameless);
        }
        true
    }

    /// Gives a node the place and the name that an engine's own view has for it, if it lacks them;
    /// whether it did.
    pub(super) fn adopt(&mut self, id: Id, hash: EngineHash, engine: &View) -> bool {
        if !self.nodes.get(id).is_some_and(|node| matches!(node.name, Name::Unknown)) {
            return false;
        }
        let Some(known) = engine.nodes.find(&hash).and_then(|id| engine.nodes.get(id)) else {
            return false;
        };
        let name = match &known.name {
            Name::Named(named) => Name::Named(named.clone()),
            Name::Nameless => Name::Nameless,
            Name::Unknown | Name::Waiting(_) => return false,
        };
        if let Some(before) = engine.nodes.get(known.parent) {
            let parent = self.nodes.find_or_make(before.hash);
            if !self.nodes.link(id, parent) {
                self.prune(parent);
                return false;
            }
        }
        if let Some(node) = self.nodes.get_mut(id) {
            node.name = name;
        }
        true
    }

    /// The chain at the start of a prompt; none where fingerprints can't name it.
    fn root(&self, event: &Stored, extra: Option<&ExtraKeys>) -> Option<Chain> {
        let adapter = event.lora_name.as_deref().unwrap_or_default();
        if event.has_lora_id && adapter.is_empty() {
            return None;
        }
        let salt = match (event.cache_salt.as_deref(), extra) {
            (Some(salt), _) => salt,
            (None, None) => "",
            (None, Some(extra)) => match *besides(adapter, extra)?.as_slice() {
                [] => "",
                [salt] => salt,
                _ => return None,
            },
        };
        Some(Chain::new(&Scope {
            model_version: &self.scope.version,
            tokenizer_hash: &self.scope.tokenizer_hash,
            adapter,
            salt,
        }))
    }

    /// Notes a block whose tokens are kept until its parent is known.
    fn wait(&mut self, id: Id, tokens: usize) {
        let Some(hash) = self.nodes.get(id).map(|node| node.hash) else { return };
        self.waiting_tokens += tokens;
        self.waiting.push_back((id, hash));
        if self.waiting.len() > self.waiting_sweep {
            let nodes = &self.nodes;
            self.waiting.retain(|&(id, hash)| {
                let node = nodes.get(id);
                node.is_some_and(|n| n.hash == hash && matches!(n.name, Name::Waiting(_)))
            });
            self.waiting_sweep = 2 * self.waiting.len() + MIN_SWEEP;
        }
    }

    /// Forgets the tokens of the block that has waited longest.
    pub(super) fn drop_waiting(&mut self) -> bool {
        let Some((id, hash)) = self.waiting.pop_front() else { return false };
        if let Some(node) = self.nodes.get_mut(id)
            && node.hash == hash
            && let Name::Waiting(tokens) = &node.name
        {
            self.waiting_tokens -= tokens.len();
            self.seen.waiting_dropped += 1;
            node.name = Name::Unknown;
        }
        true
    }
}

/// Whether a block inside a prompt is told by its tokens and its adapter alone.
fn covered(event: &Stored, extra: Option<&ExtraKeys>) -> bool {
    let adapter = event.lora_name.as_deref().unwrap_or_default();
    extra.is_none_or(|extra| besides(adapter, extra).is_some_and(|rest| rest.is_empty()))
}

/// The texts beside the adapter's name, which stands on every block; none where there is more than
/// text.
fn besides<'a>(adapter: &str, extra: &'a ExtraKeys) -> Option<Vec<&'a str>> {
    let ExtraKeys::Texts(texts) = extra else { return None };
    let mut texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    if let Some(at) = texts.iter().position(|text| !adapter.is_empty() && *text == adapter) {
        texts.remove(at);
    }
    Some(texts)
}
