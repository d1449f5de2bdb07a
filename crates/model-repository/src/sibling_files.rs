//! The files next to a model file, which a backend may check and read.

use std::{
    cell::RefCell,
    path::{Component, Path, PathBuf},
};

use bytes::Bytes;
use oip_model::{Backend, ModelFiles};
use oip_types::ServiceError;
use tensor_mmap::Promise;

use crate::{
    error::FileError,
    files::resolve,
    model_directory::{ModelDirectory, ModelFile},
};

impl ModelDirectory {
    /// Returns access to the files next to a model file. They are checked like model files: regular files
    /// inside the repository, with the required digests.
    #[must_use]
    pub fn sibling_files(&self, file: &ModelFile, mapping: Option<Promise>) -> SiblingFiles<'_> {
        SiblingFiles::new(self, file.folder.clone(), mapping)
    }

    /// Opens a file below a directory of the model, with the same checks as for a model file.
    fn open_below(&self, folder: &Path, path: &str, mapping: Option<Promise>) -> Result<Bytes, FileError> {
        if !is_inner_path(path) {
            return Err(FileError::NoName {
                name: path.to_owned(),
            });
        }
        let named = folder.join(path);
        let content = self.open(&resolve(&self.root, &named)?, mapping)?;
        self.trusted(&named, content)
    }

    /// Returns whether a backend accepts the directory as one of its models.
    pub(crate) fn is_accepted(&self, backend: &dyn Backend) -> bool {
        self.accepts_files_in(backend, &self.below)
    }

    /// Returns whether a backend accepts the files in a directory of the model as those of one of its models.
    pub(crate) fn accepts_files_in(&self, backend: &dyn Backend, folder: &Path) -> bool {
        backend.accepts(&SiblingFiles::new(self, folder.to_owned(), None))
    }
}

/// The files next to a model file, for the backend that loads it ([`Backend::gather`]).
///
/// ```
/// use model_repository::{ModelDirectory, ModelFile};
/// use oip_model::ModelFiles;
///
/// # fn labels(model: &ModelDirectory, file: &ModelFile) {
/// let files = model.sibling_files(file, None);
/// if files.has("labels.txt") && files.read("labels.txt").is_err() {
///     println!("{}", files.into_failure().map_or(String::new(), |failure| failure.to_string()));
/// }
/// # }
/// ```
pub struct SiblingFiles<'f> {
    model: &'f ModelDirectory,
    folder: PathBuf,
    mapping: Option<Promise>,
    /// The first error of a read by the backend.
    failed: RefCell<Option<FileError>>,
}

impl<'f> SiblingFiles<'f> {
    fn new(model: &'f ModelDirectory, folder: PathBuf, mapping: Option<Promise>) -> Self {
        Self {
            model,
            folder,
            mapping,
            failed: RefCell::default(),
        }
    }

    /// Returns the first error of [`ModelFiles::read`]; it is more precise than the backend's error.
    #[must_use]
    pub fn into_failure(self) -> Option<FileError> {
        self.failed.into_inner()
    }
}

impl ModelFiles for SiblingFiles<'_> {
    fn has(&self, path: &str) -> bool {
        is_inner_path(path) && self.model.is_there(&self.folder.join(path))
    }

    fn read(&self, path: &str) -> Result<Bytes, ServiceError> {
        let opened = self.model.open_below(&self.folder, path, self.mapping);
        opened.map_err(|error| {
            let told = ServiceError::invalid(error.to_string());
            self.failed.borrow_mut().get_or_insert(error);
            told
        })
    }
}

/// Returns whether a path is relative and consists of names only, without `..`.
fn is_inner_path(path: &str) -> bool {
    let mut parts = Path::new(path).components();
    let is_plain = parts.clone().next().is_some() && parts.all(|part| matches!(part, Component::Normal(_)));
    is_plain && !path.ends_with('/')
}
