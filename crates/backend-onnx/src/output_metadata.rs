//! The metadata of a model's outputs, from the file's declarations and from trial runs.

use std::sync::atomic::{AtomicBool, Ordering};

use oip_types::{DataType, InferOutput, ModelMetadata, ServiceError, ShapePattern, TensorMetadata};
use onnx_graph::{Dim, Port};
use tensor_core::{Quoted, Shape};

use crate::{dtype, ops::Fact};

/// What answers are compared with, so that the log says once where the metadata is wrong about a shape.
#[derive(Debug, Default)]
pub(crate) struct Comparison {
    was_told: AtomicBool,
}

impl Comparison {
    /// Compares the outputs of a run, in the metadata's order.
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
                "an output has another shape than the metadata says; the answer is sent as it is"
            );
        }
    }
}

/// Of an output of which this is known for all sizes, if anything is.
///
/// Exporters are often wrong about outputs' dimensions. Where the graph says better, the graph is believed.
pub(crate) fn of_known(port: &Port, fact: Option<&Fact>) -> Result<TensorMetadata, ServiceError> {
    let Some(fact) = fact else {
        let rank = port.dims.as_ref().map_or(0, Vec::len);
        return Ok(described(port, vec![None; rank]));
    };
    check_type(
        &port.name,
        dtype::of(port.element_type),
        dtype::from_tract(fact.datum_type),
    )?;
    let known: Vec<Option<u64>> = fact
        .shape
        .iter()
        .map(|dim| dim.to_i64().ok().and_then(|dim| u64::try_from(dim).ok()))
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

/// Of an output that had this type and shape for inputs whose free dimensions had these `sizes`.
///
/// A dimension is fixed if the file says so and it was so, unless it might be one of the free sizes. Where the file has more
/// dimensions, a free one may have been left out because its size was 1, as the batch of made-up inputs is: `Squeeze` does that.
pub(crate) fn of_trial(
    port: &Port,
    datatype: Option<DataType>,
    shape: &[Option<u64>],
    sizes: &[u64],
) -> Result<TensorMetadata, ServiceError> {
    check_type(&port.name, dtype::of(port.element_type), datatype)?;
    let declared = port.dims.as_deref();
    if let Some(declared) = declared
        && let Some(fewer) = declared.len().checked_sub(shape.len())
        && fewer > 0
        && fewer <= declared.iter().filter(|dim| dim.fixed().is_none()).count()
    {
        return Ok(described(port, vec![None; declared.len()]));
    }
    let declared = declared.filter(|declared| declared.len() == shape.len());
    let fixed = |(axis, &size): (usize, &Option<u64>)| {
        let size = size?;
        let is_declared = declared.is_some_and(|declared| declared[axis] == Dim::Fixed(size));
        (is_declared && !sizes.contains(&size)).then_some(size)
    };
    Ok(described(port, shape.iter().enumerate().map(fixed).collect()))
}

/// The dimensions as the protocol shows them, `None` if not even their number is known.
pub(crate) fn pattern(port: &Port) -> Option<ShapePattern> {
    let dims = port.dims.as_ref()?;
    Some(ShapePattern::new(dims.iter().map(Dim::fixed).collect()))
}

/// Of an input, which is as the file has it.
pub(crate) fn of_input(port: &Port) -> Result<TensorMetadata, ServiceError> {
    let shape = pattern(port).ok_or_else(|| {
        ServiceError::invalid(format!(
            "input {} has no shape; export the model with the shapes of its inputs (free dimensions may stay free)",
            Quoted(&port.name)
        ))
    })?;
    Ok(TensorMetadata::with_shape(
        &port.name,
        dtype::of(port.element_type),
        shape,
    ))
}

/// The sizes that the inputs' free dimensions have in these shapes.
pub(crate) fn free_sizes(inputs: &[Port], shapes: &[Shape]) -> Vec<u64> {
    let pairs = inputs.iter().zip(shapes).flat_map(|(port, shape)| {
        port.dims
            .iter()
            .flatten()
            .zip(shape.dims())
            .filter(|(dim, _)| dim.fixed().is_none())
    });
    pairs.map(|(_, &size)| size).collect()
}

fn described(port: &Port, dims: Vec<Option<u64>>) -> TensorMetadata {
    TensorMetadata::with_shape(&port.name, dtype::of(port.element_type), ShapePattern::new(dims))
        .approximate()
}

/// Refuses another type than the file declares for an output.
pub(crate) fn check_type(
    name: &str,
    declared: DataType,
    computed: Option<DataType>,
) -> Result<(), ServiceError> {
    if computed == Some(declared) {
        return Ok(());
    }
    Err(ServiceError::invalid(format!(
        "output {} is declared as {declared}, but would be {}",
        Quoted(name),
        computed.map_or_else(
            || "of no type of the protocol".to_owned(),
            |datatype| datatype.to_string()
        ),
    )))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use onnx_graph::ElementType;
    use tensor_core::DType;

    use super::*;

    #[test]
    fn a_size_that_might_be_a_free_one_is_free() {
        let dims = vec![Dim::Fixed(1), Dim::Fixed(960), Dim::Fixed(6625)];
        let port = Port::new("y", ElementType::Fixed(DType::F32), Some(dims));
        let shape = [Some(1), Some(32), Some(6625)];
        let found = of_trial(&port, Some(DataType::FP32), &shape, &[1, 32]).unwrap();
        assert_eq!(found.shape.dims(), [None, None, Some(6625)]);
        let other_rank = of_trial(&port, Some(DataType::FP32), &shape[1..], &[1]).unwrap();
        assert_eq!(other_rank.shape.dims(), [None, None]);
        let mut squeezed = port.clone();
        squeezed.dims = Some(vec![Dim::Free, Dim::Fixed(4)]);
        let found = of_trial(&squeezed, Some(DataType::FP32), &[Some(4)], &[1]).unwrap();
        assert_eq!(found.shape.dims(), [None, None]);
        let error = of_trial(&port, Some(DataType::INT64), &shape, &[]).unwrap_err();
        assert_eq!(
            error.message(),
            "output 'y' is declared as FP32, but would be INT64"
        );
    }
}
