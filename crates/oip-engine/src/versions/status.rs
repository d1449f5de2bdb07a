//! The status that an engine reports for each model version.

use std::{sync::Arc, time::Duration};

use oip_types::{Joining, ModelMetadata, ModelState, Placement};

/// A model version and its state.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ModelStatus {
    /// Name of the model.
    pub name: String,
    /// Version; `None` for a model without versions.
    pub version: Option<String>,
    /// Position of the version in its life cycle, from loading to unloaded.
    pub state: ModelState,
    /// The reason why the version is not ready, or why the repository's current content could not replace it;
    /// otherwise empty.
    pub reason: String,
    /// Metadata of the model, if the version is ready.
    pub metadata: Option<Arc<ModelMetadata>>,
    /// Whether requests are batched together, if the version is ready; `None` for pipelines, whose steps
    /// batch requests.
    pub joining: Option<Joining>,
    /// Devices and providers that the model runs on, if the version is ready and the backend reports them.
    pub placement: Option<Placement>,
    /// Duration of the load, once the load has ended.
    pub load_time: Option<Duration>,
    /// Approximate memory in bytes: growth of the process and its children during the load, split evenly
    /// among concurrent loads. `None` if the system does not report it, for pipelines, and for models of the
    /// embedding program.
    pub load_memory: Option<u64>,
}

impl ModelStatus {
    /// Creates the status of a version that is not loaded.
    #[must_use]
    pub fn new(name: &str, version: Option<&str>, state: ModelState, reason: &str) -> Self {
        let (name, version) = (name.to_owned(), version.map(str::to_owned));
        Self {
            name,
            version,
            state,
            reason: reason.to_owned(),
            metadata: None,
            joining: None,
            placement: None,
            load_time: None,
            load_memory: None,
        }
    }

    /// Sets the metadata of a ready version.
    #[must_use]
    pub fn with_metadata(self, metadata: Arc<ModelMetadata>) -> Self {
        Self {
            metadata: Some(metadata),
            ..self
        }
    }

    /// Sets whether requests to the version are batched together.
    #[must_use]
    pub fn with_joining(self, joining: Joining) -> Self {
        Self {
            joining: Some(joining),
            ..self
        }
    }

    /// Sets the devices and providers that the model runs on.
    #[must_use]
    pub fn with_placement(self, placement: Placement) -> Self {
        Self {
            placement: Some(placement),
            ..self
        }
    }

    /// Sets the duration of the load.
    #[must_use]
    pub fn with_load_time(self, load_time: Duration) -> Self {
        Self {
            load_time: Some(load_time),
            ..self
        }
    }

    /// Sets the approximate memory that the load took, in bytes.
    #[must_use]
    pub fn with_load_memory(self, load_memory: u64) -> Self {
        Self {
            load_memory: Some(load_memory),
            ..self
        }
    }
}
