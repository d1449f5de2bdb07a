//! TensorBuffers as a `Format`: connects the reader and the writer to tools that handle all formats.

use std::sync::Arc;

use fmt_core::{
    BoxReader, BoxWriter, ByteSource, Capabilities, Error, Format, Output, Plan, ReadOptions, Sniff,
};

use crate::{
    TbufReader, TbufWriter, WriteOptions,
    capabilities::CAPABILITIES,
    layout::{FAMILY, FORMAT, MAGIC, SHORTEST},
};

/// The format, for tools that handle all formats.
///
/// ```
/// use fmt_core::{Format, Plan, PlannedEntry, ReadOptions, Sniff};
/// use fmt_tbuf::TensorBuffers;
/// use tensor_core::{Bytes, DType, Shape, TensorSpec};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut file = Vec::new();
/// let spec = TensorSpec::new(DType::I16, Shape::vector(3))?;
/// let plan = Plan { entries: vec![PlannedEntry::dense("steps", spec)], ..Plan::default() };
/// let mut writer = TensorBuffers.create(Box::new(&mut file), plan)?;
/// writer.write(&[1, 0, 2, 0])?;
/// writer.write(&[3, 0])?;
/// writer.finish()?;
///
/// assert_eq!(TensorBuffers.sniff(&file, file.len() as u64), Sniff::Certain);
/// let reader = TensorBuffers.open(std::sync::Arc::new(Bytes::from(file)), &ReadOptions::default())?;
/// assert_eq!(reader.tensor(0)?.to_vec::<i16>()?, [1, 2, 3]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct TensorBuffers;

impl Format for TensorBuffers {
    fn id(&self) -> &'static str {
        FORMAT
    }

    fn extensions(&self) -> &'static [&'static str] {
        &["tbuf", "tensorbuffers"]
    }

    fn sniff(&self, head: &[u8], len: u64) -> Sniff {
        if head.starts_with(&MAGIC) && len >= SHORTEST {
            Sniff::Certain
        } else if head.starts_with(FAMILY) {
            // The file has another version or is truncated: `open` returns an error that distinguishes the
            // two.
            Sniff::Possible
        } else {
            Sniff::No
        }
    }

    fn open(&self, source: Arc<dyn ByteSource>, options: &ReadOptions) -> Result<BoxReader, Error> {
        Ok(Box::new(TbufReader::open(source, options)?))
    }

    fn capabilities(&self) -> Option<&'static Capabilities> {
        Some(&CAPABILITIES)
    }

    fn create<'w>(&self, out: Output<'w>, plan: Plan) -> Result<BoxWriter<'w>, Error> {
        Ok(Box::new(TbufWriter::planned(
            out,
            &plan,
            WriteOptions::default(),
        )?))
    }
}
