//! Embeds `tensor` as a command of another program:
//! `cargo run -p tensor-cli --example command tensor inspect x.safetensors`.

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments = std::env::args_os().skip(1);
    match std::env::args_os().nth(1) {
        Some(first) if first == "tensor" => tensor_cli::run(arguments),
        _ => ExitCode::FAILURE,
    }
}
