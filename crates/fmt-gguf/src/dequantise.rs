//! Dequantises tensors block by block.

use fmt_core::{Error, ErrorKind, OpaqueDType, TENSOR_STREAM_UNIT, TensorStream};
use tensor_core::{DType, bf16, f16};

use crate::{
    blocks::undo_of,
    types::{GgmlType, TYPES},
    words::Decode,
};

/// Dequantises blocks of GGML's quantised types.
///
/// A decoder depends only on the dtype, so the tensor may come from any file with such blocks, not only GGUF.
/// Results as `f32` equal those of GGML's reference to the last bit. Other float types are rounded from the
/// `f32` values to nearest, ties to even.
///
/// ```
/// use fmt_core::{BytesStream, OpaqueDType, TensorStream};
/// use fmt_gguf::Dequantizer;
/// use tensor_core::{DType, bf16};
///
/// let dtype = OpaqueDType::new("Q8_0", 32, 34); // a scale as f16, and 32 bytes
/// let dequantizer = Dequantizer::of(&dtype).ok_or("not a type that is understood")?;
/// let block: Vec<u8> = [0x00, 0x38].into_iter().chain(0..32).collect(); // the scale is 0.5
///
/// // Decode blocks in memory.
/// let mut floats = [0.0; 32];
/// dequantizer.blocks(&block, &mut floats)?;
/// assert_eq!(floats[..4], [0.0, 0.5, 1.0, 1.5]);
///
/// // Decode a tensor's stream: however large the tensor is, only a few blocks are in memory.
/// let mut stream = dequantizer.stream(Box::new(BytesStream::new(block.into())), DType::BF16)?;
/// let mut bytes = [0; 64];
/// assert_eq!(stream.read(&mut bytes)?, 64);
/// assert_eq!(bytes[6..8], bf16::from_f32(1.5).to_le_bytes());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Dequantizer {
    ggml: GgmlType,
    undo: Decode,
}

impl Dequantizer {
    /// Creates a dequantizer for a dtype, by its name and block size. `None` if the dtype is not one of
    /// GGML's, or has no decoder (`Q1_0` and `Q8_1`).
    #[must_use]
    pub fn of(dtype: &OpaqueDType) -> Option<Self> {
        let ggml = GgmlType::of_opaque(dtype)?;
        Some(Self {
            ggml,
            undo: undo_of(ggml)?,
        })
    }

    /// Returns the supported dtypes.
    ///
    /// ```
    /// let mut dtypes = fmt_gguf::Dequantizer::dtypes();
    /// assert!(dtypes.any(|dtype| dtype.name() == "Q4_K"));
    /// ```
    pub fn dtypes() -> impl Iterator<Item = OpaqueDType> {
        let understood = TYPES.into_iter().filter(|ggml| undo_of(*ggml).is_some());
        understood.map(|ggml| OpaqueDType::new(ggml.name, ggml.elements, ggml.bytes))
    }

    /// Decodes whole blocks into `out`.
    ///
    /// # Errors
    /// [`ErrorKind::SizeMismatch`] when the bytes are not whole blocks, or `out` does not match their element
    /// count.
    pub fn blocks(&self, bytes: &[u8], out: &mut [f32]) -> Result<(), Error> {
        let (elements, size) = (self.ggml.elements as usize, self.ggml.bytes as usize);
        if !bytes.len().is_multiple_of(size) || bytes.len() / size * elements != out.len() {
            let what = format!("the bytes of blocks of {}", self.ggml.name);
            let error = Error::new(ErrorKind::SizeMismatch, what);
            return Err(error
                .expected(format_args!("{size} bytes for {elements} elements"))
                .found(format_args!("{} bytes for {}", bytes.len(), out.len())));
        }
        for (block, out) in bytes.chunks_exact(size).zip(out.chunks_exact_mut(elements)) {
            (self.undo)(block, out);
        }
        Ok(())
    }

    /// Wraps a stream of blocks as a stream of `f32`, `f16`, `bf16` or `f64` elements, little-endian.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] for any other dtype. The stream returns the errors of `blocks`, and fails
    /// with [`ErrorKind::Truncated`] when `blocks` ends within a block.
    pub fn stream<'a>(
        &self,
        blocks: Box<dyn TensorStream + 'a>,
        dtype: DType,
    ) -> Result<Box<dyn TensorStream + 'a>, Error> {
        if !matches!(dtype, DType::F32 | DType::F16 | DType::BF16 | DType::F64) {
            let error = Error::new(ErrorKind::Unsupported, "the dtype for dequantised elements");
            return Err(error.expected("f32, f16, bf16 or f64").found(dtype));
        }
        // Reads whole blocks whose total size is also a multiple of the stream's unit.
        let together = TENSOR_STREAM_UNIT * self.ggml.bytes as usize;
        let packed = PIECE.next_multiple_of(together);
        let elements = packed / self.ggml.bytes as usize * self.ggml.elements as usize;
        Ok(Box::new(DequantizedStream {
            dequantizer: *self,
            blocks,
            dtype,
            packed: vec![0; packed],
            floats: vec![0.0; elements],
            at: 0,
            end: 0,
        }))
    }
}

/// Approximate size of a read in bytes.
const PIECE: usize = 32 << 10;

struct DequantizedStream<'a> {
    dequantizer: Dequantizer,
    blocks: Box<dyn TensorStream + 'a>,
    dtype: DType,
    packed: Vec<u8>,
    floats: Vec<f32>,
    /// Index of the next decoded float.
    at: usize,
    end: usize,
}

impl DequantizedStream<'_> {
    /// Decodes the next blocks if all decoded floats have been returned. At the end of the stream there are
    /// no more floats.
    fn fill(&mut self) -> Result<(), Error> {
        if self.at < self.end {
            return Ok(());
        }
        let read = self.blocks.read(&mut self.packed)?;
        let size = self.dequantizer.ggml.bytes as usize;
        if !read.is_multiple_of(size) {
            let error = Error::new(ErrorKind::Truncated, "the tensor ends within a block");
            return Err(error
                .expected(format_args!("whole blocks of {size} bytes"))
                .found(format_args!("{} bytes of one", read % size)));
        }
        let floats = read / size * self.dequantizer.ggml.elements as usize;
        (self.at, self.end) = (0, floats);
        self.dequantizer
            .blocks(&self.packed[..read], &mut self.floats[..floats])
    }
}

impl TensorStream for DequantizedStream<'_> {
    fn read(&mut self, out: &mut [u8]) -> Result<usize, Error> {
        let (mut written, width) = (0, self.dtype.size());
        loop {
            self.fill()?;
            let room = (out.len() - written) / width;
            let count = room.min(self.end - self.at);
            if count == 0 {
                return Ok(written);
            }
            let floats = &self.floats[self.at..self.at + count];
            let out = &mut out[written..written + count * width];
            match self.dtype {
                DType::F16 => put(floats, out, |float| f16::from_f32(float).to_le_bytes()),
                DType::BF16 => put(floats, out, |float| bf16::from_f32(float).to_le_bytes()),
                DType::F64 => put(floats, out, |float| f64::from(float).to_le_bytes()),
                _ => put(floats, out, f32::to_le_bytes),
            }
            self.at += count;
            written += count * width;
        }
    }
}

fn put<const N: usize>(floats: &[f32], out: &mut [u8], bytes: impl Fn(f32) -> [u8; N]) {
    let (out, _) = out.as_chunks_mut::<N>();
    for (out, float) in out.iter_mut().zip(floats) {
        *out = bytes(*float);
    }
}
