//! The files that the formats' tests judge, written anew from the code that makes them.

use anyhow::Result;

use crate::cargo;

/// Writes the corpora, and judges them; `cargo test` compares what is committed with the code.
pub(crate) fn run() -> Result<()> {
    for package in ["fmt-btf", "fmt-tbuf", "fmt-ztensor"] {
        let arguments = ["test", "--quiet", "--package", package, "--test", "it", "corpus"];
        cargo::run(&arguments, &[("UPDATE_CORPUS", "1")])?;
    }
    Ok(())
}
