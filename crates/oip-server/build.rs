//! Link options that make an optimized program smaller, if the linker and the loader of this machine support them.

use std::{env, fs, path::Path, process::Command};

/// Functions with the same machine code are stored once, and most relocations take a bit instead of 24 bytes
/// (`DT_RELR`, which needs glibc 2.36 or newer).
const OPTIONS: [&str; 2] = ["-Wl,--icf=all", "-Wl,-z,pack-relative-relocs"];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let target = variable("TARGET").replace(['-', '.'], "_").to_uppercase();
    println!("cargo::rerun-if-env-changed=CARGO_TARGET_{target}_LINKER");
    if !is_for_this_machine() {
        return;
    }
    let mut options = OPTIONS.to_vec();
    if !are_supported(&options) {
        options.retain(|option| are_supported(&[option]));
    }
    for option in options {
        println!("cargo::rustc-link-arg-bins={option}");
    }
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_default()
}

/// Whether the program is optimized and for this machine, and built without compiler flags and with the usual linker.
/// `cargo xtask dist`, and `wheel` with a target, set flags, because their programs must run with an older glibc.
fn is_for_this_machine() -> bool {
    variable("HOST") == variable("TARGET")
        && variable("OPT_LEVEL") != "0"
        && variable("CARGO_CFG_TARGET_OS") == "linux"
        && variable("CARGO_ENCODED_RUSTFLAGS").is_empty()
        && variable("RUSTC_LINKER").is_empty()
}

/// Links a program with options, and runs it.
fn are_supported(options: &[&str]) -> bool {
    let folder = env::var_os("OUT_DIR").unwrap_or_default();
    let source = Path::new(&folder).join("probe.rs");
    let program = Path::new(&folder).join("probe");
    let compiler = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let compile = || {
        fs::write(&source, "fn main() {}")?;
        let mut command = Command::new(compiler);
        command.arg(&source).arg("-o").arg(&program);
        command.args(options.iter().map(|option| format!("-Clink-arg={option}")));
        command.output()
    };
    let is_linked = compile().is_ok_and(|compiled| compiled.status.success());
    is_linked
        && Command::new(&program)
            .output()
            .is_ok_and(|run| run.status.success())
}
