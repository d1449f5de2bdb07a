//! The corpus: small files that are accepted, and small files that are rejected, each for a different reason.

mod accepted;

use std::{collections::BTreeSet, path::Path};

use fmt_btf::Btf;
use fmt_core::{
    ErrorKind::*,
    testing::{CorpusCases, CorpusFile, Verdict, check_corpus},
};

use crate::support::{F32, F64, ForgedRecord, I8, I32, at_offsets, cut, file, with, words};

pub(crate) use accepted::described;

pub(crate) const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/corpus");

/// Checks that every file of `tests/corpus` equals the case that generates it, and has the expected result.
#[test]
fn files_are_judged_as_their_cases_say() {
    check_corpus(&Btf, Path::new(FOLDER), &cases());
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
    let mut distinct = BTreeSet::new();
    for case in &cases {
        assert!(distinct.insert(&case.bytes[..]), "{} is there twice", case.name);
    }
}

pub(crate) fn cases() -> Vec<CorpusFile> {
    let mut cases = CorpusCases::default();
    counts(&mut cases);
    offsets(&mut cases);
    headers(&mut cases);
    products(&mut cases);
    payloads(&mut cases);
    sparse_lengths(&mut cases);
    sparse_indices(&mut cases);
    foreign(&mut cases);
    accepted::accepted_dense(&mut cases);
    accepted::accepted_places(&mut cases);
    accepted::accepted_sparse(&mut cases);
    cases.into_files()
}

fn counts(cases: &mut CorpusCases) {
    for len in 0..8 {
        let name = format!("bt-01-{len}-bytes");
        cases.reject(&name, Truncated, "B17", 1u64.to_le_bytes()[..len].to_vec());
    }
    let mut count = |name: &str, kind, count: u64, rest: usize| {
        let mut file = words(&[count]);
        file.extend(words(&[16, 0, 0, 0])[..rest].iter());
        cases.reject(name, kind, "B17", file);
    };
    count("bt-02-count-all-ones", OutOfBounds, u64::MAX, 0);
    count("bt-02-count-of-the-top-bit", OutOfBounds, 1 << 63, 0);
    count("bt-03-count-2-to-the-61", Overflow, 1 << 61, 24);
    count("bt-03-count-2-to-the-61-less-1", Overflow, (1 << 61) - 1, 24);
    count(
        "bt-03-count-of-a-table-of-2-to-the-63",
        Overflow,
        (1 << 60) - 1,
        24,
    );
    count("bt-03-count-of-the-largest-table", OutOfBounds, (1 << 60) - 2, 24);
    count("bt-03-count-larger-than-signed", OutOfBounds, (1 << 63) + 1, 24);
    count("bt-04-count-1-and-no-table", Truncated, 1, 0);
    count("bt-04-count-1-and-seven-bytes", Truncated, 1, 7);
    count("bt-04-count-2-and-one-offset", Truncated, 2, 8);
    count("bt-04-count-4-and-three-offsets-and-a-half", Truncated, 4, 28);
    count("bt-04-count-of-all-that-readers-take", Truncated, 2_000_000, 16);
    count("bt-04-count-beyond-what-readers-take", OutOfBounds, 2_000_001, 16);
    count("bt-25-count-1-in-big-endian", OutOfBounds, 1u64.swap_bytes(), 16);
    count("bt-25-count-2-in-big-endian", OutOfBounds, 2u64.swap_bytes(), 16);
    // The count of tensors has the wrong byte order: read as little-endian, the table would not fit 63 bits.
    count(
        "bt-25-count-128-in-big-endian",
        OutOfBounds,
        128u64.swap_bytes(),
        16,
    );
}

fn offsets(cases: &mut CorpusCases) {
    let plain = ForgedRecord::plain().bytes();
    let mut offset = |name: &str, kind, offset: u64| {
        cases.reject(name, kind, "B4", at_offsets(&[offset], &plain));
    };
    offset("bt-05-offset-17", Misaligned, 17);
    offset("bt-05-offset-20", Misaligned, 20);
    offset("bt-05-offset-1", Misaligned, 1);
    offset("bt-05-offset-odd-and-far-outside", Misaligned, u64::MAX);
    offset("bt-06-offset-0", OutOfBounds, 0);
    offset("bt-06-offset-8", OutOfBounds, 8);
    offset("bt-07-offset-that-wraps", Overflow, u64::MAX - 7);
    offset("bt-07-offset-of-the-top-bit", Overflow, 1 << 63);
    offset("bt-07-offset-of-an-end-of-2-to-the-63", Overflow, (1 << 63) - 16);
    offset("bt-07-offset-of-the-largest-end", OutOfBounds, (1 << 63) - 24);
    offset("bt-07-offset-at-the-end", OutOfBounds, 64);
    offset("bt-07-offset-behind-the-end", OutOfBounds, 72);
    offset("bt-07-offset-8-before-the-end", Truncated, 56);

    let two = [plain.clone(), plain.clone()].concat();
    let mut pair = |name: &str, kind, offsets: [u64; 2]| {
        cases.reject(name, kind, "B4", at_offsets(&offsets, &two));
    };
    pair("bt-06-the-second-in-the-table", OutOfBounds, [24, 16]);
    pair("bt-06-the-first-in-the-table", OutOfBounds, [8, 72]);
    pair("bt-05-the-second-not-aligned", Misaligned, [24, 73]);
    pair("bt-07-the-second-at-the-end", OutOfBounds, [24, 120]);

    let small = ForgedRecord::dense(I8, &[8], 8);
    let mut nested = ForgedRecord::plain();
    nested.payload = ForgedRecord::new(I8, 0, &[], &[7]).bytes()[..16].to_vec();
    let mut overlap = |name: &str, offsets: &[u64], body: Vec<u8>| {
        cases.reject(name, Overlap, "B4", at_offsets(offsets, &body));
    };
    let behind = |record: &ForgedRecord| [record.bytes(), small.bytes()].concat();
    overlap("bt-08-within-the-payload", &[24, 56], behind(&nested));
    overlap(
        "bt-08-within-the-payload-and-first-listed",
        &[56, 24],
        behind(&nested),
    );
    let mut dims_as_record = ForgedRecord::plain();
    // The record's two dimensions of 0 are interpreted as the header of an i8 scalar.
    dims_as_record.dims = vec![0, 0];
    dims_as_record.payload = Vec::new();
    overlap("bt-08-within-the-dimensions", &[24, 40], behind(&dims_as_record));
    let mut by_a_byte = ForgedRecord::dense(I8, &[9], 8);
    by_a_byte.padding = Some(Vec::new());
    overlap("bt-08-by-one-byte", &[24, 56], behind(&by_a_byte));
    let mut coo = ForgedRecord::coo(&[8], &[1, 2], &[3, 4]);
    coo.payload.truncate(coo.payload.len() - 8);
    overlap("bt-08-the-values-by-eight-bytes", &[24, 88], behind(&coo));
    let mut unknown = ForgedRecord::new(77, 0, &[0, 0], &[]);
    unknown.padding = Some(words(&[0]));
    overlap(
        "bt-08-the-dimensions-of-what-is-not-known",
        &[24, 40],
        unknown.bytes(),
    );
    let mut third = vec![32, 32, 48];
    let mut body = ForgedRecord::new(F64, 0, &[1], &words(&[0]));
    body.padding = Some(words(&[0]));
    let body = body.bytes();
    overlap("bt-08-two-the-same-and-one-within", &third, body.clone());
    third.rotate_left(2);
    overlap("bt-08-one-within-and-two-the-same", &third, body);
}

fn headers(cases: &mut CorpusCases) {
    for position in 0..6 {
        let mut reserved = [0; 6];
        reserved[position] = 1;
        let name = format!("bt-14-reserved-byte-{position}");
        cases.reject(&name, Malformed, "B6", with(|record| record.reserved = reserved));
    }
    let top = [0, 0, 0, 0, 0, 0x80];
    cases.reject(
        "bt-14-the-last-reserved-bit",
        Malformed,
        "B6",
        with(|record| record.reserved = top),
    );
    let spaces = with(|record| record.reserved = *b"      ");
    cases.reject("bt-14-reserved-spaces", Malformed, "B6", spaces);
    let mut second = ForgedRecord::plain();
    second.reserved[0] = 9;
    let second = file(&[ForgedRecord::plain(), second]);
    cases.reject("bt-14-reserved-in-the-second", Malformed, "B6", second);

    let mut rank = |name: &str, kind, rank: u64| {
        cases.reject(name, kind, "B17", with(|record| record.rank = rank));
    };
    rank("bt-10-rank-2-to-the-61", Overflow, 1 << 61);
    rank("bt-10-rank-2-to-the-61-and-2", Overflow, (1 << 61) + 2);
    rank("bt-10-rank-all-ones", Overflow, u64::MAX);
    rank("bt-10-rank-of-the-top-bit", Overflow, 1 << 63);
    rank("bt-10-rank-2-to-the-60", Overflow, 1 << 60);
    rank("bt-10-rank-of-the-largest-length", OutOfBounds, (1 << 60) - 5);
    rank("bt-10-rank-2-to-the-32-and-2", OutOfBounds, (1 << 32) + 2);
    rank("bt-10-rank-2-to-the-32", OutOfBounds, 1 << 32);
    rank("bt-10-rank-65-and-no-room", OutOfBounds, 65);
    rank("bt-10-rank-2-in-big-endian", OutOfBounds, 2u64.swap_bytes());
    rank("bt-10-rank-5-and-room-for-4", Truncated, 5);
    rank("bt-10-rank-64-and-no-room", Truncated, 64);
    for rank in [65, 66, 256, 258] {
        let record = ForgedRecord::new(I8, 0, &vec![1; rank], &[1]);
        cases.reject(&format!("bt-10-rank-{rank}"), TooLarge, "B17", record.file());
    }
    let mut cut_dims = ForgedRecord::new(F32, 0, &[3], &[]);
    cut_dims.rank = 2;
    cases.reject(
        "bt-10-the-second-dimension-missing",
        Truncated,
        "B17",
        cut_dims.file(),
    );
    cases.reject(
        "bt-10-half-a-dimension",
        Truncated,
        "B17",
        cut(cut_dims.file(), 4),
    );
    let header = ForgedRecord::new(F32, 0, &[], &[]);
    cases.reject("bt-17-half-a-header", Truncated, "B4", cut(header.file(), 8));
}

fn products(cases: &mut CorpusCases) {
    let mut product = |name: &str, dtype: u8, layout: u8, dims: &[u64]| {
        let record = ForgedRecord::new(dtype, layout, dims, &words(&[0, dims.len() as u64, 0]));
        cases.reject(name, Overflow, "B19", record.file());
    };
    let half = 1 << 32;
    product("bt-15-a-product-that-wraps-to-0", I8, 0, &[half, half]);
    product(
        "bt-15-a-product-of-three-that-wraps-to-0",
        I8,
        0,
        &[1 << 22, 1 << 21, 1 << 21],
    );
    product("bt-15-a-product-that-wraps-to-1", I8, 0, &[u64::MAX, u64::MAX]);
    product("bt-15-a-product-that-wraps-to-16", I8, 0, &[half + 4, half - 4]);
    product(
        "bt-15-many-that-wrap-to-0",
        I8,
        0,
        &[65536, 65536, 65536, 65536, 65536],
    );
    product("bt-16-2-to-the-63-of-i8", I8, 0, &[1 << 63]);
    product("bt-16-all-ones-of-i8", I8, 0, &[u64::MAX]);
    product("bt-16-2-to-the-62-by-4-of-f64", F64, 0, &[1 << 62, 4]);
    product("bt-16-2-to-the-61-of-f64", F64, 0, &[1 << 61]);
    product("bt-16-2-to-the-61-and-2-of-f64", F64, 0, &[(1 << 61) + 2]);
    product("bt-16-2-to-the-60-of-f64", F64, 0, &[1 << 60]);
    product("bt-16-an-end-of-2-to-the-63", I8, 0, &[(1 << 63) - 40]);
    product("bt-16-sparse-and-wraps-to-0", I32, 2, &[half, half]);
    product("bt-16-sparse-of-2-to-the-63-bytes", I32, 1, &[1 << 61]);
    product("bt-16-an-unknown-dtype-that-wraps-to-0", 99, 0, &[half, half]);
    product("bt-16-an-unknown-layout-that-wraps-to-0", I8, 7, &[half, half]);
}

fn payloads(cases: &mut CorpusCases) {
    let mut truncated = |name: &str, bytes: Vec<u8>| cases.reject(name, Truncated, "B18", bytes);
    truncated(
        "bt-17-one-byte-short-of-i8",
        cut(ForgedRecord::dense(I8, &[8], 8).file(), 1),
    );
    truncated(
        "bt-17-one-byte-short-of-f64",
        cut(ForgedRecord::dense(F64, &[2], 16).file(), 1),
    );
    truncated("bt-17-one-element-short", cut(ForgedRecord::plain().file(), 4));
    truncated("bt-17-no-payload", cut(ForgedRecord::plain().file(), 16));
    truncated(
        "bt-17-a-scalar-without-its-element",
        cut(ForgedRecord::dense(F64, &[], 8).file(), 8),
    );
    truncated(
        "bt-17-a-scalar-with-half-its-element",
        cut(ForgedRecord::dense(F64, &[], 8).file(), 4),
    );
    let last = file(&[ForgedRecord::plain(), ForgedRecord::plain()]);
    truncated("bt-17-the-last-of-two-one-byte-short", cut(last, 1));
    truncated(
        "bt-17-a-dimension-too-large-by-one",
        with(|record| record.dims = vec![2, 3]),
    );
    truncated(
        "bt-17-2-to-the-40-elements",
        with(|record| record.dims = vec![1 << 20, 1 << 20]),
    );
    truncated(
        "bt-17-the-largest-length",
        with(|record| {
            record.dtype = I8;
            record.dims = vec![(1 << 63) - 65, 1];
        }),
    );
    truncated(
        "bt-17-another-dtype-of-twice-the-width",
        with(|record| record.dtype = 3),
    );
    let mut short = ForgedRecord::plain();
    short.payload.truncate(15);
    short.padding = Some(Vec::new());
    let mut bytes = short.bytes();
    bytes.extend(ForgedRecord::dense(I8, &[1], 1).bytes());
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    // The second record's offset is one byte too low.
    cases.reject(
        "bt-17-one-byte-short-amid-the-file",
        Misaligned,
        "B4",
        at_offsets(&[24, 71], &bytes),
    );
    let mut eight_short = ForgedRecord::plain();
    eight_short.payload.truncate(8);
    let eight_short = file(&[eight_short, ForgedRecord::dense(I8, &[8], 8)]);
    cases.reject(
        "bt-17-eight-bytes-short-amid-the-file",
        Overlap,
        "B4",
        eight_short,
    );
}

fn sparse_lengths(cases: &mut CorpusCases) {
    // A 4 x 4 matrix with two entries, which declares other sizes.
    let claiming =
        |claims: [u64; 3]| ForgedRecord::coo_claiming(&[4, 4], claims, &[0, 1, 2, 3], &[5, 6]).file();
    let mut mismatch = |name: &str, bytes: Vec<u8>| cases.reject(name, SizeMismatch, "B13", bytes);
    mismatch("bt-21-one-column-too-many", claiming([2, 3, 2]));
    mismatch("bt-21-one-column-too-few", claiming([2, 1, 2]));
    mismatch("bt-21-no-columns", claiming([2, 0, 2]));
    mismatch("bt-21-all-ones-columns", claiming([2, u64::MAX, 2]));
    mismatch(
        "bt-21-columns-and-rows-swapped",
        ForgedRecord::coo_claiming(&[4, 4], [2, 4, 2], &[0, 1, 2, 3], &[5, 6]).file(),
    );
    mismatch("bt-21-one-value-too-many", claiming([2, 2, 3]));
    mismatch("bt-21-one-value-too-few", claiming([2, 2, 1]));
    mismatch("bt-21-no-values", claiming([2, 2, 0]));
    mismatch("bt-21-all-ones-values", claiming([2, 2, u64::MAX]));
    mismatch("bt-21-one-index-too-few", claiming([1, 2, 2]));
    mismatch(
        "bt-21-no-indices",
        ForgedRecord::coo_claiming(&[4, 4], [0, 2, 2], &[2, 1, 2, 3], &[5, 6]).file(),
    );
    mismatch(
        "bt-21-rank-3-with-two-columns",
        ForgedRecord::coo_claiming(&[4, 4, 4], [2, 2, 2], &[0, 1, 2, 3], &[5, 6]).file(),
    );
    let full: Vec<u64> = (0..5).map(|entry| entry % 4).collect();
    mismatch(
        "bt-24-more-entries-than-elements",
        ForgedRecord::coo(&[4], &full, &[1; 5]).file(),
    );
    mismatch(
        "bt-24-an-entry-of-no-elements",
        ForgedRecord::coo(&[0, 4], &[0, 0], &[1]).file(),
    );
    mismatch(
        "bt-24-two-entries-of-a-scalar",
        ForgedRecord::coo(&[], &[], &[1, 2]).file(),
    );
    mismatch(
        "bt-24-2-to-the-32-entries-of-a-vector",
        ForgedRecord::coo_claiming(&[9], [1 << 32, 1, 1 << 32], &[1], &[1]).file(),
    );

    let mut overflow = |name: &str, dims: &[u64], claims: [u64; 3]| {
        cases.reject(
            name,
            Overflow,
            "B19",
            ForgedRecord::coo_claiming(dims, claims, &[1, 1], &[1]).file(),
        );
    };
    overflow("bt-24-2-to-the-60-entries", &[9], [1 << 60, 1, 1 << 60]);
    overflow(
        "bt-24-2-to-the-59-entries-of-a-matrix",
        &[9, 9],
        [1 << 59, 2, 1 << 59],
    );
    overflow("bt-24-2-to-the-61-entries-that-wrap", &[9], [1 << 61, 1, 1 << 61]);
    overflow("bt-24-all-ones-entries", &[9, 9], [u64::MAX, 2, u64::MAX]);
    overflow(
        "bt-24-2-to-the-62-entries-of-a-scalar",
        &[],
        [1 << 62, 0, 1 << 62],
    );
    let indices_to_the_end = (1 << 60) - 1;
    let mut long = ForgedRecord::coo_claiming(&[1 << 60], [indices_to_the_end, 1, 1], &[1, 1], &[1]);
    long.dtype = I8;
    cases.reject(
        "bt-24-indices-that-end-at-2-to-the-63",
        Overflow,
        "B19",
        long.file(),
    );

    let whole = ForgedRecord::coo(&[4, 4], &[0, 1, 2, 3], &[5, 6]).file();
    let mut truncated =
        |name: &str, last: usize| cases.reject(name, Truncated, "B18", cut(whole.clone(), last));
    truncated("bt-17-the-last-value-cut-off", 1);
    truncated("bt-17-no-values", 8);
    truncated("bt-17-half-the-length-of-the-values", 12);
    truncated("bt-17-no-length-of-the-values", 16);
    truncated("bt-17-the-last-index-cut-off", 17);
    truncated("bt-17-no-indices", 48);
    truncated("bt-17-half-the-shape-of-the-indices", 56);
    truncated("bt-17-no-shape-of-the-indices", 64);
    let many = ForgedRecord::coo_claiming(&[1 << 20, 1 << 20], [1 << 32, 2, 1 << 32], &[0, 1], &[1]).file();
    cases.reject("bt-17-2-to-the-32-entries", Truncated, "B18", many);
}

/// Coordinates are data, so they are validated when the tensor is read.
fn sparse_indices(cases: &mut CorpusCases) {
    let mut outside = |name: &str, dims: &[u64], indices: &[u64]| {
        let values = vec![7; indices.len() / dims.len()];
        cases.damaged(
            name,
            OutOfBounds,
            ForgedRecord::coo(dims, indices, &values).file(),
        );
    };
    outside("bt-22-a-row-too-many", &[3, 4], &[3, 0]);
    outside("bt-22-a-column-too-many", &[3, 4], &[0, 4]);
    outside("bt-22-inside-as-a-flat-index-only", &[3, 4], &[0, 11]);
    outside("bt-22-only-the-last-entry", &[3, 4], &[0, 1, 2, 3, 3, 3]);
    outside("bt-22-minus-one", &[3, 4], &[0, u64::MAX]);
    outside("bt-22-the-least-negative", &[3, 4], &[1 << 63, 0]);
    outside("bt-22-2-to-the-32", &[3, 4], &[1 << 32, 0]);
    outside("bt-22-in-big-endian", &[3, 4], &[1u64.swap_bytes(), 0]);
    let mut repeated = |name: &str, dims: &[u64], indices: &[u64]| {
        let values: Vec<i32> = (1..).take(indices.len() / dims.len()).collect();
        cases.damaged(name, Duplicate, ForgedRecord::coo(dims, indices, &values).file());
    };
    repeated("bt-22-twice-the-same", &[3, 4], &[1, 1, 1, 1]);
    repeated("bt-22-twice-the-same-apart", &[3, 4], &[1, 1, 2, 0, 1, 1]);
    repeated("bt-22-thrice-the-origin", &[3, 4], &[0, 0, 0, 0, 0, 0]);
    repeated("bt-22-twice-the-same-and-not-sorted", &[5], &[4, 2, 0, 2]);
    let mut second = ForgedRecord::coo(&[3], &[3], &[1]);
    second.layout = 1;
    let bytes = file(&[ForgedRecord::coo(&[3], &[2], &[1]), second]);
    cases.damaged("bt-22-in-the-second-tensor", OutOfBounds, bytes);
}

fn foreign(cases: &mut CorpusCases) {
    let mut foreign = |name: &str, kind, rule, head: &[u8]| {
        let mut bytes = head.to_vec();
        bytes.resize(bytes.len().max(96), 0x20);
        cases.reject(&format!("bt-26-{name}"), kind, rule, bytes);
    };
    foreign("png", OutOfBounds, "B17", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR");
    foreign("zip", OutOfBounds, "B17", b"PK\x03\x04\x14\0\0\0\x08\0");
    foreign("elf", OutOfBounds, "B17", b"\x7fELF\x02\x01\x01\0\0\0\0\0");
    foreign("ztensor", Overflow, "B17", b"ZTEN0001");
    foreign("tensorbuffers", OutOfBounds, "B17", b"TBS1\x0c\0\0\0");
    foreign("gguf", OutOfBounds, "B17", b"GGUF\x03\0\0\0");
    foreign("npy", OutOfBounds, "B17", b"\x93NUMPY\x01\0v\0{'descr': '<f4'");
    foreign("hdf5", OutOfBounds, "B17", b"\x89HDF\r\n\x1a\n");
    foreign("json", Overflow, "B17", b"{\"names\": [\"a\"]}");
    foreign("html", Overflow, "B17", b"<!DOCTYPE html>");
    foreign(
        "safetensors",
        OutOfBounds,
        "B17",
        b"\x00\x80\xff\0\0\0\0\0{\"w\":{\"dtype\":\"F32\"",
    );
    // A safetensors file begins with the length of its header; a length of 8 looks like a count of eight
    // tensors.
    foreign(
        "safetensors-with-a-short-header",
        Misaligned,
        "B4",
        b"\x08\0\0\0\0\0\0\0{}      ",
    );
}
