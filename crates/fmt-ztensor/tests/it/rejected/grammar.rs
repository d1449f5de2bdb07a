//! Indexes that break the grammar of CBOR, or that of custom fields.

use fmt_core::ErrorKind::*;

use super::Case;
use crate::support::*;

pub(super) fn grammar() -> Vec<Case> {
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

pub(super) fn custom_values() -> Vec<Case> {
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
