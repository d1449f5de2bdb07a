//! Fields of the index with an invalid value.

use fmt_core::ErrorKind::*;

use super::Case;
use crate::support::*;

pub(super) fn values() -> Vec<Case> {
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
