use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use oip_service::{ByteBudget, Charge, InferenceService};
use oip_types::{NoSharedMemory, ReadSharedMemory, ServiceError, SharedMemorySlice};

/// Reads inputs out of shared memory. The copies count against the budget, as if they had come in the body.
pub(crate) struct SharedInputs<'s> {
    service: &'s dyn InferenceService,
    budget: &'s ByteBudget,
    permits: Mutex<Vec<Charge>>,
}

impl<'s> SharedInputs<'s> {
    pub(crate) fn new(service: &'s dyn InferenceService, budget: &'s ByteBudget) -> Self {
        Self {
            service,
            budget,
            permits: Mutex::default(),
        }
    }

    /// The permits for what was read.
    pub(crate) fn into_permits(self) -> Vec<Charge> {
        self.permits.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ReadSharedMemory for SharedInputs<'_> {
    fn read(&self, slice: &SharedMemorySlice) -> Result<Bytes, ServiceError> {
        let Some(memory) = self.service.shared_memory() else {
            return NoSharedMemory.read(slice);
        };
        let permit = self.budget.take(slice.byte_size)?;
        let bytes = memory.read(slice)?;
        self.permits
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(permit);
        Ok(bytes)
    }
}
