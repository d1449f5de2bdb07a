//! Combines several repositories into one.

use std::{collections::BTreeSet, io};

use crate::{
    error::ModelError,
    model_directory::ModelDirectory,
    repository::{PassedOver, Repository},
};

/// Repositories that are served together. A model that exists in two of them is served from neither, and is
/// listed with the reason.
///
/// ```
/// use model_repository::{Repositories, Repository};
///
/// # let (ours, theirs) = (tempfile::tempdir()?, tempfile::tempdir()?);
/// # let (ours, theirs) = (ours.path(), theirs.path());
/// let repositories = Repositories::from(vec![
///     Repository::open(ours, &[], None)?,
///     Repository::open(theirs, &[], None)?,
/// ]);
/// assert!(repositories.names().unread.is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Repositories(Vec<Repository>);

/// The names of the models in all readable repositories.
#[derive(Debug)]
#[non_exhaustive]
pub struct ModelNames {
    /// Names of the models, sorted and distinct.
    pub names: Vec<String>,
    /// Labels of unreadable repositories, each with the reason.
    pub unread: Vec<(String, io::Error)>,
}

impl From<Repository> for Repositories {
    fn from(repository: Repository) -> Self {
        Self(vec![repository])
    }
}

impl From<Vec<Repository>> for Repositories {
    fn from(repositories: Vec<Repository>) -> Self {
        Self(repositories)
    }
}

impl Repositories {
    /// Returns the name of the only model, if all repositories are readable and contain one model in total.
    #[must_use]
    pub fn only_model(&self) -> Option<String> {
        let ModelNames { mut names, unread } = self.names();
        let is_only = names.len() == 1 && unread.is_empty();
        if is_only { names.pop() } else { None }
    }

    /// Returns the files that have no effect ([`Repository::passed_over`]).
    #[must_use]
    pub fn passed_over(&self) -> Vec<PassedOver> {
        self.0.iter().flat_map(Repository::passed_over).collect()
    }

    /// Lists all models.
    #[must_use]
    pub fn names(&self) -> ModelNames {
        let (mut names, mut unread) = (BTreeSet::new(), Vec::new());
        for repository in &self.0 {
            match repository.model_names() {
                Ok(found) => names.extend(found),
                Err(error) => unread.push((repository.label(), error)),
            }
        }
        ModelNames {
            names: names.into_iter().collect(),
            unread,
        }
    }

    /// Finds the directory of a model. Returns `None` if no repository has a model of this name.
    ///
    /// # Errors
    /// The reason why the model cannot be used, for instance because it exists in two repositories.
    pub fn model(&self, name: &str) -> Result<Option<ModelDirectory>, ModelError> {
        let mut found: Option<(&Repository, Result<ModelDirectory, ModelError>)> = None;
        let mut failure = None;
        for repository in &self.0 {
            let folder = match repository.model(name) {
                Ok(None) => continue,
                // A repository that cannot be opened is skipped: another one may have the model.
                Err(error @ ModelError::Repository(_)) => {
                    failure.get_or_insert(error);
                    continue;
                }
                // The name is invalid, so no repository can have such a model.
                Err(error @ ModelError::Name(_)) => return Err(error),
                Ok(Some(folder)) => Ok(folder),
                Err(error) => Err(error),
            };
            if let Some((first, _)) = found {
                return Err(ModelError::TwoRepositories {
                    first: first.label(),
                    second: repository.label(),
                });
            }
            found = Some((repository, folder));
        }
        match (found, failure) {
            (Some((_, folder)), _) => folder.map(Some),
            (None, Some(failure)) => Err(failure),
            (None, None) => Ok(None),
        }
    }

    /// Updates the directories from their upstreams, entirely or for one model.
    pub fn refresh(&self, model: Option<&str>) {
        for repository in &self.0 {
            repository.refresh(model);
        }
    }

    /// Returns the reason why a model's directory is out of date.
    #[must_use]
    pub fn upstream_failure(&self, model: &str) -> Option<String> {
        self.0
            .iter()
            .find_map(|repository| repository.upstream_failure(model))
    }
}
