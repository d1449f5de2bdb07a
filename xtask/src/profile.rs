//! Profile-guided optimization of the release programs: a program that counts what it runs serves requests, and
//! the compiler gets the counts.

use std::{
    env,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use anyhow::{Context, Result, ensure};
use sha2::{Digest, Sha256};

use crate::{cargo, workspace};

/// Beginnings of the names of crates that are compiled without a profile, because their speed depends on a user's
/// models: requests of [`serve`] run few of their branches. With counts, or only with the passes that precede
/// them, 8-bit products take 1.2 to 1.8 times as long.
const WITHOUT_PROFILE: [&str; 1] = ["onnx_"];

/// A variable that is set where this program runs as a wrapper of rustc.
const WRAPS: &str = "XTASK_WRAPS_RUSTC";

/// Returns whether this machine has the tool that merges profiles.
pub(crate) fn is_possible() -> Result<bool> {
    Ok(merger()?.is_file())
}

/// Returns environment variables for cargo. With them, a flag `-Cprofile-...` applies to all crates for the
/// target except [`WITHOUT_PROFILE`].
pub(crate) fn environment() -> Result<[(&'static str, String); 2]> {
    let own = env::current_exe().context("looking for this program")?;
    let own = own.to_string_lossy().into_owned();
    Ok([("RUSTC_WORKSPACE_WRAPPER", own), (WRAPS, "1".to_owned())])
}

/// Runs rustc for cargo, if this program was started as its wrapper.
pub(crate) fn wrapped_rustc() -> Option<Result<ExitCode>> {
    env::var_os(WRAPS)?;
    let mut arguments = env::args_os().skip(1);
    let rustc = arguments.next()?;
    let arguments = profiled_where_wanted(arguments.collect());
    let status = Command::new(&rustc).args(arguments).status();
    let status = status.with_context(|| format!("starting {}", rustc.display()));
    Some(status.map(|status| match status.success() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }))
}

/// Removes the flags of profiles from the arguments of rustc, if they compile a crate of [`WITHOUT_PROFILE`].
fn profiled_where_wanted(mut arguments: Vec<OsString>) -> Vec<OsString> {
    let mut after_flag = arguments
        .iter()
        .skip_while(|argument| *argument != "--crate-name");
    let name = after_flag.nth(1).map(|name| name.to_string_lossy().into_owned());
    if name.is_some_and(|name| WITHOUT_PROFILE.iter().any(|start| name.starts_with(start))) {
        arguments.retain(|argument| !argument.to_string_lossy().starts_with("-Cprofile-"));
    }
    arguments
}

/// Returns the profile of a server that was compiled with `-Cprofile-generate`. `folder` is for its files.
pub(crate) fn record(server: &Path, folder: &Path) -> Result<PathBuf> {
    let raw = folder.join("raw");
    if raw.exists() {
        fs::remove_dir_all(&raw)?;
    }
    serve(server, &raw)?;
    let merged = folder.join("all.txt");
    merge(&["--text", "--output"], &merged, &raw)?;
    let counts = fs::read_to_string(&merged).with_context(|| workspace::display(&merged))?;
    let counts = of_requests(&counts)?;
    let text = folder.join("requests.txt");
    fs::write(&text, &counts)?;
    // Cargo compiles again if the name of the profile changes, not if its content does.
    let digest = Sha256::digest(&counts);
    let name: String = digest[..6].iter().map(|byte| format!("{byte:02x}")).collect();
    let profile = folder.join(name).with_extension("profdata");
    merge(&["--output"], &profile, &text)?;
    Ok(profile)
}

/// Sends requests to a server over HTTP and gRPC: small and large ones, from few and from many callers, then
/// with TLS, tokens, logs, traces and recordings. The server writes its counts to `raw` when it exits.
fn serve(server: &Path, raw: &Path) -> Result<()> {
    let network = workspace::root().join("crates/oip-server/examples/models/digits/1/model.onnx");
    let (server, network) = (server.to_string_lossy(), network.to_string_lossy());
    let kit = ["run", "--package", "attack-kit", "--", "cost", "--rounds", "1"];
    let servers = ["--server", &*server, "--network", &*network];
    let files = raw.join("%p-%m.profraw");
    let environment = [("LLVM_PROFILE_FILE", &*files.to_string_lossy())];
    let plain = ["--seconds", "0.5"];
    let options = ["--with-options", "--only", "network 1x64", "--seconds", "0.2"];
    cargo::run(&[&kit[..], &servers, &plain].concat(), &environment)?;
    cargo::run(&[&kit[..], &servers, &options].concat(), &environment)
}

/// Returns the functions of a profile that requests reach. The compiler treats the others as if there were no
/// profile; with counts of zero, it would optimize them for size.
fn of_requests(profile: &str) -> Result<String> {
    let (head, functions) = profile
        .split_once("\n:ir\n")
        .context("a profile of another kind")?;
    let mut kept = format!("{head}\n:ir\n");
    for function in functions.split_terminator("\n\n") {
        if is_reached(function)? {
            kept += function;
            kept += "\n\n";
        }
    }
    Ok(kept)
}

/// Returns whether a counter of a function is not zero. In the text of a profile a function has its name, its
/// hash, the number of its counters and the counters on lines of their own, with comments between them.
fn is_reached(function: &str) -> Result<bool> {
    let mut lines = function.lines().filter(|line| !line.starts_with("# "));
    let count = lines.nth(2).and_then(|count| count.parse().ok());
    let count = count.with_context(|| format!("a profile of another form: {function}"))?;
    Ok(lines.take(count).any(|counter| counter != "0"))
}

/// Merges profiles into a file.
fn merge(options: &[&str], to: &Path, from: &Path) -> Result<()> {
    let merger = merger()?;
    let status = Command::new(&merger)
        .arg("merge")
        .args(options)
        .args([to, from])
        .status()
        .with_context(|| format!("starting {}", merger.display()))?;
    ensure!(status.success(), "merging {} failed", from.display());
    Ok(())
}

/// Returns the path of the compiler's own `llvm-profdata`; others may not read its profiles.
fn merger() -> Result<PathBuf> {
    Ok(cargo::tools()?.join("llvm-profdata"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    fn function(name: &str, counters: &[u64]) -> String {
        let lines: String = counters.iter().map(|counter| format!("{counter}\n")).collect();
        let count = counters.len();
        format!("{name}\n# Func Hash:\n77\n# Num Counters:\n{count}\n# Counter Values:\n{lines}\n")
    }

    #[test]
    fn crates_that_run_models_are_compiled_without_a_profile() {
        let arguments = |name| ["--crate-name", name, "-Cprofile-use=x", "-Copt-level=3"].map(OsString::from);
        let kept = |name| profiled_where_wanted(arguments(name).to_vec());
        assert_eq!(kept("oip_engine"), arguments("oip_engine"));
        let [crate_name, name, _, level] = arguments("onnx_gemm");
        assert_eq!(kept("onnx_gemm"), [crate_name, name, level]);
    }

    #[test]
    fn a_profile_keeps_what_requests_reach() {
        let head = "# IR level Instrumentation Flag\n:ir\n";
        let reached = function("_ZN5hyper5parse", &[0, 3]);
        let all = [
            head,
            &function("_ZN5hyper5error", &[0, 0]),
            &reached,
            &function("_ZN5tokio3end", &[0]),
        ];
        assert_eq!(of_requests(&all.concat()).unwrap(), [head, &reached].concat());
        assert!(of_requests("something else").is_err());
        assert!(of_requests(&format!("{head}_ZN5hyper5parse\n")).is_err());
    }
}
