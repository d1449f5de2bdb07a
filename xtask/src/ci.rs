//! Runs all checks that must pass before a change is merged.

use std::{process::Command, time::Instant};

use anyhow::{Context, Result};

use crate::{browser, cargo, codegen, fuzz, standalone, tools, tutorials};

/// A cargo command that must succeed.
struct Check {
    name: &'static str,
    arguments: &'static [&'static str],
    /// Usual duration in seconds on two cores, when the previous checks have already run.
    usual: u64,
}

const CHECKS: &[Check] = &[
    Check {
        name: "fmt",
        arguments: &["fmt", "--all", "--check"],
        usual: 4,
    },
    Check {
        name: "clippy",
        arguments: &["clippy", "--workspace", "--all-targets"],
        usual: 330,
    },
    Check {
        name: "minimal features",
        arguments: &["clippy", "--package", "oip-types", "--no-default-features"],
        usual: 10,
    },
    Check {
        name: "tensors as ndarray's arrays",
        arguments: &[
            "test",
            "--package",
            "tensor-core",
            "--all-features",
            "--",
            "--quiet",
        ],
        usual: 17,
    },
    Check {
        name: "oip-http alone",
        arguments: &["clippy", "--package", "oip-http", "--no-default-features"],
        usual: 11,
    },
    Check {
        name: "gRPC messages only",
        arguments: &["clippy", "--package", "oip-grpc", "--no-default-features"],
        usual: 9,
    },
    Check {
        name: "gRPC client only",
        arguments: &[
            "clippy",
            "--package",
            "oip-grpc",
            "--no-default-features",
            "--features",
            "client",
        ],
        usual: 8,
    },
    Check {
        name: "gRPC server only",
        arguments: &[
            "clippy",
            "--package",
            "oip-grpc",
            "--no-default-features",
            "--features",
            "server",
        ],
        usual: 6,
    },
    Check {
        name: "no formats",
        arguments: &["clippy", "--package", "tensor-files", "--no-default-features"],
        usual: 6,
    },
    Check {
        name: "a client for HTTP only",
        arguments: &[
            "clippy",
            "--package",
            "oip-client",
            "--no-default-features",
            "--features",
            "http",
        ],
        usual: 13,
    },
    Check {
        name: "a client for gRPC only",
        arguments: &[
            "clippy",
            "--package",
            "oip-client",
            "--no-default-features",
            "--features",
            "grpc",
        ],
        usual: 5,
    },
    Check {
        name: "no servers to talk to",
        arguments: &["clippy", "--package", "tensor-cli", "--no-default-features"],
        usual: 14,
    },
    Check {
        name: "no backends",
        arguments: &["clippy", "--package", "oip-server", "--no-default-features"],
        usual: 30,
    },
    // Checks the build that README.md calls `cargo first`.
    Check {
        name: "the server of the first build",
        arguments: &[
            "clippy",
            "--package",
            "oip-server",
            "--no-default-features",
            "--features",
            "forest,onnx,tensors",
        ],
        usual: 48,
    },
    // Checks the server with the tool in the same program, as in the wheel.
    Check {
        name: "both programs in one",
        arguments: &["clippy", "--package", "oip-server", "--features", "tool"],
        usual: 67,
    },
    Check {
        name: "tests",
        arguments: &["test", "--workspace", "--", "--quiet"],
        usual: 1300,
    },
    Check {
        name: "rustdoc",
        arguments: &["doc", "--workspace", "--no-deps"],
        usual: 90,
    },
];

/// The second CPU architecture for servers. Code that depends on the architecture, such as flags of system
/// calls, must at least compile for it.
const OTHER_TARGET: &str = "aarch64-unknown-linux-gnu";

/// The C compiler for the other target.
const OTHER_COMPILER: &str = "aarch64-linux-gnu-gcc";

/// Checks the libraries for another architecture if its standard library is installed, since CI downloads
/// nothing.
fn check_other_target() -> Result<()> {
    if !cargo::has_target(OTHER_TARGET)? {
        println!(
            "   skipped: the standard library of {OTHER_TARGET} is not installed (rustup target add {OTHER_TARGET})"
        );
        return Ok(());
    }
    let arguments = [
        "check",
        "--workspace",
        "--lib",
        "--bins",
        "--target",
        OTHER_TARGET,
        "--exclude",
        "xtask",
    ];
    // These crates need C code and assembly, for zstd and TLS.
    let without = [
        "fmt-zstd",
        "fmt-ztensor",
        "fmt-ztensor2",
        "tensor-files",
        "tensor-cli",
        "tensor-remote",
        "model-store",
        "oip-auth",
        "oip-client",
        "oip-listen",
        "tensorferry-python",
        "backend-tensors",
        "oip-server",
    ];
    let has_compiler = Command::new(OTHER_COMPILER).arg("--version").output().is_ok();
    let without = if has_compiler { &without[..0] } else { &without[..] };
    if !has_compiler {
        println!(
            "   without what needs {OTHER_COMPILER}, which is not installed: {}",
            without.join(", ")
        );
    }
    let without = without.iter().flat_map(|package| ["--exclude", package]);
    let arguments: Vec<&str> = arguments.into_iter().chain(without).collect();
    cargo::run(&arguments, cargo::FLAGS)
}

/// The target for the web. Readers must compile for 32-bit addresses without a file system.
const WEB_TARGET: &str = "wasm32-unknown-unknown";

/// Checks `tensor-core` and the readers for the web, if the standard library for it is installed. zTensor is
/// left out, because it needs zstd's C code.
fn check_web_target() -> Result<()> {
    if !cargo::has_target(WEB_TARGET)? {
        println!(
            "   skipped: the standard library of {WEB_TARGET} is not installed (rustup target add {WEB_TARGET})"
        );
        return Ok(());
    }
    let readers = [
        "tensor-core",
        "fmt-core",
        "fmt-cbor",
        "fmt-btf",
        "fmt-gguf",
        "fmt-npy",
        "fmt-onnx",
        "fmt-safetensors",
        "fmt-tbuf",
        "fmt-torch",
    ];
    let packages = readers.iter().flat_map(|package| ["--package", package]);
    let arguments = ["check", "--lib", "--target", WEB_TARGET];
    let arguments: Vec<&str> = arguments.into_iter().chain(packages).collect();
    cargo::run(&arguments, cargo::FLAGS)
}

/// A step after the cargo commands, with its usual duration in seconds.
type Step = (&'static str, u64, fn() -> Result<()>);

const STEPS: &[Step] = &[
    (OTHER_TARGET, 2, check_other_target),
    (WEB_TARGET, 2, check_web_target),
    ("a crate outside of the workspace", 120, standalone::run),
    ("fuzz targets", 60, fuzz::in_ci),
    ("packages", 20, tools::package_offline),
    ("licences of dependencies", 2, tools::deny_in_ci),
    ("the oldest Rust", 2, tools::msrv_in_ci),
    ("the console in a browser", 2, browser::in_ci),
    ("tutorials", 2, tutorials::in_ci),
];

/// Runs all checks in order, and stops at the first failure.
pub(crate) fn run() -> Result<()> {
    let start = Instant::now();
    let of_cargo = CHECKS.iter().map(|check| check.usual);
    let of_others = STEPS.iter().map(|(_, usual, _)| *usual);
    let mut progress = Progress {
        done: 0,
        all: 1 + CHECKS.len() + STEPS.len(),
    };
    println!(
        "{} steps, usually {} on two cores if nothing is built yet",
        progress.all,
        in_words(of_cargo.chain(of_others).sum())
    );
    progress.step("codegen", 1, || codegen::run(true))?;
    for check in CHECKS {
        progress.step(check.name, check.usual, || {
            cargo::run(check.arguments, cargo::FLAGS)
        })?;
    }
    for (name, usual, check) in STEPS {
        progress.step(name, *usual, check)?;
    }
    println!("all green after {}", in_words(start.elapsed().as_secs()));
    Ok(())
}

/// Prints how much of the run is done.
struct Progress {
    done: usize,
    all: usize,
}

impl Progress {
    fn step(&mut self, name: &str, usual: u64, check: impl FnOnce() -> Result<()>) -> Result<()> {
        self.done += 1;
        let number = format!("{} of {}", self.done, self.all);
        println!("== {number}: {name} (usually {})", in_words(usual));
        let start = Instant::now();
        check().with_context(|| format!("{name} failed"))?;
        println!(
            "== {number}: {name}: green after {:.0} s",
            start.elapsed().as_secs_f64()
        );
        Ok(())
    }
}

/// Formats a duration in seconds or minutes.
fn in_words(seconds: u64) -> String {
    match seconds {
        0..100 => format!("{seconds} s"),
        _ => format!("{} minutes", seconds.div_ceil(60)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every combination of features that the documentation recommends must be among CI's checks.
    #[test]
    fn the_choices_of_features_that_people_build_are_checked() {
        let is_checked = |features: &str, has_default: bool| {
            CHECKS.iter().any(|check| {
                let arguments = check.arguments;
                arguments.contains(&"oip-server")
                    && arguments.contains(&features)
                    && arguments.contains(&"--no-default-features") != has_default
            })
        };
        let alias = std::fs::read_to_string(crate::workspace::root().join(".cargo/config.toml")).unwrap();
        let first = alias.lines().find(|line| line.starts_with("first = ")).unwrap();
        let features = first
            .split("--features ")
            .nth(1)
            .unwrap()
            .split(' ')
            .next()
            .unwrap();
        assert!(is_checked(features, false), "{features}");
        assert!(is_checked("tool", true));
    }
}
