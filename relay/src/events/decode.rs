//! A frame's payload → [`Batch`].

use super::error::DecodeError;
use super::reader::{Reader, Value};
use super::{
    Batch, EngineHash, Event, ExtraKeys, Kind, Locality, MAX_EVENTS, Medium, Removed, Stored,
};

/// Tokens in one engine block that are believed.
const MAX_BLOCK_SIZE: i128 = 1 << 16;

/// Decodes the third part of an engine's multipart message.
///
/// # Errors
/// [`DecodeError`] where the frame as a whole can't be trusted. Since it may have held removals, the
/// replica's view isn't known to be true after that.
pub fn decode(payload: &[u8]) -> Result<Batch, DecodeError> {
    let mut reader = Reader::new(payload);
    let Value::Array(parts) = reader.value()? else { return Err(DecodeError::NotABatch) };
    if parts < 2 {
        return Err(DecodeError::NotABatch);
    }
    let time = match reader.value()? {
        Value::Float(time) => time,
        Value::Int(time) => time as f64,
        _ => return Err(DecodeError::NotABatch),
    };
    let Value::Array(count) = reader.value()? else { return Err(DecodeError::NotABatch) };
    if count > reader.len() {
        return Err(DecodeError::Truncated);
    }
    if count > MAX_EVENTS {
        return Err(DecodeError::TooManyEvents);
    }
    let mut events = Vec::new();
    for _ in 0..count {
        events.push(event(&mut reader)?);
    }
    let mut rank = None;
    if parts > 2 {
        rank = match reader.value()? {
            Value::Nil => None,
            Value::Int(rank) => {
                Some(u32::try_from(rank).map_err(|_| DecodeError::Field("data_parallel_rank"))?)
            }
            _ => return Err(DecodeError::Field("data_parallel_rank")),
        };
    }
    for _ in 3..parts {
        reader.skip()?;
    }
    if reader.is_empty() { Ok(Batch { time, rank, events }) } else { Err(DecodeError::Trailing) }
}

/// Everything that any event may carry, before its type says what counts.
#[derive(Default)]
struct Fields {
    hashes: Option<Vec<EngineHash>>,
    parent: Option<EngineHash>,
    tokens: Vec<u32>,
    block_size: Option<i128>,
    has_lora_id: bool,
    lora_name: Option<String>,
    medium: Medium,
    storage: bool,
    locality: Locality,
    extra_keys: Vec<ExtraKeys>,
    group: Option<u32>,
    kind: Kind,
    window: Option<u32>,
    cache_salt: Option<String>,
    /// The array form's eighth place: vLLM's `lora_name`, SGLang's `cache_salt`.
    name_or_salt: Option<String>,
    /// The array form's later places are SGLang's.
    sglang_places: bool,
}

#[derive(Clone, Copy)]
enum Field {
    Hashes,
    Parent,
    Tokens,
    BlockSize,
    LoraId,
    Medium,
    LoraName,
    ExtraKeys,
    Group,
    Kind,
    Window,
    Locality,
    CacheSalt,
    NameOrSalt,
    ExtraKeysOrSession,
    GroupOrLoraName,
    Unknown,
}

/// Places of the array form after the tag.
const STORED: [Field; 11] = [
    Field::Hashes,
    Field::Parent,
    Field::Tokens,
    Field::BlockSize,
    Field::LoraId,
    Field::Medium,
    Field::NameOrSalt,
    Field::ExtraKeysOrSession,
    Field::GroupOrLoraName,
    Field::Kind,
    Field::Window,
];
const REMOVED: [Field; 3] = [Field::Hashes, Field::Medium, Field::Group];

#[derive(Clone, Copy, PartialEq)]
enum Tag {
    Stored,
    Removed,
    Cleared,
    Unknown,
}

fn tag(value: &Value<'_>) -> Result<Tag, DecodeError> {
    match value {
        Value::Text(b"BlockStored") => Ok(Tag::Stored),
        Value::Text(b"BlockRemoved") => Ok(Tag::Removed),
        Value::Text(b"AllBlocksCleared") => Ok(Tag::Cleared),
        Value::Text(_) => Ok(Tag::Unknown),
        _ => Err(DecodeError::NotAnEvent),
    }
}

fn event(reader: &mut Reader<'_>) -> Result<Event, DecodeError> {
    let mut fields = Fields::default();
    let tag = match reader.value()? {
        Value::Array(length) if length > 0 => {
            let tag = tag(&reader.value()?)?;
            let places: &[Field] = match tag {
                Tag::Stored => &STORED,
                Tag::Removed => &REMOVED,
                Tag::Cleared | Tag::Unknown => &[],
            };
            let mut places = places.iter();
            for _ in 1..length {
                fields.read(*places.next().unwrap_or(&Field::Unknown), reader)?;
            }
            tag
        }
        Value::Map(length) => {
            let mut found = None;
            for _ in 0..length {
                let key = reader.value()?;
                let Value::Text(key) = key else {
                    reader.skip_rest_of(&key)?;
                    reader.skip()?;
                    continue;
                };
                if key == b"type" {
                    found = Some(tag(&reader.value()?)?);
                } else {
                    fields.read(named(key), reader)?;
                }
            }
            found.ok_or(DecodeError::NotAnEvent)?
        }
        _ => return Err(DecodeError::NotAnEvent),
    };
    match tag {
        Tag::Stored => fields.stored(),
        Tag::Removed => Ok(Event::Removed(Removed {
            medium: fields.medium(),
            hashes: fields.hashes.ok_or(DecodeError::Missing("block_hashes"))?,
            group: fields.group,
        })),
        Tag::Cleared => Ok(Event::Cleared),
        Tag::Unknown => Ok(Event::Unknown),
    }
}

fn named(key: &[u8]) -> Field {
    match key {
        b"block_hashes" => Field::Hashes,
        b"parent_block_hash" => Field::Parent,
        b"token_ids" => Field::Tokens,
        b"block_size" => Field::BlockSize,
        b"lora_id" => Field::LoraId,
        b"medium" => Field::Medium,
        b"lora_name" => Field::LoraName,
        b"extra_keys" => Field::ExtraKeys,
        b"group_idx" => Field::Group,
        b"kv_cache_spec_kind" => Field::Kind,
        b"kv_cache_spec_sliding_window" => Field::Window,
        b"locality" => Field::Locality,
        b"cache_salt" => Field::CacheSalt,
        _ => Field::Unknown,
    }
}

impl Fields {
    fn read(&mut self, field: Field, reader: &mut Reader<'_>) -> Result<(), DecodeError> {
        let value = reader.value()?;
        if value == Value::Nil {
            return Ok(());
        }
        match (field, value) {
            (Field::Hashes, Value::Array(n)) => {
                let mut hashes = room(n, reader);
                for _ in 0..n {
                    hashes.push(hash("block_hashes", &reader.value()?)?);
                }
                self.hashes = Some(hashes);
            }
            (Field::Parent, value) => self.parent = Some(hash("parent_block_hash", &value)?),
            (Field::Tokens, Value::Array(n)) => {
                let mut tokens = room(n, reader);
                for _ in 0..n {
                    tokens.push(token(reader)?);
                }
                self.tokens = tokens;
            }
            (Field::BlockSize, Value::Int(size)) => self.block_size = Some(size),
            (Field::LoraId, Value::Int(_) | Value::Text(_)) => self.has_lora_id = true,
            (Field::Medium, Value::Text(name)) => {
                self.medium = std::str::from_utf8(name).map_or(Medium::Other, Medium::from_name);
                self.storage = name == b"STORAGE";
            }
            (Field::Locality, Value::Text(name)) => {
                self.locality = match name {
                    b"LOCAL" => Locality::Local,
                    b"REMOTE" => Locality::Remote,
                    _ => Locality::Unsaid,
                };
            }
            (Field::LoraName | Field::GroupOrLoraName, Value::Text(name)) => {
                self.sglang_places |= matches!(field, Field::GroupOrLoraName);
                self.lora_name = Some(text("lora_name", name)?);
            }
            (Field::CacheSalt, Value::Text(salt)) => {
                self.cache_salt = Some(text("cache_salt", salt)?);
            }
            (Field::NameOrSalt, Value::Text(name)) => {
                self.name_or_salt = Some(text("lora_name", name)?);
            }
            (Field::ExtraKeysOrSession, Value::Text(_)) => self.sglang_places = true,
            (Field::ExtraKeys | Field::ExtraKeysOrSession, Value::Array(n)) => {
                let mut keys = room(n, reader);
                for _ in 0..n {
                    keys.push(extra_keys(reader)?);
                }
                self.extra_keys = keys;
            }
            (Field::Group | Field::GroupOrLoraName, Value::Int(group)) => {
                let group = u32::try_from(group).map_err(|_| DecodeError::Field("group_idx"))?;
                self.group = Some(group);
            }
            (Field::Kind, Value::Text(name)) => {
                self.kind = std::str::from_utf8(name).map_or(Kind::Other, Kind::from_name);
            }
            (Field::Window, Value::Int(window)) => {
                self.window = u32::try_from(window).ok().filter(|window| *window > 0);
            }
            (Field::Unknown, value) => reader.skip_rest_of(&value)?,
            (field, _) => return Err(DecodeError::Field(field.name())),
        }
        Ok(())
    }

    fn medium(&self) -> Medium {
        self.medium.placed(self.storage, self.locality)
    }

    fn stored(mut self) -> Result<Event, DecodeError> {
        let medium = self.medium();
        if let Some(text) = self.name_or_salt {
            // vLLM sends an adapter's number beside its name as long as it sends arrays.
            if self.sglang_places || !self.has_lora_id {
                self.cache_salt = Some(text);
            } else {
                self.lora_name = Some(text);
            }
        }
        let hashes = self.hashes.ok_or(DecodeError::Missing("block_hashes"))?;
        let block_size = match self.block_size {
            Some(size @ 1..=MAX_BLOCK_SIZE) => size,
            // Names only, as of a copy into another tier (vLLM's `_placeholder_stored`).
            Some(0) if self.tokens.is_empty() => 0,
            _ => return Ok(Event::Unusable("block_size")),
        };
        let tokens = self.tokens.len() as i128;
        let told = hashes.len() as i128 * block_size;
        let sparse = tokens > told
            && block_size > 0
            && tokens % block_size == 0
            && self.group.is_some()
            && self.kind != Kind::Full;
        if tokens > 0 && told != tokens && !sparse {
            return Ok(Event::Unusable("token_count"));
        }
        if !self.extra_keys.is_empty() && self.extra_keys.len() != hashes.len() {
            return Ok(Event::Unusable("extra_keys_count"));
        }
        Ok(Event::Stored(Stored {
            hashes,
            parent: self.parent,
            tokens: self.tokens,
            sparse,
            block_size: block_size as u32,
            has_lora_id: self.has_lora_id,
            lora_name: self.lora_name,
            medium,
            extra_keys: self.extra_keys,
            group: self.group,
            kind: self.kind,
            window: self.window,
            cache_salt: self.cache_salt,
        }))
    }
}

impl Field {
    fn name(self) -> &'static str {
        match self {
            Self::Hashes => "block_hashes",
            Self::Parent => "parent_block_hash",
            Self::Tokens => "token_ids",
            Self::BlockSize => "block_size",
            Self::LoraId => "lora_id",
            Self::Medium => "medium",
            Self::LoraName | Self::NameOrSalt => "lora_name",
            Self::ExtraKeys | Self::ExtraKeysOrSession => "extra_keys",
            Self::Group | Self::GroupOrLoraName => "group_idx",
            Self::Kind => "kv_cache_spec_kind",
            Self::Window => "kv_cache_spec_sliding_window",
            Self::Locality => "locality",
            Self::CacheSalt => "cache_salt",
            Self::Unknown => "unknown",
        }
    }
}

/// A list with room for what the frame claims, as far as that is cheap.
fn room<T>(claimed: usize, reader: &Reader<'_>) -> Vec<T> {
    Vec::with_capacity(claimed.min(reader.len()).min(4096))
}

fn hash(field: &'static str, value: &Value<'_>) -> Result<EngineHash, DecodeError> {
    match *value {
        Value::Int(number) => u64::try_from(number)
            .or_else(|_| i64::try_from(number).map(i64::cast_unsigned))
            .map(EngineHash::from_int)
            .map_err(|_| DecodeError::Field(field)),
        Value::Bytes(bytes) => Ok(EngineHash::from_bytes(bytes)),
        _ => Err(DecodeError::Field(field)),
    }
}

/// One token id; of a pair (SGLang with EAGLE sends each token with the one after it) the first.
fn token(reader: &mut Reader<'_>) -> Result<u32, DecodeError> {
    let mut value = reader.value()?;
    if let Value::Array(n @ 1..) = value {
        value = reader.value()?;
        for _ in 1..n {
            reader.skip()?;
        }
    }
    match value {
        Value::Int(id) => u32::try_from(id).map_err(|_| DecodeError::Field("token_ids")),
        _ => Err(DecodeError::Field("token_ids")),
    }
}

fn extra_keys(reader: &mut Reader<'_>) -> Result<ExtraKeys, DecodeError> {
    match reader.value()? {
        Value::Nil => Ok(ExtraKeys::Texts(Vec::new())),
        Value::Array(n) => {
            let mut texts = Vec::new();
            let mut other = false;
            for _ in 0..n {
                match reader.value()? {
                    Value::Text(key) if !other => match std::str::from_utf8(key) {
                        Ok(key) => texts.push(key.to_owned()),
                        Err(_) => other = true,
                    },
                    value => {
                        other = true;
                        reader.skip_rest_of(&value)?;
                    }
                }
            }
            Ok(if other { ExtraKeys::Other } else { ExtraKeys::Texts(texts) })
        }
        value => {
            reader.skip_rest_of(&value)?;
            Ok(ExtraKeys::Other)
        }
    }
}

fn text(field: &'static str, bytes: &[u8]) -> Result<String, DecodeError> {
    std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| DecodeError::Field(field))
}
