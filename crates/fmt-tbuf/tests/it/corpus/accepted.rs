//! Unusual files that are accepted.

use fmt_core::testing::CorpusCases;
use fmt_tbuf::{TbufWriter, WriteOptions, tensor_id};
use tensor_core::{DType, Tensor};

use super::small;
use crate::support::{Forge, ForgedTensor, back_to_back, counting, put_word, spec, written};

pub(super) fn accepted_layouts(cases: &mut CorpusCases) {
    cases.accept("t3-written-by-this-crate", small());
    cases.accept(
        "t3-back-to-back",
        written(
            back_to_back(),
            &[
                ("a", &counting(DType::F32, &[3])),
                ("b", &counting(DType::U8, &[5])),
            ],
        ),
    );
    let pages = WriteOptions {
        alignment: 256,
        ..WriteOptions::default()
    };
    cases.accept(
        "t3-aligned-to-256",
        written(
            pages,
            &[
                ("a", &counting(DType::F32, &[3])),
                ("b", &counting(DType::U8, &[5])),
            ],
        ),
    );
    cases.accept("t2-no-tensors", written(WriteOptions::default(), &[]));
    cases.accept("t2-no-tensors-back-to-back", written(back_to_back(), &[]));
    let mut writer = TbufWriter::new(Vec::new(), WriteOptions::default()).unwrap();
    writer.set_model("resnet-50").unwrap();
    writer.tensor("weights", &counting(DType::F64, &[2, 2])).unwrap();
    writer.alias("tied", &spec(DType::I64, &[4]), "weights").unwrap();
    cases.accept("t9-a-model-and-tied-weights", writer.finish().unwrap());

    cases.accept(
        "tb-06-the-index-at-byte-4",
        Forge {
            data: Vec::new(),
            tensors: Some(Vec::new()),
            ..Forge::new()
        }
        .file(),
    );
    for shift in 1..4 {
        let forge = Forge {
            data: (0..60 + shift).collect(),
            ..Forge::new()
        };
        cases.accept(&format!("t2-the-index-{shift}-bytes-off"), forge.file());
    }
    cases.accept(
        "tb-14-no-list-of-tensors",
        Forge {
            tensors: None,
            ..Forge::new()
        }
        .file(),
    );
    for (name, version) in [("2", "2.0.0"), ("none", ""), ("odd", "soon\n")] {
        let forge = Forge {
            version: Some(version.into()),
            ..Forge::new()
        };
        cases.accept(&format!("t8-version-{name}"), forge.file());
    }
    cases.accept(
        "t9-an-empty-model",
        Forge {
            model: Some(Vec::new()),
            ..Forge::new()
        }
        .file(),
    );
    cases.accept(
        "tb-30-operations",
        Forge {
            operations: Some(0),
            ..Forge::new()
        }
        .file(),
    );
    cases.accept(
        "t17-a-field-more-in-a-tensor",
        Forge::with(|tensor| tensor.unknown = Some(7)),
    );
    let behind = |bytes: usize| Forge::new().patched(|index, _| index.extend(vec![0xee; bytes]));
    cases.accept("f1-bytes-behind-what-is-referred-to", behind(8));
    cases.accept("f2-an-index-of-odd-length", behind(1));
    // Both tables have the same fields, so they share one vtable.
    let two = Forge::of(&[ForgedTensor::plain(), ForgedTensor::new("b", 1, &[2], 16, 8)]);
    let shared = two.patched(|index, places| {
        let back = (places.tables[1] - places.fields[0]) as u32;
        put_word(index, places.tables[1], back);
    });
    cases.accept("f6-one-list-of-fields-for-two-tensors", shared);
    let behind = Forge::new().patched(|index, places| {
        // The tensor's vtable is copied to the end, after its table.
        let fields = index[places.fields[0]..places.fields[0] + 16].to_vec();
        let forwards = places.tables[0].wrapping_sub(index.len()) as u32;
        index.extend(fields);
        put_word(index, places.tables[0], forwards);
    });
    cases.accept("f6-a-list-of-fields-behind-its-table", behind);
    // Both tensors are `f32[3]`, and the first tensor refers to the shape of the second.
    let two = Forge::of(&[ForgedTensor::plain(), ForgedTensor::new("b", 1, &[3], 16, 12)]);
    let shared = two.patched(|index, places| {
        let slot = places.tables[0] + 16;
        put_word(index, slot, (places.shapes[1] - slot) as u32);
    });
    cases.accept("f6-one-shape-for-two-tensors", shared);
}

pub(super) fn accepted_tensors(cases: &mut CorpusCases) {
    for dtype in [
        DType::I8,
        DType::I16,
        DType::I32,
        DType::I64,
        DType::U8,
        DType::U16,
        DType::U32,
        DType::U64,
        DType::F32,
        DType::F64,
    ] {
        let tensor = counting(dtype, &[2, 3]);
        cases.accept(
            &format!("t14-{}", dtype.name()),
            written(WriteOptions::default(), &[("a", &tensor)]),
        );
    }
    for (name, number) in [("none", 0), ("11", 11), ("127", 127), ("minus-128", -128)] {
        cases.accept(
            &format!("tb-15-dtype-{name}"),
            Forge::with(|tensor| tensor.dtype = Some(number)),
        );
    }
    cases.accept("tb-15-no-dtype", Forge::with(|tensor| tensor.dtype = None));

    cases.accept(
        "t10-a-scalar",
        written(WriteOptions::default(), &[("a", &Tensor::scalar(1.5f64))]),
    );
    let absent = Forge::with(|tensor| (tensor.shape, tensor.size) = (None, Some(4)));
    cases.accept("t10-a-scalar-without-shape", absent);
    for (name, shape) in [
        ("0", &[0][..]),
        ("3-by-0", &[3, 0]),
        ("0-and-the-largest", &[0, u32::MAX, u32::MAX, u32::MAX]),
        ("the-largest-and-0", &[u32::MAX, u32::MAX, u32::MAX, 0]),
    ] {
        cases.accept(
            &format!("tb-20-shape-{name}"),
            Forge::of(&[ForgedTensor::new("a", 1, shape, 4, 0)]).file(),
        );
    }
    let nothing = |offset| Forge::of(&[ForgedTensor::new("a", 1, &[0], offset, 0)]).file();
    cases.accept("t11-nothing-at-byte-0", nothing(0));
    cases.accept("t11-nothing-at-the-index", nothing(64));
    let among = Forge::of(&[ForgedTensor::plain(), ForgedTensor::new("b", 1, &[0], 9, 0)]);
    cases.accept("t11-nothing-amid-another", among.file());
    cases.accept(
        "tb-17-up-to-the-index",
        Forge::with(|tensor| tensor.offset = Some(52)),
    );
    cases.accept(
        "tb-21-rank-64",
        Forge::of(&[ForgedTensor::new("a", 7, &[1; 64], 4, 1)]).file(),
    );

    let bytes = |name: &str, start: u32, len: u32| ForgedTensor::new(name, 7, &[len], start, len);
    cases.accept(
        "tb-24-the-same-data",
        Forge::of(&[bytes("a", 4, 8), ForgedTensor::new("b", 1, &[2], 4, 8)]).file(),
    );
    cases.accept(
        "tb-24-apart",
        Forge::of(&[bytes("b", 12, 8), bytes("a", 4, 8)]).file(),
    );
    cases.accept(
        "tb-24-with-a-hole",
        Forge::of(&[bytes("a", 4, 8), bytes("b", 40, 8)]).file(),
    );
    cases.accept("tb-23-another-id", Forge::with(|tensor| tensor.id = Some(42)));
    cases.accept("tb-23-no-id", Forge::with(|tensor| tensor.id = None));
    let mut order = [bytes("a", 4, 8), bytes("b", 12, 8), bytes("c", 20, 8)];
    order.sort_by_key(|tensor| std::cmp::Reverse(tensor.id));
    cases.accept("tb-23-by-descending-id", Forge::of(&order).file());
    let same_id = ForgedTensor {
        id: Some(tensor_id("a")),
        ..bytes("b", 12, 8)
    };
    cases.accept(
        "tb-22-two-of-an-id",
        Forge::of(&[bytes("a", 4, 8), same_id.clone()]).file(),
    );
    let apart = Forge::of(&[bytes("a", 4, 8), bytes("c", 20, 8), same_id]);
    cases.accept("tb-22-two-of-an-id-apart", apart.file());
    let no_id = |name: &str, start| ForgedTensor {
        id: None,
        ..bytes(name, start, 8)
    };
    cases.accept(
        "tb-22-two-without-id",
        Forge::of(&[no_id("a", 4), no_id("b", 12)]).file(),
    );
    let odd = Forge::of(&[ForgedTensor::new("a", 2, &[2], 5, 16)]);
    cases.accept("tb-25-f64-at-byte-5", odd.file());
    for (name, content) in [
        ("zip", &b"PK\x05\x06\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"[..]),
        ("elf", b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x02\0\x3e\0"),
        ("html", b"<script>alert(1)</script>"),
    ] {
        let mut data = vec![0; 12];
        data.extend(content);
        data.resize(60, 0);
        cases.accept(
            &format!("tb-26-{name}-in-a-hole"),
            Forge { data, ..Forge::new() }.file(),
        );
    }
    for (name, text) in [
        ("a-path", "../../x"),
        ("right-to-left", "\u{202e}gnp.exe"),
        ("a-line-break", "a\nb"),
        ("one-space", " "),
    ] {
        cases.accept(&format!("tb-29-name-{name}"), Forge::with_name(text).file());
    }
    cases.accept(
        "tb-29-name-65536-bytes",
        Forge::with_name(&"n".repeat(65536)).file(),
    );
    cases.accept("tb-29-name-empty", Forge::with_name("").file());
    let forms = Forge::of(&[bytes("\u{e9}", 4, 8), bytes("e\u{301}", 12, 8)]);
    cases.accept("tb-29-two-forms-of-one-letter", forms.file());
}
