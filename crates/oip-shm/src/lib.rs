//! Shared memory for servers: clients on the same machine pass tensors in shared memory and receive outputs
//! there. [`Regions`] is the system shared memory extension; [`ConnectionRegions`] (Linux) opens memory that
//! belongs to a single connection.
//!
//! # System shared memory
//!
//! On Linux a `shm_open` object is a file in `/dev/shm`. [`Regions`] opens it and reads and writes it as a
//! file, with one copy in each direction. It is never mapped: if a client shrinks its memory during a
//! request, the request fails, and the server does not get a `SIGBUS`. A request holds a copy, which the
//! client cannot change while a model reads it.
//!
//! Every client of the server can name any object in that directory, and read and write it with the server's
//! permissions. This follows from the extension's definition and is the same in every server. Offer the
//! extension only if all clients may access all shared memory of the server's user. The protections:
//!
//! - The server creates no shared memory that a client could name.
//! - A key is the name of one file in the directory: not a path, link, pipe or device.
//! - Errors reveal nothing about objects: a missing object and a forbidden one give the same error.
//! - The number of regions and the size of one transfer are bounded.
//!
//! ```
//! # #[cfg(target_os = "linux")] {
//! use oip_service::{SystemSharedMemory, oip_types::{ReadSharedMemory, SharedMemoryRegion, SharedMemorySlice}};
//! use oip_shm::{Regions, RegionsConfig};
//!
//! // A client would do this with shm_open.
//! let key = format!("oip-shm-doc-{}", std::process::id());
//! let path = format!("/dev/shm/{key}");
//! std::fs::write(&path, [1, 2, 3, 4]).unwrap();
//!
//! let regions = Regions::new(RegionsConfig::default());
//! regions.register(SharedMemoryRegion { name: "inputs".into(), key: format!("/{key}"), offset: 0, byte_size: 4 }).unwrap();
//! let slice = SharedMemorySlice { region: "inputs".into(), offset: 1, byte_size: 2 };
//! assert_eq!(regions.read(&slice).unwrap(), [2, 3][..]);
//! # std::fs::remove_file(path).unwrap();
//! # }
//! ```

//!
//! # Regions of connections
//!
//! A client passes a memory descriptor over its Unix socket, and only requests on that connection can access
//! the memory. The descriptor must come from `memfd_create`, with seals that fix its size, so the server can
//! map it without risk. Bytes are copied out before they are used.

#[cfg(target_os = "linux")]
mod connection_regions;
mod regions;

#[cfg(target_os = "linux")]
pub use connection_regions::ConnectionRegions;
pub use regions::{Regions, RegionsConfig};
