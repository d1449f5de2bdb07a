//! The program `tensor`.

use std::process::ExitCode;

fn main() -> ExitCode {
    tensor_cli::run(std::env::args_os())
}
