//! `tensor inspect`: shows the contents of a file.

use std::{collections::BTreeMap, fmt::Write as _, io::Write, path::Path};

use fmt_core::{Attributes, Encoding, Entry, Error, ErrorKind, Layout, TensorReader};
use serde::{Serialize, Serializer};
use sha2::{Digest, Sha256};
use tensor_core::Naming;
use tensor_files::Composite;

use crate::{
    failure::{About, Failure, Outcome},
    files,
    options::Inspect,
    pieces,
    progress::Progress,
    report,
    stats::Stats,
    table,
};

/// The information shown about a file.
#[derive(Serialize)]
struct File<'r> {
    file: String,
    format: &'r str,
    file_bytes: Option<u64>,
    metadata: &'r BTreeMap<String, String>,
    tensors: Tensors<'r>,
}

/// The tensors to show. Tensors are described one by one during output, because a file may have millions.
struct Tensors<'r> {
    reader: &'r Composite<'r>,
    indices: Vec<usize>,
    /// The tensors' digests, if requested.
    digests: Vec<Option<String>>,
    stats: Vec<Option<Stats>>,
}

impl Tensors<'_> {
    fn iter(&self) -> impl Iterator<Item = Tensor<'_>> + Clone {
        let is_of_many = self.reader.files().len() > 1;
        self.indices.iter().enumerate().map(move |(number, &index)| {
            let mut tensor = describe(index, &self.reader.entries()[index]);
            tensor.file = is_of_many.then(|| self.reader.file_of(index));
            tensor.sha256 = self.digests.get(number).and_then(Option::as_deref);
            tensor.stats = self.stats.get(number).and_then(Option::as_ref);
            tensor
        })
    }
}

impl Serialize for Tensors<'_> {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        out.collect_seq(self.iter())
    }
}

/// The information shown about a tensor, with NumPy's dtype names.
#[derive(Serialize)]
struct Tensor<'r> {
    index: usize,
    name: &'r str,
    dtype: &'r str,
    shape: &'r [u64],
    layout: &'r str,
    #[serde(skip_serializing_if = "Option::is_none")]
    nnz: Option<u64>,
    encoding: &'r str,
    #[serde(skip_serializing_if = "is_false")]
    big_endian: bool,
    /// The shard that contains the tensor.
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<&'r str>,
    offset_bytes: u64,
    stored_bytes: u64,
    data_bytes: Option<u64>,
    checksum: Option<&'r str>,
    sha256: Option<&'r str>,
    #[serde(serialize_with = "texts", skip_serializing_if = "Attributes::is_empty")]
    attributes: &'r Attributes,
    #[serde(skip_serializing_if = "Option::is_none")]
    stats: Option<&'r Stats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unsupported: Option<&'r str>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_false(value: &bool) -> bool {
    !value
}

fn texts<S: Serializer>(attributes: &Attributes, out: S) -> Result<S::Ok, S::Error> {
    attributes.to_map().serialize(out)
}

pub(crate) fn run(options: &Inspect, out: &mut impl Write) -> Outcome {
    let mut failed: Option<Failure> = None;
    for (number, path) in options.files.iter().enumerate() {
        if number > 0 && !options.json {
            writeln!(out)?;
        }
        match inspect(path, options, out) {
            // An error in one file does not keep the command from showing the other files.
            Err(failure @ Failure::File { .. }) => {
                if let Some(earlier) = failed.replace(failure) {
                    earlier.report();
                }
            }
            other => other?,
        }
    }
    failed.map_or(Ok(()), Err)
}

fn inspect(path: &Path, options: &Inspect, out: &mut impl Write) -> Outcome {
    let reader = files::open(path)?;
    let indices = wanted(&reader, &options.tensors).about(path)?;
    let mut tensors = Tensors {
        reader: &reader,
        indices,
        digests: Vec::new(),
        stats: Vec::new(),
    };
    let lens = tensors
        .indices
        .iter()
        .map(|&index| reader.entries()[index].byte_len().unwrap_or(0));
    let mut progress = Progress::new(lens.sum());
    if options.sha256 {
        let digests = tensors
            .indices
            .iter()
            .map(|&index| digest(&reader, index, &mut progress));
        tensors.digests = digests.collect::<Result<_, _>>().about(path)?;
    }
    if options.stats {
        let stats = tensors
            .indices
            .iter()
            .map(|&index| match reader.entries()[index].unsupported {
                Some(_) => Ok(None),
                None => Stats::of(&reader, index).map(Some),
            });
        tensors.stats = stats.collect::<Result<_, _>>().about(path)?;
    }
    drop(progress);
    let file = File {
        file: path.display().to_string(),
        format: reader.format(),
        file_bytes: files::len(path),
        metadata: reader.metadata(),
        tensors,
    };
    if options.json {
        return Ok(report::print(&file, out)?);
    }
    show(&file, reader.files().len(), out)?;
    if options.values {
        show_values(&file, path, out)?;
    }
    Ok(())
}

/// Computes the digest of a tensor's bytes, if they are readable.
fn digest(reader: &Composite<'_>, index: usize, progress: &mut Progress) -> Result<Option<String>, Error> {
    let entry = &reader.entries()[index];
    if entry.unsupported.is_some() && !entry.is_copied_only() {
        return Ok(None);
    }
    let mut hash = Sha256::new();
    pieces::each(reader, index, &mut |piece| {
        hash.update(piece);
        progress.advance(piece.len() as u64);
        Ok(())
    })?;
    Ok(Some(hex(&hash.finalize())))
}

/// Returns the indices of the named tensors; of all tensors if no names are given.
fn wanted(reader: &dyn TensorReader, names: &[String]) -> Result<Vec<usize>, Error> {
    if names.is_empty() {
        return Ok((0..reader.entries().len()).collect());
    }
    names.iter().map(|name| find(reader, name)).collect()
}

/// Returns the index of the tensor with this name.
pub(crate) fn find(reader: &dyn TensorReader, name: &str) -> Result<usize, Error> {
    reader.find(name).ok_or_else(|| {
        let error = Error::new(ErrorKind::OutOfBounds, "there is no such tensor").of_tensor(name);
        match nearest(reader, name) {
            Some(nearest) => error.expected(format_args!("perhaps '{}'", table::text(nearest))),
            None => error,
        }
    })
}

/// Returns the name of a tensor that contains `name` or is contained in it, ignoring case.
fn nearest<'r>(reader: &'r dyn TensorReader, name: &str) -> Option<&'r str> {
    let name = name.to_lowercase();
    let names = reader.entries().iter().map(|entry| entry.name.as_str());
    let mut near = names.filter(|other| {
        let other = other.to_lowercase();
        !other.is_empty() && (other.contains(&name) || name.contains(&other))
    });
    near.next()
}

fn describe(index: usize, entry: &Entry) -> Tensor<'_> {
    let (layout, nnz) = match &entry.layout {
        Layout::Dense => ("dense", None),
        Layout::Coo { nnz } => ("coo", Some(*nnz)),
        Layout::Unknown(name) => (name.as_str(), None),
        _ => ("unknown", None),
    };
    let encoding = match &entry.encoding {
        Encoding::Raw => "raw",
        Encoding::Zstd => "zstd",
        Encoding::Deflate => "deflate",
        Encoding::Strided => "strided",
        Encoding::ColumnMajor => "column-major",
        Encoding::Unknown(name) => name,
        _ => "unknown",
    };
    let dtype = match &entry.dtype {
        fmt_core::StoredDType::Known(dtype) => dtype.name_in(Naming::Numpy),
        fmt_core::StoredDType::Opaque(dtype) => dtype.name(),
        fmt_core::StoredDType::Unknown(name) => name,
    };
    Tensor {
        index,
        name: &entry.name,
        dtype,
        shape: entry.shape.dims(),
        layout,
        nnz,
        encoding,
        big_endian: entry.is_big_endian,
        file: None,
        offset_bytes: entry.range.start,
        stored_bytes: entry.stored_size(),
        data_bytes: entry.byte_len(),
        checksum: entry.checksum.as_deref(),
        sha256: None,
        attributes: &entry.attributes,
        stats: None,
        // Tensors whose dtype has no arithmetic can still be copied, so they count as supported.
        unsupported: entry.unsupported.as_deref().filter(|_| !entry.is_copied_only()),
    }
}

/// Characters of a metadata value shown; GGUF stores whole vocabularies in one.
const METADATA_SHOWN: usize = 500;

fn show(file: &File<'_>, files: usize, out: &mut impl Write) -> Outcome {
    let count = file.tensors.indices.len();
    let mut size = match files {
        1 => String::new(),
        files => format!("{files} files, "),
    };
    if let Some(bytes) = file.file_bytes {
        size += &format!("{}, ", table::size(bytes));
    }
    writeln!(
        out,
        "{}: {}, {size}{}",
        table::text(&file.file),
        file.format,
        table::tensors(count)
    )?;
    for (key, value) in file.metadata {
        writeln!(
            out,
            "  {}: {}",
            table::text(key),
            table::shortened(value, METADATA_SHOWN)
        )?;
    }
    let last = if files > 1 { "FILE" } else { "" };
    let header = ["NAME", "DTYPE", "SHAPE", "STORED", "SIZE", "OFFSET", last].map(str::to_owned);
    let rows = file.tensors.iter().map(|tensor| -> [String; 7] {
        let mut stored = tensor.encoding.to_owned();
        if let Some(nnz) = tensor.nnz {
            write!(stored, ", coo of {nnz}").ok();
        } else if tensor.layout != "dense" {
            write!(stored, ", {}", table::text(tensor.layout)).ok();
        }
        if tensor.big_endian {
            stored += ", big-endian";
        }
        [
            table::text(tensor.name),
            table::text(tensor.dtype),
            format!("{:?}", tensor.shape),
            stored,
            table::size(tensor.stored_bytes),
            tensor.offset_bytes.to_string(),
            tensor.file.map_or(String::new(), |file| {
                let name = Path::new(file).file_name().unwrap_or_default();
                table::text(&name.to_string_lossy())
            }),
        ]
    });
    if count > 0 {
        writeln!(out)?;
        table::print_each(out, std::iter::once(header).chain(rows), &[4, 5])?;
    }
    for tensor in file.tensors.iter() {
        show_more(&tensor, out)?;
    }
    Ok(())
}

/// Prints the details of a tensor that do not fit into the table.
fn show_more(tensor: &Tensor<'_>, out: &mut impl Write) -> Outcome {
    let mut lines = Vec::new();
    if let Some(reason) = tensor.unsupported {
        lines.push(format!("cannot be read: {}", table::text(reason)));
    }
    for (key, value) in tensor.attributes.to_map() {
        lines.push(format!("{}: {}", table::text(&key), table::text(&value)));
    }
    if let Some(sha256) = tensor.sha256 {
        lines.push(format!("sha256 {sha256}"));
    }
    if let Some(stats) = tensor.stats {
        let number = |value: Option<f64>| value.map_or("-".to_owned(), table::number);
        lines.push(format!(
            "min {}  mean {}  max {}  zeros {}  NaN {}  infinite {}",
            number(stats.min),
            number(stats.mean),
            number(stats.max),
            stats.zero,
            stats.nan,
            stats.infinite
        ));
        if let Some(histogram) = &stats.histogram {
            lines.push(format!("|{}|", histogram.sketch()));
        }
    }
    if !lines.is_empty() {
        writeln!(out, "\n{}", table::text(tensor.name))?;
    }
    for line in lines {
        writeln!(out, "  {line}")?;
    }
    Ok(())
}

fn show_values(file: &File<'_>, path: &Path, out: &mut impl Write) -> Outcome {
    let reader = file.tensors.reader;
    let has_values = |tensor: &Tensor<'_>| reader.entries()[tensor.index].unsupported.is_none();
    for tensor in file.tensors.iter().filter(has_values) {
        writeln!(out, "\n{}", table::text(tensor.name))?;
        if tensor.nnz.is_some() {
            let sparse = reader.sparse(tensor.index).about(path)?;
            writeln!(out, "indices\n{}\nvalues\n{}", sparse.indices(), sparse.values())?;
        } else {
            let (shown, is_cut) = pieces::printable(reader, tensor.index).about(path)?;
            let view = shown.view();
            let display = view.display();
            writeln!(out, "{}", if is_cut { display.threshold(0) } else { display })?;
        }
    }
    Ok(())
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").ok();
        text
    })
}
