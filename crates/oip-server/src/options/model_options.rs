//! Options of models and the engine.

use std::{
    num::{NonZeroU32, NonZeroUsize},
    path::PathBuf,
    time::Duration,
};

use clap::{Args, ValueEnum};
use oip_engine::{EngineConfig, ModelControl};
use oip_types::{ByteSize, HumanDuration};
use serde::Deserialize;
use tensor_mmap::Promise;

use super::merge::merged;
use crate::{failure::Failure, in_place};

/// Options of models and the engine.
#[derive(Debug, Default, Args, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub(crate) struct ModelOptions {
    // An attribute instead of a doc comment, in which the URLs would need markup.
    #[arg(
        long,
        value_name = "DIR or URL",
        help = "The directory with the models, or the only model; or a URL: s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, \
            az://CONTAINER/PREFIX, hf://OWNER/REPO@REVISION/DIR, https://HOST/MODEL.onnx. May be given several times"
    )]
    #[serde(deserialize_with = "one_or_more")]
    pub(crate) model_repository: Vec<PathBuf>,

    /// The name of the model when there is only one [default: the name of its directory or file]
    #[arg(long, value_name = "NAME")]
    pub(crate) model_name: Option<String>,

    /// Which models are loaded, and when [default: none]
    #[arg(long, value_name = "MODE")]
    pub(crate) model_control_mode: Option<ControlMode>,

    /// Seconds between two polls of the repository, with --model-control-mode=poll [default: 15]
    #[arg(long, value_name = "N")]
    pub(crate) repository_poll_secs: Option<NonZeroU32>,

    /// A model to load at start, with --model-control-mode=explicit; * for all. May be given several times,
    /// or with commas
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(crate) load_model: Vec<String>,

    /// Threads that compute for a model at a time; a request of a large ONNX model uses those that are idle
    /// [default: the number of cores]
    #[arg(long, value_name = "N")]
    pub(crate) threads: Option<NonZeroUsize>,

    /// Threads per model version [default: --threads]
    #[arg(long, value_name = "N")]
    pub(crate) instances: Option<usize>,

    /// Whether a model that fails to load makes the server not ready [default: true]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub(crate) strict_readiness: Option<bool>,

    /// Whether model files may be mapped instead of read, if their configuration asks for it. You promise
    /// that these files are not changed or truncated while the server runs: it would crash, or give wrong
    /// results [default: false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub(crate) allow_mapped_models: Option<bool>,

    /// Memory of the response cache, for models whose configuration enables it [default: no cache]
    #[arg(long, value_name = "SIZE")]
    pub(crate) response_cache_byte_size: Option<ByteSize>,

    /// Time for loading one model [default: 2m]
    #[arg(long, value_name = "TIME")]
    pub(crate) load_timeout: Option<HumanDuration>,
}

merged!(ModelOptions:
    model_repository model_name model_control_mode repository_poll_secs load_model threads instances
    strict_readiness allow_mapped_models response_cache_byte_size load_timeout
);

/// Which models are loaded, and when.
#[derive(Clone, Copy, Debug, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum ControlMode {
    /// All at start, and no changes later
    None,
    /// All at start, then changes in the repository
    Poll,
    /// Models that --load-model or clients ask for
    Explicit,
}

impl ModelOptions {
    /// Returns the repositories: `path` if it is given, or else those of `--model-repository`.
    pub(super) fn repositories(&self, path: Option<PathBuf>) -> Result<Vec<PathBuf>, Failure> {
        let repositories = path.map_or_else(|| self.model_repository.clone(), |path| vec![path]);
        if repositories.is_empty() {
            return Err(Failure::usage(
                "no model repository: give a directory with models, or a model's file (--help shows all options)",
            ));
        }
        if repositories.len() > 1 && self.model_name.is_some() {
            return Err(Failure::usage(
                "--model-name is the name of the only model, and there are several repositories \
                 (--model-repository): use one of the two options",
            ));
        }
        if let Some(name) = &self.model_name {
            oip_types::check_name("--model-name", name).map_err(|error| Failure::usage(error.message()))?;
        }
        Ok(repositories)
    }

    /// Returns the engine's configuration. Models whose runs take at most `in_place_time` run on the thread
    /// that received the request. `queue_size` limits the requests that wait for one model version.
    pub(super) fn engine(
        self,
        in_place_time: Option<HumanDuration>,
        queue_size: Option<usize>,
    ) -> Result<EngineConfig, Failure> {
        let control = self.control()?;
        Ok(EngineConfig::default().with(|config| {
            config.server_name = "tensorferry".to_owned();
            config.server_version = env!("CARGO_PKG_VERSION").to_owned();
            let threads = self.threads.map_or(config.instances, NonZeroUsize::get);
            config.instances = self.instances.unwrap_or(threads).max(1);
            config.in_place = in_place::setting(in_place_time);
            config.on_model_thread = caching_allocator::mark_compute_thread;
            config.control = control;
            config.queue_capacity = queue_size.unwrap_or(config.queue_capacity);
            config.mapping = self.allow_mapped_models.unwrap_or(false).then(operators_word);
            config.response_cache_bytes = self.response_cache_byte_size.map_or(0, |ByteSize(bytes)| bytes);
            config.load_timeout = self.load_timeout.map_or(config.load_timeout, |time| time.0);
            config.strict_readiness = self.strict_readiness.unwrap_or(config.strict_readiness);
        }))
    }

    /// Returns which models are loaded, and when.
    fn control(&self) -> Result<ModelControl, Failure> {
        let (mode, load) = (
            self.model_control_mode.unwrap_or(ControlMode::None),
            &self.load_model,
        );
        if !load.is_empty() && !matches!(mode, ControlMode::Explicit) {
            return Err(Failure::usage("--load-model needs --model-control-mode=explicit"));
        }
        if load.len() > 1 && load.iter().any(|name| name == "*") {
            return Err(Failure::usage(
                "--load-model=* stands for all models and must be the only one",
            ));
        }
        for name in load.iter().filter(|name| *name != "*") {
            oip_types::check_name("--load-model", name).map_err(|error| Failure::usage(error.message()))?;
        }
        Ok(match mode {
            ControlMode::None => ModelControl::None,
            ControlMode::Poll => ModelControl::Poll {
                interval: Duration::from_secs(self.repository_poll_secs.map_or(15, |secs| secs.get().into())),
            },
            ControlMode::Explicit => ModelControl::Explicit { load: load.clone() },
        })
    }
}

/// Returns the operator's promise, given with `--allow-mapped-models`, not to change or truncate model files.
#[expect(unsafe_code, reason = "files are the operator's")]
fn operators_word() -> Promise {
    // SAFETY: the operator guarantees that the models' files are not changed or truncated. This program does
    // not change them; other programs are the operator's responsibility.
    unsafe { Promise::new() }
}

/// Deserializes a path, or a list of paths.
fn one_or_more<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Vec<PathBuf>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "expected a path or URL, or a list of them")]
    enum PathOrList {
        One(PathBuf),
        More(Vec<PathBuf>),
    }
    Ok(match PathOrList::deserialize(from)? {
        PathOrList::One(path) => vec![path],
        PathOrList::More(paths) => paths,
    })
}
