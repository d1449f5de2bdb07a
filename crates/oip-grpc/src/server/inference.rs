//! From a request's message to its answer's: decompressing, reading, running, writing, within the request's lease.

use std::{ops::Range, pin::pin, sync::Arc, time::Duration};

use bytes::Bytes;
use oip_service::{
    Charge, CpuPool, Grant, InferenceService, Lease, Named, Phase, RequestContext, ResponseStream, Responses,
    SharedInputs,
    compression::{Compression, inflate},
};
use oip_types::{ErrorCode, InferResponse, ParameterValue, Parameters, ServiceError};
use tokio::{sync::watch, time::timeout_at};
use tonic::{Response, Status};

use super::{
    GrpcConfig,
    answer::{self, Answer, Envelope},
    leased::Listed,
    messages::Message,
    request::{Echo, Effort, Failure, ReadRequest, Reader},
    status,
};
use crate::{parameters::write_parameters, proto::ModelInferResponse};

/// Bytes that are looked at on the thread of a connection. What takes more goes to the pool.
const LITTLE: u64 = 64 << 10;

/// Bytes of an answer that are compressed on the thread of a connection.
const LITTLE_TO_COMPRESS: usize = 16 << 10;

/// Responses that are worth compressing, where the client wants that: smaller ones grow, larger ones take long.
const WORTH_COMPRESSING: Range<usize> = 1 << 10..4 << 20;

/// How much larger a compressed message is taken to be than the bytes that came, for its place in the pool's queue.
const INFLATED: u64 = 64;

/// On a response: whether no other will come for the same request.
pub(crate) const FINAL_RESPONSE: &str = "triton_final_response";

/// The state that all calls share.
pub(crate) struct Inference {
    pub(crate) service: Arc<dyn InferenceService>,
    pub(crate) config: GrpcConfig,
    /// Whether streams are to come to their end.
    pub(crate) is_draining: watch::Sender<bool>,
}

/// How a request is to be answered.
#[derive(Clone, Copy)]
pub(crate) struct Wanted {
    /// The time that the client gave the call.
    pub(crate) timeout: Option<Duration>,
    pub(crate) envelope: Envelope,
    pub(crate) compression: Option<Compression>,
}

/// Why a request is not answered.
pub(crate) enum Failed {
    /// Its message cannot be read, which ends the call.
    Unreadable(Status),
    /// The request itself failed.
    Request(Echo, ServiceError),
}

/// The response to a request on a stream.
pub(crate) enum Answered {
    /// The one answer, as a message in its frame.
    Once(Vec<Bytes>),
    /// Responses as the model gives them.
    Several(Box<SeveralAnswers>),
}

/// Responses that are written one by one.
pub(crate) struct SeveralAnswers {
    inference: Arc<Inference>,
    answers: ResponseStream,
    echo: Echo,
    wants_raw: bool,
    wants_empty_final: bool,
    wanted: Wanted,
    lease: Lease,
    model: Named,
    /// What the request holds beside its tensors, while its model may.
    _charge: Charge,
    /// The end was told.
    is_over: bool,
}

impl Echo {
    /// A response without outputs, after which no other comes.
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

impl SeveralAnswers {
    /// The next answer, as a message in its frame; `None` after the last one.
    pub(crate) async fn next(&mut self) -> Option<Result<Vec<Bytes>, Failed>> {
        if self.is_over {
            return None;
        }
        let next = self.written().await;
        self.is_over |= matches!(next, Some(Err(_)));
        next.map(|next| next.map_err(|error| Failed::Request(self.echo.clone(), error)))
    }

    async fn written(&mut self) -> Option<Result<Vec<Bytes>, ServiceError>> {
        let next = within_deadline(&self.lease, self.answers.next()).await;
        let answer = match next {
            Ok(Some(Ok(answer))) => answer,
            Ok(Some(Err(error))) => return Some(Err(error)),
            Ok(None) => {
                self.is_over = true;
                let end = self.echo.clone().into_final();
                return self.wants_empty_final.then(|| answer::without_outputs("", end));
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

impl From<Failed> for Status {
    fn from(failed: Failed) -> Self {
        match failed {
            Failed::Unreadable(status) => status,
            Failed::Request(_, error) => status::from_error(&error),
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

    /// Answers a request with messages in their frames: with one, unless it stands on a stream.
    pub(crate) async fn infer(
        self: &Arc<Self>,
        message: Message,
        wanted: Wanted,
        grant: Option<&Grant>,
    ) -> Result<Answered, Failed> {
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
            let model = Named::of(&request);
            let cx = RequestContext::for_request(&request, &lease, wanted.timeout, &self.config.time)?;
            let (service, cpu) = (&self.service, &self.config.cpu);
            let inference = async {
                match wanted.envelope {
                    Envelope::Call => oip_service::respond(service, cpu, request, cx)
                        .await
                        .map(Responses::One),
                    Envelope::Stream => {
                        Box::pin(oip_service::respond_stream(service, cpu, request, cx)).await
                    }
                }
            };
            let answers = within_deadline(&lease, pin!(inference))
                .await
                .map_err(|passed| passed.within(&model))??;
            let response = match answers {
                Responses::One(response) => response,
                Responses::Several(answers) => {
                    return Ok(Answered::Several(Box::new(SeveralAnswers {
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
            written.map(Answered::Once)
        };
        answered.await.map_err(|error| Failed::Request(echo, error))
    }

    /// Reads a request: on this thread if that is quick.
    async fn read(self: &Arc<Self>, message: Message) -> Result<ReadRequest, Failed> {
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
        // A message of few bytes may be much work, such as copying tensors out of shared memory: then it is begun anew, as a large job.
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

    /// Undoes the compression of a message, if it has one, and reads it, as a job of the pool.
    async fn read_on_pool(
        self: &Arc<Self>,
        lease: &Lease,
        bytes: &Bytes,
        compression: Option<Compression>,
        cost: u64,
        effort: Effort,
    ) -> Result<Result<ReadRequest, (Echo, Failure)>, Failed> {
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
            .map_err(|error| Failed::Request(Echo::default(), error))?
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

    /// Writes an answer: on this thread if that is quick.
    async fn write(
        &self,
        mut response: InferResponse,
        wants_raw: bool,
        wanted: Wanted,
        is_final: bool,
        lease: &Lease,
        model: Named,
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
                let answer = Answer::new(response, wants_raw, wanted.envelope);
                let len = answer.len();
                if len > limit {
                    let message = format!("the answer has {len} bytes, the limit is {limit}");
                    return Err(ServiceError::internal(message).within(model));
                }
                let framed = answer.write(&lease);
                let compression = wanted.compression.filter(|_| WORTH_COMPRESSING.contains(&len));
                let framed = match compression {
                    None => framed,
                    Some(compression) => {
                        framed.and_then(|framed| answer::compress(framed, compression, &lease))
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

    /// Makes an answer that grows with the models in the repository, on the pool.
    pub(crate) async fn list<T: prost::Message + 'static>(
        &self,
        list: impl FnOnce(&dyn InferenceService) -> Result<T, ServiceError> + Send + 'static,
    ) -> Result<Response<T>, ServiceError> {
        /// It counts as a small job.
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
                response.extensions_mut().insert(Listed::new(charge));
                Ok(response)
            }
        };
        let answer = self.on_pool(&lease, COST, charged).await;
        guard.disarm();
        answer
    }

    /// Does work that takes long on the pool, within the request's deadline.
    async fn on_pool<T: Send + 'static>(
        &self,
        lease: &Lease,
        cost: u64,
        work: impl FnOnce() -> Result<T, ServiceError> + Send + 'static,
    ) -> Result<T, ServiceError> {
        within_deadline(lease, self.config.cpu.run(lease, cost, work)).await?
    }
}

/// Waits for something until the request's deadline.
async fn within_deadline<T>(lease: &Lease, work: impl Future<Output = T>) -> Result<T, ServiceError> {
    match lease.deadline() {
        None => Ok(work.await),
        Some(deadline) => timeout_at(deadline.into(), work)
            .await
            .map_err(|_| ServiceError::new(ErrorCode::DeadlineExceeded, "the deadline passed")),
    }
}

fn unreadable((echo, failure): (Echo, Failure)) -> Failed {
    match failure {
        Failure::Malformed(malformed) => Failed::Unreadable(Status::internal(malformed.to_string())),
        Failure::Refused(error) => Failed::Request(echo, error),
        Failure::TooMuchWork => {
            let error = ServiceError::internal("a message was not read, though there was time for it");
            Failed::Request(echo, error)
        }
    }
}

/// Says what is wrong with a compressed message as `tonic` says it, whose calls have compressed messages too.
fn not_inflated(error: ServiceError, limit: usize) -> Failed {
    match error.code() {
        ErrorCode::InvalidArgument => {
            Failed::Unreadable(Status::internal(format!("Error decompressing: {error}")))
        }
        // The budget refuses with the same code, which is another thing: the message itself is sound.
        ErrorCode::TooLarge if error.message().ends_with("once it is decompressed") => {
            Failed::Unreadable(Status::resource_exhausted(format!(
                "Error decompressing: size limit, of {limit} bytes, exceeded while decompressing message"
            )))
        }
        _ => Failed::Request(Echo::default(), error),
    }
}
