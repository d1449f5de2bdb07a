//! `cargo xtask fuzz`: compiles the fuzz targets, and runs them with the coverage instrumentation of stable
//! Rust. cargo-fuzz, on nightly Rust, adds the address sanitizer.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::{cargo, workspace};

/// Options of `fuzz`.
#[derive(Args)]
pub(crate) struct Options {
    /// Run each target for this many seconds, starting with the files of the formats' tests; without it,
    /// targets are only compiled
    #[arg(long, value_name = "SECONDS")]
    seconds: Option<u32>,
    /// Run only this target
    #[arg(long, value_name = "TARGET")]
    only: Option<String>,
}

/// Flags for coverage instrumentation, as in cargo-fuzz.
const COVERAGE: &[&str] = &[
    "--cfg",
    "fuzzing",
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
];

/// Limits of libFuzzer: memory in MiB, and seconds per input.
const BOUNDS: [&str; 2] = ["-rss_limit_mb=2048", "-timeout=20"];

/// Compiles the targets, and runs them.
pub(crate) fn run(options: &Options) -> Result<()> {
    let manifest = workspace::root().join("crates/fuzz/Cargo.toml");
    let manifest = manifest.to_str().context("the directory's name is not UTF-8")?;
    let common = ["--manifest-path", manifest, "--bins", "--locked"];
    let mut targets = targets()?;
    if let Some(only) = &options.only {
        let known = targets.join(", ");
        targets.retain(|target| target == only);
        ensure!(!targets.is_empty(), "no fuzz target {only}, only {known}");
    }
    let Some(seconds) = options.seconds else {
        return cargo::run(&[&["check"], &common[..]].concat(), &[]);
    };
    let folder = workspace::target().join("fuzz");
    let built = folder.to_str().context("the directory's name is not UTF-8")?;
    // With an explicit target, cargo compiles build scripts without the flags for coverage.
    let here = cargo::host()?;
    let build = [
        &["build", "--release", "--target", &here, "--target-dir", built],
        &common[..],
    ];
    cargo::run(
        &build.concat(),
        &[("CARGO_ENCODED_RUSTFLAGS", &COVERAGE.join("\x1f"))],
    )?;
    for target in &targets {
        let program = folder.join(&here).join("release").join(target);
        hunt(target, &program, &folder, seconds)?;
    }
    println!("{} targets, {seconds} s each, nothing found", targets.len());
    Ok(())
}

/// Compiles the targets in CI if a C++ compiler and their crates are available, since CI downloads only the
/// workspace's crates.
pub(crate) fn in_ci() -> Result<()> {
    let manifest = workspace::root().join("crates/fuzz/Cargo.toml");
    let fetched = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--locked", "--offline"])
        .arg("--manifest-path")
        .arg(&manifest)
        .output()
        .context("starting cargo")?;
    let compiler = Command::new("c++").arg("--version").output();
    let missing = match (fetched.status.success(), compiler.is_ok()) {
        (false, _) => "their crates are not fetched (cargo fetch --manifest-path crates/fuzz/Cargo.toml)",
        (_, false) => "no C++ compiler is installed, which the fuzzer's library needs",
        _ => {
            let options = Options {
                seconds: None,
                only: None,
            };
            return run(&options);
        }
    };
    println!("   skipped: {missing}");
    Ok(())
}

/// Runs one target. If an input fails, returns an error with the path of the input.
fn hunt(target: &str, program: &Path, folder: &Path, seconds: u32) -> Result<()> {
    let corpus = folder.join("corpus").join(target);
    let finds = folder.join("finds").join(target);
    fs::create_dir_all(&corpus)?;
    fs::create_dir_all(&finds)?;
    let output = Command::new(program)
        .arg(&corpus)
        .args(seeds(target))
        .arg(format!("-max_total_time={seconds}"))
        .args(BOUNDS)
        .arg(format!("-artifact_prefix={}/", finds.display()))
        .output()
        .with_context(|| format!("starting {}", program.display()))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "{target} ended with {}; its inputs are in {}:\n{said}",
        output.status,
        workspace::display(&finds)
    );
    let last = said
        .lines()
        .rfind(|line| line.starts_with("Done "))
        .with_context(|| format!("{target} did not say what it did:\n{said}"))?;
    ensure!(
        said.contains("cov: "),
        "{target} was built without coverage:\n{said}"
    );
    println!("{target}: {last}");
    Ok(())
}

/// Returns the names of all targets.
fn targets() -> Result<Vec<String>> {
    let mut names = Vec::new();
    for file in fs::read_dir(workspace::root().join("crates/fuzz/fuzz_targets"))? {
        let file = file?.path();
        let name = file.file_stem().context("a file without a name")?;
        names.push(name.to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

/// Returns the directories with seed inputs for a target: the test files of its reader. Targets that
/// construct values from bytes have no seed inputs.
fn seeds(target: &str) -> Vec<PathBuf> {
    let Some(format) = target.strip_suffix("_read") else {
        return Vec::new();
    };
    let tests = workspace::root().join(format!("crates/fmt-{format}/tests"));
    let corpora = ["corpus", "corpus1", "corpus2"].map(|corpus| tests.join(corpus));
    corpora.into_iter().filter(|corpus| corpus.is_dir()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_target_is_listed_and_readers_begin_with_files() {
        let manifest = fs::read_to_string(workspace::root().join("crates/fuzz/Cargo.toml")).unwrap();
        let targets = targets().unwrap();
        assert_eq!(targets.len(), manifest.matches("[[bin]]").count());
        for target in &targets {
            assert!(manifest.contains(&format!("name = \"{target}\"")), "{target}");
        }
        for reader in ["btf_read", "tbuf_read", "torch_read", "ztensor2_read"] {
            assert!(!seeds(reader).is_empty(), "{reader}");
        }
        assert!(seeds("tbuf_round_trip").is_empty());
    }
}
