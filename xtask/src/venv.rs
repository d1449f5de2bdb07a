//! Virtual environments of Python.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};

use crate::workspace;

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

/// Runs a program, which must succeed.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let program = command.get_program().to_owned();
    let status = command
        .status()
        .with_context(|| format!("starting {}", program.display()))?;
    ensure!(status.success(), "{} failed: {status}", program.display());
    Ok(())
}
