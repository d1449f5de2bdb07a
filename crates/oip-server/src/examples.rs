//! Requests that can be pasted into a shell, made from what a model says that it takes.

use oip_types::{DataType, ModelMetadata, TensorMetadata};
use serde_json::{Value, json};
use tensor_core::DType;

/// Elements of all inputs together; a line with more of them is no longer read by anybody.
const MOST: u64 = 64;

/// One request to a model, with zeros and empty texts for what it takes.
pub(crate) struct Example {
    model: String,
    inputs: Vec<(TensorMetadata, Vec<u64>)>,
}

impl Example {
    /// An example for a model; `None` when its inputs are large, or its names do not belong into a shell.
    pub(crate) fn of(metadata: &ModelMetadata) -> Option<Self> {
        let required = metadata.inputs.iter().filter(|input| !input.optional);
        let mut chosen: Vec<&TensorMetadata> = required.collect();
        if chosen.is_empty() {
            // A tensor file: rows of its first tensor.
            chosen.extend(metadata.inputs.first());
        }
        let inputs: Vec<(TensorMetadata, Vec<u64>)> = chosen
            .into_iter()
            .map(|input| (input.clone(), dims(input)))
            .collect();
        let elements = |dims: &[u64]| dims.iter().try_fold(1u64, |all, dim| all.checked_mul(*dim));
        let total = inputs
            .iter()
            .try_fold(0u64, |all, (_, dims)| all.checked_add(elements(dims)?))?;
        let is_printable = |name: &String| name.chars().all(|char| char.is_ascii_graphic() || char == ' ');
        let is_fine = {
            let names = inputs.iter().map(|(input, _)| &input.name);
            let mut names = names.chain([&metadata.name]);
            !inputs.is_empty() && total <= MOST && names.all(is_printable)
        };
        let model = metadata.name.clone();
        is_fine.then_some(Self { model, inputs })
    }

    /// The request by `curl`, to a server at this URL.
    pub(crate) fn curl(&self, url: &str, path: &str) -> String {
        let inputs: Vec<Value> = self
            .inputs
            .iter()
            .map(|(input, dims)| {
                let count = dims.iter().product::<u64>() as usize;
                json!({
                    "name": input.name,
                    "datatype": input.datatype.name(),
                    "shape": dims,
                    "data": vec![zero(input.datatype); count],
                })
            })
            .collect();
        let body = json!({"inputs": inputs}).to_string();
        format!("curl -s {url}/v2/models/{path}/infer -d {}", quoted(&body))
    }

    /// The request by the program `tensor`; `url` where it is not the one that `tensor` takes by itself.
    pub(crate) fn tensor(&self, url: Option<&str>) -> String {
        let mut command = "tensor infer".to_owned();
        if let Some(url) = url {
            command += &format!(" --url {url}");
        }
        command += &format!(" --model {}", quoted(&self.model));
        for (input, dims) in &self.inputs {
            let literal = format!("{}={}", input.name, nested(input.datatype, dims));
            command += &format!(" -i {}", quoted(&literal));
        }
        command
    }
}

/// The shape of the example: 1 for what is free, and one row of a tensor file.
fn dims(input: &TensorMetadata) -> Vec<u64> {
    let own = input.shape.dims().iter().map(|dim| dim.unwrap_or(1));
    let leading = input.shape.has_any_leading().then_some(1);
    leading.into_iter().chain(own).collect()
}

fn zero(datatype: DataType) -> Value {
    match datatype {
        DataType::Bytes => json!(""),
        DataType::Fixed(DType::Bool) => json!(false),
        DataType::Fixed(_) => json!(0),
    }
}

/// Zeros in lists, as deep as there are dimensions.
fn nested(datatype: DataType, dims: &[u64]) -> Value {
    match dims {
        [] => zero(datatype),
        [first, rest @ ..] => vec![nested(datatype, rest); *first as usize].into(),
    }
}

/// A text as one word of a shell.
fn quoted(text: &str) -> String {
    let is_plain = |char: char| char.is_ascii_alphanumeric() || matches!(char, '-' | '_' | '.' | '/' | ':');
    match !text.is_empty() && text.chars().all(is_plain) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata(name: &str, inputs: Vec<TensorMetadata>) -> ModelMetadata {
        ModelMetadata::new(name, "onnx_onnxv1", inputs, Vec::new())
    }

    #[test]
    fn examples_fit_the_model() {
        let x = TensorMetadata::new("x", DataType::FP32, &[-1, 3]);
        let text = TensorMetadata::new("it's", DataType::Bytes, &[1]);
        let example = Example::of(&metadata("my model", vec![x, text])).unwrap();
        assert_eq!(
            example.curl("http://h:1", "my%20model"),
            r#"curl -s http://h:1/v2/models/my%20model/infer -d '{"inputs":[{"data":[0,0,0],"datatype":"FP32","name":"x","shape":[1,3]},{"data":[""],"datatype":"BYTES","name":"it'\''s","shape":[1]}]}'"#
        );
        assert_eq!(
            example.tensor(None),
            r#"tensor infer --model 'my model' -i 'x=[[0,0,0]]' -i 'it'\''s=[""]'"#
        );
        assert!(
            example
                .tensor(Some("http://h:1"))
                .starts_with("tensor infer --url http://h:1 --model")
        );
    }

    #[test]
    fn tensor_files_are_asked_for_a_row() {
        let shape = oip_types::ShapePattern::with_any_leading(Vec::new());
        let rows = TensorMetadata::with_shape("mean.rows", DataType::INT64, shape).optional();
        let example = Example::of(&metadata("means", vec![rows.clone(), rows])).unwrap();
        assert_eq!(
            example.tensor(None),
            "tensor infer --model means -i 'mean.rows=[0]'"
        );
    }

    #[test]
    fn large_inputs_and_odd_names_have_no_example() {
        let none = |name: &str, dims: &[i64]| {
            Example::of(&metadata(
                "m",
                vec![TensorMetadata::new(name, DataType::FP32, dims)],
            ))
            .is_none()
        };
        assert!(none("x", &[-1, 3, 224, 224]));
        assert!(none("x", &[i64::MAX, i64::MAX]));
        assert!(none("x\u{202e}", &[1]));
        assert!(Example::of(&metadata("m", Vec::new())).is_none());
    }
}
