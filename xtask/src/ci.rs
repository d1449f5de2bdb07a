//! What must be green before a change lands.

use std::{process::Command, time::Instant};

use anyhow::{Context, Result, ensure};

use crate::{codegen, workspace};

/// Each check by name, with the cargo arguments and environment that run it.
const CHECKS: &[(&str, &[&str], &[(&str, &str)])] = &[
    ("fmt", &["fmt", "--all", "--check"], &[]),
    (
        "clippy",
        &["clippy", "--workspace", "--all-targets", "--quiet"],
        &[("RUSTFLAGS", "-Dwarnings")],
    ),
    (
        "minimal features",
        &[
            "clippy",
            "--package",
            "oip-types",
            "--no-default-features",
            "--quiet",
        ],
        &[("RUSTFLAGS", "-Dwarnings")],
    ),
    // With the same flags as clippy, so that dependencies are built once.
    (
        "tests",
        &["test", "--workspace", "--quiet"],
        &[("RUSTFLAGS", "-Dwarnings")],
    ),
    (
        "rustdoc",
        &["doc", "--workspace", "--no-deps", "--quiet"],
        &[("RUSTFLAGS", "-Dwarnings"), ("RUSTDOCFLAGS", "-Dwarnings")],
    ),
];

/// Runs all checks, one after the other, and stops at the first that fails.
pub(crate) fn run() -> Result<()> {
    let start = Instant::now();
    step("codegen", || codegen::run(true))?;
    for (name, arguments, environment) in CHECKS {
        step(name, || {
            let mut cargo = Command::new(env!("CARGO"));
            cargo
                .args(*arguments)
                .envs(environment.iter().copied())
                .current_dir(workspace::root());
            let status = cargo.status().context("starting cargo")?;
            ensure!(status.success(), "`cargo {}` failed", arguments.join(" "));
            Ok(())
        })?;
    }
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
