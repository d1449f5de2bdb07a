//! Finds the files of `tests/fixtures` by their names alone; each is in its operator's directory.
//!
//! The unit tests also include this module.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::LazyLock,
};

/// All files by name, from the top directory and its subdirectories.
pub(crate) static FILES: LazyLock<BTreeMap<String, PathBuf>> = LazyLock::new(|| {
    let mut files = BTreeMap::new();
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../backend-onnx/tests/fixtures");
    for path in entries(&top) {
        let inner = if path.is_dir() { entries(&path) } else { vec![path] };
        for path in inner {
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            if let Some(other) = files.insert(name, path.clone()) {
                panic!(
                    "two fixtures have one name: {} and {}",
                    other.display(),
                    path.display()
                );
            }
        }
    }
    files
});

fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap();
    entries.map(|entry| entry.unwrap().path()).collect()
}
