//! An in-memory service for tests of transports and clients (feature `testing`).
//!
//! Its models cover every code path of a transport; none of them needs files or threads.

mod extensions;
mod models;
mod panicking;
mod text;

use std::{
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use oip_types::{
    ErrorCode, InferOutput, InferRequest, InferResponse, ModelMetadata, ModelRef, ServerMetadata,
    ServiceError,
};
use tensor_core::{Shape, Tensor};

use self::{extensions::Extensions, models::find};
pub use self::{
    models::{datatypes, identity},
    panicking::{PanickingExtensions, PanickingService},
};
use oip_model::BoxFuture;

use crate::{
    Classification, InferenceService, Logging, ModelConfiguration, ModelRepository, Readiness,
    RequestContext, Statistics, SystemSharedMemory,
};

/// Simple models:
///
/// | model | input | output | what it does |
/// |---|---|---|---|
/// | `identity_fp32`, `identity_bytes`, ... for each datatype | `x [-1]` | `y [-1]` | returns the same bytes |
/// | `identity_fp32_scalar`, ... | `x []` | `y []` | the same for a single element |
/// | `identity_fp32_matrix`, ... | `x [-1, -1]` | `y [-1, -1]` | the same for a matrix |
/// | `matrix` | `a FP32[-1, 2]`, `b INT64[1]` | `sum FP32[-1]`, `b INT64[1]` | adds up rows, passes `b` on |
/// | `nan` | `x [-1] FP32` | `y FP32[3]` | NaN and the infinities |
/// | `not_text` | `x [-1] BYTES` | `y BYTES[1]` | bytes that are not UTF-8 |
/// | `minilm` | `text BYTES[-1]` | `embedding FP32[-1, 2]`, `token_count INT64[-1]` | each text's length in bytes, and 4; its length |
/// | `reranker` | `text`, `text_pair BYTES[-1]` | `score FP32[-1]` | 1 / (1 + the difference of their lengths) |
/// | `sentiment` | `text BYTES[-1]` | `scores FP32[-1, 2]`, `labels BYTES[-1, 2]` | 0.25 for `bad`, 0.75 for `good` |
/// | `slow` | `x [-1] FP32` | `y FP32[-1]` | never responds |
/// | `failing` | `x [-1] FP32` | `y FP32[-1]` | fails with an internal error |
/// | `busy` | `x [-1] FP32` | `y FP32[-1]` | is overloaded |
/// | `loading` | | | is not ready |
///
/// `matrix` has the versions `1` and `2`; the other models have no versions.
///
/// The service offers every extension, each in the simplest form that exposes mistakes of its caller; the
/// trait implementations describe the details.
#[derive(Debug, Default)]
pub struct TestService {
    /// Number of requests to `slow` that are waiting.
    waiting: Arc<AtomicUsize>,
    /// Makes the server report that it is not ready.
    pub is_not_ready: AtomicBool,
    is_plain: bool,
    extensions: Extensions,
}

impl TestService {
    /// Returns the same models without any extension.
    #[must_use]
    pub fn plain() -> Self {
        Self {
            is_plain: true,
            ..Self::default()
        }
    }

    /// Returns the number of waiting requests to `slow`. The number returns to 0 if a transport drops these
    /// requests.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::SeqCst)
    }
}

impl InferenceService for TestService {
    fn server_metadata(&self) -> ServerMetadata {
        ServerMetadata::new("test", "1.2.3")
    }

    fn readiness(&self) -> Readiness {
        match self.is_not_ready.load(Ordering::SeqCst) {
            true => Readiness::NotReady("models not ready: a, b".into()),
            false => Readiness::Ready,
        }
    }

    fn model_metadata(&self, model: ModelRef<'_>) -> Result<Arc<ModelMetadata>, ServiceError> {
        if model.name() == "loading" {
            let message = format!("{model} is not ready: it is being loaded");
            return Err(ServiceError::new(ErrorCode::Unavailable, message));
        }
        let found = find(model);
        found
            .map(Arc::new)
            .ok_or_else(|| ServiceError::new(ErrorCode::NotFound, format!("{model} does not exist")))
    }

    fn infer(
        &self,
        mut request: InferRequest,
        _: RequestContext,
    ) -> BoxFuture<'_, Result<InferResponse, ServiceError>> {
        Box::pin(async move {
            let metadata = self.model_metadata(request.model())?;
            let version = request.model().version().map(str::to_owned);
            let outputs = match metadata.name.as_str() {
                "slow" => {
                    let _waiting = Waiting::new(&self.waiting);
                    pending().await
                }
                "failing" => {
                    Err(ServiceError::internal("it failed").caused_by("disk on fire at src/secret.rs"))
                }
                "busy" => Err(ServiceError::new(
                    ErrorCode::Overloaded,
                    "its queue is full; try again later",
                )),
                name => run(name, &mut request),
            };
            let outputs = outputs.map_err(|error| error.within(format_args!("model '{}'", metadata.name)))?;
            let version = version.or_else(|| metadata.versions.last().cloned());
            Ok(InferResponse::new(metadata.name.clone(), outputs).with_version(version))
        })
    }

    fn repository(&self) -> Option<&dyn ModelRepository> {
        self.extensions().map(|it| it as _)
    }

    fn configuration(&self) -> Option<&dyn ModelConfiguration> {
        self.extensions().map(|it| it as _)
    }

    fn statistics(&self) -> Option<&dyn Statistics> {
        self.extensions().map(|it| it as _)
    }

    fn classification(&self) -> Option<&dyn Classification> {
        self.extensions().map(|it| it as _)
    }

    fn logging(&self) -> Option<&dyn Logging> {
        self.extensions().map(|it| it as _)
    }

    fn shared_memory(&self) -> Option<&dyn SystemSharedMemory> {
        self.extensions().map(|it| it as _)
    }

    fn has_schedule_policy(&self) -> bool {
        !self.is_plain
    }
}

impl TestService {
    fn extensions(&self) -> Option<&Extensions> {
        (!self.is_plain).then_some(&self.extensions)
    }

    /// Provides memory that clients can register as a region with the key `key`. The server can read and
    /// write the memory.
    pub fn share(&self, key: &str, memory: Vec<u8>) {
        self.extensions.share(key, memory);
    }

    /// Returns the content of the memory from [`TestService::share`].
    #[must_use]
    pub fn shared(&self, key: &str) -> Option<Vec<u8>> {
        self.extensions.shared(key)
    }
}

fn run(name: &str, request: &mut InferRequest) -> Result<Vec<InferOutput>, ServiceError> {
    Ok(match name {
        "matrix" => {
            let a = request.take::<f32>("a")?;
            let sums: Vec<f32> = a.chunks(2).map(|row| row.iter().sum()).collect();
            let sums = Tensor::from_vec(Shape::vector(sums.len() as u64), sums)?;
            vec![
                InferOutput::new("sum", sums),
                InferOutput::new("b", request.take_input("b")?),
            ]
        }
        "nan" => {
            let values = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
            let values = Tensor::from_slice(Shape::vector(3), &values)?;
            vec![InferOutput::new("y", values)]
        }
        "not_text" => {
            vec![InferOutput::new(
                "y",
                oip_types::BytesTensor::from_elements(Shape::vector(1), [b"\xff\xfe"])?,
            )]
        }
        "minilm" | "reranker" | "sentiment" => text::run(name, request)?,
        _ => vec![InferOutput::new("y", request.take_input("x")?)],
    })
}

/// Counts a request while it waits.
struct Waiting(Arc<AtomicUsize>);

impl Waiting {
    fn new(waiting: &Arc<AtomicUsize>) -> Self {
        waiting.fetch_add(1, Ordering::SeqCst);
        Self(waiting.clone())
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}
