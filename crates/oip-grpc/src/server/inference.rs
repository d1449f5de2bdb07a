//! Handles an inference message: decompresses and decodes the request, runs it and encodes the response,
//! under the request's lease.

use std::{ops::Range, pin::pin, sync::Arc, time::Duration};

use bytes::Bytes;
use oip_model::{ResponseStream, Responses};
use oip_resources::{
    Charge, CpuPool, Lease, Phase,
    compression::{Compression, inflate},
};
use oip_service::{Grant, InferenceService, NamedModel, RequestContext, SharedInputs};
use oip_types::{ErrorCode, InferRequest, InferResponse, ParameterValue, Parameters, ServiceError};
use tokio::{sync::watch, time::timeout_at};
use tonic::{Response, Status};

use super::{
    GrpcConfig,
    leased::ListCharge,
    messages::Message,
    request::{Echo, Effort, Failure, ReadRequest, Reader},
    response::{self, Envelope, ResponseMessage},
    status,
};
use crate::{parameters::write_parameters, proto::ModelInferResponse};

/// Messages up to this size are handled on the connection's thread; larger ones go to the pool.
const LITTLE: u64 = 64 << 10;

/// Responses up to this size are compressed on the connection's thread.
const LITTLE_TO_COMPRESS: usize = 16 << 10;

/// Sizes of responses worth compressing on request: smaller responses grow, and compressing larger ones takes
/// too long.
const WORTH_COMPRESSING: Range<usize> = 1 << 10..4 << 20;

/// Assumed compression ratio, for scheduling in the pool's queue.
const INFLATED: u64 = 64;

/// Response parameter that marks the last response to the request.
pub(crate) const FINAL_RESPONSE: &str = "triton_final_response";

/// The state that all calls share.
pub(crate) struct Inference {
    pub(crate) service: Arc<dyn InferenceService>,
    pub(crate) config: GrpcConfig,
    /// Whether streams must end.
    pub(crate) is_draining: watch::Sender<bool>,
}

/// The client's options for the response.
#[derive(Clone, Copy)]
pub(crate) struct ResponseOptions {
    /// The client's timeout for the call.
    pub(crate) timeout: Option<Duration>,
    pub(crate) envelope: Envelope,
    pub(crate) compression: Option<Compression>,
}

/// Why a request failed.
pub(crate) enum RequestFailure {
    /// The request's message cannot be decoded; the error ends the call.
    Unreadable(Status),
    /// The request is invalid, or its processing failed.
    Request(Echo, ServiceError),
}

/// The response to a request.
pub(crate) enum EncodedResponses {
    /// A single response, as a framed message.
    Once(Vec<Bytes>),
    /// Responses as the model produces them.
    Several(Box<SeveralResponses>),
}

/// Responses that are encoded one by one.
pub(crate) struct SeveralResponses {
    inference: Arc<Inference>,
    answers: ResponseStream,
    echo: Echo,
    wants_raw: bool,
    wants_empty_final: bool,
    wanted: ResponseOptions,
    lease: Lease,
    model: NamedModel,
    /// The charge for the memory that the request takes in addition to its tensors; kept while the model may
    /// use the request.
    _charge: Charge,
    /// Whether the end of the responses was reported.
    is_over: bool,
}

impl Echo {
    /// Creates a response without outputs that marks the end.
    pub(crate) fn into_final(self) -> ModelInferResponse {
        ModelInferResponse {
            model_name: self.model_name,
            model_version: self.model_version,
            id: self.id,
            parameters: write_parameters(Parameters::from([(
                FINAL_RESPONSE.to_owned(),
                ParameterValue::Bool(true),
            )])),
            ..ModelInferResponse::default()
        }
    }
}

impl SeveralResponses {
    /// Returns the next response as a framed message; `None` after the last.
    pub(crate) async fn next(&mut self) -> Option<Result<Vec<Bytes>, RequestFailure>> {
        if self.is_over {
            return None;
        }
        let next = self.written().await;
        self.is_over |= matches!(next, Some(Err(_)));
        next.map(|next| next.map_err(|error| RequestFailure::Request(self.echo.clone(), error)))
    }

    async fn written(&mut self) -> Option<Result<Vec<Bytes>, ServiceError>> {
        let next = within_deadline(&self.lease, self.answers.next()).await;
        let answer = match next {
            Ok(Some(Ok(answer))) => answer,
            Ok(Some(Err(error))) => return Some(Err(error)),
            Ok(None) => {
                self.is_over = true;
                let end = self.echo.clone().into_final();
                return self.wants_empty_final.then(|| response::without_outputs("", end));
            }
            Err(passed) => return Some(Err(passed.within(&self.model))),
        };
        self.is_over = answer.is_last;
        self.lease.note_version(answer.response.model_version.as_deref());
        let (wanted, model) = (self.wanted, self.model.clone());
        let written = self.inference.write(
            answer.response,
            self.wants_raw,
            wanted,
            answer.is_last,
            &self.lease,
            model,
        );
        Some(written.await)
    }
}

impl From<RequestFailure> for Status {
    fn from(failed: RequestFailure) -> Self {
        match failed {
            RequestFailure::Unreadable(status) => status,
            RequestFailure::Request(_, error) => status::from_error(&error),
        }
    }
}

impl Inference {
    pub(crate) fn new(service: Arc<dyn InferenceService>, config: GrpcConfig) -> Self {
        Self {
            service,
            config,
            is_draining: watch::Sender::new(false),
        }
    }

    /// Runs a request and returns framed responses; a single one for a unary call.
    pub(crate) async fn infer(
        self: &Arc<Self>,
        message: Message,
        wanted: ResponseOptions,
        grant: Option<&Grant>,
    ) -> Result<EncodedResponses, RequestFailure> {
        let lease = message.lease.clone();
        let mut laps = lease.laps();
        let ReadRequest {
            request,
            wants_raw,
            wants_empty_final,
            charge,
        } = self.read(message).await?;
        laps.end(Phase::Decode);
        if let Some(notes) = lease.notes() {
            notes.set_model(request.model().name());
        }
        let echo = match wanted.envelope {
            Envelope::Call => Echo::default(),
            Envelope::Stream => Echo::of_request(&request),
        };
        let answered = async {
            if let Some(grant) = grant {
                grant.check_model(request.model().name())?;
            }
            let model = NamedModel::of(&request);
            let cx = RequestContext::for_request(&request, &lease, wanted.timeout, &self.config.time)?;
            let inference = self.run(request, cx, wanted.envelope);
            let answers = within_deadline(&lease, pin!(inference))
                .await
                .map_err(|passed| passed.within(&model))??;
            let response = match answers {
                Responses::One(response) => response,
                Responses::Several(answers) => {
                    return Ok(EncodedResponses::Several(Box::new(SeveralResponses {
                        inference: self.clone(),
                        answers,
                        echo: echo.clone(),
                        wants_raw,
                        wants_empty_final,
                        wanted,
                        lease: lease.clone(),
                        model,
                        _charge: charge,
                        is_over: false,
                    })));
                }
            };
            lease.note_version(response.model_version.as_deref());
            laps.skip();
            let written = self.write(response, wants_raw, wanted, true, &lease, model).await;
            laps.end(Phase::Encode);
            written.map(EncodedResponses::Once)
        };
        answered
            .await
            .map_err(|error| RequestFailure::Request(echo, error))
    }

    /// Runs a decoded request. Only a request of a stream can have several responses.
    async fn run(
        &self,
        request: InferRequest,
        cx: RequestContext,
        envelope: Envelope,
    ) -> Result<Responses, ServiceError> {
        let (service, cpu) = (&self.service, &self.config.cpu);
        match envelope {
            Envelope::Call => oip_service::respond(service, cpu, request, cx)
                .await
                .map(Responses::One),
            Envelope::Stream => Box::pin(oip_service::respond_stream(service, cpu, request, cx)).await,
        }
    }

    /// Decodes a request, on the current thread if the work is short.
    async fn read(self: &Arc<Self>, message: Message) -> Result<ReadRequest, RequestFailure> {
        let Message {
            lease,
            compression,
            bytes,
        } = message;
        if compression.is_none() {
            match self.read_now(&bytes, &lease, Effort::Little(LITTLE)) {
                Err((_, Failure::TooMuchWork)) => {}
                read => return read.map_err(unreadable),
            }
        }
        let cost = bytes.len() as u64 * if compression.is_some() { INFLATED } else { 1 };
        // A short message may still require much work, such as copying tensors out of shared memory. If so,
        // decoding starts over as a large job.
        if cost <= CpuPool::SMALL {
            let read = self
                .read_on_pool(&lease, &bytes, compression, cost, Effort::Little(CpuPool::SMALL))
                .await?;
            match read {
                Err((_, Failure::TooMuchWork)) => {}
                read => return read.map_err(unreadable),
            }
        }
        let cost = cost.max(CpuPool::SMALL + 1);
        let read = self
            .read_on_pool(&lease, &bytes, compression, cost, Effort::Any)
            .await?;
        read.map_err(unreadable)
    }

    /// Decompresses and decodes a message on the pool.
    async fn read_on_pool(
        self: &Arc<Self>,
        lease: &Lease,
        bytes: &Bytes,
        compression: Option<Compression>,
        cost: u64,
        effort: Effort,
    ) -> Result<Result<ReadRequest, (Echo, Failure)>, RequestFailure> {
        let work = {
            let (inference, lease, bytes) = (self.clone(), lease.clone(), bytes.clone());
            move || {
                let limit = inference.config.max_message_bytes;
                let bytes = match compression {
                    None => bytes,
                    Some(compression) => match inflate(&lease, compression, &bytes, limit) {
                        Ok(inflated) => inflated,
                        Err(error) => return Ok(Err(not_inflated(error, limit))),
                    },
                };
                Ok(Ok(inference.read_now(&bytes, &lease, effort)))
            }
        };
        Box::pin(self.on_pool(lease, cost, work))
            .await
            .map_err(|error| RequestFailure::Request(Echo::default(), error))?
    }

    fn read_now(&self, bytes: &Bytes, lease: &Lease, effort: Effort) -> Result<ReadRequest, (Echo, Failure)> {
        let reader = Reader {
            limits: &self.config.limits,
            output: self.config.output,
            shared_memory: &SharedInputs::new(&*self.service, lease),
            lease,
        };
        reader.read(bytes, effort)
    }

    /// Encodes a response, on the current thread if the work is short.
    async fn write(
        &self,
        mut response: InferResponse,
        wants_raw: bool,
        wanted: ResponseOptions,
        is_final: bool,
        lease: &Lease,
        model: NamedModel,
    ) -> Result<Vec<Bytes>, ServiceError> {
        if wanted.envelope == Envelope::Stream {
            let is_final = ParameterValue::Bool(is_final);
            response.parameters.insert(FINAL_RESPONSE.to_owned(), is_final);
        }
        let tensors: usize = response
            .outputs
            .iter()
            .map(|output| output.value.raw().len())
            .sum();
        let is_quick = (wants_raw || tensors as u64 <= LITTLE)
            && (wanted.compression.is_none() || tensors <= LITTLE_TO_COMPRESS);
        let limit = self.config.max_answer_bytes;
        let write = {
            let lease = lease.clone();
            move || {
                let answer = ResponseMessage::new(response, wants_raw, wanted.envelope);
                let len = answer.len();
                if len > limit {
                    let message = format!("the response has {len} bytes, the limit is {limit}");
                    return Err(ServiceError::internal(message).within(model));
                }
                let framed = answer.write(&lease);
                let compression = wanted.compression.filter(|_| WORTH_COMPRESSING.contains(&len));
                let framed = match compression {
                    None => framed,
                    Some(compression) => {
                        framed.and_then(|framed| response::compress(framed, compression, &lease))
                    }
                };
                framed.map_err(|error| error.within(model))
            }
        };
        match is_quick {
            true => write(),
            false => Box::pin(self.on_pool(lease, tensors as u64, write)).await,
        }
    }

    /// Builds, on a thread of the pool, a response whose size depends on the number of models.
    pub(crate) async fn list<T: prost::Message + 'static>(
        &self,
        list: impl FnOnce(&dyn InferenceService) -> Result<T, ServiceError> + Send + 'static,
    ) -> Result<Response<T>, ServiceError> {
        /// Assumed cost of building the list, in bytes. The pool counts a job of this cost as small.
        const COST: u64 = 64 << 10;
        let lease = Lease::new(&self.config.budget, &self.config.time);
        let guard = lease.guard();
        let service = self.service.clone();
        let charged = {
            let lease = lease.clone();
            move || {
                let listed = list(&*service)?;
                let charge = lease.charge(listed.encoded_len() as u64)?;
                let mut response = Response::new(listed);
                response.extensions_mut().insert(ListCharge::new(charge));
                Ok(response)
            }
        };
        let answer = self.on_pool(&lease, COST, charged).await;
        guard.disarm();
        answer
    }

    /// Runs long work on the pool, until the request's deadline.
    async fn on_pool<T: Send + 'static>(
        &self,
        lease: &Lease,
        cost: u64,
        work: impl FnOnce() -> Result<T, ServiceError> + Send + 'static,
    ) -> Result<T, ServiceError> {
        within_deadline(lease, self.config.cpu.run(lease, cost, work)).await?
    }
}

/// Waits for `work` until the request's deadline.
async fn within_deadline<T>(lease: &Lease, work: impl Future<Output = T>) -> Result<T, ServiceError> {
    match lease.deadline() {
        None => Ok(work.await),
        Some(deadline) => timeout_at(deadline.into(), work)
            .await
            .map_err(|_| ServiceError::new(ErrorCode::DeadlineExceeded, "the deadline passed")),
    }
}

fn unreadable((echo, failure): (Echo, Failure)) -> RequestFailure {
    match failure {
        Failure::Malformed(malformed) => RequestFailure::Unreadable(Status::internal(malformed.to_string())),
        Failure::Refused(error) => RequestFailure::Request(echo, error),
        Failure::TooMuchWork => {
            let error = ServiceError::internal("a message was not read, though there was time for it");
            RequestFailure::Request(echo, error)
        }
    }
}

/// Reports a decompression error in the words that `tonic` uses for all other calls.
fn not_inflated(error: ServiceError, limit: usize) -> RequestFailure {
    match error.code() {
        ErrorCode::InvalidArgument => {
            RequestFailure::Unreadable(Status::internal(format!("Error decompressing: {error}")))
        }
        // The memory budget also returns `TooLarge`, for a valid message that does not fit.
        ErrorCode::TooLarge if error.message().ends_with("once it is decompressed") => {
            RequestFailure::Unreadable(Status::resource_exhausted(format!(
                "Error decompressing: size limit, of {limit} bytes, exceeded while decompressing message"
            )))
        }
        _ => RequestFailure::Request(Echo::default(), error),
    }
}
