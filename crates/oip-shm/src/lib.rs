//! Shared memory for servers: clients on the same machine leave tensors in memory that they share, and find answers there.
//! [`Regions`] is the system shared memory extension, [`ConnectionRegions`] (Linux) opens memory that one connection has for itself.
//!
//! # System shared memory
//!
//! On Linux an object of `shm_open` is a file in `/dev/shm`. [`Regions`] opens it and reads and writes it as a file, one
//! copy each way. Nothing of it is ever mapped, so that a client that shrinks its memory under a request gets an error and
//! not the server a `SIGBUS`; and what a request carries is a copy that the client cannot change while a model looks at
//! it.
//!
//! Every client of the server can name any object in that folder, and read and write it through the server with the
//! server's rights. That is how the extension is defined, in every server; so offer it only if all clients may access
//! all shared memory of the server's user. The protections:
//!
//! - The server makes no shared memory of its own that a client could name.
//! - A key is the name of one file in the folder: no path, no link, no pipe, no device.
//! - Errors say nothing about objects: one that is missing and one that may not be opened look the same.
//! - The number of regions and the bytes of one transfer are bounded.
//!
//! ```
//! # #[cfg(target_os = "linux")] {
//! use oip_service::{SystemSharedMemory, oip_types::{ReadSharedMemory, SharedMemoryRegion, SharedMemorySlice}};
//! use oip_shm::{Regions, RegionsConfig};
//!
//! // What a client would do with shm_open.
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
//! A client passes a descriptor of memory over its Unix socket, and only requests of that connection reach it. The descriptor must be
//! of `memfd_create`, with seals that keep its size. So it can be mapped, and nothing that the client does to it harms the server:
//! bytes are copied out before they are looked at.

#[cfg(target_os = "linux")]
mod connection_regions;
mod regions;

#[cfg(target_os = "linux")]
pub use connection_regions::ConnectionRegions;
pub use regions::{Regions, RegionsConfig};
