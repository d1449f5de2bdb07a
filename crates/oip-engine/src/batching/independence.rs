use std::sync::atomic::{AtomicUsize, Ordering};

use oip_types::{DataType, InferOutput, InferRequest, TensorValue};
use tensor_core::Element;

/// Whether it was seen that a model's rows know nothing of each other, where nobody said so.
///
/// The first batch of different requests shows it: its first request is run by itself too, and must get the same
/// answer. That proves nothing, but a model that normalizes over the batch, or accumulates along it, does not pass.
pub(crate) struct IndependenceCheck {
    /// Batches that are still looked at.
    left: AtomicUsize,
}

/// Batches of equal requests show little. After so many of them it is enough.
const MAX_LOOKS: usize = 8;

impl IndependenceCheck {
    pub(crate) fn new(is_needed: bool) -> Self {
        Self {
            left: AtomicUsize::new(if is_needed { MAX_LOOKS } else { 0 }),
        }
    }

    pub(crate) fn is_needed(&self) -> bool {
        self.left.load(Ordering::Relaxed) > 0
    }

    /// Notes a batch whose first request got the same answer by itself.
    pub(crate) fn pass(&self, requests: &[InferRequest]) {
        let is_telling = requests.windows(2).any(|pair| pair[0].inputs != pair[1].inputs);
        let step = |left: usize| Some(if is_telling { 0 } else { left.saturating_sub(1) });
        let _ = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, step);
    }
}

/// Whether two answers to one request are the same but for rounding: kernels for many rows add in another order than
/// those for one.
pub(crate) fn agree(these: &[InferOutput], those: &[InferOutput]) -> bool {
    let agree = |(this, that): (&InferOutput, &InferOutput)| {
        this.name == that.name
            && this.value.datatype() == that.value.datatype()
            && this.value.shape() == that.value.shape()
            && values_agree(&this.value, &that.value)
    };
    these.len() == those.len() && these.iter().zip(those).all(agree)
}

fn values_agree(this: &TensorValue, that: &TensorValue) -> bool {
    match this.datatype() {
        DataType::FP32 => floats_agree::<f32>(this, that),
        DataType::FP64 => floats_agree::<f64>(this, that),
        // Too coarse to tell rounding from anything else.
        DataType::FP16 | DataType::BF16 => true,
        _ => this.raw() == that.raw(),
    }
}

/// Within a thousandth of the largest value.
fn floats_agree<T: Element + Into<f64>>(this: &TensorValue, that: &TensorValue) -> bool {
    let floats = |value: &TensorValue| -> Vec<f64> {
        let values = value.as_fixed().and_then(|tensor| tensor.to_vec::<T>().ok());
        values.unwrap_or_default().into_iter().map(Into::into).collect()
    };
    let (these, those) = (floats(this), floats(that));
    let finite = these.iter().chain(&those).filter(|value| value.is_finite());
    let tolerance = finite.fold(0f64, |largest, value| largest.max(value.abs())) * 1e-3;
    let agree = |(a, b): (&f64, &f64)| a == b || a.is_nan() && b.is_nan() || (a - b).abs() <= tolerance;
    these.len() == those.len() && these.iter().zip(&those).all(agree)
}

#[cfg(test)]
mod tests {
    use oip_types::ModelRef;
    use tensor_core::{Shape, Tensor};

    use super::*;

    fn outputs<T: Element>(values: Vec<T>) -> Vec<InferOutput> {
        let shape = Shape::vector(values.len() as u64);
        vec![InferOutput::new("y", Tensor::from_vec(shape, values).unwrap())]
    }

    #[test]
    fn rounding_is_no_difference() {
        let agree = |a: &[f32], b: &[f32]| agree(&outputs(a.to_vec()), &outputs(b.to_vec()));
        assert!(agree(
            &[1.0, 1e-9, f32::NAN, f32::INFINITY],
            &[1.000_01, 0.0, f32::NAN, f32::INFINITY]
        ));
        assert!(!agree(&[1.0, 0.0], &[1.0, 0.01]));
        assert!(!agree(&[1.0, f32::NAN], &[1.0, 1.0]));
        assert!(!agree(&[1.0, f32::INFINITY], &[1.0, f32::NEG_INFINITY]));
        assert!(!agree(&[1.0], &[1.0, 1.0]));
        assert!(!super::agree(&outputs(vec![1i64]), &outputs(vec![2i64])));
        assert!(super::agree(&outputs(vec![1i64]), &outputs(vec![1i64])));
    }

    #[test]
    fn equal_requests_show_little() {
        let request =
            |x: i32| InferRequest::new(ModelRef::new("m", None).unwrap()).with_input("x", Tensor::scalar(x));
        let check = IndependenceCheck::new(true);
        (0..MAX_LOOKS - 1).for_each(|_| check.pass(&[request(1), request(1)]));
        assert!(check.is_needed());
        check.pass(&[request(1), request(1)]);
        assert!(!check.is_needed());
        let check = IndependenceCheck::new(true);
        check.pass(&[request(1), request(1), request(2)]);
        assert!(!check.is_needed());
        assert!(!IndependenceCheck::new(false).is_needed());
    }
}
