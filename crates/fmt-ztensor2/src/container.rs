//! Parses the start and end of a file of version 1 or 2, and locates its manifest (O1, O2).

use std::ops::Range;

use fmt_core::{ByteSource, Cursor, Error, ErrorKind, ReadOptions, read_range};

/// A major version of the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    /// Files with the magic `ZTEN1000`, as the package `ztensor` 1.x writes them.
    V1,
    /// Files with the magic `\x89ZT2\r\n\x1a\n`, as the package `ztensor` 2.x writes them.
    V2,
}

pub(crate) const MAGIC_V1: [u8; 8] = *b"ZTEN1000";
pub(crate) const MAGIC_V2: [u8; 8] = *b"\x89ZT2\r\n\x1a\n";
/// The version in the footer of files of version 2.
pub(crate) const FOOTER_VERSION: u32 = 2;

impl Version {
    /// Returns the format's short name.
    pub(crate) fn id(self) -> &'static str {
        match self {
            Self::V1 => "ztensor1",
            Self::V2 => "ztensor2",
        }
    }

    /// Returns the alignment of blobs, which is also their minimum offset.
    pub(crate) fn alignment(self) -> u64 {
        match self {
            Self::V1 => 64,
            Self::V2 => 4096,
        }
    }

    fn magic(self) -> [u8; 8] {
        match self {
            Self::V1 => MAGIC_V1,
            Self::V2 => MAGIC_V2,
        }
    }

    /// Returns the size of the footer: the manifest's location and the magic number.
    pub(crate) fn footer(self) -> u64 {
        match self {
            Self::V1 => 16,
            Self::V2 => 40,
        }
    }

    /// Returns the maximum manifest size in bytes: readers reject larger manifests.
    fn most_manifest_bytes(self) -> u64 {
        1 << 30
    }
}

/// The parsed start and end of a file.
#[derive(Debug)]
pub(crate) struct Container {
    pub(crate) version: Version,
    /// The range of the manifest in the file.
    pub(crate) manifest: Range<u64>,
    /// XXH3-64 of the manifest, in version 2.
    pub(crate) hash: Option<u64>,
    /// Maximum offset at which a blob may end.
    pub(crate) data_end: u64,
}

/// Parses the start and end of a file.
pub(crate) fn locate(source: &dyn ByteSource, options: &ReadOptions) -> Result<Container, Error> {
    let len = source.len();
    let head = read_range(source, 0..len.min(8), "the magic")?;
    let known = [Version::V1, Version::V2];
    let Some(version) = known.into_iter().find(|version| head[..] == version.magic()) else {
        let is_cut = known.iter().any(|version| version.magic().starts_with(&head));
        let kind = if is_cut {
            ErrorKind::Truncated
        } else {
            ErrorKind::BadMagic
        };
        let error = Error::new(kind, "the magic").at(0).rule("O1");
        return Err(error
            .expected("ZTEN1000 or \\x89ZT2\\r\\n\\x1a\\n")
            .found(head.escape_ascii()));
    };
    let footer_len = version.footer();
    if len < 8 + footer_len {
        let error = Error::new(ErrorKind::Truncated, "the file").at(len).rule("O1");
        return Err(error
            .expected(format_args!("at least {} bytes", 8 + footer_len))
            .found(len));
    }
    let start = len - footer_len;
    let footer = read_range(source, start..len, "the footer")?;
    if footer[footer.len() - 8..] != version.magic() {
        let error = Error::new(ErrorKind::BadMagic, "the magic at the end of the file");
        return Err(error
            .at(len - 8)
            .rule("O1")
            .expected("that of the beginning")
            .found(footer[footer.len() - 8..].escape_ascii()));
    }
    let mut footer = Cursor::new(&footer, start);
    match version {
        Version::V1 => {
            let size = footer.u64("the length of the manifest")?;
            check_size(size, 1, start - 8, start, version, options)?;
            Ok(Container {
                version,
                manifest: start - size..start,
                hash: None,
                data_end: start - size,
            })
        }
        Version::V2 => parse_footer(&mut footer, start, options),
    }
}

/// Parses the footer of version 2, which is at byte `start` of the file.
fn parse_footer(footer: &mut Cursor<'_>, start: u64, options: &ReadOptions) -> Result<Container, Error> {
    let version = Version::V2;
    let offset = footer.u64("the offset of the manifest")?;
    let size = footer.u64("the length of the manifest")?;
    let hash = footer.u64("the hash of the manifest")?;
    let found = footer.u32("the version")?;
    if found != FOOTER_VERSION {
        let error = Error::new(ErrorKind::BadVersion, "the version in the footer");
        return Err(error
            .at(start + 24)
            .rule("O1")
            .expected(FOOTER_VERSION)
            .found(found));
    }
    if size == 0 {
        return Err(no_manifest(start, offset, hash));
    }
    let most = start.saturating_sub(offset);
    check_size(size, 1, most, start + 8, version, options)?;
    if offset % version.alignment() != 0 || offset < version.alignment() {
        let error = Error::new(ErrorKind::Misaligned, "the offset of the manifest");
        return Err(error
            .at(start)
            .rule("O2")
            .expected("a multiple of 4096 from 4096 on")
            .found(offset));
    }
    Ok(Container {
        version,
        manifest: offset..offset + size,
        hash: Some(hash),
        data_end: start,
    })
}

fn check_size(
    size: u64,
    least: u64,
    most: u64,
    at: u64,
    version: Version,
    options: &ReadOptions,
) -> Result<(), Error> {
    let error = |kind| {
        Error::new(kind, "the length of the manifest")
            .at(at)
            .rule("O2")
            .found(size)
    };
    if size < least {
        return Err(error(ErrorKind::Malformed).expected("at least 1"));
    }
    if size > most {
        let expected = format!("at most {most}, given the file's length");
        return Err(error(ErrorKind::OutOfBounds).expected(expected));
    }
    let limit = options.limits.index_bytes.min(version.most_manifest_bytes());
    if size > limit {
        return Err(error(ErrorKind::TooLarge).expected(format_args!("at most {limit}, the limit")));
    }
    Ok(())
}

/// Creates the error for a file without a manifest: the file is a shard whose tensors another file lists, or
/// its footer is malformed.
fn no_manifest(at: u64, offset: u64, hash: u64) -> Error {
    if (offset, hash) == (0, 0) {
        let what = "the file is a shard of data: it has no list of its tensors";
        let error = Error::new(ErrorKind::Unsupported, what).at(at).rule("O15");
        return error.expected("the file that lists the tensors of this one");
    }
    let what = "the length of the manifest is 0, but not its offset and its hash";
    Error::new(ErrorKind::Malformed, what).at(at).rule("O2")
}

/// Maps the rules of lower-level crates to their names in docs/formats/ztensor2.md.
pub(crate) const RULES: &[(&str, &str)] = &[
    (fmt_cbor::WELL_FORMED, "O3"),
    (fmt_cbor::TYPES, "O4"),
    (fmt_cbor::LIMITS, "O2"),
    (fmt_cbor::SHAPES, "O5"),
    (fmt_zstd::FRAMES, "O12"),
    (fmt_zstd::TABLES, "O12"),
    (fmt_zstd::MEMORY, "O2"),
    (fmt_zstd::CHECKSUMS, "O13"),
    (fmt_zstd::BOOLEANS, "O17"),
];
