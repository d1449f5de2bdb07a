//! The backends: for `model.py`, for saved objects, and for boosters that run in their own packages.

use std::{path::PathBuf, sync::Arc, time::Duration};

use bytes::Bytes;

use oip_model::{Backend, LoadContext, Model, ModelSource};
use oip_types::{ModelConfig, ServiceError};
use oip_worker::Isolation;

use crate::{interpreter, program};

/// The configuration parameter that names a model's interpreter.
const PYTHON: &str = "python";

/// How long a model may take to stop after its client has disconnected. Starting a process takes seconds,
/// because it imports modules, so a client that disconnects from a slow model must not make the other clients
/// wait for a restart. This time is shorter than the engine's timeout for an instance.
const GRACE: Duration = Duration::from_secs(4);

/// The value of `runtime` in a configuration that runs a booster in its own package.
const RUNTIME: &str = "python";

/// Triton's parameter that names a packed environment. Packed environments are not supported, so a model with
/// this parameter is refused.
const EXECUTION_ENV_PATH: &str = "EXECUTION_ENV_PATH";

/// The operator's settings, and the defaults for models.
///
/// ```
/// use backend_python::Settings;
///
/// let settings = Settings::default().with(|settings| {
///     settings.is_allowed = true;
///     settings.memory_limit = Some(1 << 30);
/// });
/// assert_eq!(settings.interpreter.to_str(), Some("python3"));
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Settings {
    /// Whether Python models are run at all; the default is `false`.
    pub is_allowed: bool,
    /// The default interpreter: a program, or the directory of an environment. The default is `python3`.
    pub interpreter: PathBuf,
    /// The default memory limit of a process in bytes; `None`, the default, means no limit.
    pub memory_limit: Option<u64>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            is_allowed: false,
            interpreter: "python3".into(),
            memory_limit: None,
        }
    }
}

impl Settings {
    /// Returns the settings with `change` applied.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    fn load(
        &self,
        backend: &'static str,
        source: &ModelSource,
        cx: &LoadContext,
    ) -> Result<Box<dyn Model>, ServiceError> {
        let mut config = ModelConfig::clone(&cx.config);
        if config.parameters.contains_key(EXECUTION_ENV_PATH) {
            return Err(ServiceError::invalid(format!(
                "the parameter '{EXECUTION_ENV_PATH}' of its configuration names a packed environment, \
                 which the server does not unpack: unpack it, and set its directory with the parameter \
                 '{PYTHON}'"
            )));
        }
        let named = config.parameters.remove(PYTHON);
        let interpreter = match &named {
            Some(named) => interpreter::of_model(&named.string_value, source),
            None => interpreter::of_server(&self.interpreter),
        }?;
        let is_named = named.is_some();
        let isolation = Isolation::new(move || {
            let mut command = interpreter::command(&interpreter, is_named);
            command.arg("-c").arg(program::BOOTSTRAP);
            command
        });
        let cx = cx.clone().with_config(config.into());
        isolation
            .memory_limit(self.memory_limit)
            .grace(GRACE)
            .first_bytes(program::modules())
            .load(backend, source, &cx)
    }
}

/// Models written in Python: `model.py` with a class `Model` or `TritonPythonModel`.
pub struct PythonBackend(Settings);

impl PythonBackend {
    /// Creates a backend that runs models, or refuses them, depending on the settings.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self(settings)
    }
}

impl Backend for PythonBackend {
    fn name(&self) -> &'static str {
        "python"
    }

    fn file_names(&self) -> &[&str] {
        &["model.py"]
    }

    fn load(&self, source: &ModelSource, cx: &LoadContext) -> Result<Box<dyn Model>, ServiceError> {
        if !self.0.is_allowed {
            return Err(ServiceError::invalid(
                "it is a Python program, which would run with the server's rights; --allow-python lets the server run it",
            ));
        }
        self.0.load(self.name(), source, cx)
    }
}

/// scikit-learn estimators saved with joblib or pickle.
pub struct SavedObjectBackend(Settings);

impl SavedObjectBackend {
    /// Creates a backend that loads objects, or refuses them, depending on the settings.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self(settings)
    }
}

impl Backend for SavedObjectBackend {
    fn name(&self) -> &'static str {
        "sklearn"
    }

    fn file_names(&self) -> &[&str] {
        &["model.joblib", "model.pkl"]
    }

    fn load(&self, source: &ModelSource, cx: &LoadContext) -> Result<Box<dyn Model>, ServiceError> {
        if !self.0.is_allowed {
            return Err(ServiceError::invalid(
                "it is a pickled object, which can run any code with the server's rights when it is read; --allow-pickle lets \
                 the server read it",
            ));
        }
        self.0.load(self.name(), source, cx)
    }
}

/// Models of XGBoost and LightGBM. Another backend loads them, unless their configuration sets `runtime:
/// "python"`. With this setting, they run in the package that wrote them.
///
/// ```
/// use std::sync::Arc;
///
/// use backend_python::{BoosterBackend, PythonBackend, Settings};
/// use oip_model::Backend;
///
/// // In a server, `other` is the backend for forests.
/// let other: Arc<dyn Backend> = Arc::new(PythonBackend::new(Settings::default()));
/// assert_eq!(BoosterBackend::new(other, Settings::default()).name(), "python");
/// ```
pub struct BoosterBackend {
    other: Arc<dyn Backend>,
    settings: Settings,
}

impl BoosterBackend {
    /// Wraps `other`, and runs models in Python, or refuses them, depending on the settings.
    #[must_use]
    pub fn new(other: Arc<dyn Backend>, settings: Settings) -> Self {
        Self { other, settings }
    }
}

impl Backend for BoosterBackend {
    fn name(&self) -> &'static str {
        self.other.name()
    }

    fn other_names(&self) -> &'static [&'static str] {
        self.other.other_names()
    }

    fn file_names(&self) -> &[&str] {
        self.other.file_names()
    }

    fn holds_weights_only(&self) -> bool {
        self.other.holds_weights_only()
    }

    fn files_beside(&self, content: &Bytes) -> Result<Vec<String>, ServiceError> {
        self.other.files_beside(content)
    }

    fn load(&self, source: &ModelSource, cx: &LoadContext) -> Result<Box<dyn Model>, ServiceError> {
        if cx.config.runtime != RUNTIME {
            return self.other.load(source, cx);
        }
        if !self.settings.is_allowed {
            return Err(ServiceError::invalid(
                "its configuration asks for the runtime python, which runs the package that made it in an interpreter that the \
                 configuration may name; --allow-python lets the server do that",
            ));
        }
        self.settings.load("booster", source, cx)
    }
}
