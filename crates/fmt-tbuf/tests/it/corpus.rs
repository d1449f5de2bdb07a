//! The corpus: small files that are accepted, and small files that are rejected, each for a reason of its own.

use std::{collections::BTreeSet, path::Path};

use fmt_core::{
    ErrorKind::{self, *},
    testing::{CorpusFile, Verdict, check_corpus},
};
use fmt_tbuf::{TbufWriter, TensorBuffers, WriteOptions, tensor_id};
use tensor_core::{DType, Tensor};

use crate::support::{Forge, Forged, back_to_back, counting, put_half, put_word, spec, written};

pub(crate) const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/corpus");

/// Every file of `tests/corpus` is what the cases here make it, and is judged as they say.
#[test]
fn files_are_judged_as_their_cases_say() {
    check_corpus(&TensorBuffers, Path::new(FOLDER), &cases());
}

#[test]
fn there_are_enough_cases_and_no_two_files_are_the_same() {
    let cases = cases();
    let accepted = cases
        .iter()
        .filter(|case| case.verdict == Verdict::Accept)
        .count();
    assert!(
        cases.len() >= 150 && accepted * 4 >= cases.len(),
        "{accepted} of {}",
        cases.len()
    );
    let distinct: BTreeSet<&[u8]> = cases.iter().map(|case| &case.bytes[..]).collect();
    assert_eq!(distinct.len(), cases.len());
}

pub(crate) fn cases() -> Vec<CorpusFile> {
    let mut cases = Cases(Vec::new());
    ends(&mut cases);
    index_structure(&mut cases);
    texts(&mut cases);
    places(&mut cases);
    sizes_and_shapes(&mut cases);
    names(&mut cases);
    accepted_layouts(&mut cases);
    accepted_tensors(&mut cases);
    cases.0
}

struct Cases(Vec<CorpusFile>);

impl Cases {
    fn accept(&mut self, name: &str, bytes: Vec<u8>) {
        self.push(name, bytes, Verdict::Accept);
    }

    fn reject(&mut self, name: &str, kind: ErrorKind, rule: &'static str, bytes: Vec<u8>) {
        self.push(name, bytes, Verdict::Reject(kind, rule));
    }

    fn push(&mut self, name: &str, bytes: Vec<u8>, verdict: Verdict) {
        self.0.push(CorpusFile {
            name: name.to_owned(),
            bytes,
            verdict,
        });
    }
}

/// A small file as this crate writes it.
pub(crate) fn small() -> Vec<u8> {
    written(WriteOptions::default(), &[("a", &counting(DType::F32, &[3]))])
}

fn ends(cases: &mut Cases) {
    let good = Forge::new().file();
    let changed = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut file = good.clone();
        change(&mut file);
        file
    };
    cases.reject("tb-01-empty", Truncated, "T2", Vec::new());
    for len in 1..12 {
        cases.reject(
            &format!("tb-02-first-{len:02}-bytes"),
            Truncated,
            "T2",
            good[..len].to_vec(),
        );
    }
    for byte in 0..4 {
        cases.reject(
            &format!("tb-03-byte-{byte}-flipped"),
            BadMagic,
            "T1",
            changed(&|file| file[byte] ^= 0x80),
        );
    }
    for (name, kind, magic) in [
        ("version-2", BadVersion, b"TBS2"),
        ("version-0", BadVersion, b"TBS0"),
        ("no-digit", BadMagic, b"TBSX"),
        ("reversed", BadMagic, b"1SBT"),
        ("lower-case", BadMagic, b"tbs1"),
        ("a-zip", BadMagic, b"PK\x03\x04"),
        ("a-ztensor", BadMagic, b"ZTEN"),
        ("zeros", BadMagic, b"\0\0\0\0"),
    ] {
        cases.reject(
            &format!("tb-03-{name}"),
            kind,
            "T1",
            changed(&|file| file[..4].copy_from_slice(magic)),
        );
    }
    for byte in 1..5 {
        let at = good.len() - byte;
        cases.reject(
            &format!("tb-04-byte-{byte}-from-the-end"),
            BadMagic,
            "T1",
            changed(&|file| file[at] ^= 0x80),
        );
    }
    let len = good.len();
    cases.reject(
        "tb-04-version-2-at-the-end",
        BadVersion,
        "T1",
        changed(&|file| file[len - 1] = b'2'),
    );
    cases.reject(
        "tb-04-a-byte-behind",
        BadMagic,
        "T1",
        changed(&|file| file.push(0)),
    );
    cases.reject(
        "tb-04-a-line-break-behind",
        BadMagic,
        "T1",
        changed(&|file| file.push(b'\n')),
    );
    cases.reject(
        "tb-04-four-zeros-behind",
        BadMagic,
        "T1",
        changed(&|file| file.extend([0; 4])),
    );
    cases.reject(
        "tb-04-the-magic-twice",
        OutOfBounds,
        "T2",
        changed(&|file| file.extend(b"TBS1")),
    );
    cases.reject("tb-04-a-byte-cut-off", BadMagic, "T1", good[..len - 1].to_vec());
    cases.reject("tb-04-the-tail-cut-off", BadMagic, "T1", good[..len - 8].to_vec());

    let only_ends = |size: u32| [b"TBS1", &size.to_le_bytes()[..], b"TBS1"].concat();
    cases.reject(
        "tb-05-12-bytes-and-the-largest-size",
        OutOfBounds,
        "T2",
        only_ends(u32::MAX),
    );
    cases.reject("tb-05-12-bytes-and-size-0", Malformed, "T2", only_ends(0));
    cases.reject("tb-05-12-bytes-and-size-8", OutOfBounds, "T2", only_ends(8));
    let sized = |size: usize| changed(&|file| put_word(file, len - 8, size as u32));
    cases.reject("tb-06-size-covers-the-magic", OutOfBounds, "T2", sized(len - 8));
    cases.reject("tb-06-size-one-too-many", OutOfBounds, "T2", sized(len - 11));
    cases.reject("tb-06-size-of-everything", OutOfBounds, "T2", sized(len));
    // All of the data is taken for the index; it begins with a root far outside.
    cases.reject("tb-06-size-covers-the-data", Malformed, "F1", sized(len - 12));
    cases.reject(
        "tb-06-size-in-big-endian",
        OutOfBounds,
        "T2",
        changed(&|file| file[len - 8..len - 4].reverse()),
    );
    for size in [0, 1, 3, 4, 7] {
        cases.reject(&format!("tb-07-size-{size}"), Malformed, "T2", sized(size));
    }
    let index = Forge::new().index().0.len();
    cases.reject("tb-07-size-one-short", Malformed, "F1", sized(index - 1));
    cases.reject("tb-07-size-four-short", Malformed, "F2", sized(index - 4));
    cases.reject("tb-07-size-8-of-more", Malformed, "F2", sized(8));
}

fn index_structure(cases: &mut Cases) {
    let forge = Forge::new();
    let len = forge.index().0.len() as u32;
    for (name, rule, root) in [
        ("0-which-is-itself", "F5", 0),
        ("odd", "F2", 1),
        ("not-a-multiple-of-4", "F2", 2),
        ("at-the-end", "F1", len),
        ("across-the-end", "F2", len - 1),
        ("far-outside", "F1", 0x7fff_fffc),
        ("the-largest", "F2", u32::MAX),
    ] {
        cases.reject(
            &format!("tb-08-root-{name}"),
            Malformed,
            rule,
            forge.patched(|index, _| put_word(index, 0, root)),
        );
    }

    for (name, rule, soffset) in [
        ("far-before", "F1", 0x7fff_fff0u32),
        ("far-behind", "F1", 0x8000_0010),
        ("the-least", "F1", 0x8000_0000),
        ("odd", "F2", 1),
    ] {
        let at_root = forge.patched(|index, places| put_word(index, places.root, soffset));
        cases.reject(&format!("tb-09-root-fields-{name}"), Malformed, rule, at_root);
        let at_tensor = forge.patched(|index, places| put_word(index, places.tables[0], soffset));
        cases.reject(&format!("tb-09-tensor-fields-{name}"), Malformed, rule, at_tensor);
    }
    for (name, rule, field_list_len) in [
        ("0", "F5", 0),
        ("2", "F5", 2),
        ("4", "F5", 4),
        ("odd", "F2", 5),
        ("beyond-the-index", "F1", 0xfff0),
    ] {
        let at_root = forge.patched(|index, places| put_half(index, places.root_fields, field_list_len));
        cases.reject(
            &format!("tb-09-root-fields-of-length-{name}"),
            Malformed,
            rule,
            at_root,
        );
        let at_tensor = forge.patched(|index, places| put_half(index, places.fields[0], field_list_len));
        cases.reject(
            &format!("tb-09-tensor-fields-of-length-{name}"),
            Malformed,
            rule,
            at_tensor,
        );
    }
    for (field, what) in ["id", "name", "shape", "dtype", "offset", "size"]
        .into_iter()
        .enumerate()
    {
        let place =
            |value| forge.patched(|index, places| put_half(index, places.fields[0] + 4 + 2 * field, value));
        cases.reject(
            &format!("tb-09-{what}-beyond-the-index"),
            Malformed,
            "F1",
            place(0xfffc),
        );
        if what != "dtype" {
            cases.reject(&format!("tb-09-{what}-not-aligned"), Malformed, "F2", place(5));
        }
    }

    for (name, rule, count) in [
        ("the-largest", "F1", u32::MAX),
        ("that-wraps-32-bits", "F1", 0x4000_0000),
        ("of-twice-the-index", "F1", len / 2),
    ] {
        let of_tensors = forge.patched(|index, places| put_word(index, places.vector, count));
        cases.reject(
            &format!("tb-10-number-of-tensors-{name}"),
            Malformed,
            rule,
            of_tensors,
        );
        let of_dims = forge.patched(|index, places| put_word(index, places.shapes[0], count));
        cases.reject(&format!("tb-10-rank-{name}"), Malformed, rule, of_dims);
    }
    let slot = |offset: u32| forge.patched(|index, places| put_word(index, places.vector + 4, offset));
    cases.reject("tb-10-tensor-far-outside", Malformed, "F1", slot(0x7fff_fffc));
    cases.reject("tb-10-tensor-not-aligned", Malformed, "F2", slot(1));
    // The count says two, and what follows is taken for the place of a table.
    let two = forge.patched(|index, places| put_word(index, places.vector, 2));
    cases.reject("tb-10-one-tensor-fewer-than-counted", Malformed, "F1", two);

    let mut many = Forge::with_name(&"n".repeat(1024));
    many.repeats = 40;
    cases.reject("tb-11-one-long-name-over-and-over", TooLarge, "F6", many.file());
    let mut many = Forge::of(&[Forged {
        shape: Some(vec![1; 1000]),
        ..Forged::plain()
    }]);
    many.repeats = 40;
    cases.reject("tb-11-one-shape-over-and-over", TooLarge, "F6", many.file());
    let mut many = Forge::new();
    many.repeats = 400;
    cases.reject("tb-12-one-table-over-and-over", TooLarge, "F6", many.file());
}

fn texts(cases: &mut Cases) {
    let forge = Forge {
        model: Some(b"model".to_vec()),
        ..Forge::new()
    };
    type Place = fn(&crate::support::Places) -> usize;
    let texts: [(&str, Place, usize); 3] = [
        ("name", |places| places.names[0], 1),
        ("version", |places| places.version, 5),
        ("model", |places| places.model, 5),
    ];
    for (what, place, len) in texts {
        let unterminated = forge.patched(|index, places| index[place(places) + 4 + len] = b'!');
        cases.reject(
            &format!("tb-13-{what}-without-its-zero"),
            Malformed,
            "F4",
            unterminated,
        );
        for (name, count) in [("2-to-the-31", 1 << 31), ("the-largest", u32::MAX)] {
            let long = forge.patched(|index, places| put_word(index, place(places), count));
            cases.reject(&format!("tb-13-{what}-of-length-{name}"), Malformed, "F1", long);
        }
    }
    for (name, text) in [
        ("ff-fe", &b"\xff\xfe"[..]),
        ("overlong", b"\xc0\x80"),
        ("a-surrogate", b"\xed\xa0\x80"),
        ("cut-off", b"a\xe2\x82"),
        ("beyond-unicode", b"\xf4\x90\x80\x80"),
        ("a-lone-continuation", b"\x80"),
    ] {
        let file = Forge::with(|tensor| tensor.name = Some(text.to_vec()));
        cases.reject(&format!("tb-13-name-{name}"), Malformed, "F3", file);
    }
    let invalid = Some(b"\xff\xfe".to_vec());
    cases.reject(
        "tb-13-version-ff-fe",
        Malformed,
        "F3",
        Forge {
            version: invalid.clone(),
            ..Forge::new()
        }
        .file(),
    );
    cases.reject(
        "tb-13-model-ff-fe",
        Malformed,
        "F3",
        Forge {
            model: invalid,
            ..Forge::new()
        }
        .file(),
    );

    cases.reject(
        "tb-14-no-version",
        Malformed,
        "F5",
        Forge {
            version: None,
            ..Forge::new()
        }
        .file(),
    );
    cases.reject(
        "tb-14-no-name",
        Malformed,
        "F5",
        Forge::with(|tensor| tensor.name = None),
    );
    let nothing = Forge {
        version: None,
        tensors: None,
        ..Forge::new()
    };
    cases.reject("tb-14-nothing-at-all", Malformed, "F5", nothing.file());
    let second = Forged {
        name: None,
        ..Forged::new("b", 1, &[3], 16, 12)
    };
    cases.reject(
        "tb-14-the-second-has-no-name",
        Malformed,
        "F5",
        Forge::of(&[Forged::plain(), second]).file(),
    );
}

/// Where data may be. The forge's data is bytes 4 to 64.
fn places(cases: &mut Cases) {
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
        let file = Forge::of(&[Forged::new("a", 1, &[0], offset, 0)]).file();
        cases.reject(
            &format!("tb-17-nothing-at-offset-{name}"),
            OutOfBounds,
            "T11",
            file,
        );
    }

    let pair = |a: (u32, u32), b: (u32, u32)| {
        let tensor =
            |name: &str, (start, end): (u32, u32)| Forged::new(name, 7, &[end - start], start, end - start);
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
    let bytes = |name: &str, start: u32, len: u32| Forged::new(name, 7, &[len], start, len);
    let three = Forge::of(&[bytes("a", 4, 40), bytes("b", 4, 40), bytes("c", 43, 5)]);
    cases.reject("tb-24-tied-tensors-and-a-third", Overlap, "T12", three.file());
    let apart = Forge::of(&[bytes("a", 30, 10), bytes("b", 4, 10), bytes("c", 20, 11)]);
    cases.reject("tb-24-not-neighbours-in-the-list", Overlap, "T12", apart.file());
    let unknown = Forge::of(&[
        bytes("a", 4, 10),
        Forged {
            dtype: Some(99),
            ..bytes("b", 8, 10)
        },
    ]);
    cases.reject("tb-24-with-an-unknown-dtype", Overlap, "T12", unknown.file());
}

fn sizes_and_shapes(cases: &mut Cases) {
    for size in [23, 25, 0] {
        let file = Forge::of(&[Forged::new("a", 1, &[2, 3], 4, size)]).file();
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
        let file = Forge::of(&[Forged::new("a", dtype, shape, 4, size)]).file();
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
        let file = Forge::of(&[Forged::new("a", dtype, shape, 4, 0)]).file();
        cases.reject(&format!("tb-19-{name}"), Overflow, "T21", file);
    }
    for rank in [33, 64, 65, 1000] {
        let file = Forge::of(&[Forged::new("a", 7, &vec![1; rank], 4, 1)]).file();
        cases.reject(&format!("tb-21-rank-{rank}"), TooLarge, "T20", file);
    }
    let unknown = Forge::of(&[Forged::new("a", 0, &[1; 33], 4, 1)]);
    cases.reject(
        "tb-21-rank-33-of-an-unknown-dtype",
        TooLarge,
        "T20",
        unknown.file(),
    );
}

fn names(cases: &mut Cases) {
    let bytes = |name: &str, start: u32| Forged::new(name, 7, &[4], start, 4);
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
    let other_id = Forged {
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
    let same_id = Forged {
        id: Some(tensor_id("a")),
        ..bytes("b", 8)
    };
    cases.reject(
        "tb-22-two-of-an-id",
        Duplicate,
        "T5",
        Forge::of(&[bytes("a", 4), same_id.clone()]).file(),
    );
    let apart = Forge::of(&[bytes("a", 4), bytes("c", 12), same_id]);
    cases.reject("tb-22-two-of-an-id-apart", Duplicate, "T5", apart.file());
    let no_id = |name: &str, start| Forged {
        id: None,
        ..bytes(name, start)
    };
    cases.reject(
        "tb-22-two-without-id",
        Duplicate,
        "T5",
        Forge::of(&[no_id("a", 4), no_id("b", 8)]).file(),
    );

    for (name, text) in [
        ("empty", String::new()),
        ("with-a-zero", "a\0b".to_owned()),
        ("nothing-but-a-zero", "\0".to_owned()),
        ("1025-bytes", "n".repeat(1025)),
        ("1025-bytes-of-fewer-letters", "é".repeat(512) + "n"),
    ] {
        cases.reject(
            &format!("tb-29-name-{name}"),
            BadName,
            "T19",
            Forge::with_name(&text).file(),
        );
    }
    let unknown = Forge::with(|tensor| (tensor.name, tensor.dtype) = (Some(Vec::new()), Some(0)));
    cases.reject("tb-29-name-empty-of-an-unknown-dtype", BadName, "T19", unknown);
}

fn accepted_layouts(cases: &mut Cases) {
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
    // Both tables have the same fields, so one list of them serves.
    let two = Forge::of(&[Forged::plain(), Forged::new("b", 1, &[2], 16, 8)]);
    let shared = two.patched(|index, places| {
        let back = (places.tables[1] - places.fields[0]) as u32;
        put_word(index, places.tables[1], back);
    });
    cases.accept("f6-one-list-of-fields-for-two-tensors", shared);
    let behind = Forge::new().patched(|index, places| {
        // The list of the tensor's fields is copied to the end, behind its table.
        let fields = index[places.fields[0]..places.fields[0] + 16].to_vec();
        let forwards = places.tables[0].wrapping_sub(index.len()) as u32;
        index.extend(fields);
        put_word(index, places.tables[0], forwards);
    });
    cases.accept("f6-a-list-of-fields-behind-its-table", behind);
    // `f32[3]` twice: the first tensor's shape is the second one's.
    let two = Forge::of(&[Forged::plain(), Forged::new("b", 1, &[3], 16, 12)]);
    let shared = two.patched(|index, places| {
        let slot = places.tables[0] + 16;
        put_word(index, slot, (places.shapes[1] - slot) as u32);
    });
    cases.accept("f6-one-shape-for-two-tensors", shared);
}

fn accepted_tensors(cases: &mut Cases) {
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
            Forge::of(&[Forged::new("a", 1, shape, 4, 0)]).file(),
        );
    }
    let nothing = |offset| Forge::of(&[Forged::new("a", 1, &[0], offset, 0)]).file();
    cases.accept("t11-nothing-at-byte-0", nothing(0));
    cases.accept("t11-nothing-at-the-index", nothing(64));
    let among = Forge::of(&[Forged::plain(), Forged::new("b", 1, &[0], 9, 0)]);
    cases.accept("t11-nothing-amid-another", among.file());
    cases.accept(
        "tb-17-up-to-the-index",
        Forge::with(|tensor| tensor.offset = Some(52)),
    );
    cases.accept(
        "tb-21-rank-32",
        Forge::of(&[Forged::new("a", 7, &[1; 32], 4, 1)]).file(),
    );

    let bytes = |name: &str, start: u32, len: u32| Forged::new(name, 7, &[len], start, len);
    cases.accept(
        "tb-24-the-same-data",
        Forge::of(&[bytes("a", 4, 8), Forged::new("b", 1, &[2], 4, 8)]).file(),
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
    let odd = Forge::of(&[Forged::new("a", 2, &[2], 5, 16)]);
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
        "tb-29-name-1024-bytes",
        Forge::with_name(&"n".repeat(1024)).file(),
    );
    let forms = Forge::of(&[bytes("\u{e9}", 4, 8), bytes("e\u{301}", 12, 8)]);
    cases.accept("tb-29-two-forms-of-one-letter", forms.file());
}

impl Forge {
    fn with_name(name: &str) -> Self {
        Self::of(&[Forged::new(name, 1, &[3], 4, 12)])
    }
}

/// The worked example of the format's page is a file of the corpus.
#[test]
fn the_pages_hexdump_is_true() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/formats/tensorbuffers.md");
    let page = std::fs::read_to_string(page).unwrap();
    let mut shown = Vec::new();
    for line in page.lines() {
        let Some((address, rest)) = line.split_once(": ") else {
            continue;
        };
        if address.len() != 8 || u32::from_str_radix(address, 16) != Ok(shown.len() as u32) {
            continue;
        }
        let bytes = rest.split("   ").next().unwrap().split(' ');
        shown.extend(bytes.map(|byte| u8::from_str_radix(byte, 16).unwrap()));
    }
    let file = std::fs::read(Path::new(FOLDER).join("accept/t3-written-by-this-crate.tbuf")).unwrap();
    assert_eq!(shown, file);
}
