//! Simulates a disk that fails or is full, by making system calls fail.
//!
//! A seccomp filter makes selected system calls of one thread fail. The filter cannot be removed, so each
//! test uses a separate thread.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::Write,
    os::fd::{AsRawFd, RawFd},
    path::Path,
    sync::{Mutex, PoisonError},
    thread,
};

use fmt_core::{AppendFile, AtomicFile, ByteSource, Error, ErrorKind, FileSource};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen,
    SeccompCmpOp::{self, Eq, Ne},
    SeccompCondition, SeccompFilter, SeccompRule, apply_filter,
};
use tempfile::TempDir;

const EIO: u32 = libc::EIO as u32;
const ENOSPC: u32 = libc::ENOSPC as u32;

/// Descriptors belong to the whole process, so tests that depend on the number of the next descriptor run one
/// at a time.
static ALONE: Mutex<()> = Mutex::new(());

/// Makes the system call `call` fail with `error` on this thread whenever its first argument, a descriptor,
/// satisfies all comparisons in `descriptors`.
fn fail(call: libc::c_long, error: u32, descriptors: &[(SeccompCmpOp, RawFd)]) {
    let conditions = descriptors.iter().map(|(compares, descriptor)| {
        SeccompCondition::new(0, SeccompCmpArgLen::Dword, compares.clone(), *descriptor as u64).unwrap()
    });
    let rule = SeccompRule::new(conditions.collect()).unwrap();
    let filter = SeccompFilter::new(
        BTreeMap::from([(call, vec![rule])]),
        SeccompAction::Allow,
        SeccompAction::Errno(error),
        std::env::consts::ARCH.try_into().unwrap(),
    );
    let program: BpfProgram = filter.unwrap().try_into().unwrap();
    apply_filter(&program).unwrap();
}

/// Returns the descriptors of the open files whose paths begin with `prefix`.
fn descriptors_of(prefix: &Path) -> Vec<RawFd> {
    let prefix = prefix.to_string_lossy().into_owned();
    let open = fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap());
    let matching = open.filter(|entry| {
        fs::read_link(entry.path()).is_ok_and(|path| path.to_string_lossy().starts_with(&prefix))
    });
    matching
        .map(|entry| entry.file_name().to_string_lossy().parse().unwrap())
        .collect()
}

fn names(folder: &TempDir) -> Vec<String> {
    let entries = fs::read_dir(folder.path()).unwrap();
    let mut names: Vec<_> = entries
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// Starts replacing a file with `content` on a new thread, and passes the new file and its descriptor to
/// `and`, which may make that thread's system calls fail.
fn replace(
    content: &'static [u8],
    and: impl FnOnce(AtomicFile, RawFd) -> Result<(), Error> + Send + 'static,
) -> (Result<(), Error>, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("a");
    fs::write(&target, "old").unwrap();
    let outcome = thread::spawn(move || {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        // A new file gets the lowest free descriptor. The file must not have a descriptor that a later file
        // could get, so all lower descriptors must be in use. Tests that run concurrently may free a lower
        // descriptor meanwhile.
        let (mut file, descriptor) = loop {
            let lower: Vec<File> = (0..64)
                .map(|_| File::open("/proc/self/status").unwrap())
                .collect();
            let file = AtomicFile::create(&target).unwrap();
            // The new file is the only open file in the directory; it has a random name or none.
            let descriptor = descriptors_of(target.parent().unwrap())[0];
            if lower.iter().all(|lower| lower.as_raw_fd() < descriptor) {
                break (file, descriptor);
            }
        };
        file.write_all(content).unwrap();
        and(file, descriptor)
    });
    (outcome.join().unwrap(), folder)
}

fn is_io(outcome: Result<(), Error>, says: &str, code: u32) {
    let error = outcome.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io);
    let system = std::io::Error::from_raw_os_error(code as i32);
    assert_eq!(error.to_string(), format!("{says}: {system}"));
}

#[test]
fn a_file_that_does_not_reach_the_disk_is_not_published() {
    let (outcome, folder) = replace(b"new", |file, descriptor| {
        fail(libc::SYS_fsync, EIO, &[(Eq, descriptor)]);
        file.persist()
    });
    is_io(outcome, "the file cannot be synced to disk", EIO);
    assert_eq!(fs::read(folder.path().join("a")).unwrap(), b"old");
    assert_eq!(names(&folder), ["a"], "the temporary file is still there");
}

/// After a failed fsync, the kernel may consider the pages clean, so that the next fsync succeeds without
/// writing. The bytes must therefore be written again: publishing consumes the file, and a retry starts a new
/// one.
#[test]
fn trying_again_writes_again() {
    let (outcome, folder) = replace(b"lost", |file, descriptor| {
        let folder = fs::read_link(format!("/proc/self/fd/{descriptor}")).unwrap();
        let target = folder.with_file_name("a");
        fail(libc::SYS_fsync, EIO, &[(Eq, descriptor)]);
        assert!(file.persist().is_err());
        let lower = File::open("/proc/self/status").unwrap();
        assert_ne!(lower.as_raw_fd(), descriptor, "the next file would fail too");
        drop(lower);
        let mut again = AtomicFile::create(&target)?;
        again.write_all(b"written again").unwrap();
        again.persist()
    });
    outcome.unwrap();
    assert_eq!(fs::read(folder.path().join("a")).unwrap(), b"written again");
    assert_eq!(names(&folder), ["a"]);
}

/// When the directory cannot be synced, the new file already has its final name. A power failure may undo the
/// rename, so `persist` returns an error.
#[test]
fn a_folder_that_does_not_reach_the_disk_is_no_success() {
    let (outcome, folder) = replace(b"new", |file, descriptor| {
        fail(libc::SYS_fsync, EIO, &[(Ne, descriptor)]);
        file.persist()
    });
    is_io(outcome, "the directory cannot be synced to disk", EIO);
    assert_eq!(fs::read(folder.path().join("a")).unwrap(), b"new");
    assert_eq!(names(&folder), ["a"]);
}

/// `fsync` has already reported deferred write errors, so an error from `close` does not matter: the complete
/// file is published.
#[test]
fn an_error_of_close_comes_after_the_bytes_are_safe() {
    let (outcome, folder) = replace(b"new", |file, descriptor| {
        fail(libc::SYS_close, EIO, &[(Eq, descriptor)]);
        file.persist()
    });
    outcome.unwrap();
    assert_eq!(fs::read(folder.path().join("a")).unwrap(), b"new");
    assert_eq!(names(&folder), ["a"]);
}

/// Checks that a full disk leaves the target unchanged. Small content stays in the buffer, so `persist`
/// fails; with large content, `write_all` fails.
#[test]
fn a_full_disk_leaves_the_target() {
    let (outcome, folder) = replace(b"new", |file, descriptor| {
        fail(libc::SYS_write, ENOSPC, &[(Eq, descriptor)]);
        file.persist()
    });
    is_io(outcome, "the file cannot be written", ENOSPC);
    assert_eq!(fs::read(folder.path().join("a")).unwrap(), b"old");
    assert_eq!(names(&folder), ["a"]);

    let (outcome, folder) = replace(b"new", |mut file, descriptor| {
        fail(libc::SYS_write, ENOSPC, &[(Eq, descriptor)]);
        file.write_all(&vec![1; 3 << 20])
            .map_err(|error| Error::io("writing", error))
    });
    is_io(outcome, "writing", ENOSPC);
    assert_eq!(fs::read(folder.path().join("a")).unwrap(), b"old");
    assert_eq!(names(&folder), ["a"]);
}

/// Appends to a file on a new thread. Just before the commit, `breaking` gets the file's descriptors and may
/// make that thread's system calls fail.
fn append(breaking: impl FnOnce(&[RawFd]) + Send + 'static) -> (Result<(), Error>, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a");
    fs::write(&path, "old end.").unwrap();
    let outcome = thread::spawn(move || {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let opened = FileSource::open(&path).unwrap();
        let mut file = AppendFile::open(&path, &opened, 0..opened.len()).unwrap();
        drop(opened);
        file.write_all(b" new").unwrap();
        breaking(&descriptors_of(&path));
        file.commit(b" end.")
    });
    (outcome.join().unwrap(), folder)
}

#[test]
fn wr_03_a_change_in_place_that_fails_is_undone() {
    for (call, error) in [
        (libc::SYS_write, ENOSPC),
        (libc::SYS_fdatasync, EIO),
        (libc::SYS_fdatasync, ENOSPC),
    ] {
        let (outcome, folder) = append(move |files| {
            files.iter().for_each(|file| fail(call, error, &[(Eq, *file)]));
        });
        is_io(outcome, "the file cannot be synced to disk", error);
        assert_eq!(fs::read(folder.path().join("a")).unwrap(), b"old end.");
        assert_eq!(names(&folder), ["a"]);
    }
}

/// If even the truncation cannot be synced, the journal is kept, so that a later process can truncate the
/// file.
#[test]
fn a_change_in_place_that_cannot_be_undone_keeps_its_journal() {
    let (outcome, folder) = append(|files| {
        files
            .iter()
            .for_each(|file| fail(libc::SYS_fsync, EIO, &[(Eq, *file)]));
    });
    is_io(outcome, "the file cannot be synced to disk", EIO);
    let path = folder.path().join("a");
    assert_eq!(names(&folder), ["a", "a.append-journal"]);
    AppendFile::recover(&path, |_| Ok(())).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"old end.");
    assert_eq!(names(&folder), ["a"]);
}

/// Checks that `commit` returns an error if the journal's removal cannot be synced: a journal that reappears
/// after a power failure would undo the change.
#[test]
fn a_change_in_place_counts_when_the_journal_is_gone_from_the_disk() {
    let (outcome, folder) = append(|files| {
        let others: Vec<_> = files.iter().map(|file| (Ne, *file)).collect();
        fail(libc::SYS_fsync, EIO, &others);
    });
    is_io(outcome, "the directory cannot be synced to disk", EIO);
    assert_eq!(fs::read(folder.path().join("a")).unwrap(), b"old end. new end.");
    assert_eq!(names(&folder), ["a"]);
}
