//! Reads standard input into memory within a budget, and counts its lines on a pool's thread.
//!
//! ```sh
//! cargo run --package oip-resources --example limited < Cargo.toml
//! ```
#![allow(clippy::print_stdout, reason = "an example talks to its reader")]

use std::{
    error::Error,
    io::{Read, stdin},
    time::Duration,
};

use oip_resources::{Buffer, ByteBudget, CpuPool, Lease, TimeLimits};

fn main() -> Result<(), Box<dyn Error>> {
    let budget = ByteBudget::new(1 << 20);
    let lease = Lease::new(&budget, &TimeLimits::default());
    lease.set_timeout(Duration::from_secs(60));

    let mut body = Buffer::new(&lease)?;
    let mut chunk = [0; 4096];
    loop {
        let count = stdin().read(&mut chunk)?;
        if count == 0 {
            break;
        }
        body.push(&chunk[..count], None)?;
    }
    let body = body.finish();
    println!(
        "{} of {} bytes of the budget are in use",
        budget.used(),
        budget.limit()
    );

    let bytes = body.len() as u64;
    let count = move || Ok(body.iter().filter(|byte| **byte == b'\n').count());
    let lines = futures_executor::block_on(CpuPool::new(1).run(&lease, bytes, count))?;
    println!("{lines} lines");
    Ok(())
}
