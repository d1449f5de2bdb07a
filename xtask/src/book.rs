//! Builds docs/ as a searchable book with mdBook.

use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::workspace;

/// Builds the book into target/book.
pub(crate) fn run() -> Result<()> {
    let is_installed = Command::new("mdbook")
        .arg("--version")
        .output()
        .is_ok_and(|output| output.status.success());
    ensure!(
        is_installed,
        "mdBook is not installed: cargo install mdbook. The pages in docs/ can be read without it"
    );
    let status = Command::new("mdbook")
        .arg("build")
        .arg(workspace::root().join("docs"))
        .status()
        .context("starting mdbook")?;
    ensure!(status.success(), "mdbook failed");
    println!("target/book/index.html");
    Ok(())
}
