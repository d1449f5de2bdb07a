//! Implements `fmt_core`'s trait for formats.

use std::sync::Arc;

use fmt_core::{
    BoxReader, BoxWriter, ByteSource, Capabilities, Error, Format, Output, Plan, ReadOptions, Sniff,
};

use crate::{GgufReader, capabilities::CAPABILITIES, header::FORMAT, writer::GgufWriter};

/// The format for tools that handle all formats.
///
/// ```
/// use fmt_core::{Format, OpaqueDType, Plan, PlannedEntry, TensorReader};
/// use fmt_gguf::{Gguf, GgufReader};
/// use tensor_core::Shape;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// // Two blocks of 32 elements are written unchanged.
/// let blocks = OpaqueDType::new("Q8_0", 32, 34);
/// let entry = PlannedEntry::opaque("w", blocks, Shape::new(&[2, 32])?).ok_or("no whole blocks")?;
/// let metadata = [("general.architecture".to_owned(), "tiny".to_owned())].into();
/// let mut file = Vec::new();
/// let mut writer = Gguf.create(Box::new(&mut file), Plan { entries: vec![entry], metadata })?;
/// writer.write(&[1; 68])?;
/// writer.finish()?;
///
/// let reader = GgufReader::from_bytes(file)?;
/// assert_eq!(reader.entries()[0].dtype.to_string(), "Q8_0");
/// assert_eq!(reader.metadata()["general.architecture"], "tiny");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Gguf;

impl Format for Gguf {
    fn id(&self) -> &'static str {
        FORMAT
    }

    fn extensions(&self) -> &'static [&'static str] {
        &["gguf"]
    }

    fn sniff(&self, head: &[u8], _len: u64) -> Sniff {
        if head.starts_with(b"GGUF") {
            Sniff::Certain
        } else {
            Sniff::No
        }
    }

    fn open(&self, source: Arc<dyn ByteSource>, options: &ReadOptions) -> Result<BoxReader, Error> {
        Ok(Box::new(GgufReader::open(source, options)?))
    }

    fn capabilities(&self) -> Option<&'static Capabilities> {
        Some(&CAPABILITIES)
    }

    fn create<'w>(&self, out: Output<'w>, plan: Plan) -> Result<BoxWriter<'w>, Error> {
        Ok(Box::new(GgufWriter::planned(out, &plan)?))
    }
}
