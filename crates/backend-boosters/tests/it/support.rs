//! Reads fixtures with the packages' recorded predictions, and loads and runs models as a server does.

use std::{fs, path::PathBuf, sync::Arc};

use backend_boosters::BoostersBackend;
use oip_model::{Backend, CancelToken, LoadContext, Model, ModelSource};
use oip_types::{
    DataType, InferRequest, ModelConfig, ModelRef, ServiceError,
    model_config::{ConfigParameter, InputConfig, InputFormat, OutputConfig},
};
use serde::{Deserialize, Deserializer, de::Error as _};
use tensor_core::{DType, Shape, Tensor};

/// A package's recorded predictions.
#[derive(Deserialize)]
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) file: String,
    /// Whether rows are FP64.
    pub(crate) double: bool,
    pub(crate) width: usize,
    /// Features of the rows, in row-major order.
    #[serde(deserialize_with = "numbers_of_text")]
    pub(crate) rows: Vec<f64>,
    #[serde(deserialize_with = "numbers_of_text")]
    pub(crate) native: Vec<f64>,
    /// Shape of the recorded predictions in `native`.
    pub(crate) shape: Vec<u64>,
    #[serde(default)]
    pub(crate) best_iteration: bool,
}

impl Case {
    /// Returns the rows, in the type that the package was given.
    pub(crate) fn input(&self) -> Tensor {
        let shape = [self.rows.len() / self.width, self.width].map(|dim| dim as u64);
        let shape = Shape::new(&shape).expect("a matrix");
        let values = self.rows.iter().copied();
        match self.double {
            true => Tensor::from_vec(shape, values.collect::<Vec<f64>>()),
            false => Tensor::from_vec(shape, values.map(|value| value as f32).collect::<Vec<f32>>()),
        }
        .expect("as many values")
    }
}

/// Parses numbers from a string, since serde's JSON numbers would have an error in the last place.
fn numbers_of_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<f64>, D::Error> {
    let text = String::deserialize(deserializer)?;
    let numbers = text.split_ascii_whitespace().map(str::parse);
    numbers.collect::<Result<_, _>>().map_err(D::Error::custom)
}

pub(crate) fn fixture(name: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures")
        .join(name);
    fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

pub(crate) fn cases() -> Vec<Case> {
    let files = [fixture("cases.jsonl"), fixture("old.jsonl")].concat();
    let text = String::from_utf8(files).expect("text");
    let cases = text
        .lines()
        .map(|line| serde_json::from_str(line).expect("a case"));
    cases.collect()
}

pub(crate) fn case(name: &str) -> Case {
    cases()
        .into_iter()
        .find(|case| case.name == name)
        .expect("a known case")
}

/// Returns a configuration with these parameters.
pub(crate) fn config(parameters: &[(&str, &str)]) -> ModelConfig {
    let mut config = ModelConfig::default();
    for (key, value) in parameters {
        let string_value = (*value).to_owned();
        config
            .parameters
            .insert((*key).to_owned(), ConfigParameter { string_value });
    }
    config
}

pub(crate) fn with_input(
    mut config: ModelConfig,
    name: &str,
    data_type: DataType,
    dims: &[i64],
) -> ModelConfig {
    config.input.push(InputConfig {
        name: name.to_owned(),
        data_type,
        format: InputFormat::None,
        dims: dims.to_vec(),
        reshape: None,
        is_shape_tensor: false,
        allow_ragged_batch: false,
        optional: false,
    });
    config
}

pub(crate) fn with_output(
    mut config: ModelConfig,
    name: &str,
    data_type: DataType,
    dims: &[i64],
) -> ModelConfig {
    config.output.push(OutputConfig {
        name: name.to_owned(),
        data_type,
        dims: dims.to_vec(),
        reshape: None,
        label_filename: String::new(),
        is_shape_tensor: false,
    });
    config
}

pub(crate) fn load(
    file: &str,
    content: Vec<u8>,
    config: ModelConfig,
) -> Result<Box<dyn Model>, ServiceError> {
    let source = ModelSource::new("m", "1", file, content.into());
    let cx = LoadContext::default().with_config(Arc::new(config));
    BoostersBackend::new().load(&source, &cx)
}

/// Runs a model, and checks its input and output against its metadata.
pub(crate) fn run(model: &dyn Model, input: Tensor) -> Result<Tensor, ServiceError> {
    let metadata = model.metadata();
    let request = InferRequest::new(ModelRef::new("m", None)?).with_input(&metadata.inputs[0].name, input);
    metadata.check_request(&request)?;
    let mut outputs = model.infer(request, &CancelToken::new(None))?;
    assert_eq!(outputs.len(), 1);
    let output = outputs.remove(0);
    let tensor = output.value.as_fixed().expect("numbers").clone();
    let own = &metadata.outputs[0];
    assert_eq!(output.name, own.name);
    assert!(
        own.shape.matches(tensor.shape()),
        "{} is not {own}",
        tensor.shape()
    );
    assert_eq!(DataType::Fixed(tensor.spec().dtype()), own.datatype);
    Ok(tensor)
}

/// Returns a tensor's elements as FP64.
pub(crate) fn numbers(tensor: &Tensor) -> Vec<f64> {
    match tensor.spec().dtype() {
        DType::F64 => tensor.to_vec::<f64>().expect("doubles"),
        DType::F32 => tensor
            .to_vec::<f32>()
            .expect("floats")
            .into_iter()
            .map(f64::from)
            .collect(),
        DType::I64 => tensor
            .to_vec::<i64>()
            .expect("ints")
            .into_iter()
            .map(|int| int as f64)
            .collect(),
        DType::I32 => tensor
            .to_vec::<i32>()
            .expect("ints")
            .into_iter()
            .map(f64::from)
            .collect(),
        other => panic!("{other}"),
    }
}
