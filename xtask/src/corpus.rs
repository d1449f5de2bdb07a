//! Regenerates the test files of the formats.

use anyhow::Result;

use crate::cargo;

/// Writes the test files and their expected results; `cargo test` compares the committed files with the code.
pub(crate) fn run() -> Result<()> {
    for package in ["fmt-btf", "fmt-tbuf", "fmt-ztensor"] {
        update(package, "corpus")?;
    }
    // Versions 1 and 2 of zTensor have separate corpora.
    update("fmt-ztensor2", "cases")
}

/// Runs a package's corpus tests in update mode.
fn update(package: &str, tests: &str) -> Result<()> {
    let arguments = ["test", "--package", package, "--test", "it", tests];
    cargo::run(&arguments, &[("UPDATE_CORPUS", "1")])
}
