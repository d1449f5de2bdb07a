//! Searches the usual locations for ONNX Runtime's library.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use super::providers::Package;

/// Description of the searched locations, for error messages.
pub(super) const PLACES: &str = "next to the program, by ORT_DYLIB_PATH, in the active virtual environment, \
                                 in python3's packages, or in the system's libraries";

/// Time limit for each program that the search runs, such as `python3`.
const PATIENCE: Duration = Duration::from_secs(5);

/// Returns the libraries that exist, the most preferred one first.
pub(super) fn candidates() -> Vec<PathBuf> {
    let mut found = Vec::new();
    let program = env::current_exe().ok();
    if let Some(folder) = program.as_deref().and_then(Path::parent) {
        found.extend(in_folder(folder));
    }
    let variable = |name: &str| {
        env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    found.extend(variable("ORT_DYLIB_PATH").filter(|path| path.is_file()));
    if let Some(environment) = variable("VIRTUAL_ENV") {
        found.extend(in_environment(&environment));
    }
    let ask =
        "import site, sysconfig; print(sysconfig.get_path('purelib')); print(site.getusersitepackages())";
    for packages in output("python3", &["-c", ask]).lines() {
        found.extend(in_packages(Path::new(packages)));
    }
    let cache = [output("ldconfig", &["-p"]), output("/sbin/ldconfig", &["-p"])].concat();
    found.extend(in_cache(&cache));
    found.retain(|path| path.is_file());
    let mut seen = Vec::new();
    found.retain(|path| {
        let is_new = !seen.contains(path);
        seen.push(path.clone());
        is_new
    });
    found
}

/// Lists the libraries of a directory, the newest version first.
fn in_folder(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = entries
        .map(|entry| entry.path())
        .filter(|path| {
            let name = path
                .file_name()
                .and_then(|name| name.to_str())
                .unwrap_or_default();
            let is_library =
                name.starts_with("libonnxruntime.so") || name.starts_with("libonnxruntime.dylib");
            let is_versioned = name.starts_with("libonnxruntime.") && name.ends_with(".dylib");
            is_library || is_versioned || name == "onnxruntime.dll"
        })
        .collect();
    let version = |path: &PathBuf| -> Vec<u32> {
        let name = path.to_string_lossy();
        let name = name.rsplit('/').next().unwrap_or_default().to_owned();
        name.split('.').filter_map(|part| part.parse().ok()).collect()
    };
    found.sort_by_key(|path| std::cmp::Reverse(version(path)));
    found
}

/// Lists the libraries of Python packages. The package that was installed last comes first, since it has
/// overwritten the files of other packages in the same directory.
fn in_packages(packages: &Path) -> Vec<PathBuf> {
    let mut found = in_folder(&packages.join("onnxruntime/capi"));
    if let Some(package) = found.first().and_then(|library| Package::of(library)) {
        found.sort_by_key(|library| package.is_not_of(library));
    }
    found
}

/// Searches a virtual environment, which has one directory per Python version.
fn in_environment(environment: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(environment.join("lib"))
        .into_iter()
        .flatten()
        .flatten();
    let mut found: Vec<PathBuf> = entries
        .flat_map(|entry| in_packages(&entry.path().join("site-packages")))
        .collect();
    found.extend(in_packages(&environment.join("Lib/site-packages")));
    found
}

/// Parses the output of `ldconfig -p`: `libonnxruntime.so.1 (libc6,x86-64) => /usr/lib/libonnxruntime.so.1`.
fn in_cache(listing: &str) -> impl Iterator<Item = PathBuf> {
    listing
        .lines()
        .map(str::trim)
        .filter(|line| line.starts_with("libonnxruntime.so"))
        .filter_map(|line| Some(PathBuf::from(line.split_once("=> ")?.1)))
}

/// Returns a program's output, or an empty string if it does not exist, fails, or takes too long.
fn output(program: &str, arguments: &[&str]) -> String {
    let mut command = Command::new(program);
    command
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let Ok(mut child) = command.spawn() else {
        return String::new();
    };
    // A separate thread reads the output, so that a full pipe does not block the program.
    let Some(mut pipe) = child.stdout.take() else {
        return String::new();
    };
    let reading = thread::spawn(move || {
        let mut text = Vec::new();
        let _ = std::io::Read::read_to_end(&mut pipe, &mut text);
        text
    });
    let start = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => break,
            Ok(None) if start.elapsed() < PATIENCE => thread::sleep(Duration::from_millis(5)),
            _ => {
                // Killing fails if the program has just exited, or if this process may not kill it.
                let _ = child.kill();
                let _ = child.wait();
                return String::new();
            }
        }
    }
    let text = reading.join().unwrap_or_default();
    String::from_utf8_lossy(&text).into_owned()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn the_newest_library_of_a_folder_comes_first() {
        let folder = env::temp_dir().join(format!("find-{}", std::process::id()));
        let packages = folder.join("lib/python3.11/site-packages/onnxruntime/capi");
        fs::create_dir_all(&packages).unwrap();
        for name in [
            "libonnxruntime.so.1.9.0",
            "libonnxruntime.so.1.31.1",
            "libonnxruntime_providers_shared.so",
            "other.so",
        ] {
            fs::write(packages.join(name), "").unwrap();
        }
        let found = in_environment(&folder);
        let names: Vec<_> = found
            .iter()
            .filter_map(|path| path.file_name()?.to_str())
            .collect();
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(names, ["libonnxruntime.so.1.31.1", "libonnxruntime.so.1.9.0"]);
    }

    #[test]
    fn the_library_of_the_package_that_was_installed_last_comes_first() {
        let packages = env::temp_dir().join(format!("find-last-{}", std::process::id()));
        let capi = packages.join("onnxruntime/capi");
        fs::create_dir_all(&capi).unwrap();
        for name in ["libonnxruntime.so.1.32.0", "libonnxruntime.so.1.31.1"] {
            fs::write(capi.join(name), "").unwrap();
        }
        let info = "package_name = 'onnxruntime-gpu'\n__version__ = '1.31.1'\n";
        fs::write(capi.join("build_and_package_info.py"), info).unwrap();
        let found = in_packages(&packages);
        fs::remove_dir_all(&packages).unwrap();
        assert_eq!(found[0], capi.join("libonnxruntime.so.1.31.1"));
        assert_eq!(found.len(), 2);
    }

    #[test]
    fn the_systems_cache_is_read() {
        let listing = "2 libs found in cache\n\tlibonnx.so.1 (libc6) => /usr/lib/libonnx.so.1\n\
                       \tlibonnxruntime.so.1.21 (libc6,x86-64) => /usr/lib/libonnxruntime.so.1.21\n";
        let found: Vec<_> = in_cache(listing).collect();
        assert_eq!(found, [PathBuf::from("/usr/lib/libonnxruntime.so.1.21")]);
    }

    #[test]
    fn programs_that_are_not_there_say_nothing() {
        assert_eq!(output("no-such-program", &[]), "");
        assert_eq!(output("false", &[]), "");
    }
}
