//! Runs the project's own tasks. `cargo xtask --help` lists them.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "these tasks talk to a person at a terminal"
)]

mod attack;
mod bench;
mod book;
mod browser;
mod cargo;
mod ci;
mod circles;
mod codegen;
mod compare;
mod components;
mod corpus;
mod crate_map;
mod crate_pages;
mod dependencies;
mod deploy;
mod dist;
mod documents;
mod elf;
mod features;
mod fuzz;
mod gpu;
mod image;
mod images;
mod interop;
mod interop_text;
mod interop_ztensor;
mod layers;
mod links;
mod monitor;
mod profile;
mod promises;
mod python;
mod readmes;
mod rustfmt;
mod schemas;
mod semver;
mod served;
mod simulate;
mod sizes;
mod standalone;
mod stores;
mod tidy;
mod tools;
mod tutorials;
mod venv;
mod wheel;
mod workspace;
mod zoo;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "The project's own tasks")]
struct Args {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Generate code from proto/ (pure Rust, needs no protoc) and schemas/ (changes need the feature
    /// `flatc`), and each library's README
    Codegen {
        /// Write nothing; fail when a committed file is stale
        #[arg(long)]
        check: bool,
    },
    /// Check the house rules: layout, dependency direction, documentation; report large files
    Tidy,
    /// Regenerate the test files of the formats, and their expected results
    Corpus,
    /// Run the benchmarks of docs/measured/serving.md, operators.md and files.md
    Bench {
        /// The subject to measure
        subject: bench::Subject,
        /// For `serve` and `options`: arguments for the program that measures the cost of requests, such as
        /// `--server OTHER --only gRPC`; for `lengths`: arguments for its script
        #[arg(last = true)]
        more: Vec<String>,
    },
    /// Run every attack against a release build of the server with default options, next to well-behaved
    /// clients; prints a table
    Attack(attack::AttackOptions),
    /// Mix well-behaved and hostile clients, loads, kills and restarts for a long time; fails when a request
    /// is lost or memory grows
    Soak(attack::SoakOptions),
    /// Test the servers with Python clients of other projects, or read files of other projects; needs Python
    /// 3 and a network for the first run
    Interop(interop::Options),
    /// Compare the responses of real models from public Python packages with ONNX Runtime; needs Python 3 and
    /// a network
    Zoo(zoo::Options),
    /// Check the manifests of docs/deploy against the schemas of Kubernetes and KServe; needs Python 3,
    /// kubectl and a network for the first run
    Deploy(deploy::Options),
    /// Build the server's image with buildah, run it with podman, and print its size and the time to its
    /// first response
    Image(image::Options),
    /// Check every query of the dashboard and the alerts of docs/deploy/monitoring against a real Prometheus
    /// that scrapes a running server; needs Python 3 and Prometheus
    Monitor(monitor::Options),
    /// Compute how many requests of a burst are served, wait or are refused until autoscalers have started
    /// enough replicas (docs/deploy/scaling.md)
    Simulate(simulate::Options),
    /// Serve models from emulators of S3, Google's store and Azure, and from a server that imitates the Hub;
    /// needs Python 3, npm and a network for the first run
    Stores(stores::Options),
    /// Build the Python package `tensorferry` as a wheel, with the programs in it; needs Python 3.11 and a
    /// network for the first run
    Wheel(wheel::Options),
    /// Build the wheel, install it into a new environment, and run its tests there
    Python(python::TestOptions),
    /// Print how many crates the protocol's crates depend on, and how long a clean build of them takes
    Sizes,
    /// Build docs/ as a book with search, into target/book; needs mdBook
    Book,
    /// Run the tutorials of docs/tutorials unchanged; needs Python 3.11 and a network for the first run
    Tutorials(tutorials::Options),
    /// Use every control of the console in a real browser, with screenshots; needs Chromium, Python 3 and a
    /// network for the first run
    Browser(browser::Options),
    /// Compare this server with MLServer, KServe's Python server and Triton; needs Python 3 and a network for
    /// the first run
    Compare(compare::Options),
    /// Compare models on a GPU with the CPU, using an installed ONNX Runtime library and server; builds and
    /// downloads nothing, takes at most eight minutes, and reports what is missing without a GPU
    Gpu(gpu::Options),
    /// Build release archives: programs, completions, man pages, licences, a bill of materials, checksums
    Dist(dist::Options),
    /// Check the dependencies' licences, sources and known vulnerabilities; needs cargo-deny and a network
    Deny,
    /// Check each crate with none of its features, with each alone, and with all
    Features(features::Options),
    /// Check the public interfaces against those of a commit or tag; needs cargo-semver-checks
    Semver(semver::Options),
    /// Check the workspace with the oldest supported Rust; needs rustup and that toolchain
    Msrv,
    /// Compile all fuzz targets; with --seconds, run them too
    Fuzz(fuzz::Options),
    /// Build and run the example crate outside of the workspace, crates/tensorferry/tests/standalone
    Standalone,
    /// Package every crate as for a registry, and build the packages
    Package {
        /// Do not build the packages
        #[arg(long)]
        no_verify: bool,
    },
    /// Run all checks that must pass: fmt, clippy, tests, rustdoc, codegen freshness
    Ci,
}

fn main() -> ExitCode {
    if let Some(result) = profile::wrapped_rustc() {
        return result.unwrap_or_else(|error| failed(&error));
    }
    let result = match Args::parse().task {
        Task::Codegen { check } => codegen::run(check),
        Task::Tidy => tidy::run(),
        Task::Corpus => corpus::run(),
        Task::Bench { subject, more } => bench::run(subject, &more),
        Task::Attack(options) => attack::attack(&options),
        Task::Soak(options) => attack::soak(&options),
        Task::Interop(options) => interop::run(&options),
        Task::Zoo(options) => zoo::run(&options),
        Task::Deploy(options) => deploy::run(&options),
        Task::Image(options) => image::run(&options),
        Task::Monitor(options) => monitor::run(&options),
        Task::Simulate(options) => simulate::run(&options),
        Task::Stores(options) => stores::run(&options),
        Task::Wheel(options) => wheel::wheel(&options),
        Task::Python(options) => python::test(&options),
        Task::Sizes => sizes::run(),
        Task::Book => book::run(),
        Task::Tutorials(options) => tutorials::run(&options),
        Task::Browser(options) => browser::run(&options),
        Task::Compare(options) => compare::run(&options),
        Task::Gpu(options) => gpu::run(&options),
        Task::Dist(options) => dist::run(&options),
        Task::Deny => tools::deny(),
        Task::Features(options) => features::run(&options),
        Task::Semver(options) => semver::run(&options),
        Task::Msrv => tools::msrv(),
        Task::Fuzz(options) => fuzz::run(&options),
        Task::Standalone => standalone::run(),
        Task::Package { no_verify } => tools::package(!no_verify),
        Task::Ci => ci::run(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(&error),
    }
}

fn failed(error: &anyhow::Error) -> ExitCode {
    eprintln!("error: {error:#}");
    ExitCode::FAILURE
}
