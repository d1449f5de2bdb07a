//! Checks requests and responses against the model's metadata.

use std::fmt;

use tensor_core::{QuotedName, Shape};

use crate::{
    DataType, InferOutput, InferRequest, ModelMetadata, RequestedOutput, ServiceError, ShapePattern,
    TensorMetadata, TensorValue,
};

impl ModelMetadata {
    /// Checks that a request has all required inputs and no unknown ones, that each has the right datatype,
    /// rank and fixed dimensions, and that the request names only existing outputs, each once.
    ///
    /// Byte lengths need no check here: a [`TensorValue`] cannot disagree with its own shape.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorCode::InvalidArgument) that names the input or output, what was
    /// expected and what was found.
    pub fn check_request(&self, request: &InferRequest) -> Result<(), ServiceError> {
        for (index, input) in request.inputs.iter().enumerate() {
            let Some(expected) = self.inputs.iter().find(|expected| expected.name == input.name) else {
                let known = list(&self.inputs);
                let message = format!(
                    "unexpected input {}; the model takes {known}",
                    QuotedName(&input.name)
                );
                return Err(ServiceError::invalid(message));
            };
            if request.inputs[..index]
                .iter()
                .any(|earlier| earlier.name == input.name)
            {
                let message = format!("input {} is given more than once", QuotedName(&input.name));
                return Err(ServiceError::invalid(message));
            }
            check_value(&expected.shape, expected.datatype, &input.value).map_err(|mismatch| {
                ServiceError::invalid(format!("input {}: {mismatch}", QuotedName(&input.name)))
            })?;
        }
        let required = || self.inputs.iter().filter(|input| !input.optional);
        if let Some(missing) = required().find(|expected| request.input(&expected.name).is_none()) {
            let wanted = required().count();
            let least = if wanted < self.inputs.len() {
                "at least "
            } else {
                ""
            };
            let found = request.inputs.len();
            let message =
                format!("input {missing} is missing: expected {least}{wanted} inputs, found {found}");
            return Err(ServiceError::invalid(message));
        }
        for (index, output) in request.outputs.iter().enumerate() {
            if !self.outputs.iter().any(|known| known.name == output.name) {
                let known = list(&self.outputs);
                let message = format!(
                    "unexpected output {}; the model gives {known}",
                    QuotedName(&output.name)
                );
                return Err(ServiceError::invalid(message));
            }
            if request.outputs[..index]
                .iter()
                .any(|earlier| earlier.name == output.name)
            {
                let message = format!("output {} is requested more than once", QuotedName(&output.name));
                return Err(ServiceError::invalid(message));
            }
        }
        Ok(())
    }

    /// Checks the model's outputs against its metadata and selects the requested outputs in the requested
    /// order. If the request names no outputs, selects all in the order of the metadata; optional outputs may
    /// be missing.
    ///
    /// # Errors
    /// [`Internal`](crate::ErrorCode::Internal) that names the output: a model that violates its own metadata
    /// is not the client's fault.
    pub fn pick_outputs(
        &self,
        requested: &[RequestedOutput],
        given: Vec<InferOutput>,
    ) -> Result<Vec<InferOutput>, ServiceError> {
        let known = |name: &str| self.outputs.iter().find(|known| known.name == name);
        self.check_given(&given)?;
        let mut given: Vec<Option<InferOutput>> = given.into_iter().map(Some).collect();
        let mut at = 0;
        let mut pick = |expected: &TensorMetadata| {
            let is_expected = |output: &Option<InferOutput>| {
                output.as_ref().is_some_and(|output| output.name == expected.name)
            };
            let found = position_from(&given, at, is_expected);
            let output = found.and_then(|found| {
                at = found + 1;
                given[found].take()
            });
            let Some(output) = output else {
                if expected.optional && requested.is_empty() {
                    return Ok(None);
                }
                return Err(ServiceError::internal(format!(
                    "the model did not return its output {expected}"
                )));
            };
            let any_shape = expected
                .approximate
                .then(|| ShapePattern::with_any_leading(Vec::new()));
            let shape = any_shape.as_ref().unwrap_or(&expected.shape);
            check_value(shape, expected.datatype, &output.value).map_err(|mismatch| {
                let name = QuotedName(&expected.name);
                ServiceError::internal(format!("the model returned a wrong output {name}: {mismatch}"))
            })?;
            Ok(Some(output))
        };
        if requested.is_empty() {
            return self
                .outputs
                .iter()
                .filter_map(|expected| pick(expected).transpose())
                .collect();
        }
        requested
            .iter()
            .filter_map(|output| known(&output.name))
            .filter_map(|expected| pick(expected).transpose())
            .collect()
    }

    /// Checks that the metadata lists all outputs that the model returned.
    fn check_given(&self, given: &[InferOutput]) -> Result<(), ServiceError> {
        // Models usually return outputs in metadata order, so each search starts after the previous match.
        let mut at = 0;
        let extra = given.iter().find(|output| {
            let found = position_from(&self.outputs, at, |known| known.name == output.name);
            at = found.map_or(at, |found| found + 1);
            found.is_none()
        });
        match extra.map(|extra| QuotedName(&extra.name)) {
            None => Ok(()),
            Some(name) => Err(ServiceError::internal(format!(
                "the model returned an output {name} that it does not declare"
            ))),
        }
    }
}

/// Finds the first item that satisfies `is_it`, searching from index `from` to the end and then from the
/// start.
fn position_from<T>(items: &[T], from: usize, is_it: impl Fn(&T) -> bool) -> Option<usize> {
    let from = from.min(items.len());
    let (before, after) = items.split_at(from);
    let behind = after.iter().position(&is_it).map(|position| from + position);
    behind.or_else(|| before.iter().position(&is_it))
}

/// How a value differs from its metadata.
enum Mismatch<'a> {
    Datatype {
        expected: DataType,
        found: DataType,
    },
    Shape {
        expected: &'a ShapePattern,
        found: &'a Shape,
    },
}

impl fmt::Display for Mismatch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Datatype { expected, found } => write!(f, "expected datatype {expected}, found {found}"),
            Self::Shape { expected, found } => write!(f, "expected shape {expected}, found {found}"),
        }
    }
}

fn check_value<'a>(
    shape: &'a ShapePattern,
    datatype: DataType,
    value: &'a TensorValue,
) -> Result<(), Mismatch<'a>> {
    if value.datatype() != datatype {
        return Err(Mismatch::Datatype {
            expected: datatype,
            found: value.datatype(),
        });
    }
    if !shape.matches(value.shape()) {
        return Err(Mismatch::Shape {
            expected: shape,
            found: value.shape(),
        });
    }
    Ok(())
}

/// Lists the first few inputs or outputs, for the error message about an unknown name.
fn list(tensors: &[TensorMetadata]) -> String {
    const SHOWN: usize = 5;
    let names: Vec<String> = tensors.iter().take(SHOWN).map(ToString::to_string).collect();
    match tensors.len().saturating_sub(SHOWN) {
        0 if names.is_empty() => "none".to_owned(),
        0 => names.join(", "),
        more => format!("{} and {more} more", names.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use tensor_core::{Shape, Tensor};

    use super::*;
    use crate::{ErrorCode, ModelRef};

    fn model() -> ModelMetadata {
        ModelMetadata::new(
            "m",
            "test_test",
            vec![
                TensorMetadata::new("x", DataType::FP32, &[-1, 2]),
                TensorMetadata::new("k", DataType::INT64, &[]),
            ],
            vec![
                TensorMetadata::new("y", DataType::FP32, &[-1]),
                TensorMetadata::new("z", DataType::BOOL, &[1]),
            ],
        )
    }

    fn floats(dims: &[u64]) -> Tensor {
        let shape = Shape::new(dims).unwrap();
        let count = shape.element_count() as usize;
        Tensor::from_vec(shape, vec![0f32; count]).unwrap()
    }

    fn request() -> InferRequest {
        InferRequest::new(ModelRef::new("m", None).unwrap())
    }

    #[test]
    fn good_requests_pass() {
        let model = model();
        let good = request()
            .with_input("k", Tensor::scalar(1i64))
            .with_input("x", floats(&[5, 2]));
        assert!(model.check_request(&good).is_ok());
        assert!(
            model
                .check_request(&good.clone().with_output("z").with_output("y"))
                .is_ok()
        );
    }

    #[test]
    fn each_mismatch_says_what_was_expected_and_found() {
        let k = || Tensor::scalar(1i64);
        for (request, message) in [
            (
                request().with_input("x", floats(&[1, 2])),
                "input 'k' (INT64[]) is missing: expected 2 inputs, found 1",
            ),
            (
                request(),
                "input 'x' (FP32[-1, 2]) is missing: expected 2 inputs, found 0",
            ),
            (
                request().with_input("qq", k()),
                "unexpected input 'qq'; the model takes 'x' (FP32[-1, 2]), 'k' (INT64[])",
            ),
            (
                request().with_input("k", k()).with_input("k", k()),
                "input 'k' is given more than once",
            ),
            (
                request().with_input("k", Tensor::scalar(1i32)),
                "input 'k': expected datatype INT64, found INT32",
            ),
            (
                request().with_input("x", floats(&[2, 3])),
                "input 'x': expected shape [-1, 2], found [2, 3]",
            ),
            (
                request().with_input("x", floats(&[2])),
                "input 'x': expected shape [-1, 2], found [2]",
            ),
            (
                request()
                    .with_input("k", k())
                    .with_input("x", floats(&[1, 2]))
                    .with_output("nope"),
                "unexpected output 'nope'; the model gives 'y' (FP32[-1]), 'z' (BOOL[1])",
            ),
            (
                request()
                    .with_input("k", k())
                    .with_input("x", floats(&[1, 2]))
                    .with_output("y")
                    .with_output("y"),
                "output 'y' is requested more than once",
            ),
        ] {
            let error = model().check_request(&request).unwrap_err();
            assert_eq!(error.code(), ErrorCode::InvalidArgument);
            assert_eq!(error.to_string(), message);
        }
    }

    #[test]
    fn approximate_outputs_have_any_shape_of_their_datatype() {
        let mut model = model();
        let y = |dims: &[u64]| vec![InferOutput::new("y", floats(dims))];
        model.outputs.retain(|output| output.name == "y");
        assert!(model.pick_outputs(&[], y(&[1, 2])).is_err());
        model.outputs[0].approximate = true;
        assert_eq!(model.pick_outputs(&[], y(&[1, 2])).unwrap(), y(&[1, 2]));
        model.outputs[0].datatype = DataType::BOOL;
        let error = model.pick_outputs(&[], y(&[1, 2])).unwrap_err();
        assert!(
            error.message().ends_with("expected datatype BOOL, found FP32"),
            "{error}"
        );
    }

    #[test]
    fn what_is_optional_may_be_left_out() {
        let mut model = model();
        let k = model.inputs.pop().unwrap();
        model.inputs.push(k.optional());
        let x = || request().with_input("x", floats(&[1, 2]));
        assert!(model.check_request(&x()).is_ok());
        // If an optional input is present, it is checked like any other.
        let error = model
            .check_request(&x().with_input("k", Tensor::scalar(1i32)))
            .unwrap_err();
        assert_eq!(
            error.to_string(),
            "input 'k': expected datatype INT64, found INT32"
        );
        let error = model.check_request(&request()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "input 'x' (FP32[-1, 2]) is missing: expected at least 1 inputs, found 0"
        );

        let z = model.outputs.pop().unwrap();
        model.outputs.push(z.optional());
        let y = || vec![InferOutput::new("y", floats(&[3]))];
        assert_eq!(model.pick_outputs(&[], y()).unwrap(), y());
        let error = model
            .pick_outputs(&request().with_output("z").outputs, y())
            .unwrap_err();
        assert_eq!(
            error.to_string(),
            "the model did not return its output 'z' (BOOL[1])"
        );
        assert!(model.pick_outputs(&[], vec![]).is_err(), "y is required");
    }

    /// Selecting many outputs takes linear time, not quadratic.
    #[test]
    fn many_outputs() {
        const COUNT: usize = 50_000;
        let outputs = || (0..COUNT).map(|index| format!("layer.{index}.weight"));
        let model = ModelMetadata {
            outputs: outputs()
                .map(|name| TensorMetadata::new(name, DataType::INT64, &[]))
                .collect(),
            ..model()
        };
        let given = outputs()
            .map(|name| InferOutput::new(name, Tensor::scalar(1i64)))
            .collect::<Vec<_>>();
        let start = std::time::Instant::now();
        assert_eq!(model.pick_outputs(&[], given.clone()).unwrap(), given);
        assert!(
            start.elapsed() < std::time::Duration::from_secs(10),
            "{:?}",
            start.elapsed()
        );
    }

    #[test]
    fn outputs_come_in_the_requested_order() {
        let given = || {
            vec![
                InferOutput::new("z", Tensor::scalar(true).reshape(Shape::vector(1)).unwrap()),
                InferOutput::new("y", floats(&[3])),
            ]
        };
        let names =
            |outputs: Vec<InferOutput>| outputs.into_iter().map(|output| output.name).collect::<Vec<_>>();
        assert_eq!(names(model().pick_outputs(&[], given()).unwrap()), ["y", "z"]);
        let requested = request().with_output("z").with_output("y").outputs;
        assert_eq!(
            names(model().pick_outputs(&requested, given()).unwrap()),
            ["z", "y"]
        );
        assert_eq!(
            names(model().pick_outputs(&requested[1..], given()).unwrap()),
            ["y"]
        );
    }

    /// A model that violates its own metadata causes an internal error.
    #[test]
    fn broken_promises_are_the_servers_fault() {
        let y = || InferOutput::new("y", floats(&[3]));
        for (given, message) in [
            (vec![y()], "the model did not return its output 'z' (BOOL[1])"),
            (
                vec![y(), InferOutput::new("z", Tensor::scalar(1u8))],
                "the model returned a wrong output 'z': expected datatype BOOL, found UINT8",
            ),
            (
                vec![y(), InferOutput::new("z", Tensor::scalar(true))],
                "the model returned a wrong output 'z': expected shape [1], found []",
            ),
            (
                vec![y(), InferOutput::new("w", Tensor::scalar(true))],
                "the model returned an output 'w' that it does not declare",
            ),
        ] {
            let error = model().pick_outputs(&[], given).unwrap_err();
            assert_eq!(error.code(), ErrorCode::Internal);
            assert_eq!(error.to_string(), message);
        }
    }
}
