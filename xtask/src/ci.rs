//! What must be green before a change lands.

use std::{process::Command, time::Instant};

use anyhow::{Context, Result};

use crate::{browser, cargo, codegen, fuzz, tools, tutorials};

/// One call of cargo that must succeed.
struct Check {
    name: &'static str,
    arguments: &'static [&'static str],
}

const CHECKS: &[Check] = &[
    Check {
        name: "fmt",
        arguments: &["fmt", "--all", "--check"],
    },
    Check {
        name: "clippy",
        arguments: &["clippy", "--workspace", "--all-targets", "--quiet"],
    },
    Check {
        name: "minimal features",
        arguments: &[
            "clippy",
            "--package",
            "oip-types",
            "--no-default-features",
            "--quiet",
        ],
    },
    Check {
        name: "tensors as ndarray's arrays",
        arguments: &["test", "--package", "tensor-core", "--all-features", "--quiet"],
    },
    Check {
        name: "oip-http alone",
        arguments: &[
            "clippy",
            "--package",
            "oip-http",
            "--no-default-features",
            "--quiet",
        ],
    },
    Check {
        name: "gRPC messages only",
        arguments: &[
            "clippy",
            "--package",
            "oip-grpc",
            "--no-default-features",
            "--quiet",
        ],
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
            "--quiet",
        ],
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
            "--quiet",
        ],
    },
    Check {
        name: "no formats",
        arguments: &[
            "clippy",
            "--package",
            "tensor-files",
            "--no-default-features",
            "--quiet",
        ],
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
            "--quiet",
        ],
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
            "--quiet",
        ],
    },
    Check {
        name: "no servers to talk to",
        arguments: &[
            "clippy",
            "--package",
            "tensor-cli",
            "--no-default-features",
            "--quiet",
        ],
    },
    Check {
        name: "no backends",
        arguments: &[
            "clippy",
            "--package",
            "oip-server",
            "--no-default-features",
            "--quiet",
        ],
    },
    // README's `cargo first`.
    Check {
        name: "the server of the first build",
        arguments: &[
            "clippy",
            "--package",
            "oip-server",
            "--no-default-features",
            "--features",
            "forest,onnx,tensors",
            "--quiet",
        ],
    },
    // The wheel's.
    Check {
        name: "both programs in one",
        arguments: &[
            "clippy",
            "--package",
            "oip-server",
            "--features",
            "tool",
            "--quiet",
        ],
    },
    Check {
        name: "tests",
        arguments: &["test", "--workspace", "--quiet"],
    },
    Check {
        name: "rustdoc",
        arguments: &["doc", "--workspace", "--no-deps", "--quiet"],
    },
];

/// The second processor family that servers run on. What depends on the processor (flags of system calls above all) must
/// at least compile there.
const OTHER_TARGET: &str = "aarch64-unknown-linux-gnu";

/// The compiler that C code and assembly need for it.
const OTHER_COMPILER: &str = "aarch64-linux-gnu-gcc";

/// Checks the libraries for another processor. Only where its standard library is installed: the rest of CI needs nothing
/// from outside, and neither may this.
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
        "--quiet",
        "--target",
        OTHER_TARGET,
        "--exclude",
        "xtask",
    ];
    // C code and assembly: zstd, TLS, tract's kernels.
    let without = [
        "fmt-ztensor",
        "tensor-files",
        "tensor-cli",
        "tensor-remote",
        "model-store",
        "oip-auth",
        "oip-client",
        "oip-listen",
        "tensorferry-python",
        "backend-onnx",
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

/// Pages that read tensors. What reads files must compile where addresses have 32 bits and there is no file system.
const WEB_TARGET: &str = "wasm32-unknown-unknown";

/// Checks `tensor-core` and the readers for the web, where its standard library is installed: but for zTensor, which needs
/// zstd's C code.
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
        "fmt-btf",
        "fmt-gguf",
        "fmt-npy",
        "fmt-onnx",
        "fmt-safetensors",
        "fmt-tbuf",
        "fmt-torch",
    ];
    let packages = readers.iter().flat_map(|package| ["--package", package]);
    let arguments = ["check", "--lib", "--quiet", "--target", WEB_TARGET];
    let arguments: Vec<&str> = arguments.into_iter().chain(packages).collect();
    cargo::run(&arguments, cargo::FLAGS)
}

/// Runs all checks, one after the other, and stops at the first that fails.
pub(crate) fn run() -> Result<()> {
    let start = Instant::now();
    step("codegen", || codegen::run(true))?;
    for check in CHECKS {
        step(check.name, || cargo::run(check.arguments, cargo::FLAGS))?;
    }
    step(OTHER_TARGET, check_other_target)?;
    step(WEB_TARGET, check_web_target)?;
    step("fuzz targets", fuzz::in_ci)?;
    step("packages", tools::package_offline)?;
    step("licences of dependencies", tools::deny_in_ci)?;
    step("the oldest Rust", tools::msrv_in_ci)?;
    step("the console in a browser", browser::in_ci)?;
    step("tutorials", tutorials::in_ci)?;
    println!("all green after {:.0} s", start.elapsed().as_secs_f64());
    Ok(())
}

fn step(name: &str, check: impl FnOnce() -> Result<()>) -> Result<()> {
    println!("== {name}");
    let start = Instant::now();
    check().with_context(|| format!("{name} is not green"))?;
    println!("== {name}: green after {:.0} s", start.elapsed().as_secs_f64());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What people are told to build is what is checked.
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
