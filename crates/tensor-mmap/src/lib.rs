//! Maps files as shared [`Bytes`]: no copy, and pages are read on first use.
//!
//! Mapping is an `unsafe fn` because the system does not prevent other processes from changing or truncating
//! the file; the caller must guarantee that. If you cannot guarantee it, read the file instead, which costs
//! one copy.
//!
//! ```
//! let path = std::path::Path::new("weights");
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("weights");
//! std::fs::write(&path, b"0123456789")?;
//! let file = std::fs::File::open(&path)?;
//! // SAFETY: no other process uses this file.
//! #[expect(unsafe_code)]
//! let bytes = unsafe { tensor_mmap::map(&file)? };
//! assert_eq!(bytes, "0123456789");
//! let tail = bytes.slice(5..); // shares the mapping
//! drop((bytes, file));
//! assert_eq!(tail, "56789");
//! # std::io::Result::Ok(())
//! ```
//!
//! [`SharedMemory`] (Linux) is memory that two processes read and write; it is accessed only by copying
//! through pointers.

#[cfg(target_os = "linux")]
mod shared;

use std::{fs::File, io};

use bytes::Bytes;
use memmap2::{Advice, Mmap};
#[cfg(target_os = "linux")]
pub use shared::SharedMemory;

/// Maps a whole file.
///
/// The mapping lives as long as any slice of the bytes. An empty file needs no mapping.
///
/// # Safety
/// While any slice of the returned bytes lives, no process may truncate the file or write to it. After
/// truncation, reading the missing part ends the process with SIGBUS; writing changes bytes that Rust assumes
/// constant. Renaming another file over this one, or deleting it, is safe: the mapping keeps the old
/// contents.
///
/// # Errors
/// When the system call fails; `InvalidInput` when `file` is not a regular file.
#[expect(unsafe_code, reason = "the caller vouches for the file")]
pub unsafe fn map(file: &File) -> io::Result<Bytes> {
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "only regular files can be mapped",
        ));
    }
    if metadata.len() == 0 {
        return Ok(Bytes::new());
    }
    // SAFETY: the caller guarantees that the file does not change while the mapping lives.
    let mapping = unsafe { Mmap::map(file)? };
    Ok(Bytes::from_owner(mapping))
}

/// The guarantee that [`map`] requires, given once for many files. Code whose author can guarantee that the
/// files do not change creates this value, and passes it to the code that maps them.
///
/// For example, the code of a server cannot ensure that no other program changes its files, but the operator
/// can give the guarantee at startup.
///
/// ```
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("weights");
/// # std::fs::write(&path, b"0123456789")?;
/// // SAFETY: no other process uses this folder.
/// #[expect(unsafe_code)]
/// let promise = unsafe { tensor_mmap::Promise::new() };
/// assert_eq!(promise.map(&std::fs::File::open(&path)?)?, "0123456789");
/// # std::io::Result::Ok(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Promise(());

impl Promise {
    /// Creates a value through which files can be mapped without `unsafe`.
    ///
    /// # Safety
    /// The caller must fulfil the contract of [`map`] for every file that is mapped through this value or a
    /// copy of it.
    #[expect(unsafe_code, reason = "the caller vouches for the files")]
    #[must_use]
    pub const unsafe fn new() -> Self {
        Self(())
    }

    /// Maps a whole file like [`map`].
    ///
    /// # Errors
    /// See [`map`].
    #[expect(unsafe_code, reason = "the promise vouches for the file")]
    pub fn map(self, file: &File) -> io::Result<Bytes> {
        // SAFETY: the caller of `Promise::new` has given the guarantee that `map` requires.
        unsafe { map(file) }
    }
}

/// Maps a whole file and makes the system read all of it before returning, so that later access does not wait
/// for the disk page by page.
///
/// # Safety
/// See [`map`].
///
/// # Errors
/// See [`map`].
#[expect(unsafe_code, reason = "the caller vouches for the file")]
pub unsafe fn map_and_prefault(file: &File) -> io::Result<Bytes> {
    let metadata = file.metadata()?;
    if metadata.len() == 0 || !metadata.is_file() {
        // SAFETY: the caller fulfils the contract of `map`, which is the same.
        return unsafe { map(file) };
    }
    // SAFETY: the caller guarantees that the file does not change while the mapping lives.
    let mapping = unsafe { Mmap::map(file)? };
    #[cfg(target_os = "linux")]
    // Older kernels lack MADV_POPULATE_READ; fall back to the weaker hint, whose failure is harmless.
    if mapping.advise(Advice::PopulateRead).is_err() {
        let _ = mapping.advise(Advice::WillNeed);
    }
    Ok(Bytes::from_owner(mapping))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    #[expect(unsafe_code, reason = "the files are this test's own")]
    fn files_of_every_kind() {
        let folder = tempfile::tempdir().unwrap();
        for len in [0usize, 1, 4096, 100_000] {
            let path = folder.path().join(len.to_string());
            let content: Vec<u8> = (0..len).map(|byte| byte as u8).collect();
            fs::write(&path, &content).unwrap();
            let file = File::open(&path).unwrap();
            // SAFETY: no process changes the file.
            let (mapped, prefaulted) = unsafe { (map(&file).unwrap(), map_and_prefault(&file).unwrap()) };
            assert_eq!((&mapped[..], &prefaulted[..]), (&content[..], &content[..]));
        }
        let folder = File::open(folder.path()).unwrap();
        // SAFETY: the call fails, since a directory cannot be mapped.
        let refused = unsafe { map(&folder) }.unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
    }

    /// A replaced or deleted file stays readable for programs that have mapped it.
    #[test]
    #[expect(unsafe_code, reason = "the files are this test's own")]
    fn replaced_and_deleted_files_stay_mapped() {
        let folder = tempfile::tempdir().unwrap();
        let (path, other) = (folder.path().join("a"), folder.path().join("b"));
        fs::write(&path, vec![1; 10_000]).unwrap();
        fs::write(&other, vec![2; 10]).unwrap();
        // SAFETY: the file itself does not change, only its name.
        let mapped = unsafe { map(&File::open(&path).unwrap()).unwrap() };
        fs::rename(&other, &path).unwrap();
        fs::remove_file(&path).unwrap();
        assert_eq!(mapped[..], [1; 10_000]);
    }
}
