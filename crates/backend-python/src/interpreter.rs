//! Finds the interpreter for a model.

use std::{
    env,
    ffi::OsString,
    iter,
    path::{Component, Path, PathBuf},
    process::Command,
};

use oip_model::ModelSource;
use oip_types::ServiceError;
use tensor_core::QuotedName;

/// Finds the server's default interpreter: a program, with or without a path, or the directory of an
/// environment.
///
/// # Errors
/// Fails if the interpreter does not exist.
pub(crate) fn of_server(named: &Path) -> Result<PathBuf, ServiceError> {
    find(named).ok_or_else(|| {
        ServiceError::invalid(format!(
            "there is no Python at {}: --python names a program such as python3, or the directory of a venv \
             or conda environment",
            QuotedName(&named.to_string_lossy())
        ))
    })
}

/// Finds the interpreter in a model's configuration. A relative path is resolved from the model's directory.
///
/// # Errors
/// Fails if the interpreter does not exist.
pub(crate) fn of_model(named: &str, source: &ModelSource) -> Result<PathBuf, ServiceError> {
    let named = named.trim();
    let below = model_folder(source).join(named);
    let is_path = named.contains('/') || below.is_dir();
    let wanted = if is_path { &below } else { Path::new(named) };
    let found = (!named.is_empty()).then(|| find(wanted)).flatten();
    found.ok_or_else(|| {
        ServiceError::invalid(format!(
            "the parameter 'python' of its configuration is {}, where there is no Python: expected the \
             directory of a venv or conda \
             environment or a program, as a path from the model's directory or an absolute one",
            QuotedName(named)
        ))
    })
}

/// Returns the command that starts an interpreter. If the interpreter is in a virtual environment, the
/// command sets the variables that activating the environment sets, so that a model finds programs and
/// libraries by name. conda's activation scripts are not run.
///
/// The server's own PYTHONHOME and PYTHONPATH only apply to the server's interpreter: a model's own
/// interpreter may be a different version of Python, which cannot use the modules there.
pub(crate) fn command(interpreter: &Path, is_of_model: bool) -> Command {
    let mut command = Command::new(interpreter);
    if is_of_model {
        command.env_remove("PYTHONHOME").env_remove("PYTHONPATH");
    }
    let programs = interpreter.parent();
    if let (Some(programs), Some((variable, root))) = (programs, environment(interpreter)) {
        command.env(variable, root);
        command.env("PATH", path_with(programs, env::var_os("PATH")));
    }
    command
}

/// Returns the environment of an interpreter, and the variable that passes it to programs.
fn environment(interpreter: &Path) -> Option<(&'static str, &Path)> {
    let root = interpreter.parent()?.parent()?;
    if root.join("conda-meta").is_dir() {
        Some(("CONDA_PREFIX", root))
    } else if root.join("pyvenv.cfg").is_file() {
        Some(("VIRTUAL_ENV", root))
    } else {
        None
    }
}

/// Prepends a directory to a search path for programs.
fn path_with(programs: &Path, path: Option<OsString>) -> OsString {
    let others: Vec<PathBuf> = path.iter().flat_map(env::split_paths).collect();
    let all = iter::once(programs.to_owned()).chain(others);
    // A directory whose name contains a colon cannot be in the list.
    env::join_paths(all).unwrap_or_else(|_| path.unwrap_or_default())
}

/// Returns the directory of the model's configuration.
fn model_folder(source: &ModelSource) -> PathBuf {
    let versions = usize::from(!source.version.is_empty());
    let folder = source.path.ancestors().nth(1 + versions).unwrap_or(Path::new(""));
    std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned())
}

/// Finds a program by its path, in an environment, or in the system's search path.
fn find(named: &Path) -> Option<PathBuf> {
    let mut parts = named.components();
    let is_plain = matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None));
    if named.is_dir() {
        let programs = ["bin/python3", "bin/python"].into_iter();
        return programs
            .map(|program| named.join(program))
            .find(|program| program.is_file());
    }
    if !is_plain {
        return named.is_file().then(|| named.to_owned());
    }
    let folders = env::var_os("PATH")?;
    env::split_paths(&folders)
        .map(|folder| folder.join(named))
        .find(|program| program.is_file())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn source(folder: &Path) -> ModelSource {
        ModelSource::new("m", "1", folder.join("m/1/model.py"), "".into())
    }

    #[test]
    fn environments_stand_beside_the_configuration_or_anywhere() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        for environment in ["m/venv", "other", "m/only-python"] {
            fs::create_dir_all(root.join(environment).join("bin")).unwrap();
        }
        for program in [
            "m/venv/bin/python3",
            "m/venv/bin/python",
            "other/bin/python3",
            "m/only-python/bin/python",
        ] {
            fs::write(root.join(program), "").unwrap();
        }
        fs::create_dir_all(root.join("m/1")).unwrap();
        let find = |named: &str| of_model(named, &source(root)).map_err(|error| error.to_string());
        assert_eq!(find("venv").unwrap(), root.join("m/venv/bin/python3"));
        assert_eq!(
            find(" ./venv/bin/python ").unwrap(),
            root.join("m/./venv/bin/python")
        );
        assert_eq!(
            find("only-python").unwrap(),
            root.join("m/only-python/bin/python")
        );
        let other = root.join("other");
        assert_eq!(find(other.to_str().unwrap()).unwrap(), other.join("bin/python3"));
        assert_eq!(
            find("nowhere/at/all").unwrap_err(),
            "the parameter 'python' of its configuration is 'nowhere/at/all', where there is no Python: \
             expected the directory of a \
             venv or conda environment or a program, as a path from the model's directory or an absolute one"
        );
        for missing in ["", "1", "no-such-program-of-this-name"] {
            assert!(find(missing).is_err(), "{missing:?}");
        }
        // Without versions, the configuration is next to the model.
        let alone = ModelSource::new("m", "", root.join("m/model.py"), "".into());
        assert_eq!(of_model("venv", &alone).unwrap(), root.join("m/venv/bin/python3"));
    }

    #[test]
    fn environments_are_activated() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        fs::create_dir_all(root.join("conda/conda-meta")).unwrap();
        fs::create_dir_all(root.join("venv")).unwrap();
        fs::write(root.join("venv/pyvenv.cfg"), "").unwrap();
        let set = |environment: &str, is_of_model: bool| {
            let command = command(&root.join(environment).join("bin/python3"), is_of_model);
            let set = command.get_envs().map(|(name, value)| {
                let value = value.map(|value| value.to_string_lossy().into_owned());
                (name.to_string_lossy().into_owned(), value)
            });
            set.collect::<std::collections::BTreeMap<_, _>>()
        };
        for (environment, variable) in [("conda", "CONDA_PREFIX"), ("venv", "VIRTUAL_ENV")] {
            let set = set(environment, false);
            let named = root.join(environment).to_string_lossy().into_owned();
            assert_eq!(set[variable].as_ref(), Some(&named));
            let path = set["PATH"].as_ref().unwrap();
            assert!(path.starts_with(&format!("{named}/bin:")), "{path}");
            assert_eq!(set.len(), 2);
        }
        assert!(set("none", false).is_empty());
        let removed = set("none", true);
        assert_eq!((&removed["PYTHONHOME"], &removed["PYTHONPATH"]), (&None, &None));
    }

    #[test]
    fn programs_are_looked_for_as_the_system_does() {
        assert!(of_server(Path::new("sh")).unwrap().ends_with("sh"));
        let error = of_server(Path::new("/no/such/folder")).unwrap_err();
        assert!(error.message().contains("--python"), "{error}");
    }
}
