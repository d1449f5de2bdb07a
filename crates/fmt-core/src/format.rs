use std::{io::Write, sync::Arc};

use crate::{ByteSource, Capabilities, Error, Plan, ReadOptions, TensorReader, TensorWriter};

/// A reader of any format.
pub type BoxReader = Box<dyn TensorReader>;

/// A writer of any format, to an [`Output`].
pub type BoxWriter<'w> = Box<dyn TensorWriter + 'w>;

/// Where a writer's bytes go.
pub type Output<'w> = Box<dyn Write + Send + 'w>;

/// A file format, for tools that deal with all of them alike.
pub trait Format: Send + Sync {
    /// Its short name, such as `tbuf`.
    fn id(&self) -> &'static str;

    /// How its files' names end, the usual ending first, without the dot.
    fn extensions(&self) -> &'static [&'static str];

    /// Whether a file that begins with `head` and has `len` bytes is one.
    fn sniff(&self, head: &[u8], len: u64) -> Sniff;

    /// Opens a file.
    ///
    /// # Errors
    /// What is wrong with it, and where.
    fn open(&self, source: Arc<dyn ByteSource>, options: &ReadOptions) -> Result<BoxReader, Error>;

    /// The capabilities of its files, which its writer checks plans by; `None` when they are only read.
    fn capabilities(&self) -> Option<&'static Capabilities> {
        None
    }

    /// Whether files of the format are written, or only read.
    fn is_written(&self) -> bool {
        self.capabilities().is_some()
    }

    /// Whether tensors can have the same bytes in its files ([`PlannedEntry::same_as`](crate::PlannedEntry::same_as)).
    fn shares_bytes(&self) -> bool {
        self.capabilities().is_some_and(|can| can.shares_bytes)
    }

    /// Begins a file. Nothing is written if the format cannot hold the plan.
    ///
    /// # Errors
    /// [`ErrorKind::TooLarge`](crate::ErrorKind::TooLarge), [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported),
    /// [`ErrorKind::BadName`](crate::ErrorKind::BadName) or [`ErrorKind::Duplicate`](crate::ErrorKind::Duplicate) for
    /// the first thing that the format cannot hold; it names what would.
    fn create<'w>(&self, out: Output<'w>, plan: Plan) -> Result<BoxWriter<'w>, Error>;
}

/// How sure a format is that a file is its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sniff {
    /// It is not.
    No,
    /// It may be: the format has no mark to tell by.
    Possible,
    /// It bears the format's mark.
    Certain,
}
