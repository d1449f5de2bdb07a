//! Fields of the index with a wrong CBOR type, and missing or repeated fields.

use fmt_core::ErrorKind::*;

use super::Case;
use crate::support::*;

pub(super) fn types() -> Vec<Case> {
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
