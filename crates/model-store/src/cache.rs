//! The on-disk cache of fetched objects, deduplicated by SHA-256.
//!
//! ```text
//! CACHEDIR.TAG         marks the directory as a cache; backups skip it
//! lock                 held briefly while the cache is tidied
//! objects/<sha256>     complete objects, read-only
//! records/<digest>     maps a URL, key, version and size to an object
//! partial/*.part       downloads, locked by the process that fetches them
//! views/<name>-<id>/   served directories: hard links to objects (view.rs)
//! ```

use std::{
    fs::{self, File, Permissions},
    io::{self, Write},
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
};

use rustix::fs::{FallocateFlags, FlockOperation, flock};
use sha2::{Digest, Sha256};
use tempfile::NamedTempFile;

use crate::{error::StoreError, name::hex, store::Object};

/// The standard first line of CACHEDIR.TAG.
const TAG: &str = "Signature: 8a477f597d28d172789f06886806bc55";
const TAG_FILE: &str = "CACHEDIR.TAG";
const TAG_TEXT: &str = "Signature: 8a477f597d28d172789f06886806bc55\n# Models that oip-server has fetched. It may be deleted while \
                        no server uses it.\n# tensorferry model cache 1\n";
/// The second line of CACHEDIR.TAG, which marks a cache of this program.
const OWN: &str = "# tensorferry model cache 1";
/// Name of a file in each view, which every process that serves the view locks.
pub(crate) const IN_USE: &str = "in-use";
const PARTIAL_SUFFIX: &str = ".part";
/// Disk space kept free, in bytes.
const DISK_RESERVE: u64 = 64 << 20;

/// A directory of fetched objects, which several processes may share.
#[derive(Debug)]
pub(crate) struct Cache {
    folder: PathBuf,
    limit: Option<u64>,
}

/// A download in progress: a file that is removed unless it is [kept](Cache::keep).
pub(crate) struct PartialFile(NamedTempFile);

/// A file lock, released on drop.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

impl Cache {
    /// Opens or creates the cache, and removes the partial files of processes that no longer run.
    ///
    /// # Errors
    /// When the directory is not a cache of this program, or is not writable.
    pub(crate) fn open(folder: &Path, limit: Option<u64>) -> Result<Self, StoreError> {
        let fail = |doing| StoreError::cache(folder, doing);
        fs::create_dir_all(folder).map_err(fail("the cache's directory cannot be created"))?;
        let folder = folder
            .canonicalize()
            .map_err(fail("the cache's directory cannot be opened"))?;
        let cache = Self { folder, limit };
        cache.claim()?;
        for part in ["objects", "records", "partial", "views"] {
            let path = cache.folder.join(part);
            fs::create_dir_all(&path).map_err(StoreError::cache(&path, "it cannot be created"))?;
        }
        let _tidying = cache.lock(FlockOperation::LockExclusive)?;
        cache.remove_left_behind();
        Ok(cache)
    }

    /// Checks that the directory is empty or a cache of this program, and marks an empty directory as a
    /// cache.
    fn claim(&self) -> Result<(), StoreError> {
        let tag = self.folder.join(TAG_FILE);
        if let Ok(text) = fs::read_to_string(&tag) {
            return match text.starts_with(TAG) && text.contains(OWN) {
                true => Ok(()),
                false => Err(self.not_ours()),
            };
        }
        let mut entries =
            fs::read_dir(&self.folder).map_err(StoreError::cache(&self.folder, "it cannot be read"))?;
        // Ignores the temporary file of another process that is claiming the directory at the same time.
        let is_other = |entry: io::Result<fs::DirEntry>| {
            entry.is_ok_and(|entry| !entry.file_name().to_string_lossy().starts_with(".tmp"))
        };
        if entries.any(is_other) && !tag.exists() {
            return Err(self.not_ours());
        }
        // The tag file is written atomically, because another process may claim the directory at the same
        // time.
        let written = NamedTempFile::new_in(&self.folder).and_then(|mut file| {
            file.write_all(TAG_TEXT.as_bytes())?;
            file.as_file().set_permissions(Permissions::from_mode(0o644))?;
            file.persist(&tag).map_err(|error| error.error)
        });
        written
            .map(drop)
            .map_err(StoreError::cache(&tag, "the cache cannot be written"))
    }

    fn not_ours(&self) -> StoreError {
        StoreError::NotACache {
            path: self.folder.clone(),
        }
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(crate) fn views(&self) -> PathBuf {
        self.folder.join("views")
    }

    pub(crate) fn object(&self, sha256: &str) -> PathBuf {
        self.folder.join("objects").join(sha256)
    }

    /// Returns the digest of an object, if it is cached.
    pub(crate) fn find(&self, url: &str, object: &Object) -> Option<String> {
        let sha256 = match &object.sha256 {
            Some(sha256) => sha256.clone(),
            None => {
                let text = fs::read_to_string(self.record(url, object)?).ok()?;
                text.trim().to_owned()
            }
        };
        let is_digest = sha256.len() == 64 && sha256.bytes().all(|byte| byte.is_ascii_hexdigit());
        let is_whole = |path: PathBuf| fs::metadata(path).is_ok_and(|file| file.len() == object.size);
        (is_digest && is_whole(self.object(&sha256))).then_some(sha256)
    }

    /// Returns the path of an object's record. Returns `None` if the store does not report the object's
    /// version.
    fn record(&self, url: &str, object: &Object) -> Option<PathBuf> {
        let mut hasher = Sha256::new();
        for part in [url, &object.key, &object.etag] {
            hasher.update((part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        hasher.update(object.size.to_le_bytes());
        let name = hex(&hasher.finalize());
        (!object.etag.is_empty()).then(|| self.folder.join("records").join(name))
    }

    /// Creates a file of the object's size, with preallocated disk space if the file system supports it.
    ///
    /// # Errors
    /// When the disk is full or the file cannot be created.
    pub(crate) fn begin(&self, object: &Object) -> Result<PartialFile, StoreError> {
        let folder = self.folder.join("partial");
        let fail = |doing| StoreError::cache(&folder, doing);
        // The shared lock keeps other processes from removing the new file as a leftover before the file
        // itself is locked.
        let _making = self.lock_shared()?;
        let file = tempfile::Builder::new()
            .suffix(PARTIAL_SUFFIX)
            .tempfile_in(&folder);
        let file = file.map_err(fail("no file can be created"))?;
        flock(file.as_file(), FlockOperation::NonBlockingLockExclusive)
            .map_err(|error| fail("a file cannot be locked")(error.into()))?;
        if object.size > 0 {
            match rustix::fs::fallocate(file.as_file(), FallocateFlags::empty(), 0, object.size) {
                Ok(()) => {}
                Err(rustix::io::Errno::NOSPC | rustix::io::Errno::DQUOT) => {
                    return Err(self.disk_full(&object.name.to_string(), object.size));
                }
                // Some file systems cannot preallocate.
                Err(_) => file
                    .as_file()
                    .set_len(object.size)
                    .map_err(fail("a file cannot be created as long as the object"))?,
            }
        }
        Ok(PartialFile(file))
    }

    /// Moves a complete download into the cache.
    ///
    /// # Errors
    /// When the file system fails.
    pub(crate) fn keep(
        &self,
        partial: PartialFile,
        url: &str,
        object: &Object,
        sha256: &str,
    ) -> Result<(), StoreError> {
        let path = self.object(sha256);
        let fail = |doing| StoreError::cache(&path, doing);
        let file = partial.0;
        file.as_file()
            .set_permissions(Permissions::from_mode(0o444))
            .and_then(|()| file.as_file().sync_all())
            .map_err(fail("the object cannot be written"))?;
        match file.persist_noclobber(&path) {
            Ok(_) => sync_folder(&self.folder.join("objects"))?,
            // Another process has already stored the object. If the lengths differ, the stored object is
            // damaged.
            Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => {
                let is_whole = fs::metadata(&path).is_ok_and(|known| known.len() == object.size);
                if !is_whole {
                    error
                        .file
                        .persist(&path)
                        .map_err(|error| fail("the object cannot be written")(error.error))?;
                }
            }
            Err(error) => return Err(fail("the object cannot be written")(error.error)),
        }
        let Some(record) = self.record(url, object) else {
            return Ok(());
        };
        // The shared lock keeps other processes from removing the new file as a leftover before it has its
        // final name.
        let _writing = self.lock_shared()?;
        let written = NamedTempFile::new_in(self.folder.join("partial")).and_then(|mut file| {
            writeln!(file, "{sha256}")?;
            file.persist(&record).map_err(|error| error.error)
        });
        written.map(drop).map_err(StoreError::cache(
            record,
            "the record of an object cannot be written",
        ))
    }

    /// Frees space for `needed` bytes, within the cache's limit and on the disk. Removes objects that no view
    /// links to, least recently linked first, and then views that no process uses.
    ///
    /// # Errors
    /// When there is not enough space. The error names the sizes and the options that help.
    pub(crate) fn make_room(&self, what: &str, needed: u64) -> Result<(), StoreError> {
        if needed == 0 {
            return Ok(());
        }
        let _tidying = self.lock(FlockOperation::LockExclusive)?;
        self.remove_left_behind();
        let lacks = || -> Result<(u64, u64), StoreError> {
            let over = match self.limit {
                Some(limit) => self.used()?.saturating_add(needed).saturating_sub(limit),
                None => 0,
            };
            let short = needed.saturating_add(DISK_RESERVE).saturating_sub(self.free()?);
            Ok((over, short))
        };
        loop {
            let (over, short) = lacks()?;
            if over == 0 && short == 0 {
                return Ok(());
            }
            if self.give_up_objects(over.max(short))? == 0 && !self.give_up_unused_view() {
                break;
            }
        }
        let (over, _) = lacks()?;
        match self.limit {
            Some(limit) if over > 0 => Err(StoreError::CacheFull {
                what: what.to_owned(),
                needed,
                cache: self.folder.clone(),
                limit,
                pinned: self.used()?,
            }),
            _ => Err(self.disk_full(what, needed)),
        }
    }

    fn disk_full(&self, what: &str, needed: u64) -> StoreError {
        StoreError::DiskFull {
            what: what.to_owned(),
            needed,
            cache: self.folder.clone(),
            free: self.free().unwrap_or(0),
        }
    }

    /// Returns the total size of the objects and of the downloads in progress, in bytes.
    fn used(&self) -> Result<u64, StoreError> {
        let mut sum = 0_u64;
        for part in ["objects", "partial"] {
            for (_, file) in self.files(part)? {
                sum = sum.saturating_add(file.len());
            }
        }
        Ok(sum)
    }

    fn free(&self) -> Result<u64, StoreError> {
        let disk = rustix::fs::statvfs(&self.folder);
        let disk = disk.map_err(|error| {
            StoreError::cache(&self.folder, "the free space of the disk cannot be read")(error.into())
        })?;
        Ok(disk.f_bavail.saturating_mul(disk.f_frsize))
    }

    fn files(&self, part: &str) -> Result<Vec<(PathBuf, fs::Metadata)>, StoreError> {
        let folder = self.folder.join(part);
        let entries = fs::read_dir(&folder).map_err(StoreError::cache(&folder, "it cannot be read"))?;
        let files = entries.filter_map(|entry| {
            let entry = entry.ok()?;
            let file = entry.metadata().ok()?;
            file.is_file().then(|| (entry.path(), file))
        });
        Ok(files.collect())
    }

    /// Removes objects that no view links to, least recently linked first, until `wanted` bytes are freed.
    /// Returns the number of bytes freed.
    fn give_up_objects(&self, wanted: u64) -> Result<u64, StoreError> {
        // The file's ctime shows when a link was last added or removed.
        let mut free: Vec<_> = self.files("objects")?;
        free.retain(|(_, file)| file.nlink() == 1);
        free.sort_by_key(|(_, file)| (file.ctime(), file.ctime_nsec()));
        let mut freed = 0_u64;
        for (path, file) in free {
            if freed >= wanted {
                break;
            }
            if fs::remove_file(&path).is_ok() {
                freed += file.len();
                tracing::info!(object = %path.display(), bytes = file.len(), "removed a model's file from the cache");
            }
        }
        if freed > 0 {
            self.forget_removed();
        }
        Ok(freed)
    }

    /// Removes the least recently used view that no process uses. Returns false if all views are in use.
    fn give_up_unused_view(&self) -> bool {
        let folders = fs::read_dir(self.views())
            .into_iter()
            .flatten()
            .filter_map(Result::ok);
        let mut views: Vec<_> = folders
            .filter_map(|entry| {
                let used = fs::metadata(entry.path().join(IN_USE)).ok()?;
                Some((used.mtime(), entry.path()))
            })
            .collect();
        views.sort();
        for (_, path) in views {
            let Ok(file) = File::open(path.join(IN_USE)) else {
                continue;
            };
            if flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok()
                && fs::remove_dir_all(&path).is_ok()
            {
                tracing::info!(view = %path.display(), "removed models from the cache that no server uses");
                return true;
            }
        }
        false
    }

    /// Removes records of removed objects.
    fn forget_removed(&self) {
        for (path, _) in self.files("records").unwrap_or_default() {
            let is_known = fs::read_to_string(&path).is_ok_and(|sha256| self.object(sha256.trim()).exists());
            if !is_known {
                let _ = fs::remove_file(path);
            }
        }
    }

    /// Removes unlocked partial files, left behind by processes that have ended.
    fn remove_left_behind(&self) {
        for (path, _) in self.files("partial").unwrap_or_default() {
            let Ok(file) = File::open(&path) else { continue };
            if flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok()
                && fs::remove_file(&path).is_ok()
            {
                tracing::debug!(file = %path.display(), "removed leftovers of an interrupted process");
            }
        }
    }

    /// Returns a lock that keeps other processes from removing leftovers while it is held.
    pub(crate) fn lock_shared(&self) -> Result<Lock, StoreError> {
        self.lock(FlockOperation::LockShared)
    }

    fn lock(&self, how: FlockOperation) -> Result<Lock, StoreError> {
        Lock::take(&self.folder.join("lock"), how)
    }
}

impl PartialFile {
    pub(crate) fn file(&self) -> &File {
        self.0.as_file()
    }
}

impl Lock {
    /// Creates the file at `path` if necessary, and waits until it is locked.
    pub(crate) fn take(path: &Path, how: FlockOperation) -> Result<Self, StoreError> {
        let fail = StoreError::cache(path, "it cannot be locked");
        let file = File::options()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(path);
        let locked = file.and_then(|file| {
            flock(&file, how)?;
            Ok(Self { _file: file })
        });
        locked.map_err(fail)
    }
}

/// Syncs a directory's entries to the disk.
pub(crate) fn sync_folder(path: &Path) -> Result<(), StoreError> {
    let synced = File::open(path).and_then(|folder| folder.sync_all());
    synced.map_err(StoreError::cache(path, "it cannot be written"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::name::ObjectName;

    fn object(name: &str, size: u64) -> Object {
        Object::new(ObjectName::parse(name).unwrap(), name, size, "\"1\"")
    }

    fn add(cache: &Cache, name: &str, content: &str) -> PathBuf {
        let object = object(name, content.len() as u64);
        let partial = cache.begin(&object).unwrap();
        partial.file().write_all(content.as_bytes()).unwrap();
        let sha256 = hex(&Sha256::digest(content));
        cache.keep(partial, "s3://b", &object, &sha256).unwrap();
        assert_eq!(cache.find("s3://b", &object), Some(sha256.clone()));
        cache.object(&sha256)
    }

    #[test]
    fn a_folder_of_others_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("thesis.tex"), "years").unwrap();
        let error = Cache::open(folder.path(), None).unwrap_err().to_string();
        assert!(
            error.contains("not a cache of this program") && error.contains("--repository-cache"),
            "{error}"
        );
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);

        let own = tempfile::tempdir().unwrap();
        Cache::open(own.path(), None).unwrap();
        Cache::open(own.path(), None).unwrap();
    }

    #[test]
    fn what_was_left_half_done_is_removed_and_what_is_being_done_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::open(folder.path(), None).unwrap();
        let running = cache.begin(&object("m/1/x", 100)).unwrap();
        // Imitates a crash: a partial file that no process has open.
        let left = folder.path().join("partial/left.part");
        fs::write(&left, "half").unwrap();
        let other = Cache::open(folder.path(), None).unwrap();
        assert!(!left.exists() && running.0.path().exists());
        assert_eq!(other.used().unwrap(), 100);
        drop(running);
        assert_eq!(other.used().unwrap(), 0);
    }

    #[test]
    fn the_limit_takes_what_no_view_links_the_oldest_first() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::open(folder.path(), Some(10)).unwrap();
        let (linked, old) = (add(&cache, "a", "aaaa"), add(&cache, "b", "bbb"));
        fs::hard_link(&linked, folder.path().join("views/a")).unwrap();
        cache.make_room("c", 3).unwrap();
        assert!(old.exists());
        // Waits so that the two files get different ctimes, whose resolution is milliseconds.
        std::thread::sleep(std::time::Duration::from_millis(20));
        let newer = add(&cache, "c", "ccc");
        cache.make_room("d", 2).unwrap();
        assert!(linked.exists() && !old.exists() && newer.exists());
        let error = cache.make_room("'big'", 7).unwrap_err().to_string();
        assert!(
            error.starts_with("'big' needs 7 bytes, but the cache ")
                && error.contains("may hold 10, of which 4 are in use; raise --repository-cache-limit"),
            "{error}"
        );
        assert!(linked.exists());
        // The cache does not find objects whose files were removed.
        assert_eq!(cache.find("s3://b", &object("b", 3)), None);
        assert_eq!(cache.files("records").unwrap().len(), 1);
    }

    #[test]
    fn a_disk_that_is_full_is_told_before_anything_is_fetched() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::open(folder.path(), None).unwrap();
        let error = cache.make_room("'huge'", 1 << 60).unwrap_err().to_string();
        assert!(
            error.contains("needs 1152921504606846976 bytes, but the disk of the cache")
                && error.contains("has ")
                && error.contains("left; free some"),
            "{error}"
        );
    }
}
