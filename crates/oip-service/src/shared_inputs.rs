//! Inputs that a client left in shared memory.

use std::cell::Cell;

use bytes::Bytes;
#[cfg(unix)]
use oip_types::CONNECTION_REGION;
use oip_types::{NoSharedMemory, ReadSharedMemory, ServiceError, SharedMemorySlice};

use crate::{InferenceService, Lease};

/// Reads a request's inputs out of shared memory. The copies are charged to its lease, as if they had come with it.
pub struct SharedInputs<'s> {
    service: &'s dyn InferenceService,
    lease: &'s Lease,
    /// How many bytes may still be copied, where that is bounded.
    left: Cell<u64>,
    is_too_much: Cell<bool>,
}

impl<'s> SharedInputs<'s> {
    /// The inputs of the request with this lease.
    #[must_use]
    pub fn new(service: &'s dyn InferenceService, lease: &'s Lease) -> Self {
        Self {
            service,
            lease,
            left: Cell::new(u64::MAX),
            is_too_much: Cell::new(false),
        }
    }

    /// The same for a thread that must not copy more than so many bytes.
    #[must_use]
    pub fn up_to(self, bytes: u64) -> Self {
        self.left.set(bytes);
        self
    }

    /// Whether it was stopped since it had more to copy: another thread is to begin anew.
    #[must_use]
    pub fn is_too_much(&self) -> bool {
        self.is_too_much.get()
    }

    /// Counts bytes that are about to be copied.
    fn count(&self, bytes: u64) -> Result<(), ServiceError> {
        let Some(left) = self.left.get().checked_sub(bytes) else {
            self.is_too_much.set(true);
            return Err(ServiceError::internal(
                "more is to be copied than this thread may copy",
            ));
        };
        self.left.set(left);
        Ok(())
    }
}

impl ReadSharedMemory for SharedInputs<'_> {
    fn read(&self, slice: &SharedMemorySlice) -> Result<Bytes, ServiceError> {
        self.count(slice.byte_size)?;
        #[cfg(unix)]
        if slice.region == CONNECTION_REGION {
            return self.read_connection(slice);
        }
        let Some(memory) = self.service.shared_memory() else {
            return NoSharedMemory.read(slice);
        };
        self.lease.check()?;
        let charge = self.lease.charge(slice.byte_size)?;
        memory.read(slice).map(|bytes| charge.own(bytes))
    }
}

#[cfg(unix)]
impl SharedInputs<'_> {
    /// Reads the connection's own region, into memory of earlier requests where there is some.
    fn read_connection(&self, slice: &SharedMemorySlice) -> Result<Bytes, ServiceError> {
        use crate::{
            Buffer,
            connection_memory::{named, no_memory},
        };

        let memory = self.lease.connection_memory().ok_or_else(no_memory)?;
        self.lease.check()?;
        let (offset, byte_size) = (slice.offset, slice.byte_size);
        let mut buffer = Buffer::new(self.lease)?;
        // Before room is made for them.
        if byte_size > memory.byte_size() {
            let found = format!("expected at most {} bytes, found {byte_size}", memory.byte_size());
            return Err(ServiceError::invalid(found).within(named()));
        }
        let append = |bytes: &mut Vec<u8>| memory.append_to(offset, byte_size, bytes);
        buffer
            .append_with(byte_size as usize, append)
            .map_err(|error| error.within(named()))?;
        Ok(buffer.finish())
    }
}
