//! The operator's configuration: parsed from one of three syntaxes and checked for consistency.

use std::collections::BTreeMap;

use oip_types::{
    DataType, ModelConfig, check_name,
    model_config::{InputConfig, InstanceKind, OutputConfig, Reshape, VersionPolicy},
};
use serde::Deserialize;
use serde_json::{Map, Value as Json};
use tensor_core::QuotedName;

use crate::{
    ConfigError, Role,
    fields::MODEL_CONFIG,
    normalize::normalize,
    pbtxt,
    tree::{self, Node},
};

/// A configuration as the operator wrote it: parsed and consistent, but not yet checked against a model.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct WrittenConfig {
    /// The configuration, without inputs and outputs.
    pub config: ModelConfig,
    /// The configured inputs.
    pub inputs: Vec<WrittenTensor>,
    /// The configured outputs. If there are any, the model's other outputs are hidden.
    pub outputs: Vec<WrittenTensor>,
    /// Whether the model's file is mapped instead of read.
    pub is_mapped: bool,
    /// The maximum batch size; `None` if the field is absent, which is not the same as 0.
    pub max_batch_size: Option<u32>,
    /// Warnings for the operator about unknown fields and fields without effect.
    pub warnings: Vec<String>,
}

/// A configured input or output. Absent fields are taken from the model.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct WrittenTensor {
    /// Name of the input or output.
    pub name: String,
    /// Datatype of the input or output; `None` if absent.
    #[serde(deserialize_with = "datatype")]
    pub data_type: Option<DataType>,
    /// Layout of the input, if it is an image.
    pub format: oip_types::model_config::InputFormat,
    /// The dimensions; `None` if absent. -1 stands for a free dimension. The batch dimension is omitted if
    /// the model batches.
    pub dims: Option<Vec<i64>>,
    /// The dimensions that the model sees, if clients see different ones.
    pub reshape: Option<Reshape>,
    /// Whether requests may omit the input.
    pub optional: bool,
    /// The file with an output's labels; empty if the output has none.
    pub label_filename: String,
}

/// The syntax of a configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Syntax {
    /// Protocol buffers' text format, `config.pbtxt`.
    Pbtxt,
    /// JSON, used for `config.json` and for the configuration in a load request.
    Json,
    /// TOML, used for `config.toml`.
    Toml,
}

impl WrittenConfig {
    /// The possible file names of a configuration.
    pub const FILES: [(&'static str, Syntax); 3] = [
        ("config.pbtxt", Syntax::Pbtxt),
        ("config.json", Syntax::Json),
        ("config.toml", Syntax::Toml),
    ];

    /// The value of `platform` for a pipeline in Triton's configurations.
    pub const PIPELINE: &'static str = "ensemble";

    /// The parameter that selects whether the model's file is mapped.
    pub const MAPPED: &'static str = "parameters.mapped";

    /// Maximum size of a configuration in bytes.
    pub const MAX_BYTES: usize = 1 << 20;

    /// Parses a configuration and checks that it is consistent.
    ///
    /// # Errors
    /// Returns the problem and its position, for the author of the configuration.
    pub fn read(text: &str, syntax: Syntax) -> Result<Self, ConfigError> {
        if text.len() > Self::MAX_BYTES {
            return Err(ConfigError::TooLarge {
                limit: Self::MAX_BYTES,
            });
        }
        let text = text.trim_start_matches('\u{feff}');
        let node = parse(text, syntax)?;
        let normalized = normalize(&node, MODEL_CONFIG, (syntax == Syntax::Pbtxt).then_some(text))?;
        let mut json = normalized.json;
        one_of(&json, "", &["dynamic_batching", "ensemble_scheduling"], false)?;
        let inputs = tensors(&mut json, Role::Input)?;
        let outputs = tensors(&mut json, Role::Output)?;
        complete_version_policy(&mut json)?;
        check_warmups(&json)?;
        let max_batch_size = json.get("max_batch_size").and_then(Json::as_u64);
        // The field table and the types agree, so this should not fail.
        let config: ModelConfig =
            serde_json::from_value(Json::Object(json)).map_err(|error| ConfigError::Value(error.into()))?;
        let mut warnings = Vec::new();
        if !normalized.unknown.is_empty() {
            warnings.push(format!("unknown fields: {}", normalized.unknown.join(", ")));
        }
        let mut without_effect = normalized.without_effect;
        if config
            .instance_group
            .iter()
            .any(|group| group.kind == InstanceKind::Model)
        {
            without_effect.push("instance_group.kind KIND_MODEL (it counts as KIND_AUTO)".to_owned());
        }
        if !config.default_model_filename.is_empty() {
            check_name("default_model_filename", &config.default_model_filename)
                .map_err(|source| ConfigError::FileName { tensor: None, source })?;
        }
        let is_mapped = is_mapped(&config)?;
        check_pipeline(&config, &mut without_effect)?;
        if !without_effect.is_empty() {
            warnings.push(format!(
                "fields without effect here: {}",
                without_effect.join(", ")
            ));
        }
        let max_batch_size = max_batch_size.map(|size| u32::try_from(size).unwrap_or(u32::MAX));
        Ok(Self {
            config,
            inputs,
            outputs,
            is_mapped,
            max_batch_size,
            warnings,
        })
    }

    /// Returns whether the configuration describes a pipeline of other models, not a model with a file.
    pub fn is_pipeline(&self) -> bool {
        self.config.ensemble_scheduling.is_some() || self.config.platform == Self::PIPELINE
    }

    /// Returns the configured dimensions of the inputs, as the model sees them, by input name.
    pub fn input_dims(&self) -> BTreeMap<String, Vec<i64>> {
        let written = self.inputs.iter();
        written
            .filter_map(|input| Some((input.name.clone(), input.model_dims()?.to_vec())))
            .collect()
    }

    /// Returns the inputs and the outputs that have both datatype and dimensions, for backends whose models
    /// have no metadata. The dimensions are those that the model sees; with `reshape`, clients see other
    /// dimensions.
    pub fn complete_tensors(&self) -> (Vec<InputConfig>, Vec<OutputConfig>) {
        let input = |tensor: &WrittenTensor| {
            Some(InputConfig {
                name: tensor.name.clone(),
                data_type: tensor.data_type?,
                format: tensor.format,
                dims: tensor.model_dims()?.to_vec(),
                reshape: None,
                is_shape_tensor: false,
                allow_ragged_batch: false,
                optional: tensor.optional,
            })
        };
        let output = |tensor: &WrittenTensor| {
            Some(OutputConfig {
                name: tensor.name.clone(),
                data_type: tensor.data_type?,
                dims: tensor.model_dims()?.to_vec(),
                reshape: None,
                label_filename: tensor.label_filename.clone(),
                is_shape_tensor: false,
            })
        };
        (
            self.inputs.iter().filter_map(input).collect(),
            self.outputs.iter().filter_map(output).collect(),
        )
    }

    /// Returns the name of the field that names the backend, `backend` or `platform`, and its value.
    pub fn backend_name(&self) -> Option<(&'static str, &str)> {
        let named = [
            ("backend", self.config.backend.as_str()),
            ("platform", self.config.platform.as_str()),
        ];
        named.into_iter().find(|(_, name)| !name.is_empty())
    }
}

impl WrittenTensor {
    /// Returns the configured dimensions that the model sees: those of `reshape` or, without it, `dims`.
    pub(crate) fn model_dims(&self) -> Option<&[i64]> {
        match &self.reshape {
            Some(reshape) => Some(&reshape.shape),
            None => self.dims.as_deref(),
        }
    }
}

/// Parses a configuration into an untyped tree.
fn parse(text: &str, syntax: Syntax) -> Result<Node, ConfigError> {
    match syntax {
        Syntax::Pbtxt => pbtxt::read(text),
        Syntax::Json => serde_json::from_str(text).map_err(|error| ConfigError::Syntax {
            // The message of the JSON parser already contains line and column.
            place: None,
            problem: error.to_string(),
            source: Some(error.into()),
        }),
        Syntax::Toml => toml::from_str(text).map_err(|error: toml::de::Error| ConfigError::Syntax {
            place: error.span().map(|span| tree::place(text, span.start)),
            problem: error.message().replace('\n', " "),
            source: Some(error.into()),
        }),
    }
}

/// Returns whether a parameter requests that the model's file be mapped.
fn is_mapped(config: &ModelConfig) -> Result<bool, ConfigError> {
    let mapped = config.parameters.get("mapped");
    match mapped.map(|mapped| mapped.string_value.as_str()) {
        None | Some("false") => Ok(false),
        Some("true") => Ok(true),
        Some(other) => Err(ConfigError::NotBool {
            field: WrittenConfig::MAPPED,
            found: other.to_owned(),
        }),
    }
}

/// Takes inputs or outputs out of the JSON and checks that names are unique.
fn tensors(json: &mut Map<String, Json>, role: Role) -> Result<Vec<WrittenTensor>, ConfigError> {
    let Some(list) = json.remove(&role.to_string()) else {
        return Ok(Vec::new());
    };
    let tensors: Vec<WrittenTensor> =
        serde_json::from_value(list).map_err(|error| ConfigError::Value(error.into()))?;
    for (index, tensor) in tensors.iter().enumerate() {
        if tensor.name.is_empty() {
            return Err(ConfigError::Unnamed { role, index });
        }
        if tensors[..index].iter().any(|earlier| earlier.name == tensor.name) {
            return Err(ConfigError::SameName {
                role,
                name: tensor.name.clone(),
            });
        }
        if !tensor.label_filename.is_empty() {
            check_name("label_filename", &tensor.label_filename).map_err(|source| ConfigError::FileName {
                tensor: Some((role, tensor.name.clone())),
                source,
            })?;
        }
    }
    Ok(tensors)
}

/// Completes the version policy: `latest` without a number means the latest version only.
fn complete_version_policy(json: &mut Map<String, Json>) -> Result<(), ConfigError> {
    let Some(Json::Object(policy)) = json.get_mut("version_policy") else {
        return Ok(());
    };
    one_of(policy, "version_policy.", &["latest", "all", "specific"], false)?;
    if policy.is_empty() {
        let default = serde_json::to_value(VersionPolicy::default())
            .map_err(|error| ConfigError::Value(error.into()))?;
        json.insert("version_policy".to_owned(), default);
        return Ok(());
    }
    let mut insert = |kind: &str, field: &str, value: Json| {
        if let Some(Json::Object(kind)) = policy.get_mut(kind) {
            kind.entry(field).or_insert(value);
        }
    };
    insert("latest", "num_versions", 1.into());
    insert("specific", "versions", Json::Array(Vec::new()));
    Ok(())
}

/// Checks that each input of a warm-up request has a type and exactly one kind of content.
fn check_warmups(json: &Map<String, Json>) -> Result<(), ConfigError> {
    let warmups = json.get("model_warmup").and_then(Json::as_array);
    for (index, warmup) in warmups.into_iter().flatten().enumerate() {
        let inputs = warmup.get("inputs").and_then(Json::as_object);
        for (name, input) in inputs.into_iter().flatten() {
            let path = format!("model_warmup[{index}].inputs[{}]", QuotedName(name));
            let Some(input) = input.as_object() else { continue };
            if !input.contains_key("data_type") {
                return Err(ConfigError::NoDatatype { field: path });
            }
            let contents = ["zero_data", "random_data", "input_data_file"];
            one_of(input, &format!("{path}."), &contents, true)?;
        }
    }
    Ok(())
}

/// Checks that a pipeline names no other backend, and records fields that only models with a file use.
fn check_pipeline(config: &ModelConfig, without_effect: &mut Vec<String>) -> Result<(), ConfigError> {
    if config.ensemble_scheduling.is_none() {
        return Ok(());
    }
    for (field, value) in [("platform", &config.platform), ("backend", &config.backend)] {
        if !value.is_empty() && value != WrittenConfig::PIPELINE {
            return Err(ConfigError::NotEnsemble {
                field,
                found: value.clone(),
            });
        }
    }
    let fields = [
        ("instance_group", !config.instance_group.is_empty()),
        ("model_warmup", !config.model_warmup.is_empty()),
        (
            "default_model_filename",
            !config.default_model_filename.is_empty(),
        ),
    ];
    let given = fields.iter().filter(|(_, is_given)| *is_given);
    without_effect.extend(given.map(|(field, _)| format!("{field} (a pipeline runs its steps' models)")));
    Ok(())
}

/// Checks that at most one of the fields `names` is present or, if `is_required`, exactly one.
fn one_of(
    json: &Map<String, Json>,
    path: &str,
    names: &[&'static str],
    is_required: bool,
) -> Result<(), ConfigError> {
    let mut given = names.iter().filter(|name| json.contains_key(**name));
    match (given.next(), given.next()) {
        (Some(first), Some(second)) => Err(ConfigError::Conflict {
            first: format!("{path}{first}"),
            second: format!("{path}{second}"),
        }),
        (None, _) if is_required => Err(ConfigError::Missing {
            field: path.trim_end_matches('.').to_owned(),
            one_of: names.to_vec(),
        }),
        _ => Ok(()),
    }
}

fn datatype<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<DataType>, D::Error> {
    let name = String::deserialize(deserializer)?;
    let unknown = || serde::de::Error::custom(format_args!("unknown datatype {name}"));
    DataType::from_config_name(&name).ok_or_else(unknown).map(Some)
}

#[cfg(test)]
mod tests {
    use oip_types::model_config::WarmupData;

    use super::*;

    fn pbtxt(text: &str) -> Result<WrittenConfig, String> {
        WrittenConfig::read(text, Syntax::Pbtxt).map_err(|error| error.to_string())
    }

    #[test]
    fn nothing_written_is_nothing_said() {
        for syntax in [Syntax::Pbtxt, Syntax::Toml] {
            assert_eq!(WrittenConfig::read("", syntax).unwrap(), WrittenConfig::default());
        }
        let empty = WrittenConfig::read("\u{feff}{}", Syntax::Json);
        assert_eq!(empty.unwrap(), WrittenConfig::default());
    }

    #[test]
    fn tensors_that_are_written_in_full_are_shown_to_backends() {
        let text = r#"input [ { name: "x" data_type: TYPE_FP32 dims: [ -1, 3 ] optional: true }, { name: "y" dims: [ 2 ] } ]
            output [ { name: "z" data_type: TYPE_STRING dims: [ 1 ] label_filename: "l.txt" } ]"#;
        let (inputs, outputs) = pbtxt(text).unwrap().complete_tensors();
        let [input] = &inputs[..] else {
            panic!("{inputs:?}")
        };
        assert_eq!(
            (input.name.as_str(), &input.dims[..], input.optional),
            ("x", &[-1, 3][..], true)
        );
        let [output] = &outputs[..] else {
            panic!("{outputs:?}")
        };
        assert_eq!(
            (output.data_type, output.label_filename.as_str()),
            (DataType::Bytes, "l.txt")
        );
    }

    /// Clients send tensors with `dims`; the model sees only the `reshape` dimensions.
    #[test]
    fn backends_are_shown_the_dimensions_behind_a_reshape() {
        let text = r#"input [ { name: "x" data_type: TYPE_FP32 dims: [ 1, 64 ] reshape { shape: [ 64 ] } }, { name: "y" dims: [ 2 ] } ]
            output [ { name: "z" data_type: TYPE_FP32 dims: [ 1 ] reshape { shape: [ ] } } ]"#;
        let written = pbtxt(text).unwrap();
        let dims = written.input_dims();
        assert_eq!((&dims["x"][..], &dims["y"][..]), (&[64][..], &[2][..]));
        let (inputs, outputs) = written.complete_tensors();
        assert_eq!((&inputs[0].dims[..], &outputs[0].dims[..]), (&[64][..], &[][..]));
    }

    #[test]
    fn a_configuration_as_triton_has_it() {
        let text = r#"
            name: "m"  # the folder's
            platform: "onnxruntime_onnx"
            max_batch_size: 8
            input [ { name: "X" data_type: TYPE_FP32 format: FORMAT_NCHW dims: [ 3, 2, 2 ] } ]
            output [ { name: "Y" data_type: TYPE_STRING dims: [ -1 ] label_filename: "labels.txt" } ]
            instance_group [ { count: 2 kind: KIND_GPU gpus: [ 0 ] } ]
            version_policy: { latest { } }
            dynamic_batching { preferred_batch_size: [ 4, 8 ] max_queue_delay_microseconds: 100 }
            model_warmup { name: "w" inputs { key: "X" value { data_type: TYPE_FP32 dims: [3, 2, 2] zero_data: true } } }
            parameters { key: "threads" value { string_value: "2" } }
            optimization {
              execution_accelerators {
                gpu_execution_accelerator : [ {
                  name : "cuda"
                  parameters { key: "gpu_mem_limit" value: "1073741824" }
                } ]
                cpu_execution_accelerator { name: "openvino" }
              }
              input_pinned_memory { enable: false }
            }
        "#;
        let written = pbtxt(text).unwrap();
        let config = &written.config;
        assert_eq!(
            (config.name.as_str(), written.backend_name()),
            ("m", Some(("platform", "onnxruntime_onnx")))
        );
        assert_eq!(written.max_batch_size, Some(8));
        assert_eq!(written.inputs[0].dims, Some(vec![3, 2, 2]));
        assert_eq!(written.outputs[0].data_type, Some(DataType::BYTES));
        assert_eq!(config.version_policy, VersionPolicy::Latest { num_versions: 1 });
        let batching = config.dynamic_batching.as_ref().unwrap();
        assert_eq!(
            (
                &batching.preferred_batch_size[..],
                batching.max_queue_delay_microseconds
            ),
            (&[4, 8][..], 100)
        );
        assert_eq!(
            config.model_warmup[0].inputs["X"].data,
            WarmupData::ZeroData(true)
        );
        assert_eq!(config.parameters["threads"].string_value, "2");
        let group = &config.instance_group[0];
        assert_eq!((group.kind, &group.gpus[..]), (InstanceKind::Gpu, &[0][..]));
        let accelerators = &config.optimization.execution_accelerators;
        let [cuda] = &accelerators.gpu_execution_accelerator[..] else {
            panic!("{accelerators:?}")
        };
        assert_eq!(
            (cuda.name.as_str(), cuda.parameters["gpu_mem_limit"].as_str()),
            ("cuda", "1073741824")
        );
        assert_eq!(accelerators.cpu_execution_accelerator[0].name, "openvino");
        assert_eq!(
            written.warnings,
            ["fields without effect here: optimization.input_pinned_memory (how fast, not what)"]
        );
    }

    #[test]
    fn toml_and_json_have_the_same_schema() {
        let toml = "max_batch_size = 4\n[[input]]\nname = \"X\"\ndata_type = \"TYPE_FP32\"\ndims = [2]\n\
                    [version_policy.specific]\nversions = [1, 2]\n[parameters.a]\nstring_value = \"b\"\n";
        let json = r#"{"max_batch_size": 4, "input": [{"name": "X", "data_type": "TYPE_FP32", "dims": [2]}],
                    "version_policy": {"specific": {"versions": [1, 2]}}, "parameters": {"a": {"string_value": "b"}}}"#;
        let read = |text, syntax| WrittenConfig::read(text, syntax).unwrap();
        assert_eq!(read(toml, Syntax::Toml), read(json, Syntax::Json));
        for (text, syntax, expected) in [
            ("a = 1\nb = = 2", Syntax::Toml, "line 2, column 5: "),
            ("{\n\"a\": }", Syntax::Json, "line 2 column 6"),
        ] {
            let error = WrittenConfig::read(text, syntax).unwrap_err().to_string();
            assert!(error.contains(expected) && !error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn what_contradicts_itself_is_refused() {
        for (text, expected) in [
            ("input { data_type: TYPE_FP32 }", "input[0] has no name"),
            (
                "output { name: \"y\" } output { name: \"y\" }",
                "output 'y' is given twice",
            ),
            (
                "output { name: \"y\" label_filename: \"../../etc/passwd\" }",
                "output 'y': label_filename '../../etc/passwd' must not contain a path separator",
            ),
            (
                "default_model_filename: \"/etc/passwd\"",
                "default_model_filename '/etc/passwd' must not contain a path separator",
            ),
            (
                "version_policy { all { } latest { } }",
                "version_policy.latest and version_policy.all cannot be combined",
            ),
            (
                "model_warmup { inputs { key: \"x\" value { zero_data: true } } }",
                "model_warmup[0].inputs['x'] has no data_type",
            ),
            (
                "model_warmup { inputs { key: \"x\" value { data_type: TYPE_FP32 } } }",
                "model_warmup[0].inputs['x']: expected one of zero_data, random_data, input_data_file",
            ),
        ] {
            assert_eq!(pbtxt(text).unwrap_err(), expected);
        }
    }

    /// Checks that oversized, deeply nested and very long configurations are handled quickly.
    #[test]
    fn configurations_are_bounded() {
        let start = std::time::Instant::now();
        let large = "# padding\n".repeat(1 << 20);
        assert_eq!(pbtxt(&large).unwrap_err(), "it is larger than 1048576 bytes");
        let deep = |open: &str| open.repeat(100_000);
        assert!(WrittenConfig::read(&deep("{\"a\":"), Syntax::Json).is_err());
        assert!(WrittenConfig::read(&format!("a = {}", deep("[")), Syntax::Toml).is_err());
        assert!(pbtxt(&deep("input {")).is_err());
        let many = "a:1 ".repeat((1 << 18) - 1);
        assert_eq!(pbtxt(&many).unwrap().warnings, ["unknown fields: a"]);
        let dims = format!("input {{ name: \"x\" dims: [{}1] }}", "1,".repeat(400_000));
        assert!(pbtxt(&dims).is_ok());
        assert!(
            start.elapsed() < std::time::Duration::from_secs(20),
            "{:?}",
            start.elapsed()
        );
    }

    /// Damaged configurations give errors or valid configurations, never panics.
    #[test]
    fn damaged_configurations_are_only_errors() {
        let good = "name: \"größe\\x41\\u00e4\" max_batch_size: 0x8 # so\n\
            input [ { name: \"X\" data_type: TYPE_FP32 dims: [ -1, 3 ] } ]\n\
            parameters { key: 'a' value: < string_value: \"b\" 'c' > }\n\
            model_warmup { inputs { key: \"X\" value { data_type: TYPE_FP32 zero_data: true } } }\n";
        assert!(pbtxt(good).is_ok());
        let mut random = 0x9e37_79b9_7f4a_7c15u64;
        let mut next = |most: usize| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            usize::try_from(random % most as u64).unwrap()
        };
        let pieces = [
            "{", "}", "[", "]", "<", "\"", "'", "\\", "\\x", "\\u12", "\\9", "#", ":", "-", "ä", "\u{0}",
            "1e+", "\n", ",",
        ];
        for _ in 0..20_000 {
            let mut text: Vec<char> = good.chars().collect();
            for _ in 0..=next(3) {
                let at = next(text.len() + 1);
                match next(3) {
                    0 => drop(text.splice(at..text.len().min(at + 1), [])),
                    1 => text.truncate(at.max(1)),
                    _ => drop(text.splice(at..at, pieces[next(pieces.len())].chars())),
                }
            }
            let text: String = text.into_iter().collect();
            if let Err(error) = pbtxt(&text) {
                assert!(!error.is_empty() && !error.contains('\n'), "{error}");
            }
        }
    }
}
