//! Locates a checkpoint's pickle and storages: in a zip archive, or consecutively in the legacy layout.

use std::collections::HashMap;

use fmt_core::{ByteSource, Error, ErrorKind, ReadOptions, read_range};
use fmt_zip::CompressionMethod;

use crate::{
    input::Input,
    pickle::{self, Classes, Node, PickleResult, Value},
};

/// The magic number of the legacy layout (before PyTorch 1.6), as a pickle.
pub(crate) const LEGACY: &[u8] = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.";

/// An opened checkpoint: the values of its pickle, and where its storages are.
pub(crate) struct Checkpoint {
    pub(crate) value: PickleResult,
    pub(crate) storages: HashMap<String, StorageLocation>,
    pub(crate) is_big_endian: bool,
    /// Whether the file is a `TorchScript` program.
    pub(crate) is_script: bool,
    /// Names of archive members that contain no tensors.
    pub(crate) foreign: Vec<String>,
}

/// The location of a storage in the file.
#[derive(Clone, Debug)]
pub(crate) struct StorageLocation {
    pub(crate) start: u64,
    pub(crate) len: u64,
    /// The CRC-32 of the storage, if the archive has one.
    pub(crate) crc: Option<u32>,
    /// The reason why the storage cannot be read, if it cannot.
    pub(crate) unsupported: Option<String>,
}

impl StorageLocation {
    /// Returns the location of a storage that is an archive member.
    fn of_member(member: &fmt_zip::Member) -> Self {
        let is_stored = member.method == CompressionMethod::Stored && !member.is_encrypted;
        Self {
            start: member.range.start,
            len: member.range.end - member.range.start,
            // A CRC of 0 means that the writer omitted checksums.
            crc: (member.crc != 0).then_some(member.crc),
            unsupported: (!is_stored)
                .then(|| "its storage is compressed or encrypted in the archive (P1)".to_owned()),
        }
    }

    /// Locates a storage of the legacy layout. At offset `at` is its element count, which must be `count`,
    /// followed by the elements of `width` bytes each.
    fn of_legacy(source: &dyn ByteSource, at: u64, count: u64, width: u64) -> Result<Self, Error> {
        let truncated = || {
            Error::new(ErrorKind::Truncated, "a storage is truncated")
                .at(at)
                .rule("P1")
        };
        let start = at
            .checked_add(8)
            .filter(|start| *start <= source.len())
            .ok_or_else(truncated)?;
        let stored = read_range(source, at..start, "the length of a storage")?;
        let stored = stored.first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
        if stored != count {
            let error = Error::new(ErrorKind::SizeMismatch, "the length of a storage")
                .at(at)
                .rule("P1");
            return Err(error.expected(count).found(stored));
        }
        let len = count.checked_mul(width).filter(|len| {
            let end = start.checked_add(*len);
            end.is_some_and(|end| end <= source.len())
        });
        Ok(Self {
            start,
            len: len.ok_or_else(truncated)?,
            crc: None,
            unsupported: None,
        })
    }
}

impl Checkpoint {
    pub(crate) fn open(source: &dyn ByteSource, options: &ReadOptions) -> Result<Self, Error> {
        let head = read_range(source, 0..source.len().min(16), "the beginning of the file")?;
        if head.starts_with(LEGACY) {
            return Self::open_legacy(source, options);
        }
        if head.starts_with(b"PK\x03\x04") {
            return Self::open_archive(source, options);
        }
        let error = Error::new(ErrorKind::BadMagic, "the first bytes")
            .at(0)
            .rule("P1");
        Err(error.expected("a zip archive, or the magic number of checkpoints before PyTorch 1.6"))
    }

    fn open_archive(source: &dyn ByteSource, options: &ReadOptions) -> Result<Self, Error> {
        let members = fmt_zip::members(source, options)
            .map_err(|error| error.rule("P1"))?
            .members;
        let pickle = members.iter().find(|member| member.name.ends_with("/data.pkl"));
        let pickle = pickle.ok_or_else(|| {
            let is_exported = |member: &fmt_zip::Member| member.name.ends_with("/models/model.json");
            let what = match members.iter().any(is_exported) {
                true => "a program of torch.export, which is not supported",
                false => "a zip archive without a checkpoint",
            };
            let error = Error::new(ErrorKind::BadMagic, what).rule("P1");
            error.expected("a member NAME/data.pkl, as torch.save and torch.jit.save write it")
        })?;
        let prefix = pickle.name.trim_end_matches("data.pkl").to_owned();
        if pickle.method != CompressionMethod::Stored || pickle.is_encrypted {
            let error = Error::new(ErrorKind::Unsupported, "the pickle is compressed or encrypted");
            return Err(error.at(pickle.range.start).rule("P1"));
        }
        let mut storages = HashMap::new();
        let (mut foreign, mut is_big_endian) = (Vec::new(), false);
        for member in &members {
            let name = member.name.strip_prefix(&prefix).unwrap_or(&member.name);
            if let Some(key) = name.strip_prefix("data/") {
                storages.insert(key.to_owned(), StorageLocation::of_member(member));
            } else if name == "byteorder" {
                is_big_endian = read_is_big_endian(source, member)?;
            } else if !matches!(name, "data.pkl" | "version") && !name.starts_with('.') {
                foreign.push(member.name.clone());
            }
        }
        let is_script = members.iter().any(|member| {
            let name = member.name.strip_prefix(&prefix);
            name.is_some_and(|name| name.starts_with("code/"))
        });
        let classes = match (options.lenient, is_script) {
            (true, _) => Classes::All,
            (_, true) => Classes::TorchScript,
            _ => Classes::Known,
        };
        let mut input = Input::new(source, pickle.range.clone());
        let most = budget(pickle.range.end - pickle.range.start, options);
        let value = pickle::run(&mut input, most, classes)?;
        Ok(Self {
            value,
            storages,
            is_big_endian,
            is_script,
            foreign,
        })
    }

    /// Reads the legacy layout: five pickles, then each storage after its element count.
    fn open_legacy(source: &dyn ByteSource, options: &ReadOptions) -> Result<Self, Error> {
        let start = LEGACY.len() as u64;
        let end = source.len().min(start.saturating_add(options.limits.index_bytes));
        let mut input = Input::new(source, start..end);
        let most = budget(end - start, options);
        let mut next = |classes| pickle::run(&mut input, most, classes);
        let version = next(Classes::Known)?.root;
        if version != Value::Int(1001) {
            let error = Error::new(ErrorKind::BadVersion, "the version of the checkpoint").rule("P1");
            return Err(error.expected(1001));
        }
        // This pickle describes the host that wrote the file. The description is ignored, because this layout
        // is always little-endian.
        next(Classes::Known)?;
        let value = next(match options.lenient {
            true => Classes::All,
            false => Classes::Known,
        })?;
        let keys = next(Classes::Known)?;
        let Some(Node::List(keys_in_order)) = keys.node(keys.root) else {
            let error = Error::new(ErrorKind::Malformed, "the list of storages").at(input.position());
            return Err(error.rule("P1"));
        };
        let mut counts = HashMap::new();
        for node in &value.nodes {
            if let Node::Storage(storage) = node {
                counts.insert(&*storage.key, (storage.count, storage.elements.size()));
            }
        }
        let mut storages = HashMap::new();
        let mut at = input.position();
        for key in keys_in_order {
            let broken = |what: &str| Error::new(ErrorKind::Malformed, what).at(at).rule("P1");
            let key = keys.text(*key).ok_or_else(|| broken("the name of a storage"))?;
            let &(count, width) = counts
                .get(key)
                .ok_or_else(|| broken("a storage that no tensor has"))?;
            let place = StorageLocation::of_legacy(source, at, count, width)?;
            at = place.start + place.len;
            storages.insert(key.to_owned(), place);
        }
        drop(counts);
        Ok(Self {
            value,
            storages,
            is_big_endian: false,
            is_script: false,
            foreign: Vec::new(),
        })
    }
}

/// Reads an archive's member `byteorder`; returns whether the storages are big-endian.
fn read_is_big_endian(source: &dyn ByteSource, member: &fmt_zip::Member) -> Result<bool, Error> {
    let start = member.range.start;
    let end = member.range.end.min(start + 16);
    let order = read_range(source, start..end, "the byte order")?;
    match &order[..] {
        b"little" => Ok(false),
        b"big" => Ok(true),
        _ => {
            let error = Error::new(ErrorKind::Malformed, "the byte order").at(start);
            Err(error.rule("P1").expected("little or big"))
        }
    }
}

/// Returns the memory budget for the values of a pickle of `len` bytes (P4). Checkpoints need about 15 times
/// the size of their pickle.
fn budget(len: u64, options: &ReadOptions) -> u64 {
    const MOST: u64 = 2 << 30;
    let len = len.min(options.limits.index_bytes);
    len.saturating_mul(32).saturating_add(16 << 10).min(MOST)
}
