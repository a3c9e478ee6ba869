//! `model` at the top level of a JSON object.
//!
//! What a parser takes is understood as it does; of what it refuses some is let pass, since the
//! engine will refuse it. Only so much is looked at as tells where a value ends.

use super::{MAX_NAME, Search};

const KEY: &[u8] = b"model";
const NULL: &[u8] = b"null";
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
/// Deeper than any engine's parser goes: Python's gives up at 1,000.
const MAX_DEPTH: u32 = 1 << 16;

/// Finds `model` in a JSON object.
#[derive(Debug)]
pub(crate) struct JsonFinder {
    at: At,
    /// The value to come, or that is being read, is the model's.
    ours: bool,
}

#[derive(Debug)]
enum At {
    /// Before the object, so many bytes of a byte order mark were seen.
    Start(usize),
    /// Behind `{`: a key or `}`.
    First,
    /// Behind `,`: a key.
    Next,
    Key(Text),
    Colon,
    Value,
    Name(Text),
    /// So many letters of `null` were seen.
    Null(usize),
    /// In a number or a word.
    Scalar,
    /// In a value of another key, so many lists and objects deep.
    Inside(u32),
    /// In a string that doesn't matter.
    Skipped(Skipped),
    /// Behind a value: `,` or `}`.
    Behind,
}

/// A string that is only to be got over.
#[derive(Clone, Copy, Debug)]
struct Skipped {
    /// A backslash was the last.
    escaped: bool,
    /// It is a key of the top level.
    key: bool,
    /// The lists and objects around it, but for the top level.
    depth: u32,
}

impl Default for JsonFinder {
    fn default() -> Self {
        Self { at: At::Start(0), ours: false }
    }
}

impl JsonFinder {
    /// Whether nothing came so far.
    pub(crate) fn is_blank(&self) -> bool {
        matches!(self.at, At::Start(0))
    }

    pub(crate) fn feed(&mut self, piece: &[u8]) -> Search {
        let mut rest = piece;
        while let [byte, tail @ ..] = rest {
            // What is long is got over in one step.
            rest = match &mut self.at {
                At::Skipped(string) => match string.skip(rest) {
                    Some(behind) => {
                        self.at = string.behind();
                        behind
                    }
                    None => break,
                },
                At::Inside(depth) => match inside(depth, rest) {
                    Inside::Left(behind) => {
                        self.at = At::Behind;
                        behind
                    }
                    Inside::String(depth, behind) => {
                        self.at = At::Skipped(Skipped { escaped: false, key: false, depth });
                        behind
                    }
                    Inside::More => break,
                    Inside::TooDeep => return Search::Unreadable,
                },
                _ => {
                    if let Some(end) = self.step(*byte) {
                        return end;
                    }
                    tail
                }
            };
        }
        Search::More
    }

    /// Takes one byte; an answer if that ends the search.
    fn step(&mut self, byte: u8) -> Option<Search> {
        const BAD: Option<Search> = Some(Search::Unreadable);
        if matches!(byte, b' ' | b'\t' | b'\n' | b'\r') && self.between() {
            if let At::Scalar = self.at {
                self.at = At::Behind;
            }
            return None;
        }
        match (&mut self.at, byte) {
            (At::Start(0), b'{') => self.at = At::First,
            (At::Start(seen), _) if BYTE_ORDER_MARK.get(*seen) == Some(&byte) => *seen += 1,
            (At::Start(3), b'{') => self.at = At::First,
            (At::First | At::Next, b'"') => self.at = At::Key(Text::default()),
            (At::First | At::Scalar | At::Behind, b'}') => return Some(Search::Absent),
            (At::Scalar | At::Behind, b',') => self.at = At::Next,
            (At::Key(key), _) => {
                match key.step(byte) {
                    Step::More if key.begins(KEY) => return None,
                    // Python takes half characters; what else is bad, the engine refuses.
                    Step::More | Step::Bad => {
                        self.ours = false;
                        self.at = At::Skipped(Skipped { escaped: false, key: true, depth: 0 });
                    }
                    Step::End => {
                        self.ours = key.bytes == KEY;
                        self.at = At::Colon;
                    }
                }
            }
            (At::Colon, b':') => self.at = At::Value,
            (At::Value, b'"') if self.ours => self.at = At::Name(Text::default()),
            (At::Value, b'n') if self.ours => self.at = At::Null(1),
            (At::Value, _) if self.ours => return BAD,
            (At::Value, b'"') => {
                self.at = At::Skipped(Skipped { escaped: false, key: false, depth: 0 });
            }
            (At::Value, b'{' | b'[') => self.at = At::Inside(1),
            (
                At::Value | At::Scalar,
                b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' | b'+' | b'-' | b'.',
            ) => {
                self.at = At::Scalar;
            }
            (At::Name(name), _) => match name.step(byte) {
                Step::More if name.bytes.len() > MAX_NAME => return BAD,
                Step::More => {}
                // Engines take their model for an empty name, as they do for none.
                Step::End if name.bytes.is_empty() => self.at = At::Behind,
                Step::End => {
                    let name = String::from_utf8(std::mem::take(&mut name.bytes));
                    return Some(name.map_or(Search::Unreadable, Search::Found));
                }
                Step::Bad => return BAD,
            },
            (At::Null(seen), _) if NULL.get(*seen) == Some(&byte) => {
                *seen += 1;
                if *seen == NULL.len() {
                    self.at = At::Behind;
                }
            }
            _ => return BAD,
        }
        None
    }

    /// Whether white space may stand here, or ends a word.
    fn between(&self) -> bool {
        match self.at {
            At::Start(seen) => seen == 0 || seen == BYTE_ORDER_MARK.len(),
            At::First | At::Next | At::Colon | At::Value | At::Scalar | At::Behind => true,
            At::Key(_) | At::Name(_) | At::Null(_) | At::Inside(_) | At::Skipped(_) => false,
        }
    }
}

impl Skipped {
    /// What is behind the string, if it ends here.
    fn skip<'a>(&mut self, mut rest: &'a [u8]) -> Option<&'a [u8]> {
        loop {
            if self.escaped && !rest.is_empty() {
                self.escaped = false;
                rest = rest.get(1..)?;
            }
            let end = memchr::memchr2(b'"', b'\\', rest)?;
            let (byte, behind) = rest.get(end..)?.split_first()?;
            if *byte == b'"' {
                return Some(behind);
            }
            self.escaped = true;
            rest = behind;
        }
    }

    fn behind(self) -> At {
        match self.depth {
            0 if self.key => At::Colon,
            0 => At::Behind,
            depth => At::Inside(depth),
        }
    }
}

enum Inside<'a> {
    /// All of them are closed.
    Left(&'a [u8]),
    /// A string begins, so many lists and objects deep.
    String(u32, &'a [u8]),
    More,
    TooDeep,
}

/// Goes on in lists and objects to their end or to the next string.
fn inside<'a>(depth: &mut u32, rest: &'a [u8]) -> Inside<'a> {
    for (at, byte) in rest.iter().enumerate() {
        match byte {
            b'"' => return Inside::String(*depth, rest.get(at + 1..).unwrap_or_default()),
            b'{' | b'[' if *depth == MAX_DEPTH => return Inside::TooDeep,
            b'{' | b'[' => *depth += 1,
            b'}' | b']' => {
                *depth -= 1;
                if *depth == 0 {
                    return Inside::Left(rest.get(at + 1..).unwrap_or_default());
                }
            }
            _ => {}
        }
    }
    Inside::More
}

/// A string that is read.
#[derive(Debug, Default)]
struct Text {
    bytes: Vec<u8>,
    escape: Escape,
    /// The first half of a character of two `\u`, for which the second has to follow.
    high: Option<u16>,
}

#[derive(Debug, Default)]
enum Escape {
    #[default]
    None,
    Begun,
    /// `\u`, so many digits, what they come to.
    Digits(u8, u16),
}

enum Step {
    More,
    End,
    Bad,
}

impl Text {
    /// Whether it may become this one.
    fn begins(&self, whole: &[u8]) -> bool {
        whole.starts_with(&self.bytes) && self.high.is_none()
    }

    fn step(&mut self, byte: u8) -> Step {
        match (&self.escape, byte) {
            (Escape::None, b'\\') => self.escape = Escape::Begun,
            // Half a character can't be followed by anything but its other half.
            (Escape::None, _) if self.high.is_some() => return Step::Bad,
            (Escape::None, b'"') => return Step::End,
            (Escape::None, ..0x20) => return Step::Bad,
            (Escape::None, _) => self.bytes.push(byte),
            (Escape::Begun, b'u') => self.escape = Escape::Digits(0, 0),
            (Escape::Begun, _) if self.high.is_some() => return Step::Bad,
            (Escape::Begun, _) => {
                self.bytes.push(match byte {
                    b'"' | b'\\' | b'/' => byte,
                    b'b' => 8,
                    b'f' => 12,
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    _ => return Step::Bad,
                });
                self.escape = Escape::None;
            }
            (Escape::Digits(seen, value), _) => {
                let Some(digit) = char::from(byte).to_digit(16) else { return Step::Bad };
                let (seen, value) = (seen + 1, value << 4 | digit as u16);
                self.escape = Escape::Digits(seen, value);
                if seen == 4 {
                    self.escape = Escape::None;
                    return self.unit(value);
                }
            }
        }
        Step::More
    }

    /// Takes what a `\u` means.
    fn unit(&mut self, unit: u16) -> Step {
        let high = self.high.take();
        if high.is_none() && (0xd800..0xdc00).contains(&unit) {
            self.high = Some(unit);
            return Step::More;
        }
        match char::decode_utf16(high.into_iter().chain([unit])).next() {
            Some(Ok(character)) => {
                self.bytes.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
                Step::More
            }
            _ => Step::Bad,
        }
    }
}
