//! Inference requests in a transport-independent form, and their encoding for each transport.

use axum::{body::Body, http::Request};
use oip_grpc::proto::{
    InferParameter, InferTensorContents, ModelInferRequest,
    infer_parameter::ParameterChoice,
    model_infer_request::{InferInputTensor, InferRequestedOutputTensor},
};
use serde_json::{Map, Value, json};

/// A transport-independent request.
#[derive(Clone)]
pub(super) struct Neutral {
    pub(super) model: String,
    pub(super) version: String,
    pub(super) id: String,
    pub(super) parameters: Vec<(String, Parameter)>,
    pub(super) inputs: Vec<Input>,
    pub(super) outputs: Vec<Output>,
}

#[derive(Clone)]
pub(super) struct Input {
    pub(super) name: String,
    pub(super) datatype: String,
    pub(super) shape: Vec<i64>,
    pub(super) data: Data,
}

/// The elements of an input.
#[derive(Clone)]
pub(super) enum Data {
    /// The bytes after the JSON, or in `raw_input_contents`.
    Raw(Vec<u8>),
    /// As `data`, or in the field of `contents` for the datatype.
    Values(Value),
    /// The bytes at a location given by parameters.
    Elsewhere(Vec<(String, Parameter)>),
}

#[derive(Clone)]
pub(super) struct Output {
    pub(super) name: String,
    pub(super) parameters: Vec<(String, Parameter)>,
}

#[derive(Clone)]
pub(super) enum Parameter {
    Bool(bool),
    Int(i64),
    String(&'static str),
}

pub(super) fn input(name: &str, datatype: &str, shape: &[i64], raw: &[u8]) -> Input {
    Input {
        name: name.into(),
        datatype: datatype.into(),
        shape: shape.into(),
        data: Data::Raw(raw.into()),
    }
}

pub(super) fn output(name: &str) -> Output {
    Output {
        name: name.into(),
        parameters: vec![],
    }
}

pub(super) fn parameters(values: &[(&str, Parameter)]) -> Vec<(String, Parameter)> {
    let owned = |(name, value): &(&str, Parameter)| ((*name).to_owned(), value.clone());
    values.iter().map(owned).collect()
}

/// Returns a request that succeeds.
pub(super) fn good() -> Neutral {
    Neutral {
        model: "identity_fp32".into(),
        version: String::new(),
        id: "42".into(),
        parameters: vec![],
        inputs: vec![input("x", "FP32", &[2], &[0; 8])],
        outputs: vec![],
    }
}

pub(super) fn to_model(model: &str) -> Neutral {
    Neutral {
        model: model.into(),
        ..good()
    }
}

pub(super) fn with_input(model: &str, input: Input) -> Neutral {
    Neutral {
        model: model.into(),
        inputs: vec![input],
        ..good()
    }
}

/// Returns a request with values for the identity model of the datatype.
pub(super) fn with_values(datatype: &str, shape: &[i64], values: Value) -> Neutral {
    let model = format!("identity_{}", datatype.to_ascii_lowercase());
    let input = Input {
        data: Data::Values(values),
        ..input("x", datatype, shape, &[])
    };
    with_input(&model, input)
}

pub(super) fn with_parameter(name: &str, value: Parameter) -> Neutral {
    Neutral {
        parameters: parameters(&[(name, value)]),
        ..good()
    }
}

/// Returns a request for the only output, with these parameters.
pub(super) fn with_output(values: &[(&str, Parameter)]) -> Neutral {
    let output = Output {
        parameters: parameters(values),
        ..output("y")
    };
    Neutral {
        outputs: vec![output],
        ..good()
    }
}

/// Encodes a name as a path segment.
pub(super) fn encode(name: &str) -> String {
    name.replace('%', "%25").replace('/', "%2f").replace(' ', "%20")
}

pub(super) fn to_json(parameters: &[(String, Parameter)]) -> Map<String, Value> {
    let value = |parameter: &Parameter| match parameter {
        Parameter::Bool(value) => json!(value),
        Parameter::Int(value) => json!(value),
        Parameter::String(value) => json!(value),
    };
    let member = |(name, parameter): &(String, Parameter)| (name.clone(), value(parameter));
    parameters.iter().map(member).collect()
}

fn to_proto<M: FromIterator<(String, InferParameter)>>(parameters: &[(String, Parameter)]) -> M {
    let value = |parameter: &Parameter| {
        let choice = match parameter {
            Parameter::Bool(value) => ParameterChoice::BoolParam(*value),
            Parameter::Int(value) => ParameterChoice::Int64Param(*value),
            Parameter::String(value) => ParameterChoice::StringParam((*value).to_owned()),
        };
        InferParameter {
            parameter_choice: Some(choice),
        }
    };
    let member = |(name, parameter): &(String, Parameter)| (name.clone(), value(parameter));
    parameters.iter().map(member).collect()
}

/// Puts the values into the field that clients would choose for the values' type and the datatype's width.
fn to_contents(datatype: &str, values: &Value) -> InferTensorContents {
    let mut contents = InferTensorContents::default();
    for value in values.as_array().unwrap() {
        match value {
            Value::Bool(value) => contents.bool_contents.push(*value),
            Value::String(text) => contents.bytes_contents.push(text.clone().into()),
            Value::Number(number) if number.is_f64() || datatype.starts_with("FP") => {
                let value = number.as_f64().unwrap();
                match datatype {
                    "FP64" => contents.fp64_contents.push(value),
                    _ => contents.fp32_contents.push(value as f32),
                }
            }
            Value::Number(number) => match datatype {
                "UINT64" => contents.uint64_contents.push(number.as_u64().unwrap()),
                "INT64" => contents.int64_contents.push(number.as_i64().unwrap()),
                "UINT8" | "UINT16" | "UINT32" => {
                    contents.uint_contents.push(number.as_u64().unwrap() as u32);
                }
                _ => contents.int_contents.push(number.as_i64().unwrap() as i32),
            },
            _ => panic!("{value} has no field"),
        }
    }
    contents
}

impl Neutral {
    pub(super) fn http(&self) -> Request<Body> {
        let mut path = format!("/v2/models/{}", encode(&self.model));
        if !self.version.is_empty() {
            path += &format!("/versions/{}", encode(&self.version));
        }
        let mut binary = Vec::new();
        let mut inputs = Vec::new();
        for input in &self.inputs {
            let mut json = json!({"name": input.name, "datatype": input.datatype, "shape": input.shape});
            match &input.data {
                Data::Raw(raw) => {
                    json["parameters"] = json!({"binary_data_size": raw.len()});
                    binary.extend_from_slice(raw);
                }
                Data::Values(values) => json["data"] = values.clone(),
                Data::Elsewhere(parameters) => json["parameters"] = to_json(parameters).into(),
            }
            inputs.push(json);
        }
        let output =
            |output: &Output| json!({"name": output.name, "parameters": to_json(&output.parameters)});
        let outputs: Vec<Value> = self.outputs.iter().map(output).collect();
        let json = json!({
            "id": self.id, "parameters": to_json(&self.parameters), "inputs": inputs, "outputs": outputs,
        });
        let json = json.to_string();
        let body = [json.as_bytes(), &binary].concat();
        Request::post(format!("{path}/infer"))
            .header("host", "x")
            .header("inference-header-content-length", json.len())
            .body(body.into())
            .unwrap()
    }

    pub(super) fn grpc(&self) -> ModelInferRequest {
        let mut raw_input_contents = Vec::new();
        let mut inputs = Vec::new();
        for input in &self.inputs {
            let mut message = InferInputTensor {
                name: input.name.clone(),
                datatype: input.datatype.clone(),
                shape: input.shape.clone(),
                ..Default::default()
            };
            match &input.data {
                Data::Raw(raw) => raw_input_contents.push(raw.clone().into()),
                Data::Values(values) => message.contents = Some(to_contents(&input.datatype, values)),
                Data::Elsewhere(parameters) => message.parameters = to_proto(parameters),
            }
            inputs.push(message);
        }
        let outputs = self.outputs.iter().map(|output| InferRequestedOutputTensor {
            name: output.name.clone(),
            parameters: to_proto(&output.parameters),
        });
        ModelInferRequest {
            model_name: self.model.clone(),
            model_version: self.version.clone(),
            id: self.id.clone(),
            parameters: to_proto(&self.parameters),
            inputs,
            outputs: outputs.collect(),
            raw_input_contents,
        }
    }
}
