//! The system shared memory extension: the table of registered regions, and access to their bytes.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    fs::{File, OpenOptions},
    io,
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;
use oip_service::{
    SystemSharedMemory,
    oip_types::{ErrorCode, ReadSharedMemory, ServiceError, SharedMemoryRegion, SharedMemorySlice},
};
use parking_lot::RwLock;
use rustix::{
    fs::OFlags,
    io::Errno,
    process::{Resource, getrlimit},
};
use tensor_core::QuotedName;

/// Limits for registered regions.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RegionsConfig {
    /// The directory in which the system keeps shared memory objects as files (`/dev/shm`).
    pub folder: PathBuf,
    /// Maximum number of regions, each of which holds an open file. The default is 1024, or a quarter of the
    /// process's descriptor limit if that is less, so that enough descriptors remain for connections and
    /// models.
    pub max_regions: usize,
    /// Maximum size of one input or output in bytes (default 64 MiB).
    pub max_transfer_bytes: u64,
}

impl Default for RegionsConfig {
    fn default() -> Self {
        Self {
            folder: "/dev/shm".into(),
            max_regions: regions_for(getrlimit(Resource::Nofile).current),
            max_transfer_bytes: 64 << 20,
        }
    }
}

/// Returns the number of regions that leaves most of `descriptors` for other uses; `None` means no limit.
fn regions_for(descriptors: Option<u64>) -> usize {
    const MOST: usize = 1024;
    let quarter = descriptors.and_then(|descriptors| usize::try_from(descriptors / 4).ok());
    quarter.unwrap_or(MOST).clamp(1, MOST)
}

/// The regions that clients registered; see the [crate's page](crate).
#[derive(Debug)]
pub struct Regions {
    config: RegionsConfig,
    known: RwLock<BTreeMap<String, Arc<Open>>>,
}

/// A region and its open shared memory object.
#[derive(Debug)]
struct Open {
    region: SharedMemoryRegion,
    object: File,
    is_writable: bool,
}

impl Regions {
    /// Creates an empty table of regions.
    #[must_use]
    pub fn new(config: RegionsConfig) -> Self {
        Self {
            config,
            known: RwLock::default(),
        }
    }

    /// Refuses a region beyond the limit.
    fn has_room(&self, known: &BTreeMap<String, Arc<Open>>, name: &str) -> Result<(), ServiceError> {
        let (count, limit) = (known.len(), self.config.max_regions);
        if count < limit || known.contains_key(name) {
            return Ok(());
        }
        let found = format!("{count} regions are registered, the server's limit; unregister one first");
        Err(no_room(name, &found))
    }

    /// Returns the object of a slice's region and the slice's offset in the object, if the slice is within
    /// the region.
    fn locate(&self, slice: &SharedMemorySlice) -> Result<(Arc<Open>, u64), ServiceError> {
        let name = &slice.region;
        let limit = self.config.max_transfer_bytes;
        if slice.byte_size > limit {
            let found = slice.byte_size;
            let message = format!("expected at most {limit} bytes at once, found {found}");
            return Err(ServiceError::new(ErrorCode::TooLarge, message).within(named(name)));
        }
        let known = self.known.read();
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
        // The allocation is bounded by the transfer limit, and by the size of the region, whose object was at
        // least as large when it was registered.
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
                &format!("{bytes} bytes from byte {offset} are not a valid region"),
            ));
        };
        // The error must not reveal whether the object is missing, forbidden or not shared memory.
        let unable = || {
            refused(
                &name,
                "there is no shared memory object of that key, or it is too small",
            )
        };
        let path = object_path(&self.config.folder, &region.key).ok_or_else(unable)?;
        self.has_room(&self.known.read(), &name)?;
        let (object, is_writable) =
            open_object(&path).map_err(|error| match Errno::from_io_error(&error) {
                // The error for a lack of descriptors reveals nothing about the object, and lets the client
                // retry.
                Some(Errno::MFILE | Errno::NFILE) => {
                    no_room(&name, "the server has no file descriptor left for it").caused_by(error)
                }
                _ => unable().caused_by(error),
            })?;
        let metadata = object.metadata().map_err(|error| unable().caused_by(error))?;
        if !metadata.is_file() || metadata.len() < end {
            return Err(unable());
        }
        let mut known = self.known.write();
        // Other clients may have registered regions meanwhile.
        self.has_room(&known, &name)?;
        match known.entry(name) {
            Entry::Occupied(taken) => Err(refused(taken.key(), "it is registered already")),
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
        let mut known = self.known.write();
        match name {
            Some(name) => drop(known.remove(name)),
            None => known.clear(),
        }
    }

    fn status(&self, name: Option<&str>) -> Result<Vec<SharedMemoryRegion>, ServiceError> {
        let known = self.known.read();
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
        // A write past the end would make the object larger, but only the client may choose its size.
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

/// Returns the object's path for a key, or `None` if the key is not a single file name. A leading slash is
/// optional, as in `shm_open`.
fn object_path(folder: &Path, key: &str) -> Option<PathBuf> {
    let name = key.strip_prefix('/').unwrap_or(key);
    let is_name =
        !name.is_empty() && name.len() <= 255 && !name.contains(['/', '\0']) && name != "." && name != "..";
    is_name.then(|| folder.join(name))
}

/// Opens an object, and returns whether it is writable. Does not follow links or wait for pipes.
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
    format!("shared memory region {}", QuotedName(region))
}

fn no_room(region: &str, why: &str) -> ServiceError {
    ServiceError::new(ErrorCode::Overloaded, why).within(named(region))
}

fn refused(region: &str, why: &str) -> ServiceError {
    ServiceError::invalid(why).within(named(region))
}

fn shrunk(slice: &SharedMemorySlice, error: io::Error) -> ServiceError {
    refused(
        &slice.region,
        "its memory has become smaller, or is no longer usable",
    )
    .caused_by(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_take_a_quarter_of_the_descriptors_at_most() {
        for (descriptors, regions) in [
            (None, 1024),
            (Some(1 << 20), 1024),
            (Some(1024), 256),
            (Some(64), 16),
            (Some(3), 1),
        ] {
            assert_eq!(regions_for(descriptors), regions, "{descriptors:?}");
        }
    }
}
