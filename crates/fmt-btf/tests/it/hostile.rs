//! Tests with a hundred thousand mutants of valid files.

use fmt_btf::Btf;
use fmt_core::{
    ReadOptions,
    testing::{BASE_ALLOWANCE, mutants, open_many_hostile},
};

use crate::{
    corpus,
    support::{ForgedRecord, at_offsets, words},
};

/// Reads mutants of every accepted corpus file, strictly and leniently. No read may panic, hang or allocate
/// out of proportion, and every way of reading must give the same bytes.
#[test]
fn a_hundred_thousand_mutants() {
    let accepted: Vec<Vec<u8>> = corpus::cases()
        .into_iter()
        .filter(|case| case.verdict == fmt_core::testing::Verdict::Accept)
        .map(|case| case.bytes)
        .collect();
    let each = 100_000 / accepted.len() + 1;
    for lenient in [false, true] {
        let options = ReadOptions {
            lenient,
            ..ReadOptions::default()
        };
        let bases = accepted.clone();
        let derived = bases.into_iter().flat_map(move |base| {
            // The mutants of a file begin with truncations and flips. Most of these are skipped for large
            // files, so that half of the mutants combine several changes.
            let skip = (base.len() * 9).saturating_sub(each / 2);
            mutants(&base, skip + each).skip(skip).collect::<Vec<_>>()
        });
        let opened = open_many_hostile(&Btf, derived, &options, BASE_ALLOWANCE);
        assert!(opened > 10_000, "{opened} opened");
    }
}

/// Memory stays proportional to the file even if a table or rank claims a large size.
#[test]
fn amplifiers() {
    let record = ForgedRecord::dense(0, &[1; 32], 1).bytes();
    let aliases = |count: u64| at_offsets(&vec![8 + 8 * count; count as usize], &record);
    let descending = |count: u64| {
        let record = ForgedRecord::new(0, 0, &[0; 32], &[]).bytes();
        let start = 8 + 8 * count;
        let mut offsets: Vec<u64> = (0..count)
            .map(|number| start + number * record.len() as u64)
            .collect();
        offsets.reverse();
        at_offsets(&offsets, &record.repeat(count as usize))
    };
    let files = vec![
        aliases(1_000),
        aliases(20_000),
        descending(100),
        descending(700),
        descending(4_000),
        words(&[0]).repeat(100_000),
    ];
    assert_eq!(
        open_many_hostile(&Btf, files, &ReadOptions::default(), BASE_ALLOWANCE),
        6
    );
}
