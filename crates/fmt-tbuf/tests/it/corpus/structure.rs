//! Files that are rejected for their start or end, or for the structure of the index.

use fmt_core::{ErrorKind::*, testing::CorpusCases};

use crate::support::{Forge, ForgedTensor, Offsets, put_half, put_word};

pub(super) fn ends(cases: &mut CorpusCases) {
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
    // The declared index covers all tensor data, so its first bytes lead to a root far out of bounds.
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

pub(super) fn index_structure(cases: &mut CorpusCases) {
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
        let at_root = forge.patched(|index, offsets| put_word(index, offsets.root, soffset));
        cases.reject(&format!("tb-09-root-fields-{name}"), Malformed, rule, at_root);
        let at_tensor = forge.patched(|index, offsets| put_word(index, offsets.tables[0], soffset));
        cases.reject(&format!("tb-09-tensor-fields-{name}"), Malformed, rule, at_tensor);
    }
    for (name, rule, field_list_len) in [
        ("0", "F5", 0),
        ("2", "F5", 2),
        ("4", "F5", 4),
        ("odd", "F2", 5),
        ("beyond-the-index", "F1", 0xfff0),
    ] {
        let at_root = forge.patched(|index, offsets| put_half(index, offsets.root_fields, field_list_len));
        cases.reject(
            &format!("tb-09-root-fields-of-length-{name}"),
            Malformed,
            rule,
            at_root,
        );
        let at_tensor = forge.patched(|index, offsets| put_half(index, offsets.fields[0], field_list_len));
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
            |value| forge.patched(|index, offsets| put_half(index, offsets.fields[0] + 4 + 2 * field, value));
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
        let of_tensors = forge.patched(|index, offsets| put_word(index, offsets.vector, count));
        cases.reject(
            &format!("tb-10-number-of-tensors-{name}"),
            Malformed,
            rule,
            of_tensors,
        );
        let of_dims = forge.patched(|index, offsets| put_word(index, offsets.shapes[0], count));
        cases.reject(&format!("tb-10-rank-{name}"), Malformed, rule, of_dims);
    }
    let slot = |offset: u32| forge.patched(|index, offsets| put_word(index, offsets.vector + 4, offset));
    cases.reject("tb-10-tensor-far-outside", Malformed, "F1", slot(0x7fff_fffc));
    cases.reject("tb-10-tensor-not-aligned", Malformed, "F2", slot(1));
    // The vector claims two tensors but has one, so the bytes after its first offset are interpreted as a
    // second offset.
    let two = forge.patched(|index, offsets| put_word(index, offsets.vector, 2));
    cases.reject("tb-10-one-tensor-fewer-than-counted", Malformed, "F1", two);

    let mut many = Forge::with_name(&"n".repeat(1024));
    many.repeats = 40;
    cases.reject("tb-11-one-long-name-over-and-over", TooLarge, "F6", many.file());
    let mut many = Forge::of(&[ForgedTensor {
        shape: Some(vec![1; 1000]),
        ..ForgedTensor::plain()
    }]);
    many.repeats = 40;
    cases.reject("tb-11-one-shape-over-and-over", TooLarge, "F6", many.file());
    let mut many = Forge::new();
    many.repeats = 400;
    cases.reject("tb-12-one-table-over-and-over", TooLarge, "F6", many.file());
}

pub(super) fn texts(cases: &mut CorpusCases) {
    let forge = Forge {
        model: Some(b"model".to_vec()),
        ..Forge::new()
    };
    type OffsetOf = fn(&Offsets) -> usize;
    let texts: [(&str, OffsetOf, usize); 3] = [
        ("name", |offsets| offsets.names[0], 1),
        ("version", |offsets| offsets.version, 5),
        ("model", |offsets| offsets.model, 5),
    ];
    for (what, offset, len) in texts {
        let unterminated = forge.patched(|index, offsets| index[offset(offsets) + 4 + len] = b'!');
        cases.reject(
            &format!("tb-13-{what}-without-its-zero"),
            Malformed,
            "F4",
            unterminated,
        );
        for (name, count) in [("2-to-the-31", 1 << 31), ("the-largest", u32::MAX)] {
            let long = forge.patched(|index, offsets| put_word(index, offset(offsets), count));
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
    let second = ForgedTensor {
        name: None,
        ..ForgedTensor::new("b", 1, &[3], 16, 12)
    };
    cases.reject(
        "tb-14-the-second-has-no-name",
        Malformed,
        "F5",
        Forge::of(&[ForgedTensor::plain(), second]).file(),
    );
}
