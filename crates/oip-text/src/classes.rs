//! The outputs of classifiers: scores, the label of the best class, all labels.

use oip_model::Call;
use oip_types::{BytesTensor, DataType, InferOutput, ServiceError, TensorMetadata};
use tensor_core::{Shape, Tensor};

use crate::{labels::best, texts::internal};

const SCORES: &str = "scores";
const LABEL: &str = "label";
const LABELS: &str = "labels";

/// Returns the metadata of the outputs. `width` is the number of classes, or -1 if unknown.
pub(crate) fn metadata(width: i64) -> Vec<TensorMetadata> {
    vec![
        TensorMetadata::new(SCORES, DataType::FP32, &[-1, width]),
        TensorMetadata::new(LABEL, DataType::BYTES, &[-1]),
        TensorMetadata::new(LABELS, DataType::BYTES, &[-1, width]).optional(),
    ]
}

/// Builds the outputs for rows of `width` scores each; `labels` is included only if a request names it.
pub(crate) fn outputs(
    scores: Vec<f32>,
    rows: usize,
    width: usize,
    labels: &[String],
    has_labels: bool,
) -> Result<Vec<InferOutput>, ServiceError> {
    let each_row = || (0..rows).map(|row| &scores[row * width..(row + 1) * width]);
    let named = each_row().map(|row| best(row).map_or_else(String::new, |class| label(labels, class)));
    let named = BytesTensor::from_elements(Shape::vector(rows as u64), named)?;
    let shape = Shape::new(&[rows as u64, width as u64]).map_err(internal)?;
    let mut all = Vec::new();
    if has_labels {
        let names = each_row().flat_map(|row| (0..row.len()).map(|class| label(labels, class)));
        let names = BytesTensor::from_elements(shape.clone(), names)?;
        all.push(InferOutput::new(LABELS, names));
    }
    let scores = Tensor::from_vec(shape, scores).map_err(internal)?;
    all.splice(
        0..0,
        [InferOutput::new(SCORES, scores), InferOutput::new(LABEL, named)],
    );
    Ok(all)
}

/// Returns whether the request, or one of the requests that were batched into it, names the output with all
/// labels.
pub(crate) fn wants_labels(call: &Call<'_>) -> bool {
    let parts = call.parts.iter().flat_map(|part| &part.outputs);
    let names = call
        .request
        .outputs
        .iter()
        .map(|output| &output.name)
        .chain(parts);
    names.into_iter().any(|name| name == LABELS)
}

/// Returns the label of a class, or its index if the files have no labels.
pub(crate) fn label(labels: &[String], class: usize) -> String {
    labels
        .get(class)
        .cloned()
        .unwrap_or_else(|| format!("LABEL_{class}"))
}
