//! A loaded model as the server calls it: input tensors to rows, rows to scores, scores to the output tensor.

use bytemuck::{AnyBitPattern, NoUninit};
use oip_model::{
    Call, CancelToken, Capabilities, IndependentRows, Model, ModelSource, Outcome, RowIndependence,
    available_memory,
};
use oip_types::{ErrorCode, ModelMetadata, ServiceError};
use tensor_core::{DType, Element, Shape, Tensor};

use crate::{
    booster::{Booster, Features},
    prediction::Prediction,
};

/// A booster that serves requests.
pub(crate) struct ForestModel {
    metadata: ModelMetadata,
    booster: Booster,
    prediction: Prediction,
}

/// Number of rows between two checks for cancellation.
const PART: usize = 1 << 10;

/// Smaller allocations, in bytes, skip the check for free memory.
const SMALL: u64 = 16 << 20;

impl ForestModel {
    pub(crate) fn new(source: &ModelSource, booster: Booster, prediction: Prediction) -> Self {
        Self {
            metadata: ModelMetadata::new(
                source.name.clone(),
                format!("tensorferry_{}", booster.package),
                vec![prediction.input.clone()],
                vec![prediction.output.clone()],
            )
            .with_versions([source.version.clone()]),
            booster,
            prediction,
        }
    }

    /// Allocates memory for the output elements. Fails if memory is short, since rows with few features can
    /// have many scores.
    fn room(&self, rows: u64) -> Result<Vec<f64>, ServiceError> {
        let elements = self
            .prediction
            .trailing
            .iter()
            .try_fold(rows, |elements, &dim| elements.checked_mul(dim));
        let bytes = elements.and_then(|elements| elements.checked_mul(16));
        let mut room = Vec::new();
        let is_free = match bytes {
            None => false,
            Some(bytes) if bytes < SMALL => true,
            Some(bytes) => available_memory().is_none_or(|free| bytes < free),
        };
        let is_free = is_free
            && room
                .try_reserve_exact(elements.unwrap_or(u64::MAX) as usize)
                .is_ok();
        is_free.then_some(room).ok_or_else(|| {
            ServiceError::new(
                ErrorCode::TooLarge,
                format!("not enough memory for the response to {rows} rows: send fewer rows per request"),
            )
        })
    }

    /// Appends the output elements of all rows to the output. Stops when the request is cancelled.
    fn predict<T>(
        &self,
        features: &[T],
        of: impl Fn(&[T]) -> Features<'_>,
        cancel: &CancelToken,
        elements: &mut Vec<f64>,
    ) -> Result<(), ServiceError> {
        let margins = self.prediction.wants_margins(self.booster.meaning);
        for part in features.chunks(self.booster.features * PART) {
            if cancel.is_cancelled() {
                return Err(ServiceError::new(ErrorCode::Cancelled, "the client disconnected"));
            }
            let predicted = self.booster.predict(of(part), margins, |scores| {
                self.prediction.append(scores, elements);
            });
            predicted.map_err(|error| ServiceError::internal(error.to_string()))?;
        }
        Ok(())
    }

    fn output(&self, rows: u64, elements: &[f64]) -> Result<Tensor, ServiceError> {
        let dims: Vec<u64> = [rows]
            .into_iter()
            .chain(self.prediction.trailing.iter().copied())
            .collect();
        let shape = Shape::new(&dims)?;
        match self.prediction.dtype {
            DType::F64 => tensor(shape, elements.to_vec()),
            DType::I32 => tensor(shape, elements.iter().map(|&value| value as i32).collect()),
            DType::I64 => tensor(shape, elements.iter().map(|&value| value as i64).collect()),
            _ => tensor(shape, elements.iter().map(|&value| value as f32).collect()),
        }
    }
}

fn tensor<T: Element>(shape: Shape, elements: Vec<T>) -> Result<Tensor, ServiceError> {
    Ok(Tensor::from_vec(shape, elements)?)
}

impl Model for ForestModel {
    fn metadata(&self) -> &ModelMetadata {
        &self.metadata
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::default().with(|capabilities| {
            // Each row is evaluated independently.
            capabilities.row_independence = RowIndependence::Proven(IndependentRows::default());
            // Each row walks down each tree once, and the depth of trees was checked when they were built.
            capabilities.bounded = true;
        })
    }

    fn run(&self, call: Call<'_>) -> Result<Outcome, ServiceError> {
        let (mut request, cancel) = (call.request, call.cancel);
        let name = &self.prediction.input.name;
        let value = request.take_input(name)?;
        let input = value.as_fixed().filter(
            |input| matches!(input.shape().dims(), [_, width] if *width == self.booster.features as u64),
        );
        // The input is missing only if the caller did not check the request against the metadata.
        let input = input.ok_or_else(|| {
            ServiceError::invalid(format!("input '{name}' is not {}", self.prediction.input))
        })?;
        let rows = input.shape().dims()[0];
        let mut elements = self.room(rows)?;
        match input.spec().dtype() {
            DType::F64 => {
                let features = numbers::<f64>(input.bytes());
                self.predict(&features, |part| Features::Double(part), cancel, &mut elements)?;
            }
            _ => {
                let features = numbers::<f32>(input.bytes());
                self.predict(&features, |part| Features::Single(part), cancel, &mut elements)?;
            }
        }
        let name = &self.prediction.output.name;
        Ok(Outcome::output(name, self.output(rows, &elements)?))
    }
}

/// Views a tensor's bytes as numbers, or copies them if they are not aligned.
fn numbers<T: AnyBitPattern + NoUninit>(bytes: &[u8]) -> std::borrow::Cow<'_, [T]> {
    match bytemuck::try_cast_slice(bytes) {
        Ok(numbers) => numbers.into(),
        Err(_) => bytemuck::pod_collect_to_vec(bytes).into(),
    }
}
