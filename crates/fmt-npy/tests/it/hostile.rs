//! Tests with mutations of valid files.

use fmt_core::{
    Format, ReadOptions,
    testing::{BASE_ALLOWANCE, mutants, open_hostile, open_many_hostile},
};
use fmt_npy::{Npy, Npz};
use tensor_core::DType;

use crate::support::{archive, counting, header, npy, small_archive, written};

fn attack(format: &'static dyn Format, bases: Vec<Vec<u8>>, allowance: u64) {
    for base in &bases {
        open_hostile(format, base, &ReadOptions::default()).unwrap();
        for mutant in mutants(base, 100) {
            let _ = open_hostile(format, &mutant, &ReadOptions::default());
        }
    }
    let derived = bases.into_iter().flat_map(|base| {
        let count = base.len() * 9 + 2000;
        mutants(&base, count).collect::<Vec<_>>()
    });
    let opened = open_many_hostile(format, derived, &ReadOptions::default(), allowance);
    assert!(opened > 100, "{opened} opened");
}

#[test]
fn thousands_of_arrays() {
    attack(
        &Npy,
        vec![
            written(&Npy, &[("0", &counting(DType::F32, &[2, 3]))], 7),
            npy(&header(">i8", true, "(2, 2, 1)"), &[5; 32]),
            npy(
                "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': ()}",
                &[0; 4],
            ),
        ],
        BASE_ALLOWANCE,
    );
}

#[test]
fn thousands_of_archives() {
    let array = npy(&header(">f4", true, "(3, 2)"), &[9; 24]);
    attack(
        &Npz,
        vec![
            small_archive(),
            archive(&[("a.npy", &array), ("b.txt", b"text")], true),
            archive(&[], false),
        ],
        // The crate `zip` allocates memory for a field with a 16-bit length before it reads the field.
        2 * BASE_ALLOWANCE,
    );
}
