//! The corpus: small files that are accepted, and small files that are rejected, each for a different reason.

mod accepted;
mod structure;
mod tensors;

use std::{collections::BTreeSet, path::Path};

use fmt_core::testing::{CorpusCases, CorpusFile, Verdict, check_corpus};
use fmt_tbuf::{TensorBuffers, WriteOptions};
use tensor_core::DType;

use crate::support::{counting, written};

pub(crate) const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/corpus");

/// Checks that every file of `tests/corpus` equals the case that generates it, and has the expected result.
#[test]
fn files_are_judged_as_their_cases_say() {
    let cases = cases();
    check_corpus(&TensorBuffers, Path::new(FOLDER), &cases);

    // Tests of readers in other languages use this list.
    let mut lines: Vec<String> = cases
        .iter()
        .map(|case| match &case.verdict {
            Verdict::Accept => format!("accept/{}.tbuf: accept\n", case.name),
            Verdict::Reject(kind, rule) => format!("reject/{}.tbuf: reject {kind} {rule}\n", case.name),
            Verdict::Damaged(kind) => format!("damaged/{}.tbuf: damaged {kind}\n", case.name),
        })
        .collect();
    lines.sort();
    let listed = Path::new(FOLDER).join("verdicts.txt");
    if std::env::var_os("UPDATE_CORPUS").is_some() {
        std::fs::write(&listed, lines.concat()).unwrap();
    }
    assert_eq!(std::fs::read_to_string(listed).unwrap(), lines.concat());
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
    let distinct: BTreeSet<&[u8]> = cases.iter().map(|case| &case.bytes[..]).collect();
    assert_eq!(distinct.len(), cases.len());
}

pub(crate) fn cases() -> Vec<CorpusFile> {
    let mut cases = CorpusCases::default();
    structure::ends(&mut cases);
    structure::index_structure(&mut cases);
    structure::texts(&mut cases);
    tensors::places(&mut cases);
    tensors::sizes_and_shapes(&mut cases);
    tensors::names(&mut cases);
    accepted::accepted_layouts(&mut cases);
    accepted::accepted_tensors(&mut cases);
    cases.into_files()
}

/// Returns a small file written by this crate.
pub(crate) fn small() -> Vec<u8> {
    written(WriteOptions::default(), &[("a", &counting(DType::F32, &[3]))])
}

/// Checks that the hexdump in docs/formats/tensorbuffers.md equals a file of the corpus.
#[test]
fn the_pages_hexdump_is_true() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/formats/tensorbuffers.md");
    let page = std::fs::read_to_string(page).unwrap();
    let mut shown = Vec::new();
    for line in page.lines() {
        let Some((address, rest)) = line.split_once(": ") else {
            continue;
        };
        if address.len() != 8 || u32::from_str_radix(address, 16) != Ok(shown.len() as u32) {
            continue;
        }
        let bytes = rest.split("   ").next().unwrap().split(' ');
        shown.extend(bytes.map(|byte| u8::from_str_radix(byte, 16).unwrap()));
    }
    let file = std::fs::read(Path::new(FOLDER).join("accept/t3-written-by-this-crate.tbuf")).unwrap();
    assert_eq!(shown, file);
}
