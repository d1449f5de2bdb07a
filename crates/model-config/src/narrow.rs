//! Checks the configured inputs and outputs against those of the model, and narrows the model's metadata
//! accordingly.

use oip_types::{ModelMetadata, ShapePattern, TensorMetadata};

use crate::{
    Axes, MismatchError, Role, WrittenConfig, WrittenTensor,
    batching::{WrittenRows, takes_rows},
};

/// The inputs and outputs of a model, narrowed by a configuration.
pub(crate) struct NarrowedTensors {
    pub(crate) inputs: Vec<TensorMetadata>,
    /// The outputs that the configuration lists; all if it lists none.
    pub(crate) outputs: Vec<TensorMetadata>,
    /// Inputs for which clients omit or add axes of length one.
    pub(crate) reshaped_inputs: Vec<(String, Axes)>,
    /// Outputs for which clients see axes of length one added or removed.
    pub(crate) reshaped_outputs: Vec<(String, Axes)>,
}

impl NarrowedTensors {
    /// Narrows the tensors of `model`. `rows` specifies whether written dimensions include the batch
    /// dimension.
    pub(crate) fn of(
        written: &WrittenConfig,
        model: &ModelMetadata,
        rows: WrittenRows,
    ) -> Result<Self, MismatchError> {
        let (mut reshaped_inputs, mut reshaped_outputs) = (Vec::new(), Vec::new());
        let inputs = narrow(
            Role::Input,
            &written.inputs,
            &model.inputs,
            rows,
            &mut reshaped_inputs,
        )?;
        let mut outputs = narrow(
            Role::Output,
            &written.outputs,
            &model.outputs,
            rows,
            &mut reshaped_outputs,
        )?;
        // The configuration may omit outputs of the model, but not inputs.
        if !written.outputs.is_empty() {
            outputs.retain(|output| written.outputs.iter().any(|listed| listed.name == output.name));
        }
        Ok(Self {
            inputs,
            outputs,
            reshaped_inputs,
            reshaped_outputs,
        })
    }
}

/// Returns the model's inputs or outputs, narrowed by the configuration.
fn narrow(
    role: Role,
    written: &[WrittenTensor],
    model: &[TensorMetadata],
    rows: WrittenRows,
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
                Some(written) => narrow_one(role, written, known, rows, reshaped),
                None => Ok(known.clone()),
            },
        );
    narrowed.collect()
}

fn narrow_one(
    role: Role,
    written: &WrittenTensor,
    known: &TensorMetadata,
    rows: WrittenRows,
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
    // The dimensions in `reshape` are the ones that the model sees, so these are compared with the model's.
    let model_dims = written.model_dims().unwrap_or(dims);
    let is_batched = match rows {
        WrittenRows::Written => false,
        WrittenRows::Omitted => true,
        WrittenRows::Either => takes_rows(known) && model_dims.len() + 1 == known.shape.dims().len(),
    };
    let with_rows = |dims: &[i64]| -> Vec<i64> {
        let batch_dim = is_batched.then_some(-1);
        batch_dim.into_iter().chain(dims.iter().copied()).collect()
    };
    let full = with_rows(model_dims);
    if !fits(&full, &known.shape) {
        return Err(MismatchError::Dims {
            role,
            name: name(),
            dims: model_dims.to_vec(),
            model: known.shape.to_string(),
            is_batched,
            advice: known.shape.to_wire().skip(usize::from(is_batched)).collect(),
        });
    }
    let mut narrowed = known.clone();
    narrowed.shape = ShapePattern::from_wire(&full);
    // A shape in the configuration is exact, even if the model's own shape is only approximate.
    narrowed.approximate = false;
    if written.reshape.is_some() {
        let client = with_rows(dims);
        let axes = Axes::between(&client, &full);
        let axes = axes.ok_or_else(|| MismatchError::Reshape { role, name: name() })?;
        narrowed.shape = ShapePattern::from_wire(&client);
        reshaped.push((name(), axes));
    }
    Ok(narrowed)
}

/// Returns whether `dims`, in wire form, are as narrow as `known` or narrower.
fn fits(dims: &[i64], known: &ShapePattern) -> bool {
    let is_within =
        |(dim, known): (&i64, &Option<u64>)| known.is_none_or(|known| u64::try_from(*dim) == Ok(known));
    let leading = dims.len().checked_sub(known.dims().len());
    let leading = leading.filter(|leading| *leading == 0 || known.has_any_leading());
    leading.is_some_and(|leading| dims[leading..].iter().zip(known.dims()).all(is_within))
}
