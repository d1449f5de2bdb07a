//! Reads ONNX models through the traits of tensor files.

use std::{fmt, io::Write, ops::Range, sync::Arc};

use fmt_core::{
    ByteSource, BytesStream, Entry, Error, ErrorKind, Format, Limits, Lint, Metadata, NameTable, Plan,
    RawTensor, ReadOptions, Sniff, TensorReader, TensorStream, TensorWriter, Verification, check_buffer,
    row_range, tensor_of,
};
use tensor_core::{Bytes, Tensor};

use crate::{
    Summary,
    model::{self, Port},
    runnable,
    tensor::{ElementStorage, decode},
};

/// An open ONNX model: its weights (the initializers of its main graph) as tensors.
///
/// Opening scans the model and keeps names, shapes and offsets; data is skipped, and read on request. Weights
/// in other files can be read if [`OnnxReader::open_with`] gets a function that opens these files. The
/// model's metadata is available from [`OnnxReader::summary`], and as strings from
/// [`TensorReader::metadata`].
///
/// ```
/// use fmt_core::{ReadOptions, TensorReader};
/// use fmt_onnx::OnnxReader;
/// use tensor_core::Bytes;
///
/// // A graph with one weight: w, u8[3].
/// let weight = b"\x08\x03\x10\x02\x42\x01w\x4a\x03\x01\x02\x03";
/// let graph = [&[0x2a, weight.len() as u8], &weight[..]].concat();
/// let model = [&[0x08, 8, 0x3a, graph.len() as u8], &graph[..]].concat();
/// let reader = OnnxReader::open(std::sync::Arc::new(Bytes::from(model)), &ReadOptions::default())?;
/// assert_eq!(reader.summary().ir_version, 8);
/// assert_eq!(reader.tensor(0)?.bytes(), &[1, 2, 3][..]);
/// # Ok::<(), fmt_core::Error>(())
/// ```
pub struct OnnxReader {
    source: Arc<dyn ByteSource>,
    entries: Vec<Entry>,
    locations: Vec<ElementLocation>,
    names: NameTable,
    summary: Summary,
    metadata: Metadata,
    foreign: Vec<String>,
    limits: Limits,
}

/// A function that opens another file by its name in the model.
pub type OpenExternal<'a> = dyn Fn(&str) -> Result<Arc<dyn ByteSource>, Error> + 'a;

type File = Arc<dyn ByteSource>;

/// The location of a weight's elements.
enum ElementLocation {
    /// The elements are the raw bytes of this source.
    Raw(Arc<dyn ByteSource>),
    /// The elements are numbers in the protobuf field with this number.
    Numbers(u64),
}

impl OnnxReader {
    /// Opens a model. Weights in other files are listed, but cannot be read.
    ///
    /// # Errors
    /// Returns [`ErrorKind::BadMagic`] for a file without a graph, and [`ErrorKind::Malformed`],
    /// [`ErrorKind::Truncated`], [`ErrorKind::SizeMismatch`], [`ErrorKind::Overflow`],
    /// [`ErrorKind::Duplicate`] or [`ErrorKind::TooLarge`] for an invalid model.
    pub fn open(source: Arc<dyn ByteSource>, options: &ReadOptions) -> Result<Self, Error> {
        let refuse = |_: &str| {
            Err(Error::new(
                ErrorKind::Unsupported,
                "other files are not read here",
            ))
        };
        Self::open_with(source, options, &refuse)
    }

    /// Opens a model whose weights may be in other files. `beside` opens each of these files once, by its
    /// name in the model. The model can contain any name, so `beside` must decide which names it accepts.
    ///
    /// A file that cannot be opened, or is too short, is not an error: its weights are listed with the reason
    /// why they cannot be read.
    ///
    /// # Errors
    /// Returns the errors of [`OnnxReader::open`].
    pub fn open_with(
        source: Arc<dyn ByteSource>,
        options: &ReadOptions,
        beside: &OpenExternal<'_>,
    ) -> Result<Self, Error> {
        let found = model::read(&*source, &options.limits)?;
        let (mut entries, mut locations) = (Vec::new(), Vec::new());
        let mut files: Vec<(String, Result<File, Error>)> = Vec::new();
        for weight in found.weights {
            let (mut entry, stored) = weight.entry()?;
            locations.push(match stored {
                ElementStorage::Here => ElementLocation::Raw(Arc::clone(&source)),
                ElementStorage::Numbers(field) => ElementLocation::Numbers(field),
                ElementStorage::Elsewhere(external) => {
                    let known = files.iter().position(|(name, _)| *name == external.location);
                    let known = known.unwrap_or_else(|| {
                        let opened = beside(&external.location);
                        files.push((external.location.clone(), opened));
                        files.len() - 1
                    });
                    let reason = match &files[known].1 {
                        Ok(file) if entry.range.end <= file.len() => None,
                        Ok(file) => Some(format!("the file has {} bytes only", file.len())),
                        Err(error) => Some(error.to_string()),
                    };
                    if let Some(reason) = reason {
                        let name = external.location.escape_debug();
                        entry.unsupported = Some(format!("its data is in the file '{name}': {reason}"));
                        // Replaces the dtype with an unknown one, so that tools do not try to copy the
                        // missing data.
                        entry.dtype = fmt_core::StoredDType::Unknown(entry.dtype.to_string());
                    }
                    let file = files[known].1.as_ref().unwrap_or(&source);
                    ElementLocation::Raw(Arc::clone(file))
                }
            });
            entries.push(entry);
        }
        let (names, twice) = NameTable::of_entries(&entries);
        if let Some((_, number)) = twice {
            let error = Error::new(ErrorKind::Duplicate, "the name is given twice");
            return Err(error.of_tensor(&entries[number as usize].name));
        }
        Ok(Self {
            names,
            metadata: metadata(&found.summary),
            summary: found.summary,
            foreign: found.foreign,
            limits: options.limits.clone(),
            source,
            entries,
            locations,
        })
    }

    /// Returns the model's metadata.
    #[must_use]
    pub fn summary(&self) -> &Summary {
        &self.summary
    }

    fn raw(&self, index: usize) -> Result<Option<RawTensor<'_>>, Error> {
        match &self.locations[index] {
            ElementLocation::Raw(source) => RawTensor::new(&**source, &self.entries[index]).map(Some),
            ElementLocation::Numbers(_) => Ok(None),
        }
    }

    fn decoded(&self, index: usize) -> Result<Bytes, Error> {
        let entry = &self.entries[index];
        let ElementLocation::Numbers(field) = self.locations[index] else {
            return Err(Error::new(ErrorKind::Unsupported, "the weight").of_tensor(&entry.name));
        };
        let decoded = decode(&*self.source, entry, field, &self.limits);
        decoded
            .map(Bytes::from)
            .map_err(|error| error.of_tensor(&entry.name))
    }
}

/// Formats the summary as strings.
fn metadata(summary: &Summary) -> Metadata {
    let mut metadata = Metadata::new();
    let mut say = |key: &str, text: String| {
        if !text.is_empty() {
            metadata.insert(format!("onnx.{key}"), text);
        }
    };
    let ports = |ports: &[Port]| {
        let ports = ports.iter().map(|port| format!("{}: {}", port.name, port.kind));
        ports.collect::<Vec<_>>().join("; ")
    };
    say("ir_version", summary.ir_version.to_string());
    say("producer", summary.producer.clone());
    say("graph", summary.graph.clone());
    let opsets = summary
        .opsets
        .iter()
        .map(|(domain, version)| format!("{domain} {version}"));
    say("opsets", opsets.collect::<Vec<_>>().join(", "));
    say("inputs", ports(&summary.inputs));
    say("outputs", ports(&summary.outputs));
    let operators = summary.operators.iter().map(|((domain, name), count)| {
        let slash = if domain.is_empty() { "" } else { "/" };
        format!("{domain}{slash}{name} {count}")
    });
    say("operators", operators.collect::<Vec<_>>().join(", "));
    say("runs_on_oip_server", runnable::verdict(summary));
    for (key, text) in &summary.properties {
        say(&format!("property.{key}"), text.clone());
    }
    metadata
}

impl TensorReader for OnnxReader {
    fn format(&self) -> &'static str {
        FORMAT
    }

    fn entries(&self) -> &[Entry] {
        &self.entries
    }

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn find(&self, name: &str) -> Option<usize> {
        self.names.find_entry(name, &self.entries)
    }

    fn tensor(&self, index: usize) -> Result<Tensor, Error> {
        if let Some(raw) = self.raw(index)? {
            return raw.tensor();
        }
        let entry = &self.entries[index];
        let spec = entry
            .spec()
            .ok_or_else(|| Error::new(ErrorKind::Unsupported, "the weight"))?;
        let tensor = tensor_of(spec, self.decoded(index)?);
        tensor.map_err(|error| error.of_tensor(&entry.name))
    }

    fn rows(&self, index: usize, rows: Range<u64>) -> Result<Tensor, Error> {
        if let Some(raw) = self.raw(index)? {
            return raw.rows(rows);
        }
        let whole = self.tensor(index)?;
        let named = |error: Error| error.of_tensor(&self.entries[index].name);
        let (spec, range) = row_range(whole.spec(), rows).map_err(named)?;
        let bytes = whole.bytes().slice(range.start as usize..range.end as usize);
        tensor_of(spec, bytes).map_err(named)
    }

    fn stream(&self, index: usize) -> Result<Box<dyn TensorStream + '_>, Error> {
        match self.raw(index)? {
            Some(raw) => Ok(raw.stream()),
            None => Ok(Box::new(BytesStream::new(self.decoded(index)?))),
        }
    }

    fn read_into(&self, index: usize, out: &mut [u8]) -> Result<(), Error> {
        if let Some(raw) = self.raw(index)? {
            return raw.read_into(out);
        }
        let whole = self.tensor(index)?;
        let fits = check_buffer(whole.spec(), out.len());
        fits.map_err(|error| error.of_tensor(&self.entries[index].name))?;
        out.copy_from_slice(whole.bytes());
        Ok(())
    }

    fn verify(&self, index: usize) -> Result<Verification, Error> {
        // The format has no checksums, but numbers in protobuf fields can be invalid.
        match self.locations[index] {
            ElementLocation::Numbers(_) => self.decoded(index).map(drop)?,
            ElementLocation::Raw(_) if self.entries[index].is_copied_only() => {}
            ElementLocation::Raw(_) => drop(self.raw(index)?),
        }
        Ok(Verification::Unchecked)
    }

    fn lints(&self) -> Result<Vec<Lint>, Error> {
        Ok(Vec::new())
    }

    fn foreign_parts(&self) -> &[String] {
        &self.foreign
    }
}

impl fmt::Debug for OnnxReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OnnxReader")
            .field("weights", &self.entries.len())
            .field("bytes", &self.source.len())
            .finish_non_exhaustive()
    }
}

/// The format, for tools that support several formats. The format is read-only.
///
/// ```
/// use fmt_core::{Format, Sniff};
/// use fmt_onnx::Onnx;
///
/// assert_eq!(Onnx.sniff(b"\x08\x09\x12\x07pytorch", 1000), Sniff::Possible);
/// assert_eq!(Onnx.sniff(b"PK\x03\x04", 1000), Sniff::No);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Onnx;

const FORMAT: &str = "onnx";

impl Format for Onnx {
    fn id(&self) -> &'static str {
        FORMAT
    }

    fn extensions(&self) -> &'static [&'static str] {
        &["onnx"]
    }

    fn sniff(&self, head: &[u8], _: u64) -> Sniff {
        // A file usually begins with the format version, followed by the producer's name or the graph.
        match head {
            [0x08, 1..=32, 0x12 | 0x3A, ..] => Sniff::Possible,
            _ => Sniff::No,
        }
    }

    fn open(
        &self,
        source: Arc<dyn ByteSource>,
        options: &ReadOptions,
    ) -> Result<Box<dyn TensorReader>, Error> {
        Ok(Box::new(OnnxReader::open(source, options)?))
    }

    fn create<'w>(
        &self,
        _: Box<dyn Write + Send + 'w>,
        _: Plan,
    ) -> Result<Box<dyn TensorWriter + 'w>, Error> {
        let error = Error::new(ErrorKind::Unsupported, "ONNX models are read and not written");
        Err(error.expected("another format to write, such as safetensors"))
    }
}
