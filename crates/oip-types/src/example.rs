//! Example requests generated from model metadata, for API descriptions, banners and forms.

use crate::{ModelMetadata, TensorMetadata};

/// Height and width of an example image if the model leaves them free. This is large enough for networks,
/// which halve each side at most five times.
const IMAGE_SIDE: u64 = 32;

/// An input of an example request: a tensor of zeros (or empty strings, or `false`) with a shape that the
/// model accepts.
///
/// ```
/// use oip_types::{DataType, ExampleInput, ModelMetadata, TensorMetadata};
///
/// let inputs = vec![TensorMetadata::new("X", DataType::FP32, &[-1, 4])];
/// let model = ModelMetadata::new("iris", "onnx_onnxv1", inputs, Vec::new());
/// let example = ExampleInput::all_of(&model);
/// assert_eq!((example[0].tensor().name.as_str(), example[0].dims()), ("X", &[1, 4][..]));
/// assert_eq!(example[0].elements(), Some(4));
/// ```
#[derive(Clone, Debug)]
pub struct ExampleInput<'m> {
    tensor: &'m TensorMetadata,
    dims: Vec<u64>,
}

impl<'m> ExampleInput<'m> {
    /// Returns the inputs that a request needs: all required ones. If all inputs are optional, as for a
    /// tensor file, returns the first.
    #[must_use]
    pub fn all_of(model: &'m ModelMetadata) -> Vec<Self> {
        let mut chosen: Vec<&TensorMetadata> = model.inputs.iter().filter(|input| !input.optional).collect();
        if chosen.is_empty() {
            chosen.extend(model.inputs.first());
        }
        chosen.into_iter().map(Self::of).collect()
    }

    fn of(tensor: &'m TensorMetadata) -> Self {
        let own = tensor.shape.dims();
        // Dimensions of an image batch, NCHW or NHWC: the channels come first or last.
        let is_image = matches!(own, [_, Some(1 | 3 | 4), ..] | [.., Some(1 | 3 | 4)]) && own.len() == 4;
        let size = |(axis, dim): (usize, &Option<u64>)| match dim {
            Some(dim) => *dim,
            None if is_image && axis > 0 => IMAGE_SIDE,
            None => 1,
        };
        let leading = tensor.shape.has_any_leading().then_some(1);
        let dims = leading
            .into_iter()
            .chain(own.iter().enumerate().map(size))
            .collect();
        Self { tensor, dims }
    }

    /// Returns the input's metadata.
    #[must_use]
    pub fn tensor(&self) -> &'m TensorMetadata {
        self.tensor
    }

    /// Returns the shape. Free dimensions have size 1, except the height and width of an image.
    #[must_use]
    pub fn dims(&self) -> &[u64] {
        &self.dims
    }

    /// Returns the number of elements; `None` if it overflows `u64`.
    #[must_use]
    pub fn elements(&self) -> Option<u64> {
        self.dims.iter().try_fold(1u64, |all, dim| all.checked_mul(*dim))
    }

    /// Returns the largest number of values or lists on one nesting level of the nested JSON form. This
    /// exceeds the number of elements when a dimension is 0.
    #[must_use]
    pub fn width(&self) -> Option<u64> {
        self.dims
            .iter()
            .try_fold(1u64, |all, dim| all.checked_mul((*dim).max(1)))
    }
}

/// Methods that return JSON. They allocate for each value and list, so check [`ExampleInput::width`] first.
#[cfg(feature = "rest")]
impl ExampleInput<'_> {
    /// Returns the input as an item of `inputs` in a request body, with flat data.
    #[must_use]
    pub fn json(&self) -> serde_json::Value {
        serde_json::json!({
            "name": self.tensor.name,
            "datatype": self.tensor.datatype.name(),
            "shape": self.dims,
            "data": vec![self.zero(); self.elements().unwrap_or(0) as usize],
        })
    }

    /// Returns the data as nested lists, one level per dimension.
    #[must_use]
    pub fn nested(&self) -> serde_json::Value {
        fn nest(dims: &[u64], zero: &serde_json::Value) -> serde_json::Value {
            match dims {
                [] => zero.clone(),
                [first, rest @ ..] => vec![nest(rest, zero); *first as usize].into(),
            }
        }
        nest(&self.dims, &self.zero())
    }

    fn zero(&self) -> serde_json::Value {
        match self.tensor.datatype {
            crate::DataType::Bytes => "".into(),
            crate::DataType::BOOL => false.into(),
            crate::DataType::Fixed(_) => 0.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DataType, ShapePattern};

    fn dims(dims: &[i64]) -> Vec<u64> {
        let tensor = TensorMetadata::new("x", DataType::FP32, dims);
        ExampleInput::of(&tensor).dims
    }

    #[test]
    fn free_dimensions_get_a_size_that_models_take() {
        assert_eq!(dims(&[]), [0u64; 0]);
        assert_eq!(dims(&[-1, 4]), [1, 4]);
        assert_eq!(dims(&[-1, -1, 8]), [1, 1, 8]);
        assert_eq!(dims(&[-1, 3, -1, -1]), [1, 3, 32, 32]);
        assert_eq!(dims(&[-1, -1, -1, 3]), [1, 32, 32, 3]);
        assert_eq!(dims(&[-1, 3, 224, 224]), [1, 3, 224, 224]);
        assert_eq!(dims(&[-1, 12, -1, 64]), [1, 12, 1, 64]);
        let huge = TensorMetadata::new("x", DataType::FP32, &[i64::MAX, i64::MAX]);
        assert_eq!(ExampleInput::of(&huge).elements(), None);
        // The width also counts empty lists.
        for dims in [[1 << 30, 0], [0, 1 << 30]] {
            let empty = TensorMetadata::new("x", DataType::FP32, &dims);
            let example = ExampleInput::of(&empty);
            assert_eq!((example.elements(), example.width()), (Some(0), Some(1 << 30)));
        }
    }

    #[test]
    fn of_inputs_that_may_be_left_out_only_the_first_is_shown() {
        let row = |name: &str| {
            let shape = ShapePattern::with_any_leading(Vec::new());
            TensorMetadata::with_shape(name, DataType::INT64, shape).optional()
        };
        let file = ModelMetadata::new("f", "p", vec![row("a.rows"), row("b.rows")], Vec::new());
        let example = ExampleInput::all_of(&file);
        assert_eq!((example.len(), example[0].dims()), (1, &[1][..]));
        let x = TensorMetadata::new("x", DataType::BYTES, &[2, 1]);
        let model = ModelMetadata::new("m", "p", vec![row("a"), x], Vec::new());
        let example = ExampleInput::all_of(&model);
        assert_eq!((example.len(), example[0].tensor().name.as_str()), (1, "x"));
    }

    #[cfg(feature = "rest")]
    #[test]
    fn examples_are_requests() {
        use crate::{ModelRef, RequestLimits, rest};

        for datatype in ["BOOL", "BF16", "UINT64", "BYTES", "FP16"] {
            let datatype = DataType::from_name(datatype).unwrap();
            let inputs = vec![TensorMetadata::new("x", datatype, &[-1, 2])];
            let model = ModelMetadata::new("m", "p", inputs, Vec::new());
            let example = ExampleInput::all_of(&model);
            for data in [None, Some(example[0].nested())] {
                let mut input = example[0].json();
                if let Some(data) = data {
                    input["data"] = data;
                }
                let body = rest::json_body(&serde_json::json!({"inputs": [input]}));
                let name = ModelRef::new("m", None).unwrap();
                let decoded = rest::decode_request(name, &body, None, &RequestLimits::default()).unwrap();
                model.check_request(&decoded.request).unwrap();
            }
        }
        let scalar = TensorMetadata::new("x", DataType::FP32, &[]);
        assert_eq!(ExampleInput::of(&scalar).nested(), 0);
    }
}
