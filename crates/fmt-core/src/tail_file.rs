//! Editing of files with the index at the end, shared by all formats.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use crate::{AppendFile, AtomicFile, ByteSource, Error, FileSource, OutputOptions};

/// A file opened for editing, with its index after its data, and the reader of its format.
///
/// Format editors contain a `TailFile`, and get their methods for saving changes from
/// [`edit_at_end`](crate::edit_at_end).
#[derive(Debug)]
pub struct TailFile<R> {
    path: PathBuf,
    source: Arc<FileSource>,
    reader: R,
}

impl<R> TailFile<R> {
    /// Opens the file at `path` for editing.
    ///
    /// # Errors
    /// The errors of [`FileSource::open`] and `open`, which opens the reader.
    pub fn open(
        path: &Path,
        open: impl FnOnce(Arc<dyn ByteSource>) -> Result<R, Error>,
    ) -> Result<Self, Error> {
        let source = Arc::new(FileSource::open(path)?);
        Ok(Self {
            path: path.to_owned(),
            reader: open(Arc::clone(&source) as _)?,
            source,
        })
    }

    /// Returns a reader of the file on disk.
    #[must_use]
    pub fn reader(&self) -> &R {
        &self.reader
    }

    /// Returns the file's length.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.source.len()
    }

    /// Returns whether the file is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.source.is_empty()
    }

    /// Starts a replacement of this file with a copy of its first `data_end` bytes.
    ///
    /// # Errors
    /// The errors of [`AtomicFile::create_with`]; [`ErrorKind::Io`](crate::ErrorKind::Io).
    pub fn replace(&self, data_end: u64) -> Result<AtomicFile, Error> {
        let mut file = AtomicFile::create_with(&self.path, &OutputOptions::replacing(&self.source))?;
        file.copy_head(self.source.file(), data_end)?;
        Ok(file)
    }

    /// Starts appending to the file. The bytes starting at `data_end` are compared to detect changes.
    ///
    /// # Errors
    /// The errors of [`AppendFile::open`].
    pub fn grow(&self, data_end: u64) -> Result<AppendFile, Error> {
        AppendFile::open(&self.path, &self.source, data_end..self.source.len())
    }
}

/// Generates methods for a format with the index at the end of files: the editor's methods that save changes,
/// the writer's `commit`, and the module `recover`.
///
/// The editor needs a field `file`, a [`TailFile`](crate::TailFile) of the reader, whose `index_range` starts
/// where the data ends, and a method `resume(self, out, position)` that creates the writer. The writer needs
/// `write_all_but_tail`, which returns the bytes that make the file valid, and `into_sink`.
#[macro_export]
macro_rules! edit_at_end {
    ($editor:ident, $reader:ident, $writer:ident) => {
        impl $editor {
            /// Returns a reader of the file on disk.
            #[must_use]
            pub fn reader(&self) -> &$reader {
                self.file.reader()
            }

            /// Saves the changes atomically.
            ///
            /// # Errors
            /// The errors of `append`; [`ErrorKind::Changed`]($crate::ErrorKind::Changed) when the file was
            /// replaced or modified meanwhile; [`ErrorKind::Io`]($crate::ErrorKind::Io).
            pub fn save(self) -> Result<(), $crate::Error> {
                self.append()?.finish()?.persist()
            }

            /// Returns a writer that appends tensors after those of the file. The writer's `finish` and
            /// [`AtomicFile::persist`]($crate::AtomicFile::persist) save the new tensors together with the
            /// changes.
            ///
            /// # Errors
            /// [`ErrorKind::Unsupported`]($crate::ErrorKind::Unsupported) when the index has contents that
            /// cannot be written; [`ErrorKind::Io`]($crate::ErrorKind::Io).
            pub fn append(self) -> Result<$writer<$crate::AtomicFile>, $crate::Error> {
                let data_end = self.reader().index_range().start;
                let file = self.file.replace(data_end)?;
                self.resume(file, data_end)
            }

            /// Saves the changes by appending a new index after the old one.
            ///
            /// # Errors
            /// The errors of `append_in_place`; [`ErrorKind::Io`]($crate::ErrorKind::Io).
            pub fn save_in_place(self) -> Result<(), $crate::Error> {
                self.append_in_place()?.commit()
            }

            /// Like `append`, but adds tensors to the end of the existing file. The writer's `commit` makes
            /// the new tensors and the changes valid; dropping the writer without `commit` truncates the file
            /// to its old length.
            ///
            /// # Errors
            /// The errors of `append` and [`AppendFile::open`]($crate::AppendFile::open).
            pub fn append_in_place(self) -> Result<$writer<$crate::AppendFile>, $crate::Error> {
                let file = self.file.grow(self.reader().index_range().start)?;
                let old_len = file.old_len();
                self.resume(file, old_len)
            }
        }

        impl $writer<$crate::AppendFile> {
            /// Commits the tensors and changes of the editor's `append_in_place`.
            ///
            /// # Errors
            /// The errors of `finish` and [`AppendFile::commit`]($crate::AppendFile::commit). After an error,
            /// the file is truncated to its old length.
            pub fn commit(mut self) -> Result<(), $crate::Error> {
                let tail = self.write_all_but_tail()?;
                self.into_sink().commit(&tail)
            }
        }

        impl ::std::fmt::Debug for $editor {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.debug_struct(stringify!($editor))
                    .field("file", &self.file)
                    .finish_non_exhaustive()
            }
        }

        /// Truncates a file to its old length after a crash during a change in place. Returns the number of
        /// bytes removed. Does nothing if the change's journal is not next to the file.
        ///
        /// # Errors
        /// The errors of [`AppendFile::recover`]($crate::AppendFile::recover).
        pub fn recover(path: impl AsRef<::std::path::Path>) -> Result<u64, $crate::Error> {
            let is_whole = |source| $reader::open(source, &$crate::ReadOptions::default()).map(drop);
            $crate::AppendFile::recover(path.as_ref(), is_whole)
        }
    };
}
