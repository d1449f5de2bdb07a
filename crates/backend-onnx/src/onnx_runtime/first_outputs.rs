//! Runs a model once with made-up inputs to learn the ranks of its outputs.

use std::time::{Duration, Instant};

use bytes::Bytes;
use oip_model::{Call, CancelToken, Model};
use oip_types::{BytesTensor, DataType, InferOutput, InferRequest, ModelRef, TensorValue};
use onnx_graph::Port;
use tensor_core::{Shape, Tensor, TensorSpec};

use super::made_up_shapes::shapes;
use crate::dtype;

/// Time limit for all attempts of one model.
const PATIENCE: Duration = Duration::from_secs(20);

/// Returns the outputs of the first run that succeeds, or `None`. Errors are ignored, since the model might
/// accept other values.
pub(super) fn first_outputs(
    model: &dyn Model,
    inputs: &[Port],
    deadline: Option<Instant>,
) -> Option<Vec<InferOutput>> {
    let last = Instant::now() + PATIENCE;
    let token = CancelToken::new(Some(deadline.map_or(last, |deadline| deadline.min(last))));
    shapes(inputs)
        .into_iter()
        .take_while(|_| !token.is_cancelled())
        // `run` does not check the outputs, whose metadata may be wrong.
        .find_map(|shapes| {
            model
                .run(Call::new(request(inputs, shapes)?, &token))
                .ok()?
                .into_outputs()
                .ok()
        })
}

/// Builds a request whose inputs are zeros of the given shapes.
fn request(inputs: &[Port], shapes: Vec<Shape>) -> Option<InferRequest> {
    let mut request = InferRequest::new(ModelRef::new("m", None).ok()?);
    for (port, shape) in inputs.iter().zip(shapes) {
        let value: TensorValue = match dtype::of(port.element_type) {
            DataType::Bytes => {
                let count = usize::try_from(shape.element_count()).ok()?;
                let strings = BytesTensor::from_elements(shape, std::iter::repeat_n(b"a", count));
                strings.ok()?.into()
            }
            DataType::Fixed(dtype) => {
                let spec = TensorSpec::new(dtype, shape).ok()?;
                let zeros = vec![0u8; usize::try_from(spec.byte_len()).ok()?];
                Tensor::new(spec, Bytes::from(zeros)).ok()?.into()
            }
        };
        request = request.with_input(&port.name, value);
    }
    Some(request)
}
