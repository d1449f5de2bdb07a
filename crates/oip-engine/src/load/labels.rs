//! The names of classes: files of labels that a configuration names for its outputs.

use std::{collections::BTreeMap, sync::Arc};

use oip_types::ModelConfig;

use crate::load::{error::FileError, model_folder::ModelFolder};

/// The names of classes, by outputs.
#[derive(Debug, Default)]
pub(crate) struct Labels(BTreeMap<String, Arc<[String]>>);

impl Labels {
    /// The largest file with labels that is read, in bytes.
    const MAX_BYTES: u64 = 16 << 20;

    /// Those of an output; empty where there are none.
    pub(crate) fn of(&self, output: &str) -> Arc<[String]> {
        self.0.get(output).cloned().unwrap_or_default()
    }

    /// Reads the files with labels that a configuration names, one label a line. A file in the version's own folder comes
    /// before that of the model: versions may know different classes.
    ///
    /// # Errors
    /// What is wrong with a file.
    pub(crate) fn read(
        folder: &ModelFolder,
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
            let bytes = match version.filter(|version| folder.has(&[*version, name])) {
                Some(version) => folder.read(&[version, name], Self::MAX_BYTES)?,
                None => folder.read(&[name], Self::MAX_BYTES)?,
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
