//! Corpus files that must not open.

mod grammar;
mod locations;
mod types;
mod values;

use fmt_core::{
    ErrorKind::{self, *},
    testing::{CorpusFile, Verdict},
};

use crate::support::*;

type Case = (&'static str, ErrorKind, &'static str, Vec<u8>);

/// Returns the rejected files of the corpus.
pub(crate) fn cases() -> Vec<CorpusFile> {
    let mut files = frame_of_the_file();
    files.extend(grammar::grammar());
    files.extend(grammar::custom_values());
    files.extend(types::types());
    files.extend(values::values());
    files.extend(locations::locations());
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
