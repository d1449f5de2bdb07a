//! LSTM, GRU and RNN: both directions, sequences of different lengths, batches of any size. tract runs backwards in the
//! wrong order, knows no lengths, and panics where a free batch has no state to begin with.

use std::sync::Arc;

use tract_onnx::{
    model::ParsingContext,
    pb::NodeProto,
    tract_hir::{
        internal::*,
        tract_ndarray::{ArrayView2, ArrayViewMut2, linalg::general_mat_mul},
    },
};

use super::{
    attributes::Attributes,
    elements::{elements, tensor},
    gate_functions::Activation,
    kernel::{Fact, Kernel, kernel},
};
use crate::faults::{BadInput, Limit};

/// An LSTM, GRU or RNN, by the node's type.
pub(crate) fn recurrent(_: &ParsingContext<'_>, node: &NodeProto) -> TractResult<Box<dyn InferenceOp>> {
    let attributes = Attributes(node);
    let cell = match node.op_type.as_str() {
        "LSTM" => Cell::Lstm,
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
    let mut activations = Vec::with_capacity(directions.len());
    for direction in 0..directions.len() {
        let count = cell.activations().len();
        let names = match given.get(direction * count..(direction + 1) * count) {
            Some(names) => names.iter().map(String::as_str).collect(),
            None => cell.activations().to_vec(),
        };
        let functions: Option<Vec<Activation>> = names
            .iter()
            .map(|name| Some(Activation::of(name)?.with(&mut alphas, &mut betas)))
            .collect();
        activations.push(functions.context("an unknown activation")?);
    }
    Ok(kernel(Recurrent {
        cell,
        directions: directions.into(),
        activations,
        batch_first: attributes.int("layout", 0) != 0,
        clip: attributes.float("clip", 0.0),
        couples_gates: attributes.int("input_forget", 0) != 0,
        inputs: std::array::from_fn(|index| attributes.position(index)),
        outputs: node.output.len(),
    }))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cell {
    Lstm,
    Gru {
        /// The reset gate works on the product with the state rather than on the state.
        resets_after: bool,
    },
    Rnn,
}

impl Cell {
    fn name(self) -> &'static str {
        match self {
            Self::Lstm => "LSTM",
            Self::Gru { .. } => "GRU",
            Self::Rnn => "RNN",
        }
    }

    fn gates(self) -> usize {
        match self {
            Self::Lstm => 4,
            Self::Gru { .. } => 3,
            Self::Rnn => 1,
        }
    }

    /// The functions that are used unless others are given.
    fn activations(self) -> &'static [&'static str] {
        match self {
            Self::Lstm => &["Sigmoid", "Tanh", "Tanh"],
            Self::Gru { .. } => &["Sigmoid", "Tanh"],
            Self::Rnn => &["Tanh"],
        }
    }
}

#[derive(Debug)]
struct Recurrent {
    cell: Cell,
    /// For each direction, whether it runs backwards.
    directions: Box<[bool]>,
    /// Of each direction.
    activations: Vec<Vec<Activation>>,
    batch_first: bool,
    /// What gates are limited to before their functions; 0 is no limit.
    clip: f32,
    /// An LSTM forgets as much as it takes in.
    couples_gates: bool,
    /// Where each of ONNX's inputs stands among those that are given.
    inputs: [Option<usize>; 8],
    outputs: usize,
}

/// Sizes of one node in one run.
#[derive(Clone, Copy)]
struct Sizes {
    steps: usize,
    batch: usize,
    input: usize,
    hidden: usize,
}

impl Recurrent {
    fn input<'i, T>(&self, inputs: &'i [T], index: usize) -> Option<&'i T> {
        inputs.get(self.inputs[index]?)
    }

    /// Checks what is known of the weights, and gives the hidden size.
    fn hidden(&self, inputs: &[Fact]) -> TractResult<TDim> {
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
        let hidden = r.shape[2].clone();
        let agrees = |found: &TDim, expected: TDim| {
            ensure!(
                *found == expected || found.to_i64().is_err() || expected.to_i64().is_err(),
                "a dimension of {found} where {expected} is expected"
            );
            Ok(())
        };
        for (fact, inner) in [(w, &x.shape[2]), (r, &hidden)] {
            agrees(&fact.shape[0], directions.to_dim())?;
            agrees(&fact.shape[1], hidden.clone() * gates)?;
            agrees(&fact.shape[2], inner.clone())?;
        }
        let [steps, batch] = self.steps_and_batch(x);
        let _ = steps;
        for (index, shape) in [
            (3, vec![directions.to_dim(), hidden.clone() * (2 * gates)]),
            (4, vec![batch.clone()]),
            (5, self.state_shape(batch, &hidden)),
            (6, self.state_shape(batch, &hidden)),
            (7, vec![directions.to_dim(), hidden.clone() * 3]),
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

    fn steps_and_batch<'f>(&self, x: &'f Fact) -> [&'f TDim; 2] {
        match self.batch_first {
            true => [&x.shape[1], &x.shape[0]],
            false => [&x.shape[0], &x.shape[1]],
        }
    }

    fn state_shape(&self, batch: &TDim, hidden: &TDim) -> Vec<TDim> {
        let directions = self.directions.len().to_dim();
        match self.batch_first {
            true => vec![batch.clone(), directions, hidden.clone()],
            false => vec![directions, batch.clone(), hidden.clone()],
        }
    }
}

impl Kernel for Recurrent {
    fn name(&self) -> &'static str {
        self.cell.name()
    }

    fn output_count(&self) -> usize {
        self.outputs
    }

    fn outputs(&self, inputs: &[Fact]) -> TractResult<Vec<Fact>> {
        let hidden = self.hidden(inputs)?;
        let x = &inputs[0];
        if !matches!(x.datum_type, DatumType::F32 | DatumType::F16) {
            let name = crate::dtype::from_tract(x.datum_type).map_or("this type", |datatype| datatype.name());
            bail!(Limit(format!("is not supported for {name}")));
        }
        let [steps, batch] = self.steps_and_batch(x);
        let directions = self.directions.len().to_dim();
        let sequence = match self.batch_first {
            true => vec![batch.clone(), steps.clone(), directions, hidden.clone()],
            false => vec![steps.clone(), directions, batch.clone(), hidden.clone()],
        };
        let state = self.state_shape(batch, &hidden);
        let mut facts = vec![
            Fact::new(x.datum_type, sequence),
            Fact::new(x.datum_type, state.clone()),
            Fact::new(x.datum_type, state),
        ];
        facts.truncate(self.outputs);
        Ok(facts)
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> TractResult<TVec<Tensor>> {
        let facts: Vec<Fact> = inputs
            .iter()
            .map(|input| Fact::new(input.datum_type(), input.shape().iter().map(ToDim::to_dim)))
            .collect();
        let hidden = self.hidden(&facts)?.to_usize()?;
        let datum_type = inputs[0].datum_type();
        let floats = |index: usize| {
            let input = self.input(inputs, index);
            input.map(|input| input.cast_to::<f32>()).transpose()
        };
        let all = [
            floats(0)?,
            floats(1)?,
            floats(2)?,
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
        let lengths = self.lengths(inputs, sizes)?;
        let x = slice(0)?.context("no input")?;
        // By step, then by row of the batch.
        let x = if self.batch_first {
            swapped(x, sizes.batch, sizes.steps, sizes.input)
        } else {
            x.to_vec()
        };
        let (w, r) = (slice(1)?.context("no weights")?, slice(2)?.context("no weights")?);
        let (gates, directions) = (self.cell.gates() * hidden, self.directions.len());
        let mut sequence = vec![0f32; sizes.steps * directions * sizes.batch * hidden];
        let mut last: [Vec<f32>; 2] = std::array::from_fn(|_| vec![0f32; directions * sizes.batch * hidden]);
        let part = |values: Option<&'_ [f32]>, direction: usize, count: usize| -> Option<Vec<f32>> {
            Some(values?[direction * count..(direction + 1) * count].to_vec())
        };
        let state = |values: Option<&[f32]>| {
            values.map(|values| match self.batch_first {
                true => swapped(values, sizes.batch, directions, hidden),
                false => values.to_vec(),
            })
        };
        let (h, c) = (state(slice(4)?), state(slice(5)?));
        let rows = sizes.batch * hidden;
        for (direction, &is_reverse) in self.directions.iter().enumerate() {
            let side = Side {
                cell: self.cell,
                activations: &self.activations[direction],
                sizes,
                lengths: &lengths,
                is_reverse,
                clip: self.clip,
                couples_gates: self.couples_gates,
                w: &w[direction * gates * sizes.input..(direction + 1) * gates * sizes.input],
                r: &r[direction * gates * hidden..(direction + 1) * gates * hidden],
                bias: part(slice(3)?, direction, 2 * gates),
                peepholes: part(slice(6)?, direction, 3 * hidden),
            };
            let mut state = State {
                h: part(h.as_deref(), direction, rows).unwrap_or_else(|| vec![0.0; rows]),
                c: part(c.as_deref(), direction, rows).unwrap_or_else(|| vec![0.0; rows]),
            };
            side.run(&x, &mut state, |step, row, values| {
                let at = ((step * directions + direction) * sizes.batch + row) * hidden;
                sequence[at..at + hidden].copy_from_slice(values);
            });
            last[0][direction * rows..(direction + 1) * rows].copy_from_slice(&state.h);
            last[1][direction * rows..(direction + 1) * rows].copy_from_slice(&state.c);
        }
        let Sizes { steps, batch, .. } = sizes;
        let shapes: [Vec<usize>; 2] = match self.batch_first {
            true => {
                sequence = swapped(&sequence, steps * directions, batch, hidden);
                last = last.map(|last| swapped(&last, directions, batch, hidden));
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
            .map(|(shape, values)| Ok(tensor(shape, values)?.cast_to_dt(datum_type)?.into_owned()))
            .collect()
    }
}

impl Recurrent {
    /// The length of each sequence of the batch.
    fn lengths(&self, inputs: &[Arc<Tensor>], sizes: Sizes) -> TractResult<Vec<usize>> {
        let Some(lengths) = self.input(inputs, 4) else {
            return Ok(vec![sizes.steps; sizes.batch]);
        };
        let lengths = lengths.cast_to::<i64>()?;
        let lengths = elements::<i64>(&lengths)?.iter().map(|&length| {
            let fitting = usize::try_from(length)
                .ok()
                .filter(|&length| length <= sizes.steps);
            fitting.ok_or_else(|| {
                BadInput(format!(
                    "a length of {length} of sequences that are {} long",
                    sizes.steps
                ))
                .into()
            })
        });
        lengths.collect()
    }
}

/// The first two of three dimensions the other way round.
fn swapped(values: &[f32], outer: usize, inner: usize, width: usize) -> Vec<f32> {
    let mut swapped = Vec::with_capacity(values.len());
    for i in 0..inner {
        for o in 0..outer {
            let at = (o * inner + i) * width;
            swapped.extend_from_slice(&values[at..at + width]);
        }
    }
    swapped
}

/// What is computed in one direction.
struct Side<'r> {
    cell: Cell,
    activations: &'r [Activation],
    sizes: Sizes,
    lengths: &'r [usize],
    is_reverse: bool,
    clip: f32,
    couples_gates: bool,
    w: &'r [f32],
    r: &'r [f32],
    /// Of the product with the input, then of that with the state.
    bias: Option<Vec<f32>>,
    /// For the input, output and forget gates.
    peepholes: Option<Vec<f32>>,
}

struct State {
    h: Vec<f32>,
    c: Vec<f32>,
}

impl Side<'_> {
    fn run(&self, x: &[f32], state: &mut State, mut give: impl FnMut(usize, usize, &[f32])) {
        let Sizes {
            steps,
            batch,
            input,
            hidden,
        } = self.sizes;
        let gates = self.cell.gates() * hidden;
        // All steps' products with the input at once.
        let mut products = vec![0f32; steps * batch * gates];
        multiply(x, self.w, &mut products, steps * batch, input, gates);
        let mut recurrent = vec![0f32; batch * gates];
        let mut reset = vec![0f32; batch * hidden];
        for turn in 0..steps {
            multiply(&state.h, self.r, &mut recurrent, batch, hidden, gates);
            if self.cell == (Cell::Gru { resets_after: false }) {
                self.reset_state(turn, &products, &recurrent, &state.h, &mut reset);
                // The third gate's product is with the state after the reset.
                let mut third = vec![0f32; batch * hidden];
                multiply(
                    &reset,
                    &self.r[2 * hidden * hidden..],
                    &mut third,
                    batch,
                    hidden,
                    hidden,
                );
                for row in 0..batch {
                    recurrent[row * gates + 2 * hidden..(row + 1) * gates]
                        .copy_from_slice(&third[row * hidden..(row + 1) * hidden]);
                }
            }
            for row in 0..batch {
                let Some(step) = self.step(turn, row) else {
                    continue;
                };
                let x = &products[(step * batch + row) * gates..][..gates];
                let r = &recurrent[row * gates..][..gates];
                let h = &mut state.h[row * hidden..][..hidden];
                let c = &mut state.c[row * hidden..][..hidden];
                match self.cell {
                    Cell::Lstm => self.lstm(x, r, h, c),
                    Cell::Gru { resets_after } => self.gru(x, r, h, resets_after),
                    Cell::Rnn => {
                        for (unit, h) in h.iter_mut().enumerate() {
                            *h = self.activations[0].apply(self.sum(x, r, unit));
                        }
                    }
                }
                give(step, row, h);
            }
        }
        for (row, &length) in self.lengths.iter().enumerate() {
            if length == 0 {
                // As ONNX Runtime has it.
                state.h[row * hidden..][..hidden].fill(0.0);
                state.c[row * hidden..][..hidden].fill(0.0);
            }
        }
    }

    fn clipped(&self, x: f32) -> f32 {
        if self.clip > 0.0 {
            x.clamp(-self.clip, self.clip)
        } else {
            x
        }
    }

    /// The step that a row is at, `None` after its end.
    fn step(&self, turn: usize, row: usize) -> Option<usize> {
        let length = self.lengths[row];
        (turn < length).then(|| if self.is_reverse { length - 1 - turn } else { turn })
    }

    /// A gate's value before its activation.
    fn sum(&self, x: &[f32], r: &[f32], unit: usize) -> f32 {
        let bias = self
            .bias
            .as_ref()
            .map_or(0.0, |bias| bias[unit] + bias[x.len() + unit]);
        x[unit] + r[unit] + bias
    }

    fn lstm(&self, x: &[f32], r: &[f32], h: &mut [f32], c: &mut [f32]) {
        let hidden = h.len();
        let [f, g, last] = [self.activations[0], self.activations[1], self.activations[2]];
        let peephole = |gate: usize, unit: usize, c: f32| {
            let peepholes = self.peepholes.as_ref();
            peepholes.map_or(0.0, |peepholes| peepholes[gate * hidden + unit] * c)
        };
        for unit in 0..hidden {
            let gate = |index: usize| self.sum(x, r, index * hidden + unit);
            let input = f.apply(self.clipped(gate(0) + peephole(0, unit, c[unit])));
            let forget = match self.couples_gates {
                true => 1.0 - input,
                false => f.apply(self.clipped(gate(2) + peephole(2, unit, c[unit]))),
            };
            c[unit] = forget * c[unit] + input * g.apply(self.clipped(gate(3)));
            let output = f.apply(self.clipped(gate(1) + peephole(1, unit, c[unit])));
            h[unit] = output * last.apply(c[unit]);
        }
    }

    fn gru(&self, x: &[f32], r: &[f32], h: &mut [f32], resets_after: bool) {
        let hidden = h.len();
        let [f, g] = [self.activations[0], self.activations[1]];
        for (unit, h) in h.iter_mut().enumerate() {
            let update = f.apply(self.sum(x, r, unit));
            let third = 2 * hidden + unit;
            let candidate = if resets_after {
                let reset = f.apply(self.sum(x, r, hidden + unit));
                let (input_bias, state_bias) = self
                    .bias
                    .as_ref()
                    .map_or((0.0, 0.0), |bias| (bias[third], bias[x.len() + third]));
                g.apply(x[third] + reset * (r[third] + state_bias) + input_bias)
            } else {
                g.apply(self.sum(x, r, third))
            };
            *h = (1.0 - update) * candidate + update * *h;
        }
    }

    /// A GRU's state behind the reset gate, for each row of the batch.
    fn reset_state(&self, turn: usize, products: &[f32], recurrent: &[f32], h: &[f32], reset: &mut [f32]) {
        let hidden = self.sizes.hidden;
        let gates = self.cell.gates() * hidden;
        for row in 0..self.sizes.batch {
            let Some(step) = self.step(turn, row) else {
                continue;
            };
            let x = &products[(step * self.sizes.batch + row) * gates..][..gates];
            let r = &recurrent[row * gates..][..gates];
            for unit in 0..hidden {
                let gate = self.activations[0].apply(self.sum(x, r, hidden + unit));
                reset[row * hidden + unit] = gate * h[row * hidden + unit];
            }
        }
    }
}

/// `a` of `rows` times `depth`, by the transpose of `b`, of `columns` times `depth`.
fn multiply(a: &[f32], b: &[f32], product: &mut [f32], rows: usize, depth: usize, columns: usize) {
    /// Below so many rows the library packs matrices for longer than it multiplies them.
    const FEW_ROWS: usize = 4;
    if depth == 0 {
        product.fill(0.0);
        return;
    }
    if rows < FEW_ROWS {
        for (row, product) in a.chunks_exact(depth).zip(product.chunks_exact_mut(columns)) {
            for (product, column) in product.iter_mut().zip(b.chunks_exact(depth)) {
                *product = dot(row, column);
            }
        }
        return;
    }
    let shapes = (
        ArrayView2::from_shape((rows, depth), &a[..rows * depth]),
        ArrayView2::from_shape((columns, depth), &b[..columns * depth]),
        ArrayViewMut2::from_shape((rows, columns), product),
    );
    if let (Ok(a), Ok(b), Ok(mut product)) = shapes {
        general_mat_mul(1.0, &a, &b.t(), 0.0, &mut product);
    }
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    const LANES: usize = 16;
    let mut sums = [0f32; LANES];
    let (a_lanes, b_lanes) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    let rest: f32 = a_lanes
        .remainder()
        .iter()
        .zip(b_lanes.remainder())
        .map(|(a, b)| a * b)
        .sum();
    for (a, b) in a_lanes.zip(b_lanes) {
        for lane in 0..LANES {
            sums[lane] += a[lane] * b[lane];
        }
    }
    sums.iter().sum::<f32>() + rest
}
