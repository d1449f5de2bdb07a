//! The operators `ReverseSequence` and `Compress`.

use std::sync::Arc;

use onnx_tensor::prelude::*;

use crate::gather::selection::{Places, picked_of};
use onnx_tensor::{
    axis,
    elements::elements,
    node::Attributes,
    operator::{Fact, Kernel, kernel},
};
use onnx_tensor::{
    cancelling::{PART, Pace},
    faults::BadInput,
    node::Node,
    operator::Compute,
    size,
};

/// Builds the operator `ReverseSequence`, which reverses the first elements of each row, up to the row's
/// length.
pub fn reverse_sequence(node: &Node) -> Result<Box<dyn Compute>> {
    let attributes = Attributes(node);
    let (time, batch) = (attributes.int("time_axis", 0), attributes.int("batch_axis", 1));
    ensure!(
        matches!((time, batch), (0, 1) | (1, 0)),
        "time_axis is {time} and batch_axis {batch}, expected 0 and 1 or 1 and 0"
    );
    Ok(kernel(ReverseSequence {
        batch_first: batch == 0,
    }))
}

#[derive(Debug)]
struct ReverseSequence {
    batch_first: bool,
}

impl Kernel for ReverseSequence {
    fn outputs(&self, inputs: &[Fact]) -> Result<Vec<Fact>> {
        let [input, lengths] = inputs else {
            bail!("expected 2 inputs, found {}", inputs.len());
        };
        ensure!(
            input.rank() >= 2 && lengths.rank() == 1,
            "expected an input of two or more dimensions, and sequence_lens of one"
        );
        Ok(vec![input.with(input.element_type)])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> Result<ShortVec<Tensor>> {
        let shape = inputs[0].shape();
        let (steps, batch) = match self.batch_first {
            true => (shape[1], shape[0]),
            false => (shape[0], shape[1]),
        };
        let lengths = inputs[1].cast_to::<i64>()?;
        let lengths = elements::<i64>(&lengths)?;
        if lengths.len() != batch {
            bail!(BadInput(format!(
                "sequence_lens has {} lengths for {batch} sequences",
                lengths.len()
            )));
        }
        let mut pace = Pace::default();
        for lengths in lengths.chunks(PART) {
            pace.spend(lengths.len() as u64)?;
            let mut lengths = lengths.iter();
            if let Some(length) = lengths.find(|&&length| length < 0 || length > steps as i64) {
                bail!(BadInput(format!(
                    "sequence_lens has a length of {length}, expected 0 to {steps}"
                )));
            }
        }
        if inputs[0].is_empty() {
            return Ok(smallvec![(*inputs[0]).clone()]);
        }
        let element_type = inputs[0].element_type();
        let made = with_unit!(element_type, U => reversed::<U>(&inputs[0], lengths, self.batch_first));
        Ok(smallvec![made?])
    }
}

/// Reverses each row up to its length, element by element, since a list of indices would take more memory
/// than small elements.
fn reversed<U: Unit>(value: &Tensor, lengths: &[i64], batch_first: bool) -> Result<Tensor> {
    let shape = value.shape();
    let inner: usize = shape[2..].iter().product();
    let elements = value.as_units::<U>()?;
    let mut made: Vec<U> = Vec::with_capacity(elements.len());
    let mut pace = Pace::default();
    for first in 0..shape[0] {
        for second in 0..shape[1] {
            pace.spend(1)?;
            let (row, step) = if batch_first {
                (first, second)
            } else {
                (second, first)
            };
            let length = lengths[row] as usize;
            let from = if step < length { length - 1 - step } else { step };
            let place = if batch_first {
                row * shape[1] + from
            } else {
                from * shape[1] + row
            };
            match inner {
                1 => made.push(elements[place].clone()),
                _ => pace.append(&elements[place * inner..][..inner], &mut made)?,
            }
        }
    }
    Tensor::from_units(value.element_type(), shape, made)
}

/// Builds the operator `Compress`, which selects slices along an axis, or elements of the flattened tensor,
/// for which a condition is true.
pub fn compress(node: &Node) -> Result<Box<dyn Compute>> {
    let attributes = Attributes(node);
    Ok(kernel(Compress {
        axis: attributes.has("axis").then(|| attributes.int("axis", 0)),
    }))
}

#[derive(Debug)]
struct Compress {
    /// The axis along which elements are selected; `None` to flatten the tensor first.
    axis: Option<i64>,
}

impl Compress {
    fn axis(&self, rank: usize) -> Result<Option<usize>> {
        self.axis.map(|axis| axis::axis(axis, rank)).transpose()
    }
}

impl Kernel for Compress {
    fn outputs(&self, inputs: &[Fact]) -> Result<Vec<Fact>> {
        let [input, condition] = inputs else {
            bail!("expected 2 inputs, found {}", inputs.len());
        };
        ensure!(condition.rank() == 1, "expected a list of conditions");
        let count = Dim::unknown();
        let shape = match self.axis(input.rank())? {
            None => smallvec![count.to_dim()],
            Some(axis) => {
                let mut shape = input.shape.clone();
                shape[axis] = count.to_dim();
                shape
            }
        };
        Ok(vec![Fact::new(input.element_type, shape)])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> Result<ShortVec<Tensor>> {
        let input = &inputs[0];
        let count = [input.len()];
        let (shape, axis) = match self.axis(input.rank())? {
            Some(axis) => (input.shape(), axis),
            None => (&count[..], 0),
        };
        let wanted = elements::<bool>(&inputs[1])?;
        let mut pace = Pace::default();
        let beyond = wanted.get(shape[axis]..).unwrap_or_default();
        for (first, wanted) in (shape[axis]..).step_by(PART).zip(beyond.chunks(PART)) {
            pace.spend(wanted.len() as u64)?;
            if let Some(place) = wanted.iter().position(|wanted| *wanted) {
                bail!(BadInput(format!(
                    "condition {} is true in a dimension of {}",
                    first + place,
                    shape[axis]
                )));
            }
        }
        let mut made_shape = shape.to_vec();
        made_shape[axis] = Places::Where(wanted).count(&mut pace)?;
        size::admit_shape(input.element_type(), &made_shape)?;
        // A list of indices is faster if there are many blocks, and is used if it is smaller than the data.
        let blocks: usize = shape[..axis].iter().product();
        let block = shape[axis + 1..].iter().product::<usize>() * input.element_type().size_of();
        if blocks < 2 || blocks.saturating_mul(block) < size_of::<usize>() {
            return Ok(smallvec![picked_of(input, shape, axis, Places::Where(wanted))?]);
        }
        let mut places = Vec::with_capacity(made_shape[axis]);
        for (first, wanted) in (0..).step_by(PART).zip(wanted.chunks(PART)) {
            pace.spend(wanted.len() as u64)?;
            let wanted = (first..).zip(wanted).filter(|(_, wanted)| **wanted);
            places.extend(wanted.map(|(place, _)| place));
        }
        Ok(smallvec![picked_of(input, shape, axis, Places::List(&places))?])
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use onnx_tensor::elements::tensor;

    fn run(batch_first: bool, input: Tensor, lengths: Vec<i64>) -> Tensor {
        let lengths = tensor(&[lengths.len()], lengths).unwrap();
        let reverse = ReverseSequence { batch_first };
        let mut outputs = reverse.run(&[Arc::new(input), Arc::new(lengths)]).unwrap();
        outputs.remove(0)
    }

    #[test]
    fn each_row_is_reversed_up_to_its_length() {
        let numbers = tensor(&[2, 3, 1], vec![1i64, 2, 3, 4, 5, 6]).unwrap();
        let found = run(true, numbers.clone(), vec![2, 3]);
        assert_eq!(elements::<i64>(&found).unwrap(), [2, 1, 3, 6, 5, 4]);
        let found = run(false, numbers, vec![2, 0, 1]);
        assert_eq!(elements::<i64>(&found).unwrap(), [4, 2, 3, 1, 5, 6]);
        let words: Vec<String> = ["a", "b", "c", "d"].map(str::to_owned).into();
        let found = run(false, tensor(&[2, 1, 2], words).unwrap(), vec![2]);
        assert_eq!(elements::<String>(&found).unwrap(), ["c", "d", "a", "b"]);
    }

    /// Checks that the operator allocates only its result. Runs in a separate process, since allocations of
    /// concurrent tests would also be counted.
    #[test]
    #[cfg(target_os = "linux")]
    fn bytes_are_reversed_without_a_list_of_places() {
        const ALONE: &str = "BACKEND_ONNX_TEST_ALONE";
        if std::env::var_os(ALONE).is_none() {
            let name = "gather::sequences::tests::bytes_are_reversed_without_a_list_of_places";
            let program = std::env::current_exe().unwrap();
            let mut child = std::process::Command::new(program);
            let child = child.args(["--exact", name]).env(ALONE, "yes").output().unwrap();
            let stdout = String::from_utf8_lossy(&child.stdout);
            assert!(child.status.success() && stdout.contains("1 passed"), "{stdout}");
            return;
        }
        let most = || {
            let status = std::fs::read_to_string("/proc/self/status").unwrap();
            let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
            let kib: u64 = line.unwrap().trim().trim_end_matches(" kB").parse().unwrap();
            kib << 10
        };
        let size = 3000;
        let input = tensor(&[size, size], vec![1u8; size * size]).unwrap();
        let before = most();
        let found = run(false, input, vec![size as i64; size]);
        assert_eq!(found.len(), size * size);
        let taken = most() - before;
        assert!(taken < 2 * (size * size) as u64, "{taken} bytes");
    }
}
