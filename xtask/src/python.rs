//! The Python package: `cargo xtask wheel` builds it with the programs in it, `cargo xtask python` tests it as installed.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use crate::{cargo, components, dist, workspace};

/// Which Python to use.
#[derive(Args)]
pub(crate) struct Options {
    /// The Python that virtual environments are made with
    #[arg(long, default_value = "python3", value_name = "PROGRAM")]
    python: String,
    /// Build the extension module and the programs without optimisation: quick, for trying changes out
    #[arg(long)]
    debug: bool,
}

/// What is tested.
#[derive(Args)]
pub(crate) struct TestOptions {
    #[command(flatten)]
    build: Options,
    /// Run only the tests of files for NumPy, PyTorch and jax, in an environment that has all three (from the registry, PyTorch
    /// brings gigabytes of libraries for graphics cards)
    #[arg(long)]
    torch: bool,
}

/// The crate whose sources the package has.
const PACKAGE: &str = "crates/tensorferry-python";
/// The program that the wheel carries. It is `tensor` as well: most of that is in the server anyway.
const PROGRAM: &str = "oip-server";
/// What is installed as `tensor`. Links to it may stand in a folder without the program.
const TENSOR: &str = r#"#!/bin/sh
folder=${0%/*}
[ -x "$folder/oip-server" ] || folder=$(dirname -- "$(readlink -f -- "$0")")
exec "$folder/oip-server" --tensor "$@"
"#;
/// What builds the wheel, and puts the programs into it.
const BUILD_REQUIREMENTS: &[&str] = &["maturin>=1.9,<2", "wheel>=0.45"];
/// What the tests need besides the wheel.
const TEST_REQUIREMENTS: &[&str] = &[
    "pytest",
    "safetensors",
    "ml_dtypes",
    "scikit-learn",
    "joblib",
    "lightgbm",
    "xgboost-cpu",
    "tritonclient[grpc]",
    "trustme",
    "mypy",
    "pyright[nodejs]",
];

/// What the tests of files need for PyTorch and jax.
const TORCH_REQUIREMENTS: &[&str] = &["pytest", "safetensors", "ml_dtypes", "torch", "jax"];

/// What the benchmarks measure beside the wheel.
const BENCH_REQUIREMENTS: &[&str] = &["safetensors", "tritonclient[grpc,http]"];

/// Builds the wheel with the programs in it, and says where it is.
pub(crate) fn wheel(options: &Options) -> Result<()> {
    let wheel = build(options)?;
    let size = fs::metadata(&wheel)?.len();
    println!("{} ({:.1} MB)", workspace::display(&wheel), size as f64 / 1e6);
    Ok(())
}

/// Builds the wheel and installs it into an environment that has what it needs.
pub(crate) fn install(python: &str, debug: bool, into: &Path) -> Result<()> {
    let wheel = build(&Options {
        python: python.to_owned(),
        debug,
    })?;
    let reinstall = [
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--force-reinstall",
    ];
    run(Command::new(into).args(reinstall).arg(&wheel))
}

/// Builds the wheel, installs it into an environment, and measures it there.
pub(crate) fn bench(subjects: &[String]) -> Result<()> {
    let folder = workspace::root().join("target/python/bench");
    let python = environment("python3", &folder, BENCH_REQUIREMENTS)?;
    install("python3", false, &python)?;
    let all = ["import", "files", "client"].map(str::to_owned);
    let subjects = if subjects.is_empty() { &all[..] } else { subjects };
    let figures = workspace::root().join(PACKAGE).join("benches/figures.py");
    for subject in subjects {
        run(Command::new(&python)
            .arg(&figures)
            .arg(subject)
            .current_dir(&folder))?;
    }
    Ok(())
}

/// Builds the wheel, installs it into environments, and runs its tests there.
pub(crate) fn test(options: &TestOptions) -> Result<()> {
    let wheel = build(&options.build)?;
    let python = &options.build.python;
    let folder = workspace::root().join("target/python");
    if options.torch {
        let python = environment(python, &folder.join("torch"), TORCH_REQUIREMENTS)?;
        return pytest(&python, &wheel, &folder.join("torch"), "test_frameworks.py").map(drop);
    }
    alone(python, &wheel, &folder.join("alone"))?;
    let tests = folder.join("test");
    let python = environment(python, &tests, TEST_REQUIREMENTS)?;
    let folder = pytest(&python, &wheel, &tests, "")?;
    types(&python, &folder)
}

/// Installs the wheel into an environment that has nothing else, and uses it: it needs NumPy and no more.
fn alone(python: &str, wheel: &Path, folder: &Path) -> Result<()> {
    const USE: &str = "import numpy, tensorferry; \
        assert tensorferry.load(tensorferry.save({'x': numpy.ones(3)}))['x'].sum() == 3; \
        import tensorferry.compat.tritonclient.grpc, tensorferry.compat.tritonclient.http; \
        import tensorferry.numpy, tensorferry.torch, tensorferry.flax; \
        print('imported alone, with NumPy', numpy.__version__)";
    run(Command::new(python).args(["-m", "venv", "--clear"]).arg(folder))?;
    let fresh = folder.join("bin/python");
    run(Command::new(&fresh)
        .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"])
        .arg(wheel))?;
    run(Command::new(&fresh).args(["-c", USE]).current_dir(folder))?;
    run(Command::new(folder.join("bin/tensorferry"))
        .arg("--help")
        .stdout(Stdio::null()))
}

/// Runs the installed package's tests, or those of one file; gives the folder they ran in.
fn pytest(python: &Path, wheel: &Path, environment: &Path, file: &str) -> Result<PathBuf> {
    let reinstall = ["-m", "pip", "install", "--quiet", "--force-reinstall"];
    run(Command::new(python).args(reinstall).arg(wheel))?;
    // From a folder without sources, so that nothing but the wheel can be imported.
    let folder = environment.join("run");
    fs::create_dir_all(&folder)?;
    run(Command::new(python)
        .args(["-m", "pytest", "-q", "-p", "no:cacheprovider"])
        .arg(workspace::root().join(PACKAGE).join("tests").join(file))
        .env(
            "TENSORFERRY_EXAMPLES",
            workspace::root().join("crates/oip-server/examples"),
        )
        .env("TENSORFERRY_CORPORA", workspace::root().join("crates"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .current_dir(&folder))?;
    Ok(folder)
}

/// Checks the installed package, and a program that uses it, against its types.
fn types(python: &Path, folder: &Path) -> Result<()> {
    let uses = workspace::root().join(PACKAGE).join("tests/uses.py");
    run(Command::new(python)
        .args([
            "-m",
            "mypy",
            "--strict",
            "--cache-dir",
            "mypy",
            "--package",
            "tensorferry",
            "--package",
            "tensorferry_model",
        ])
        .current_dir(folder))?;
    run(Command::new(python)
        .args(["-m", "mypy", "--strict", "--cache-dir", "mypy"])
        .arg(&uses)
        .current_dir(folder))?;
    let output = Command::new(python)
        .args(["-c", "import tensorferry; print(tensorferry.__path__[0])"])
        .current_dir(folder)
        .output()
        .context("asking where the package is")?;
    run(Command::new(python.with_file_name("pyright"))
        .arg("--pythonpath")
        .arg(python)
        .arg(String::from_utf8_lossy(&output.stdout).trim())
        .arg(&uses)
        .current_dir(folder))
}

fn build(options: &Options) -> Result<PathBuf> {
    let folder = workspace::root().join("target/python");
    let python = environment(&options.python, &folder.join("build"), BUILD_REQUIREMENTS)?;
    // Cargo calls the profile `dev`, its folder `debug`.
    let (profile, built_in) = match options.debug {
        true => ("dev", "debug"),
        false => (dist::PROFILE, dist::PROFILE),
    };
    let program = ["--package", PROGRAM, "--features", "tool"];
    // As in archives; a debug build shares its dependencies with all others.
    let flags = (!options.debug).then(dist::without_paths);
    let flags: Vec<(&str, &str)> = flags
        .iter()
        .map(|flags| ("CARGO_ENCODED_RUSTFLAGS", flags.as_str()))
        .collect();
    cargo::run(&[&["build", "--profile", profile][..], &program].concat(), &flags)?;

    let bare = fresh(&folder.join("bare"))?;
    let mut maturin = Command::new(python.with_file_name("maturin"));
    maturin.args(["build", "--quiet", "--interpreter"]).arg(&python);
    maturin.args(["--profile", profile]).envs(flags);
    run(maturin
        .arg("--manifest-path")
        .arg(workspace::root().join(PACKAGE).join("Cargo.toml"))
        .arg("--out")
        .arg(&bare))?;

    let unpacked = fresh(&folder.join("unpacked"))?;
    let tool = |arguments: &[&Path]| run(Command::new(&python).args(["-m", "wheel"]).args(arguments));
    tool(&[
        Path::new("unpack"),
        &only_entry(&bare)?,
        Path::new("--dest"),
        &unpacked,
    ])?;
    let tree = only_entry(&unpacked)?;
    let name = tree
        .file_name()
        .and_then(|name| name.to_str())
        .context("the wheel has no name")?;
    let scripts = tree.join(format!("{name}.data/scripts"));
    fs::create_dir_all(&scripts)?;
    // The profile strips symbols.
    let built = workspace::built(built_in).join(PROGRAM);
    let server = scripts.join(PROGRAM);
    fs::copy(&built, &server).with_context(|| format!("copying {}", built.display()))?;
    let tensor = scripts.join("tensor");
    fs::write(&tensor, TENSOR)?;
    fs::set_permissions(&tensor, fs::metadata(&server)?.permissions())?;
    add_licences(&tree, name)?;
    if !options.debug {
        for file in files(&tree)? {
            dist::check_paths(&file)?;
        }
    }
    let wheels = fresh(&folder.join("wheels"))?;
    tool(&[Path::new("pack"), &tree, Path::new("--dest-dir"), &wheels])?;
    only_entry(&wheels)
}

/// All files below a folder.
fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))? {
        let path = entry?.path();
        match path.is_dir() {
            true => found.extend(files(&path)?),
            false => found.push(path),
        }
    }
    Ok(found)
}

/// Puts licences into the wheel, its own and those of what it is made of, and one bill of materials for the programs and the module:
/// maturin's has the module alone, and the folders of this machine.
fn add_licences(tree: &Path, name: &str) -> Result<()> {
    let info = tree.join(format!("{name}.dist-info"));
    let components = components::of(&[PROGRAM, "tensor-cli", "tensorferry-python"], &cargo::host()?)?;
    let bills = fresh(&info.join("sboms"))?;
    fs::write(bills.join("tensorferry.cdx.json"), components.sbom()?)?;

    let own = |file: &str| fs::read_to_string(workspace::root().join(file));
    let licences = [
        ("LICENSE-APACHE", own("LICENSE-APACHE")?),
        ("LICENSE-MIT", own("LICENSE-MIT")?),
        ("THIRD-PARTY-LICENSES.txt", components.licences()?),
    ];
    let folder = fresh(&info.join("licenses"))?;
    let file = info.join("METADATA");
    let mut metadata = fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
    for (name, text) in licences {
        fs::write(folder.join(name), text)?;
        metadata = with_licence_file(&metadata, name);
    }
    fs::write(file, metadata)?;
    Ok(())
}

/// A wheel's metadata with one more file of licences in its head.
fn with_licence_file(metadata: &str, name: &str) -> String {
    // The package's description follows a line without text, where there is one.
    let end = metadata.find("\n\n").unwrap_or_else(|| metadata.trim_end().len());
    let (head, text) = metadata.split_at(end);
    format!("{head}\nLicense-File: {name}{text}")
}

/// The Python of a virtual environment that has the requirements; filling it needs a network.
pub(crate) fn environment(python: &str, folder: &Path, requirements: &[&str]) -> Result<PathBuf> {
    let program = folder.join("bin/python");
    if is_filled(folder, requirements) {
        return Ok(program);
    }
    println!("filling {}", workspace::display(folder));
    run(Command::new(python).args(["-m", "venv", "--clear"]).arg(folder))?;
    run(Command::new(&program)
        .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"])
        .args(requirements))?;
    fs::write(folder.join(INSTALLED), requirements.join("\n"))?;
    Ok(program)
}

/// Whether an environment has these packages from an earlier run.
pub(crate) fn is_filled(folder: &Path, requirements: &[&str]) -> bool {
    fs::read_to_string(folder.join(INSTALLED)).is_ok_and(|installed| installed == requirements.join("\n"))
}

/// The file in an environment that lists what was installed.
const INSTALLED: &str = "installed.txt";

/// An empty folder.
fn fresh(folder: &Path) -> Result<PathBuf> {
    if folder.exists() {
        fs::remove_dir_all(folder)?;
    }
    fs::create_dir_all(folder)?;
    Ok(folder.to_owned())
}

fn only_entry(folder: &Path) -> Result<PathBuf> {
    let entries: Vec<PathBuf> = fs::read_dir(folder)?
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<_>>()?;
    let [entry] = &entries[..] else {
        bail!(
            "expected one entry in {}, found {}",
            folder.display(),
            entries.len()
        );
    };
    Ok(entry.clone())
}

fn run(command: &mut Command) -> Result<()> {
    let program = command.get_program().to_owned();
    let status = command
        .status()
        .with_context(|| format!("starting {}", program.display()))?;
    ensure!(status.success(), "{} failed: {status}", program.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn licences_are_named_in_the_head_of_the_metadata() {
        let metadata = "Metadata-Version: 2.4\nName: x\nLicense-File: LICENSE\n\n# x\n\ntext\n";
        assert_eq!(
            with_licence_file(metadata, "THIRD-PARTY-LICENSES.txt"),
            "Metadata-Version: 2.4\nName: x\nLicense-File: LICENSE\nLicense-File: THIRD-PARTY-LICENSES.txt\n\n# x\n\ntext\n"
        );
        assert_eq!(with_licence_file("Name: x\n", "y"), "Name: x\nLicense-File: y\n");
    }
}
