//! The operators `LSTM`, `GRU` and `RNN`, in both directions, for sequences of different lengths and any
//! batch size.

use std::{borrow::Cow, sync::Arc};

use onnx_tensor::cancelling::Pace;
use onnx_tensor::prelude::*;

use crate::{
    matmul::integer_factors::IntegerFactors,
    rnn::{
        cells::{Cell, Factors, Side, Sizes, State},
        gate_functions::Activation,
    },
};
use onnx_tensor::{
    elements::{elements, of_type, tensor},
    node::Attributes,
    operator::{Constants, Fact, Kernel},
    packs::{Order, Packs},
};
use onnx_tensor::{
    faults::{BadInput, Unsupported},
    node::Node,
    operator::Compute,
};

/// Builds the operator `LSTM`, `DynamicQuantizeLSTM`, `GRU` or `RNN`.
pub fn recurrent(node: &Node) -> Result<Box<dyn Compute>> {
    let attributes = Attributes(node);
    let cell = match node.op_type.as_str() {
        name if name.ends_with("LSTM") => Cell::Lstm,
        "GRU" => Cell::Gru {
            resets_after: attributes.int("linear_before_reset", 0) != 0,
        },
        _ => Cell::Rnn,
    };
    let directions: &[bool] = match attributes.text("direction", "forward") {
        "reverse" => &[true],
        "bidirectional" => &[false, true],
        _ => &[false],
    };
    let given = attributes.texts("activations")?;
    let (mut alphas, mut betas) = (
        attributes.floats("activation_alpha").iter().copied(),
        attributes.floats("activation_beta").iter().copied(),
    );
    let is_quantized = node.op_type.ends_with(QUANTIZED);
    let mut activations = Vec::with_capacity(directions.len());
    for direction in 0..directions.len() {
        let count = cell.activations().len();
        let names = match given.get(direction * count..(direction + 1) * count) {
            Some(names) => names.iter().map(String::as_str).collect(),
            None => cell.activations().to_vec(),
        };
        let functions: Option<Vec<Activation>> = names
            .iter()
            .map(|name| {
                let function = Activation::of(name)?.with(&mut alphas, &mut betas);
                Some(if is_quantized { function.coarse() } else { function })
            })
            .collect();
        activations.push(functions.context("an unknown activation")?);
    }
    Ok(Box::new(Recurrent {
        cell,
        directions: directions.into(),
        activations,
        batch_first: attributes.int("layout", 0) != 0,
        clip: attributes.float("clip", 0.0),
        couples_gates: attributes.int("input_forget", 0) != 0,
        is_quantized,
        turned: None,
        inputs: std::array::from_fn(|index| attributes.position(index)),
        outputs: node.output.len(),
    }))
}

#[derive(Debug)]
struct Recurrent {
    cell: Cell,
    /// For each direction, whether it runs through the sequence in reverse.
    directions: Box<[bool]>,
    /// The activation functions of each direction.
    activations: Vec<Vec<Activation>>,
    batch_first: bool,
    /// `clip`: the limit on the input of activations; 0 means no limit.
    clip: f32,
    /// `input_forget`: the LSTM's forget gate is 1 minus its input gate.
    couples_gates: bool,
    /// Whether weights have 8 bits and states are quantized at each step.
    is_quantized: bool,
    /// Constant 8-bit weights, transposed.
    turned: Option<Arc<PackedRecurrentWeights>>,
    /// For each of ONNX's inputs, its index among the present inputs.
    inputs: [Option<usize>; 12],
    outputs: usize,
}

/// ONNX Runtime's LSTM with 8-bit weights. Inputs 8 to 11 are the scales and zero points of both weights,
/// whose last two dimensions are swapped compared with `LSTM`.
const QUANTIZED: &str = "DynamicQuantizeLSTM";

/// 8-bit weights packed for the product kernel.
#[derive(Debug)]
struct PackedRecurrentWeights {
    w: Vec<IntegerFactors>,
    r: Vec<IntegerFactors>,
}

impl Recurrent {
    fn input<'i, T>(&self, inputs: &'i [T], index: usize) -> Option<&'i T> {
        inputs.get(self.inputs[index]?)
    }

    /// Checks the weights' known dimensions and returns the hidden size.
    fn hidden(&self, inputs: &[Fact]) -> Result<Dim> {
        let (gates, directions) = (self.cell.gates(), self.directions.len());
        let (Some(x), Some(w), Some(r)) = (
            self.input(inputs, 0),
            self.input(inputs, 1),
            self.input(inputs, 2),
        ) else {
            bail!("expected 3 inputs, found {}", inputs.len());
        };
        ensure!(
            [x, w, r].iter().all(|fact| fact.rank() == 3),
            "expected three dimensions of the input and its weights"
        );
        // The axis of the units in the weights, and the axis along which products are summed.
        let [units, depth] = if self.is_quantized { [2, 1] } else { [1, 2] };
        let hidden = r.shape[depth];
        let agrees = |found: &Dim, expected: Dim| {
            ensure!(
                *found == expected || found.to_i64().is_none() || expected.to_i64().is_none(),
                "a dimension of {found} where {expected} is expected"
            );
            Ok(())
        };
        for (fact, inner) in [(w, &x.shape[2]), (r, &hidden)] {
            agrees(&fact.shape[0], directions.to_dim())?;
            agrees(&fact.shape[units], hidden * gates)?;
            agrees(&fact.shape[depth], *inner)?;
        }
        let [steps, batch] = self.steps_and_batch(x);
        let _ = steps;
        for (index, shape) in [
            (3, vec![directions.to_dim(), hidden * (2 * gates)]),
            (4, vec![*batch]),
            (5, self.state_shape(batch, &hidden)),
            (6, self.state_shape(batch, &hidden)),
            (7, vec![directions.to_dim(), hidden * 3]),
        ] {
            if let Some(fact) = self.input(inputs, index) {
                ensure!(
                    fact.rank() == shape.len(),
                    "input {index} has {} dimensions",
                    fact.rank()
                );
                for (found, expected) in fact.shape.iter().zip(shape) {
                    agrees(found, expected)?;
                }
            }
        }
        Ok(hidden)
    }

    fn steps_and_batch<'f>(&self, x: &'f Fact) -> [&'f Dim; 2] {
        match self.batch_first {
            true => [&x.shape[1], &x.shape[0]],
            false => [&x.shape[0], &x.shape[1]],
        }
    }

    fn state_shape(&self, batch: &Dim, hidden: &Dim) -> Vec<Dim> {
        let directions = self.directions.len().to_dim();
        match self.batch_first {
            true => vec![*batch, directions, *hidden],
            false => vec![directions, *batch, *hidden],
        }
    }
}

/// The indices of the inputs with the two 8-bit weights, their scales and zero points, as ONNX Runtime
/// numbers them.
const WEIGHTS: [usize; 6] = [1, 2, 8, 9, 10, 11];

impl Compute for Recurrent {
    fn outputs(&self, inputs: &[Fact]) -> Result<Option<Vec<Fact>>> {
        Kernel::outputs(self, inputs).map(Some)
    }

    fn take_over(&mut self, constants: Constants<'_>, packs: &mut Packs) -> Result<Option<usize>> {
        let given = WEIGHTS.iter().filter_map(|&index| self.inputs[index]);
        let sources = given.map(|place| constants.get(place)?.as_ref());
        let sources: Option<Vec<&Arc<Tensor>>> = sources.collect();
        let Some(sources) = sources.filter(|_| self.is_quantized) else {
            return Ok(None);
        };
        let input = |index: usize| constants.get(self.inputs[index]?)?.as_ref();
        let weights = [1, 2].into_iter().filter_map(input);
        let bytes = weights.map(|weights| size_of::<i16>() as u64 * weights.len() as u64);
        let order = Order::Panels { is_turned: true };
        let turned = packs.shared(&sources, order, bytes.sum(), || self.made(input));
        // An error about wrong types or sizes is ignored here, since the node reports it when it runs.
        self.turned = turned.ok().flatten();
        Ok(None)
    }

    fn run(&self, inputs: &mut ShortVec<Arc<Tensor>>) -> Result<ShortVec<Arc<Tensor>>> {
        let made = Kernel::run(self, inputs)?;
        Ok(made.into_iter().map(Arc::new).collect())
    }
}

impl Kernel for Recurrent {
    fn outputs(&self, inputs: &[Fact]) -> Result<Vec<Fact>> {
        let hidden = self.hidden(inputs)?;
        let x = &inputs[0];
        if !matches!(x.element_type, ElementType::F32 | ElementType::F16) {
            let name = x.element_type.name();
            bail!(Unsupported::Anywhere(format!("is not supported for {name}")));
        }
        if self.is_quantized {
            let are_bytes = [1, 2].iter().all(|&index| {
                let weights = self.input(inputs, index);
                weights.is_some_and(|fact| matches!(fact.element_type, ElementType::U8 | ElementType::I8))
            });
            let has_scales = [8, 10].iter().all(|&index| {
                self.input(inputs, index)
                    .is_some_and(|fact| fact.element_type == ElementType::F32)
            });
            ensure!(
                are_bytes && has_scales,
                "expected weights of 8 bits and their scales"
            );
        }
        let [steps, batch] = self.steps_and_batch(x);
        let directions = self.directions.len().to_dim();
        let sequence = match self.batch_first {
            true => vec![*batch, *steps, directions, hidden],
            false => vec![*steps, directions, *batch, hidden],
        };
        let state = self.state_shape(batch, &hidden);
        let mut facts = vec![
            Fact::new(x.element_type, sequence),
            Fact::new(x.element_type, state.clone()),
            Fact::new(x.element_type, state),
        ];
        facts.truncate(self.outputs);
        Ok(facts)
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> Result<ShortVec<Tensor>> {
        let hidden = self
            .hidden(&Fact::of_values(inputs))?
            .to_usize()
            .context("a hidden size that is not known")?;
        let element_type = inputs[0].element_type();
        let floats = |index: usize| {
            let input = self.input(inputs, index);
            input.map(|input| input.cast_to::<f32>()).transpose()
        };
        let weights = |index: usize| match self.is_quantized {
            true => Ok(None),
            false => floats(index),
        };
        let all = [
            floats(0)?,
            weights(1)?,
            weights(2)?,
            floats(3)?,
            floats(5)?,
            floats(6)?,
            floats(7)?,
        ];
        let slice = |index: usize| all[index].as_deref().map(elements::<f32>).transpose();
        let shape = inputs[0].shape();
        let sizes = Sizes {
            steps: shape[usize::from(self.batch_first)],
            batch: shape[usize::from(!self.batch_first)],
            input: shape[2],
            hidden,
        };
        let (gates, directions) = (self.cell.gates() * hidden, self.directions.len());
        sizes.admit(gates.max(directions * hidden))?;
        let lengths = self.lengths(inputs, sizes)?;
        let x = slice(0)?.context("no input")?;
        // The elements of the input, ordered by step and then by row of the batch.
        let x: Cow<'_, [f32]> = match self.batch_first {
            true => swapped(x, sizes.batch, sizes.steps, sizes.input)?.into(),
            false => x.into(),
        };
        let parameters = Parameters {
            w: slice(1)?,
            r: slice(2)?,
            bias: slice(3)?,
            peepholes: slice(6)?,
            turned: self.turned(inputs)?,
        };
        let state = |values: Option<&[f32]>| {
            let values = values.map(|values| match self.batch_first {
                true => swapped(values, sizes.batch, directions, hidden),
                false => Pace::default().copy(values),
            });
            values.transpose()
        };
        let initial = [state(slice(4)?)?, state(slice(5)?)?];
        let (sequence, last) = self.run_directions(&x, &parameters, initial, sizes, &lengths)?;
        self.finished(sequence, last, sizes, element_type)
    }
}

/// Returns a copy of the `count` values of a direction.
fn part(values: Option<&[f32]>, direction: usize, count: usize) -> Result<Option<Vec<f32>>> {
    let values = values.map(|values| &values[direction * count..(direction + 1) * count]);
    values.map(|values| Pace::default().copy(values)).transpose()
}

/// The weights and biases of all directions in one run.
struct Parameters<'r> {
    w: Option<&'r [f32]>,
    r: Option<&'r [f32]>,
    bias: Option<&'r [f32]>,
    peepholes: Option<&'r [f32]>,
    /// The 8-bit weights of a quantized layer, which replace `w` and `r`.
    turned: Option<Arc<PackedRecurrentWeights>>,
}

impl Recurrent {
    /// Returns the 8-bit weights of a quantized layer, transposed.
    fn turned(&self, inputs: &[Arc<Tensor>]) -> Result<Option<Arc<PackedRecurrentWeights>>> {
        Ok(match (self.is_quantized, &self.turned) {
            (false, _) => None,
            (true, Some(turned)) => Some(turned.clone()),
            (true, None) => Some(Arc::new(self.made(|index| self.input(inputs, index))?)),
        })
    }

    /// Runs all directions over `x`, from the states `h` and `c`. Returns the states of all steps and the
    /// last states.
    fn run_directions(
        &self,
        x: &[f32],
        parameters: &Parameters<'_>,
        [h, c]: [Option<Vec<f32>>; 2],
        sizes: Sizes,
        lengths: &[usize],
    ) -> Result<(Vec<f32>, [Vec<f32>; 2])> {
        let (hidden, directions) = (sizes.hidden, self.directions.len());
        let rows = sizes.batch * hidden;
        let mut sequence = vec![0f32; sizes.steps * directions * rows];
        let mut last: [Vec<f32>; 2] = std::array::from_fn(|_| vec![0f32; directions * rows]);
        for direction in 0..directions {
            let side = self.side(parameters, direction, sizes, lengths)?;
            let mut state = State {
                h: part(h.as_deref(), direction, rows)?.unwrap_or_else(|| vec![0.0; rows]),
                c: part(c.as_deref(), direction, rows)?.unwrap_or_else(|| vec![0.0; rows]),
            };
            side.run(x, &mut state, |step, row, values| {
                let at = ((step * directions + direction) * sizes.batch + row) * hidden;
                sequence[at..at + hidden].copy_from_slice(values);
            })?;
            for (last, state) in last.iter_mut().zip([&state.h, &state.c]) {
                let last = &mut last[direction * rows..(direction + 1) * rows];
                Pace::default().pairs(state, last, |state, last| last.copy_from_slice(state))?;
            }
        }
        Ok((sequence, last))
    }

    /// Returns the parameters of one direction.
    fn side<'r>(
        &'r self,
        parameters: &'r Parameters<'r>,
        direction: usize,
        sizes: Sizes,
        lengths: &'r [usize],
    ) -> Result<Side<'r>> {
        let hidden = sizes.hidden;
        let gates = self.cell.gates() * hidden;
        let (w, r) = match &parameters.turned {
            Some(turned) => (
                Factors::Integers(&turned.w[direction]),
                Factors::Integers(&turned.r[direction]),
            ),
            None => (
                factors(parameters.w, direction, gates * sizes.input)?,
                factors(parameters.r, direction, gates * hidden)?,
            ),
        };
        Ok(Side {
            cell: self.cell,
            activations: &self.activations[direction],
            sizes,
            lengths,
            is_reverse: self.directions[direction],
            clip: self.clip,
            couples_gates: self.couples_gates,
            w,
            r,
            bias: part(parameters.bias, direction, 2 * gates)?,
            peepholes: part(parameters.peepholes, direction, 3 * hidden)?,
        })
    }

    /// Returns the outputs: the states of all steps and the last states, in the order of the layout.
    fn finished(
        &self,
        mut sequence: Vec<f32>,
        mut last: [Vec<f32>; 2],
        sizes: Sizes,
        element_type: ElementType,
    ) -> Result<ShortVec<Tensor>> {
        let directions = self.directions.len();
        let Sizes {
            steps, batch, hidden, ..
        } = sizes;
        let shapes: [Vec<usize>; 2] = match self.batch_first {
            true => {
                sequence = swapped(&sequence, steps * directions, batch, hidden)?;
                for last in &mut last {
                    *last = swapped(last, directions, batch, hidden)?;
                }
                [
                    vec![batch, steps, directions, hidden],
                    vec![batch, directions, hidden],
                ]
            }
            false => [
                vec![steps, directions, batch, hidden],
                vec![directions, batch, hidden],
            ],
        };
        let [last_h, last_c] = last;
        let outputs = [(&shapes[0], sequence), (&shapes[1], last_h), (&shapes[1], last_c)];
        let outputs = outputs.into_iter().take(self.outputs);
        outputs
            .map(|(shape, values)| of_type(tensor(shape, values)?, element_type))
            .collect()
    }
}

fn factors(weights: Option<&[f32]>, direction: usize, count: usize) -> Result<Factors<'_>> {
    let weights = weights.context("no weights")?;
    Ok(Factors::Floats(&weights[direction * count..][..count]))
}

impl Recurrent {
    /// Transposes the 8-bit weights for the product kernel.
    fn made<'i>(&self, input: impl Fn(usize) -> Option<&'i Arc<Tensor>>) -> Result<PackedRecurrentWeights> {
        let directions = self.directions.len();
        let factors = |weights: usize, scales: usize, zero_points: usize| {
            let weights = input(weights).context("no weights")?;
            let scales = input(scales).context("no scales")?;
            let factors = IntegerFactors::of_directions(weights, scales, input(zero_points))?;
            ensure!(
                factors.len() == directions,
                "weights for {} directions",
                factors.len()
            );
            Ok(factors)
        };
        Ok(PackedRecurrentWeights {
            w: factors(1, 8, 9)?,
            r: factors(2, 10, 11)?,
        })
    }

    /// Returns the length of each sequence of the batch.
    fn lengths(&self, inputs: &[Arc<Tensor>], sizes: Sizes) -> Result<Vec<usize>> {
        let Some(lengths) = self.input(inputs, 4) else {
            return Pace::default().repeat(&sizes.steps, sizes.batch);
        };
        let lengths = lengths.cast_to::<i64>()?;
        let lengths = elements::<i64>(&lengths)?.iter().map(|&length| {
            let fitting = usize::try_from(length)
                .ok()
                .filter(|&length| length <= sizes.steps);
            fitting.ok_or_else(|| {
                BadInput(format!(
                    "sequence_lens has a length of {length}, expected 0 to {}",
                    sizes.steps
                ))
                .into()
            })
        });
        let mut pace = Pace::default();
        lengths
            .map(|length| pace.spend(1).and(length))
            .collect::<Result<Vec<usize>>>()
    }
}

/// Swaps the first two of three dimensions.
fn swapped(values: &[f32], outer: usize, inner: usize, width: usize) -> Result<Vec<f32>> {
    let mut pace = Pace::default();
    let mut swapped = Vec::with_capacity(values.len());
    for i in 0..inner {
        for o in 0..outer {
            let at = (o * inner + i) * width;
            pace.append(&values[at..at + width], &mut swapped)?;
        }
    }
    Ok(swapped)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn weights_are_kept_where_they_are_constants() {
        let names = [
            "x", "w", "r", "", "", "", "", "", "w_scale", "w_zero", "r_scale", "r_zero",
        ];
        let node = Node {
            input: names.map(str::to_owned).to_vec(),
            output: vec!["y".to_owned()],
            op_type: QUANTIZED.to_owned(),
            ..Node::default()
        };
        let bytes = |shape: &[usize]| Tensor::from_shape(shape, &vec![3i8; shape.iter().product()]).unwrap();
        let (scale, zero) = (Tensor::vector(&[0.5f32]), Tensor::vector(&[1i8]));
        let given = [
            Tensor::from_shape(&[1, 1, 2], &[1f32, 2.0]).unwrap(),
            bytes(&[1, 2, 4]),
            bytes(&[1, 1, 4]),
            scale.clone(),
            zero.clone(),
            scale,
            zero,
        ];
        let inputs: ShortVec<Arc<Tensor>> = given.into_iter().map(Arc::new).collect();
        let mut layer = recurrent(&node).unwrap();
        let computed = layer.run(&mut inputs.clone()).unwrap();
        // The layer does not keep weights that it receives as inputs of a run.
        assert_eq!(Arc::strong_count(&inputs[1]), 1);
        let constants: Vec<_> = inputs.iter().cloned().map(Some).collect();
        let mut packs = Packs::beside(0);
        layer.take_over(&constants, &mut packs).unwrap();
        drop(constants);
        assert_eq!(Arc::strong_count(&inputs[1]), 2, "the packs keep it");
        assert_eq!(layer.run(&mut inputs.clone()).unwrap(), computed);
    }
}
