//! Registers a region of shared memory, and reads and writes it as a server does for its clients.
//!
//! ```sh
//! head -c 8 /dev/zero > /dev/shm/example && cargo run --package oip-shm --example copy -- /example
//! ```
#![allow(clippy::print_stdout, reason = "an example talks to its reader")]

use oip_service::{
    SystemSharedMemory,
    oip_types::{ReadSharedMemory, SharedMemoryRegion, SharedMemorySlice},
};
use oip_shm::{Regions, RegionsConfig};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let key = std::env::args().nth(1).ok_or("which object, such as /example?")?;
    let regions = Regions::new(RegionsConfig::default());
    regions.register(SharedMemoryRegion {
        name: "example".into(),
        key,
        offset: 0,
        byte_size: 8,
    })?;
    let slice = |offset, byte_size| SharedMemorySlice {
        region: "example".into(),
        offset,
        byte_size,
    };
    regions.write(&slice(0, 4), &[1, 2, 3, 4])?;
    println!("{:?}", &regions.read(&slice(0, 8))?[..]);
    Ok(())
}
