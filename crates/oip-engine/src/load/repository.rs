use std::{
    ffi::{OsStr, OsString},
    fmt, io,
    path::{Component, Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;
use model_config::{Syntax, WrittenConfig};
use oip_service::{Backend, available_memory};
use oip_types::{check_name, model_config::VersionPolicy};
use rustix::fs::FileType;
use tensor_mmap::Promise;

use crate::load::{
    digests::RequiredDigests,
    error::{FileError, LoadError},
    files::{Digest, DigestBy, Part, Snapshot, length, map, read, resolve},
    root::{Resolved, Root, is_file, is_folder},
    upstream::Upstream,
    version_key::VersionKey,
};

/// A folder with models, and what loads them.
pub struct Repository {
    /// Opened anew for every look, so that another folder may take its place. None for an engine whose models are all given to
    /// it.
    path: Option<PathBuf>,
    backends: Arc<[Arc<dyn Backend>]>,
    /// The model's name in KServe's layout, where the folder is the model, or of a file that is one.
    single_model: Option<String>,
    /// The file that is all of the model, where the repository is one.
    only_file: Option<String>,
    /// What keeps the folder up to date, where that is not the operator.
    upstream: Option<Arc<dyn Upstream>>,
    /// Without it every file is trusted.
    digests: Option<Arc<RequiredDigests>>,
}

impl Repository {
    /// Opens a folder, in which `backends` say by name which files are theirs. Models are looked for when they are
    /// loaded.
    ///
    /// A folder with a model file in it is one model without versions, called `single_model_name`, or else as its
    /// configuration says, or else after the folder. A file is one model too, called `single_model_name`, or else after
    /// the file; no configuration beside it is read. Any other folder is a repository: `<model>/<version>/<file>`. Hidden folders are passed over. What is
    /// no model but stands where one should is shown with the reason.
    ///
    /// # Errors
    /// [`RepositoryError`] when the folder cannot be read.
    pub fn open(
        root: &Path,
        backends: &[Arc<dyn Backend>],
        single_model_name: Option<&str>,
    ) -> Result<Self, RepositoryError> {
        let fail = |source| RepositoryError {
            path: root.to_owned(),
            source,
        };
        let path = std::path::absolute(root).map_err(fail)?;
        let is_known = |file: &Path| {
            let mut names = backends.iter().flat_map(|backend| backend.file_names());
            file.is_file() && names.any(|name| Path::new(name).extension() == file.extension())
        };
        if is_known(&path) {
            let path = path.canonicalize().map_err(fail)?;
            return Ok(Self::of_file(&path, backends, single_model_name));
        }
        let open = Arc::new(Root::open(&path).map_err(fail)?);
        open.list(Path::new("")).map_err(fail)?;
        let mut repository = Self {
            path: Some(path.clone()),
            backends: backends.into(),
            single_model: None,
            only_file: None,
            upstream: None,
            digests: None,
        };
        let folder = repository.model_folder(&open, "", Path::new(""), false);
        // What is wrong with a configuration is said when the model is loaded.
        let written = folder.configuration().unwrap_or_default();
        if folder
            .model_file(&folder.below, &written)
            .is_ok_and(|file| file.is_some())
        {
            // The folder's own name rather than that of a link to it, if it has one here.
            let real = path.canonicalize().unwrap_or(path);
            let folder = real.file_name().map(|name| name.to_string_lossy().into_owned());
            let configured = Some(written.config.name).filter(|name| check_name("model name", name).is_ok());
            let name = single_model_name.map(str::to_owned).or(configured).or(folder);
            repository.single_model = Some(name.unwrap_or_else(|| "model".to_owned()));
        }
        Ok(repository)
    }

    /// A repository without a folder, in which there is nothing.
    pub(crate) fn empty() -> Self {
        Self {
            path: None,
            backends: Arc::new([]),
            single_model: None,
            only_file: None,
            upstream: None,
            digests: None,
        }
    }

    /// The repository of one file, by its path without links.
    fn of_file(path: &Path, backends: &[Arc<dyn Backend>], name: Option<&str>) -> Self {
        let text = |part: Option<&OsStr>| part.unwrap_or_default().to_string_lossy().into_owned();
        let stem = Some(text(path.file_stem())).filter(|name| check_name("model name", name).is_ok());
        let name = name.map(str::to_owned).or(stem);
        Self {
            path: Some(path.parent().unwrap_or(path).to_owned()),
            backends: backends.into(),
            single_model: Some(name.unwrap_or_else(|| "model".to_owned())),
            only_file: Some(text(path.file_name())),
            upstream: None,
            digests: None,
        }
    }

    /// The same, of a folder that something keeps as models are somewhere else: it is asked before each poll, and before a
    /// model is loaded because a client wants that.
    #[must_use]
    pub fn with_upstream(mut self, upstream: Arc<dyn Upstream>) -> Self {
        self.upstream = Some(upstream);
        self
    }

    /// The same, of which only files are used whose bytes have the digest that a list says. Files are listed by their path
    /// below the folder; of a repository that is one file, by its name.
    #[must_use]
    pub fn with_required_digests(mut self, digests: RequiredDigests) -> Self {
        self.digests = Some(Arc::new(digests));
        self
    }

    /// Has the folder brought up to date, all of it or what concerns a model.
    pub(crate) fn refresh(&self, model: Option<&str>) {
        if let Some(upstream) = &self.upstream {
            upstream.refresh(model);
        }
    }

    /// Why what stands in the folder for a model is not the model.
    pub(crate) fn upstream_failure(&self, model: &str) -> Option<String> {
        self.upstream.as_ref()?.failure(model)
    }

    /// The files right in a repository's folder that look like models but are not served from there: each belongs into
    /// a folder of its own. Hidden ones are passed over.
    #[must_use]
    pub fn misplaced_files(&self) -> Vec<String> {
        let Some(path) = self.path.as_deref().filter(|_| self.single_model.is_none()) else {
            return Vec::new();
        };
        let extension = |name: &str| Path::new(name).extension().map(ToOwned::to_owned);
        let names = self.backends.iter().flat_map(|backend| backend.file_names());
        // What ordinary texts are called like says nothing.
        let is_telling = |extension: &OsString| extension != "json" && extension != "txt";
        let known: Vec<_> = names
            .filter_map(|name| extension(name))
            .filter(is_telling)
            .collect();
        let entries = Root::open(path).and_then(|root| root.list(Path::new("")));
        let files = entries.unwrap_or_default().into_iter();
        let files = files.filter(|(_, kind)| *kind == FileType::RegularFile);
        let names = files.map(|(name, _)| name.to_string_lossy().into_owned());
        names
            .filter(|name| extension(name).is_some_and(|extension| known.contains(&extension)))
            .collect()
    }

    /// The names of all models, in order.
    ///
    /// # Errors
    /// When the folder cannot be read.
    pub fn model_names(&self) -> io::Result<Vec<String>> {
        match (&self.single_model, &self.path) {
            (Some(name), _) => Ok(vec![name.clone()]),
            (None, Some(path)) => subfolders(&Root::open(path)?, Path::new("")),
            (None, None) => Ok(Vec::new()),
        }
    }

    /// A model's folder; `None` when there is no such model.
    ///
    /// # Errors
    /// Why it cannot be used, when it is there.
    pub(crate) fn folder(&self, name: &str) -> Result<Option<ModelFolder>, LoadError> {
        let Some(path) = &self.path else {
            return Ok(None);
        };
        let root = Root::open(path).map(Arc::new).map_err(LoadError::Repository)?;
        if let Some(single) = &self.single_model {
            return Ok((single == name).then(|| self.model_folder(&root, name, Path::new(""), false)));
        }
        check_name("model name", name).map_err(LoadError::Name)?;
        let below = Path::new(name);
        let real = match root.resolve(below) {
            Ok(Resolved::Inside(real)) => real,
            Ok(Resolved::Outside) if root.path(below).is_file() => return Ok(None),
            Ok(Resolved::Outside) => return Err(LoadError::FolderOutside),
            // Nothing stands there under this name, unless it is a dangling link.
            Err(error) if error.kind() == io::ErrorKind::NotFound && root.stat(below).is_err() => {
                return Ok(None);
            }
            Err(error) => return Err(LoadError::Folder(error)),
        };
        match root.stat(&real).map_err(LoadError::Folder)? {
            stat if is_file(&stat) => Ok(None),
            _ => Ok(Some(self.model_folder(&root, name, &real, true))),
        }
    }

    fn model_folder(&self, root: &Arc<Root>, name: &str, below: &Path, has_versions: bool) -> ModelFolder {
        ModelFolder {
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

/// The folder of one model.
#[derive(Clone)]
pub(crate) struct ModelFolder {
    /// The repository's folder.
    root: Arc<Root>,
    backends: Arc<[Arc<dyn Backend>]>,
    name: String,
    /// Where it is in the repository's folder; there are no links on this path.
    below: PathBuf,
    has_versions: bool,
    /// The file that is all of the model, whatever else is in the folder.
    only_file: Option<String>,
    digests: Option<Arc<RequiredDigests>>,
}

/// A version that was found in a model's folder. A model without versions is one, without a name.
pub(crate) struct FoundVersion {
    pub(crate) version: Option<String>,
    /// What it is made of, or why it is nothing.
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
    /// What it is called outside of this program.
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

    /// What its configuration says; nothing where there is none.
    ///
    /// # Errors
    /// Which file is wrong, where, and why.
    pub(crate) fn configuration(&self) -> Result<WrittenConfig, LoadError> {
        if self.only_file.is_some() {
            return Ok(WrittenConfig::default());
        }
        let is_there = |file: &&(&str, Syntax)| self.root.stat(&self.below.join(file.0)).is_ok();
        let files: Vec<_> = WrittenConfig::FILES.iter().filter(is_there).collect();
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

    /// Holds what was read against the list of digests: the bytes themselves, so that a file which is exchanged meanwhile makes
    /// no difference.
    fn trusted(&self, named: &Path, content: Bytes) -> Result<Bytes, FileError> {
        if let Some(digests) = &self.digests {
            let below = named.strip_prefix(&self.below).unwrap_or(named);
            let listed = match self.has_versions {
                true => Path::new(&self.name).join(below),
                false => below.to_owned(),
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

    /// Opens another file in the folder of a model's file, under the same rules.
    ///
    /// # Errors
    /// What is wrong with the name or the file.
    pub(crate) fn open_beside(
        &self,
        file: &FoundFile,
        name: &str,
        mapping: Option<Promise>,
    ) -> Result<Bytes, FileError> {
        let mut parts = Path::new(name).components();
        let is_name = matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None));
        if !is_name || name.ends_with('/') {
            return Err(FileError::NoName {
                name: name.to_owned(),
            });
        }
        let named = file.folder.join(name);
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
            name if !self.has_versions || name.is_empty() || name == self.name => Ok(()),
            other => Err(LoadError::ConfiguredName {
                found: other.to_owned(),
            }),
        }
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
                Some(file) => file.map(Content::File).map_err(LoadError::File),
                None => Err(self
                    .describe_files(written)
                    .map_or_else(|error| error, |files| LoadError::NoFile { files })),
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
                    version: Some(version),
                    content: file.map(Content::File).map_err(LoadError::File),
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

    /// The versions of a pipeline, whose folders are empty and are told by their numbers. Tools that keep no empty folders
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

    /// The model file of a version folder and its backend, if there is one.
    fn model_file(
        &self,
        folder: &Path,
        written: &WrittenConfig,
    ) -> Result<Option<Result<FoundFile, FileError>>, LoadError> {
        let found = self.candidates(written)?.into_iter().find_map(|(name, backend)| {
            let named = folder.join(name);
            self.is_there(&named).then(|| {
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
        let has_extension = |backend: &&&Arc<dyn Backend>| {
            backend
                .file_names()
                .iter()
                .any(|name| extension(name) == extension(file))
        };
        let by_extension = backends.iter().find(has_extension).or(match &backends[..] {
            [only] => Some(only),
            _ => None,
        });
        match by_extension {
            Some(backend) => Ok(vec![(file, Arc::clone(backend))]),
            None => Err(LoadError::NoBackend {
                file: file.to_owned(),
            }),
        }
    }

    fn describe_files(&self, written: &WrittenConfig) -> Result<String, LoadError> {
        let files: Vec<&str> = self
            .candidates(written)?
            .into_iter()
            .map(|(name, _)| name)
            .collect();
        Ok(files.join(" or "))
    }

    fn why_empty(&self, written: &WrittenConfig, version: Option<&String>) -> Result<LoadError, LoadError> {
        let files = self.describe_files(written)?;
        let is_misplaced = self.model_file(&self.below, written)?.is_some();
        Ok(match version.cloned() {
            None => LoadError::NoVersion { files, is_misplaced },
            Some(version) => LoadError::EmptyVersion {
                version,
                files,
                is_misplaced,
            },
        })
    }
}

/// The names of the folders in a folder, in order, without hidden ones and without what is no folder.
fn subfolders(root: &Root, folder: &Path) -> io::Result<Vec<String>> {
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
            io::ErrorKind::NotADirectory => write!(
                f,
                "the model repository {path} is neither a folder nor, by its extension, a model's file"
            ),
            _ => write!(f, "the model repository {path} cannot be read: {}", self.source),
        }
    }
}

impl std::error::Error for RepositoryError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}
