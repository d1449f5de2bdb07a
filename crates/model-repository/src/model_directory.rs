//! A model's directory: finds its versions, files and configuration without leaving the repository.

use std::{
    fmt, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;
use model_config::{HuggingFaceConfig, Syntax, WrittenConfig};
use oip_model::{Backend, available_memory};
use oip_types::{check_name, model_config::VersionPolicy};
use rustix::fs::FileType;
use tensor_mmap::Promise;

use crate::{
    digests::RequiredDigests,
    error::{FileError, ModelError},
    files::{length, map, read, resolve},
    root::{PathTarget, Root, is_folder},
    snapshot::{Digest, DigestBy, FileSubset, Snapshot},
    version_key::VersionKey,
};

/// A model's directory. Its files are found and read without leaving the repository.
///
/// ```
/// use model_repository::{Repository, VersionContent};
///
/// # fn list(repository: &Repository) -> Result<(), Box<dyn std::error::Error>> {
/// let model = repository.model("digits")?.ok_or("no such model")?;
/// let written = model.configuration()?;
/// model.check_name(&written)?;
/// for found in model.versions(&written)? {
///     if let VersionContent::File(file) = found.content? {
///         let content = model.open_model(&file, None)?;
///         println!("{:?}: {} bytes for {}", found.version, content.len(), file.backend.name());
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct ModelDirectory {
    /// The repository's directory.
    pub(crate) root: Arc<Root>,
    pub(crate) backends: Arc<[Arc<dyn Backend>]>,
    pub(crate) name: String,
    /// Path relative to the repository, with links resolved.
    pub(crate) below: PathBuf,
    pub(crate) has_versions: bool,
    /// Name of the file if the model is a single file; other files in the directory are ignored.
    pub(crate) only_file: Option<String>,
    pub(crate) digests: Option<Arc<RequiredDigests>>,
}

/// A version of a model in a repository.
#[derive(Debug)]
#[non_exhaustive]
pub struct ModelVersion {
    /// Name of the version; `None` for a model without versions.
    pub version: Option<String>,
    /// The version's content, or the reason why it cannot be used.
    pub content: Result<VersionContent, ModelError>,
}

/// The content of a version. The enum is exhaustive, so that callers handle each kind of content.
#[derive(Debug)]
pub enum VersionContent {
    /// A model file.
    File(ModelFile),
    /// A pipeline of other models, which the configuration names.
    Pipeline,
}

/// A model file and the backend that loads it.
#[derive(Clone)]
#[non_exhaustive]
pub struct ModelFile {
    /// Path relative to the repository, with links resolved.
    below: PathBuf,
    /// Path relative to the repository, in which links are not resolved.
    pub(crate) named: PathBuf,
    /// Path of the file that messages show and that backends get.
    pub path: PathBuf,
    /// The directory in which the file was found, in which links are not resolved.
    pub(crate) folder: PathBuf,
    /// The backend that loads the file.
    pub backend: Arc<dyn Backend>,
}

/// A possible file name of a model, and the backend that loads such files.
type Candidate<'w> = (&'w str, Arc<dyn Backend>);

impl fmt::Debug for ModelFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ModelFile")
            .field("path", &self.path)
            .field("backend", &self.backend.name())
            .finish_non_exhaustive()
    }
}

impl ModelDirectory {
    /// Returns the model's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns whether the model is a single file, so that other files in its directory are unrelated.
    #[must_use]
    pub fn is_single_file(&self) -> bool {
        self.only_file.is_some()
    }

    /// Records the current state of the model's files.
    ///
    /// # Errors
    /// The reason why the directory cannot be listed.
    pub fn snapshot(&self) -> Result<Snapshot, FileError> {
        match &self.only_file {
            Some(file) => Ok(Snapshot::of_file(&self.root, Path::new(file))),
            None => Snapshot::take(&self.root, &self.below),
        }
    }

    /// Computes the digest of a subset of the files recorded in `snapshot`.
    #[must_use]
    pub fn digest(&self, snapshot: &Snapshot, subset: FileSubset<'_>, by: DigestBy) -> Digest {
        snapshot.digest(&self.root, subset, by)
    }

    /// Reads the configuration; returns the default if there is none.
    ///
    /// # Errors
    /// The name of the invalid file, the position of the error, and the reason.
    pub fn configuration(&self) -> Result<WrittenConfig, ModelError> {
        if self.only_file.is_some() {
            return Ok(WrittenConfig::default());
        }
        let files = WrittenConfig::FILES.iter();
        let files = files.filter(|(name, _)| self.root.stat(&self.below.join(name)).is_ok());
        let is_ours = |file: &&(&str, Syntax)| file.1 != Syntax::Json || self.hugging_face(&[]).is_none();
        let files: Vec<_> = files.filter(is_ours).collect();
        let (name, syntax) = match files[..] {
            [] => return Ok(WrittenConfig::default()),
            [(name, syntax)] => (*name, *syntax),
            [(first, _), (second, _), ..] => {
                return Err(ModelError::TwoConfigurations { first, second });
            }
        };
        let bytes = self.read(&[name], WrittenConfig::MAX_BYTES as u64)?;
        let text = std::str::from_utf8(&bytes).map_err(|_| FileError::NotUtf8 {
            name: name.to_owned(),
        })?;
        WrittenConfig::read(text, syntax).map_err(|source| ModelError::Configuration {
            file: name,
            source: source.into(),
        })
    }

    /// Returns whether the model has a configuration file, of this server or of Hugging Face.
    pub(crate) fn has_configuration(&self) -> bool {
        let mut files = WrittenConfig::FILES.iter();
        files.any(|(name, _)| self.root.stat(&self.below.join(name)).is_ok())
    }

    /// Returns the configuration files in a subdirectory, where they have no effect.
    pub(crate) fn ignored_configurations(&self, directory: &str) -> Vec<&'static str> {
        let is_there = |name: &&str| self.root.stat(&self.below.join(directory).join(name)).is_ok();
        // A config.json is not reported, because many programs write files of this name.
        let files = WrittenConfig::FILES.iter();
        let files = files.filter(|(_, syntax)| *syntax != Syntax::Json);
        files.map(|(name, _)| *name).filter(is_there).collect()
    }

    /// Reads `config.json` of the model or a subdirectory, if it is in Hugging Face's format.
    pub(crate) fn hugging_face(&self, directory: &[&str]) -> Option<HuggingFaceConfig> {
        let names = [directory, &["config.json"]].concat();
        let bytes = self.read(&names, HuggingFaceConfig::MAX_BYTES as u64).ok()?;
        HuggingFaceConfig::recognize(std::str::from_utf8(&bytes).ok()?)
    }

    /// Returns the content of a version for which a model file was found. A weights file whose network is
    /// missing is served only if it is explicitly requested.
    fn content(
        &self,
        version: Option<&str>,
        file: Result<ModelFile, FileError>,
        written: &WrittenConfig,
    ) -> Result<VersionContent, ModelError> {
        let file = file.map_err(ModelError::File)?;
        let is_asked_for = self.only_file.is_some()
            || written.backend_name().is_some()
            || !written.config.default_model_filename.is_empty();
        let unexported = (file.backend.holds_weights_only() && !is_asked_for)
            .then(|| self.unexported(version, Some(&file)))
            .flatten();
        unexported.map_or(Ok(VersionContent::File(file)), Err)
    }

    /// Returns whether the path with components `names`, relative to the model's directory, exists.
    #[must_use]
    pub fn has(&self, names: &[&str]) -> bool {
        let path = names
            .iter()
            .fold(self.below.clone(), |path, name| path.join(name));
        names.iter().all(|name| check_name("file name", name).is_ok()) && self.is_there(&path)
    }

    /// Reads the file at the path with components `names`, relative to the model's directory, if its size is
    /// at most `most` bytes.
    ///
    /// # Errors
    /// The reason why the file cannot be used.
    pub fn read(&self, names: &[&str], most: u64) -> Result<Bytes, FileError> {
        let mut path = self.below.clone();
        for name in names {
            check_name("file name", name).map_err(FileError::Name)?;
            path.push(name);
        }
        let content = read(&self.root, &resolve(&self.root, &path)?, most)?;
        self.trusted(&path, content)
    }

    /// Checks the content of the file at `named` against the list of digests. The check covers the bytes that
    /// the caller uses, so replacing the file does not circumvent it.
    pub(crate) fn trusted(&self, named: &Path, content: Bytes) -> Result<Bytes, FileError> {
        if let Some(digests) = &self.digests {
            let below = named.strip_prefix(&self.below).unwrap_or(named);
            let listed = match self.is_repository() {
                true => below.to_owned(),
                false => Path::new(&self.name).join(below),
            };
            digests.check(&listed, &content)?;
        }
        Ok(content)
    }

    /// Opens a model file: maps it if `mapping` contains the promise that it will not change; otherwise reads
    /// it, if it fits into memory.
    ///
    /// # Errors
    /// The reason why the file cannot be used.
    pub fn open_model(&self, file: &ModelFile, mapping: Option<Promise>) -> Result<Bytes, FileError> {
        let content = self.open(&file.below, mapping)?;
        self.trusted(&file.named, content)
    }

    pub(crate) fn open(&self, below: &Path, mapping: Option<Promise>) -> Result<Bytes, FileError> {
        if let Some(promise) = mapping {
            return map(&self.root, below, promise);
        }
        let length = self.root.stat(below).map_or(0, |stat| length(&stat));
        let available = available_memory().unwrap_or(u64::MAX);
        if length > available {
            return Err(FileError::NoMemory {
                name: FileError::name(below),
                length,
                left: available,
            });
        }
        read(&self.root, below, available)
    }

    /// Checks the name in the configuration. A model that is the whole repository may have any name.
    ///
    /// # Errors
    /// The name in the configuration differs from the name of the directory.
    pub fn check_name(&self, written: &WrittenConfig) -> Result<(), ModelError> {
        match written.config.name.as_str() {
            name if self.is_repository() || name.is_empty() || name == self.name => Ok(()),
            other => Err(ModelError::ConfiguredName {
                found: other.to_owned(),
            }),
        }
    }

    /// Returns whether the model is the whole repository, not a directory in it.
    fn is_repository(&self) -> bool {
        self.below.as_os_str().is_empty()
    }

    /// Returns whether the model has a directory for `version`.
    #[must_use]
    pub fn has_version(&self, version: &str) -> bool {
        if !is_url_safe(version) {
            return false;
        }
        let is_dir = |real: &Path| self.root.stat(real).is_ok_and(|stat| is_folder(&stat));
        let resolved = self.root.resolve(&self.below.join(version));
        self.has_versions && matches!(resolved, Ok(PathTarget::Inside(real)) if is_dir(&real))
    }

    /// Returns the versions that the configuration selects, lowest first.
    ///
    /// # Errors
    /// The reason why no version can be served.
    pub fn versions(&self, written: &WrittenConfig) -> Result<Vec<ModelVersion>, ModelError> {
        if written.is_pipeline() {
            return self.pipeline_versions(written);
        }
        if !self.has_versions {
            let file = self.model_file(&self.below, written)?;
            let content = match file {
                Some(file) => self.content(None, file, written),
                None => Err(self.why_no_file(written).unwrap_or_else(|error| error)),
            };
            return Ok(vec![ModelVersion {
                version: None,
                content,
            }]);
        }
        let mut folders = self.subfolders()?;
        folders.retain(|version| {
            let is_safe = is_url_safe(version);
            if !is_safe
                && self
                    .model_file(&self.below.join(version), written)
                    .is_ok_and(|file| file.is_some())
            {
                tracing::warn!(
                    model = self.name,
                    version,
                    "ignoring a version directory whose name is not safe in a URL"
                );
            }
            is_safe
        });
        folders.sort_by_cached_key(|version| VersionKey::new(version));
        let (mut found, mut without_file) = (Vec::new(), Vec::new());
        for version in folders {
            match self.model_file(&self.below.join(&version), written)? {
                Some(file) => found.push(ModelVersion {
                    content: self.content(Some(&version), file, written),
                    version: Some(version),
                }),
                None => without_file.push(version),
            }
        }
        if found.is_empty() {
            return Err(self.why_empty(written, without_file.first())?);
        }
        for version in without_file
            .iter()
            .filter(|version| version.bytes().all(|byte| byte.is_ascii_digit()))
        {
            tracing::warn!(
                model = self.name,
                version,
                "ignoring a version directory without a model file"
            );
        }
        self.select(found, &written.config.version_policy)
    }

    /// Returns the versions of a pipeline. Their directories are empty and some tools drop empty directories,
    /// so a pipeline without directories has version 1.
    fn pipeline_versions(&self, written: &WrittenConfig) -> Result<Vec<ModelVersion>, ModelError> {
        let mut folders = self.subfolders()?;
        folders.retain(|version| version.bytes().all(|byte| byte.is_ascii_digit()));
        folders.sort_by_cached_key(|version| VersionKey::new(version));
        if folders.is_empty() {
            folders.push("1".to_owned());
        }
        let found = folders.into_iter().map(|version| ModelVersion {
            version: Some(version),
            content: Ok(VersionContent::Pipeline),
        });
        self.select(found.collect(), &written.config.version_policy)
    }

    pub(crate) fn subfolders(&self) -> Result<Vec<String>, ModelError> {
        subfolders(&self.root, &self.below).map_err(ModelError::Directory)
    }

    /// Selects versions by a version policy.
    fn select(
        &self,
        mut found: Vec<ModelVersion>,
        policy: &VersionPolicy,
    ) -> Result<Vec<ModelVersion>, ModelError> {
        match policy {
            VersionPolicy::All {} => {}
            VersionPolicy::Latest { num_versions } => {
                let surplus = found.len().saturating_sub(*num_versions as usize);
                found.drain(..surplus);
            }
            VersionPolicy::Specific { versions } => {
                let wanted: Vec<String> = versions.iter().map(ToString::to_string).collect();
                let is_wanted =
                    |found: &ModelVersion| found.version.as_ref().is_some_and(|found| wanted.contains(found));
                found.retain(is_wanted);
                for missing in wanted
                    .iter()
                    .filter(|wanted| found.iter().all(|found| found.version.as_ref() != Some(wanted)))
                {
                    tracing::warn!(
                        model = self.name,
                        version = missing,
                        "a version of the version policy does not exist"
                    );
                }
                if found.is_empty() {
                    return Err(ModelError::NoWantedVersion { wanted });
                }
            }
        }
        Ok(found)
    }

    /// Returns whether the directory itself contains a model file.
    pub(crate) fn has_model_file(&self, written: &WrittenConfig) -> bool {
        self.model_file(&self.below, written)
            .is_ok_and(|file| file.is_some())
    }

    /// Finds the model file of a version directory, and its backend.
    pub(crate) fn model_file(
        &self,
        folder: &Path,
        written: &WrittenConfig,
    ) -> Result<Option<Result<ModelFile, FileError>>, ModelError> {
        let found = self.candidates(written)?.into_iter().find_map(|(name, backend)| {
            let named = folder.join(name);
            let is_accepted = || self.accepts_files_in(&*backend, folder);
            (self.is_there(&named) && is_accepted()).then(|| {
                resolve(&self.root, &named).map(|below| ModelFile {
                    path: self.root.path(&below),
                    below,
                    named: named.clone(),
                    folder: folder.to_owned(),
                    backend,
                })
            })
        });
        Ok(found)
    }

    /// Returns whether a directory entry exists at the path `named`, even if the entry is a dangling link.
    pub(crate) fn is_there(&self, named: &Path) -> bool {
        let (folder, name) = (named.parent().unwrap_or(Path::new("")), named.file_name());
        match self.root.resolve(folder) {
            Ok(PathTarget::Inside(real)) => self.root.stat(&real.join(name.unwrap_or_default())).is_ok(),
            Ok(PathTarget::Outside) => self.root.path(named).symlink_metadata().is_ok(),
            Err(_) => false,
        }
    }

    /// Returns the file names that a model with this configuration may have, with their backends, in the
    /// order of backends.
    pub(crate) fn candidates<'w>(
        &'w self,
        written: &'w WrittenConfig,
    ) -> Result<Vec<Candidate<'w>>, ModelError> {
        let named = written.backend_name();
        let is_named = |backend: &&Arc<dyn Backend>| {
            named.is_none_or(|(_, name)| backend.name() == name || backend.other_names().contains(&name))
        };
        let backends: Vec<_> = self.backends.iter().filter(is_named).collect();
        if let Some((field, name)) = named.filter(|_| backends.is_empty()) {
            return Err(ModelError::UnknownBackend {
                field,
                name: name.to_owned(),
                known: self.backends.iter().map(|backend| backend.name()).collect(),
            });
        }
        let configured = &written.config.default_model_filename;
        let file = self.only_file.as_ref().unwrap_or(configured).as_str();
        if file.is_empty() {
            let files = backends
                .into_iter()
                .flat_map(|backend| backend.file_names().iter().map(|name| (*name, backend.clone())));
            return Ok(files.collect());
        }
        let extension = |name: &str| Path::new(name).extension().map(ToOwned::to_owned);
        let has_extension = |backend: &&Arc<dyn Backend>| {
            let mut names = backend.file_names().iter();
            names.any(|name| extension(name) == extension(file))
        };
        let mut able: Vec<_> = backends.iter().copied().filter(has_extension).collect();
        if let ([], [only]) = (&able[..], &backends[..]) {
            able.push(only);
        }
        if able.is_empty() {
            return Err(ModelError::NoBackend {
                file: file.to_owned(),
            });
        }
        Ok(able
            .into_iter()
            .map(|backend| (file, Arc::clone(backend)))
            .collect())
    }
}

/// Lists the subdirectories in sorted order. Hidden subdirectories are skipped.
pub(crate) fn subfolders(root: &Root, folder: &Path) -> io::Result<Vec<String>> {
    let mut found = Vec::new();
    for (name, kind) in root.list(folder)? {
        let below = folder.join(&name);
        let leads_to_folder = || match root.resolve(&below) {
            Ok(PathTarget::Inside(real)) => root.stat(&real).is_ok_and(|stat| is_folder(&stat)),
            // A link out of the repository is listed, so that clients see the reason why it is not served.
            Ok(PathTarget::Outside) => root.path(&below).is_dir(),
            Err(_) => false,
        };
        let is_dir = kind == FileType::Directory || kind == FileType::Symlink && leads_to_folder();
        if is_dir {
            found.push(name.to_string_lossy().into_owned());
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
