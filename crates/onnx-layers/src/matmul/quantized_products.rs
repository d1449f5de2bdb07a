//! Products of 8-bit matrices whose sums are scaled: `QLinearMatMul`, which returns 8 bits, and
//! `DequantizedMatMul`, which returns FP32.

use std::sync::Arc;

use onnx_gemm::PackedIntegers;
use onnx_tensor::prelude::*;

use crate::{
    least_work::{ELEMENTS, PRODUCTS},
    matmul::{
        integer_products::{Sums, expect_scales, expect_zero_point, list, packed, sums},
        matrices::{Sizes, matrices},
        products::{MatMul, fitting},
        zero_points::{expect_bytes, less, rounded},
    },
    quant::quantize,
    split_products::{LEAST_ROWS, products},
};
use onnx_tensor::{
    cancelling::{PART, Pace},
    elements::{elements, tensor},
    faults::ensure_input,
    node::Node,
    operator::{Compute, Constants, Fact},
    packs::Packs,
    size,
    split::lines,
    threads,
};

/// Builds the operator `QLinearMatMul`.
pub fn q_linear_mat_mul(_: &Node) -> Result<Box<dyn Compute>> {
    Ok(Box::new(QuantizedProduct::new(Returns::Bytes)))
}

/// Builds the operator `DequantizedMatMul`: `QLinearMatMul` without a scale and a zero point of the result,
/// which is in FP32.
pub fn dequantized_mat_mul(_: &Node) -> Result<Box<dyn Compute>> {
    Ok(Box::new(QuantizedProduct::new(Returns::Floats)))
}

#[derive(Clone, Copy, Debug)]
enum Returns {
    Bytes,
    Floats,
}

#[derive(Debug)]
struct QuantizedProduct {
    returns: Returns,
    packed: Option<Arc<Vec<PackedIntegers>>>,
}

impl QuantizedProduct {
    fn new(returns: Returns) -> Self {
        Self {
            returns,
            packed: None,
        }
    }
}

impl Compute for QuantizedProduct {
    fn outputs(&self, inputs: &[Fact]) -> Result<Option<Vec<Fact>>> {
        let (Some((factors, of_result)), count) = (inputs.split_first_chunk::<6>(), inputs.len()) else {
            bail!("expected 6 inputs or more, found {}", inputs.len());
        };
        let [a, a_scale, a_zero, b, b_scale, b_zero] = factors;
        expect_bytes(a.element_type)?;
        expect_bytes(b.element_type)?;
        expect_zero_point(a, a_zero)?;
        expect_zero_point(b, b_zero)?;
        expect_scales(&[a_scale, b_scale])?;
        let element_type = match (self.returns, of_result) {
            (Returns::Floats, []) => ElementType::F32,
            (Returns::Bytes, [scale, zero]) => {
                expect_bytes(zero.element_type)?;
                expect_scales(&[scale])?;
                zero.element_type
            }
            _ => bail!("found {count} inputs"),
        };
        let sizes = fitting(&a.shape, &b.shape)?;
        Ok(Some(vec![Fact::new(element_type, sizes.shape)]))
    }

    fn take_over(&mut self, constants: Constants<'_>, packs: &mut Packs) -> Result<Option<usize>> {
        if let (Some(Some(b)), Some(Some(zero_points))) = (constants.get(3), constants.get(5)) {
            self.packed = packed(Some(b), Some(zero_points), packs);
        }
        Ok(None)
    }

    fn run(&self, inputs: &mut ShortVec<Arc<Tensor>>) -> Result<ShortVec<Arc<Tensor>>> {
        let factors = Factors {
            a: &inputs[0],
            b: &inputs[3],
            zero_points: [&inputs[2], &inputs[5]],
            packed: self.packed.as_deref(),
        };
        let sizes = fitting(factors.a.shape(), factors.b.shape())?;
        let (rows, columns) = (sizes.rows, sizes.columns);
        let (result, zero_points) = match self.returns {
            Returns::Floats => (vec![1.0], vec![0]),
            Returns::Bytes => (
                list::<f32>(&inputs[6], rows, "scales")?,
                quantize::integers(&inputs[7])?,
            ),
        };
        ensure_input!(
            zero_points.len() == 1 || zero_points.len() == rows,
            "{} zero points for {rows} rows of a result",
            zero_points.len()
        );
        let scales = Scales {
            rows,
            columns,
            a: list::<f32>(&inputs[1], rows, "scales")?,
            b: list::<f32>(&inputs[4], columns, "scales")?,
            result,
            zero_points,
        };
        let made = match (self.returns, inputs.get(7).map(|zero| zero.element_type())) {
            (Returns::Floats, _) => factors.scaled(sizes, &scales, |sum, scale, _| sum * scale),
            (Returns::Bytes, Some(ElementType::I8)) => {
                factors.scaled(sizes, &scales, |sum, scale, zero_point| {
                    rounded(sum, scale, zero_point, i8::MIN.into()) as i8
                })
            }
            (Returns::Bytes, _) => factors.scaled(sizes, &scales, |sum, scale, zero_point| {
                rounded(sum, scale, zero_point, u8::MIN.into()) as u8
            }),
        };
        Ok(smallvec![Arc::new(made?)])
    }
}

/// The scales of a product, and the zero points of its result: one for all rows or columns, or one for each.
struct Scales {
    rows: usize,
    columns: usize,
    /// One scale for each row.
    a: Vec<f32>,
    /// One scale for each column.
    b: Vec<f32>,
    /// One scale for each row.
    result: Vec<f32>,
    /// One zero point for each row.
    zero_points: Vec<i32>,
}

impl Scales {
    /// Scales the sums of rows, the first of which is the row `first` of all matrices. `element` computes an
    /// element of the result from a sum, its scale, and the zero point.
    fn apply<N: Sum, T>(
        &self,
        first: usize,
        sums: &[N],
        made: &mut [T],
        element: impl Fn(f32, f32, i32) -> T + Copy,
        pace: &mut Pace,
    ) -> Result<()> {
        let at = |list: &[f32], index: usize| list[index % list.len()];
        let columns = self.columns.max(1);
        let mut scales = Vec::new();
        let rows = sums.chunks_exact(columns).zip(made.chunks_exact_mut(columns));
        for (row, (sums, made)) in (first..).zip(rows) {
            let row = row % self.rows.max(1);
            if scales.is_empty() || self.a.len() > 1 || self.result.len() > 1 {
                let scale = |column| at(&self.a, row) * at(&self.b, column) / at(&self.result, row);
                scales = pace.indices(columns, scale)?;
            }
            let zero_point = self.zero_points[row % self.zero_points.len()];
            let parts = sums.chunks(PART).zip(scales.chunks(PART));
            for (made, (sums, scales)) in made.chunks_mut(PART).zip(parts) {
                pace.spend(made.len() as u64)?;
                pulp::Arch::new().dispatch(Scaled {
                    sums,
                    scales,
                    made,
                    element: move |sum, scale| element(sum, scale, zero_point),
                });
            }
        }
        Ok(())
    }
}

/// A sum of products.
trait Sum: Copy {
    fn to_f32(self) -> f32;
}

impl Sum for i32 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        self as f32
    }
}

impl Sum for f32 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        self
    }
}

/// Computes elements of a result from sums and their scales.
struct Scaled<'s, N, T, F> {
    sums: &'s [N],
    scales: &'s [f32],
    made: &'s mut [T],
    element: F,
}

impl<N: Sum, T, F: Fn(f32, f32) -> T> pulp::WithSimd for Scaled<'_, N, T, F> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, _: S) {
        let pairs = self.sums.iter().zip(self.scales);
        for (made, (&sum, &scale)) in self.made.iter_mut().zip(pairs) {
            *made = (self.element)(sum.to_f32(), scale);
        }
    }
}

/// The factors of a product.
struct Factors<'f> {
    a: &'f Tensor,
    b: &'f Tensor,
    zero_points: [&'f Tensor; 2],
    /// The matrices of the second factor, if they are constant.
    packed: Option<&'f Vec<PackedIntegers>>,
}

/// The number of sums in one block of rows. A block stays in the L2 cache until its sums are scaled.
const BLOCK: usize = 1 << 16;

/// The minimum row count of a block, since each block reads the whole second factor.
const LEAST_BLOCK: usize = 64;

/// Maximum number of terms of a sum that cannot leave the range of INT32: 255 times 255 fits that many times.
const MOST_TERMS: usize = (i32::MAX as usize) / (255 * 255);

/// Returns the row count of a block for factors of these sizes.
fn rows_of_block([depth, columns]: [usize; 2]) -> usize {
    (BLOCK / columns.max(depth).max(1))
        .max(LEAST_BLOCK)
        .next_multiple_of(LEAST_ROWS)
}

impl Factors<'_> {
    /// Multiplies the factors and scales the sums.
    fn scaled<T: Element + Copy + Default>(
        &self,
        mut sizes: Sizes<usize>,
        scales: &Scales,
        element: impl Fn(f32, f32, i32) -> T + Copy + Sync,
    ) -> Result<Tensor> {
        let shape = std::mem::take(&mut sizes.shape);
        let count: usize = shape.iter().product();
        let (columns, [depth, _]) = (sizes.columns.max(1), sizes.depth);
        // If there is only one right-hand matrix, all rows are multiplied by it at once.
        let is_single = sizes.outer[1].iter().all(|&dim| dim == 1);
        if is_single {
            sizes.rows = count / columns;
            sizes.outer = [smallvec![], smallvec![]];
        }
        if self.has_one_zero_point() && count > 0 && depth > 0 {
            if self.packed.is_none() && depth > MOST_TERMS {
                return self.scaled_floats(&shape, columns, scales, element);
            }
            if sizes.rows >= 2 * LEAST_ROWS {
                let made = self.scaled_blocks(&sizes, is_single, count, scales, element)?;
                return tensor(&shape, made);
            }
        }
        let zero_points = self.zero_points.map(Some);
        let Sums { numbers, .. } = sums([self.a, self.b], zero_points, self.packed)?;
        let mut made = vec![T::default(); count];
        let work = [count as u64, ELEMENTS];
        lines(&mut made, columns, work, |first, made, pace| {
            let sums = &numbers[first * columns..][..made.len()];
            scales.apply(first, sums, made, element, pace)
        })?;
        tensor(&shape, made)
    }

    /// Multiplies the factors and scales the sums in blocks of rows. Each factor has one zero point, or is packed
    /// without.
    fn scaled_blocks<T: Element + Copy + Default>(
        &self,
        sizes: &Sizes<usize>,
        is_single: bool,
        count: usize,
        scales: &Scales,
        element: impl Fn(f32, f32, i32) -> T + Copy + Sync,
    ) -> Result<Vec<T>> {
        let (columns, [depth, _]) = (sizes.columns, sizes.depth);
        let work = [products([count, depth, 1]), PRODUCTS];
        let bytes_of = |numbers: usize, size: usize| (numbers as u64).saturating_mul(size as u64);
        // A matrix with 16 bits and packed.
        let matrix = match self.packed {
            Some(_) => 0,
            None => PackedIntegers::bytes([depth, columns])
                .saturating_add(bytes_of(depth * columns, size_of::<i16>())),
        };
        // Each part has the sums of a block and its rows with 16 bits, and its matrix unless there is just one.
        let block = rows_of_block([depth, columns]).min(sizes.rows);
        let of_part = bytes_of(block * columns, size_of::<i32>())
            .saturating_add(bytes_of(block * depth, size_of::<i16>()))
            .saturating_add(if is_single { 0 } else { matrix });
        let parts = threads::parts(work[0], work[1]).min(threads::limit()).max(1) as u64;
        let asked = of_part
            .saturating_mul(parts)
            .saturating_add(bytes_of(count, size_of::<T>()))
            .saturating_add(if is_single { matrix } else { 0 });
        size::admit_now(asked)?;
        let only;
        let packed = match self.packed {
            Some(packed) => Some(&**packed),
            None if is_single => {
                only = [self.matrix(0, [depth, columns], &mut Pace::default())?];
                Some(&only[..])
            }
            None => None,
        };
        // A part packs each matrix that it multiplies by, so no other part may have rows of the same one.
        let together = if packed.is_some() { LEAST_ROWS } else { sizes.rows };
        let mut made = vec![T::default(); count];
        lines(&mut made, columns * together, work, |first, made, pace| {
            let finish = |first, sums: &[i32], made: &mut [T], pace: &mut Pace| {
                scales.apply(first, sums, made, element, pace)
            };
            self.blocks(sizes, packed, first * together, made, pace, finish)
        })?;
        Ok(made)
    }

    /// Multiplies the factors in FP32, for sums that could leave the range of INT32. Each factor has one zero
    /// point.
    fn scaled_floats<T: Element + Copy + Default>(
        &self,
        shape: &[usize],
        columns: usize,
        scales: &Scales,
        element: impl Fn(f32, f32, i32) -> T + Copy + Sync,
    ) -> Result<Tensor> {
        size::admit_now(6 * (self.a.len() + self.b.len()) as u64)?;
        let mut pace = Pace::default();
        let mut floats = |factor: &Tensor, zero_point: &Tensor| -> Result<Arc<Tensor>> {
            let zero_point = quantize::integers(zero_point)?[0];
            let numbers = less(factor, 0..factor.len(), zero_point, &mut pace)?;
            let numbers = pace.map(&numbers, |&number| f32::from(number))?;
            Ok(tensor(factor.shape(), numbers)?.into_arc())
        };
        let mut factors = smallvec![
            floats(self.a, self.zero_points[0])?,
            floats(self.b, self.zero_points[1])?
        ];
        let product = MatMul::default().run(&mut factors)?;
        let sums = elements::<f32>(&product[0])?;
        let mut made = vec![T::default(); sums.len()];
        lines(
            &mut made,
            columns,
            [sums.len() as u64, ELEMENTS],
            |first, made, pace| {
                let sums = &sums[first * columns..][..made.len()];
                scales.apply(first, sums, made, element, pace)
            },
        )?;
        tensor(shape, made)
    }

    /// Packs a matrix of the second factor, which has one zero point.
    fn matrix(&self, index: usize, [depth, columns]: [usize; 2], pace: &mut Pace) -> Result<PackedIntegers> {
        let size = depth * columns;
        let zero_point = quantize::integers(self.zero_points[1])?[0];
        let b = less(self.b, index * size..(index + 1) * size, zero_point, pace)?;
        pace.spend(b.len() as u64)?;
        Ok(PackedIntegers::new(&b, [depth, columns]))
    }

    /// Returns whether each factor has one zero point, or is packed without.
    fn has_one_zero_point(&self) -> bool {
        self.zero_points[0].len() == 1 && (self.packed.is_some() || self.zero_points[1].len() == 1)
    }

    /// Multiplies rows in blocks, from the row `first` of all matrices on, and calls `finish` for the sums of
    /// each block. `packed` has the matrices of the second factor; without, each is packed here.
    fn blocks<T>(
        &self,
        sizes: &Sizes<usize>,
        packed: Option<&[PackedIntegers]>,
        mut first: usize,
        mut made: &mut [T],
        pace: &mut Pace,
        finish: impl Fn(usize, &[i32], &mut [T], &mut Pace) -> Result<()>,
    ) -> Result<()> {
        let (rows, columns, [depth, _]) = (sizes.rows, sizes.columns, sizes.depth);
        let zero_point = quantize::integers(self.zero_points[0])?[0];
        let results = first / rows + (first % rows + made.len() / columns).div_ceil(rows);
        let block = rows_of_block([depth, columns]);
        let mut sums = vec![0; block.min(made.len() / columns) * columns];
        let mut latest: Option<(usize, PackedIntegers)> = None;
        for [of_a, of_b] in matrices(&sizes.outer, results).skip(first / rows) {
            // Frees the previous matrix before the next one takes memory.
            latest = latest.filter(|(index, _)| *index == of_b);
            let matrix = match (packed, &mut latest) {
                (Some(packed), _) => &packed[of_b],
                (None, Some((_, matrix))) => matrix,
                (None, latest @ None) => {
                    &latest
                        .insert((of_b, self.matrix(of_b, [depth, columns], pace)?))
                        .1
                }
            };
            let count = (rows - first % rows).min(made.len() / columns);
            let (of_matrix, rest) = made.split_at_mut(count * columns);
            let mut row = of_a * rows + first % rows;
            for made in of_matrix.chunks_mut(block * columns) {
                let count = made.len() / columns;
                let sums = &mut sums[..made.len()];
                let a = less(self.a, row * depth..(row + count) * depth, zero_point, pace)?;
                matrix.multiply(&a, sums, pace)?;
                finish(first, sums, made, pace)?;
                (row, first) = (row + count, first + count);
            }
            made = rest;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::matmul::integer_products::tests::{factor, numbers, plainly, run};
    use onnx_tensor::{
        cancelling::Cancelled,
        testing::{while_cancelled, with},
    };

    #[test]
    fn results_are_scaled_and_rounded_to_the_type_of_their_zero_point() {
        let sizes @ [rows, depth, columns] = [3, 5, 4];
        for (of_b, of_result) in [
            (ElementType::U8, ElementType::U8),
            (ElementType::I8, ElementType::I8),
        ] {
            let (a, b) = (
                factor(ElementType::U8, &[2, rows, depth], 37),
                factor(of_b, &[depth, columns], 91),
            );
            let zeros = [
                factor(ElementType::U8, &[], 0),
                factor(of_b, &[columns], 3),
                factor(of_result, &[], 0),
            ];
            let scales: [Vec<f32>; 3] = [vec![0.01], vec![0.02, 0.5, 0.001, 0.1], vec![0.1]];
            let sums = plainly(&a, &b, [&zeros[0], &zeros[1]], sizes);
            let least = if of_result == ElementType::I8 { -128 } else { 0 };
            let expected = sums.iter().enumerate().map(|(at, &sum)| {
                let scale = scales[0][0] * scales[1][at % columns] / scales[2][0];
                ((sum as f32 * scale).round_ties_even() as i32).clamp(least, least + 255)
            });
            let expected: Vec<i32> = expected.collect();
            let scales = scales.map(|scales| match scales[..] {
                [scale] => Arc::new(Tensor::scalar(scale)),
                _ => Arc::new(Tensor::vector(&scales)),
            });
            let inputs = [
                a.clone(),
                scales[0].clone(),
                zeros[0].clone(),
                b.clone(),
                scales[1].clone(),
                zeros[1].clone(),
                scales[2].clone(),
                zeros[2].clone(),
            ];
            let mut constants = vec![None; 8];
            for place in [3, 5] {
                constants[place] = Some(inputs[place].clone());
            }
            for constants in [&[][..], &constants] {
                let found = run(&with(QuantizedProduct::new(Returns::Bytes), constants), &inputs).unwrap();
                assert_eq!(numbers(&found), expected);
            }
        }
    }

    #[test]
    fn sums_that_leave_the_range_of_int32_are_computed_in_fp32() {
        for depth in [MOST_TERMS, MOST_TERMS + 1, 40_000] {
            for rows in [1, 2 * LEAST_ROWS] {
                let bytes = |shape: &[usize]| {
                    let count = shape.iter().product();
                    Tensor::from_vec(shape, vec![u8::MAX; count]).unwrap().into_arc()
                };
                let (one, zero) = (Tensor::scalar(1.0f32).into_arc(), Tensor::scalar(0u8).into_arc());
                let inputs = [
                    bytes(&[rows, depth]),
                    one.clone(),
                    zero.clone(),
                    bytes(&[depth, 1]),
                    one,
                    zero,
                ];
                let found = run(&QuantizedProduct::new(Returns::Floats), &inputs).unwrap();
                let expected = 255.0 * 255.0 * depth as f32;
                let found = elements::<f32>(&found).unwrap();
                assert_eq!(found.len(), rows);
                for found in found {
                    assert!((found / expected - 1.0).abs() < 1e-4, "{found}, not {expected}");
                }
            }
        }
    }

    /// Returns `count` arbitrary zero points.
    fn zeros(element_type: ElementType, count: usize) -> Arc<Tensor> {
        let all = factor(element_type, &[count + 1], 53);
        Arc::new(match element_type {
            ElementType::I8 => Tensor::vector(&all.as_slice::<i8>().unwrap()[1..]),
            _ => Tensor::vector(&all.as_slice::<u8>().unwrap()[1..]),
        })
    }

    /// Checks a product of a batch of two matrices. `lines` are the numbers of zero points of both factors.
    fn check(types: [ElementType; 3], sizes: [usize; 3], b_shape: &[usize], lines: [usize; 2]) {
        let [rows, depth, columns] = sizes;
        let scale = |at: usize| 0.003 + 0.001 * (at % 7) as f32;
        let scales = Tensor::vector(&(0..columns).map(scale).collect::<Vec<_>>()).into_arc();
        let (a, b) = (
            factor(types[0], &[2, rows, depth], 37),
            factor(types[1], b_shape, 91),
        );
        let [a_zero, b_zero] = [0, 1].map(|at| zeros(types[at], lines[at]));
        let sums = plainly(&a, &b, [&a_zero, &b_zero], sizes);
        let one = |number: f32| Tensor::scalar(number).into_arc();
        let mut inputs = vec![a, one(0.01), a_zero, b, scales, b_zero];
        let mut constants: Vec<_> = inputs.iter().cloned().map(Some).collect();
        constants[0] = None;
        let pairs = || sums.iter().enumerate();
        let floats = |constants: &[_], inputs: &[_]| {
            let found = run(&with(QuantizedProduct::new(Returns::Floats), constants), inputs).unwrap();
            let expected = pairs().map(|(at, &sum)| sum as f32 * (0.01 * scale(at % columns)));
            assert_eq!(found.as_slice::<f32>().unwrap(), expected.collect::<Vec<_>>());
        };
        floats(&[], &inputs);
        floats(&constants, &inputs);
        let least = if types[2] == ElementType::I8 { -128 } else { 0 };
        let zero = numbers(&zeros(types[2], 1))[0];
        let expected = pairs().map(|(at, &sum)| {
            let scaled = sum as f32 * (0.01 * scale(at % columns) / 0.37);
            (scaled.round_ties_even() as i32 + zero).clamp(least, least + 255)
        });
        let expected: Vec<i32> = expected.collect();
        inputs.extend([one(0.37), zeros(types[2], 1)]);
        for constants in [&[][..], &constants] {
            let found = run(&with(QuantizedProduct::new(Returns::Bytes), constants), &inputs).unwrap();
            assert_eq!(
                numbers(&found),
                expected,
                "{types:?} {sizes:?} {b_shape:?} {lines:?}"
            );
        }
    }

    /// Checks products of few rows, of several blocks of rows, and of rows that are no multiple of a tile.
    #[test]
    fn blocks_of_rows_have_the_results_of_plain_loops() {
        let (unsigned, signed) = (ElementType::U8, ElementType::I8);
        for sizes @ [rows, depth, columns] in [[3, 20, 17], [33, 5, 49], [70, 4, 1030], [150, 7, 1]] {
            let types = [
                [unsigned, signed, unsigned],
                [signed, unsigned, signed],
                [unsigned, unsigned, signed],
            ];
            for types in types {
                for b_shape in [&[depth, columns][..], &[1, depth, columns], &[2, depth, columns]] {
                    for lines in [[1, 1], [1, columns], [rows, 1]] {
                        check(types, sizes, b_shape, lines);
                    }
                }
            }
        }
    }

    #[test]
    fn blocks_end_with_their_request() {
        let factor = |shape: &[usize]| factor(ElementType::U8, shape, 37);
        let scale = Tensor::scalar(0.5f32).into_arc();
        let zero = zeros(ElementType::U8, 1);
        let (a, b) = (factor(&[400, 400]), factor(&[400, 400]));
        let inputs = [a, scale.clone(), zero.clone(), b, scale, zero];
        let mut inputs: ShortVec<_> = inputs.into_iter().collect();
        let result = while_cancelled(|| QuantizedProduct::new(Returns::Floats).run(&mut inputs));
        assert!(result.unwrap_err().is::<Cancelled>());
    }
}
