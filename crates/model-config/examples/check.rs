//! Checks configurations before they are deployed:
//! `cargo run -p model-config --example check -- models/*/config.pbtxt`.

use std::{
    env, fs,
    io::{self, Write},
    path::Path,
    process::ExitCode,
};

use model_config::{Syntax, WrittenConfig};

fn main() -> io::Result<ExitCode> {
    let (mut out, mut failed) = (io::stdout().lock(), false);
    for path in env::args().skip(1) {
        match check(Path::new(&path)) {
            Ok(written) => {
                writeln!(out, "{path}: sound")?;
                for warning in &written.warnings {
                    writeln!(out, "{path}: warning: {warning}")?;
                }
            }
            Err(error) => {
                writeln!(out, "{path}: {error}")?;
                failed = true;
            }
        }
    }
    Ok(ExitCode::from(u8::from(failed)))
}

fn check(path: &Path) -> Result<WrittenConfig, Box<dyn std::error::Error>> {
    let syntax = match path.extension().and_then(|extension| extension.to_str()) {
        Some("json") => Syntax::Json,
        Some("toml") => Syntax::Toml,
        _ => Syntax::Pbtxt,
    };
    Ok(WrittenConfig::read(&fs::read_to_string(path)?, syntax)?)
}
