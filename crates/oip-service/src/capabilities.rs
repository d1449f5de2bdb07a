//! The protocol's extensions, as capabilities that a service may offer.

use std::{pin::Pin, sync::Arc};

use bytes::Bytes;
use oip_types::{
    LoadOptions, LogSettings, ModelConfig, ModelIndexEntry, ModelRef, ModelStatistics, ReadSharedMemory,
    ServiceError, SharedMemoryRegion, SharedMemorySlice, UnloadOptions,
};

/// A boxed future: one allocation a request is nothing beside inference, and transports stay free of generics.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The model repository extension: what there is, and loading and unloading it.
pub trait ModelRepository: Send + Sync {
    /// All models of the repository and how they are, by name and then version.
    fn index(&self) -> Vec<ModelIndexEntry>;

    /// Whether models are loaded and unloaded by request at all, which does not change while the service runs.
    ///
    /// # Errors
    /// What [`load`](Self::load) and [`unload`](Self::unload) refuse every request with.
    fn allows_changes(&self) -> Result<(), ServiceError> {
        Ok(())
    }

    /// Loads a model, or loads it again when the repository has changed, and waits for the end of it. The versions
    /// that run go on running until the new ones are ready.
    ///
    /// # Errors
    /// [`NotFound`](oip_types::ErrorCode::NotFound) when the repository has no such model;
    /// [`InvalidArgument`](oip_types::ErrorCode::InvalidArgument) when it cannot be loaded, and why;
    /// [`Unavailable`](oip_types::ErrorCode::Unavailable) when loading by request is not allowed.
    fn load(&self, model: ModelRef<'_>, options: LoadOptions) -> BoxFuture<'_, Result<(), ServiceError>>;

    /// Unloads a model. New requests to it fail at once; those it has are still answered.
    ///
    /// # Errors
    /// [`NotFound`](oip_types::ErrorCode::NotFound) when the repository has no such model;
    /// [`Unavailable`](oip_types::ErrorCode::Unavailable) when unloading by request is not allowed.
    fn unload(&self, model: ModelRef<'_>, options: UnloadOptions) -> BoxFuture<'_, Result<(), ServiceError>>;
}

/// The model configuration extension.
pub trait ModelConfiguration: Send + Sync {
    /// How a model is configured; without a version, the one that the service would choose.
    ///
    /// # Errors
    /// As [`InferenceService::model_metadata`](crate::InferenceService::model_metadata).
    fn model_config(&self, model: ModelRef<'_>) -> Result<Arc<ModelConfig>, ServiceError>;

    /// The example that a model brings: the JSON body of an inference request, if there is one.
    ///
    /// # Errors
    /// As [`model_config`](Self::model_config).
    fn model_example(&self, model: ModelRef<'_>) -> Result<Option<Bytes>, ServiceError> {
        self.model_config(model).map(|_| None)
    }
}

/// The statistics extension.
pub trait Statistics: Send + Sync {
    /// What happened since the models were loaded: of all models, of all versions of one, or of one version.
    ///
    /// # Errors
    /// [`NotFound`](oip_types::ErrorCode::NotFound) when there is no such model or version.
    fn model_statistics(&self, model: Option<ModelRef<'_>>) -> Result<Vec<ModelStatistics>, ServiceError>;
}

/// The classification extension. Finding the highest values is the transports' business, see [`respond`](crate::respond).
pub trait Classification: Send + Sync {
    /// What is known about the classes of an output.
    fn classes(&self, model: ModelRef<'_>, output: &str) -> Classes;
}

/// What is known about the classes of an output.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Classes {
    /// Whether the first dimension counts rows that are classified on their own.
    pub is_batched: bool,
    /// The names of the classes, as far as they have some.
    pub labels: Arc<[String]>,
}

impl Classes {
    /// The classes of an output: whether its first dimension counts rows, and the names of the classes.
    #[must_use]
    pub fn new(is_batched: bool, labels: Arc<[String]>) -> Self {
        Self { is_batched, labels }
    }
}

/// The logging extension.
pub trait Logging: Send + Sync {
    /// The settings as they are.
    fn log_settings(&self) -> LogSettings;

    /// Changes some settings, all or none, and gives them as they are then.
    ///
    /// # Errors
    /// [`InvalidArgument`](oip_types::ErrorCode::InvalidArgument) for settings that are not known, cannot be changed,
    /// or do not take the value.
    fn change_log_settings(&self, changes: LogSettings) -> Result<LogSettings, ServiceError>;
}

/// The system shared memory extension: clients on the same machine leave tensors in memory that they share.
///
/// Errors never name regions, keys or places that the client did not name itself.
pub trait SystemSharedMemory: ReadSharedMemory + Send + Sync {
    /// Makes a region known under its name.
    ///
    /// # Errors
    /// [`InvalidArgument`](oip_types::ErrorCode::InvalidArgument) when the name is taken, or the memory is not there, too
    /// small, or not a client's to share.
    fn register(&self, region: SharedMemoryRegion) -> Result<(), ServiceError>;

    /// Forgets a region, or all of them. A name that is not known is fine.
    fn unregister(&self, name: Option<&str>);

    /// A region, or all of them by name.
    ///
    /// # Errors
    /// [`NotFound`](oip_types::ErrorCode::NotFound) when there is no region of that name.
    fn status(&self, name: Option<&str>) -> Result<Vec<SharedMemoryRegion>, ServiceError>;

    /// Writes bytes into a slice.
    ///
    /// # Errors
    /// [`InvalidArgument`](oip_types::ErrorCode::InvalidArgument) when there is no such region, the slice is not within
    /// it, or the bytes are more than it has.
    fn write(&self, slice: &SharedMemorySlice, bytes: &[u8]) -> Result<(), ServiceError>;
}
