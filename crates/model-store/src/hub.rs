//! The Hugging Face Hub: a directory of a repository at a commit.

use std::{ops::ControlFlow, sync::Arc};

use tensor_remote::{HubFolder, RemoteFile, RemoteOptions};

use crate::{
    error::StoreError,
    store::{Listing, Object, OpenObject, Store},
    web::{WebObject, failed},
};

/// A directory on the Hub.
pub(crate) struct HubStore {
    folder: HubFolder,
    url: String,
    options: RemoteOptions,
}

const HINT: &str = "HF_TOKEN, or the file that `hf auth login` writes, gives the token; the terms of a \
                    gated repository must be accepted once";

impl HubStore {
    pub(crate) fn new(location: &str, options: &RemoteOptions) -> Result<Self, StoreError> {
        let folder = HubFolder::parse(location, options);
        Ok(Self {
            folder: folder.map_err(|error| failed(location, "the location", HINT, &error))?,
            url: location.to_owned(),
            options: options.clone(),
        })
    }

    /// Lists all files of the directory, or the single file.
    fn listing(&self, commit: &str) -> Result<Listing, StoreError> {
        let inside = match self.folder.folder() {
            "" => String::new(),
            folder => format!("{folder}/"),
        };
        let mut listing = Listing {
            version: Some(commit.to_owned()),
            ..Listing::default()
        };
        let mut problem = None;
        let listed = self.folder.files(commit, &mut |file| {
            let Some(name) = file.path.strip_prefix(&inside) else {
                return ControlFlow::Continue(());
            };
            let key = self.folder.location(commit, &file.path);
            // Git's object id is unchanged when a commit changes other files.
            let object = |name| Object::new(name, key, file.size, file.oid).with_sha256(file.sha256);
            match listing.add(&self.url, name, object) {
                Ok(()) => ControlFlow::Continue(()),
                Err(error) => {
                    problem = Some(error);
                    ControlFlow::Break(())
                }
            }
        });
        if let Some(problem) = problem {
            return Err(problem);
        }
        if let Err(error) = listed {
            // The path of the location may name a single file instead of a directory.
            return match self.folder.folder() {
                "" => Err(failed(&self.url, "the list of files", HINT, &error)),
                path => self
                    .file(commit, path)
                    .map_err(|_| failed(&self.url, "the list of files", HINT, &error)),
            };
        }
        Ok(listing)
    }

    fn file(&self, commit: &str, path: &str) -> Result<Listing, StoreError> {
        let key = self.folder.location(commit, path);
        let file =
            RemoteFile::open(&key, &self.options).map_err(|error| failed(&self.url, path, HINT, &error))?;
        let mut listing = Listing {
            version: Some(commit.to_owned()),
            ..Listing::default()
        };
        let name = path.rsplit('/').next().unwrap_or(path);
        let etag = file.version().unwrap_or(commit).to_owned();
        listing.add(&self.url, name, |name| Object::new(name, key, file.len(), etag))?;
        listing.is_file = !listing.objects.is_empty();
        Ok(listing)
    }
}

impl Store for HubStore {
    fn list(&self, _: Option<&str>, seen: Option<&str>) -> Result<Option<Listing>, StoreError> {
        let commit = self.folder.commit();
        let commit = commit.map_err(|error| failed(&self.url, "the repository", HINT, &error))?;
        if seen == Some(&commit) {
            return Ok(None);
        }
        self.listing(&commit).map(Some)
    }

    fn open(&self, object: &Object) -> Result<Arc<dyn OpenObject>, StoreError> {
        let file = RemoteFile::open(&object.key, &self.options)
            .map_err(|error| failed(&self.url, object.name.as_str(), HINT, &error))?;
        if file.len() != object.size {
            return Err(StoreError::Truncated {
                name: object.name.to_string(),
                expected: object.size,
                found: file.len(),
            });
        }
        Ok(Arc::new(WebObject::new(file, &self.url, object, HINT)))
    }
}
