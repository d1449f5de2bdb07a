//! Builds the metadata of a model's outputs from the file's declarations and the graph analysis.

use std::sync::atomic::{AtomicBool, Ordering};

use oip_types::{DataType, InferOutput, ModelMetadata, ServiceError, ShapePattern, TensorMetadata};
use onnx_graph::{Dim, Port};
use tensor_core::QuotedName;

use onnx_tensor::operator::Fact;

use crate::dtype;

/// Compares outputs with the metadata, and logs once if a shape in the metadata is wrong.
#[derive(Debug, Default)]
pub(crate) struct Comparison {
    was_told: AtomicBool,
}

impl Comparison {
    /// Compares the outputs of a run with the metadata, which has the same order.
    pub(crate) fn note(&self, metadata: &ModelMetadata, outputs: &[InferOutput]) {
        let differs =
            |(known, output): &(&TensorMetadata, &InferOutput)| !known.shape.matches(output.value.shape());
        let other = metadata.outputs.iter().zip(outputs).find(differs);
        if let Some((known, output)) = other
            && !self.was_told.swap(true, Ordering::Relaxed)
        {
            tracing::warn!(
                model = metadata.name,
                output = known.name,
                described = %known.shape,
                found = %output.value.shape(),
                "an output's shape differs from the metadata; the response is sent unchanged"
            );
        }
    }
}

/// Builds an output's metadata. `fact` describes the output for all input sizes, if the graph analysis found
/// it.
///
/// Exporters are often wrong about output dimensions, so the graph analysis takes precedence.
pub(crate) fn of_known(port: &Port, fact: Option<&Fact>) -> Result<TensorMetadata, ServiceError> {
    let Some(fact) = fact else {
        let rank = port.dims.as_ref().map_or(0, Vec::len);
        return Ok(described(port, vec![None; rank]));
    };
    check_type(
        &port.name,
        dtype::of(port.element_type),
        dtype::served(fact.element_type),
    )?;
    let known: Vec<Option<u64>> = fact
        .shape
        .iter()
        .map(|dim| dim.to_i64().and_then(|dim| u64::try_from(dim).ok()))
        .collect();
    let declared = port
        .dims
        .as_ref()
        .filter(|declared| declared.len() == known.len());
    let dims = match declared {
        None => known,
        Some(declared) => declared
            .iter()
            .zip(&known)
            .map(|(declared, &known)| {
                if declared.fixed() == known {
                    known
                } else {
                    known.filter(|_| declared.fixed().is_some())
                }
            })
            .collect(),
    };
    Ok(described(port, dims))
}

/// Converts declared dimensions to the protocol's form; `None` if the rank is unknown.
pub(crate) fn pattern(port: &Port) -> Option<ShapePattern> {
    let dims = port.dims.as_ref()?;
    Some(ShapePattern::new(dims.iter().map(Dim::fixed).collect()))
}

/// Builds an input's metadata from the file's declaration.
pub(crate) fn of_input(port: &Port) -> Result<TensorMetadata, ServiceError> {
    let shape = pattern(port).ok_or_else(|| {
        ServiceError::invalid(format!(
            "input {} has no shape; export the model with the shapes of its inputs (free dimensions may stay free)",
            QuotedName(&port.name)
        ))
    })?;
    Ok(TensorMetadata::with_shape(
        &port.name,
        dtype::of(port.element_type),
        shape,
    ))
}

fn described(port: &Port, dims: Vec<Option<u64>>) -> TensorMetadata {
    TensorMetadata::with_shape(&port.name, dtype::of(port.element_type), ShapePattern::new(dims))
        .approximate()
}

/// Returns an error if an output's type differs from the declared one.
pub(crate) fn check_type(name: &str, declared: DataType, computed: DataType) -> Result<(), ServiceError> {
    if computed == declared {
        return Ok(());
    }
    Err(ServiceError::invalid(format!(
        "output {} is declared as {declared}, but would be {computed}",
        QuotedName(name)
    )))
}
