//! The field `model` of a form (multipart/form-data: RFC 7578, RFC 2046).
//!
//! As python-multipart 0.0.34 and Starlette 1.10 (formparsers.py) take it: lines end in CR LF, white
//! space at most before the first boundary, names of headers and parameters in any case, names of
//! fields as they are, a part with `filename` is a file, `name*` and the like don't exist. A body
//! that they refuse is unreadable, and so is one that versions of them (since 0.0.18) see
//! differently: text before the first boundary, or a line that goes on behind the boundary.

use memchr::memmem;

use super::header::{Parameters, options, parameter};
use super::{MAX_NAME, Search};

/// The field's name.
const FIELD: &[u8] = b"model";
/// Longest boundary: what python-multipart takes. RFC 2046 has 70.
const MAX_BOUNDARY: usize = 256;
/// Most bytes of a part's headers.
const MAX_HEADERS: usize = 8 << 10;

/// Finds `model` in a form.
#[derive(Debug)]
pub(crate) struct MultipartFinder {
    /// What ends a part: CR LF, two hyphens and the boundary. CR is in it once.
    delimiter: Vec<u8>,
    /// Names are in UTF-8; otherwise only those in ASCII can be told.
    utf8: bool,
    at: At,
    /// The field's value so far, if this part is the field.
    value: Option<Vec<u8>>,
}

#[derive(Debug)]
enum At {
    /// Before the first boundary, so many bytes of its delimiter were seen (the first two, which
    /// may be left out, count as seen).
    Start(usize),
    /// Behind a boundary, and what came there.
    Boundary(Option<u8>),
    /// In a part's headers.
    Headers(Vec<u8>),
    /// In what is in the part, so many bytes of its delimiter were seen.
    Data(usize),
}

impl MultipartFinder {
    /// By the parameters of the `content-type`; none if engines refuse these.
    pub(crate) fn new(parameters: &Parameters<'_>) -> Option<Self> {
        // Versions differ in what `boundary*` does.
        let plain = parameters.iter().all(|(name, _)| !name.contains(&b'*'));
        let boundary = parameter(parameters, b"boundary").filter(|_| plain)?;
        if boundary.is_empty() || boundary.len() > MAX_BOUNDARY || boundary.contains(&b'\r') {
            return None;
        }
        let charset = parameter(parameters, b"charset").unwrap_or(b"utf-8").to_ascii_lowercase();
        let utf8 = match charset.as_slice() {
            b"utf-8" | b"utf8" => true,
            b"us-ascii" | b"iso-8859-1" => false,
            _ => return None,
        };
        let delimiter = [b"\r\n--", boundary].concat();
        Some(Self { delimiter, utf8, at: At::Start(2), value: None })
    }

    pub(crate) fn feed(&mut self, piece: &[u8]) -> Search {
        let mut rest = piece;
        while !rest.is_empty() {
            match self.step(rest) {
                Ok(behind) => rest = behind,
                Err(end) => return end,
            }
        }
        Search::More
    }

    /// Goes on in what isn't empty, and gives what is left, or an answer.
    fn step<'a>(&mut self, rest: &'a [u8]) -> Result<&'a [u8], Search> {
        let (byte, tail) = rest.split_first().ok_or(Search::Unreadable)?;
        match &mut self.at {
            At::Start(2) if matches!(byte, b'\r' | b'\n') => Ok(tail),
            At::Start(seen) if self.delimiter.get(*seen) == Some(byte) => {
                *seen += 1;
                if *seen == self.delimiter.len() {
                    self.at = At::Boundary(None);
                }
                Ok(tail)
            }
            At::Start(_) => Err(Search::Unreadable),
            At::Boundary(seen) => {
                match (*seen, byte) {
                    (None, b'\r' | b'-') => *seen = Some(*byte),
                    (Some(b'\r'), b'\n') => {
                        self.finish()?;
                        self.at = At::Headers(Vec::new());
                    }
                    (Some(b'-'), b'-') => {
                        self.finish()?;
                        return Err(Search::Absent);
                    }
                    _ => return Err(Search::Unreadable),
                }
                Ok(tail)
            }
            At::Headers(headers) => {
                let line = memchr::memchr(b'\n', rest).map_or(rest.len(), |end| end + 1);
                let (line, behind) = rest.split_at(line);
                if headers.len() + line.len() > MAX_HEADERS {
                    return Err(Search::Unreadable);
                }
                headers.extend_from_slice(line);
                if headers == b"\r\n" || headers.ends_with(b"\r\n\r\n") {
                    self.value = is_field(headers).ok_or(Search::Unreadable)?.then(Vec::new);
                    self.at = At::Data(0);
                }
                Ok(behind)
            }
            At::Data(seen) => {
                let found = data(&self.delimiter, seen, rest);
                if let Some(value) = &mut self.value {
                    // A delimiter that came to nothing was data.
                    let (given_back, data) = found.data;
                    if value.len() + given_back + data.len() > MAX_NAME {
                        return Err(Search::Unreadable);
                    }
                    value.extend(self.delimiter.iter().take(given_back));
                    value.extend_from_slice(data);
                }
                if *seen == self.delimiter.len() {
                    self.at = At::Boundary(None);
                }
                Ok(found.behind)
            }
        }
    }

    /// A part has ended: an answer if it was the field. An empty one is as good as none.
    fn finish(&mut self) -> Result<(), Search> {
        let Some(value) = self.value.take().filter(|value| !value.is_empty()) else {
            return Ok(());
        };
        let known = self.utf8 || value.is_ascii();
        let name = String::from_utf8(value).ok().filter(|_| known);
        Err(name.map_or(Search::Unreadable, Search::Found))
    }
}

/// What a look at a part's data came to.
struct Look<'a> {
    /// Bytes of the delimiter that were seen before and are data, and the data of this piece.
    data: (usize, &'a [u8]),
    /// What is behind that and behind what was seen of the delimiter.
    behind: &'a [u8],
}

/// Looks for the delimiter, of which so many bytes were seen, and counts those seen now.
fn data<'a>(delimiter: &[u8], seen: &mut usize, rest: &'a [u8]) -> Look<'a> {
    if *seen > 0 {
        let missing = delimiter.get(*seen..).unwrap_or_default();
        let same = missing.iter().zip(rest).take_while(|(one, other)| one == other).count();
        // CR begins the delimiter and is nowhere else in it: no part of it can begin another.
        let goes_on = same == missing.len().min(rest.len());
        let given_back = if goes_on { 0 } else { *seen + same };
        *seen = if goes_on { *seen + same } else { 0 };
        return Look { data: (given_back, &[]), behind: rest.get(same..).unwrap_or_default() };
    }
    let begins = memmem::find(rest, delimiter).or_else(|| {
        // It may begin at the end of this piece.
        let tail = rest.len().saturating_sub(delimiter.len() - 1);
        let at = tail + memchr::memrchr(b'\r', rest.get(tail..)?)?;
        delimiter.starts_with(rest.get(at..)?).then_some(at)
    });
    let (data, found) = rest.split_at(begins.unwrap_or(rest.len()));
    *seen = found.len().min(delimiter.len());
    Look { data: (0, data), behind: found.get(*seen..).unwrap_or_default() }
}

/// Whether a part with these headers is the field; none if engines refuse them.
fn is_field(headers: &[u8]) -> Option<bool> {
    let mut disposition: &[u8] = b"";
    let mut rest = headers;
    while let Some(end) = memmem::find(rest, b"\r\n") {
        let (line, behind) = rest.split_at(end);
        rest = behind.get(2..)?;
        if line.is_empty() {
            break;
        }
        let (name, value) = line.split_at(memchr::memchr(b':', line)?);
        if name.is_empty()
            || !name.iter().all(|byte| is_token(*byte))
            || memchr::memchr2(b'\r', b'\n', value).is_some()
        {
            return None;
        }
        if name.eq_ignore_ascii_case(b"content-disposition") {
            disposition = value.get(1..)?;
        }
    }
    let (_, parameters) = options(disposition);
    let named = parameter(&parameters, b"name")? == FIELD;
    // What older versions take for a name or a file name, newer ones don't.
    let plain = parameters.iter().all(|(name, _)| !name.contains(&b'*'));
    if named && !plain {
        return None;
    }
    Some(named && parameter(&parameters, b"filename").is_none())
}

/// What a header's name is made of (RFC 9110).
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}
