//! Backends that recognize files and load nothing, and helpers that list a repository's models.

use std::{fs, path::Path, sync::Arc};

use model_repository::{ModelDirectory, ModelError, Repository, VersionContent};
use oip_model::{Backend, LoadContext, Model, ModelSource};
use oip_types::ServiceError;
use tempfile::TempDir;

/// Recognizes `model.word` and `model.text`.
pub(crate) struct WordBackend;

impl Backend for WordBackend {
    fn name(&self) -> &'static str {
        "word"
    }

    fn other_names(&self) -> &'static [&'static str] {
        &["words_wordv1"]
    }

    fn file_names(&self) -> &[&str] {
        &["model.word", "model.text"]
    }

    fn load(&self, _: &ModelSource, _: &LoadContext) -> Result<Box<dyn Model>, ServiceError> {
        Err(ServiceError::invalid("these tests load nothing"))
    }
}

pub(crate) fn backends() -> Vec<Arc<dyn Backend>> {
    vec![Arc::new(WordBackend)]
}

/// Creates a repository with files at the given relative paths.
pub(crate) fn repository(files: &[(&str, &str)]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (path, content) in files {
        write(folder.path(), path, content);
    }
    folder
}

pub(crate) fn write(root: &Path, path: &str, content: &str) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
}

/// A version of a model in a repository, as the tests compare it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct FoundVersion {
    pub(crate) model: String,
    pub(crate) version: Option<String>,
    /// The content of the version's file, or the reason why it cannot be used.
    pub(crate) content: Result<String, String>,
}

/// Reads every version of every model. A model that cannot be used becomes one entry without a version.
pub(crate) fn found(repository: &Repository) -> Vec<FoundVersion> {
    let mut all = Vec::new();
    for model in repository.model_names().unwrap() {
        match versions(repository, &model) {
            Ok(versions) => all.extend(versions.into_iter().map(|(version, content)| FoundVersion {
                model: model.clone(),
                version,
                content: content.map_err(|reason| reason.to_string()),
            })),
            Err(reason) => all.push(FoundVersion {
                model,
                version: None,
                content: Err(reason.to_string()),
            }),
        }
    }
    all
}

type Contents = Vec<(Option<String>, Result<String, ModelError>)>;

fn versions(repository: &Repository, model: &str) -> Result<Contents, ModelError> {
    let Some(directory) = repository.model(model)? else {
        return Ok(Vec::new());
    };
    let written = directory.configuration()?;
    directory.check_name(&written)?;
    let versions = directory.versions(&written)?.into_iter();
    Ok(versions
        .map(|found| {
            let content = found.content.and_then(|content| read(&directory, &content));
            (found.version, content)
        })
        .collect())
}

fn read(directory: &ModelDirectory, content: &VersionContent) -> Result<String, ModelError> {
    match content {
        VersionContent::File(file) => {
            let content = directory.open_model(file, None)?;
            Ok(String::from_utf8(content.to_vec()).unwrap())
        }
        VersionContent::Pipeline => Ok("a pipeline".to_owned()),
    }
}

/// Returns the reason why a model of a directory cannot be used.
pub(crate) fn reason_of(root: &Path, name: &str) -> String {
    let repository = Repository::open(root, &backends(), None).unwrap();
    let model = found(&repository).into_iter().find(|found| found.model == name);
    let reason = model.and_then(|model| model.content.err());
    reason.unwrap_or_else(|| panic!("{name} can be used"))
}
