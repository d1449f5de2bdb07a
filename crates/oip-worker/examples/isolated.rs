//! Shows that a model that aborts ends only its own process, and that the caller gets an error.
//!
//! ```sh
//! cargo run --package oip-worker --example isolated
//! ```
#![allow(clippy::print_stdout, reason = "an example talks to its reader")]

use std::{
    process::{Command, ExitCode},
    sync::Arc,
};

use oip_model::{Backend, Call, CancelToken, LoadContext, Model, ModelSource, Outcome};
use oip_types::{InferRequest, ModelMetadata, ModelRef, ServiceError};
use oip_worker::{IsolatedBackend, Isolation};

/// A backend whose models abort.
struct Fragile;

struct Aborting(ModelMetadata);

impl Backend for Fragile {
    fn name(&self) -> &'static str {
        "fragile"
    }

    fn file_names(&self) -> &[&str] {
        &["model.fragile"]
    }

    fn load(&self, source: &ModelSource, _: &LoadContext) -> Result<Box<dyn Model>, ServiceError> {
        let metadata = ModelMetadata::new(&*source.name, "example", Vec::new(), Vec::new());
        Ok(Box::new(Aborting(metadata)))
    }
}

impl Model for Aborting {
    fn metadata(&self) -> &ModelMetadata {
        &self.0
    }

    fn run(&self, _: Call<'_>) -> Result<Outcome, ServiceError> {
        std::process::abort()
    }
}

fn main() -> ExitCode {
    if std::env::args()
        .nth(1)
        .is_some_and(|argument| argument == "worker")
    {
        return oip_worker::run(&[Arc::new(Fragile)]);
    }
    match ask() {
        Ok(()) => println!("it answered"),
        Err(error) => println!("still here: {error}"),
    }
    ExitCode::SUCCESS
}

fn ask() -> Result<(), ServiceError> {
    let isolation = Isolation::new(|| {
        let mut command = Command::new(oip_worker::this_program());
        command.arg("worker");
        command
    });
    let backend = IsolatedBackend::new(Arc::new(Fragile), isolation.by_default(true));
    let source = ModelSource::new("m", "1", "model.fragile", b"".as_slice().into());
    let model = backend.load(&source, &LoadContext::default())?;
    let request = InferRequest::new(ModelRef::new("m", None)?);
    model.infer(request, &CancelToken::new(None)).map(drop)
}
