//! BTF's names, which stand in a file beside it.

use std::path::Path;

use fmt_btf::Names;
use fmt_core::{ByteSource, FileSource, TensorReader, behind_links, read_range};

use crate::composite::Composite;

/// A longer file is not taken for a file of names.
const LONGEST: u64 = 256 << 20;

/// Gives a BTF file's tensors the names that stand beside it, if they do and fit.
pub(crate) fn with_names_beside(inner: Box<dyn TensorReader>, path: &Path) -> Box<dyn TensorReader> {
    // A link may have names of its own beside it, as in a cache where all files are links.
    let mut names_paths = [&behind_links(path), path].map(Names::path_for).into_iter();
    let Some(names_path) = names_paths.find(|path| path.exists()) else {
        return inner;
    };
    // Only a regular file is read, and a pipe is not waited for.
    let json = FileSource::open(&names_path)
        .and_then(|file| read_range(&file, 0..file.len().min(LONGEST), "the file of names"));
    let names = json.and_then(|json| Names::from_json(&json, inner.entries().len()));
    let mut renamed = Composite::new(path.display().to_string(), inner);
    let named = names.and_then(|names| {
        let mut each = names.names().iter().cloned();
        renamed.rename_all(|_| each.next())?;
        *renamed.metadata_mut() = names.metadata().clone();
        Ok(())
    });
    if let Err(error) = named {
        renamed.add_lint(format!("{} is not used: {error}", names_path.display()));
    }
    Box::new(renamed)
}
