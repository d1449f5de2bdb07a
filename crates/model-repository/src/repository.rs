//! A repository: a directory with models, or a single model.
//! [`Repositories`](super::repositories::Repositories) combines several.

use std::{
    ffi::OsStr,
    io::{self, Read},
    path::{Path, PathBuf},
    sync::Arc,
};

use model_config::WrittenConfig;
use oip_model::Backend;
use oip_types::check_name;
use rustix::fs::FileType;

use crate::{
    digests::RequiredDigests,
    error::ModelError,
    model_directory::{ModelDirectory, subfolders},
    other_frameworks::framework,
    repository_error::RepositoryError,
    root::{PathTarget, Root, is_file},
    single_files::{LOOKED_AT, looks_like_a_model},
    upstream::Upstream,
};

/// A directory with models, and the backends that load them.
///
/// ```
/// use model_repository::Repository;
///
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path();
/// let repository = Repository::open(path, &[], None)?;
/// for name in repository.model_names()? {
///     println!("{name}: {:?}", repository.model(&name).map(|model| model.is_some()));
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Repository {
    /// Path of the directory. The directory is reopened at every access, so that it can be replaced.
    path: PathBuf,
    backends: Arc<[Arc<dyn Backend>]>,
    /// Name of the model if the repository is a single model: a model file in the directory itself (KServe),
    /// a directory of versions, or a single file.
    single_model: Option<String>,
    /// Whether that single model has version directories.
    has_versions: bool,
    /// The model file, if the repository is a single file.
    only_file: Option<String>,
    /// Updates the directory, if it mirrors a remote source.
    upstream: Option<Arc<dyn Upstream>>,
    /// The allowed files; `None` allows all files.
    digests: Option<Arc<RequiredDigests>>,
    /// Directories outside the repository that links may lead to.
    also: Vec<PathBuf>,
    /// Name in messages, used instead of the path.
    label: Option<String>,
}

impl Repository {
    /// Opens a directory. `backends` recognize model files by their names. The models themselves are looked
    /// up only when they are loaded.
    ///
    /// - A directory with a model file is one model without versions, named `single_model_name`, or by its
    ///   configuration, or after the directory.
    /// - A file is one model, named `single_model_name` or after the file. Configurations next to it are not
    ///   read.
    /// - A directory is one model with versions, named in the same way, if all of its subdirectories contain
    ///   a model file and at least one of them has a number as its name. A directory with a configuration,
    ///   even an invalid one, is also one model, unless it has models in subdirectories.
    /// - Any other directory is a repository: `<model>/<version>/<file>`. Hidden directories are skipped.
    ///   Directories that are not models are listed with the reason.
    ///
    /// # Errors
    /// [`RepositoryError`] if the directory cannot be read.
    pub fn open(
        root: &Path,
        backends: &[Arc<dyn Backend>],
        single_model_name: Option<&str>,
    ) -> Result<Self, RepositoryError> {
        Self::open_with_links(root, backends, single_model_name, &[])
    }

    /// Opens a repository like [`open`](Self::open), but links may also lead into the directories `also`,
    /// such as the blobs of a Hugging Face cache. Other links out of the repository are refused.
    ///
    /// ```
    /// # use model_repository::Repository;
    /// # let folder = tempfile::tempdir()?;
    /// # let (snapshot, blobs) = (folder.path().join("snapshot"), folder.path().join("blobs"));
    /// # std::fs::create_dir(&snapshot)?;
    /// # std::fs::create_dir(&blobs)?;
    /// let repository = Repository::open_with_links(&snapshot, &[], None, &[blobs])?;
    /// assert!(repository.model_names()?.is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`RepositoryError`] if the repository or one of these directories cannot be read.
    pub fn open_with_links(
        root: &Path,
        backends: &[Arc<dyn Backend>],
        single_model_name: Option<&str>,
        also: &[PathBuf],
    ) -> Result<Self, RepositoryError> {
        let fail = |source| RepositoryError::new(root, backends, source);
        let path = std::path::absolute(root).map_err(fail)?;
        let is_known = |file: &Path| {
            let mut names = backends.iter().flat_map(|backend| backend.file_names());
            file.is_file() && names.any(|name| Path::new(name).extension() == file.extension())
        };
        if is_known(&path) {
            let path = path.canonicalize().map_err(fail)?;
            let inner = Self::of_inner_file(&path, backends, single_model_name);
            return Ok(inner.unwrap_or_else(|| Self::of_file(&path, backends, single_model_name)));
        }
        let also = also.iter().map(|folder| {
            let real = folder.canonicalize();
            // Fails unless the path is a directory that can be opened.
            let entered = real.and_then(|real| Root::open(&real).map(|_| real));
            entered.map_err(|source| RepositoryError::of_links(folder, source))
        });
        let also = also.collect::<Result<Vec<_>, _>>()?;
        let open = Arc::new(Root::open_with(&path, &also).map_err(fail)?);
        open.list(Path::new("")).map_err(fail)?;
        let mut repository = Self {
            path,
            backends: backends.into(),
            single_model: None,
            has_versions: false,
            only_file: None,
            upstream: None,
            digests: None,
            also,
            label: None,
        };
        let folder = repository.model_directory(&open, "", Path::new(""), false);
        // Errors in the configuration are reported when the model is loaded.
        let written = folder.configuration().unwrap_or_default();
        let has_file = folder.has_model_file(&written);
        // A directory with an invalid configuration still counts as a model, which is then unavailable.
        let is_configured = folder.has_configuration() && !repository.has_models(&open);
        let has_versions = || {
            let is_versioned = is_configured && repository.has_numbered_folder(&open);
            is_versioned || repository.has_version_folders(&open, &written)
        };
        repository.has_versions = !has_file && has_versions();
        if has_file || is_configured || repository.has_versions {
            let name = single_model_name.map(str::to_owned);
            repository.single_model = Some(name.unwrap_or_else(|| repository.own_name(written)));
        }
        Ok(repository)
    }

    /// Returns the name of the only model: that of its configuration, or else that of its directory.
    fn own_name(&self, written: WrittenConfig) -> String {
        if check_name("model name", &written.config.name).is_ok() {
            return written.config.name;
        }
        // If the path is a link to the directory, the model gets the directory's own name.
        let real = self.path.canonicalize().unwrap_or_else(|_| self.path.clone());
        let folder = real.file_name().map(|name| name.to_string_lossy().into_owned());
        folder.unwrap_or_else(|| "model".to_owned())
    }

    /// Returns whether the directory is a single model with versions. The same directory read as a repository
    /// would consist of models without versions.
    fn has_version_folders(&self, root: &Arc<Root>, written: &WrittenConfig) -> bool {
        let folders = subfolders(root, Path::new("")).unwrap_or_default();
        let has_model = |name: &String| {
            let folder = self.model_directory(root, name, Path::new(name), false);
            folder.has_model_file(written)
        };
        self.has_numbered_folder(root) && folders.iter().all(has_model)
    }

    /// Returns whether the name of a subdirectory is a number, like that of a version directory.
    fn has_numbered_folder(&self, root: &Root) -> bool {
        let mut folders = subfolders(root, Path::new("")).unwrap_or_default().into_iter();
        folders.any(|name| name.bytes().all(|byte| byte.is_ascii_digit()))
    }

    /// Returns whether a subdirectory is a model with versions.
    fn has_models(&self, root: &Arc<Root>) -> bool {
        let mut folders = subfolders(root, Path::new("")).unwrap_or_default().into_iter();
        folders.any(|name| {
            let below = Path::new(&name);
            let versions = subfolders(root, below).unwrap_or_default().into_iter();
            let folder = |version: String| self.model_directory(root, &name, &below.join(version), false);
            let written = self.model_directory(root, &name, below, true).configuration();
            let written = written.unwrap_or_default();
            versions.map(folder).any(|folder| folder.has_model_file(&written))
        })
    }

    /// Creates the repository of a single file. `path` contains no links.
    fn of_file(path: &Path, backends: &[Arc<dyn Backend>], name: Option<&str>) -> Self {
        let text = |part: Option<&OsStr>| part.unwrap_or_default().to_string_lossy().into_owned();
        let stem = Some(text(path.file_stem())).filter(|name| check_name("model name", name).is_ok());
        let name = name.map(str::to_owned).or(stem);
        Self {
            path: path.parent().unwrap_or(path).to_owned(),
            backends: backends.into(),
            single_model: Some(name.unwrap_or_else(|| "model".to_owned())),
            has_versions: false,
            only_file: Some(text(path.file_name())),
            upstream: None,
            digests: None,
            also: Vec::new(),
            label: None,
        }
    }

    /// Creates the repository of a file whose model is the directory one level up, such as an export in
    /// `onnx/` of a Hugging Face directory. Returns `None` if no backend accepts such a directory.
    fn of_inner_file(path: &Path, backends: &[Arc<dyn Backend>], name: Option<&str>) -> Option<Self> {
        let folder = path.parent()?;
        let (inner, directory) = (folder.file_name()?, folder.parent()?);
        let has_files_there = |backend: &&Arc<dyn Backend>| {
            let mut names = backend.file_names().iter().map(Path::new);
            names.any(|name| name.parent() == Some(Path::new(inner)) && name.extension() == path.extension())
        };
        let file = Path::new(inner).join(path.file_name()?).to_str()?.to_owned();
        let named = directory
            .file_name()
            .map(|name| name.to_string_lossy().into_owned());
        let named = named.filter(|name| check_name("model name", name).is_ok());
        let repository = Self {
            path: directory.to_owned(),
            single_model: Some(
                name.map_or_else(|| named.unwrap_or_else(|| "model".to_owned()), str::to_owned),
            ),
            only_file: Some(file),
            ..Self::of_file(path, backends, name)
        };
        let root = Arc::new(Root::open(directory).ok()?);
        let folder = repository.model_directory(&root, "", Path::new(""), false);
        let mut able = backends.iter().filter(has_files_there);
        able.any(|backend| folder.is_accepted(&**backend))
            .then_some(repository)
    }

    /// Sets the name used in messages, such as the URL that the directory mirrors.
    #[must_use]
    pub fn with_label(mut self, label: impl Into<String>) -> Self {
        self.label = Some(label.into());
        self
    }

    /// Returns the name used in messages.
    #[must_use]
    pub fn label(&self) -> String {
        let path = || match &self.only_file {
            Some(file) => self.path.join(file).display().to_string(),
            None => self.path.display().to_string(),
        };
        self.label.clone().unwrap_or_else(path)
    }

    /// Sets the upstream that keeps the directory in sync with a remote source. The upstream is called before
    /// each poll, and before a load that a client requests.
    #[must_use]
    pub fn with_upstream(mut self, upstream: Arc<dyn Upstream>) -> Self {
        self.upstream = Some(upstream);
        self
    }

    /// Restricts the repository to files with the listed digests. Files are listed by their path relative to
    /// the directory; for a single file, by its name.
    #[must_use]
    pub fn with_required_digests(mut self, digests: RequiredDigests) -> Self {
        self.digests = Some(Arc::new(digests));
        self
    }

    /// Updates the directory from its upstream, entirely or for one model.
    pub fn refresh(&self, model: Option<&str>) {
        if let Some(upstream) = &self.upstream {
            upstream.refresh(model);
        }
    }

    /// Returns the reason why a model's directory is out of date.
    #[must_use]
    pub fn upstream_failure(&self, model: &str) -> Option<String> {
        self.upstream.as_ref()?.failure(model)
    }

    /// Returns files in the repository's directory that look like models but are not served, since each
    /// belongs in its own directory. Hidden files are skipped. Files with the extensions `.json`, `.txt` and
    /// `.py` are read: boosters and Python models are recognized by their first bytes.
    #[must_use]
    pub fn misplaced_files(&self) -> Vec<String> {
        if self.single_model.is_some() {
            return Vec::new();
        }
        let Ok(root) = Root::open(&self.path) else {
            return Vec::new();
        };
        let files = self.files().into_iter();
        files
            .filter(|name| self.is_known(name) && looks_like_a_model(name, &head(&root, name)))
            .collect()
    }

    /// Returns files that look as if they were used, but are not: [misplaced](Self::misplaced_files) models,
    /// files of other frameworks in the repository's directory, and configurations in directories where none
    /// is read.
    #[must_use]
    pub fn passed_over(&self) -> Vec<PassedOver> {
        let mut passed_over = self.ignored_configurations();
        let misplaced = self.misplaced_files().into_iter();
        passed_over.extend(misplaced.map(|file| {
            let part = |part: Option<&OsStr>| part.unwrap_or_default().to_string_lossy().into_owned();
            let (stem, extension) = (
                part(Path::new(&file).file_stem()),
                part(Path::new(&file).extension()),
            );
            let advice = format!("to serve it, move it to {stem}/1/model.{extension}");
            PassedOver { file, advice }
        }));
        if self.single_model.is_none() {
            let files = self.files().into_iter().filter(|name| !self.is_known(name));
            passed_over.extend(files.filter_map(|file| {
                let framework = framework(&file)?;
                let advice = format!("a file of {framework}: export the model to ONNX");
                Some(PassedOver { file, advice })
            }));
        }
        passed_over
    }

    /// Returns the configuration files that apply to no model.
    fn ignored_configurations(&self) -> Vec<PassedOver> {
        let Ok(root) = self.root().map(Arc::new) else {
            return Vec::new();
        };
        let in_folder = |below: &Path| self.model_directory(&root, "", below, true);
        let of = |place: PathBuf, names: Vec<&str>, advice: &str| {
            let passed = |name: &str| PassedOver {
                file: place.join(name).display().to_string(),
                advice: advice.to_owned(),
            };
            names.into_iter().map(passed).collect::<Vec<_>>()
        };
        if self.only_file.is_some() {
            let advice = "not read for a file that is named: name its directory instead";
            let beside = in_folder(Path::new("")).ignored_configurations("");
            let mut found = of(PathBuf::new(), beside, advice);
            let is_number = |name: &OsStr| name.as_encoded_bytes().iter().all(u8::is_ascii_digit);
            let model = self
                .path
                .parent()
                .filter(|_| self.path.file_name().is_some_and(is_number));
            if let Some(root) = model.and_then(|model| Root::open(model).ok()) {
                let above = self.model_directory(&Arc::new(root), "", Path::new(""), true);
                found.extend(of(PathBuf::from(".."), above.ignored_configurations(""), advice));
            }
            return found;
        }
        let in_versions = |below: &Path| {
            let versions = subfolders(&root, below).unwrap_or_default().into_iter();
            let found = versions.flat_map(|version| {
                let names = in_folder(below).ignored_configurations(&version);
                let advice = "a configuration holds for all versions: move it into the model's directory";
                of(below.join(version), names, advice)
            });
            found.collect::<Vec<_>>()
        };
        match (&self.single_model, self.has_versions) {
            (Some(_), true) => in_versions(Path::new("")),
            (Some(_), false) => Vec::new(),
            (None, _) => {
                let names = in_folder(Path::new("")).ignored_configurations("");
                let advice = "a model's configuration, among models: move it into the model's directory";
                let models = self.model_names().unwrap_or_default().into_iter();
                let mut found = of(PathBuf::new(), names, advice);
                found.extend(models.flat_map(|model| in_versions(Path::new(&model))));
                found
            }
        }
    }

    /// Returns whether a backend loads files with this extension.
    fn is_known(&self, name: &str) -> bool {
        let Some(extension) = Path::new(name).extension() else {
            return false;
        };
        let mut names = self.backends.iter().flat_map(|backend| backend.file_names());
        names.any(|name| Path::new(name).extension() == Some(extension))
    }

    /// Lists the files in the directory; empty if it cannot be read.
    fn files(&self) -> Vec<String> {
        let entries = Root::open(&self.path).and_then(|root| root.list(Path::new("")));
        let files = entries.unwrap_or_default().into_iter();
        let files = files.filter(|(_, kind)| *kind == FileType::RegularFile);
        let mut names: Vec<String> = files
            .map(|(name, _)| name.to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    /// Lists all models.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn model_names(&self) -> io::Result<Vec<String>> {
        match &self.single_model {
            Some(name) => Ok(vec![name.clone()]),
            None => subfolders(&self.root()?, Path::new("")),
        }
    }

    fn root(&self) -> io::Result<Root> {
        Root::open_with(&self.path, &self.also)
    }

    /// Finds the directory of a model. Returns `None` if the repository has no model of this name.
    ///
    /// # Errors
    /// The reason why the directory cannot be used.
    pub fn model(&self, name: &str) -> Result<Option<ModelDirectory>, ModelError> {
        let root = self.root().map(Arc::new).map_err(ModelError::Repository)?;
        if let Some(single) = &self.single_model {
            let folder = || self.model_directory(&root, name, Path::new(""), self.has_versions);
            return Ok((single == name).then(folder));
        }
        check_name("model name", name).map_err(ModelError::Name)?;
        let below = Path::new(name);
        let real = match root.resolve(below) {
            Ok(PathTarget::Inside(real)) => real,
            Ok(PathTarget::Outside) if root.path(below).is_file() => return Ok(None),
            Ok(PathTarget::Outside) => return Err(ModelError::DirectoryOutside),
            // The directory has no entry of this name, not even a dangling link.
            Err(error) if error.kind() == io::ErrorKind::NotFound && root.stat(below).is_err() => {
                return Ok(None);
            }
            Err(error) => return Err(ModelError::Directory(error)),
        };
        match root.stat(&real).map_err(ModelError::Directory)? {
            stat if is_file(&stat) => Ok(None),
            _ => Ok(Some(self.model_directory(&root, name, &real, true))),
        }
    }

    fn model_directory(
        &self,
        root: &Arc<Root>,
        name: &str,
        below: &Path,
        has_versions: bool,
    ) -> ModelDirectory {
        ModelDirectory {
            root: root.clone(),
            backends: self.backends.clone(),
            name: name.to_owned(),
            below: below.to_owned(),
            has_versions,
            only_file: self.only_file.clone(),
            digests: self.digests.clone(),
        }
    }
}

/// A file that looks like a model or a configuration, but has no effect.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub struct PassedOver {
    /// Path in the repository.
    pub file: String,
    /// The kind of the file, or advice on how to get it served.
    pub advice: String,
}

/// Returns the first bytes of a file; empty if it cannot be read.
fn head(root: &Root, name: &str) -> Vec<u8> {
    let mut head = Vec::new();
    if let Ok((file, _)) = root.open_file(Path::new(name)) {
        // After a read error, the bytes read so far are returned.
        let _ = file.take(LOOKED_AT).read_to_end(&mut head);
    }
    head
}
