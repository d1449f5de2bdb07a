//! The operators `NegativeLogLikelihoodLoss` and `SoftmaxCrossEntropyLoss`.

use std::sync::Arc;

use onnx_tensor::prelude::*;

use onnx_tensor::{
    cancelling::{PART, Pace},
    elements::{elements, tensor},
    faults::{Unsupported, ensure_input},
    integers::integers,
    node::{Attributes, Node},
    operator::{Compute, Fact, Kernel, kernel},
    shapes::zeros,
};

/// Builds the operator `NegativeLogLikelihoodLoss` or `SoftmaxCrossEntropyLoss`.
pub fn loss(node: &Node) -> Result<Box<dyn Compute>> {
    let attributes = Attributes(node);
    let is_of_scores = node.op_type == "SoftmaxCrossEntropyLoss";
    Ok(kernel(Loss {
        is_of_scores,
        gives_probabilities: is_of_scores && attributes.has_output(1),
        ignored: attributes.get("ignore_index").map(|ignored| ignored.i),
        reduction: match attributes.text("reduction", "mean") {
            "none" => Reduction::None,
            "sum" => Reduction::Sum,
            "mean" => Reduction::Mean,
            other => bail!("the reduction is {other:?}, expected 'none', 'sum' or 'mean'"),
        },
    }))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reduction {
    None,
    Sum,
    Mean,
}

#[derive(Debug)]
struct Loss {
    /// Whether the input contains scores rather than log probabilities.
    is_of_scores: bool,
    /// Whether the log probabilities are a second output.
    gives_probabilities: bool,
    /// `ignore_index`: targets with this value do not contribute to the loss.
    ignored: Option<i64>,
    reduction: Reduction,
}

impl Kernel for Loss {
    fn outputs(&self, inputs: &[Fact]) -> Result<Vec<Fact>> {
        let [input, targets, weights @ ..] = inputs else {
            bail!("expected 2 inputs or more, found {}", inputs.len());
        };
        let weights = weights.first();
        if let Some(other) = [Some(input), weights]
            .into_iter()
            .flatten()
            .find(|fact| fact.element_type != ElementType::F32)
        {
            bail!(Unsupported::but_for_fp64(
                other.element_type,
                "is supported for FP32 only"
            ));
        }
        ensure_input!(
            input.rank() >= 2
                && targets.rank() == input.rank() - 1
                && weights.is_none_or(|weights| weights.rank() == 1),
            "an input of {} and targets of {} dimensions, expected at least 2, and one less",
            input.rank(),
            targets.rank()
        );
        let shape = match self.reduction {
            Reduction::None => targets.shape.clone(),
            _ => smallvec![],
        };
        let mut facts = vec![Fact::new(ElementType::F32, shape)];
        if self.gives_probabilities {
            facts.push(input.with(ElementType::F32));
        }
        Ok(facts)
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> Result<ShortVec<Tensor>> {
        let (shape, targets) = (inputs[0].shape(), &inputs[1]);
        let classes = shape[1];
        let weights = match inputs.get(2) {
            Some(weights) => Some(elements::<f32>(weights)?),
            None => None,
        };
        ensure_input!(
            targets.shape()[0] == shape[0]
                && targets.shape()[1..] == shape[2..]
                && weights.is_none_or(|weights| weights.len() == classes),
            "targets of {:?} and weights of {:?} for an input of {shape:?}",
            targets.shape(),
            weights.map(<[f32]>::len)
        );
        let inner: usize = shape[2..].iter().product();
        let mut pace = Pace::default();
        let made = match self.is_of_scores {
            true => Some(self.log_softmax(&inputs[0], [classes, inner], &mut pace)?),
            false => None,
        };
        let given = elements::<f32>(made.as_ref().unwrap_or(&inputs[0]))?;
        let targets = integers(targets)?;
        let mut losses = Vec::with_capacity(targets.len());
        let (mut sum, mut count) = (0.0f64, 0.0f64);
        for (index, &target) in targets.iter().enumerate() {
            pace.spend(4)?;
            if self.ignored == Some(target) {
                losses.push(0.0);
                continue;
            }
            let class = usize::try_from(target).ok().filter(|&class| class < classes);
            ensure_input!(
                class.is_some(),
                "a target is {target}, expected one of {classes} classes"
            );
            let class = class.unwrap_or(0);
            let at = (index / inner * classes + class) * inner + index % inner;
            let weight = weights.map_or(1.0, |weights| weights[class]);
            let loss = -given[at] * weight;
            losses.push(loss);
            sum += f64::from(loss);
            count += f64::from(weight);
        }
        let loss = match self.reduction {
            Reduction::None => tensor(inputs[1].shape(), losses)?,
            Reduction::Sum => tensor(&[], vec![sum as f32])?,
            // The mean over no targets is 0, as in ONNX Runtime.
            Reduction::Mean if targets.is_empty() => tensor(&[], vec![0.0f32])?,
            Reduction::Mean => tensor(&[], vec![(sum / count) as f32])?,
        };
        let mut outputs = smallvec![loss];
        if self.gives_probabilities {
            outputs.extend(made);
        }
        Ok(outputs)
    }
}

impl Loss {
    /// Computes the log-softmax along axis 1.
    fn log_softmax(&self, input: &Tensor, [classes, inner]: [usize; 2], pace: &mut Pace) -> Result<Tensor> {
        let mut made = zeros(ElementType::F32, input.shape())?;
        let given = elements::<f32>(input)?;
        let size = classes * inner;
        if size == 0 {
            return Ok(made);
        }
        let parts = made.as_slice_mut::<f32>()?.chunks_exact_mut(size);
        for (to, from) in parts.zip(given.chunks_exact(size)) {
            for at in 0..inner {
                let mut most = f32::NEG_INFINITY;
                for from in from.chunks(inner * PART) {
                    pace.spend((from.len() / inner) as u64)?;
                    most = from[at..].iter().step_by(inner).copied().fold(most, f32::max);
                }
                let mut sum = 0.0f32;
                for from in from.chunks(inner * PART) {
                    pace.spend(6 * (from.len() / inner) as u64)?;
                    let scores = from[at..].iter().step_by(inner);
                    sum = scores.fold(sum, |sum, score| sum + (score - most).exp());
                }
                let shift = most + sum.ln();
                for (to, from) in to.chunks_mut(inner * PART).zip(from.chunks(inner * PART)) {
                    pace.spend((from.len() / inner) as u64)?;
                    let scores = from[at..].iter().step_by(inner);
                    for (to, score) in to[at..].iter_mut().step_by(inner).zip(scores) {
                        *to = score - shift;
                    }
                }
            }
        }
        Ok(made)
    }
}
