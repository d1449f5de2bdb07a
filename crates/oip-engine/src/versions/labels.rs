//! Class labels of outputs, read from the files that a configuration names.

use std::{collections::BTreeMap, sync::Arc};

use model_repository::{FileError, ModelDirectory};
use oip_types::ModelConfig;

/// Class labels, keyed by output name.
#[derive(Debug, Default)]
pub(crate) struct Labels(BTreeMap<String, Arc<[String]>>);

impl Labels {
    /// Maximum size of a label file, in bytes.
    const MAX_BYTES: u64 = 16 << 20;

    /// Returns the labels of an output; empty if it has none.
    pub(crate) fn of(&self, output: &str) -> Arc<[String]> {
        self.0.get(output).cloned().unwrap_or_default()
    }

    /// Reads the label files of a configuration, one label per line. A file in the version's directory takes
    /// precedence over one in the model's, since versions may have different classes.
    ///
    /// # Errors
    /// The reason why a file cannot be used.
    pub(crate) fn read(
        directory: &ModelDirectory,
        version: Option<&str>,
        config: &ModelConfig,
    ) -> Result<Self, FileError> {
        let mut labels = BTreeMap::new();
        for output in config
            .output
            .iter()
            .filter(|output| !output.label_filename.is_empty())
        {
            let name = output.label_filename.as_str();
            let bytes = match version.filter(|version| directory.has(&[*version, name])) {
                Some(version) => directory.read(&[version, name], Self::MAX_BYTES)?,
                None => directory.read(&[name], Self::MAX_BYTES)?,
            };
            let text = std::str::from_utf8(&bytes);
            let text = text.map_err(|_| FileError::NotUtf8 {
                name: output.label_filename.clone(),
            })?;
            labels.insert(output.name.clone(), text.lines().map(str::to_owned).collect());
        }
        Ok(Self(labels))
    }
}
