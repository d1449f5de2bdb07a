//! The error for a repository that cannot be opened. It suggests the path that the user may have meant.

use std::{
    collections::BTreeSet,
    fmt, fs,
    io::{self, Read},
    path::{Path, PathBuf},
    sync::Arc,
};

use oip_model::Backend;
use tensor_core::FileKind;

use crate::other_frameworks::framework;

/// The reason why a repository's directory cannot be used.
#[derive(Debug)]
pub struct RepositoryError {
    path: PathBuf,
    /// Whether the path is one of the directories that links may lead to.
    is_for_links: bool,
    /// An existing path with a similar name, which the message suggests.
    meant: Option<PathBuf>,
    /// The kind of file at the path, and which files would be models.
    file: Option<String>,
    source: io::Error,
}

impl RepositoryError {
    pub(crate) fn new(path: &Path, backends: &[Arc<dyn Backend>], source: io::Error) -> Self {
        let mut error = Self {
            path: path.to_owned(),
            is_for_links: false,
            meant: None,
            file: None,
            source,
        };
        match error.source.kind() {
            io::ErrorKind::NotFound => error.meant = nearest(path),
            io::ErrorKind::NotADirectory => error.file = Some(described(path, backends)),
            _ => {}
        }
        error
    }

    /// Creates the error for a directory that links may lead to.
    pub(crate) fn of_links(path: &Path, source: io::Error) -> Self {
        Self {
            path: path.to_owned(),
            is_for_links: true,
            meant: None,
            file: None,
            source,
        }
    }
}

/// Returns the part of the message that describes the file at `path`, which no backend serves.
fn described(path: &Path, backends: &[Arc<dyn Backend>]) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    if let Some(framework) = framework(&name) {
        return format!("is a file of {framework}, which is not served: export the model to ONNX");
    }
    // Recognizing a file as text says nothing about its format.
    let kind = kind_of(path).filter(|kind| !matches!(kind, FileKind::Text(_)));
    if let Some((kind, advice)) = kind.as_ref().and_then(|kind| Some((kind, kind.advice()?))) {
        return format!("is {kind}: {advice}");
    }
    let names = backends.iter().flat_map(|backend| backend.file_names());
    let extensions: BTreeSet<_> = names
        .filter_map(|name| Path::new(name).extension()?.to_str())
        .map(|extension| format!(".{extension}"))
        .collect();
    let extensions: Vec<String> = extensions.into_iter().collect();
    format!(
        "is neither a directory nor, by its extension, a model's file: expected one of {}",
        extensions.join(", ")
    )
}

fn kind_of(path: &Path) -> Option<FileKind> {
    // Opening a FIFO would block until it has a writer.
    let length = fs::metadata(path).ok().filter(fs::Metadata::is_file)?.len();
    let mut head = Vec::new();
    fs::File::open(path).ok()?.take(512).read_to_end(&mut head).ok()?;
    FileKind::of(&head, length)
}

/// Finds an existing path that the user may have meant instead of `path`: in the same directory, with nearly
/// the same name or with a different extension.
fn nearest(path: &Path) -> Option<PathBuf> {
    /// Maximum number of entries that are compared.
    const SEARCHED: usize = 10_000;
    let name = path.file_name()?.to_str()?;
    let slips = match name.chars().count() {
        0..=2 => 0,
        3..=6 => 1,
        _ => 2,
    };
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let entries = fs::read_dir(parent.unwrap_or(Path::new("."))).ok()?;
    let names = entries
        .take(SEARCHED)
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let rated = names.filter_map(|found| {
        let is_without_extension = Path::new(&found).file_stem().is_some_and(|stem| stem == name);
        let slips_found = match is_without_extension {
            true => 0,
            false => strsim::osa_distance(&found, name),
        };
        (slips_found <= slips && !found.starts_with('.')).then_some((slips_found, found))
    });
    Some(path.with_file_name(rated.min()?.1))
}

impl fmt::Display for RepositoryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        match self.source.kind() {
            io::ErrorKind::NotFound if self.is_for_links => write!(f, "the directory {path} does not exist"),
            io::ErrorKind::NotADirectory if self.is_for_links => write!(f, "{path} is not a directory"),
            _ if self.is_for_links => write!(f, "the directory {path} cannot be read: {}", self.source),
            io::ErrorKind::NotFound => {
                write!(f, "there is no file or directory {path}")?;
                match &self.meant {
                    Some(meant) => write!(f, "; did you mean {}?", meant.display()),
                    None => Ok(()),
                }
            }
            _ => match &self.file {
                Some(file) => write!(f, "{path} {file}"),
                None => write!(f, "the model repository {path} cannot be read: {}", self.source),
            },
        }
    }
}

impl std::error::Error for RepositoryError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_names_are_found_beside_a_path() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["shop", "iris.onnx", "digits.onnx", "a"] {
            fs::write(folder.path().join(name), "").unwrap();
        }
        for (name, expected) in [
            ("shpo", Some("shop")),
            ("iris.onx", Some("iris.onnx")),
            ("iris", Some("iris.onnx")),
            ("models", None),
            ("b", None),
        ] {
            let found = nearest(&folder.path().join(name));
            let expected = expected.map(|name| folder.path().join(name));
            assert_eq!(found, expected, "{name}");
        }
    }
}
