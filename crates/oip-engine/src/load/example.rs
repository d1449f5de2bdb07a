//! The optional example request in a model's directory, for people who try the model.

use bytes::Bytes;
use model_repository::ModelDirectory;
use oip_types::{ModelMetadata, ModelRef, RequestLimits, rest::decode_request};

/// Name of the file with the JSON body of an inference request.
const FILE: &str = "example.json";

/// Maximum size of the example file, in bytes.
const MAX_BYTES: u64 = 1 << 20;

/// Reads the example of a version, first from the version's directory, then from the model's. Returns `None`
/// and logs a warning if the model does not accept the example.
pub(crate) fn read(
    directory: &ModelDirectory,
    version: Option<&str>,
    metadata: &ModelMetadata,
) -> Option<Bytes> {
    // The model is a single file; other files in the directory are unrelated.
    if directory.is_single_file() {
        return None;
    }
    let own = version.map(|version| [version, FILE]);
    let names: &[&str] = match &own {
        Some(own) if directory.has(own) => own,
        _ if directory.has(&[FILE]) => &[FILE],
        _ => return None,
    };
    match checked(directory, names, metadata) {
        Ok(example) => Some(example),
        Err(reason) => {
            let (model, file) = (directory.name(), names.join("/"));
            tracing::warn!(model, file, reason, "the example is not used");
            None
        }
    }
}

fn checked(directory: &ModelDirectory, names: &[&str], metadata: &ModelMetadata) -> Result<Bytes, String> {
    let body = directory
        .read(names, MAX_BYTES)
        .map_err(|error| error.to_string())?;
    let model = ModelRef::new(directory.name(), None).map_err(|error| error.to_string())?;
    let decoded = decode_request(model, &body, None, &RequestLimits::default());
    decoded
        .and_then(|decoded| metadata.check_request(&decoded.request))
        .map_err(|error| error.message().to_owned())?;
    Ok(body)
}
