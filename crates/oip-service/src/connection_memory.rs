//! Memory that a client shares with the server over one connection, and how requests reach it.

use std::{
    fmt,
    os::fd::OwnedFd,
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use oip_types::{CONNECTION_REGION, ServiceError};
use tensor_core::Quoted;

/// Memory that the client of a connection may change at any time: bytes are copied in and out.
pub trait ConnectionMemory: fmt::Debug + Send + Sync {
    /// How many bytes there are.
    fn byte_size(&self) -> u64;

    /// Appends a copy of some bytes to a buffer with room for them.
    ///
    /// # Errors
    /// [`InvalidArgument`](oip_types::ErrorCode::InvalidArgument) when they are not all in it,
    /// [`TooLarge`](oip_types::ErrorCode::TooLarge) when they are more than one transfer may have.
    fn append_to(&self, offset: u64, byte_size: u64, buffer: &mut Vec<u8>) -> Result<(), ServiceError>;

    /// Copies bytes into it.
    ///
    /// # Errors
    /// As [`ConnectionMemory::append_to`].
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), ServiceError>;
}

/// Makes [`ConnectionMemory`] out of descriptors that clients pass.
pub trait OpenConnectionMemory: fmt::Debug + Send + Sync {
    /// The memory of a descriptor, once it is proven that nothing done to it can harm the server.
    ///
    /// # Errors
    /// [`InvalidArgument`](oip_types::ErrorCode::InvalidArgument) for any other descriptor,
    /// [`TooLarge`](oip_types::ErrorCode::TooLarge) and [`Overloaded`](oip_types::ErrorCode::Overloaded) when there is too much.
    fn open(&self, descriptor: OwnedFd) -> Result<Arc<dyn ConnectionMemory>, ServiceError>;
}

/// The memory of one connection: an extension of all requests of a connection whose first request came with a descriptor.
/// Clones are the same memory. It is given back when the connection is closed and its last request is done.
#[derive(Clone, Debug)]
pub struct ConnectionRegion(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    passed: Mutex<Option<OwnedFd>>,
    memory: OnceLock<Arc<dyn ConnectionMemory>>,
}

impl ConnectionRegion {
    /// Memory that is not open yet.
    #[must_use]
    pub fn new(descriptor: OwnedFd) -> Self {
        Self(Arc::new(Inner {
            passed: Mutex::new(Some(descriptor)),
            memory: OnceLock::new(),
        }))
    }

    /// Opens the memory, as the connection's first request asks for, and returns its size.
    ///
    /// # Errors
    /// What [`OpenConnectionMemory::open`] says; [`InvalidArgument`](oip_types::ErrorCode::InvalidArgument) when it was opened
    /// or refused before.
    pub fn open(&self, opener: &dyn OpenConnectionMemory) -> Result<u64, ServiceError> {
        let passed = self
            .0
            .passed
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let descriptor = passed.ok_or_else(not_passed)?;
        let memory = opener.open(descriptor).map_err(|error| error.within(named()))?;
        Ok(self.0.memory.get_or_init(|| memory).byte_size())
    }

    /// The memory, if it was opened.
    #[must_use]
    pub fn memory(&self) -> Option<&Arc<dyn ConnectionMemory>> {
        self.0.memory.get()
    }
}

/// The error for a request to open memory that came without a descriptor.
#[must_use]
pub fn not_passed() -> ServiceError {
    ServiceError::invalid("expected one descriptor with the first byte of the connection's first request")
        .within(named())
}

/// The error for a connection without memory.
pub(crate) fn no_memory() -> ServiceError {
    ServiceError::invalid("this connection has no shared memory of its own").within(named())
}

/// Where what concerns the memory goes wrong.
pub(crate) fn named() -> String {
    format!("shared memory region {}", Quoted(CONNECTION_REGION))
}
