//! Damaged and hostile checkpoints: errors about input, memory in proportion to the file, no panic.

use fmt_core::{
    ErrorKind, ReadOptions,
    testing::{BASE_ALLOWANCE, mutants, open_hostile, open_many_hostile},
};
use fmt_torch::{Torch, TorchReader};

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
    // The machine's memory is bounded by the pickle; the zip crate makes room for a field of 16 bits' length.
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

/// Few bytes that stand for many values.
#[test]
fn bombs_are_bounded() {
    let open = |pickle: Pickle| {
        let file = archive(&pickle.0, &[("data/0", &floats())]);
        let opened = TorchReader::from_bytes(file);
        opened.map(|_| ()).map_err(|error| error.kind())
    };
    // A list that holds the one before it twice, thirty times over; and one that holds itself.
    let mut laughs = Pickle::new().raw(b"]q\x00");
    for level in 0..30u8 {
        laughs = laughs.raw(&[b']', b'q', level + 1, b'(', b'h', level, b'h', level, b'e']);
    }
    assert_eq!(open(laughs.raw(b".")), Err(ErrorKind::TooLarge));
    assert_eq!(
        open(Pickle::new().raw(b"]q\x00h\x00a.")),
        Err(ErrorKind::TooLarge)
    );
    // A million empty lists, dictionaries and marks.
    for opcode in [b"]", b"}", b")"] {
        assert_eq!(
            open(Pickle::new().raw(&opcode.repeat(1 << 20))).err(),
            Some(ErrorKind::TooLarge)
        );
    }
    // What is no more than a place on the stack for each byte fits the budget.
    for opcode in [b"(", b"N"] {
        assert!(open(Pickle::new().raw(&opcode.repeat(1 << 20))).is_err());
    }
    // A tuple that is called with again and again.
    let many = Pickle::new().raw(b"(").raw(&b"N".repeat(1000)).raw(b"tq\x00");
    let calls = many
        .global("torch", "device")
        .raw(b"q\x01")
        .raw(&b"h\x01h\x00R".repeat(10_000));
    assert!(open(calls).is_err());
    // A text that says to be longer than the file.
    assert_eq!(
        open(Pickle::new().raw(b"X\xff\xff\xff\x7f")),
        Err(ErrorKind::TooLarge)
    );
    // An expanded tensor: listed, and refused beyond the limit for memory.
    let expanded = View {
        dims: &[i32::MAX, 1024],
        strides: &[0, 0],
        ..MATRIX
    };
    let file = archive(&Pickle::state(&[("w", expanded)]).0, &[("data/0", &floats())]);
    let contents = open_hostile(&Torch, &file, &ReadOptions::default()).unwrap();
    assert_eq!(contents[0].1, Err(ErrorKind::TooLarge));
}
