//! `.npz` as a `Format`, and its writer: a ZIP archive with one `.npy` file per tensor.

use std::{io::Write, sync::Arc};

use fmt_core::{
    BoxReader, BoxWriter, ByteSource, Capabilities, Error, ErrorKind, Format, Limits, Output, Outstanding,
    Plan, ReadOptions, Sniff, TensorWriter,
};
use zip::{
    CompressionMethod, DateTime, ZipWriter,
    write::{SimpleFileOptions, StreamWriter},
};

use crate::{
    NpzReader,
    capabilities::NPZ,
    npy::encode_header,
    npz::SUFFIX,
    sink::{Sink, Valve},
};

/// The format `.npz` for tools that handle all formats.
///
/// Arrays are written as by `numpy.savez`, uncompressed, with elements aligned to 64 bytes.
///
/// ```
/// use fmt_core::{Format, Plan, PlannedEntry, ReadOptions};
/// use fmt_npy::Npz;
/// use tensor_core::{Bytes, DType, Shape, TensorSpec};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let spec = TensorSpec::new(DType::U8, Shape::vector(3))?;
/// let plan = Plan { entries: vec![PlannedEntry::dense("weights", spec)], ..Plan::default() };
/// let mut file = Vec::new();
/// let mut writer = Npz.create(Box::new(&mut file), plan)?;
/// writer.write(&[1, 2, 3])?;
/// writer.finish()?;
///
/// let reader = Npz.open(std::sync::Arc::new(Bytes::from(file)), &ReadOptions::default())?;
/// let index = reader.find("weights").ok_or("no such tensor")?;
/// assert_eq!(reader.tensor(index)?.to_vec::<u8>()?, [1, 2, 3]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Npz;

impl Format for Npz {
    fn id(&self) -> &'static str {
        "npz"
    }

    fn extensions(&self) -> &'static [&'static str] {
        &["npz"]
    }

    fn sniff(&self, head: &[u8], _len: u64) -> Sniff {
        let name_len = head
            .get(26..28)
            .map_or(0, |len| usize::from(len[0]) | usize::from(len[1]) << 8);
        let name = head.get(30..).and_then(|rest| rest.get(..name_len));
        let is_archive = head.starts_with(b"PK\x03\x04");
        if is_archive && name.is_some_and(|name| name.ends_with(b".npy")) {
            Sniff::Certain
        } else if is_archive || head.starts_with(b"PK\x05\x06") {
            // The file may be any archive, perhaps one without members.
            Sniff::Possible
        } else {
            Sniff::No
        }
    }

    fn open(&self, source: Arc<dyn ByteSource>, options: &ReadOptions) -> Result<BoxReader, Error> {
        Ok(Box::new(NpzReader::open(source, options)?))
    }

    fn capabilities(&self) -> Option<&'static Capabilities> {
        Some(&NPZ)
    }

    fn create<'w>(&self, out: Output<'w>, plan: Plan) -> Result<BoxWriter<'w>, Error> {
        plan.check(&NPZ, &Limits::default())?;
        let mut outstanding = Outstanding::default();
        let mut members = Vec::with_capacity(plan.entries.len());
        for (number, entry) in plan.entries.into_iter().enumerate() {
            let len = entry.spec.byte_len();
            outstanding.announce(number, len);
            members.push(PlannedArray {
                head: encode_header(&entry)?,
                name: entry.name,
                len,
            });
        }
        let sink = Sink::new(out);
        Ok(Box::new(NpzWriter {
            valve: sink.valve(),
            zip: Some(ZipWriter::new_stream(sink)),
            members,
            outstanding,
        }))
    }
}

#[derive(Default)]
struct PlannedArray {
    name: String,
    head: Vec<u8>,
    len: u64,
}

struct NpzWriter<W: Write> {
    /// `None` only while the file is being finished.
    zip: Option<ZipWriter<StreamWriter<Sink<W>>>>,
    valve: Valve,
    members: Vec<PlannedArray>,
    outstanding: Outstanding,
}

impl<W: Write> NpzWriter<W> {
    /// Begins the archive member of an array: its name and header.
    fn begin(&mut self, number: usize) -> Result<(), Error> {
        let PlannedArray { name, head, len } = std::mem::take(&mut self.members[number]);
        let options = SimpleFileOptions::default()
            .compression_method(CompressionMethod::Stored)
            // The archive's bytes depend only on the tensors, not on the time or the operating system.
            .last_modified_time(DateTime::default())
            .system(zip::System::Unix)
            .unix_permissions(0o644)
            .with_alignment(64)
            .large_file(len >= u64::from(u32::MAX) - (1 << 17));
        let started = self.zip()?.start_file(format!("{name}{SUFFIX}"), options);
        started.map_err(|error| failed(&error))?;
        self.members[number].name = name;
        self.put(&head)
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let written = self.zip()?.write_all(bytes);
        written.map_err(|error| Error::io("the file cannot be written", error))?;
        // The archive writer does not report when writing its buffer failed.
        self.valve.check()
    }

    fn zip(&mut self) -> Result<&mut ZipWriter<StreamWriter<Sink<W>>>, Error> {
        self.valve.check()?;
        let ended = || Error::new(ErrorKind::Io, "the file was already finished");
        self.zip.as_mut().ok_or_else(ended)
    }
}

impl<W: Write> Drop for NpzWriter<W> {
    /// Shuts the sink: the archive writer would otherwise finish an abandoned file as if it were complete.
    fn drop(&mut self) {
        self.valve.shut();
    }
}

fn failed(error: &zip::result::ZipError) -> Error {
    Error::io(
        "the file cannot be written",
        std::io::Error::other(error.to_string()),
    )
}

impl<W: Write + Send> TensorWriter for NpzWriter<W> {
    fn write(&mut self, mut bytes: &[u8]) -> Result<(), Error> {
        self.valve.check()?;
        self.outstanding.admit(bytes)?;
        while let Some(piece) = self.outstanding.take(&mut bytes) {
            if piece.begins {
                self.begin(piece.number)?;
            }
            self.put(piece.bytes)?;
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<u64, Error> {
        self.write(&[])?;
        let name = |number: usize| Some(self.members[number].name.clone());
        self.outstanding.complete(name)?;
        self.zip()?;
        let Some(zip) = self.zip.take() else {
            return Err(Error::new(ErrorKind::Io, "the file was already finished"));
        };
        let stream = zip.finish().map_err(|error| failed(&error))?;
        stream.into_inner().flush()
    }
}
