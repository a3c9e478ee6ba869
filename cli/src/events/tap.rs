//! Decodes, follows with the relay's own index, and prints.

use std::io::{self, Write};

use serde_json::json;
use warmpath_relay::events::{Batch, Event, Removed, Stored, decode};
use warmpath_relay::index::{Changes, Duplicates, GroupSummary, Limits, ModelScope, View};

use super::source::Frame;

/// The slot of where hits may end.
const ENDS: u32 = 100;

/// Keys printed of one event, in text.
const SHOWN: usize = 4;

/// How to print.
#[derive(Clone, Copy)]
pub(super) struct Show {
    pub(super) json: bool,
    pub(super) tokens: bool,
}

#[derive(Default, serde::Serialize)]
struct Counts {
    batches: u64,
    unreadable: u64,
    malformed: u64,
    events: u64,
    gaps: u64,
    restarts: u64,
    connections_lost: u64,
    view_cleared: u64,
}

/// The tap; what it believes is what the relay would, had it no replay.
pub(super) struct Tap {
    view: View,
    changes: Changes,
    next: Option<u64>,
    counts: Counts,
    show: Show,
}

impl Tap {
    pub(super) fn new(
        scope: ModelScope,
        duplicates: Duplicates,
        limits: Limits,
        show: Show,
    ) -> Self {
        let view = View::new(scope.into(), duplicates, limits);
        Self { view, changes: Changes::default(), next: None, counts: Counts::default(), show }
    }

    pub(super) fn batches(&self) -> u64 {
        self.counts.batches + self.counts.unreadable
    }

    /// Takes and prints one frame.
    pub(super) fn frame(&mut self, frame: &Frame, out: &mut impl Write) -> io::Result<()> {
        let sequence = frame.sequence;
        match self.next {
            Some(next) if sequence > next => {
                self.counts.gaps += 1;
                let what = format!("{} batches were lost", sequence - next);
                self.doubt("gap", &what, out)?;
            }
            Some(next) if sequence < next => {
                self.counts.restarts += 1;
                self.doubt("restart", "the engine's sequence restarted", out)?;
            }
            None if sequence > 0 => {
                self.note("late", "joined late: blocks stored before are not known", out)?;
            }
            _ => {}
        }
        self.next = Some(sequence.wrapping_add(1));
        let batch = match decode(&frame.payload) {
            Ok(batch) => batch,
            Err(error) => {
                self.counts.unreadable += 1;
                return self.doubt("unreadable", &format!("batch {sequence}: {error}"), out);
            }
        };
        self.counts.batches += 1;
        if !self.show.json {
            let rank = batch.rank.map(|rank| format!(", rank {rank}")).unwrap_or_default();
            let events = batch.events.len();
            writeln!(out, "{sequence}{rank}, {:.6}, {events} events", batch.time)?;
        }
        for event in &batch.events {
            self.event(sequence, &batch, event, out)?;
        }
        Ok(())
    }

    /// A message that is no frame.
    pub(super) fn malformed(&mut self, out: &mut impl Write) -> io::Result<()> {
        self.counts.malformed += 1;
        self.note("malformed", "a message that isn't topic, sequence and payload", out)
    }

    /// The engine is gone, and its cache may be.
    pub(super) fn lost(&mut self, out: &mut impl Write) -> io::Result<()> {
        self.counts.connections_lost += 1;
        let known = self.next.take().is_some();
        if known { self.doubt("lost", "the connection ended", out) } else { Ok(()) }
    }

    fn doubt(&mut self, kind: &str, what: &str, out: &mut impl Write) -> io::Result<()> {
        self.counts.view_cleared += 1;
        self.view.clear();
        self.note(kind, &format!("{what}; the view is cleared"), out)
    }

    fn note(&self, kind: &str, what: &str, out: &mut impl Write) -> io::Result<()> {
        if self.show.json {
            writeln!(out, "{}", json!({ "note": kind, "what": what }))
        } else {
            writeln!(out, "-- {what}")
        }
    }

    fn event(
        &mut self,
        sequence: u64,
        batch: &Batch,
        event: &Event,
        out: &mut impl Write,
    ) -> io::Result<()> {
        self.counts.events += 1;
        let before = self.view.len();
        if self.view.lacks_ends(event) {
            self.view.open_ends(ENDS, &mut self.changes);
        }
        if let Some(medium) = self.view.unopened(event) {
            let slot = 1 + self.view.tiers().count() as u32;
            self.view.open(medium, slot, &mut self.changes);
        }
        self.view.apply(event, 0, &mut self.changes);
        let (lost, held) = self.keys();
        let tiers: Vec<_> = self.view.tiers().map(|(tier, _, n)| (tier.name(), n)).collect();
        let all_lost = if *event == Event::Cleared { before } else { lost.len() };
        if self.show.json {
            let mut value = described(event, self.show.tokens);
            if let Some(object) = value.as_object_mut() {
                object.insert("sequence".into(), sequence.into());
                object.insert("rank".into(), batch.rank.into());
                object.insert("time".into(), batch.time.into());
                object.insert("lost".into(), lost.into());
                object.insert("held".into(), held.into());
                object.insert("prefixes".into(), self.view.len().into());
                if !tiers.is_empty() {
                    let tiers: serde_json::Map<_, _> =
                        tiers.iter().map(|(tier, n)| ((*tier).to_owned(), (*n).into())).collect();
                    object.insert("tier_prefixes".into(), tiers.into());
                }
            }
            return writeln!(out, "{value}");
        }
        write!(out, "    {}: +{} -{all_lost} prefixes", told(event), held.len())?;
        for (tier, prefixes) in &tiers {
            write!(out, ", {prefixes} by {tier}")?;
        }
        writeln!(out)?;
        for (sign, keys) in [('-', &lost), ('+', &held)] {
            for key in keys.iter().take(SHOWN) {
                writeln!(out, "        {sign} {key}")?;
            }
            if keys.len() > SHOWN {
                writeln!(out, "        {sign} and {} more", keys.len() - SHOWN)?;
            }
        }
        match event {
            Event::Stored(stored) if self.show.tokens => {
                let ids: Vec<_> = stored.tokens.iter().map(u32::to_string).collect();
                writeln!(out, "        tokens {}", ids.join(" "))
            }
            _ => Ok(()),
        }
    }

    /// Keys, in hexadecimal, that the last event took away from the GPU and added there.
    fn keys(&mut self) -> (Vec<String>, Vec<String>) {
        let mut lists = (Vec::new(), Vec::new());
        let hex = |key: &[u8; 16]| format!("{:032x}", u128::from_be_bytes(*key));
        let changes = self.changes.take().into_iter().flat_map(|blocks| blocks.changes);
        for change in changes.filter(|change| change.slot == 0) {
            lists.0.extend(change.lost.as_chunks().0.iter().map(hex));
            lists.1.extend(change.held.as_chunks().0.iter().map(hex));
        }
        lists
    }

    /// Prints the state of the index, and what was dropped and why.
    pub(super) fn summary(&self, out: &mut impl Write) -> io::Result<()> {
        let seen = self.view.seen();
        if self.show.json {
            let value = json!({ "summary": {
                "heard": self.counts,
                "held_engine_blocks": self.view.held_blocks(),
                "known_engine_blocks": self.view.known_blocks(),
                "waiting_tokens": self.view.waiting_tokens(),
                "announced_prefixes": self.view.len(),
                "tier_prefixes": self
                    .view
                    .tiers()
                    .map(|(tier, _, n)| (tier.name(), n))
                    .collect::<std::collections::BTreeMap<_, _>>(),
                "block_tokens": self.view.block_tokens(),
                "groups": self.view.groups(),
                "ends": self.view.ends().map(|_| self.view.end_keys().count()),
                "events": seen,
            }});
            return writeln!(out, "{value}");
        }
        let counts = &self.counts;
        writeln!(out, "\n{} batches, {} events", counts.batches, counts.events)?;
        writeln!(
            out,
            "index: {} engine blocks held, of {} tokens each; {} prefixes of 16 tokens announced",
            self.view.held_blocks(),
            self.view.block_tokens(),
            self.view.len()
        )?;
        writeln!(
            out,
            "       {} engine blocks known, {} tokens wait for the block before them",
            self.view.known_blocks(),
            self.view.waiting_tokens()
        )?;
        for group in self.view.groups() {
            let GroupSummary { group, what, block_tokens, counted } = group;
            let counted = if counted { "" } else { "; not counted" };
            writeln!(
                out,
                "       group {group}: {what}, blocks of {block_tokens} tokens{counted}"
            )?;
        }
        if self.view.ends().is_some() {
            let ends = self.view.end_keys().count();
            writeln!(out, "       hits may end at {ends} of them, by what all groups hold")?;
        }
        for (tier, _, prefixes) in self.view.tiers() {
            let tier = tier.name();
            writeln!(out, "       {prefixes} prefixes held by {tier} or a faster tier")?;
        }
        writeln!(out, "blocks stored {}, removed {}", seen.blocks_stored, seen.blocks_removed)?;
        for (count, what) in [
            (seen.clears, "times the engine cleared its cache"),
            (counts.gaps, "gaps in the sequence"),
            (counts.restarts, "sequence restarts"),
            (counts.connections_lost, "connections lost"),
            (counts.unreadable, "batches that can't be read"),
            (counts.malformed, "messages that are not batches"),
            (seen.stores_repeated, "stores taken for reports of what is held"),
            (seen.removals_unknown, "removals of blocks that weren't held"),
            (
                seen.blocks_nameless,
                "blocks dropped: more than tokens, adapter and salt goes into them",
            ),
            (
                seen.waiting_dropped,
                "blocks dropped: they waited too long for the block before them",
            ),
            (seen.evicted, "blocks dropped: the index was full"),
            (
                seen.other_group,
                "events dropped: a KV cache group of which it isn't known what hits need",
            ),
            (seen.other_medium, "events dropped: a tier that isn't the replica's own"),
            (seen.events_unknown, "events dropped: of an unknown kind"),
            (seen.events_unusable, "events dropped: they contradict themselves"),
        ] {
            if count > 0 {
                writeln!(out, "{count} {what}")?;
            }
        }
        Ok(())
    }
}

fn told(event: &Event) -> String {
    match event {
        Event::Stored(stored) => {
            let Stored { hashes, tokens, block_size, medium, group, .. } = stored;
            let group = group.map(|group| format!(", group {group}")).unwrap_or_default();
            let from = match stored.parent {
                Some(parent) => format!("after {parent}"),
                None if tokens.is_empty() => "named only".to_owned(),
                None => "from a prompt's start".to_owned(),
            };
            let adapter = stored.lora_name.as_deref().map(|name| format!(", adapter {name}"));
            format!(
                "stored {} blocks of {block_size} ({} tokens, {}{group}{}) {from}",
                hashes.len(),
                tokens.len(),
                medium.name(),
                adapter.unwrap_or_default()
            )
        }
        Event::Removed(Removed { hashes, medium, group }) => {
            let group = group.map(|group| format!(", group {group}")).unwrap_or_default();
            format!("removed {} blocks ({}{group})", hashes.len(), medium.name())
        }
        Event::Cleared => "cleared all".to_owned(),
        Event::Unknown => "an event of a kind that isn't known".to_owned(),
        Event::Unusable(why) => format!("an event that can't be used, {why}"),
    }
}

fn described(event: &Event, tokens: bool) -> serde_json::Value {
    let texts = |hashes: &[_]| hashes.iter().map(ToString::to_string).collect::<Vec<String>>();
    match event {
        Event::Stored(stored) => {
            let mut value = json!({
                "event": "stored",
                "blocks": texts(&stored.hashes),
                "parent": stored.parent.map(|hash| hash.to_string()),
                "block_tokens": stored.block_size,
                "tokens": stored.tokens.len(),
                "medium": stored.medium.name(),
                "adapter": stored.lora_name,
                "group": stored.group,
            });
            if tokens && let Some(object) = value.as_object_mut() {
                object.insert("token_ids".into(), stored.tokens.clone().into());
            }
            value
        }
        Event::Removed(removed) => json!({
            "event": "removed",
            "blocks": texts(&removed.hashes),
            "medium": removed.medium.name(),
            "group": removed.group,
        }),
        Event::Cleared => json!({ "event": "cleared" }),
        Event::Unknown => json!({ "event": "unknown" }),
        Event::Unusable(why) => json!({ "event": "unusable", "why": why }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two blocks of 16 stored from a prompt's start, as arrays; then the first removed.
    fn frames() -> Vec<Frame> {
        let store = rmpv_bytes(&json!([
            1.0,
            [["BlockStored", [11, 12], null, (100..132).collect::<Vec<_>>(), 16, null]],
            0
        ]));
        let remove = rmpv_bytes(&json!([2.0, [["BlockRemoved", [11]]], 0]));
        [store, remove]
            .into_iter()
            .enumerate()
            .map(|(i, payload)| Frame { sequence: i as u64, payload: payload.into() })
            .collect()
    }

    fn rmpv_bytes(value: &serde_json::Value) -> Vec<u8> {
        let mut bytes = Vec::new();
        let value = rmpv::ext::to_value(value).unwrap();
        rmpv::encode::write_value(&mut bytes, &value).unwrap();
        bytes
    }

    fn printed(frames: &[Frame], show: Show) -> String {
        let scope = ModelScope { version: "1".into(), tokenizer_hash: [1; 32] };
        let mut tap = Tap::new(scope, Duplicates::Doubt, Limits::default(), show);
        let mut out = Vec::new();
        for frame in frames {
            tap.frame(frame, &mut out).unwrap();
        }
        tap.summary(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn events_are_told_with_the_prefixes_that_they_lead_to() {
        let text = printed(&frames(), Show { json: false, tokens: false });
        assert!(
            text.contains("stored 2 blocks of 16 (32 tokens, GPU) from a prompt's start: +2 -0"),
            "{text}"
        );
        assert!(text.contains("removed 1 blocks (GPU): +0 -2 prefixes"), "{text}");
        assert!(text.contains("index: 1 engine blocks held"), "{text}");
    }

    #[test]
    fn token_ids_are_printed_only_when_asked_for() {
        for json in [false, true] {
            let text = printed(&frames(), Show { json, tokens: false });
            assert!(!text.contains("107") && !text.contains("token_ids"), "{text}");
            let text = printed(&frames(), Show { json, tokens: true });
            assert!(text.contains("106") && text.contains("131"), "{text}");
        }
    }

    #[test]
    fn json_is_one_object_a_line_and_ends_with_the_summary() {
        let text = printed(&frames(), Show { json: true, tokens: false });
        let lines: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), 3);
        assert_eq!(lines[0]["held"].as_array().unwrap().len(), 2);
        assert_eq!(lines[1]["lost"].as_array().unwrap().len(), 2);
        assert_eq!(lines[2]["summary"]["held_engine_blocks"], 1);
    }

    #[test]
    fn what_breaks_the_view_is_said_and_counted() {
        let mut all = frames();
        all[1].sequence = 5;
        all.push(Frame { sequence: 6, payload: b"\xc1".as_slice().into() });
        all.push(Frame { sequence: 0, payload: frames()[0].payload.clone() });
        let text = printed(&all, Show { json: false, tokens: false });
        for words in [
            "-- 4 batches were lost; the view is cleared",
            "-- batch 6: ",
            "-- the engine's sequence restarted",
            "1 gaps in the sequence",
            "1 batches that can't be read",
            "2 prefixes of 16 tokens announced",
        ] {
            assert!(text.contains(words), "{words:?} in {text}");
        }
    }
}
