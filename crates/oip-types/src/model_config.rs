//! How a model is configured, with the names and the JSON form that Triton's clients and tools read.
//!
//! Fields that are absent in JSON have their defaults; those that are not known are passed over.

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
    /// The model's name; empty where the folder's name says it.
    pub name: String,
    /// What runs the model, as `<project>_<format>`.
    pub platform: String,
    /// The backend that loads it.
    pub backend: String,
    /// Which of several runtimes the backend uses.
    pub runtime: String,
    /// Which of the versions in the repository are served.
    pub version_policy: VersionPolicy,
    /// Rows that one run takes at most; 0 for models that take no batches.
    pub max_batch_size: u32,
    /// The inputs, without the batch dimension when [`ModelConfig::max_batch_size`] is above 0.
    pub input: Vec<InputConfig>,
    /// The outputs, likewise.
    pub output: Vec<OutputConfig>,
    /// How many instances of the model run.
    pub instance_group: Vec<InstanceGroup>,
    /// What makes it faster without changing what it computes.
    #[cfg_attr(feature = "rest", serde(skip_serializing_if = "Optimization::is_empty"))]
    pub optimization: Optimization,
    /// The model's file, where it is not the backend's usual name.
    pub default_model_filename: String,
    /// How requests are joined into batches; absent when they are not.
    #[cfg_attr(feature = "rest", serde(skip_serializing_if = "Option::is_none"))]
    pub dynamic_batching: Option<DynamicBatching>,
    /// The steps of a pipeline; absent for other models.
    #[cfg_attr(feature = "rest", serde(skip_serializing_if = "Option::is_none"))]
    pub ensemble_scheduling: Option<EnsembleScheduling>,
    /// The backend's own settings.
    pub parameters: BTreeMap<String, ConfigParameter>,
    /// Requests that are run before the model counts as ready.
    pub model_warmup: Vec<Warmup>,
    /// Whether one request can have several answers.
    pub model_transaction_policy: TransactionPolicy,
    /// Whether answers are kept for requests that come again.
    pub response_cache: ResponseCache,
}

/// Which versions are served.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(
    feature = "rest",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
pub enum VersionPolicy {
    /// The newest.
    Latest {
        /// How many of them.
        num_versions: u32,
    },
    /// All.
    All {},
    /// Those that are named.
    Specific {
        /// Their numbers.
        versions: Vec<i64>,
    },
}

impl Default for VersionPolicy {
    fn default() -> Self {
        Self::Latest { num_versions: 1 }
    }
}

/// An input.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "rest", derive(serde::Serialize, serde::Deserialize))]
pub struct InputConfig {
    /// Its name.
    pub name: String,
    /// Its datatype.
    #[cfg_attr(feature = "rest", serde(with = "crate::rest::config_datatype"))]
    pub data_type: DataType,
    /// `FORMAT_NONE`, or what an image's dimensions mean.
    #[cfg_attr(feature = "rest", serde(default))]
    pub format: InputFormat,
    /// Its dimensions; -1 for free ones.
    #[cfg_attr(feature = "rest", serde(default))]
    pub dims: Vec<i64>,
    /// The shape under which the model sees it, if another.
    #[cfg_attr(feature = "rest", serde(default, skip_serializing_if = "Option::is_none"))]
    pub reshape: Option<Reshape>,
    /// Whether it holds a shape.
    #[cfg_attr(feature = "rest", serde(default))]
    pub is_shape_tensor: bool,
    /// Whether requests of different shapes may be in one batch.
    #[cfg_attr(feature = "rest", serde(default))]
    pub allow_ragged_batch: bool,
    /// Whether requests may leave it out.
    #[cfg_attr(feature = "rest", serde(default))]
    pub optional: bool,
}

/// An output.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "rest", derive(serde::Serialize, serde::Deserialize))]
pub struct OutputConfig {
    /// Its name.
    pub name: String,
    /// Its datatype.
    #[cfg_attr(feature = "rest", serde(with = "crate::rest::config_datatype"))]
    pub data_type: DataType,
    /// Its dimensions; -1 for free ones.
    #[cfg_attr(feature = "rest", serde(default))]
    pub dims: Vec<i64>,
    /// The shape under which clients see it, if another.
    #[cfg_attr(feature = "rest", serde(default, skip_serializing_if = "Option::is_none"))]
    pub reshape: Option<Reshape>,
    /// A file in the model's folder with one label per line, for the classification extension.
    #[cfg_attr(feature = "rest", serde(default))]
    pub label_filename: String,
    /// Whether it holds a shape.
    #[cfg_attr(feature = "rest", serde(default))]
    pub is_shape_tensor: bool,
}

/// What the dimensions of an image mean.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "rest", derive(serde::Serialize, serde::Deserialize))]
pub enum InputFormat {
    /// Nothing is said.
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

/// Another shape for the same elements.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "rest",
    derive(serde::Serialize, serde::Deserialize),
    serde(default)
)]
pub struct Reshape {
    /// The dimensions.
    pub shape: Vec<i64>,
}

/// Instances of a model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "rest",
    derive(serde::Serialize, serde::Deserialize),
    serde(default)
)]
pub struct InstanceGroup {
    /// A name for the group.
    pub name: String,
    /// On what they run.
    pub kind: InstanceKind,
    /// How many, on each GPU if there are several; 0 for the server's choice.
    pub count: u32,
    /// The GPUs that they run on, by CUDA's numbers; empty for the server's choice.
    #[cfg_attr(feature = "rest", serde(skip_serializing_if = "Vec::is_empty"))]
    pub gpus: Vec<u32>,
}

impl InstanceGroup {
    /// Its instances on all of its GPUs together.
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

/// On what instances run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "rest", derive(serde::Serialize, serde::Deserialize))]
pub enum InstanceKind {
    /// The server's choice.
    #[default]
    #[cfg_attr(feature = "rest", serde(rename = "KIND_AUTO"))]
    Auto,
    /// A GPU.
    #[cfg_attr(feature = "rest", serde(rename = "KIND_GPU"))]
    Gpu,
    /// The CPU.
    #[cfg_attr(feature = "rest", serde(rename = "KIND_CPU"))]
    Cpu,
    /// What the model itself says.
    #[cfg_attr(feature = "rest", serde(rename = "KIND_MODEL"))]
    Model,
}

/// What makes a model faster without changing what it computes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "rest",
    derive(serde::Serialize, serde::Deserialize),
    serde(default)
)]
pub struct Optimization {
    /// The libraries that compute it.
    pub execution_accelerators: ExecutionAccelerators,
}

impl Optimization {
    /// Whether nothing is said.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// The libraries that compute a model, the preferred one first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "rest",
    derive(serde::Serialize, serde::Deserialize),
    serde(default)
)]
pub struct ExecutionAccelerators {
    /// Those of instances on GPUs, such as `tensorrt`.
    pub gpu_execution_accelerator: Vec<Accelerator>,
    /// Those of instances on CPUs, such as `openvino`.
    pub cpu_execution_accelerator: Vec<Accelerator>,
}

/// A library that computes a model, or parts of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "rest",
    derive(serde::Serialize, serde::Deserialize),
    serde(default)
)]
pub struct Accelerator {
    /// Its name, in lower case.
    pub name: String,
    /// Its own options.
    pub parameters: BTreeMap<String, String>,
}

/// How requests are joined into batches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "rest",
    derive(serde::Serialize, serde::Deserialize),
    serde(default)
)]
pub struct DynamicBatching {
    /// Batch sizes that are worth waiting for.
    pub preferred_batch_size: Vec<u32>,
    /// How long a request may wait for others, in microseconds.
    pub max_queue_delay_microseconds: u64,
    /// Whether answers come in the order of the requests.
    pub preserve_ordering: bool,
    /// Priorities from 1, the highest, to this; 0 when there are none.
    pub priority_levels: u64,
    /// The priority of requests that do not say.
    pub default_priority_level: u64,
    /// What happens to requests that wait.
    #[cfg_attr(feature = "rest", serde(skip_serializing_if = "Option::is_none"))]
    pub default_queue_policy: Option<QueuePolicy>,
    /// The same for single priorities.
    pub priority_queue_policy: BTreeMap<u64, QueuePolicy>,
}

/// What happens to requests that wait.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "rest",
    derive(serde::Serialize, serde::Deserialize),
    serde(default)
)]
pub struct QueuePolicy {
    /// What happens to those that waited too long.
    pub timeout_action: TimeoutAction,
    /// How long is too long, in microseconds; 0 for never.
    pub default_timeout_microseconds: u64,
    /// Whether a request may say a time of its own.
    pub allow_timeout_override: bool,
    /// How many may wait; 0 for the server's choice.
    pub max_queue_size: u32,
}

/// What happens to requests that waited too long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "rest",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "UPPERCASE")
)]
pub enum TimeoutAction {
    /// They fail.
    #[default]
    Reject,
    /// They run after all others.
    Delay,
}

/// A pipeline of models.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "rest",
    derive(serde::Serialize, serde::Deserialize),
    serde(default)
)]
pub struct EnsembleScheduling {
    /// Its steps; which runs when is up to what they need.
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
    /// The model's name.
    pub model_name: String,
    /// Its version; -1 for the server's choice.
    pub model_version: i64,
    /// From the model's inputs to the pipeline's tensors.
    pub input_map: BTreeMap<String, String>,
    /// From the model's outputs to the pipeline's tensors.
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

/// A backend's own setting.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "rest",
    derive(serde::Serialize, serde::Deserialize),
    serde(default)
)]
pub struct ConfigParameter {
    /// Its value.
    pub string_value: String,
}

/// A request that is run before the model counts as ready.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "rest",
    derive(serde::Serialize, serde::Deserialize),
    serde(default)
)]
pub struct Warmup {
    /// A name for messages.
    pub name: String,
    /// Rows, for models that take batches.
    pub batch_size: u32,
    /// The inputs by name.
    pub inputs: BTreeMap<String, WarmupInput>,
    /// How often it is run; 0 counts as 1.
    pub count: u32,
}

/// An input of a warm-up request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "rest", derive(serde::Serialize, serde::Deserialize))]
pub struct WarmupInput {
    /// Its datatype.
    #[cfg_attr(feature = "rest", serde(with = "crate::rest::config_datatype"))]
    pub data_type: DataType,
    /// Its dimensions, without the batch dimension.
    #[cfg_attr(feature = "rest", serde(default))]
    pub dims: Vec<i64>,
    /// What is in it.
    #[cfg_attr(feature = "rest", serde(flatten))]
    pub data: WarmupData,
}

/// What is in an input of a warm-up request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(
    feature = "rest",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
pub enum WarmupData {
    /// Zeros.
    ZeroData(bool),
    /// Any values.
    RandomData(bool),
    /// A file in the model's folder `warmup`, in raw form.
    InputDataFile(String),
}

/// Whether one request can have several answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "rest",
    derive(serde::Serialize, serde::Deserialize),
    serde(default)
)]
pub struct TransactionPolicy {
    /// It can have any number of them, none included.
    pub decoupled: bool,
}

/// Whether answers are kept for requests that come again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "rest",
    derive(serde::Serialize, serde::Deserialize),
    serde(default)
)]
pub struct ResponseCache {
    /// They are.
    pub enable: bool,
}

/// The names that model configurations give the datatypes.
impl DataType {
    /// The name in a model configuration, such as `TYPE_FP32`; byte strings are `TYPE_STRING`.
    #[must_use]
    pub fn config_name(self) -> String {
        match self {
            Self::Bytes => "TYPE_STRING".to_owned(),
            fixed => format!("TYPE_{}", fixed.name()),
        }
    }

    /// Looks a model configuration's name up.
    #[must_use]
    pub fn from_config_name(name: &str) -> Option<Self> {
        match name.strip_prefix("TYPE_")? {
            "STRING" => Some(Self::Bytes),
            "BYTES" => None,
            name => Self::from_name(name).ok(),
        }
    }
}
