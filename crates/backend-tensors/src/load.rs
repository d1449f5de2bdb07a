//! Loads a file's tensors: decodes and verifies all of them.

use std::{path::Path, sync::Arc, time::Instant};

use fmt_core::{Encoding, Entry, Error, Layout, Limits, ReadOptions, TensorReader, Verification};
use oip_model::{ModelSource, available_memory};
use oip_types::{ErrorCode, ServiceError};
use tensor_core::{QuotedName, Tensor};

/// The tensors of a file that are served.
pub(crate) struct ServedTensors {
    /// The format's short name.
    pub(crate) format: &'static str,
    /// Names and tensors in the file's order.
    pub(crate) tensors: Vec<(String, Tensor)>,
}

/// Memory limit if the system does not report its free memory.
const UNKNOWN_MEMORY: u64 = 4 << 30;

/// Opens a file and reads all tensors that can be served; `memory` limits the decoded bytes.
pub(crate) fn load(
    source: &ModelSource,
    deadline: Option<Instant>,
    memory: Option<u64>,
) -> Result<ServedTensors, ServiceError> {
    let file_name = source.path.file_name().unwrap_or_default().display();
    let refused = |error: &Error| ServiceError::invalid(format!("{file_name}: {error}"));
    check_beside(&source.path)?;
    let budget = memory.or_else(available_memory).unwrap_or(UNKNOWN_MEMORY);
    let options = ReadOptions {
        limits: Limits {
            decoded_bytes: budget,
            ..Limits::default()
        },
        ..ReadOptions::default()
    };
    let opened = tensor_files::open_source(Arc::new(source.content.clone()), Some(&source.path), &options);
    let reader = opened.map_err(|error| refused(&error))?;

    let entries = || reader.entries().iter().enumerate();
    warn_of_omissions(source, reader.entries());
    let decoded = entries().filter(|(_, entry)| is_served(entry) && !is_view(entry));
    let decoded = decoded.map(|(_, entry)| entry.byte_len().unwrap_or(u64::MAX));
    let needed = decoded.fold(0, u64::saturating_add);
    if needed > budget {
        return Err(ServiceError::invalid(format!(
            "{file_name}: its tensors take {needed} bytes once decoded, and {budget} are free"
        )));
    }
    let mut tensors = Vec::new();
    for (index, entry) in entries().filter(|(_, entry)| is_served(entry)) {
        // The load has already failed with a timeout, so the remaining tensors need not be decoded.
        if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
            return Err(ServiceError::new(
                ErrorCode::DeadlineExceeded,
                format!("{file_name}: loading took too long"),
            ));
        }
        // Tensors that are copied are verified by reading them. Tensors that are served from the file's own
        // bytes must be verified separately.
        if is_view(entry) {
            verify(source, &*reader, index).map_err(|error| refused(&error))?;
        }
        let tensor = reader.tensor(index).map_err(|error| refused(&error))?;
        tensors.push((entry.name.clone(), tensor));
    }
    if tensors.is_empty() {
        let reason = why_none(reader.entries());
        return Err(ServiceError::invalid(format!("{file_name}: {reason}")));
    }
    warn_of_lints(source, &*reader);
    Ok(ServedTensors {
        format: reader.format(),
        tensors,
    })
}

/// Checks that `<path>.names.json`, which contains the tensor names of a BTF file, is not a symbolic link.
/// The reader opens it by name, and a link could lead to any file of the system.
fn check_beside(path: &Path) -> Result<(), ServiceError> {
    let mut names = path.as_os_str().to_owned();
    names.push(".names.json");
    if Path::new(&names).is_symlink() {
        let name = Path::new(&names).file_name().unwrap_or_default().display();
        return Err(ServiceError::invalid(format!(
            "{name} is a link; it must be a file"
        )));
    }
    Ok(())
}

fn is_served(entry: &Entry) -> bool {
    entry.unsupported.is_none() && entry.layout == Layout::Dense && entry.spec().is_some()
}

/// Returns whether a tensor is served from the file's own bytes.
fn is_view(entry: &Entry) -> bool {
    entry.encoding == Encoding::Raw && !entry.is_big_endian
}

/// Logs which tensors are not served, and the reason for the first one.
fn warn_of_omissions(source: &ModelSource, entries: &[Entry]) {
    let omitted = || entries.iter().filter(|entry| !is_served(entry));
    if let Some(first) = omitted().next() {
        tracing::warn!(
            model = source.name,
            version = source.version,
            count = omitted().count(),
            first = %QuotedName(&first.name),
            reason = why_not(first),
            "tensors of the file are not served"
        );
    }
}

/// Verifies the checksum of a tensor, and logs a checksum of an unknown kind.
fn verify(source: &ModelSource, reader: &dyn TensorReader, index: usize) -> Result<(), Error> {
    if let Verification::UnknownChecksum(kind) = reader.verify(index)? {
        let (model, version) = (&source.name, &source.version);
        tracing::warn!(
            model,
            version,
            tensor = reader.entries()[index].name,
            kind,
            "the checksum is of an unknown kind"
        );
    }
    Ok(())
}

/// Returns the reason why no tensor of the file is served.
fn why_none(entries: &[Entry]) -> String {
    entries.first().map_or_else(
        || "it has no tensors".to_owned(),
        |first| {
            let (count, name) = (entries.len(), QuotedName(&first.name));
            format!(
                "none of its {count} tensors can be served; {name}: {}",
                why_not(first)
            )
        },
    )
}

/// Returns the reason why a tensor is not served.
fn why_not(entry: &Entry) -> &str {
    match (&entry.unsupported, &entry.layout) {
        (Some(reason), _) => reason,
        (None, Layout::Dense) => "its dtype is not known",
        (None, _) => "it is sparse",
    }
}

/// Logs legal but unusual properties of the file, such as a file with tensor names that does not match it.
fn warn_of_lints(source: &ModelSource, reader: &dyn TensorReader) {
    let lints = reader.lints().unwrap_or_default();
    if let Some(first) = lints.first() {
        tracing::warn!(
            model = source.name,
            version = source.version,
            count = lints.len(),
            first = first.message,
            "the file is valid but unusual"
        );
    }
}
