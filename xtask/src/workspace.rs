//! Where things are.

use std::path::{Path, PathBuf};

/// The top of the repository.
pub(crate) fn root() -> PathBuf {
    // xtask stands right below it.
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .map_or_else(PathBuf::new, Path::to_owned)
}

/// Where cargo leaves programs of a profile: `debug` or `release`.
pub(crate) fn built(profile: &str) -> PathBuf {
    target().join(profile)
}

/// Where cargo builds; `CARGO_TARGET_DIR` as it has it, from the top of the repository.
pub(crate) fn target() -> PathBuf {
    let folder = std::env::var_os("CARGO_TARGET_DIR").filter(|folder| !folder.is_empty());
    root().join(folder.unwrap_or_else(|| "target".into()))
}

/// A path as it is named in messages: from the top of the repository.
pub(crate) fn display(path: &Path) -> String {
    path.strip_prefix(root()).unwrap_or(path).display().to_string()
}
