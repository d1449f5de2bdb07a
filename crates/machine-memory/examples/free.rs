//! Prints how much memory this process may still allocate, its memory limit, and its private memory.
//!
//! ```sh
//! cargo run --package machine-memory --example free
//! ```
#![allow(clippy::print_stdout, reason = "an example talks to its reader")]

fn main() {
    let sizes = [
        ("available", machine_memory::available_memory()),
        ("limit", machine_memory::memory_limit()),
        ("private", machine_memory::private_memory()),
    ];
    for (what, bytes) in sizes {
        let bytes = bytes.map_or("unknown".to_owned(), |bytes| format!("{} MiB", bytes >> 20));
        println!("{what}: {bytes}");
    }
}
