//! Changes to files whose index is at their end, once for all formats.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use crate::{AppendFile, AtomicFile, ByteSource, Error, FileSource, OutputOptions};

/// A file that was opened to be changed, whose index is behind its data, with the reader of its format.
///
/// The editors of formats have one, and their ways to bring changes to the disk by [`edit_at_end`](crate::edit_at_end).
#[derive(Debug)]
pub struct TailFile<R> {
    path: PathBuf,
    source: Arc<FileSource>,
    reader: R,
}

impl<R> TailFile<R> {
    /// Opens a file.
    ///
    /// # Errors
    /// As [`FileSource::open`] and `open`, which opens the reader.
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

    /// The file as it is on the disk.
    #[must_use]
    pub fn reader(&self) -> &R {
        &self.reader
    }

    /// The file's length.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.source.len()
    }

    /// Whether the file has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.source.is_empty()
    }

    /// Begins a file that replaces this one: a copy of its first `data_end` bytes.
    ///
    /// # Errors
    /// As [`AtomicFile::create_with`]; [`ErrorKind::Io`](crate::ErrorKind::Io).
    pub fn replace(&self, data_end: u64) -> Result<AtomicFile, Error> {
        let mut file = AtomicFile::create_with(&self.path, &OutputOptions::replacing(&self.source))?;
        file.copy_head(self.source.file(), data_end)?;
        Ok(file)
    }

    /// Begins to write behind the end of the file. The bytes from `data_end` on tell whether it is still the same.
    ///
    /// # Errors
    /// As [`AppendFile::open`].
    pub fn grow(&self, data_end: u64) -> Result<AppendFile, Error> {
        AppendFile::open(&self.path, &self.source, data_end..self.source.len())
    }
}

/// Gives the editor of a format whose index is at the end of files the ways to bring its changes to the disk, its writer
/// `commit`, and the module `recover`.
///
/// The editor has a field `file`, a [`TailFile`](crate::TailFile) of the reader, whose `index_range` says where the data ends,
/// and `resume(self, out, position)` that makes the writer. The writer has `write_all_but_tail`, which gives the bytes that
/// make what was written a file, and `into_sink`.
#[macro_export]
macro_rules! edit_at_end {
    ($editor:ident, $reader:ident, $writer:ident) => {
        impl $editor {
            /// The file as it is on the disk.
            #[must_use]
            pub fn reader(&self) -> &$reader {
                self.file.reader()
            }

            /// Brings the changes to the disk, atomically.
            ///
            /// # Errors
            /// As `append`; [`ErrorKind::Changed`]($crate::ErrorKind::Changed) when another file has taken the name
            /// meanwhile, or this one was written to; [`ErrorKind::Io`]($crate::ErrorKind::Io).
            pub fn save(self) -> Result<(), $crate::Error> {
                self.append()?.finish()?.persist()
            }

            /// Goes on to tensors that are to stand behind those of the file. `finish` of the writer and
            /// [`AtomicFile::persist`]($crate::AtomicFile::persist) bring them and the changes to the disk.
            ///
            /// # Errors
            /// [`ErrorKind::Unsupported`]($crate::ErrorKind::Unsupported) when what the index says cannot be written;
            /// [`ErrorKind::Io`]($crate::ErrorKind::Io).
            pub fn append(self) -> Result<$writer<$crate::AtomicFile>, $crate::Error> {
                let data_end = self.reader().index_range().start;
                let file = self.file.replace(data_end)?;
                self.resume(file, data_end)
            }

            /// Brings the changes to the disk by writing another index behind the old one.
            ///
            /// # Errors
            /// As `append_in_place`; [`ErrorKind::Io`]($crate::ErrorKind::Io).
            pub fn save_in_place(self) -> Result<(), $crate::Error> {
                self.append_in_place()?.commit()
            }

            /// As `append`, but tensors go to the end of the file as it is. `commit` of the writer makes them and the
            /// changes count; dropped without, the file is cut back to what it was.
            ///
            /// # Errors
            /// As `append` and [`AppendFile::open`]($crate::AppendFile::open).
            pub fn append_in_place(self) -> Result<$writer<$crate::AppendFile>, $crate::Error> {
                let file = self.file.grow(self.reader().index_range().start)?;
                let old_len = file.old_len();
                self.resume(file, old_len)
            }
        }

        impl $writer<$crate::AppendFile> {
            /// Makes what was appended to a file in place count (`append_in_place` of the editor).
            ///
            /// # Errors
            /// As `finish` and [`AppendFile::commit`]($crate::AppendFile::commit). The file is cut back to what it was.
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

        /// Cuts a file back to what it was, after a crash amid a change in place. Returns the number of bytes that were cut
        /// off. Without the journal of such a change next to the file nothing is done.
        ///
        /// # Errors
        /// As [`AppendFile::recover`]($crate::AppendFile::recover).
        pub fn recover(path: impl AsRef<::std::path::Path>) -> Result<u64, $crate::Error> {
            let is_whole = |source| $reader::open(source, &$crate::ReadOptions::default()).map(drop);
            $crate::AppendFile::recover(path.as_ref(), is_whole)
        }
    };
}
