//! Identity of files: detects whether the file to replace is still the one that was opened.

use std::{
    fs::{self, Metadata},
    path::Path,
    time::SystemTime,
};

use crate::{Error, ErrorKind};

/// A file's identity, length and modification time.
///
/// A program that reads a file and then replaces it compares the identities first: another program, such as a
/// trainer with its next checkpoint, may have replaced the file in the meantime, and that newer file must not
/// be lost.
///
/// ```
/// use fmt_core::{ErrorKind, FileIdentity};
///
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("a");
/// # let trained = folder.path().join("trained");
/// std::fs::write(&path, "old")?;
/// let identity = FileIdentity::of(&path)?;
/// assert!(identity.check(&path).is_ok());
/// // Another file of the same length takes the name.
/// std::fs::write(&trained, "new")?;
/// std::fs::rename(&trained, &path)?;
/// assert_eq!(identity.check(&path).unwrap_err().kind(), ErrorKind::Changed);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileIdentity {
    /// Device and inode on Unix.
    node: Option<(u64, u64)>,
    len: u64,
    /// Modification time; `None` if the file system does not record it.
    modified: Option<SystemTime>,
}

impl FileIdentity {
    /// Returns the identity of the file at `path`.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] when the file does not exist or cannot be examined.
    pub fn of(path: &Path) -> Result<Self, Error> {
        let metadata = fs::metadata(path);
        let metadata = metadata.map_err(|error| Error::io("the file cannot be examined", error))?;
        Ok(Self::from_metadata(&metadata))
    }

    /// Returns the identity of the file with this metadata.
    pub(crate) fn from_metadata(metadata: &Metadata) -> Self {
        #[cfg(unix)]
        let node = {
            use std::os::unix::fs::MetadataExt;
            Some((metadata.dev(), metadata.ino()))
        };
        #[cfg(not(unix))]
        let node = None;
        Self {
            node,
            len: metadata.len(),
            modified: metadata.modified().ok(),
        }
    }

    /// Checks that the path still leads to this file, and that it was not modified.
    ///
    /// # Errors
    /// [`ErrorKind::Changed`] when the path leads to another file, or the file was modified.
    pub fn check(&self, path: &Path) -> Result<(), Error> {
        match fs::metadata(path) {
            Ok(found) if Self::from_metadata(&found) == *self => Ok(()),
            Ok(_) => Err(changed("another file, or the file was modified since")),
            Err(error) => Err(changed(&error.to_string())),
        }
    }
}

/// Creates the error for a file that was replaced or modified while it was being edited.
pub(crate) fn changed(found: &str) -> Error {
    let error = Error::new(ErrorKind::Changed, "the file has changed since it was opened");
    error
        .expected("the file that was opened; retry when no other program writes to it")
        .found(found)
}

#[cfg(test)]
mod tests {
    use std::{fs::File, time::Duration};

    use super::*;

    /// Checks that a file overwritten in place, with the same inode and length but a later time, counts as
    /// changed.
    #[test]
    fn a_file_that_was_written_to_is_another_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        fs::write(&path, "old").unwrap();
        let identity = FileIdentity::of(&path).unwrap();
        let later = SystemTime::now() + Duration::from_secs(1);
        File::options()
            .write(true)
            .open(&path)
            .and_then(|file| file.set_modified(later))
            .unwrap();
        assert_eq!(identity.check(&path).unwrap_err().kind(), ErrorKind::Changed);
        fs::remove_file(&path).unwrap();
        assert_eq!(identity.check(&path).unwrap_err().kind(), ErrorKind::Changed);
        assert_eq!(FileIdentity::of(&path).unwrap_err().kind(), ErrorKind::Io);
    }
}
