//! The crate's entry point: the settings of the backend, with which it loads each file.

use oip_model::{Backend, LoadContext, Model, ModelSource};
use oip_resources::ByteBudget;
use oip_types::ServiceError;

use crate::{load::load, model::TensorsModel};

/// Loads tensor files; see the [crate's page](crate).
#[derive(Clone, Debug)]
pub struct TensorsBackend {
    max_answer_bytes: u64,
    memory: Option<u64>,
    budget: ByteBudget,
}

impl TensorsBackend {
    /// Creates a backend with limits of 64 MiB of tensors per response and 512 MiB of gathered rows at once.
    /// Decoding is limited by the free memory of the system.
    #[must_use]
    pub fn new() -> Self {
        Self {
            max_answer_bytes: 64 << 20,
            memory: None,
            budget: ByteBudget::new(512 << 20),
        }
    }

    /// Sets the maximum bytes of all tensors in one response.
    ///
    /// A small request can ask for a large response, so the limits on requests do not bound responses.
    /// Encoded as JSON, a response takes several times this size.
    #[must_use]
    pub fn with_max_answer_bytes(self, max_answer_bytes: u64) -> Self {
        Self {
            max_answer_bytes,
            ..self
        }
    }

    /// Sets the memory budget for gathered rows that are waiting to be sent. It can be the budget that the
    /// transports use for requests. When the budget is exhausted, requests for rows are refused with
    /// [`Overloaded`](oip_types::ErrorCode::Overloaded). Whole tensors and consecutive rows do not count.
    #[must_use]
    pub fn with_budget(self, budget: ByteBudget) -> Self {
        Self { budget, ..self }
    }

    /// Sets the maximum bytes of a file's decoded tensors, in addition to the file itself.
    ///
    /// The default is the free memory of the system and of the process's control group when the file is
    /// loaded. Tensors that are served as stored do not count.
    #[must_use]
    pub fn with_memory(self, bytes: u64) -> Self {
        Self {
            memory: Some(bytes),
            ..self
        }
    }
}

impl Default for TensorsBackend {
    fn default() -> Self {
        Self::new()
    }
}

impl Backend for TensorsBackend {
    fn name(&self) -> &'static str {
        "tensors"
    }

    fn file_names(&self) -> &[&str] {
        &[
            "model.safetensors",
            "model.zt",
            "model.tbuf",
            "model.btf",
            "model.npz",
            "model.npy",
            "model.gguf",
        ]
    }

    /// Returns true, because a tensor file may be a checkpoint, which contains only the weights of a network.
    fn holds_weights_only(&self) -> bool {
        true
    }

    fn load(&self, source: &ModelSource, cx: &LoadContext) -> Result<Box<dyn Model>, ServiceError> {
        let loaded = load(source, cx.deadline, self.memory)?;
        Ok(Box::new(TensorsModel::new(
            source,
            loaded,
            self.max_answer_bytes,
            self.budget.clone(),
        )))
    }
}
