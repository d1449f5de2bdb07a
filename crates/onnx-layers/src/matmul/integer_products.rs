//! Sums of 8-bit matrix products, and the operator `MatMulInteger`.

use std::sync::Arc;

use onnx_gemm::{PackedIntegers, integer_gemm};
use onnx_tensor::prelude::*;

use crate::matmul::products::fitting;
use crate::{
    least_work::PRODUCTS,
    matmul::{
        matrices::matrices,
        zero_points::{Line, expect_bytes, without_zero_points},
    },
    split_products::{multiply_integers, products},
};
use onnx_tensor::operator::Constants;
use onnx_tensor::{
    cancelling::Pace,
    elements::{copied, elements, tensor},
    faults::{Refusal, Unsupported, ensure_input},
    node::Attributes,
    node::Node,
    operator::{Compute, Fact},
    packs::{Order, Packs},
    size,
    split::lines,
    threads,
};

/// Builds the operator `MatMulInteger`.
pub fn mat_mul_integer(node: &Node) -> Result<Box<dyn Compute>> {
    Ok(Box::new(MatMulInteger::of(Attributes(node))))
}

/// Packs a constant right-hand matrix once for all nodes that share it and its zero points, if memory
/// permits.
pub(crate) fn packed(
    b: Option<&Arc<Tensor>>,
    zero_points: Option<&Arc<Tensor>>,
    packs: &mut Packs,
) -> Option<Arc<Vec<PackedIntegers>>> {
    let b = b.filter(|b| b.rank() > 1 && !b.is_empty())?;
    let &[.., depth, columns] = b.shape() else {
        return None;
    };
    let matrices = b.len() / depth / columns;
    let line = Line::Column([depth, columns]);
    let sources: Vec<&Arc<Tensor>> = [Some(b), zero_points].into_iter().flatten().collect();
    let order = Order::Panels { is_turned: false };
    let bytes = size_of::<i16>() as u64 * b.len() as u64;
    let packed = packs.shared(&sources, order, bytes, || {
        let zero_points = zero_points.map(|given| &**given);
        let numbers = without_zero_points(b, zero_points, line, matrices, &mut Pace::default())?;
        let matrices = numbers.chunks_exact(depth * columns);
        Ok(matrices
            .map(|matrix| PackedIntegers::new(matrix, [depth, columns]))
            .collect())
    });
    // An error about wrong types or zero points is ignored here, since the node reports it when it runs.
    packed.ok().flatten()
}

/// The sums of a product: their shape and the elements.
pub(crate) struct Sums {
    pub(crate) shape: ShortVec<usize>,
    pub(crate) numbers: Vec<i32>,
}

/// Multiplies two factors with their zero points subtracted.
pub(crate) fn sums(
    [a, b]: [&Tensor; 2],
    zero_points: [Option<&Tensor>; 2],
    packed: Option<&Vec<PackedIntegers>>,
) -> Result<Sums> {
    let sizes = fitting(a.shape(), b.shape())?;
    let (rows, columns, [depth, _]) = (sizes.rows, sizes.columns, sizes.depth);
    let count: usize = sizes.shape.iter().product();
    size::admit_now(4 * count as u64 + 2 * (a.len() + b.len()) as u64)?;
    let mut numbers = vec![0; count];
    let mut pace = Pace::default();
    if count > 0 && depth > 0 {
        let of_matrices = |factor: &Tensor, size: usize| factor.len() / size;
        let a = without_zero_points(
            a,
            zero_points[0],
            Line::Row(depth),
            of_matrices(a, rows * depth),
            &mut pace,
        )?;
        let b = match packed {
            Some(_) => vec![],
            None => without_zero_points(
                b,
                zero_points[1],
                Line::Column([depth, columns]),
                of_matrices(b, depth * columns),
                &mut pace,
            )?,
        };
        let (size, results) = (rows * columns, count / (rows * columns));
        // `integer_gemm` packs a factor only if packing pays off. With at least as many columns as rows,
        // `integer_gemm` takes no more memory than packing `b` here.
        let is_used_once = b.len() / (depth * columns) == results && rows <= columns;
        let run = |first: usize, sums: &mut [i32], pace: &mut Pace| {
            // Products with the same second matrix are adjacent, so only the latest packed matrix is kept.
            let mut latest: Option<(usize, PackedIntegers)> = None;
            let matrices = matrices(&sizes.outer, results).skip(first);
            for ([first, second], sums) in matrices.zip(sums.chunks_exact_mut(size)) {
                let a = &a[first * rows * depth..][..rows * depth];
                if let Some(packed) = packed {
                    multiply_integers(&packed[second], a, sums, pace)?;
                    continue;
                }
                if is_used_once {
                    let b = &b[second * depth * columns..][..depth * columns];
                    integer_gemm(a, b, [rows, depth, columns], sums, pace)?;
                    continue;
                }
                let matrix = match latest.take().filter(|(matrix, _)| *matrix == second) {
                    Some(latest) => latest,
                    None => {
                        let b = &b[second * depth * columns..][..depth * columns];
                        pace.spend(b.len() as u64)?;
                        (second, PackedIntegers::new(b, [depth, columns]))
                    }
                };
                multiply_integers(&matrix.1, a, sums, pace)?;
                latest = Some(matrix);
            }
            Ok(())
        };
        let work = [products([count, depth, 1]), PRODUCTS];
        let parts = threads::parts(work[0], work[1]);
        // If there are few large products, each product is split over several threads.
        match 2 * results < parts {
            true => run(0, &mut numbers, &mut pace)?,
            false => lines(&mut numbers, size, work, run)?,
        }
    }
    Ok(Sums {
        shape: sizes.shape,
        numbers,
    })
}

#[derive(Debug)]
pub(crate) struct MatMulInteger {
    /// Input indices of the factors' zero points.
    zero_points: [Option<usize>; 2],
    packed: Option<Arc<Vec<PackedIntegers>>>,
}

impl MatMulInteger {
    pub(crate) fn of(attributes: Attributes<'_>) -> Self {
        Self {
            zero_points: [attributes.position(2), attributes.position(3)],
            packed: None,
        }
    }
}

impl Compute for MatMulInteger {
    fn outputs(&self, inputs: &[Fact]) -> Result<Option<Vec<Fact>>> {
        let [a, b, ..] = inputs else {
            bail!("expected 2 to 4 inputs, found {}", inputs.len());
        };
        for (factor, zero_point) in [a, b].into_iter().zip(self.zero_points) {
            expect_bytes(factor.element_type)?;
            if let Some(place) = zero_point {
                expect_zero_point(factor, &inputs[place])?;
            }
        }
        let sizes = fitting(&a.shape, &b.shape)?;
        Ok(Some(vec![Fact::new(ElementType::I32, sizes.shape)]))
    }

    fn take_over(&mut self, constants: Constants<'_>, packs: &mut Packs) -> Result<Option<usize>> {
        let constant = |place: usize| constants.get(place).and_then(Option::as_ref);
        self.packed = match self.zero_points[1].map(constant) {
            // The zero points are not constant, so they cannot be subtracted before the run.
            Some(None) => None,
            given => packed(constant(1), given.flatten(), packs),
        };
        Ok(None)
    }

    fn run(&self, inputs: &mut ShortVec<Arc<Tensor>>) -> Result<ShortVec<Arc<Tensor>>> {
        let zero_points = self.zero_points.map(|place| place.map(|place| &*inputs[place]));
        let sums = sums([&inputs[0], &inputs[1]], zero_points, self.packed.as_deref())?;
        Ok(smallvec![Arc::new(tensor(&sums.shape, sums.numbers)?)])
    }
}

/// Refuses a zero point whose type differs from its factor's.
pub(crate) fn expect_zero_point(factor: &Fact, zero_point: &Fact) -> Result<()> {
    match factor.element_type == zero_point.element_type {
        true => Ok(()),
        false => Err(Refusal(format!(
            "has a zero point of {:?} for {:?}",
            zero_point.element_type, factor.element_type
        ))
        .into()),
    }
}

/// Refuses scales that are not FP32.
pub(crate) fn expect_scales(scales: &[&Fact]) -> Result<()> {
    match scales.iter().all(|scale| scale.element_type == ElementType::F32) {
        true => Ok(()),
        false => Err(Unsupported::Anywhere("is supported with scales of FP32 only".to_owned()).into()),
    }
}

/// Returns the elements of `tensor`: one for all `lines` rows or columns, or one for each. `what` names the
/// elements in errors.
pub(crate) fn list<T: Element + Copy>(tensor: &Tensor, lines: usize, what: &str) -> Result<Vec<T>> {
    let given = elements::<T>(tensor)?;
    ensure_input!(
        given.len() == 1 || given.len() == lines,
        "{} {what} for {lines} rows or columns, expected 1 or {lines}",
        given.len()
    );
    copied::<T>(tensor)
}

#[cfg(test)]
pub(crate) mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::quant::quantize;
    use onnx_tensor::testing::node;
    use onnx_tensor::testing::with;
    use onnx_tensor::{faults::Misfit, node::Node};

    pub(crate) fn factor(element_type: ElementType, shape: &[usize], step: usize) -> Arc<Tensor> {
        let count: usize = shape.iter().product();
        let bytes: Vec<u8> = (0..count).map(|at| (at * step % 256) as u8).collect();
        Arc::new(match element_type {
            ElementType::I8 => tensor(shape, bytes.iter().map(|&byte| byte as i8).collect()).unwrap(),
            _ => tensor(shape, bytes).unwrap(),
        })
    }

    pub(crate) fn numbers(tensor: &Tensor) -> Vec<i32> {
        quantize::integers(tensor).unwrap()
    }

    fn with_inputs(mut node: Node, count: usize) -> Node {
        node.input = (0..count).map(|at| format!("x{at}")).collect();
        node
    }

    pub(crate) fn run(op: &dyn Compute, inputs: &[Arc<Tensor>]) -> Result<Arc<Tensor>> {
        let facts = op.outputs(&Fact::of_values(inputs))?.unwrap();
        let made = op.run(&mut inputs.into())?;
        let shape: ShortVec<Dim> = made[0].shape().iter().map(ToDim::to_dim).collect();
        assert_eq!(
            (made[0].element_type(), &shape),
            (facts[0].element_type, &facts[0].shape)
        );
        Ok(made[0].clone())
    }

    const TYPES: [ElementType; 2] = [ElementType::U8, ElementType::I8];

    /// Reference implementation for a batch of two matrices times one or two matrices.
    pub(crate) fn plainly(
        a: &Tensor,
        b: &Tensor,
        zero_points: [&Tensor; 2],
        [rows, depth, columns]: [usize; 3],
    ) -> Vec<i32> {
        let (x, y) = (numbers(a), numbers(b));
        let zeros = zero_points.map(numbers);
        let of = |list: &[i32], at: usize| list[at % list.len()];
        let at = |at: usize| -> i32 {
            let (row, column) = (at / columns, at % columns);
            let second = if b.len() > depth * columns { row / rows } else { 0 };
            let terms = (0..depth).map(|term| {
                let a = x[row * depth + term] - of(&zeros[0], row);
                let b =
                    y[(second * depth + term) * columns + column] - of(&zeros[1], second * columns + column);
                a * b
            });
            terms.sum()
        };
        (0..2 * rows * columns).map(at).collect()
    }

    #[test]
    fn sums_are_exact_for_all_types_and_zero_points() {
        let (rows, depth, columns) = (3, 20, 17);
        for of_a in TYPES {
            for of_b in TYPES {
                let a = factor(of_a, &[2, rows, depth], 37);
                for b_shape in [&[depth, columns][..], &[2, depth, columns]] {
                    let b = factor(of_b, b_shape, 91);
                    let lists: [(&[usize], &[usize]); 5] = [
                        (&[], &[]),
                        (&[1], &[columns]),
                        (&[rows], &[1, columns]),
                        (&[2, rows, 1], &[]),
                        (&[], &[2, 1, columns]),
                    ];
                    for (a_zero, b_zero) in lists {
                        if b_shape.len() == 2 && b_zero.len() == 3 {
                            continue;
                        }
                        let zeros = [factor(of_a, a_zero, 29), factor(of_b, b_zero, 53)];
                        let zeros = zeros.map(|zero| {
                            Arc::new(match (zero.element_type(), zero.len()) {
                                (ElementType::U8, 1) => tensor(zero.shape(), vec![9u8]).unwrap(),
                                (ElementType::I8, 1) => tensor(zero.shape(), vec![-9i8]).unwrap(),
                                _ => (*zero).clone(),
                            })
                        });
                        let expected = plainly(&a, &b, [&zeros[0], &zeros[1]], [rows, depth, columns]);
                        let inputs = [a.clone(), b.clone(), zeros[0].clone(), zeros[1].clone()];
                        let node = with_inputs(node("MatMulInteger", &[], &[], 1), 4);
                        let known = [None, Some(b.clone()), None, Some(zeros[1].clone())];
                        for constants in [&[][..], &known] {
                            let op = with(MatMulInteger::of(Attributes(&node)), constants);
                            let found = run(&op, &inputs).unwrap();
                            assert_eq!(
                                elements::<i32>(&found).unwrap(),
                                expected,
                                "{a_zero:?} {b_zero:?}"
                            );
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let node = with_inputs(node("MatMulInteger", &[], &[], 1), 3);
        let op = MatMulInteger::of(Attributes(&node));
        let bytes = |shape: &[usize]| factor(ElementType::U8, shape, 7);
        let run = |inputs: [Arc<Tensor>; 3]| run(&op, &inputs).unwrap_err();
        assert!(run([bytes(&[2, 3]), bytes(&[4, 2]), bytes(&[])]).is::<Misfit>());
        assert!(run([bytes(&[2, 3]), bytes(&[3, 2]), bytes(&[5])]).is::<Refusal>());
        assert!(run([bytes(&[2, 3]), bytes(&[3, 2]), factor(ElementType::I8, &[], 1)]).is::<Refusal>());
        let wide = Arc::new(Tensor::zero::<u16>(&[2, 3]).unwrap());
        assert!(run([wide.clone(), bytes(&[3, 2]), wide]).is::<Unsupported>());
    }
}
