//! Changes files in place: appends new bytes under a lock, with a journal to undo an interrupted change.

use std::{
    fmt,
    fs::{self, File},
    io::{self, BufWriter, Read, Seek, Write},
    ops::Range,
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;

use crate::{
    AtomicFile, ByteSource, Error, ErrorKind, FileSource,
    atomic_file::{beside, sync_folder},
    identity::changed,
};

/// A file that is atomically extended at its end: after a crash, the file has either its old or its new
/// contents.
///
/// Meant for formats with the index at the end: a new index is written after the old one, and nothing is
/// overwritten. All data is synced to disk before the last bytes, the `tail`, make the file valid. Dropping
/// the value without [`AppendFile::commit`] truncates the file to its old length; after a crash,
/// [`AppendFile::recover`] truncates it. During the change, a journal next to the file,
/// `NAME.append-journal`, holds the old length. A lock excludes other appenders. Concurrent readers may see
/// an incomplete file.
///
/// ```
/// use std::io::Write;
/// use fmt_core::{AppendFile, ByteSource, FileSource};
///
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("a");
/// std::fs::write(&path, "old end.")?;
/// let opened = FileSource::open(&path)?;
/// let mut file = AppendFile::open(&path, &opened, 0..opened.len())?;
/// file.write_all(b" new")?;
/// file.commit(b" end.")?;
/// assert_eq!(std::fs::read(&path)?, b"old end. new end.");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct AppendFile {
    /// Buffered writer of the file; `None` only during open, commit and drop.
    out: Option<BufWriter<File>>,
    /// A second handle to the file, used to truncate it.
    file: File,
    journal: PathBuf,
    old_len: u64,
    is_committed: bool,
}

impl AppendFile {
    /// Write buffer size in bytes.
    const BUFFER: usize = 1 << 20;

    /// Starts appending to the file at `path`, which is open as `opened`. Compares the bytes in the range
    /// `end`, such as the index, with the file on disk to detect changes.
    ///
    /// # Errors
    /// [`ErrorKind::Changed`] when the file has changed since it was opened; [`ErrorKind::Io`], also when
    /// another process is appending, or an earlier change was interrupted (see [`AppendFile::recover`]).
    pub fn open(path: &Path, opened: &FileSource, end: Range<u64>) -> Result<Self, Error> {
        let cannot_open = |error| Error::io("the file cannot be opened for writing", error);
        let journal = journal_of(path);
        let file = reopen(path, opened, end, opened, &journal)?;
        let old_len = opened.len();
        let mut announced = AtomicFile::create(&journal)?;
        announced
            .write_all(format!("{old_len}\n").as_bytes())
            .map_err(|error| Error::io("the journal cannot be written", error))?;
        announced.persist()?;
        // After this point, dropping the value removes the journal.
        let mut appended = Self {
            out: None,
            file,
            journal,
            old_len,
            is_committed: false,
        };
        let mut out = appended.file.try_clone().map_err(cannot_open)?;
        out.seek(io::SeekFrom::Start(old_len)).map_err(cannot_open)?;
        appended.out = Some(BufWriter::with_capacity(Self::BUFFER, out));
        Ok(appended)
    }

    /// Returns the file's length before the change, where new data starts.
    #[must_use]
    pub fn old_len(&self) -> u64 {
        self.old_len
    }

    /// Commits: syncs the data to disk, writes `tail`, and syncs again.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] when a system call fails. The file is then truncated to its old length, unless only
    /// removing the journal or syncing that removal failed.
    pub fn commit(mut self, tail: &[u8]) -> Result<(), Error> {
        let failed = |error| Error::io("the file cannot be synced to disk", error);
        let out = self.out.take();
        let out = out.ok_or_else(|| Error::new(ErrorKind::Io, "the file was already committed"))?;
        let mut file = out.into_inner().map_err(|error| {
            // Buffered bytes must not be written after the truncation.
            let (error, out) = error.into_parts();
            let _ = out.into_parts();
            failed(error)
        })?;
        file.sync_data().map_err(failed)?;
        file.write_all(tail).map_err(failed)?;
        file.sync_all().map_err(failed)?;
        self.is_committed = true;
        remove_journal(&self.journal)
    }

    /// Truncates a file to its old length after a crash during a change. Returns the number of bytes removed.
    ///
    /// Does nothing if there is no journal next to the file. `is_whole` checks that the remaining bytes are a
    /// valid file; if it returns an error, no bytes are removed.
    ///
    /// # Errors
    /// [`ErrorKind::Malformed`] when the journal does not match the file; [`ErrorKind::Io`], also when
    /// another process is changing the file.
    pub fn recover(
        path: &Path,
        is_whole: impl Fn(Arc<dyn ByteSource>) -> Result<(), Error>,
    ) -> Result<u64, Error> {
        let journal = journal_of(path);
        if !journal.exists() {
            return Ok(0);
        }
        // The journal is read only under the lock, because otherwise a change that commits in between would
        // be undone.
        let file = open_locked(path)?;
        let announced = match File::open(&journal) {
            Ok(announced) => announced,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
            Err(error) => return Err(Error::io("the journal cannot be opened", error)),
        };
        let cannot_read = |error| Error::io("the file or its journal cannot be read", error);
        let source = Arc::new(FileSource::new(file.try_clone().map_err(cannot_read)?)?);
        let len = source.len();
        let mut text = String::new();
        // A 64-bit number has at most 20 digits; a newline follows.
        let read = announced.take(22).read_to_string(&mut text);
        read.map_err(cannot_read)?;
        let old_len = text.strip_suffix('\n').and_then(|text| text.parse::<u64>().ok());
        let old_len = old_len.filter(|old_len| *old_len <= len);
        let Some(old_len) = old_len else {
            let error = Error::new(ErrorKind::Malformed, "the journal");
            return Err(error
                .expected("the length of the file before the change")
                .found(tensor_core::QuotedName(&text)));
        };
        // Removing the journal commits the change. Until then, `commit` has not returned success.
        let head = Head {
            source: Arc::clone(&source) as _,
            len: old_len,
        };
        if let Err(error) = is_whole(Arc::new(head)) {
            // If another program has replaced the file, there is nothing to undo.
            if is_whole(source).is_ok() {
                return remove_journal(&journal).map(|()| 0);
            }
            return Err(error);
        }
        let cut = file.set_len(old_len).and_then(|()| file.sync_all());
        cut.map_err(|error| Error::io("the file cannot be truncated", error))?;
        remove_journal(&journal)?;
        Ok(len - old_len)
    }
}

/// Opens the file at `path` under a lock to change it in place. Fails if the file at `path` is not the file
/// `opened`, has changed, or has the journal of an interrupted change. Compares the bytes in the range
/// `proof`, such as the index, with the same range of `known`.
pub(crate) fn reopen(
    path: &Path,
    opened: &FileSource,
    proof: Range<u64>,
    known: &dyn ByteSource,
    journal: &Path,
) -> Result<File, Error> {
    const CHUNK: u64 = 64 << 10;
    let file = open_locked(path)?;
    if journal.exists() {
        let what = "an earlier change was interrupted and must be undone first";
        return Err(Error::new(ErrorKind::Io, what).found(journal.display()));
    }
    let cloned = file.try_clone();
    let cloned = cloned.map_err(|error| Error::io("the file cannot be opened for writing", error))?;
    let current = FileSource::new(cloned)?;
    let cannot_read = |error| Error::io("the file cannot be read", error);
    let mut is_same = current.identity() == opened.identity();
    let mut at = proof.start;
    // Writes within one tick of the file system's clock leave the timestamp unchanged, so the bytes are
    // compared as well.
    while is_same && at < proof.end {
        let part = at..proof.end.min(at + CHUNK);
        at = part.end;
        is_same =
            current.read(part.clone()).map_err(cannot_read)? == known.read(part).map_err(cannot_read)?;
    }
    match is_same {
        true => Ok(file),
        false => Err(changed("another file, or the file was modified since")),
    }
}

fn journal_of(path: &Path) -> PathBuf {
    beside(path, ".append-journal")
}

/// Removes the journal and syncs the removal: a journal that reappears after a power failure would undo a
/// successful change.
pub(crate) fn remove_journal(journal: &Path) -> Result<(), Error> {
    fs::remove_file(journal).map_err(|error| Error::io("the journal cannot be removed", error))?;
    sync_folder(journal)
}

pub(crate) fn open_locked(path: &Path) -> Result<File, Error> {
    let cannot_open = |error| Error::io("the file cannot be opened for writing", error);
    let file = File::options().read(true).write(true).open(path);
    let file = file.map_err(cannot_open)?;
    let is_locked = file.try_lock();
    is_locked.map_err(|error| {
        let what = "the file cannot be locked: another process may be changing it";
        Error::io(what, error.into())
    })?;
    // Another process may have replaced the file since it was opened; writes to the old file would be lost.
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        let place = |found: fs::Metadata| (found.dev(), found.ino());
        let (locked, named) = (file.metadata(), fs::metadata(path));
        if locked.map(place).map_err(cannot_open)? != named.map(place).map_err(cannot_open)? {
            return Err(Error::new(
                ErrorKind::Changed,
                "another process has just replaced it",
            ));
        }
    }
    Ok(file)
}

impl Write for AppendFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.out.as_mut().ok_or(io::ErrorKind::BrokenPipe)?.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.as_mut().ok_or(io::ErrorKind::BrokenPipe)?.flush()
    }
}

impl Drop for AppendFile {
    fn drop(&mut self) {
        if self.is_committed {
            return;
        }
        if let Some(out) = self.out.take() {
            // Buffered bytes must not be written after the truncation.
            let _ = out.into_parts();
        }
        // If truncation fails, the journal is kept for `recover`.
        let cut = self
            .file
            .set_len(self.old_len)
            .and_then(|()| self.file.sync_all());
        if cut.is_ok() {
            let _ = fs::remove_file(&self.journal);
        }
    }
}

impl fmt::Debug for AppendFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AppendFile")
            .field("journal", &self.journal)
            .field("old_len", &self.old_len)
            .finish_non_exhaustive()
    }
}

/// The first `len` bytes of a source.
struct Head {
    source: Arc<dyn ByteSource>,
    len: u64,
}

impl ByteSource for Head {
    fn len(&self) -> u64 {
        self.len
    }

    fn read(&self, range: Range<u64>) -> io::Result<Bytes> {
        self.source.read(range)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that a test file is complete: complete files end with a full stop.
    #[allow(clippy::needless_pass_by_value, reason = "as `recover` hands it over")]
    fn is_whole(source: Arc<dyn ByteSource>) -> Result<(), Error> {
        let len = source.len();
        if len > 0 && source.read(len - 1..len).is_ok_and(|end| end == ".") {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Truncated, "the file"))
    }

    struct Fixture {
        _folder: tempfile::TempDir,
        path: PathBuf,
        opened: FileSource,
    }

    fn fixture() -> Fixture {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        fs::write(&path, "old.").unwrap();
        Fixture {
            opened: FileSource::open(&path).unwrap(),
            path,
            _folder: folder,
        }
    }

    #[test]
    fn what_is_not_committed_is_cut_off() {
        let Fixture { path, opened, .. } = &fixture();
        let mut file = AppendFile::open(path, opened, 0..4).unwrap();
        file.write_all(&vec![b'x'; 3 << 20]).unwrap();
        assert!(journal_of(path).exists());
        assert_eq!(
            AppendFile::open(path, opened, 0..4).unwrap_err().kind(),
            ErrorKind::Io,
            "locked"
        );
        drop(file);
        assert_eq!(fs::read(path).unwrap(), b"old.");
        assert!(!journal_of(path).exists());
    }

    /// The journal must be opened under the lock, because it may belong to a change that has committed since.
    /// The test uses a journal that cannot be opened to observe the order.
    #[cfg(unix)]
    #[test]
    fn the_journal_is_opened_under_the_lock() {
        let Fixture { path, .. } = &fixture();
        let _socket = std::os::unix::net::UnixListener::bind(journal_of(path)).unwrap();
        let locked = open_locked(path).unwrap();
        let refused = AppendFile::recover(path, is_whole).unwrap_err();
        assert!(refused.to_string().contains("cannot be locked"), "{refused}");
        drop(locked);
        let refused = AppendFile::recover(path, is_whole).unwrap_err();
        assert!(refused.to_string().contains("journal"), "{refused}");
    }

    #[test]
    fn a_file_that_changed_is_left_alone() {
        let Fixture { path, opened, .. } = &fixture();
        fs::write(path, "new.").unwrap();
        // The file was overwritten in place within one clock tick: same inode, length and time, but different
        // bytes.
        let other = fixture();
        fs::write(&other.path, "now.").unwrap();
        let error = AppendFile::open(path, &other.opened, 0..4).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Changed);
        fs::write(path, "longer.").unwrap();
        let error = AppendFile::open(path, opened, 0..4).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Changed);
        assert_eq!(fs::read(path).unwrap(), b"longer.");
        assert!(!journal_of(path).exists());
    }

    /// Checks that `recover` undoes a change that crashed before, within or after the appended data.
    #[test]
    fn a_crash_is_undone() {
        let Fixture { path, opened, .. } = &fixture();
        for crashed in ["old.", "old. ne", "old. new."] {
            fs::write(path, crashed).unwrap();
            fs::write(journal_of(path), "4\n").unwrap();
            let refused = AppendFile::open(path, opened, 0..4).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Io);
            let cut = AppendFile::recover(path, is_whole).unwrap();
            assert_eq!(cut, crashed.len() as u64 - 4);
            assert_eq!(fs::read(path).unwrap(), b"old.");
            assert_eq!(AppendFile::recover(path, is_whole).unwrap(), 0);
        }
    }

    #[test]
    fn a_journal_that_does_not_fit_undoes_nothing() {
        let Fixture { path, .. } = &fixture();
        for text in ["", "4", "5\n", "-1\n", "99999999999999999999999\n"] {
            fs::write(journal_of(path), text).unwrap();
            let error = AppendFile::recover(path, is_whole).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Malformed, "{text:?}");
        }
        fs::write(path, "torn").unwrap();
        fs::write(journal_of(path), "2\n").unwrap();
        assert_eq!(
            AppendFile::recover(path, is_whole).unwrap_err().kind(),
            ErrorKind::Truncated
        );
        // Another program replaces the file.
        fs::write(path, "quite another.").unwrap();
        assert_eq!(AppendFile::recover(path, is_whole).unwrap(), 0);
        assert!(!journal_of(path).exists());
        assert_eq!(fs::read(path).unwrap(), b"quite another.");
    }
}
