//! Decides which models run in separate processes, and represents these models in the server.

use std::sync::Arc;

use bytes::Bytes;
use oip_model::{
    Backend, Call, Capabilities, LoadContext, Model, ModelFiles, ModelSource, NeedsProcess, Outcome,
};
use oip_types::{ByteSize, ModelConfig, ModelMetadata, ServiceError};
use tensor_core::QuotedName;

use crate::{calls::Work, isolation::Isolation, pool::Pool, process::Recipe};

/// Configuration parameter that selects whether the model runs in a separate process: `process` or `none`.
const ISOLATION: &str = "isolation";

/// Configuration parameter for the memory limit of each of the model's processes, such as `2GiB`.
const MEMORY_LIMIT: &str = "memory_limit";

/// A backend whose models may run in separate processes.
///
/// The parameters of each model's configuration select whether it is loaded in the server or in a worker:
/// `isolation` (`process` or `none`) and `memory_limit` (bytes, such as `2GiB`). Both are removed before the
/// configuration is passed to the wrapped backend. Without them, a model gets a separate process if its
/// backend refuses to load it into a shared one ([`NeedsProcess`]).
pub struct IsolatedBackend {
    inner: Arc<dyn Backend>,
    isolation: Arc<Isolation>,
}

impl IsolatedBackend {
    /// Wraps the backend `inner`. The worker program must contain a backend of the same name.
    #[must_use]
    pub fn new(inner: Arc<dyn Backend>, isolation: Isolation) -> Self {
        Self {
            inner,
            isolation: Arc::new(isolation),
        }
    }
}

impl Backend for IsolatedBackend {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn other_names(&self) -> &'static [&'static str] {
        self.inner.other_names()
    }

    fn file_names(&self) -> &[&str] {
        self.inner.file_names()
    }

    fn holds_weights_only(&self) -> bool {
        self.inner.holds_weights_only()
    }

    fn files_beside(&self, content: &Bytes) -> Result<Vec<String>, ServiceError> {
        self.inner.files_beside(content)
    }

    fn accepts(&self, files: &dyn ModelFiles) -> bool {
        self.inner.accepts(files)
    }

    fn gather(&self, content: &Bytes, files: &dyn ModelFiles) -> Result<Vec<(String, Bytes)>, ServiceError> {
        self.inner.gather(content, files)
    }

    fn load(&self, source: &ModelSource, cx: &LoadContext) -> Result<Box<dyn Model>, ServiceError> {
        let mut config = ModelConfig::clone(&cx.config);
        let wish = Wish::take(&mut config)?;
        let is_isolated = wish.is_isolated.unwrap_or(self.isolation.by_default);
        if !is_isolated {
            if wish.memory_limit.is_some() {
                return Err(ServiceError::invalid(format!(
                    "the parameter '{MEMORY_LIMIT}' of its configuration needs '{ISOLATION}' to be 'process'"
                )));
            }
            // With `isolation` set to `none`, the model stays in this process, even if its backend prefers
            // isolation.
            let own = cx.clone().with_config(Arc::new(config.clone()));
            let own = own.with_isolation(wish.is_isolated.is_none());
            let loaded = self.inner.load(source, &own);
            let reason = match &loaded {
                Err(error) => NeedsProcess::behind(error).cloned(),
                Ok(_) => None,
            };
            let Some(reason) = reason.filter(|_| own.can_isolate) else {
                return loaded;
            };
            let (model, version) = (&source.name, &source.version);
            tracing::warn!(model, version, %reason, "the model runs in a separate process");
        }
        let memory_limit = wish.memory_limit;
        start(
            self.isolation.clone(),
            self.inner.name(),
            source,
            cx,
            config,
            memory_limit,
        )
    }
}

impl Isolation {
    /// Loads a model that always runs in separate processes, in workers that have a backend of this name. The
    /// configuration's `memory_limit` applies; `isolation` can only be `process`.
    ///
    /// # Errors
    /// See [`Backend::load`].
    pub fn load(
        self,
        backend: &'static str,
        source: &ModelSource,
        cx: &LoadContext,
    ) -> Result<Box<dyn Model>, ServiceError> {
        let mut config = ModelConfig::clone(&cx.config);
        let wish = Wish::take(&mut config)?;
        if wish.is_isolated == Some(false) {
            return Err(ServiceError::invalid(format!(
                "the parameter '{ISOLATION}' of its configuration is 'none', but {backend} models always \
                 run in separate processes"
            )));
        }
        start(Arc::new(self), backend, source, cx, config, wish.memory_limit)
    }
}

fn start(
    isolation: Arc<Isolation>,
    backend: &'static str,
    source: &ModelSource,
    cx: &LoadContext,
    config: ModelConfig,
    memory_limit: Option<u64>,
) -> Result<Box<dyn Model>, ServiceError> {
    let memory_limit = memory_limit.or(isolation.memory_limit);
    let beside = source.beside.iter().map(|(_, content)| content.len() as u64);
    let length = source.content.len() as u64 + beside.sum::<u64>();
    if let Some(limit) = memory_limit.filter(|limit| length >= *limit) {
        return Err(ServiceError::invalid(format!(
            "its file has {length} bytes, and its process may use {:#} of memory",
            ByteSize(limit)
        )));
    }
    let now = std::time::Instant::now();
    let recipe = Recipe {
        isolation,
        backend,
        source: source.clone(),
        config,
        input_dims: cx.input_dims.clone(),
        tensors: cx.tensors.clone(),
        memory_limit,
        patience: cx
            .deadline
            .map(|deadline| deadline.saturating_duration_since(now)),
        numbers: Arc::default(),
    };
    Ok(Box::new(IsolatedModel(Arc::new(Pool::start(
        recipe,
        cx.deadline,
    )?))))
}

/// The isolation parameters of a model's configuration.
struct Wish {
    is_isolated: Option<bool>,
    memory_limit: Option<u64>,
}

impl Wish {
    fn take(config: &mut ModelConfig) -> Result<Self, ServiceError> {
        let mut take = |name: &str| {
            config
                .parameters
                .remove(name)
                .map(|parameter| parameter.string_value)
        };
        let wrong = |name: &str, expected: &str, found: &str| {
            let found = QuotedName(found);
            ServiceError::invalid(format!(
                "the parameter '{name}' of its configuration is {found}, expected {expected}"
            ))
        };
        let is_isolated = match take(ISOLATION).as_deref().map(str::trim) {
            None => None,
            Some("process") => Some(true),
            Some("none") => Some(false),
            Some(other) => return Err(wrong(ISOLATION, "'process' or 'none'", other)),
        };
        let memory_limit = take(MEMORY_LIMIT).map(|text| {
            let limit = text.trim().parse().ok().filter(|ByteSize(bytes)| *bytes > 0);
            limit.map(|ByteSize(bytes)| bytes).ok_or_else(|| {
                wrong(
                    MEMORY_LIMIT,
                    "a number of bytes, such as 2GiB, 512MiB or 1000000000",
                    &text,
                )
            })
        });
        Ok(Self {
            is_isolated,
            memory_limit: memory_limit.transpose()?,
        })
    }
}

/// A model that runs in workers.
struct IsolatedModel(Arc<Pool>);

impl Model for IsolatedModel {
    fn metadata(&self) -> &ModelMetadata {
        self.0.metadata()
    }

    fn run(&self, mut call: Call<'_>) -> Result<Outcome, ServiceError> {
        #[cfg(target_os = "linux")]
        if let Some(patience) = call.patience {
            return self.0.begin(call.request, call.cancel, patience);
        }
        let responses = call.responses.take();
        let outputs = self.0.infer(Work::of(&call), responses)?;
        Ok(outputs.map_or(Outcome::Streamed, Outcome::Outputs))
    }

    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn end(&self) {
        self.0.end();
    }
}
