use std::{
    io::{self, BufReader, Read, Seek, SeekFrom},
    ops::Range,
    path::Path,
    sync::Arc,
};

use fmt_core::{
    ByteSource, Entry, Error, ErrorKind, FileSource, Lint, Metadata, ReadOptions, TensorReader, Verification,
    check_overlaps, read_range,
};
use tensor_core::{Bytes, Tensor};
use zip::{CompressionMethod, ZipArchive};

use crate::{
    array::{Array, Place},
    header::{Header, SHORTEST},
    npy::{check_rank, cut_off, read_header},
};

/// How arrays' names end in an archive.
pub(crate) const SUFFIX: &str = ".npy";

/// No stream of deflate grows by more.
const LARGEST_RATIO: u64 = 1032;

/// An open `.npz` file: a zip archive of `.npy` files, in the order of its directory.
///
/// Arrays that are stored as they are (`numpy.savez`) are slices of the source, as in [`crate::NpyReader`]. Deflated ones
/// (`numpy.savez_compressed`) are inflated when they are read, within [`fmt_core::Limits::decoded_bytes`], and held
/// against their checksum.
pub struct NpzReader {
    source: Arc<dyn ByteSource>,
    options: ReadOptions,
    metadata: Metadata,
    entries: Vec<Entry>,
    arrays: Vec<Array>,
    lints: Vec<Lint>,
}

impl NpzReader {
    /// Opens a file of any source.
    ///
    /// # Errors
    /// What is wrong with it and where: [`Error::broken_rule`] has the rule of docs/formats/npy.md.
    pub fn open(source: Arc<dyn ByteSource>, options: &ReadOptions) -> Result<Self, Error> {
        let cursor = SourceCursor {
            source: &*source,
            position: 0,
        };
        let mut archive = ZipArchive::new(BufReader::with_capacity(512, cursor)).map_err(not_an_archive)?;
        let count = archive.len() as u64;
        if count > options.limits.tensors {
            let error = Error::new(ErrorKind::TooLarge, "the number of members").rule("N8");
            return Err(error
                .expected(format_args!(
                    "at most {}, the reader's limit",
                    options.limits.tensors
                ))
                .found(count));
        }
        if archive.has_duplicate_names() {
            let error = Error::new(ErrorKind::Duplicate, "two members have the same name");
            return Err(error.rule("N10"));
        }
        if archive.offset() != 0 {
            let error = Error::new(ErrorKind::Malformed, "something stands before the archive");
            return Err(error
                .at(0)
                .rule("N8")
                .found(format_args!("{} bytes", archive.offset())));
        }
        let directory = archive.central_directory_start();
        let (mut arrays, mut ranges, mut lints) = (Vec::new(), Vec::new(), Vec::new());
        for number in 0..archive.len() {
            let member = Member::of(&mut archive, number, directory)?;
            ranges.push(member.range.clone());
            let Some(name) = member.name.strip_suffix(SUFFIX) else {
                lints.push(Lint {
                    message: format!(
                        "the member {} is no array (N8)",
                        tensor_core::Quoted(&member.name)
                    ),
                    tensor: None,
                    range: Some(member.range.clone()),
                });
                continue;
            };
            if name.len() as u64 > options.limits.name_bytes {
                let error = Error::new(ErrorKind::BadName, "the length of the name").rule("N8");
                return Err(error
                    .expected(format_args!("at most {} bytes", options.limits.name_bytes))
                    .found(name.len()));
            }
            let array = member.array(name, &*source, options);
            arrays.push(array.map_err(|error| error.of_tensor(name))?);
        }
        check_overlaps(&ranges).map_err(|error| error.rule("N12"))?;
        drop(archive);
        Ok(Self {
            source,
            options: options.clone(),
            metadata: Metadata::new(),
            entries: arrays.iter().map(|array| array.entry.clone()).collect(),
            arrays,
            lints,
        })
    }

    /// Opens a file on disk.
    ///
    /// # Errors
    /// As [`FileSource::open`] and [`NpzReader::open`].
    pub fn from_path(path: impl AsRef<Path>) -> Result<Self, Error> {
        Self::open(
            Arc::new(FileSource::open(path.as_ref())?),
            &ReadOptions::default(),
        )
    }

    /// Opens a file in memory.
    ///
    /// # Errors
    /// As [`NpzReader::open`].
    pub fn from_bytes(bytes: impl Into<Bytes>) -> Result<Self, Error> {
        Self::open(Arc::new(bytes.into()), &ReadOptions::default())
    }
}

fn not_an_archive(error: zip::result::ZipError) -> Error {
    match error {
        zip::result::ZipError::Io(error) if error.kind() != io::ErrorKind::UnexpectedEof => {
            Error::io("the archive cannot be read", error)
        }
        other => Error::new(ErrorKind::Malformed, format!("the archive: {other}")).rule("N8"),
    }
}

/// What the archive's directory says of a member.
struct Member {
    name: String,
    /// Where its bytes stand.
    range: Range<u64>,
    /// Its bytes when they are inflated.
    size: u64,
    crc: u32,
    method: CompressionMethod,
    is_encrypted: bool,
}

impl Member {
    fn of<R: Read + Seek>(archive: &mut ZipArchive<R>, number: usize, directory: u64) -> Result<Self, Error> {
        let file = archive.by_index_raw(number).map_err(not_an_archive)?;
        let name = std::str::from_utf8(file.name_raw()).map_err(|_| {
            let error = Error::new(ErrorKind::BadName, "the name of a member is not UTF-8");
            error.rule("N8")
        })?;
        let outside = || {
            let error = Error::new(
                ErrorKind::OutOfBounds,
                "the member leads outside the archive's members",
            );
            error
                .of_tensor(name)
                .rule("N8")
                .expected(format_args!("an end at {directory} or before"))
        };
        let start = file.data_start().ok_or_else(outside)?;
        let end = start
            .checked_add(file.compressed_size())
            .filter(|end| *end <= directory);
        Ok(Self {
            range: start..end.ok_or_else(outside)?,
            size: file.size(),
            crc: file.crc32(),
            method: file.compression(),
            is_encrypted: file.encrypted(),
            name: name.to_owned(),
        })
    }

    fn array(&self, name: &str, source: &dyn ByteSource, options: &ReadOptions) -> Result<Array, Error> {
        if self.is_encrypted {
            return Ok(Array::unsupported(
                name,
                self.range.clone(),
                "it is encrypted (N9)".to_owned(),
            ));
        }
        match self.method {
            CompressionMethod::Stored => self.stored(name, source, options),
            CompressionMethod::Deflated => self.deflated(name, source, options),
            other => {
                let reason = format!("it is compressed with {other}; deflate is supported (N9)");
                Ok(Array::unsupported(name, self.range.clone(), reason))
            }
        }
    }

    fn stored(&self, name: &str, source: &dyn ByteSource, options: &ReadOptions) -> Result<Array, Error> {
        let len = self.range.end - self.range.start;
        if self.size != len {
            return Err(self.mismatch(len));
        }
        let header = read_header(source, self.range.clone(), options)?;
        self.check_len(&header)?;
        let data = self.range.start + header.len..self.range.end;
        let head = read_range(source, self.range.start..data.start, "the header")?;
        let place = Place::Stored {
            head_crc: crc32fast::hash(&head),
            crc: self.crc,
        };
        Ok(Array::new(name, &header, data, place))
    }

    fn deflated(&self, name: &str, source: &dyn ByteSource, options: &ReadOptions) -> Result<Array, Error> {
        let len = self.range.end - self.range.start;
        if self.size / LARGEST_RATIO > len {
            return Err(self.mismatch(len));
        }
        let corrupt = |_| {
            let error = Error::new(ErrorKind::Corrupt, "the compressed header cannot be inflated");
            error.at(self.range.start).rule("N11")
        };
        let cursor = SourceCursor {
            source,
            position: self.range.start,
        };
        let compressed = BufReader::with_capacity(512, cursor).take(len);
        let mut inflating = flate2::bufread::DeflateDecoder::new(compressed);
        let mut head = Vec::new();
        inflating
            .by_ref()
            .take(SHORTEST + 2)
            .read_to_end(&mut head)
            .map_err(corrupt)?;
        let head_len = Header::length(&head, self.range.start)?;
        let rest = head_len - head.len() as u64;
        inflating.take(rest).read_to_end(&mut head).map_err(corrupt)?;
        if (head.len() as u64) < head_len {
            let error = Error::new(ErrorKind::Truncated, "the header is cut off").at(self.range.start);
            return Err(error
                .rule("N2")
                .expected(format_args!("{head_len} bytes"))
                .found(head.len()));
        }
        let header = Header::parse(&head, self.range.start)?;
        check_rank(&header, self.range.start, options)?;
        self.check_len(&header)?;
        let place = Place::Deflated {
            compressed: self.range.clone(),
            head_len,
            crc: self.crc,
        };
        Ok(Array::new(name, &header, self.range.clone(), place))
    }

    /// Header and elements must be the whole member.
    fn check_len(&self, header: &Header) -> Result<(), Error> {
        let Some(spec) = header.spec() else {
            return Ok(());
        };
        let found = self.size.saturating_sub(header.len);
        if spec.byte_len() > found {
            return Err(cut_off(self.range.start, spec.byte_len(), found));
        }
        if spec.byte_len() < found {
            let error = Error::new(ErrorKind::SizeMismatch, "the length of the member").at(self.range.start);
            return Err(error
                .rule("N11")
                .expected(format_args!("{} bytes for {spec}", spec.byte_len()))
                .found(found));
        }
        Ok(())
    }

    fn mismatch(&self, stored: u64) -> Error {
        let error = Error::new(ErrorKind::SizeMismatch, "the length of the member").at(self.range.start);
        error
            .rule("N11")
            .expected(format_args!("one that {stored} stored bytes can have"))
            .found(self.size)
    }
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

    fn tensor(&self, index: usize) -> Result<Tensor, Error> {
        let read = self.arrays[index].tensor(&*self.source, &self.options.limits);
        read.map_err(|error| error.of_tensor(&self.entries[index].name))
    }

    fn rows(&self, index: usize, rows: Range<u64>) -> Result<Tensor, Error> {
        let read = self.arrays[index].rows(&*self.source, rows, &self.options.limits);
        read.map_err(|error| error.of_tensor(&self.entries[index].name))
    }

    fn read_into(&self, index: usize, out: &mut [u8]) -> Result<(), Error> {
        let read = self.arrays[index].read_into(&*self.source, out, &self.options.limits);
        read.map_err(|error| error.of_tensor(&self.entries[index].name))
    }

    fn verify(&self, index: usize) -> Result<Verification, Error> {
        let read = self.arrays[index].verify(&*self.source, &self.options.limits);
        read.map_err(|error| error.of_tensor(&self.entries[index].name))
    }

    fn lints(&self) -> Result<Vec<Lint>, Error> {
        Ok(self.lints.clone())
    }
}

/// A source as a file that is read from a position on.
struct SourceCursor<'a> {
    source: &'a dyn ByteSource,
    position: u64,
}

impl Read for SourceCursor<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let left = self.source.len().saturating_sub(self.position);
        let len = usize::try_from(left).map_or(out.len(), |left| left.min(out.len()));
        self.source.read_into(self.position, &mut out[..len])?;
        self.position += len as u64;
        Ok(len)
    }
}

impl Seek for SourceCursor<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let target = match to {
            SeekFrom::Start(position) => Some(position),
            SeekFrom::End(offset) => self.source.len().checked_add_signed(offset),
            SeekFrom::Current(offset) => self.position.checked_add_signed(offset),
        };
        self.position = target.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.position)
    }
}
