//! Reads `.npz` archives.

use std::{
    io::{BufReader, Read},
    ops::Range,
    sync::Arc,
};

use fmt_core::{
    ByteSource, Entry, Error, ErrorKind, Lint, Metadata, NameTable, ReadOptions, TensorReader, TensorStream,
    Verification, read_range,
};
use fmt_zip::{CompressionMethod, LARGEST_RATIO, Member, SourceCursor};
use tensor_core::Tensor;

use crate::{
    array::{Array, Form, StorageKind},
    header::{Header, SHORTEST},
    npy::{check_rank, cut_off, read_header},
};

/// Suffix of array names in an archive.
pub(crate) const SUFFIX: &str = ".npy";

/// An open `.npz` file: a zip archive of `.npy` files, in directory order.
///
/// Uncompressed arrays (`numpy.savez`) are slices of the source, as in [`crate::NpyReader`]. Deflated arrays
/// (`numpy.savez_compressed`) are inflated when read, within [`fmt_core::Limits::decoded_bytes`], and checked
/// against their checksum.
pub struct NpzReader {
    source: Arc<dyn ByteSource>,
    options: ReadOptions,
    metadata: Metadata,
    entries: Vec<Entry>,
    names: NameTable,
    /// The form of each entry, in the order of the entries.
    forms: Vec<Form>,
    lints: Vec<Lint>,
    foreign: Vec<String>,
}

fmt_core::open_by_path_and_bytes!(NpzReader);

impl NpzReader {
    /// Opens a file from any source.
    ///
    /// # Errors
    /// If the file is invalid. The error contains the position, and [`Error::broken_rule`] names the broken
    /// rule in docs/formats/npy.md.
    pub fn open(source: Arc<dyn ByteSource>, options: &ReadOptions) -> Result<Self, Error> {
        let members = fmt_zip::members(&*source, options).map_err(|error| {
            let rule = match error.kind() {
                ErrorKind::Duplicate => "N10",
                ErrorKind::Overlap => "N12",
                _ => "N8",
            };
            error.rule(rule)
        })?;
        let (mut entries, mut forms) = (Vec::new(), Vec::new());
        let (mut lints, mut foreign) = (Vec::new(), Vec::new());
        for member in members.members {
            let Some(name) = member.name.strip_suffix(SUFFIX) else {
                lints.push(Lint {
                    message: format!(
                        "the member {} is not an array (N8)",
                        tensor_core::QuotedName(&member.name)
                    ),
                    tensor: None,
                    range: Some(member.range.clone()),
                });
                foreign.push(member.name);
                continue;
            };
            if name.len() as u64 > options.limits.name_bytes {
                let error = Error::new(ErrorKind::BadName, "the length of the name").rule("N8");
                return Err(error
                    .expected(format_args!("at most {} bytes", options.limits.name_bytes))
                    .found(name.len()));
            }
            let (entry, form) =
                array_of(&member, name, &*source, options).map_err(|error| error.of_tensor(name))?;
            entries.push(entry);
            forms.push(form);
        }
        if let (true, Some(first)) = (entries.is_empty(), foreign.first()) {
            let error = Error::new(ErrorKind::BadMagic, "a zip archive without NumPy's arrays").rule("N8");
            return Err(error
                .expected(format_args!("members whose names end with '{SUFFIX}'"))
                .found(format_args!(
                    "{} others, such as {}",
                    foreign.len(),
                    tensor_core::QuotedName(first)
                )));
        }
        Ok(Self {
            source,
            options: options.clone(),
            metadata: Metadata::new(),
            names: NameTable::of_entries(&entries).0,
            entries,
            forms,
            lints,
            foreign,
        })
    }

    fn array(&self, index: usize) -> Array<'_> {
        Array {
            entry: &self.entries[index],
            form: &self.forms[index],
        }
    }
}

fn array_of(
    member: &Member,
    name: &str,
    source: &dyn ByteSource,
    options: &ReadOptions,
) -> Result<(Entry, Form), Error> {
    if member.is_encrypted {
        return Ok(Form::unsupported(
            name,
            member.range.clone(),
            "it is encrypted (N9)".to_owned(),
        ));
    }
    match member.method {
        CompressionMethod::Stored => stored(member, name, source, options),
        CompressionMethod::Deflated => deflated(member, name, source, options),
        other => {
            let reason = format!("it is compressed with {other}; deflate is supported (N9)");
            Ok(Form::unsupported(name, member.range.clone(), reason))
        }
    }
}

fn stored(
    member: &Member,
    name: &str,
    source: &dyn ByteSource,
    options: &ReadOptions,
) -> Result<(Entry, Form), Error> {
    let len = member.range.end - member.range.start;
    if member.size != len {
        return Err(mismatch(member, len));
    }
    let header = read_header(source, member.range.clone(), options)?;
    check_len(member, &header)?;
    let data = member.range.start + header.len..member.range.end;
    let head = read_range(source, member.range.start..data.start, "the header")?;
    let place = StorageKind::Stored {
        head_crc: crc32fast::hash(&head),
        crc: member.crc,
    };
    Ok(Form::new(name, &header, data, place))
}

fn deflated(
    member: &Member,
    name: &str,
    source: &dyn ByteSource,
    options: &ReadOptions,
) -> Result<(Entry, Form), Error> {
    let len = member.range.end - member.range.start;
    if member.size / LARGEST_RATIO > len {
        return Err(mismatch(member, len));
    }
    let corrupt = |_| {
        let error = Error::new(ErrorKind::Corrupt, "the compressed header cannot be inflated");
        error.at(member.range.start).rule("N11")
    };
    let cursor = SourceCursor::new(source, member.range.start);
    let compressed = BufReader::with_capacity(512, cursor).take(len);
    let mut inflating = flate2::bufread::DeflateDecoder::new(compressed);
    let mut head = Vec::new();
    inflating
        .by_ref()
        .take(SHORTEST + 2)
        .read_to_end(&mut head)
        .map_err(corrupt)?;
    let head_len = Header::length(&head, member.range.start)?;
    let rest = head_len - head.len() as u64;
    inflating.take(rest).read_to_end(&mut head).map_err(corrupt)?;
    if (head.len() as u64) < head_len {
        let error = Error::new(ErrorKind::Truncated, "the header is truncated").at(member.range.start);
        return Err(error
            .rule("N2")
            .expected(format_args!("{head_len} bytes"))
            .found(head.len()));
    }
    let header = Header::parse(&head, member.range.start)?;
    check_rank(&header, member.range.start, options)?;
    check_len(member, &header)?;
    let place = StorageKind::Deflated {
        compressed: member.range.clone(),
        head_len,
        crc: member.crc,
    };
    Ok(Form::new(name, &header, member.range.clone(), place))
}

/// Checks that the header and the elements make up the whole member.
fn check_len(member: &Member, header: &Header) -> Result<(), Error> {
    let Some(len) = header.byte_len() else {
        return Ok(());
    };
    let found = member.size.saturating_sub(header.len);
    if len > found {
        return Err(cut_off(member.range.start, len, found));
    }
    if len < found {
        let error = Error::new(ErrorKind::SizeMismatch, "the length of the member").at(member.range.start);
        return Err(error
            .rule("N11")
            .expected(format_args!("{len} bytes for {}{}", header.dtype, header.shape))
            .found(found));
    }
    Ok(())
}

fn mismatch(member: &Member, stored: u64) -> Error {
    let error = Error::new(ErrorKind::SizeMismatch, "the length of the member").at(member.range.start);
    error
        .rule("N11")
        .expected(format_args!("one that {stored} stored bytes can have"))
        .found(member.size)
}

impl TensorReader for NpzReader {
    fn format(&self) -> &'static str {
        "npz"
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
        let read = self.array(index).tensor(&*self.source, &self.options.limits);
        read.map_err(|error| error.of_tensor(&self.entries[index].name))
    }

    fn rows(&self, index: usize, rows: Range<u64>) -> Result<Tensor, Error> {
        let read = self.array(index).rows(&*self.source, rows, &self.options.limits);
        read.map_err(|error| error.of_tensor(&self.entries[index].name))
    }

    fn stream(&self, index: usize) -> Result<Box<dyn TensorStream + '_>, Error> {
        let stream = self.array(index).stream(&*self.source, &self.options.limits);
        stream.map_err(|error| error.of_tensor(&self.entries[index].name))
    }

    fn read_into(&self, index: usize, out: &mut [u8]) -> Result<(), Error> {
        let read = self
            .array(index)
            .read_into(&*self.source, out, &self.options.limits);
        read.map_err(|error| error.of_tensor(&self.entries[index].name))
    }

    fn verify(&self, index: usize) -> Result<Verification, Error> {
        let read = self.array(index).verify(&*self.source);
        read.map_err(|error| error.of_tensor(&self.entries[index].name))
    }

    fn lints(&self) -> Result<Vec<Lint>, Error> {
        Ok(self.lints.clone())
    }

    fn foreign_parts(&self) -> &[String] {
        &self.foreign
    }
}
