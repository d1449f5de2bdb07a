//! Checks that the examples in docs/formats/ztensor.md are correct.

use std::{collections::BTreeSet, fs, path::Path};

use fmt_core::testing::Verdict;
use fmt_ztensor::{WriteOptions, ZtensorWriter};
use tensor_core::{Shape, Tensor};

use crate::corpus;

fn document() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/formats/ztensor.md");
    fs::read_to_string(path).unwrap()
}

/// Parses the lines of the hexdump (an offset, bytes, and their meaning) and compares them with the example
/// file.
#[test]
fn the_hexdump_is_that_of_the_example() {
    let document = document();
    let dump = document
        .split("```hexdump\n")
        .nth(1)
        .unwrap()
        .split("```")
        .next()
        .unwrap();
    let mut bytes = Vec::new();
    for line in dump.lines() {
        let (offset, rest) = line.split_once("  ").unwrap();
        assert_eq!(usize::from_str_radix(offset, 16).unwrap(), bytes.len(), "{line}");
        let (hex, _) = rest.split_once("  ").unwrap_or((rest, ""));
        match hex.strip_prefix("00 * ") {
            Some(count) => bytes.extend(vec![0; count.parse().unwrap()]),
            None => bytes.extend(hex.split(' ').map(|byte| u8::from_str_radix(byte, 16).unwrap())),
        }
    }
    let example = corpus::cases()
        .into_iter()
        .find(|file| file.name == "example")
        .unwrap();
    assert_eq!(bytes, example.bytes);

    // The crate writes the same bytes.
    let mut writer = ZtensorWriter::new(Vec::new(), WriteOptions::default()).unwrap();
    let tensor = Tensor::from_vec(Shape::vector(3), vec![1.0f32, 2.0, 3.0]).unwrap();
    writer.tensor("w", &tensor).unwrap();
    assert_eq!(writer.finish().unwrap(), example.bytes);
}

/// The document describes every rule for which a file is rejected.
#[test]
fn every_rule_is_described() {
    let document = document();
    let rules: BTreeSet<&str> = corpus::cases()
        .iter()
        .filter_map(|file| match file.verdict {
            Verdict::Reject(_, rule) => Some(rule),
            _ => None,
        })
        .collect();
    for rule in rules
        .into_iter()
        .chain(["Z4", "Z6", "Z15", "Z16", "Z17", "Z19", "Z20", "Z27", "Z28"])
    {
        assert!(document.contains(&format!("| {rule} |")), "{rule}");
    }
}
