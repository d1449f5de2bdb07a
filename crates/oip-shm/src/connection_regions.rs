//! Shared memory that clients pass over their connections: opens it, limits its size and counts it toward the
//! budget.

use std::{
    io,
    os::fd::OwnedFd,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use oip_resources::{ByteBudget, Charge, ConnectionMemory, OpenConnectionMemory};
use oip_service::oip_types::{ErrorCode, ServiceError};
use tensor_mmap::SharedMemory;

/// Opens the shared memory that clients pass over their connections.
///
/// The memory of all connections together is limited to a quarter of the request budget. Mapped memory counts
/// toward the budget, because pages that the server touches count as the server's memory, and remain after
/// the client exits.
///
/// ```
/// use oip_resources::{ByteBudget, ConnectionMemory, OpenConnectionMemory};
/// use oip_shm::ConnectionRegions;
///
/// let budget = ByteBudget::new(1 << 20);
/// let regions = ConnectionRegions::new(&budget, 64 << 20);
/// let (client, descriptor) = tensor_mmap::SharedMemory::new(4096)?;
/// let memory = regions.open(descriptor)?;
/// client.write(0, b"hello")?;
/// let mut bytes = Vec::new();
/// memory.append_to(1, 3, &mut bytes)?;
/// assert_eq!((&bytes[..], budget.used()), (&b"ell"[..], 4096));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct ConnectionRegions {
    budget: ByteBudget,
    max_bytes: u64,
    max_transfer_bytes: u64,
    used: Arc<AtomicU64>,
}

impl ConnectionRegions {
    /// Creates an opener of regions, whose memory counts toward `budget`; one input or output has at most
    /// `max_transfer_bytes`.
    #[must_use]
    pub fn new(budget: &ByteBudget, max_transfer_bytes: u64) -> Self {
        Self {
            budget: budget.clone(),
            max_bytes: budget.limit() / 4,
            max_transfer_bytes,
            used: Arc::default(),
        }
    }
}

impl OpenConnectionMemory for ConnectionRegions {
    fn open(&self, descriptor: OwnedFd) -> Result<Arc<dyn ConnectionMemory>, ServiceError> {
        let max = self.max_bytes;
        let refused = |error: io::Error| match error.kind() {
            io::ErrorKind::InvalidInput => ServiceError::invalid(error.to_string()),
            io::ErrorKind::FileTooLarge => ServiceError::new(ErrorCode::TooLarge, error.to_string()),
            io::ErrorKind::Unsupported => ServiceError::new(ErrorCode::Unimplemented, error.to_string()),
            _ => ServiceError::new(ErrorCode::Overloaded, "it cannot be mapped").caused_by(error),
        };
        let memory = SharedMemory::open(descriptor, max).map_err(refused)?;
        let bytes = memory.len();
        let fits = |used: u64| used.checked_add(bytes).filter(|used| *used <= max);
        self.used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits)
            .map_err(|_| {
                let message = format!("the limit of {max} bytes for all connections is reached");
                ServiceError::new(ErrorCode::Overloaded, message)
            })?;
        // If the budget is exhausted, dropping `share` returns the bytes.
        let share = Share {
            bytes,
            used: self.used.clone(),
        };
        let charge = self.budget.take(bytes)?;
        Ok(Arc::new(Region {
            memory,
            max_transfer_bytes: self.max_transfer_bytes,
            _share: share,
            _charge: charge,
        }))
    }
}

/// The memory of a connection. Dropping the region first unmaps the memory, and then returns its bytes to the
/// budget.
#[derive(Debug)]
struct Region {
    memory: SharedMemory,
    max_transfer_bytes: u64,
    _share: Share,
    _charge: Charge,
}

/// A region's share of the bytes that all connections together may use.
#[derive(Debug)]
struct Share {
    bytes: u64,
    used: Arc<AtomicU64>,
}

impl Drop for Share {
    fn drop(&mut self) {
        self.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl ConnectionMemory for Region {
    fn byte_size(&self) -> u64 {
        self.memory.len()
    }

    fn append_to(&self, offset: u64, byte_size: u64, buffer: &mut Vec<u8>) -> Result<(), ServiceError> {
        let limit = self.max_transfer_bytes;
        if byte_size > limit {
            let message = format!("expected at most {limit} bytes at once, found {byte_size}");
            return Err(ServiceError::new(ErrorCode::TooLarge, message));
        }
        self.memory
            .append_to(offset, byte_size, buffer)
            .map_err(copy_refused)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), ServiceError> {
        self.memory.write(offset, bytes).map_err(copy_refused)
    }
}

fn copy_refused(error: io::Error) -> ServiceError {
    match error.kind() {
        io::ErrorKind::OutOfMemory => {
            ServiceError::new(ErrorCode::Overloaded, "the system is out of memory").caused_by(error)
        }
        _ => ServiceError::invalid(error.to_string()),
    }
}
