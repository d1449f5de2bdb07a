//! `cargo run -p model-store --example mirror -- URL CACHE`: mirrors a URL and prints the local path.
#![allow(clippy::print_stdout, reason = "it talks to a person at a terminal")]

use model_store::{Location, Mirror, MirrorOptions, Scope, StoreError};

fn main() -> Result<(), StoreError> {
    let mut arguments = std::env::args().skip(1);
    let (Some(url), Some(cache)) = (arguments.next(), arguments.next()) else {
        println!("usage: mirror URL CACHE");
        return Ok(());
    };
    let mirror = Mirror::open(&Location::parse(&url)?, MirrorOptions::new(cache))?;
    println!("{}", mirror.start(Scope::All)?.display());
    Ok(())
}
