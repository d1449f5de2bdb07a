//! Changes the index of an existing file, and appends tensors to it.

use std::{io::Write, path::Path};

use fmt_cbor::CborValue;
use fmt_core::{Error, ReadOptions, TailFile, TensorReader};

use crate::{CustomField, WriteOptions, ZtensorReader, ZtensorWriter, ledger::Ledger};

/// Edits a file without rewriting its tensors: renames tensors, changes custom fields, and appends tensors.
///
/// All other values of the index are kept, but encoded as this crate writes them. Changes can be saved in two
/// ways (Z28):
///
/// | | [`save`](Self::save), [`append`](Self::append) | [`save_in_place`](Self::save_in_place), [`append_in_place`](Self::append_in_place) |
/// |---|---|---|
/// | method | copies the data and replaces the file, with another index | appends another index after the old one |
/// | writes | the data once, copied by the kernel (no data if the file system supports reflinks) | new data and the index |
/// | other readers see | the old file or the new one | the old file, then no valid file for a moment, then the new one |
/// | after a crash | the old file or the new one | [`recover`] truncates the file to the old one |
/// | old index | gone | remains as unused space |
///
/// ```
/// use fmt_core::TensorReader;
/// use fmt_ztensor::{CborValue, CustomField, ZtensorEditor, ZtensorReader};
/// # use fmt_ztensor::{WriteOptions, ZtensorWriter};
/// use tensor_core::{Shape, Tensor};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("model.zt");
/// # let mut writer = ZtensorWriter::new(Vec::new(), WriteOptions::default())?;
/// # writer.tensor("old name", &Tensor::scalar(1u8))?;
/// # std::fs::write(&path, writer.finish()?)?;
/// let mut editor = ZtensorEditor::open(&path)?;
/// editor.rename("old name", "new name")?;
/// editor.set_field("new name", CustomField::new("unit", CborValue::from("m/s"))?)?;
/// let mut writer = editor.append()?;
/// writer.tensor("added", &Tensor::from_vec(Shape::vector(2), vec![1.0f64, 2.0])?)?;
/// writer.finish()?.persist()?;
///
/// let reader = ZtensorReader::from_path(&path)?;
/// assert_eq!(reader.entries().len(), 2);
/// assert_eq!(reader.entries()[0].attributes.to_map()["unit"], "m/s");
///
/// // The same changes without copying the data:
/// let mut writer = ZtensorEditor::open(&path)?.append_in_place()?;
/// writer.tensor("added too", &Tensor::scalar(7u8))?;
/// writer.commit()?;
/// assert_eq!(ZtensorReader::from_path(&path)?.entries().len(), 3);
/// # Ok(())
/// # }
/// ```
///
/// After a crash during a change in place, [`recover`](crate::recover) restores the old file:
///
/// ```
/// # use fmt_ztensor::{WriteOptions, ZtensorReader, ZtensorWriter};
/// # use std::io::Write;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("model.zt");
/// # let mut writer = ZtensorWriter::new(Vec::new(), WriteOptions::default())?;
/// # writer.tensor("weights", &tensor_core::Tensor::scalar(1u8))?;
/// # let file = writer.finish()?;
/// # std::fs::write(&path, &file)?;
/// # std::fs::write(folder.path().join("model.zt.append-journal"), format!("{}\n", file.len()))?;
/// # std::fs::File::options().append(true).open(&path)?.write_all(b"0123456789")?;
/// assert!(ZtensorReader::from_path(&path).is_err()); // ten bytes were written when the power failed
/// assert_eq!(fmt_ztensor::recover(&path)?, 10);
/// assert!(ZtensorReader::from_path(&path).is_ok());
/// # Ok(())
/// # }
/// ```
pub struct ZtensorEditor {
    file: TailFile<ZtensorReader>,
    ledger: Ledger,
    options: WriteOptions,
}

impl ZtensorEditor {
    /// Opens a file for editing.
    ///
    /// # Errors
    /// The errors of [`ZtensorReader::from_path`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        Self::open_with(path.as_ref(), &ReadOptions::default(), WriteOptions::default())
    }

    /// Opens a file for editing, with options.
    ///
    /// # Errors
    /// The errors of [`ZtensorReader::open`]; [`ErrorKind::Unsupported`](fmt_core::ErrorKind::Unsupported)
    /// for an invalid alignment; [`ErrorKind::Duplicate`](fmt_core::ErrorKind::Duplicate) when a lenient
    /// reader accepted duplicate names.
    pub fn open_with(path: &Path, read: &ReadOptions, write: WriteOptions) -> Result<Self, Error> {
        write.check()?;
        let file = TailFile::open(path, |source| ZtensorReader::open(source, read))?;
        let reader = file.reader();
        let tensors = reader.entries().iter().zip(reader.details());
        let ledger = Ledger::resume(&write, tensors, file.len())?;
        Ok(Self {
            file,
            ledger,
            options: write,
        })
    }

    /// Renames a tensor.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfBounds`](fmt_core::ErrorKind::OutOfBounds) when there is no such tensor,
    /// [`ErrorKind::Duplicate`](fmt_core::ErrorKind::Duplicate) when the new name is taken,
    /// [`ErrorKind::BadName`](fmt_core::ErrorKind::BadName) when the new name is invalid,
    /// [`ErrorKind::TooLarge`](fmt_core::ErrorKind::TooLarge) when the index would become too large.
    pub fn rename(&mut self, from: &str, to: &str) -> Result<(), Error> {
        self.ledger.rename(from, to)
    }

    /// Sets a custom field of a tensor; an existing field with this key keeps its position.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfBounds`](fmt_core::ErrorKind::OutOfBounds) when there is no such tensor,
    /// [`ErrorKind::TooLarge`](fmt_core::ErrorKind::TooLarge) when the index would become too large.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "fields are values, as in the options of tensors"
    )]
    pub fn set_field(&mut self, tensor: &str, field: CustomField) -> Result<(), Error> {
        self.ledger.set_field(tensor, &field)
    }

    /// Removes a custom field of a tensor and returns its value, if it had one.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfBounds`](fmt_core::ErrorKind::OutOfBounds) when there is no such tensor.
    pub fn remove_field(&mut self, tensor: &str, key: &str) -> Result<Option<CborValue>, Error> {
        self.ledger.remove_field(tensor, key)
    }

    /// Creates a writer to `out`, which already has the first `position` bytes of the file.
    fn resume<W: Write>(self, out: W, position: u64) -> Result<ZtensorWriter<W>, Error> {
        Ok(ZtensorWriter::resume(out, self.options, self.ledger, position))
    }
}

fmt_core::edit_at_end!(ZtensorEditor, ZtensorReader, ZtensorWriter);
