//! BTF as a `Format`: connects the reader and the writer to tools that handle all formats.

use std::sync::Arc;

use fmt_core::{
    BoxReader, BoxWriter, ByteSource, Capabilities, Error, Format, Output, Plan, ReadOptions, Sniff,
};

use crate::{
    BtfReader, BtfWriter, WriteOptions,
    capabilities::CAPABILITIES,
    layout::{FORMAT, HEADER, WORD},
};

/// The format, for tools that handle all formats.
///
/// ```
/// use fmt_btf::Btf;
/// use fmt_core::{Format, Plan, PlannedEntry, ReadOptions, Sniff};
/// use tensor_core::{Bytes, DType, Shape, TensorSpec};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut file = Vec::new();
/// let spec = TensorSpec::new(DType::I16, Shape::vector(3))?;
/// let plan = Plan { entries: vec![PlannedEntry::dense("0", spec)], ..Plan::default() };
/// let mut writer = Btf.create(Box::new(&mut file), plan)?;
/// writer.write(&[1, 0, 2, 0])?;
/// writer.write(&[3, 0])?;
/// writer.finish()?;
///
/// // The format has no magic number.
/// assert_eq!(Btf.sniff(&file, file.len() as u64), Sniff::Possible);
/// let reader = Btf.open(std::sync::Arc::new(Bytes::from(file)), &ReadOptions::default())?;
/// assert_eq!(reader.tensor(0)?.to_vec::<i16>()?, [1, 2, 3]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Btf;

impl Format for Btf {
    fn id(&self) -> &'static str {
        FORMAT
    }

    fn extensions(&self) -> &'static [&'static str] {
        &["btf"]
    }

    fn sniff(&self, head: &[u8], len: u64) -> Sniff {
        let word = |at: usize| {
            let word = head.get(at..)?.first_chunk()?;
            Some(u64::from_le_bytes(*word))
        };
        let Some(count) = word(0) else {
            return Sniff::No;
        };
        let room = len.saturating_sub(WORD) / WORD;
        let is_plausible = match word(WORD as usize) {
            _ if count > room => false,
            // A file of eight zero bytes is a valid file without tensors, but may be of any format.
            _ if count == 0 => len == WORD,
            // The first record must follow the table at a multiple of 8, and its header must fit into the
            // file.
            Some(offset) => {
                offset.is_multiple_of(WORD)
                    && offset > WORD * count
                    && offset.checked_add(HEADER).is_some_and(|end| end <= len)
            }
            None => false,
        };
        if is_plausible { Sniff::Possible } else { Sniff::No }
    }

    fn open(&self, source: Arc<dyn ByteSource>, options: &ReadOptions) -> Result<BoxReader, Error> {
        Ok(Box::new(BtfReader::open(source, options)?))
    }

    fn capabilities(&self) -> Option<&'static Capabilities> {
        Some(&CAPABILITIES)
    }

    fn create<'w>(&self, out: Output<'w>, plan: Plan) -> Result<BoxWriter<'w>, Error> {
        Ok(Box::new(BtfWriter::planned(out, &plan, WriteOptions::default())?))
    }
}
