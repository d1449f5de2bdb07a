//! The index: a line of JSON for each exchange, in a file for each run of a recorder.

use serde::{Deserialize, Serialize};

/// A line of an index.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Line {
    /// The common start of its two files' names.
    pub(crate) name: String,
    /// When the answer was there, UTC.
    pub(crate) time: String,
    pub(crate) model: String,
    /// The version that answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) version: Option<String>,
    /// Of both files.
    pub(crate) bytes: u64,
}

/// Names of indexes, around the run's.
pub(crate) const INDEX: (&str, &str) = ("index-", ".jsonl");

/// Behind the exchange's name.
pub(crate) const REQUEST: &str = ".request.safetensors";
pub(crate) const ANSWER: &str = ".answer.safetensors";

/// Before the name of what is being written.
pub(crate) const PART: &str = ".part-";
