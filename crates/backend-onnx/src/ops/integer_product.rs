//! `MatMulInteger`: exact products of matrices of 8 bits, for processors on which tract's take fifty times as long as they need.
//!
//! Factors become 16 bits without their zero points. Sums wrap around at 32 bits, as ONNX Runtime's do.

use std::sync::Arc;

use onnx_gemm::PackedIntegers;
use tract_hir::internal::*;

use super::{
    attributes::Attributes,
    elements::tensor,
    kernel::{Fact, Kernel, kernel},
    matrices::{Sizes, matrices, sizes},
    packs::{Order, Packs},
    quantize,
};
use crate::{
    cancelling::Pace,
    faults::{BadInput, Limit, Unsupported, ensure_input},
    lowered::OnnxNode,
};

/// Whether the product is quicker here than in tract, which has kernels for processors with VNNI.
pub(crate) fn is_quicker() -> bool {
    pulp::x86::V3::try_new().is_some() && !std::is_x86_feature_detected!("avx512vnni")
}

pub(crate) fn integer_product(node: &OnnxNode) -> Box<dyn InferenceOp> {
    let attributes = Attributes(node);
    kernel(IntegerProduct {
        zero_points: [attributes.position(2), attributes.position(3)],
        packed: None,
    })
}

#[derive(Debug)]
struct IntegerProduct {
    /// Which inputs are the zero points of the first and the second matrix.
    zero_points: [Option<usize>; 2],
    /// The second matrix, if it is known and there is one for all.
    packed: Option<Arc<PackedIntegers>>,
}

impl Kernel for IntegerProduct {
    fn name(&self) -> &'static str {
        "MatMulInteger"
    }

    fn outputs(&self, inputs: &[Fact]) -> TractResult<Vec<Fact>> {
        let [a, b, ..] = inputs else {
            bail!("expected 2 to 4 inputs, found {}", inputs.len());
        };
        let given = self.zero_points.iter().flatten().map(|&place| &inputs[place]);
        for fact in [a, b].into_iter().chain(given) {
            if !matches!(fact.datum_type, DatumType::U8 | DatumType::I8) {
                bail!(Unsupported::Anywhere(format!(
                    "{:?} is not supported",
                    fact.datum_type
                )));
            }
        }
        let sizes = sizes(&a.shape, &b.shape)?;
        let depths = sizes.depth.each_ref().map(|depth| depth.to_i64().ok());
        if let [Some(first), Some(second)] = depths {
            ensure!(first == second, "rows of {first} and columns of {second}");
        }
        Ok(vec![Fact::new(DatumType::I32, sizes.shape)])
    }

    fn packed(&self, inputs: &[Fact], packs: &mut Packs) -> TractResult<Option<Arc<dyn Kernel>>> {
        let zero_points = match self.zero_points[1].map(|place| &inputs[place].constant) {
            None => None,
            Some(Some(zero_points)) => Some(zero_points),
            Some(None) => return Ok(None),
        };
        let Some(b) = &inputs[1].constant else {
            return Ok(None);
        };
        let &[depth, columns] = b.shape() else {
            return Ok(None);
        };
        let sources: Vec<&Arc<Tensor>> = [b].into_iter().chain(zero_points).collect();
        let bytes = PackedIntegers::bytes([depth, columns]);
        let packed = packs.shared(&sources, Order::Pairs, bytes, || {
            let factors = without_zero_points(b, zero_points, columns, true)?;
            Ok(PackedIntegers::new(&factors, [depth, columns]))
        });
        // Wrong zero points are errors of the run.
        let packed = packed.ok().flatten();
        Ok(packed.map(|packed| {
            Arc::new(Self {
                zero_points: self.zero_points,
                packed: Some(packed),
            }) as Arc<dyn Kernel>
        }))
    }

    fn kept(&self) -> Option<(usize, u64)> {
        let packed = self.packed.as_ref()?;
        let address = Arc::as_ptr(packed) as usize;
        Some((address, PackedIntegers::bytes([packed.depth(), packed.columns()])))
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> TractResult<TVec<Tensor>> {
        let (a, b) = (&inputs[0], &inputs[1]);
        let Sizes {
            outer,
            rows,
            depth: [depth, depth_b],
            columns,
            shape,
        } = match sizes(a.shape(), b.shape()) {
            Ok(sizes) => sizes,
            Err(error) => bail!(BadInput(error.to_string())),
        };
        ensure_input!(depth == depth_b, "rows of {depth} and columns of {depth_b}");
        let count: usize = shape.iter().product();
        let mut made = vec![0; count];
        if count == 0 || depth == 0 {
            return Ok(tvec![tensor(&shape, made)?]);
        }
        let zero_points = self.zero_points.map(|place| place.map(|place| &inputs[place]));
        let a = without_zero_points(a, zero_points[0], rows, false)?;
        let b = match &self.packed {
            Some(_) => vec![],
            None => without_zero_points(b, zero_points[1], columns, true)?,
        };
        let results = made.chunks_exact_mut(rows * columns);
        let matrices = matrices(&outer, results.len());
        // Matrices of the second factor follow each other in runs.
        let mut latest: Option<(usize, PackedIntegers)> = None;
        let mut pace = Pace::default();
        for ([first, second], sums) in matrices.zip(results) {
            let a = &a[first * rows * depth..][..rows * depth];
            if let Some(packed) = &self.packed {
                packed.multiply(a, sums, &mut pace)?;
                continue;
            }
            if latest.as_ref().is_none_or(|(matrix, _)| *matrix != second) {
                let b = &b[second * depth * columns..][..depth * columns];
                latest = Some((second, PackedIntegers::new(b, [depth, columns])));
            }
            if let Some((_, packed)) = &latest {
                packed.multiply(a, sums, &mut pace)?;
            }
        }
        Ok(tvec![tensor(&shape, made)?])
    }
}

/// The numbers of a factor, each less its zero point: one for all, or one for each of `count` rows, or columns.
fn without_zero_points(
    factor: &Tensor,
    zero_points: Option<&Arc<Tensor>>,
    count: usize,
    are_for_columns: bool,
) -> TractResult<Vec<i16>> {
    let mut numbers: Vec<i16> = match factor.datum_type() {
        DatumType::I8 => widened(super::elements::elements::<i8>(factor)?),
        _ => widened(super::elements::elements::<u8>(factor)?),
    };
    let Some(zero_points) = zero_points else {
        return Ok(numbers);
    };
    let zero_points: Vec<i16> = quantize::integers(zero_points)?
        .into_iter()
        .map(|zero_point| zero_point as i16)
        .collect();
    let line = if are_for_columns {
        count
    } else {
        factor.shape().last().copied().unwrap_or(1)
    };
    match zero_points[..] {
        [] => bail!("a zero point without a number"),
        [0] => {}
        [zero_point] => numbers.iter_mut().for_each(|number| *number -= zero_point),
        _ if zero_points.len() != count => bail!(Limit(format!(
            "{} zero points for {count} rows or columns are not supported",
            zero_points.len()
        ))),
        _ => {
            for (row, numbers) in numbers.chunks_mut(line.max(1)).enumerate() {
                if are_for_columns {
                    let pairs = numbers.iter_mut().zip(&zero_points);
                    pairs.for_each(|(number, zero_point)| *number -= zero_point);
                } else {
                    let zero_point = zero_points[row % count];
                    numbers.iter_mut().for_each(|number| *number -= zero_point);
                }
            }
        }
    }
    Ok(numbers)
}

fn widened<T: Copy + Into<i16>>(numbers: &[T]) -> Vec<i16> {
    numbers.iter().map(|&number| number.into()).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    fn bytes(count: usize, step: usize) -> Vec<u8> {
        (0..count).map(|at| (at * step % 256) as u8).collect()
    }

    /// By plain loops, with the smallest and greatest numbers among the factors.
    fn check(rows: usize, depth: usize, columns: usize) {
        let a = bytes(rows * depth, 37);
        let b: Vec<i8> = bytes(depth * columns, 91).iter().map(|&x| x as i8).collect();
        let zero_points = [bytes(rows, 29), bytes(columns, 53)];
        let inputs = [
            Tensor::from_shape(&[rows, depth], &a).unwrap(),
            Tensor::from_shape(&[depth, columns], &b).unwrap(),
            Tensor::from_shape(&[rows, 1], &zero_points[0]).unwrap(),
            Tensor::from_shape(
                &[columns],
                &zero_points[1].iter().map(|&x| x as i8).collect::<Vec<_>>(),
            )
            .unwrap(),
        ];
        let inputs: Vec<Arc<Tensor>> = inputs.into_iter().map(Tensor::into_arc_tensor).collect();
        let mut expected = vec![0i32; rows * columns];
        for row in 0..rows {
            for column in 0..columns {
                expected[row * columns + column] = (0..depth)
                    .map(|term| {
                        let a = i32::from(a[row * depth + term]) - i32::from(zero_points[0][row]);
                        let b =
                            i32::from(b[term * columns + column]) - i32::from(zero_points[1][column] as i8);
                        a * b
                    })
                    .sum();
            }
        }
        let product = IntegerProduct {
            zero_points: [Some(2), Some(3)],
            packed: None,
        };
        let facts = Fact::of_values(&inputs);
        let mut packs = Packs::of(&TypedModel::default());
        let known = product.packed(&facts, &mut packs).unwrap().unwrap();
        // A second node with the same factor shares it.
        let second = product.packed(&facts, &mut packs).unwrap().unwrap();
        assert!(known.kept().is_some() && known.kept() == second.kept());
        for found in [product.run(&inputs).unwrap(), known.run(&inputs).unwrap()] {
            assert_eq!(
                super::super::elements::elements::<i32>(&found[0]).unwrap(),
                expected
            );
        }
    }

    #[test]
    fn sums_are_those_of_plain_loops() {
        for rows in [1, 2, 4, 5, 9] {
            for depth in [1, 2, 7, 64] {
                for columns in [1, 8, 15, 16, 17, 40] {
                    check(rows, depth, columns);
                }
            }
        }
    }

    /// The sizes of both may be a request's.
    #[test]
    fn factors_that_do_not_fit_are_the_requests_mistake() {
        let product = IntegerProduct {
            zero_points: [None; 2],
            packed: None,
        };
        let numbers = |shape: &[usize]| Tensor::zero::<u8>(shape).unwrap().into_arc_tensor();
        for (a, b) in [([2, 3, 5], [2, 3, 4]), ([2, 3, 5], [3, 5, 4])] {
            let error = product.run(&[numbers(&a), numbers(&b)]).unwrap_err();
            assert!(error.is::<BadInput>(), "{error}");
        }
    }

    #[test]
    fn dimensions_are_repeated_as_numpy_does() {
        let shapes: [(&[usize], &[usize], &[usize]); 6] = [
            (&[3], &[3], &[]),
            (&[2, 3], &[3], &[2]),
            (&[3], &[3, 2], &[2]),
            (&[4, 1, 2, 3], &[5, 3, 2], &[4, 5, 2, 2]),
            (&[2, 0], &[0, 3], &[2, 3]),
            (&[0, 2, 3], &[3, 4], &[0, 2, 4]),
        ];
        for (a, b, expected) in shapes {
            let numbers = |shape: &[usize]| {
                let count = shape.iter().product();
                Tensor::from_shape(shape, &bytes(count, 1))
                    .unwrap()
                    .into_arc_tensor()
            };
            let product = IntegerProduct {
                zero_points: [None; 2],
                packed: None,
            };
            let found = product.run(&[numbers(a), numbers(b)]).unwrap();
            assert_eq!(found[0].shape(), expected);
        }
        let outer = [tvec![4, 1], tvec![5]];
        let found: Vec<_> = matrices(&outer, 20).collect();
        assert_eq!((found[0], found[6], found[19]), ([0, 0], [1, 1], [3, 4]));
    }
}
