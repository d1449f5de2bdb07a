//! The operator `EyeLike`: a matrix with ones on a diagonal, which is allocated after a check of its size.

use std::sync::Arc;

use onnx_tensor::prelude::*;

use onnx_tensor::{cancelling::Pace, faults::Unsupported, node::Node, operator::Compute};
use onnx_tensor::{
    elements::of_type,
    node::Attributes,
    operator::{Fact, Kernel, kernel},
    shapes::zeros,
};

/// Builds the operator `EyeLike`.
pub fn eye_like(node: &Node) -> Result<Box<dyn Compute>> {
    let attributes = Attributes(node);
    let element_type = match attributes.has("dtype") {
        false => None,
        true => {
            let code = i32::try_from(attributes.int("dtype", 0))?;
            let element_type = ElementType::from_code(code);
            Some(element_type.ok_or_else(|| {
                Unsupported::Here(format!("the attribute 'dtype' is {code}, which is not supported"))
            })?)
        }
    };
    Ok(kernel(EyeLike {
        element_type,
        diagonal: attributes.int("k", 0),
    }))
}

/// The operator `EyeLike`, whose result has ones on a diagonal.
#[derive(Debug)]
struct EyeLike {
    /// The element type of the result; `None` for the type of the input.
    element_type: Option<ElementType>,
    /// Index of the diagonal. Positive indices are above the main diagonal.
    diagonal: i64,
}

impl Kernel for EyeLike {
    fn outputs(&self, inputs: &[Fact]) -> Result<Vec<Fact>> {
        let [input] = inputs else {
            bail!("expected 1 input, found {}", inputs.len());
        };
        ensure!(input.rank() == 2, "expected a matrix");
        let element_type = self.element_type.unwrap_or(input.element_type);
        if !element_type.is_number() && element_type != ElementType::Bool {
            bail!(Unsupported::Anywhere("is supported for numbers only".to_owned()));
        }
        Ok(vec![input.with(element_type)])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> Result<ShortVec<Tensor>> {
        let shape = inputs[0].shape();
        let element_type = self.element_type.unwrap_or(inputs[0].element_type());
        let mut eye = zeros(element_type, shape)?;
        if eye.is_empty() {
            return Ok(smallvec![eye]);
        }
        let one = of_type(Tensor::scalar(1u8), element_type)?;
        let mut pace = Pace::default();
        with_unit!(element_type, U => {
            let one = one.as_units::<U>()?.first().context("no one")?;
            for (row, line) in eye.as_units_mut::<U>()?.chunks_exact_mut(shape[1]).enumerate() {
                pace.spend(shape[1] as u64)?;
                let column = (row as i64).saturating_add(self.diagonal);
                let place = usize::try_from(column).ok().and_then(|column| line.get_mut(column));
                if let Some(place) = place {
                    place.clone_from(one);
                }
            }
        });
        Ok(smallvec![eye])
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use onnx_tensor::elements::tensor;

    #[test]
    fn ones_are_on_a_diagonal_of_any_type() {
        let of = |element_type, diagonal, input: Tensor| {
            let eye = EyeLike {
                element_type,
                diagonal,
            };
            eye.run(&[Arc::new(input)]).unwrap().remove(0)
        };
        let table = Tensor::matrix(&[[5i16, 5, 5], [5, 5, 5]]);
        assert_eq!(
            of(None, 0, table.clone()),
            Tensor::matrix(&[[1i16, 0, 0], [0, 1, 0]])
        );
        assert_eq!(
            of(None, 1, table.clone()),
            Tensor::matrix(&[[0i16, 1, 0], [0, 0, 1]])
        );
        assert_eq!(
            of(None, -1, table.clone()),
            Tensor::matrix(&[[0i16, 0, 0], [1, 0, 0]])
        );
        assert_eq!(of(None, i64::MAX, table.clone()), Tensor::matrix(&[[0i16; 3]; 2]));
        let truths = of(Some(ElementType::Bool), 2, table);
        assert_eq!(
            truths,
            Tensor::matrix(&[[false, false, true], [false, false, false]])
        );
        assert_eq!(of(None, 0, Tensor::zero::<f32>(&[2, 0]).unwrap()).shape(), [2, 0]);
    }

    #[test]
    fn only_matrices_of_numbers_have_a_diagonal() {
        let eye = EyeLike {
            element_type: None,
            diagonal: 0,
        };
        let outputs = |tensor: Tensor| eye.outputs(&Fact::of_values(&[Arc::new(tensor)]));
        assert!(outputs(Tensor::vector(&[1.0f32])).is_err());
        let words = tensor(&[1, 1], vec![String::new()]).unwrap();
        assert!(outputs(words).unwrap_err().is::<Unsupported>());
        assert!(outputs(Tensor::matrix(&[[true]])).is_ok());
    }
}
