use std::{
    fmt, fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use oip_service::Backend;
use oip_types::check_name;
use tensor_core::Quoted;

use crate::version::VersionKey;

/// The models that a folder holds, found but not loaded.
pub struct Repository {
    pub(crate) models: Vec<FoundModel>,
}

/// A version of a model that was found in a repository.
pub struct FoundModel {
    pub(crate) name: String,
    /// `None` for KServe's layout, where a model has no versions.
    pub(crate) version: Option<String>,
    pub(crate) source: Result<FoundFile, String>,
}

/// A model's file and what loads it.
pub(crate) struct FoundFile {
    pub(crate) path: PathBuf,
    pub(crate) backend: Arc<dyn Backend>,
}

impl Repository {
    /// Finds the models of a folder, which `backends` say by name which files are theirs.
    ///
    /// A folder with a model file in it is one model without versions, called `single_model_name` or else after the
    /// folder. Any other folder is a repository: `<model>/<version>/<file>`. Hidden folders are passed over. What is
    /// no model but stands where one should is kept with the reason, and shown.
    ///
    /// # Errors
    /// [`RepositoryError`] when the folder cannot be read.
    pub fn scan(
        root: &Path,
        backends: &[Arc<dyn Backend>],
        single_model_name: Option<&str>,
    ) -> Result<Self, RepositoryError> {
        let fail = |source| RepositoryError {
            path: root.to_owned(),
            source,
        };
        // Links are resolved once, here: everything that is opened later must stand below this folder.
        let root = root.canonicalize().map_err(fail)?;
        if let Some((path, backend)) = model_file(&root, &root, backends) {
            let folder = root.file_name().map(|name| name.to_string_lossy().into_owned());
            let name = single_model_name
                .map(str::to_owned)
                .or(folder)
                .unwrap_or_else(|| "model".to_owned());
            let source = path.map(|path| FoundFile { path, backend });
            return Ok(Self {
                models: vec![FoundModel {
                    name,
                    version: None,
                    source,
                }],
            });
        }
        let mut models = Vec::new();
        for (name, path) in subfolders(&root).map_err(fail)? {
            models.extend(scan_model(&root, &name, &path, backends));
        }
        Ok(Self { models })
    }

    /// How many versions of models were found.
    #[must_use]
    pub fn len(&self) -> usize {
        self.models.len()
    }

    /// Whether nothing was found.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.models.is_empty()
    }
}

/// The versions of one model's folder.
fn scan_model(root: &Path, name: &str, folder: &Path, backends: &[Arc<dyn Backend>]) -> Vec<FoundModel> {
    let broken = |reason: String| {
        vec![FoundModel {
            name: name.to_owned(),
            version: None,
            source: Err(reason),
        }]
    };
    if let Err(error) = check_name("model name", name) {
        return broken(error.message().to_owned());
    }
    let subfolders = match subfolders(folder) {
        Ok(subfolders) => subfolders,
        Err(error) => return broken(format!("its folder cannot be read: {}", error.kind())),
    };
    let (mut found, mut without_file) = (Vec::new(), Vec::new());
    for (version, path) in subfolders {
        if !is_url_safe(&version) {
            tracing::warn!(
                model = name,
                version,
                "ignoring a version folder whose name is not safe in a URL"
            );
        } else if let Some((path, backend)) = model_file(root, &path, backends) {
            let source = path.map(|path| FoundFile { path, backend });
            found.push(FoundModel {
                name: name.to_owned(),
                version: Some(version),
                source,
            });
        } else {
            without_file.push(version);
        }
    }
    found.sort_by_cached_key(|model| model.version.as_deref().map(VersionKey::new));
    if !found.is_empty() {
        for version in without_file {
            tracing::warn!(
                model = name,
                version,
                "ignoring a version folder without a model file"
            );
        }
        return found;
    }
    let files: Vec<&str> = file_names(backends).map(|(name, _)| name).collect();
    let hint = if files.iter().any(|name| folder.join(name).exists()) {
        " (the model file stands in the model's folder: move it into a version folder such as 1)"
    } else {
        ""
    };
    let files = files.join(" or ");
    broken(match without_file.first() {
        None => format!("it has no version folder with {files} in it{hint}"),
        Some(version) => format!("its version {} has no {files}{hint}", Quoted(version)),
    })
}

/// The model file of a version folder and its backend, if there is one.
fn model_file(
    root: &Path,
    folder: &Path,
    backends: &[Arc<dyn Backend>],
) -> Option<(Result<PathBuf, String>, Arc<dyn Backend>)> {
    file_names(backends).find_map(|(name, backend)| {
        let path = folder.join(name);
        path.symlink_metadata().ok()?;
        Some((resolve(root, &path), backend.clone()))
    })
}

/// The names of model files, those of the first backend first.
fn file_names(backends: &[Arc<dyn Backend>]) -> impl Iterator<Item = (&str, &Arc<dyn Backend>)> {
    let names = backends
        .iter()
        .map(|backend| backend.file_names().iter().map(move |name| (*name, backend)));
    names.flatten()
}

/// Where a path really leads, which must be a regular file below the repository.
fn resolve(root: &Path, path: &Path) -> Result<PathBuf, String> {
    let name = path.file_name().unwrap_or_default().display();
    let real = path
        .canonicalize()
        .map_err(|error| format!("{name} cannot be opened: {}", error.kind()))?;
    if !real.starts_with(root) {
        return Err(format!("{name} is a link that leads out of the repository"));
    }
    match fs::metadata(&real) {
        Ok(metadata) if metadata.is_file() => Ok(real),
        Ok(_) => Err(format!("{name} is not a regular file")),
        Err(error) => Err(format!("{name} cannot be opened: {}", error.kind())),
    }
}

/// The folders in a folder by name, without hidden ones and without what is no folder.
fn subfolders(folder: &Path) -> io::Result<Vec<(String, PathBuf)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path
            .file_name()
            .map(|name| name.to_string_lossy().into_owned())
            .unwrap_or_default();
        if !name.starts_with('.') && path.is_dir() {
            found.push((name, path));
        }
    }
    found.sort();
    Ok(found)
}

fn is_url_safe(version: &str) -> bool {
    version
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte))
        && check_name("version", version).is_ok()
}

/// Why a repository's folder cannot be used.
#[derive(Debug)]
pub struct RepositoryError {
    path: PathBuf,
    source: io::Error,
}

impl fmt::Display for RepositoryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        match self.source.kind() {
            io::ErrorKind::NotFound => write!(f, "the model repository {path} does not exist"),
            io::ErrorKind::NotADirectory => write!(f, "the model repository {path} is not a folder"),
            _ => write!(f, "the model repository {path} cannot be read: {}", self.source),
        }
    }
}

impl std::error::Error for RepositoryError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}
