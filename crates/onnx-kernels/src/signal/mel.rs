//! The operators `HannWindow`, `HammingWindow`, `BlackmanWindow` and `MelWeightMatrix`.

use std::{f64::consts::PI, sync::Arc};

use onnx_tensor::prelude::*;

use onnx_tensor::{
    cancelling::Pace,
    faults::{BadInput, Refusal},
    node::Node,
    operator::Compute,
};
use onnx_tensor::{
    elements::{of_type, tensor},
    node::Attributes,
    operator::{Fact, Kernel, kernel},
    size,
};

/// Returns the type in `output_datatype`; the default is FP32.
fn output_type(attributes: Attributes<'_>) -> Result<ElementType> {
    let code = i32::try_from(attributes.int("output_datatype", 1))?;
    let element_type = ElementType::from_code(code);
    let element_type = element_type.filter(|element_type| element_type.is_number());
    Ok(element_type.ok_or_else(|| Refusal("needs a numeric type in 'output_datatype'".to_owned()))?)
}

/// Builds the operator `HannWindow`, `HammingWindow` or `BlackmanWindow`.
pub fn window(node: &Node) -> Result<Box<dyn Compute>> {
    let attributes = Attributes(node);
    let hamming = f64::from(25.0f32 / 46.0);
    let terms = match node.op_type.as_str() {
        "HannWindow" => [0.5, 0.5, 0.0],
        "HammingWindow" => [hamming, f64::from(1.0f32 - 25.0 / 46.0), 0.0],
        "BlackmanWindow" => [0.42, 0.5, 0.08].map(|term: f32| f64::from(term)),
        other => bail!("{other} is not a window"),
    };
    Ok(kernel(Window {
        terms,
        is_periodic: attributes.int("periodic", 1) != 0,
        element_type: output_type(attributes)?,
    }))
}

/// A sum of cosines: `a - b cos x + c cos 2x` over one period.
#[derive(Debug)]
struct Window {
    terms: [f64; 3],
    /// Whether the window is periodic instead of symmetric.
    is_periodic: bool,
    element_type: ElementType,
}

/// Reads sizes from the first `N` inputs; `None` if one is unknown.
fn sizes<const N: usize>(inputs: &[Fact]) -> Result<Option<[usize; N]>> {
    let mut sizes = [0; N];
    for (size, input) in sizes.iter_mut().zip(inputs) {
        let Some(values) = input.integers() else {
            return Ok(None);
        };
        let fits = |&size: &i64| usize::try_from(size).ok().filter(|&size| size <= 1 << 24);
        *size = match *values {
            [value] => fits(&value),
            _ => None,
        }
        .ok_or_else(|| BadInput(format!("a size of {values:?}, expected 0 to 2^24")))?;
    }
    Ok(Some(sizes))
}

impl Kernel for Window {
    fn outputs(&self, inputs: &[Fact]) -> Result<Vec<Fact>> {
        ensure!(inputs.len() == 1, "expected 1 input, found {}", inputs.len());
        let size = sizes(inputs)?.map_or_else(Dim::unknown, |[size]| size.to_dim());
        Ok(vec![Fact::new(self.element_type, [size])])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> Result<ShortVec<Tensor>> {
        let [size] = sizes(&Fact::of_values(inputs))?.context("no size")?;
        size::admit_shape(ElementType::F64, &[size])?;
        let round = if self.is_periodic {
            size
        } else {
            size.saturating_sub(1)
        };
        let step = 2.0 * PI / round as f64;
        let [a, b, c] = self.terms;
        let at = |place: usize| {
            let angle = step * place as f64;
            a - b * angle.cos() + c * (2.0 * angle).cos()
        };
        let mut pace = Pace::default();
        let mut numbers: Vec<f64> = Vec::with_capacity(size);
        for place in 0..size {
            pace.spend(8)?;
            numbers.push(at(place));
        }
        let numbers = tensor(&[size], numbers)?;
        Ok(smallvec![of_type(numbers, self.element_type)?])
    }
}

/// Builds the operator `MelWeightMatrix`, which has a triangular filter over frequencies for each mel bin.
pub fn weights(node: &Node) -> Result<Box<dyn Compute>> {
    Ok(kernel(Weights {
        element_type: output_type(Attributes(node))?,
    }))
}

/// Maximum number of weights, which take 128 MiB in FP64.
const MAX_WEIGHTS: usize = 1 << 24;

#[derive(Debug)]
struct Weights {
    element_type: ElementType,
}

impl Kernel for Weights {
    fn outputs(&self, inputs: &[Fact]) -> Result<Vec<Fact>> {
        ensure!(inputs.len() == 5, "expected 5 inputs, found {}", inputs.len());
        let Some([mels, length]) = sizes(inputs)? else {
            return Ok(vec![Fact::new(
                self.element_type,
                [Dim::unknown(), Dim::unknown()],
            )]);
        };
        let bins = length / 2 + 1;
        if bins * mels > MAX_WEIGHTS {
            bail!(BadInput(format!("more than {MAX_WEIGHTS} weights")));
        }
        Ok(vec![Fact::new(self.element_type, [bins.to_dim(), mels.to_dim()])])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> Result<ShortVec<Tensor>> {
        let facts = Fact::of_values(inputs);
        let [mels, length, rate] = sizes(&facts)?.context("no sizes")?;
        let edge = |place: usize| -> Result<f32> {
            let hertz = facts[place].number();
            let hertz = hertz.ok_or_else(|| BadInput("an edge that is not one number".to_owned()))? as f32;
            Ok((2595.0 * (1.0 + f64::from(hertz) / 700.0).log10()) as f32)
        };
        let (low, high) = (edge(3)?, edge(4)?);
        let bins = length / 2 + 1;
        let step = (high - low) / (mels + 2) as f32;
        // Returns the frequency bin where filter number `mel` starts. The filter's peak is the start of the
        // next filter, and its end is the start of the one after that.
        let place = |mel: usize| {
            let mel = f64::from(low + step * mel as f32);
            let hertz = (700.0 * (10.0f64.powf(mel / 2595.0) - 1.0)) as f32;
            ((length + 1) as f32 * hertz / rate as f32).floor() as usize
        };
        size::admit_shape(ElementType::F64, &[bins + 1, mels + 2])?;
        let places: Vec<usize> = (0..mels + 2).map(place).collect();
        if places.last().is_some_and(|&last| last > bins) || !places.is_sorted() {
            bail!(BadInput(
                "edges beyond half of the sample rate, or in the wrong order".to_owned()
            ));
        }
        let mut weights = vec![0.0f64; bins * mels];
        let mut pace = Pace::default();
        for (mel, edges) in places.windows(3).enumerate() {
            pace.spend(bins as u64)?;
            let [start, top, end] = [edges[0], edges[1], edges[2]];
            let mut set = |bin: usize, weight: f64| {
                if let Some(place) = weights.get_mut(bin * mels + mel) {
                    *place = weight;
                }
            };
            match top - start {
                0 => set(top, 1.0),
                rise => (start..=top).for_each(|bin| set(bin, (bin - start) as f64 / rise as f64)),
            }
            let fall = end - top;
            (top..end).for_each(|bin| set(bin, (end - bin) as f64 / fall as f64));
        }
        let weights = tensor(&[bins, mels], weights)?;
        Ok(smallvec![of_type(weights, self.element_type)?])
    }
}
