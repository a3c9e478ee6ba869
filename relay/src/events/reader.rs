//! Reading msgpack from a slice: no value is believed before its bytes are seen, nothing recurses.

use rmp::Marker;

use super::error::DecodeError;

/// What is left of a frame.
#[derive(Clone, Copy)]
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

/// The head of one value; text and bytes are whole, arrays and maps are still to be read.
#[derive(Debug, PartialEq)]
pub(super) enum Value<'a> {
    Nil,
    Bool,
    Int(i128),
    Float(f64),
    Text(&'a [u8]),
    Bytes(&'a [u8]),
    Array(usize),
    Map(usize),
    Ext,
}

impl<'a> Reader<'a> {
    pub(super) fn new(rest: &'a [u8]) -> Self {
        Self { rest }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Bytes left: an upper bound of the values left, for reserving memory.
    pub(super) fn len(&self) -> usize {
        self.rest.len()
    }

    fn take(&mut self, n: usize) -> Result<&'a [u8], DecodeError> {
        let (head, rest) = self.rest.split_at_checked(n).ok_or(DecodeError::Truncated)?;
        self.rest = rest;
        Ok(head)
    }

    fn number<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (head, rest) = self.rest.split_first_chunk::<N>().ok_or(DecodeError::Truncated)?;
        self.rest = rest;
        Ok(*head)
    }

    fn length(&mut self, bytes: usize) -> Result<usize, DecodeError> {
        let length = match bytes {
            1 => u32::from(u8::from_be_bytes(self.number()?)),
            2 => u32::from(u16::from_be_bytes(self.number()?)),
            _ => u32::from_be_bytes(self.number()?),
        };
        Ok(length as usize)
    }

    /// Reads one value's head.
    pub(super) fn value(&mut self) -> Result<Value<'a>, DecodeError> {
        let [first] = self.number::<1>()?;
        Ok(match Marker::from_u8(first) {
            Marker::Null => Value::Nil,
            Marker::True | Marker::False => Value::Bool,
            Marker::FixPos(n) => Value::Int(i128::from(n)),
            Marker::FixNeg(n) => Value::Int(i128::from(n)),
            Marker::U8 => Value::Int(i128::from(u8::from_be_bytes(self.number()?))),
            Marker::U16 => Value::Int(i128::from(u16::from_be_bytes(self.number()?))),
            Marker::U32 => Value::Int(i128::from(u32::from_be_bytes(self.number()?))),
            Marker::U64 => Value::Int(i128::from(u64::from_be_bytes(self.number()?))),
            Marker::I8 => Value::Int(i128::from(i8::from_be_bytes(self.number()?))),
            Marker::I16 => Value::Int(i128::from(i16::from_be_bytes(self.number()?))),
            Marker::I32 => Value::Int(i128::from(i32::from_be_bytes(self.number()?))),
            Marker::I64 => Value::Int(i128::from(i64::from_be_bytes(self.number()?))),
            Marker::F32 => Value::Float(f64::from(f32::from_be_bytes(self.number()?))),
            Marker::F64 => Value::Float(f64::from_be_bytes(self.number()?)),
            Marker::FixStr(n) => Value::Text(self.take(usize::from(n))?),
            Marker::Str8 => self.sized(1).map(Value::Text)?,
            Marker::Str16 => self.sized(2).map(Value::Text)?,
            Marker::Str32 => self.sized(4).map(Value::Text)?,
            Marker::Bin8 => self.sized(1).map(Value::Bytes)?,
            Marker::Bin16 => self.sized(2).map(Value::Bytes)?,
            Marker::Bin32 => self.sized(4).map(Value::Bytes)?,
            Marker::FixArray(n) => Value::Array(usize::from(n)),
            Marker::Array16 => Value::Array(self.length(2)?),
            Marker::Array32 => Value::Array(self.length(4)?),
            Marker::FixMap(n) => Value::Map(usize::from(n)),
            Marker::Map16 => Value::Map(self.length(2)?),
            Marker::Map32 => Value::Map(self.length(4)?),
            Marker::FixExt1 => self.ext(1)?,
            Marker::FixExt2 => self.ext(2)?,
            Marker::FixExt4 => self.ext(4)?,
            Marker::FixExt8 => self.ext(8)?,
            Marker::FixExt16 => self.ext(16)?,
            Marker::Ext8 => self.length(1).and_then(|n| self.ext(n))?,
            Marker::Ext16 => self.length(2).and_then(|n| self.ext(n))?,
            Marker::Ext32 => self.length(4).and_then(|n| self.ext(n))?,
            Marker::Reserved => return Err(DecodeError::NotMsgpack),
        })
    }

    fn sized(&mut self, length_bytes: usize) -> Result<&'a [u8], DecodeError> {
        let n = self.length(length_bytes)?;
        self.take(n)
    }

    fn ext(&mut self, n: usize) -> Result<Value<'a>, DecodeError> {
        self.take(n)?;
        self.take(1)?;
        Ok(Value::Ext)
    }

    /// Skips what belongs to a value whose head was read.
    pub(super) fn skip_rest_of(&mut self, value: &Value<'_>) -> Result<(), DecodeError> {
        // Each value to come takes a byte at least, so the count can't outrun the frame.
        let mut left = values_in(value)?;
        while left > 0 {
            let inner = self.value()?;
            left = left.checked_add(values_in(&inner)?).ok_or(DecodeError::Truncated)? - 1;
            if left > self.len() {
                return Err(DecodeError::Truncated);
            }
        }
        Ok(())
    }

    /// Skips one whole value.
    pub(super) fn skip(&mut self) -> Result<(), DecodeError> {
        let value = self.value()?;
        self.skip_rest_of(&value)
    }
}

fn values_in(value: &Value<'_>) -> Result<usize, DecodeError> {
    match value {
        Value::Array(n) => Ok(*n),
        Value::Map(n) => n.checked_mul(2).ok_or(DecodeError::Truncated),
        _ => Ok(0),
    }
}
