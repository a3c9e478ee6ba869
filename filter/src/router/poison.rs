//! Prompts during which engines died, as this worker knows them: the table in shared data, and what
//! it has to add to it.

use warmpath_routing::poison::{Death, Naming, Poison, Prompt, Secret, Table, Verdict};

use crate::host::HostError;
use crate::shared::{self, Data};
use warmpath_prompt::Body;

/// How often a change is tried while other workers write as well; then it waits for the next tick.
const TRIES: usize = 4;

/// Changes that may wait so; what is beyond is lost.
const MOST_CHANGES: usize = 256;

/// A prompt that has become refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refused {
    pub(super) prompt: u128,
    pub(super) ms: u64,
    /// As [`PoisonPrompts::engine`] names them.
    pub(super) engines: Vec<u64>,
}

#[derive(Clone, Debug)]
enum Change {
    Died(Death),
    Answered(u128),
}

/// Doubtful answers that are kept; what is beyond is not followed.
const MOST_DOUBTFUL: usize = 64;
/// How long an engine may take to go down after one, in milliseconds.
const DOUBT_MS: u64 = 30_000;

/// An engine said that it failed, as vLLM does with its last words: 500, and then the process ends.
#[derive(Clone, Debug)]
pub(super) struct Doubtful {
    pub(super) prompt: Prompt,
    /// The replica's name, and its endpoint.
    pub(super) name: u64,
    pub(super) endpoint: String,
    /// The client's address.
    pub(super) client: String,
    pub(super) at_ms: u64,
}

/// The workers' common table.
pub(super) struct PoisonPrompts {
    rule: Poison,
    /// What shared data said, and what has changed since.
    known: Option<(Naming, Table)>,
    /// The version of it that was read.
    version: Option<u32>,
    /// What the other workers have not been told.
    changes: Vec<Change>,
    /// They were told something since the last tick.
    told: bool,
    /// Engines that may be about to die.
    doubtful: Vec<Doubtful>,
}

impl PoisonPrompts {
    pub(super) fn new(rule: Poison) -> Self {
        Self {
            rule,
            known: None,
            version: None,
            changes: Vec::new(),
            told: false,
            doubtful: Vec::new(),
        }
    }

    /// Reads what has changed, and tells what there is to tell. Gives what became refused by that.
    ///
    /// # Errors
    /// Where shared data can't be read or written: the status that Envoy gave; the next tick tries again.
    pub(super) fn refresh(&mut self, data: &mut impl Data) -> Result<Vec<Refused>, HostError> {
        self.told = false;
        if !self.changes.is_empty() {
            return self.tell(data);
        }
        let found = match data.get_versioned(shared::POISON)? {
            None => {
                // Of several workers that begin at once the last one's secret stays, which the
                // others find with their next tick.
                data.set_if(shared::POISON, &self.table().encode(), 0)?;
                data.get_versioned(shared::POISON)?
            }
            found => found,
        };
        let Some((bytes, version)) = found else { return Ok(Vec::new()) };
        if self.version != Some(version) || self.known.is_none() {
            match Table::decode(&bytes) {
                Some(table) => self.adopt(table),
                // Nobody can have written this.
                None => drop(data.set_if(shared::POISON, &self.table().encode(), version)?),
            }
            self.version = Some(version);
        }
        Ok(Vec::new())
    }

    /// What a request is called by its body; `None` without one, and before shared data was read.
    /// `content_length`: what the client says of a body that is not read whole.
    pub(super) fn name(&self, body: Body<'_>, content_length: Option<u64>) -> Option<Prompt> {
        let (naming, _) = self.known.as_ref()?;
        match body {
            Body::None(_) => None,
            Body::Whole(bytes) => Some(naming.whole(bytes)),
            Body::TooLarge(_, start) => Some(naming.start(start, content_length)),
        }
    }

    /// What an engine is called by its endpoint.
    pub(super) fn engine(&self, endpoint: &str) -> u64 {
        self.text(endpoint)
    }

    /// What a client is called by its address.
    pub(super) fn client(&self, address: &str) -> u64 {
        self.text(address)
    }

    fn text(&self, text: &str) -> u64 {
        self.known.as_ref().map_or(0, |(naming, _)| naming.text(text))
    }

    /// Whether engines died during this prompt.
    pub(super) fn knows(&self, prompt: Option<Prompt>) -> bool {
        self.known.as_ref().zip(prompt).is_some_and(|((_, table), it)| table.knows(it.id))
    }

    /// Whether it is to be refused.
    pub(super) fn refuses(&self, prompt: Option<Prompt>, now_ms: u64) -> bool {
        let known = self.known.as_ref().zip(prompt);
        known.is_some_and(|((_, table), it)| table.refuses(it.id, now_ms))
    }

    /// How many are.
    pub(super) fn refused(&self, now_ms: u64) -> usize {
        self.known.as_ref().map_or(0, |(_, table)| table.refused(now_ms))
    }

    /// Whether there is something to tell yet.
    pub(super) fn has_news(&self) -> bool {
        !self.changes.is_empty()
    }

    /// An engine failed at a prompt, and may be about to die of it.
    pub(super) fn doubt(&mut self, doubtful: Doubtful) {
        if self.rule.engines > 0 && self.doubtful.len() < MOST_DOUBTFUL {
            self.doubtful.push(doubtful);
        }
    }

    /// Those that are down since; who still serves after a while is forgotten.
    pub(super) fn gone(&mut self, is_down: impl Fn(u64) -> bool, now_ms: u64) -> Vec<Doubtful> {
        if self.doubtful.is_empty() {
            return Vec::new();
        }
        let fresh = |it: &Doubtful| now_ms.saturating_sub(it.at_ms) <= DOUBT_MS;
        let (gone, left) = std::mem::take(&mut self.doubtful)
            .into_iter()
            .filter(fresh)
            .partition(|it| is_down(it.name));
        self.doubtful = left;
        gone
    }

    /// Engines died during a prompt. Gives what became refused by that.
    ///
    /// # Errors
    /// Where shared data can't be read or written: the status that Envoy gave; the next tick tries again.
    pub(super) fn died(
        &mut self,
        data: &mut impl Data,
        death: Death,
    ) -> Result<Vec<Refused>, HostError> {
        if self.rule.engines == 0 {
            return Ok(Vec::new());
        }
        if let Some((_, table)) = &mut self.known {
            table.died(&self.rule, &death);
        }
        self.change(data, Change::Died(death))
    }

    /// An engine answered a prompt to its end.
    ///
    /// # Errors
    /// Where shared data can't be read or written: the status that Envoy gave; the next tick tries again.
    pub(super) fn answered(
        &mut self,
        data: &mut impl Data,
        prompt: Prompt,
    ) -> Result<(), HostError> {
        let table = self.known.as_mut().map(|(_, table)| table);
        if table.is_some_and(|table| table.answered(prompt.id)) {
            self.change(data, Change::Answered(prompt.id))?;
        }
        Ok(())
    }

    fn change(&mut self, data: &mut impl Data, change: Change) -> Result<Vec<Refused>, HostError> {
        if self.changes.len() < MOST_CHANGES {
            self.changes.push(change);
        }
        // Where an engine dies that had many requests the workers would only be in each other's way.
        if std::mem::replace(&mut self.told, true) {
            return Ok(Vec::new());
        }
        self.tell(data)
    }

    fn tell(&mut self, data: &mut impl Data) -> Result<Vec<Refused>, HostError> {
        for _ in 0..TRIES {
            let found = data.get_versioned(shared::POISON)?;
            let version = found.as_ref().map_or(0, |(_, version)| *version);
            let before = found.and_then(|(bytes, _)| Table::decode(&bytes));
            let mut table = before.clone().unwrap_or_else(|| self.table());
            if self.known.as_ref().is_none_or(|(_, known)| known.secret() != table.secret()) {
                // What was named under another secret means nothing.
                self.changes.clear();
                self.adopt(table);
                return Ok(Vec::new());
            }
            let mut refused = Vec::new();
            for change in &self.changes {
                match change {
                    Change::Died(death) => {
                        if let Verdict::Refused { ms, engines } = table.died(&self.rule, death) {
                            refused.push(Refused { prompt: death.prompt, ms, engines });
                        }
                    }
                    Change::Answered(prompt) => drop(table.answered(*prompt)),
                }
            }
            if before.as_ref() == Some(&table)
                || data.set_if(shared::POISON, &table.encode(), version)?
            {
                self.changes.clear();
                self.adopt(table);
                return Ok(refused);
            }
        }
        Ok(Vec::new())
    }

    /// What this worker would write where there is nothing.
    fn table(&self) -> Table {
        match &self.known {
            Some((_, table)) => table.clone(),
            None => Table::new(Secret::random()),
        }
    }

    fn adopt(&mut self, table: Table) {
        self.version = None;
        match &mut self.known {
            Some((naming, known)) if naming.secret() == table.secret() => *known = table,
            known => *known = Some((Naming::new(table.secret()), table)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use warmpath_routing::requested::Requested;

    use super::*;
    use warmpath_prompt::Large;

    /// One value under a version, as Envoy has it.
    #[derive(Clone, Default)]
    struct Board(Rc<RefCell<Written>>);

    #[derive(Default)]
    struct Written {
        value: Option<Vec<u8>>,
        version: u32,
        /// Writes that come too late.
        in_vain: usize,
        writes: usize,
    }

    impl Data for Board {
        fn get(&self, _: &[u8]) -> Result<Option<Vec<u8>>, HostError> {
            Ok(self.0.borrow().value.clone())
        }

        fn set(&mut self, key: &[u8], value: &[u8]) -> Result<(), HostError> {
            self.set_if(key, value, 0).map(drop)
        }

        fn get_versioned(&self, key: &[u8]) -> Result<Option<(Vec<u8>, u32)>, HostError> {
            assert_eq!(key, shared::POISON);
            let written = self.0.borrow();
            Ok(written.value.clone().map(|value| (value, written.version)))
        }

        fn set_if(&mut self, _: &[u8], value: &[u8], version: u32) -> Result<bool, HostError> {
            let mut written = self.0.borrow_mut();
            written.writes += 1;
            if written.in_vain > 0 {
                written.in_vain -= 1;
                written.version += 1;
            }
            let fits = version == 0 || version == written.version;
            if fits {
                written.value = Some(value.to_vec());
                written.version += 1;
            }
            Ok(fits)
        }
    }

    const NOW: u64 = 1_000_000;

    fn worker() -> PoisonPrompts {
        PoisonPrompts::new(Poison::default())
    }

    fn death(prompt: Option<Prompt>, engine: u64) -> Death {
        Death { prompt: prompt.unwrap().id, client: 1, engines: vec![engine], at_ms: NOW }
    }

    fn two(board: &Board) -> (PoisonPrompts, PoisonPrompts) {
        let (mut a, mut b) = (worker(), worker());
        assert_eq!(a.name(Body::Whole(b"a body"), None), None, "the secret is not known yet");
        for worker in [&mut a, &mut b] {
            worker.refresh(&mut board.clone()).unwrap();
        }
        (a, b)
    }

    #[test]
    fn workers_tell_each_other_what_engines_died_of() {
        let mut board = Board::default();
        let (mut a, mut b) = two(&board);
        let prompt = a.name(Body::Whole(b"a body"), None);
        assert_eq!(prompt, b.name(Body::Whole(b"a body"), None));
        assert_ne!(prompt, a.name(Body::TooLarge(&Large::new(None), b"a body"), None));
        assert_eq!(a.name(Body::None(&Requested::Nothing), None), None);
        assert_eq!(a.died(&mut board, death(prompt, 10)).unwrap(), []);
        assert!(a.knows(prompt) && !b.knows(prompt));
        b.refresh(&mut board).unwrap();
        assert!(b.knows(prompt) && !b.refuses(prompt, NOW));

        // Who tells of the second one says so, once.
        let said = b.died(&mut board, death(prompt, 11)).unwrap();
        let refused = Refused { prompt: prompt.unwrap().id, ms: 300_000, engines: vec![10, 11] };
        assert_eq!(said, [refused]);
        assert_eq!(a.refresh(&mut board).unwrap(), []);
        assert!(a.refuses(prompt, NOW) && b.refuses(prompt, NOW) && !a.refuses(None, NOW));
        assert_eq!((a.refused(NOW), b.refused(NOW)), (1, 1));

        b.answered(&mut board, prompt.unwrap()).unwrap();
        b.refresh(&mut board).unwrap();
        a.refresh(&mut board).unwrap();
        assert!(!a.knows(prompt) && !b.knows(prompt));
        let off = Poison { engines: 0, ..Poison::default() };
        let mut off = PoisonPrompts::new(off);
        off.refresh(&mut board).unwrap();
        off.died(&mut board, death(prompt, 10)).unwrap();
        assert!(!off.knows(prompt));
    }

    #[test]
    fn what_others_were_quicker_with_is_told_with_the_next_tick() {
        let mut board = Board::default();
        let (mut a, mut b) = two(&board);
        let prompt = a.name(Body::Whole(b"a body"), None);
        board.0.borrow_mut().in_vain = 2;
        a.died(&mut board, death(prompt, 10)).unwrap();
        assert!(!a.has_news(), "a few times are tried");
        a.refresh(&mut board).unwrap();
        board.0.borrow_mut().in_vain = TRIES;
        assert_eq!(a.died(&mut board, death(prompt, 11)).unwrap(), []);
        assert!(a.has_news() && a.refuses(prompt, NOW), "here it counts at once");
        b.refresh(&mut board).unwrap();
        assert!(!b.refuses(prompt, NOW));
        assert_eq!(a.refresh(&mut board).unwrap().len(), 1);
        b.refresh(&mut board).unwrap();
        assert!(!a.has_news() && b.refuses(prompt, NOW));
    }

    #[test]
    fn a_storm_of_deaths_is_written_once_a_tick_and_stays_bounded() {
        let mut board = Board::default();
        let (mut a, mut b) = two(&board);
        let prompts: Vec<_> =
            (0..1_000_u32).map(|at| a.name(Body::Whole(&at.to_le_bytes()), None)).collect();
        let before = board.0.borrow().writes;
        for prompt in &prompts {
            a.died(&mut board, death(*prompt, 10)).unwrap();
        }
        assert!(a.changes.len() <= MOST_CHANGES);
        a.refresh(&mut board).unwrap();
        assert_eq!(board.0.borrow().writes, before + 2);
        b.refresh(&mut board).unwrap();
        let known = |worker: &PoisonPrompts| prompts.iter().filter(|it| worker.knows(**it)).count();
        assert!(known(&b) > 1 && known(&a) == known(&b));
        // Nothing is written where nothing is new.
        for _ in 0..10 {
            a.refresh(&mut board).unwrap();
            a.answered(&mut board, a.name(Body::Whole(b"another"), None).unwrap()).unwrap();
        }
        assert_eq!(board.0.borrow().writes, before + 2);
    }

    #[test]
    fn workers_that_begin_at_once_end_up_with_one_secret() {
        let mut board = Board::default();
        let (mut a, mut b) = (worker(), worker());
        a.refresh(&mut board).unwrap();
        let prompt = a.name(Body::Whole(b"a body"), None);
        a.died(&mut board, death(prompt, 10)).unwrap();
        // One that saw nothing there yet writes its own.
        board.set(shared::POISON, &Table::new(Secret::random()).encode()).unwrap();
        b.refresh(&mut board).unwrap();
        a.died(&mut board, death(prompt, 11)).unwrap();
        a.refresh(&mut board).unwrap();
        assert_ne!(a.name(Body::Whole(b"a body"), None), prompt);
        assert_eq!(a.name(Body::Whole(b"a body"), None), b.name(Body::Whole(b"a body"), None));
        assert!(a.refused(NOW) == 0 && !a.has_news(), "what the old names meant is gone");
        // What nobody can have written is overwritten.
        board.set(shared::POISON, b"?").unwrap();
        for _ in 0..2 {
            b.refresh(&mut board).unwrap();
            a.refresh(&mut board).unwrap();
        }
        assert!(a.name(Body::Whole(b"a body"), None).is_some());
        assert_eq!(a.name(Body::Whole(b"a body"), None), b.name(Body::Whole(b"a body"), None));
        assert!(Table::decode(&board.get(b"").unwrap().unwrap()).is_some());
    }
}
