//! Lists the models of a directory with their versions, and the reason for each model that cannot be used.
//!
//! ```sh
//! cargo run --package model-repository --example list -- crates/oip-server/examples/models
//! ```
#![allow(clippy::print_stdout, reason = "an example talks to its reader")]

use std::{path::Path, sync::Arc};

use model_repository::{ModelError, Repository, VersionContent};
use oip_model::{Backend, LoadContext, Model, ModelSource};
use oip_types::ServiceError;

/// Recognizes ONNX models by their file name. Cannot load them.
struct OnnxFiles;

impl Backend for OnnxFiles {
    fn name(&self) -> &'static str {
        "onnx"
    }

    fn file_names(&self) -> &[&str] {
        &["model.onnx"]
    }

    fn load(&self, _: &ModelSource, _: &LoadContext) -> Result<Box<dyn Model>, ServiceError> {
        Err(ServiceError::invalid("this program only lists models"))
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("which directory?")?;
    let repository = Repository::open(Path::new(&path), &[Arc::new(OnnxFiles)], None)?;
    for name in repository.model_names()? {
        if let Err(reason) = list(&repository, &name) {
            println!("{name}: {reason}");
        }
    }
    for passed_over in repository.passed_over() {
        println!("{}: {}", passed_over.file, passed_over.advice);
    }
    Ok(())
}

fn list(repository: &Repository, name: &str) -> Result<(), ModelError> {
    let Some(model) = repository.model(name)? else {
        return Ok(());
    };
    let written = model.configuration()?;
    model.check_name(&written)?;
    for found in model.versions(&written)? {
        let version = found.version.unwrap_or_else(|| "without versions".to_owned());
        match found.content {
            Ok(VersionContent::File(file)) => {
                let length = model.open_model(&file, None)?.len();
                println!("{name} {version}: {} ({length} bytes)", file.path.display());
            }
            Ok(VersionContent::Pipeline) => println!("{name} {version}: a pipeline"),
            Err(reason) => println!("{name} {version}: {reason}"),
        }
    }
    Ok(())
}
