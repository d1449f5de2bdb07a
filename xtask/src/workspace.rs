//! Finds the workspace's directories and files.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::Result;

/// Returns the root of the repository.
pub(crate) fn root() -> PathBuf {
    // The directory of xtask is a child of the repository's root.
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .map_or_else(PathBuf::new, Path::to_owned)
}

/// Returns the directory into which cargo writes programs of a profile, `debug` or `release`.
pub(crate) fn built(profile: &str) -> PathBuf {
    target().join(profile)
}

/// Returns cargo's target directory. A relative `CARGO_TARGET_DIR` is resolved from the root of the
/// repository.
pub(crate) fn target() -> PathBuf {
    let folder = std::env::var_os("CARGO_TARGET_DIR").filter(|folder| !folder.is_empty());
    root().join(folder.unwrap_or_else(|| "target".into()))
}

/// Returns a path for messages, relative to the repository's root.
pub(crate) fn display(path: &Path) -> String {
    path.strip_prefix(root()).unwrap_or(path).display().to_string()
}

/// Returns all Rust files of the workspace.
pub(crate) fn sources() -> Result<Vec<PathBuf>> {
    files(&["crates", "xtask"], "rs")
}

/// Returns all Markdown files of the repository.
pub(crate) fn pages() -> Result<Vec<PathBuf>> {
    let mut pages = files(&["crates", "docs", "xtask"], "md")?;
    pages.push(root().join("README.md"));
    Ok(pages)
}

/// Returns the files with an extension in some directories of the repository, in order.
fn files(folders: &[&str], extension: &str) -> Result<Vec<PathBuf>> {
    fn collect(folder: &Path, extension: &str, found: &mut Vec<PathBuf>) -> Result<()> {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() && !path.ends_with("target") {
                collect(&path, extension, found)?;
            } else if path.extension().is_some_and(|found| found == extension) {
                found.push(path);
            }
        }
        Ok(())
    }
    let mut found = Vec::new();
    for folder in folders {
        collect(&root().join(folder), extension, &mut found)?;
    }
    found.sort();
    Ok(found)
}
