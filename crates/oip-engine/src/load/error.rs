//! Why models are unavailable: typed errors with sources. They are formatted once, when a reason is recorded.

use std::{io, path::Path, sync::Arc, time::Duration};

use model_config::{ConfigError, MismatchError, PipelineError, WrittenConfig};
use oip_types::ServiceError;
use tensor_core::{Quoted, SpecError};
use thiserror::Error;

use crate::{batching::scheduler::PolicyError, pipeline::PlanError};

/// Why a file of a repository cannot be used. Contains the file's name, not its resolved path.
#[derive(Debug, Error)]
pub(crate) enum FileError {
    #[error("it asks for {}, which is not the name of a file in its folder", Quoted(name))]
    NoName { name: String },
    #[error("{0}")]
    Name(#[source] ServiceError),
    #[error("{name} cannot be opened: {}", source.kind())]
    Open { name: String, source: io::Error },
    #[error("{name} cannot be read: {}", source.kind())]
    Read { name: String, source: io::Error },
    #[error("{name} cannot be mapped: {}", source.kind())]
    Map { name: String, source: io::Error },
    #[error("the folder {name} cannot be read: {}", source.kind())]
    Folder { name: String, source: io::Error },
    #[error(
        "{name} is a link that leads out of the repository (--repository-also names folders that links may reach)"
    )]
    Outside { name: String },
    #[error("{name} is not a regular file")]
    NotRegular { name: String },
    #[error("{name} is larger than {limit} bytes")]
    TooLarge { name: String, limit: u64 },
    #[error("{name} has {length} bytes, but only {left} bytes of memory are left")]
    NoMemory { name: String, length: u64, left: u64 },
    #[error("{name} is not UTF-8")]
    NotUtf8 { name: String },
    #[error("{name} has the SHA-256 {found}, but {list} demands {expected} for {listed}")]
    Digest {
        name: String,
        listed: String,
        expected: String,
        found: String,
        list: String,
    },
    #[error("{name} has the SHA-256 {found}, but {list} does not list {listed}, so it is not used")]
    Unlisted {
        name: String,
        listed: String,
        found: String,
        list: String,
    },
    #[error("its folder holds more than {limit} files")]
    TooManyFiles { limit: usize },
}

impl FileError {
    /// Formats a path for these errors.
    pub(crate) fn name(path: &Path) -> String {
        path.file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned()
    }
}

/// Why a model or a version of it cannot be loaded.
#[derive(Debug, Error)]
pub(crate) enum LoadError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("{0}")]
    Name(#[source] ServiceError),
    #[error("the repository's folder cannot be opened: {}", .0.kind())]
    Repository(#[source] io::Error),
    #[error("it is in two repositories, {first} and {second}; rename or remove one of them")]
    TwoRepositories { first: String, second: String },
    #[error("its folder cannot be read: {}", .0.kind())]
    Folder(#[source] io::Error),
    #[error(
        "its folder is a link that leads out of the repository (--repository-also names folders that links may reach)"
    )]
    FolderOutside,
    #[error("failed to poll from model repository: it is not there")]
    Gone,
    #[error("it could not be fetched: {reason}")]
    NotFetched { reason: String },
    #[error("its files changed while they were read")]
    Changed,

    #[error("it has both a {first} and a {second}; one of them must go")]
    TwoConfigurations {
        first: &'static str,
        second: &'static str,
    },
    #[error("{file}: {source}")]
    Configuration {
        file: &'static str,
        source: Box<ConfigError>,
    },
    #[error("its config: {0}")]
    SentConfiguration(#[source] Box<ConfigError>),
    #[error(
        "its config: {} is for configurations in the repository",
        WrittenConfig::MAPPED
    )]
    SentMapping,
    #[error("its config: parameters.{parameter} is for configurations in the repository")]
    SentProgram { parameter: &'static str },
    #[error(
        "its configuration has {} = true, but the server maps no files (--allow-mapped-models lets it)",
        WrittenConfig::MAPPED
    )]
    MappingNotAllowed,
    #[error(
        "its configuration has the name {}; expected that of the folder",
        Quoted(found)
    )]
    ConfiguredName { found: String },
    #[error("its configuration is not a valid pipeline: {0}")]
    NoPipeline(#[source] PipelineError),
    #[error("its configuration does not fit it: {0}")]
    Mismatch(#[source] Box<MismatchError>),
    #[error(transparent)]
    Policy(PolicyError),

    #[error("{field} is {}, expected one of {}, or none", Quoted(name), known.join(", "))]
    UnknownBackend {
        field: &'static str,
        name: String,
        known: Vec<&'static str>,
    },
    #[error(
        "no backend has files like default_model_filename {}; the field backend can name one",
        Quoted(file)
    )]
    NoBackend { file: String },
    #[error("its directory has no files: it is being copied, or was left empty")]
    NoFiles,
    #[error("it has no {files}{}", hint(false, misnamed.as_ref()))]
    NoFile {
        files: String,
        misnamed: Option<Misnamed>,
    },
    #[error("{}", not_exported(model, weights.as_ref(), exported.as_deref()))]
    NotExported {
        /// The model type from config.json.
        model: String,
        /// The file with weights, and a backend that could serve them.
        weights: Option<(String, &'static str)>,
        /// Path of an ONNX export in the directory.
        exported: Option<String>,
    },
    #[error(
        "it is no model but a folder of models, of which {} is one: serve this folder itself",
        Quoted(model)
    )]
    FolderOfModels {
        /// A directory with versions inside this one.
        model: String,
    },
    #[error("it has no version folder with {files} in it{}", hint(*is_misplaced, misnamed.as_ref()))]
    NoVersion {
        files: String,
        is_misplaced: bool,
        misnamed: Option<Misnamed>,
    },
    #[error("its version {} has no {files}{}", Quoted(version), hint(*is_misplaced, misnamed.as_ref()))]
    EmptyVersion {
        version: String,
        files: String,
        is_misplaced: bool,
        misnamed: Option<Misnamed>,
    },
    #[error("its version policy wants only {}, which are not there", wanted.join(", "))]
    NoWantedVersion { wanted: Vec<String> },

    #[error("the system gave no thread to load it: {}", .0.kind())]
    NoThread(#[source] io::Error),
    #[error("loading it took longer than {} s", limit.as_secs())]
    Timeout { limit: Duration },
    #[error("the thread that loads it panicked")]
    Died,
    /// The panic message contains source locations; it is in the log only.
    #[error("the backend panicked while {doing}")]
    Panicked { doing: &'static str },
    /// The backend cannot read the file.
    #[error("{file}: {source}")]
    Unreadable { file: String, source: ServiceError },
    #[error("{0}")]
    Backend(#[source] ServiceError),
    #[error("its warm-up request {} failed: {source}", Quoted(name))]
    WarmUp { name: String, source: Box<WarmUpError> },
    #[error("{0}")]
    Plan(#[source] Arc<PlanError>),
}

impl LoadError {
    /// Returns whether no version has a model file.
    pub(crate) fn is_of_missing_files(&self) -> bool {
        matches!(self, Self::NoVersion { .. } | Self::EmptyVersion { .. })
    }
}

/// Why a warm-up request failed.
#[derive(Debug, Error)]
pub(crate) enum WarmUpError {
    #[error("input {}: {source}", Quoted(name))]
    Input { name: String, source: Box<InputError> },
    /// The model refused it, or its response contradicts the metadata.
    #[error("{0}")]
    Model(#[source] ServiceError),
}

/// Why an input of a warm-up request cannot be generated.
#[derive(Debug, Error)]
pub(crate) enum InputError {
    #[error("dims are {dims:?}, but none may be free")]
    FreeDims { dims: Vec<i64> },
    #[error(transparent)]
    Spec(#[from] SpecError),
    #[error("it would have {length} bytes, more than {limit}")]
    TooLarge { length: u64, limit: u64 },
    #[error(transparent)]
    File(#[from] FileError),
    #[error("{0}")]
    Value(#[source] ServiceError),
}

/// What was found instead of a file with a model's expected name. Paths are relative to the model's
/// directory.
#[derive(Debug)]
pub(crate) enum Misnamed {
    /// A file with a known extension.
    Known {
        found: String,
        /// Path where it would be served.
        wanted: String,
    },
    /// A file or directory of a framework whose models need an export.
    Foreign { found: String, framework: &'static str },
}

fn hint(is_misplaced: bool, misnamed: Option<&Misnamed>) -> String {
    match (is_misplaced, misnamed) {
        (true, _) => {
            " (the model file stands in the model's folder: move it into a version folder such as 1)"
                .to_owned()
        }
        (false, Some(Misnamed::Known { found, wanted })) => {
            let (path, other) = (Path::new(found), Path::new(wanted));
            // The file name can be configured, the directory cannot.
            let configured = match path.parent() == other.parent() {
                true => format!(
                    ", or with default_model_filename: {:?} in its configuration",
                    FileError::name(path)
                ),
                false => String::new(),
            };
            format!(
                " (there is {}, which would be the model as {}{configured})",
                Quoted(found),
                Quoted(wanted)
            )
        }
        (false, Some(Misnamed::Foreign { found, framework })) => {
            format!(
                " (there is {}, a file of {framework}: export the model to ONNX)",
                Quoted(found)
            )
        }
        (false, None) => String::new(),
    }
}

/// The commands of an export, which needs no GPU.
const EXPORT: &str = "pip install 'optimum[onnxruntime]' torch --extra-index-url https://download.pytorch.org/whl/cpu && optimum-cli export \
                      onnx --model DIRECTORY OUTPUT";

/// Describes a Hugging Face model and how to serve it.
fn not_exported(model: &str, weights: Option<&(String, &str)>, exported: Option<&str>) -> String {
    let is = match weights {
        Some((file, _)) => format!("{file} has the weights of"),
        None => "it is".to_owned(),
    };
    let what = format!("{is} a Hugging Face model ({model}, see config.json), which need");
    let export = match exported {
        Some(path) => format!("an export of it is there: serve {path}"),
        None => format!("export the model to ONNX ({EXPORT}) and serve that"),
    };
    let as_tensors = weights.map_or(String::new(), |(_, backend)| {
        format!(
            "; to serve the weights as tensors, name the file itself, or write backend = \"{backend}\" into a config.toml"
        )
    });
    let needs = if weights.is_some() { "" } else { "s" };
    format!("{what}{needs} the package transformers to compute anything: {export}{as_tensors}")
}
