//! Files as shared [`Bytes`] by mapping: no copy, no reading ahead of use.
//!
//! Mapping is an `unsafe fn` because nothing in the
//! system keeps others from changing or truncating the file: the caller must keep its contract. If you cannot, read the
//! file instead, which costs one copy.
//!
//! ```
//! let path = std::path::Path::new("weights");
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("weights");
//! std::fs::write(&path, b"0123456789")?;
//! let file = std::fs::File::open(&path)?;
//! // SAFETY: nobody else knows of this file.
//! #[expect(unsafe_code)]
//! let bytes = unsafe { tensor_mmap::map(&file)? };
//! assert_eq!(bytes, "0123456789");
//! let tail = bytes.slice(5..); // shares the mapping
//! drop((bytes, file));
//! assert_eq!(tail, "56789");
//! # std::io::Result::Ok(())
//! ```
//!
//! [`SharedMemory`] (Linux) is memory that two processes read and write, copied in and out through pointers only.

#[cfg(target_os = "linux")]
mod shared;

use std::{fs::File, io};

use bytes::Bytes;
use memmap2::{Advice, Mmap};
#[cfg(target_os = "linux")]
pub use shared::SharedMemory;

/// Maps a whole file.
///
/// The mapping lives as long as any part of the bytes. A file without bytes needs no mapping and gets none.
///
/// # Safety
/// For as long as any part of the returned bytes lives, no process may truncate the file or write to it. Truncation
/// makes reading the missing part end the process with SIGBUS; writing changes bytes that Rust takes for constant.
/// Renaming another file over this one, or deleting it, is fine: the mapping keeps what it maps.
///
/// # Errors
/// When the system cannot map it; `InvalidInput` for what is no regular file.
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
    // SAFETY: the caller promises that the file stays as it is while the mapping lives.
    let mapping = unsafe { Mmap::map(file)? };
    Ok(Bytes::from_owner(mapping))
}

/// The promise that [`map`] demands, made once for many files: by code that knows that they stay as they are, handed on to
/// where they are mapped.
///
/// A server, for instance, knows nothing of its files, but the operator may, and say so when the server is started.
///
/// ```
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("weights");
/// # std::fs::write(&path, b"0123456789")?;
/// // SAFETY: nobody else knows of this folder.
/// #[expect(unsafe_code)]
/// let promise = unsafe { tensor_mmap::Promise::new() };
/// assert_eq!(promise.map(&std::fs::File::open(&path)?)?, "0123456789");
/// # std::io::Result::Ok(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Promise(());

impl Promise {
    /// Makes the promise.
    ///
    /// # Safety
    /// That of [`map`], for every file that is mapped by this value or a copy of it.
    #[expect(unsafe_code, reason = "the caller vouches for the files")]
    #[must_use]
    pub const unsafe fn new() -> Self {
        Self(())
    }

    /// Maps a whole file, as [`map`].
    ///
    /// # Errors
    /// As [`map`].
    #[expect(unsafe_code, reason = "the promise vouches for the file")]
    pub fn map(self, file: &File) -> io::Result<Bytes> {
        // SAFETY: the promise was made by an unsafe function with the same contract.
        unsafe { map(file) }
    }
}

/// Maps a whole file, and asks the system to read all of it before this returns, so that later access does not wait for
/// the disk page by page.
///
/// # Safety
/// As [`map`].
///
/// # Errors
/// As [`map`].
#[expect(unsafe_code, reason = "the caller vouches for the file")]
pub unsafe fn map_and_prefault(file: &File) -> io::Result<Bytes> {
    let metadata = file.metadata()?;
    if metadata.len() == 0 || !metadata.is_file() {
        // SAFETY: the caller promises what `map` demands.
        return unsafe { map(file) };
    }
    // SAFETY: the caller promises that the file stays as it is while the mapping lives.
    let mapping = unsafe { Mmap::map(file)? };
    #[cfg(target_os = "linux")]
    // Older kernels do not know the stronger wish; then the weaker one must do, and if that fails nothing is lost.
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
            // SAFETY: nobody changes the file.
            let (mapped, prefaulted) = unsafe { (map(&file).unwrap(), map_and_prefault(&file).unwrap()) };
            assert_eq!((&mapped[..], &prefaulted[..]), (&content[..], &content[..]));
        }
        let folder = File::open(folder.path()).unwrap();
        // SAFETY: a folder cannot be mapped.
        let refused = unsafe { map(&folder) }.unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
    }

    /// FS-04: a file that is replaced or deleted stays whole for programs that have mapped it.
    #[test]
    #[expect(unsafe_code, reason = "the files are this test's own")]
    fn fs_04_replaced_and_deleted_files_stay_mapped() {
        let folder = tempfile::tempdir().unwrap();
        let (path, other) = (folder.path().join("a"), folder.path().join("b"));
        fs::write(&path, vec![1; 10_000]).unwrap();
        fs::write(&other, vec![2; 10]).unwrap();
        // SAFETY: the file itself is not changed, only its name goes to another.
        let mapped = unsafe { map(&File::open(&path).unwrap()).unwrap() };
        fs::rename(&other, &path).unwrap();
        fs::remove_file(&path).unwrap();
        assert_eq!(mapped[..], [1; 10_000]);
    }
}
