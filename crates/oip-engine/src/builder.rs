//! Builds an engine for models that the program itself provides, without files.

use std::{collections::BTreeSet, fmt, sync::Arc, time::Instant};

use model_repository::{Repositories, Repository};
use oip_model::Model;
use tensor_core::QuotedName;

use crate::{
    config::EngineConfig,
    engine::Engine,
    load::{LoadError, loader},
    run::model_calls::Others,
    versions::{entry::LoadCost, registry::Registry},
};

/// Builds an [`Engine`] from models that the embedding program provides. These models need no files, and an
/// invalid model causes a [`BuildError`] instead of a panic.
///
/// The name, inputs and outputs of such a model come from its metadata; the model has no versions. The model
/// is batched like an unconfigured model of a repository and has [`EngineConfig::instances`] threads, unless
/// [`Model::capabilities`] say otherwise.
///
/// ```
/// use oip_engine::Engine;
/// use oip_model::{Call, Model, Outcome};
/// use oip_service::{InferenceService, RequestContext};
/// use oip_types::{DataType, InferRequest, ModelMetadata, ModelRef, ServiceError, TensorMetadata};
/// use tensor_core::{Shape, Tensor};
///
/// struct Echo(ModelMetadata);
///
/// impl Model for Echo {
///     fn metadata(&self) -> &ModelMetadata {
///         &self.0
///     }
///
///     fn run(&self, mut call: Call<'_>) -> Result<Outcome, ServiceError> {
///         Ok(Outcome::output("y", call.request.take_input("x")?))
///     }
/// }
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (x, y) = (TensorMetadata::new("x", DataType::FP32, &[-1]), TensorMetadata::new("y", DataType::FP32, &[-1]));
/// let engine = Engine::builder()
///     .model(Echo(ModelMetadata::new("echo", "example", vec![x], vec![y])))
///     .build()?;
///
/// let x = Tensor::from_vec(Shape::vector(2), vec![1.0f32, 2.0])?;
/// let request = InferRequest::new(ModelRef::new("echo", None)?).with_input("x", x);
/// let response = futures_executor::block_on(engine.infer(request, RequestContext::new(None)))?;
/// assert_eq!(response.outputs[0].value.shape().dims(), [2]);
/// # Ok(())
/// # }
/// ```
#[derive(Default)]
#[must_use]
pub struct EngineBuilder {
    repositories: Vec<Repository>,
    config: EngineConfig,
    models: Vec<Box<dyn Model>>,
}

impl Engine {
    /// Creates a builder for models of the embedding program, with or without a repository.
    pub fn builder() -> EngineBuilder {
        EngineBuilder::default()
    }
}

impl EngineBuilder {
    /// Adds a model, which is served under the name in its metadata.
    pub fn model(self, model: impl Model) -> Self {
        self.boxed_model(Box::new(model))
    }

    /// Adds a boxed model, like [`EngineBuilder::model`].
    pub fn boxed_model(mut self, model: Box<dyn Model>) -> Self {
        self.models.push(model);
        self
    }

    /// Adds a repository. The names of its models must differ from those of the builder's models. If a model
    /// with the name of a builder's model is added to the repository later, the added model is not loaded.
    /// Clients cannot unload the builder's models.
    pub fn repository(mut self, repository: Repository) -> Self {
        self.repositories.push(repository);
        self
    }

    /// Sets the configuration of the engine. Without this call, the engine uses [`EngineConfig::default`].
    pub fn config(mut self, config: EngineConfig) -> Self {
        self.config = config;
        self
    }

    /// Starts the models, and loads the repositories' models in the background.
    ///
    /// # Errors
    /// [`BuildError`] for the first invalid model: a malformed or duplicate name, or inconsistent metadata.
    pub fn build(self) -> Result<Engine, BuildError> {
        let Self {
            repositories,
            config,
            models,
        } = self;
        let repositories = Repositories::from(repositories);
        // A repository that cannot be read is ignored here; the error is reported when its models are loaded.
        let mut names: BTreeSet<String> = repositories.names().names.into_iter().collect();
        let registry = Arc::new(Registry::default());
        for model in models {
            let start = Instant::now();
            let name = loader::name_of(&*model).map_err(|error| BuildError::load("a model", error))?;
            let named = |error| BuildError::load(&format!("model {}", QuotedName(&name)), error);
            let served = loader::embed(model, &config, Others::of(&registry)).map_err(named)?;
            if !names.insert(name.clone()) {
                return Err(BuildError::duplicate(&name));
            }
            let cost = LoadCost {
                time: start.elapsed(),
                memory: None,
            };
            let before = registry.finish_loading(&name, None, Ok(Arc::new(served)), cost, true);
            debug_assert!(before.is_none(), "names differ");
        }
        Ok(Engine::start_with(registry, repositories, config))
    }
}

impl fmt::Debug for EngineBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EngineBuilder")
            .field("config", &self.config)
            .field("models", &self.models.len())
            .finish_non_exhaustive()
    }
}

/// The reason why an engine cannot be built.
#[derive(Debug)]
pub struct BuildError {
    message: String,
    source: Option<Box<LoadError>>,
}

impl BuildError {
    fn load(model: &str, source: LoadError) -> Self {
        Self {
            message: format!("{model} cannot be served: {source}"),
            source: Some(Box::new(source)),
        }
    }

    fn duplicate(name: &str) -> Self {
        Self {
            message: format!("there are two models with the name {}", QuotedName(name)),
            source: None,
        }
    }
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for BuildError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        let source = self.source.as_deref()?;
        Some(source)
    }
}
