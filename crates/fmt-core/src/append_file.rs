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

/// A file that grows at its end and is, whatever happens, either what it was or what it becomes.
///
/// For formats whose index stands at the end: another end is written behind the old one, and nothing that is there is
/// overwritten. All of it is brought to the disk before the last bytes, the `tail`, that make it count. Dropped without
/// [`AppendFile::commit`], the file is cut back to what it was; [`AppendFile::recover`] does that when the process had no
/// time to. For that a journal stands beside the file meanwhile, `NAME.append-journal`, with the length to cut back to.
/// A lock keeps out others that change the file in this way. Concurrent readers may see an incomplete file.
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
    /// `None` only while it is being committed or dropped.
    out: Option<BufWriter<File>>,
    /// The same file, to cut it back.
    file: File,
    journal: PathBuf,
    old_len: u64,
    is_committed: bool,
}

impl AppendFile {
    /// Bytes gathered before the system is asked to write them.
    const BUFFER: usize = 1 << 20;

    /// Begins to write behind the end of a file that was opened before; `end` are the bytes, such as the index, by which
    /// to tell that it is still the same.
    ///
    /// # Errors
    /// [`ErrorKind::Changed`] when the file is not what was opened any more; [`ErrorKind::Io`], also when somebody else
    /// is changing it, or did not come to an end ([`AppendFile::recover`]).
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
        // From here on, dropping removes the journal.
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

    /// The length of the file before the change, where what is new begins.
    #[must_use]
    pub fn old_len(&self) -> u64 {
        self.old_len
    }

    /// Makes what was written count: brings it to the disk, writes `tail`, brings that to the disk.
    ///
    /// # Errors
    /// [`ErrorKind::Io`]. Then the file is cut back to what it was, unless only the journal could not be removed, or its
    /// removal not brought to the disk.
    pub fn commit(mut self, tail: &[u8]) -> Result<(), Error> {
        let failed = |error| Error::io("the file cannot be brought to the disk", error);
        let out = self.out.take();
        let out = out.ok_or_else(|| Error::new(ErrorKind::Io, "the file was committed before"))?;
        let mut file = out.into_inner().map_err(|error| {
            // Buffered bytes must not be written behind the cut.
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

    /// Cuts a file back to what it was, after a crash amid a change. Returns the number of bytes that were cut off.
    ///
    /// Without a journal beside the file nothing is done. `is_whole` says whether some bytes are a whole file; nothing is
    /// cut off but what came behind one.
    ///
    /// # Errors
    /// [`ErrorKind::Malformed`] when the journal does not fit the file; [`ErrorKind::Io`], also when somebody is changing
    /// the file.
    pub fn recover(
        path: &Path,
        is_whole: impl Fn(Arc<dyn ByteSource>) -> Result<(), Error>,
    ) -> Result<u64, Error> {
        let journal = journal_of(path);
        if !journal.exists() {
            return Ok(0);
        }
        // Read under the lock only: a change that ends between the two would be undone after it has counted.
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
        // A number of 64 bits has 20 digits, a line end follows.
        let read = announced.take(22).read_to_string(&mut text);
        read.map_err(cannot_read)?;
        let old_len = text.strip_suffix('\n').and_then(|text| text.parse::<u64>().ok());
        let old_len = old_len.filter(|old_len| *old_len <= len);
        let Some(old_len) = old_len else {
            let error = Error::new(ErrorKind::Malformed, "the journal");
            return Err(error
                .expected("the length of the file before the change")
                .found(tensor_core::Quoted(&text)));
        };
        // A change counts when the journal is gone. Until then nobody was told that it succeeded.
        let head = Head {
            source: Arc::clone(&source) as _,
            len: old_len,
        };
        if let Err(error) = is_whole(Arc::new(head)) {
            // Another file may have taken the name since; then there is nothing to undo.
            if is_whole(source).is_ok() {
                return remove_journal(&journal).map(|()| 0);
            }
            return Err(error);
        }
        let cut = file.set_len(old_len).and_then(|()| file.sync_all());
        cut.map_err(|error| Error::io("the file cannot be cut", error))?;
        remove_journal(&journal)?;
        Ok(len - old_len)
    }
}

/// Opens a file to change it in place, under a lock: the one that was opened before, unchanged, and with no journal of
/// a change that did not come to an end. The bytes of `proof`, such as the index, are compared with those of `known`.
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
        let what = "an earlier change did not come to an end and must be undone first";
        return Err(Error::new(ErrorKind::Io, what).found(journal.display()));
    }
    let cloned = file.try_clone();
    let cloned = cloned.map_err(|error| Error::io("the file cannot be opened for writing", error))?;
    let current = FileSource::new(cloned)?;
    let cannot_read = |error| Error::io("the file cannot be read", error);
    let mut is_same = current.identity() == opened.identity();
    let mut at = proof.start;
    // What was written into the file within a tick of the file system's clock shows in the bytes only.
    while is_same && at < proof.end {
        let part = at..proof.end.min(at + CHUNK);
        at = part.end;
        is_same =
            current.read(part.clone()).map_err(cannot_read)? == known.read(part).map_err(cannot_read)?;
    }
    match is_same {
        true => Ok(file),
        false => Err(changed("another one, or one that was written to since")),
    }
}

fn journal_of(path: &Path) -> PathBuf {
    beside(path, ".append-journal")
}

/// Removes the journal for good: one that came back after a power cut would undo a change that succeeded.
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
    // Another process may have put a new file into its place since it was opened: what is written to the old one is lost.
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        let place = |found: fs::Metadata| (found.dev(), found.ino());
        let (locked, named) = (file.metadata(), fs::metadata(path));
        if locked.map(place).map_err(cannot_open)? != named.map(place).map_err(cannot_open)? {
            return Err(Error::new(
                ErrorKind::Changed,
                "another process has just put a new file into its place",
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
            // Buffered bytes must not be written behind the cut.
            let _ = out.into_parts();
        }
        // If the file cannot be cut, the journal stays, and `recover` can.
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

/// The first bytes of a source.
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

    /// A whole file ends with a full stop.
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

    /// A journal that is opened before the lock is taken may be of a change that counts by then. One that cannot be opened
    /// shows what comes first.
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
        // The same file was overwritten, so that only its bytes tell.
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

    /// WR-01: a crash at any byte of what is appended, before and behind the end.
    #[test]
    fn wr_01_a_crash_is_undone() {
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
        // Another file took the name.
        fs::write(path, "quite another.").unwrap();
        assert_eq!(AppendFile::recover(path, is_whole).unwrap(), 0);
        assert!(!journal_of(path).exists());
        assert_eq!(fs::read(path).unwrap(), b"quite another.");
    }
}
