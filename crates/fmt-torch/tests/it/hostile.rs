//! Damaged and hostile checkpoints: errors, memory proportional to the file, no panic.

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use fmt_core::{
    ByteSource, ErrorKind, ReadOptions, TensorReader, Verification,
    testing::{BASE_ALLOWANCE, mutants, open_hostile, open_many_hostile},
};
use fmt_torch::{Torch, TorchReader};
use tensor_core::Bytes;

use crate::support::*;

#[test]
fn thousands_of_mutants() {
    let state = Pickle::state(&[
        ("w", MATRIX),
        (
            "v",
            View {
                offset: 3,
                dims: &[3],
                strides: &[1],
                ..MATRIX
            },
        ),
    ]);
    let bases = [small(), legacy(), archive(&state.0, &[("data/0", &floats())])];
    let derived = bases.into_iter().flat_map(|base| {
        let count = base.len() * 9 + 2000;
        mutants(&base, count).collect::<Vec<_>>()
    });
    // Memory is bounded by the pickle; the zip crate also allocates for a field with a 16-bit length.
    let opened = open_many_hostile(&Torch, derived, &ReadOptions::default(), 4 * BASE_ALLOWANCE);
    assert!(opened > 100, "{opened} opened");
}

#[test]
fn every_prefix_is_refused() {
    for file in [small(), legacy()] {
        for len in 0..file.len() {
            assert!(TorchReader::from_bytes(file[..len].to_vec()).is_err(), "{len}");
        }
    }
}

/// Pickles whose few bytes expand to many values are rejected.
#[test]
fn bombs_are_bounded() {
    let open = |pickle: Pickle| {
        let file = archive(&pickle.0, &[("data/0", &floats())]);
        let opened = TorchReader::from_bytes(file);
        opened.map(|_| ()).map_err(|error| error.kind())
    };
    // In the first pickle, each of thirty lists contains its predecessor twice. In the second one, a list
    // contains itself.
    let mut laughs = Pickle::new().raw(b"]q\x00");
    for level in 0..30u8 {
        laughs = laughs.raw(&[b']', b'q', level + 1, b'(', b'h', level, b'h', level, b'e']);
    }
    assert_eq!(open(laughs.raw(b".")), Err(ErrorKind::TooLarge));
    assert_eq!(
        open(Pickle::new().raw(b"]q\x00h\x00a.")),
        Err(ErrorKind::TooLarge)
    );
    // A million empty lists, dictionaries or tuples.
    for opcode in [b"]", b"}", b")"] {
        assert_eq!(
            open(Pickle::new().raw(&opcode.repeat(1 << 20))).err(),
            Some(ErrorKind::TooLarge)
        );
    }
    // Opcodes that take one stack entry per byte fit the budget, but the pickle has no end.
    for opcode in [b"(", b"N"] {
        assert!(open(Pickle::new().raw(&opcode.repeat(1 << 20))).is_err());
    }
    // Many calls use the same tuple.
    let many = Pickle::new().raw(b"(").raw(&b"N".repeat(1000)).raw(b"tq\x00");
    let calls = many
        .global("torch", "device")
        .raw(b"q\x01")
        .raw(&b"h\x01h\x00R".repeat(10_000));
    assert!(open(calls).is_err());
    // A string that claims to be longer than the file.
    assert_eq!(
        open(Pickle::new().raw(b"X\xff\xff\xff\x7f")),
        Err(ErrorKind::TooLarge)
    );
    // The lengths overflow 64 bits when doubled (found by fuzzing).
    for opcode in [b"\x8d", b"\x8e", b"\x96"] {
        let pickle = Pickle::new().raw(opcode).raw(&(u64::MAX / 2 + 1).to_le_bytes());
        assert_eq!(open(pickle), Err(ErrorKind::TooLarge));
    }
    // An expanded tensor is listed, and rejected beyond the memory limit.
    let expanded = View {
        dims: &[i32::MAX, 1024],
        strides: &[0, 0],
        ..MATRIX
    };
    let file = archive(&Pickle::state(&[("w", expanded)]).0, &[("data/0", &floats())]);
    let contents = open_hostile(&Torch, &file, &ReadOptions::default()).unwrap();
    assert_eq!(contents[0].1, Err(ErrorKind::TooLarge));
}

/// Many tensors share a metadata dictionary, which is scanned for each of them; each scan counts toward the
/// memory budget.
#[test]
fn notes_that_many_tensors_share_are_bounded() {
    let open = |pairs: usize, tensors: usize| {
        // A long string increases the budget by more than it costs.
        let padded = Pickle::new().text(&" ".repeat(1 << 20)).raw(b"0");
        let notes = padded.raw(b"}(").raw(&b"NN".repeat(pairs)).raw(b"uq\x00");
        let arguments = notes
            .global("torch._utils", "_rebuild_tensor_v2")
            .raw(b"q\x01((")
            .text("storage")
            .global("torch", "FloatStorage")
            .text("0")
            .text("cpu")
            .int(6)
            .raw(b"tQ")
            .int(0)
            .ints(&[2, 3])
            .ints(&[3, 1])
            .raw(b"\x89Nh\x00tq\x02");
        let calls = arguments.raw(&b"h\x01h\x02R0".repeat(tensors));
        let file = archive(&calls.raw(b"}.").0, &[("data/0", &floats())]);
        let opened = TorchReader::from_bytes(file);
        opened.map(|_| ()).map_err(|error| error.kind())
    };
    let few = open(2, 100);
    assert_ne!(few, Err(ErrorKind::TooLarge));
    assert_eq!(open(20_000, 10_000), Err(ErrorKind::TooLarge));
}

/// A source that counts the bytes read.
struct CountingSource(Bytes, AtomicU64);

impl ByteSource for CountingSource {
    fn len(&self) -> u64 {
        self.0.len() as u64
    }

    fn read(&self, range: Range<u64>) -> std::io::Result<Bytes> {
        self.1.fetch_add(range.end - range.start, Relaxed);
        ByteSource::read(&self.0, range)
    }

    fn read_into(&self, offset: u64, out: &mut [u8]) -> std::io::Result<()> {
        self.1.fetch_add(out.len() as u64, Relaxed);
        self.0.read_into(offset, out)
    }
}

/// A thousand views of a one-megabyte storage must not each read all of it.
#[test]
fn views_of_a_large_storage_read_their_part() {
    let count = 1 << 18;
    let storage: Vec<u8> = (0..count as u32)
        .flat_map(|number| (number as f32).to_le_bytes())
        .collect();
    let names: Vec<String> = (0..1000).map(|number| format!("t{number}")).collect();
    let views = names.iter().zip(0..).map(|(name, number)| {
        let view = View {
            count,
            offset: 100 * number,
            dims: &[3, 2],
            strides: &[1, 7],
            ..MATRIX
        };
        (&**name, view)
    });
    let pickle = Pickle::state(&views.collect::<Vec<_>>());
    let file = archive(&pickle.0, &[("data/0", &storage)]);
    let source = Arc::new(CountingSource(file.into(), AtomicU64::new(0)));
    let reader = TorchReader::open(Arc::clone(&source) as _, &ReadOptions::default()).unwrap();
    source.1.store(0, Relaxed);
    let values = reader.tensor(999).unwrap().to_vec::<f32>().unwrap();
    assert_eq!(values, [99900.0, 99907.0, 99901.0, 99908.0, 99902.0, 99909.0]);
    // The read covers the range from the first element to the last.
    assert_eq!(source.1.swap(0, Relaxed), 4 * 10);
    for index in 0..1000 {
        assert_eq!(reader.verify(index).unwrap(), Verification::Ok);
    }
    assert_eq!(source.1.load(Relaxed), storage.len() as u64);
}

/// The range of the storage that is read to gather a tensor counts towards the limit.
#[test]
fn what_is_held_to_gather_is_limited() {
    let wide = View {
        dims: &[2, 2],
        strides: &[1, 5],
        count: 7,
        ..MATRIX
    };
    let storage = [floats(), vec![0; 4]].concat();
    let file = archive(&Pickle::state(&[("w", wide)]).0, &[("data/0", &storage)]);
    let mut options = ReadOptions::default();
    for (limit, is_read) in [(28, true), (27, false)] {
        options.limits.decoded_bytes = limit;
        let reader = TorchReader::open(Arc::new(Bytes::from(file.clone())), &options).unwrap();
        let read = reader.tensor(0).map_err(|error| error.kind());
        assert_eq!(read.is_ok(), is_read, "{read:?}");
        assert!(is_read || read.unwrap_err() == ErrorKind::TooLarge);
    }
}

/// Regression, found by fuzzing: the first duplicate was returned, while Python uses the last.
#[test]
fn two_tensors_of_one_name() {
    let other = View {
        offset: 3,
        dims: &[3],
        strides: &[1],
        ..MATRIX
    };
    let twice = Pickle::state(&[("w", MATRIX), ("v", other), ("w", other)]);
    let file = Bytes::from(archive(&twice.0, &[("data/0", &floats())]));
    let open = |lenient| {
        TorchReader::open(
            Arc::new(file.clone()),
            &ReadOptions {
                lenient,
                ..ReadOptions::default()
            },
        )
    };
    let error = open(false).unwrap_err();
    assert_eq!(
        (error.kind(), error.broken_rule()),
        (ErrorKind::Duplicate, Some("P5"))
    );
    assert!(error.to_string().contains("tensor 'w'"), "{error}");
    let reader = open(true).unwrap();
    assert_eq!(reader.entries().len(), 3);
    assert_eq!(
        (reader.find("w"), reader.find("v"), reader.find("u")),
        (Some(0), Some(1), None)
    );
}
