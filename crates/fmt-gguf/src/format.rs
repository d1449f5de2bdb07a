use std::{io::Write, sync::Arc};

use fmt_core::{ByteSource, Error, ErrorKind, Format, Plan, ReadOptions, Sniff, TensorReader, TensorWriter};

use crate::{GgufReader, header::FORMAT};

/// The format, for tools that deal with all formats alike.
///
/// ```
/// use fmt_core::{Format, Sniff};
/// use fmt_gguf::Gguf;
///
/// assert_eq!(Gguf.sniff(b"GGUF\x03\0\0\0", 1000), Sniff::Certain);
/// assert!(Gguf.create(Box::new(Vec::new()), Default::default()).is_err()); // it is read only
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Gguf;

impl Format for Gguf {
    fn id(&self) -> &'static str {
        FORMAT
    }

    fn extensions(&self) -> &'static [&'static str] {
        &["gguf"]
    }

    fn sniff(&self, head: &[u8], _len: u64) -> Sniff {
        if head.starts_with(b"GGUF") {
            Sniff::Certain
        } else {
            Sniff::No
        }
    }

    fn open(
        &self,
        source: Arc<dyn ByteSource>,
        options: &ReadOptions,
    ) -> Result<Box<dyn TensorReader>, Error> {
        Ok(Box::new(GgufReader::open(source, options)?))
    }

    fn create<'w>(
        &self,
        _out: Box<dyn Write + Send + 'w>,
        _plan: Plan,
    ) -> Result<Box<dyn TensorWriter + 'w>, Error> {
        let error = Error::new(ErrorKind::Unsupported, "GGUF files are read, not written").rule("G7");
        Err(error.expected("a target of another format"))
    }
}
