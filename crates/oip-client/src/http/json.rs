//! Response bodies without tensors. Missing and null members are empty.

use oip_types::{
    DataType, ModelIndexEntry, ModelMetadata, ModelState, ModelStatistics, ServerMetadata, ServiceError,
    TensorMetadata, TraceSettings,
};
use serde::Deserialize;
use serde_json::json;

#[derive(Deserialize)]
pub(super) struct Server {
    name: Option<String>,
    version: Option<String>,
    extensions: Option<Vec<String>>,
}

impl From<Server> for ServerMetadata {
    fn from(server: Server) -> Self {
        let name = server.name.unwrap_or_default();
        let mut metadata = Self::new(name, server.version.unwrap_or_default());
        metadata.extensions = server.extensions.unwrap_or_default();
        metadata
    }
}

#[derive(Deserialize)]
pub(super) struct Model {
    name: String,
    versions: Option<Vec<String>>,
    platform: Option<String>,
    inputs: Option<Vec<Tensor>>,
    outputs: Option<Vec<Tensor>>,
}

#[derive(Deserialize)]
struct Tensor {
    name: String,
    datatype: String,
    shape: Vec<i64>,
}

impl Model {
    pub(super) fn into_metadata(self) -> Result<ModelMetadata, ServiceError> {
        let tensors = |tensors: Option<Vec<Tensor>>| -> Result<Vec<_>, ServiceError> {
            let read = |tensor: Tensor| {
                let datatype = DataType::from_name(&tensor.datatype)
                    .map_err(|error| error.within(tensor_core::QuotedName(&tensor.name)))?;
                Ok(TensorMetadata::new(tensor.name, datatype, &tensor.shape))
            };
            tensors.unwrap_or_default().into_iter().map(read).collect()
        };
        Ok(ModelMetadata::new(
            self.name,
            self.platform.unwrap_or_default(),
            tensors(self.inputs)?,
            tensors(self.outputs)?,
        )
        .with_versions(self.versions.unwrap_or_default()))
    }
}

#[derive(Deserialize)]
pub(super) struct IndexEntry {
    name: String,
    version: Option<String>,
    state: Option<String>,
    reason: Option<String>,
}

impl From<IndexEntry> for ModelIndexEntry {
    fn from(entry: IndexEntry) -> Self {
        let filled = |text: Option<String>| text.filter(|text| !text.is_empty());
        Self {
            name: entry.name,
            version: filled(entry.version),
            state: filled(entry.state).map(|state| ModelState::from_name(&state)),
            reason: entry.reason.unwrap_or_default(),
        }
    }
}

/// A trace setting: a string, or a list for the setting with several values.
#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum TraceSetting {
    One(String),
    Several(Vec<String>),
    None(()),
}

impl From<TraceSetting> for Vec<String> {
    fn from(setting: TraceSetting) -> Self {
        match setting {
            TraceSetting::One(value) => vec![value],
            TraceSetting::Several(values) => values,
            TraceSetting::None(()) => Vec::new(),
        }
    }
}

/// Encodes changes of trace settings as Triton expects them: levels as a list, other settings as a string,
/// null to reset.
pub(super) fn trace_changes(changes: &TraceSettings) -> serde_json::Value {
    let change = |(name, values): (&String, &Vec<String>)| {
        let value = match &values[..] {
            [] => serde_json::Value::Null,
            [value] if name != "trace_level" => json!(value),
            values => json!(values),
        };
        (name.clone(), value)
    };
    changes.iter().map(change).collect()
}

#[derive(Deserialize)]
pub(super) struct Statistics {
    pub(super) model_stats: Vec<ModelStatistics>,
}
