//! Opens the sources of models: directories, and URLs that are mirrored to a directory.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::Arc,
};

use model_repository::{Repositories, Repository, RequiredDigests};
use oip_engine::ModelControl;
use oip_model::Backend;

use crate::{backends::BackendConfig, failure::Failure, options::SourceOptions};

/// The repositories of models, and the settings for opening them.
pub(crate) struct ModelSources {
    /// Directories, files and URLs.
    pub(crate) repositories: Vec<PathBuf>,
    /// The name of the only model, if it is set.
    pub(crate) name: Option<String>,
    pub(crate) source: SourceOptions,
    /// The files that may be loaded; `None` after the list has been moved into the repository.
    pub(crate) digests: Option<RequiredDigests>,
    pub(crate) backends: BackendConfig,
}

/// Opens the configured repositories. Models at URLs are downloaded first.
pub(crate) fn open(sources: &mut ModelSources, control: &ModelControl) -> Result<Repositories, Failure> {
    let backends = sources.backends.isolated()?;
    let name = sources.name.as_deref();
    let open_folder = |path: &Path, also: &[PathBuf]| {
        Repository::open_with_links(path, &backends, name, also)
            .map_err(|error| Failure::run(error.to_string()))
    };
    let digests = sources.digests.take();
    let may_be_a_file =
        matches!(control, ModelControl::None) && digests.is_none() && sources.repositories.len() == 1;
    let (mut seen, mut repositories) = (BTreeSet::new(), Vec::new());
    for path in &sources.repositories {
        if !seen.insert(path.canonicalize().unwrap_or_else(|_| path.clone())) {
            let shown = path.display().to_string();
            // The query of a URL may contain a key, so it is not shown.
            let shown = shown.split('?').next().unwrap_or_default();
            return Err(Failure::usage(format!(
                "--model-repository: {shown} is given twice, so each of its models would be in two repositories"
            )));
        }
        let repository = match path.to_str().filter(|text| is_url(text)) {
            // A cache's directories contain no links that lead outside.
            Some(url) => remote::open(url, (&sources.source, control), &backends, |path| {
                open_folder(path, &[])
            })?,
            None => {
                let also = &sources.source.repository_also;
                let repository = open_folder(path, also)?;
                match only_file(&repository).filter(|_| may_be_a_file) {
                    Some(file) => open_folder(&path.join(file), also)?,
                    None => repository,
                }
            }
        };
        repositories.push(match &digests {
            Some(digests) => repository.with_required_digests(digests.clone()),
            None => repository,
        });
    }
    Ok(repositories.into())
}

/// Returns the only model file of a directory that has no other possible models. A directory is treated as a
/// repository if models may be added later, if files must be listed, or if there are other repositories.
fn only_file(repository: &Repository) -> Option<String> {
    let is_empty = repository.model_names().is_ok_and(|names| names.is_empty());
    match &repository.misplaced_files()[..] {
        [file] if is_empty => Some(file.clone()),
        _ => None,
    }
}

fn is_url(text: &str) -> bool {
    text.split_once("://")
        .is_some_and(|(scheme, _)| !scheme.is_empty() && !scheme.contains(['/', '.']))
}

#[cfg(feature = "stores")]
mod remote {
    use model_repository::Upstream;
    use model_store::{Location, Mirror, MirrorOptions, Scope};

    use super::*;
    use oip_types::ByteSize;

    /// Keeps a repository's directory in sync with its URL.
    struct Store(Mirror);

    impl Upstream for Store {
        fn refresh(&self, model: Option<&str>) {
            self.0.refresh(model);
        }

        fn failure(&self, model: &str) -> Option<String> {
            self.0.failure(model)
        }
    }

    pub(super) fn open(
        url: &str,
        (source, control): (&SourceOptions, &ModelControl),
        backends: &[Arc<dyn Backend>],
        open_folder: impl Fn(&Path) -> Result<Repository, Failure>,
    ) -> Result<Repository, Failure> {
        let location =
            Location::parse(url).map_err(|error| Failure::usage(format!("--model-repository: {error}")))?;
        let files: Vec<String> = backends
            .iter()
            .flat_map(|backend| backend.file_names())
            .map(|name| (*name).to_owned())
            .chain(["config.pbtxt", "config.json", "config.toml"].map(str::to_owned))
            .collect();
        let cache = match &source.repository_cache {
            Some(folder) => folder.clone(),
            None => default_cache().ok_or_else(|| {
                Failure::usage(
                    "models from a URL need a cache directory, and neither HOME nor XDG_CACHE_HOME is set: \
                     name one by --repository-cache",
                )
            })?,
        };
        let options = MirrorOptions::new(cache).with(|options| {
            options.limit = source.repository_cache_limit.map(|ByteSize(bytes)| bytes);
            options.authorities.clone_from(&source.repository_ca);
            options.is_model_file = Box::new(move |name| files.iter().any(|file| file == name));
            #[cfg(feature = "text")]
            {
                options.is_left_out = Box::new(oip_text::is_left_out);
            }
        });
        let fail = |error: model_store::StoreError| Failure::run(error.to_string());
        let mirror = Mirror::open(&location, options).map_err(fail)?;
        let scope = match control {
            ModelControl::Explicit { load } if load.iter().all(|name| name != "*") => Scope::Named(load),
            _ => Scope::All,
        };
        let path = mirror.start(scope).map_err(fail)?;
        let label = url.split(['?', '#']).next().unwrap_or_default().to_owned();
        Ok(open_folder(&path)?
            .with_label(label)
            .with_upstream(Arc::new(Store(mirror))))
    }

    fn default_cache() -> Option<PathBuf> {
        let set = |name| {
            std::env::var_os(name)
                .filter(|value| !value.is_empty())
                .map(PathBuf::from)
        };
        let base = set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")))?;
        Some(base.join("tensorferry/models"))
    }
}

#[cfg(not(feature = "stores"))]
mod remote {
    use super::*;

    pub(super) fn open(
        url: &str,
        _: (&SourceOptions, &ModelControl),
        _: &[Arc<dyn Backend>],
        _: impl Fn(&Path) -> Result<Repository, Failure>,
    ) -> Result<Repository, Failure> {
        Err(Failure::usage(format!(
            "--model-repository: {url} is a URL, and this program was built without the feature stores; expected a directory"
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_told_from_paths() {
        assert!(is_url("s3://bucket") && is_url("hf://o/r") && is_url("ftp://x"));
        assert!(!is_url("models") && !is_url("./a://b") && !is_url("://x") && !is_url("/a/b://c"));
    }
}
