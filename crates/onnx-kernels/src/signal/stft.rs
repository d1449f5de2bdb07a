//! The operator `STFT` of real and complex signals of any length.

use std::sync::Arc;

use onnx_tensor::prelude::*;

use crate::signal::fourier::{Complex, Transform};
use onnx_tensor::{
    cancelling::Pace,
    faults::{BadInput, Unsupported, ensure_input},
    node::Node,
    operator::Compute,
    size,
};
use onnx_tensor::{
    elements::{copied, elements, of_type, tensor},
    node::Attributes,
    operator::{Fact, Kernel, kernel},
};

/// Builds the operator `STFT` for FP32 and FP64, computed in FP64.
pub fn stft(node: &Node) -> Result<Box<dyn Compute>> {
    let attributes = Attributes(node);
    Ok(kernel(Stft {
        window: attributes.position(2),
        length: attributes.position(3),
        is_onesided: attributes.int("onesided", 1) != 0,
    }))
}

#[derive(Debug)]
struct Stft {
    /// Input index of the window that frames are multiplied by.
    window: Option<usize>,
    /// Input index of the frame length; `None` for the window's length.
    length: Option<usize>,
    is_onesided: bool,
}

impl Stft {
    /// Returns the frame length; `None` if it is unknown before the run.
    fn frame(&self, inputs: &[Fact]) -> Result<Option<usize>> {
        let window = match self.window.and_then(|place| inputs.get(place)) {
            None => None,
            Some(window) => match &*window.shape {
                [size] => match size.to_usize() {
                    Some(size) => Some(size),
                    None => return Ok(None),
                },
                shape => bail!("a window of {} dimensions", shape.len()),
            },
        };
        let length = match self.length.and_then(|place| inputs.get(place)) {
            None => None,
            Some(length) => match positive(length, "frame_length")? {
                Some(length) => Some(length),
                None => return Ok(None),
            },
        };
        let frame = match (window, length) {
            (Some(window), Some(length)) if window != length => {
                bail!(BadInput(format!("a window of {window} for frames of {length}")))
            }
            (Some(frame), _) | (None, Some(frame)) => frame,
            (None, None) => bail!("neither window nor frame_length are given"),
        };
        ensure!(frame > 0, "frames of no numbers");
        Ok(Some(frame))
    }

    /// Returns the number of frequency bins to keep per frame.
    fn bins(&self, frame: usize) -> usize {
        if self.is_onesided { frame / 2 + 1 } else { frame }
    }
}

/// Returns the positive number in a fact; `None` if it is unknown. `name` names the input in errors.
fn positive(fact: &Fact, name: &str) -> Result<Option<usize>> {
    let Some(numbers) = fact.integers() else {
        return Ok(None);
    };
    let number = match *numbers {
        [number] => usize::try_from(number).ok().filter(|&number| number > 0),
        _ => None,
    };
    let fault = || BadInput(format!("{name} must be one number above zero, found {numbers:?}"));
    Ok(Some(number.ok_or_else(fault)?))
}

/// Returns the number of frames that start `step` apart.
fn frames(signal: usize, frame: usize, step: usize) -> Result<usize, BadInput> {
    let last = signal.checked_sub(frame).ok_or_else(|| {
        BadInput(format!(
            "a signal of {signal} numbers is too short for frames of {frame}"
        ))
    })?;
    Ok(last / step + 1)
}

impl Kernel for Stft {
    fn outputs(&self, inputs: &[Fact]) -> Result<Vec<Fact>> {
        let [signal, step, ..] = inputs else {
            bail!("expected at least 2 inputs, found {}", inputs.len());
        };
        let (batch, length) = match &*signal.shape {
            [batch, length] => (batch, length),
            [batch, length, parts] => {
                if let Some(parts) = parts.to_usize() {
                    admit_parts(parts)?;
                }
                (batch, length)
            }
            shape => bail!("a signal of {} dimensions, expected 2 or 3", shape.len()),
        };
        if !matches!(signal.element_type, ElementType::F32 | ElementType::F64) {
            bail!(Unsupported::Anywhere(
                "is supported for FP32 and FP64 only".to_owned()
            ));
        }
        let (frame, step) = (self.frame(inputs)?, positive(step, "frame_step")?);
        let frames = match (length.to_usize(), frame, step) {
            (Some(length), Some(frame), Some(step)) => frames(length, frame, step)?.to_dim(),
            (None, Some(frame), Some(step)) => (*length - frame.to_dim()) / step as u64 + 1,
            _ => Dim::unknown(),
        };
        let bins = frame.map_or_else(Dim::unknown, |frame| self.bins(frame).to_dim());
        let shape = [*batch, frames, bins, 2.to_dim()];
        Ok(vec![Fact::new(signal.element_type, shape)])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> Result<ShortVec<Tensor>> {
        let facts = Fact::of_values(inputs);
        let frame = self.frame(&facts)?.context("no length of frames")?;
        let step = positive(&facts[1], "frame_step")?.context("no step between frames")?;
        let signal = &inputs[0];
        let (batch, length, parts) = match *signal.shape() {
            [batch, length] => (batch, length, 1),
            [batch, length, parts] => (batch, length, parts),
            _ => bail!("a signal of {} dimensions", signal.rank()),
        };
        admit_parts(parts)?;
        let (frames, bins) = (frames(length, frame, step)?, self.bins(frame));
        let made = [batch, frames, bins, 2];
        size::admit_shape(ElementType::F64, &made)?;
        // Checks that there is enough memory for a line, its buffer, and the tables.
        size::admit_now(Transform::bytes(frame))?;
        let values = signal.cast_to::<f64>()?;
        let values = elements::<f64>(&values)?;
        let window = match self.window {
            Some(place) => Some(inputs[place].cast_to::<f64>()?),
            None => None,
        };
        let window = match &window {
            Some(window) => copied::<f64>(window)?,
            None => vec![1.0; frame],
        };
        let mut pace = Pace::default();
        let mut transform = Transform::new(frame, false, &mut pace)?;
        let mut numbers = vec![Complex::default(); frame];
        let mut results = Vec::with_capacity(made.iter().product());
        for signal in values.chunks_exact((length * parts).max(1)) {
            for first in (0..frames).map(|at| at * step) {
                pace.spend(frame as u64)?;
                for (at, (number, factor)) in numbers.iter_mut().zip(&window).enumerate() {
                    let place = (first + at) * parts;
                    number.re = signal[place] * factor;
                    number.im = if parts == 2 {
                        signal[place + 1] * factor
                    } else {
                        0.0
                    };
                }
                transform.run(&mut numbers, &mut pace)?;
                results.extend(numbers[..bins].iter().flat_map(|number| [number.re, number.im]));
            }
        }
        let transformed = tensor(&made, results)?;
        Ok(smallvec![of_type(transformed, signal.element_type())?])
    }
}

fn admit_parts(parts: usize) -> Result<()> {
    ensure_input!(
        matches!(parts, 1 | 2),
        "{parts} parts of the numbers of a STFT, expected 1 (real) or 2 (complex)"
    );
    Ok(())
}
