//! Compares the memory that opening a file takes with the size of its index.

use bytes::Bytes;
use fmt_cbor::testing::tiny_fields;
use fmt_core::{TensorReader, testing::check_opening};
use fmt_ztensor::ZtensorReader;

use crate::support::*;

/// Regression: an index of 29.5 MiB took 1.1 GiB, 37 times its size.
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
        .map(|number| entry(&format!("{number}"), 0, 0, "int8", &[0], "raw"))
        .collect();
    for (what, entries) in [
        ("many fields", many_in_each),
        ("one field", one_in_each),
        ("small entries", smallest),
    ] {
        let file = Bytes::from(file_of(&W, &entries));
        check_opening(what, file.len() - 84, || {
            let reader = ZtensorReader::from_bytes(file.clone()).unwrap();
            assert_eq!(reader.entries().len(), entries.len());
        });
    }
}

/// More custom fields than the limit are rejected.
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
