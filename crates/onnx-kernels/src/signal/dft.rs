//! The operator `DFT`: the discrete Fourier transform along one axis.

use std::sync::Arc;

use onnx_tensor::prelude::*;

use crate::signal::fourier::{Complex, Transform};
use onnx_tensor::{
    axis,
    elements::{elements, of_type, scalar, tensor},
    node::Attributes,
    operator::{Fact, Kernel, kernel},
};
use onnx_tensor::{
    cancelling::Pace,
    faults::{BadInput, ensure_input},
    node::Node,
    operator::Compute,
    size,
};

/// Builds the operator `DFT` for FP32 and FP64, computed in FP64.
pub fn dft(node: &Node) -> Result<Box<dyn Compute>> {
    let attributes = Attributes(node);
    Ok(kernel(Dft {
        axis: match node.opset >= 20 {
            true => Axis::Input(attributes.position(2)),
            false => Axis::Fixed(attributes.int("axis", 1)),
        },
        length: attributes.position(1),
        is_inverse: attributes.int("inverse", 0) != 0,
        is_onesided: attributes.int("onesided", 0) != 0,
    }))
}

#[derive(Debug)]
enum Axis {
    Fixed(i64),
    /// The input at this index contains the axis. If there is no such input, the axis is the last one before
    /// the complex parts.
    Input(Option<usize>),
}

#[derive(Debug)]
struct Dft {
    axis: Axis,
    /// Input index of the transform length; `None` if the length is that of the axis.
    length: Option<usize>,
    is_inverse: bool,
    is_onesided: bool,
}

impl Dft {
    fn axis(&self, given: Option<i64>, rank: usize) -> Result<usize> {
        let axis = match self.axis {
            Axis::Fixed(axis) => axis,
            Axis::Input(_) => given.unwrap_or(-2),
        };
        // The last axis contains real and imaginary parts, so it cannot be transformed.
        match axis::find(axis, rank) {
            Some(axis) if axis + 1 < rank => Ok(axis),
            _ => bail!(BadInput(format!("axis {axis} of a DFT of {rank} dimensions"))),
        }
    }

    fn axis_input(&self) -> Option<usize> {
        match self.axis {
            Axis::Fixed(_) => None,
            Axis::Input(place) => place,
        }
    }
}

/// Returns the number of results of a transform. A one-sided transform has `length / 2 + 1` results.
fn results(length: usize, is_onesided: bool) -> usize {
    if is_onesided { length / 2 + 1 } else { length }
}

impl Kernel for Dft {
    fn outputs(&self, inputs: &[Fact]) -> Result<Vec<Fact>> {
        let given = |place: Option<usize>| place.and_then(|place| inputs.get(place));
        let number = |fact: &Fact| match fact.integers().as_deref() {
            None => Ok(None),
            Some(&[number]) => Ok(Some(number)),
            Some(numbers) => Err(BadInput(format!(
                "a length or axis of {numbers:?}, expected one number"
            ))),
        };
        let input = &inputs[0];
        let mut shape = input.shape.clone();
        let axis = match given(self.axis_input()).map(number).transpose()? {
            None => self.axis(None, input.rank())?,
            Some(Some(axis)) => self.axis(Some(axis), input.rank())?,
            // The axis is unknown: any axis except the last one may change its size.
            Some(None) => {
                ensure!(input.rank() > 1, "a DFT of {} dimensions", input.rank());
                shape[..input.rank() - 1].fill_with(Dim::unknown);
                shape[input.rank() - 1] = 2.to_dim();
                return Ok(vec![Fact::new(input.element_type, shape)]);
            }
        };
        let length = match given(self.length).map(number).transpose()? {
            None => input.shape[axis],
            Some(length) => length.map_or_else(Dim::unknown, |length| length.to_dim()),
        };
        shape[axis] = match (self.is_onesided, length.to_usize()) {
            (_, Some(length)) => results(length, self.is_onesided).to_dim(),
            (true, None) => length / 2 + 1,
            (false, None) => length,
        };
        shape[input.rank() - 1] = 2.to_dim();
        Ok(vec![Fact::new(input.element_type, shape)])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> Result<ShortVec<Tensor>> {
        let input = &inputs[0];
        let number = |place: Option<usize>| match place.and_then(|place| inputs.get(place)) {
            Some(value) => scalar::<i64>(value).map(Some),
            None => Ok(None),
        };
        let shape = input.shape();
        let axis = self.axis(number(self.axis_input())?, shape.len())?;
        let length = match number(self.length)? {
            Some(length) => usize::try_from(length)
                .ok()
                .filter(|&length| length > 0)
                .ok_or_else(|| BadInput(format!("a DFT of {length} numbers")))?,
            None => shape[axis],
        };
        let parts = shape[shape.len() - 1];
        ensure_input!(
            matches!(parts, 1 | 2),
            "{parts} parts of the numbers of a DFT, expected 1 (real) or 2 (complex)"
        );
        let count = results(length, self.is_onesided);
        let mut made = shape.to_vec();
        made[axis] = count;
        made[shape.len() - 1] = 2;
        size::admit_shape(ElementType::F64, &made)?;
        ensure_input!(
            length <= MAX_LENGTH,
            "a DFT of {length} numbers, the limit is {MAX_LENGTH}"
        );
        // Checks that there is enough memory for a line, its buffer, and the tables, which are larger for
        // prime lengths.
        size::admit_now(Transform::bytes(length))?;
        let width = shape[axis + 1..shape.len() - 1].iter().product();
        let lines = Lines {
            parts,
            size: shape[axis],
            width,
            length,
            count,
        };
        let count = made.iter().product();
        size::admit_shape(ElementType::F64, shape)?;
        let values = input.cast_to::<f64>()?;
        let mut transformed = vec![0.0; count];
        if count > 0 && length > 0 {
            lines.transform(elements(&values)?, &mut transformed, self.is_inverse)?;
        }
        let transformed = tensor(&made, transformed)?;
        Ok(smallvec![of_type(transformed, input.element_type())?])
    }
}

/// Maximum transform length.
const MAX_LENGTH: usize = 1 << 24;

/// Transforms lines of complex elements that are `width` apart.
struct Lines {
    parts: usize,
    size: usize,
    width: usize,
    /// Length of the transform, to which lines are truncated or padded with zeros.
    length: usize,
    /// Number of results to keep.
    count: usize,
}

impl Lines {
    fn transform(&self, values: &[f64], results: &mut [f64], is_inverse: bool) -> Result<()> {
        let mut pace = Pace::default();
        let mut transform = Transform::new(self.length, is_inverse, &mut pace)?;
        let scale = if is_inverse { 1.0 / self.length as f64 } else { 1.0 };
        let mut line = vec![Complex::default(); self.length];
        for (block, results) in results.chunks_exact_mut(self.count * self.width * 2).enumerate() {
            let block = &values[block * self.size * self.width * self.parts..];
            for column in 0..self.width {
                // Counts the work here too, since a transform of length 1 has no stages that would count it.
                pace.spend(self.length as u64)?;
                line.fill(Complex::default());
                for (at, number) in line.iter_mut().take(self.size).enumerate() {
                    let place = (at * self.width + column) * self.parts;
                    number.re = block[place];
                    number.im = if self.parts == 2 { block[place + 1] } else { 0.0 };
                }
                transform.run(&mut line, &mut pace)?;
                for (at, number) in line[..self.count].iter().enumerate() {
                    let place = (at * self.width + column) * 2;
                    results[place] = number.re * scale;
                    results[place + 1] = number.im * scale;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use onnx_tensor::{cancelling::Cancelled, testing::while_cancelled};

    fn transformed(shape: &[usize], length: Option<i64>) -> Result<ShortVec<Tensor>> {
        let dft = Dft {
            axis: Axis::Fixed(1),
            length: length.map(|_| 1),
            is_inverse: false,
            is_onesided: false,
        };
        let signal = Tensor::zero::<f32>(shape).unwrap().into_arc();
        let length = length.map(|length| Arc::new(Tensor::scalar(length)));
        dft.run(&[signal].into_iter().chain(length).collect::<Vec<_>>())
    }

    #[test]
    fn lengths_have_a_limit() {
        let error = transformed(&[1, 4, 1], Some((1 << 24) + 1)).unwrap_err();
        let message = error.downcast_ref::<BadInput>().map(ToString::to_string);
        assert!(message.unwrap().contains("the limit is 16777216"));
        assert_eq!(transformed(&[1, 4, 1], Some(6)).unwrap()[0].shape(), [1, 6, 2]);
    }

    #[test]
    fn lines_end_with_their_request() {
        for shape in [[64, 1024, 1], [1 << 19, 1, 1]] {
            let ended = while_cancelled(|| transformed(&shape, None));
            assert!(ended.unwrap_err().is::<Cancelled>());
        }
    }
}
