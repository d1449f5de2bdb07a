//! Implements `fmt_core`'s trait for formats.

use std::sync::Arc;

use fmt_core::{
    BoxReader, BoxWriter, ByteSource, Capabilities, Error, Format, Output, Plan, ReadOptions, Sniff,
};

use crate::{
    SafetensorsReader, SafetensorsWriter,
    capabilities::CAPABILITIES,
    layout::{FORMAT, LENGTH, LONGEST_HEADER},
};

/// The format for tools that handle all formats.
///
/// ```
/// use fmt_core::{Format, Sniff};
/// use fmt_safetensors::Safetensors;
///
/// let file = b"\x08\0\0\0\0\0\0\0{}      ";
/// assert_eq!(Safetensors.sniff(file, 16), Sniff::Possible);
/// assert_eq!(Safetensors.sniff(b"PK\x03\x04\x14\0\0\0\x08\0", 1000), Sniff::No);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Safetensors;

impl Format for Safetensors {
    fn id(&self) -> &'static str {
        FORMAT
    }

    fn extensions(&self) -> &'static [&'static str] {
        &["safetensors"]
    }

    fn sniff(&self, head: &[u8], len: u64) -> Sniff {
        let (Some(length), Some(first)) = (head.first_chunk(), head.get(LENGTH as usize)) else {
            return Sniff::No;
        };
        let header_len = u64::from_le_bytes(*length);
        let fits = (2..=LONGEST_HEADER).contains(&header_len) && header_len <= len.saturating_sub(LENGTH);
        if !fits || *first != b'{' {
            return Sniff::No;
        }
        // Files of other formats hardly ever have `{"` at this offset.
        match head.get(LENGTH as usize + 1) {
            Some(b'"') => Sniff::Certain,
            _ => Sniff::Possible,
        }
    }

    fn open(&self, source: Arc<dyn ByteSource>, options: &ReadOptions) -> Result<BoxReader, Error> {
        Ok(Box::new(SafetensorsReader::open(source, options)?))
    }

    fn capabilities(&self) -> Option<&'static Capabilities> {
        Some(&CAPABILITIES)
    }

    fn create<'w>(&self, out: Output<'w>, plan: Plan) -> Result<BoxWriter<'w>, Error> {
        Ok(Box::new(SafetensorsWriter::planned(out, plan)?))
    }
}
