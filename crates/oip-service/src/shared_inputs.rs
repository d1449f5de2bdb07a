//! Inputs that a client left in shared memory.

use bytes::Bytes;
use oip_types::{NoSharedMemory, ReadSharedMemory, ServiceError, SharedMemorySlice};

use crate::{InferenceService, Lease};

/// Reads a request's inputs out of shared memory. The copies are charged to its lease, as if they had come with it.
pub struct SharedInputs<'s> {
    service: &'s dyn InferenceService,
    lease: &'s Lease,
}

impl<'s> SharedInputs<'s> {
    /// The inputs of the request with this lease.
    #[must_use]
    pub fn new(service: &'s dyn InferenceService, lease: &'s Lease) -> Self {
        Self { service, lease }
    }
}

impl ReadSharedMemory for SharedInputs<'_> {
    fn read(&self, slice: &SharedMemorySlice) -> Result<Bytes, ServiceError> {
        let Some(memory) = self.service.shared_memory() else {
            return NoSharedMemory.read(slice);
        };
        self.lease.check()?;
        let charge = self.lease.charge(slice.byte_size)?;
        memory.read(slice).map(|bytes| charge.own(bytes))
    }
}
