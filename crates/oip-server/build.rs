//! Link options that make an optimized program a tenth smaller, where this machine's linker and loader know them.

use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Functions of equal machine code are stored once, and the addresses that the loader adjusts as bits instead of 24
/// bytes for each (`DT_RELR`, for which glibc must be 2.36 or newer).
const OPTIONS: [&str; 2] = ["-Wl,--icf=all", "-Wl,-z,pack-relative-relocs"];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if is_for_this_machine() {
        for option in OPTIONS.iter().filter(|option| is_supported(option)) {
            println!("cargo::rustc-link-arg-bins={option}");
        }
    }
}

/// Whether the program is optimized and for this machine, and built without compiler flags and with the usual linker.
/// `cargo xtask dist`, and `wheel` with a target, set flags, because their programs must run with an older glibc.
fn is_for_this_machine() -> bool {
    let variable = |name: &str| env::var(name).unwrap_or_default();
    variable("HOST") == variable("TARGET")
        && variable("OPT_LEVEL") != "0"
        && variable("CARGO_CFG_TARGET_OS") == "linux"
        && variable("CARGO_ENCODED_RUSTFLAGS").is_empty()
        && variable("RUSTC_LINKER").is_empty()
}

/// Links a program with an option, and runs it.
fn is_supported(option: &str) -> bool {
    let folder = env::var_os("OUT_DIR").unwrap_or_default();
    let source = Path::new(&folder).join("probe.rs");
    let program = Path::new(&folder).join("probe");
    let compiler = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let compile = || {
        fs::write(&source, "fn main() {}")?;
        let mut command = Command::new(compiler);
        command.arg(&source).arg("-o").arg(&program);
        command.arg(format!("-Clink-arg={option}")).output()
    };
    let is_linked = compile().is_ok_and(|compiled| compiled.status.success());
    is_linked
        && Command::new(&program)
            .output()
            .is_ok_and(|run| run.status.success())
}
