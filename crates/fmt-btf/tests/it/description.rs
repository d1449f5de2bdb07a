//! Checks that docs/formats/btf.md matches the code.

use std::fs;

use fmt_core::{TensorReader, testing::Verdict};

use crate::{
    corpus::{FOLDER, cases, described},
    support::open,
};

fn description() -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/formats/btf.md");
    fs::read_to_string(path).unwrap()
}

/// Checks that the page's worked example equals the file that the page names.
#[test]
fn the_hexdump_is_that_of_the_file() {
    let text = description();
    let example = text.split("## A file, byte by byte").nth(1).unwrap();
    let dump = example.split("```").nth(1).unwrap();
    let mut bytes = Vec::new();
    for line in dump.lines().filter(|line| line.contains('|')) {
        let mut columns = line.split('|');
        let at = usize::from_str_radix(columns.next().unwrap().trim(), 16).unwrap();
        assert_eq!(at, bytes.len(), "{line}");
        let hex = columns.next().unwrap().split_whitespace();
        bytes.extend(hex.map(|byte| u8::from_str_radix(byte, 16).unwrap()));
    }
    assert_eq!(bytes, described());
    assert!(example.contains("the-described-one.btf"));
    assert_eq!(
        fs::read(format!("{FOLDER}/accept/the-described-one.btf")).unwrap(),
        bytes
    );
    let reader = open(&bytes).unwrap();
    assert_eq!(reader.tensor(0).unwrap().to_vec::<i16>().unwrap(), [1, -2, 300]);
    let dense = reader.sparse(1).unwrap().to_dense(100).unwrap();
    assert_eq!(dense.to_vec::<i32>().unwrap(), [0, 0, 0, 0, 0, 7]);
}

/// Checks that the page describes exactly the rules that errors name.
#[test]
fn every_rule_is_described() {
    let text = description();
    let described = |rule: &str| text.contains(&format!("| {rule} |"));
    for number in 1..=19 {
        assert!(described(&format!("B{number}")), "B{number}");
    }
    assert!(!described("B20"));
    for case in cases() {
        if let Verdict::Reject(_, rule) = case.verdict {
            assert!(described(rule), "{rule}");
        }
    }
}
