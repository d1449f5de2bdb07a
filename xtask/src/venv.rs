//! Creates Python virtual environments.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};

use crate::workspace;

/// Returns the Python of a virtual environment that has the requirements. Creates the environment with the
/// interpreter `python` if necessary; installing the requirements needs a network.
pub(crate) fn environment(python: &str, folder: &Path, requirements: &[&str]) -> Result<PathBuf> {
    let program = folder.join("bin/python");
    let installed = format!("{}\n{}", interpreter(python)?, requirements.join("\n"));
    if fs::read_to_string(folder.join(INSTALLED)).is_ok_and(|found| found == installed) {
        return Ok(program);
    }
    println!("filling {}", workspace::display(folder));
    run(Command::new(python).args(["-m", "venv", "--clear"]).arg(folder))?;
    run(Command::new(&program)
        .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"])
        .args(requirements))?;
    fs::write(folder.join(INSTALLED), installed)?;
    Ok(program)
}

/// Returns whether an earlier run installed `requirements` in the environment at `folder`, with any
/// interpreter.
pub(crate) fn is_filled(folder: &Path, requirements: &[&str]) -> bool {
    let installed = fs::read_to_string(folder.join(INSTALLED)).unwrap_or_default();
    let packages = installed.split_once('\n').map(|(_, packages)| packages);
    packages.is_some_and(|packages| packages == requirements.join("\n"))
}

/// Returns the version and the location of a Python interpreter, on one line.
fn interpreter(python: &str) -> Result<String> {
    const ASK: &str = "import sys; print(*sys.version.split(), 'in', sys.base_prefix)";
    let output = Command::new(python)
        .args(["-c", ASK])
        .output()
        .with_context(|| format!("starting {python}"))?;
    ensure!(
        output.status.success(),
        "{python} does not say its version: {}",
        output.status
    );
    Ok(String::from_utf8_lossy(&output.stdout).trim().replace('\n', " "))
}

/// The file in an environment that records its interpreter and the installed packages.
const INSTALLED: &str = "installed.txt";

/// Runs a program. Returns an error if the program fails.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let program = command.get_program().to_owned();
    let status = command
        .status()
        .with_context(|| format!("starting {}", program.display()))?;
    ensure!(status.success(), "{} failed: {status}", program.display());
    Ok(())
}

#[cfg(test)]
#[cfg(unix)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// Creates a fake Python that reports `version`, creates environments, and records its version for each.
    fn python(folder: &Path, version: &str) -> String {
        let program = folder.join(version);
        let script = format!(
            r#"#!/bin/sh
case "$1 $2" in
"-c "*) echo "{version}" ;;
"-m venv") mkdir -p "$4/bin" && cp "$0" "$4/bin/python" && echo "{version}" >> "$4/../filled" ;;
esac
"#
        );
        fs::write(&program, script).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        program.to_str().unwrap().to_owned()
    }

    #[test]
    fn environments_are_of_their_interpreter_and_requirements() {
        let folder = tempfile::tempdir().unwrap();
        let (old, new) = (python(folder.path(), "3.11"), python(folder.path(), "3.12"));
        let at = folder.path().join("environment");
        assert!(!is_filled(&at, &["a"]));
        for (python, requirements) in [
            (&old, &["a", "b"][..]),
            (&old, &["a", "b"]),
            (&new, &["a", "b"]),
            (&new, &["a"]),
            (&new, &["a"]),
            (&old, &["a"]),
        ] {
            let program = environment(python, &at, requirements).unwrap();
            assert_eq!(program, at.join("bin/python"));
            assert!(is_filled(&at, requirements) && !is_filled(&at, &["c"]));
        }
        let filled = fs::read_to_string(folder.path().join("filled")).unwrap();
        assert_eq!(filled, "3.11\n3.12\n3.12\n3.11\n");
        let error = environment("/no/such/python", &at, &["a"])
            .unwrap_err()
            .to_string();
        assert_eq!(error, "starting /no/such/python");
    }
}
