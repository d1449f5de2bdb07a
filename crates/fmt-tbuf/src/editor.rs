//! Changes the index of an existing file, and appends tensors to it.

use std::{io::Write, path::Path};

use fmt_core::{Error, ErrorKind, ReadOptions, TailFile, TensorReader};

use crate::{TbufReader, TbufWriter, WriteOptions, ledger::Ledger};

/// Edits a file without rewriting its tensors: renames tensors, sets the model name, and appends tensors.
///
/// Changes can be saved in two ways:
///
/// | | [`save`](Self::save), [`append`](Self::append) | [`save_in_place`](Self::save_in_place), [`append_in_place`](Self::append_in_place) |
/// |---|---|---|
/// | method | copies the data and replaces the file, with another index | appends another index after the old one |
/// | writes | the data once, copied by the kernel (no data if the file system supports reflinks) | new data and the index |
/// | other readers see | the old file or the new one | the old file, then no valid file for a moment, then the new one |
/// | after a crash | the old file or the new one | [`recover`](crate::recover) truncates the file to the old one |
/// | old index | gone | remains as unused space |
///
/// ```
/// # use fmt_core::TensorReader;
/// use fmt_tbuf::{TbufEditor, TbufReader};
/// # use fmt_tbuf::{TbufWriter, WriteOptions};
/// use tensor_core::{Shape, Tensor};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("model.tbuf");
/// # let mut writer = TbufWriter::new(Vec::new(), WriteOptions::default())?;
/// # writer.tensor("old name", &Tensor::scalar(1u8))?;
/// # std::fs::write(&path, writer.finish()?)?;
/// let mut editor = TbufEditor::open(&path)?;
/// editor.rename("old name", "new name")?;
/// editor.set_model(Some("resnet"))?;
/// let mut writer = editor.append()?;
/// writer.tensor("added", &Tensor::from_vec(Shape::vector(2), vec![1.0f64, 2.0])?)?;
/// writer.finish()?.persist()?;
///
/// let reader = TbufReader::from_path(&path)?;
/// assert_eq!((reader.entries().len(), reader.model()), (2, Some("resnet")));
/// assert!(reader.find("new name").is_some());
/// # Ok(())
/// # }
/// ```
///
/// After a crash during a change in place, [`recover`](crate::recover) restores the old file:
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
pub struct TbufEditor {
    file: TailFile<TbufReader>,
    ledger: Ledger,
    may_lose_fields: bool,
}

impl TbufEditor {
    /// Opens a file for editing.
    ///
    /// # Errors
    /// The errors of [`TbufReader::from_path`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        Self::open_with(path.as_ref(), &ReadOptions::default(), WriteOptions::default())
    }

    /// Opens a file for editing, with options.
    ///
    /// # Errors
    /// The errors of [`TbufReader::open`]; [`ErrorKind::Unsupported`] for an invalid alignment;
    /// [`ErrorKind::Duplicate`] when a lenient reader accepted duplicate names.
    pub fn open_with(path: &Path, read: &ReadOptions, write: WriteOptions) -> Result<Self, Error> {
        let file = TailFile::open(path, |source| TbufReader::open(source, read))?;
        let reader = file.reader();
        let tensors = reader.entries().iter().zip(reader.stored());
        let mut ledger = Ledger::resume(write, tensors, reader.index_range().start)?;
        ledger.set_model(reader.model())?;
        Ok(Self {
            file,
            ledger,
            may_lose_fields: false,
        })
    }

    /// Renames a tensor.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfBounds`] when there is no such tensor, [`ErrorKind::Duplicate`] when the new name is
    /// taken, [`ErrorKind::BadName`] when the new name is invalid, [`ErrorKind::TooLarge`] when the index
    /// would become too large.
    pub fn rename(&mut self, from: &str, to: &str) -> Result<(), Error> {
        self.ledger.rename(from, to)
    }

    /// Sets or removes the name of the model.
    ///
    /// # Errors
    /// [`ErrorKind::TooLarge`] when the index would become too large.
    pub fn set_model(&mut self, model: Option<&str>) -> Result<(), Error> {
        self.ledger.set_model(model)
    }

    /// Allows rewriting an index without the fields that the specification does not define
    /// ([`TbufReader::has_unknown_fields`]). By default, files with such fields are refused.
    pub fn lose_unknown_fields(&mut self) {
        self.may_lose_fields = true;
    }

    /// Creates a writer to `out`, which already has the first `position` bytes of the file.
    fn resume<W: Write>(mut self, out: W, position: u64) -> Result<TbufWriter<W>, Error> {
        let reader = self.file.reader();
        if reader.has_unknown_fields() && !self.may_lose_fields {
            let what = "the index has fields that are not in the specification and would be lost";
            return Err(Error::new(ErrorKind::Unsupported, what)
                .at(reader.index_range().start)
                .rule("T17"));
        }
        self.ledger.go_on_behind(position);
        Ok(TbufWriter::resume(out, self.ledger, position))
    }
}

fmt_core::edit_at_end!(TbufEditor, TbufReader, TbufWriter);
