//! Typed errors, with sources, for files, models and versions of a repository that cannot be used.

use std::{io, path::Path};

use model_config::ConfigError;
use oip_types::ServiceError;
use tensor_core::QuotedName;
use thiserror::Error;

/// The reason why a file of a repository cannot be used. Messages contain the file's name, not its resolved
/// path.
///
/// ```
/// use std::path::Path;
/// use model_repository::FileError;
///
/// let name = FileError::name(Path::new("digits/labels.txt"));
/// assert_eq!(FileError::NotUtf8 { name }.to_string(), "labels.txt is not UTF-8");
/// ```
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FileError {
    /// A model requests a path that is not a file name in its directory.
    #[error(
        "it refers to {}, which is not a file name in its directory",
        QuotedName(name)
    )]
    NoName {
        /// The path.
        name: String,
    },
    /// The name is malformed.
    #[error("{0}")]
    Name(#[source] ServiceError),
    /// The file does not exist, or the server may not open it.
    #[error("{name} cannot be opened: {}", source.kind())]
    Open {
        /// Name of the file.
        name: String,
        /// The operating system's error.
        source: io::Error,
    },
    /// The file was opened, but reading it failed.
    #[error("{name} cannot be read: {}", source.kind())]
    Read {
        /// Name of the file.
        name: String,
        /// The operating system's error.
        source: io::Error,
    },
    /// The file was opened, but mapping it into memory failed.
    #[error("{name} cannot be mapped: {}", source.kind())]
    Map {
        /// Name of the file.
        name: String,
        /// The operating system's error.
        source: io::Error,
    },
    /// A directory cannot be listed.
    #[error("the directory {name} cannot be read: {}", source.kind())]
    Directory {
        /// Name of the directory.
        name: String,
        /// The operating system's error.
        source: io::Error,
    },
    /// A symbolic link leads out of the repository.
    #[error(
        "{name} is a link that leads out of the repository (--repository-also allows directories that links \
         may lead to)"
    )]
    Outside {
        /// Name of the link.
        name: String,
    },
    /// The path is a directory, a FIFO, a socket or a device.
    #[error("{name} is not a regular file")]
    NotRegular {
        /// Name of the file.
        name: String,
    },
    /// The file exceeds the size limit for files of its kind.
    #[error("{name} is larger than {limit} bytes")]
    TooLarge {
        /// Name of the file.
        name: String,
        /// Maximum size in bytes.
        limit: u64,
    },
    /// The file does not fit into memory.
    #[error("{name} has {length} bytes, but only {left} bytes of memory are left")]
    NoMemory {
        /// Name of the file.
        name: String,
        /// Size in bytes.
        length: u64,
        /// Free memory in bytes.
        left: u64,
    },
    /// A text file is not UTF-8.
    #[error("{name} is not UTF-8")]
    NotUtf8 {
        /// Name of the file.
        name: String,
    },
    /// The file's digest differs from the one in [`RequiredDigests`](crate::RequiredDigests).
    #[error("{name} has the SHA-256 {found}, but {list} demands {expected} for {listed}")]
    Digest {
        /// Name of the file.
        name: String,
        /// Path of the file as written in the list.
        listed: String,
        /// Digest in the list, in hexadecimal.
        expected: String,
        /// Actual digest of the file, in hexadecimal.
        found: String,
        /// Name of the list.
        list: String,
    },
    /// The file is not listed in [`RequiredDigests`](crate::RequiredDigests).
    #[error("{name} has the SHA-256 {found}, but {list} does not list {listed}, so it is not used")]
    Unlisted {
        /// Name of the file.
        name: String,
        /// Path of the file as written in the list.
        listed: String,
        /// Actual digest of the file, in hexadecimal.
        found: String,
        /// Name of the list.
        list: String,
    },
    /// The directory has too many files.
    #[error("its directory holds more than {limit} files")]
    TooManyFiles {
        /// Maximum number of files.
        limit: usize,
    },
}

impl FileError {
    /// Returns the last component of a path, to be used as the name in these errors.
    #[must_use]
    pub fn name(path: &Path) -> String {
        path.file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned()
    }
}

/// The reason why a model of a repository, or one of the model's versions, cannot be used.
///
/// ```
/// use model_repository::{ModelError, Repository};
///
/// # let folder = tempfile::tempdir()?;
/// # let models = folder.path();
/// std::fs::create_dir_all(models.join("digits/1"))?;
/// let model = Repository::open(models, &[], None)?.model("digits")?.ok_or("no such model")?;
/// let error = model.versions(&model.configuration()?).err().ok_or("it has no model file")?;
/// assert!(matches!(error, ModelError::EmptyVersion { .. }));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ModelError {
    /// A file of the model cannot be used, for the reason in the source error.
    #[error(transparent)]
    File(#[from] FileError),
    /// The name is not a valid model name.
    #[error("{0}")]
    Name(#[source] ServiceError),
    /// The repository's directory cannot be opened.
    #[error("the repository's directory cannot be opened: {}", .0.kind())]
    Repository(#[source] io::Error),
    /// Two repositories have a model of this name.
    #[error("it is in two repositories, {first} and {second}; rename or remove one of them")]
    TwoRepositories {
        /// Label of a repository.
        first: String,
        /// Label of the other repository.
        second: String,
    },
    /// The model's directory cannot be read.
    #[error("its directory cannot be read: {}", .0.kind())]
    Directory(#[source] io::Error),
    /// The model's directory is a link that leads out of the repository.
    #[error(
        "its directory is a link that leads out of the repository (--repository-also allows directories \
         that links may lead to)"
    )]
    DirectoryOutside,
    /// The directory has two configurations.
    #[error("it has both a {first} and a {second}; remove one of them")]
    TwoConfigurations {
        /// Name of a configuration file.
        first: &'static str,
        /// Name of the other configuration file.
        second: &'static str,
    },
    /// The configuration is invalid.
    #[error("{file}: {source}")]
    Configuration {
        /// Name of the configuration file.
        file: &'static str,
        /// The error in the configuration, with its position.
        source: Box<ConfigError>,
    },
    /// The configuration names a different model.
    #[error(
        "its configuration has the name {}; expected that of the directory",
        QuotedName(found)
    )]
    ConfiguredName {
        /// The model name that the configuration contains.
        found: String,
    },
    /// The configuration names an unknown backend.
    #[error("{field} is {}, expected one of {}, or none", QuotedName(name), known.join(", "))]
    UnknownBackend {
        /// Name of the field in the configuration.
        field: &'static str,
        /// Value of the field.
        name: String,
        /// Names of the backends.
        known: Vec<&'static str>,
    },
    /// The configuration names a file that no backend loads.
    #[error(
        "no backend has files like default_model_filename {}; the field backend can name one",
        QuotedName(file)
    )]
    NoBackend {
        /// Name of the file.
        file: String,
    },
    /// A model without versions lacks a model file.
    #[error("it has no {files}{}", hint(false, misnamed.as_ref()))]
    NoFile {
        /// The expected file names.
        files: String,
        /// The misnamed file that was found instead.
        misnamed: Option<MisnamedFile>,
    },
    /// A Hugging Face model that can run only with its Python code.
    #[error("{}", not_exported(model, weights.as_ref(), exported.as_deref()))]
    NotExported {
        /// The model type from config.json.
        model: String,
        /// Name of the weights file, and name of a backend that could serve it.
        weights: Option<(String, &'static str)>,
        /// Path of an ONNX export in the directory.
        exported: Option<String>,
    },
    /// The directory is itself a repository.
    #[error(
        "it is a directory of models, such as {}, and not a model: serve this directory itself",
        QuotedName(model)
    )]
    DirectoryOfModels {
        /// Name of a subdirectory that contains the versions of a model.
        model: String,
    },
    /// The model's directory contains no version directory.
    #[error("it has no version directory with {files} in it{}", hint(*is_misplaced, misnamed.as_ref()))]
    NoVersion {
        /// The expected file names.
        files: String,
        /// Whether the file is in the model's directory itself.
        is_misplaced: bool,
        /// The misnamed file that was found instead.
        misnamed: Option<MisnamedFile>,
    },
    /// No version directory contains a model file.
    #[error("its version {} has no {files}{}", QuotedName(version), hint(*is_misplaced, misnamed.as_ref()))]
    EmptyVersion {
        /// Name of the first version.
        version: String,
        /// The expected file names.
        files: String,
        /// Whether the file is in the model's directory itself.
        is_misplaced: bool,
        /// The misnamed file that was found instead.
        misnamed: Option<MisnamedFile>,
    },
    /// The version policy selects versions that do not exist.
    #[error("its version policy selects only {}, which do not exist", wanted.join(", "))]
    NoWantedVersion {
        /// The versions that the policy selects.
        wanted: Vec<String>,
    },
}

impl ModelError {
    /// Returns whether the error is that no version has a model file.
    #[must_use]
    pub fn is_of_missing_files(&self) -> bool {
        matches!(self, Self::NoVersion { .. } | Self::EmptyVersion { .. })
    }
}

/// A file that was found instead of one with the expected name. Paths are relative to the model's directory.
#[derive(Debug)]
#[non_exhaustive]
pub enum MisnamedFile {
    /// A file with a known extension but the wrong name or directory.
    Known {
        /// Path of the file.
        found: String,
        /// Path at which the file would be served.
        wanted: String,
    },
    /// A file or directory of a framework whose models must be exported first.
    Foreign {
        /// Path of the file or directory.
        found: String,
        /// Name of the framework.
        framework: &'static str,
    },
}

fn hint(is_misplaced: bool, misnamed: Option<&MisnamedFile>) -> String {
    match (is_misplaced, misnamed) {
        (true, _) => {
            " (the model file is in the model's directory: move it into a version directory such as 1)"
                .to_owned()
        }
        (false, Some(MisnamedFile::Known { found, wanted })) => {
            let (path, other) = (Path::new(found), Path::new(wanted));
            // The file name can be configured; the directory cannot.
            let configured = match path.parent() == other.parent() {
                true => format!(
                    ", or with default_model_filename: {:?} in its configuration",
                    FileError::name(path)
                ),
                false => String::new(),
            };
            format!(
                " (there is {}, which would be the model as {}{configured})",
                QuotedName(found),
                QuotedName(wanted)
            )
        }
        (false, Some(MisnamedFile::Foreign { found, framework })) => {
            format!(
                " (there is {}, a file of {framework}: export the model to ONNX)",
                QuotedName(found)
            )
        }
        (false, None) => String::new(),
    }
}

/// The commands that export a model, up to the exporter's task. They need no GPU.
const EXPORT: &str = "pip install 'optimum[onnxruntime]' torch --extra-index-url https://download.pytorch.org/whl/cpu && optimum-cli export \
                      onnx --model DIRECTORY --task";

/// Suffixes of architectures, and the exporter's tasks for them. The exporter does not derive the task of a
/// local directory.
const TASKS: &[(&str, &str)] = &[
    ("ForSequenceClassification", "text-classification"),
    ("ForTokenClassification", "token-classification"),
    ("ForImageClassification", "image-classification"),
    ("ForCausalLM", "text-generation"),
];

/// Formats the message about a Hugging Face model that needs its Python code, with advice on how to serve the
/// model.
fn not_exported(model: &str, weights: Option<&(String, &str)>, exported: Option<&str>) -> String {
    let is = match weights {
        Some((file, _)) => format!("{file} has the weights of"),
        None => "it is".to_owned(),
    };
    let what = format!("{is} a Hugging Face model ({model}, see config.json), which need");
    let export = match exported {
        Some(path) => format!("an export of it is there: serve {path}"),
        None => {
            let known = TASKS.iter().find(|(suffix, _)| model.ends_with(suffix));
            let task = known.map_or("feature-extraction", |(_, task)| *task);
            format!("export the model to ONNX ({EXPORT} {task} OUTPUT) and serve that")
        }
    };
    let as_tensors = weights.map_or(String::new(), |(_, backend)| {
        format!(
            "; to serve the weights as tensors, name the file itself, or write backend = \"{backend}\" into a config.toml"
        )
    });
    let needs = if weights.is_some() { "" } else { "s" };
    format!("{what}{needs} the package transformers to compute anything: {export}{as_tensors}")
}
