//! What a character is: its general category, and whether it is white space.

use std::collections::HashMap;
use std::sync::OnceLock;

use crate::tokenizer::categories::{NAMES, RUNS, SPACES};

const BLOCK: usize = 256;
const BLOCKS: usize = 0x11_0000 / BLOCK;

/// A set of general categories, one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Categories(pub(crate) u32);

impl Categories {
    /// `L`, `Lu`, …: one category, or all of one letter.
    pub(crate) fn named(name: &str) -> Option<Self> {
        let mut bits = 0;
        for (number, known) in NAMES.iter().enumerate() {
            if *known == name || (name.len() == 1 && known.starts_with(name)) {
                bits |= 1 << number;
            }
        }
        (bits != 0).then_some(Self(bits))
    }

    pub(crate) fn complement(self) -> Self {
        Self(!self.0 & ((1 << NAMES.len()) - 1))
    }

    pub(crate) fn has(self, category: u8) -> bool {
        (self.0 >> category) & 1 == 1
    }
}

/// The categories of all characters, in two steps of 256 so that a look-up is two loads.
pub(crate) struct CharTable {
    blocks: Vec<u16>,
    rows: Vec<[u8; BLOCK]>,
}

impl CharTable {
    /// The one table, built when it is first asked for.
    pub(crate) fn shared() -> &'static Self {
        static SHARED: OnceLock<CharTable> = OnceLock::new();
        SHARED.get_or_init(Self::new)
    }

    fn new() -> Self {
        let mut blocks = Vec::with_capacity(BLOCKS);
        let mut rows: Vec<[u8; BLOCK]> = Vec::new();
        let mut known = HashMap::new();
        let mut runs = RUNS.iter().peekable();
        let mut category = 0;
        for block in 0..BLOCKS {
            let mut row = [0; BLOCK];
            for (offset, place) in row.iter_mut().enumerate() {
                let char = (block * BLOCK + offset) as u32;
                while let Some(run) = runs.next_if(|run| **run >> 8 <= char) {
                    category = (*run & 0xff) as u8;
                }
                *place = category;
            }
            // Most blocks of the far planes are alike.
            let at = *known.entry(row).or_insert_with(|| {
                rows.push(row);
                rows.len() - 1
            });
            blocks.push(at as u16);
        }
        Self { blocks, rows }
    }

    pub(crate) fn category(&self, char: char) -> u8 {
        let char = char as usize;
        self.blocks
            .get(char / BLOCK)
            .and_then(|row| self.rows.get(usize::from(*row)))
            .and_then(|row| row.get(char % BLOCK))
            .copied()
            .unwrap_or(0)
    }
}

pub(crate) fn is_space(char: char) -> bool {
    match char {
        '\u{9}'..='\u{d}' | ' ' => true,
        '\0'..='\u{7f}' => false,
        _ => SPACES.contains(&(char as u32)),
    }
}

/// A character at `at`, which must be a boundary inside `text`.
pub(crate) fn char_at(text: &str, at: usize) -> Option<char> {
    text.get(at..)?.chars().next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn categories_are_found_at_both_ends_of_unicode() {
        let table = CharTable::shared();
        let name = |char| NAMES[usize::from(table.category(char))];
        assert_eq!(name('\0'), "Cc");
        assert_eq!(name('a'), "Ll");
        assert_eq!(name('ǅ'), "Lt");
        assert_eq!(name('漢'), "Lo");
        assert_eq!(name('½'), "No");
        assert_eq!(name('\u{301}'), "Mn");
        assert_eq!(name('🙂'), "So");
        assert_eq!(name('\u{10ffff}'), "Cn");
        assert!(table.rows.len() < 300, "{} rows", table.rows.len());
    }

    #[test]
    fn spaces_are_onigurumas() {
        assert!(is_space('\u{85}') && is_space('\u{a0}') && is_space('\u{3000}'));
        assert!(!is_space('\u{200b}') && !is_space('\u{1c}') && !is_space('x'));
    }

    #[test]
    fn names_stand_for_one_or_for_a_family() {
        assert_eq!(Categories::named("Lu").map(|c| c.0.count_ones()), Some(1));
        assert_eq!(Categories::named("L").map(|c| c.0.count_ones()), Some(5));
        assert_eq!(Categories::named("Han"), None);
    }
}
