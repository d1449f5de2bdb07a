//! The interface of a file format: recognizing, opening and creating files.

use std::{io::Write, sync::Arc};

use crate::{ByteSource, Capabilities, Error, Plan, ReadOptions, TensorReader, TensorWriter};

/// A reader of any format.
pub type BoxReader = Box<dyn TensorReader>;

/// A writer of any format, to an [`Output`].
pub type BoxWriter<'w> = Box<dyn TensorWriter + 'w>;

/// The destination of the bytes that a writer produces.
pub type Output<'w> = Box<dyn Write + Send + 'w>;

/// A file format, for tools that work with any format.
pub trait Format: Send + Sync {
    /// Returns the short name, such as `tbuf`.
    fn id(&self) -> &'static str;

    /// Returns the file name extensions without the dot, the usual one first.
    fn extensions(&self) -> &'static [&'static str];

    /// Guesses whether a file that begins with `head` and is `len` bytes long is of this format.
    fn sniff(&self, head: &[u8], len: u64) -> Sniff;

    /// Opens a file of this format from `source`.
    ///
    /// # Errors
    /// The error says what is invalid, and at which byte.
    fn open(&self, source: Arc<dyn ByteSource>, options: &ReadOptions) -> Result<BoxReader, Error>;

    /// Returns the capabilities that the writer checks plans against; `None` if the format is read-only.
    fn capabilities(&self) -> Option<&'static Capabilities> {
        None
    }

    /// Returns whether files of the format can be written.
    fn is_written(&self) -> bool {
        self.capabilities().is_some()
    }

    /// Returns whether tensors of a file can share bytes
    /// ([`PlannedEntry::same_as`](crate::PlannedEntry::same_as)).
    fn shares_bytes(&self) -> bool {
        self.capabilities().is_some_and(|can| can.shares_bytes)
    }

    /// Starts writing a file. Nothing is written if the format cannot hold the plan.
    ///
    /// # Errors
    /// [`ErrorKind::TooLarge`](crate::ErrorKind::TooLarge),
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported),
    /// [`ErrorKind::BadName`](crate::ErrorKind::BadName) or
    /// [`ErrorKind::Duplicate`](crate::ErrorKind::Duplicate) for the first part of the plan that the format
    /// cannot hold; the message says what the format supports.
    fn create<'w>(&self, out: Output<'w>, plan: Plan) -> Result<BoxWriter<'w>, Error>;
}

/// How likely it is that a file is of a format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sniff {
    /// The file is not of this format.
    No,
    /// The file may be of this format, which has no magic number.
    Possible,
    /// The file has the format's magic number.
    Certain,
}
