//! Files of a repository: only regular files below its directory are read or mapped.

use std::{
    io::{self, Read},
    path::{Path, PathBuf},
};

use bytes::Bytes;
use rustix::fs::Stat;
use tensor_mmap::Promise;

use crate::{
    error::FileError,
    root::{PathTarget, Root, is_file},
};

/// Resolves the path `below`, relative to the repository's directory. The path must lead to a regular file in
/// that directory.
///
/// # Errors
/// The reason why the file cannot be used, without its resolved path.
pub(crate) fn resolve(root: &Root, below: &Path) -> Result<PathBuf, FileError> {
    let name = || FileError::name(below);
    let cannot_open = |source| FileError::Open { name: name(), source };
    let real = match root.resolve(below).map_err(cannot_open)? {
        PathTarget::Inside(real) => real,
        PathTarget::Outside => return Err(FileError::Outside { name: name() }),
    };
    match is_file(&root.stat(&real).map_err(cannot_open)?) {
        true => Ok(real),
        false => Err(FileError::NotRegular { name: name() }),
    }
}

/// Reads the file at a resolved path, if its size is at most `most` bytes.
///
/// # Errors
/// The reason why the file cannot be used, without its resolved path.
pub(crate) fn read(root: &Root, path: &Path, most: u64) -> Result<Bytes, FileError> {
    read_regular(root, path, most).map_err(|source| {
        let name = FileError::name(path);
        match source.kind() {
            io::ErrorKind::FileTooLarge => FileError::TooLarge { name, limit: most },
            _ => FileError::Read { name, source },
        }
    })
}

/// Maps the file at a resolved path.
///
/// # Errors
/// The reason why the file cannot be used, without its resolved path.
pub(crate) fn map(root: &Root, path: &Path, promise: Promise) -> Result<Bytes, FileError> {
    let mapped = root.open_file(path).and_then(|(file, _)| promise.map(&file));
    mapped.map_err(|source| FileError::Map {
        name: FileError::name(path),
        source,
    })
}

/// Returns the file size in `stat`, in bytes.
pub(crate) fn length(stat: &Stat) -> u64 {
    u64::try_from(stat.st_size).unwrap_or(0)
}

fn read_regular(root: &Root, path: &Path, most: u64) -> io::Result<Bytes> {
    let (mut file, stat) = root.open_file(path)?;
    let length = length(&stat);
    if length > most {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    let mut content = Vec::new();
    content.try_reserve_exact(usize::try_from(length).unwrap_or(usize::MAX))?;
    file.by_ref().take(most).read_to_end(&mut content)?;
    if file.read(&mut [0])? > 0 {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    Ok(content.into())
}

#[cfg(test)]
pub(crate) mod tests {
    use std::fs;

    use super::*;

    /// Creates a directory with files of the given contents.
    pub(crate) fn folder(files: &[(&str, &str)]) -> (tempfile::TempDir, Root) {
        let folder = tempfile::tempdir().unwrap();
        for (path, content) in files {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        let root = Root::open(folder.path()).unwrap();
        (folder, root)
    }

    /// A link that replaces a directory after its path was checked is not followed.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_folder_swapped_after_the_check_is_not_followed() {
        let (outside, _) = folder(&[("1/model.x", "secret")]);
        let (folder, root) = folder(&[("m/1/model.x", "good")]);
        let path = resolve(&root, Path::new("m/1/model.x")).unwrap();
        assert_eq!(read(&root, &path, 100).unwrap(), "good");
        fs::remove_dir_all(folder.path().join("m/1")).unwrap();
        std::os::unix::fs::symlink(outside.path().join("1"), folder.path().join("m/1")).unwrap();
        assert_eq!(
            read(&root, &path, 100).unwrap_err().to_string(),
            "model.x cannot be read: permission denied"
        );
    }

    /// Disk errors that occur while a file is read are reported.
    #[cfg(target_os = "linux")]
    #[test]
    fn errors_while_reading_are_told() {
        // Reading this file at offset 0 fails with EIO, since nothing is mapped at address 0.
        let root = Root::open(Path::new("/")).unwrap();
        let own_memory = resolve(&root, Path::new("proc/self/mem")).unwrap();
        let error = read(&root, &own_memory, 100).unwrap_err();
        assert!(error.to_string().starts_with("mem cannot be read: "), "{error}");
    }

    #[test]
    fn files_have_a_largest_size() {
        let (_folder, root) = folder(&[("x", "12345")]);
        assert_eq!(read(&root, Path::new("x"), 5).unwrap(), "12345");
        assert_eq!(
            read(&root, Path::new("x"), 4).unwrap_err().to_string(),
            "x is larger than 4 bytes"
        );
    }
}
