//! Untrusted files: files with known kinds of faults, and mutants.

use std::{
    io::Write,
    process::{Command, Stdio},
    thread,
    time::Instant,
};

use fmt_core::{
    ErrorKind, Limits, ReadOptions, TensorReader,
    testing::{mutants, open_hostile, read_everything},
};
use fmt_tbuf::{TbufReader, TensorBuffers, WriteOptions, tensor_id};
use tensor_core::{Bytes, DType, Tensor};

use crate::{
    corpus::{cases, small},
    support::{Forge, ForgedTensor, back_to_back, counting, open, put_word, tensor, written},
};

fn kind(bytes: &[u8]) -> Option<ErrorKind> {
    let verdict = open_hostile(&TensorBuffers, bytes, &ReadOptions::default());
    verdict.err().map(|error| error.kind())
}

#[test]
fn nothing() {
    assert_eq!(kind(b""), Some(ErrorKind::Truncated));
}

#[test]
fn up_to_eleven_bytes() {
    for len in 1..12 {
        assert_eq!(kind(&small()[..len]), Some(ErrorKind::Truncated));
    }
}

#[test]
fn the_first_magic() {
    for version in b'0'..=b'9' {
        let mut file = small();
        file[3] = version;
        let expected = (version != b'1').then_some(ErrorKind::BadVersion);
        assert_eq!(kind(&file), expected);
    }
    let mut file = small();
    file[..4].copy_from_slice(b"1SBT");
    assert_eq!(kind(&file), Some(ErrorKind::BadMagic));
}

#[test]
fn the_last_magic_is_named() {
    let mut file = small();
    file.push(0);
    let error = open(&file).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadMagic);
    assert!(error.to_string().starts_with("the last four bytes"), "{error}");
}

#[test]
fn a_size_that_is_not_there_is_not_allocated() {
    let file = [&b"TBS1"[..], &u32::MAX.to_le_bytes(), b"TBS1"].concat();
    let mut opened = None;
    let allocated = allocation_counter::measure(|| opened = Some(open(&file).map(drop)));
    assert_eq!(opened.unwrap().unwrap_err().kind(), ErrorKind::OutOfBounds);
    assert!(allocated.bytes_max < 4096, "{allocated:?}");
}

#[test]
fn the_index_may_begin_at_byte_four_but_not_before() {
    let forge = Forge {
        data: Vec::new(),
        tensors: None,
        ..Forge::new()
    };
    let file = forge.file();
    assert_eq!(kind(&file), None);
    for more in 1..=4 {
        let mut file = file.clone();
        let at = file.len() - 8;
        let size = at as u32 - 4 + more;
        put_word(&mut file, at, size);
        assert_eq!(kind(&file), Some(ErrorKind::OutOfBounds));
    }
}

#[test]
fn an_index_too_short_to_be_one() {
    for size in 0..8 {
        let mut file = small();
        let at = file.len() - 8;
        put_word(&mut file, at, size);
        assert_eq!(kind(&file), Some(ErrorKind::Malformed));
    }
}

/// Replaces each word of an index with malicious values.
#[test]
fn offsets_that_lead_astray() {
    let forge = Forge::of(&[ForgedTensor::plain(), ForgedTensor::new("b", 7, &[2, 2], 16, 4)]);
    let (index, _) = forge.index();
    let mut rejected = 0;
    for at in (0..index.len() - 3).step_by(4) {
        for word in [
            0,
            1,
            3,
            index.len() as u32,
            0x7fff_ffff,
            0x8000_0000,
            0xffff_fff0,
            u32::MAX,
        ] {
            let file = forge.patched(|index, _| put_word(index, at, word));
            rejected += u32::from(judge(file));
        }
    }
    assert!(rejected > 100, "{rejected}");
}

#[test]
fn one_long_name_listed_nearly_a_million_times() {
    let mut forge = Forge::of(&[ForgedTensor::new(&"n".repeat(1 << 20), 7, &[1], 4, 1)]);
    forge.repeats = 999_000;
    let file = Bytes::from(forge.file());
    assert_quick_rejection(file, ErrorKind::TooLarge);
}

#[test]
fn more_tensors_than_there_can_be() {
    let mut forge = Forge::new();
    forge.repeats = 1_000_000;
    assert_quick_rejection(Bytes::from(forge.file()), ErrorKind::TooLarge);
}

fn assert_quick_rejection(file: Bytes, expected: ErrorKind) {
    let mut found = None;
    let start = Instant::now();
    let allocated =
        allocation_counter::measure(|| found = TbufReader::from_bytes(file).err().map(|error| error.kind()));
    // The time limit is many times longer than a release build needs, to allow for slow and busy machines.
    assert!(start.elapsed().as_secs() < 5, "{:?}", start.elapsed());
    assert_eq!(found, Some(expected));
    assert!(allocated.bytes_max < 64 << 10, "{allocated:?}");
}

#[test]
fn a_hundred_thousand_tensors() {
    let names: Vec<String> = (0..100_000)
        .map(|number| format!("layer.{number}.weight"))
        .collect();
    let scalar = Tensor::scalar(1.0f32);
    let named: Vec<_> = names.iter().map(|name| (&name[..], &scalar)).collect();
    let file = written(WriteOptions::default(), &named);
    let len = file.len() as u64;
    let mut opened = None;
    let allocated = allocation_counter::measure(|| opened = TbufReader::from_bytes(file).ok());
    let reader = opened.unwrap();
    assert_eq!(reader.entries().len(), 100_000);
    assert_eq!(
        reader.tensor(reader.find("layer.777.weight").unwrap()).unwrap(),
        scalar
    );
    assert!(allocated.bytes_max < 4 * len, "{} of {len}", allocated.bytes_max);
}

#[test]
fn texts_that_are_none() {
    for text in [&b"\xff\xfe"[..], b"\xc0\x80", b"\xed\xa0\x80"] {
        assert_eq!(
            kind(&Forge::with(|tensor| tensor.name = Some(text.to_vec()))),
            Some(ErrorKind::Malformed)
        );
    }
    let unterminated = Forge::new().patched(|index, places| index[places.names[0] + 5] = 1);
    assert_eq!(kind(&unterminated), Some(ErrorKind::Malformed));
    let endless = Forge::new().patched(|index, places| put_word(index, places.names[0], 1 << 31));
    assert_eq!(kind(&endless), Some(ErrorKind::Malformed));
}

#[test]
fn what_may_be_absent() {
    assert_eq!(
        kind(
            &Forge {
                version: None,
                ..Forge::new()
            }
            .file()
        ),
        Some(ErrorKind::Malformed)
    );
    assert_eq!(
        kind(&Forge::with(|tensor| tensor.name = None)),
        Some(ErrorKind::Malformed)
    );
    assert_eq!(
        open(
            &Forge {
                tensors: None,
                ..Forge::new()
            }
            .file()
        )
        .unwrap()
        .entries()
        .len(),
        0
    );
}

#[test]
fn dtypes_that_are_none() {
    for number in [0, 11, 127, -128] {
        let file = Forge::of(&[
            ForgedTensor {
                dtype: Some(number),
                ..ForgedTensor::plain()
            },
            ForgedTensor::new("b", 7, &[2], 20, 2),
        ]);
        let reader = open(&file.file()).unwrap();
        let [a, b] = ["a", "b"].map(|name| reader.find(name).unwrap());
        assert!(reader.entries()[a].unsupported.is_some());
        for error in [
            reader.tensor(a).unwrap_err(),
            reader.rows(a, 0..1).unwrap_err(),
            reader.read_into(a, &mut [0; 12]).unwrap_err(),
            reader.verify(a).unwrap_err(),
        ] {
            assert_eq!(
                (error.kind(), error.tensor()),
                (ErrorKind::Unsupported, Some("a"))
            );
        }
        // Other tensors of the file can be read.
        assert_eq!(reader.tensor(b).unwrap().bytes()[..], [16, 17]);
    }
}

#[test]
fn data_in_the_magic() {
    for offset in 0..4 {
        assert_eq!(
            kind(&Forge::with(|tensor| tensor.offset = Some(offset))),
            Some(ErrorKind::OutOfBounds)
        );
    }
}

#[test]
fn data_up_to_the_index_and_beyond() {
    let at = |offset, size: u32| kind(&Forge::of(&[ForgedTensor::new("a", 7, &[size], offset, size)]).file());
    assert_eq!(at(0xffff_fff0, 0x20), Some(ErrorKind::OutOfBounds));
    assert_eq!(at(32, 33), Some(ErrorKind::OutOfBounds));
    assert_eq!(at(32, 32), None);
}

#[test]
fn sizes_that_are_not_the_shapes() {
    for size in [23, 25, 0] {
        let file = Forge::of(&[ForgedTensor::new("a", 1, &[2, 3], 4, size)]).file();
        assert_eq!(kind(&file), Some(ErrorKind::SizeMismatch));
    }
}

#[test]
fn products_that_overflow() {
    for shape in [&[65536; 5][..], &[1 << 31, 2, u32::MAX], &[1 << 31, 1 << 31, 4]] {
        let file = Forge::of(&[ForgedTensor::new("a", 1, shape, 4, 0)]).file();
        assert_eq!(kind(&file), Some(ErrorKind::Overflow));
    }
}

#[test]
fn nothing_and_scalars() {
    for (shape, size) in [(&[0][..], 0), (&[3, 0], 0), (&[], 4)] {
        let file = Forge::of(&[ForgedTensor::new("a", 1, shape, 4, size)]).file();
        assert_eq!(kind(&file), None);
        assert_eq!(tensor(&file, "a").unwrap().bytes().len(), size as usize);
    }
}

#[test]
fn ranks() {
    for (rank, expected) in [
        (64, None),
        (65, Some(ErrorKind::TooLarge)),
        (1_000_000, Some(ErrorKind::TooLarge)),
    ] {
        let file = Forge::of(&[ForgedTensor::new("a", 7, &vec![1; rank], 4, 1)]).file();
        assert_eq!(open(&file).err().map(|error| error.kind()), expected);
    }
    // No reader limit can exceed the maximum rank of shapes.
    let options = ReadOptions {
        limits: Limits {
            rank: u64::MAX,
            ..Limits::default()
        },
        ..ReadOptions::default()
    };
    let file = Forge::of(&[ForgedTensor::new("a", 7, &[1; 65], 4, 1)]).file();
    let error = TbufReader::open(std::sync::Arc::new(Bytes::from(file)), &options).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TooLarge);
}

#[test]
fn duplicates() {
    let pair = |a: ForgedTensor, b: ForgedTensor| kind(&Forge::of(&[a, b]).file());
    let other = ForgedTensor::new("b", 1, &[3], 16, 12);
    let same_name = ForgedTensor {
        name: Some(b"a".to_vec()),
        ..other.clone()
    };
    let same_id = ForgedTensor {
        id: Some(tensor_id("a")),
        ..other.clone()
    };
    assert_eq!(pair(ForgedTensor::plain(), same_name), Some(ErrorKind::Duplicate));
    // A wrong id only causes a lint, because tensors are found by name.
    assert_eq!(pair(ForgedTensor::plain(), same_id), None);
    assert_eq!(pair(ForgedTensor::plain(), other), None);
}

#[test]
fn ids_that_are_not_the_names_and_not_in_order() {
    let mut tensors: Vec<_> = (0..20u32)
        .map(|number| ForgedTensor::new(&format!("t{number}"), 7, &[1], 4 + number, 1))
        .collect();
    tensors.sort_by_key(|tensor| std::cmp::Reverse(tensor.id));
    tensors[3].id = Some(5);
    let file = Forge::of(&tensors).file();
    let reader = open(&file).unwrap();
    for number in 0..20 {
        let index = reader.find(&format!("t{number}")).unwrap();
        assert_eq!(reader.tensor(index).unwrap().bytes()[..], [number]);
    }
    let lints = reader.lints().unwrap();
    assert!(lints.iter().any(|lint| lint.message.ends_with("(T5)")));
    assert!(lints.iter().any(|lint| lint.message.ends_with("(T6)")));
}

#[test]
fn overlaps() {
    let pair = |a: (u32, u32), b: (u32, u32)| {
        let tensor = |name: &str, (start, end): (u32, u32)| {
            ForgedTensor::new(name, 7, &[end - start], start, end - start)
        };
        Forge::of(&[tensor("a", a), tensor("b", b)]).file()
    };
    let error = open(&pair((4, 16), (8, 20))).unwrap_err();
    assert_eq!(
        error.to_string(),
        "tensor 'b': the data overlaps that of tensor 'a', at byte 8: expected ranges apart or the same, found bytes 4 \
         to 16 and 8 to 20"
    );
    assert_eq!(kind(&pair((4, 16), (4, 16))), None);
    assert_eq!(kind(&pair((4, 16), (16, 20))), None);
}

#[test]
fn other_files_in_holes() {
    let polyglots = cases().into_iter().filter(|case| case.name.starts_with("tb-26"));
    for case in polyglots {
        let reader = open(&case.bytes).unwrap();
        assert_eq!(tensor(&case.bytes, "a").unwrap().bytes()[..], [0; 12]);
        let lints = reader.lints().unwrap();
        let lint = lints.iter().find(|lint| lint.message.ends_with("(T12)")).unwrap();
        let range = lint.range.clone().unwrap();
        assert_eq!(range.start, 16, "{}", case.name);
        assert!(range.end > 16 && range.end < 64, "{}", case.name);
    }
}

/// Opens and reads a file like [`open_hostile`], but only from memory; returns whether it was rejected.
fn judge(bytes: Vec<u8>) -> bool {
    let len = bytes.len() as u64;
    let bytes = Bytes::from(bytes);
    let mut opened = None;
    let allocated = allocation_counter::measure(|| opened = Some(TbufReader::from_bytes(bytes)));
    assert!(
        allocated.bytes_max <= (64 << 10) + 2 * len,
        "{allocated:?} for {len} bytes"
    );
    match opened.unwrap() {
        Ok(reader) => {
            read_everything(&reader);
            false
        }
        Err(error) => {
            assert!(error.broken_rule().is_some(), "no rule: {error}");
            true
        }
    }
}

/// Returns a file of about 1 KiB that uses all features.
fn varied() -> Vec<u8> {
    let mut writer = fmt_tbuf::TbufWriter::new(Vec::new(), WriteOptions::default()).unwrap();
    writer.set_model("a model").unwrap();
    for (name, dtype, dims) in [
        ("matrix", DType::F32, &[3, 2][..]),
        ("nothing", DType::I64, &[0, 4]),
        ("a name that is somewhat longer", DType::U8, &[5]),
        ("scalar", DType::F64, &[]),
    ] {
        writer.tensor(name, &counting(dtype, dims)).unwrap();
    }
    writer
        .alias("tied", counting(DType::U32, &[6]).spec(), "matrix")
        .unwrap();
    writer.finish().unwrap()
}

#[test]
fn every_truncation_and_every_flipped_bit() {
    let file = varied();
    for len in 0..file.len() {
        assert!(open(&file[..len]).is_err(), "{len} bytes");
    }
    let original = open(&file).unwrap();
    let index = original.index_range();
    for bit in 0..file.len() * 8 {
        let mut mutant = file.clone();
        mutant[bit / 8] ^= 1 << (bit % 8);
        judge(mutant.clone());
        let in_data = (4..index.start).contains(&(bit as u64 / 8));
        if in_data {
            // The format has no checksums, so only the structure must be unchanged.
            assert_eq!(open(&mutant).unwrap().entries(), original.entries());
        }
    }
}

/// Returns the valid files that mutants are derived from.
fn bases() -> [Vec<u8>; 4] {
    let forge = Forge {
        operations: Some(0),
        model: Some(b"m".to_vec()),
        ..Forge::of(&[
            ForgedTensor::plain(),
            ForgedTensor::new("b", 7, &[2, 2], 16, 4),
            ForgedTensor::new("c", 4, &[0], 20, 0),
        ])
    };
    let (a, b) = (counting(DType::U16, &[2, 2]), counting(DType::I8, &[3]));
    [
        varied(),
        small(),
        written(back_to_back(), &[("a", &a), ("b", &b)]),
        forge.file(),
    ]
}

/// Opens 100,000 mutants on small stacks, and counts every allocation.
#[test]
fn mutants_never_get_the_better_of_the_reader() {
    const STACK: usize = 256 << 10;
    let threads = bases().map(|base| {
        let work = move || {
            let judged = mutants(&base, 25_000).map(judge);
            judged.filter(|is_rejected| *is_rejected).count()
        };
        thread::Builder::new().stack_size(STACK).spawn(work).unwrap()
    });
    let rejected: usize = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
    assert!((20_000..99_000).contains(&rejected), "{rejected}");
}

/// An independent reader in Python gives the same results for mutants. Runs only if `TBUF_PYTHON` names an
/// interpreter.
#[test]
fn a_second_reader_agrees() {
    let Some(python) = std::env::var_os("TBUF_PYTHON") else {
        return;
    };
    for base in bases() {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/python/tbuf_reader.py");
        let mut child = Command::new(&python)
            .args([script, "--stdin"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let files: Vec<Vec<u8>> = mutants(&base, 15_000).collect();
        let mut input = child.stdin.take().unwrap();
        let sent = files.clone();
        let sending = thread::spawn(move || {
            for file in &sent {
                input.write_all(&(file.len() as u32).to_le_bytes()).unwrap();
                input.write_all(file).unwrap();
            }
        });
        let output = child.wait_with_output().unwrap();
        sending.join().unwrap();
        let verdicts = String::from_utf8(output.stdout).unwrap();
        assert_eq!(verdicts.lines().count(), files.len());
        for (file, theirs) in files.iter().zip(verdicts.lines()) {
            let ours = match open(file) {
                Ok(_) => "accept".to_owned(),
                Err(error) => format!("reject {} {}", error.kind(), error.broken_rule().unwrap()),
            };
            assert_eq!(ours, theirs, "{file:02x?}");
        }
    }
}

#[test]
fn names() {
    for name in ["a\0b", &"n".repeat(65537)] {
        assert_eq!(
            kind(&Forge::with(|tensor| tensor.name = Some(name.into()))),
            Some(ErrorKind::BadName)
        );
        let mut writer = fmt_tbuf::TbufWriter::new(Vec::new(), WriteOptions::default()).unwrap();
        assert_eq!(
            writer.tensor(name, &Tensor::scalar(1u8)).unwrap_err().kind(),
            ErrorKind::BadName
        );
    }
    let names = ["", "../../x", "\u{202e}gnp.exe", "\u{e9}", "e\u{301}", "a\nb"];
    let scalar = Tensor::scalar(1u8);
    let file = written(WriteOptions::default(), &names.map(|name| (name, &scalar)));
    let reader = open(&file).unwrap();
    for name in names {
        let index = reader.find(name).unwrap();
        assert_eq!(reader.entries()[index].name, name);
        let error = reader.rows(index, 0..1).unwrap_err().to_string();
        assert!(!error.contains(['\u{202e}', '\n']), "{error}");
    }
}

/// Files of the reference implementation are read: packed tensors in any order, an index at any offset, and,
/// in later versions, a table of operations.
#[test]
fn files_of_the_first_implementation() {
    let forge = Forge {
        data: (0..25).collect(),
        operations: Some(0),
        ..Forge::of(&[
            ForgedTensor::new("weights", 1, &[2, 2], 4, 16),
            ForgedTensor::new("bias", 1, &[2], 20, 8),
        ])
    };
    let file = forge.file();
    assert_eq!(
        tensor(&file, "weights").unwrap().bytes()[..],
        (0..16).collect::<Vec<u8>>()
    );
    assert_eq!(
        tensor(&file, "bias").unwrap().bytes()[..],
        (16..24).collect::<Vec<u8>>()
    );
}
