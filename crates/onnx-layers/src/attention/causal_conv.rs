//! ONNX Runtime's `CausalConvWithState`: a causal depthwise convolution over tokens. The state contains the
//! last tokens of the previous step.

use std::sync::Arc;

use onnx_tensor::prelude::*;

use onnx_tensor::{
    cancelling::Pace,
    elements::elements,
    faults::{Unsupported, ensure_input},
    node::{Attributes, Node},
    operator::{Compute, Fact, Kernel, kernel},
    shapes::zeros,
};

/// Builds the operator `CausalConvWithState`.
pub fn causal_conv(node: &Node) -> Result<Box<dyn Compute>> {
    let attributes = Attributes(node);
    for (name, usual) in [
        ("ndim", 1),
        ("state_window", 0),
        ("state_update_capacity", 0),
        ("state_channels_last", -1),
        ("state_length", 0),
        ("input_channel_offset", 0),
        ("input_channels", 0),
    ] {
        let found = attributes.int(name, usual);
        if found != usual {
            bail!(Unsupported::Anywhere(format!(
                "the attribute '{name}' is {found}, only {usual} is supported"
            )));
        }
    }
    let dilation = usize::try_from(attributes.int("dilation", 1)).ok();
    Ok(kernel(CausalConv {
        dilation: dilation
            .filter(|dilation| (1..1 << 24).contains(dilation))
            .context("dilation must be a positive number")?,
        has_silu: match attributes.text("activation", "none") {
            "none" => false,
            "silu" | "swish" => true,
            other => bail!("the activation is {other:?}, expected 'none', 'silu' or 'swish'"),
        },
        is_channels_last: attributes.int("channels_last", 0) != 0,
        bias: attributes.position(2),
        past: attributes.position(3),
    }))
}

#[derive(Debug)]
struct CausalConv {
    dilation: usize,
    has_silu: bool,
    /// Whether the axis of the tokens precedes the channels, which may then have several axes.
    is_channels_last: bool,
    bias: Option<usize>,
    past: Option<usize>,
}

impl CausalConv {
    /// Returns the axis of the tokens.
    fn tokens(&self) -> usize {
        if self.is_channels_last { 1 } else { 2 }
    }

    /// Returns the number of tokens that the state keeps from the previous step.
    fn kept(&self, taps: usize) -> usize {
        (taps - 1).saturating_mul(self.dilation)
    }
}

impl Kernel for CausalConv {
    fn outputs(&self, inputs: &[Fact]) -> Result<Vec<Fact>> {
        let [input, weights, ..] = inputs else {
            bail!("expected 2 inputs or more, found {}", inputs.len());
        };
        if inputs.iter().any(|fact| fact.element_type != ElementType::F32) {
            bail!(Unsupported::Here("is supported for FP32 only".to_owned()));
        }
        ensure_input!(
            (input.rank() == 3 || (self.is_channels_last && input.rank() > 3))
                && weights.rank() == 3
                && self.bias.is_none_or(|place| inputs[place].rank() == 1)
                && self.past.is_none_or(|place| inputs[place].rank() == input.rank()),
            "needs an input and weights of 3 dimensions, a bias of 1, and a past_state of as many as the input"
        );
        let mut state = input.with(ElementType::F32);
        state.shape[self.tokens()] = match weights.shape[2].to_usize() {
            Some(taps) => {
                ensure_input!(taps > 0, "a kernel without taps");
                self.kept(taps).to_dim()
            }
            None => Dim::unknown(),
        };
        Ok(vec![input.with(ElementType::F32), state])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> Result<ShortVec<Tensor>> {
        let (shape, weights) = (inputs[0].shape(), &inputs[1]);
        let tokens = shape[self.tokens()];
        let channels: usize = match self.is_channels_last {
            true => shape[2..].iter().product(),
            false => shape[1],
        };
        let taps = weights.shape()[2];
        let bias = match self.bias {
            Some(place) => Some(elements::<f32>(&inputs[place])?),
            None => None,
        };
        let kept = self.kept(taps);
        let mut state_shape = shape.to_vec();
        state_shape[self.tokens()] = kept;
        let past = self.past.map(|place| &inputs[place]);
        check_shapes(shape, weights, bias, past, channels, &state_shape)?;
        let mut made = zeros(ElementType::F32, shape)?;
        let mut state = zeros(ElementType::F32, &state_shape)?;
        let (weights, given) = (elements::<f32>(weights)?, elements::<f32>(&inputs[0])?);
        let zeros = match past {
            Some(_) => None,
            None => Some(zeros(ElementType::F32, &state_shape)?),
        };
        let past = elements::<f32>(
            past.map_or(zeros.as_ref(), |past| Some(past))
                .context("no state")?,
        )?;
        let mut run = Run {
            conv: self,
            taps,
            kept,
            tokens,
            pace: Pace::default(),
        };
        let (y, state_made) = (made.as_slice_mut::<f32>()?, state.as_slice_mut::<f32>()?);
        // With channels last, each token of a row has all channels. Otherwise, each channel is a separate
        // row, whose tokens have one element.
        let (row, rows) = match self.is_channels_last {
            true => (channels, shape[0]),
            false => (1, shape[0] * channels),
        };
        for index in 0..rows {
            let (size, state_size) = (tokens * row, kept * row);
            let steps = Steps {
                before: &past[index * state_size..][..state_size],
                now: &given[index * size..][..size],
                row,
            };
            let channel = match self.is_channels_last {
                true => 0,
                false => index % channels,
            };
            let weights = &weights[channel * taps..][..row * taps];
            let bias = bias.map(|bias| &bias[channel..][..row]);
            run.line(&steps, weights, bias, &mut y[index * size..][..size])?;
            steps.last(&mut state_made[index * state_size..][..state_size]);
        }
        Ok(smallvec![made, state])
    }
}

/// Checks the weights, the bias and the past state against the number of channels and the shape of the state.
fn check_shapes(
    shape: &[usize],
    weights: &Tensor,
    bias: Option<&[f32]>,
    past: Option<&Arc<Tensor>>,
    channels: usize,
    state_shape: &[usize],
) -> Result<()> {
    ensure_input!(
        weights.shape()[..2] == [channels, 1]
            && bias.is_none_or(|bias| bias.len() == channels)
            && past.is_none_or(|past| past.shape() == state_shape),
        "weights of {:?}, a bias of {:?} and a past_state of {:?} for an input of {shape:?}, expected a state of {state_shape:?}",
        weights.shape(),
        bias.map(<[f32]>::len),
        past.map(|past| past.shape())
    );
    Ok(())
}

/// The tokens of one row (`now`), preceded by the kept tokens of the previous step (`before`). Each token has
/// `row` elements.
struct Steps<'s> {
    before: &'s [f32],
    now: &'s [f32],
    row: usize,
}

impl Steps<'_> {
    /// Returns the channels of the token at `index`, counted from the first token of the previous step's
    /// state.
    fn token(&self, index: usize) -> &[f32] {
        let at = index * self.row;
        match at.checked_sub(self.before.len()) {
            None => &self.before[at..at + self.row],
            Some(at) => &self.now[at..at + self.row],
        }
    }

    /// Copies the last tokens into `state`, for the next step.
    fn last(&self, state: &mut [f32]) {
        let new = self.now.len().min(state.len());
        let (old, last) = state.split_at_mut(state.len() - new);
        old.copy_from_slice(&self.before[self.before.len() - old.len()..]);
        last.copy_from_slice(&self.now[self.now.len() - new..]);
    }
}

struct Run<'c> {
    conv: &'c CausalConv,
    taps: usize,
    kept: usize,
    tokens: usize,
    pace: Pace,
}

impl Run<'_> {
    /// Computes all tokens of `y`. Each element is the weighted sum of its taps.
    fn line(
        &mut self,
        steps: &Steps<'_>,
        weights: &[f32],
        bias: Option<&[f32]>,
        y: &mut [f32],
    ) -> Result<()> {
        debug_assert_eq!(steps.before.len(), self.kept * steps.row);
        if y.is_empty() {
            return Ok(());
        }
        for (token, y) in y.chunks_exact_mut(steps.row).enumerate().take(self.tokens) {
            self.pace.spend((self.taps * steps.row) as u64)?;
            if let Some(bias) = bias {
                y.copy_from_slice(bias);
            }
            for tap in 0..self.taps {
                let from = steps.token(token + tap * self.conv.dilation);
                let weights = weights.iter().skip(tap).step_by(self.taps);
                for ((y, from), weight) in y.iter_mut().zip(from).zip(weights) {
                    *y += weight * from;
                }
            }
            if self.conv.has_silu {
                y.iter_mut().for_each(|y| *y /= 1.0 + (-*y).exp());
            }
        }
        Ok(())
    }
}
