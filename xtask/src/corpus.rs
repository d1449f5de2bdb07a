//! The files that the formats' tests judge, written anew from the code that makes them.

use anyhow::Result;

use crate::cargo;

/// Writes the corpora, and judges them; `cargo test` compares what is committed with the code.
pub(crate) fn run() -> Result<()> {
    for package in ["fmt-btf", "fmt-tbuf", "fmt-ztensor"] {
        update(package, "corpus")?;
    }
    // Versions 1 and 2 of zTensor have corpora of their own.
    update("fmt-ztensor", "objects::cases")
}

/// Runs the tests of a package that judge a corpus, and have them write it.
fn update(package: &str, tests: &str) -> Result<()> {
    let arguments = ["test", "--package", package, "--test", "it", tests];
    cargo::run(&arguments, &[("UPDATE_CORPUS", "1")])
}
