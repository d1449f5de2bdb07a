//! Pipelines: models that consist only of their configuration, with other models as steps.

use oip_types::{Joining, ModelConfig, ModelMetadata, TensorMetadata};

use crate::{CompletedConfig, PipelineError, Role, WrittenConfig, WrittenTensor, complete::tensor_configs};

/// Returns a pipeline's metadata, which comes from its configuration alone.
///
/// # Errors
/// When a required field is missing, or a field is not allowed in a pipeline.
pub fn complete_pipeline(
    written: &WrittenConfig,
    name: &str,
    version: Option<&str>,
) -> Result<CompletedConfig, PipelineError> {
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
    let max_batch_size = written.max_batch_size.unwrap_or(0);
    let is_batched = max_batch_size > 0;
    let tensors = |role: Role, all: &[WrittenTensor]| {
        let tensors = all.iter().map(|tensor| pipeline_tensor(role, tensor, is_batched));
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
    config.max_batch_size = max_batch_size;
    config.parameters.remove(Joining::PARAMETER);
    (config.input, config.output) = tensor_configs(&metadata, written, is_batched);
    Ok(CompletedConfig {
        config,
        metadata,
        is_narrowed: false,
        joining: Joining::alone("its steps join the requests to their models"),
        counts_rows: is_batched,
        without_batches: None,
        reshaped_inputs: Vec::new(),
        reshaped_outputs: Vec::new(),
    })
}

/// Returns the metadata of a pipeline's input or output, with a batch dimension if `is_batched`.
fn pipeline_tensor(
    role: Role,
    tensor: &WrittenTensor,
    is_batched: bool,
) -> Result<TensorMetadata, PipelineError> {
    let name = || tensor.name.clone();
    let missing = |field| PipelineError::Missing {
        role,
        name: name(),
        field,
    };
    let datatype = tensor.data_type.ok_or_else(|| missing("data_type"))?;
    let dims = tensor.dims.as_ref().ok_or_else(|| missing("dims"))?;
    if tensor.reshape.is_some() {
        return Err(PipelineError::Reshape { role, name: name() });
    }
    if tensor.optional {
        return Err(PipelineError::Optional { role, name: name() });
    }
    let rows = is_batched.then_some(-1);
    let dims: Vec<i64> = rows.into_iter().chain(dims.iter().copied()).collect();
    Ok(TensorMetadata::new(&tensor.name, datatype, &dims))
}

/// Returns the model names of a pipeline's steps, with repetitions; empty for a model that is not a pipeline.
///
/// ```
/// use model_config::{Syntax, WrittenConfig, steps};
///
/// let text = r#"ensemble_scheduling { step [ { model_name: "a" }, { model_name: "b" }, { model_name: "a" } ] }"#;
/// let written = WrittenConfig::read(text, Syntax::Pbtxt)?;
/// assert_eq!(steps(&written.config).collect::<Vec<_>>(), ["a", "b", "a"]);
/// # Ok::<(), model_config::ConfigError>(())
/// ```
pub fn steps(config: &ModelConfig) -> impl Iterator<Item = &str> {
    let scheduling = config.ensemble_scheduling.iter();
    scheduling.flat_map(|scheduling| scheduling.step.iter().map(|step| step.model_name.as_str()))
}
