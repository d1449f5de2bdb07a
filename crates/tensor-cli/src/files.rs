//! Files of every format, by path.

use std::{fs, io::Read, io::Write, path::Path, sync::Arc};

use fmt_core::{ByteSource, Error, ErrorKind, Format, Plan, ReadOptions, Sniff, TensorReader, TensorWriter};
use fmt_ztensor::{ChecksumKind, Compression, TensorOptions, WriteOptions, Ztensor, ZtensorWriter};

use crate::{
    failure::{About, Outcome},
    options::{Checksum, Endian, Target},
};

/// Opens a file of whichever format it is.
pub(crate) fn open(path: &Path) -> Outcome<Box<dyn TensorReader>> {
    tensor_files::open(path, &ReadOptions::default()).about(path)
}

/// The format that a file is in.
pub(crate) fn detect(path: &Path) -> Outcome<&'static dyn Format> {
    let file = fs::File::open(path)
        .map_err(|error| Error::io("the file cannot be opened", error))
        .about(path)?;
    let mut head = Vec::new();
    let len = file.metadata().map_or(0, |metadata| metadata.len());
    let read = file.take(512).read_to_end(&mut head);
    read.map_err(|error| Error::io("the file cannot be read", error))
        .about(path)?;
    tensor_files::detect(&head, len, Some(path)).about(path)
}

/// The format to write a file in: the one that is asked for, else the one of its extension; with its settings.
pub(crate) fn target(path: &Path, target: &Target) -> Outcome<Box<dyn Format>> {
    let format = match &target.format {
        Some(id) => tensor_files::format(id).ok_or_else(|| unknown("the format", id)),
        None => tensor_files::format_of_path(path).ok_or_else(|| {
            let extension = path.extension().unwrap_or_default();
            unknown(
                "the format is not told by the extension; --to NAMES it",
                &extension.to_string_lossy(),
            )
        }),
    };
    let format = format.about(path)?;
    let Some(settings) = settings(target) else {
        return Ok(Box::new(Plain(format)));
    };
    if format.id() != Ztensor.id() {
        let error = Error::new(
            ErrorKind::Unsupported,
            "compression, checksums, the order of bytes and --strict-spec are settings of zTensor",
        );
        return Err(error.expected("ztensor").found(format.id())).about(path);
    }
    Ok(Box::new(Set(settings)))
}

fn unknown(what: &str, found: &str) -> Error {
    let known: Vec<&str> = tensor_files::formats().iter().map(|format| format.id()).collect();
    let error = Error::new(ErrorKind::Unsupported, what);
    error
        .expected(format_args!("one of {}", known.join(", ")))
        .found(format_args!("'{found}'"))
}

/// What is asked for beyond the format, if anything.
fn settings(target: &Target) -> Option<WriteOptions> {
    let is_plain =
        !target.compress && target.checksum.is_none() && target.endian.is_none() && !target.strict_spec;
    if is_plain {
        return None;
    }
    let checksum = match target.checksum {
        None => TensorOptions::default().checksum,
        Some(Checksum::None) => None,
        Some(Checksum::Crc32c) => Some(ChecksumKind::Crc32c),
        Some(Checksum::Sha256) => Some(ChecksumKind::Sha256),
    };
    Some(WriteOptions {
        tensors: TensorOptions {
            compression: target.compress.then(|| Compression::level(target.level)),
            checksum,
            big_endian: target.endian == Some(Endian::Big),
            ..TensorOptions::default()
        },
        strict_spec: target.strict_spec,
        ..WriteOptions::default()
    })
}

/// A format as it is.
struct Plain(&'static dyn Format);

/// zTensor with settings.
struct Set(WriteOptions);

impl Format for Plain {
    fn id(&self) -> &'static str {
        self.0.id()
    }

    fn extensions(&self) -> &'static [&'static str] {
        self.0.extensions()
    }

    fn sniff(&self, head: &[u8], len: u64) -> Sniff {
        self.0.sniff(head, len)
    }

    fn open(
        &self,
        source: Arc<dyn ByteSource>,
        options: &ReadOptions,
    ) -> Result<Box<dyn TensorReader>, Error> {
        self.0.open(source, options)
    }

    fn create<'w>(
        &self,
        out: Box<dyn Write + Send + 'w>,
        plan: Plan,
    ) -> Result<Box<dyn TensorWriter + 'w>, Error> {
        self.0.create(out, plan)
    }
}

impl Format for Set {
    fn id(&self) -> &'static str {
        Ztensor.id()
    }

    fn extensions(&self) -> &'static [&'static str] {
        Ztensor.extensions()
    }

    fn sniff(&self, head: &[u8], len: u64) -> Sniff {
        Ztensor.sniff(head, len)
    }

    fn open(
        &self,
        source: Arc<dyn ByteSource>,
        options: &ReadOptions,
    ) -> Result<Box<dyn TensorReader>, Error> {
        Ztensor.open(source, options)
    }

    fn create<'w>(
        &self,
        out: Box<dyn Write + Send + 'w>,
        plan: Plan,
    ) -> Result<Box<dyn TensorWriter + 'w>, Error> {
        Ok(Box::new(ZtensorWriter::planned(out, &plan, self.0.clone())?))
    }
}
