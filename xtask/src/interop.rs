//! Runs clients of other projects against the servers, and files of other projects through `tensor`. The
//! scripts `xtask/interop/suite.py` and `files.py` run in a separate virtual environment.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Stdio},
};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use crate::{cargo, interop_text, interop_ztensor, workspace};

/// Options of `interop`.
#[derive(Args)]
pub(crate) struct Options {
    /// The Python that creates the virtual environment
    #[arg(long, default_value = "python3", value_name = "PROGRAM")]
    python: String,
    /// Show each check, not only those that fail
    #[arg(long)]
    verbose: bool,
    /// Run only checks whose names contain this
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Instead of the servers, test the program `tensor` with files of NumPy, safetensors, gguf and, if the
    /// virtual environment has it, PyTorch, and the readers of zTensor with files of four versions of its
    /// package
    #[arg(long)]
    files: bool,
    /// Test the servers with the Python package's Triton-compatible clients, from its wheel, instead of
    /// Triton's own
    #[arg(long)]
    compat: bool,
    /// Build that wheel without optimisation
    #[arg(long, requires = "compat")]
    debug: bool,
    /// Compare text models with `tokenizers` and ONNX Runtime, and test their routes with the packages
    /// `openai` and `cohere`
    #[arg(long)]
    text: bool,
    /// Test a server of Python models, each in a separate process, instead of the servers of simple and of
    /// real models
    #[arg(long)]
    python_models: bool,
}

/// The directory of the suite.
const SUITE: &str = "xtask/interop";
/// The directory of the virtual environment. It is kept, because creating it takes a long time.
const ENVIRONMENT: &str = "target/interop-venv";

/// Builds and starts the servers and runs the suite. Returns an error if any check fails.
pub(crate) fn run(options: &Options) -> Result<()> {
    if options.text {
        return interop_text::run(&options.python, options.verbose, options.only.as_deref());
    }
    let python = environment(&options.python)?;
    if options.files {
        if options
            .only
            .as_deref()
            .is_none_or(|only| "ztensor".contains(only))
        {
            interop_ztensor::run(&options.python)?;
        }
        return run_files(&python, options);
    }
    if options.compat {
        crate::python::install(&options.python, options.debug, &python)?;
    }
    if options.python_models {
        return run_python_models(&python, options);
    }
    run_simple_and_real_models(&python, options)
}

/// Runs the suite against two servers: of simple models, and of the example repository.
fn run_simple_and_real_models(python: &Path, options: &Options) -> Result<()> {
    cargo::run(
        &[
            "build",
            "--package",
            "oip-server",
            "--bin",
            "oip-server",
            "--example",
            "test_service",
        ],
        &[],
    )?;
    let programs = workspace::built("debug");
    let mut simple = Server::start(&mut Command::new(programs.join("examples/test_service")))?;
    let models = workspace::root().join("crates/oip-server/examples/models");
    let mut real = Server::start(&mut oip_server(&models))?;
    real.wait_for(" after ")?;

    let mut suite = Command::new(python);
    suite
        .arg(workspace::root().join(SUITE).join("suite.py"))
        .args([&simple.http, &simple.grpc, &real.http, &real.grpc])
        .arg(workspace::root().join("crates/oip-server/examples/requests"));
    add_options(&mut suite, options);
    let status = suite.status().context("starting the suite")?;
    for (name, server) in [("test_service", &mut simple), ("oip-server", &mut real)] {
        if let Some(status) = server.child.try_wait()? {
            bail!("{name} ended while it was driven: {status}");
        }
    }
    ensure!(status.success(), "not everything passed");
    Ok(())
}

/// Runs the suite against Python models, without the checks that concern only the server itself.
fn run_python_models(python: &Path, options: &Options) -> Result<()> {
    cargo::run(&["build", "--package", "oip-server", "--bin", "oip-server"], &[])?;
    let suite = workspace::root().join(SUITE);
    let models = workspace::root().join("target/interop-python-models");
    if models.exists() {
        fs::remove_dir_all(&models)?;
    }
    let status = Command::new(python)
        .arg(suite.join("python_models.py"))
        .arg(&models)
        .status()
        .context("writing the models")?;
    ensure!(status.success(), "the models could not be written");
    let mut command = oip_server(&models);
    command.args(["--allow-python", "--python"]).arg(python);
    let mut server = Server::start(&mut command)?;
    server.wait_for(" after ")?;
    let mut command = Command::new(python);
    command
        .arg(suite.join("suite.py"))
        .args([&server.http, &server.grpc, &server.http, &server.grpc])
        .arg(&models)
        .arg("--python-models");
    add_options(&mut command, options);
    let status = command.status().context("starting the suite")?;
    if let Some(status) = server.child.try_wait()? {
        bail!("oip-server ended while it was driven: {status}");
    }
    ensure!(status.success(), "not everything passed");
    Ok(())
}

/// Returns the command that serves a repository on free ports.
fn oip_server(models: &Path) -> Command {
    let mut command = Command::new(workspace::built("debug").join("oip-server"));
    command.arg("--model-repository").arg(models).args([
        "--http-address",
        "127.0.0.1:0",
        "--grpc-address",
        "127.0.0.1:0",
        "--system-shared-memory",
    ]);
    command
}

/// Passes the suite the options that select and show checks, and choose the clients.
fn add_options(suite: &mut Command, options: &Options) {
    if options.compat {
        suite.env("INTEROP_COMPAT", "1");
    }
    if options.verbose {
        suite.arg("--verbose");
    }
    if let Some(only) = &options.only {
        suite.args(["--only", only]);
    }
}

/// Reads files of other programs with `tensor`, and files of `tensor` with other programs.
fn run_files(python: &Path, options: &Options) -> Result<()> {
    cargo::run(&["build", "--package", "tensor-cli"], &[])?;
    let mut suite = Command::new(python);
    suite
        .arg(workspace::root().join(SUITE).join("files.py"))
        .arg(workspace::built("debug").join("tensor"));
    add_options(&mut suite, options);
    let status = suite.status().context("starting the suite")?;
    let mut checkpoints = Command::new(python);
    checkpoints
        .arg(workspace::root().join(SUITE).join("checkpoints.py"))
        .arg(workspace::built("debug").join("tensor"));
    add_options(&mut checkpoints, options);
    let are_fine = checkpoints
        .status()
        .context("starting the suite of checkpoints")?;
    ensure!(status.success() && are_fine.success(), "not everything passed");
    Ok(())
}

/// Returns the Python of the virtual environment. The environment is recreated when the requirements change.
fn environment(python: &str) -> Result<PathBuf> {
    let folder = workspace::root().join(ENVIRONMENT);
    let program = folder.join("bin/python");
    let requirements = workspace::root().join(SUITE).join("requirements.txt");
    let wanted = fs::read(&requirements).context("reading the requirements")?;
    let installed = folder.join("requirements.txt");
    if fs::read(&installed).is_ok_and(|installed| installed == wanted) {
        return Ok(program);
    }
    println!("filling {ENVIRONMENT}");
    let call = |program: &Path, arguments: &[&str]| -> Result<()> {
        let status = Command::new(program).args(arguments).status();
        let status = status.with_context(|| format!("starting {}", program.display()))?;
        match status.success() {
            true => Ok(()),
            false => bail!("`{} {}` failed", program.display(), arguments.join(" ")),
        }
    };
    let text = |path: &Path| {
        path.to_str()
            .map(str::to_owned)
            .context("the directory has no plain name")
    };
    call(Path::new(python), &["-m", "venv", "--clear", &text(&folder)?])?;
    let install = [
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--requirement",
    ];
    call(&program, &[&install[..], &[&text(&requirements)?]].concat())?;
    fs::write(installed, wanted)?;
    Ok(program)
}

/// A running server. Dropping this value kills the server.
struct Server {
    child: Child,
    stdout: BufReader<ChildStdout>,
    http: String,
    grpc: String,
}

impl Server {
    /// Starts a server, and reads the addresses that it prints.
    fn start(command: &mut Command) -> Result<Self> {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .context("starting a server")?;
        let stdout = child.stdout.take().context("the server has no output")?;
        let mut server = Self {
            child,
            stdout: BufReader::new(stdout),
            http: String::new(),
            grpc: String::new(),
        };
        let address = |line: String| {
            let address = line.rsplit(' ').next().unwrap_or_default().trim();
            address.trim_start_matches("http://").to_owned()
        };
        server.http = address(server.wait_for("HTTP")?);
        server.grpc = address(server.wait_for("gRPC")?);
        Ok(server)
    }

    /// Returns the next line of the server's output that contains `text`.
    fn wait_for(&mut self, text: &str) -> Result<String> {
        loop {
            let mut line = String::new();
            ensure!(self.stdout.read_line(&mut line)? > 0, "the server ended");
            if line.contains(text) {
                return Ok(line);
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
