//! An in-memory store whose objects and failures a test controls, and a mirror of the store.

use std::{
    collections::BTreeMap,
    fs,
    ops::Range,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use model_store::{
    Listing, Location, Mirror, MirrorOptions, Object, ObjectName, OpenObject, Store, StoreError,
};

pub(crate) const URL: &str = "s3://models";

/// Objects in memory with version numbers.
#[derive(Clone, Default)]
pub(crate) struct Memory(Arc<Mutex<Inner>>);

type BeforeRead = Box<dyn FnOnce(&Memory) + Send>;

#[derive(Default)]
struct Inner {
    objects: BTreeMap<String, (u64, Bytes)>,
    versions: u64,
    lists: u64,
    reads: u64,
    is_unreachable: bool,
    /// A function to call before the next read.
    before_read: Option<BeforeRead>,
    /// Number of bytes by which reads fall short.
    lacks: u64,
}

impl Memory {
    pub(crate) fn of(objects: &[(&str, &str)]) -> Self {
        let memory = Self::default();
        for (key, content) in objects {
            memory.put(key, content.as_bytes().to_vec());
        }
        memory
    }

    pub(crate) fn put(&self, key: &str, content: impl Into<Bytes>) {
        let mut inner = self.0.lock().unwrap();
        inner.versions += 1;
        let version = inner.versions;
        inner.objects.insert(key.to_owned(), (version, content.into()));
    }

    pub(crate) fn remove(&self, key: &str) {
        self.0.lock().unwrap().objects.remove(key);
    }

    pub(crate) fn unplug(&self, is_unreachable: bool) {
        self.0.lock().unwrap().is_unreachable = is_unreachable;
    }

    pub(crate) fn before_read(&self, action: impl FnOnce(&Memory) + Send + 'static) {
        self.0.lock().unwrap().before_read = Some(Box::new(action));
    }

    pub(crate) fn lack(&self, bytes: u64) {
        self.0.lock().unwrap().lacks = bytes;
    }

    /// Returns the numbers of lists and reads since the last call.
    pub(crate) fn take_counts(&self) -> (u64, u64) {
        let mut inner = self.0.lock().unwrap();
        (std::mem::take(&mut inner.lists), std::mem::take(&mut inner.reads))
    }
}

impl Store for Memory {
    fn list(&self, within: Option<&str>, _: Option<&str>) -> Result<Option<Listing>, StoreError> {
        let mut inner = self.0.lock().unwrap();
        inner.lists += 1;
        if inner.is_unreachable {
            return Err(StoreError::Unavailable {
                url: URL.to_owned(),
                what: "the list of objects".to_owned(),
                why: "no route to host".to_owned(),
            });
        }
        let mut listing = Listing::default();
        for (key, (version, content)) in &inner.objects {
            if within.is_some_and(|within| key.split('/').next() != Some(within)) {
                continue;
            }
            let object = |name| Object::new(name, key, content.len() as u64, format!("\"{version}\""));
            listing.add(URL, key, object)?;
        }
        Ok(Some(listing))
    }

    fn open(&self, object: &Object) -> Result<Arc<dyn OpenObject>, StoreError> {
        Ok(Arc::new(Open {
            memory: self.clone(),
            object: object.clone(),
        }))
    }
}

struct Open {
    memory: Memory,
    object: Object,
}

impl OpenObject for Open {
    fn read(&self, range: Range<u64>) -> Result<Bytes, StoreError> {
        let before = self.memory.0.lock().unwrap().before_read.take();
        if let Some(before) = before {
            before(&self.memory);
        }
        let mut inner = self.memory.0.lock().unwrap();
        inner.reads += 1;
        let changed = StoreError::Changed {
            name: self.object.name.to_string(),
        };
        let Some((version, content)) = inner.objects.get(&self.object.key) else {
            return Err(changed);
        };
        if format!("\"{version}\"") != self.object.etag {
            return Err(changed);
        }
        let end = range.end.saturating_sub(inner.lacks).max(range.start);
        Ok(content.slice(range.start as usize..end as usize))
    }
}

pub(crate) fn mirror(memory: &Memory, cache: &Path) -> Mirror {
    limited(memory, cache, None)
}

pub(crate) fn limited(memory: &Memory, cache: &Path, limit: Option<u64>) -> Mirror {
    let options = MirrorOptions::new(cache).with(|options| {
        options.limit = limit;
        options.is_model_file = Box::new(|name| matches!(name, "model.onnx" | "config.pbtxt"));
    });
    Mirror::with_store(&Location::parse(URL).unwrap(), Box::new(memory.clone()), options).unwrap()
}

/// Returns all files below a directory with their contents.
pub(crate) fn files(folder: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(below) = folders.pop() {
        for entry in fs::read_dir(folder.join(&below)).unwrap() {
            let entry = entry.unwrap();
            let path = below.join(entry.file_name());
            match entry.file_type().unwrap().is_dir() {
                true => folders.push(path),
                false => {
                    let content = String::from_utf8_lossy(&fs::read(entry.path()).unwrap()).into_owned();
                    found.insert(path.to_str().unwrap().to_owned(), content);
                }
            }
        }
    }
    found
}

pub(crate) fn name(text: &str) -> ObjectName {
    ObjectName::parse(text).unwrap()
}
