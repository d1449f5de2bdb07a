//! Inputs in a client's shared memory.

use std::cell::Cell;

use bytes::Bytes;
use oip_resources::Lease;
#[cfg(unix)]
use oip_types::CONNECTION_REGION;
use oip_types::{NoSharedMemory, ReadSharedMemory, ServiceError, SharedMemorySlice};

use crate::InferenceService;

/// Reads a request's inputs from shared memory. The copies are charged to its lease, like inputs in the
/// request's body.
pub struct SharedInputs<'s> {
    service: &'s dyn InferenceService,
    lease: &'s Lease,
    /// The maximum number of bytes to copy.
    most: u64,
    /// The number of bytes requested so far.
    asked: Cell<u64>,
}

impl<'s> SharedInputs<'s> {
    /// Creates a reader for the request with this lease.
    #[must_use]
    pub fn new(service: &'s dyn InferenceService, lease: &'s Lease) -> Self {
        Self {
            service,
            lease,
            most: u64::MAX,
            asked: Cell::new(0),
        }
    }

    /// Returns a reader that copies at most `bytes` bytes, for threads that must not block for long.
    #[must_use]
    pub fn up_to(self, bytes: u64) -> Self {
        Self { most: bytes, ..self }
    }

    /// Returns the number of bytes requested so far. If this number exceeds the limit, reading has stopped,
    /// and another thread must start over.
    #[must_use]
    pub fn asked(&self) -> u64 {
        self.asked.get()
    }

    /// Returns whether reading stopped because of the limit.
    #[must_use]
    pub fn is_too_much(&self) -> bool {
        self.asked.get() > self.most
    }

    /// Counts bytes before they are copied.
    fn count(&self, bytes: u64) -> Result<(), ServiceError> {
        self.asked.set(self.asked.get().saturating_add(bytes));
        if self.is_too_much() {
            return Err(ServiceError::internal(
                "more is to be copied than this thread may copy",
            ));
        }
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
    /// Reads from the connection's own region, into a kept buffer of an earlier request if possible.
    fn read_connection(&self, slice: &SharedMemorySlice) -> Result<Bytes, ServiceError> {
        use oip_resources::{Buffer, connection_memory_name, no_connection_memory};

        let memory = self.lease.connection_memory().ok_or_else(no_connection_memory)?;
        self.lease.check()?;
        let (offset, byte_size) = (slice.offset, slice.byte_size);
        let mut buffer = Buffer::new(self.lease)?;
        // The size is checked before memory is allocated.
        if byte_size > memory.byte_size() {
            let found = format!("expected at most {} bytes, found {byte_size}", memory.byte_size());
            return Err(ServiceError::invalid(found).within(connection_memory_name()));
        }
        let append = |bytes: &mut Vec<u8>| memory.append_to(offset, byte_size, bytes);
        buffer
            .append_with(byte_size as usize, append)
            .map_err(|error| error.within(connection_memory_name()))?;
        Ok(buffer.finish())
    }
}
