//! Warm-up requests run before a model becomes ready.

use std::time::{Duration, Instant};

use bytes::Bytes;
use model_repository::ModelDirectory;
use oip_model::{Call, CancelToken, Model, Outcome, ResponseSink};
use oip_types::{
    BytesTensor, DataType, ErrorCode, InferOutput, InferRequest, ModelConfig, ModelMetadata, ModelRef,
    ServiceError, TensorValue,
    model_config::{Warmup, WarmupData, WarmupInput},
};
use tensor_core::{DType, Shape, TensorSpec};

use crate::{
    batching::batch::measured_rows,
    load::error::{InputError, LoadError, WarmUpError},
};

/// Maximum size of one generated input, in bytes.
const MAX_INPUT_BYTES: u64 = 1 << 30;

/// Maximum number of runs of one warm-up request.
const MAX_RUNS: u32 = 10_000;

/// Runs the warm-up requests of a configuration. Returns the rows and duration of each run.
///
/// # Errors
/// The request that failed, and the reason. In this case, the model does not become ready.
pub(crate) fn warm_up(
    model: &dyn Model,
    metadata: &ModelMetadata,
    config: &ModelConfig,
    directory: &ModelDirectory,
    cancel: &CancelToken,
) -> Result<Vec<(u64, Duration)>, LoadError> {
    let mut runs = Vec::new();
    for warmup in &config.model_warmup {
        let fail = |source: WarmUpError| LoadError::WarmUp {
            name: warmup.name.clone(),
            source: source.into(),
        };
        let request = request(warmup, metadata, config.max_batch_size > 0, directory).map_err(fail)?;
        let rows = measured_rows(metadata, &request);
        for _ in 0..warmup.count.clamp(1, MAX_RUNS) {
            let start = Instant::now();
            let answer = match config.model_transaction_policy.decoupled {
                true => {
                    let mut responses = Unheard { metadata, cancel };
                    let call = Call::new(request.clone(), cancel).with_responses(Some(&mut responses));
                    let outcome = model.run(call);
                    outcome.and_then(|outcome| outcome.send_to(&mut responses))
                }
                false => model
                    .run(Call::new(request.clone(), cancel))
                    .and_then(Outcome::into_outputs)
                    .and_then(|outputs| metadata.pick_outputs(&[], outputs).map(drop)),
            };
            runs.extend(rows.map(|rows| (rows, start.elapsed())));
            answer.map_err(|error| fail(WarmUpError::Model(error)))?;
        }
    }
    Ok(runs)
}

/// A sink that discards all responses.
struct Unheard<'m> {
    metadata: &'m ModelMetadata,
    cancel: &'m CancelToken,
}

impl ResponseSink for Unheard<'_> {
    fn send(&mut self, outputs: Vec<InferOutput>) -> Result<(), ServiceError> {
        if self.cancel.is_cancelled() {
            let over = "it was still sending responses when the time for loading was over";
            return Err(ServiceError::new(ErrorCode::DeadlineExceeded, over));
        }
        self.metadata.pick_outputs(&[], outputs).map(drop)
    }

    fn send_last(&mut self, outputs: Vec<InferOutput>) -> Result<(), ServiceError> {
        self.send(outputs)
    }
}

fn request(
    warmup: &Warmup,
    metadata: &ModelMetadata,
    is_batched: bool,
    directory: &ModelDirectory,
) -> Result<InferRequest, WarmUpError> {
    let model = ModelRef::new(&metadata.name, None).map_err(WarmUpError::Model)?;
    let mut request = InferRequest::new(model);
    // If the model does not batch, `dims` may omit a free first dimension, as in the inputs of a
    // configuration.
    let omits_rows = |name: &str, input: &WarmupInput| {
        let expected = metadata.inputs.iter().find(|expected| expected.name == name);
        let dims = expected.map(|expected| expected.shape.dims());
        dims.is_some_and(|dims| dims.first() == Some(&None) && dims.len() == input.dims.len() + 1)
    };
    for (name, input) in &warmup.inputs {
        let has_rows = is_batched || omits_rows(name, input);
        let rows = has_rows.then(|| i64::from(warmup.batch_size.max(1)));
        let value = value(input, rows, directory).map_err(|source| WarmUpError::Input {
            name: name.clone(),
            source: Box::new(source),
        })?;
        request = request.with_input(name, value);
    }
    metadata.check_request(&request).map_err(WarmUpError::Model)?;
    Ok(request)
}

fn value(
    input: &WarmupInput,
    rows: Option<i64>,
    directory: &ModelDirectory,
) -> Result<TensorValue, InputError> {
    let dims = rows.into_iter().chain(input.dims.iter().copied());
    let dims: Result<Vec<u64>, _> = dims.map(u64::try_from).collect();
    let dims = dims.map_err(|_| InputError::FreeDims {
        dims: input.dims.clone(),
    })?;
    let shape = Shape::new(&dims)?;
    // Each element of a BYTES tensor takes at least the four bytes of its length prefix.
    let dtype = match input.data_type {
        DataType::Fixed(dtype) => dtype,
        DataType::Bytes => DType::U32,
    };
    let length = TensorSpec::new(dtype, shape.clone())?.byte_len();
    if length > MAX_INPUT_BYTES {
        return Err(InputError::TooLarge {
            length,
            limit: MAX_INPUT_BYTES,
        });
    }
    let raw = match &input.data {
        WarmupData::InputDataFile(file) => directory.read(&["warmup", file], MAX_INPUT_BYTES)?,
        WarmupData::ZeroData(_) => Bytes::from(vec![0; usize::try_from(length).unwrap_or(0)]),
        WarmupData::RandomData(_) => {
            let values = Values::default();
            if input.data_type == DataType::Bytes {
                let texts = values.take(usize::try_from(shape.element_count()).unwrap_or(0));
                let texts: Vec<String> = texts.map(|value| format!("{value:.3}")).collect();
                return BytesTensor::from_elements(shape, texts)
                    .map(Into::into)
                    .map_err(InputError::Value);
            }
            random(dtype, values, usize::try_from(shape.element_count()).unwrap_or(0)).into()
        }
    };
    TensorValue::from_raw(input.data_type, shape, raw).map_err(InputError::Value)
}

/// Generates random elements between 0 and 1: random bits would give values that no model expects, such as
/// out-of-range indices.
fn random(dtype: DType, values: Values, count: usize) -> Vec<u8> {
    use tensor_core::{bf16, f16};
    let values = values.take(count);
    match dtype {
        DType::F16 => values
            .flat_map(|value| f16::from_f64(value).to_le_bytes())
            .collect(),
        DType::BF16 => values
            .flat_map(|value| bf16::from_f64(value).to_le_bytes())
            .collect(),
        DType::F32 => values.flat_map(|value| (value as f32).to_le_bytes()).collect(),
        DType::F64 => values.flat_map(f64::to_le_bytes).collect(),
        // 0 or 1 as a little-endian integer of any width.
        integer => {
            let width = integer.size();
            let element = |value: f64| {
                let first = u8::from(value >= 0.5);
                std::iter::once(first).chain(std::iter::repeat_n(0, width - 1))
            };
            values.flat_map(element).collect()
        }
    }
}

/// Pseudo-random numbers between 0 and 1 (xorshift64*). Every warm-up uses the same numbers, so failures are
/// reproducible.
struct Values(u64);

impl Default for Values {
    fn default() -> Self {
        Self(0x9e37_79b9_7f4a_7c15)
    }
}

impl Iterator for Values {
    type Item = f64;

    fn next(&mut self) -> Option<f64> {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let bits = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11;
        Some(bits as f64 / (1u64 << 53) as f64)
    }
}
