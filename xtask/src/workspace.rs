//! Paths of the workspace.

use std::path::{Path, PathBuf};

/// Returns the root of the repository.
pub(crate) fn root() -> PathBuf {
    // The directory of xtask is directly below the root.
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .map_or_else(PathBuf::new, Path::to_owned)
}

/// Returns the directory in which cargo writes programs of a profile, `debug` or `release`.
pub(crate) fn built(profile: &str) -> PathBuf {
    target().join(profile)
}

/// Returns cargo's target directory. A relative `CARGO_TARGET_DIR` is resolved from the root of the
/// repository.
pub(crate) fn target() -> PathBuf {
    let folder = std::env::var_os("CARGO_TARGET_DIR").filter(|folder| !folder.is_empty());
    root().join(folder.unwrap_or_else(|| "target".into()))
}

/// Returns a path as shown in messages: relative to the root of the repository.
pub(crate) fn display(path: &Path) -> String {
    path.strip_prefix(root()).unwrap_or(path).display().to_string()
}
