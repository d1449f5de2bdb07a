//! Edits names and metadata of files with the index at the beginning, in place if the length of the index
//! does not change.

use std::{
    fs::{self, File},
    io::{self, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;

use crate::{
    AtomicFile, ByteSource, Entry, Error, ErrorKind, FileSource, Metadata, OutputOptions, TensorReader,
    append_file::{open_locked, remove_journal, reopen},
    atomic_file::beside,
    read_range,
};

/// Encodes the head of a file, the bytes before the tensor data, from its tensors and metadata. The last
/// argument is the length of the old head, which the new head should match if possible.
pub type EncodeHead = fn(&[Entry], &Metadata, u64) -> Result<Vec<u8>, Error>;

/// Changes names and metadata of a file whose index precedes the data, as in safetensors and GGUF.
///
/// If the new index is as long as the old one, the editor overwrites the old index in place and does not
/// touch the data. During this change, a journal next to the file, `NAME.head-journal`, holds the old bytes;
/// [`HeadEditor::recover`] restores them after a crash. Otherwise the editor writes a new file that replaces
/// the old one atomically (see [`AtomicFile`]).
///
/// Created by the format crates: `fmt_safetensors::edit`, `fmt_gguf::edit`.
#[derive(Debug)]
pub struct HeadEditor {
    path: PathBuf,
    source: Arc<FileSource>,
    /// The index as it was when the file was opened.
    head: Bytes,
    entries: Vec<Entry>,
    metadata: Metadata,
    encode: EncodeHead,
}

impl HeadEditor {
    /// Creates an editor, for format crates. `encode` produces the first `head_len` bytes of the file.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] when these bytes cannot be read.
    pub fn new(
        path: &Path,
        source: Arc<FileSource>,
        reader: &dyn TensorReader,
        head_len: u64,
        encode: EncodeHead,
    ) -> Result<Self, Error> {
        Ok(Self {
            path: path.to_owned(),
            head: read_range(&*source, 0..head_len, "the index")?,
            source,
            entries: reader.entries().to_vec(),
            metadata: reader.metadata().clone(),
            encode,
        })
    }

    /// Renames a tensor.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfBounds`] when the file has no such tensor, [`ErrorKind::Duplicate`] when the new
    /// name is taken.
    pub fn rename(&mut self, from: &str, to: &str) -> Result<(), Error> {
        if from != to && self.entries.iter().any(|entry| entry.name == to) {
            return Err(Error::new(ErrorKind::Duplicate, "the new name is taken").of_tensor(to));
        }
        let entry = self.entries.iter_mut().find(|entry| entry.name == from);
        let entry = entry
            .ok_or_else(|| Error::new(ErrorKind::OutOfBounds, "there is no such tensor").of_tensor(from))?;
        entry.name = to.to_owned();
        Ok(())
    }

    /// Sets the value of a metadata key; `None` removes it.
    pub fn set(&mut self, key: &str, value: Option<&str>) {
        match value {
            Some(value) => self.metadata.insert(key.to_owned(), value.to_owned()),
            None => self.metadata.remove(key),
        };
    }

    /// Saves the changes and syncs them. Returns whether the file was changed in place.
    ///
    /// # Errors
    /// The error of encoding for contents that the format cannot store; [`ErrorKind::Changed`] when the file
    /// has changed since it was opened; [`ErrorKind::Io`], also when another process is changing the file or
    /// was interrupted. After an error, the file is unchanged, or [`HeadEditor::recover`] restores it.
    pub fn save(self) -> Result<bool, Error> {
        let old_len = self.head.len() as u64;
        let head = (self.encode)(&self.entries, &self.metadata, old_len)?;
        let journal = journal_of(&self.path);
        let mut file = reopen(&self.path, &self.source, 0..old_len, &self.head, &journal)?;
        if head.len() != self.head.len() {
            self.write_anew(&head)?;
            return Ok(false);
        }
        write_journal(&journal, self.source.len(), &self.head, &head)?;
        let written = overwrite(&mut file, &head);
        written.map_err(|error| match overwrite(&mut file, &self.head) {
            Ok(()) => {
                let _ = fs::remove_file(&journal);
                error
            }
            // The journal is kept, so that `recover` can restore the old bytes.
            Err(_) => error,
        })?;
        remove_journal(&journal)?;
        Ok(true)
    }

    fn write_anew(&self, head: &[u8]) -> Result<(), Error> {
        const PIECE: u64 = 1 << 20;
        let failed = |error| Error::io("the file cannot be written", error);
        let options = OutputOptions::replacing(&self.source);
        let mut out = AtomicFile::create_with(&self.path, &options)?;
        out.write_all(head).map_err(failed)?;
        let mut at = self.head.len() as u64;
        while at < self.source.len() {
            let end = self.source.len().min(at + PIECE);
            let piece = read_range(&*self.source, at..end, "the data")?;
            out.write_all(&piece).map_err(failed)?;
            at = end;
        }
        out.persist()
    }

    /// Restores the old index after a crash during a change in place. Returns whether there was anything to
    /// undo.
    ///
    /// Does nothing if there is no journal next to the file.
    ///
    /// # Errors
    /// [`ErrorKind::Malformed`] when the journal does not match the file, which is left unchanged;
    /// [`ErrorKind::Io`], also when another process is changing the file.
    pub fn recover(path: &Path) -> Result<bool, Error> {
        let journal = journal_of(path);
        if !journal.exists() {
            return Ok(false);
        }
        // The journal is read only under the lock, because otherwise a change that commits in between would
        // be undone.
        let mut file = open_locked(path)?;
        let cannot_read = |error| Error::io("the file or its journal cannot be read", error);
        let announced = match fs::read(&journal) {
            Ok(announced) => announced,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(cannot_read(error)),
        };
        let misfit = || {
            let error = Error::new(ErrorKind::Malformed, "the journal does not match the file");
            error.found(journal.display())
        };
        let (len, old, new) = parse_journal(&announced).ok_or_else(misfit)?;
        let mut current = vec![0; old.len()];
        let found = file.metadata().map_err(cannot_read)?.len();
        file.seek(SeekFrom::Start(0)).map_err(cannot_read)?;
        if found != len || file.read_exact(&mut current).is_err() {
            return Err(misfit());
        }
        // After an interrupted edit, each byte equals the old or the new byte at its position.
        let mut bytes = current.iter().zip(old).zip(new);
        if !bytes.all(|((current, old), new)| current == old || current == new) {
            return Err(misfit());
        }
        overwrite(&mut file, old)?;
        remove_journal(&journal)?;
        Ok(true)
    }
}

fn overwrite(file: &mut File, head: &[u8]) -> Result<(), Error> {
    file.seek(SeekFrom::Start(0))
        .and_then(|_| file.write_all(head))
        .and_then(|()| file.sync_all())
        .map_err(|error| Error::io("the index cannot be written", error))
}

fn journal_of(path: &Path) -> PathBuf {
    beside(path, ".head-journal")
}

/// Magic bytes at the start of a journal.
const MARK: &[u8; 8] = b"TFHEAD1\n";

/// Writes the journal: magic bytes, the file's length, the old bytes, and the same number of new bytes.
fn write_journal(journal: &Path, len: u64, old: &[u8], new: &[u8]) -> Result<(), Error> {
    let mut file = AtomicFile::create(journal)?;
    let parts = [&MARK[..], &len.to_le_bytes(), old, new];
    parts
        .into_iter()
        .try_for_each(|part| file.write_all(part))
        .map_err(|error| Error::io("the journal cannot be written", error))?;
    file.persist()
}

fn parse_journal(bytes: &[u8]) -> Option<(u64, &[u8], &[u8])> {
    let (len, heads) = bytes.strip_prefix(MARK)?.split_first_chunk()?;
    let (old, new) = heads.split_at(heads.len() / 2);
    (old.len() == new.len()).then_some((u64::from_le_bytes(*len), old, new))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interrupted(current: &[u8]) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        fs::write(&path, current).unwrap();
        write_journal(&journal_of(&path), 10, b"old!", b"new?").unwrap();
        (folder, path)
    }

    #[test]
    fn what_was_interrupted_is_undone() {
        // The process crashed before, during or after it wrote the new bytes.
        for current in [b"old!->data", b"new!->data", b"new?->data"] {
            let (_folder, path) = interrupted(current);
            assert!(HeadEditor::recover(&path).unwrap());
            assert_eq!(fs::read(&path).unwrap(), b"old!->data");
            assert!(!HeadEditor::recover(&path).unwrap(), "there is nothing left");
        }
    }

    #[test]
    fn another_file_is_left_alone() {
        for current in [&b"else->data"[..], b"old!->dat", b""] {
            let (_folder, path) = interrupted(current);
            assert_eq!(
                HeadEditor::recover(&path).unwrap_err().kind(),
                ErrorKind::Malformed
            );
            assert_eq!(fs::read(&path).unwrap(), current);
        }
        let (_folder, path) = interrupted(b"old!->data");
        fs::write(journal_of(&path), b"TFHEAD1\nshort").unwrap();
        assert!(HeadEditor::recover(&path).is_err());
    }
}
