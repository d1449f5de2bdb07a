//! The folder of one model: its versions, files and configuration, found without leaving the repository.

use std::{
    cell::RefCell,
    io,
    path::{Component, Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;
use model_config::{HuggingFaceConfig, Syntax, WrittenConfig};
use oip_service::{Backend, ModelFiles, available_memory};
use oip_types::{ServiceError, check_name, model_config::VersionPolicy};
use rustix::fs::FileType;
use tensor_mmap::Promise;

use crate::load::{
    digests::RequiredDigests,
    error::{FileError, LoadError, Misnamed},
    files::{Digest, DigestBy, Part, Snapshot, length, map, read, resolve},
    foreign::framework,
    root::{Resolved, Root, is_folder},
    version_key::VersionKey,
};

/// The folder of one model.
#[derive(Clone)]
pub(crate) struct ModelFolder {
    /// The repository's folder.
    pub(crate) root: Arc<Root>,
    pub(crate) backends: Arc<[Arc<dyn Backend>]>,
    pub(crate) name: String,
    /// Where it is in the repository's folder; there are no links on this path.
    pub(crate) below: PathBuf,
    pub(crate) has_versions: bool,
    /// The file that is all of the model, whatever else is in the folder.
    pub(crate) only_file: Option<String>,
    pub(crate) digests: Option<Arc<RequiredDigests>>,
}

/// A version that was found in a model's folder. A model without versions is one, without a name.
pub(crate) struct FoundVersion {
    pub(crate) version: Option<String>,
    /// Its content, or why it cannot be used.
    pub(crate) content: Result<Content, LoadError>,
}

/// What a version of a model is made of.
pub(crate) enum Content {
    /// A file.
    File(FoundFile),
    /// Other models, by the configuration.
    Pipeline,
}

/// A model's file and what loads it.
#[derive(Clone)]
pub(crate) struct FoundFile {
    /// Where it is in the repository's folder; there are no links on this path.
    below: PathBuf,
    /// The same before links were resolved.
    named: PathBuf,
    /// Its path for messages and backends.
    pub(crate) path: PathBuf,
    /// The folder where it was found, which links are not resolved in.
    folder: PathBuf,
    pub(crate) backend: Arc<dyn Backend>,
}

/// A name that a model's file may have, and what loads it.
type Candidate<'w> = (&'w str, Arc<dyn Backend>);

impl ModelFolder {
    /// All of its files as they are now.
    ///
    /// # Errors
    /// Why they cannot be looked at.
    pub(crate) fn snapshot(&self) -> Result<Snapshot, FileError> {
        match &self.only_file {
            Some(file) => Ok(Snapshot::of_file(&self.root, Path::new(file))),
            None => Snapshot::take(&self.root, &self.below),
        }
    }

    /// A digest of some of its files, as they were when it was looked at.
    pub(crate) fn digest(&self, snapshot: &Snapshot, part: Part<'_>, by: DigestBy) -> Digest {
        snapshot.digest(&self.root, part, by)
    }

    /// Its configuration; the default if there is none.
    ///
    /// # Errors
    /// Which file is wrong, where, and why.
    pub(crate) fn configuration(&self) -> Result<WrittenConfig, LoadError> {
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
                return Err(LoadError::TwoConfigurations { first, second });
            }
        };
        let bytes = self.read(&[name], WrittenConfig::MAX_BYTES as u64)?;
        let text = std::str::from_utf8(&bytes).map_err(|_| FileError::NotUtf8 {
            name: name.to_owned(),
        })?;
        WrittenConfig::read(text, syntax).map_err(|source| LoadError::Configuration {
            file: name,
            source: source.into(),
        })
    }

    /// Whether it has a file that is called as a configuration, of this server or of the Hugging Face format.
    pub(crate) fn has_configuration(&self) -> bool {
        let mut files = WrittenConfig::FILES.iter();
        files.any(|(name, _)| self.root.stat(&self.below.join(name)).is_ok())
    }

    /// The files of this server's configurations in a directory below it that it does not read.
    pub(crate) fn ignored_configurations(&self, directory: &str) -> Vec<&'static str> {
        let is_there = |name: &&str| self.root.stat(&self.below.join(directory).join(name)).is_ok();
        // A config.json is the business of many programs.
        let files = WrittenConfig::FILES.iter();
        let files = files.filter(|(_, syntax)| *syntax != Syntax::Json);
        files.map(|(name, _)| *name).filter(is_there).collect()
    }

    /// The `config.json` in it, or in a directory below it, if that has the Hugging Face format.
    fn hugging_face(&self, directory: &[&str]) -> Option<HuggingFaceConfig> {
        let names = [directory, &["config.json"]].concat();
        let bytes = self.read(&names, HuggingFaceConfig::MAX_BYTES as u64).ok()?;
        HuggingFaceConfig::recognize(std::str::from_utf8(&bytes).ok()?)
    }

    /// Why it is not served as a Hugging Face model, if it is one: `weights` is the file of it that was found.
    fn unexported(&self, version: Option<&str>, weights: Option<&FoundFile>) -> Option<LoadError> {
        let in_version = version.and_then(|version| self.hugging_face(&[version]));
        let model = in_version.or_else(|| self.hugging_face(&[]))?.model;
        let export = ["onnx", "model.onnx"];
        Some(LoadError::NotExported {
            model,
            weights: weights.map(|file| (FileError::name(&file.named), file.backend.name())),
            exported: self.has(&export).then(|| export.join("/")),
        })
    }

    /// The content of a version with a file. Weights without the network that they belong to are served only when asked for.
    fn content(
        &self,
        version: Option<&str>,
        file: Result<FoundFile, FileError>,
        written: &WrittenConfig,
    ) -> Result<Content, LoadError> {
        let file = file.map_err(LoadError::File)?;
        let is_asked_for = self.only_file.is_some()
            || written.backend_name().is_some()
            || !written.config.default_model_filename.is_empty();
        let unexported = (file.backend.holds_weights_only() && !is_asked_for)
            .then(|| self.unexported(version, Some(&file)))
            .flatten();
        unexported.map_or(Ok(Content::File(file)), Err)
    }

    /// Whether something is there below it, by these names.
    pub(crate) fn has(&self, names: &[&str]) -> bool {
        let path = names
            .iter()
            .fold(self.below.clone(), |path, name| path.join(name));
        names.iter().all(|name| check_name("file name", name).is_ok()) && self.is_there(&path)
    }

    /// Reads a file below it, if it has at most so many bytes.
    ///
    /// # Errors
    /// What is wrong with the file.
    pub(crate) fn read(&self, names: &[&str], most: u64) -> Result<Bytes, FileError> {
        let mut path = self.below.clone();
        for name in names {
            check_name("file name", name).map_err(FileError::Name)?;
            path.push(name);
        }
        let content = read(&self.root, &resolve(&self.root, &path)?, most)?;
        self.trusted(&path, content)
    }

    /// Checks what was read against the list of digests: the bytes themselves, so that a file which is exchanged meanwhile makes
    /// no difference.
    fn trusted(&self, named: &Path, content: Bytes) -> Result<Bytes, FileError> {
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

    /// Maps a model's file that was found before, with a promise that it stays as it is, or else reads it, if the memory that
    /// is left can take it.
    ///
    /// # Errors
    /// What is wrong with the file.
    pub(crate) fn open_model(&self, file: &FoundFile, mapping: Option<Promise>) -> Result<Bytes, FileError> {
        let content = self.open(&file.below, mapping)?;
        self.trusted(&file.named, content)
    }

    /// The files in the directory of a model's file, to be opened under the same rules.
    pub(crate) fn files_beside(&self, file: &FoundFile, mapping: Option<Promise>) -> FilesBeside<'_> {
        FilesBeside::new(self, file.folder.clone(), mapping)
    }

    /// Opens a file at a path below a directory of the model, under the rules of the model's file.
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

    fn open(&self, below: &Path, mapping: Option<Promise>) -> Result<Bytes, FileError> {
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

    /// Checks the name that a configuration has for the model. That of a model without versions can come from elsewhere.
    ///
    /// # Errors
    /// When it is another than the folder's.
    pub(crate) fn check_name(&self, written: &WrittenConfig) -> Result<(), LoadError> {
        match written.config.name.as_str() {
            name if self.is_repository() || name.is_empty() || name == self.name => Ok(()),
            other => Err(LoadError::ConfiguredName {
                found: other.to_owned(),
            }),
        }
    }

    /// Whether it is all of its repository, rather than one of the folders in it.
    fn is_repository(&self) -> bool {
        self.below.as_os_str().is_empty()
    }

    /// Whether it has a folder for a version.
    pub(crate) fn has_version(&self, version: &str) -> bool {
        let is_dir = |real: &Path| self.root.stat(real).is_ok_and(|stat| is_folder(&stat));
        let resolved = self.root.resolve(&self.below.join(version));
        self.has_versions && matches!(resolved, Ok(Resolved::Inside(real)) if is_dir(&real))
    }

    /// The versions that a configuration wants to have served, lowest first.
    ///
    /// # Errors
    /// Why there are none.
    pub(crate) fn versions(&self, written: &WrittenConfig) -> Result<Vec<FoundVersion>, LoadError> {
        if written.is_pipeline() {
            return self.pipeline_versions(written);
        }
        if !self.has_versions {
            let file = self.model_file(&self.below, written)?;
            let content = match file {
                Some(file) => self.content(None, file, written),
                None => Err(self.why_no_file(written).unwrap_or_else(|error| error)),
            };
            return Ok(vec![FoundVersion {
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
                    "ignoring a version folder whose name is not safe in a URL"
                );
            }
            is_safe
        });
        folders.sort_by_cached_key(|version| VersionKey::new(version));
        let (mut found, mut without_file) = (Vec::new(), Vec::new());
        for version in folders {
            match self.model_file(&self.below.join(&version), written)? {
                Some(file) => found.push(FoundVersion {
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
                "ignoring a version folder without a model file"
            );
        }
        self.select(found, &written.config.version_policy)
    }

    /// The versions of a pipeline, whose folders are empty and only give their numbers. Tools that keep no empty folders
    /// lose them, so there is a version 1 when there is no other.
    fn pipeline_versions(&self, written: &WrittenConfig) -> Result<Vec<FoundVersion>, LoadError> {
        let mut folders = self.subfolders()?;
        folders.retain(|version| version.bytes().all(|byte| byte.is_ascii_digit()));
        folders.sort_by_cached_key(|version| VersionKey::new(version));
        if folders.is_empty() {
            folders.push("1".to_owned());
        }
        let found = folders.into_iter().map(|version| FoundVersion {
            version: Some(version),
            content: Ok(Content::Pipeline),
        });
        self.select(found.collect(), &written.config.version_policy)
    }

    fn subfolders(&self) -> Result<Vec<String>, LoadError> {
        subfolders(&self.root, &self.below).map_err(LoadError::Folder)
    }

    /// Leaves the versions that a policy wants.
    fn select(
        &self,
        mut found: Vec<FoundVersion>,
        policy: &VersionPolicy,
    ) -> Result<Vec<FoundVersion>, LoadError> {
        match policy {
            VersionPolicy::All {} => {}
            VersionPolicy::Latest { num_versions } => {
                let surplus = found.len().saturating_sub(*num_versions as usize);
                found.drain(..surplus);
            }
            VersionPolicy::Specific { versions } => {
                let wanted: Vec<String> = versions.iter().map(ToString::to_string).collect();
                let is_wanted =
                    |found: &FoundVersion| found.version.as_ref().is_some_and(|found| wanted.contains(found));
                found.retain(is_wanted);
                for missing in wanted
                    .iter()
                    .filter(|wanted| found.iter().all(|found| found.version.as_ref() != Some(wanted)))
                {
                    tracing::warn!(
                        model = self.name,
                        version = missing,
                        "a version of the version policy is not there"
                    );
                }
                if found.is_empty() {
                    return Err(LoadError::NoWantedVersion { wanted });
                }
            }
        }
        Ok(found)
    }

    /// Whether a backend takes its directory for one of its models.
    pub(crate) fn is_accepted(&self, backend: &dyn Backend) -> bool {
        backend.accepts(&FilesBeside::new(self, self.below.clone(), None))
    }

    /// Whether its file stands right in it.
    pub(crate) fn has_model_file(&self, written: &WrittenConfig) -> bool {
        self.model_file(&self.below, written)
            .is_ok_and(|file| file.is_some())
    }

    /// The model file of a version folder and its backend, if there is one.
    fn model_file(
        &self,
        folder: &Path,
        written: &WrittenConfig,
    ) -> Result<Option<Result<FoundFile, FileError>>, LoadError> {
        let found = self.candidates(written)?.into_iter().find_map(|(name, backend)| {
            let named = folder.join(name);
            let is_accepted = || backend.accepts(&FilesBeside::new(self, folder.to_owned(), None));
            (self.is_there(&named) && is_accepted()).then(|| {
                resolve(&self.root, &named).map(|below| FoundFile {
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

    /// Whether something has this name below the repository's folder, a link that leads nowhere included.
    fn is_there(&self, named: &Path) -> bool {
        let (folder, name) = (named.parent().unwrap_or(Path::new("")), named.file_name());
        match self.root.resolve(folder) {
            Ok(Resolved::Inside(real)) => self.root.stat(&real.join(name.unwrap_or_default())).is_ok(),
            Ok(Resolved::Outside) => self.root.path(named).symlink_metadata().is_ok(),
            Err(_) => false,
        }
    }

    /// The files that may be the model, with what loads each, under a configuration; those of the first backend first.
    fn candidates<'w>(&'w self, written: &'w WrittenConfig) -> Result<Vec<Candidate<'w>>, LoadError> {
        let named = written.backend_name();
        let is_named = |backend: &&Arc<dyn Backend>| {
            named.is_none_or(|(_, name)| backend.name() == name || backend.other_names().contains(&name))
        };
        let backends: Vec<_> = self.backends.iter().filter(is_named).collect();
        if let Some((field, name)) = named.filter(|_| backends.is_empty()) {
            return Err(LoadError::UnknownBackend {
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
            return Err(LoadError::NoBackend {
                file: file.to_owned(),
            });
        }
        Ok(able
            .into_iter()
            .map(|backend| (file, Arc::clone(backend)))
            .collect())
    }

    fn describe_files(&self, written: &WrittenConfig) -> Result<String, LoadError> {
        /// More names than these nobody reads.
        const NAMED: usize = 4;
        let mut files: Vec<&str> = Vec::new();
        for (name, _) in self.candidates(written)? {
            if !files.contains(&name) && !name.contains('/') {
                files.push(name);
            }
        }
        Ok(match files.len() {
            0..=NAMED => files.join(" or "),
            all => format!("{} or another of the {all} names of model files", files[0]),
        })
    }

    /// A folder in it that is a model with versions, as a repository has them.
    fn inner_model(&self, written: &WrittenConfig) -> Option<String> {
        let is_model = |name: &String| {
            let folder = self.below.join(name);
            let versions = subfolders(&self.root, &folder).unwrap_or_default();
            let mut versions = versions
                .into_iter()
                .filter(|version| version.bytes().all(|byte| byte.is_ascii_digit()));
            versions.any(|version| {
                let file = self.model_file(&folder.join(version), written);
                file.is_ok_and(|file| file.is_some())
            })
        };
        self.subfolders().ok()?.into_iter().find(is_model)
    }

    /// Why a model without versions has no file.
    fn why_no_file(&self, written: &WrittenConfig) -> Result<LoadError, LoadError> {
        let unexported = self.unexported(None, None);
        let missing = || {
            Ok(LoadError::NoFile {
                files: self.describe_files(written)?,
                misnamed: self.misnamed(written, None)?,
            })
        };
        unexported.map_or_else(missing, Ok)
    }

    fn why_empty(&self, written: &WrittenConfig, version: Option<&String>) -> Result<LoadError, LoadError> {
        if let Some(model) = self.inner_model(written) {
            return Ok(LoadError::FolderOfModels { model });
        }
        let misplaced = self.model_file(&self.below, written)?.and_then(Result::ok);
        let weights = misplaced
            .as_ref()
            .filter(|file| file.backend.holds_weights_only());
        let is_weights = weights.is_some() || misplaced.is_none();
        if let Some(unexported) = self
            .unexported(version.map(String::as_str), weights)
            .filter(|_| is_weights)
        {
            return Ok(unexported);
        }
        let files = self.describe_files(written)?;
        let is_misplaced = self.model_file(&self.below, written)?.is_some();
        let misnamed = self.misnamed(written, version)?;
        Ok(match version.cloned() {
            None => LoadError::NoVersion {
                files,
                is_misplaced,
                misnamed,
            },
            Some(version) => LoadError::EmptyVersion {
                version,
                files,
                is_misplaced,
                misnamed,
            },
        })
    }

    /// A file in the version's folder, or else in the model's, that has the extension of a model but not the name, or is
    /// another framework's.
    fn misnamed(
        &self,
        written: &WrittenConfig,
        version: Option<&String>,
    ) -> Result<Option<Misnamed>, LoadError> {
        let candidates = self.candidates(written)?;
        let wanted = |found: &str| {
            let extension = Path::new(found).extension()?;
            // Ordinary texts end in these.
            let is_telling = extension != "json" && extension != "txt";
            let mut names = candidates.iter().map(|(name, _)| *name);
            names.find(|name| is_telling && Path::new(name).extension() == Some(extension))
        };
        let place = |folder: &str, file: &str| Path::new(folder).join(file).display().to_string();
        let mut foreign = None;
        let folders = [version.map(String::as_str), Some("")];
        for folder in folders.into_iter().flatten() {
            let entries = self.root.list(&self.below.join(folder)).unwrap_or_default();
            let mut names = entries.iter().map(|(name, _)| name.to_string_lossy());
            foreign = foreign.or_else(|| {
                names.find_map(|name| {
                    Some(Misnamed::Foreign {
                        framework: framework(&name)?,
                        found: place(folder, &name),
                    })
                })
            });
            let mut files: Vec<String> = entries
                .into_iter()
                .filter(|(_, kind)| *kind == FileType::RegularFile)
                .map(|(name, _)| name.to_string_lossy().into_owned())
                .collect();
            files.sort();
            let found = files.into_iter().find_map(|file| Some((wanted(&file)?, file)));
            if let Some((wanted, file)) = found {
                let version = match self.has_versions {
                    true => version.map_or("1", String::as_str),
                    false => "",
                };
                return Ok(Some(Misnamed::Known {
                    found: place(folder, &file),
                    wanted: place(version, wanted),
                }));
            }
        }
        Ok(foreign)
    }
}

/// The files of a model's directory as a backend asks for them.
pub(crate) struct FilesBeside<'f> {
    model: &'f ModelFolder,
    folder: PathBuf,
    mapping: Option<Promise>,
    /// The first file that could not be read.
    failed: RefCell<Option<FileError>>,
}

impl<'f> FilesBeside<'f> {
    fn new(model: &'f ModelFolder, folder: PathBuf, mapping: Option<Promise>) -> Self {
        Self {
            model,
            folder,
            mapping,
            failed: RefCell::default(),
        }
    }

    /// Why a file could not be read, if that is what a backend failed for.
    pub(crate) fn into_failure(self) -> Option<FileError> {
        self.failed.into_inner()
    }
}

impl ModelFiles for FilesBeside<'_> {
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

/// Whether a path leads down from its directory by names alone.
fn is_inner_path(path: &str) -> bool {
    let mut parts = Path::new(path).components();
    let is_plain = parts.clone().next().is_some() && parts.all(|part| matches!(part, Component::Normal(_)));
    is_plain && !path.ends_with('/')
}

/// The names of the folders in a folder, in order, without hidden ones and without what is no folder.
pub(crate) fn subfolders(root: &Root, folder: &Path) -> io::Result<Vec<String>> {
    let mut found = Vec::new();
    for (name, kind) in root.list(folder)? {
        let below = folder.join(&name);
        let leads_to_folder = || match root.resolve(&below) {
            Ok(Resolved::Inside(real)) => root.stat(&real).is_ok_and(|stat| is_folder(&stat)),
            // It is shown, with the reason why it is not served.
            Ok(Resolved::Outside) => root.path(&below).is_dir(),
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
