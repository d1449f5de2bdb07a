//! Records the state of a model's files, to detect changes by file metadata or by content digests.

use std::{
    collections::BTreeMap,
    io::{self, Read},
    path::{Path, PathBuf},
};

use oip_model::available_memory;
use rustix::fs::Stat;
use sha2::{Digest as _, Sha256};

use crate::{
    error::FileError,
    files::length,
    root::{PathTarget, Root, is_file, is_folder, is_link},
};

/// The files of a model's directory at one time: paths, sizes, times and inodes. Two snapshots are equal if
/// no file has changed.
///
/// ```
/// use model_repository::Repository;
///
/// # let folder = tempfile::tempdir()?;
/// # let models = folder.path();
/// std::fs::create_dir_all(models.join("digits/1"))?;
/// let model = Repository::open(models, &[], None)?.model("digits")?.ok_or("no such model")?;
/// let before = model.snapshot()?;
/// assert!(before.is_empty());
/// std::fs::write(models.join("digits/1/model.onnx"), b"...")?;
/// assert_ne!(model.snapshot()?, before);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    files: BTreeMap<PathBuf, Stamp>,
}

impl Snapshot {
    /// Maximum depth of directories; deeper files are ignored.
    const MAX_DEPTH: usize = 8;
    const MAX_FILES: usize = 100_000;

    /// Records all files of a directory, given by its path relative to the repository. Hidden files are
    /// skipped. Links to directories are followed only at the top level, where versions may be links.
    ///
    /// # Errors
    /// The reason why the directory cannot be listed.
    pub(crate) fn take(root: &Root, folder: &Path) -> Result<Self, FileError> {
        let mut snapshot = Self::default();
        snapshot.add(root, folder, Path::new(""), 0)?;
        Ok(snapshot)
    }

    /// Returns a snapshot of the single file `name` in the repository's directory; the snapshot is empty if
    /// the file does not exist.
    pub(crate) fn of_file(root: &Root, name: &Path) -> Self {
        let stamp = root.stat(name).ok().map(|stat| Stamp::of(name.to_owned(), &stat));
        Self {
            files: stamp.map(|stamp| (name.to_owned(), stamp)).into_iter().collect(),
        }
    }

    /// Returns whether the snapshot has no files.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    fn add(&mut self, root: &Root, folder: &Path, below: &Path, depth: usize) -> Result<(), FileError> {
        let entries = root.list(folder).map_err(|source| FileError::Directory {
            name: FileError::name(&root.path(folder)),
            source,
        })?;
        for (name, _) in entries {
            let path = folder.join(&name);
            // Files that were deleted meanwhile, and links that are dangling or lead out of the repository,
            // are skipped.
            let Ok(stat) = root.stat(&path) else { continue };
            let is_link = is_link(&stat);
            let (real, stat) = match is_link {
                false => (path, stat),
                true => {
                    let Ok(PathTarget::Inside(real)) = root.resolve(&path) else {
                        continue;
                    };
                    let Ok(stat) = root.stat(&real) else { continue };
                    (real, stat)
                }
            };
            let below = below.join(name);
            if is_link && is_folder(&stat) && depth > 0 {
                continue;
            }
            if is_folder(&stat) && depth < Self::MAX_DEPTH {
                self.add(root, &real, &below, depth + 1)?;
            } else if is_file(&stat) {
                if self.files.len() == Self::MAX_FILES {
                    return Err(FileError::TooManyFiles {
                        limit: Self::MAX_FILES,
                    });
                }
                self.files.insert(below, Stamp::of(real, &stat));
            }
        }
        Ok(())
    }

    fn part<'a>(&'a self, part: FileSubset<'a>) -> impl Iterator<Item = (&'a PathBuf, &'a Stamp)> {
        let is_in = move |path: &Path| {
            let mut names = path.iter();
            let first = names.next().and_then(|first| first.to_str());
            let folder = first.filter(|_| names.next().is_some());
            match part {
                FileSubset::All => true,
                FileSubset::Version(version) => folder == Some(version),
                FileSubset::Shared => folder.is_none_or(|folder| folder == "warmup"),
            }
        };
        self.files.iter().filter(move |(path, _)| is_in(path))
    }

    /// Computes a digest of a subset of the files, from their contents or from their metadata.
    ///
    /// Files larger than the free memory are always compared by their metadata: the model cannot be loaded
    /// anyway, and reading a sparse file could take hours.
    pub(crate) fn digest(&self, root: &Root, part: FileSubset<'_>, by: DigestBy) -> Digest {
        let largest = match by {
            DigestBy::Stamp => 0,
            DigestBy::Content => available_memory().unwrap_or(u64::MAX),
        };
        self.digest_up_to(largest, root, part, by)
    }

    fn digest_up_to(&self, largest: u64, root: &Root, part: FileSubset<'_>, by: DigestBy) -> Digest {
        let mut hasher = Sha256::new();
        for (path, stamp) in self.part(part) {
            let name = path.as_os_str().as_encoded_bytes();
            hasher.update((name.len() as u64).to_le_bytes());
            hasher.update(name);
            hasher.update(stamp.length.to_le_bytes());
            match by {
                DigestBy::Content if stamp.length <= largest => {
                    match hash_file(root, &stamp.path, &mut hasher) {
                        Ok(length) => hasher.update(length.to_le_bytes()),
                        // Loading the model fails on this file too, and reports the reason.
                        Err(error) => hasher.update(format!("{:?}", error.kind())),
                    }
                }
                _ => hasher.update(format!("{:?} {:?}", stamp.modified, stamp.inode)),
            }
        }
        Digest(hasher.finalize().into())
    }
}

/// A subset of a model's files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileSubset<'a> {
    /// All files, for a model without versions.
    All,
    /// The files in a version's directory.
    Version(&'a str),
    /// The files that all versions share: those in the model's directory itself, and warm-up data.
    Shared,
}

/// How changes are detected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DigestBy {
    /// Compares times, sizes and inodes. This is fast, but touching a file counts as a change.
    Stamp,
    /// Compares the contents of files.
    Content,
}

/// A digest of a set of files, to be compared with an earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digest([u8; 32]);

/// File metadata that changes when the file does.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Stamp {
    /// Path relative to the repository.
    path: PathBuf,
    length: u64,
    /// Modification time: seconds and nanoseconds.
    modified: (i64, i64),
    /// Device and inode number.
    inode: (u64, u64),
}

impl Stamp {
    #[allow(
        clippy::unnecessary_cast,
        clippy::cast_lossless,
        reason = "the fields' types differ between processors and systems"
    )]
    fn of(path: PathBuf, stat: &Stat) -> Self {
        Self {
            path,
            length: length(stat),
            modified: (stat.st_mtime as i64, stat.st_mtime_nsec as i64),
            inode: (stat.st_dev as u64, stat.st_ino as u64),
        }
    }
}

fn hash_file(root: &Root, path: &Path, hasher: &mut Sha256) -> io::Result<u64> {
    let (mut file, _) = root.open_file(path)?;
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
    use std::fs;

    use super::*;
    use crate::files::tests::folder;

    #[test]
    fn digests_see_what_changes_and_only_that() {
        let files = [
            ("config.pbtxt", "a"),
            ("1/model.x", "b"),
            ("2/deep/x", "c"),
            ("warmup/x", "d"),
        ];
        let (folder, root) = folder(&files);
        let at = |path: &str| folder.path().join(path);
        let digests = |by| {
            let snapshot = Snapshot::take(&root, Path::new("")).unwrap();
            [
                FileSubset::Shared,
                FileSubset::Version("1"),
                FileSubset::Version("2"),
            ]
            .map(|part| snapshot.digest(&root, part, by))
        };
        let (content, stamps) = (digests(DigestBy::Content), digests(DigestBy::Stamp));
        assert_eq!(
            (digests(DigestBy::Content), digests(DigestBy::Stamp)),
            (content, stamps)
        );

        // The file is replaced with another one that has the same bytes: its metadata changes, but its
        // contents do not.
        fs::write(at("1/new"), "b").unwrap();
        fs::rename(at("1/new"), at("1/model.x")).unwrap();
        assert_eq!(digests(DigestBy::Content), content);
        assert_ne!(digests(DigestBy::Stamp)[1], stamps[1]);

        fs::write(at("2/deep/x"), "C").unwrap();
        let changed = digests(DigestBy::Content);
        assert_eq!(changed[..2], content[..2]);
        assert_ne!(changed[2], content[2]);
        fs::write(at("warmup/y"), "").unwrap();
        assert_ne!(digests(DigestBy::Content)[0], content[0]);
    }

    /// Changes to a file that does not fit into memory are detected by its metadata, without reading the
    /// file.
    #[test]
    fn files_that_are_too_large_are_told_by_their_stamps() {
        let (folder, root) = folder(&[("1/x", "1234")]);
        let digest = |largest| {
            let snapshot = Snapshot::take(&root, Path::new("")).unwrap();
            snapshot.digest_up_to(largest, &root, FileSubset::All, DigestBy::Content)
        };
        let (by_content, by_stamp) = (digest(4), digest(3));
        fs::write(folder.path().join("new"), "1234").unwrap();
        fs::rename(folder.path().join("new"), folder.path().join("1/x")).unwrap();
        assert_eq!(digest(4), by_content);
        assert_ne!(digest(3), by_stamp);
    }

    /// Directories nested too deeply and cyclic links are skipped.
    #[cfg(unix)]
    #[test]
    fn deep_trees_and_circles_are_left() {
        let deep = "d/".repeat(255) + "x";
        let (folder, root) = folder(&[(&deep, ""), ("1/x", "")]);
        std::os::unix::fs::symlink(folder.path(), folder.path().join("1/round")).unwrap();
        std::os::unix::fs::symlink(folder.path(), folder.path().join("around")).unwrap();
        let start = std::time::Instant::now();
        assert!(Snapshot::take(&root, Path::new("")).unwrap().files.len() < 10);
        assert!(start.elapsed() < std::time::Duration::from_secs(2));
    }
}
