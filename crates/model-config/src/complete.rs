//! A written configuration checked against a model, and completed from it.

use oip_types::{
    ModelConfig, ModelMetadata, ShapePattern, TensorMetadata,
    model_config::{DynamicBatching, InputConfig, InstanceGroup, InstanceKind, OutputConfig},
};

use crate::{Axes, MismatchError, PipelineError, Role, WrittenConfig, WrittenTensor};

/// Values for fields that a configuration does not set.
///
/// ```
/// let defaults = model_config::Defaults::default().with_instances(4).with_max_batch_size(64);
/// assert_eq!(defaults.instances, 4);
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Defaults {
    /// Threads per model version (1).
    pub instances: usize,
    /// Rows per run, of models that can take batches; 0 to batch only models that are configured so (0).
    pub max_batch_size: u32,
    /// Whether the model gives any number of answers to a request (no).
    pub decoupled: bool,
    /// Whether requests are joined only where the configuration has `dynamic_batching` (no).
    pub joined_only_when_told: bool,
}

impl Default for Defaults {
    fn default() -> Self {
        Self {
            instances: 1,
            max_batch_size: 0,
            decoupled: false,
            joined_only_when_told: false,
        }
    }
}

impl Defaults {
    /// The same with another number of threads.
    #[must_use]
    pub fn with_instances(self, instances: usize) -> Self {
        Self { instances, ..self }
    }

    /// The same with another number of rows.
    #[must_use]
    pub fn with_max_batch_size(self, max_batch_size: u32) -> Self {
        Self {
            max_batch_size,
            ..self
        }
    }

    /// The same for a model that does, or does not, give any number of answers to a request.
    #[must_use]
    pub fn with_decoupled(self, decoupled: bool) -> Self {
        Self { decoupled, ..self }
    }

    /// The same for a model whose requests are, or are not, joined only where its configuration has `dynamic_batching`.
    #[must_use]
    pub fn with_joined_only_when_told(self, joined_only_when_told: bool) -> Self {
        Self {
            joined_only_when_told,
            ..self
        }
    }
}

/// A configuration and what clients see of the model under it.
#[derive(Debug)]
#[non_exhaustive]
pub struct Completed {
    /// Everything filled in.
    pub config: ModelConfig,
    /// The model's metadata with the configuration's narrower dimensions, and without the outputs it leaves out.
    pub metadata: ModelMetadata,
    /// Whether the metadata is another than the model's own.
    pub is_narrowed: bool,
    /// If only the dimensions suggest that the model takes batches: the configuration for the case that it does not.
    pub without_batches: Option<ModelConfig>,
    /// Inputs that clients send with other axes of one than the model takes.
    pub reshaped_inputs: Vec<(String, Axes)>,
    /// Outputs that clients get with other axes of one than the model gives.
    pub reshaped_outputs: Vec<(String, Axes)>,
}

/// Checks what is written against a model and fills in what is not.
///
/// # Errors
/// What does not fit, with what the model says.
pub fn complete(
    written: &WrittenConfig,
    model: &ModelMetadata,
    backend: &str,
    defaults: Defaults,
) -> Result<Completed, MismatchError> {
    let is_decoupled = written.config.model_transaction_policy.decoupled || defaults.decoupled;
    if is_decoupled && written.config.response_cache.enable {
        return Err(MismatchError::CachedStream);
    }
    // Requests that are answered more than once are not joined, so nothing is to be guessed.
    let max_batch_size = if is_decoupled { 0 } else { defaults.max_batch_size };
    let defaults = defaults.with_max_batch_size(max_batch_size);
    let batching = Batching::of(written, model, defaults)?;
    let is_on = batching.is_on();
    let (mut reshaped_inputs, mut reshaped_outputs) = (Vec::new(), Vec::new());
    let inputs = narrow(
        Role::Input,
        &written.inputs,
        &model.inputs,
        is_on,
        &mut reshaped_inputs,
    )?;
    let outputs = narrow(
        Role::Output,
        &written.outputs,
        &model.outputs,
        is_on,
        &mut reshaped_outputs,
    )?;
    // A model can give more than is offered, but it must be given all that it takes.
    let is_listed = |output: &TensorMetadata| {
        written.outputs.is_empty() || written.outputs.iter().any(|listed| listed.name == output.name)
    };
    let mut metadata = model.clone();
    metadata.inputs = inputs;
    metadata.outputs = outputs.into_iter().filter(is_listed).collect();

    let mut config = written.config.clone();
    config.name.clone_from(&model.name);
    if config.platform.is_empty() {
        config.platform.clone_from(&model.platform);
    }
    if config.backend.is_empty() {
        backend.clone_into(&mut config.backend);
    }
    config.max_batch_size = batching.max_batch_size;
    config.model_transaction_policy.decoupled = is_decoupled;
    (config.input, config.output) = tensor_configs(&metadata, written, &batching);
    if batching.max_batch_size > 1 && !is_decoupled && !defaults.joined_only_when_told {
        config
            .dynamic_batching
            .get_or_insert_with(DynamicBatching::default);
    } else if !batching.is_on() && config.dynamic_batching.is_some() {
        return Err(MismatchError::NoBatches);
    }
    complete_instances(&mut config, defaults)?;
    let is_batching_guessed = batching.is_on()
        && written.max_batch_size.is_none()
        && written.config.dynamic_batching.is_none()
        && !defaults.joined_only_when_told;
    let without_batches = is_batching_guessed.then(|| {
        let (inputs, outputs) = tensor_configs(&metadata, written, &Batching { max_batch_size: 0 });
        ModelConfig {
            max_batch_size: 0,
            dynamic_batching: None,
            input: inputs,
            output: outputs,
            ..config.clone()
        }
    });
    let is_narrowed = metadata != *model;
    Ok(Completed {
        config,
        metadata,
        is_narrowed,
        without_batches,
        reshaped_inputs,
        reshaped_outputs,
    })
}

/// Whether requests are rows of batches.
struct Batching {
    /// 0 when they are not.
    max_batch_size: u32,
}

impl Batching {
    fn is_on(&self) -> bool {
        self.max_batch_size > 0
    }

    fn of(written: &WrittenConfig, model: &ModelMetadata, defaults: Defaults) -> Result<Self, MismatchError> {
        let inputs = model.inputs.iter();
        let rigid = inputs
            .filter(|input| input.optional || !takes_rows(input))
            .chain(model.outputs.iter().filter(|output| !takes_rows(output)))
            .next();
        let max_batch_size = match (written.max_batch_size, rigid) {
            (Some(0), _) | (None, Some(_)) => 0,
            (Some(size), Some(tensor)) => {
                return Err(MismatchError::FixedRows {
                    max_batch_size: size,
                    tensor: tensor.to_string(),
                });
            }
            (Some(size), None) => size,
            // Without a word on batches, what is written of the dimensions tells how they are meant.
            (None, None) if has_full_rank(written, model) || model.inputs.is_empty() => 0,
            (None, None) => defaults.max_batch_size,
        };
        Ok(Self { max_batch_size })
    }
}

/// Whether the first dimension is free, so that it can count the rows of a batch.
fn takes_rows(tensor: &TensorMetadata) -> bool {
    !tensor.shape.has_any_leading() && tensor.shape.dims().first() == Some(&None)
}

/// Whether dimensions are written that include the first one of the model's.
fn has_full_rank(written: &WrittenConfig, model: &ModelMetadata) -> bool {
    let pairs = [
        (&written.inputs, &model.inputs),
        (&written.outputs, &model.outputs),
    ];
    pairs.into_iter().any(|(written, model)| {
        written.iter().any(|written| {
            let known = model.iter().find(|known| known.name == written.name);
            let ranks = known.zip(written.model_dims());
            ranks.is_some_and(|(known, dims)| dims.len() == known.shape.dims().len())
        })
    })
}

/// The model's inputs or outputs, under what the configuration says of them.
fn narrow(
    role: Role,
    written: &[WrittenTensor],
    model: &[TensorMetadata],
    is_batched: bool,
    reshaped: &mut Vec<(String, Axes)>,
) -> Result<Vec<TensorMetadata>, MismatchError> {
    if let Some(unknown) = written
        .iter()
        .find(|written| model.iter().all(|known| known.name != written.name))
    {
        let known: Vec<String> = model.iter().take(5).map(ToString::to_string).collect();
        return Err(MismatchError::UnknownTensor {
            role,
            name: unknown.name.clone(),
            known: match known.is_empty() {
                true => "none".to_owned(),
                false => known.join(", "),
            },
        });
    }
    let narrowed =
        model.iter().map(
            |known| match written.iter().find(|written| written.name == known.name) {
                Some(written) => narrow_one(role, written, known, is_batched, reshaped),
                None => Ok(known.clone()),
            },
        );
    narrowed.collect()
}

fn narrow_one(
    role: Role,
    written: &WrittenTensor,
    known: &TensorMetadata,
    is_batched: bool,
    reshaped: &mut Vec<(String, Axes)>,
) -> Result<TensorMetadata, MismatchError> {
    let name = || known.name.clone();
    if let Some(datatype) = written.data_type.filter(|datatype| *datatype != known.datatype) {
        return Err(MismatchError::Datatype {
            role,
            name: name(),
            written: datatype,
            model: known.datatype,
        });
    }
    if written.optional && !known.optional {
        return Err(MismatchError::Required { role, name: name() });
    }
    let Some(dims) = &written.dims else {
        return match &written.reshape {
            None => Ok(known.clone()),
            Some(_) => Err(MismatchError::Reshape { role, name: name() }),
        };
    };
    let with_rows = |dims: &[i64]| -> Vec<i64> {
        let batch_dim = is_batched.then_some(-1);
        batch_dim.into_iter().chain(dims.iter().copied()).collect()
    };
    // The dimensions that the model gets are checked against it.
    let dims = written.model_dims().unwrap_or(dims);
    let full = with_rows(dims);
    let fits = |(written, known): (&i64, &Option<u64>)| {
        known.is_none_or(|known| u64::try_from(*written) == Ok(known))
    };
    let known_dims = known.shape.dims();
    let leading = full.len().checked_sub(known_dims.len());
    let leading = leading.filter(|leading| *leading == 0 || known.shape.has_any_leading());
    if !leading.is_some_and(|leading| full[leading..].iter().zip(known_dims).all(fits)) {
        return Err(MismatchError::Dims {
            role,
            name: name(),
            dims: dims.to_vec(),
            model: known.shape.to_string(),
            is_batched,
            advice: known.shape.to_wire().skip(usize::from(is_batched)).collect(),
        });
    }
    let mut narrowed = known.clone();
    narrowed.shape = ShapePattern::from_wire(&full);
    // What is written is a promise.
    narrowed.approximate = false;
    if let (Some(_), Some(dims)) = (&written.reshape, &written.dims) {
        let client = with_rows(dims);
        let axes = Axes::between(&client, &full);
        let axes = axes.ok_or_else(|| MismatchError::Reshape { role, name: name() })?;
        narrowed.shape = ShapePattern::from_wire(&client);
        reshaped.push((name(), axes));
    }
    Ok(narrowed)
}

/// A pipeline's metadata: all of it comes from its configuration.
///
/// # Errors
/// What is missing, or has no place in a pipeline.
pub fn complete_pipeline(
    written: &WrittenConfig,
    name: &str,
    version: Option<&str>,
) -> Result<Completed, PipelineError> {
    if written
        .config
        .ensemble_scheduling
        .as_ref()
        .is_none_or(|scheduling| scheduling.step.is_empty())
    {
        return Err(PipelineError::NoSteps);
    }
    if written.config.model_transaction_policy.decoupled {
        return Err(PipelineError::Decoupled);
    }
    let batching = Batching {
        max_batch_size: written.max_batch_size.unwrap_or(0),
    };
    let tensors = |role: Role, all: &[WrittenTensor]| {
        let tensors = all.iter().map(|tensor| {
            let missing = |field| PipelineError::Missing {
                role,
                name: tensor.name.clone(),
                field,
            };
            let datatype = tensor.data_type.ok_or_else(|| missing("data_type"))?;
            let dims = tensor.dims.as_ref().ok_or_else(|| missing("dims"))?;
            if tensor.reshape.is_some() {
                return Err(PipelineError::Reshape {
                    role,
                    name: tensor.name.clone(),
                });
            }
            if tensor.optional {
                return Err(PipelineError::Optional {
                    role,
                    name: tensor.name.clone(),
                });
            }
            let rows = batching.is_on().then_some(-1);
            let dims: Vec<i64> = rows.into_iter().chain(dims.iter().copied()).collect();
            Ok(TensorMetadata::new(&tensor.name, datatype, &dims))
        });
        tensors.collect::<Result<Vec<_>, PipelineError>>()
    };
    let metadata = ModelMetadata::new(
        name,
        WrittenConfig::PIPELINE,
        tensors(Role::Input, &written.inputs)?,
        tensors(Role::Output, &written.outputs)?,
    )
    .with_versions(version);
    if metadata.outputs.is_empty() {
        return Err(PipelineError::NoOutput);
    }
    let mut config = written.config.clone();
    name.clone_into(&mut config.name);
    config.platform.clone_from(&metadata.platform);
    config.max_batch_size = batching.max_batch_size;
    (config.input, config.output) = tensor_configs(&metadata, written, &batching);
    Ok(Completed {
        config,
        metadata,
        is_narrowed: false,
        without_batches: None,
        reshaped_inputs: Vec::new(),
        reshaped_outputs: Vec::new(),
    })
}

impl Batching {
    /// Dimensions as configurations have them.
    fn dims(&self, tensor: &TensorMetadata) -> Vec<i64> {
        tensor.shape.to_wire().skip(usize::from(self.is_on())).collect()
    }
}

/// Inputs and outputs as the configuration shows them.
fn tensor_configs(
    metadata: &ModelMetadata,
    written: &WrittenConfig,
    batching: &Batching,
) -> (Vec<InputConfig>, Vec<OutputConfig>) {
    let inputs = metadata.inputs.iter();
    let outputs = metadata.outputs.iter();
    (
        inputs
            .map(|input| input_config(input, written, batching))
            .collect(),
        outputs
            .map(|output| output_config(output, written, batching))
            .collect(),
    )
}

fn input_config(input: &TensorMetadata, written: &WrittenConfig, batching: &Batching) -> InputConfig {
    let written = written.inputs.iter().find(|written| written.name == input.name);
    InputConfig {
        name: input.name.clone(),
        data_type: input.datatype,
        format: written.map(|written| written.format).unwrap_or_default(),
        dims: batching.dims(input),
        reshape: written.and_then(|written| written.reshape.clone()),
        is_shape_tensor: false,
        allow_ragged_batch: false,
        optional: input.optional,
    }
}

fn output_config(output: &TensorMetadata, written: &WrittenConfig, batching: &Batching) -> OutputConfig {
    let written = written.outputs.iter().find(|written| written.name == output.name);
    OutputConfig {
        name: output.name.clone(),
        data_type: output.datatype,
        dims: batching.dims(output),
        reshape: written.and_then(|written| written.reshape.clone()),
        label_filename: written
            .map(|written| written.label_filename.clone())
            .unwrap_or_default(),
        is_shape_tensor: false,
    }
}

/// Every group has a name and a number, and there is one.
fn complete_instances(config: &mut ModelConfig, defaults: Defaults) -> Result<(), MismatchError> {
    let groups = &mut config.instance_group;
    if groups.is_empty() {
        groups.push(InstanceGroup::default());
    }
    let is_single = groups.len() == 1;
    for (index, group) in groups.iter_mut().enumerate() {
        if group.name.is_empty() {
            group.name = match is_single {
                true => config.name.clone(),
                false => format!("{}_{index}", config.name),
            };
        }
        if group.count == 0 {
            group.count = u32::try_from(defaults.instances.max(1)).unwrap_or(u32::MAX);
        }
        group.kind = InstanceKind::Cpu;
    }
    let instances = groups.iter().map(|group| u64::from(group.count)).sum();
    match instances <= crate::fields::MAX_INSTANCES {
        true => Ok(()),
        false => Err(MismatchError::TooManyInstances(instances)),
    }
}

#[cfg(test)]
mod tests {
    use oip_types::DataType;

    use super::*;
    use crate::Syntax;

    fn model(inputs: &[&[i64]], outputs: &[&[i64]]) -> ModelMetadata {
        let tensors = |prefix: &str, dims: &[&[i64]]| {
            let tensor = |(index, dims): (usize, &&[i64])| {
                TensorMetadata::new(format!("{prefix}{index}"), DataType::FP32, dims)
            };
            dims.iter().enumerate().map(tensor).collect()
        };
        ModelMetadata::new("m", "test_test", tensors("x", inputs), tensors("y", outputs)).with_versions(["1"])
    }

    fn run(text: &str, model: &ModelMetadata) -> Result<Completed, String> {
        let written = WrittenConfig::read(text, Syntax::Pbtxt).map_err(|error| error.to_string())?;
        let defaults = Defaults {
            instances: 4,
            max_batch_size: 64,
            decoupled: false,
            joined_only_when_told: false,
        };
        complete(&written, model, "test", defaults).map_err(|error| error.to_string())
    }

    #[test]
    fn a_model_can_leave_joining_to_its_configuration() {
        let tensor = |name: &str| TensorMetadata::new(name, DataType::FP32, &[-1, 2]);
        let model = ModelMetadata::new("m", "p", vec![tensor("x")], vec![tensor("y")]);
        let defaults = Defaults::default()
            .with_max_batch_size(8)
            .with_joined_only_when_told(true);
        let completed = |text: &str| {
            let written = WrittenConfig::read(text, Syntax::Pbtxt).unwrap();
            complete(&written, &model, "b", defaults).unwrap()
        };
        for text in ["", "max_batch_size: 8"] {
            let completed = completed(text);
            assert_eq!(completed.config.max_batch_size, 8, "{text}");
            assert!(completed.config.dynamic_batching.is_none() && completed.without_batches.is_none());
        }
        assert!(
            completed("max_batch_size: 8 dynamic_batching { }")
                .config
                .dynamic_batching
                .is_some()
        );
    }

    #[test]
    fn a_model_gives_several_answers_if_it_or_its_configuration_says_so() {
        let model = model(&[&[-1, 4]], &[&[-1]]);
        let written = "model_transaction_policy { decoupled: true }";
        let config = run(written, &model).unwrap().config;
        assert!(config.model_transaction_policy.decoupled);
        assert_eq!((config.max_batch_size, config.dynamic_batching), (0, None));
        let config = run(&format!("max_batch_size: 8 {written}"), &model)
            .unwrap()
            .config;
        assert_eq!((config.max_batch_size, config.dynamic_batching), (8, None));
        let error = run(&format!("response_cache {{ enable: true }} {written}"), &model).unwrap_err();
        assert!(error.contains("this one is decoupled"), "{error}");

        let unwritten = WrittenConfig::read("", Syntax::Pbtxt).unwrap();
        let by_itself = |decoupled| {
            let defaults = Defaults::default().with_decoupled(decoupled);
            let completed = complete(&unwritten, &model, "test", defaults).unwrap();
            completed.config.model_transaction_policy.decoupled
        };
        assert_eq!([true, false].map(by_itself), [true, false]);
    }

    #[test]
    fn everything_is_derived() {
        let completed = run("", &model(&[&[-1, 4]], &[&[-1], &[-1, 2]])).unwrap();
        let config = completed.config;
        assert!(!completed.is_narrowed);
        assert_eq!(
            (
                config.name.as_str(),
                config.platform.as_str(),
                config.backend.as_str()
            ),
            ("m", "test_test", "test")
        );
        assert_eq!(
            (config.max_batch_size, config.dynamic_batching.is_some()),
            (64, true)
        );
        assert_eq!(config.input[0].dims, [4]);
        assert_eq!(
            (&config.output[0].dims[..], &config.output[1].dims[..]),
            (&[][..], &[2][..])
        );
        let group = &config.instance_group[0];
        assert_eq!(
            (group.name.as_str(), group.count, group.kind),
            ("m", 4, InstanceKind::Cpu)
        );
        let shown = serde_json::to_value(&config).unwrap();
        assert_eq!(shown["version_policy"]["latest"]["num_versions"], 1);
    }

    #[test]
    fn batches_need_a_free_first_dimension_everywhere() {
        for (inputs, outputs, expected) in [
            (&[&[-1, 4][..]][..], &[&[-1][..]][..], 64),
            (&[&[-1, 4], &[4]], &[&[-1]], 0),
            (&[&[-1, 4]], &[&[]], 0),
            (&[&[-1]], &[&[1, -1]], 0),
            (&[], &[&[-1]], 0),
        ] {
            let model = model(inputs, outputs);
            let config = run("", &model).unwrap().config;
            assert_eq!(config.max_batch_size, expected, "{model:?}");
            assert_eq!(config.dynamic_batching.is_some(), expected > 0);
        }
        let fixed = model(&[&[1, 4]], &[&[-1]]);
        let error = run("max_batch_size: 8", &fixed).unwrap_err();
        assert!(
            error.starts_with("max_batch_size is 8, but the model takes no batches: the first dimension of 'x0' (FP32[1, 4])"),
            "{error}"
        );
        assert!(run("max_batch_size: 0", &fixed).is_ok());
        assert_eq!(
            run("dynamic_batching { }", &fixed).unwrap_err(),
            "dynamic_batching needs a max_batch_size above 0"
        );
    }

    #[test]
    fn dims_are_written_without_the_batch_dimension() {
        let model = model(&[&[-1, -1, 3]], &[&[-1]]);
        // Narrower than the model is fine.
        let completed = run("max_batch_size: 8 input { name: \"x0\" dims: [ 5, 3 ] }", &model).unwrap();
        assert!(completed.is_narrowed);
        assert_eq!(completed.metadata.inputs[0].to_string(), "'x0' (FP32[-1, 5, 3])");
        assert_eq!(completed.config.input[0].dims, [5, 3]);
        // All dimensions without a word on batches: there are none.
        let config = run("input { name: \"x0\" dims: [ -1, 5, 3 ] }", &model)
            .unwrap()
            .config;
        assert_eq!(
            (config.max_batch_size, &config.input[0].dims[..]),
            (0, &[-1, 5, 3][..])
        );
        let config = run("input { name: \"x0\" dims: [ 5, 3 ] }", &model)
            .unwrap()
            .config;
        assert_eq!(config.max_batch_size, 64);

        for (text, expected) in [
            (
                "max_batch_size: 8 input { name: \"x0\" dims: [ -1, -1, 3 ] }",
                "input 'x0': dims are [-1, -1, 3], but the model has [-1, -1, 3], where the first counts the rows of a \
                 batch and is not written; write dims: [-1, 3]",
            ),
            (
                "max_batch_size: 0 input { name: \"x0\" dims: [ 2, 2, 4 ] }",
                "input 'x0': dims are [2, 2, 4], but the model has [-1, -1, 3]; write dims: [-1, -1, 3]",
            ),
            (
                "max_batch_size: 0 input { name: \"x0\" dims: [ 2, 2, -1 ] }",
                "input 'x0': dims are [2, 2, -1], but the model has [-1, -1, 3]; write dims: [-1, -1, 3]",
            ),
            (
                "input { name: \"x0\" data_type: TYPE_INT64 }",
                "input 'x0': data_type is TYPE_INT64, but the model has TYPE_FP32",
            ),
            (
                "output { name: \"z\" }",
                "output 'z' is not the model's, which has 'y0' (FP32[-1])",
            ),
            (
                "input { name: \"x0\" optional: true }",
                "input 'x0': optional is true, but the model cannot do without it",
            ),
        ] {
            assert_eq!(run(text, &model).unwrap_err(), expected);
        }
    }

    #[test]
    fn clients_may_see_other_axes_of_one() {
        let model = model(&[&[-1, 5]], &[&[-1]]);
        let text = "max_batch_size: 8 \
                    input { name: \"x0\" dims: [ 1, 5 ] reshape { shape: [ 5 ] } } \
                    output { name: \"y0\" dims: [ 1 ] reshape { shape: [ ] } }";
        let completed = run(text, &model).unwrap();
        assert_eq!(completed.metadata.inputs[0].to_string(), "'x0' (FP32[-1, 1, 5])");
        assert_eq!(completed.metadata.outputs[0].to_string(), "'y0' (FP32[-1, 1])");
        assert!(completed.is_narrowed);
        let (name, axes) = &completed.reshaped_inputs[0];
        assert_eq!(
            (name.as_str(), axes.to_model(&[3, 1, 5])),
            ("x0", Some(vec![3, 5]))
        );
        assert_eq!(completed.reshaped_outputs[0].1.to_client(&[3]), Some(vec![3, 1]));
        let config = &completed.config;
        assert_eq!(
            (
                &config.input[0].dims[..],
                &config.input[0].reshape.as_ref().unwrap().shape[..]
            ),
            (&[1, 5][..], &[5][..])
        );
        assert!(config.output[0].reshape.as_ref().unwrap().shape.is_empty());
        for wrong in [
            "max_batch_size: 8 input { name: \"x0\" dims: [ 5, 5 ] reshape { shape: [ 5 ] } }",
            "max_batch_size: 8 input { name: \"x0\" reshape { shape: [ 5 ] } }",
        ] {
            let error = run(wrong, &model).unwrap_err();
            assert!(
                error.starts_with("input 'x0': reshape can add and leave out axes of one"),
                "{error}"
            );
        }
        // The dimensions that the model gets are checked against it.
        let error = run(
            "max_batch_size: 8 input { name: \"x0\" dims: [ 1, 4 ] reshape { shape: [ 4 ] } }",
            &model,
        );
        assert!(
            error
                .unwrap_err()
                .starts_with("input 'x0': dims are [4], but the model has [-1, 5]")
        );
    }

    #[test]
    fn outputs_that_are_not_listed_are_not_offered() {
        let completed = run("output { name: \"y1\" }", &model(&[&[-1]], &[&[-1], &[-1, 2]])).unwrap();
        assert!(completed.is_narrowed);
        assert_eq!(completed.metadata.outputs.len(), 1);
        assert_eq!(completed.config.output[0].name, "y1");
    }

    #[test]
    fn groups_get_names_and_numbers() {
        let completed = run(
            "instance_group [ { count: 2 }, { kind: KIND_GPU name: \"g\" } ]",
            &model(&[&[2]], &[&[2]]),
        );
        let groups = completed.unwrap().config.instance_group;
        let groups: Vec<_> = groups
            .iter()
            .map(|group| (group.name.as_str(), group.count))
            .collect();
        assert_eq!(groups, [("m_0", 2), ("g", 4)]);
        let error = run(
            "instance_group [ { count: 1024 }, { count: 1 } ]",
            &model(&[&[2]], &[&[2]]),
        );
        let expected = "instance_group stands for 1025 instances, the limit is 1024";
        assert_eq!(error.unwrap_err(), expected);
    }
}
