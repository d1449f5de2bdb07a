//! Reads files of the Python package `ztensor` with the readers of `fmt-ztensor2`. The versions of the
//! package write different formats.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};

use crate::{cargo, workspace};

/// One version of the package for each schema: 1.0, 1.1, 1.2 and 2.
const VERSIONS: &[&str] = &["1.0.2", "1.1.1", "1.2.3", "2.1.2"];
const NUMPY: &str = "numpy==2.4.6";
/// The directory for virtual environments and files.
const FOLDER: &str = "target/interop-files";
const SCRIPT: &str = "crates/fmt-ztensor2/tests/python/make_objects.py";

/// Writes files with each version of the package and reads them. Returns an error if anything differs.
pub(crate) fn run(python: &str) -> Result<()> {
    let arguments = ["build", "--package", "fmt-ztensor2", "--example", "verdicts"];
    cargo::run(&arguments, &[])?;
    for version in VERSIONS {
        let found = check(python, version).with_context(|| format!("ztensor {version}"))?;
        println!("ztensor {version}: {found} tensors agree");
    }
    Ok(())
}

fn check(python: &str, version: &str) -> Result<usize> {
    let folder = workspace::root().join(FOLDER).join(version);
    let program = environment(python, version, &folder)?;
    let files = folder.join("files");
    if files.exists() {
        fs::remove_dir_all(&files).context("removing old files")?;
    }
    call(
        Command::new(program)
            .arg(workspace::root().join(SCRIPT))
            .arg(&files),
    )?;
    let expected = fs::read_to_string(files.join(format!("{version}.txt")))?;
    let expected: BTreeSet<String> = expected.lines().map(str::to_owned).collect();
    let mut paths: Vec<PathBuf> = fs::read_dir(&files)?
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<_>>()?;
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "zt"));
    paths.sort();
    let found = read(&paths)?;
    // Tensors that the reader only lists, such as quantised groups, are not expected.
    let missing: Vec<_> = expected.difference(&found).collect();
    ensure!(missing.is_empty(), "not read as it was written:\n{missing:#?}");
    ensure!(!expected.is_empty(), "the package wrote nothing");
    Ok(expected.len())
}

/// Returns a line for each tensor: file, name, dtype and shape, and digest.
fn read(paths: &[PathBuf]) -> Result<BTreeSet<String>> {
    let program = workspace::built("debug").join("examples/verdicts");
    let output = Command::new(program)
        .args(paths)
        .output()
        .context("starting the reader")?;
    ensure!(output.status.success(), "the reader failed");
    let (mut lines, mut file) = (BTreeSet::new(), String::new());
    for line in String::from_utf8(output.stdout)?.lines() {
        let fields: Vec<_> = line.split('\t').collect();
        match fields[..] {
            ["", name, shape, verified, digest] => {
                let is_damaged = verified.starts_with("Corrupt");
                ensure!(!is_damaged, "{file}: {name} does not hold: {verified}");
                lines.insert(format!("{file}\t{}\t{shape}\t{digest}", name.trim_matches('"')));
            }
            [path, "accept", ..] => {
                let name = Path::new(path).file_name().context("a file without a name")?;
                file = name.to_string_lossy().into_owned();
            }
            _ => anyhow::bail!("{line}"),
        }
    }
    Ok(lines)
}

/// Returns the Python of a virtual environment with this version of the package.
fn environment(python: &str, version: &str, folder: &Path) -> Result<PathBuf> {
    let program = folder.join("venv/bin/python");
    let done = folder.join("installed.txt");
    let wanted = format!("ztensor=={version} {NUMPY}");
    if fs::read_to_string(&done).is_ok_and(|installed| installed == wanted) {
        return Ok(program);
    }
    fs::create_dir_all(folder)?;
    call(
        Command::new(python)
            .args(["-m", "venv", "--clear"])
            .arg(folder.join("venv")),
    )?;
    let install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
    call(Command::new(&program).args(install).args(wanted.split(' ')))?;
    fs::write(done, wanted)?;
    Ok(program)
}

fn call(command: &mut Command) -> Result<()> {
    let status = command
        .status()
        .with_context(|| format!("starting {command:?}"))?;
    ensure!(status.success(), "{command:?} failed");
    Ok(())
}
