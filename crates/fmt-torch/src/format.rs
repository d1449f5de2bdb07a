//! Implements `fmt_core`'s trait for formats.

use std::sync::Arc;

use fmt_core::{
    BoxReader, BoxWriter, ByteSource, Error, ErrorKind, Format, Output, Plan, ReadOptions, Sniff,
};

use crate::{TorchReader, checkpoint::LEGACY};

/// The format for tools that handle all formats. Read only.
///
/// ```
/// use fmt_core::{Format, Sniff};
///
/// let head = b"PK\x03\x04\0\0\x08\x08\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x10\0\x12\0archive/data.pkl";
/// assert_eq!(fmt_torch::Torch.sniff(head, 1000), Sniff::Certain);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Torch;

impl Format for Torch {
    fn id(&self) -> &'static str {
        "torch"
    }

    fn extensions(&self) -> &'static [&'static str] {
        &["pt", "pth", "bin", "ckpt", "pt2"]
    }

    fn sniff(&self, head: &[u8], _len: u64) -> Sniff {
        // `torch.save` writes the pickle first, `torch.jit.save` the first storage, or files added by an
        // exporter.
        let name_len = head
            .get(26..28)
            .map_or(0, |len| usize::from(len[0]) | usize::from(len[1]) << 8);
        let name = head.get(30..).and_then(|rest| rest.get(..name_len));
        let is_known = |name: &[u8]| name.ends_with(b"/data.pkl") || name.ends_with(b"/data/0");
        // PyTorch pads each member with an extra field of this id to align data.
        let extra = head.get(30 + name_len..).unwrap_or_default();
        let is_archive =
            head.starts_with(b"PK\x03\x04") && (name.is_some_and(is_known) || extra.starts_with(b"FB"));
        if head.starts_with(LEGACY) || is_archive {
            Sniff::Certain
        } else {
            Sniff::No
        }
    }

    fn open(&self, source: Arc<dyn ByteSource>, options: &ReadOptions) -> Result<BoxReader, Error> {
        Ok(Box::new(TorchReader::open(source, options)?))
    }

    fn create<'w>(&self, _out: Output<'w>, _plan: Plan) -> Result<BoxWriter<'w>, Error> {
        let error = Error::new(ErrorKind::Unsupported, "PyTorch checkpoints are not written");
        Err(error.expected("safetensors, which PyTorch reads").rule("P8"))
    }
}
