//! zTensor 0.1 as a `Format`: connects the reader and the writer to tools that handle all formats.

use std::sync::Arc;

use fmt_core::{
    BoxReader, BoxWriter, ByteSource, Capabilities, Error, Format, Output, Plan, ReadOptions, Sniff,
};

use crate::{
    WriteOptions, ZtensorReader, ZtensorWriter,
    capabilities::CAPABILITIES,
    layout::{FAMILY, FAMILY_V2, FORMAT, MAGIC},
};

/// The format, for tools that handle all formats.
///
/// ```
/// use fmt_core::{Format, Plan, PlannedEntry, ReadOptions, Sniff};
/// use fmt_ztensor::Ztensor;
/// use tensor_core::{Bytes, DType, Shape, TensorSpec};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut file = Vec::new();
/// let spec = TensorSpec::new(DType::I16, Shape::vector(3))?;
/// let plan = Plan { entries: vec![PlannedEntry::dense("steps", spec)], ..Plan::default() };
/// let mut writer = Ztensor.create(Box::new(&mut file), plan)?;
/// writer.write(&[1, 0, 2, 0])?;
/// writer.write(&[3, 0])?;
/// writer.finish()?;
///
/// assert_eq!(Ztensor.sniff(&file, file.len() as u64), Sniff::Certain);
/// let reader = Ztensor.open(std::sync::Arc::new(Bytes::from(file)), &ReadOptions::default())?;
/// assert_eq!(reader.tensor(0)?.to_vec::<i16>()?, [1, 2, 3]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Ztensor;

impl Format for Ztensor {
    fn id(&self) -> &'static str {
        FORMAT
    }

    fn extensions(&self) -> &'static [&'static str] {
        &["zt", "ztensor"]
    }

    fn sniff(&self, head: &[u8], _len: u64) -> Sniff {
        if head.starts_with(&MAGIC) {
            Sniff::Certain
        } else if head.starts_with(FAMILY) || head.starts_with(FAMILY_V2) {
            // The file has another version: `open` returns an error that says so.
            Sniff::Possible
        } else {
            Sniff::No
        }
    }

    fn open(&self, source: Arc<dyn ByteSource>, options: &ReadOptions) -> Result<BoxReader, Error> {
        Ok(Box::new(ZtensorReader::open(source, options)?))
    }

    fn capabilities(&self) -> Option<&'static Capabilities> {
        Some(&CAPABILITIES)
    }

    fn create<'w>(&self, out: Output<'w>, plan: Plan) -> Result<BoxWriter<'w>, Error> {
        Ok(Box::new(ZtensorWriter::planned(
            out,
            &plan,
            WriteOptions::default(),
        )?))
    }
}
