//! Adds the service's current models to the API description. Each model gets its own path with schemas of its
//! inputs and outputs, and working examples.

use std::sync::Arc;

use oip_service::{InferenceService, extensions};
use oip_types::{
    DataType, ExampleInput, ModelMetadata, ModelRef, ModelState, ServiceError, TensorMetadata,
    rest::json_body,
};
use serde_json::{Map, Value, json};

/// Maximum number of models described; a server may have thousands.
const MAX_MODELS: usize = 64;

/// Maximum number of inputs, and of outputs, described per model; a tensor file has one output per tensor.
const MAX_TENSORS: usize = 16;

/// Maximum number of elements in an example. For larger tensors the description has the shapes, from which
/// `/docs` generates data.
const MAX_ELEMENTS: u64 = 4096;

/// Returns the ready models visible to a client, sorted by name, up to one more than the maximum.
pub(crate) fn ready_models(
    service: &dyn InferenceService,
    may_see: &dyn Fn(&str) -> bool,
) -> Vec<Arc<ModelMetadata>> {
    let mut names: Vec<String> = extensions::index(service, true)
        .unwrap_or_default()
        .into_iter()
        .filter(|entry| entry.state == Some(ModelState::Ready) && may_see(&entry.name))
        .map(|entry| entry.name)
        .collect();
    names.dedup();
    names
        .iter()
        .filter_map(|name| service.model_metadata(ModelRef::new(name, None).ok()?).ok())
        .take(MAX_MODELS + 1)
        .collect()
}

/// Returns the description with `models` added.
///
/// # Errors
/// [`Internal`](oip_types::ErrorCode::Internal) if the static description is not a JSON object; a test
/// ensures that it is.
pub(crate) fn with_models(
    description: &str,
    models: &[Arc<ModelMetadata>],
) -> Result<bytes::Bytes, ServiceError> {
    let mut description: Value = serde_json::from_str(description)
        .map_err(|error| ServiceError::internal("the description cannot be read").caused_by(error))?;
    let described = &models[..models.len().min(MAX_MODELS)];
    if described.len() < models.len()
        && let Some(Value::String(about)) = description.pointer_mut("/info/description")
    {
        *about += &format!(
            " There are more models than the {MAX_MODELS} described here: `GET /v2/models` lists them."
        );
    }
    fill_in_general_examples(&mut description, described);
    fill_in_text_examples(&mut description, described);
    add_models(&mut description, described);
    Ok(json_body(&description))
}

/// Replaces the examples of generic operations with a loaded model's name and a body that it accepts.
fn fill_in_general_examples(description: &mut Value, models: &[Arc<ModelMetadata>]) {
    let with_example = || models.iter().filter(|model| !small_example(model).is_empty());
    // `generate` supports lists along the last dimension only.
    let takes_lists = |model: &&Arc<ModelMetadata>| {
        let example = ExampleInput::all_of(model);
        let is_list = |input: &ExampleInput<'_>| input.dims().iter().rev().skip(1).all(|dim| *dim == 1);
        example.iter().all(is_list)
    };
    let chosen = with_example()
        .find(takes_lists)
        .or_else(|| with_example().next())
        .or_else(|| models.first());
    let version = |model: &Arc<ModelMetadata>| model.versions.last().map_or("1", String::as_str).to_owned();
    let parameters = [
        ("model", chosen.map(|model| model.name.clone())),
        ("version", chosen.map(version)),
    ];
    for (parameter, value) in parameters {
        let pointer = format!("/components/parameters/{parameter}");
        set_example(description, &pointer, value.map(Value::String));
    }
    let example = chosen.map_or_else(Vec::new, |model| small_example(model));
    let by_name = |data: &dyn Fn(&ExampleInput<'_>) -> Value| -> Value {
        let inputs = example
            .iter()
            .map(|input| (input.tensor().name.clone(), data(input)));
        inputs.collect::<Map<String, Value>>().into()
    };
    let infer = json!({ "inputs": example.iter().map(ExampleInput::json).collect::<Vec<_>>() });
    let generate = by_name(&|input| input.json()["data"].take());
    let predict = json!({ "inputs": by_name(&|input| input.nested()) });
    let prefixes = ["/v2/models/{model}", "/v2/models/{model}/versions/{version}"];
    let v2 = prefixes.iter().flat_map(|prefix| {
        let bodies = [
            ("infer", &infer),
            ("generate", &generate),
            ("generate_stream", &generate),
        ];
        bodies.map(|(action, body)| (format!("{prefix}/{action}"), body))
    });
    let v1 = [
        "/v1/models/{model}:predict",
        "/v1/models/{model}/versions/{version}:predict",
    ];
    let v1 = v1.into_iter().map(|path| (path.to_owned(), &predict));
    for (path, body) in v2.chain(v1) {
        let operation = &mut description["paths"][path.as_str()]["post"];
        set_example(operation, BODY, (!example.is_empty()).then(|| body.clone()));
        // The example response in the description comes from a different model.
        set_example(operation, ANSWER, None);
    }
}

/// Fills the example of each text operation with the name of a model that has the outputs that the operation
/// needs. Without such a model, the example contains no model name.
fn fill_in_text_examples(description: &mut Value, models: &[Arc<ModelMetadata>]) {
    let operations: [(&str, &[&str]); 5] = [
        ("/v1/embeddings", &["embedding"]),
        ("/embed", &["embedding"]),
        ("/v1/rerank", &["score"]),
        ("/rerank", &["score"]),
        ("/predict", &["scores", "score"]),
    ];
    for (path, outputs) in operations {
        let able = models.iter().find(|model| takes_texts(model, outputs));
        let body = format!("{BODY}/example");
        let operation = &mut description["paths"][path]["post"];
        if let Some(Value::Object(example)) = operation.pointer_mut(&body) {
            match able {
                Some(model) => drop(example.insert("model".to_owned(), json!(model.name))),
                None => drop(example.remove("model")),
            }
        }
        // The example response in the description comes from a different model.
        set_example(operation, ANSWER, None);
    }
}

/// Returns whether a model accepts texts and has one of `outputs`.
pub(crate) fn takes_texts(model: &ModelMetadata, outputs: &[&str]) -> bool {
    let mut inputs = model.inputs.iter();
    let has_text = inputs.any(|input| input.name == "text" && input.datatype == DataType::BYTES);
    let has = |name: &&str| model.outputs.iter().any(|output| output.name == *name);
    has_text && outputs.iter().any(has)
}

/// JSON pointer to an operation's example body.
const BODY: &str = "/requestBody/content/application~1json";

/// JSON pointer to an operation's example response.
const ANSWER: &str = "/responses/200/content/application~1json";

/// Sets or removes the example at a pointer.
fn set_example(value: &mut Value, pointer: &str, example: Option<Value>) {
    if let Some(Value::Object(members)) = value.pointer_mut(pointer) {
        match example {
            Some(example) => drop(members.insert("example".to_owned(), example)),
            None => drop(members.remove("example")),
        }
    }
}

/// Returns the inputs of an example, if they are small enough to be shown.
fn small_example(model: &ModelMetadata) -> Vec<ExampleInput<'_>> {
    let example = ExampleInput::all_of(model);
    let total = example
        .iter()
        .try_fold(0u64, |all, input| all.checked_add(input.width()?));
    match total {
        Some(total) if total <= MAX_ELEMENTS => example,
        _ => Vec::new(),
    }
}

/// Adds two paths per model: metadata and inference.
fn add_models(description: &mut Value, models: &[Arc<ModelMetadata>]) {
    let general = |path: &str, method: &str| description["paths"][path][method].clone();
    let metadata = general("/v2/models/{model}", "get");
    let infer = general("/v2/models/{model}/infer", "post");
    let mut paths = Map::new();
    let mut tags = Vec::new();
    for (number, model) in models.iter().enumerate() {
        let tag = format!("model {}", model.name);
        tags.push(json!({ "name": tag, "description": headline(model) }));
        // Function names in generated clients consist of letters and digits; the number makes them unique.
        let id = |action: &str| {
            let is_plain = |char: &char| char.is_ascii_alphanumeric() || *char == '_';
            let name: String = model.name.chars().filter(is_plain).collect();
            format!("{action}_{number}_{name}")
        };
        let path = format!("/v2/models/{}", in_path(&model.name));
        let mut about = metadata.clone();
        about["operationId"] = json!(id("metadata"));
        about["tags"] = json!([tag]);
        about["summary"] = json!(format!("The inputs and outputs of {}", model.name));
        about["parameters"] = json!([]);
        let is_short = model.inputs.len().max(model.outputs.len()) <= MAX_TENSORS;
        set_example(&mut about, ANSWER, is_short.then(|| json!(&**model)));
        let mut run = infer.clone();
        run["operationId"] = json!(id("infer"));
        run["tags"] = json!([tag]);
        run["summary"] = json!(format!("Runs {}", model.name));
        run["parameters"] = json!([{ "$ref": "#/components/parameters/headerLength" }]);
        let content = &mut run["requestBody"]["content"]["application/json"];
        *content = json!({ "schema": request_schema(model) });
        let example = small_example(model);
        if !example.is_empty() {
            let inputs: Vec<Value> = example.iter().map(ExampleInput::json).collect();
            content["example"] = json!({ "inputs": inputs });
        }
        run["responses"]["200"]["content"]["application/json"] = json!({ "schema": response_schema(model) });
        paths.insert(format!("{path}/infer"), json!({ "post": run }));
        paths.insert(path, json!({ "get": about }));
    }
    if let Some(Value::Array(others)) = description.get_mut("tags") {
        tags.append(others);
        *others = tags;
    }
    if let Some(Value::Object(others)) = description.get_mut("paths") {
        // Paths without parameters come before paths with parameters.
        others.extend(paths);
    }
}

/// Formats a summary such as `iris: X FP32[-1, 4] to label INT64[-1], probabilities FP32[-1, 3]`.
fn headline(model: &ModelMetadata) -> String {
    let list = |tensors: &[TensorMetadata]| {
        let some = tensors.iter().take(MAX_TENSORS);
        let mut shown: Vec<String> = some
            .map(|tensor| format!("{} {}{}", tensor.name, tensor.datatype, tensor.shape))
            .collect();
        if tensors.len() > MAX_TENSORS {
            shown.push(format!("{} more", tensors.len() - MAX_TENSORS));
        }
        shown.join(", ")
    };
    format!(
        "{}: {} to {}",
        model.name,
        list(&model.inputs),
        list(&model.outputs)
    )
}

fn request_schema(model: &ModelMetadata) -> Value {
    let example = ExampleInput::all_of(model);
    let required = model.inputs.iter().filter(|input| !input.optional).count();
    let inputs = json!({
        "type": "array",
        "minItems": required,
        "maxItems": model.inputs.len(),
        "items": one_of(&model.inputs, "InferInput", &|input| {
            let example = example.iter().find(|example| example.tensor().name == input.name);
            tensor_schema(input, example.map(ExampleInput::dims))
        }),
    });
    json!({
        "allOf": [
            { "$ref": "#/components/schemas/InferRequest" },
            { "type": "object", "properties": { "inputs": inputs } },
        ]
    })
}

fn response_schema(model: &ModelMetadata) -> Value {
    let outputs = json!({
        "type": "array",
        "items": one_of(&model.outputs, "InferOutput", &|output| tensor_schema(output, None)),
    });
    json!({
        "allOf": [
            { "$ref": "#/components/schemas/InferResponse" },
            { "type": "object", "properties": { "outputs": outputs } },
        ]
    })
}

/// Returns the schema of a list item, which is one of `tensors`. If there are more than [`MAX_TENSORS`], the
/// item may have the component schema `general` instead.
fn one_of(tensors: &[TensorMetadata], general: &str, schema: &dyn Fn(&TensorMetadata) -> Value) -> Value {
    let mut schemas: Vec<Value> = tensors.iter().take(MAX_TENSORS).map(schema).collect();
    if schemas.len() < tensors.len() {
        schemas.push(json!({ "$ref": format!("#/components/schemas/{general}") }));
    }
    match schemas.len() {
        0 => json!({}),
        1 => schemas.remove(0),
        _ => json!({ "anyOf": schemas }),
    }
}

/// Returns the schema of a tensor with the name, type and shape of `tensor`. The schema includes the shape of
/// the example, for clients that generate data.
fn tensor_schema(tensor: &TensorMetadata, example: Option<&[u64]>) -> Value {
    let dims = tensor.shape.dims();
    let mut shape = json!({
        "type": "array",
        "description": format!("{}; -1 stands for any size.", tensor.shape),
        "minItems": dims.len(),
    });
    if !tensor.shape.has_any_leading() {
        shape["maxItems"] = json!(dims.len());
        let each = dims.iter().map(|dim| match dim {
            Some(dim) => json!({ "const": dim }),
            None => json!({ "type": "integer", "minimum": 0 }),
        });
        let each: Vec<Value> = each.collect();
        // JSON Schema does not allow an empty list here.
        if !each.is_empty() {
            shape["prefixItems"] = each.into();
        }
    }
    if let Some(example) = example {
        shape["examples"] = json!([example]);
    }
    let optional = if tensor.optional {
        ", which may be left out"
    } else {
        ""
    };
    json!({
        "type": "object",
        "description": format!("{tensor}{optional}"),
        "required": ["name", "datatype", "shape"],
        "properties": {
            "name": { "const": tensor.name },
            "datatype": { "const": tensor.datatype.name() },
            "shape": shape,
        },
    })
}

/// Encodes a name as a path segment. Braces would start a parameter.
fn in_path(name: &str) -> String {
    let mut path = String::new();
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                path.push(char::from(byte));
            }
            other => path.push_str(&format!("%{other:02X}")),
        }
    }
    path
}
