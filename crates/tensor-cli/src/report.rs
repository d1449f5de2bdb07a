//! JSON reports of commands (`--json`): one object per line. docs/tensor.md lists the keys.

use std::{
    fs,
    io::{self, Write},
    path::Path,
    time::Instant,
};

use serde::Serialize;
use tensor_files::Loss;

/// Prints one object as a line.
pub(crate) fn print(report: &impl Serialize, out: &mut impl Write) -> io::Result<()> {
    serde_json::to_writer(&mut *out, report)?;
    writeln!(out)
}

/// Returns a JSON number, or a string for NaN and the infinities.
pub(crate) fn number(value: f64) -> serde_json::Value {
    match serde_json::Number::from_f64(value) {
        Some(number) => number.into(),
        None if value.is_nan() => "nan".into(),
        None => if value > 0.0 { "inf" } else { "-inf" }.into(),
    }
}

/// The report of a conversion.
#[derive(Serialize)]
pub(crate) struct Conversion {
    pub(crate) files: Vec<WrittenFile>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) index: Option<String>,
    pub(crate) tensors: usize,
    pub(crate) losses: Vec<LostItem>,
    /// Tensors that `--dtype` did not convert.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) unconverted: Vec<String>,
    pub(crate) elapsed_ms: f64,
}

impl Conversion {
    /// Creates the report of a conversion that wrote one file without loss.
    pub(crate) fn of_one(path: &Path, tensors: usize, start: Instant) -> Self {
        Self {
            files: vec![WrittenFile::at(path)],
            index: None,
            tensors,
            losses: Vec::new(),
            unconverted: Vec::new(),
            elapsed_ms: start.elapsed().as_secs_f64() * 1e3,
        }
    }
}

/// A written file.
#[derive(Serialize)]
pub(crate) struct WrittenFile {
    file: String,
    file_bytes: u64,
}

impl WrittenFile {
    pub(crate) fn at(path: &Path) -> Self {
        Self {
            file: path.display().to_string(),
            file_bytes: fs::metadata(path).map_or(0, |file| file.len()),
        }
    }
}

/// Data that was lost because the target format cannot represent it.
#[derive(Serialize)]
pub(crate) struct LostItem {
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    tensor: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    message: String,
}

impl LostItem {
    pub(crate) fn of(loss: &Loss) -> Self {
        let (kind, tensor, key) = match loss {
            Loss::Tensor(name, _) => ("tensor", Some(name), None),
            Loss::Sparsity(name) => ("sparsity", Some(name), None),
            Loss::Names => ("names", None, None),
            Loss::Metadata(key) => ("metadata", None, Some(key)),
            Loss::Attribute(name, key) => ("attribute", Some(name), Some(key)),
            Loss::ForeignPart(name) => ("part", None, Some(name)),
            Loss::Range(name, _) => ("range", Some(name), None),
            Loss::Sharing(name, ..) => ("sharing", Some(name), None),
            Loss::DType(name, _) => ("dtype", Some(name), None),
            _ => ("other", None, None),
        };
        Self {
            kind,
            tensor: tensor.cloned(),
            key: key.cloned(),
            message: loss.to_string(),
        }
    }

    /// Creates the report of a metadata key whose value differs from an earlier file's.
    pub(crate) fn conflict(key: &str, file: &str) -> Self {
        Self {
            kind: "metadata",
            tensor: None,
            key: Some(key.to_owned()),
            message: format!("the value in {file}: an earlier file has another value"),
        }
    }
}
