//! Files that are rejected for their descriptions of tensors.

use fmt_core::{ErrorKind::*, testing::CorpusCases};

use crate::support::{Forge, ForgedTensor};

/// Adds files whose tensor data is out of bounds or overlaps. The data of a [`Forge`] is bytes 4 to 64.
pub(super) fn places(cases: &mut CorpusCases) {
    for offset in [0, 1, 3] {
        let file = Forge::with(|tensor| tensor.offset = Some(offset));
        cases.reject(&format!("tb-16-offset-{offset}"), OutOfBounds, "T13", file);
    }
    cases.reject(
        "tb-16-no-offset",
        OutOfBounds,
        "T13",
        Forge::with(|tensor| tensor.offset = None),
    );
    for (name, offset) in [
        ("one-byte-into-the-index", 53),
        ("at-the-index", 64),
        ("in-the-index", 80),
        ("beyond-the-file", 4096),
        ("that-wraps-32-bits", 0xffff_fff0),
        ("the-largest", u32::MAX),
    ] {
        let file = Forge::with(|tensor| {
            (tensor.shape, tensor.dtype) = (Some(vec![12]), Some(7));
            tensor.offset = Some(offset);
        });
        cases.reject(&format!("tb-17-offset-{name}"), OutOfBounds, "T13", file);
    }
    let largest = Forge::with(|tensor| {
        (tensor.shape, tensor.dtype, tensor.size) = (Some(vec![u32::MAX]), Some(7), Some(u32::MAX));
    });
    cases.reject("tb-17-size-the-largest", OutOfBounds, "T13", largest);
    let unknown = Forge::with(|tensor| (tensor.dtype, tensor.offset) = (Some(99), Some(60)));
    cases.reject("tb-17-an-unknown-dtype-in-the-index", OutOfBounds, "T13", unknown);
    for (name, offset) in [("one-byte-into-the-index", 65), ("the-largest", u32::MAX)] {
        let file = Forge::of(&[ForgedTensor::new("a", 1, &[0], offset, 0)]).file();
        cases.reject(
            &format!("tb-17-nothing-at-offset-{name}"),
            OutOfBounds,
            "T11",
            file,
        );
    }

    let pair = |a: (u32, u32), b: (u32, u32)| {
        let tensor = |name: &str, (start, end): (u32, u32)| {
            ForgedTensor::new(name, 7, &[end - start], start, end - start)
        };
        Forge::of(&[tensor("a", a), tensor("b", b)]).file()
    };
    cases.reject("tb-24-a-part-of-both", Overlap, "T12", pair((4, 16), (8, 20)));
    cases.reject("tb-24-in-the-other-order", Overlap, "T12", pair((8, 20), (4, 16)));
    cases.reject("tb-24-one-byte", Overlap, "T12", pair((4, 16), (15, 20)));
    cases.reject(
        "tb-24-one-within-the-other",
        Overlap,
        "T12",
        pair((4, 64), (8, 9)),
    );
    cases.reject("tb-24-the-same-begin", Overlap, "T12", pair((4, 16), (4, 20)));
    cases.reject("tb-24-the-same-end", Overlap, "T12", pair((4, 16), (8, 16)));
    let bytes = |name: &str, start: u32, len: u32| ForgedTensor::new(name, 7, &[len], start, len);
    let three = Forge::of(&[bytes("a", 4, 40), bytes("b", 4, 40), bytes("c", 43, 5)]);
    cases.reject("tb-24-tied-tensors-and-a-third", Overlap, "T12", three.file());
    let apart = Forge::of(&[bytes("a", 30, 10), bytes("b", 4, 10), bytes("c", 20, 11)]);
    cases.reject("tb-24-not-neighbours-in-the-list", Overlap, "T12", apart.file());
    let unknown = Forge::of(&[
        bytes("a", 4, 10),
        ForgedTensor {
            dtype: Some(99),
            ..bytes("b", 8, 10)
        },
    ]);
    cases.reject("tb-24-with-an-unknown-dtype", Overlap, "T12", unknown.file());
}

pub(super) fn sizes_and_shapes(cases: &mut CorpusCases) {
    for size in [23, 25, 0] {
        let file = Forge::of(&[ForgedTensor::new("a", 1, &[2, 3], 4, size)]).file();
        cases.reject(
            &format!("tb-18-f32-2-by-3-with-{size}-bytes"),
            SizeMismatch,
            "T18",
            file,
        );
    }
    for (name, dtype, shape, size) in [
        ("f64-scalar-with-4-bytes", 2, &[][..], 4),
        ("nothing-with-4-bytes", 1, &[0], 4),
        ("i8-with-a-byte-more", 3, &[3], 4),
        ("i16-with-half-an-element", 4, &[2], 3),
        ("i64-as-if-i32", 6, &[4], 16),
        ("u64-as-if-u32", 10, &[4], 16),
        ("a-size-that-matches-in-32-bits", 7, &[65536, 65536], 0),
        (
            "a-product-that-matches-in-32-bits",
            7,
            &[65537, 65537],
            0x0002_0001,
        ),
    ] {
        let file = Forge::of(&[ForgedTensor::new("a", dtype, shape, 4, size)]).file();
        cases.reject(&format!("tb-18-{name}"), SizeMismatch, "T18", file);
    }
    cases.reject(
        "tb-18-no-size",
        SizeMismatch,
        "T18",
        Forge::with(|tensor| tensor.size = None),
    );
    cases.reject(
        "tb-18-no-shape",
        SizeMismatch,
        "T18",
        Forge::with(|tensor| tensor.shape = None),
    );

    for (name, dtype, shape) in [
        ("2-to-the-80", 1, &[65536; 5][..]),
        ("elements-fit-bytes-do-not", 1, &[1 << 31, 2, u32::MAX]),
        ("three-largest-dimensions", 7, &[u32::MAX; 3]),
        ("f64-two-largest-dimensions", 2, &[u32::MAX; 2]),
        ("wraps-to-0", 7, &[1 << 31, 1 << 31, 4]),
        ("of-an-unknown-dtype", 99, &[65536; 5]),
    ] {
        let file = Forge::of(&[ForgedTensor::new("a", dtype, shape, 4, 0)]).file();
        cases.reject(&format!("tb-19-{name}"), Overflow, "T21", file);
    }
    for rank in [65, 66, 1000] {
        let file = Forge::of(&[ForgedTensor::new("a", 7, &vec![1; rank], 4, 1)]).file();
        cases.reject(&format!("tb-21-rank-{rank}"), TooLarge, "T20", file);
    }
    let unknown = Forge::of(&[ForgedTensor::new("a", 0, &[1; 65], 4, 1)]);
    cases.reject(
        "tb-21-rank-65-of-an-unknown-dtype",
        TooLarge,
        "T20",
        unknown.file(),
    );
}

pub(super) fn names(cases: &mut CorpusCases) {
    let bytes = |name: &str, start: u32| ForgedTensor::new(name, 7, &[4], start, 4);
    cases.reject(
        "tb-22-two-of-a-name",
        Duplicate,
        "T7",
        Forge::of(&[bytes("a", 4), bytes("a", 8)]).file(),
    );
    let apart = Forge::of(&[bytes("a", 4), bytes("b", 8), bytes("c", 12), bytes("a", 16)]);
    cases.reject("tb-22-two-of-a-name-apart", Duplicate, "T7", apart.file());
    cases.reject(
        "tb-22-two-of-a-name-and-data",
        Duplicate,
        "T7",
        Forge::of(&[bytes("a", 4), bytes("a", 4)]).file(),
    );
    let other_id = ForgedTensor {
        id: Some(1),
        ..bytes("a", 8)
    };
    cases.reject(
        "tb-22-two-of-a-name-with-other-ids",
        Duplicate,
        "T7",
        Forge::of(&[bytes("a", 4), other_id]).file(),
    );
    let mut twice = Forge::new();
    twice.repeats = 1;
    cases.reject("tb-22-one-table-twice", Duplicate, "T7", twice.file());
    for (name, text) in [
        ("with-a-zero", "a\0b".to_owned()),
        ("nothing-but-a-zero", "\0".to_owned()),
        ("65537-bytes", "n".repeat(65537)),
        ("65537-bytes-of-fewer-letters", "é".repeat(32768) + "n"),
    ] {
        cases.reject(
            &format!("tb-29-name-{name}"),
            BadName,
            "T19",
            Forge::with_name(&text).file(),
        );
    }
    let unknown = Forge::with(|tensor| (tensor.name, tensor.dtype) = (Some(vec![0]), Some(0)));
    cases.reject(
        "tb-29-name-with-a-zero-of-an-unknown-dtype",
        BadName,
        "T19",
        unknown,
    );
}
