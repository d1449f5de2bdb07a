//! Builds files of versions 1 and 2 byte by byte.

use xxhash_rust::xxh3::xxh3_64;

use fmt_cbor::testing::{Map, array, dims, text, uint};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    V1,
    V2,
}

use Version::{V1, V2};

impl Version {
    pub(crate) fn alignment(self) -> u64 {
        match self {
            V1 => 64,
            V2 => 4096,
        }
    }

    /// Returns the offset of blob `number`. Blobs start at consecutive multiples of the alignment.
    pub(crate) fn place(self, number: u64) -> u64 {
        (number + 1) * self.alignment()
    }

    pub(crate) fn magic(self) -> &'static [u8; 8] {
        match self {
            V1 => b"ZTEN1000",
            V2 => b"\x89ZT2\r\n\x1a\n",
        }
    }

    pub(crate) fn encode(self, map: &Map) -> Vec<u8> {
        match self {
            V1 => map.encode(),
            V2 => map.encode_sorted(),
        }
    }

    pub(crate) fn key(self, v1: &'static str, v2: &'static str) -> &'static str {
        match self {
            V1 => v1,
            V2 => v2,
        }
    }
}

/// Returns a part whose data is the `len` bytes of blob `number`.
pub(crate) fn part(version: Version, dtype: &str, number: u64, len: u64) -> Map {
    at(version, dtype, version.place(number), len)
}

pub(crate) fn at(version: Version, dtype: &str, offset: u64, len: u64) -> Map {
    let part = Map::empty().with("dtype", text(dtype));
    match version {
        V1 => part.with("offset", uint(offset)).with("length", uint(len)),
        V2 => part.with("blob", array(&[uint(offset), uint(len)])),
    }
}

pub(crate) fn named(version: Version, list: &[(&str, Map)]) -> Vec<u8> {
    let mut map = Map::empty();
    for (name, value) in list {
        map = map.and(text(name), version.encode(value));
    }
    version.encode(&map)
}

pub(crate) fn object(version: Version, layout: &str, shape: &[u64], parts: &[(&str, Map)]) -> Map {
    Map::empty()
        .with("shape", dims(shape))
        .with(version.key("format", "layout"), text(layout))
        .with(version.key("components", "parts"), named(version, parts))
}

/// Returns a dense object with one part.
pub(crate) fn dense(version: Version, shape: &[u64], data: Map) -> Map {
    object(version, "dense", shape, &[("data", data)])
}

pub(crate) fn root(version: Version, objects: &[(&str, Map)]) -> Map {
    let root = Map::empty().with("objects", named(version, objects));
    match version {
        V1 => root.with("version", text("1.2.0")),
        V2 => root,
    }
}

/// Returns a file with these blobs and this manifest.
pub(crate) fn file(version: Version, blobs: &[&[u8]], root: &Map) -> Vec<u8> {
    file_of(version, blobs, &version.encode(root))
}

pub(crate) fn file_of(version: Version, blobs: &[&[u8]], manifest: &[u8]) -> Vec<u8> {
    let mut file = version.magic().to_vec();
    for (number, blob) in (0..).zip(blobs) {
        file.resize(version.place(number) as usize, 0);
        file.extend_from_slice(blob);
    }
    let len = manifest.len() as u64;
    if version == V1 {
        file.extend_from_slice(manifest);
        file.extend(len.to_le_bytes());
    } else {
        let start = file.len().next_multiple_of(4096);
        file.resize(start, 0);
        file.extend_from_slice(manifest);
        footer(&mut file, start as u64, len, xxh3_64(manifest), 2);
    }
    file.extend(version.magic());
    file
}

/// Appends a footer of version 2, without the magic number.
pub(crate) fn footer(file: &mut Vec<u8>, offset: u64, len: u64, hash: u64, version: u32) {
    for word in [offset, len, hash] {
        file.extend(word.to_le_bytes());
    }
    file.extend(version.to_le_bytes());
    file.extend([0; 4]);
}

/// The bytes of three little-endian `f32`: 1, 2 and 3.
pub(crate) const W: [u8; 12] = [0, 0, 0x80, 0x3f, 0, 0, 0, 0x40, 0, 0, 0x40, 0x40];

/// Returns an object of three floats in the file's first blob.
pub(crate) fn w(version: Version) -> Map {
    dense(version, &[3], part(version, "f32", 0, 12))
}

/// Returns a file with three floats and this object.
pub(crate) fn one(version: Version, object: Map) -> Vec<u8> {
    file(version, &[&W], &root(version, &[("w", object)]))
}

/// Returns a file with one tensor of three floats, whose part entry `change` has modified.
pub(crate) fn with_part(version: Version, change: impl Fn(Map) -> Map) -> Vec<u8> {
    one(version, dense(version, &[3], change(part(version, "f32", 0, 12))))
}
