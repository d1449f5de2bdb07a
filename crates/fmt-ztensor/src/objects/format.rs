use std::{io::Write, sync::Arc};

use fmt_core::{ByteSource, Error, ErrorKind, Format, Plan, ReadOptions, Sniff, TensorReader, TensorWriter};

use super::{
    container::{MAGIC_V1, MAGIC_V2, Version},
    reader::ObjectsReader,
};

/// zTensor 1.x, which the Python package `ztensor` of these versions writes, for reading.
///
/// ```
/// use fmt_core::{Format, Sniff};
/// use fmt_ztensor::Ztensor1;
/// assert_eq!(Ztensor1.sniff(b"ZTEN1000", 24), Sniff::Certain);
/// assert_eq!(Ztensor1.sniff(b"ZTEN0001", 17), Sniff::No);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Ztensor1;

/// zTensor 2.x, which the Python package `ztensor` writes today, for reading.
///
/// ```
/// use fmt_core::{Format, Sniff};
/// use fmt_ztensor::Ztensor2;
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

    fn open(
        &self,
        source: Arc<dyn ByteSource>,
        options: &ReadOptions,
    ) -> Result<Box<dyn TensorReader>, Error> {
        Ok(Box::new(ObjectsReader::open(source, options)?))
    }

    fn create<'w>(
        &self,
        _out: Box<dyn Write + Send + 'w>,
        _plan: Plan,
    ) -> Result<Box<dyn TensorWriter + 'w>, Error> {
        Err(not_written(Version::V1))
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

    fn open(
        &self,
        source: Arc<dyn ByteSource>,
        options: &ReadOptions,
    ) -> Result<Box<dyn TensorReader>, Error> {
        Ok(Box::new(ObjectsReader::open(source, options)?))
    }

    fn create<'w>(
        &self,
        _out: Box<dyn Write + Send + 'w>,
        _plan: Plan,
    ) -> Result<Box<dyn TensorWriter + 'w>, Error> {
        Err(not_written(Version::V2))
    }
}

fn sniff(head: &[u8], magic: &[u8; 8]) -> Sniff {
    match head.starts_with(magic) {
        true => Sniff::Certain,
        false => Sniff::No,
    }
}

fn not_written(version: Version) -> Error {
    let what = format!("files of the format '{}' are read, not written", version.id());
    Error::new(ErrorKind::Unsupported, what)
        .expected("ztensor, which is version 0.1")
        .rule("O18")
}
