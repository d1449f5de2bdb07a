//! Writes `.npz` archives.

use std::{collections::BTreeSet, io::Write, sync::Arc};

use fmt_core::{
    BoxReader, BoxWriter, ByteSource, Error, ErrorKind, Format, Output, Plan, ReadOptions, Sniff,
    TensorWriter,
};
use zip::{
    CompressionMethod, DateTime, ZipWriter,
    write::{SimpleFileOptions, StreamWriter},
};

use crate::{
    NpzReader,
    npy::{check_plan, encode_header, too_few, too_many},
    npz::SUFFIX,
    sink::{Sink, Valve},
};

/// The format `.npz` for tools that handle all formats.
///
/// Arrays are written like `numpy.savez` does, uncompressed, with elements aligned to 64.
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
            // Any archive, perhaps one without members.
            Sniff::Possible
        } else {
            Sniff::No
        }
    }

    fn open(&self, source: Arc<dyn ByteSource>, options: &ReadOptions) -> Result<BoxReader, Error> {
        Ok(Box::new(NpzReader::open(source, options)?))
    }

    fn create<'w>(&self, out: Output<'w>, plan: Plan) -> Result<BoxWriter<'w>, Error> {
        check_plan(&plan)?;
        let limits = fmt_core::Limits::default();
        if plan.entries.len() as u64 > limits.tensors {
            let error = Error::new(ErrorKind::TooLarge, "the number of tensors").rule("N13");
            return Err(error
                .expected(format_args!("at most {}, which readers take", limits.tensors))
                .found(plan.entries.len()));
        }
        let mut names = BTreeSet::new();
        let (mut members, mut outstanding) = (Vec::with_capacity(plan.entries.len()), 0u64);
        for entry in &plan.entries {
            check_name(&entry.name, limits.name_bytes).map_err(|error| error.of_tensor(&entry.name))?;
            if !names.insert(&entry.name) {
                let error = Error::new(ErrorKind::Duplicate, "the name is given twice");
                return Err(error.of_tensor(&entry.name).rule("N10"));
            }
            outstanding = outstanding.saturating_add(entry.spec.byte_len());
            members.push(PlannedArray {
                name: entry.name.clone(),
                head: encode_header(entry)?,
                len: entry.spec.byte_len(),
            });
        }
        if outstanding >= 1 << 63 {
            let error = Error::new(ErrorKind::TooLarge, "the data of all tensors").rule("N13");
            return Err(error.expected("less than 2^63 bytes"));
        }
        let sink = Sink::new(out);
        Ok(Box::new(NpzWriter {
            valve: sink.valve(),
            zip: Some(ZipWriter::new_stream(sink)),
            members: members.into_iter(),
            current: None,
            outstanding,
        }))
    }
}

/// Checks a name, which becomes a path when the archive is unpacked: it must not escape.
fn check_name(name: &str, most: u64) -> Result<(), Error> {
    let bad = |expected: String| {
        let error = Error::new(ErrorKind::BadName, "the name").rule("N13");
        Err(error.expected(expected))
    };
    if name.is_empty() || name.len() as u64 > most {
        return bad(format!("1 to {most} bytes"));
    }
    let is_odd = |part: &str| part.is_empty() || part == "." || part == "..";
    if name.split('/').any(is_odd) || name.contains(['\\', '\0']) {
        return bad("one that is a path inside a folder, without '..', '\\' and zero bytes".to_owned());
    }
    Ok(())
}

struct PlannedArray {
    name: String,
    head: Vec<u8>,
    len: u64,
}

struct NpzWriter<W: Write> {
    /// `None` only while the file is being finished.
    zip: Option<ZipWriter<StreamWriter<Sink<W>>>>,
    valve: Valve,
    members: std::vec::IntoIter<PlannedArray>,
    /// The current array and its remaining bytes.
    current: Option<(String, u64)>,
    /// Remaining bytes of all arrays.
    outstanding: u64,
}

impl<W: Write> NpzWriter<W> {
    /// Starts arrays until one needs bytes; there is none when all are complete.
    fn advance(&mut self) -> Result<(), Error> {
        while self.current.as_ref().is_none_or(|(_, rest)| *rest == 0) {
            let Some(member) = self.members.next() else {
                return Ok(());
            };
            let options = SimpleFileOptions::default()
                .compression_method(CompressionMethod::Stored)
                // The output depends only on the tensors, so there is no timestamp.
                .last_modified_time(DateTime::default())
                .system(zip::System::Unix)
                .unix_permissions(0o644)
                .with_alignment(64)
                .large_file(member.len >= u64::from(u32::MAX) - (1 << 17));
            let started = self
                .zip()?
                .start_file(format!("{}{SUFFIX}", member.name), options);
            started.map_err(|error| failed(&error))?;
            self.put(&member.head)?;
            self.current = Some((member.name, member.len));
        }
        Ok(())
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let written = self.zip()?.write_all(bytes);
        written.map_err(|error| Error::io("the file cannot be written", error))?;
        // The archive writer's buffered writes may have failed silently.
        self.valve.check()
    }

    fn zip(&mut self) -> Result<&mut ZipWriter<StreamWriter<Sink<W>>>, Error> {
        self.valve.check()?;
        let ended = || Error::new(ErrorKind::Io, "the file was ended before");
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
        if bytes.len() as u64 > self.outstanding {
            return Err(too_many(self.outstanding, bytes.len()));
        }
        while !bytes.is_empty() {
            self.advance()?;
            let rest = self.current.as_ref().map_or(0, |(_, rest)| *rest);
            let len = usize::try_from(rest).map_or(bytes.len(), |rest| rest.min(bytes.len()));
            let (now, later) = bytes.split_at(len);
            self.put(now)?;
            if let Some((_, rest)) = &mut self.current {
                *rest -= len as u64;
            }
            self.outstanding -= len as u64;
            bytes = later;
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<u64, Error> {
        self.advance()?;
        if let Some((name, rest)) = self.current.as_ref().filter(|(_, rest)| *rest > 0) {
            return Err(too_few(name, *rest));
        }
        self.zip()?;
        let Some(zip) = self.zip.take() else {
            return Err(Error::new(ErrorKind::Io, "the file was ended before"));
        };
        let stream = zip.finish().map_err(|error| failed(&error))?;
        stream.into_inner().flush()
    }
}
