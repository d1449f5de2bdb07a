//! Prints how much memory this process may still allocate, its memory limit, and its private memory.
//!
//! ```sh
//! cargo run --package system-memory --example free
//! ```
#![allow(clippy::print_stdout, reason = "an example talks to its reader")]

fn main() {
    let sizes = [
        ("available", system_memory::available_memory()),
        ("limit", system_memory::memory_limit()),
        ("private", system_memory::private_memory()),
    ];
    for (what, bytes) in sizes {
        let bytes = bytes.map_or("unknown".to_owned(), |bytes| format!("{} MiB", bytes >> 20));
        println!("{what}: {bytes}");
    }
}
