//! ONNX Runtime's `MatMulBnb4`: a product with a matrix of 4-bit floats (FP4 or NF4, from bitsandbytes). The
//! numbers in each block of the flattened matrix are scaled by the absolute maximum of the block.

use std::sync::Arc;

use onnx_gemm::gemv;
use onnx_tensor::prelude::*;

use onnx_tensor::{
    cancelling::{PART, Pace},
    elements::{elements, tensor},
    faults::{Unsupported, ensure_input},
    node::{Attributes, Node},
    operator::{Compute, Fact, Kernel, kernel},
};

/// Builds the operator `MatMulBnb4`.
pub fn four_bit_floats(node: &Node) -> Result<Box<dyn Compute>> {
    let attributes = Attributes(node);
    let size = |name: &str| -> Result<usize> {
        let size = usize::try_from(attributes.int(name, 0)).ok();
        let size = size.filter(|size| (1..1 << 31).contains(size));
        size.with_context(|| format!("{name} must be a positive number"))
    };
    Ok(kernel(FourBitFloats {
        rows: size("N")?,
        columns: size("K")?,
        block: size("block_size")?,
        numbers: match attributes.int("quant_type", -1) {
            0 => &FP4,
            1 => &NF4,
            other => bail!("quant_type is {other}, expected 0 or 1"),
        },
        is_transposed: attributes.int("transB", 1) != 0,
    }))
}

#[derive(Debug)]
struct FourBitFloats {
    /// Number of rows (`rows`) and of columns (`columns`) of the matrix.
    rows: usize,
    columns: usize,
    block: usize,
    /// The value of each 4-bit code, as a fraction of the absolute maximum.
    numbers: &'static [f32; 16],
    /// Whether the matrix is transposed in the product.
    is_transposed: bool,
}

impl FourBitFloats {
    /// Returns the row lengths of the input and of the output.
    fn widths(&self) -> [usize; 2] {
        match self.is_transposed {
            true => [self.columns, self.rows],
            false => [self.rows, self.columns],
        }
    }
}

impl Kernel for FourBitFloats {
    fn outputs(&self, inputs: &[Fact]) -> Result<Vec<Fact>> {
        let [input, packed, largest] = inputs else {
            bail!("expected 3 inputs, found {}", inputs.len());
        };
        let is_float = |fact: &Fact| fact.element_type == ElementType::F32;
        if !is_float(input) || !is_float(largest) || packed.element_type != ElementType::U8 {
            bail!(Unsupported::Here(
                "is supported for FP32, with weights of UINT8 and absmax of FP32".to_owned()
            ));
        }
        let [depth, width] = self.widths();
        let mut output = input.with(ElementType::F32);
        let last = output.shape.last_mut().context("a scalar")?;
        if let Some(found) = last.to_usize() {
            ensure_input!(found == depth, "rows of {found} numbers, expected {depth}");
        }
        *last = width.to_dim();
        Ok(vec![output])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> Result<ShortVec<Tensor>> {
        let (input, packed) = (elements::<f32>(&inputs[0])?, elements::<u8>(&inputs[1])?);
        let largest = elements::<f32>(&inputs[2])?;
        let [depth, width] = self.widths();
        // The numbers of rows and columns are below 2^31, so their product does not overflow.
        let count = self.rows * self.columns;
        ensure_input!(
            packed.len() == count.div_ceil(2) && largest.len() == count.div_ceil(self.block),
            "{} bytes of weights and {} numbers of absmax, expected {} and {}",
            packed.len(),
            largest.len(),
            count.div_ceil(2),
            count.div_ceil(self.block)
        );
        let mut shape = inputs[0].shape().to_vec();
        *shape.last_mut().context("a scalar")? = width;
        let tokens = input.len() / depth;
        let mut made = vec![0.0; tokens * width];
        let mut row = vec![0.0; self.columns];
        let mut sums = vec![0.0; tokens];
        let mut pace = Pace::default();
        for at in 0..self.rows {
            for (first, row) in (0..).step_by(PART).zip(row.chunks_mut(PART)) {
                pace.spend(row.len() as u64)?;
                for (column, number) in (first..).zip(row) {
                    let index = at * self.columns + column;
                    // The upper half of a byte is the first element.
                    let half = packed[index / 2] >> (4 * (1 - index % 2)) & 15;
                    *number = self.numbers[usize::from(half)] * largest[index / self.block];
                }
            }
            if self.is_transposed {
                // Multiplies a few tokens at a time.
                let together = (8 * PART / depth).max(1);
                let parts = input.chunks(together * depth).zip(sums.chunks_mut(together));
                for (first, (input, sums)) in (0..).step_by(together).zip(parts) {
                    pace.spend((input.len() / 8 + sums.len()) as u64)?;
                    gemv(&row, input, depth, sums);
                    let made = made[first * width + at..].iter_mut().step_by(width);
                    sums.iter().zip(made).for_each(|(sum, made)| *made = *sum);
                }
            } else {
                for (given, made) in input.chunks_exact(depth).zip(made.chunks_exact_mut(width)) {
                    let factor = given[at];
                    for (row, made) in row.chunks(PART).zip(made.chunks_mut(PART)) {
                        pace.spend(1 + row.len() as u64 / 8)?;
                        let pairs = made.iter_mut().zip(row);
                        pairs.for_each(|(made, number)| *made += factor * number);
                    }
                }
            }
        }
        Ok(smallvec![tensor(&shape, made)?])
    }
}

/// The values of FP4 codes, which have a sign, 2 exponent bits and 1 mantissa bit.
const FP4: [f32; 16] = [
    0.0,
    0.005_208_333_3,
    0.666_666_7,
    1.0,
    0.333_333_33,
    0.5,
    0.166_666_67,
    0.25,
    -0.0,
    -0.005_208_333_3,
    -0.666_666_7,
    -1.0,
    -0.333_333_33,
    -0.5,
    -0.166_666_67,
    -0.25,
];

/// The values of NF4 codes, which are quantiles of the normal distribution.
const NF4: [f32; 16] = [
    -1.0,
    -0.696_192_8,
    -0.525_073_05,
    -0.394_917_5,
    -0.284_441_38,
    -0.184_773_43,
    -0.091_050_036,
    0.0,
    0.079_580_3,
    0.160_930_2,
    0.246_112_3,
    0.337_915_24,
    0.440_709_83,
    0.562_617,
    0.722_956_84,
    1.0,
];
