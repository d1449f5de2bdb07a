//! Page-granular memory from the system. `map` returns zeroed memory, or null on failure; `remap` resizes a
//! buffer, and may move it; on failure it returns null and leaves the buffer unchanged.

#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "linux")]
pub(crate) use linux::{map, remap, unmap};

#[cfg(not(target_os = "linux"))]
mod other;
#[cfg(not(target_os = "linux"))]
pub(crate) use other::{map, remap, unmap};
