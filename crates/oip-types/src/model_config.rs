//! Model configurations, with the field names and the JSON form of Triton's clients and tools.
//!
//! Fields absent from JSON take their defaults; unknown fields are ignored.

use std::collections::BTreeMap;

use crate::DataType;

/// The configuration of one model.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(
    feature = "rest",
    derive(serde::Serialize, serde::Deserialize),
    serde(default)
)]
pub struct ModelConfig {
    /// The model's name; empty to use the directory's name.
    pub name: String,
    /// The platform that runs the model, as `<project>_<format>`.
    pub platform: String,
    /// The backend that loads the model.
    pub backend: String,
    /// The runtime to use, if the backend has several.
    pub runtime: String,
    /// The versions of the repository that are served.
    pub version_policy: VersionPolicy,
    /// Maximum batch size; 0 for models without batching.
    pub max_batch_size: u32,
    /// The inputs, without the batch dimension when [`ModelConfig::max_batch_size`] is above 0.
    pub input: Vec<InputConfig>,
    /// The outputs, without the batch dimension when [`ModelConfig::max_batch_size`] is above 0.
    pub output: Vec<OutputConfig>,
    /// The groups of instances: how many there are, and on which hardware.
    pub instance_group: Vec<InstanceGroup>,
    /// Settings that make the model faster without changing its results.
    #[cfg_attr(feature = "rest", serde(skip_serializing_if = "Optimization::is_empty"))]
    pub optimization: Optimization,
    /// The model's file, if it does not have the backend's usual name.
    pub default_model_filename: String,
    /// How requests are batched; absent if they are not.
    #[cfg_attr(feature = "rest", serde(skip_serializing_if = "Option::is_none"))]
    pub dynamic_batching: Option<DynamicBatching>,
    /// The steps of a pipeline (ensemble); absent for other models.
    #[cfg_attr(feature = "rest", serde(skip_serializing_if = "Option::is_none"))]
    pub ensemble_scheduling: Option<EnsembleScheduling>,
    /// The backend's own settings.
    pub parameters: BTreeMap<String, ConfigParameter>,
    /// Warm-up requests, run before the model becomes ready.
    pub model_warmup: Vec<Warmup>,
    /// Whether a request may have several responses.
    pub model_transaction_policy: TransactionPolicy,
    /// Whether responses are cached.
    pub response_cache: ResponseCache,
}

/// The rule that selects the versions to serve.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(
    feature = "rest",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
pub enum VersionPolicy {
    /// The newest versions.
    Latest {
        /// The number of versions to serve.
        num_versions: u32,
    },
    /// All versions of the repository.
    All {},
    /// The listed versions.
    Specific {
        /// The version numbers to serve.
        versions: Vec<i64>,
    },
}

impl Default for VersionPolicy {
    fn default() -> Self {
        Self::Latest { num_versions: 1 }
    }
}

/// An input of the model.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "rest", derive(serde::Serialize, serde::Deserialize))]
pub struct InputConfig {
    /// The input's name.
    pub name: String,
    /// The datatype of the elements.
    #[cfg_attr(feature = "rest", serde(with = "crate::rest::config_datatype"))]
    pub data_type: DataType,
    /// `FORMAT_NONE`, or the layout of an image.
    #[cfg_attr(feature = "rest", serde(default))]
    pub format: InputFormat,
    /// The dimensions of the input; -1 for free ones.
    #[cfg_attr(feature = "rest", serde(default))]
    pub dims: Vec<i64>,
    /// The shape that the model sees, if it differs from `dims`.
    #[cfg_attr(feature = "rest", serde(default, skip_serializing_if = "Option::is_none"))]
    pub reshape: Option<Reshape>,
    /// Whether the input's elements are themselves a shape.
    #[cfg_attr(feature = "rest", serde(default))]
    pub is_shape_tensor: bool,
    /// Whether a batch may contain requests of different shapes.
    #[cfg_attr(feature = "rest", serde(default))]
    pub allow_ragged_batch: bool,
    /// Whether requests may omit the input.
    #[cfg_attr(feature = "rest", serde(default))]
    pub optional: bool,
}

/// An output of the model.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "rest", derive(serde::Serialize, serde::Deserialize))]
pub struct OutputConfig {
    /// The output's name.
    pub name: String,
    /// The datatype of the elements.
    #[cfg_attr(feature = "rest", serde(with = "crate::rest::config_datatype"))]
    pub data_type: DataType,
    /// The dimensions of the output; -1 for free ones.
    #[cfg_attr(feature = "rest", serde(default))]
    pub dims: Vec<i64>,
    /// The shape that clients see, if it differs from `dims`.
    #[cfg_attr(feature = "rest", serde(default, skip_serializing_if = "Option::is_none"))]
    pub reshape: Option<Reshape>,
    /// A file in the model's directory with one label per line, for the classification extension.
    #[cfg_attr(feature = "rest", serde(default))]
    pub label_filename: String,
    /// Whether the output's elements are themselves a shape.
    #[cfg_attr(feature = "rest", serde(default))]
    pub is_shape_tensor: bool,
}

/// The layout of an image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "rest", derive(serde::Serialize, serde::Deserialize))]
pub enum InputFormat {
    /// No particular layout.
    #[default]
    #[cfg_attr(feature = "rest", serde(rename = "FORMAT_NONE"))]
    None,
    /// Height, width, channels.
    #[cfg_attr(feature = "rest", serde(rename = "FORMAT_NHWC"))]
    Nhwc,
    /// Channels, height, width.
    #[cfg_attr(feature = "rest", serde(rename = "FORMAT_NCHW"))]
    Nchw,
}

/// A different shape for the same elements.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "rest",
    derive(serde::Serialize, serde::Deserialize),
    serde(default)
)]
pub struct Reshape {
    /// The dimensions of the new shape.
    pub shape: Vec<i64>,
}

/// A group of instances of a model on the same kind of hardware.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "rest",
    derive(serde::Serialize, serde::Deserialize),
    serde(default)
)]
pub struct InstanceGroup {
    /// The group's name.
    pub name: String,
    /// The hardware that the instances run on.
    pub kind: InstanceKind,
    /// The number of instances; 0 lets the server choose.
    pub count: u32,
    /// The CUDA indices of the GPUs that the instances run on; empty to let the server choose.
    #[cfg_attr(feature = "rest", serde(skip_serializing_if = "Vec::is_empty"))]
    pub gpus: Vec<u32>,
}

impl InstanceGroup {
    /// Returns the number of instances on all GPUs of the group together.
    ///
    /// ```
    /// use oip_types::model_config::InstanceGroup;
    ///
    /// let group = InstanceGroup { count: 2, gpus: vec![0, 1], ..InstanceGroup::default() };
    /// assert_eq!(group.instances(), 4);
    /// ```
    #[must_use]
    pub fn instances(&self) -> u64 {
        u64::from(self.count) * self.gpus.len().max(1) as u64
    }
}

/// The hardware that instances run on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "rest", derive(serde::Serialize, serde::Deserialize))]
pub enum InstanceKind {
    /// The server chooses between GPU and CPU.
    #[default]
    #[cfg_attr(feature = "rest", serde(rename = "KIND_AUTO"))]
    Auto,
    /// A GPU.
    #[cfg_attr(feature = "rest", serde(rename = "KIND_GPU"))]
    Gpu,
    /// The CPU.
    #[cfg_attr(feature = "rest", serde(rename = "KIND_CPU"))]
    Cpu,
    /// The model itself selects the hardware.
    #[cfg_attr(feature = "rest", serde(rename = "KIND_MODEL"))]
    Model,
}

/// Settings that make a model faster without changing its results.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "rest",
    derive(serde::Serialize, serde::Deserialize),
    serde(default)
)]
pub struct Optimization {
    /// The libraries that run the model.
    pub execution_accelerators: ExecutionAccelerators,
}

impl Optimization {
    /// Returns whether no setting is present.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// The libraries that run a model, in order of preference.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "rest",
    derive(serde::Serialize, serde::Deserialize),
    serde(default)
)]
pub struct ExecutionAccelerators {
    /// The libraries for instances on GPUs, such as `tensorrt`.
    pub gpu_execution_accelerator: Vec<Accelerator>,
    /// The libraries for instances on CPUs, such as `openvino`.
    pub cpu_execution_accelerator: Vec<Accelerator>,
}

/// A library that runs a model, or parts of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "rest",
    derive(serde::Serialize, serde::Deserialize),
    serde(default)
)]
pub struct Accelerator {
    /// The library's name in lower case, such as `tensorrt`.
    pub name: String,
    /// Options that are passed to the library.
    pub parameters: BTreeMap<String, String>,
}

/// How requests are batched together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "rest",
    derive(serde::Serialize, serde::Deserialize),
    serde(default)
)]
pub struct DynamicBatching {
    /// Batch sizes that run at once, without waiting for further requests.
    pub preferred_batch_size: Vec<u32>,
    /// Maximum time a request waits for further requests, in microseconds.
    pub max_queue_delay_microseconds: u64,
    /// Whether responses are sent in the order of requests.
    pub preserve_ordering: bool,
    /// The number of priorities, 1 being the highest; 0 for none.
    pub priority_levels: u64,
    /// The priority of requests that do not set one.
    pub default_priority_level: u64,
    /// The queue policy of requests without a more specific one.
    #[cfg_attr(feature = "rest", serde(skip_serializing_if = "Option::is_none"))]
    pub default_queue_policy: Option<QueuePolicy>,
    /// Queue policies by priority.
    pub priority_queue_policy: BTreeMap<u64, QueuePolicy>,
}

/// The limits on waiting requests: how long they may wait, and how many may wait.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "rest",
    derive(serde::Serialize, serde::Deserialize),
    serde(default)
)]
pub struct QueuePolicy {
    /// The action for a request whose timeout passes in the queue.
    pub timeout_action: TimeoutAction,
    /// The timeout in microseconds; 0 for none.
    pub default_timeout_microseconds: u64,
    /// Whether a request may set its own timeout.
    pub allow_timeout_override: bool,
    /// Maximum queue length; 0 lets the server choose.
    pub max_queue_size: u32,
}

/// The handling of requests whose timeout passes in the queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "rest",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "UPPERCASE")
)]
pub enum TimeoutAction {
    /// Reject timed-out requests with an error.
    #[default]
    Reject,
    /// Run timed-out requests after all others.
    Delay,
}

/// A pipeline of models (ensemble).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "rest",
    derive(serde::Serialize, serde::Deserialize),
    serde(default)
)]
pub struct EnsembleScheduling {
    /// The steps; their order follows from their inputs and outputs.
    pub step: Vec<EnsembleStep>,
}

/// A model in a pipeline.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(
    feature = "rest",
    derive(serde::Serialize, serde::Deserialize),
    serde(default)
)]
pub struct EnsembleStep {
    /// The name of the model that the step runs.
    pub model_name: String,
    /// The version of the model; -1 lets the server choose.
    pub model_version: i64,
    /// Maps the model's inputs to tensors of the pipeline.
    pub input_map: BTreeMap<String, String>,
    /// Maps the model's outputs to tensors of the pipeline.
    pub output_map: BTreeMap<String, String>,
}

impl Default for EnsembleStep {
    fn default() -> Self {
        Self {
            model_name: String::new(),
            model_version: -1,
            input_map: BTreeMap::new(),
            output_map: BTreeMap::new(),
        }
    }
}

/// A backend-specific setting.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "rest",
    derive(serde::Serialize, serde::Deserialize),
    serde(default)
)]
pub struct ConfigParameter {
    /// The setting's value.
    pub string_value: String,
}

/// A warm-up request, run before the model becomes ready.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "rest",
    derive(serde::Serialize, serde::Deserialize),
    serde(default)
)]
pub struct Warmup {
    /// A name for log messages.
    pub name: String,
    /// The batch size, for models that support batching.
    pub batch_size: u32,
    /// The inputs of the request, by name.
    pub inputs: BTreeMap<String, WarmupInput>,
    /// How often to run the request; 0 counts as 1.
    pub count: u32,
}

/// An input of a warm-up request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "rest", derive(serde::Serialize, serde::Deserialize))]
pub struct WarmupInput {
    /// The datatype of the elements.
    #[cfg_attr(feature = "rest", serde(with = "crate::rest::config_datatype"))]
    pub data_type: DataType,
    /// The dimensions of the input, without the batch dimension.
    #[cfg_attr(feature = "rest", serde(default))]
    pub dims: Vec<i64>,
    /// The source of the input's elements.
    #[cfg_attr(feature = "rest", serde(flatten))]
    pub data: WarmupData,
}

/// The source of a warm-up input's elements.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(
    feature = "rest",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
pub enum WarmupData {
    /// All elements are zero.
    ZeroData(bool),
    /// The elements are random values.
    RandomData(bool),
    /// A file in the model's `warmup` directory, in raw form.
    InputDataFile(String),
}

/// Whether a request may have several responses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "rest",
    derive(serde::Serialize, serde::Deserialize),
    serde(default)
)]
pub struct TransactionPolicy {
    /// Whether a request can have any number of responses, including none.
    pub decoupled: bool,
}

/// Whether responses are cached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "rest",
    derive(serde::Serialize, serde::Deserialize),
    serde(default)
)]
pub struct ResponseCache {
    /// Whether the server caches responses of the model.
    pub enable: bool,
}

/// The names of datatypes in model configurations.
impl DataType {
    /// Returns the name in model configurations, such as `TYPE_FP32`; byte strings are `TYPE_STRING`.
    #[must_use]
    pub fn config_name(self) -> String {
        match self {
            Self::Bytes => "TYPE_STRING".to_owned(),
            fixed => format!("TYPE_{}", fixed.name()),
        }
    }

    /// Looks up a datatype by its name in model configurations.
    #[must_use]
    pub fn from_config_name(name: &str) -> Option<Self> {
        match name.strip_prefix("TYPE_")? {
            "STRING" => Some(Self::Bytes),
            "BYTES" => None,
            name => Self::from_name(name).ok(),
        }
    }
}
