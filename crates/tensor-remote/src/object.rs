//! Objects of stores supported by the crate `object_store`.

use std::{fmt, io, ops::Range, sync::Arc};

use bytes::Bytes;
use fmt_core::{Error, ErrorKind};
use object_store::{GetOptions, GetRange, ObjectMeta, ObjectStore, ObjectStoreExt, path::Path};

use crate::{AsyncByteSource, ReadFuture};

/// An object of a store: S3, Google Cloud Storage, Azure, a directory, memory or any other that
/// `object_store` supports.
///
/// ```
/// use std::sync::Arc;
/// use object_store::{ObjectStoreExt, memory::InMemory, path::Path};
/// use tensor_remote::{AsyncByteSource, StoredObject};
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (store, path) = (Arc::new(InMemory::new()), Path::from("models/a.zt"));
/// store.put(&path, "content".into()).await?;
/// let object = StoredObject::open(store.clone(), path.clone()).await?;
/// assert_eq!(object.read(3..7).await?, "tent");
///
/// // If the object is replaced meanwhile, reading fails and never mixes two versions.
/// store.put(&path, "Content".into()).await?;
/// assert!(object.read(3..7).await.is_err());
/// # Ok(())
/// # }
/// ```
///
/// [`RemoteSource::from_async`](crate::RemoteSource::from_async) turns it into a source for readers of tensor
/// files.
pub struct StoredObject {
    store: Arc<dyn ObjectStore>,
    object: ObjectMeta,
}

impl StoredObject {
    /// Queries the store for the length and version of the object at `path`.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] when the object does not exist or the request fails.
    pub async fn open(store: Arc<dyn ObjectStore>, path: Path) -> Result<Self, Error> {
        let object = store.head(&path).await;
        let object =
            object.map_err(|error| Error::io("the object cannot be opened", io::Error::other(error)))?;
        Ok(Self { store, object })
    }

    /// Returns the metadata that the store returned for the object.
    #[must_use]
    pub fn meta(&self) -> &ObjectMeta {
        &self.object
    }

    async fn range(&self, range: Range<u64>) -> io::Result<Bytes> {
        let options = GetOptions {
            range: Some(GetRange::Bounded(range)),
            if_match: self.object.e_tag.clone(),
            version: self.object.version.clone(),
            ..GetOptions::default()
        };
        let changed = || Error::new(ErrorKind::Changed, "the object has changed since it was opened");
        let answer = self.store.get_opts(&self.object.location, options).await;
        let answer = answer.map_err(|error| match error {
            object_store::Error::Precondition { .. } => io::Error::other(changed()),
            error => io::Error::other(error),
        })?;
        let is_same = answer.meta.size == self.object.size
            && (self.object.e_tag.is_some() || answer.meta.last_modified == self.object.last_modified);
        if !is_same {
            return Err(io::Error::other(changed()));
        }
        answer.bytes().await.map_err(io::Error::other)
    }
}

impl AsyncByteSource for StoredObject {
    fn len(&self) -> u64 {
        self.object.size
    }

    fn read(&self, range: Range<u64>) -> ReadFuture<'_> {
        Box::pin(self.range(range))
    }
}

impl fmt::Debug for StoredObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoredObject")
            .field("object", &self.object)
            .finish_non_exhaustive()
    }
}
