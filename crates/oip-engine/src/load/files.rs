//! Files of a repository: read only if they are regular ones below its folder, and told apart by stamps and digests.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
    time::SystemTime,
};

use bytes::Bytes;
use sha2::{Digest as _, Sha256};
use tensor_mmap::Promise;

use crate::load::error::FileError;

/// Where a path really leads, which must be a regular file below the repository's folder.
///
/// # Errors
/// What is wrong with it, without where it leads.
pub(crate) fn resolve(root: &Path, path: &Path) -> Result<PathBuf, FileError> {
    let name = || FileError::name(path);
    let cannot_open = |source| FileError::Open { name: name(), source };
    let real = path.canonicalize().map_err(cannot_open)?;
    if !real.starts_with(root) {
        return Err(FileError::Outside { name: name() });
    }
    match fs::metadata(&real).map_err(cannot_open)?.is_file() {
        true => Ok(real),
        false => Err(FileError::NotRegular { name: name() }),
    }
}

/// Reads a file that [`resolve`] has found, if it has at most so many bytes.
///
/// # Errors
/// What is wrong with it, without where it leads.
pub(crate) fn read(root: &Path, path: &Path, most: u64) -> Result<Bytes, FileError> {
    read_regular(root, path, most).map_err(|source| {
        let name = FileError::name(path);
        match source.kind() {
            io::ErrorKind::FileTooLarge => FileError::TooLarge { name, limit: most },
            _ => FileError::Read { name, source },
        }
    })
}

/// Maps a file that [`resolve`] has found.
///
/// # Errors
/// What is wrong with it, without where it leads.
pub(crate) fn map(root: &Path, path: &Path, promise: Promise) -> Result<Bytes, FileError> {
    let mapped = open_regular(root, path).and_then(|(file, _)| promise.map(&file));
    mapped.map_err(|source| FileError::Map {
        name: FileError::name(path),
        source,
    })
}

/// Opens a file that was a regular one when it was found, and tells its length; should it have become a pipe or a link since, or a folder on
/// the way to it, this fails rather than hangs or follows.
fn open_regular(root: &Path, path: &Path) -> io::Result<(File, u64)> {
    let mut options = fs::OpenOptions::new();
    options.read(true);
    #[cfg(target_os = "linux")]
    {
        use std::os::unix::fs::OpenOptionsExt;
        const O_NONBLOCK: i32 = 0o4000;
        const O_NOFOLLOW: i32 = 0o400_000;
        options.custom_flags(O_NONBLOCK | O_NOFOLLOW);
    }
    let file = options.open(path)?;
    if !is_below(root, &file) {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    Ok((file, metadata.len()))
}

fn read_regular(root: &Path, path: &Path, most: u64) -> io::Result<Bytes> {
    let (mut file, length) = open_regular(root, path)?;
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

/// Whether an open file is below a folder, wherever its path would lead by now. Where the system does not tell, the
/// path that was resolved before has to do.
fn is_below(root: &Path, file: &File) -> bool {
    #[cfg(target_os = "linux")]
    {
        use std::os::fd::AsRawFd;
        let link = format!("/proc/self/fd/{}", file.as_raw_fd());
        fs::read_link(link).map_or(true, |real| real.starts_with(root))
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = (root, file);
        true
    }
}

/// What of a file changes when it does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    path: PathBuf,
    length: u64,
    modified: Option<SystemTime>,
    inode: u64,
}

impl Stamp {
    fn of(path: PathBuf, metadata: &fs::Metadata) -> Self {
        #[cfg(unix)]
        let inode = std::os::unix::fs::MetadataExt::ino(metadata);
        #[cfg(not(unix))]
        let inode = 0;
        Self {
            path,
            length: metadata.len(),
            modified: metadata.modified().ok(),
            inode,
        }
    }
}

/// The files of a model's folder as they were at some time, by their names below it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Snapshot {
    /// The repository's folder.
    root: PathBuf,
    files: BTreeMap<PathBuf, Stamp>,
}

impl Snapshot {
    /// Folders in folders that are looked into, and files that are looked at. What is beyond is no model.
    const MAX_DEPTH: usize = 8;
    const MAX_FILES: usize = 100_000;

    /// Looks at all files of a folder that stand below the repository's. Hidden ones are passed over, links to folders
    /// only followed in the folder itself, where versions may be links.
    ///
    /// # Errors
    /// Why it cannot be looked at.
    pub(crate) fn take(root: &Path, folder: &Path) -> Result<Self, FileError> {
        let mut snapshot = Self {
            root: root.to_owned(),
            files: BTreeMap::new(),
        };
        snapshot.add(root, folder, Path::new(""), 0)?;
        Ok(snapshot)
    }

    fn add(&mut self, root: &Path, folder: &Path, below: &Path, depth: usize) -> Result<(), FileError> {
        let entries = fs::read_dir(folder).map_err(|source| FileError::Folder {
            name: FileError::name(folder),
            source,
        })?;
        for entry in entries.filter_map(Result::ok) {
            let (name, path) = (entry.file_name(), entry.path());
            if name.as_encoded_bytes().starts_with(b".") {
                continue;
            }
            let is_link = entry.file_type().is_ok_and(|kind| kind.is_symlink());
            let Some(real) = (if is_link {
                path.canonicalize().ok()
            } else {
                Some(path)
            }) else {
                continue;
            };
            let Ok(metadata) = fs::metadata(&real) else {
                continue;
            };
            let below = below.join(name);
            if is_link && (!real.starts_with(root) || metadata.is_dir() && depth > 0) {
                continue;
            }
            if metadata.is_dir() && depth < Self::MAX_DEPTH {
                self.add(root, &real, &below, depth + 1)?;
            } else if metadata.is_file() {
                if self.files.len() == Self::MAX_FILES {
                    return Err(FileError::TooManyFiles {
                        limit: Self::MAX_FILES,
                    });
                }
                self.files.insert(below, Stamp::of(real, &metadata));
            }
        }
        Ok(())
    }

    fn part<'a>(&'a self, part: Part<'a>) -> impl Iterator<Item = (&'a PathBuf, &'a Stamp)> {
        let is_in = move |path: &Path| {
            let mut names = path.iter();
            let first = names.next().and_then(|first| first.to_str());
            let folder = first.filter(|_| names.next().is_some());
            match part {
                Part::All => true,
                Part::Version(version) => folder == Some(version),
                Part::Shared => folder.is_none_or(|folder| folder == "warmup"),
            }
        };
        self.files.iter().filter(move |(path, _)| is_in(path))
    }

    /// A digest of some files: of what is in them, or only of their stamps.
    pub(crate) fn digest(&self, part: Part<'_>, by: DigestBy) -> Digest {
        let mut hasher = Sha256::new();
        for (path, stamp) in self.part(part) {
            let name = path.as_os_str().as_encoded_bytes();
            hasher.update((name.len() as u64).to_le_bytes());
            hasher.update(name);
            hasher.update(stamp.length.to_le_bytes());
            match by {
                DigestBy::Stamp => hasher.update(format!("{:?} {}", stamp.modified, stamp.inode)),
                // A file that cannot be read is no good to the model either, which then says why.
                DigestBy::Content => match hash_file(&self.root, &stamp.path, &mut hasher) {
                    Ok(length) => hasher.update(length.to_le_bytes()),
                    Err(error) => hasher.update(format!("{:?}", error.kind())),
                },
            }
        }
        Digest(hasher.finalize().into())
    }
}

/// Some of a model's files.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Part<'a> {
    /// Every file: of a model without versions.
    All,
    /// Those in a version's folder.
    Version(&'a str),
    /// Those that all versions share: right in the model's folder, and for warming up.
    Shared,
}

/// By what changes are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DigestBy {
    /// Times, lengths and places: quick, but a touched file counts as changed.
    Stamp,
    /// Every byte.
    Content,
}

/// Files, told apart from others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Digest([u8; 32]);

fn hash_file(root: &Path, path: &Path, hasher: &mut Sha256) -> io::Result<u64> {
    let (mut file, _) = open_regular(root, path)?;
    let (mut buffer, mut length) = (vec![0; 1 << 16], 0);
    loop {
        let count = file.read(&mut buffer)?;
        if count == 0 {
            return Ok(length);
        }
        hasher.update(&buffer[..count]);
        length += count as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(files: &[(&str, &str)]) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        for (path, content) in files {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        let root = folder.path().canonicalize().unwrap();
        (folder, root)
    }

    #[test]
    fn digests_see_what_changes_and_only_that() {
        let files = [
            ("config.pbtxt", "a"),
            ("1/model.x", "b"),
            ("2/deep/x", "c"),
            ("warmup/x", "d"),
        ];
        let (_folder, root) = folder(&files);
        let digests = |by| {
            let snapshot = Snapshot::take(&root, &root).unwrap();
            [Part::Shared, Part::Version("1"), Part::Version("2")].map(|part| snapshot.digest(part, by))
        };
        let (content, stamps) = (digests(DigestBy::Content), digests(DigestBy::Stamp));
        assert_eq!(
            (digests(DigestBy::Content), digests(DigestBy::Stamp)),
            (content, stamps)
        );

        // The same bytes in another file.
        fs::write(root.join("1/new"), "b").unwrap();
        fs::rename(root.join("1/new"), root.join("1/model.x")).unwrap();
        assert_eq!(digests(DigestBy::Content), content);
        assert_ne!(digests(DigestBy::Stamp)[1], stamps[1]);

        fs::write(root.join("2/deep/x"), "C").unwrap();
        let changed = digests(DigestBy::Content);
        assert_eq!(changed[..2], content[..2]);
        assert_ne!(changed[2], content[2]);
        fs::write(root.join("warmup/y"), "").unwrap();
        assert_ne!(digests(DigestBy::Content)[0], content[0]);
    }

    /// MR-03: a folder on the way that becomes a link after the path was checked.
    #[cfg(target_os = "linux")]
    #[test]
    fn mr_03_a_folder_swapped_after_the_check_is_not_followed() {
        let (_outside, secret) = folder(&[("1/model.x", "secret")]);
        let (_folder, root) = folder(&[("m/1/model.x", "good")]);
        let path = resolve(&root, &root.join("m/1/model.x")).unwrap();
        assert_eq!(read(&root, &path, 100).unwrap(), "good");
        fs::remove_dir_all(root.join("m/1")).unwrap();
        std::os::unix::fs::symlink(secret.join("1"), root.join("m/1")).unwrap();
        assert_eq!(
            read(&root, &path, 100).unwrap_err().to_string(),
            "model.x cannot be read: permission denied"
        );
    }

    /// MR-13: an error of the disk in the midst of a file.
    #[cfg(target_os = "linux")]
    #[test]
    fn mr_13_errors_while_reading_are_told() {
        // Reading this file at its start is EIO: nothing is mapped there.
        let own_memory = Path::new("/proc/self/mem").canonicalize().unwrap();
        let error = read(Path::new("/"), &own_memory, 100).unwrap_err();
        assert!(error.to_string().starts_with("mem cannot be read: "), "{error}");
    }

    #[test]
    fn files_have_a_largest_size() {
        let (_folder, root) = folder(&[("x", "12345")]);
        assert_eq!(read(&root, &root.join("x"), 5).unwrap(), "12345");
        assert_eq!(
            read(&root, &root.join("x"), 4).unwrap_err().to_string(),
            "x is larger than 4 bytes"
        );
    }

    /// MR-14: deep trees and circles of links are left.
    #[cfg(unix)]
    #[test]
    fn mr_14_deep_trees_and_circles_are_left() {
        let deep = "d/".repeat(255) + "x";
        let (_folder, root) = folder(&[(&deep, ""), ("1/x", "")]);
        std::os::unix::fs::symlink(&root, root.join("1/round")).unwrap();
        std::os::unix::fs::symlink(&root, root.join("around")).unwrap();
        let start = std::time::Instant::now();
        assert!(Snapshot::take(&root, &root).unwrap().files.len() < 10);
        assert!(start.elapsed() < std::time::Duration::from_secs(2));
    }
}
