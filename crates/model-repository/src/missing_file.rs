//! Explains why a model's directory has no usable model file.

use std::path::Path;

use model_config::WrittenConfig;
use rustix::fs::FileType;

use crate::{
    error::{FileError, MisnamedFile, ModelError},
    model_directory::{ModelDirectory, ModelFile, subfolders},
    other_frameworks::framework,
};

impl ModelDirectory {
    /// Returns the reason why a Hugging Face model without an ONNX export is not served. `weights` is its
    /// weights file.
    pub(crate) fn unexported(
        &self,
        version: Option<&str>,
        weights: Option<&ModelFile>,
    ) -> Option<ModelError> {
        let in_version = version.and_then(|version| self.hugging_face(&[version]));
        let model = in_version.or_else(|| self.hugging_face(&[]))?.model;
        let export = ["onnx", "model.onnx"];
        Some(ModelError::NotExported {
            model,
            weights: weights.map(|file| (FileError::name(&file.named), file.backend.name())),
            exported: self.has(&export).then(|| export.join("/")),
        })
    }

    /// Formats the expected file names for a message.
    fn describe_files(&self, written: &WrittenConfig) -> Result<String, ModelError> {
        /// Maximum number of names in a message.
        const NAMED: usize = 4;
        let mut files: Vec<&str> = Vec::new();
        for (name, _) in self.candidates(written)? {
            if !files.contains(&name) && !name.contains('/') {
                files.push(name);
            }
        }
        Ok(match files.len() {
            // The backend defines no file names, so its models need the field `default_model_filename`.
            0 => "file that its configuration names as default_model_filename".to_owned(),
            1..=NAMED => files.join(" or "),
            all => format!("{} or another of the {all} names of model files", files[0]),
        })
    }

    /// Finds a subdirectory that is a model with versions, which shows that the directory is itself a
    /// repository.
    fn inner_model(&self, written: &WrittenConfig) -> Option<String> {
        let is_model = |name: &String| {
            let folder = self.below.join(name);
            let versions = subfolders(&self.root, &folder).unwrap_or_default();
            let mut versions = versions
                .into_iter()
                .filter(|version| version.bytes().all(|byte| byte.is_ascii_digit()));
            versions.any(|version| {
                let file = self.model_file(&folder.join(version), written);
                file.is_ok_and(|file| file.is_some())
            })
        };
        self.subfolders().ok()?.into_iter().find(is_model)
    }

    /// Returns the reason why a model without versions has no model file.
    pub(crate) fn why_no_file(&self, written: &WrittenConfig) -> Result<ModelError, ModelError> {
        let unexported = self.unexported(None, None);
        let missing = || {
            Ok(ModelError::NoFile {
                files: self.describe_files(written)?,
                misnamed: self.misnamed(written, None)?,
            })
        };
        unexported.map_or_else(missing, Ok)
    }

    /// Returns the reason why `version`, or the whole model, has no model file.
    pub(crate) fn why_empty(
        &self,
        written: &WrittenConfig,
        version: Option<&String>,
    ) -> Result<ModelError, ModelError> {
        if let Some(model) = self.inner_model(written) {
            return Ok(ModelError::DirectoryOfModels { model });
        }
        let misplaced = self.model_file(&self.below, written)?.and_then(Result::ok);
        let weights = misplaced
            .as_ref()
            .filter(|file| file.backend.holds_weights_only());
        let is_weights = weights.is_some() || misplaced.is_none();
        if let Some(unexported) = self
            .unexported(version.map(String::as_str), weights)
            .filter(|_| is_weights)
        {
            return Ok(unexported);
        }
        let files = self.describe_files(written)?;
        let is_misplaced = self.model_file(&self.below, written)?.is_some();
        let misnamed = self.misnamed(written, version)?;
        Ok(match version.cloned() {
            None => ModelError::NoVersion {
                files,
                is_misplaced,
                misnamed,
            },
            Some(version) => ModelError::EmptyVersion {
                version,
                files,
                is_misplaced,
                misnamed,
            },
        })
    }

    /// Finds a file in the directory of the version or model that is probably meant to be the model: one with
    /// the extension of a model file but a different name, or one of another framework.
    fn misnamed(
        &self,
        written: &WrittenConfig,
        version: Option<&String>,
    ) -> Result<Option<MisnamedFile>, ModelError> {
        let candidates = self.candidates(written)?;
        let wanted = |found: &str| {
            let extension = Path::new(found).extension()?;
            // Many files that are not models have the extensions `json` and `txt`, so these are not reported.
            let is_telling = extension != "json" && extension != "txt";
            let mut names = candidates.iter().map(|(name, _)| *name);
            names.find(|name| is_telling && Path::new(name).extension() == Some(extension))
        };
        let place = |folder: &str, file: &str| Path::new(folder).join(file).display().to_string();
        let mut foreign = None;
        let folders = [version.map(String::as_str), Some("")];
        for folder in folders.into_iter().flatten() {
            let entries = self.root.list(&self.below.join(folder)).unwrap_or_default();
            let mut names = entries.iter().map(|(name, _)| name.to_string_lossy());
            foreign = foreign.or_else(|| {
                names.find_map(|name| {
                    Some(MisnamedFile::Foreign {
                        framework: framework(&name)?,
                        found: place(folder, &name),
                    })
                })
            });
            let mut files: Vec<String> = entries
                .into_iter()
                .filter(|(_, kind)| *kind == FileType::RegularFile)
                .map(|(name, _)| name.to_string_lossy().into_owned())
                .collect();
            files.sort();
            let found = files.into_iter().find_map(|file| Some((wanted(&file)?, file)));
            if let Some((wanted, file)) = found {
                let version = match self.has_versions {
                    true => version.map_or("1", String::as_str),
                    false => "",
                };
                return Ok(Some(MisnamedFile::Known {
                    found: place(folder, &file),
                    wanted: place(version, wanted),
                }));
            }
        }
        Ok(foreign)
    }
}
