//! Memory shared with a worker. The server reads and writes it as a file, and the worker maps it.
//!
//! The server creates each region with a sealed size and never maps it. A worker that misuses a region can
//! therefore only produce wrong numbers.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use bytes::Bytes;
use rustix::{
    buffer::spare_capacity,
    fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create},
    io::{Errno, pread, pwrite},
};

/// Alignment of tensors in a region.
pub(crate) const REGION_ALIGNMENT: u64 = 64;

/// Minimum total size of the tensors of a message, in bytes, for using a region. For smaller tensors, a
/// second system call costs more than a second copy.
pub(crate) const LEAST_IN_REGION: u64 = 64 << 10;

/// Maximum total size of the regions that a connection keeps between requests, in bytes. Together with the
/// regions of its idle connections (at most 16 MiB), a process keeps at most 128 MiB.
pub(crate) const KEPT: u64 = 112 << 20;

/// A region of shared memory.
pub(crate) struct Region {
    file: OwnedFd,
    length: u64,
    number: u64,
}

impl Region {
    /// Creates a region of at least `room` zero bytes. The system allocates the memory when it is first used.
    ///
    /// # Errors
    /// When the system is out of memory or descriptors.
    pub(crate) fn new(number: u64, room: u64) -> Result<Self, Errno> {
        // The size is rounded up so that slightly larger requests fit too, but not further, because the size
        // counts towards the kept memory.
        let step = (room.min(KEPT).next_power_of_two() / 8).max(1 << 20);
        let length = room.next_multiple_of(step);
        Self::of_length(number, if length <= KEPT { length.max(step) } else { room })
    }

    /// Creates a region of exactly `length` bytes, which the caller hands over to the worker.
    ///
    /// # Errors
    /// When the system is out of memory or descriptors.
    pub(crate) fn exactly(length: u64) -> Result<Self, Errno> {
        Self::of_length(0, length)
    }

    fn of_length(number: u64, length: u64) -> Result<Self, Errno> {
        let file = memfd_create("oip-worker", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, length)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok(Self { file, length, number })
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    pub(crate) fn len(&self) -> u64 {
        self.length
    }

    /// Writes `bytes` at `offset`.
    ///
    /// # Errors
    /// When the system is out of memory.
    pub(crate) fn write(&self, bytes: &[u8], offset: u64) -> Result<(), Errno> {
        let (mut rest, mut at) = (bytes, offset);
        while !rest.is_empty() {
            match pwrite(&self.file, rest, at) {
                Ok(0) => return Err(Errno::NOSPC),
                Ok(written) => {
                    rest = &rest[written..];
                    at += written as u64;
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Reads `length` bytes at `offset`.
    ///
    /// # Errors
    /// When memory is exhausted, or the range is not within the region.
    pub(crate) fn read(&self, offset: u64, length: u64) -> Result<Bytes, Errno> {
        let end = offset.checked_add(length).filter(|end| *end <= self.length);
        if end.is_none() {
            return Err(Errno::INVAL);
        }
        let length = usize::try_from(length).map_err(|_| Errno::NOMEM)?;
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(length).map_err(|_| Errno::NOMEM)?;
        while bytes.len() < length {
            let at = offset + bytes.len() as u64;
            match pread(&self.file, spare_capacity(&mut bytes), at) {
                Ok(0) => return Err(Errno::IO),
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        // The vector may have more capacity than requested, so it may contain more bytes.
        bytes.truncate(length);
        Ok(bytes.into())
    }
}

impl AsFd for Region {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let region = Region::new(1, 100).unwrap();
        assert_eq!((region.number(), region.len()), (1, 1 << 20));
        region.write(b"abcdef", 64).unwrap();
        assert_eq!(region.read(66, 3).unwrap(), &b"cde"[..]);
        assert_eq!(region.read(0, 2).unwrap(), &[0, 0][..]);
        assert!(region.read(0, 0).unwrap().is_empty());
    }

    #[test]
    fn places_outside_are_refused_and_nobody_changes_the_size() {
        let region = Region::new(1, 2 << 20).unwrap();
        for (offset, length) in [(0, (2 << 20) + 1), (2 << 20, 1), (u64::MAX, 2), (1, u64::MAX)] {
            assert_eq!(region.read(offset, length).unwrap_err(), Errno::INVAL);
        }
        assert!(region.write(&[1; 2], (2 << 20) - 1).is_err());
        assert_eq!(ftruncate(&region, 1), Err(Errno::PERM));
        assert_eq!(ftruncate(&region, 4 << 20), Err(Errno::PERM));
    }

    #[test]
    fn regions_are_filled_up_unless_they_would_not_be_kept_then() {
        for (room, length) in [
            (0, 1 << 20),
            (2 << 20, 2 << 20),
            ((2 << 20) + 1, 3 << 20),
            ((24 << 20) + 1, 28 << 20),
        ] {
            assert_eq!(Region::new(1, room).unwrap().len(), length);
        }
        for length in [24 << 20, KEPT, KEPT + 1] {
            assert_eq!(Region::new(1, length).unwrap().len(), length);
        }
    }
}
