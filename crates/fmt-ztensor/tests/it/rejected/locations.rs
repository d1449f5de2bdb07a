//! Tensors whose bytes are outside of the file, overlap, or are not aligned.

use fmt_core::ErrorKind::*;

use super::Case;
use crate::support::*;

pub(super) fn locations() -> Vec<Case> {
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
