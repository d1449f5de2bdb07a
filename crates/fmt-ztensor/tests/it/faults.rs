//! Tests of limits on hostile files. Most of the files are in the corpus; these tests check messages, memory
//! and time, which the corpus does not record.

use std::{
    fs::File,
    io::{Seek, SeekFrom, Write},
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use fmt_core::{
    Error, ErrorKind, FileSource, Limits, ReadOptions, TensorReader, Verification,
    testing::{Verdict, open_hostile},
};
use fmt_ztensor::{Ztensor, ZtensorReader};
use tensor_core::CastError;

use crate::{corpus, support::*};

/// Checks the corpus files whose names begin with `prefix` against their verdicts, and returns their number.
fn cases(prefix: &str) -> usize {
    let files = corpus::cases();
    let files = files.iter().filter(|file| file.name.starts_with(prefix));
    files
        .map(|file| {
            let opened = open(&file.bytes).map(drop);
            match &file.verdict {
                Verdict::Reject(kind, rule) => {
                    let error = opened.unwrap_err();
                    let found = (error.kind(), error.broken_rule());
                    assert_eq!(found, (*kind, Some(*rule)), "{}", file.name);
                }
                _ => opened.unwrap(),
            }
        })
        .count()
}

fn message(file: &[u8]) -> String {
    open(file).unwrap_err().to_string()
}

/// Reads the file's only tensor, and returns the error.
fn failure(file: &[u8]) -> Error {
    open(file).unwrap().tensor(0).unwrap_err()
}

#[test]
fn short_files() {
    assert!(cases("zt-01") >= 7);
    let empty = corpus::cases()
        .into_iter()
        .find(|file| file.name == "zt-01-no-tensors")
        .unwrap();
    assert_eq!(empty.bytes.len(), 17);
    assert_eq!(open(&empty.bytes).unwrap().entries().len(), 0);
    assert_eq!(
        message(&empty.bytes[..16]),
        "the file, at byte 16: expected at least 17 bytes, found 16"
    );
}

#[test]
fn magics() {
    assert!(cases("zt-02") >= 8);
    let message = message(b"\x89ZT2\r\n\x1a\n.................");
    assert!(message.contains("version 2 of zTensor"), "{message}");
}

#[test]
fn lengths_of_the_index() {
    assert!(cases("zt-03") >= 7);
    let mut file = one(&w());
    let end = file.len() - 8;
    file[end..].fill(0xff);
    assert_eq!(
        message(&file),
        format!(
            "the length of the index, at byte {end}: expected at most {}, given the file's length, found {}",
            end - 8,
            u64::MAX
        )
    );
}

/// Files that consist almost entirely of a hole are opened or rejected quickly and in little memory.
#[test]
fn sparse_files_with_large_claims() {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(b"ZTEN0001").unwrap();
    file.set_len(2 << 40).unwrap();
    file.seek(SeekFrom::End(-8)).unwrap();
    file.write_all(&(1u64 << 40).to_le_bytes()).unwrap();
    let open = |file: &File| {
        let source = FileSource::new(file.try_clone().unwrap()).unwrap();
        let start = Instant::now();
        let mut opened = None;
        let allocated = allocation_counter::measure(|| {
            opened = Some(ZtensorReader::open(Arc::new(source), &ReadOptions::default()));
        });
        assert!(allocated.bytes_max < 64 << 10);
        assert!(start.elapsed() < Duration::from_millis(100));
        opened.unwrap()
    };
    assert_eq!(open(&file).unwrap_err().kind(), ErrorKind::TooLarge);
    // With a small, valid index, the same file opens.
    file.seek(SeekFrom::End(-9)).unwrap();
    file.write_all(&[0x80, 1, 0, 0, 0, 0, 0, 0, 0]).unwrap();
    assert_eq!(open(&file).unwrap().entries().len(), 0);
}

#[test]
fn other_roots_and_bytes_behind() {
    assert!(cases("zt-05") >= 9);
}

#[test]
fn counts_without_substance() {
    assert!(cases("zt-06") >= 11);
    // The reader checks a count against the bytes left before it allocates memory.
    let file = file(&W, &[0x9b, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]);
    let source = Arc::new(Bytes::from(file));
    let allocated = allocation_counter::measure(|| {
        assert!(ZtensorReader::open(source, &ReadOptions::default()).is_err());
    });
    assert!(allocated.bytes_max < 4096);
}

#[test]
fn nesting() {
    assert!(cases("zt-07") >= 12);
    let deep = |byte: u8| custom(&vec![byte; 1_000_000]);
    for byte in [0x81, 0xa1, 0xc1, 0x9f, 0xbf] {
        let file = deep(byte);
        let start = Instant::now();
        let error = open_hostile(&Ztensor, &file, &ReadOptions::default()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Malformed, "{byte:#x}");
        assert!(start.elapsed() < Duration::from_secs(1));
    }
    // The caller sets the limit on depth.
    let mut options = ReadOptions::default();
    for (depth, is_taken) in [(4, false), (5, true), (6, true)] {
        options.limits.depth = depth;
        let file = custom(&[0x81, 0x81, 0xa1, 0, 0x81, 0xc1, 0]);
        assert_eq!(open_with(&file, &options).is_ok(), is_taken, "{depth}");
    }
}

#[test]
fn items_without_length() {
    assert!(cases("zt-08") >= 18);
    let entry = w().with("name", indefinite(3, &[text("a"), text(""), text("bc")]));
    let reader = open(&file(&W, &indefinite(4, &[entry.encode_indefinite()]))).unwrap();
    assert_eq!(reader.entries()[0].name, "abc");
}

#[test]
fn keys_twice() {
    assert!(cases("zt-09") >= 12);
    // Finding duplicate keys takes no longer than sorting them.
    let entry = (0..20_000).fold(w(), |entry, at| entry.and(text(format!("k{at}")), uint(1)));
    let start = Instant::now();
    assert!(open(&one(&entry)).is_ok());
    assert!(open(&one(&entry.and(text("k7"), uint(1)))).is_err());
    assert!(start.elapsed() < Duration::from_secs(5));
}

#[test]
fn forbidden_heads() {
    assert!(cases("zt-10") >= 15);
}

#[test]
fn missing_keys() {
    assert!(cases("zt-11") >= 8);
    for key in ["name", "offset", "size", "dtype", "shape", "encoding"] {
        let error = open(&one(&w().without(key))).unwrap_err();
        assert!(
            error.to_string().contains(&format!("the key '{key}' is missing")),
            "{error}"
        );
        let is_known = error.tensor().is_some();
        assert_eq!(is_known, key != "name");
    }
}

#[test]
fn values_of_other_types() {
    assert!(cases("zt-12") >= 26);
    assert_eq!(
        message(&one(&w().with("offset", text("64")))),
        "tensor 'w': offset, at byte 92: expected an unsigned integer, found a text"
    );
}

#[test]
fn misaligned() {
    assert!(cases("zt-13") >= 5);
}

#[test]
fn offset_0() {
    assert_eq!(cases("zt-14"), 1);
}

#[test]
fn beyond_the_data() {
    assert!(cases("zt-15") >= 7);
}

#[test]
fn overlaps() {
    assert!(cases("zt-16") >= 8);
    let alias = file_of(&W, &[w(), w().with("name", text("tied"))]);
    assert_eq!(
        (read(&alias, "w"), read(&alias, "tied")),
        (W.to_vec(), W.to_vec())
    );
}

/// The memory budget for decoding covers all tensors of a file together.
#[test]
fn zt_30_loading_everything_has_a_budget() {
    const MIB: usize = 1 << 20;
    let count = if cfg!(debug_assertions) { 10_000 } else { 100_000 };
    let entries: Vec<_> = (0..count)
        .map(|at| entry(&format!("t{at}"), 64, MIB as u64, "uint8", &[MIB as u64], "raw"))
        .collect();
    let reader = open(&file_of(&vec![7; MIB], &entries)).unwrap();
    let error = reader.load_all(4 << 30).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TooLarge);
    assert_eq!(reader.load_all(count << 20).unwrap().len() as u64, count);

    let bomb = frame(&vec![0; 4 * MIB]);
    let entries: Vec<_> = (0..1000)
        .map(|at| {
            entry(
                &format!("t{at}"),
                64,
                bomb.len() as u64,
                "uint8",
                &[4 << 20],
                "zstd",
            )
        })
        .collect();
    let reader = open(&file_of(&bomb, &entries)).unwrap();
    let start = Instant::now();
    assert_eq!(reader.load_all(1 << 30).unwrap_err().kind(), ErrorKind::TooLarge);
    assert!(start.elapsed() < Duration::from_millis(100));
}

#[test]
fn names() {
    assert!(cases("zt-18") >= 13);
    let message = message(&one(&w().with("name", text("a\0\n"))));
    assert!(
        message.starts_with(r"tensor 'a\0\n': the name has a zero byte, at byte 83"),
        "{message}"
    );
}

#[test]
fn unknown_dtypes() {
    assert_eq!(cases("zt-19"), 5);
    let file = file_of(
        &W,
        &[w().with("dtype", text("complex64")), w().with("name", text("v"))],
    );
    let reader = open(&file).unwrap();
    let entry = &reader.entries()[0];
    assert_eq!(
        (entry.dtype.to_string(), entry.spec()),
        ("complex64".to_owned(), None)
    );
    assert_eq!(entry.unsupported.as_deref(), Some("the dtype 'complex64'"));
    let unsupported = [
        reader.tensor(0).unwrap_err(),
        reader.rows(0, 0..1).unwrap_err(),
        reader.read_into(0, &mut [0; 12]).unwrap_err(),
        reader.verify(0).unwrap_err(),
    ];
    assert!(
        unsupported
            .iter()
            .all(|error| error.kind() == ErrorKind::Unsupported)
    );
    assert_eq!(reader.tensor(1).unwrap().bytes()[..], W);
}

#[test]
fn unknown_encodings() {
    assert_eq!(cases("zt-20"), 3);
    let error = failure(&one(&w().with("encoding", text("lz4"))));
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("the encoding 'lz4'"), "{error}");
}

#[test]
fn byte_orders() {
    assert!(cases("zt-21") >= 11);
    let big = |dtype: &str, data: &[u8], shape: u64| {
        let entry = entry("b", 64, data.len() as u64, dtype, &[shape], "raw");
        file_of(data, &[entry.with("data_endianness", text("big"))])
    };
    let file = big("float32", &[0x3f, 0x80, 0, 0, 0xc0, 0, 0, 0], 2);
    let reader = open(&file).unwrap();
    assert!(reader.entries()[0].is_big_endian);
    assert_eq!(reader.tensor(0).unwrap().to_vec::<f32>().unwrap(), [1.0, -2.0]);
    assert_eq!(reader.rows(0, 1..2).unwrap().to_vec::<f32>().unwrap(), [-2.0]);
    let f64s = open(&big("float64", &[0x3f, 0xf0, 0, 0, 0, 0, 0, 1], 1)).unwrap();
    assert_eq!(
        f64s.tensor(0).unwrap().to_vec::<f64>().unwrap(),
        [1.000_000_000_000_000_2]
    );
    assert_eq!(read(&big("int16", &[0xff, 0xfe], 1), "b"), [0xfe, 0xff]);
    assert_eq!(read(&big("uint8", &[1, 2], 2), "b"), [1, 2]);
    let blob = frame(&[1, 2, 3, 4]);
    let entry =
        entry("b", 64, blob.len() as u64, "float32", &[1], "zstd").with("data_endianness", text("big"));
    assert_eq!(failure(&file_of(&blob, &[entry])).kind(), ErrorKind::Unsupported);
}

#[test]
fn sizes() {
    assert!(cases("zt-22") >= 7);
    let message = message(&file_of(&[0; 8], &[entry("h", 64, 5, "float16", &[3], "raw")]));
    assert!(
        message.ends_with("expected 6 bytes for f16[3], found 5"),
        "{message}"
    );
}

#[test]
fn products_and_ranks() {
    assert!(cases("zt-23") >= 7);
    let mut options = ReadOptions::default();
    for (limit, is_taken) in [(2, false), (3, true), (1000, true)] {
        options.limits.rank = limit;
        let file = one(&w().with("shape", dims(&[1, 3, 1])));
        assert_eq!(open_with(&file, &options).is_ok(), is_taken, "{limit}");
    }
    // Even with a higher limit, the maximum rank of a [`Shape`](tensor_core::Shape) applies.
    let file = file_of(&[7], &[entry("r", 64, 1, "uint8", &[1; 65], "raw")]);
    assert_eq!(
        open_with(&file, &options).unwrap_err().kind(),
        ErrorKind::TooLarge
    );
    let file = file_of(&[7], &[entry("r", 64, 1, "uint8", &[1; 64], "raw")]);
    assert!(open_with(&file, &options).is_ok());
}

#[test]
fn scalars_and_nothing() {
    assert_eq!(cases("zt-24"), 5);
    let scalar = file_of(&1.5f64.to_le_bytes(), &[entry("s", 64, 8, "float64", &[], "raw")]);
    let reader = open(&scalar).unwrap();
    assert_eq!(reader.tensor(0).unwrap().to_vec::<f64>().unwrap(), [1.5]);
    assert_eq!(reader.rows(0, 0..1).unwrap_err().kind(), ErrorKind::OutOfBounds);
    assert!(read(&zstd_of(&frame(&[]), 0), "z").is_empty());
}

/// Checks that a tensor of four bytes, whose 32,774 compressed bytes decode to 1 GiB, is rejected quickly and
/// with little memory.
#[test]
fn bombs() {
    // A run-length block takes four bytes and decodes to 128 KiB.
    let mut bomb = vec![0x28, 0xb5, 0x2f, 0xfd, 0x00, 0x38];
    for block in 0..8192 {
        let is_last = u32::from(block == 8191);
        bomb.extend_from_slice(&((128 << 10) << 3 | 1 << 1 | is_last).to_le_bytes()[..3]);
        bomb.push(0);
    }
    let blob_len = bomb.len() as u64;
    assert_eq!(blob_len, 32_774);
    let file = file_of(&bomb, &[entry("z", 64, blob_len, "float32", &[1], "zstd")]);
    let start = Instant::now();
    let mut found = None;
    let allocated = allocation_counter::measure(|| found = Some(failure(&file)));
    assert_eq!(found.unwrap().kind(), ErrorKind::Corrupt);
    assert!(allocated.bytes_max < 1 << 20);
    assert!(start.elapsed() < Duration::from_millis(100));
}

#[test]
fn frames_that_are_short() {
    assert!(cases("zt-26") >= 5);
    let file = zstd_of(&frame_with(&sample(499), false, true), 500);
    assert_eq!(
        failure(&file).to_string(),
        "tensor 'z': the compressed data, at byte 64: expected 500 bytes, found frames of 499"
    );
}

#[test]
fn claims_beyond_the_budget() {
    let file = zstd_of(&frame(&[0; 20]), 1 << 40);
    let mut kind = None;
    let allocated = allocation_counter::measure(|| kind = Some(failure(&file).kind()));
    assert_eq!(kind, Some(ErrorKind::TooLarge));
    assert!(allocated.bytes_max < 64 << 10);
    let mut options = ReadOptions::default();
    for (budget, is_taken) in [(499, false), (500, true), (501, true)] {
        options.limits.decoded_bytes = budget;
        let reader = open_with(&zstd_of(&frame(&sample(500)), 500), &options).unwrap();
        assert_eq!(reader.tensor(0).is_ok(), is_taken, "{budget}");
        // `read_into` decodes into the caller's buffer, so the budget does not apply.
        assert!(reader.read_into(0, &mut [0; 500]).is_ok());
    }
}

#[test]
fn windows() {
    let mut options = ReadOptions::default();
    // The frame header declares a window of 2 KiB; a raw block of one byte follows.
    let frame = [0x28, 0xb5, 0x2f, 0xfd, 0, 1 << 3, 9, 0, 0, 7];
    for (window_log, is_taken) in [(10, false), (11, true), (12, true), (200, true)] {
        options.limits = Limits {
            window_log,
            ..Limits::default()
        };
        let reader = open_with(&zstd_of(&frame, 1), &options).unwrap();
        let kind = reader.tensor(0).map_err(|error| error.kind());
        assert_eq!(kind.is_ok(), is_taken, "{window_log}");
        assert!(is_taken || kind == Err(ErrorKind::TooLarge));
    }
}

#[test]
fn frames() {
    assert!(cases("zt-29") >= 18);
    let data = sample(500);
    let whole = frame(&data);
    for len in 1..whole.len() {
        assert_eq!(
            failure(&zstd_of(&whole[..len], 500)).kind(),
            ErrorKind::Corrupt,
            "{len}"
        );
    }
    let two = zstd_of(&[&whole[..], &skippable(b"note"), &whole].concat(), 1000);
    assert_eq!(read(&two, "z"), [&data[..], &data].concat());
    let dictionary = zstd_of(&[0x28, 0xb5, 0x2f, 0xfd, 0x21, 1, 3, 0x19, 0, 0, 1, 2, 3], 3);
    assert_eq!(failure(&dictionary).kind(), ErrorKind::Unsupported);
}

#[test]
fn bools() {
    let file = file_of(&[0, 1, 2, 255], &[entry("b", 64, 4, "bool", &[4], "raw")]);
    let tensor = open(&file).unwrap().tensor(0).unwrap();
    assert_eq!(tensor.bytes()[..], [0, 1, 2, 255]);
    assert_eq!(
        tensor.view().as_slice::<bool>(),
        Err(CastError::NotBool { index: 2, byte: 2 })
    );
    assert_eq!(tensor.to_vec::<bool>().unwrap(), [false, true, true, true]);
}

#[test]
fn checksums() {
    assert!(cases("zt-32") >= 20);
    let file = one(&w().with("checksum", text("crc32c:0xDEADBEEF")));
    let reader = open(&file).unwrap();
    let mut buffer = [0; 12];
    let error = reader.read_into(0, &mut buffer).unwrap_err();
    assert_eq!(
        error.to_string(),
        "tensor 'w': the checksum of the data, at byte 64: expected crc32c:0xDEADBEEF, found crc32c:0x384DE783"
    );
    assert_eq!(reader.verify(0).unwrap_err().kind(), ErrorKind::Corrupt);
    // Data in memory is not copied, so its checksum is not verified.
    assert_eq!(reader.tensor(0).unwrap().bytes()[..], W);
    let unknown = open(&one(&w().with("checksum", text("md5:00")))).unwrap();
    assert_eq!(
        unknown.verify(0).unwrap(),
        Verification::UnknownChecksum("md5:00".to_owned())
    );
    assert!(unknown.read_into(0, &mut buffer).is_ok());
    let good = open(&one(&w().with("checksum", text("crc32c:384de783")))).unwrap();
    assert_eq!(good.verify(0).unwrap(), Verification::Ok);
}

#[test]
fn without_checksum() {
    assert_eq!(
        open(&one(&w())).unwrap().verify(0).unwrap(),
        Verification::Unchecked
    );
    let verified = |frame: &[u8]| open(&zstd_of(frame, 9)).unwrap().verify(0).unwrap();
    assert_eq!(verified(&frame(&[7; 9])), Verification::Ok);
    assert_eq!(
        verified(&frame_with(&[7; 9], true, false)),
        Verification::Unchecked
    );
}

#[test]
fn padding() {
    let mut file = one(&w());
    file[8..64].fill(0xff);
    let lints = open(&file).unwrap().lints().unwrap();
    assert_eq!((lints.len(), lints[0].range.clone()), (1, Some(8..64)));
    assert!(open(&one(&w())).unwrap().lints().unwrap().is_empty());
}

#[test]
fn custom_fields_of_every_type() {
    assert!(cases("zt-35") >= 9);
}

/// Opens a file with a million entries, or 10,000 in debug builds.
#[test]
fn many_entries() {
    let count = if cfg!(debug_assertions) { 10_000 } else { 1_000_000 };
    let entries: Vec<_> = (0..count)
        .map(|at| {
            entry(
                &format!("model.layers.{at}.weight"),
                64,
                12,
                "float32",
                &[3],
                "raw",
            )
        })
        .collect();
    let file = Bytes::from(file_of(&W, &entries));
    let index_len = file.len() as u64 - 64 - 12 - 8;
    let start = Instant::now();
    let mut found = None;
    let allocated = allocation_counter::measure(|| {
        let reader = ZtensorReader::from_bytes(file.clone()).unwrap();
        found = reader.find(&format!("model.layers.{}.weight", count - 1));
    });
    assert_eq!(found, Some(count - 1));
    assert!(start.elapsed() < Duration::from_secs(3));
    assert!(
        allocated.bytes_max <= 5 * index_len,
        "{} for {index_len}",
        allocated.bytes_max
    );

    let mut options = ReadOptions::default();
    for (limit, is_taken) in [(index_len - 1, false), (index_len, true)] {
        options.limits.index_bytes = limit;
        assert_eq!(open_with(&file, &options).is_ok(), is_taken);
    }
    for (limit, is_taken) in [(count as u64 - 1, false), (count as u64, true)] {
        options.limits.tensors = limit;
        assert_eq!(open_with(&file, &options).is_ok(), is_taken);
    }
}
