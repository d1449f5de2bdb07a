//! The values of fields that a configuration does not set.

use oip_types::Joining;

/// Defaults for fields that a configuration does not set.
///
/// ```
/// let defaults = model_config::Defaults::default().with_instances(4).with_max_batch_size(64);
/// assert_eq!(defaults.instances, 4);
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Defaults {
    /// Number of instances (threads) per model version (default 1).
    pub instances: usize,
    /// Maximum batch size of models whose requests are batched; 0 to batch only where configured (default 0).
    pub max_batch_size: u32,
    /// Whether the model gives any number of responses per request (default false).
    pub decoupled: bool,
    /// Whether requests are batched only if the configuration has `dynamic_batching` (default false).
    pub joined_only_when_told: bool,
    /// Whether requests are batched if the configuration does not specify it (default: not batched).
    pub joining: Joining,
    /// Inputs without a batch dimension; their first dimension may be fixed (default none).
    pub shared_inputs: Vec<String>,
    /// GPUs that the model runs on; empty for the CPU (default).
    pub gpus: Vec<u32>,
}

impl Default for Defaults {
    fn default() -> Self {
        Self {
            instances: 1,
            max_batch_size: 0,
            decoupled: false,
            joined_only_when_told: false,
            joining: Joining::alone("its rows are not known to be independent"),
            shared_inputs: Vec::new(),
            gpus: Vec::new(),
        }
    }
}

impl Defaults {
    /// Sets the number of instances per model version.
    #[must_use]
    pub fn with_instances(self, instances: usize) -> Self {
        Self { instances, ..self }
    }

    /// Sets the maximum batch size of models whose requests are batched.
    #[must_use]
    pub fn with_max_batch_size(self, max_batch_size: u32) -> Self {
        Self {
            max_batch_size,
            ..self
        }
    }

    /// Sets whether the model gives any number of responses per request.
    #[must_use]
    pub fn with_decoupled(self, decoupled: bool) -> Self {
        Self { decoupled, ..self }
    }

    /// Sets whether requests are batched only if the configuration has `dynamic_batching`.
    #[must_use]
    pub fn with_joined_only_when_told(self, joined_only_when_told: bool) -> Self {
        Self {
            joined_only_when_told,
            ..self
        }
    }

    /// Sets whether requests are batched if the configuration does not specify it.
    #[must_use]
    pub fn with_joining(self, joining: Joining) -> Self {
        Self { joining, ..self }
    }

    /// Sets the GPUs that the model runs on.
    #[must_use]
    pub fn with_gpus(self, gpus: Vec<u32>) -> Self {
        Self { gpus, ..self }
    }

    /// Sets the inputs without a batch dimension.
    #[must_use]
    pub fn with_shared_inputs(self, shared_inputs: Vec<String>) -> Self {
        Self {
            shared_inputs,
            ..self
        }
    }
}
