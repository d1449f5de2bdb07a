//! The operators `Concat` and `Split`.

use std::sync::Arc;

use onnx_tensor::prelude::*;

use crate::{least_work::BYTES, shape::texts};
use onnx_tensor::{
    axis::axis,
    faults::ensure_input,
    integers::{integers, known_integers},
    node::Attributes,
    node::Node,
    operator::{Compute, Fact},
    shapes::{sizes, unset},
    split::{self, LINE},
};

/// Builds the operator `Split`.
pub fn split(node: &Node) -> Result<Box<dyn Compute>> {
    Ok(Box::new(Split::of(node)))
}

/// Builds the operator `Concat`.
pub fn concat(node: &Node) -> Result<Box<dyn Compute>> {
    Ok(Box::new(Concat(Attributes(node).int("axis", 0))))
}

/// `Concat` along this axis.
#[derive(Debug)]
pub(crate) struct Concat(pub(crate) i64);

impl Compute for Concat {
    fn outputs(&self, inputs: &[Fact]) -> Result<Option<Vec<Fact>>> {
        let first = inputs.first().context("expected an input")?;
        let axis = axis(self.0, first.rank())?;
        let mut shape = first.shape.clone();
        for input in &inputs[1..] {
            let other = &input.shape;
            // If one of two sizes is unknown, they may turn out to be equal in a run.
            let is_same = |a: &Dim, b: &Dim| a == b || a.to_i64().is_none() || b.to_i64().is_none();
            let fits = other.len() == shape.len()
                && (0..shape.len()).all(|at| at == axis || is_same(&other[at], &shape[at]))
                && input.element_type == first.element_type;
            ensure_input!(
                fits,
                "cannot concatenate {} {:?} and {} {other:?} along axis {axis}: expected one type, and equal sizes of all other axes",
                first.element_type,
                first.shape,
                input.element_type
            );
            for (at, (size, other)) in shape.iter_mut().zip(other).enumerate() {
                if at == axis {
                    *size += other;
                } else if size.to_i64().is_none() {
                    *size = *other;
                }
            }
        }
        Ok(Some(vec![Fact::new(first.element_type, shape)]))
    }

    fn run(&self, inputs: &mut ShortVec<Arc<Tensor>>) -> Result<ShortVec<Arc<Tensor>>> {
        texts::moved(inputs, |inputs| {
            let axis = axis(self.0, inputs[0].rank())?;
            let mut shape: ShortVec<usize> = inputs[0].shape().into();
            shape[axis] = inputs.iter().map(|input| input.shape()[axis]).sum();
            let mut made = unset(inputs[0].element_type(), &shape)?;
            if made.is_empty() {
                return Ok(smallvec![Arc::new(made)]);
            }
            let inner = shape[axis + 1..].iter().product::<usize>() * made.element_type().size_of();
            let row = shape[axis] * inner;
            let mut parts: ShortVec<(&[u8], usize)> = smallvec![];
            for input in inputs.iter().filter(|input| !input.is_empty()) {
                parts.push((input.as_bytes()?, input.shape()[axis] * inner));
            }
            let bytes = made.as_bytes_mut()?;
            let work = [bytes.len() as u64, BYTES];
            // A thread's part may start inside a row.
            split::lines(bytes, LINE, work, |first, mut to, pace| {
                let (mut line, mut skipped) = (first * LINE / row, first * LINE % row);
                loop {
                    for &(from, width) in &parts {
                        if skipped >= width {
                            skipped -= width;
                            continue;
                        }
                        let from = &from[line * width..][skipped..width];
                        skipped = 0;
                        let (now, rest) = to.split_at_mut(from.len().min(to.len()));
                        pace.copy_bytes(&from[..now.len()], now)?;
                        if rest.is_empty() {
                            return Ok(());
                        }
                        to = rest;
                    }
                    line += 1;
                }
            })?;
            Ok(smallvec![Arc::new(made)])
        })
    }
}

/// `Split` by given sizes, or into equal parts.
#[derive(Debug)]
pub(crate) struct Split {
    axis: i64,
    sizes: Option<Vec<i64>>,
    /// Number of parts if no sizes are given. With `rounds_up`, the last part may be smaller than the others.
    count: usize,
    rounds_up: bool,
}

impl Split {
    pub(crate) fn of(node: &Node) -> Self {
        let attributes = Attributes(node);
        Self {
            axis: attributes.int("axis", 0),
            sizes: attributes.has("split").then(|| attributes.ints("split").to_vec()),
            count: node.output.len(),
            rounds_up: attributes.has("num_outputs"),
        }
    }

    /// Returns the sizes of the parts of an axis of `whole` elements.
    fn parts(&self, given: Option<&[i64]>, axis: usize, whole: usize) -> Result<ShortVec<usize>> {
        let parts = match given {
            Some(given) => sizes(given)?,
            None => {
                let count = self.count.max(1);
                let each = whole.div_ceil(count);
                // Requires equal parts. With `rounds_up`, the last part may be smaller.
                ensure_input!(
                    whole.is_multiple_of(count) || (self.rounds_up && each * (count - 1) <= whole),
                    "{whole} elements along axis {axis} are to be cut into {count} equal parts"
                );
                let mut parts: ShortVec<usize> = smallvec![each; self.count];
                if let Some(last) = parts.last_mut() {
                    *last = whole - each * (count - 1);
                }
                parts
            }
        };
        let all = parts.iter().try_fold(0usize, |all, &part| all.checked_add(part));
        ensure_input!(
            all == Some(whole) && parts.len() == self.count,
            "parts {parts:?} of {whole} elements along axis {axis} for {} outputs",
            self.count
        );
        Ok(parts)
    }
}

impl Compute for Split {
    fn outputs(&self, inputs: &[Fact]) -> Result<Option<Vec<Fact>>> {
        let input = inputs.first().context("expected an input")?;
        let axis = axis(self.axis, input.rank())?;
        let given = match inputs.get(1) {
            Some(sizes) => match known_integers(sizes)? {
                Some(sizes) => Some(sizes),
                None => return Ok(None),
            },
            None => self.sizes.clone(),
        };
        let whole = &input.shape[axis];
        let parts: ShortVec<Dim> = match (whole.to_i64(), &given) {
            (Some(whole), given) => {
                let parts = self.parts(given.as_deref(), axis, sizes(&[whole])?[0])?;
                parts.iter().map(ToDim::to_dim).collect()
            }
            (None, Some(given)) => sizes(given)?.iter().map(ToDim::to_dim).collect(),
            (None, None) => {
                let count = self.count.max(1);
                let each = match self.rounds_up {
                    true => (*whole + (count - 1)) / count,
                    false => *whole / count,
                };
                let mut parts = smallvec![each; self.count];
                if let Some(last) = parts.last_mut().filter(|_| self.rounds_up) {
                    *last = *whole - each * (count - 1);
                }
                parts
            }
        };
        let part = |size: Dim| {
            let mut part = input.with(input.element_type);
            part.shape[axis] = size;
            part
        };
        Ok(Some(parts.into_iter().map(part).collect()))
    }

    fn run(&self, inputs: &mut ShortVec<Arc<Tensor>>) -> Result<ShortVec<Arc<Tensor>>> {
        texts::moved(inputs, |inputs| {
            let input = &inputs[0];
            let axis = axis(self.axis, input.rank())?;
            let shape = input.shape();
            let given = match inputs.get(1) {
                Some(sizes) => Some(integers(sizes)?),
                None => self.sizes.clone(),
            };
            let whole = shape[axis];
            let inner = shape[axis + 1..].iter().product::<usize>() * input.element_type().size_of();
            let mut made: ShortVec<Arc<Tensor>> = smallvec![];
            let mut begin = 0;
            for part in self.parts(given.as_deref(), axis, whole)? {
                let mut of_part: ShortVec<usize> = shape.into();
                of_part[axis] = part;
                let mut tensor = unset(input.element_type(), &of_part)?;
                if !tensor.is_empty() {
                    let (row, width, from) = (whole * inner, part * inner, input.as_bytes()?);
                    let bytes = tensor.as_bytes_mut()?;
                    let work = [bytes.len() as u64, BYTES];
                    split::lines(bytes, LINE, work, |first, mut to, pace| {
                        let (mut line, mut skipped) = (first * LINE / width, first * LINE % width);
                        while !to.is_empty() {
                            let from = &from[line * row + begin * inner..][skipped..width];
                            let (now, rest) = to.split_at_mut(from.len().min(to.len()));
                            pace.copy_bytes(&from[..now.len()], now)?;
                            (to, line, skipped) = (rest, line + 1, 0);
                        }
                        Ok(())
                    })?;
                }
                begin += part;
                made.push(Arc::new(tensor));
            }
            Ok(made)
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::shape::texts::tests::{run, texts};
    use onnx_tensor::faults::BadInput;

    #[test]
    fn values_are_put_together_along_any_axis() {
        let (a, b) = (Tensor::matrix(&[[1i8, 2], [3, 4]]), Tensor::matrix(&[[5i8], [6]]));
        let nothing = Tensor::zero::<i8>(&[2, 0]).unwrap();
        let joined = run(&Concat(-1), &[a.clone(), nothing, b.clone()]).unwrap();
        assert_eq!(joined[0], Tensor::matrix(&[[1i8, 2, 5], [3, 4, 6]]));
        let joined = run(&Concat(0), &[a.clone(), a.clone()]).unwrap();
        assert_eq!(joined[0], Tensor::matrix(&[[1i8, 2], [3, 4], [1, 2], [3, 4]]));
        let words = [texts(&[1, 2], &["a", "b"]), texts(&[1, 1], &["c"])];
        assert_eq!(
            run(&Concat(1), &words).unwrap()[0],
            texts(&[1, 3], &["a", "b", "c"])
        );
        assert_eq!(
            run(&Concat(0), &[Tensor::vector(&[true])]).unwrap()[0],
            Tensor::vector(&[true])
        );
        for (axis, inputs) in [
            (0, [a.clone(), b]),
            (0, [a.clone(), Tensor::vector(&[1i8, 2])]),
            (0, [a.clone(), Tensor::matrix(&[[1i16, 2]])]),
        ] {
            assert!(run(&Concat(axis), &inputs).unwrap_err().is::<BadInput>());
        }
        assert!(run(&Concat(2), &[a.clone(), a]).is_err());
        let long = texts(&[1], &[&"x".repeat(1 << 20)]).into_arc();
        let mut inputs: ShortVec<Arc<Tensor>> = smallvec![long; 8192];
        let error = Concat(0).run(&mut inputs).unwrap_err();
        assert!(error.is::<BadInput>(), "{error}");
    }

    fn split(count: usize, sizes: Option<&[i64]>, rounds_up: bool) -> Split {
        Split {
            axis: -1,
            sizes: sizes.map(<[i64]>::to_vec),
            count,
            rounds_up,
        }
    }

    #[test]
    fn values_are_cut_into_parts() {
        let value = Tensor::matrix(&[[1u32, 2, 3], [4, 5, 6]]);
        let expected = [
            Tensor::matrix(&[[1u32], [4]]),
            Tensor::matrix(&[[2u32, 3], [5, 6]]),
        ];
        let given = split(2, Some(&[1, 2]), false);
        assert_eq!(run(&given, std::slice::from_ref(&value)).unwrap(), expected);
        let by_input = [value.clone(), Tensor::vector(&[1i64, 2])];
        assert_eq!(run(&split(2, None, false), &by_input).unwrap(), expected);
        let up = run(&split(2, None, true), std::slice::from_ref(&value)).unwrap();
        assert_eq!(
            up,
            [
                Tensor::matrix(&[[1u32, 2], [4, 5]]),
                Tensor::matrix(&[[3u32], [6]])
            ]
        );
        let words = run(&split(3, None, false), &[texts(&[3], &["a", "b", "c"])]).unwrap();
        assert_eq!(words[2], texts(&[1], &["c"]));
        let empty = run(&split(2, Some(&[3, 0]), false), std::slice::from_ref(&value)).unwrap();
        assert_eq!(empty[0], value);
        assert_eq!(empty[1].shape(), [2, 0]);
        for (split, sizes) in [
            (split(2, None, false), None),
            (split(2, Some(&[1, 1]), false), None),
            (split(2, Some(&[-1, 4]), false), None),
            (split(2, None, false), Some(&[3i64][..])),
            (split(2, None, false), Some(&[i64::MAX, i64::MAX])),
        ] {
            let mut inputs = vec![value.clone()];
            inputs.extend(sizes.map(Tensor::vector));
            assert!(run(&split, &inputs).unwrap_err().is::<BadInput>(), "{split:?}");
        }
    }

    #[test]
    fn parts_of_unknown_sizes_have_unknown_sizes() {
        let size = Dim::unknown();
        let input = Fact::new(ElementType::F32, [2.to_dim(), size]);
        for rounds_up in [false, true] {
            let parts = split(3, None, rounds_up)
                .outputs(std::slice::from_ref(&input))
                .unwrap()
                .unwrap();
            assert_eq!(parts.len(), 3);
            for part in parts {
                assert_eq!(part.shape[0], 2.to_dim());
                assert!(!part.shape[1].is_known());
            }
        }
        let joined = Concat(1)
            .outputs(&[input.clone(), input.clone()])
            .unwrap()
            .unwrap();
        assert!(!joined[0].shape[1].is_known());
        let fixed = Fact::new(ElementType::F32, [2.to_dim(), 5.to_dim()]);
        let joined = Concat(0).outputs(&[input, fixed]).unwrap().unwrap();
        assert_eq!(joined[0].shape[..], [4.to_dim(), 5.to_dim()]);
    }
}
