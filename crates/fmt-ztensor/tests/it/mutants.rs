//! Tests with mutations of valid files.

use std::{io::Cursor, sync::Arc, thread};

use bytes::Bytes;
use ciborium::Value;
use fmt_core::{
    ErrorKind, Format, ReadOptions, TensorReader,
    testing::{Verdict, mutants, read_everything},
};
use fmt_ztensor::{Ztensor, ZtensorReader};

use crate::{corpus, support::*};

/// Returns files that together use all features of the format.
fn bases() -> Vec<Vec<u8>> {
    let raw = file_of(
        &[1; 204],
        &[
            w().with("checksum", text("crc32c:0x3D5D8B1F")),
            entry("b", 128, 8, "float64", &[1], "raw").with("data_endianness", text("big")),
            entry("n", 192, 0, "int16", &[2, 0], "raw"),
            entry("u", 192, 12, "float8", &[12], "raw").with("layout", text("dense")),
        ],
    );
    let entry = w()
        .with("name", indefinite(3, &[text("w")]))
        .with("x", indefinite(2, &[bytes(&[1])]));
    let first_implementation = file(&W, &indefinite(4, &[entry.encode_indefinite()]));
    let custom = custom(&array(&[
        uint(7),
        head(1, 500),
        [vec![0xa1], text("k"), vec![0xc1, 0x81, 0xf6]].concat(),
        vec![0xf9, 0x3c, 0x00],
        indefinite(4, &[vec![0xf5]]),
    ]));
    let (a, b) = (sample(200), sample(100));
    let frames = [frame(&a), frame_with(&b, false, true)].concat();
    let (first, second) = (frame(&a), frame(&b));
    let table = table(&[(first.len(), 200), (second.len(), 100)]);
    let seekable = [first, second, table].concat();
    vec![
        raw,
        first_implementation,
        custom,
        zstd_of(&frames, 300),
        zstd_of(&seekable, 300),
    ]
}

/// Opens and reads each file on a small stack, and checks the memory that opening takes. Returns the number
/// of files that could be opened, and the total.
fn open_all(files: impl Iterator<Item = Vec<u8>> + Send) -> (usize, usize) {
    let work = move || {
        let (mut opened, mut total) = (0, 0);
        for file in files {
            total += 1;
            let source = Arc::new(Bytes::from(file));
            let mut reader = None;
            let allocated = allocation_counter::measure(|| {
                reader = Ztensor.open(source.clone() as _, &ReadOptions::default()).ok();
            });
            assert!(allocated.bytes_max <= (64 << 10) + 2 * source.len() as u64);
            if let Some(reader) = reader {
                opened += 1;
                read_everything(&*reader);
            }
        }
        (opened, total)
    };
    thread::scope(|scope| {
        let thread = thread::Builder::new()
            .stack_size(256 << 10)
            .spawn_scoped(scope, work);
        thread.unwrap().join().unwrap()
    })
}

/// Tests every truncation, every flipped bit, and random combinations of changes.
#[test]
fn a_hundred_thousand_mutants() {
    const EACH: usize = 20_000;
    let bases = bases();
    for base in &bases {
        open(base).unwrap().lints().unwrap();
    }
    let threads: Vec<_> = bases
        .into_iter()
        .map(|base| thread::spawn(move || open_all(mutants(&base, EACH).collect::<Vec<_>>().into_iter())))
        .collect();
    let counts: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    let total: usize = counts.iter().map(|(_, total)| total).sum();
    assert_eq!(total, 100_000);
    // Most files with changed data open, and most files with a changed index do not. If all files or none
    // opened, the test would check nothing.
    assert!(
        counts
            .iter()
            .all(|(opened, total)| (total / 50..total - total / 50).contains(opened)),
        "{counts:?}"
    );
}

/// Sets each field to each of many unusual values in turn.
#[test]
fn each_field_with_each_value() {
    let keys = [
        "name",
        "offset",
        "size",
        "dtype",
        "shape",
        "encoding",
        "layout",
        "data_endianness",
        "checksum",
        "custom",
    ];
    let mut values = vec![
        vec![0xf4],
        vec![0xf6],
        vec![0xf9, 0x7e, 0x00],
        vec![0xc2, 0x41, 0x40],
        bytes(&[]),
        text(""),
        text("raw"),
        text("float64"),
        text("x".repeat(2000)),
        dims(&[]),
        dims(&[0]),
        dims(&[u64::MAX]),
        dims(&[1 << 32, 1 << 32, 0]),
        dims(&[1; 70]),
        indefinite(4, &[]),
        vec![0xa0],
    ];
    for number in [
        0,
        1,
        63,
        64,
        65,
        76,
        127,
        128,
        1 << 32,
        1 << 63,
        u64::MAX - 63,
        u64::MAX,
    ] {
        values.push(uint(number));
        values.push(head(1, number));
        values.push(dims(&[number, 3]));
    }
    let mut files = Vec::new();
    for key in keys {
        files.push(one(&w().without(key)));
        for value in &values {
            files.push(one(&w().with(key, value.clone())));
            files.push(one(&w().and(text(key), value.clone())));
            files.push(one(&w().without(key).and(value.clone(), text(key))));
        }
    }
    assert!(files.len() > 1000);
    open_all(files.into_iter());
}

/// Compares this crate's reader with an independent CBOR reader. A difference means that one of the readers
/// is wrong.
#[test]
fn another_cbor_reader_sees_the_same() {
    let corpus = corpus::cases().into_iter();
    let corpus = corpus.filter(|file| !matches!(file.verdict, Verdict::Reject(..)));
    let bases: Vec<_> = corpus.map(|file| file.bytes).chain(bases()).collect();
    let mut compared = 0;
    for base in bases {
        compare(&base);
        for mutant in mutants(&base, 30_000).skip(9 * base.len()).take(60) {
            compared += usize::from(compare(&mutant).is_some());
        }
    }
    assert!(compared > 500, "{compared}");
}

fn compare(file: &[u8]) -> Option<()> {
    let reader = open(file).ok()?;
    let range = reader.index_range();
    let mut index = Cursor::new(&file[range.start as usize..range.end as usize]);
    let value: Value = match ciborium::from_reader(&mut index) {
        // Simple values without an assigned meaning are well-formed, but `ciborium` cannot represent them.
        Err(ciborium::de::Error::Semantic(None, message)) if message.contains("simple") => return None,
        value => value.unwrap(),
    };
    assert_eq!(index.position(), range.end - range.start);
    let entries = value.into_array().unwrap();
    assert_eq!(entries.len(), reader.entries().len());
    for (number, entry) in entries.into_iter().enumerate() {
        compare_entry(&reader, number, &entry.into_map().unwrap());
    }
    Some(())
}

fn compare_entry(reader: &ZtensorReader, number: usize, map: &[(Value, Value)]) {
    let entry = &reader.entries()[number];
    let get = |key: &str| {
        let mut found = map.iter().filter(|(found, _)| found.as_text() == Some(key));
        let value = found.next().map(|(_, value)| value);
        assert!(found.next().is_none());
        value
    };
    let number_of = |value: &Value| u64::try_from(value.as_integer().unwrap()).unwrap();
    assert_eq!(get("name").unwrap().as_text(), Some(&*entry.name));
    assert_eq!(number_of(get("offset").unwrap()), entry.range.start);
    assert_eq!(number_of(get("size").unwrap()), entry.stored_size());
    let dims: Vec<_> = get("shape")
        .unwrap()
        .as_array()
        .unwrap()
        .iter()
        .map(number_of)
        .collect();
    assert_eq!(dims, entry.shape.dims());
    assert_eq!(
        get("checksum").and_then(Value::as_text),
        entry.checksum.as_deref()
    );
    for field in reader.fields(number) {
        let here: Value = ciborium::from_reader(field.value().as_bytes()).unwrap();
        let there = get(field.key()).unwrap();
        // A NaN is not equal to itself.
        assert!(&here == there || format!("{here:?}") == format!("{there:?}"));
    }
}

/// Compares this crate's results with those of `tests/python/ztensor_reader.py`, if `ZTENSOR_PYTHON` names a
/// Python interpreter that has the package `zstandard`.
#[test]
fn the_reader_in_python_judges_alike() {
    let Some(python) = std::env::var_os("ZTENSOR_PYTHON") else {
        return;
    };
    let count = std::env::var("ZTENSOR_MUTANTS").map_or(2000, |count| count.parse().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let mut expected = Vec::new();
    for (number, base) in bases().into_iter().enumerate() {
        // Skips the truncations and the bit flips in data, which reveal little.
        for (mutant, file) in mutants(&base, 64 * 9 + count).skip(64 * 9).enumerate() {
            let name = format!("{number}-{mutant:06}");
            std::fs::write(folder.path().join(&name), &file).unwrap();
            expected.push(format!("{name} {}", verdict(&file)));
        }
    }
    let script = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python/ztensor_reader.py");
    let output = std::process::Command::new(python)
        .arg(script)
        .arg("--verdicts")
        .arg(folder.path())
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let output = String::from_utf8(output.stdout).unwrap();
    let found: Vec<_> = output.lines().collect();
    let differences = expected
        .iter()
        .zip(&found)
        .filter(|(expected, found)| expected != *found);
    let differences: Vec<_> = differences.collect();
    if !differences.is_empty() {
        panic!(
            "{} of {}, kept in {:?}: {:?}",
            differences.len(),
            found.len(),
            folder.keep(),
            &differences[..differences.len().min(20)]
        );
    }
    assert_eq!(found.len(), expected.len());
}

fn verdict(file: &[u8]) -> &'static str {
    let Ok(reader) = open(file) else {
        return "reject";
    };
    let is_damaged = |(_, read): &(_, Result<_, ErrorKind>)| {
        read.as_ref().is_err_and(|kind| *kind != ErrorKind::Unsupported)
    };
    if read_everything(&reader).iter().any(is_damaged) {
        return "damaged";
    }
    "accept"
}
