//! Stores a request or response as a safetensors file: tensors by name, everything else in the metadata.

use std::collections::BTreeMap;

use fmt_core::{Error, Metadata, TensorReader};
use fmt_safetensors::{SafetensorsReader, SafetensorsWriter};
use oip_types::{
    BytesTensor, InferRequest, InferResponse, ModelRef, ParameterValue, Parameters, TensorValue,
};
use serde_json::Value;
use tensor_core::{DType, Shape, TensorSpec};

/// Keys in the metadata of a file.
const MODEL: &str = "model";
const VERSION: &str = "version";
const ID: &str = "id";
const PARAMETERS: &str = "parameters";
/// Keys whose values are the names of the inputs and of the requested outputs, in order.
const INPUTS: &str = "inputs";
const OUTPUTS: &str = "outputs";
/// Prefix of the key with the shape of a byte string tensor. safetensors has no strings, so they are stored
/// as U8 in the protocol's raw form.
const STRINGS: &str = "strings:";

/// JSON cannot express NaN and the infinities. Such a number is stored as an object with this key, whose
/// value is `NaN`, `inf` or `-inf`.
const NON_FINITE: &str = "double";

/// Encodes a request as a file.
pub(crate) fn request_file(request: &InferRequest) -> Result<Vec<u8>, Error> {
    let model = request.model();
    let mut metadata = metadata_of(
        model.name(),
        model.version(),
        request.id.as_deref(),
        &request.parameters,
    );
    let names = |names: Vec<&str>| serde_json::to_string(&names).unwrap_or_default();
    metadata.insert(
        INPUTS.to_owned(),
        names(request.inputs.iter().map(|input| &*input.name).collect()),
    );
    metadata.insert(
        OUTPUTS.to_owned(),
        names(request.outputs.iter().map(|output| &*output.name).collect()),
    );
    let tensors = request.inputs.iter().map(|input| (&*input.name, &input.value));
    encode(tensors.collect(), metadata)
}

/// Encodes a response as a recorder writes it: a safetensors file with its outputs.
///
/// # Errors
/// When the outputs cannot be stored: duplicate names, or a name reserved by the format.
pub fn answer_file(response: &InferResponse) -> Result<Vec<u8>, Error> {
    let metadata = metadata_of(
        &response.model_name,
        response.model_version.as_deref(),
        response.id.as_deref(),
        &response.parameters,
    );
    let tensors = response
        .outputs
        .iter()
        .map(|output| (&*output.name, &output.value));
    encode(tensors.collect(), metadata)
}

fn metadata_of(model: &str, version: Option<&str>, id: Option<&str>, parameters: &Parameters) -> Metadata {
    let mut metadata = Metadata::default();
    let mut put = |key: &str, value: Option<&str>| {
        if let Some(value) = value {
            metadata.insert(key.to_owned(), value.to_owned());
        }
    };
    put(MODEL, Some(model));
    put(VERSION, version);
    put(ID, id);
    if !parameters.is_empty() {
        let values = parameters.iter().map(|(name, value)| (name, json(value)));
        let values: BTreeMap<_, _> = values.collect();
        put(PARAMETERS, serde_json::to_string(&values).ok().as_deref());
    }
    metadata
}

fn json(value: &ParameterValue) -> Value {
    match value {
        ParameterValue::Bool(value) => (*value).into(),
        ParameterValue::Int64(value) => (*value).into(),
        ParameterValue::Uint64(value) => (*value).into(),
        ParameterValue::Double(value) if value.is_finite() => (*value).into(),
        // JSON cannot represent NaN and the infinities.
        ParameterValue::Double(value) => serde_json::json!({NON_FINITE: value.to_string()}),
        ParameterValue::String(value) => value.as_str().into(),
        other => other.to_string().into(),
    }
}

fn encode(tensors: Vec<(&str, &TensorValue)>, mut metadata: Metadata) -> Result<Vec<u8>, Error> {
    let mut specs = Vec::with_capacity(tensors.len());
    for (name, value) in &tensors {
        let spec = match value {
            TensorValue::Fixed(tensor) => tensor.spec().clone(),
            TensorValue::Bytes(strings) => {
                let shape = serde_json::to_string(strings.shape().dims()).unwrap_or_default();
                metadata.insert(format!("{STRINGS}{name}"), shape);
                let length = Shape::vector(strings.raw().len() as u64);
                // One byte per element, so the element count is the length of a buffer in memory.
                TensorSpec::new(DType::U8, length).unwrap_or_else(|_| unreachable!("it is in memory"))
            }
        };
        specs.push(((*name).to_owned(), spec));
    }
    let mut writer = SafetensorsWriter::new(Vec::new(), &specs, &metadata)?;
    for (_, value) in tensors {
        writer.write(value.raw())?;
    }
    writer.finish()
}

/// Decodes a request's file; the inner error explains why the file is not a request.
pub(crate) fn read_request(reader: &SafetensorsReader) -> Result<Result<InferRequest, String>, Error> {
    let metadata = reader.metadata();
    let Some(model) = metadata.get(MODEL) else {
        return Ok(Err("its metadata names no model".to_owned()));
    };
    let model = match ModelRef::new(model, metadata.get(VERSION).map(String::as_str)) {
        Ok(model) => model,
        Err(error) => return Ok(Err(error.to_string())),
    };
    let mut request = InferRequest::new(model);
    request.id = metadata.get(ID).cloned();
    let names = |key: &str| -> Result<Vec<String>, String> {
        let text = metadata.get(key).map_or("[]", String::as_str);
        serde_json::from_str(text).map_err(|error| format!("its metadata '{key}': {error}"))
    };
    let (inputs, outputs) = match (names(INPUTS), names(OUTPUTS), parameters_of(metadata)) {
        (Ok(inputs), Ok(outputs), Ok(parameters)) => {
            request.parameters = parameters;
            (inputs, outputs)
        }
        (Err(why), ..) | (_, Err(why), _) | (.., Err(why)) => return Ok(Err(why)),
    };
    for name in inputs {
        let Some(index) = reader.find(&name) else {
            return Ok(Err(format!(
                "it has no tensor '{name}', which its metadata lists"
            )));
        };
        let tensor = reader.tensor(index)?;
        let value = match metadata.get(&format!("{STRINGS}{name}")) {
            None => TensorValue::Fixed(tensor),
            Some(shape) => match strings(shape, tensor.into_bytes()) {
                Ok(strings) => TensorValue::Bytes(strings),
                Err(why) => return Ok(Err(format!("tensor '{name}': {why}"))),
            },
        };
        request = request.with_input(name, value);
    }
    for name in outputs {
        request = request.with_output(name);
    }
    Ok(Ok(request))
}

fn strings(shape: &str, raw: impl Into<Vec<u8>>) -> Result<BytesTensor, String> {
    let dims: Vec<u64> = serde_json::from_str(shape).map_err(|error| error.to_string())?;
    let shape = Shape::new(&dims).map_err(|error| error.to_string())?;
    BytesTensor::new(shape, raw.into().into()).map_err(|error| error.to_string())
}

fn parameters_of(metadata: &Metadata) -> Result<Parameters, String> {
    let Some(text) = metadata.get(PARAMETERS) else {
        return Ok(Parameters::new());
    };
    let wrong = |why: &dyn std::fmt::Display| format!("its metadata '{PARAMETERS}': {why}");
    let values: BTreeMap<String, Value> = serde_json::from_str(text).map_err(|error| wrong(&error))?;
    let values = values.into_iter().map(|(name, value)| {
        let read = match &value {
            Value::Bool(value) => ParameterValue::Bool(*value),
            Value::String(value) => ParameterValue::String(value.clone()),
            Value::Number(number) => match (number.as_i64(), number.as_u64(), number.as_f64()) {
                (Some(value), ..) => ParameterValue::Int64(value),
                (_, Some(value), _) => ParameterValue::Uint64(value),
                (.., Some(value)) => ParameterValue::Double(value),
                _ => return Err(wrong(&format!("{name} is {value}"))),
            },
            Value::Object(object) if object.len() == 1 => {
                let number = object.get(NON_FINITE).and_then(Value::as_str);
                match number.and_then(|number| number.parse::<f64>().ok()) {
                    Some(number) => ParameterValue::Double(number),
                    None => return Err(wrong(&format!("{name} is {value}"))),
                }
            }
            other => return Err(wrong(&format!("{name} is {other}"))),
        };
        Ok((name, read))
    });
    values.collect()
}
