//! Memory that a client shares with the server over one connection, and how requests access it.

use std::{
    fmt,
    os::fd::OwnedFd,
    sync::{Arc, OnceLock},
};

use oip_types::{CONNECTION_REGION, ServiceError};
use parking_lot::Mutex;
use tensor_core::QuotedName;

/// Memory that the client of a connection may change at any time, so bytes are only copied in and out.
pub trait ConnectionMemory: fmt::Debug + Send + Sync {
    /// Returns the size in bytes.
    fn byte_size(&self) -> u64;

    /// Appends a copy of the `byte_size` bytes at `offset` to `buffer`, which already has enough capacity.
    ///
    /// # Errors
    /// [`InvalidArgument`](oip_types::ErrorCode::InvalidArgument) when the range is out of bounds,
    /// [`TooLarge`](oip_types::ErrorCode::TooLarge) when it exceeds the limit of one transfer.
    fn append_to(&self, offset: u64, byte_size: u64, buffer: &mut Vec<u8>) -> Result<(), ServiceError>;

    /// Copies `bytes` to `offset`.
    ///
    /// # Errors
    /// See [`ConnectionMemory::append_to`].
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), ServiceError>;
}

/// Creates [`ConnectionMemory`] from descriptors that clients pass.
pub trait OpenConnectionMemory: fmt::Debug + Send + Sync {
    /// Maps the memory of a descriptor, after checking that the client cannot harm the server through it.
    ///
    /// # Errors
    /// [`InvalidArgument`](oip_types::ErrorCode::InvalidArgument) when the descriptor does not refer to
    /// memory that is safe to map, [`TooLarge`](oip_types::ErrorCode::TooLarge) when the memory is too large,
    /// [`Overloaded`](oip_types::ErrorCode::Overloaded) when too much memory is mapped already.
    fn open(&self, descriptor: OwnedFd) -> Result<Arc<dyn ConnectionMemory>, ServiceError>;
}

/// The memory of one connection, stored as an extension of all requests on a connection whose first request
/// came with a descriptor. Clones share the memory. The memory is unmapped when the connection is closed and
/// its last request is done.
#[derive(Clone, Debug)]
pub struct ConnectionRegion(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    passed: Mutex<Option<OwnedFd>>,
    memory: OnceLock<Arc<dyn ConnectionMemory>>,
}

impl ConnectionRegion {
    /// Creates a region whose memory is not open yet.
    #[must_use]
    pub fn new(descriptor: OwnedFd) -> Self {
        Self(Arc::new(Inner {
            passed: Mutex::new(Some(descriptor)),
            memory: OnceLock::new(),
        }))
    }

    /// Opens the memory for the connection's first request, and returns its size.
    ///
    /// # Errors
    /// Returns the errors of [`OpenConnectionMemory::open`];
    /// [`InvalidArgument`](oip_types::ErrorCode::InvalidArgument) when the memory was already opened or
    /// refused.
    pub fn open(&self, opener: &dyn OpenConnectionMemory) -> Result<u64, ServiceError> {
        let passed = self.0.passed.lock().take();
        let descriptor = passed.ok_or_else(not_passed)?;
        let memory = opener
            .open(descriptor)
            .map_err(|error| error.within(connection_memory_name()))?;
        Ok(self.0.memory.get_or_init(|| memory).byte_size())
    }

    /// Returns the memory if it was opened.
    #[must_use]
    pub fn memory(&self) -> Option<&Arc<dyn ConnectionMemory>> {
        self.0.memory.get()
    }
}

/// Returns the error for a request to open memory that came without a descriptor.
#[must_use]
pub fn not_passed() -> ServiceError {
    ServiceError::invalid("expected one descriptor with the first byte of the connection's first request")
        .within(connection_memory_name())
}

/// Returns the error for a connection without memory.
#[must_use]
pub fn no_connection_memory() -> ServiceError {
    ServiceError::invalid("this connection has no shared memory of its own").within(connection_memory_name())
}

/// Returns the name that error messages use for the connection's shared memory.
#[must_use]
pub fn connection_memory_name() -> String {
    format!("shared memory region {}", QuotedName(CONNECTION_REGION))
}
