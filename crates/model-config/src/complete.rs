//! Checks a configuration against a model, and fills in missing fields.

use oip_types::{
    Joining, ModelConfig, ModelMetadata, TensorMetadata,
    model_config::{DynamicBatching, InputConfig, InstanceGroup, InstanceKind, OutputConfig},
};

use crate::{
    Axes, Defaults, MismatchError, WrittenConfig,
    batching::{Batching, WrittenRows},
    narrow::NarrowedTensors,
};

/// A completed configuration, and the resulting view of the model for clients.
#[derive(Debug)]
#[non_exhaustive]
pub struct CompletedConfig {
    /// The complete configuration, without the parameter of [`Joining::show_in`].
    pub config: ModelConfig,
    /// The model's metadata, narrowed to the configured dimensions and outputs.
    pub metadata: ModelMetadata,
    /// Whether the metadata differs from the model's own.
    pub is_narrowed: bool,
    /// Whether and why requests are batched.
    pub joining: Joining,
    /// Whether the first dimension of outputs is the batch dimension, because it is free and the
    /// configuration does not contradict it.
    pub counts_rows: bool,
    /// Configuration to switch to if an output does not have as many rows as the inputs. Set only for models
    /// that are batched by default and not by configuration.
    pub without_batches: Option<ModelConfig>,
    /// Inputs for which clients omit or add axes of length one.
    pub reshaped_inputs: Vec<(String, Axes)>,
    /// Outputs for which clients see axes of length one added or removed.
    pub reshaped_outputs: Vec<(String, Axes)>,
}

/// Checks `written` against the metadata of `model`, and fills in missing fields from `defaults`.
///
/// # Errors
/// A mismatch between the configuration and the model.
pub fn complete(
    written: &WrittenConfig,
    model: &ModelMetadata,
    backend: &str,
    defaults: &Defaults,
) -> Result<CompletedConfig, MismatchError> {
    let is_decoupled = written.config.model_transaction_policy.decoupled || defaults.decoupled;
    if is_decoupled && written.config.response_cache.enable {
        return Err(MismatchError::CachedStream);
    }
    let batching = Batching::of(written, model, defaults, is_decoupled)?;
    let (is_on, rows) = (batching.is_on(), batching.written_rows);
    let tensors = NarrowedTensors::of(written, model, rows)?;
    let mut metadata = model.clone();
    (metadata.inputs, metadata.outputs) = (tensors.inputs, tensors.outputs);

    let mut config = named_config(written, model, backend);
    config.max_batch_size = batching.max_batch_size;
    config.model_transaction_policy.decoupled = is_decoupled;
    (config.input, config.output) = tensor_configs(&metadata, written, is_on);
    if batching.max_batch_size > 1 && batching.joining.is_joined() {
        config
            .dynamic_batching
            .get_or_insert_with(DynamicBatching::default);
    } else if !is_on && config.dynamic_batching.is_some() {
        return Err(MismatchError::NoBatches);
    }
    complete_instances(&mut config, defaults)?;
    let is_configured = written.max_batch_size.is_some() || written.config.dynamic_batching.is_some();
    let without_batches = (batching.joining.is_joined() && !is_configured)
        .then(|| config_without_batches(&config, &metadata, written));
    let is_narrowed = metadata != *model;
    Ok(CompletedConfig {
        config,
        metadata,
        is_narrowed,
        counts_rows: is_on
            || matches!(rows, WrittenRows::Either) && !is_decoupled && defaults.max_batch_size > 0,
        joining: batching.joining,
        without_batches,
        reshaped_inputs: tensors.reshaped_inputs,
        reshaped_outputs: tensors.reshaped_outputs,
    })
}

/// Returns the written configuration with the model's name, and with platform and backend filled in.
fn named_config(written: &WrittenConfig, model: &ModelMetadata, backend: &str) -> ModelConfig {
    let mut config = written.config.clone();
    config.name.clone_from(&model.name);
    if config.platform.is_empty() {
        config.platform.clone_from(&model.platform);
    }
    if config.backend.is_empty() {
        backend.clone_into(&mut config.backend);
    }
    config
}

/// Returns the configuration for requests that run alone, without a batch dimension.
fn config_without_batches(
    config: &ModelConfig,
    metadata: &ModelMetadata,
    written: &WrittenConfig,
) -> ModelConfig {
    let (input, output) = tensor_configs(metadata, written, false);
    ModelConfig {
        max_batch_size: 0,
        dynamic_batching: None,
        input,
        output,
        ..config.clone()
    }
}

/// Returns the dimensions of `tensor` as configurations show them: without the batch dimension if
/// `is_batched`.
fn shown_dims(tensor: &TensorMetadata, is_batched: bool) -> Vec<i64> {
    tensor.shape.to_wire().skip(usize::from(is_batched)).collect()
}

/// Returns inputs and outputs as the configuration shows them.
pub(crate) fn tensor_configs(
    metadata: &ModelMetadata,
    written: &WrittenConfig,
    is_batched: bool,
) -> (Vec<InputConfig>, Vec<OutputConfig>) {
    let inputs = metadata.inputs.iter();
    let outputs = metadata.outputs.iter();
    (
        inputs
            .map(|input| input_config(input, written, is_batched))
            .collect(),
        outputs
            .map(|output| output_config(output, written, is_batched))
            .collect(),
    )
}

fn input_config(input: &TensorMetadata, written: &WrittenConfig, is_batched: bool) -> InputConfig {
    let written = written.inputs.iter().find(|written| written.name == input.name);
    InputConfig {
        name: input.name.clone(),
        data_type: input.datatype,
        format: written.map(|written| written.format).unwrap_or_default(),
        dims: shown_dims(input, is_batched),
        reshape: written.and_then(|written| written.reshape.clone()),
        is_shape_tensor: false,
        allow_ragged_batch: false,
        optional: input.optional,
    }
}

fn output_config(output: &TensorMetadata, written: &WrittenConfig, is_batched: bool) -> OutputConfig {
    let written = written.outputs.iter().find(|written| written.name == output.name);
    OutputConfig {
        name: output.name.clone(),
        data_type: output.datatype,
        dims: shown_dims(output, is_batched),
        reshape: written.and_then(|written| written.reshape.clone()),
        label_filename: written
            .map(|written| written.label_filename.clone())
            .unwrap_or_default(),
        is_shape_tensor: false,
    }
}

/// Completes the instance groups: at least one group, each with a name, a count and the hardware that the
/// model runs on.
fn complete_instances(config: &mut ModelConfig, defaults: &Defaults) -> Result<(), MismatchError> {
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
        group.kind = match defaults.gpus.is_empty() {
            true => InstanceKind::Cpu,
            false => InstanceKind::Gpu,
        };
        // The group keeps only those of its GPUs on which the model runs.
        group.gpus.retain(|gpu| defaults.gpus.contains(gpu));
        if group.gpus.is_empty() {
            group.gpus.clone_from(&defaults.gpus);
        }
    }
    let instances = groups.iter().map(InstanceGroup::instances).sum();
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

    /// Completes the configuration `text` for a model whose rows are proven to be independent.
    fn run(text: &str, model: &ModelMetadata) -> Result<CompletedConfig, String> {
        run_with(text, model, &proven())
    }

    fn run_with(text: &str, model: &ModelMetadata, defaults: &Defaults) -> Result<CompletedConfig, String> {
        let written = WrittenConfig::read(text, Syntax::Pbtxt).map_err(|error| error.to_string())?;
        complete(&written, model, "test", defaults).map_err(|error| error.to_string())
    }

    fn proven() -> Defaults {
        Defaults::default()
            .with_instances(4)
            .with_max_batch_size(64)
            .with_joining(Joining::Proven)
    }

    /// Returns the defaults for a model whose rows depend on each other: it has a `CumSum` along axis 0.
    fn causal() -> Defaults {
        let joining = Joining::alone("CumSum 'y' runs along axis 0");
        proven().with_joining(joining.advising("write max_batch_size: 8"))
    }

    #[test]
    fn requests_are_joined_where_the_configuration_or_the_model_says_so_and_nowhere_else() {
        let free = model(&[&[-1, 4]], &[&[-1]]);
        let shown = |text: &str, defaults: Defaults| {
            let completed = run_with(text, &free, &defaults).unwrap();
            let config = &completed.config;
            assert_eq!(
                config.max_batch_size > 1,
                config.dynamic_batching.is_some(),
                "{text}"
            );
            (config.max_batch_size, completed.joining.to_string())
        };
        let is = |rows: u32, joining: &str| (rows, joining.to_owned());
        assert_eq!(shown("", proven()), is(64, "proven"));
        assert_eq!(
            shown("", proven().with_joining(Joining::Declared)),
            is(64, "declared")
        );
        assert_eq!(
            shown("", causal()),
            is(
                0,
                "no (CumSum 'y' runs along axis 0; to promise that rows are independent, write max_batch_size: 8)"
            )
        );
        for defaults in [proven(), causal()] {
            let shown = |text| shown(text, defaults.clone());
            assert_eq!(shown("max_batch_size: 8"), is(8, "declared"));
            assert_eq!(shown("max_batch_size: 0"), is(0, "no (max_batch_size is 0)"));
            assert_eq!(shown("max_batch_size: 1"), is(1, "no (max_batch_size is 1)"));
            assert_eq!(shown("dynamic_batching { }"), is(64, "declared"));
        }
        let decoupled = "model_transaction_policy { decoupled: true }";
        assert_eq!(
            shown(decoupled, proven()),
            is(0, "no (it returns any number of responses to a request)")
        );
        assert_eq!(
            shown("input { name: \"x0\" dims: [ -1, 4 ] }", proven()).1,
            "no (the dims of its configuration have the first dimension; to promise that rows are \
             independent, remove it there and set max_batch_size: 8)"
        );
        assert_eq!(
            shown("", proven().with_max_batch_size(1)),
            is(1, "no (max_batch_size is 1)")
        );
    }

    #[test]
    fn a_model_that_is_not_joined_shows_all_dimensions_and_still_takes_those_written_without_the_first() {
        let free = model(&[&[-1, 4]], &[&[-1]]);
        let completed = run_with("input { name: \"x0\" dims: [ 4 ] }", &free, &causal()).unwrap();
        assert_eq!(completed.config.input[0].dims, [-1, 4]);
        assert!(completed.config.dynamic_batching.is_none() && completed.without_batches.is_none());
        let fixed = model(&[&[2, 4]], &[&[-1]]);
        let refused = run_with("input { name: \"x0\" dims: [ 4 ] }", &fixed, &causal());
        assert!(refused.unwrap_err().contains("write dims: [2, 4]"));
        assert_eq!(
            run_with("", &fixed, &proven()).unwrap().joining.to_string(),
            "no (the first dimension of 'x0' (FP32[2, 4]) is not free)"
        );
    }

    #[test]
    fn inputs_without_rows_need_no_free_first_dimension_and_clients_see_no_batches() {
        let scaled = model(&[&[-1, 4], &[]], &[&[-1]]);
        let defaults = proven().with_shared_inputs(vec!["x1".to_owned()]);
        let completed = run_with("", &scaled, &defaults).unwrap();
        assert_eq!(completed.joining, Joining::Proven);
        let config = completed.config;
        assert_eq!((config.max_batch_size, config.dynamic_batching), (0, None));
        assert_eq!(
            (&config.input[0].dims[..], &config.input[1].dims[..]),
            (&[-1, 4][..], &[][..])
        );
        let refused = run_with("dynamic_batching { }", &scaled, &defaults).unwrap_err();
        assert_eq!(refused, "dynamic_batching needs a max_batch_size above 0");
        let refused = run_with("max_batch_size: 8", &scaled, &defaults).unwrap_err();
        assert!(
            refused.contains("the first dimension of 'x1' (FP32[])"),
            "{refused}"
        );
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
            complete(&written, &model, "b", &defaults).unwrap()
        };
        for text in ["", "max_batch_size: 8"] {
            let completed = completed(text);
            assert_eq!(
                completed.joining.to_string(),
                "no (its configuration has no dynamic_batching; to promise that rows are independent, write \
                 dynamic_batching { })"
            );
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
            let completed = complete(&unwritten, &model, "test", &defaults).unwrap();
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
        // If the optional input is missing from a request, a required input shows the number of rows.
        for (optional, expected) in [(1, 64), (2, 0)] {
            let mut model = model(&[&[-1], &[-1]], &[&[-1]]);
            for input in &mut model.inputs[2 - optional..] {
                *input = input.clone().optional();
            }
            assert_eq!(run("", &model).unwrap().config.max_batch_size, expected);
            assert_eq!(run("max_batch_size: 8", &model).is_ok(), expected > 0);
        }
        assert_eq!(
            run("dynamic_batching { }", &fixed).unwrap_err(),
            "dynamic_batching needs a max_batch_size above 0"
        );
    }

    #[test]
    fn dims_are_written_without_the_batch_dimension() {
        let model = model(&[&[-1, -1, 3]], &[&[-1]]);
        // Dimensions may be narrower than the model's.
        let completed = run("max_batch_size: 8 input { name: \"x0\" dims: [ 5, 3 ] }", &model).unwrap();
        assert!(completed.is_narrowed);
        assert_eq!(completed.metadata.inputs[0].to_string(), "'x0' (FP32[-1, 5, 3])");
        assert_eq!(completed.config.input[0].dims, [5, 3]);
        // If all dimensions are written and batching is not mentioned, requests are not batched.
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
                "input 'x0': dims are [-1, -1, 3], but the model has [-1, -1, 3], whose first dimension is \
                 the batch size, which dims leave out; write dims: [-1, 3]",
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
                "the model has no output 'z'; it has 'y0' (FP32[-1])",
            ),
            (
                "input { name: \"x0\" optional: true }",
                "input 'x0': optional is true, but the model requires it",
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
                error.starts_with("input 'x0': reshape can only add or remove axes of size 1"),
                "{error}"
            );
        }
        // The dimensions after the reshape are checked against the model.
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
        let expected = "instance_group has 1025 instances in total, the limit is 1024";
        assert_eq!(error.unwrap_err(), expected);
    }

    /// Groups show the GPUs that the model runs on, not the configured ones. Instances are counted per GPU.
    #[test]
    fn groups_show_the_gpus_that_the_model_runs_on() {
        let on = |gpus: &[u32]| {
            let written = "instance_group { count: 2 kind: KIND_GPU gpus: [ 0, 1 ] }";
            let defaults = Defaults::default().with_gpus(gpus.to_vec());
            let completed = run_with(written, &model(&[&[2]], &[&[2]]), &defaults).unwrap();
            let group = &completed.config.instance_group[0];
            (group.kind, group.gpus.clone(), group.instances())
        };
        assert_eq!(on(&[0, 1, 2]), (InstanceKind::Gpu, vec![0, 1], 4));
        assert_eq!(on(&[1]), (InstanceKind::Gpu, vec![1], 2));
        assert_eq!(on(&[3]), (InstanceKind::Gpu, vec![3], 2));
        assert_eq!(on(&[]), (InstanceKind::Cpu, vec![], 2));
    }
}
