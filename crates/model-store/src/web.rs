//! A single file on a web server.

use std::{io::Read, ops::Range, sync::Arc};

use bytes::Bytes;
use fmt_core::{Error, ErrorKind};
use tensor_remote::{RemoteFile, RemoteOptions};

use crate::{
    error::StoreError,
    location::without_query,
    store::{Listing, Object, OpenObject, Store},
};

/// The file at a URL.
pub(crate) struct WebStore {
    location: String,
    url: String,
    options: RemoteOptions,
}

const HINT: &str = "a URL with a signature in its query (presigned) can be given";

impl WebStore {
    pub(crate) fn new(location: &str, options: &RemoteOptions) -> Self {
        Self {
            location: location.to_owned(),
            url: without_query(location).to_owned(),
            options: options.clone(),
        }
    }

    fn file(&self) -> Result<RemoteFile, StoreError> {
        RemoteFile::open(&self.location, &self.options)
            .map_err(|error| failed(&self.url, "the file", HINT, &error))
    }
}

impl Store for WebStore {
    fn list(&self, _: Option<&str>, _: Option<&str>) -> Result<Option<Listing>, StoreError> {
        let file = self.file()?;
        let mut listing = Listing::default();
        let etag = version(&file);
        listing.add(&self.url, file.name(), |name| {
            Object::new(name, self.url.clone(), file.len(), etag)
        })?;
        listing.is_file = !listing.objects.is_empty();
        Ok(Some(listing))
    }

    fn open(&self, object: &Object) -> Result<Arc<dyn OpenObject>, StoreError> {
        let file = self.file()?;
        if version(&file) != object.etag || file.len() != object.size {
            return Err(StoreError::Changed {
                name: object.name.to_string(),
            });
        }
        Ok(Arc::new(WebObject::new(file, &self.url, object, HINT)))
    }
}

/// Returns the file's version. If the server sends neither an entity tag nor a date, versions of equal length
/// cannot be distinguished, so each synchronisation fetches the file again.
fn version(file: &RemoteFile) -> String {
    file.version().unwrap_or_default().to_owned()
}

/// An open file on a web server.
pub(crate) struct WebObject {
    file: RemoteFile,
    url: String,
    name: String,
    hint: &'static str,
}

impl WebObject {
    pub(crate) fn new(file: RemoteFile, url: &str, object: &Object, hint: &'static str) -> Self {
        Self {
            file,
            url: url.to_owned(),
            name: object.name.to_string(),
            hint,
        }
    }
}

impl OpenObject for WebObject {
    fn read(&self, range: Range<u64>) -> Result<Bytes, StoreError> {
        let length = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
        let mut bytes = Vec::with_capacity(length);
        let read = self
            .file
            .read(range)
            .and_then(|mut reader| reader.read_to_end(&mut bytes));
        match read {
            Ok(_) => Ok(bytes.into()),
            Err(error) => Err(
                match error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) {
                    Some(inner) if inner.kind() == ErrorKind::Changed => StoreError::Changed {
                        name: self.name.clone(),
                    },
                    Some(inner) => failed(&self.url, &self.name, self.hint, inner),
                    None => StoreError::Unavailable {
                        url: self.url.clone(),
                        what: self.name.clone(),
                        why: error.to_string(),
                    },
                },
            ),
        }
    }
}

/// Removes the options of the program `tensor` from a message, or replaces them with those of oip-server.
pub(crate) fn without_options(text: &str) -> String {
    text.replace(" (--allow-http)", "")
        .replace(" (--ca)", " (--repository-ca)")
}

/// Converts an error of the HTTP client to a store error.
pub(crate) fn failed(url: &str, what: &str, hint: &'static str, error: &Error) -> StoreError {
    let (url, what, why) = (
        url.to_owned(),
        what.to_owned(),
        without_options(&error.to_string()),
    );
    if why.contains("status 401") || why.contains("status 403") {
        return StoreError::Denied { url, what, hint, why };
    }
    if why.contains("no such file") {
        return StoreError::NotFound { url, what, why };
    }
    StoreError::Unavailable { url, what, why }
}
