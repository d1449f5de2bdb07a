//! The protocol's extensions, as capabilities that a service may offer.

use std::sync::Arc;

use bytes::Bytes;
use oip_model::BoxFuture;
use oip_types::{
    LoadOptions, LogSettings, ModelConfig, ModelIndexEntry, ModelRef, ModelStatistics, ReadSharedMemory,
    ServiceError, SharedMemoryRegion, SharedMemorySlice, UnloadOptions,
};

/// The model repository extension: lists, loads and unloads models.
pub trait ModelRepository: Send + Sync {
    /// Returns all models of the repository with their state, sorted by name and version.
    fn index(&self) -> Vec<ModelIndexEntry>;

    /// Checks whether clients may load and unload models. The result does not change while the service runs.
    ///
    /// # Errors
    /// Returns the error with which [`load`](Self::load) and [`unload`](Self::unload) refuse every request.
    fn allows_changes(&self) -> Result<(), ServiceError> {
        Ok(())
    }

    /// Loads a model, or reloads it if the repository has changed, and waits until loading is finished. The
    /// running versions keep running until the new ones are ready.
    ///
    /// # Errors
    /// [`NotFound`](oip_types::ErrorCode::NotFound) when the repository has no such model;
    /// [`InvalidArgument`](oip_types::ErrorCode::InvalidArgument), with the reason, when the model cannot be
    /// loaded; [`Unavailable`](oip_types::ErrorCode::Unavailable) when clients may not load models.
    fn load(&self, model: ModelRef<'_>, options: LoadOptions) -> BoxFuture<'_, Result<(), ServiceError>>;

    /// Unloads a model. New requests to the model fail immediately; requests that it already has are
    /// completed.
    ///
    /// # Errors
    /// [`NotFound`](oip_types::ErrorCode::NotFound) when the repository has no such model;
    /// [`Unavailable`](oip_types::ErrorCode::Unavailable) when clients may not unload models.
    fn unload(&self, model: ModelRef<'_>, options: UnloadOptions) -> BoxFuture<'_, Result<(), ServiceError>>;
}

/// The model configuration extension.
pub trait ModelConfiguration: Send + Sync {
    /// Returns a model's configuration. Without a version, the service chooses one.
    ///
    /// # Errors
    /// See [`InferenceService::model_metadata`](crate::InferenceService::model_metadata).
    fn model_config(&self, model: ModelRef<'_>) -> Result<Arc<ModelConfig>, ServiceError>;

    /// Returns the model's example, if it has one: the JSON body of an inference request.
    ///
    /// # Errors
    /// See [`model_config`](Self::model_config).
    fn model_example(&self, model: ModelRef<'_>) -> Result<Option<Bytes>, ServiceError> {
        self.model_config(model).map(|_| None)
    }
}

/// The statistics extension.
pub trait Statistics: Send + Sync {
    /// Returns the statistics of all models, of all versions of one model, or of one version. Counting starts
    /// when the model is loaded.
    ///
    /// # Errors
    /// [`NotFound`](oip_types::ErrorCode::NotFound) when the model or version does not exist.
    fn model_statistics(&self, model: Option<ModelRef<'_>>) -> Result<Vec<ModelStatistics>, ServiceError>;
}

/// The classification extension. Transports find the highest values; see [`respond`](crate::respond).
pub trait Classification: Send + Sync {
    /// Returns the classes of the output `output` of a model.
    fn classes(&self, model: ModelRef<'_>, output: &str) -> Classes;
}

/// The classes of an output.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Classes {
    /// Whether the first dimension counts rows. If so, each row is classified separately.
    pub is_batched: bool,
    /// The names of the classes, if known.
    pub labels: Arc<[String]>,
}

impl Classes {
    /// Creates the classes of an output: whether its first dimension counts rows, and the names of the
    /// classes.
    #[must_use]
    pub fn new(is_batched: bool, labels: Arc<[String]>) -> Self {
        Self { is_batched, labels }
    }
}

/// The logging extension.
pub trait Logging: Send + Sync {
    /// Returns the current settings.
    fn log_settings(&self) -> LogSettings;

    /// Applies all given settings, or none on error, and returns the resulting settings.
    ///
    /// # Errors
    /// [`InvalidArgument`](oip_types::ErrorCode::InvalidArgument) for settings that are unknown or read-only,
    /// or that do not accept the value.
    fn change_log_settings(&self, changes: LogSettings) -> Result<LogSettings, ServiceError>;
}

/// The system shared memory extension: clients on the same machine pass tensors in shared memory.
///
/// Errors never reveal regions, keys or offsets other than those that the client named in its request.
pub trait SystemSharedMemory: ReadSharedMemory + Send + Sync {
    /// Registers a shared-memory region under its name.
    ///
    /// # Errors
    /// [`InvalidArgument`](oip_types::ErrorCode::InvalidArgument) when the name is already registered, or the
    /// memory does not exist, is too small, or may not be shared by a client.
    fn register(&self, region: SharedMemoryRegion) -> Result<(), ServiceError>;

    /// Unregisters the region with this name, or all regions if `name` is `None`. An unknown name is ignored.
    fn unregister(&self, name: Option<&str>);

    /// Returns one region, or all regions sorted by name.
    ///
    /// # Errors
    /// [`NotFound`](oip_types::ErrorCode::NotFound) when no region has that name.
    fn status(&self, name: Option<&str>) -> Result<Vec<SharedMemoryRegion>, ServiceError>;

    /// Writes `bytes` into a slice.
    ///
    /// # Errors
    /// [`InvalidArgument`](oip_types::ErrorCode::InvalidArgument) when the region does not exist, the slice
    /// is out of its bounds, or `bytes` do not fit into the slice.
    fn write(&self, slice: &SharedMemorySlice, bytes: &[u8]) -> Result<(), ServiceError>;
}
