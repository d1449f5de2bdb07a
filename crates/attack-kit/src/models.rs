//! The models that attacks use: an identity, and a tensor file whose responses are far larger than its
//! requests.

use std::{fs, io::Write, path::Path};

use anyhow::Result;

use crate::protobuf::{field, number};

/// An identity model: a UINT8 tensor `x` of any length is returned as `y`.
pub const ECHO: &str = "echo";
/// The same identity model in an isolated process.
pub const ISOLATED: &str = "isolated_echo";
/// A tensor file with one BOOL tensor, whose JSON form is six times its size.
pub const LARGE: &str = "large";

/// Writes a repository with [`ECHO`], and with [`LARGE`] of `large` bytes.
///
/// # Errors
/// When the files cannot be written.
pub fn write(repository: &Path, large: usize) -> Result<()> {
    write_echo(repository, ECHO, "")?;
    let folder = repository.join(LARGE).join("1");
    fs::create_dir_all(&folder)?;
    let header = format!(r#"{{"flags":{{"dtype":"BOOL","shape":[{large}],"data_offsets":[0,{large}]}}}}"#);
    let header = format!("{header:<width$}", width = header.len().next_multiple_of(8));
    let mut file = fs::File::create(folder.join("model.safetensors"))?;
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(header.as_bytes())?;
    // The rest of the file is a sparse hole that reads as zeros.
    file.set_len((8 + header.len() + large) as u64)?;
    Ok(())
}

/// Adds [`ISOLATED`] to a repository.
///
/// # Errors
/// When the files cannot be written.
pub fn write_isolated(repository: &Path) -> Result<()> {
    let config = "parameters { key: \"isolation\" value { string_value: \"process\" } }\n";
    write_echo(repository, ISOLATED, config)
}

fn write_echo(repository: &Path, name: &str, config: &str) -> Result<()> {
    let folder = repository.join(name).join("1");
    fs::create_dir_all(&folder)?;
    fs::write(folder.join("model.onnx"), echo())?;
    if !config.is_empty() {
        fs::write(repository.join(name).join("config.pbtxt"), config)?;
    }
    Ok(())
}

/// Returns an ONNX identity model for UINT8 tensors with one free dimension.
fn echo() -> Vec<u8> {
    let message = |fields: &[(u32, &[u8])]| {
        let mut message = Vec::new();
        fields
            .iter()
            .for_each(|(id, value)| field(&mut message, *id, value));
        message
    };
    let node = message(&[(1, b"x"), (2, b"y"), (4, b"Identity")]);
    let shape = message(&[(1, &message(&[(2, b"n")]))]);
    let mut tensor_type = Vec::new();
    number(&mut tensor_type, 1, 2);
    field(&mut tensor_type, 2, &shape);
    let value = |name: &[u8]| message(&[(1, name), (2, &message(&[(1, &tensor_type)]))]);
    let graph = message(&[(1, &node), (2, b"echo"), (11, &value(b"x")), (12, &value(b"y"))]);
    let mut operators = Vec::new();
    number(&mut operators, 2, 13);
    let mut model = Vec::new();
    number(&mut model, 1, 8);
    field(&mut model, 7, &graph);
    field(&mut model, 8, &operators);
    model
}
