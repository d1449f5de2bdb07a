//! The index: one JSON line per exchange, one file per run of a recorder.

use serde::{Deserialize, Serialize};

/// A line of an index, which describes one exchange.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Line {
    /// The common prefix of the two file names of the exchange.
    pub(crate) name: String,
    /// When the response was complete, in UTC.
    pub(crate) time: String,
    pub(crate) model: String,
    /// The version of the model that responded; `None` for models without versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) version: Option<String>,
    /// The size of both files together.
    pub(crate) bytes: u64,
}

/// Prefix and suffix of an index's name, around the run id.
pub(crate) const INDEX: (&str, &str) = ("index-", ".jsonl");

/// Suffix of request files.
pub(crate) const REQUEST: &str = ".request.safetensors";
pub(crate) const ANSWER: &str = ".answer.safetensors";

/// Prefix of files being written.
pub(crate) const PART: &str = ".part-";
