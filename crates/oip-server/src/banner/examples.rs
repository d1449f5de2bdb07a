//! Generates example requests as shell commands, from a model's metadata.

use oip_types::{ExampleInput, ModelMetadata};
use serde_json::{Value, json};

/// Maximum total number of elements in the inputs; a command with more elements is unreadable.
const MOST: u64 = 64;

/// An example request for a model, with zeros and empty strings.
pub(crate) struct Example<'m> {
    model: &'m str,
    inputs: Vec<ExampleInput<'m>>,
}

impl<'m> Example<'m> {
    /// Creates an example. Returns `None` if inputs are large, or if names are unsafe in a shell.
    pub(crate) fn of(metadata: &'m ModelMetadata) -> Option<Self> {
        let inputs = ExampleInput::all_of(metadata);
        let total = inputs
            .iter()
            .try_fold(0u64, |all, input| all.checked_add(input.width()?))?;
        let is_printable = |name: &str| name.chars().all(|char| char.is_ascii_graphic() || char == ' ');
        let is_fine = {
            let names = inputs.iter().map(|input| input.tensor().name.as_str());
            let mut names = names.chain([metadata.name.as_str()]);
            !inputs.is_empty() && total <= MOST && names.all(is_printable)
        };
        let model = &metadata.name;
        is_fine.then_some(Self { model, inputs })
    }

    /// Returns a `curl` command for the server at `url`, which may start with options.
    pub(crate) fn curl(&self, url: &str, path: &str) -> String {
        let inputs: Vec<Value> = self.inputs.iter().map(ExampleInput::json).collect();
        let body = json!({"inputs": inputs}).to_string();
        format!("curl -s {url}/v2/models/{path}/infer -d {}", quoted(&body))
    }

    /// Returns a `tensor` command with `options`, each preceded by a space.
    pub(crate) fn tensor(&self, options: &str) -> String {
        let mut command = format!("tensor infer{options} --model {}", quoted(self.model));
        for input in &self.inputs {
            let literal = format!("{}={}", input.tensor().name, input.nested());
            command += &format!(" -i {}", quoted(&literal));
        }
        command
    }
}

/// Quotes a string as one shell word.
pub(crate) fn quoted(text: &str) -> String {
    let is_plain = |char: char| char.is_ascii_alphanumeric() || matches!(char, '-' | '_' | '.' | '/' | ':');
    match !text.is_empty() && text.chars().all(is_plain) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use oip_types::{DataType, TensorMetadata};

    use super::*;

    fn metadata(name: &str, inputs: Vec<TensorMetadata>) -> ModelMetadata {
        ModelMetadata::new(name, "onnx_onnxv1", inputs, Vec::new())
    }

    #[test]
    fn examples_fit_the_model() {
        let x = TensorMetadata::new("x", DataType::FP32, &[-1, 3]);
        let text = TensorMetadata::new("it's", DataType::Bytes, &[1]);
        let metadata = metadata("my model", vec![x, text]);
        let example = Example::of(&metadata).unwrap();
        assert_eq!(
            example.curl("http://h:1", "my%20model"),
            r#"curl -s http://h:1/v2/models/my%20model/infer -d '{"inputs":[{"data":[0,0,0],"datatype":"FP32","name":"x","shape":[1,3]},{"data":[""],"datatype":"BYTES","name":"it'\''s","shape":[1]}]}'"#
        );
        assert_eq!(
            example.tensor(""),
            r#"tensor infer --model 'my model' -i 'x=[[0,0,0]]' -i 'it'\''s=[""]'"#
        );
        assert!(
            example
                .tensor(" --url http://h:1")
                .starts_with("tensor infer --url http://h:1 --model")
        );
    }

    #[test]
    fn tensor_files_are_asked_for_a_row() {
        let shape = oip_types::ShapePattern::with_any_leading(Vec::new());
        let rows = TensorMetadata::with_shape("mean.rows", DataType::INT64, shape).optional();
        let metadata = metadata("means", vec![rows.clone(), rows]);
        let example = Example::of(&metadata).unwrap();
        assert_eq!(
            example.tensor(""),
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
