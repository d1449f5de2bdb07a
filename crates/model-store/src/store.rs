//! The interface of all stores: list objects, and read parts of them.

use std::{ops::Range, sync::Arc};

use bytes::Bytes;

use crate::{error::StoreError, name::ObjectName};

/// A place with objects: a bucket's prefix, a folder on the Hub, a file on a web server.
///
/// Calls block. They are made from several threads.
pub trait Store: Send + Sync {
    /// Lists the objects, or only those whose names begin with `within` and a slash, or are `within`. An object that is the
    /// location itself rather than below it is the only one, under its last name.
    ///
    /// `seen` is what an earlier listing gave as [`Listing::version`]: a store that can tell cheaply that nothing has changed
    /// answers `None`.
    ///
    /// # Errors
    /// Why they cannot be listed: [`StoreError::NotFound`], [`StoreError::Denied`], [`StoreError::Unavailable`], and
    /// [`StoreError::Name`] for a name that cannot be a path.
    fn list(&self, within: Option<&str>, seen: Option<&str>) -> Result<Option<Listing>, StoreError>;

    /// Opens an object that was listed.
    ///
    /// # Errors
    /// As [`Store::list`]; [`StoreError::Changed`] when it is another one by now.
    fn open(&self, object: &Object) -> Result<Arc<dyn OpenObject>, StoreError>;
}

/// An object that parts can be read of, all of the version that was listed.
pub trait OpenObject: Send + Sync {
    /// Reads a range, which is not empty, inside the object and of 8 MiB at most.
    ///
    /// # Errors
    /// [`StoreError::Changed`] when the object is another one by now; why it cannot be read otherwise. Fewer bytes than were
    /// asked for are an answer, which the caller refuses.
    fn read(&self, range: Range<u64>) -> Result<Bytes, StoreError>;
}

/// What a location has.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Listing {
    /// The objects, in no order.
    pub objects: Vec<Object>,
    /// Whether the location itself is the only object.
    pub is_file: bool,
    /// The identity of this listing, if the store has one for all of it: a commit.
    pub version: Option<String>,
}

/// An object as it was listed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Object {
    /// Its name below the location.
    pub name: ObjectName,
    /// Its key in the store.
    pub key: String,
    /// Its bytes.
    pub size: u64,
    /// The identity of this version: an entity tag, a commit, a date.
    pub etag: String,
    /// The SHA-256 of its bytes, where the store tells it.
    pub sha256: Option<String>,
}

impl Object {
    /// An object as it was listed.
    #[must_use]
    pub fn new(name: ObjectName, key: impl Into<String>, size: u64, etag: impl Into<String>) -> Self {
        Self {
            name,
            key: key.into(),
            size,
            etag: etag.into(),
            sha256: None,
        }
    }

    /// With the SHA-256 that its store promises, in 64 lower-case hexadecimal digits.
    #[must_use]
    pub fn with_sha256(mut self, sha256: Option<String>) -> Self {
        self.sha256 = sha256;
        self
    }
}

impl Listing {
    /// The most objects that are taken.
    pub const MOST_OBJECTS: usize = 100_000;

    /// Adds an object under its name below the location; hidden ones, and those that are a folder's mark, are left out.
    ///
    /// # Errors
    /// [`StoreError::Name`] when it cannot be a path, [`StoreError::TooMany`] when there are too many.
    pub fn add(
        &mut self,
        url: &str,
        name: &str,
        object: impl FnOnce(ObjectName) -> Object,
    ) -> Result<(), StoreError> {
        if name.is_empty() || name.ends_with('/') {
            return Ok(());
        }
        let checked = ObjectName::parse(name).map_err(|why| StoreError::Name {
            name: name.to_owned(),
            why: why.to_string(),
        })?;
        if checked.is_hidden() {
            return Ok(());
        }
        if self.objects.len() == Self::MOST_OBJECTS {
            return Err(StoreError::TooMany {
                url: url.to_owned(),
                limit: Self::MOST_OBJECTS,
            });
        }
        self.objects.push(object(checked));
        Ok(())
    }
}
