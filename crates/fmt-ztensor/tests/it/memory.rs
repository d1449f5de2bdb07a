//! What opening takes: bytes of memory for each byte of an index.

use bytes::Bytes;
use fmt_core::TensorReader;
use fmt_ztensor::{ObjectsReader, ZtensorReader};

use crate::{
    objects::support::{Version::*, file, object, part, root},
    support::*,
};

/// Memory at most, in bytes for each byte of the index, and what a small index may take beside.
const MOST: u64 = 10;
const BASE: u64 = 64 << 10;

fn check(what: &str, index_len: usize, open: impl FnOnce()) {
    let allocated = allocation_counter::measure(open);
    let most = BASE + MOST * index_len as u64;
    assert!(
        allocated.bytes_max <= most,
        "{what}: {} bytes for an index of {index_len}",
        allocated.bytes_max
    );
}

/// Distinct keys of up to three letters with the smallest values there are.
fn tiny_fields(count: usize) -> Vec<(Vec<u8>, Vec<u8>)> {
    let letter = |number: usize| b'A' + (number % 58) as u8;
    let key = |number: usize| vec![letter(number), letter(number / 58), letter(number / 58 / 58)];
    (0..count).map(|number| (text(key(number)), vec![0xf6])).collect()
}

/// Issue: 29.5 MiB of index took 1.1 GiB, 37 times as much.
#[test]
fn custom_fields_take_no_more_than_their_bytes() {
    let many_in_each: Vec<_> = (0..20)
        .map(|number| {
            let mut entry = w().with("name", text(number.to_string()));
            entry.0.extend(tiny_fields(5_000));
            entry
        })
        .collect();
    let one_in_each: Vec<_> = (0..2_000)
        .map(|number| w().with("name", text(number.to_string())).with("x", vec![0]))
        .collect();
    let smallest: Vec<_> = (0..2_000)
        .map(|number| Entry::new(&format!("{number}"), 0, 0, "int8", &[0], "raw"))
        .collect();
    for (what, entries) in [
        ("many fields", many_in_each),
        ("one field", one_in_each),
        ("small entries", smallest),
    ] {
        let file = Bytes::from(file_of(&W, &entries));
        check(what, file.len() - 84, || {
            let reader = ZtensorReader::from_bytes(file.clone()).unwrap();
            assert_eq!(reader.entries().len(), entries.len());
        });
    }
}

/// The same of manifests, whose attributes may also be the file's own.
#[test]
fn attributes_of_objects_take_no_more_than_their_bytes() {
    let mut attributes = Entry::empty();
    attributes.0 = tiny_fields(60_000);
    let attributes = attributes.encode_sorted();
    let names: Vec<_> = (0..2_000).map(|number| format!("{number:05}")).collect();
    let mut files = Vec::new();
    for version in [V1, V2] {
        let with_attributes = root(version, &[]).with("attributes", attributes.clone());
        files.push((version, "attributes", file(version, &[], &with_attributes)));
        let small = |name: &'static str| {
            let data = part(version, "u8", 0, 0);
            (name, object(version, "dense", &[0], &[("data", data)]))
        };
        let objects: Vec<_> = names.iter().map(|name| small(name.clone().leak())).collect();
        files.push((
            version,
            "objects",
            file(version, &[b""], &root(version, &objects)),
        ));
    }
    for (version, what, file) in files {
        let file = Bytes::from(file);
        let range = ObjectsReader::from_bytes(file.clone()).unwrap().manifest_range();
        check(
            &format!("{version:?}, {what}"),
            (range.end - range.start) as usize,
            || {
                ObjectsReader::from_bytes(file.clone()).unwrap();
            },
        );
    }
}

/// More fields than the limit are refused, in a tensor and in the file.
#[test]
fn the_limit_of_fields() {
    let mut options = fmt_core::ReadOptions::default();
    options.limits.fields = 3;
    let mut entry = w();
    entry.0.extend(tiny_fields(3));
    assert!(open_with(&one(&entry), &options).is_ok());
    entry.0.extend([(text("one more"), vec![0])]);
    let error = open_with(&one(&entry), &options).unwrap_err();
    assert_eq!(
        (error.kind(), error.broken_rule()),
        (fmt_core::ErrorKind::TooLarge, Some("Z12"))
    );
}
