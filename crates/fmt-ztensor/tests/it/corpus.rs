//! The corpus: files that every reader of the format must accept or reject.

use std::path::Path;

use fmt_core::testing::{CorpusFile, Verdict, check_corpus};
use fmt_ztensor::Ztensor;

use crate::{accepted, rejected};

pub(crate) fn cases() -> Vec<CorpusFile> {
    let mut files = accepted::cases();
    files.extend(rejected::cases());
    files
}

#[test]
fn the_corpus_is_judged_as_it_should_be() {
    let files = cases();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus");
    check_corpus(&Ztensor, &folder, &files);
    let accepted = files
        .iter()
        .filter(|file| file.verdict == Verdict::Accept)
        .count();
    assert!(
        files.len() >= 170 && 4 * accepted >= files.len(),
        "{accepted} of {}",
        files.len()
    );
}
