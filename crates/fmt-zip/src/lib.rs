//! Zip archives as lists of byte ranges, for the formats that store tensors in them.
//!
//! The [`zip`] crate parses the directory. This crate limits how much of the file is read for that, and
//! validates each member against the file. Uncompressed members can be used in place.
//!
//! ```
//! use bytes::Bytes;
//! use fmt_core::{ErrorKind, ReadOptions};
//!
//! // The file is only the end record of an empty archive.
//! let empty = Bytes::from([&b"PK\x05\x06"[..], &[0; 18]].concat());
//! assert!(fmt_zip::members(&empty, &ReadOptions::default())?.members.is_empty());
//! let other = Bytes::from_static(b"PK\x03\x04 and so on");
//! let error = fmt_zip::members(&other, &ReadOptions::default()).unwrap_err();
//! assert_eq!(error.kind(), ErrorKind::Malformed);
//! # Ok::<(), fmt_core::Error>(())
//! ```

use std::{
    io::{self, BufReader, Read, Seek, SeekFrom},
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use fmt_core::{ByteSource, Error, ErrorKind, ReadOptions, check_overlaps, read_range};
pub use zip::CompressionMethod;
use zip::ZipArchive;

/// The maximum expansion of a deflate stream.
pub const LARGEST_RATIO: u64 = 1032;

/// An archive's directory, validated against the file.
#[derive(Debug)]
#[non_exhaustive]
pub struct Directory {
    /// The members in the directory's order. Names are unique, and no two members share bytes.
    pub members: Vec<Member>,
}

/// A file in an archive.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Member {
    /// The member's name, with slashes between directories.
    pub name: String,
    /// The range of the member's stored bytes in the archive.
    pub range: Range<u64>,
    /// Size of the member's uncompressed bytes.
    pub size: u64,
    /// The CRC-32 of the uncompressed bytes.
    pub crc: u32,
    /// Compression method of the stored bytes.
    pub method: CompressionMethod,
    /// Whether the member is encrypted.
    pub is_encrypted: bool,
}

/// Reads the directory of an archive.
///
/// The end-of-central-directory record must be in the last 65,557 bytes, its maximum length with a comment;
/// otherwise the file is refused without a search through all of it. [`fmt_core::Limits::index_bytes`] bounds
/// how much of the directory is read, and [`fmt_core::Limits::tensors`] the number of members.
///
/// # Errors
/// [`ErrorKind::Malformed`] for a file that is not an archive or has data before the archive,
/// [`ErrorKind::Duplicate`] for two members with the same name, [`ErrorKind::Overlap`],
/// [`ErrorKind::OutOfBounds`], [`ErrorKind::BadName`] for a name that is not UTF-8, [`ErrorKind::TooLarge`]
/// beyond the limits, [`ErrorKind::Io`].
pub fn members(source: &dyn ByteSource, options: &ReadOptions) -> Result<Directory, Error> {
    check_end(source)?;
    let cursor = SourceCursor::new(source, 0);
    let budget = Arc::clone(&cursor.budget);
    budget.store(options.limits.index_bytes.max(LONGEST_END), Relaxed);
    let mut archive = ZipArchive::new(BufReader::with_capacity(512, cursor)).map_err(not_an_archive)?;
    // The directory has been read, so the limit no longer applies: only one short read per member follows.
    budget.store(u64::MAX, Relaxed);
    let count = archive.len() as u64;
    if count > options.limits.tensors {
        let error = Error::new(ErrorKind::TooLarge, "the number of members");
        return Err(error
            .expected(format_args!(
                "at most {}, the reader's limit",
                options.limits.tensors
            ))
            .found(count));
    }
    if archive.has_duplicate_names() {
        return Err(Error::new(ErrorKind::Duplicate, "two members have the same name"));
    }
    if archive.offset() != 0 {
        let error = Error::new(ErrorKind::Malformed, "unexpected data before the archive").at(0);
        return Err(error.found(format_args!("{} bytes", archive.offset())));
    }
    let end = archive.central_directory_start();
    let members = (0..archive.len()).map(|number| Member::of(&mut archive, number, end));
    let members = members.collect::<Result<Vec<_>, _>>()?;
    let ranges: Vec<_> = members.iter().map(|member| member.range.clone()).collect();
    check_overlaps(&ranges)?;
    Ok(Directory { members })
}

/// Checks that the file ends with a directory, because the `zip` crate would search the whole file backwards
/// for a directory.
fn check_end(source: &dyn ByteSource) -> Result<(), Error> {
    const MARK: &[u8; 4] = b"PK\x05\x06";
    const FIXED: usize = 22;
    let start = source.len().saturating_sub(LONGEST_END);
    let end = read_range(source, start..source.len(), "the end of the archive")?;
    let is_end = |at: usize| {
        let rest = &end[at..];
        let comment = rest
            .get(20..FIXED)
            .map(|len| usize::from(len[0]) | usize::from(len[1]) << 8);
        rest.starts_with(MARK) && comment.is_some_and(|len| FIXED + len == rest.len())
    };
    if (0..end.len().saturating_sub(FIXED - 1)).rev().any(is_end) {
        return Ok(());
    }
    let error = Error::new(
        ErrorKind::Malformed,
        "not a zip archive: no end-of-central-directory record",
    );
    Err(error
        .at(start)
        .expected("the record at the end of the file, followed only by its comment"))
}

/// The maximum length of the end-of-central-directory record with its comment.
const LONGEST_END: u64 = 22 + u16::MAX as u64;

fn not_an_archive(error: zip::result::ZipError) -> Error {
    match error {
        zip::result::ZipError::Io(error) if error.kind() == io::ErrorKind::FileTooLarge => {
            let error = Error::new(ErrorKind::TooLarge, "the directory of the archive");
            error.expected("less than the reader's limit for an index")
        }
        zip::result::ZipError::Io(error) if error.kind() != io::ErrorKind::UnexpectedEof => {
            Error::io("the archive cannot be read", error)
        }
        other => Error::new(ErrorKind::Malformed, format!("the archive: {other}")),
    }
}

impl Member {
    fn of<R: Read + Seek>(archive: &mut ZipArchive<R>, number: usize, directory: u64) -> Result<Self, Error> {
        let file = archive.by_index_raw(number).map_err(not_an_archive)?;
        let name = std::str::from_utf8(file.name_raw())
            .map_err(|_| Error::new(ErrorKind::BadName, "the name of a member is not UTF-8"))?;
        let outside = || {
            let error = Error::new(
                ErrorKind::OutOfBounds,
                "the member extends beyond the archive's members",
            );
            error
                .of_tensor(name)
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
}

/// A reader over a source, with a position, for crates that require [`Read`] and [`Seek`].
#[derive(Clone)]
pub struct SourceCursor<'a> {
    source: &'a dyn ByteSource,
    position: u64,
    /// Number of bytes that may still be read.
    budget: Arc<AtomicU64>,
}

impl<'a> SourceCursor<'a> {
    /// Creates a reader that starts at byte `position` of a source.
    #[must_use]
    pub fn new(source: &'a dyn ByteSource, position: u64) -> Self {
        Self {
            source,
            position,
            budget: Arc::new(AtomicU64::new(u64::MAX)),
        }
    }
}

impl Read for SourceCursor<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let left = self.source.len().saturating_sub(self.position);
        let len = usize::try_from(left).map_or(out.len(), |left| left.min(out.len()));
        let budget = self.budget.load(Relaxed).checked_sub(len as u64);
        self.budget
            .store(budget.ok_or(io::ErrorKind::FileTooLarge)?, Relaxed);
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

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    /// A file of 1 TiB, zeros except for its start and end, which counts the bytes that are read.
    struct Huge {
        head: &'static [u8],
        end: Vec<u8>,
        read: AtomicU64,
    }

    const LEN: u64 = 1 << 40;

    impl ByteSource for Huge {
        fn len(&self) -> u64 {
            LEN
        }

        fn read(&self, range: Range<u64>) -> io::Result<Bytes> {
            let mut bytes = vec![0; usize::try_from(range.end - range.start).unwrap()];
            self.read.fetch_add(bytes.len() as u64, Relaxed);
            for (at, byte) in (range.start..).zip(&mut bytes) {
                let from_end = self.end.len() as u64 + at;
                *byte = match self.head.get(at as usize) {
                    Some(byte) => *byte,
                    None if from_end >= LEN => self.end[(from_end - LEN) as usize],
                    None => 0,
                };
            }
            Ok(bytes.into())
        }
    }

    fn looked_at(end: &[u8]) -> (ErrorKind, u64) {
        let source = Huge {
            head: b"PK\x03\x04",
            end: end.to_vec(),
            read: AtomicU64::new(0),
        };
        let mut options = ReadOptions::default();
        options.limits.index_bytes = 1 << 20;
        let error = members(&source, &options).unwrap_err();
        (error.kind(), source.read.load(Relaxed))
    }

    #[test]
    fn a_file_without_a_directory_is_not_searched() {
        let (kind, read) = looked_at(b"");
        assert_eq!(kind, ErrorKind::Malformed);
        assert!(read <= LONGEST_END, "{read}");
    }

    /// Checks that few bytes are read if the end record refers to a directory that does not exist.
    #[test]
    fn a_directory_that_is_not_there_is_looked_for_within_bounds() {
        let mut end = b"PK\x05\x06\0\0\0\0\x01\0\x01\0".to_vec();
        end.extend([100, 0, 0, 0, 4, 0, 0, 0, 0, 0]);
        let (_, read) = looked_at(&end);
        assert!(read <= 2 * (1 << 20), "{read}");
    }
}
