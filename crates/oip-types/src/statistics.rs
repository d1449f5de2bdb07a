//! Types of the statistics extension.

/// A count of events and their total duration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "rest", derive(serde::Serialize, serde::Deserialize))]
pub struct StatisticDuration {
    /// The number of events.
    pub count: u64,
    /// The total duration in nanoseconds.
    pub ns: u64,
}

/// Statistics of one model version since it was loaded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "rest", derive(serde::Serialize, serde::Deserialize))]
pub struct ModelStatistics {
    /// The model's name.
    pub name: String,
    /// The model's version; empty for models without versions.
    pub version: String,
    /// The time of the last inference, in milliseconds since 1970; 0 for never.
    pub last_inference: u64,
    /// Number of inferences: batch rows, or requests for models without batching.
    pub inference_count: u64,
    /// Number of model runs, one per batch.
    pub execution_count: u64,
    /// Number and total duration of requests, by outcome and by phase.
    pub inference_stats: InferStatistics,
    /// Statistics of models with several responses per request. Always empty, because the responses of such
    /// models are not counted separately; clients expect the member.
    #[cfg_attr(feature = "rest", serde(default))]
    pub response_stats: ResponseStatistics,
    /// Statistics of model runs by batch size, smallest first.
    pub batch_stats: Vec<BatchStatistics>,
    /// Memory that the model uses, by kind.
    pub memory_usage: Vec<MemoryUsage>,
}

/// Always empty: see [`ModelStatistics::response_stats`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "rest", derive(serde::Serialize, serde::Deserialize))]
pub struct ResponseStatistics {}

/// Number and total duration of requests, by outcome and by phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "rest", derive(serde::Serialize, serde::Deserialize))]
pub struct InferStatistics {
    /// Successful requests, from arrival to response.
    pub success: StatisticDuration,
    /// Failed requests, from arrival to response.
    pub fail: StatisticDuration,
    /// Time that requests spend in the queue.
    pub queue: StatisticDuration,
    /// The phase that prepares the inputs.
    pub compute_input: StatisticDuration,
    /// The phase that runs the model.
    pub compute_infer: StatisticDuration,
    /// The phase that collects the outputs.
    pub compute_output: StatisticDuration,
    /// Requests that found their response in the cache.
    pub cache_hit: StatisticDuration,
    /// Requests that did not find their response in the cache. The time covers the lookup and the insertion.
    pub cache_miss: StatisticDuration,
}

/// Statistics of the runs with one batch size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "rest", derive(serde::Serialize, serde::Deserialize))]
pub struct BatchStatistics {
    /// The batch size of the runs.
    pub batch_size: u64,
    /// The phase that prepares the inputs.
    pub compute_input: StatisticDuration,
    /// The phase that runs the model.
    pub compute_infer: StatisticDuration,
    /// The phase that collects the outputs.
    pub compute_output: StatisticDuration,
}

/// The model's usage of one kind of memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "rest", derive(serde::Serialize, serde::Deserialize))]
pub struct MemoryUsage {
    /// The kind of memory: `CPU`.
    #[cfg_attr(feature = "rest", serde(rename = "type"))]
    pub kind: String,
    /// The index of this memory, if there are several of this kind.
    pub id: i64,
    /// The number of bytes in use.
    pub byte_size: u64,
}
