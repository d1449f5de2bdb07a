//! The directory served for a location: hard links to cached objects. Entries change atomically.
//!
//! ```text
//! in-use                locked by every process that serves the view
//! writing               locked by the process that changes it
//! state.json            the view's kind, and whether it was ever complete
//! entries/<digest>      the objects that an entry was built from
//! next/                 entries being built, and replaced ones
//! tree/<label>          the repository, the model, or the file
//! ```

use std::{
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
    time::SystemTime,
};

use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tempfile::NamedTempFile;

use crate::{
    cache::{Cache, IN_USE, Lock, sync_folder},
    error::StoreError,
    location::Location,
    name::{ObjectName, hex},
    store::Object,
};

/// A directory that mirrors a location.
#[derive(Debug)]
pub(crate) struct View {
    folder: PathBuf,
    label: String,
    _in_use: Lock,
}

/// The kind of a location.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Shape {
    /// A directory with one directory per model.
    Repository,
    /// A directory that is a single model.
    Model,
    /// A file that is a single model, with the other files of its directory that belong to it.
    File,
}

impl Shape {
    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::Repository => "a directory of models",
            Self::Model => "one model's directory",
            Self::File => "one model's file",
        }
    }
}

/// The persistent state of a view.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ViewState {
    pub(crate) url: String,
    pub(crate) shape: Shape,
    /// The file's path below the entries, if the view is a file.
    pub(crate) file: Option<String>,
    /// Whether a synchronisation of the whole view has ever succeeded.
    pub(crate) is_complete: bool,
    /// When the store was last found to match the view, in seconds since 1970.
    pub(crate) checked: u64,
}

/// A complete entry that is not installed in the view.
pub(crate) struct NewEntry {
    path: PathBuf,
}

impl View {
    /// Opens or creates the view of a location.
    ///
    /// # Errors
    /// When the cache is not writable.
    pub(crate) fn open(cache: &Cache, location: &Location) -> Result<Self, StoreError> {
        // The shared lock keeps other processes from removing the view as unused before this process locks
        // it.
        let _opening = cache.lock_shared()?;
        let folder = cache.views().join(location.id());
        for part in ["tree", "entries", "next"] {
            let path = folder.join(part);
            fs::create_dir_all(&path).map_err(StoreError::cache(&path, "it cannot be created"))?;
        }
        let path = folder.join(IN_USE);
        let in_use = Lock::take(&path, FlockOperation::LockShared)?;
        // The file's mtime records when the view was last used.
        let now = fs::File::options().write(true).open(&path);
        let _ = now.and_then(|file| file.set_modified(SystemTime::now()));
        Ok(Self {
            folder,
            label: location.label(),
            _in_use: in_use,
        })
    }

    /// Locks the view for writing, and removes incomplete entries that crashed processes left behind.
    pub(crate) fn lock(&self) -> Result<Lock, StoreError> {
        let lock = Lock::take(&self.folder.join("writing"), FlockOperation::LockExclusive)?;
        let next = self.folder.join("next");
        let left = fs::read_dir(&next).map_err(StoreError::cache(&next, "it cannot be read"))?;
        for entry in left.filter_map(Result::ok) {
            remove(&entry.path());
        }
        Ok(lock)
    }

    /// Returns the path of the file or directory to serve.
    pub(crate) fn served(&self, state: &ViewState) -> PathBuf {
        let tree = self.folder.join("tree");
        match &state.file {
            Some(file) => tree.join(file),
            None => tree.join(&self.label),
        }
    }

    pub(crate) fn state(&self) -> Option<ViewState> {
        let text = fs::read(self.folder.join("state.json")).ok()?;
        serde_json::from_slice(&text).ok()
    }

    pub(crate) fn set_state(&self, state: &ViewState) -> Result<(), StoreError> {
        let text = serde_json::to_vec(state).unwrap_or_default();
        self.write(&self.folder.join("state.json"), &text)
    }

    /// Returns the names of the models present, with or without content.
    pub(crate) fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.folder.join("tree").join(&self.label));
        let entries = entries.into_iter().flatten().filter_map(Result::ok);
        entries
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect()
    }

    /// Returns whether an entry is installed with its complete content.
    pub(crate) fn is_whole(&self, shape: Shape, entry: &str) -> bool {
        self.record(entry).exists() && self.place(shape, entry).exists()
    }

    /// Returns whether the installed entry was built from exactly the objects with this fingerprint.
    pub(crate) fn is_made_of(&self, shape: Shape, entry: &str, fingerprint: &str) -> bool {
        fs::read_to_string(self.record(entry)).is_ok_and(|known| known == fingerprint)
            && self.place(shape, entry).exists()
    }

    fn record(&self, entry: &str) -> PathBuf {
        self.folder
            .join("entries")
            .join(&hex(&Sha256::digest(entry))[..32])
    }

    /// Creates the repository directory, initially empty.
    pub(crate) fn make_repository(&self) -> Result<(), StoreError> {
        let path = self.folder.join("tree").join(&self.label);
        fs::create_dir_all(&path).map_err(StoreError::cache(&path, "it cannot be created"))
    }

    /// Creates an empty directory for a model without content.
    pub(crate) fn make_place(&self, entry: &str) -> Result<(), StoreError> {
        let path = self.place(Shape::Repository, entry);
        fs::create_dir_all(&path).map_err(StoreError::cache(&path, "it cannot be created"))
    }

    /// Builds an entry from cached objects, each given by its name below the entry and its digest. Returns
    /// `None` if one of the objects was evicted meanwhile.
    pub(crate) fn build(
        &self,
        cache: &Cache,
        objects: &[(&Object, PathBuf, String)],
    ) -> Result<Option<NewEntry>, StoreError> {
        let path = tempfile::Builder::new()
            .prefix("built-")
            .tempdir_in(self.folder.join("next"));
        let path = path.map_err(StoreError::cache(
            self.folder.join("next"),
            "no directory can be created",
        ))?;
        let content = path.path().join("content");
        for (_, below, sha256) in objects {
            let target = match below.as_os_str().is_empty() {
                true => content.clone(),
                false => content.join(below),
            };
            if let Some(folder) = target.parent() {
                fs::create_dir_all(folder).map_err(StoreError::cache(folder, "it cannot be created"))?;
            }
            match link(&cache.object(sha256), &target) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
                Err(error) => {
                    return Err(StoreError::cache(&target, "a model's file cannot be put there")(
                        error,
                    ));
                }
            }
        }
        sync_folder(path.path())?;
        Ok(Some(NewEntry { path: path.keep() }))
    }

    /// Installs an entry atomically, and removes the previous one.
    pub(crate) fn install(
        &self,
        shape: Shape,
        entry: &str,
        built: &NewEntry,
        fingerprint: &str,
    ) -> Result<(), StoreError> {
        let place = self.place(shape, entry);
        let fail = |doing| StoreError::cache(&place, doing);
        if let Some(above) = place.parent() {
            fs::create_dir_all(above).map_err(fail("it cannot be created"))?;
        }
        exchange(&built.path.join("content"), &place, &built.path.join("before"))
            .map_err(fail("a model cannot be put there"))?;
        self.write(&self.record(entry), fingerprint.as_bytes())?;
        remove(&built.path);
        Ok(())
    }

    /// Removes the directory of a model that the store does not have.
    pub(crate) fn remove(&self, entry: &str) -> Result<(), StoreError> {
        let place = self.place(Shape::Repository, entry);
        let aside = tempfile::Builder::new()
            .prefix("gone-")
            .tempdir_in(self.folder.join("next"));
        let aside = aside.map_err(StoreError::cache(&place, "no directory can be created"))?;
        let _ = fs::remove_file(self.record(entry));
        match fs::rename(&place, aside.path().join("before")) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(StoreError::cache(&place, "a model cannot be removed")(error)),
        }
    }

    fn place(&self, shape: Shape, entry: &str) -> PathBuf {
        let tree = self.folder.join("tree");
        match shape {
            Shape::Repository => tree.join(&self.label).join(entry),
            Shape::Model => tree.join(&self.label),
            Shape::File => tree.join(entry),
        }
    }

    fn write(&self, path: &Path, content: &[u8]) -> Result<(), StoreError> {
        let written = NamedTempFile::new_in(self.folder.join("next")).and_then(|mut file| {
            file.write_all(content)?;
            file.persist(path).map_err(|error| error.error)
        });
        written
            .map(drop)
            .map_err(StoreError::cache(path, "it cannot be written"))
    }
}

/// Returns a fingerprint of an entry's objects.
pub(crate) fn fingerprint<'o>(objects: impl Iterator<Item = &'o Object>) -> String {
    let mut objects: Vec<&Object> = objects.collect();
    objects.sort_by(|a, b| a.name.cmp(&b.name));
    let mut hasher = Sha256::new();
    for Object { name, size, etag, .. } in objects {
        for part in [name.as_str(), etag] {
            hasher.update((part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        hasher.update(size.to_le_bytes());
    }
    hex(&hasher.finalize())
}

/// Returns the path of an object within its entry; except for a model's directory, the entry is the first
/// component of the name.
pub(crate) fn below(shape: Shape, name: &ObjectName) -> PathBuf {
    match shape {
        Shape::Repository | Shape::File => {
            let path = name.path();
            path.strip_prefix(name.first())
                .map_or(PathBuf::new(), Path::to_owned)
        }
        Shape::Model => name.path(),
    }
}

/// Creates a hard link, or a copy if links are unsupported or exhausted.
fn link(object: &Path, target: &Path) -> io::Result<()> {
    match fs::hard_link(object, target) {
        Err(error)
            if !matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::AlreadyExists
            ) =>
        {
            fs::copy(object, target).map(drop)
        }
        linked => linked,
    }
}

/// Replaces the entry at `place` with `new` and moves the old entry to `aside`. Readers see either the old or
/// the new entry.
fn exchange(new: &Path, place: &Path, aside: &Path) -> io::Result<()> {
    if place.symlink_metadata().is_err() {
        return fs::rename(new, place);
    }
    #[cfg(target_os = "linux")]
    {
        use rustix::fs::{CWD, RenameFlags, renameat_with};
        if renameat_with(CWD, new, CWD, place, RenameFlags::EXCHANGE).is_ok() {
            return Ok(());
        }
    }
    // If the file system cannot exchange two entries, `place` is missing for a moment. Therefore a poll acts
    // on a missing model only if the previous poll also found it missing.
    fs::rename(place, aside)?;
    fs::rename(new, place)
}

fn remove(path: &Path) {
    let removed = match path.is_dir() {
        true => fs::remove_dir_all(path),
        false => fs::remove_file(path),
    };
    if let Err(error) = removed {
        tracing::debug!(path = %path.display(), %error, "cannot be removed now; the next synchronisation tries again");
    }
}
