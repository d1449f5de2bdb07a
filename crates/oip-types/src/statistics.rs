/// How often something happened, and how long that took together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "rest", derive(serde::Serialize, serde::Deserialize))]
pub struct StatisticDuration {
    /// How often.
    pub count: u64,
    /// Nanoseconds altogether.
    pub ns: u64,
}

/// What the statistics extension says about one version of a model, since it was loaded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "rest", derive(serde::Serialize, serde::Deserialize))]
pub struct ModelStatistics {
    /// The model's name.
    pub name: String,
    /// Its version; empty for models without versions.
    pub version: String,
    /// When it last ran, in milliseconds since 1970; 0 for never.
    pub last_inference: u64,
    /// Inferences: rows of batches, or requests of models that take no batches.
    pub inference_count: u64,
    /// Runs of the model, each for one batch.
    pub execution_count: u64,
    /// Requests, by how they ended and by where their time went.
    pub inference_stats: InferStatistics,
    /// For models that answer one request more than once, which none here does. Clients want the member all the same.
    #[cfg_attr(feature = "rest", serde(default))]
    pub response_stats: ResponseStatistics,
    /// Runs, by batch size, smallest first.
    pub batch_stats: Vec<BatchStatistics>,
    /// Memory the model holds.
    pub memory_usage: Vec<MemoryUsage>,
}

/// Nothing: see [`ModelStatistics::response_stats`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "rest", derive(serde::Serialize, serde::Deserialize))]
pub struct ResponseStatistics {}

/// Requests, by how they ended and by where their time went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "rest", derive(serde::Serialize, serde::Deserialize))]
pub struct InferStatistics {
    /// Requests that were answered, from arrival to answer.
    pub success: StatisticDuration,
    /// Requests that failed, from arrival to answer.
    pub fail: StatisticDuration,
    /// Waiting for the model.
    pub queue: StatisticDuration,
    /// Preparing inputs.
    pub compute_input: StatisticDuration,
    /// Running the model.
    pub compute_infer: StatisticDuration,
    /// Taking outputs out.
    pub compute_output: StatisticDuration,
    /// Looking up answers that were kept.
    pub cache_hit: StatisticDuration,
    /// Looking up answers that were not, and keeping them.
    pub cache_miss: StatisticDuration,
}

/// Runs of one batch size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "rest", derive(serde::Serialize, serde::Deserialize))]
pub struct BatchStatistics {
    /// Rows.
    pub batch_size: u64,
    /// Preparing inputs.
    pub compute_input: StatisticDuration,
    /// Running the model.
    pub compute_infer: StatisticDuration,
    /// Taking outputs out.
    pub compute_output: StatisticDuration,
}

/// Memory of one kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "rest", derive(serde::Serialize, serde::Deserialize))]
pub struct MemoryUsage {
    /// The kind of memory: `CPU`.
    #[cfg_attr(feature = "rest", serde(rename = "type"))]
    pub kind: String,
    /// Which of several.
    pub id: i64,
    /// Bytes.
    pub byte_size: u64,
}
