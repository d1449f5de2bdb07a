//! Lists the models that an engine finds in a repository. The engine has no backend, so each model reports
//! which backend it needs.
//!
//! ```sh
//! cargo run --package oip-engine --example repository -- crates/oip-server/examples/models
//! ```
#![allow(clippy::print_stdout, reason = "an example talks to its reader")]

use oip_engine::{Engine, EngineConfig, Repository};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("which repository?")?;
    let engine = Engine::start(
        Repository::open(path.as_ref(), &[], None)?,
        EngineConfig::default(),
    );
    engine.wait_until_loaded();
    for model in engine.models() {
        println!("{} {}: {}", model.name, model.state.name(), model.reason);
    }
    Ok(())
}
