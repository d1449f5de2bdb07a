//! The corpora of versions 1 and 2: small files, each valid or rejected for a single reason. The rules (O1
//! and so on) are in docs/formats/ztensor2.md.

mod cbor;
mod layouts;
mod objects;
mod shards;
mod versions;

use std::path::Path;

use fmt_core::{
    ErrorKind, Format,
    testing::{CorpusFile, Verdict, check_corpus},
};
use fmt_ztensor2::{Ztensor1, Ztensor2};

use crate::support::Version::{self, *};

struct Cases {
    version: Version,
    files: Vec<CorpusFile>,
}

impl Cases {
    fn add(&mut self, name: &str, verdict: Verdict, bytes: Vec<u8>) {
        self.files.push(CorpusFile {
            name: name.to_owned(),
            bytes,
            verdict,
        });
    }

    fn accept(&mut self, name: &str, bytes: Vec<u8>) {
        self.add(name, Verdict::Accept, bytes);
    }

    fn reject(&mut self, name: &str, kind: ErrorKind, rule: &'static str, bytes: Vec<u8>) {
        self.add(name, Verdict::Reject(kind, rule), bytes);
    }

    fn damaged(&mut self, name: &str, kind: ErrorKind, bytes: Vec<u8>) {
        self.add(name, Verdict::Damaged(kind), bytes);
    }
}

#[test]
fn files_of_version_1_are_judged_as_their_cases_say() {
    judge(&Ztensor1, V1, "corpus1", 60);
}

#[test]
fn files_of_version_2_are_judged_as_their_cases_say() {
    judge(&Ztensor2, V2, "corpus2", 90);
}

fn judge(format: &'static dyn Format, version: Version, folder: &str, least: usize) {
    let files = cases(version);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(folder);
    check_corpus(format, &folder, &files);
    assert!(files.len() >= least, "{}", files.len());
}

pub(crate) fn cases(version: Version) -> Vec<CorpusFile> {
    let mut cases = Cases {
        version,
        files: Vec::new(),
    };
    cases.ends();
    cases.cbor();
    cases.objects();
    cases.parts();
    cases.layouts();
    cases.encodings();
    match version {
        V1 => cases.of_version_1(),
        V2 => cases.of_version_2(),
    }
    cases.files
}
