//! A pattern's text → its alternatives.

use super::{Atom, Class, Item, Refusal};
use crate::tokenizer::unicode::{Categories, CharTable};

/// Reads a pattern from its first character on.
pub(crate) struct Parser<'a> {
    chars: Vec<char>,
    at: usize,
    table: &'a CharTable,
}

impl<'a> Parser<'a> {
    pub(crate) fn new(source: &str, table: &'a CharTable) -> Self {
        Self { chars: source.chars().collect(), at: 0, table }
    }

    /// The whole pattern.
    pub(crate) fn alternatives(mut self) -> Result<Vec<Vec<Item>>, Refusal> {
        let mut alternatives = vec![Vec::new()];
        while let Some(char) = self.peek() {
            if char == '|' {
                self.at += 1;
                alternatives.push(Vec::new());
            } else if let Some(last) = alternatives.last_mut() {
                let item = self.item()?;
                if item.atom == Atom::NoWordNext
                    && last.last().is_none_or(|item: &Item| item.min == 0)
                {
                    return Err("a look-ahead that does not follow a character".into());
                }
                last.push(item);
            }
        }
        Ok(alternatives)
    }

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
