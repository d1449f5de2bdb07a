//! The operators `MatMul` and `Gemm`.

use std::{borrow::Cow, sync::Arc};

use onnx_gemm::{PackedMatrix, add_gemm, gemm, transpose};
use onnx_tensor::prelude::*;

use crate::{
    least_work::{ELEMENTS, PRODUCTS},
    matmul::matrices::{Sizes, matrices, sizes},
    split_products::{multiply_packed, multiply_rows, products},
};
use onnx_tensor::{
    cancelling::Pace,
    elements::{Factor, elements, filled, written},
    faults::{BadInput, Misfit, Refusal, unsupported},
    node::Attributes,
    node::Node,
    operator::{Compute, Fact},
    packs::{Order, Packs},
    size,
    split::lines,
    threads,
};

/// Builds the operator `Gemm`.
pub fn gemm_of(node: &Node) -> Result<Box<dyn Compute>> {
    Ok(Box::new(Gemm::of(Attributes(node))))
}

/// Builds the operator `MatMul`.
pub fn mat_mul(_: &Node) -> Result<Box<dyn Compute>> {
    Ok(Box::new(MatMul::default()))
}

#[derive(Debug, Default)]
pub(crate) struct MatMul {
    /// The packed right-hand matrix, if it is an FP32 constant.
    packed: Option<PackedMatrices>,
}

/// Matrices packed for the product kernel.
#[derive(Debug)]
struct PackedMatrices {
    /// Shape of the constant.
    shape: ShortVec<usize>,
    matrices: Arc<Vec<PackedMatrix>>,
}

impl PackedMatrices {
    /// Packs a non-empty FP32 constant, if memory permits.
    fn of(b: &Arc<Tensor>, is_turned: bool, packs: &mut Packs) -> Result<Option<Self>> {
        let &[.., rows, columns] = b.shape() else {
            return Ok(None);
        };
        if b.element_type() != ElementType::F32 || b.is_empty() {
            return Ok(None);
        }
        let bytes = size_of::<f32>() as u64 * b.len() as u64;
        let order = Order::Panels { is_turned };
        let matrices = packs.shared(&[b], order, bytes, || {
            let (depth, columns, layout) = if is_turned {
                (columns, rows, onnx_gemm::Order::ColumnMajor)
            } else {
                (rows, columns, onnx_gemm::Order::RowMajor)
            };
            let matrices = elements::<f32>(b)?.chunks_exact(depth * columns);
            Ok(matrices
                .map(|matrix| PackedMatrix::new(matrix, [depth, columns], layout))
                .collect::<Vec<_>>())
        })?;
        Ok(matrices.map(|matrices| Self {
            shape: b.shape().into(),
            matrices,
        }))
    }
}

/// Checks that the factors match, and returns the sizes of the product.
pub(crate) fn fitting<D: Size>(a: &[D], b: &[D]) -> Result<Sizes<D>> {
    if a.is_empty() || b.is_empty() {
        bail!(Refusal(
            "multiplies a number, expected a vector or matrices".to_owned()
        ));
    }
    let sizes = sizes(a, b).map_err(|error| BadInput(error.to_string()))?;
    match sizes.depth.each_ref().map(Size::to_i64) {
        [Some(one), Some(other)] if one != other => bail!(Misfit::Factors(one - other)),
        _ => Ok(sizes),
    }
}

impl Compute for MatMul {
    fn outputs(&self, inputs: &[Fact]) -> Result<Option<Vec<Fact>>> {
        let [a, b] = inputs else {
            bail!("expected 2 inputs, found {}", inputs.len());
        };
        of_one_type(inputs)?;
        let sizes = fitting(&a.shape, &b.shape)?;
        Ok(Some(vec![Fact::new(a.element_type, sizes.shape)]))
    }

    fn take_over(&mut self, constants: &[Option<Arc<Tensor>>], packs: &mut Packs) -> Result<Option<usize>> {
        self.packed = match constants.get(1) {
            // A matrix with a single column is not packed, since its elements are contiguous without packing.
            Some(Some(b)) if b.shape().last() != Some(&1) => PackedMatrices::of(b, false, packs)?,
            _ => None,
        };
        Ok(self.packed.as_ref().map(|_| 1))
    }

    fn run(&self, inputs: &mut ShortVec<Arc<Tensor>>) -> Result<ShortVec<Arc<Tensor>>> {
        let [a, b] = &**inputs else {
            bail!("expected 2 inputs, found {}", inputs.len());
        };
        let made = match (a.element_type(), &self.packed) {
            (ElementType::F32, Some(packed)) => product(
                a,
                &packed.shape,
                Sums::Written,
                |a, second, _, made: &mut [f32], pace| {
                    multiply_packed(&packed.matrices[second], a, made, pace)
                },
            ),
            (ElementType::F32, None) => factors(a, b, Sums::Written, gemm),
            (ElementType::F64, _) => plain_product::<f64>(a, b),
            (ElementType::I32, _) => plain_product::<i32>(a, b),
            (ElementType::I64, _) => plain_product::<i64>(a, b),
            (ElementType::U32, _) => plain_product::<u32>(a, b),
            (ElementType::U64, _) => plain_product::<u64>(a, b),
            (other, _) => return Err(unsupported(other)),
        };
        Ok(smallvec![Arc::new(made?)])
    }
}

/// Refuses factors of different types.
fn of_one_type(inputs: &[Fact]) -> Result<()> {
    match inputs
        .iter()
        .all(|input| input.element_type == inputs[0].element_type)
    {
        true => Ok(()),
        false => Err(Refusal("multiplies factors of different types".to_owned()).into()),
    }
}

pub(crate) fn plain_product<T: Factor>(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    factors::<T>(a, b, Sums::Added, add_gemm)
}

/// Runs `multiply`, in blocks of rows on several threads if the product is large.
fn in_rows<T: Sync + Send>(
    multiply: impl Fn(&[T], &[T], [usize; 3], &mut [T], &mut Pace) -> Result<()> + Sync,
    [a, b]: [&[T]; 2],
    sizes: [usize; 3],
    made: &mut [T],
    pace: &mut Pace,
) -> Result<()> {
    let [_, depth, columns] = sizes;
    multiply_rows(a, made, sizes, pace, |a, made, pace| {
        multiply(a, b, [a.len() / depth, depth, columns], made, pace)
    })
}

/// Multiplies all pairs of matrices of two factors.
fn factors<T: Element + Copy>(
    a: &Tensor,
    b: &Tensor,
    sums: Sums,
    multiply: impl Fn(&[T], &[T], [usize; 3], &mut [T], &mut Pace) -> Result<()> + Sync,
) -> Result<Tensor> {
    let numbers = elements::<T>(b)?;
    product(a, b.shape(), sums, |a, second, sizes, made, pace| {
        let [_, depth, columns] = sizes;
        let b = &numbers[second * depth * columns..][..depth * columns];
        in_rows(&multiply, [a, b], sizes, made, pace)
    })
}

/// How a multiplication stores the elements of the product.
#[derive(Clone, Copy, Debug)]
enum Sums {
    /// Writes each element.
    Written,
    /// Adds to each element, which is initially 0.
    Added,
}

impl Sums {
    /// Creates the product of two factors, the first of which has rows of `depth` elements.
    fn create<T: Element>(
        self,
        shape: &[usize],
        depth: usize,
        multiply: impl FnOnce(&mut [T]) -> Result<()>,
    ) -> Result<Tensor> {
        match self {
            Self::Written if depth > 0 => written(shape, multiply),
            _ => filled(shape, multiply),
        }
    }
}

/// Multiplies all matrices of a factor by those of a factor of shape `b`. `multiply` receives the first
/// matrix, the index of the second one, `[rows, depth, columns]`, and the elements of the product (see
/// [`Sums`]).
fn product<T: Element + Copy>(
    a: &Tensor,
    b: &[usize],
    sums: Sums,
    multiply: impl Fn(&[T], usize, [usize; 3], &mut [T], &mut Pace) -> Result<()> + Sync,
) -> Result<Tensor> {
    let mut sizes = fitting(a.shape(), b)?;
    let [depth, _] = sizes.depth;
    let columns = sizes.columns;
    let count: usize = sizes.shape.iter().product();
    // If there is only one right-hand matrix, all rows are multiplied by it at once.
    if sizes.outer[1].iter().all(|&dim| dim == 1) && count > 0 && columns > 0 {
        sizes.rows = count / columns;
        sizes.outer = [smallvec![], smallvec![]];
    }
    let rows = sizes.rows;
    let a = elements::<T>(a)?;
    sums.create(&sizes.shape, depth, |made: &mut [T]| {
        if count == 0 || depth == 0 {
            return Ok(());
        }
        let size = rows * columns;
        let run = |first: usize, made: &mut [T], pace: &mut Pace| {
            let matrices = matrices(&sizes.outer, count / size).skip(first);
            for ([first, second], made) in matrices.zip(made.chunks_exact_mut(size)) {
                let a = &a[first * rows * depth..][..rows * depth];
                multiply(a, second, [rows, depth, columns], made, pace)?;
            }
            Ok(())
        };
        let work = [products([count, depth, 1]), PRODUCTS];
        let each = products([rows, depth, columns]);
        // If there are few large products, each product is split over several threads.
        let are_few = 2 * (count / size) < threads::parts(work[0], work[1]);
        match are_few && threads::parts(each, PRODUCTS) > 1 {
            true => run(0, made, &mut Pace::default()),
            false => lines(made, size, work, run),
        }
    })
}

#[derive(Debug)]
pub(crate) struct Gemm {
    alpha: f32,
    beta: f32,
    turns_a: bool,
    turns_b: bool,
    /// The packed right-hand matrix, if it is an FP32 constant.
    packed: Option<PackedMatrices>,
}

impl Gemm {
    pub(crate) fn of(attributes: Attributes<'_>) -> Self {
        Self {
            alpha: attributes.float("alpha", 1.0),
            beta: attributes.float("beta", 1.0),
            turns_a: attributes.int("transA", 0) != 0,
            turns_b: attributes.int("transB", 0) != 0,
            packed: None,
        }
    }

    /// Returns the numbers of rows and columns, and the depth of the product.
    fn sizes<D: Size>(&self, a: &[D], b: &[D], added: Option<&[D]>) -> Result<[D; 3]> {
        let [rows, depth] = sides(a, self.turns_a)?;
        let [other_depth, columns] = sides(b, self.turns_b)?;
        if let (Some(one), Some(other)) = (depth.to_i64(), other_depth.to_i64())
            && one != other
        {
            bail!(Misfit::Factors(one - other));
        }
        let added = added.unwrap_or_default();
        if added.len() > 2 {
            bail!(Refusal(format!("adds {} dimensions to 2", added.len())));
        }
        for (from, to) in added.iter().rev().zip([&columns, &rows]) {
            if let (Some(from), Some(to)) = (from.to_i64(), to.to_i64())
                && from != to
                && from != 1
            {
                bail!(Misfit::Sizes(from, to));
            }
        }
        Ok([rows, columns, depth])
    }

    /// Computes `alpha * a * b + beta * c`.
    fn computed<T: Factor>(
        &self,
        inputs: &[Arc<Tensor>],
        sums: Sums,
        [alpha, beta]: [T; 2],
        multiply: impl Fn(&[T], &[T], [usize; 3], &mut [T], &mut Pace) -> Result<()> + Sync,
    ) -> Result<Tensor> {
        let (a, b) = (&inputs[0], &inputs[1]);
        let b_shape = self.packed.as_ref().map_or(b.shape(), |packed| &packed.shape);
        let added = inputs.get(2).filter(|_| self.beta != 0.0);
        let [rows, columns, depth] =
            self.sizes(a.shape(), b_shape, inputs.get(2).map(|added| added.shape()))?;
        let mut pace = Pace::default();
        let mut order = |factor: &'_ [T], is_turned: bool, rows: usize| -> Result<Option<Vec<T>>> {
            if !is_turned {
                return Ok(None);
            }
            size::admit_now(size_of_val(factor) as u64)?;
            Ok(Some(transpose(rows, factor, &mut pace)?))
        };
        let (a, b) = (elements::<T>(a)?, elements::<T>(b)?);
        let a = order(a, self.turns_a, depth)?.map_or(Cow::Borrowed(a), Cow::Owned);
        let is_turned = self.turns_b && self.packed.is_none();
        let b = order(b, is_turned, columns)?.map_or(Cow::Borrowed(b), Cow::Owned);
        sums.create(&[rows, columns], depth, |made: &mut [T]| {
            if made.is_empty() {
                return Ok(());
            }
            if depth > 0 {
                multiply(&a, &b, [rows, depth, columns], made, &mut pace)?;
            }
            if self.alpha == 1.0 && added.is_none() {
                return Ok(());
            }
            let work = [made.len() as u64, ELEMENTS];
            lines(made, columns, work, |first, made, pace| {
                if self.alpha != 1.0 {
                    pace.over(made, |made| {
                        made.iter_mut().for_each(|sum| *sum = sum.times(alpha));
                    })?;
                }
                match added {
                    Some(added) => add((made, first), columns, added, beta, pace),
                    None => Ok(()),
                }
            })
        })
    }
}

/// Adds `factor` times a scalar, row, column or matrix to the rows starting at `first`.
fn add<T: Factor>(
    (made, first): (&mut [T], usize),
    columns: usize,
    added: &Tensor,
    factor: T,
    pace: &mut Pace,
) -> Result<()> {
    let shape = added.shape();
    let numbers = elements::<T>(added)?;
    let width = shape.last().copied().unwrap_or(1);
    let is_row = shape.len() < 2 || shape[0] == 1;
    for (row, sums) in (first..).zip(made.chunks_exact_mut(columns)) {
        let numbers = &numbers[if is_row { 0 } else { row * width }..][..width];
        match numbers {
            &[number] => {
                let number = factor.times(number);
                pace.over(sums, |sums| {
                    sums.iter_mut().for_each(|sum| *sum = sum.sum(number));
                })?;
            }
            numbers => pace.pairs(numbers, sums, |numbers, sums| {
                let pairs = sums.iter_mut().zip(numbers);
                pairs.for_each(|(sum, number)| *sum = sum.sum(factor.times(*number)));
            })?,
        }
    }
    Ok(())
}

/// Returns the numbers of rows and columns of a factor, transposed if `is_turned`.
fn sides<D: Clone>(shape: &[D], is_turned: bool) -> Result<[D; 2]> {
    match (shape, is_turned) {
        ([rows, columns], false) | ([columns, rows], true) => Ok([rows.clone(), columns.clone()]),
        _ => Err(Refusal(format!(
            "multiplies a tensor of {} dimensions, expected a matrix",
            shape.len()
        ))
        .into()),
    }
}

impl Compute for Gemm {
    fn outputs(&self, inputs: &[Fact]) -> Result<Option<Vec<Fact>>> {
        let [a, b, added @ ..] = inputs else {
            bail!("expected 2 or 3 inputs, found {}", inputs.len());
        };
        of_one_type(inputs)?;
        let added = added.first().map(|added| &*added.shape);
        let [rows, columns, _] = self.sizes(&a.shape, &b.shape, added)?;
        Ok(Some(vec![Fact::new(a.element_type, [rows, columns])]))
    }

    fn take_over(&mut self, constants: &[Option<Arc<Tensor>>], packs: &mut Packs) -> Result<Option<usize>> {
        self.packed = match constants.get(1) {
            Some(Some(b)) if b.rank() == 2 => PackedMatrices::of(b, self.turns_b, packs)?,
            _ => None,
        };
        Ok(self.packed.as_ref().map(|_| 1))
    }

    fn run(&self, inputs: &mut ShortVec<Arc<Tensor>>) -> Result<ShortVec<Arc<Tensor>>> {
        let made = match inputs[0].element_type() {
            ElementType::F32 => self.computed(
                inputs,
                Sums::Written,
                [self.alpha, self.beta],
                |a, b, sizes, made, pace| match &self.packed {
                    Some(packed) => multiply_packed(&packed.matrices[0], a, made, pace),
                    None => in_rows(gemm, [a, b], sizes, made, pace),
                },
            ),
            ElementType::F64 => {
                let factors = [self.alpha, self.beta].map(f64::from);
                self.computed(inputs, Sums::Added, factors, |a, b, sizes, made, pace| {
                    in_rows(add_gemm, [a, b], sizes, made, pace)
                })
            }
            other => return Err(unsupported(other)),
        };
        Ok(smallvec![Arc::new(made?)])
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use onnx_tensor::testing::{node, with};
    use onnx_tensor::{elements::tensor, node::Attribute};

    /// Returns small integers, so that sums are exact in any order.
    fn factor(element_type: ElementType, shape: &[usize], seed: usize) -> Arc<Tensor> {
        let count = shape.iter().product();
        let numbers = (0..count).map(|at| ((at * 7919 + seed) % 17) as f64 - 8.0);
        let numbers = numbers.map(|x| if element_type.is_unsigned() { x + 8.0 } else { x });
        let made = tensor(shape, numbers.collect::<Vec<f64>>()).unwrap();
        made.cast_to_type(element_type).unwrap().into_owned().into_arc()
    }

    fn floats(tensor: &Tensor) -> Vec<f64> {
        elements::<f64>(&tensor.cast_to::<f64>().unwrap())
            .unwrap()
            .to_vec()
    }

    fn run(op: &dyn Compute, inputs: &[Arc<Tensor>]) -> Result<Arc<Tensor>> {
        let facts = op.outputs(&Fact::of_values(inputs))?.unwrap();
        let made = op.run(&mut inputs.into())?;
        let shape: ShortVec<Dim> = made[0].shape().iter().map(ToDim::to_dim).collect();
        assert_eq!(
            (made[0].element_type(), shape),
            (facts[0].element_type, facts[0].shape.clone())
        );
        Ok(made[0].clone())
    }

    const TYPES: [ElementType; 6] = [
        ElementType::F32,
        ElementType::F64,
        ElementType::I32,
        ElementType::I64,
        ElementType::U32,
        ElementType::U64,
    ];

    #[test]
    fn matrices_of_all_types_are_multiplied_as_by_plain_loops() {
        for element_type in TYPES {
            for rows in [1, 2, 5, 40] {
                for (depth, columns) in [(1, 1), (3, 1), (7, 2), (20, 50)] {
                    let a = factor(element_type, &[rows, depth], 1);
                    let b = factor(element_type, &[depth, columns], 5);
                    let (x, y) = (floats(&a), floats(&b));
                    let at = |at: usize| -> f64 {
                        let (row, column) = (at / columns, at % columns);
                        (0..depth)
                            .map(|term| x[row * depth + term] * y[term * columns + column])
                            .sum()
                    };
                    let expected: Vec<f64> = (0..rows * columns).map(at).collect();
                    let of_constant = with(MatMul::default(), &[None, Some(b.clone())]);
                    for op in [MatMul { packed: None }, of_constant] {
                        let found = run(&op, &[a.clone(), b.clone()]).unwrap();
                        assert_eq!(
                            floats(&found),
                            expected,
                            "{element_type:?}, {rows} {depth} {columns}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn vectors_and_batches_are_multiplied_as_numpy_does() {
        let cases: [(&[usize], &[usize], &[usize]); 8] = [
            (&[3], &[3], &[]),
            (&[2, 3], &[3], &[2]),
            (&[3], &[3, 4], &[4]),
            (&[2, 5, 3], &[3, 4], &[2, 5, 4]),
            (&[4, 1, 2, 3], &[5, 3, 2], &[4, 5, 2, 2]),
            (&[2, 3], &[6, 3, 2], &[6, 2, 2]),
            (&[2, 0], &[0, 3], &[2, 3]),
            (&[0, 2, 3], &[3, 4], &[0, 2, 4]),
        ];
        for (a_shape, b_shape, expected) in cases {
            let (a, b) = (
                factor(ElementType::F64, a_shape, 1),
                factor(ElementType::F64, b_shape, 5),
            );
            let wide = run(&MatMul { packed: None }, &[a.clone(), b.clone()]).unwrap();
            assert_eq!(wide.shape(), expected);
            let [a, b] = [a, b].map(|factor| factor.cast_to::<f32>().unwrap().into_owned().into_arc());
            let packed = with(MatMul::default(), &[None, Some(b.clone())]);
            for op in [packed, MatMul { packed: None }] {
                assert_eq!(floats(&run(&op, &[a.clone(), b.clone()]).unwrap()), floats(&wide));
            }
        }
        // Both factors have one matrix per batch entry.
        let (a, b) = (
            factor(ElementType::I64, &[2, 1, 3], 1),
            factor(ElementType::I64, &[2, 3, 1], 5),
        );
        let found = floats(&run(&MatMul { packed: None }, &[a.clone(), b.clone()]).unwrap());
        let (a, b) = (floats(&a), floats(&b));
        let dot = |batch: usize| -> f64 { (3 * batch..3 * batch + 3).map(|at| a[at] * b[at]).sum() };
        assert_eq!(found, [dot(0), dot(1)]);
    }

    #[test]
    fn factors_that_do_not_fit_are_refused() {
        let refusal = |a: &[usize], b: &[usize]| {
            let inputs = [factor(ElementType::F32, a, 1), factor(ElementType::F32, b, 1)];
            run(&MatMul { packed: None }, &inputs).unwrap_err()
        };
        assert!(refusal(&[2, 3], &[4, 2]).is::<Misfit>());
        assert!(refusal(&[2, 5, 3], &[3, 3, 2]).is::<BadInput>());
        assert!(refusal(&[], &[3, 2]).is::<Refusal>());
        let mixed = [
            factor(ElementType::F32, &[2, 2], 1),
            factor(ElementType::F64, &[2, 2], 1),
        ];
        assert!(run(&MatMul { packed: None }, &mixed).unwrap_err().is::<Refusal>());
    }

    fn gemm(alpha: f32, beta: f32, turns: [bool; 2], constants: &[Option<Arc<Tensor>>]) -> Gemm {
        let integers = [("transA", turns[0].into()), ("transB", turns[1].into())];
        let mut node = node("Gemm", &[], &integers, 1);
        for (name, f) in [("alpha", alpha), ("beta", beta)] {
            node.attribute.push(Attribute {
                name: name.to_owned(),
                f,
                ..Attribute::default()
            });
        }
        with(Gemm::of(Attributes(&node)), constants)
    }

    #[test]
    fn gemm_turns_scales_and_adds() {
        let (rows, depth, columns) = (5, 7, 18);
        for turns in [[false, false], [false, true], [true, false], [true, true]] {
            for (alpha, beta) in [(1.0, 1.0), (2.0, 0.5), (0.0, 2.0), (2.0, 0.0)] {
                for element_type in [ElementType::F32, ElementType::F64] {
                    let shape = |is_turned: bool, one: usize, other: usize| match is_turned {
                        true => [other, one],
                        false => [one, other],
                    };
                    let a = factor(element_type, &shape(turns[0], rows, depth), 1);
                    let b = factor(element_type, &shape(turns[1], depth, columns), 5);
                    let (x, y) = (floats(&a), floats(&b));
                    let place = |is_turned: bool, [_, width]: [usize; 2], row: usize, column: usize| {
                        if is_turned {
                            column * width + row
                        } else {
                            row * width + column
                        }
                    };
                    for added in [
                        &[][..],
                        &[1],
                        &[columns],
                        &[1, columns],
                        &[rows, 1],
                        &[rows, columns],
                    ] {
                        let c = factor(element_type, added, 3);
                        let wide = c.broadcast_to(&[rows, columns]).unwrap();
                        let expected = (0..rows * columns).map(|at| {
                            let (row, column) = (at / columns, at % columns);
                            let terms = (0..depth).map(|term| {
                                x[place(turns[0], shape(turns[0], rows, depth), row, term)]
                                    * y[place(turns[1], shape(turns[1], depth, columns), term, column)]
                            });
                            f64::from(alpha) * terms.sum::<f64>() + f64::from(beta) * floats(&wide)[at]
                        });
                        let expected: Vec<f64> = expected.collect();
                        for constants in [vec![], vec![None, Some(b.clone())]] {
                            let op = gemm(alpha, beta, turns, &constants);
                            let found = run(&op, &[a.clone(), b.clone(), c.clone()]).unwrap();
                            assert_eq!(floats(&found), expected, "{op:?} and {added:?}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn gemm_of_nothing_is_what_is_added_and_factors_of_zero_keep_infinities() {
        let op = gemm(1.0, 2.0, [false; 2], &[]);
        let [a, b, c] = [[2, 0], [0, 3], [1, 3]].map(|shape| factor(ElementType::F32, &shape, 9));
        let row = floats(&c).into_iter().map(|number| 2.0 * number);
        let expected: Vec<f64> = row.clone().chain(row).collect();
        assert_eq!(floats(&run(&op, &[a, b, c]).unwrap()), expected);
        let op = gemm(0.0, 1.0, [false; 2], &[]);
        let infinite = Arc::new(Tensor::matrix(&[[f32::INFINITY]]));
        let one = Arc::new(Tensor::matrix(&[[1.0f32]]));
        assert!(floats(&run(&op, &[infinite, one]).unwrap())[0].is_nan());
    }

    #[test]
    fn what_is_added_must_fit() {
        let op = gemm(1.0, 1.0, [false; 2], &[]);
        let run = |c: &[usize]| {
            let [a, b] = [[2, 4], [4, 3]].map(|shape| factor(ElementType::F32, &shape, 1));
            run(&op, &[a, b, factor(ElementType::F32, c, 2)])
        };
        assert!(run(&[2]).unwrap_err().is::<Misfit>());
        assert!(run(&[3, 3]).unwrap_err().is::<Misfit>());
        assert!(run(&[1, 1, 3]).unwrap_err().is::<Refusal>());
        assert!(run(&[2, 3]).is_ok());
    }
}
