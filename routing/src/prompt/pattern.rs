//! The regular expressions that tokenizers split text with.
//!
//! Only what these files use is understood: alternatives of character classes with repeats,
//! groups of literals, and `(?!\S)` after white space. Anything else is refused when the model is
//! prepared. In return there is no regex engine in the filter, and matching is exact and bounded:
//! leftmost, first alternative, greedy with backtracking, as Oniguruma does it.
//! The syntax is Oniguruma's (`doc/RE` in its sources), as `tokenizers` uses it.

use super::unicode::{Categories, CharTable, char_at, is_space};

/// A set of characters.
#[derive(Clone, Debug, Default, PartialEq)]
struct Class {
    negated: bool,
    space: bool,
    categories: Categories,
    ranges: Vec<(char, char)>,
    /// Membership of the first 128 characters, `negated` included.
    ascii: u128,
}

impl Class {
    fn holds(&self, table: &CharTable, char: char) -> bool {
        if (char as u32) < 128 {
            return (self.ascii >> (char as u32)) & 1 == 1;
        }
        self.negated
            != ((self.categories.0 != 0 && self.categories.has(table.category(char)))
                || (self.space && is_space(char))
                || self.ranges.iter().any(|(first, last)| (*first..=*last).contains(&char)))
    }

    fn finish(mut self, table: &CharTable) -> Self {
        for byte in 0..128u8 {
            let char = char::from(byte);
            let inside = self.categories.has(table.category(char))
                || (self.space && is_space(char))
                || self.ranges.iter().any(|(first, last)| (*first..=*last).contains(&char));
            if inside != self.negated {
                self.ascii |= 1 << byte;
            }
        }
        self
    }
}

#[derive(Clone, Debug, PartialEq)]
enum Atom {
    Class(Class),
    /// One of these, each a row of sets of characters: `(?i:'s|'t)`.
    Words(Vec<Vec<Vec<char>>>),
    /// The next character, if any, is white space: `(?!\S)`.
    NoWordNext,
}

#[derive(Clone, Debug, PartialEq)]
struct Item {
    atom: Atom,
    min: usize,
    max: usize,
    possessive: bool,
}

/// A compiled pattern.
#[derive(Debug)]
pub(super) struct Pattern {
    alternatives: Vec<Vec<Item>>,
    /// Per ASCII first character, a bit for each alternative that may match there.
    first: Vec<u32>,
}

/// Why a pattern is not understood.
pub(super) type Refusal = String;

impl Pattern {
    pub(super) fn compile(source: &str, table: &CharTable) -> Result<Self, Refusal> {
        let mut parser = Parser { chars: source.chars().collect(), at: 0, table };
        let mut alternatives = vec![Vec::new()];
        while let Some(char) = parser.peek() {
            if char == '|' {
                parser.at += 1;
                alternatives.push(Vec::new());
            } else if let Some(last) = alternatives.last_mut() {
                let item = parser.item()?;
                if item.atom == Atom::NoWordNext
                    && last.last().is_none_or(|item: &Item| item.min == 0)
                {
                    return Err("a look-ahead that does not follow a character".into());
                }
                last.push(item);
            }
        }
        if alternatives.len() > 32 {
            return Err(format!("{} alternatives, 32 are understood", alternatives.len()));
        }
        if alternatives.iter().any(|items| items.iter().all(|item| item.min == 0)) {
            return Err("an alternative that matches nothing".into());
        }
        let first = (0..128u8)
            .map(|byte| {
                let mut bits = 0;
                for (number, items) in alternatives.iter().enumerate() {
                    if may_start(items, char::from(byte), table) {
                        bits |= 1 << number;
                    }
                }
                bits
            })
            .collect();
        Ok(Self { alternatives, first })
    }

    /// The end of the match that starts at `at`, if one does.
    pub(super) fn match_at(&self, table: &CharTable, text: &str, at: usize) -> Option<usize> {
        let byte = *text.as_bytes().get(at)?;
        let mut bits = self.first.get(usize::from(byte)).copied().unwrap_or(u32::MAX);
        while bits != 0 {
            let number = bits.trailing_zeros() as usize;
            let Some(items) = self.alternatives.get(number) else { break };
            if let Some(end) = match_items(items, table, text, at) {
                return Some(end);
            }
            bits &= bits - 1;
        }
        None
    }

    /// Calls `piece` with the start and end of each match and of each gap between matches, in
    /// order, until it returns false. Returns whether it came to the end.
    pub(super) fn split(
        &self,
        table: &CharTable,
        text: &str,
        mut piece: impl FnMut(usize, usize) -> bool,
    ) -> bool {
        let mut gap = 0;
        let mut at = 0;
        while at < text.len() {
            if let Some(end) = self.match_at(table, text, at) {
                if (gap < at && !piece(gap, at)) || !piece(at, end) {
                    return false;
                }
                at = end;
                gap = end;
            } else {
                at += char_at(text, at).map_or(1, char::len_utf8);
            }
        }
        gap >= text.len() || piece(gap, text.len())
    }
}

fn may_start(items: &[Item], char: char, table: &CharTable) -> bool {
    for item in items {
        let starts = match &item.atom {
            Atom::Class(class) => class.holds(table, char),
            Atom::Words(words) => {
                words.iter().any(|word| word.first().is_some_and(|set| set.contains(&char)))
            }
            Atom::NoWordNext => true,
        };
        if starts {
            return true;
        }
        if item.min > 0 {
            return false;
        }
    }
    true
}

fn match_items(items: &[Item], table: &CharTable, text: &str, at: usize) -> Option<usize> {
    let Some((item, rest)) = items.split_first() else { return Some(at) };
    match &item.atom {
        Atom::NoWordNext => match char_at(text, at) {
            Some(char) if !is_space(char) => None,
            _ => match_items(rest, table, text, at),
        },
        Atom::Words(words) => {
            for word in words {
                if let Some(end) = match_word(word, text, at)
                    && let Some(end) = match_items(rest, table, text, end)
                {
                    return Some(end);
                }
            }
            if item.min == 0 { match_items(rest, table, text, at) } else { None }
        }
        Atom::Class(class) => {
            let mut end = at;
            let mut count = 0;
            let bytes = text.as_bytes();
            while count < item.max {
                match bytes.get(end) {
                    Some(byte) if *byte < 128 => {
                        if (class.ascii >> byte) & 1 == 0 {
                            break;
                        }
                        end += 1;
                    }
                    Some(_) => match char_at(text, end) {
                        Some(char) if class.holds(table, char) => end += char.len_utf8(),
                        _ => break,
                    },
                    None => break,
                }
                count += 1;
            }
            loop {
                if count < item.min {
                    return None;
                }
                if let Some(end) = match_items(rest, table, text, end) {
                    return Some(end);
                }
                if item.possessive || count == 0 {
                    return None;
                }
                end -=
                    text.get(..end).and_then(|t| t.chars().next_back()).map_or(1, char::len_utf8);
                count -= 1;
            }
        }
    }
}

fn match_word(word: &[Vec<char>], text: &str, mut at: usize) -> Option<usize> {
    for set in word {
        let char = char_at(text, at)?;
        if !set.contains(&char) {
            return None;
        }
        at += char.len_utf8();
    }
    Some(at)
}

struct Parser<'a> {
    chars: Vec<char>,
    at: usize,
    table: &'a CharTable,
}

impl Parser<'_> {
    fn peek(&self) -> Option<char> {
        self.chars.get(self.at).copied()
    }

    fn next(&mut self) -> Result<char, Refusal> {
        let char = self.peek().ok_or("it ends too early")?;
        self.at += 1;
        Ok(char)
    }

    fn eat(&mut self, what: &str) -> bool {
        let matches =
            what.chars().enumerate().all(|(i, char)| self.chars.get(self.at + i) == Some(&char));
        if matches {
            self.at += what.chars().count();
        }
        matches
    }

    fn item(&mut self) -> Result<Item, Refusal> {
        if self.eat("(?!\\S)") {
            return Ok(Item { atom: Atom::NoWordNext, min: 0, max: 0, possessive: false });
        }
        let atom = match self.next()? {
            '[' => Atom::Class(self.class()?),
            '\\' => {
                let mut class = Class::default();
                self.escape(&mut class, true)?;
                Atom::Class(class.finish(self.table))
            }
            '(' => {
                let fold = self.eat("?i:");
                if !fold && !self.eat("?:") {
                    return Err("a group other than (?:…), (?i:…) and (?!\\S)".into());
                }
                Atom::Words(self.words(fold)?)
            }
            char @ ('.' | '^' | '$' | '*' | '+' | '?' | '{' | '}' | ')' | ']') => {
                return Err(format!("{char:?} at character {}", self.at - 1));
            }
            char => Atom::Class(
                Class { ranges: vec![(char, char)], ..Class::default() }.finish(self.table),
            ),
        };
        let (min, max) = match self.peek() {
            Some('?') => (0, 1),
            Some('*') => (0, usize::MAX),
            Some('+') => (1, usize::MAX),
            Some('{') => {
                let (min, max) = self.bounds()?;
                if matches!(self.peek(), Some('+' | '?' | '*')) {
                    return Err("a repeat of a repeat".into());
                }
                return Self::checked(Item { atom, min, max, possessive: false });
            }
            _ => return Self::checked(Item { atom, min: 1, max: 1, possessive: false }),
        };
        self.at += 1;
        let possessive = self.eat("+");
        if matches!(self.peek(), Some('?' | '*' | '+' | '{')) {
            return Err("a lazy or repeated repeat".into());
        }
        Self::checked(Item { atom, min, max, possessive })
    }

    fn checked(item: Item) -> Result<Item, Refusal> {
        match item.atom {
            Atom::Words(_) if item.max != 1 || item.possessive => Err("a repeated group".into()),
            _ => Ok(item),
        }
    }

    fn bounds(&mut self) -> Result<(usize, usize), Refusal> {
        self.next()?;
        let mut text = String::new();
        loop {
            match self.next()? {
                '}' => break,
                char => text.push(char),
            }
        }
        let (min, max) = text.split_once(',').unwrap_or((&text, &text));
        let min: usize = min.parse().map_err(|_| format!("the repeat {{{text}}}"))?;
        let max: usize = if max.is_empty() {
            usize::MAX
        } else {
            max.parse().map_err(|_| format!("the repeat {{{text}}}"))?
        };
        if min > max || min == 0 && max == 0 {
            return Err(format!("the repeat {{{text}}}"));
        }
        Ok((min, max))
    }

    fn words(&mut self, fold: bool) -> Result<Vec<Vec<Vec<char>>>, Refusal> {
        let mut words = vec![Vec::new()];
        loop {
            match self.next()? {
                ')' => break,
                '|' => words.push(Vec::new()),
                char if char.is_ascii_alphanumeric() || matches!(char, '\'' | '’' | ' ') => {
                    if let Some(word) = words.last_mut() {
                        word.push(if fold { folded(char) } else { vec![char] });
                    }
                }
                char => return Err(format!("{char:?} inside a group")),
            }
        }
        if words.iter().any(Vec::is_empty) {
            return Err("an empty word in a group".into());
        }
        Ok(words)
    }

    fn class(&mut self) -> Result<Class, Refusal> {
        let mut class = Class { negated: self.eat("^"), ..Class::default() };
        if self.peek() == Some(']') {
            return Err("an empty class".into());
        }
        loop {
            let char = match self.next()? {
                ']' => return Ok(class.finish(self.table)),
                '[' => return Err("a class inside a class".into()),
                '&' if self.peek() == Some('&') => return Err("an intersection of classes".into()),
                '\\' => match self.escape(&mut class, false)? {
                    Some(char) => char,
                    None => continue,
                },
                char => char,
            };
            if self.peek() == Some('-') && self.chars.get(self.at + 1) != Some(&']') {
                self.at += 1;
                let last = match self.next()? {
                    '\\' => self.escape(&mut class, false)?.ok_or("a range up to a class")?,
                    '[' => return Err("a class inside a class".into()),
                    last => last,
                };
                if last < char {
                    return Err(format!("the range {char}-{last}"));
                }
                class.ranges.push((char, last));
            } else {
                class.ranges.push((char, char));
            }
        }
    }

    /// After a backslash: adds a class to `class`, or gives the character that was meant.
    fn escape(&mut self, class: &mut Class, alone: bool) -> Result<Option<char>, Refusal> {
        let char = match self.next()? {
            's' => {
                class.space = true;
                return Ok(None);
            }
            'S' if alone => {
                class.space = true;
                class.negated = true;
                return Ok(None);
            }
            'd' => {
                class.categories.0 |= Categories::named("Nd").unwrap_or_default().0;
                return Ok(None);
            }
            sign @ ('p' | 'P') => {
                if !self.eat("{") {
                    return Err("\\p without braces".into());
                }
                let mut name = String::new();
                let mut negated = sign == 'P';
                if self.eat("^") {
                    negated = !negated;
                }
                loop {
                    match self.next()? {
                        '}' => break,
                        char => name.push(char),
                    }
                }
                let categories =
                    Categories::named(&name).ok_or_else(|| format!("the property {name:?}"))?;
                class.categories.0 |=
                    if negated { categories.complement().0 } else { categories.0 };
                return Ok(None);
            }
            'n' => '\n',
            'r' => '\r',
            't' => '\t',
            char if char.is_ascii_alphanumeric() => return Err(format!("\\{char}")),
            char => char,
        };
        if alone {
            class.ranges.push((char, char));
        }
        Ok(Some(char))
    }
}

/// The characters that match `char` whatever the case; Oniguruma folds ſ to s and K to k.
fn folded(char: char) -> Vec<char> {
    let mut set = vec![char];
    if char.is_ascii_alphabetic() {
        set = vec![char.to_ascii_lowercase(), char.to_ascii_uppercase()];
    }
    match char {
        's' | 'S' => set.push('ſ'),
        'k' | 'K' => set.push('\u{212a}'),
        _ => {}
    }
    set
}

#[cfg(test)]
mod tests {
    use super::*;

    const LLAMA: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

    fn split(pattern: &str, text: &str) -> Vec<String> {
        let table = CharTable::new();
        let pattern = Pattern::compile(pattern, &table).unwrap();
        let mut pieces = Vec::new();
        pattern.split(&table, text, |start, end| {
            pieces.push(text[start..end].to_owned());
            true
        });
        pieces
    }

    #[test]
    fn text_is_split_as_llama_does() {
        assert_eq!(
            split(LLAMA, "It'ſ  12345 days,\n\n  \n x\u{a0}漢字!  "),
            [
                "It",
                "'ſ",
                " ",
                " ",
                "123",
                "45",
                " days",
                ",\n\n",
                "  \n",
                " x",
                "\u{a0}漢字",
                "!",
                "  "
            ]
        );
    }

    #[test]
    fn gaps_are_pieces_too() {
        assert_eq!(split(r"\p{N}{1,3}", "ab1234c"), ["ab", "123", "4", "c"]);
    }

    #[test]
    fn possessive_repeats_do_not_give_back() {
        assert_eq!(split(r"[ab]++b|c", "aabc"), ["aab", "c"]);
    }

    #[test]
    fn what_is_not_understood_is_refused_by_name() {
        let table = CharTable::new();
        for (pattern, reason) in [
            (r"\p{Han}+", "Han"),
            (r"a*", "matches nothing"),
            (r"(?<=a)b", "group"),
            (r"a.b", "'.'"),
            (r"[a&&b]", "intersection"),
            (r"a+?", "lazy"),
            (r"\w+", "\\w"),
            (r"[a", "too early"),
        ] {
            let refusal = Pattern::compile(pattern, &table).unwrap_err();
            assert!(refusal.contains(reason), "{pattern}: {refusal}");
        }
    }
}
