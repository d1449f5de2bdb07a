//! Checks the configured inputs and outputs against those of the model, and narrows the model's to them.

use oip_types::{ShapePattern, TensorMetadata};

use crate::{
    Axes, MismatchError, Role, WrittenTensor,
    batching::{WrittenRows, takes_rows},
};

/// Returns the model's inputs or outputs, narrowed by the configuration.
pub(crate) fn narrow(
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
    let dims = written.model_dims().unwrap_or(dims);
    let is_batched = match rows {
        WrittenRows::Written => false,
        WrittenRows::Omitted => true,
        WrittenRows::Either => takes_rows(known) && dims.len() + 1 == known.shape.dims().len(),
    };
    let with_rows = |dims: &[i64]| -> Vec<i64> {
        let batch_dim = is_batched.then_some(-1);
        batch_dim.into_iter().chain(dims.iter().copied()).collect()
    };
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
    // A shape in the configuration is exact, even if the model's own shape is only approximate.
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
