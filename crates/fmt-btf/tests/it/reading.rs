//! Reads every kind of file, case by case.

use std::{sync::Arc, time::Instant};

use fmt_btf::{Btf, BtfReader};
use fmt_core::{
    ErrorKind::{self, *},
    Format, Layout, ReadOptions, Sniff, TensorReader, Verification,
    testing::{BASE_ALLOWANCE, mutants, open_many_hostile},
};
use tensor_core::{Bytes, DType, SparseError};

use crate::support::{
    F32, F64, ForgedRecord, I8, I32, at_offsets, counting, cut, file, open, open_leniently, refusal, with,
    words, written,
};

fn kind(bytes: &[u8]) -> ErrorKind {
    refusal(bytes).0
}

#[test]
fn bt_01_files_too_short_for_a_count() {
    for len in 0..8 {
        let error = open(&vec![0; len]).unwrap_err();
        let message = format!("the number of tensors is truncated, at byte 0: expected 8 bytes, found {len}");
        assert_eq!((error.kind(), error.to_string()), (Truncated, message));
    }
}

#[test]
fn bt_02_a_count_of_all_ones() {
    assert_eq!(refusal(&[0xff; 8]), (OutOfBounds, "B17"));
}

#[test]
fn bt_03_counts_whose_table_wraps() {
    for count in [1 << 61, (1 << 61) - 1] {
        assert_eq!(refusal(&words(&[count])), (Overflow, "B17"));
    }
}

#[test]
fn bt_04_a_count_and_nothing_behind() {
    let error = open(&words(&[1])).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the table of offsets is truncated: the number of tensors, at byte 0: expected at most 0, given the \
         file's length, found 1"
    );
    assert_eq!(error.kind(), Truncated);
}

#[test]
fn bt_05_offsets_that_are_not_aligned() {
    let plain = ForgedRecord::plain().bytes();
    for offset in [17, 20] {
        let error = open(&at_offsets(&[offset], &plain)).unwrap_err();
        assert_eq!(error.kind(), Misaligned);
        assert_eq!((error.tensor(), error.byte()), (Some("0"), Some(8)));
    }
}

#[test]
fn bt_06_offsets_in_the_table() {
    for offset in [0, 8] {
        assert_eq!(
            kind(&at_offsets(&[offset], &ForgedRecord::plain().bytes())),
            OutOfBounds
        );
    }
}

#[test]
fn bt_07_offsets_outside_the_file() {
    let plain = ForgedRecord::plain().bytes();
    let len = 16 + plain.len() as u64;
    for (offset, wanted) in [(u64::MAX - 7, Overflow), (len, OutOfBounds), (len - 8, Truncated)] {
        assert_eq!(kind(&at_offsets(&[offset], &plain)), wanted);
    }
}

#[test]
fn bt_08_shared_and_overlapping_records() {
    let tensor = counting(DType::I8, &[8]);
    let record = written(&[&tensor])[16..].to_vec();
    let reader = open(&at_offsets(&[24, 24], &record)).unwrap();
    assert_eq!(reader.tensor(0).unwrap(), tensor);
    assert_eq!(reader.tensor(1).unwrap(), tensor);
    assert_eq!(reader.entries()[1].name, "1");

    let mut outer = ForgedRecord::plain();
    outer.payload = ForgedRecord::new(I8, 0, &[], &[]).bytes();
    let error = open(&at_offsets(&[24, 56], &[outer.bytes(), record].concat())).unwrap_err();
    assert_eq!(
        error.to_string(),
        "tensor '1': the record overlaps with tensor 0's, at byte 56: expected a record at 72 or later, or \
         the same record, found one at 56"
    );
    assert_eq!(error.kind(), Overlap);
}

#[test]
fn bt_09_records_in_any_order() {
    let (a, b) = (counting(DType::I8, &[8]), counting(DType::I16, &[2, 2]));
    let body = [&written(&[&a])[16..], &written(&[&b])[16..]].concat();
    let reader = open(&at_offsets(&[56, 24], &body)).unwrap();
    // Tensors are in the order of the table, not of the records.
    assert_eq!([reader.tensor(0).unwrap(), reader.tensor(1).unwrap()], [b, a]);
    assert_eq!(reader.lints().unwrap(), []);
}

#[test]
fn bt_10_ranks() {
    let rank = |rank: u64| with(|record| record.rank = rank);
    assert_eq!(kind(&rank(1 << 61)), Overflow);
    assert_eq!(kind(&rank(1 << 32)), OutOfBounds);
    assert_eq!(kind(&ForgedRecord::new(I8, 0, &[1; 65], &[1]).file()), TooLarge);
    assert!(open(&ForgedRecord::dense(I8, &[1; 64], 1).file()).is_ok());
    assert!(open(&ForgedRecord::dense(I8, &[1; 63], 1).file()).is_ok());
}

#[test]
fn bt_11_scalars() {
    let reader = open(&ForgedRecord::new(F32, 0, &[], &1.5f32.to_le_bytes()).file()).unwrap();
    assert_eq!(reader.tensor(0).unwrap().to_vec::<f32>().unwrap(), [1.5]);
    assert_eq!(reader.rows(0, 0..0).unwrap_err().kind(), OutOfBounds);
}

#[test]
fn bt_12_dtypes() {
    for (code, dtype) in [(6, DType::U8), (7, DType::U16), (8, DType::U32), (9, DType::U64)] {
        let tensor = counting(dtype, &[3]);
        let mut bytes = written(&[&tensor]);
        assert_eq!(bytes[24], code);
        let reader = open(&bytes).unwrap();
        assert_eq!(reader.tensor(0).unwrap(), tensor);
        assert_eq!(reader.lints().unwrap().len(), 1);
        bytes[24] = 10;
        let reader = open(&bytes).unwrap();
        let error = reader.tensor(0).unwrap_err();
        assert_eq!((error.kind(), error.byte()), (Unsupported, Some(24)));
    }
    // Other tensors of the file can still be read.
    let bytes = file(&[ForgedRecord::dense(10, &[2], 4), ForgedRecord::plain()]);
    let reader = open(&bytes).unwrap();
    let entry = &reader.entries()[0];
    assert_eq!(entry.dtype.to_string(), "10");
    assert_eq!((entry.stored_size(), entry.byte_len()), (0, None));
    assert!(entry.unsupported.as_deref().unwrap().contains("the dtype is 10"));
    assert_eq!(reader.tensor(1).unwrap().shape().dims(), [2, 2]);
    assert_eq!(reader.lints().unwrap(), []);
}

#[test]
fn bt_13_layouts() {
    for layout in [1, 2] {
        let mut record = ForgedRecord::coo(&[3], &[1], &[9]);
        record.layout = layout;
        let reader = open(&record.file()).unwrap();
        let sparse = reader.sparse(0).unwrap();
        assert_eq!(sparse.to_dense(100).unwrap().to_vec::<i32>().unwrap(), [0, 9, 0]);
        assert_eq!(reader.entries()[0].layout, Layout::Coo { nnz: 1 });
        assert_eq!(reader.verify(0).unwrap(), Verification::Unchecked);
        assert_eq!(reader.lints().unwrap().len(), usize::from(layout == 1));
        for result in [reader.tensor(0), reader.rows(0, 0..1)] {
            assert_eq!(result.unwrap_err().kind(), Unsupported);
        }
        assert_eq!(reader.read_into(0, &mut [0; 12]).unwrap_err().kind(), Unsupported);
    }
    for layout in 3..=255 {
        let reader = open(&with(|record| record.layout = layout)).unwrap();
        let entry = &reader.entries()[0];
        assert_eq!(entry.layout, Layout::Unknown(layout.to_string()));
        assert!(entry.unsupported.is_some());
        for error in [reader.tensor(0).unwrap_err(), reader.sparse(0).unwrap_err()] {
            assert_eq!((error.kind(), error.broken_rule()), (Unsupported, Some("B1")));
        }
    }
}

#[test]
fn bt_14_reserved_bytes() {
    for position in 0..6 {
        let bytes = with(|record| record.reserved[position] = 1);
        let error = open(&bytes).unwrap_err();
        assert_eq!(
            (error.kind(), error.byte()),
            (Malformed, Some(26 + position as u64))
        );
        let reader = open_leniently(&bytes).unwrap();
        assert!(reader.tensor(0).is_ok());
        assert_eq!(reader.lints().unwrap().len(), 1);
    }
}

#[test]
fn bt_15_a_product_that_wraps_to_nothing() {
    assert_eq!(
        refusal(&ForgedRecord::new(I8, 0, &[1 << 32, 1 << 32], &[]).file()),
        (Overflow, "B19")
    );
}

#[test]
fn bt_16_products_that_do_not_fit() {
    for (dtype, dims) in [(I8, &[1 << 63][..]), (F64, &[1 << 62, 4])] {
        assert_eq!(
            refusal(&ForgedRecord::new(dtype, 0, dims, &[]).file()),
            (Overflow, "B19")
        );
    }
    // A tensor with a dimension of 0 has no elements, whatever its other dimensions are (B9).
    let reader = open(&ForgedRecord::new(F64, 0, &[0, 1 << 63, 1 << 63], &[]).file()).unwrap();
    assert!(reader.tensor(0).unwrap().bytes().is_empty());
}

#[test]
fn bt_17_payloads_cut_short() {
    assert_eq!(kind(&cut(ForgedRecord::plain().file(), 1)), Truncated);
    // If another record follows, a truncated payload makes the two records overlap.
    let mut short = ForgedRecord::plain();
    short.payload.truncate(8);
    assert_eq!(kind(&file(&[short, ForgedRecord::plain()])), Overlap);
}

#[test]
fn bt_18_the_last_padding_may_be_omitted() {
    let tensor = counting(DType::I8, &[5]);
    let bytes = written(&[&tensor]);
    for missing in 0..=3 {
        let reader = open(&cut(bytes.clone(), missing)).unwrap();
        assert_eq!(reader.tensor(0).unwrap(), tensor);
        assert_eq!(reader.lints().unwrap(), []);
    }
}

#[test]
fn bt_19_odd_padding_is_reported() {
    let lints = |padding: &[u8]| {
        let mut first = ForgedRecord::dense(I8, &[5], 5);
        first.padding = Some(padding.to_vec());
        let lints = open(&file(&[first, ForgedRecord::plain()]))
            .unwrap()
            .lints()
            .unwrap();
        lints
            .into_iter()
            .map(|lint| (lint.message, lint.range.unwrap()))
            .collect::<Vec<_>>()
    };
    assert_eq!(lints(&[0; 3]), []);
    assert_eq!(
        lints(&[0, 0xff, 0]),
        [("padding is not zero (B7)".to_owned(), 53..56)]
    );
    assert_eq!(
        lints(&[0; 19]),
        [("unused bytes between records (B4)".to_owned(), 56..72)]
    );
}

#[test]
fn bt_20_what_is_behind_the_last_record_is_reported() {
    for len in [1, 1 << 20] {
        let mut bytes = ForgedRecord::plain().file();
        let end = bytes.len() as u64;
        bytes.resize(bytes.len() + len, 7);
        let reader = open(&bytes).unwrap();
        assert!(reader.tensor(0).is_ok());
        let lints = reader.lints().unwrap();
        assert_eq!(lints.len(), 1);
        assert_eq!(lints[0].range, Some(end..end + len as u64));
    }
}

#[test]
fn bt_21_lengths_of_sparse_parts() {
    for claims in [[1, 3, 1], [1, 1, 1], [1, 2, 2], [2, 2, 1]] {
        let bytes = ForgedRecord::coo_claiming(&[4, 4], claims, &[0, 1, 2, 3], &[5, 6, 7]).file();
        assert_eq!(refusal(&bytes).0, SizeMismatch, "{claims:?}");
    }
}

#[test]
fn bt_22_indices() {
    let read = |indices: &[u64], values: &[i32]| {
        let reader = open(&ForgedRecord::coo(&[3, 4], indices, values).file()).unwrap();
        let sparse = reader.sparse(0);
        let verified = reader.verify(0).map(drop).map_err(|error| error.kind());
        assert_eq!(sparse.as_ref().map(drop).map_err(fmt_core::Error::kind), verified);
        sparse
    };
    let error = read(&[0, 1, 2, 4], &[1, 2]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "tensor '0': the index of entry 1 on axis 1, at byte 88: expected less than 4, found 4"
    );
    assert_eq!(error.kind(), OutOfBounds);
    assert_eq!(read(&[0, u64::MAX], &[1]).unwrap_err().kind(), OutOfBounds);

    let unsorted = read(&[2, 3, 0, 1], &[1, 2]).unwrap();
    assert_eq!(unsorted.indices().to_vec::<u64>().unwrap(), [2, 3, 0, 1]);

    let repeated = ForgedRecord::coo(&[3, 4], &[1, 1, 0, 0, 1, 1], &[1, 2, 3]).file();
    let error = open(&repeated).unwrap().sparse(0).unwrap_err();
    assert_eq!((error.kind(), error.broken_rule()), (Duplicate, Some("B11")));
    let sparse = open_leniently(&repeated).unwrap().sparse(0).unwrap();
    assert_eq!(sparse.to_dense(48).unwrap().to_vec::<i32>().unwrap()[5], 3);
}

#[test]
fn bt_23_a_small_file_of_a_huge_tensor() {
    let mut bomb = ForgedRecord::coo(&[1 << 20, 1 << 20], &[5, 6], &[]);
    bomb.dtype = F64;
    bomb.payload = [words(&[1, 2, 5, 6, 1]), words(&[1.5f64.to_bits()])].concat();
    let bytes = bomb.file();
    assert_eq!(bytes.len(), 96);
    let sparse = open(&bytes).unwrap().sparse(0).unwrap();
    assert_eq!(sparse.values().to_vec::<f64>().unwrap(), [1.5]);
    let error = sparse.to_dense(1 << 30).unwrap_err();
    assert!(matches!(error, SparseError::OverBudget { .. }), "{error}");
}

#[test]
fn bt_24_numbers_of_entries() {
    let claiming = |nnz: u64| ForgedRecord::coo_claiming(&[9], [nnz, 1, nnz], &[1], &[1]).file();
    assert_eq!(refusal(&claiming(1 << 60)), (Overflow, "B19"));
    let empty = open(&ForgedRecord::coo(&[9], &[], &[]).file()).unwrap();
    assert_eq!(empty.sparse(0).unwrap().nnz(), 0);
    // A sparse scalar has one entry or none (B12).
    for (values, is_sound) in [(&[][..], true), (&[7], true), (&[7, 8], false)] {
        let opened = open(&ForgedRecord::coo(&[], &[], values).file());
        assert_eq!(opened.is_ok(), is_sound);
        if let Ok(reader) = opened {
            let dense = reader.sparse(0).unwrap().to_dense(4).unwrap();
            let wanted = values.first().copied().unwrap_or_default();
            assert_eq!(dense.to_vec::<i32>().unwrap(), [wanted]);
        }
    }
}

#[test]
fn bt_25_big_endian_files_are_told_so() {
    let little = ForgedRecord::plain().file();
    let big: Vec<u8> = little
        .chunks_exact(8)
        .flat_map(|word| word.iter().rev().copied())
        .collect();
    let error = open(&big).unwrap_err();
    assert_eq!(error.kind(), OutOfBounds);
    assert!(
        error.to_string().contains("in big-endian it would be 1"),
        "{error}"
    );
}

/// Without a magic number, only the structure distinguishes BTF from other files. No random file may open as
/// BTF.
#[test]
fn bt_26_other_files() {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    // The files are slices of one pool of random bytes, which is faster than generating new bytes.
    let pool = words(&(0..1 << 17).map(|_| next()).collect::<Vec<u64>>());
    let random = move || {
        let start = next() as usize % (pool.len() - 4096);
        pool[start..start + 4096].to_vec()
    };
    let files = std::iter::repeat_with(random).take(100_000);
    assert_eq!(
        open_many_hostile(&Btf, files, &ReadOptions::default(), BASE_ALLOWANCE),
        0
    );
    for head in [
        &b"\x89PNG\r\n\x1a\n"[..],
        b"PK\x03\x04",
        b"\x7fELF\x02\x01\x01",
        b"ZTEN0001",
    ] {
        let mut bytes = head.to_vec();
        bytes.resize(4096, 0);
        assert_eq!(Btf.sniff(&bytes, 4096), Sniff::No);
        assert!(open(&bytes).is_err());
    }
    // A file of zeros may have any format, so it is not detected as BTF.
    assert_eq!(Btf.sniff(&[0; 512], 512), Sniff::No);
    assert_eq!(Btf.sniff(&[0; 8], 8), Sniff::Possible);
    assert_eq!(Btf.sniff(&ForgedRecord::plain().file(), 64), Sniff::Possible);
    assert_eq!(Btf.sniff(&[], 0), Sniff::No);
}

#[test]
fn bt_27_a_million_tensors() {
    let count = 1_000_000u64;
    let mut bytes = words(&[count]);
    bytes.reserve_exact(32 * count as usize);
    let head = 8 + 8 * count;
    bytes.extend((0..count).flat_map(|number| (head + 24 * number).to_le_bytes()));
    let record = ForgedRecord::new(I32, 0, &[0], &[]).bytes();
    for _ in 0..count {
        bytes.extend(&record);
    }
    let source = Arc::new(Bytes::from(bytes));
    let start = Instant::now();
    let reader = BtfReader::open(source, &ReadOptions::default()).unwrap();
    let elapsed = start.elapsed();
    // The limit of one second is for optimized code.
    let patience = if cfg!(debug_assertions) { 20 } else { 1 };
    assert!(elapsed.as_secs() < patience, "{elapsed:?}");
    assert_eq!(reader.len() as u64, count);
    assert_eq!(reader.find("999999"), Some(999_999));
    assert!(reader.tensor(999_999).unwrap().bytes().is_empty());
}

/// Truncates a file that uses all features at every length, and flips each of its bits.
#[test]
fn bt_28_truncations_and_flipped_bits() {
    let bytes = file(&[
        ForgedRecord::plain(),
        ForgedRecord::coo(&[3, 4], &[0, 1, 2, 3], &[5, 6]),
        ForgedRecord::dense(I8, &[5], 5),
    ]);
    let derived = mutants(&bytes, bytes.len() * 9).collect::<Vec<_>>();
    let opened = open_many_hostile(&Btf, derived.clone(), &ReadOptions::default(), BASE_ALLOWANCE);
    assert!(opened > 0 && opened < derived.len());
    // Only the three truncations that remove nothing but padding still open.
    let whole = (0..bytes.len())
        .filter(|len| open(&bytes[..*len]).is_ok())
        .count();
    assert_eq!(whole, 3);
}
