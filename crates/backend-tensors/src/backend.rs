use oip_service::{Backend, ByteBudget, LoadContext, Model, ModelSource};
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
    /// A backend whose answers have up to 64 MiB of tensors, 512 MiB of gathered rows at once, and which decodes what the
    /// system has memory for.
    #[must_use]
    pub fn new() -> Self {
        Self {
            max_answer_bytes: 64 << 20,
            memory: None,
            budget: ByteBudget::new(512 << 20),
        }
    }

    /// The same with another limit for the bytes that the tensors of one answer may have.
    ///
    /// Requests are small and what they ask for is not, so nothing else bounds an answer. JSON takes several times the
    /// bytes.
    #[must_use]
    pub fn with_max_answer_bytes(self, max_answer_bytes: u64) -> Self {
        Self {
            max_answer_bytes,
            ..self
        }
    }

    /// The same with another budget for rows that were gathered and are not sent yet, such as the one that transports take
    /// for requests. When it is empty, requests for rows are refused with
    /// [`Overloaded`](oip_types::ErrorCode::Overloaded). Whole tensors, and rows that follow each other, take nothing.
    #[must_use]
    pub fn with_budget(self, budget: ByteBudget) -> Self {
        Self { budget, ..self }
    }

    /// The same with a limit for the bytes that the tensors of one file may take once decoded, beside the file itself.
    ///
    /// Without one, it is what the system, and the control group that the process is in, say is free when the file is
    /// loaded. Tensors that are stored as they are served take nothing.
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

    /// Checkpoints are tensor files too.
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
