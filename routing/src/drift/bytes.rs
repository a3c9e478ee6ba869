//! Numbers in shared data, little-endian, whose reader takes nothing for granted.

pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }

    pub(super) fn u8(&mut self) -> Option<u8> {
        self.take::<1>().map(|[byte]| byte)
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    /// Between 0 and `most`.
    pub(super) fn f32(&mut self, most: f32) -> Option<f32> {
        let value = f32::from_bits(self.u32()?);
        (0.0..=most).contains(&value).then_some(value)
    }
}

pub(super) fn put_f32(bytes: &mut Vec<u8>, value: f32) {
    bytes.extend(value.to_bits().to_le_bytes());
}
