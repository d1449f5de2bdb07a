//! The JSON of the frames between server and worker. The crate documentation lists the kinds of frames.

use std::collections::BTreeMap;

use oip_model::{Capabilities, IndependentRows, InputDims, Model, RowIndependence};
use oip_types::{
    DataType, ErrorCode, ModelConfig, ModelMetadata, Placement, ServiceError, ShapePattern, TensorMetadata,
    model_config::{InputConfig, OutputConfig},
};
use serde::{Deserialize, Serialize};

/// Maximum size of the logged details of one error, in bytes.
pub(crate) const MAX_DETAILS: usize = 64 << 10;

/// The first message of a worker.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Hello {
    pub(crate) protocol: u32,
    /// Whether the worker expects requests as [`Run`] instead of REST bodies.
    #[serde(default)]
    pub(crate) places: bool,
}

/// A request, with the locations of its inputs.
#[derive(Debug, Serialize)]
pub(crate) struct Run<'r> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) id: Option<&'r str>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) parameters: BTreeMap<&'r str, serde_json::Value>,
    pub(crate) inputs: Vec<InputLocation<'r>>,
    /// Names of the requested outputs; empty if all are requested.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) outputs: Vec<&'r str>,
    /// Number of the region with the inputs; `None` if the inputs follow the JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) region: Option<u64>,
    /// The requests that were batched together into this one, in the order of their rows.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) parts: Vec<RunPart<'r>>,
    /// Remaining time of the request in microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) timeout: Option<u64>,
}

/// One of several requests that were batched together.
#[derive(Debug, Serialize)]
pub(crate) struct RunPart<'r> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) id: Option<&'r str>,
    pub(crate) rows: u64,
    /// Names of the outputs requested by this part of the batch; empty if all are requested.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    pub(crate) outputs: &'r [String],
}

/// The location of an input in the frame or region.
#[derive(Debug, Serialize)]
pub(crate) struct InputLocation<'r> {
    pub(crate) name: &'r str,
    pub(crate) datatype: &'static str,
    pub(crate) shape: &'r [u64],
    pub(crate) offset: u64,
    pub(crate) length: u64,
}

/// A response, with the locations of its outputs.
#[derive(Debug, Deserialize)]
pub(crate) struct Results {
    pub(crate) outputs: Vec<OutputLocation>,
    /// Whether the model still uses the region with its inputs.
    #[serde(default)]
    pub(crate) keeps_inputs: bool,
    /// Whether this message only marks the end of several responses.
    #[serde(default)]
    pub(crate) is_end: bool,
    /// The requests of the batch that failed, with their errors; their rows in the outputs are undefined.
    #[serde(default)]
    pub(crate) failed: Vec<FailedPart>,
}

/// A request of a batch that failed.
#[derive(Debug, Deserialize)]
pub(crate) struct FailedPart {
    /// Index of the failed request in [`Run::parts`].
    pub(crate) part: usize,
    pub(crate) error: Failure,
}

/// One of several responses to a request.
#[derive(Debug, Deserialize)]
pub(crate) struct Part {
    pub(crate) outputs: Vec<OutputLocation>,
    /// Whether the model marked this response as the last one.
    pub(crate) is_last: bool,
}

/// The server's reply to a [`Part`].
#[derive(Debug, Serialize)]
pub(crate) struct PartReply {
    /// Whether the receiver accepts another response.
    pub(crate) is_wanted: bool,
}

/// A request from a model to another model.
#[derive(Debug, Deserialize)]
pub(crate) struct Ask {
    /// The worker's number for the call, unique among open calls.
    pub(crate) call: u64,
    pub(crate) model: String,
    #[serde(default)]
    pub(crate) version: Option<String>,
    #[serde(default)]
    pub(crate) id: Option<String>,
    #[serde(default)]
    pub(crate) parameters: BTreeMap<String, serde_json::Value>,
    pub(crate) inputs: Vec<OutputLocation>,
    /// Names of the requested outputs; empty if all are requested.
    #[serde(default)]
    pub(crate) outputs: Vec<String>,
    /// Time limit of the call, in microseconds.
    #[serde(default)]
    pub(crate) timeout: Option<u64>,
    /// Whether the caller accepts any number of responses.
    #[serde(default)]
    pub(crate) takes_several: bool,
}

/// A response to an [`Ask`], or the end of its responses.
#[derive(Debug, Default, Serialize)]
pub(crate) struct CallResponse<'r> {
    pub(crate) call: u64,
    /// Outputs of the response; `None` if the call failed or has no further responses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) outputs: Option<Vec<InputLocation<'r>>>,
    /// The length of the region with the outputs, which is used for this response only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) region: Option<u64>,
    /// The error, if the call failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) failed: Option<Failure>,
    /// Whether this response is the last one. If not, the worker replies with [`Next`].
    pub(crate) is_end: bool,
}

/// The worker's reply to a [`CallResponse`] after which more responses may follow.
#[derive(Debug, Deserialize)]
pub(crate) struct Next {
    pub(crate) call: u64,
    pub(crate) is_wanted: bool,
}

/// The location of an output, and what it contains.
#[derive(Debug, Deserialize)]
pub(crate) struct OutputLocation {
    pub(crate) name: String,
    pub(crate) datatype: String,
    pub(crate) shape: Vec<u64>,
    pub(crate) place: TensorMemory,
    pub(crate) offset: u64,
    pub(crate) length: u64,
}

/// The memory that a location refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum TensorMemory {
    /// The bytes follow the JSON in the frame.
    Frame,
    /// The region for outputs.
    Region,
    /// The region with the inputs, which the model may have written to.
    Inputs,
    /// The request's own input bytes, which the model cannot have modified.
    Request,
}

/// The worker's request for an output region of at least `bytes` bytes.
#[derive(Debug, Deserialize)]
pub(crate) struct Room {
    pub(crate) bytes: u64,
}

/// A region and its purpose.
#[derive(Debug, Serialize)]
pub(crate) struct NewRegion {
    pub(crate) number: u64,
    pub(crate) length: u64,
    pub(crate) is_for_inputs: bool,
}

/// A model to load. The binary part of the frame contains the model file, followed by the other files.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Load {
    pub(crate) backend: String,
    pub(crate) name: String,
    pub(crate) version: String,
    /// The path of the model file. Invalid UTF-8 is replaced, so a worker finds no files next to such a path.
    pub(crate) path: String,
    /// The names and lengths of the other files, in order.
    pub(crate) beside: Vec<(String, u64)>,
    pub(crate) config: ModelConfig,
    pub(crate) input_dims: InputDims,
    /// The inputs and outputs from the configuration, for workers that do not use this crate.
    pub(crate) tensors: Tensors,
    /// Memory limit of the worker, in bytes.
    pub(crate) memory_limit: Option<u64>,
    pub(crate) max_answer_bytes: u64,
    /// Time limit for loading in milliseconds.
    pub(crate) patience: Option<u64>,
    /// The index of this process among the model's processes: the smallest unused one.
    pub(crate) instance: usize,
}

/// The inputs and outputs from a configuration.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Tensors {
    pub(crate) inputs: Vec<InputConfig>,
    pub(crate) outputs: Vec<OutputConfig>,
}

/// A loaded model: its metadata, and properties that the protocol's metadata lacks.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct LoadedModel {
    platform: String,
    inputs: Vec<Port>,
    outputs: Vec<Port>,
    #[serde(default)]
    max_batch_size: Option<u32>,
    #[serde(default)]
    instances: Option<u32>,
    /// Whether the model may send any number of responses to a request.
    #[serde(default)]
    decoupled: bool,
    /// Whether requests are batched only if the configuration has `dynamic_batching`.
    #[serde(default)]
    joined_only_when_told: bool,
    #[serde(default)]
    runtime: Option<String>,
    #[serde(default)]
    placement: Option<PlacementForm>,
    /// The model's row independence; unknown if absent.
    #[serde(default)]
    rows: Option<Rows>,
}

/// The form of a [`Placement`] in JSON.
#[derive(Debug, Serialize, Deserialize)]
struct PlacementForm {
    providers: Vec<String>,
    gpus: Vec<u32>,
}

/// The form of a [`RowIndependence`] in JSON.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Rows {
    Proven {
        shared_inputs: Vec<String>,
        equal_dims: Vec<Vec<(String, usize)>>,
    },
    Unproven(String),
}

impl From<RowIndependence> for Rows {
    fn from(known: RowIndependence) -> Self {
        match known {
            RowIndependence::Proven(IndependentRows {
                shared_inputs,
                equal_dims,
                ..
            }) => Self::Proven {
                shared_inputs,
                equal_dims,
            },
            RowIndependence::Unproven(reason) => Self::Unproven(reason),
            // The variant was added to the interface, but not to this protocol.
            _ => RowIndependence::default().into(),
        }
    }
}

impl From<Rows> for RowIndependence {
    fn from(rows: Rows) -> Self {
        match rows {
            Rows::Proven {
                shared_inputs,
                equal_dims,
            } => {
                let rows = shared_inputs
                    .into_iter()
                    .fold(IndependentRows::default(), IndependentRows::with_shared_input);
                Self::Proven(
                    equal_dims
                        .into_iter()
                        .fold(rows, IndependentRows::with_equal_dims),
                )
            }
            Rows::Unproven(reason) => Self::Unproven(reason),
        }
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct Port {
    name: String,
    datatype: String,
    dims: Vec<Option<u64>>,
    #[serde(default)]
    any_leading: bool,
    #[serde(default)]
    optional: bool,
    #[serde(default)]
    approximate: bool,
}

impl LoadedModel {
    pub(crate) fn of(model: &dyn Model) -> Self {
        let (metadata, capabilities) = (model.metadata(), model.capabilities());
        let port = |tensor: &TensorMetadata| Port {
            name: tensor.name.clone(),
            datatype: tensor.datatype.name().to_owned(),
            dims: tensor.shape.dims().to_vec(),
            any_leading: tensor.shape.has_any_leading(),
            optional: tensor.optional,
            approximate: tensor.approximate,
        };
        Self {
            platform: metadata.platform.clone(),
            inputs: metadata.inputs.iter().map(port).collect(),
            outputs: metadata.outputs.iter().map(port).collect(),
            max_batch_size: capabilities.max_batch_size,
            instances: capabilities.instances,
            decoupled: capabilities.decoupled,
            joined_only_when_told: capabilities.joined_only_when_told,
            runtime: capabilities.runtime,
            placement: capabilities.placement.map(|placement| PlacementForm {
                providers: placement.providers,
                gpus: placement.gpus,
            }),
            rows: Some(capabilities.row_independence.into()),
        }
    }

    /// Converts a worker's description of the model `name`.
    pub(crate) fn into_about(self, name: &str) -> Result<About, ServiceError> {
        let capabilities = Capabilities::default().with(|capabilities| {
            capabilities.runtime = self.runtime;
            capabilities.row_independence = self.rows.map(Into::into).unwrap_or_default();
            capabilities.max_batch_size = self.max_batch_size;
            capabilities.instances = self.instances;
            capabilities.decoupled = self.decoupled;
            capabilities.joined_only_when_told = self.joined_only_when_told;
            capabilities.placement = self
                .placement
                .map(|PlacementForm { providers, gpus }| Placement::new(providers).on_gpus(gpus));
            // A thread can wait for a worker with a timeout only on Linux. On other systems, the model is
            // therefore not declared as one that runs outside the calling thread.
            capabilities.elsewhere = cfg!(target_os = "linux");
        });
        let tensor = |port: Port| {
            let shape = match port.any_leading {
                true => ShapePattern::with_any_leading(port.dims),
                false => ShapePattern::new(port.dims),
            };
            let datatype = DataType::from_name(&port.datatype)?;
            let mut tensor = TensorMetadata::with_shape(port.name, datatype, shape);
            tensor.optional = port.optional;
            tensor.approximate = port.approximate;
            Ok(tensor)
        };
        let tensors = |ports: Vec<Port>| {
            ports
                .into_iter()
                .map(tensor)
                .collect::<Result<Vec<_>, ServiceError>>()
        };
        Ok(About {
            metadata: ModelMetadata::new(name, self.platform, tensors(self.inputs)?, tensors(self.outputs)?),
            capabilities,
        })
    }
}

/// A worker's description of its model: metadata and capabilities.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct About {
    pub(crate) metadata: ModelMetadata,
    pub(crate) capabilities: Capabilities,
}

/// An error, with the HTTP status that corresponds to its error code.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Failure {
    status: u16,
    message: String,
    /// Details for the log, such as a traceback; the client does not get them. At most [`MAX_DETAILS`] bytes
    /// are kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    details: Option<String>,
}

impl Failure {
    pub(crate) fn new(error: &ServiceError) -> Self {
        Self {
            status: error.code().http_status(),
            message: error.message().to_owned(),
            details: None,
        }
    }

    /// Takes the details for the log.
    pub(crate) fn take_details(&mut self) -> Option<String> {
        let mut details = self.details.take()?;
        if details.len() > MAX_DETAILS {
            details.truncate(details.floor_char_boundary(MAX_DETAILS));
        }
        Some(details)
    }

    pub(crate) fn into_error(self) -> ServiceError {
        let code = ErrorCode::ALL
            .into_iter()
            .find(|code| code.http_status() == self.status);
        ServiceError::new(code.unwrap_or(ErrorCode::Internal), self.message)
    }
}

#[cfg(test)]
mod tests {
    use oip_model::{Call, Outcome};

    use super::*;
    use crate::protocol::read_json;

    /// A model that has only a description, and cannot run requests.
    struct DescribedModel(About);

    impl Model for DescribedModel {
        fn metadata(&self) -> &ModelMetadata {
            &self.0.metadata
        }

        fn run(&self, _: Call<'_>) -> Result<Outcome, ServiceError> {
            Ok(Outcome::Streamed)
        }

        fn capabilities(&self) -> Capabilities {
            self.0.capabilities.clone()
        }
    }

    #[test]
    fn metadata_survives_with_what_the_protocol_has_no_form_for() {
        let metadata = ModelMetadata::new(
            "m",
            "test_m",
            vec![
                TensorMetadata::new("x", DataType::FP32, &[-1, 64]).optional(),
                TensorMetadata::with_shape(
                    "y",
                    DataType::BYTES,
                    ShapePattern::with_any_leading(vec![Some(3)]),
                ),
            ],
            vec![TensorMetadata::new("z", DataType::BF16, &[])],
        );
        let model = DescribedModel(About {
            metadata,
            capabilities: Capabilities::default().with(|capabilities| {
                capabilities.max_batch_size = Some(7);
                capabilities.placement =
                    Some(Placement::new(["CUDAExecutionProvider", "CPUExecutionProvider"]).on_gpus([1]));
                capabilities.runtime = Some("built-in".to_owned());
                let rows = IndependentRows::default().with_shared_input("y");
                capabilities.row_independence =
                    RowIndependence::Proven(rows.with_equal_dims([("x", 1), ("y", 0)]));
                capabilities.elsewhere = cfg!(target_os = "linux");
            }),
        });
        let json = oip_types::rest::json_body(&LoadedModel::of(&model));
        let read: LoadedModel = read_json(&json).unwrap();
        assert_eq!(read.into_about("m").unwrap(), model.0);
        let without = br#"{"platform":"","inputs":[],"outputs":[],"rows":{"unproven":"so"}}"#;
        let rows = |json: &[u8]| {
            let about = read_json::<LoadedModel>(json).unwrap().into_about("m").unwrap();
            about.capabilities.row_independence
        };
        assert_eq!(rows(without), RowIndependence::Unproven("so".to_owned()));
        let silent = br#"{"platform":"","inputs":[],"outputs":[]}"#;
        assert_eq!(rows(silent), RowIndependence::default());
        let unknown = br#"{"platform":"","inputs":[{"name":"x","datatype":"FP8","dims":[]}],"outputs":[]}"#;
        assert!(
            read_json::<LoadedModel>(unknown)
                .unwrap()
                .into_about("m")
                .is_err()
        );
    }

    #[test]
    fn errors_keep_their_codes() {
        for code in ErrorCode::ALL {
            let failed = Failure::new(&ServiceError::new(code, "x"));
            assert_eq!(failed.into_error().code(), code);
        }
    }

    #[test]
    fn details_are_bounded() {
        let long = "ü".repeat(MAX_DETAILS);
        let json = serde_json::json!({"status": 500, "message": "m", "details": long}).to_string();
        let mut failed: Failure = read_json(json.as_bytes()).unwrap();
        assert_eq!(failed.take_details().unwrap().len(), MAX_DETAILS);
        assert!(failed.take_details().is_none());
        let mut without: Failure = read_json(br#"{"status":400,"message":"m"}"#).unwrap();
        assert!(without.take_details().is_none());
    }
}
