//! The store interface: list objects, and read ranges of them.

use std::{ops::Range, sync::Arc};

use bytes::Bytes;

use crate::{error::StoreError, name::ObjectName};

/// A source of objects: a bucket's prefix, a directory on the Hub, a file on a web server.
///
/// Calls block, and come from several threads.
pub trait Store: Send + Sync {
    /// Lists all objects, or only the object `within` and those below it. If the location itself is an
    /// object, lists only this object, under its last path component.
    ///
    /// `seen` is the [`Listing::version`] of an earlier listing; a store that can cheaply detect that nothing
    /// has changed returns `None`.
    ///
    /// # Errors
    /// When listing fails: [`StoreError::NotFound`], [`StoreError::Denied`], [`StoreError::Unavailable`], and
    /// [`StoreError::Name`] for an invalid name.
    fn list(&self, within: Option<&str>, seen: Option<&str>) -> Result<Option<Listing>, StoreError>;

    /// Opens a listed object.
    ///
    /// # Errors
    /// The errors of [`Store::list`]; [`StoreError::Changed`] when the object differs from the listed one.
    fn open(&self, object: &Object) -> Result<Arc<dyn OpenObject>, StoreError>;
}

/// An open object, whose ranges all have the listed version.
pub trait OpenObject: Send + Sync {
    /// Reads a nonempty range of at most 8 MiB within the object.
    ///
    /// # Errors
    /// [`StoreError::Changed`] when the object has changed; otherwise the error of the read. A short read is
    /// returned as is, and the caller rejects it.
    fn read(&self, range: Range<u64>) -> Result<Bytes, StoreError>;
}

/// The contents of a location.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Listing {
    /// The objects, in any order.
    pub objects: Vec<Object>,
    /// Whether the location itself is an object, the first one. Further objects are the other files of its
    /// directory, whose name is the first component of all names.
    pub is_file: bool,
    /// The version of the whole listing, if the store has one, such as a commit.
    pub version: Option<String>,
}

/// A listed object.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Object {
    /// The object's name below the location.
    pub name: ObjectName,
    /// The object's key in the store.
    pub key: String,
    /// Size of the object in bytes.
    pub size: u64,
    /// Identifies the version of the object: an entity tag, a Git object id, or a date.
    pub etag: String,
    /// The SHA-256 of the object's bytes, if the store provides it.
    pub sha256: Option<String>,
}

impl Object {
    /// Creates a listed object.
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

    /// Sets the SHA-256 that the store promises, as 64 lower-case hexadecimal digits.
    #[must_use]
    pub fn with_sha256(mut self, sha256: Option<String>) -> Self {
        self.sha256 = sha256;
        self
    }
}

impl Listing {
    /// Maximum number of objects in a listing.
    pub const MOST_OBJECTS: usize = 100_000;

    /// Adds an object by its name below the location; skips hidden objects and directory markers.
    ///
    /// # Errors
    /// [`StoreError::Name`] when the name is not a valid path, [`StoreError::TooMany`] when there are too
    /// many objects.
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
