use std::{
    fmt,
    fs::{self, File},
    io::{self, BufWriter, Read, Seek, Write},
    ops::Range,
    path::{Path, PathBuf},
    sync::Arc,
};

use fmt_core::{AtomicFile, ByteSource, Error, ErrorKind, FileSource, ReadOptions};
use tensor_core::{Bytes, Tensor, TensorSpec};

use crate::{TbufReader, TbufWriter, footer::read, ledger::Ledger};

/// Tensors that are being written behind the end of a file, from [`TbufEditor::append_in_place`].
///
/// Nothing that is there is overwritten. What is new is brought to the disk before the eight bytes that make it count.
/// Dropped without [`InPlaceWriter::commit`], the file is cut back to what it was; [`recover`] does that when the process
/// had no time to. For that a journal stands beside the file meanwhile, `NAME.append-journal`, with the length to cut back
/// to. Others that change the file in this way are kept out by a lock.
///
/// [`TbufEditor::append_in_place`]: crate::TbufEditor::append_in_place
pub struct InPlaceWriter {
    /// `None` only while it is being committed.
    writer: Option<TbufWriter<BufWriter<File>>>,
    /// The same file, to cut it back.
    file: File,
    journal: PathBuf,
    old_len: u64,
    is_committed: bool,
}

impl InPlaceWriter {
    /// Bytes gathered before the system is asked to write them.
    const BUFFER: usize = 1 << 20;

    pub(crate) fn open(
        path: &Path,
        opened: &FileSource,
        index: Range<u64>,
        mut ledger: Ledger,
    ) -> Result<Self, Error> {
        let cannot_open = |error| Error::io("the file cannot be opened for writing", error);
        let mut file = File::options()
            .read(true)
            .write(true)
            .open(path)
            .map_err(cannot_open)?;
        file.try_lock().map_err(|error| {
            Error::io(
                "the file cannot be locked, as if somebody else were changing it",
                error.into(),
            )
        })?;
        let current = FileSource::new(file.try_clone().map_err(cannot_open)?)?;
        let end = index.start..opened.len();
        let is_same = current.len() == opened.len()
            && read(&current, end.clone(), "the index")? == read(opened, end, "the index")?;
        if !is_same {
            return Err(Error::new(
                ErrorKind::Changed,
                "the file is not what was opened any more",
            ));
        }
        let old_len = opened.len();
        let journal = journal_of(path);
        let mut announced = AtomicFile::create(&journal)?;
        writeln!(announced, "{old_len}")
            .map_err(|error| Error::io("the journal cannot be written", error))?;
        announced.publish()?;
        file.seek(io::SeekFrom::Start(old_len)).map_err(cannot_open)?;
        ledger.go_on_behind(old_len);
        let out = BufWriter::with_capacity(Self::BUFFER, file.try_clone().map_err(cannot_open)?);
        Ok(Self {
            writer: Some(TbufWriter::resume(out, ledger, old_len)),
            file,
            journal,
            old_len,
            is_committed: false,
        })
    }

    fn writer(&mut self) -> Result<&mut TbufWriter<BufWriter<File>>, Error> {
        self.writer
            .as_mut()
            .ok_or_else(|| Error::new(ErrorKind::Io, "the file was committed before"))
    }

    /// As [`TbufWriter::begin`].
    ///
    /// # Errors
    /// As [`TbufWriter::begin`].
    pub fn begin(&mut self, name: &str, spec: &TensorSpec) -> Result<(), Error> {
        self.writer()?.begin(name, spec)
    }

    /// As [`TbufWriter::write`].
    ///
    /// # Errors
    /// As [`TbufWriter::write`].
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.writer()?.write(bytes)
    }

    /// As [`TbufWriter::tensor`].
    ///
    /// # Errors
    /// As [`TbufWriter::tensor`].
    pub fn tensor(&mut self, name: &str, tensor: &Tensor) -> Result<(), Error> {
        self.writer()?.tensor(name, tensor)
    }

    /// As [`TbufWriter::alias`].
    ///
    /// # Errors
    /// As [`TbufWriter::alias`].
    pub fn alias(&mut self, name: &str, spec: &TensorSpec, of: &str) -> Result<(), Error> {
        self.writer()?.alias(name, spec, of)
    }

    /// Makes what was written count.
    ///
    /// # Errors
    /// [`ErrorKind::SizeMismatch`] when bytes of a tensor are missing; [`ErrorKind::Io`]. The file is cut back to what
    /// it was.
    pub fn commit(mut self) -> Result<(), Error> {
        let tail = self.writer()?.write_all_but_tail()?;
        let Some(writer) = self.writer.take() else {
            return Err(Error::new(ErrorKind::Io, "the file was committed before"));
        };
        let failed = |error| Error::io("the file cannot be brought to the disk", error);
        let mut file = writer
            .into_sink()
            .into_inner()
            .map_err(|error| failed(error.into_error()))?;
        file.sync_data().map_err(failed)?;
        file.write_all(&tail).map_err(failed)?;
        file.sync_all().map_err(failed)?;
        self.is_committed = true;
        remove_journal(&self.journal)
    }
}

impl Drop for InPlaceWriter {
    fn drop(&mut self) {
        if self.is_committed {
            return;
        }
        if let Some(writer) = self.writer.take() {
            // What is still in the buffer must not be written behind the cut.
            let _ = writer.into_sink().into_parts();
        }
        // If the file cannot be cut now, `recover` still can.
        let cut = self
            .file
            .set_len(self.old_len)
            .and_then(|()| self.file.sync_all());
        if cut.is_ok() {
            let _ = remove_journal(&self.journal);
        }
    }
}

impl fmt::Debug for InPlaceWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InPlaceWriter")
            .field("writer", &self.writer)
            .field("old_len", &self.old_len)
            .finish()
    }
}

/// Cuts a file back to what it was, after a crash amid a change in place. Returns the number of bytes that were cut off.
///
/// Without a journal beside the file nothing is done.
///
/// ```
/// # use fmt_tbuf::{TbufReader, TbufWriter, WriteOptions};
/// # use std::io::Write;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("model.tbuf");
/// # let mut writer = TbufWriter::new(Vec::new(), WriteOptions::default())?;
/// # writer.tensor("weights", &tensor_core::Tensor::scalar(1u8))?;
/// # let file = writer.finish()?;
/// # std::fs::write(&path, &file)?;
/// # std::fs::write(folder.path().join("model.tbuf.append-journal"), format!("{}\n", file.len()))?;
/// # std::fs::File::options().append(true).open(&path)?.write_all(b"0123456789")?;
/// assert!(TbufReader::from_path(&path).is_err()); // ten bytes were written when the power failed
/// assert_eq!(fmt_tbuf::recover(&path)?, 10);
/// assert!(TbufReader::from_path(&path).is_ok());
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`ErrorKind::Malformed`] when the journal does not fit the file; [`ErrorKind::Io`], also when somebody is changing the
/// file.
pub fn recover(path: impl AsRef<Path>) -> Result<u64, Error> {
    let path = path.as_ref();
    let journal = journal_of(path);
    let announced = match File::open(&journal) {
        Ok(announced) => announced,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        Err(error) => return Err(Error::io("the journal cannot be opened", error)),
    };
    let file = open_locked(path)?;
    let cannot_read = |error| Error::io("the file or its journal cannot be read", error);
    let source: Arc<dyn ByteSource> = Arc::new(FileSource::new(file.try_clone().map_err(cannot_read)?)?);
    let len = source.len();
    // The crash may have come when all was done but the journal's removal.
    if TbufReader::open(Arc::clone(&source), &ReadOptions::default()).is_ok() {
        return remove_journal(&journal).map(|()| 0);
    }
    let mut text = String::new();
    // A number of 64 bits has 20 digits.
    announced
        .take(21)
        .read_to_string(&mut text)
        .map_err(cannot_read)?;
    let old_len = text.strip_suffix('\n').and_then(|text| text.parse::<u64>().ok());
    let Some(old_len) = old_len.filter(|old_len| *old_len <= len) else {
        let error = Error::new(ErrorKind::Malformed, "the journal")
            .expected("the length of the file before the change");
        return Err(error.found(tensor_core::Quoted(&text)).rule("T16"));
    };
    // Nothing is cut off but what came behind a whole file.
    let head = Head { source, len: old_len };
    TbufReader::open(Arc::new(head), &ReadOptions::default())?;
    let cut = file.set_len(old_len).and_then(|()| file.sync_all());
    cut.map_err(|error| Error::io("the file cannot be cut", error))?;
    remove_journal(&journal)?;
    Ok(len - old_len)
}

fn journal_of(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".append-journal");
    name.into()
}

fn remove_journal(journal: &Path) -> Result<(), Error> {
    fs::remove_file(journal).map_err(|error| Error::io("the journal cannot be removed", error))
}

fn open_locked(path: &Path) -> Result<File, Error> {
    let file = File::options().read(true).write(true).open(path);
    let file = file.map_err(|error| Error::io("the file cannot be opened for writing", error))?;
    file.try_lock().map_err(|error| {
        Error::io(
            "the file cannot be locked, as if somebody else were changing it",
            error.into(),
        )
    })?;
    Ok(file)
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
