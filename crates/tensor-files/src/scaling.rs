//! 8-bit floats with scales, as stored by DeepSeek and compressed-tensors, read as numbers.

use fmt_core::{Entry, Error, ErrorKind, StoredDType, TensorReader, TensorStream};
use tensor_core::{DType, DTypeKind, Shape, Tensor};

/// How a tensor's 8-bit floats are scaled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scaling {
    kind: Float8,
    /// The index of the tensor with the scales.
    pub(crate) scales: usize,
    /// The last two dimensions; `[1, n]` for a vector.
    dims: [u64; 2],
    /// Height and width of a block whose elements share a scale.
    block: [u64; 2],
    /// Number of blocks across a matrix, and in a whole matrix. The latter is 0 if all elements share one
    /// scale.
    blocks: [u64; 2],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Float8 {
    /// `F8_E4M3` without infinities, PyTorch's `float8_e4m3fn`.
    E4M3,
    E5M2,
}

/// Suffixes that turn a tensor's name into the name of its scales. Both kinds of scales are factors, despite
/// the name `inv`.
const ENDINGS: [&str; 2] = ["_scale_inv", "_scale"];

/// Side length of the blocks that DeepSeek and most other writers use.
const USUAL_BLOCK: u64 = 128;

impl Scaling {
    /// Finds the scales of a tensor of 8-bit floats; `None` if the tensor has other elements.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] when the file has no scales for the tensor, without which its numbers would
    /// be wrong, or when the shape of the scales does not match.
    pub(crate) fn of(reader: &dyn TensorReader, entry: &Entry) -> Result<Option<Self>, Error> {
        let StoredDType::Opaque(dtype) = &entry.dtype else {
            return Ok(None);
        };
        let kind = match dtype.name() {
            "F8_E4M3" => Float8::E4M3,
            "F8_E5M2" => Float8::E5M2,
            _ => return Ok(None),
        };
        let refused = |what: &str| Error::new(ErrorKind::Unsupported, what.to_owned()).of_tensor(&entry.name);
        let names = ENDINGS.map(|ending| format!("{}{ending}", entry.name));
        let found = names.iter().find_map(|name| reader.find(name));
        let Some(scales) = found else {
            let error = refused("8-bit floats are meaningless without their scales");
            return Err(error.expected(format_args!(
                "a tensor '{}' or '{}' with them, or --keep-dtype",
                names[0], names[1]
            )));
        };
        let of_scales = &reader.entries()[scales];
        let is_float = of_scales
            .dtype
            .known()
            .is_some_and(|dtype| dtype.kind() == DTypeKind::Float);
        let fitted = fit(&entry.shape, &of_scales.shape).filter(|_| is_float);
        let (dims, block, blocks) = fitted.ok_or_else(|| {
            let error = refused("the scales do not match the tensor");
            let expected = "floats: one, one for each row, or one for each block of rows and columns";
            error.expected(expected).found(format_args!(
                "{}{} for {}",
                of_scales.dtype, of_scales.shape, entry.shape
            ))
        })?;
        Ok(Some(Self {
            kind,
            scales,
            dims,
            block,
            blocks,
        }))
    }

    /// Returns the elements as f32: each multiplied by its scale and rounded once, as the Python packages do.
    pub(crate) fn stream<'r>(
        self,
        reader: &'r dyn TensorReader,
        inner: Box<dyn TensorStream + 'r>,
    ) -> Result<Box<dyn TensorStream + 'r>, Error> {
        let scales = as_f32(&reader.tensor(self.scales)?)?;
        let decoded = (0..=u8::MAX).map(|bits| self.kind.decode(bits)).collect();
        Ok(Box::new(ScaledStream {
            inner,
            scaled: self,
            scales,
            decoded,
            at: 0,
            source: Vec::new(),
        }))
    }

    /// Returns the index of an element's scale.
    fn scale_of(&self, element: u64) -> u64 {
        let [rows, columns] = self.dims;
        let (row, column) = (element / columns, element % columns);
        let (matrix, row) = (row / rows, row % rows);
        let [across, in_all] = self.blocks;
        matrix * in_all + row / self.block[0] * across + column / self.block[1]
    }
}

/// Returns the last two dimensions, the block size and the numbers of blocks, if the shape of the scales fits
/// the tensor.
fn fit(tensor: &Shape, scales: &Shape) -> Option<([u64; 2], [u64; 2], [u64; 2])> {
    let (outer, dims) = matrix_of(tensor.dims());
    if tensor.element_count() == 0 {
        return None;
    }
    // One scale applies to the whole tensor.
    if scales.element_count() == 1 {
        return Some((dims, dims, [1, 0]));
    }
    let [rows, columns] = dims;
    // Each row has one scale, with or without a trailing dimension of 1.
    let per_row = tensor.rank() >= 2 && scales.dims() == &tensor.dims()[..tensor.rank() - 1];
    if per_row {
        return Some((dims, [1, columns], [1, rows]));
    }
    let (scale_outer, [down, across]) = matrix_of(scales.dims());
    if scale_outer != outer || scales.rank() != tensor.rank() || down == 0 || across == 0 {
        return None;
    }
    let side = |len: u64, blocks: u64| match blocks {
        1 => Some(len),
        blocks if blocks == len => Some(1),
        blocks if len.div_ceil(USUAL_BLOCK) == blocks => Some(USUAL_BLOCK),
        blocks => len.is_multiple_of(blocks).then(|| len / blocks),
    };
    // A single block along a side gets the length of the side. The writer may have used a larger block, which
    // makes no difference, because no element lies beyond the side.
    let block = [side(rows, down)?, side(columns, across)?];
    Some((dims, block, [across, down * across]))
}

/// Splits dimensions into the outer dimensions and the last two.
fn matrix_of(dims: &[u64]) -> (&[u64], [u64; 2]) {
    match dims {
        [] => (&[], [1, 1]),
        [columns] => (&[], [1, *columns]),
        [outer @ .., rows, columns] => (outer, [*rows, *columns]),
    }
}

fn as_f32(scales: &Tensor) -> Result<Vec<f32>, Error> {
    let failed = |error: tensor_core::CastError| Error::new(ErrorKind::Unsupported, error.to_string());
    match scales.spec().dtype() {
        DType::F32 => scales.to_vec::<f32>().map_err(failed),
        DType::BF16 => {
            let scales = scales.to_vec::<tensor_core::bf16>().map_err(failed)?;
            Ok(scales.into_iter().map(tensor_core::bf16::to_f32).collect())
        }
        DType::F16 => {
            let scales = scales.to_vec::<tensor_core::f16>().map_err(failed)?;
            Ok(scales.into_iter().map(tensor_core::f16::to_f32).collect())
        }
        _ => {
            let scales = scales.to_vec::<f64>().map_err(failed)?;
            Ok(scales.into_iter().map(|scale| scale as f32).collect())
        }
    }
}

impl Float8 {
    fn decode(self, bits: u8) -> f32 {
        let sign = if bits & 0x80 == 0 { 1.0 } else { -1.0 };
        let (mantissa_bits, bias) = match self {
            Self::E4M3 => (3, 7),
            Self::E5M2 => (2, 15),
        };
        let exponent = i32::from((bits & 0x7f) >> mantissa_bits);
        let mantissa = f32::from(bits & ((1 << mantissa_bits) - 1)) / (1 << mantissa_bits) as f32;
        match (self, bits & 0x7f) {
            (Self::E5M2, 0x7c) => sign * f32::INFINITY,
            (Self::E4M3, 0x7f) | (Self::E5M2, 0x7d..) => f32::NAN,
            _ if exponent == 0 => sign * mantissa * 2f32.powi(1 - bias),
            _ => sign * (1.0 + mantissa) * 2f32.powi(exponent - bias),
        }
    }
}

struct ScaledStream<'r> {
    inner: Box<dyn TensorStream + 'r>,
    scaled: Scaling,
    scales: Vec<f32>,
    decoded: Vec<f32>,
    /// Number of elements read.
    at: u64,
    source: Vec<u8>,
}

impl TensorStream for ScaledStream<'_> {
    fn read(&mut self, out: &mut [u8]) -> Result<usize, Error> {
        self.source.resize(out.len() / 4, 0);
        let read = self.inner.read(&mut self.source)?;
        let (out, _) = out.as_chunks_mut::<4>();
        for (bits, out) in self.source[..read].iter().zip(out) {
            // The index is in range: `fit` has checked the number of scales.
            let scale = self.scales[self.scaled.scale_of(self.at) as usize];
            *out = (self.decoded[usize::from(*bits)] * scale).to_le_bytes();
            self.at += 1;
        }
        Ok(4 * read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_of_eight_bits() {
        for (bits, value) in [
            (0x00, 0.0f32),
            (0x38, 1.0),
            (0x7e, 448.0),
            (0x01, 2f32.powi(-9)),
            (0xc4, -3.0),
        ] {
            assert_eq!(Float8::E4M3.decode(bits), value, "{bits:#x}");
        }
        for (bits, value) in [
            (0x3c, 1.0f32),
            (0x7b, 57344.0),
            (0x01, 2f32.powi(-16)),
            (0x7c, f32::INFINITY),
        ] {
            assert_eq!(Float8::E5M2.decode(bits), value, "{bits:#x}");
        }
        assert!(Float8::E4M3.decode(0xff).is_nan() && Float8::E5M2.decode(0x7e).is_nan());
    }

    #[test]
    fn scales_fit_in_four_ways() {
        let fits = |tensor: &[u64], scales: &[u64]| {
            fit(&Shape::new(tensor).unwrap(), &Shape::new(scales).unwrap()).map(|(_, block, _)| block)
        };
        assert_eq!(fits(&[300, 200], &[3, 2]), Some([128, 128]));
        assert_eq!(fits(&[300, 200], &[300, 1]), Some([1, 200]));
        assert_eq!(fits(&[300, 200], &[300]), Some([1, 200]));
        assert_eq!(fits(&[300, 200], &[1]), Some([300, 200]));
        assert_eq!(fits(&[300, 200], &[]), Some([300, 200]));
        assert_eq!(fits(&[4, 300, 200], &[4, 3, 2]), Some([128, 128]));
        assert_eq!(fits(&[64, 96], &[2, 3]), Some([32, 32]));
        assert_eq!(fits(&[300, 200], &[7, 2]), None);
        assert_eq!(fits(&[4, 300, 200], &[3, 2]), None);
    }
}
