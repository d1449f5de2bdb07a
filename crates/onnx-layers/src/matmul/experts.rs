//! ONNX Runtime's `MoE` and `QMoE` (mixture of experts): a router selects a few experts per token and returns
//! their weighted sum. Tokens are grouped by expert, so that an expert's weights are read once.

use std::sync::Arc;

use onnx_tensor::prelude::*;

use crate::matmul::expert_layers::{Layer, Matrices, Packing};
use onnx_kernels::gather::sort_by;
use onnx_tensor::{
    cancelling::{PART, Pace},
    elements::{elements, tensor},
    faults::{Unsupported, ensure_input},
    node::{Attributes, Node},
    operator::{Compute, Fact, Kernel, kernel},
    size,
};

/// Builds the operator `MoE`.
pub fn experts(node: &Node) -> Result<Box<dyn Compute>> {
    let attributes = Attributes(node);
    let layer = |weights: usize| -> Result<Layer> {
        Ok(Layer {
            weights: attributes.position(weights).context("weights are not given")?,
            bias: attributes.position(weights + 1),
            packing: None,
        })
    };
    let gate = attributes.has_input(6).then(|| layer(6)).transpose()?;
    let is_normalized = attributes.int("normalize_routing_weights", 0) != 0;
    let layers = [layer(2)?, layer(4)?];
    Ok(kernel(Experts::of(attributes, layers, gate, is_normalized)?))
}

/// Builds the operator `QMoE`, which has weights of 4 or 8 bits.
pub fn packed_experts(node: &Node) -> Result<Box<dyn Compute>> {
    let attributes = Attributes(node);
    let kind = attributes.text("quant_type", "int");
    if kind != "int" {
        bail!(Unsupported::Anywhere(format!(
            "the attribute 'quant_type' is {kind:?}, only 'int' is supported"
        )));
    }
    let block = match attributes.int("block_size", 0) {
        0 => None,
        block => Some(
            usize::try_from(block)
                .ok()
                .filter(|&block| block < 1 << 24)
                .context("block_size must be a positive number")?,
        ),
    };
    let usual = attributes.int("expert_weight_bits", 4);
    let layer = |number: usize| -> Result<Layer> {
        let weights = [2, 5, 8][number];
        let bits = attributes.int(&format!("fc{}_expert_weight_bits", number + 1), usual);
        if !matches!(bits, 2 | 4 | 8) {
            bail!(Unsupported::Anywhere(format!(
                "the weights of layer {} (expert_weight_bits) have {bits} bits, expected 2, 4 or 8",
                number + 1
            )));
        }
        Ok(Layer {
            weights: attributes.position(weights).context("weights are not given")?,
            bias: attributes.position(weights + 2),
            packing: Some(Packing {
                bits: bits as usize,
                block,
                scales: attributes
                    .position(weights + 1)
                    .with_context(|| format!("fc{}_scales is not given", number + 1))?,
                zero_points: attributes.position(11 + number),
            }),
        })
    };
    if (15..21).any(|input| attributes.has_input(input)) {
        bail!(Unsupported::Anywhere(
            "scales of activations and of all weights (fc1_global_scale and the inputs after it) are not supported"
                .to_owned()
        ));
    }
    let gate = attributes.has_input(8).then(|| layer(2)).transpose()?;
    // If the weights come from the router's logits, they are always normalized, as in ONNX Runtime.
    let is_normalized = attributes.int("normalize_routing_weights", 0) != 0 || !attributes.has_input(14);
    let layers = [layer(0)?, layer(1)?];
    let mut made = Experts::of(attributes, layers, gate, is_normalized)?;
    made.mixing = attributes.position(14);
    Ok(kernel(made))
}

#[derive(Debug)]
struct Experts {
    /// Number of experts per token.
    chosen: usize,
    /// Whether the weights of a token's experts sum to 1.
    is_normalized: bool,
    function: Function,
    layers: [Layer; 2],
    /// A separate gate layer, which multiplies the activated first layer.
    gate: Option<Layer>,
    /// Input index of separate expert weights, if they are not computed from the router's logits.
    mixing: Option<usize>,
}

impl Experts {
    fn of(
        attributes: Attributes<'_>,
        layers: [Layer; 2],
        gate: Option<Layer>,
        is_normalized: bool,
    ) -> Result<Self> {
        for name in ["use_sparse_mixer", "swiglu_limit_after_activation"] {
            if attributes.int(name, 0) != 0 {
                bail!(Unsupported::Anywhere(format!(
                    "the attribute '{name}' is {}, only 0 is supported",
                    attributes.int(name, 0)
                )));
            }
        }
        let chosen = usize::try_from(attributes.int("k", 1)).ok();
        Ok(Self {
            chosen: chosen
                .filter(|&chosen| chosen > 0)
                .context("k must be a positive number")?,
            is_normalized,
            function: Function::of(attributes, gate.is_some())?,
            layers,
            gate,
            mixing: None,
        })
    }
}

impl Kernel for Experts {
    fn outputs(&self, inputs: &[Fact]) -> Result<Vec<Fact>> {
        let [input, router, ..] = inputs else {
            bail!("expected 4 inputs or more, found {}", inputs.len());
        };
        let mixing = self.mixing.map(|place| &inputs[place]);
        if [Some(input), Some(router), mixing]
            .into_iter()
            .flatten()
            .any(|fact| fact.element_type != ElementType::F32)
        {
            bail!(Unsupported::Here("is supported for FP32 only".to_owned()));
        }
        ensure_input!(
            matches!(input.rank(), 2 | 3) && router.rank() == 2,
            "an input of {} and router_probs of {} dimensions, expected 2 or 3, and 2",
            input.rank(),
            router.rank()
        );
        self.layers
            .iter()
            .chain(&self.gate)
            .try_for_each(|layer| layer.admit(inputs))?;
        Ok(vec![input.with(input.element_type)])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> Result<ShortVec<Tensor>> {
        let shape = inputs[0].shape();
        let width = shape.last().copied().unwrap_or(0);
        let tokens: usize = shape[..shape.len() - 1].iter().product();
        let router = &inputs[1];
        let experts = router.shape()[1];
        let mixing = self.mixing.map_or(router, |place| &inputs[place]);
        ensure_input!(
            router.shape()[0] == tokens && mixing.shape() == router.shape() && self.chosen <= experts,
            "router_probs of {:?} and router_weights of {:?} for {tokens} tokens with {} experts each",
            router.shape(),
            mixing.shape(),
            self.chosen
        );
        let first = self.layers[0].of(inputs, experts, width)?;
        let inner = self.function.width(first.columns)?;
        let second = self.layers[1].of(inputs, experts, inner)?;
        let gate = match &self.gate {
            Some(gate) => Some(gate.of(inputs, experts, width)?),
            None => None,
        };
        ensure_input!(
            second.columns == width && gate.as_ref().is_none_or(|gate| gate.columns == inner),
            "the second layer gives rows of {}, expected {width} as the input has, and a gate rows of {:?}, expected {inner}",
            second.columns,
            gate.as_ref().map(|gate| gate.columns)
        );
        let mut pace = Pace::default();
        let routes = self.routes(elements(router)?, elements(mixing)?, experts, &mut pace)?;
        let given = elements::<f32>(&inputs[0])?;
        let mut made = vec![0.0; given.len()];
        // The number of tokens per block, which limits the size of the buffers.
        let most = (MAX_NUMBERS / first.columns.max(width).max(1)).max(MIN_ROWS);
        size::admit_shape(
            ElementType::F32,
            &[most.min(tokens), first.columns + inner + 2 * width],
        )?;
        for (expert, routes) in routes.iter().enumerate() {
            for routes in routes.chunks(most) {
                let mut rows: Vec<f32> = Vec::with_capacity(routes.len() * width);
                for &(token, _) in routes {
                    pace.append(&given[token * width..][..width], &mut rows)?;
                }
                let layers = [Some(&first), gate.as_ref(), Some(&second)];
                let sums = self.expert(expert, &rows, layers, &mut pace)?;
                for (&(token, weight), sums) in routes.iter().zip(sums.chunks_exact(width.max(1))) {
                    let made = &mut made[token * width..][..width];
                    pace.pairs(sums, made, |sums, made| {
                        let pairs = made.iter_mut().zip(sums);
                        pairs.for_each(|(made, sum)| *made += weight * sum);
                    })?;
                }
            }
        }
        Ok(smallvec![tensor(shape, made)?])
    }
}

/// Maximum number of elements in a buffer, unless it has fewer than [`MIN_ROWS`] rows.
const MAX_NUMBERS: usize = 1 << 22;
const MIN_ROWS: usize = 64;

impl Experts {
    /// Returns the outputs of one expert for the tokens `rows`.
    fn expert(
        &self,
        expert: usize,
        rows: &[f32],
        [first, gate, second]: [Option<&Matrices<'_>>; 3],
        pace: &mut Pace,
    ) -> Result<Vec<f32>> {
        let (Some(first), Some(second)) = (first, second) else {
            bail!("an expert without layers");
        };
        let hidden = first.multiply(expert, rows, pace)?;
        let gate = match gate {
            Some(gate) => Some(gate.multiply(expert, rows, pace)?),
            None => None,
        };
        let hidden = self
            .function
            .applied(hidden, gate.as_deref(), first.columns, pace)?;
        second.multiply(expert, &hidden, pace)
    }

    /// Returns the tokens of each expert, with the expert's weight for each token.
    fn routes(
        &self,
        router: &[f32],
        mixing: &[f32],
        experts: usize,
        pace: &mut Pace,
    ) -> Result<Vec<Vec<(usize, f32)>>> {
        let mut routes = vec![Vec::new(); experts];
        let mut order = Vec::with_capacity(experts);
        let rows = router.chunks_exact(experts.max(1));
        for (token, (logits, mixing)) in rows.zip(mixing.chunks_exact(experts.max(1))).enumerate() {
            pace.spend(16 * experts as u64)?;
            order.clear();
            order.extend(0..experts);
            // If logits are equal, the expert with the highest index comes first, as in ONNX Runtime.
            sort_by(&mut order, |&a, &b| {
                logits[b].total_cmp(&logits[a]).then(b.cmp(&a))
            })?;
            let most = order.first().map_or(0.0, |&expert| logits[expert]);
            let weight = |expert: usize| match self.mixing {
                Some(_) => mixing[expert],
                None => (logits[expert] - most).exp(),
            };
            let counted = if self.is_normalized { self.chosen } else { experts };
            let sum = match (self.is_normalized, self.mixing) {
                (false, Some(_)) => 1.0,
                _ => {
                    let mut sum = 0.0f32;
                    for experts in order[..counted.min(experts)].chunks(PART) {
                        pace.spend(experts.len() as u64)?;
                        sum = experts.iter().fold(sum, |sum, &expert| sum + weight(expert));
                    }
                    sum
                }
            };
            for &expert in order.iter().take(self.chosen) {
                pace.spend(1)?;
                let weight = weight(expert) / sum;
                // Experts with NaN or infinite weights are skipped.
                if weight.is_finite() {
                    routes[expert].push((token, weight));
                }
            }
        }
        Ok(routes)
    }
}

/// The activation between an expert's two layers.
#[derive(Clone, Copy, Debug)]
enum Function {
    /// An element-wise function, multiplied by the gate, if any.
    Each(fn(f32) -> f32),
    SwiGlu {
        layout: Layout,
        alpha: f32,
        beta: f32,
        /// Upper limit of the gate, and limit of the magnitude of the linear part.
        limit: f32,
    },
}

/// Where the linear part of a gate is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    /// The linear part is in a separate layer.
    Apart,
    /// The linear part is interleaved with the gate.
    Interleaved,
    /// The linear part is the second half of the row.
    Halves,
}

impl Function {
    fn of(attributes: Attributes<'_>, has_gate: bool) -> Result<Self> {
        let layout = match attributes.int("swiglu_fusion", 0) {
            0 => Layout::Apart,
            1 => Layout::Interleaved,
            2 => Layout::Halves,
            other => bail!("swiglu_fusion is {other}, expected 0, 1 or 2"),
        };
        let name = attributes.text("activation_type", "relu");
        Ok(match name {
            "relu" => Self::Each(|x| if x < 0.0 { 0.0 } else { x }),
            "gelu" => Self::Each(gelu),
            "silu" => Self::Each(|x| x * sigmoid(x)),
            "identity" => Self::Each(|x| x),
            "swiglu" => {
                ensure!(
                    has_gate == (layout == Layout::Apart),
                    "the activation_type swiglu needs the input fc3_experts_weights or a swiglu_fusion, and not both"
                );
                Self::SwiGlu {
                    layout,
                    alpha: attributes.float("activation_alpha", 1.0),
                    beta: attributes.float("activation_beta", 0.0),
                    limit: attributes.float("swiglu_limit", f32::INFINITY),
                }
            }
            other => bail!(Unsupported::Anywhere(format!(
                "the activation_type is {other:?}, expected relu, gelu, silu, swiglu or identity"
            ))),
        })
    }

    /// Returns the width of the activation's result for rows of `columns` elements.
    fn width(self, columns: usize) -> Result<usize> {
        match self {
            Self::SwiGlu {
                layout: Layout::Interleaved | Layout::Halves,
                ..
            } => {
                ensure_input!(
                    columns.is_multiple_of(2),
                    "{columns} columns for pairs of numbers"
                );
                Ok(columns / 2)
            }
            _ => Ok(columns),
        }
    }

    /// Applies the activation to rows of `columns` elements.
    fn applied(
        self,
        mut hidden: Vec<f32>,
        gate: Option<&[f32]>,
        columns: usize,
        pace: &mut Pace,
    ) -> Result<Vec<f32>> {
        match self {
            Self::Each(function) => {
                pace.over(&mut hidden, |hidden| {
                    hidden.iter_mut().for_each(|x| *x = function(*x));
                })?;
                if let Some(gate) = gate {
                    pace.pairs(gate, &mut hidden, |gate, hidden| {
                        hidden.iter_mut().zip(gate).for_each(|(x, gate)| *x *= gate);
                    })?;
                }
                Ok(hidden)
            }
            Self::SwiGlu {
                layout,
                alpha,
                beta,
                limit,
            } => {
                let pair = |gate: f32, linear: f32| {
                    // Uses comparisons instead of `min` and `max`, so that NaN stays NaN.
                    let gate = if gate > limit { limit } else { gate };
                    let linear = if linear > limit { limit } else { linear };
                    let linear = if linear < -limit { -limit } else { linear };
                    gate * sigmoid(alpha * gate) * (linear + beta)
                };
                match layout {
                    Layout::Apart => {
                        pace.pairs(gate.unwrap_or(&[]), &mut hidden, |linear, hidden| {
                            let pairs = hidden.iter_mut().zip(linear);
                            pairs.for_each(|(x, &linear)| *x = pair(*x, linear));
                        })?;
                        Ok(hidden)
                    }
                    Layout::Interleaved => {
                        let (pairs, _) = hidden.as_chunks::<2>();
                        pace.map(pairs, |&[gate, linear]| pair(gate, linear))
                    }
                    Layout::Halves => {
                        let rows = hidden.chunks_exact(columns.max(1));
                        pace.collect(rows.flat_map(|row| {
                            let (gates, linear) = row.split_at(columns / 2);
                            let pairs = gates.iter().zip(linear);
                            pairs.map(|(&gate, &linear)| pair(gate, linear))
                        }))
                    }
                }
            }
        }
    }
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// Computes GELU with the tanh approximation.
fn gelu(x: f32) -> f32 {
    let inner = std::f32::consts::FRAC_2_SQRT_PI * std::f32::consts::FRAC_1_SQRT_2;
    0.5 * x * (1.0 + (inner * (x + 0.044_715 * x * x * x)).tanh())
}
