//! The prepared form of a model's files: what the relay sends to the workers.
//!
//! Layout (integers are LEB128, strings and lists have their length in front):
//! magic `WARMPATH`, format version, tokenizer hash (32 bytes), chat templates, how they take
//! content, special tokens by name, (from format 4 on: flags of the templates, engine, its options
//! and clock,) splits, flags, rule for spaces, ids before and after a text, added tokens, and the
//! vocabulary's tables (see [`crate::tokenizer::vocabulary`]), which are used where they lie.

use crate::clock::{Clock, DAY, Offset};
use crate::dialect::{Dialect, Engine};
use crate::error::ArtefactError;
use crate::tokenizer::added::AddedToken;
use crate::tokenizer::spaces::Prefix;
use crate::tokenizer::vocabulary::Vocabulary;
use crate::tokenizer::{Cuts, TokenizerDefinition};

const MAGIC: &[u8; 8] = b"WARMPATH";
const VERSION: u64 = 4;
/// What says nothing of engines and templates beyond what older filters know, so that they read it.
const PLAIN_VERSION: u64 = 3;

/// A prepared model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Artefact {
    /// What [`super::Model::load`] takes; describes itself, and has its hash inside.
    pub bytes: Vec<u8>,
    /// Hash over everything that decides the ids: tokenizer.json, template, special tokens.
    pub tokenizer_hash: [u8; 32],
}

/// A chat template and what it needs to know.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct TemplateDefinition {
    /// Jinja source; none if the model has no template.
    pub(crate) source: Option<String>,
    /// The template for requests with tools, if it is another.
    pub(crate) tools_source: Option<String>,
    /// There is none for requests with tools.
    pub(crate) chat_only: bool,
    /// Content is passed as a list of parts, not as one string.
    pub(crate) content_parts: bool,
    /// The same for the template for tools.
    pub(crate) tools_content_parts: bool,
    /// `bos_token` and the like.
    pub(crate) special: Vec<(String, String)>,
}

/// All that an artefact holds.
#[derive(Debug, PartialEq)]
pub(crate) struct Definition {
    pub(crate) hash: [u8; 32],
    pub(crate) template: TemplateDefinition,
    pub(crate) dialect: Dialect,
    pub(crate) tokenizer: TokenizerDefinition,
    pub(crate) vocabulary: Vocabulary,
}

impl Definition {
    #[cfg(feature = "preprocess")]
    pub(crate) fn write(&self) -> Vec<u8> {
        let mut out = Writer(Vec::new());
        out.0.extend_from_slice(MAGIC);
        let plain = self.dialect == Dialect::default() && !self.template.chat_only;
        out.number(if plain { PLAIN_VERSION } else { VERSION });
        out.0.extend_from_slice(&self.hash);
        for source in [&self.template.source, &self.template.tools_source] {
            out.number(u64::from(source.is_some()));
            out.bytes(source.as_deref().unwrap_or_default().as_bytes());
        }
        out.number(u64::from(self.template.content_parts));
        out.number(u64::from(self.template.tools_content_parts));
        out.number(self.template.special.len() as u64);
        for (name, value) in &self.template.special {
            out.bytes(name.as_bytes());
            out.bytes(value.as_bytes());
        }
        if !plain {
            out.flags(&[self.template.chat_only]);
            self.write_dialect(&mut out);
        }
        let tokenizer = &self.tokenizer;
        out.number(tokenizer.splits.len() as u64);
        for split in &tokenizer.splits {
            out.bytes(split.as_bytes());
        }
        let Cuts { words, lines, pieces } = tokenizer.cuts;
        out.flags(&[tokenizer.nfc, words, lines, pieces]);
        out.number(Prefix::code(tokenizer.spaces));
        for ids in [&tokenizer.before, &tokenizer.after] {
            out.number(ids.len() as u64);
            for id in ids {
                out.number(u64::from(*id));
            }
        }
        out.number(tokenizer.added.len() as u64);
        for token in &tokenizer.added {
            out.number(u64::from(token.id));
            out.bytes(token.content.as_bytes());
            out.flags(&[token.lstrip, token.rstrip, token.normalized]);
        }
        out.0.extend_from_slice(self.vocabulary.tables());
        out.0
    }

    #[cfg(feature = "preprocess")]
    fn write_dialect(&self, out: &mut Writer) {
        out.number(self.dialect.engine.code());
        out.bytes(self.dialect.template_kwargs.as_bytes());
        out.flags(&[self.dialect.excludes_tools]);
        let offsets = self.dialect.clock.offsets();
        out.number(offsets.len() as u64);
        for offset in offsets {
            out.number(offset.from_unix);
            out.number(u64::from((offset.seconds + DAY).unsigned_abs()));
        }
    }

    pub(crate) fn read(bytes: Vec<u8>) -> Result<Self, ArtefactError> {
        let mut input = Reader { bytes: &bytes, at: 0 };
        if input.take(MAGIC.len())? != MAGIC {
            return Err(bad("it doesn't start with WARMPATH"));
        }
        let version = input.number()?;
        if version != VERSION && version != PLAIN_VERSION {
            return Err(bad(&format!("format {version}, this build reads {VERSION}")));
        }
        let mut hash = [0; 32];
        hash.copy_from_slice(input.take(32)?);
        let mut template = TemplateDefinition::default();
        for source in [&mut template.source, &mut template.tools_source] {
            let given = input.number()? != 0;
            let text = input.text()?;
            *source = given.then_some(text);
        }
        template.content_parts = input.number()? != 0;
        template.tools_content_parts = input.number()? != 0;
        for _ in 0..input.count()? {
            let pair = (input.text()?, input.text()?);
            template.special.push(pair);
        }
        let mut dialect = Dialect::default();
        if version != PLAIN_VERSION {
            template.chat_only = input.number()? & 1 != 0;
            dialect = self::dialect(&mut input)?;
        }
        let mut tokenizer = TokenizerDefinition::default();
        for _ in 0..input.count()? {
            tokenizer.splits.push(input.text()?);
        }
        let flags = input.number()?;
        tokenizer.nfc = flags & 1 != 0;
        tokenizer.cuts =
            Cuts { words: flags & 2 != 0, lines: flags & 4 != 0, pieces: flags & 8 != 0 };
        tokenizer.spaces = Prefix::of_code(input.number()?).map_err(|reason| bad(&reason))?;
        for ids in [&mut tokenizer.before, &mut tokenizer.after] {
            for _ in 0..input.count()? {
                ids.push(input.id()?);
            }
        }
        for _ in 0..input.count()? {
            let id = input.id()?;
            let content = input.text()?;
            let flags = input.number()?;
            tokenizer.added.push(AddedToken {
                id,
                content,
                lstrip: flags & 1 != 0,
                rstrip: flags & 2 != 0,
                normalized: flags & 4 != 0,
            });
        }
        let at = input.at;
        let length = bytes.len();
        let vocabulary = Vocabulary::read(bytes, at).map_err(|reason| bad(&reason))?;
        if vocabulary.end() != length {
            return Err(bad("bytes left over"));
        }
        Ok(Self { hash, template, dialect, tokenizer, vocabulary })
    }
}

fn dialect(input: &mut Reader<'_>) -> Result<Dialect, ArtefactError> {
    let engine = Engine::of_code(input.number()?).ok_or_else(|| bad("an unknown engine"))?;
    let template_kwargs = input.text()?;
    let excludes_tools = input.number()? & 1 != 0;
    let mut offsets = Vec::new();
    for _ in 0..input.count()? {
        let from_unix = input.number()?;
        let seconds = i32::try_from(input.number()?).map_err(|_| bad("an offset too large"))?;
        offsets.push(Offset { from_unix, seconds: seconds.saturating_sub(DAY) });
    }
    let clock = Clock::new(offsets);
    Ok(Dialect { engine, template_kwargs, excludes_tools, clock })
}

fn bad(reason: &str) -> ArtefactError {
    ArtefactError::Artefact(reason.to_owned())
}

#[cfg(feature = "preprocess")]
struct Writer(Vec<u8>);

#[cfg(feature = "preprocess")]
impl Writer {
    fn number(&mut self, mut number: u64) {
        while number >= 128 {
            self.0.push((number & 127) as u8 | 128);
            number >>= 7;
        }
        self.0.push(number as u8);
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    fn flags(&mut self, flags: &[bool]) {
        let bits = flags.iter().enumerate().map(|(at, flag)| u64::from(*flag) << at).sum();
        self.number(bits);
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], ArtefactError> {
        let end = self.at.checked_add(count).ok_or_else(|| bad("a length too large"))?;
        let taken = self.bytes.get(self.at..end).ok_or_else(|| bad("it ends too early"))?;
        self.at = end;
        Ok(taken)
    }

    fn number(&mut self) -> Result<u64, ArtefactError> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.take(1)?.first().copied().unwrap_or(0);
            number |= u64::from(byte & 127) << shift;
            if byte & 128 == 0 {
                return Ok(number);
            }
        }
        Err(bad("a number too large"))
    }

    /// A count of things that follow: never more than there are bytes left.
    fn count(&mut self) -> Result<usize, ArtefactError> {
        let count = self.number()?;
        match usize::try_from(count) {
            Ok(count) if count <= self.bytes.len() - self.at => Ok(count),
            _ => Err(bad("a count larger than what follows")),
        }
    }

    fn id(&mut self) -> Result<u32, ArtefactError> {
        u32::try_from(self.number()?).map_err(|_| bad("a token id too large"))
    }

    fn text(&mut self) -> Result<String, ArtefactError> {
        let length = self.count()?;
        let bytes = self.take(length)?;
        String::from_utf8(bytes.to_vec()).map_err(|_| bad("text that is not UTF-8"))
    }
}

#[cfg(all(test, feature = "preprocess"))]
#[allow(clippy::unwrap_used)] // Helpers too.
mod tests {
    use super::*;
    use crate::tokenizer::bpe::{BpeDefinition, MergeDefinition};
    use crate::tokenizer::vocabulary::NONE;
    use proptest::prelude::*;

    fn definition() -> Definition {
        let mut tokens: Vec<Vec<u8>> = (0..=255u8).map(|byte| vec![byte]).collect();
        tokens.push(b"ab".to_vec());
        tokens.push(Vec::new());
        tokens.push(b"abc".to_vec());
        Definition {
            hash: [9; 32],
            template: TemplateDefinition {
                source: Some("{{ messages }}".into()),
                content_parts: true,
                chat_only: true,
                special: vec![("bos_token".into(), "<s>".into())],
                ..TemplateDefinition::default()
            },
            dialect: Dialect {
                engine: Engine::Sglang,
                template_kwargs: "{\"x\": 1}".into(),
                excludes_tools: true,
                clock: Clock::new([
                    Offset { from_unix: 0, seconds: -25_200 },
                    Offset { from_unix: 1 << 30, seconds: 3600 },
                ]),
            },
            vocabulary: BpeDefinition {
                tokens,
                merges: vec![
                    MergeDefinition { left: 97, right: 98, token: 256 },
                    MergeDefinition { left: 256, right: 99, token: 258 },
                ],
                ignore_merges: true,
                unreachable: vec![3],
                fallback: (0..256).collect(),
            }
            .lay_out()
            .unwrap(),
            tokenizer: TokenizerDefinition {
                added: vec![AddedToken { id: 300, content: "<s>".into(), ..AddedToken::default() }],
                splits: vec![r"\s+".into()],
                nfc: true,
                before: vec![300],
                after: vec![],
                cuts: Cuts { words: true, lines: false, pieces: true },
                spaces: Some(Prefix::First),
            },
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let bytes = definition().write();
        assert_eq!(Definition::read(bytes.clone()).unwrap().write(), bytes);
        let (read, wanted) = (Definition::read(bytes).unwrap(), definition());
        assert_eq!(
            (read.hash, read.template, read.dialect, read.tokenizer),
            (wanted.hash, wanted.template, wanted.dialect, wanted.tokenizer)
        );
        for (id, token) in [(97, "a"), (256, "ab"), (257, ""), (258, "abc"), (259, "")] {
            assert_eq!(read.vocabulary.token(id), token.as_bytes());
        }
        assert_eq!(read.vocabulary.word(b"abc"), Some(258));
        assert_eq!(read.vocabulary.word(b"bc"), None);
        assert_eq!(read.vocabulary.rank(256, 99), 1);
        assert_eq!(read.vocabulary.rank(99, 256), NONE);
        assert_eq!(read.vocabulary.merged(1), 258);
        // Filters from before engines had options read what needs none.
        let mut plain = Definition { dialect: Dialect::default(), ..definition() };
        plain.template.chat_only = false;
        let bytes = plain.write();
        assert_eq!(bytes[MAGIC.len()], 3);
        assert_eq!(Definition::read(bytes.clone()).unwrap().write(), bytes);
    }

    proptest! {
        #[test]
        fn damaged_bytes_are_refused_or_read_but_never_panic(
            at in any::<proptest::sample::Index>(), byte in any::<u8>(), cut in any::<bool>(),
        ) {
            let mut bytes = definition().write();
            let at = at.index(bytes.len());
            bytes[at] = byte;
            if cut {
                bytes.truncate(at);
            }
            if let Ok(definition) = Definition::read(bytes) {
                let Definition { tokenizer, vocabulary, .. } = definition;
                let _ = crate::tokenizer::Tokenizer::new(&tokenizer, vocabulary);
            }
        }
    }
}
