//! Memory of fixed size shared by two processes.

use std::{
    fmt, fs, io,
    os::fd::OwnedFd,
    ptr,
    sync::{Mutex, PoisonError},
};

use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::{
    MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, fstatfs, ftruncate, memfd_create,
};

/// Memory shared with another process, which may change its contents at any time but never its size.
///
/// Bytes are copied in and out without creating references: whatever the other process does, the worst effect
/// is wrong values in the copies. Linux only, because the type relies on memfd seals to fix the size.
///
/// ```
/// use tensor_mmap::SharedMemory;
///
/// let (ours, descriptor) = SharedMemory::new(1 << 16)?;
/// // The other process gets the descriptor over a Unix socket.
/// let theirs = SharedMemory::open(descriptor, 1 << 20)?;
/// ours.write(100, b"hello")?;
/// let mut found = Vec::new();
/// theirs.append_to(101, 3, &mut found)?;
/// assert_eq!(found, b"ell");
/// # std::io::Result::Ok(())
/// ```
pub struct SharedMemory {
    len: u64,
    /// The mapping, with a lock that serializes access by threads of this process.
    mapping: Mutex<MmapRaw>,
}

impl fmt::Debug for SharedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedMemory")
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

/// The file system type that `fstatfs` reports for `memfd_create`. Huge pages have another type: the system
/// may run out of them on first access, which ends the process.
const TMPFS: u64 = 0x0102_1994;

/// Seals that fix the size of the memory.
const SIZE_SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

impl SharedMemory {
    /// Creates zeroed memory of `len` bytes, and the descriptor for the other process. Pages are allocated on
    /// first write.
    ///
    /// # Errors
    /// When the system call fails; `InvalidInput` for a length of zero; `Unsupported` as in
    /// [`SharedMemory::open`].
    pub fn new(len: u64) -> io::Result<(Self, OwnedFd)> {
        check_overcommit()?;
        let file = memfd_create("tensor-mmap", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, len)?;
        fcntl_add_seals(&file, SIZE_SEALS)?;
        Ok((Self::map(&file, len)?, file))
    }

    /// Maps memory that another process created, of at most `most` bytes. Closes the descriptor.
    ///
    /// # Errors
    /// `InvalidInput` when the descriptor is not writable memory with a sealed size, or when the memory is
    /// empty; the message says what is expected; `FileTooLarge` when it is larger than `most`; `Unsupported`
    /// when strict overcommit (`vm.overcommit_memory=2`) could make a page unavailable on access, which ends
    /// the process.
    pub fn open(file: OwnedFd, most: u64) -> io::Result<Self> {
        check_overcommit()?;
        let expected =
            "expected a descriptor of memfd_create with the seals F_SEAL_SHRINK, F_SEAL_GROW and F_SEAL_SEAL";
        // Only memfds and files on tmpfs have seals, and files on tmpfs never have the size seals.
        let seals = fcntl_get_seals(&file)
            .map_err(|_| wrong(format!("{expected}, found a descriptor that cannot have seals")))?;
        if !seals.contains(SIZE_SEALS) {
            return Err(wrong(format!("{expected}, found {}", shown(seals))));
        }
        if u64::try_from(fstatfs(&file)?.f_type).ok() != Some(TMPFS) {
            return Err(wrong(format!("{expected}, found huge pages")));
        }
        // From here on the seals guarantee the size.
        let len = u64::try_from(fstat(&file)?.st_size).unwrap_or_default();
        if len == 0 || len > most {
            let kind = match len {
                0 => io::ErrorKind::InvalidInput,
                _ => io::ErrorKind::FileTooLarge,
            };
            let message = format!("expected 1 to {most} bytes of shared memory, found {len}");
            return Err(io::Error::new(kind, message));
        }
        Self::map(&file, len).map_err(|error| match error.kind() {
            io::ErrorKind::PermissionDenied => wrong(format!(
                "{expected}, found a descriptor that cannot be written to"
            )),
            _ => error,
        })
    }

    fn map(file: &OwnedFd, len: u64) -> io::Result<Self> {
        let size = usize::try_from(len).ok().filter(|size| *size > 0);
        let size = size.ok_or_else(|| wrong(format!("{len} bytes cannot be mapped")))?;
        let mapping = MmapOptions::new().len(size).map_raw(file)?;
        Ok(Self {
            len,
            mapping: Mutex::new(mapping),
        })
    }

    /// Returns the length in bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "it never is")]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns whether the `len` bytes at `offset` are within the memory.
    #[must_use]
    pub fn has(&self, offset: u64, len: u64) -> bool {
        offset.checked_add(len).is_some_and(|end| end <= self.len)
    }

    /// Appends a copy of the `len` bytes at `offset` to `buffer`.
    ///
    /// # Errors
    /// `InvalidInput` when the range is out of bounds; `OutOfMemory` when the buffer cannot grow.
    #[expect(unsafe_code, reason = "shared memory is reached by its pointer")]
    pub fn append_to(&self, offset: u64, len: u64, buffer: &mut Vec<u8>) -> io::Result<()> {
        self.check(offset, len)?;
        // The range is within the mapping, so both numbers fit `usize`.
        let (offset, len) = (offset as usize, len as usize);
        buffer
            .try_reserve_exact(len)
            .map_err(|_| io::ErrorKind::OutOfMemory)?;
        let mapping = self.mapping.lock().unwrap_or_else(PoisonError::into_inner);
        let end = buffer.len();
        // SAFETY: the range is in the mapping, which is alive and whose file cannot shrink; the vector has
        // capacity for it and does not overlap the mapping; no other thread of this process writes there
        // while the lock is held; concurrent writes by another process yield arbitrary bytes, all of which
        // are valid. The length is set after the bytes are written.
        unsafe {
            ptr::copy_nonoverlapping(mapping.as_ptr().add(offset), buffer.as_mut_ptr().add(end), len);
            buffer.set_len(end + len);
        }
        Ok(())
    }

    /// Copies `bytes` to `offset`.
    ///
    /// # Errors
    /// `InvalidInput` when the bytes do not fit into the memory.
    #[expect(unsafe_code, reason = "shared memory is reached by its pointer")]
    pub fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.check(offset, bytes.len() as u64)?;
        let mapping = self.mapping.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the range is in the mapping, which is alive and writable and whose file cannot shrink; no
        // reference points into it, and the lock excludes other threads of this process.
        unsafe {
            let start = mapping.as_mut_ptr().add(offset as usize);
            ptr::copy_nonoverlapping(bytes.as_ptr(), start, bytes.len());
        }
        Ok(())
    }

    fn check(&self, offset: u64, len: u64) -> io::Result<()> {
        if self.has(offset, len) {
            return Ok(());
        }
        let whole = self.len;
        Err(wrong(format!(
            "{len} bytes from byte {offset} are not within {whole} bytes of shared memory"
        )))
    }
}

/// Rejects strict overcommit, under which the first access to a page can fail with `SIGBUS`. With the other
/// two settings the system provides a page, or frees memory for it as on any other access.
fn check_overcommit() -> io::Result<()> {
    let setting = fs::read_to_string("/proc/sys/vm/overcommit_memory");
    match setting.as_deref().map(str::trim) {
        Ok("0" | "1") => Ok(()),
        found => Err(io::Error::new(
            io::ErrorKind::Unsupported,
            format!(
                "expected vm.overcommit_memory of 0 or 1 for shared memory, found {}",
                found.unwrap_or("no such setting")
            ),
        )),
    }
}

fn wrong(message: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, message)
}

/// Returns the names of the size seals among `seals`, for messages.
fn shown(seals: SealFlags) -> String {
    let known = [
        (SealFlags::SHRINK, "F_SEAL_SHRINK"),
        (SealFlags::GROW, "F_SEAL_GROW"),
        (SealFlags::SEAL, "F_SEAL_SEAL"),
    ];
    let found = known.into_iter().filter(|(seal, _)| seals.contains(*seal));
    let names: Vec<&str> = found.map(|(_, name)| name).collect();
    match names.is_empty() {
        true => "none".to_owned(),
        false => names.join(" and "),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    fn memfd(len: u64, seals: SealFlags) -> OwnedFd {
        let file = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&file, len).unwrap();
        fcntl_add_seals(&file, seals).unwrap();
        file
    }

    fn read(memory: &SharedMemory, offset: u64, len: u64) -> io::Result<Vec<u8>> {
        let mut bytes = vec![7];
        memory.append_to(offset, len, &mut bytes)?;
        assert_eq!(bytes.remove(0), 7);
        Ok(bytes)
    }

    #[test]
    fn both_sides_see_what_the_other_writes() {
        let (ours, descriptor) = SharedMemory::new(10_000).unwrap();
        let theirs = SharedMemory::open(descriptor, 10_000).unwrap();
        ours.write(9_000, &[1; 1000]).unwrap();
        theirs.write(9_500, &[2; 500]).unwrap();
        let found = read(&ours, 9_000, 1000).unwrap();
        assert_eq!(found, read(&theirs, 9_000, 1000).unwrap());
        assert_eq!((found[499], found[500]), (1, 2));
        assert_eq!(read(&theirs, 0, 0).unwrap(), b"");
    }

    #[test]
    fn places_outside_are_refused() {
        let (memory, _) = SharedMemory::new(10_000).unwrap();
        for (offset, len) in [(0, 10_001), (10_000, 1), (u64::MAX, 2), (2, u64::MAX)] {
            let error = read(&memory, offset, len).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{offset} {len}");
        }
        let error = memory.write(9_999, &[1; 2]).unwrap_err();
        let message = "2 bytes from byte 9999 are not within 10000 bytes of shared memory";
        assert_eq!(error.to_string(), message);
        assert_eq!(read(&memory, 9_998, 2).unwrap(), [0, 0]);
    }

    #[test]
    fn only_memory_whose_size_stays_is_taken() {
        let folder = tempfile::tempdir().unwrap();
        let plain = folder.path().join("a");
        fs::write(&plain, [1; 100]).unwrap();
        let (reader, _writer) = io::pipe().unwrap();
        let read_only = {
            use std::os::fd::AsRawFd;
            let file = memfd(100, SIZE_SEALS);
            OwnedFd::from(File::open(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap())
        };
        for (file, found) in [
            (memfd(100, SealFlags::empty()), "found none"),
            (memfd(100, SealFlags::SHRINK), "found F_SEAL_SHRINK"),
            (
                memfd(100, SealFlags::GROW | SealFlags::SEAL),
                "found F_SEAL_GROW and F_SEAL_SEAL",
            ),
            (
                memfd(100, SIZE_SEALS | SealFlags::WRITE),
                "found a descriptor that cannot be written to",
            ),
            (read_only, "found a descriptor that cannot be written to"),
            (File::open(&plain).unwrap().into(), "found"),
            (reader.into(), "found a descriptor that cannot have seals"),
        ] {
            let error = SharedMemory::open(file, 1000).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{found}: {error}");
            assert!(
                error
                    .to_string()
                    .starts_with("expected a descriptor of memfd_create"),
                "{error}"
            );
            assert!(
                error.to_string().ends_with(found) || found == "found",
                "{found}: {error}"
            );
        }
        for len in [0, 1001] {
            let error = SharedMemory::open(memfd(len, SIZE_SEALS), 1000).unwrap_err();
            let message = format!("expected 1 to 1000 bytes of shared memory, found {len}");
            assert_eq!(error.to_string(), message);
        }
    }

    #[test]
    fn huge_pages_are_refused() {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
        // If the system cannot create such memory, no client can pass it either, so there is nothing to test.
        let Ok(file) = memfd_create("test", flags) else {
            return;
        };
        if ftruncate(&file, 2 << 20).is_err() {
            return;
        }
        fcntl_add_seals(&file, SIZE_SEALS).unwrap();
        let error = SharedMemory::open(file, 4 << 20).unwrap_err();
        assert!(error.to_string().ends_with("found huge pages"), "{error}");
    }

    #[test]
    fn the_size_stays_and_holes_are_zeros() {
        let file = memfd(1000, SIZE_SEALS);
        let memory = SharedMemory::open(file.try_clone().unwrap(), 1000).unwrap();
        assert!(ftruncate(&file, 10).is_err());
        assert!(ftruncate(&file, 10_000).is_err());
        memory.write(0, &[1; 1000]).unwrap();
        let holes = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&file, holes, 0, 1000).unwrap();
        assert_eq!(read(&memory, 0, 1000).unwrap(), [0; 1000]);
    }
}
