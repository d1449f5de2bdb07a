//! Combines nodes that scale and shift the channels of a convolution by constants into factors and offsets
//! for its weights and bias.

use onnx_tensor::{elements::elements, prelude::*};

/// The function `x * factor + offset` of each channel, in FP64 so that each weight is rounded only once.
pub(crate) struct Scales(Vec<(f64, f64)>);

impl Scales {
    /// Creates factors of 1 and offsets of 0 for `channels` channels.
    pub(crate) fn new(channels: usize) -> Self {
        Self(vec![(1.0, 0.0); channels])
    }

    /// Appends a binary node if it scales or shifts channels. `constant` is the node's constant input;
    /// `is_second` says whether it is the second input. `rank` is the rank of the other input, whose channels
    /// are axis 1.
    pub(crate) fn follow(
        &mut self,
        op_type: &str,
        constant: &Tensor,
        is_second: bool,
        rank: usize,
    ) -> Option<()> {
        let numbers = constant.as_slice::<f32>().ok()?;
        let missing = rank.checked_sub(constant.rank())?;
        let mut dims = constant.shape().iter().enumerate();
        let is_of_channels = dims.all(|(axis, &size)| size == 1 || axis + missing == 1);
        if !is_of_channels || !(numbers.len() == 1 || numbers.len() == self.0.len()) {
            return None;
        }
        for ((factor, offset), &number) in self.0.iter_mut().zip(numbers.iter().cycle()) {
            let number = f64::from(number);
            (*factor, *offset) = match (op_type, is_second) {
                ("Add", _) => (*factor, *offset + number),
                ("Sub", true) => (*factor, *offset - number),
                ("Sub", false) => (-*factor, number - *offset),
                ("Mul", _) => (*factor * number, *offset * number),
                ("Div", true) => (*factor / number, *offset / number),
                _ => return None,
            };
        }
        Some(())
    }

    /// Applies the factors and offsets `others` after the existing ones.
    pub(crate) fn then(&mut self, others: &[(f64, f64)]) {
        for ((factor, offset), &(next, shift)) in self.0.iter_mut().zip(others) {
            *factor *= next;
            *offset = *offset * next + shift;
        }
    }

    /// Returns whether all factors are 1, so that the weights stay as they are.
    pub(crate) fn only_shift(&self) -> bool {
        self.0.iter().all(|&(factor, _)| factor == 1.0)
    }

    /// Returns the weights times the factors of their channels; `None` if a weight overflows.
    pub(crate) fn weights(&self, weights: &Tensor) -> Result<Option<Tensor>> {
        let mut scaled = weights.clone();
        let numbers = scaled.as_slice_mut::<f32>()?;
        let depth = numbers.len() / self.0.len().max(1);
        for (numbers, &(factor, _)) in numbers.chunks_exact_mut(depth.max(1)).zip(&self.0) {
            for number in numbers {
                *number = (f64::from(*number) * factor) as f32;
                if !number.is_finite() {
                    return Ok(None);
                }
            }
        }
        Ok(Some(scaled))
    }

    /// Returns the bias after scaling and shifting; `None` if an element overflows.
    pub(crate) fn bias(&self, before: Option<&Tensor>) -> Result<Option<Tensor>> {
        let before = match before {
            Some(before) => elements::<f32>(before)?.to_vec(),
            None => vec![0.0; self.0.len()],
        };
        let all = before.iter().zip(&self.0);
        let all: Vec<f32> = all
            .map(|(&bias, &(factor, offset))| (f64::from(bias) * factor + offset) as f32)
            .collect();
        let is_finite = all.iter().all(|number| number.is_finite());
        Ok(is_finite.then(|| Tensor::vector(&all)))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn nodes_behind_channels_are_factors_and_offsets() {
        let list = |numbers: &[f32]| Tensor::from_shape(&[numbers.len(), 1, 1], numbers).unwrap();
        let mut scales = Scales::new(2);
        for (op_type, constant, is_second) in [
            ("Add", list(&[1.0, 2.0]), false),
            ("Sub", list(&[3.0]), true),
            ("Mul", list(&[2.0, 4.0]), true),
            ("Sub", Tensor::scalar(1.0f32), false),
            ("Div", list(&[-2.0]), true),
        ] {
            scales.follow(op_type, &constant, is_second, 4).unwrap();
        }
        assert!(!scales.only_shift());
        // The nodes compute (1 - (x + 1 - 3) * 2) / -2 for the first channel, and (1 - (x + 2 - 3) * 4) / -2
        // for the second.
        let weights = Tensor::from_shape(&[2, 1, 1, 1], &[1.0f32, 10.0]).unwrap();
        let scaled = scales.weights(&weights).unwrap().unwrap();
        assert_eq!(scaled.as_slice::<f32>().unwrap(), [1.0, 20.0]);
        let bias = scales
            .bias(Some(&Tensor::vector(&[5.0f32, 0.0])))
            .unwrap()
            .unwrap();
        assert_eq!(bias.as_slice::<f32>().unwrap(), [2.5, -2.5]);
    }

    #[test]
    fn what_is_not_of_channels_is_left() {
        let mut scales = Scales::new(2);
        let row = Tensor::from_shape(&[1, 1, 2], &[1.0f32, 2.0]).unwrap();
        assert!(scales.follow("Add", &row, true, 4).is_none());
        let channels = Tensor::from_shape(&[2, 1, 1], &[1.0f32, 2.0]).unwrap();
        assert!(scales.follow("Add", &channels, true, 3).is_none());
        assert!(scales.follow("Div", &channels, false, 4).is_none());
        assert!(scales.follow("Add", &Tensor::scalar(1.0f64), true, 4).is_none());
        // Division by 0 gives infinite factors.
        scales.follow("Div", &Tensor::scalar(0.0f32), true, 4).unwrap();
        let weights = Tensor::from_shape(&[2, 1], &[1.0f32, 0.0]).unwrap();
        assert!(scales.weights(&weights).unwrap().is_none());
        assert!(scales.bias(None).unwrap().is_none());
    }
}
