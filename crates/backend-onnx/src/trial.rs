//! A model runs once when it is loaded, with inputs that are made up: one that can answer nothing is not ready.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    time::{Duration, Instant},
};

use bytes::Bytes;
use oip_service::{CancelToken, Model};
use oip_types::{
    BytesTensor, DataType, ErrorCode, InferOutput, InferRequest, ModelMetadata, ModelRef, ServiceError,
    TensorMetadata, TensorValue,
};
use tensor_core::{Shape, Tensor, TensorSpec};

/// Sizes to try for free dimensions: channels, height and width of images, and the length of everything else. The batch is
/// 1. Smallest first, then what networks for images, text, and sound are often made for.
const SIZES: [(u64, u64, u64, u64); 12] = [
    (1, 1, 1, 1),
    (3, 32, 32, 16),
    (3, 320, 320, 512),
    (3, 48, 320, 64),
    (1, 64, 160, 128),
    (3, 224, 224, 256),
    (1, 28, 28, 80),
    (3, 32, 320, 1600),
    (2, 64, 64, 16_000),
    (3, 256, 256, 4),
    (3, 112, 112, 96),
    (1, 1, 64, 576),
];

/// All that one run may take in its inputs. What needs more is not tried.
const MAX_BYTES: u64 = 64 << 20;

/// How long the trials of one model may take together. A model that is slower than this is believed.
const PATIENCE: Duration = Duration::from_secs(20);

/// The answer to the first made-up request that the model answers; `None` where it cannot be told whether it would
/// answer others.
///
/// # Errors
/// When the model itself fails on all of them: it would on others.
pub(crate) fn answer(
    model: &dyn Model,
    deadline: Option<Instant>,
) -> Result<Option<Vec<InferOutput>>, ServiceError> {
    let last = Instant::now() + PATIENCE;
    let token = CancelToken::new(Some(deadline.map_or(last, |deadline| deadline.min(last))));
    let mut failure = None;
    let mut is_known = true;
    let has_free = model.metadata().inputs.iter().any(|input| {
        let free = input.shape.dims().iter().skip(1).filter(|dim| dim.is_none());
        free.count() > 0 || input.shape.dims() == [None]
    });
    let sizes = if has_free { &SIZES[..] } else { &SIZES[..1] };
    for &size in sizes {
        let Some(request) = request(model.metadata(), size) else {
            return Ok(None);
        };
        let outcome = catch_unwind(AssertUnwindSafe(|| model.infer(request, &token)));
        match outcome.unwrap_or_else(|_| Err(ServiceError::internal("the model panicked"))) {
            Ok(outputs) => return Ok(Some(outputs)),
            Err(error) if error.code() == ErrorCode::Internal => failure = Some(error),
            Err(_) if token.is_cancelled() => return Ok(None),
            // The values were the reason: nothing is known then.
            Err(_) => is_known = false,
        }
    }
    failure.filter(|_| is_known).map_or(Ok(None), |error| {
        let cause = error.report().to_string();
        let cause: String = cause.chars().take(300).collect();
        Err(ServiceError::invalid(format!(
            "the model loads, but fails on each of {} made-up inputs, the smallest of its dimensions and some usual ones: \
             {cause}",
            sizes.len()
        ))
        .caused_by(error))
    })
}

/// `None` for inputs that are too large, or of types that cannot be made up.
fn request(metadata: &ModelMetadata, size: (u64, u64, u64, u64)) -> Option<InferRequest> {
    let mut request = InferRequest::new(ModelRef::new(&metadata.name, None).ok()?);
    let mut total = 0;
    for input in &metadata.inputs {
        let shape = Shape::new(&dims(input, size)).ok()?;
        let width = input.datatype.dtype().map_or(1, |dtype| dtype.size() as u64);
        total += shape.element_count().checked_mul(width)?;
        if total > MAX_BYTES {
            return None;
        }
        let value: TensorValue = match input.datatype {
            DataType::Bytes => {
                let count = usize::try_from(shape.element_count()).ok()?;
                BytesTensor::from_elements(shape, std::iter::repeat_n(b"a", count))
                    .ok()?
                    .into()
            }
            DataType::Fixed(dtype) => {
                let spec = TensorSpec::new(dtype, shape).ok()?;
                let zeros = vec![0u8; usize::try_from(spec.byte_len()).ok()?];
                Tensor::new(spec, Bytes::from(zeros)).ok()?.into()
            }
        };
        request = request.with_input(&input.name, value);
    }
    Some(request)
}

fn dims(input: &TensorMetadata, (channels, height, width, length): (u64, u64, u64, u64)) -> Vec<u64> {
    let dims = input.shape.dims();
    let is_image = dims.len() == 4;
    let made_up = |axis: usize| match axis {
        0 if dims.len() > 1 => 1,
        1 if is_image => channels,
        2 if is_image => height,
        3 if is_image => width,
        _ => length,
    };
    dims.iter()
        .enumerate()
        .map(|(axis, dim)| dim.unwrap_or_else(|| made_up(axis)))
        .collect()
}
