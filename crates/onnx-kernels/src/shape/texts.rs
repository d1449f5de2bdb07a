//! Lets one copy routine handle all element types: it copies the bytes of fixed-size elements, and the
//! indices of strings.

use std::sync::Arc;

use onnx_tensor::prelude::*;

use onnx_tensor::{
    cancelling::{PART, Pace},
    elements::{elements, tensor},
    size,
};

/// Copies elements of inputs to outputs. For strings, `movement` gets indices in place of elements, numbered
/// consecutively across all inputs. The strings at the indices that `movement` returns are then copied.
pub(crate) fn moved(
    inputs: &mut ShortVec<Arc<Tensor>>,
    movement: impl FnOnce(&mut ShortVec<Arc<Tensor>>) -> Result<ShortVec<Arc<Tensor>>>,
) -> Result<ShortVec<Arc<Tensor>>> {
    let is_text = |input: &Arc<Tensor>| input.element_type() == ElementType::String;
    if !inputs.iter().any(is_text) {
        return movement(inputs);
    }
    let given = inputs.clone();
    let mut texts: Vec<&String> = vec![];
    let mut pace = Pace::default();
    for (input, given) in inputs.iter_mut().zip(&given).filter(|(_, given)| is_text(given)) {
        let first = texts.len();
        for part in elements::<String>(given)?.chunks(PART) {
            pace.spend(part.len() as u64)?;
            texts.extend(part);
        }
        let places = pace.indices(texts.len() - first, |at| (first + at) as i64)?;
        *input = Arc::new(tensor(given.shape(), places)?);
    }
    let moved = movement(inputs)?;
    let mut found: ShortVec<Vec<&String>> = smallvec![];
    for places in &moved {
        let mut found_here = vec![];
        for places in elements::<i64>(places)?.chunks(PART) {
            pace.spend(4 * places.len() as u64)?;
            for &place in places {
                let text = usize::try_from(place).ok().and_then(|place| texts.get(place));
                found_here.push(*text.context("an element without a string")?);
            }
        }
        found.push(found_here);
    }
    size::admit_contents(found.iter().flatten().map(|&text| (text, 1)))?;
    let made = moved.iter().zip(found);
    made.map(|(places, found)| {
        let mut copies = Vec::with_capacity(found.len());
        for text in found {
            pace.spend(16 + text.len() as u64)?;
            copies.push(text.clone());
        }
        Ok(Arc::new(tensor::<String>(places.shape(), copies)?))
    })
    .collect()
}

#[cfg(test)]
pub(crate) mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use onnx_tensor::operator::{Compute, Fact};
    use onnx_tensor::shapes;

    pub(crate) fn texts(shape: &[usize], texts: &[&str]) -> Tensor {
        tensor(shape, texts.iter().map(ToString::to_string).collect()).unwrap()
    }

    /// Runs an operator, and checks its outputs against the facts that it infers.
    pub(crate) fn run(compute: &dyn Compute, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        let mut inputs: ShortVec<Arc<Tensor>> = inputs.iter().cloned().map(Arc::new).collect();
        let facts = compute.outputs(&Fact::of_values(&inputs))?.unwrap();
        let made = compute.run(&mut inputs)?;
        assert_eq!(facts.len(), made.len());
        for (fact, made) in facts.iter().zip(&made) {
            assert_eq!(fact.element_type, made.element_type());
            assert_eq!(shapes::known(&fact.shape).unwrap()[..], *made.shape());
        }
        Ok(made.iter().map(|made| (**made).clone()).collect())
    }

    #[test]
    fn texts_of_several_inputs_are_found_again() {
        let mut inputs: ShortVec<Arc<Tensor>> = smallvec![
            Arc::new(texts(&[2], &["a", "b"])),
            Arc::new(Tensor::scalar(7i64)),
            Arc::new(texts(&[1], &["c"])),
        ];
        let turned = moved(&mut inputs, |inputs| {
            assert_eq!(*inputs[1], Tensor::scalar(7i64));
            Ok(smallvec![inputs[2].clone(), inputs[0].clone()])
        });
        let turned = turned.unwrap();
        assert_eq!(*turned[0], texts(&[1], &["c"]));
        assert_eq!(*turned[1], texts(&[2], &["a", "b"]));
    }

    #[test]
    fn a_place_without_a_text_is_an_error() {
        let mut inputs: ShortVec<Arc<Tensor>> = smallvec![Arc::new(texts(&[1], &["a"]))];
        let moved = moved(&mut inputs, |_| Ok(smallvec![Arc::new(Tensor::vector(&[1i64]))]));
        assert!(moved.is_err());
    }
}
