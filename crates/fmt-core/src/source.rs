//! The input of readers: sources of a file's bytes.

use std::{fs::File, io, ops::Range, path::Path, sync::Arc};

use bytes::Bytes;

use crate::{Error, ErrorKind, FileIdentity};

/// A source of a file's bytes: memory, a file, or a user's implementation.
///
/// Readers request only ranges within [`ByteSource::len`].
///
/// ```
/// use bytes::Bytes;
/// use fmt_core::ByteSource;
///
/// let source = Bytes::from_static(b"abcdef");
/// let part = source.read(2..4).unwrap();
/// assert_eq!(part, "cd");
/// assert!(source.is_in_memory());
/// assert_eq!(part.as_ptr(), source[2..].as_ptr()); // bytes in memory are not copied
/// ```
pub trait ByteSource: Send + Sync {
    /// Returns the number of bytes, which never changes.
    fn len(&self) -> u64;

    /// Returns whether the source is empty.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns whether [`ByteSource::read`] returns slices of existing memory, without a copy.
    fn is_in_memory(&self) -> bool {
        false
    }

    /// Returns whether each read may be a request to a server; a round trip then costs more than extra bytes.
    fn is_remote(&self) -> bool {
        false
    }

    /// Reads a range of bytes, without a copy if they are in memory.
    ///
    /// # Errors
    /// When the bytes cannot be read, or the source has become shorter (`UnexpectedEof`).
    fn read(&self, range: Range<u64>) -> io::Result<Bytes>;

    /// Fills `out` with the bytes starting at `offset`.
    ///
    /// # Errors
    /// The errors of [`ByteSource::read`].
    fn read_into(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        out.copy_from_slice(&self.read(offset..offset + out.len() as u64)?);
        Ok(())
    }

    /// Announces that a range will be read sequentially in parts. A source may prefetch the whole range, or
    /// ignore the call.
    fn will_read(&self, range: Range<u64>) {
        let _ = range;
    }
}

impl ByteSource for Bytes {
    fn len(&self) -> u64 {
        self.len() as u64
    }

    fn is_in_memory(&self) -> bool {
        true
    }

    fn read(&self, range: Range<u64>) -> io::Result<Bytes> {
        let end = usize::try_from(range.end).ok().filter(|end| *end <= self.len());
        let end = end.ok_or(io::ErrorKind::UnexpectedEof)?;
        // `start` is at most `end`, which fits `usize`.
        let start = (range.start as usize).min(end);
        Ok(self.slice(start..end))
    }
}

impl<S: ByteSource + ?Sized> ByteSource for Arc<S> {
    fn len(&self) -> u64 {
        (**self).len()
    }

    fn is_in_memory(&self) -> bool {
        (**self).is_in_memory()
    }

    fn is_remote(&self) -> bool {
        (**self).is_remote()
    }

    fn read(&self, range: Range<u64>) -> io::Result<Bytes> {
        (**self).read(range)
    }

    fn read_into(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        (**self).read_into(offset, out)
    }

    fn will_read(&self, range: Range<u64>) {
        (**self).will_read(range);
    }
}

/// A regular file, read on demand.
///
/// This is the safe way to read files: if the file changes meanwhile, reads return errors or different bytes,
/// and never raise a signal, as access to a mapping can. The length is fixed at opening.
#[derive(Debug)]
pub struct FileSource {
    file: File,
    len: u64,
    identity: FileIdentity,
}

impl FileSource {
    /// Opens the file at `path` for reading.
    ///
    /// # Errors
    /// [`ErrorKind::NotAFile`] when `path` is not a regular file (a pipe does not block the call);
    /// [`ErrorKind::Io`] when the file cannot be opened.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let mut options = File::options();
        options.read(true);
        #[cfg(unix)]
        {
            use std::os::unix::fs::OpenOptionsExt;
            // Opening a pipe without a writer must not block.
            options.custom_flags(rustix::fs::OFlags::NONBLOCK.bits().cast_signed());
        }
        let file = options
            .open(path)
            .map_err(|error| Error::io("the file cannot be opened", error))?;
        Self::new(file)
    }

    /// Creates a source from an open file.
    ///
    /// # Errors
    /// The errors of [`FileSource::open`].
    pub fn new(file: File) -> Result<Self, Error> {
        let metadata = file
            .metadata()
            .map_err(|error| Error::io("the file cannot be examined", error))?;
        if !metadata.is_file() {
            let error = Error::new(ErrorKind::NotAFile, "what the path leads to");
            return Err(error.expected("a regular file").found(describe(&metadata)));
        }
        Ok(Self {
            file,
            len: metadata.len(),
            identity: FileIdentity::from_metadata(&metadata),
        })
    }

    /// Returns the open file.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Returns the file's identity as of opening.
    #[must_use]
    pub fn identity(&self) -> &FileIdentity {
        &self.identity
    }
}

fn describe(metadata: &std::fs::Metadata) -> &'static str {
    if metadata.is_dir() {
        "a directory"
    } else {
        "something else"
    }
}

impl ByteSource for FileSource {
    fn len(&self) -> u64 {
        self.len
    }

    fn read(&self, range: Range<u64>) -> io::Result<Bytes> {
        let len = range
            .end
            .checked_sub(range.start)
            .filter(|_| range.end <= self.len);
        let len = len
            .and_then(|len| usize::try_from(len).ok())
            .ok_or(io::ErrorKind::UnexpectedEof)?;
        // Checks first that the memory is available: zeroed memory, which the system maps lazily, cannot be
        // allocated fallibly.
        let mut probe = Vec::<u8>::new();
        probe.try_reserve_exact(len)?;
        drop(std::hint::black_box(probe));
        let mut buffer = vec![0; len];
        self.read_into(range.start, &mut buffer)?;
        Ok(buffer.into())
    }

    #[cfg(unix)]
    fn read_into(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        std::os::unix::fs::FileExt::read_exact_at(&self.file, out, offset)
    }

    /// Fails: without a file system (WebAssembly), no file can be opened, so this method is never called.
    #[cfg(not(any(unix, windows)))]
    fn read_into(&self, _: u64, _: &mut [u8]) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    #[cfg(windows)]
    fn read_into(&self, mut offset: u64, mut out: &mut [u8]) -> io::Result<()> {
        while !out.is_empty() {
            match std::os::windows::fs::FileExt::seek_read(&self.file, out, offset) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => {
                    out = &mut out[read..];
                    offset += read as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
