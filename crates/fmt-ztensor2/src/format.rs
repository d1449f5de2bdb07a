//! Versions 1.x and 2.x as `Format`s: connects the reader and the writer to tools that handle all formats.

use std::sync::Arc;

use fmt_core::{
    BoxReader, BoxWriter, ByteSource, Capabilities, Error, ErrorKind, Format, Output, Plan, ReadOptions,
    Sniff,
};

use crate::{
    capabilities::CAPABILITIES,
    container::{MAGIC_V1, MAGIC_V2, Version},
    reader::ObjectsReader,
    writer::ObjectsWriter,
};

/// zTensor 1.x, the format of versions 1.x of the Python package `ztensor`; read only.
///
/// ```
/// use fmt_core::{Format, Sniff};
/// use fmt_ztensor2::Ztensor1;
/// assert_eq!(Ztensor1.sniff(b"ZTEN1000", 24), Sniff::Certain);
/// assert_eq!(Ztensor1.sniff(b"ZTEN0001", 17), Sniff::No);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Ztensor1;

/// zTensor 2.x, as read and written by current versions of the Python package `ztensor`. Writing supports
/// uncompressed dense tensors, each with a digest.
///
/// ```
/// use fmt_core::{Format, Sniff};
/// use fmt_ztensor2::Ztensor2;
/// assert_eq!(Ztensor2.sniff(b"\x89ZT2\r\n\x1a\n", 48), Sniff::Certain);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Ztensor2;

impl Format for Ztensor1 {
    fn id(&self) -> &'static str {
        Version::V1.id()
    }

    fn extensions(&self) -> &'static [&'static str] {
        &["zt"]
    }

    fn sniff(&self, head: &[u8], _len: u64) -> Sniff {
        sniff(head, &MAGIC_V1)
    }

    fn open(&self, source: Arc<dyn ByteSource>, options: &ReadOptions) -> Result<BoxReader, Error> {
        Ok(Box::new(ObjectsReader::open(source, options)?))
    }

    fn create<'w>(&self, _out: Output<'w>, _plan: Plan) -> Result<BoxWriter<'w>, Error> {
        Err(not_written())
    }
}

impl Format for Ztensor2 {
    fn id(&self) -> &'static str {
        Version::V2.id()
    }

    fn extensions(&self) -> &'static [&'static str] {
        &["zt"]
    }

    fn sniff(&self, head: &[u8], _len: u64) -> Sniff {
        sniff(head, &MAGIC_V2)
    }

    fn open(&self, source: Arc<dyn ByteSource>, options: &ReadOptions) -> Result<BoxReader, Error> {
        Ok(Box::new(ObjectsReader::open(source, options)?))
    }

    fn capabilities(&self) -> Option<&'static Capabilities> {
        Some(&CAPABILITIES)
    }

    fn create<'w>(&self, out: Output<'w>, plan: Plan) -> Result<BoxWriter<'w>, Error> {
        Ok(Box::new(ObjectsWriter::planned(out, &plan)?))
    }
}

fn sniff(head: &[u8], magic: &[u8; 8]) -> Sniff {
    match head.starts_with(magic) {
        true => Sniff::Certain,
        false => Sniff::No,
    }
}

fn not_written() -> Error {
    Error::new(
        ErrorKind::Unsupported,
        "files of the format 'ztensor1' are read, not written",
    )
    .expected("ztensor, which is version 0.1, or ztensor2")
    .rule("O18")
}
