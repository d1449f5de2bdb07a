use std::{
    collections::{BTreeMap, btree_map::Entry},
    fs::{File, OpenOptions},
    io,
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::{Arc, PoisonError, RwLock},
};

use bytes::Bytes;
use oip_service::{
    SystemSharedMemory,
    oip_types::{ErrorCode, ReadSharedMemory, ServiceError, SharedMemoryRegion, SharedMemorySlice},
};
use rustix::fs::OFlags;
use tensor_core::Quoted;

/// How regions are kept.
#[derive(Clone, Debug)]
pub struct RegionsConfig {
    /// Where the system keeps shared memory objects as files (`/dev/shm`).
    pub folder: PathBuf,
    /// Regions at once; each holds a file open (1024).
    pub max_regions: usize,
    /// Bytes that one input or output may have (64 MiB).
    pub max_transfer_bytes: u64,
}

impl Default for RegionsConfig {
    fn default() -> Self {
        Self {
            folder: "/dev/shm".into(),
            max_regions: 1024,
            max_transfer_bytes: 64 << 20,
        }
    }
}

/// The regions that clients registered; see the [crate's page](crate).
#[derive(Debug)]
pub struct Regions {
    config: RegionsConfig,
    known: RwLock<BTreeMap<String, Arc<Open>>>,
}

/// A region and the object it is in.
#[derive(Debug)]
struct Open {
    region: SharedMemoryRegion,
    object: File,
    is_writable: bool,
}

impl Regions {
    /// No regions yet.
    #[must_use]
    pub fn new(config: RegionsConfig) -> Self {
        Self {
            config,
            known: RwLock::default(),
        }
    }

    /// Where a slice begins in which object, if it is one of a region.
    fn locate(&self, slice: &SharedMemorySlice) -> Result<(Arc<Open>, u64), ServiceError> {
        let name = &slice.region;
        let limit = self.config.max_transfer_bytes;
        if slice.byte_size > limit {
            let found = slice.byte_size;
            let message = format!("expected at most {limit} bytes at once, found {found}");
            return Err(ServiceError::new(ErrorCode::TooLarge, message).within(named(name)));
        }
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let open = known
            .get(name)
            .cloned()
            .ok_or_else(|| refused(name, "it is not registered"))?;
        let (start, size) = (slice.offset, slice.byte_size);
        let is_within = start
            .checked_add(size)
            .is_some_and(|end| end <= open.region.byte_size);
        if !is_within {
            let bytes = open.region.byte_size;
            let message = format!("{size} bytes from byte {start} are not within its {bytes} bytes");
            return Err(refused(name, &message));
        }
        // The sum was checked when the region was registered.
        let start = open.region.offset + start;
        Ok((open, start))
    }
}

impl ReadSharedMemory for Regions {
    fn read(&self, slice: &SharedMemorySlice) -> Result<Bytes, ServiceError> {
        let (open, start) = self.locate(slice)?;
        // Bounded by the region, which was no larger than its object, and by the limit.
        let mut bytes = vec![0; slice.byte_size as usize];
        open.object
            .read_exact_at(&mut bytes, start)
            .map_err(|error| shrunk(slice, error))?;
        Ok(bytes.into())
    }
}

impl SystemSharedMemory for Regions {
    fn register(&self, region: SharedMemoryRegion) -> Result<(), ServiceError> {
        let name = region.name.clone();
        if name.is_empty() {
            return Err(ServiceError::invalid("a shared memory region needs a name"));
        }
        let end = region.offset.checked_add(region.byte_size);
        let Some(end) = end.filter(|_| region.byte_size > 0) else {
            let (offset, bytes) = (region.offset, region.byte_size);
            return Err(refused(
                &name,
                &format!("{bytes} bytes from byte {offset} are no region"),
            ));
        };
        // Whether it is missing, forbidden or no memory at all is nobody's business.
        let unable = || {
            refused(
                &name,
                "there is no shared memory object of that key, or it is too small",
            )
        };
        let path = object_path(&self.config.folder, &region.key).ok_or_else(unable)?;
        let (object, is_writable) = open_object(&path).map_err(|error| unable().caused_by(error))?;
        let metadata = object.metadata().map_err(|error| unable().caused_by(error))?;
        if !metadata.is_file() || metadata.len() < end {
            return Err(unable());
        }
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        let (count, limit) = (known.len(), self.config.max_regions);
        match known.entry(name) {
            Entry::Occupied(taken) => Err(refused(taken.key(), "it is registered already")),
            Entry::Vacant(_) if count >= limit => Err(ServiceError::new(
                ErrorCode::Overloaded,
                format!("{count} shared memory regions are registered, which is the limit"),
            )),
            Entry::Vacant(free) => {
                free.insert(Arc::new(Open {
                    region,
                    object,
                    is_writable,
                }));
                Ok(())
            }
        }
    }

    fn unregister(&self, name: Option<&str>) {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        match name {
            Some(name) => drop(known.remove(name)),
            None => known.clear(),
        }
    }

    fn status(&self, name: Option<&str>) -> Result<Vec<SharedMemoryRegion>, ServiceError> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let region = |open: &Arc<Open>| open.region.clone();
        let Some(name) = name else {
            return Ok(known.values().map(region).collect());
        };
        let not_found = || ServiceError::new(ErrorCode::NotFound, "it is not registered").within(named(name));
        known
            .get(name)
            .map(|open| vec![region(open)])
            .ok_or_else(not_found)
    }

    fn write(&self, slice: &SharedMemorySlice, bytes: &[u8]) -> Result<(), ServiceError> {
        let (open, start) = self.locate(slice)?;
        if bytes.len() as u64 > slice.byte_size {
            let (expected, found) = (bytes.len(), slice.byte_size);
            let message = format!("expected at least {expected} bytes, found {found}");
            return Err(refused(&slice.region, &message));
        }
        if !open.is_writable {
            return Err(refused(&slice.region, "the server may read it but not write it"));
        }
        // Writing past the end would make the object larger: it is the client's to say how large it is.
        let len = open
            .object
            .metadata()
            .map_err(|error| shrunk(slice, error))?
            .len();
        if len < start + bytes.len() as u64 {
            return Err(shrunk(slice, io::ErrorKind::UnexpectedEof.into()));
        }
        open.object
            .write_all_at(bytes, start)
            .map_err(|error| shrunk(slice, error))
    }
}

/// The file of a key, if it is one name: `shm_open` takes it with a slash before it or without.
fn object_path(folder: &Path, key: &str) -> Option<PathBuf> {
    let name = key.strip_prefix('/').unwrap_or(key);
    let is_name =
        !name.is_empty() && name.len() <= 255 && !name.contains(['/', '\0']) && name != "." && name != "..";
    is_name.then(|| folder.join(name))
}

/// Opens an object, and says whether it can be written. Links are not followed and pipes not waited for.
fn open_object(path: &Path) -> io::Result<(File, bool)> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC)
        .bits()
        .cast_signed();
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(flags);
    match options.clone().write(true).open(path) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok((options.open(path)?, false)),
        opened => Ok((opened?, true)),
    }
}

fn named(region: &str) -> String {
    format!("shared memory region {}", Quoted(region))
}

fn refused(region: &str, why: &str) -> ServiceError {
    ServiceError::invalid(why).within(named(region))
}

fn shrunk(slice: &SharedMemorySlice, error: io::Error) -> ServiceError {
    refused(
        &slice.region,
        "its memory has become smaller, or cannot be used any more",
    )
    .caused_by(error)
}
