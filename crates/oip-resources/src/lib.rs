//! Resource limits of requests: memory, time and threads.
//!
//! A server gives each request a [`Lease`]. The lease charges each buffer of the request to a [`ByteBudget`],
//! which all requests share, before the buffer is allocated; it has the request's deadline, is cancelled when
//! the client disconnects, and can record how long each phase takes ([`RequestNotes`]). A [`Buffer`] grows
//! only as far as the lease allows, a [`CpuPool`] runs long work outside of a transport's threads and drops
//! jobs whose deadline has passed, and `compression` (a feature) inflates bodies within the lease.
//!
//! ```
//! use oip_resources::{Buffer, ByteBudget, Lease, TimeLimits};
//!
//! let budget = ByteBudget::new(1 << 20);
//! let lease = Lease::new(&budget, &TimeLimits::default());
//! let mut buffer = Buffer::new(&lease)?;
//! buffer.push(b"a request's body", None)?;
//! assert!(budget.used() >= 16);
//! assert!(lease.charge(2 << 20).is_err());
//! # Ok::<(), oip_resources::oip_types::ServiceError>(())
//! ```

mod budget;
mod buffer;
mod call_slot;
#[cfg(feature = "compression")]
pub mod compression;
#[cfg(unix)]
mod connection_memory;
mod cpu_pool;
mod lease;
mod notes;
mod time_limits;
mod token_bucket;

pub use budget::ByteBudget;
pub use buffer::Buffer;
pub use call_slot::{CallSlot, RevocableSlot};
#[cfg(unix)]
pub use connection_memory::{
    ConnectionMemory, ConnectionRegion, OpenConnectionMemory, connection_memory_name, no_connection_memory,
    not_passed,
};
pub use cpu_pool::CpuPool;
pub use lease::{Charge, Lease};
pub use notes::{Laps, Phase, RequestNotes, Stage, StageKind};
pub use oip_types;
pub use time_limits::TimeLimits;
pub use token_bucket::TokenBucket;
