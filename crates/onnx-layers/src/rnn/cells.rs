//! Runs all steps of one direction of a recurrent layer.
//!
//! Gates are computed for a whole row of units at a time, so that the loops vectorize.

use onnx_gemm::gemm_nt;
use onnx_tensor::prelude::*;

use crate::{matmul::integer_factors::IntegerFactors, rnn::gate_functions::Activation};
use onnx_tensor::{cancelling::Pace, faults::BadInput, size};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cell {
    Lstm,
    Gru {
        /// Whether the reset gate is applied after the product with the state (`linear_before_reset`).
        resets_after: bool,
    },
    Rnn,
}

impl Cell {
    pub(crate) fn gates(self) -> usize {
        match self {
            Self::Lstm => 4,
            Self::Gru { .. } => 3,
            Self::Rnn => 1,
        }
    }

    /// Returns the names of the default activation functions.
    pub(crate) fn activations(self) -> &'static [&'static str] {
        match self {
            Self::Lstm => &["Sigmoid", "Tanh", "Tanh"],
            Self::Gru { .. } => &["Sigmoid", "Tanh"],
            Self::Rnn => &["Tanh"],
        }
    }
}

/// The sizes of a layer in one run.
#[derive(Clone, Copy)]
pub(crate) struct Sizes {
    pub(crate) steps: usize,
    pub(crate) batch: usize,
    pub(crate) input: usize,
    pub(crate) hidden: usize,
}

impl Sizes {
    /// Refuses the run if `width` floats per step and sequence take too much memory.
    pub(crate) fn admit(self, width: usize) -> Result<()> {
        let factors = [self.batch, width, size_of::<f32>()];
        // The state is an output even if there are no steps, so the memory for at least one step is counted.
        let bytes = factors.iter().fold(self.steps.max(1) as u64, |bytes, &factor| {
            bytes.saturating_mul(factor as u64)
        });
        if bytes > size::MAX_BYTES {
            bail!(BadInput(format!(
                "the gates of {} steps of {} sequences take {bytes} bytes, the limit is {}",
                self.steps,
                self.batch,
                size::MAX_BYTES
            )));
        }
        size::admit_now(bytes)
    }
}

/// Number of multiplications between two checks for cancellation.
const PART: usize = 1 << 26;

/// The parameters of one direction of a layer.
pub(crate) struct Side<'r> {
    pub(crate) cell: Cell,
    pub(crate) activations: &'r [Activation],
    pub(crate) sizes: Sizes,
    pub(crate) lengths: &'r [usize],
    pub(crate) is_reverse: bool,
    /// `clip`: the limit on the input of activations; 0 means no limit.
    pub(crate) clip: f32,
    pub(crate) couples_gates: bool,
    pub(crate) w: Factors<'r>,
    pub(crate) r: Factors<'r>,
    /// The input biases of all gates, followed by the recurrent biases.
    pub(crate) bias: Option<Vec<f32>>,
    /// Peephole weights of the input, output and forget gates.
    pub(crate) peepholes: Option<Vec<f32>>,
}

/// The weights of one direction, which have one row per unit of each gate.
#[derive(Clone, Copy)]
pub(crate) enum Factors<'r> {
    Floats(&'r [f32]),
    /// 8-bit weights. The inputs are quantized to 8 bits before the product, with one scale for all rows.
    Integers(&'r IntegerFactors),
}

impl Factors<'_> {
    /// Multiplies `rows` rows of length `depth` by `columns` units, starting after the first `skipped` units.
    ///
    /// # Errors
    /// Fails if the request is cancelled.
    fn multiply(
        self,
        a: &[f32],
        product: &mut [f32],
        skipped: usize,
        [rows, depth, columns]: [usize; 3],
        pace: &mut Pace,
    ) -> Result<()> {
        let (a, product) = (&a[..rows * depth], &mut product[..rows * columns]);
        match self {
            Self::Floats(b) => {
                let b = &b[skipped * depth..][..columns * depth];
                gemm_nt(a, b, [rows, depth, columns], product, pace)
            }
            Self::Integers(b) => b.multiply(a, product, pace),
        }
    }

    fn are_integers(self) -> bool {
        matches!(self, Self::Integers(_))
    }
}

/// The state that passes from step to step, for each row of the batch.
pub(crate) struct State {
    pub(crate) h: Vec<f32>,
    pub(crate) c: Vec<f32>,
}

impl Side<'_> {
    /// Runs all steps, and calls `give` with the step, the row and the state after each step of each row.
    ///
    /// # Errors
    /// Returns [`Cancelled`](onnx_tensor::cancelling::Cancelled).
    pub(crate) fn run(
        &self,
        x: &[f32],
        state: &mut State,
        mut give: impl FnMut(usize, usize, &[f32]),
    ) -> Result<()> {
        let Sizes { batch, hidden, .. } = self.sizes;
        let gates = self.cell.gates() * hidden;
        let longest = self.lengths.iter().copied().max().unwrap_or(0);
        let shortest = self.lengths.iter().copied().min().unwrap_or(0);
        let mut pace = Pace::default();
        let bias = self.input_bias();
        // With integer products, ONNX Runtime adds the bias last, which changes the rounding. Otherwise, the
        // bias is added first, which is faster.
        let is_last = self.w.are_integers();
        let first_bias = bias.as_deref().filter(|_| !is_last);
        let last_bias = bias.as_deref().filter(|_| is_last);
        let products = self.input_products(x, longest, first_bias, &mut pace)?;
        // If the reset gate is applied before the product, the recurrent product of the third gate is
        // computed after the reset gate.
        let is_late = self.cell == (Cell::Gru { resets_after: false });
        let early = if is_late { 2 * hidden } else { gates };
        let mut recurrent = vec![0f32; batch * early];
        let mut reset = vec![0f32; if is_late { batch * hidden } else { 0 }];
        let mut third = vec![0f32; if is_late { batch * hidden } else { 0 }];
        let mut seen;
        for turn in 0..longest {
            pace.spend((batch * hidden * gates) as u64 / 8 + 1)?;
            let mut h = &state.h;
            // ONNX Runtime quantizes all rows together, with zeros for sequences that have ended.
            if is_last && turn > shortest {
                seen = self.without_ended(h, turn, &mut pace)?;
                h = &seen;
            }
            self.r
                .multiply(h, &mut recurrent, 0, [batch, hidden, early], &mut pace)?;
            if is_late {
                self.reset(turn, &products, &mut recurrent, &state.h, &mut reset, &mut pace)?;
                self.r
                    .multiply(&reset, &mut third, early, [batch, hidden, hidden], &mut pace)?;
            }
            for row in self.rows(turn) {
                pace.spend(4 * gates as u64)?;
                let x = &products[(row.step * batch + row.index) * gates..][..gates];
                let r = &mut recurrent[row.index * early..][..early];
                let h = &mut state.h[row.index * hidden..][..hidden];
                match self.cell {
                    Cell::Lstm => {
                        add(r, x);
                        if let Some(bias) = last_bias {
                            add(r, bias);
                        }
                        self.lstm(r, h, &mut state.c[row.index * hidden..][..hidden]);
                    }
                    Cell::Gru { resets_after: true } => self.gru_resetting_after(x, r, h),
                    Cell::Gru { resets_after: false } => {
                        self.gru(x, r, &mut third[row.index * hidden..][..hidden], h);
                    }
                    Cell::Rnn => {
                        add(r, x);
                        self.activations[0].apply(r);
                        h.copy_from_slice(r);
                    }
                }
                give(row.step, row.index, h);
            }
        }
        self.clear_empty(state, &mut pace)
    }

    /// Returns a copy of the states `h` with zeros for sequences that have ended before `turn`.
    fn without_ended(&self, h: &[f32], turn: usize, pace: &mut Pace) -> Result<Vec<f32>> {
        let hidden = self.sizes.hidden;
        let mut seen = pace.copy(h)?;
        for (row, &length) in seen.chunks_exact_mut(hidden.max(1)).zip(self.lengths) {
            pace.spend(hidden as u64)?;
            if turn > length {
                row.fill(0.0);
            }
        }
        Ok(seen)
    }

    /// Computes the reset gates of a GRU from the products of its first two gates, and applies them to the
    /// states `h`.
    fn reset(
        &self,
        turn: usize,
        products: &[f32],
        recurrent: &mut [f32],
        h: &[f32],
        reset: &mut [f32],
        pace: &mut Pace,
    ) -> Result<()> {
        let Sizes { batch, hidden, .. } = self.sizes;
        let (gates, early) = (self.cell.gates() * hidden, 2 * hidden);
        for row in self.rows(turn) {
            pace.spend(4 * hidden as u64)?;
            let x = &products[(row.step * batch + row.index) * gates..][hidden..2 * hidden];
            let r = &mut recurrent[row.index * early..][hidden..2 * hidden];
            add(r, x);
            self.activations[0].apply(r);
            let h = h[row.index * hidden..].iter();
            let reset = &mut reset[row.index * hidden..][..hidden];
            for ((reset, r), h) in reset.iter_mut().zip(&*r).zip(h) {
                *reset = r * h;
            }
        }
        Ok(())
    }

    /// Sets the states of empty sequences to zero, as ONNX Runtime does.
    fn clear_empty(&self, state: &mut State, pace: &mut Pace) -> Result<()> {
        let hidden = self.sizes.hidden;
        for (row, &length) in self.lengths.iter().enumerate() {
            pace.spend(1)?;
            if length == 0 {
                state.h[row * hidden..][..hidden].fill(0.0);
                state.c[row * hidden..][..hidden].fill(0.0);
            }
        }
        Ok(())
    }

    /// Multiplies the inputs of all steps by the input weights, and adds `bias`. Steps after the `longest`
    /// sequence are ignored, so that their values do not affect the 8-bit scale.
    fn input_products(
        &self,
        x: &[f32],
        longest: usize,
        bias: Option<&[f32]>,
        pace: &mut Pace,
    ) -> Result<Vec<f32>> {
        let Sizes {
            steps,
            batch,
            input,
            hidden,
        } = self.sizes;
        let gates = self.cell.gates() * hidden;
        let mut products = vec![0f32; steps * batch * gates];
        let counted = longest * batch;
        // Integer products have one scale for all rows, so all rows are multiplied together.
        let together = match self.w.are_integers() {
            true => counted,
            false => PART / (input * gates).max(1),
        };
        let together = together.max(16);
        for first in (0..counted).step_by(together) {
            let rows = together.min(counted - first);
            pace.spend((rows * input * gates) as u64 / 8 + 1)?;
            let products = &mut products[first * gates..][..rows * gates];
            self.w
                .multiply(&x[first * input..], products, 0, [rows, input, gates], pace)?;
        }
        if let Some(bias) = bias {
            for row in products.chunks_exact_mut(gates.max(1)) {
                pace.spend(gates as u64)?;
                add(row, bias);
            }
        }
        Ok(products)
    }

    /// Returns the sum of the biases that are added to the input products. The sum omits the biases that the
    /// reset gate is applied to.
    fn input_bias(&self) -> Option<Vec<f32>> {
        let bias = self.bias.as_ref()?;
        let (of_input, of_state) = bias.split_at(bias.len() / 2);
        let mut sum = of_input.to_vec();
        let added = match self.cell {
            // The reset gate also applies to the recurrent bias of the third gate.
            Cell::Gru { resets_after: true } => 2 * self.sizes.hidden,
            _ => sum.len(),
        };
        add(&mut sum[..added], &of_state[..added]);
        Some(sum)
    }

    /// Returns the rows of the batch whose sequences have not ended after `turn` steps, with their current
    /// step.
    fn rows(&self, turn: usize) -> impl Iterator<Item = Row> {
        let rows = self.lengths.iter().enumerate();
        rows.filter(move |(_, length)| turn < **length)
            .map(move |(index, &length)| Row {
                index,
                step: if self.is_reverse { length - 1 - turn } else { turn },
            })
    }

    fn clip(&self, values: &mut [f32]) {
        if self.clip > 0.0 {
            for value in values {
                *value = value.clamp(-self.clip, self.clip);
            }
        }
    }

    /// Adds the peephole term of a gate to `values`, if the layer has peepholes.
    fn peep(&self, gate: usize, values: &mut [f32], c: &[f32]) {
        let Some(peepholes) = &self.peepholes else {
            return;
        };
        let peepholes = &peepholes[gate * c.len()..];
        for ((value, peephole), c) in values.iter_mut().zip(peepholes).zip(c) {
            *value += peephole * c;
        }
    }

    /// Computes one LSTM step. `r` contains the gates' products and biases and is overwritten.
    fn lstm(&self, r: &mut [f32], h: &mut [f32], c: &mut [f32]) {
        let [f, g, last] = [self.activations[0], self.activations[1], self.activations[2]];
        let (input, rest) = r.split_at_mut(h.len());
        let (output, rest) = rest.split_at_mut(h.len());
        let (forget, candidate) = rest.split_at_mut(h.len());
        self.peep(0, input, c);
        self.clip(input);
        f.apply(input);
        if self.couples_gates {
            for (forget, input) in forget.iter_mut().zip(&*input) {
                *forget = 1.0 - input;
            }
        } else {
            self.peep(2, forget, c);
            self.clip(forget);
            f.apply(forget);
        }
        self.clip(candidate);
        g.apply(candidate);
        for (((c, forget), input), candidate) in c.iter_mut().zip(&*forget).zip(&*input).zip(&*candidate) {
            *c = forget * *c + input * candidate;
        }
        self.peep(1, output, c);
        self.clip(output);
        f.apply(output);
        h.copy_from_slice(c);
        last.apply(h);
        for (h, output) in h.iter_mut().zip(&*output) {
            *h *= output;
        }
    }

    /// Computes one GRU step with `linear_before_reset`. `r` contains the recurrent products and is
    /// overwritten.
    fn gru_resetting_after(&self, x: &[f32], r: &mut [f32], h: &mut [f32]) {
        let hidden = h.len();
        let [f, g] = [self.activations[0], self.activations[1]];
        let (gates, candidate) = r.split_at_mut(2 * hidden);
        add(gates, &x[..2 * hidden]);
        f.apply(gates);
        let (update, reset) = gates.split_at(hidden);
        if let Some(bias) = &self.bias {
            add(candidate, &bias[x.len() + 2 * hidden..]);
        }
        for ((candidate, reset), x) in candidate.iter_mut().zip(reset).zip(&x[2 * hidden..]) {
            *candidate = x + reset * *candidate;
        }
        g.apply(candidate);
        mix(h, update, candidate);
    }

    /// Computes the second half of a GRU step. `third` contains the recurrent product of the candidate,
    /// computed after the reset.
    fn gru(&self, x: &[f32], r: &mut [f32], third: &mut [f32], h: &mut [f32]) {
        let hidden = h.len();
        let update = &mut r[..hidden];
        add(update, x);
        self.activations[0].apply(update);
        add(third, &x[2 * hidden..]);
        self.activations[1].apply(third);
        mix(h, update, third);
    }
}

/// A row of the batch at one step.
struct Row {
    index: usize,
    step: usize,
}

/// Adds `from` to `to` element-wise.
fn add(to: &mut [f32], from: &[f32]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to += from;
    }
}

/// Computes the next GRU state: `update * h + (1 - update) * candidate`.
fn mix(h: &mut [f32], update: &[f32], candidate: &[f32]) {
    for ((h, update), candidate) in h.iter_mut().zip(update).zip(candidate) {
        *h = (1.0 - update) * candidate + update * *h;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onnx_tensor::{cancelling::Cancelled, testing::while_cancelled};

    /// Returns sums of a few powers of two, so that sums and products are exact.
    fn numbers(count: usize, seed: usize) -> Vec<f32> {
        (0..count)
            .map(|index| ((index * 7 + seed) % 11) as f32 / 4.0 - 1.25)
            .collect()
    }

    #[test]
    fn products_with_the_input_are_made_in_parts_and_end_with_their_request() {
        // With these sizes, the product is computed in parts of sixteen rows.
        let sizes = Sizes {
            steps: 19,
            batch: 1,
            input: 1 << 16,
            hidden: 64,
        };
        let x = numbers(sizes.steps * sizes.input, 3);
        // Each unit reads one input element, with a weight of 2.
        let mut w = vec![0.0; sizes.hidden * sizes.input];
        for (unit, row) in w.chunks_exact_mut(sizes.input).enumerate() {
            row[unit * 1000] = 2.0;
        }
        let side = Side {
            cell: Cell::Rnn,
            activations: &[Activation::Relu],
            sizes,
            lengths: &[sizes.steps],
            is_reverse: false,
            clip: 0.0,
            couples_gates: false,
            w: Factors::Floats(&w),
            r: Factors::Floats(&vec![0.0; sizes.hidden * sizes.hidden]),
            bias: None,
            peepholes: None,
        };
        let state = || State {
            h: vec![0.0; sizes.hidden],
            c: vec![],
        };
        let mut seen = 0;
        let outcome = side.run(&x, &mut state(), |step, _, values| {
            for (unit, &value) in values.iter().enumerate() {
                let expected = 2.0 * x[step * sizes.input + unit * 1000];
                assert_eq!(value, expected.max(0.0), "step {step}, unit {unit}");
            }
            seen += 1;
        });
        assert!(outcome.is_ok());
        assert_eq!(seen, sizes.steps);
        let error = while_cancelled(|| side.run(&x, &mut state(), |_, _, _| panic!("a step was made")));
        assert!(error.is_err_and(|error| error.is::<Cancelled>()));
    }

    #[test]
    fn gates_of_long_sequences_are_refused_before_they_are_made() {
        let sizes = |steps| Sizes {
            steps,
            batch: 1,
            input: 1,
            hidden: 64,
        };
        assert!(sizes(1 << 22).admit(256).is_ok());
        let error = sizes(1 << 24).admit(256).unwrap_err();
        assert!(error.downcast_ref::<BadInput>().is_some(), "{error}");
        assert!(sizes(usize::MAX).admit(usize::MAX).is_err());
        // The state of each sequence is an output even if there are no steps.
        let sequences = Sizes {
            batch: 1 << 30,
            ..sizes(0)
        };
        assert!(sequences.admit(256).is_err());
    }
}
