//! Measures models on a GPU with an installed ONNX Runtime library: latency compared with the CPU, agreement,
//! memory, and failures. Builds and downloads nothing, so that the task can run on a machine that is
//! available only for minutes. On a machine without a GPU, the task reports what is missing.

mod bench;
mod client;
mod faults;
mod measure;
mod models;
mod onnx;
mod server;
mod tables;

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use clap::Args;

use self::{
    bench::{Bench, library, write_models},
    server::Server,
};
use crate::workspace;

/// Options of `gpu`.
#[derive(Args)]
pub(crate) struct Options {
    /// The directory of an ONNX Runtime library, such as .../site-packages/onnxruntime/capi, or the library
    /// itself
    #[arg(long, value_name = "DIR")]
    library: PathBuf,
    /// The server; nothing is built [default: the release build]
    #[arg(long, value_name = "PROGRAM")]
    server: Option<PathBuf>,
    /// Time limit in seconds. Measurements that do not fit are skipped, with a message
    #[arg(long, default_value_t = 480, value_name = "SECONDS")]
    seconds: u64,
}

/// Runs all measurements, and prints each result as it arrives.
pub(crate) fn run(options: &Options) -> Result<()> {
    let begun = Instant::now();
    let program = match &options.server {
        Some(server) => server.clone(),
        None => workspace::built("release").join("oip-server"),
    };
    ensure!(
        program.is_file(),
        "there is no server at {}; build one first, or name one with --server",
        program.display()
    );
    let library = library(&options.library)?;
    let folder = tempfile::tempdir()?;
    let models = folder.path().join("models");
    write_models(&models)?;
    let bench = Bench {
        server: Server::start(&program, &library, &models, "first")?,
        program,
        library,
        models,
        end: begun + Duration::from_secs(options.seconds),
    };
    println!("library: {}", bench.library.display());
    for line in bench
        .server
        .log_with("loaded ONNX Runtime")
        .iter()
        .chain(&bench.server.log_with("GPUs for models"))
    {
        println!("log: {line}");
    }
    let cuda = bench.server.load("resnet50_cuda")?;
    match &cuda {
        Ok(()) => println!("on: {}", bench.server.placement("resnet50_cuda")?),
        Err(reason) => println!("no CUDA, so its column is missing: {reason}"),
    }
    let has_cuda = cuda.is_ok();
    if has_cuda {
        bench.server.unload("resnet50_cuda")?;
    }
    tables::times(&bench, has_cuda)?;
    tables::rates(&bench, has_cuda)?;
    tables::loads(&bench, has_cuda)?;
    faults::run(&bench, has_cuda)?;
    println!("\n{:.0} s", begun.elapsed().as_secs_f64());
    Ok(())
}
