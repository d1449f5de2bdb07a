//! Corpus files that must not open.

use fmt_core::{
    ErrorKind::{self, *},
    testing::{CorpusFile, Verdict},
};

use crate::support::*;

type Case = (&'static str, ErrorKind, &'static str, Vec<u8>);

/// Returns the rejected files of the corpus.
pub(crate) fn cases() -> Vec<CorpusFile> {
    let mut files = frame_of_the_file();
    files.extend(grammar());
    files.extend(custom_values());
    files.extend(types());
    files.extend(values());
    files.extend(places());
    files
        .into_iter()
        .map(|(name, kind, rule, bytes)| CorpusFile {
            name: name.to_owned(),
            bytes,
            verdict: Verdict::Reject(kind, rule),
        })
        .collect()
}

/// Returns a file without tensors that begins with this magic number.
fn with_magic(magic: &[u8]) -> Vec<u8> {
    [magic, &[0x80, 1, 0, 0, 0, 0, 0, 0, 0]].concat()
}

/// Returns an otherwise valid file that declares this index length; `len` computes it from the file's length.
fn with_index_of(len: impl Fn(u64) -> u64) -> Vec<u8> {
    let mut file = one(&w());
    let end = file.len() - 8;
    let len = len(file.len() as u64);
    file[end..].copy_from_slice(&len.to_le_bytes());
    file
}

fn frame_of_the_file() -> Vec<Case> {
    let empty = with_magic(b"ZTEN0001");
    vec![
        ("zt-01-no-bytes", Truncated, "Z22", Vec::new()),
        ("zt-01-one-byte", Truncated, "Z22", empty[..1].to_vec()),
        ("zt-01-seven-bytes", Truncated, "Z22", empty[..7].to_vec()),
        ("zt-01-the-magic-alone", Truncated, "Z22", empty[..8].to_vec()),
        ("zt-01-sixteen-bytes", Truncated, "Z22", empty[..16].to_vec()),
        (
            "zt-02-version-2-of-the-ascii-kind",
            BadVersion,
            "Z21",
            with_magic(b"ZTEN0002"),
        ),
        ("zt-02-version-1000", BadVersion, "Z21", with_magic(b"ZTEN1000")),
        (
            "zt-02-version-2",
            BadVersion,
            "Z21",
            with_magic(b"\x89ZT2\r\n\x1a\n"),
        ),
        (
            "zt-02-a-magic-cut-by-a-zero",
            BadMagic,
            "Z21",
            with_magic(b"ZTEN000\0"),
        ),
        ("zt-02-small-letters", BadMagic, "Z21", with_magic(b"zten0001")),
        (
            "zt-02-another-format",
            BadMagic,
            "Z21",
            with_magic(b"TBS1\0\0\0\0"),
        ),
        ("zt-02-nothing-but-zeros", BadMagic, "Z21", vec![0; 100]),
        (
            "zt-02-a-short-file-of-another-kind",
            BadMagic,
            "Z21",
            b"PK".to_vec(),
        ),
        (
            "zt-03-an-index-of-no-bytes",
            Malformed,
            "Z11",
            with_index_of(|_| 0),
        ),
        (
            "zt-03-an-index-of-all-bits",
            OutOfBounds,
            "Z22",
            with_index_of(|_| u64::MAX),
        ),
        (
            "zt-03-an-index-that-begins-in-the-magic",
            OutOfBounds,
            "Z22",
            with_index_of(|len| len - 15),
        ),
        (
            "zt-03-an-index-that-begins-behind-the-magic",
            Malformed,
            "Z23",
            with_index_of(|len| len - 16),
        ),
        (
            "zt-03-an-index-one-byte-too-long",
            Malformed,
            "Z23",
            with_index_of(|len| len - 16 - 56 - 12 + 1),
        ),
        (
            "zt-03-an-index-one-byte-too-short",
            Malformed,
            "Z23",
            with_index_of(|len| len - 16 - 56 - 12 - 1),
        ),
        (
            "zt-04-an-index-of-a-tebibyte",
            OutOfBounds,
            "Z22",
            with_index_of(|_| 1 << 40),
        ),
        ("zt-03-the-length-in-the-other-byte-order", OutOfBounds, "Z22", {
            let mut file = one(&w());
            let end = file.len() - 8;
            file[end..].reverse();
            file
        }),
    ]
}

fn grammar() -> Vec<Case> {
    let root = |index: &[u8]| file(&W, index);
    let entry = w().encode();
    let chunked = |chunks: &[Vec<u8>]| indefinite(3, chunks);
    vec![
        ("zt-05-a-map", Malformed, "Z23", root(&[0xa0])),
        ("zt-05-an-integer", Malformed, "Z23", root(&[0])),
        ("zt-05-null", Malformed, "Z23", root(&[0xf6])),
        ("zt-05-a-text", Malformed, "Z23", root(&[0x60])),
        (
            "zt-05-a-tagged-array",
            Malformed,
            "Z23",
            root(&[0xd9, 0xd9, 0xf7, 0x80]),
        ),
        (
            "zt-05-a-byte-behind-the-array",
            Malformed,
            "Z13",
            root(&[0x80, 0]),
        ),
        (
            "zt-05-a-break-behind-the-array",
            Malformed,
            "Z13",
            root(&[0x80, 0xff]),
        ),
        (
            "zt-05-an-array-behind-the-array",
            Malformed,
            "Z13",
            root(&[array(std::slice::from_ref(&entry)), vec![0x80]].concat()),
        ),
        (
            "zt-05-a-byte-behind-an-indefinite-array",
            Malformed,
            "Z13",
            root(&[0x9f, 0xff, 0]),
        ),
        (
            "zt-06-two-to-the-62-entries",
            Malformed,
            "Z25",
            root(&[0x9b, 0x40, 0, 0, 0, 0, 0, 0, 0]),
        ),
        (
            "zt-06-all-bits-of-entries",
            Malformed,
            "Z25",
            root(&[0x9b, 255, 255, 255, 255, 255, 255, 255, 255]),
        ),
        (
            "zt-06-one-entry-too-many",
            Malformed,
            "Z25",
            root(&[&[0x82][..], &entry].concat()),
        ),
        (
            "zt-06-one-entry-too-few",
            Malformed,
            "Z13",
            root(&[&[0x81][..], &entry, &entry].concat()),
        ),
        (
            "zt-06-a-map-of-two-to-the-62-pairs",
            Malformed,
            "Z25",
            root(&[0x81, 0xbb, 0x40, 0, 0, 0, 0, 0, 0, 0]),
        ),
        (
            "zt-06-a-map-of-all-bits-of-pairs",
            Malformed,
            "Z25",
            root(&[0x81, 0xbb, 255, 255, 255, 255, 255, 255, 255, 255]),
        ),
        (
            "zt-06-a-map-of-one-pair-too-many",
            Malformed,
            "Z25",
            root(&[&[0x81, 0xa7][..], &entry[1..]].concat()),
        ),
        (
            "zt-06-a-name-of-a-tebibyte",
            Malformed,
            "Z25",
            one(&w().with("name", vec![0x7b, 0, 0, 1, 0, 0, 0, 0, 0])),
        ),
        (
            "zt-06-a-key-of-a-tebibyte",
            Malformed,
            "Z25",
            one(&w().and(vec![0x7b, 0, 0, 1, 0, 0, 0, 0, 0], vec![])),
        ),
        (
            "zt-06-dimensions-without-end",
            Malformed,
            "Z25",
            one(&w().with("shape", vec![0x9b, 0, 0, 0, 0, 255, 255, 255, 255])),
        ),
        (
            "zt-07-a-million-arrays",
            Malformed,
            "Z23",
            root(&vec![0x81; 10_000]),
        ),
        (
            "zt-07-a-million-indefinite-arrays",
            Malformed,
            "Z23",
            root(&vec![0x9f; 10_000]),
        ),
        (
            "zt-07-a-million-tags",
            Malformed,
            "Z23",
            root(&vec![0xc1; 10_000]),
        ),
        (
            "zt-08-an-array-without-break",
            Malformed,
            "Z25",
            root(&[&[0x9f][..], &entry].concat()),
        ),
        ("zt-08-a-map-without-break", Malformed, "Z25", {
            let entry = w().encode_indefinite();
            root(&[&[0x81][..], &entry[..entry.len() - 1]].concat())
        }),
        ("zt-08-a-map-that-breaks-behind-a-key", Malformed, "Z3", {
            let mut entry = w().encode_indefinite();
            entry.truncate(entry.len() - 5);
            entry.push(0xff);
            root(&array(&[entry]))
        }),
        (
            "zt-08-a-text-without-break",
            Malformed,
            "Z25",
            one(&w().and(text("x"), vec![0x7f, 0x61, b'a'])),
        ),
        (
            "zt-08-a-chunk-of-bytes-in-a-text",
            Malformed,
            "Z25",
            one(&w().with("name", chunked(&[bytes(b"w")]))),
        ),
        (
            "zt-08-a-chunk-of-text-in-bytes",
            Malformed,
            "Z25",
            custom(&indefinite(2, &[text("w")])),
        ),
        (
            "zt-08-a-chunk-without-length",
            Malformed,
            "Z25",
            one(&w().with("name", chunked(&[chunked(&[text("w")])]))),
        ),
        (
            "zt-08-a-character-over-two-chunks",
            Malformed,
            "Z25",
            one(&w().with("name", chunked(&[text([0xc3]), text([0xa4])]))),
        ),
        (
            "zt-08-a-break-for-an-entry",
            Malformed,
            "Z23",
            root(&[0x81, 0xff]),
        ),
        (
            "zt-08-a-break-for-a-key",
            Malformed,
            "Z23",
            root(&[0x81, 0xa1, 0xff, 0]),
        ),
        (
            "zt-08-a-break-for-a-value",
            Malformed,
            "Z3",
            one(&w().with("offset", vec![0xff])),
        ),
        (
            "zt-08-a-break-for-a-dimension",
            Malformed,
            "Z3",
            one(&w().with("shape", vec![0x81, 0xff])),
        ),
        (
            "zt-08-dimensions-without-break",
            Malformed,
            "Z3",
            one(&w().with("shape", vec![0x9f, 3])),
        ),
        ("zt-10-head-1c", Malformed, "Z25", root(&[0x1c])),
        ("zt-10-head-9d", Malformed, "Z25", root(&[0x9d])),
        ("zt-10-head-fe", Malformed, "Z25", root(&[0xfe])),
        ("zt-10-a-break-alone", Malformed, "Z23", root(&[0xff])),
        (
            "zt-10-an-integer-without-length",
            Malformed,
            "Z25",
            one(&w().with("offset", vec![0x1f])),
        ),
        (
            "zt-10-a-negative-without-length",
            Malformed,
            "Z25",
            one(&w().with("offset", vec![0x3f])),
        ),
        (
            "zt-10-an-array-cut-in-its-head",
            Malformed,
            "Z25",
            root(&[0x99, 0]),
        ),
    ]
}

fn custom_values() -> Vec<Case> {
    vec![
        (
            "zt-07-depth-33",
            Malformed,
            "Z12",
            custom(&[vec![0x81; 33], vec![0]].concat()),
        ),
        (
            "zt-07-depth-33-of-tags",
            Malformed,
            "Z12",
            custom(&[vec![0xc1; 33], vec![0]].concat()),
        ),
        (
            "zt-07-depth-33-of-maps",
            Malformed,
            "Z12",
            custom(&[[0xa1, 0].repeat(33), vec![0]].concat()),
        ),
        (
            "zt-07-depth-33-indefinite",
            Malformed,
            "Z12",
            custom(&[vec![0x9f; 33], vec![0xff; 33]].concat()),
        ),
        (
            "zt-07-a-million-arrays-in-a-custom-field",
            Malformed,
            "Z12",
            custom(&vec![0x81; 10_000]),
        ),
        (
            "zt-07-a-million-tags-in-a-custom-field",
            Malformed,
            "Z12",
            custom(&vec![0xc1; 10_000]),
        ),
        (
            "zt-10-simple-0-in-two-bytes",
            Malformed,
            "Z25",
            custom(&[0xf8, 0]),
        ),
        (
            "zt-10-simple-31-in-two-bytes",
            Malformed,
            "Z25",
            custom(&[0xf8, 31]),
        ),
        (
            "zt-10-simple-false-in-two-bytes",
            Malformed,
            "Z25",
            custom(&[0xf8, 20]),
        ),
        ("zt-10-a-tag-without-number", Malformed, "Z25", custom(&[0xdf, 0])),
        (
            "zt-10-a-tag-of-nothing",
            Malformed,
            "Z25",
            file(
                &W,
                &[&array(&[w().and(text("x"), vec![0xc1]).encode()])[..]].concat(),
            ),
        ),
        (
            "zt-10-reserved-head-in-a-custom-field",
            Malformed,
            "Z25",
            custom(&[0x5c]),
        ),
        (
            "zt-10-a-tag-of-a-break",
            Malformed,
            "Z25",
            custom(&[0x9f, 0xc1, 0xff]),
        ),
        (
            "zt-10-a-break-in-an-array-of-known-length",
            Malformed,
            "Z25",
            custom(&[0x82, 0, 0xff]),
        ),
        (
            "zt-10-a-break-behind-a-key",
            Malformed,
            "Z25",
            custom(&[0xbf, 0, 0xff]),
        ),
        (
            "zt-10-a-break-for-a-value-of-a-custom-field",
            Malformed,
            "Z25",
            custom(&[0xff]),
        ),
        (
            "zt-06-a-custom-array-of-too-many",
            Malformed,
            "Z25",
            custom(&[0x9a, 0, 1, 0, 0]),
        ),
        (
            "zt-06-a-custom-map-of-too-many",
            Malformed,
            "Z25",
            custom(&[0xba, 0, 1, 0, 0]),
        ),
        (
            "zt-06-custom-bytes-beyond-the-index",
            Malformed,
            "Z25",
            custom(&[0x59, 1, 0]),
        ),
        (
            "zt-18-a-custom-text-that-is-no-utf-8",
            Malformed,
            "Z25",
            custom(&text([0xff])),
        ),
        (
            "zt-09-a-custom-key-twice",
            Malformed,
            "Z9",
            one(&w().with("x", uint(1)).and(text("x"), uint(2))),
        ),
        ("zt-09-a-custom-key-twice-among-many", Malformed, "Z9", {
            let keys = ["d", "a", "c", "b", "e", "a"];
            one(&keys.iter().fold(w(), |entry, key| entry.and(text(key), uint(1))))
        }),
    ]
}

fn types() -> Vec<Case> {
    let without = |key: &str| one(&w().without(key));
    let offset = |value: &[u8]| one(&w().with("offset", value));
    let entry = |entry: &[u8]| file(&W, &array(&[entry.to_vec()]));
    vec![
        ("zt-11-no-name", Malformed, "Z23", without("name")),
        ("zt-11-no-offset", Malformed, "Z23", without("offset")),
        ("zt-11-no-size", Malformed, "Z23", without("size")),
        ("zt-11-no-dtype", Malformed, "Z23", without("dtype")),
        ("zt-11-no-shape", Malformed, "Z23", without("shape")),
        ("zt-11-no-encoding", Malformed, "Z23", without("encoding")),
        ("zt-11-no-keys", Malformed, "Z23", entry(&[0xa0])),
        (
            "zt-11-a-key-in-capitals",
            Malformed,
            "Z23",
            one(&w().without("size").and(text("Size"), uint(12))),
        ),
        ("zt-12-offset-negative", Malformed, "Z3", offset(&head(1, 0))),
        (
            "zt-12-offset-a-float",
            Malformed,
            "Z3",
            offset(&[0xf9, 0x54, 0x00]),
        ),
        ("zt-12-offset-a-text", Malformed, "Z3", offset(&text("64"))),
        (
            "zt-12-offset-a-bignum",
            Malformed,
            "Z3",
            offset(&[0xc2, 0x41, 0x40]),
        ),
        ("zt-12-offset-null", Malformed, "Z3", offset(&[0xf6])),
        ("zt-12-offset-true", Malformed, "Z3", offset(&[0xf5])),
        (
            "zt-12-offset-an-array",
            Malformed,
            "Z3",
            offset(&array(&[uint(64)])),
        ),
        (
            "zt-12-size-a-float",
            Malformed,
            "Z3",
            one(&w().with("size", vec![0xfb, 0x40, 0x28, 0, 0, 0, 0, 0, 0])),
        ),
        (
            "zt-12-size-negative",
            Malformed,
            "Z3",
            one(&w().with("size", head(1, 11))),
        ),
        (
            "zt-12-name-of-bytes",
            Malformed,
            "Z3",
            one(&w().with("name", bytes(b"w"))),
        ),
        (
            "zt-12-name-an-integer",
            Malformed,
            "Z3",
            one(&w().with("name", uint(1))),
        ),
        (
            "zt-12-name-null",
            Malformed,
            "Z3",
            one(&w().with("name", vec![0xf6])),
        ),
        (
            "zt-12-dtype-an-integer",
            Malformed,
            "Z3",
            one(&w().with("dtype", uint(1))),
        ),
        (
            "zt-12-encoding-of-bytes",
            Malformed,
            "Z3",
            one(&w().with("encoding", bytes(b"raw"))),
        ),
        (
            "zt-12-shape-a-map",
            Malformed,
            "Z3",
            one(&w().with("shape", vec![0xa0])),
        ),
        (
            "zt-12-shape-an-integer",
            Malformed,
            "Z3",
            one(&w().with("shape", uint(3))),
        ),
        (
            "zt-12-shape-of-a-float",
            Malformed,
            "Z3",
            one(&w().with("shape", array(&[vec![0xf9, 0x3e, 0x00]]))),
        ),
        (
            "zt-12-shape-of-a-negative",
            Malformed,
            "Z3",
            one(&w().with("shape", array(&[head(1, 0)]))),
        ),
        (
            "zt-12-shape-of-shapes",
            Malformed,
            "Z3",
            one(&w().with("shape", array(&[dims(&[3])]))),
        ),
        (
            "zt-12-shape-with-a-tag",
            Malformed,
            "Z3",
            one(&w().with("shape", [vec![0xc1], dims(&[3])].concat())),
        ),
        (
            "zt-12-an-entry-that-is-an-array",
            Malformed,
            "Z23",
            entry(&[0x80]),
        ),
        ("zt-12-an-entry-that-is-null", Malformed, "Z23", entry(&[0xf6])),
        (
            "zt-12-an-entry-with-a-tag",
            Malformed,
            "Z23",
            entry(&[&[0xc1][..], &w().encode()].concat()),
        ),
        (
            "zt-12-a-key-that-is-an-integer",
            Malformed,
            "Z23",
            one(&w().and(uint(1), uint(1))),
        ),
        (
            "zt-12-a-key-of-bytes",
            Malformed,
            "Z23",
            one(&w().without("size").and(bytes(b"size"), uint(12))),
        ),
        (
            "zt-12-a-key-that-is-null",
            Malformed,
            "Z23",
            one(&w().and(vec![0xf6], uint(1))),
        ),
        (
            "zt-21-endianness-an-integer",
            Malformed,
            "Z3",
            one(&w().with("data_endianness", uint(1))),
        ),
        (
            "zt-32-checksum-an-integer",
            Malformed,
            "Z3",
            one(&w().with("checksum", uint(1))),
        ),
        (
            "zt-32-checksum-null",
            Malformed,
            "Z3",
            one(&w().with("checksum", vec![0xf6])),
        ),
    ]
}

fn values() -> Vec<Case> {
    let twice = |key: &str, value: Vec<u8>| one(&w().and(text(key), value));
    let named = |name: &[u8]| one(&w().with("name", text(name)));
    let shaped = |shape: &[u64]| one(&w().with("shape", dims(shape)));
    vec![
        ("zt-09-offset-twice", Malformed, "Z9", twice("offset", uint(64))),
        ("zt-09-name-twice", Malformed, "Z9", twice("name", text("v"))),
        ("zt-09-size-twice", Malformed, "Z9", twice("size", uint(8))),
        (
            "zt-09-dtype-twice",
            Malformed,
            "Z9",
            twice("dtype", text("int32")),
        ),
        (
            "zt-09-shape-twice",
            Malformed,
            "Z9",
            twice("shape", dims(&[1, 3])),
        ),
        (
            "zt-09-encoding-twice",
            Malformed,
            "Z9",
            twice("encoding", text("raw")),
        ),
        (
            "zt-09-layout-twice",
            Malformed,
            "Z9",
            one(&w()
                .with("layout", text("dense"))
                .and(text("layout"), text("dense"))),
        ),
        ("zt-09-endianness-twice", Malformed, "Z9", {
            one(&w()
                .with("data_endianness", text("little"))
                .and(text("data_endianness"), text("big")))
        }),
        (
            "zt-09-checksum-twice",
            Malformed,
            "Z9",
            one(&w()
                .with("checksum", text("a:1"))
                .and(text("checksum"), text("a:1"))),
        ),
        (
            "zt-09-a-key-in-chunks-and-whole",
            Malformed,
            "Z9",
            one(&w().and(indefinite(3, &[text("siz"), text("e")]), uint(12))),
        ),
        ("zt-18-a-name-with-a-zero-byte", BadName, "Z24", named(b"a\0b")),
        (
            "zt-18-a-name-of-65537-bytes",
            BadName,
            "Z24",
            named(&[b'n'; 65537]),
        ),
        (
            "zt-18-a-name-that-is-no-utf-8",
            Malformed,
            "Z25",
            named(&[b'a', 0xff]),
        ),
        (
            "zt-18-a-name-of-a-surrogate",
            Malformed,
            "Z25",
            named(&[0xed, 0xa0, 0x80]),
        ),
        (
            "zt-18-a-name-in-overlong-utf-8",
            Malformed,
            "Z25",
            named(&[0xc0, 0xaf]),
        ),
        ("zt-18-two-equal-names", Duplicate, "Z9", file_of(&W, &[w(), w()])),
        ("zt-18-equal-names-far-apart", Duplicate, "Z9", {
            let middle = (0..50).map(|at| w().with("name", text(format!("t{at}"))));
            let entries: Vec<_> = std::iter::once(w()).chain(middle).chain([w()]).collect();
            file_of(&W, &entries)
        }),
        (
            "zt-18-equal-names-one-in-chunks",
            Duplicate,
            "Z9",
            file_of(&W, &[w(), w().with("name", indefinite(3, &[text("w")]))]),
        ),
        (
            "zt-21-middle-endian",
            Malformed,
            "Z8",
            one(&w().with("data_endianness", text("middle"))),
        ),
        (
            "zt-21-big-in-capitals",
            Malformed,
            "Z8",
            one(&w().with("data_endianness", text("BIG"))),
        ),
        (
            "zt-21-endianness-empty",
            Malformed,
            "Z8",
            one(&w().with("data_endianness", text(""))),
        ),
        (
            "zt-23-two-to-the-64-elements",
            Overflow,
            "Z18",
            shaped(&[1 << 32, 1 << 32]),
        ),
        (
            "zt-23-elements-that-wrap-to-none",
            Overflow,
            "Z18",
            shaped(&[1 << 63, 2]),
        ),
        (
            "zt-23-elements-that-wrap-to-three",
            Overflow,
            "Z18",
            shaped(&[0x5555_5555_5555_5555, 3, 3]),
        ),
        ("zt-23-bytes-that-wrap", Overflow, "Z18", shaped(&[(1 << 62) + 3])),
        ("zt-23-an-unknown-dtype-of-too-many", Overflow, "Z18", {
            one(&w()
                .with("dtype", text("int4"))
                .with("shape", dims(&[1 << 40, 1 << 40])))
        }),
        (
            "zt-23-rank-65",
            TooLarge,
            "Z12",
            file_of(&[7], &[entry("r", 64, 1, "uint8", &[1; 65], "raw")]),
        ),
        (
            "zt-23-rank-65-indefinite",
            TooLarge,
            "Z12",
            one(&w().with("shape", indefinite(4, &vec![uint(1); 65]))),
        ),
    ]
}

fn places() -> Vec<Case> {
    let at = |offset: u64| file_of(&[0; 256], &[w().with("offset", uint(offset))]);
    let both = |a: (u64, u64), b: (u64, u64)| {
        let tensor =
            |name: &str, (offset, size): (u64, u64)| entry(name, offset, size, "uint8", &[size], "raw");
        file_of(&[0; 320], &[tensor("a", a), tensor("b", b)])
    };
    let sized = |dtype: &str, shape: &[u64], size: u64| {
        file_of(&[0; 64], &[entry("t", 64, size, dtype, shape, "raw")])
    };
    vec![
        ("zt-13-offset-65", Misaligned, "Z10", at(65)),
        ("zt-13-offset-8", Misaligned, "Z10", at(8)),
        ("zt-13-offset-96", Misaligned, "Z10", at(96)),
        ("zt-13-offset-of-all-bits", Misaligned, "Z10", at(u64::MAX)),
        (
            "zt-13-offset-of-nothing-misaligned",
            Misaligned,
            "Z10",
            file_of(&[0; 64], &[entry("t", 100, 0, "uint8", &[0], "raw")]),
        ),
        ("zt-14-offset-0", OutOfBounds, "Z10", at(0)),
        ("zt-15-the-end-beyond-64-bits", Overflow, "Z10", {
            file_of(
                &[],
                &[entry("t", 0u64.wrapping_sub(64), 128, "uint8", &[128], "raw")],
            )
        }),
        (
            "zt-15-the-end-one-byte-in-the-index",
            OutOfBounds,
            "Z10",
            file_of(&[0; 11], &[w()]),
        ),
        (
            "zt-15-the-beginning-in-the-index",
            OutOfBounds,
            "Z10",
            file_of(&[0; 11], &[w().with("offset", uint(128))]),
        ),
        ("zt-15-far-behind-the-file", OutOfBounds, "Z10", at(1 << 62)),
        (
            "zt-15-nothing-behind-the-data",
            OutOfBounds,
            "Z10",
            file_of(&[0; 10], &[entry("t", 128, 0, "uint8", &[0], "raw")]),
        ),
        (
            "zt-15-an-unknown-dtype-behind-the-file",
            OutOfBounds,
            "Z10",
            one(&w().with("dtype", text("int4")).with("size", uint(1000))),
        ),
        (
            "zt-15-an-unknown-encoding-behind-the-file",
            OutOfBounds,
            "Z10",
            one(&w().with("encoding", text("lz4")).with("size", uint(1000))),
        ),
        ("zt-16-a-part-shared", Overlap, "Z10", both((64, 100), (128, 64))),
        (
            "zt-16-one-inside-another",
            Overlap,
            "Z10",
            both((64, 256), (128, 64)),
        ),
        (
            "zt-16-the-same-beginning",
            Overlap,
            "Z10",
            both((64, 64), (64, 65)),
        ),
        (
            "zt-16-listed-backwards",
            Overlap,
            "Z10",
            both((128, 64), (64, 100)),
        ),
        ("zt-16-behind-aliases", Overlap, "Z10", {
            let tensor =
                |name: &str, offset: u64, size: u64| entry(name, offset, size, "uint8", &[size], "raw");
            file_of(
                &[0; 320],
                &[tensor("a", 64, 200), tensor("b", 64, 200), tensor("c", 192, 8)],
            )
        }),
        (
            "zt-22-float16-one-byte-short",
            SizeMismatch,
            "Z10",
            sized("float16", &[3], 5),
        ),
        (
            "zt-22-float16-one-byte-long",
            SizeMismatch,
            "Z10",
            sized("float16", &[3], 7),
        ),
        (
            "zt-22-a-scalar-of-nothing",
            SizeMismatch,
            "Z10",
            sized("uint8", &[], 0),
        ),
        (
            "zt-22-nothing-of-one-byte",
            SizeMismatch,
            "Z10",
            sized("uint8", &[0], 1),
        ),
        (
            "zt-22-elements-counted-for-bytes",
            SizeMismatch,
            "Z10",
            sized("float64", &[8], 8),
        ),
        (
            "zt-22-a-compressed-tensor-of-no-bytes",
            SizeMismatch,
            "Z15",
            zstd_of(&[], 4),
        ),
        (
            "zt-22-a-compressed-tensor-of-no-bytes-and-no-elements",
            SizeMismatch,
            "Z15",
            zstd_of(&[], 0),
        ),
    ]
}
