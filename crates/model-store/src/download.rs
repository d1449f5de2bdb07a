//! Downloads objects: parallel range requests, hashed in order, with bounded memory.

use std::{collections::BTreeMap, os::unix::fs::FileExt, thread};

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use sha2::{Digest, Sha256};

use crate::{
    cache::Cache,
    error::StoreError,
    name::hex,
    store::{Object, OpenObject, Store},
};

/// Maximum size of a range request in bytes.
pub(crate) const RANGE: u64 = 8 << 20;
/// Maximum number of concurrent requests, and of ranges in memory.
pub(crate) const AT_A_TIME: usize = 4;

/// Downloads an object into the cache and returns its SHA-256. Calls `progress` with the bytes received.
///
/// # Errors
/// When the download fails, when the object does not have the listed version, or when the cache cannot store
/// the object. No partial file remains.
pub(crate) fn fetch(
    store: &dyn Store,
    cache: &Cache,
    url: &str,
    object: &Object,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<String, StoreError> {
    let partial = cache.begin(object)?;
    let mut hasher = Sha256::new();
    if object.size > 0 {
        let open = store.open(object)?;
        let file = partial.file();
        let mut at = 0;
        ranges(&*open, object, &mut |bytes| {
            file.write_all_at(&bytes, at)
                .map_err(StoreError::cache(cache.folder(), "an object cannot be written"))?;
            hasher.update(&bytes);
            at += bytes.len() as u64;
            progress(bytes.len() as u64);
            Ok(())
        })?;
    }
    let sha256 = hex(&hasher.finalize());
    if let Some(expected) = object.sha256.as_ref().filter(|expected| **expected != sha256) {
        return Err(StoreError::Digest {
            name: object.name.to_string(),
            expected: expected.clone(),
            found: sha256,
        });
    }
    cache.keep(partial, url, object, &sha256)?;
    Ok(sha256)
}

/// Downloads many objects and returns their digests. Small objects are downloaded several at a time, large
/// objects one at a time in parallel ranges.
///
/// # Errors
/// The first error. Completed downloads stay in the cache.
pub(crate) fn fetch_all(
    store: &dyn Store,
    cache: &Cache,
    url: &str,
    objects: &[&Object],
    progress: &(dyn Fn(u64) + Sync),
) -> Result<Vec<String>, StoreError> {
    let mut digests = vec![String::new(); objects.len()];
    let mut small = Vec::new();
    for (index, (object, digest)) in objects.iter().zip(&mut digests).enumerate() {
        match object.size > RANGE {
            true => *digest = fetch(store, cache, url, object, progress)?,
            false => small.push(index),
        }
    }
    let threads = AT_A_TIME.min(small.len());
    let waiting = Mutex::new(small.into_iter());
    let done = Mutex::new((digests, None));
    thread::scope(|scope| {
        let work = || {
            while done.lock().1.is_none() {
                let Some(index) = waiting.lock().next() else {
                    return;
                };
                let fetched = fetch(store, cache, url, objects[index], progress);
                let mut done = done.lock();
                match fetched {
                    Ok(digest) => done.0[index] = digest,
                    Err(error) => {
                        done.1.get_or_insert(error);
                    }
                }
            }
        };
        for _ in 1..threads {
            scope.spawn(work);
        }
        work();
    });
    match done.into_inner() {
        (_, Some(error)) => Err(error),
        (digests, None) => Ok(digests),
    }
}

/// The ranges of an object, read by several threads and passed on in order.
struct RangeQueue {
    /// The number of ranges.
    count: u64,
    state: Mutex<Ranges>,
    changed: Condvar,
}

/// The state shared by the downloading threads.
#[derive(Default)]
struct Ranges {
    /// Index of the next range to fetch.
    next: u64,
    /// Index of the next range to pass on.
    taken: u64,
    there: BTreeMap<u64, Bytes>,
    failure: Option<StoreError>,
    is_over: bool,
}

impl RangeQueue {
    /// Reads ranges with `read` until all are read, one fails or the queue is closed.
    fn fetch(&self, read: impl Fn(u64) -> Result<Bytes, StoreError>) {
        let mut ranges = self.state.lock();
        loop {
            let is_full = |ranges: &Ranges| ranges.next >= ranges.taken + AT_A_TIME as u64;
            while !ranges.is_over && ranges.next < self.count && is_full(&ranges) {
                self.changed.wait(&mut ranges);
            }
            if ranges.is_over || ranges.next >= self.count {
                return;
            }
            let index = ranges.next;
            ranges.next += 1;
            drop(ranges);
            let bytes = read(index);
            ranges = self.state.lock();
            match bytes {
                Ok(bytes) => drop(ranges.there.insert(index, bytes)),
                Err(error) => {
                    ranges.failure.get_or_insert(error);
                    ranges.is_over = true;
                }
            }
            self.changed.notify_all();
        }
    }

    /// Passes all ranges on to `take` in order.
    fn pass_on(&self, take: &mut dyn FnMut(Bytes) -> Result<(), StoreError>) -> Result<(), StoreError> {
        for index in 0..self.count {
            let mut ranges = self.state.lock();
            let bytes = loop {
                if let Some(failure) = ranges.failure.take() {
                    return Err(failure);
                }
                if let Some(bytes) = ranges.there.remove(&index) {
                    break bytes;
                }
                self.changed.wait(&mut ranges);
            };
            drop(ranges);
            take(bytes)?;
            self.state.lock().taken = index + 1;
            self.changed.notify_all();
        }
        Ok(())
    }

    fn close(&self) {
        self.state.lock().is_over = true;
        self.changed.notify_all();
    }
}

/// Reads an object and passes its bytes on in order, with at most [`AT_A_TIME`] ranges in memory.
fn ranges(
    open: &dyn OpenObject,
    object: &Object,
    take: &mut dyn FnMut(Bytes) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    let count = object.size.div_ceil(RANGE);
    if count == 1 {
        return take(read_range(open, object, 0)?);
    }
    let queue = RangeQueue {
        count,
        state: Mutex::default(),
        changed: Condvar::new(),
    };
    thread::scope(|scope| {
        for _ in 0..count.min(AT_A_TIME as u64) {
            scope.spawn(|| queue.fetch(|index| read_range(open, object, index)));
        }
        let outcome = queue.pass_on(take);
        queue.close();
        outcome
    })
}

/// Reads the range `index` of an object.
fn read_range(open: &dyn OpenObject, object: &Object, index: u64) -> Result<Bytes, StoreError> {
    let range = index * RANGE..((index + 1) * RANGE).min(object.size);
    let length = range.end - range.start;
    let bytes = open.read(range.clone())?;
    match bytes.len() as u64 == length {
        true => Ok(bytes),
        false => Err(StoreError::Truncated {
            name: object.name.to_string(),
            expected: object.size,
            found: range.start + bytes.len() as u64,
        }),
    }
}
