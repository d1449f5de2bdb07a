//! `ModelStreamInfer`: requests that come one after the other on a stream, and their answers in the same order.
//!
//! A task of its own drives each stream: it reads requests while there is room, runs each in a task, and gives answers
//! out as the client takes them. What it holds is bounded by [`CONCURRENT`], whatever the client does.

use std::{
    collections::{BTreeMap, VecDeque},
    pin::Pin,
    sync::{Arc, OnceLock},
    task::{Context, Poll, ready},
    time::Duration,
};

use oip_types::{ErrorCode, ParameterValue, Parameters, ServiceError};
use prost::Message;
use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
    time::{Instant, Interval, MissedTickBehavior, interval, sleep_until, timeout},
};
use tonic::{Request, Status, Streaming, codegen::tokio_stream::Stream};

use super::{
    admission::{Admission, too_slow},
    inference::Inference,
    status,
};
use crate::{
    parameters::write_parameters,
    proto::{ModelInferRequest, ModelInferResponse, ModelStreamInferResponse},
};

/// Requests of one stream that are in work or answered and not taken yet.
///
/// Enough for a model to make batches of, few enough that a client which never reads costs little. Answers come in the
/// order of the requests, as in Triton: clients match them by counting. A request that takes long therefore holds up
/// those behind it; clients that do not want this open several streams.
const CONCURRENT: usize = 16;

/// How often an open stream is looked at.
const TICK: Duration = Duration::from_secs(1);

/// On a response: whether no other will come for the same request. Models here answer once.
const FINAL_RESPONSE: &str = "triton_final_response";

/// In the metadata of a call: whether errors close the stream with their status.
const GRPC_ERROR: &str = "triton_grpc_error";

type Reply = Result<ModelStreamInferResponse, Status>;

/// Opens a stream.
pub(crate) fn open(
    inference: Arc<Inference>,
    request: Request<Streaming<ModelInferRequest>>,
) -> Result<Answers, ServiceError> {
    let (metadata, extensions, requests) = request.into_parts();
    let admission = extensions.get::<Admission>().cloned();
    if let Some(admission) = &admission {
        admission.count_each_message();
    }
    let timeout = status::timeout(metadata.as_ref())?;
    let (sender, answers) = mpsc::channel(1);
    let end = Arc::new(OnceLock::new());
    let mut tick = interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let driver = Driver {
        is_draining: inference.is_draining.subscribe(),
        inference,
        requests,
        admission,
        is_compressed: metadata.contains_key("grpc-encoding"),
        deadline: timeout.and_then(|timeout| Instant::now().checked_add(timeout)),
        closes_on_error: metadata.get(GRPC_ERROR).is_some_and(|value| value == "true"),
        running: VecDeque::new(),
        answers: sender,
        tick,
        message_since: None,
    };
    let driver = Task::start({
        let end = end.clone();
        async move {
            if let Err(status) = driver.drive().await {
                let _ = end.set(status);
            }
        }
    });
    Ok(Answers {
        answers,
        end,
        is_over: false,
        _driver: driver,
    })
}

/// The answers of a stream. When it is dropped, because the client is gone, all work for it ends.
pub(crate) struct Answers {
    answers: mpsc::Receiver<ModelStreamInferResponse>,
    /// The status that the stream ends with, if not well.
    end: Arc<OnceLock<Status>>,
    is_over: bool,
    _driver: Task<()>,
}

impl Stream for Answers {
    type Item = Reply;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Reply>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        if let Some(answer) = ready!(self.answers.poll_recv(cx)) {
            return Poll::Ready(Some(Ok(answer)));
        }
        // The driver has let go of its end, so the status is set, if there is one.
        self.is_over = true;
        Poll::Ready(self.end.get().cloned().map(Err))
    }
}

/// What moves a stream.
struct Driver {
    inference: Arc<Inference>,
    requests: Streaming<ModelInferRequest>,
    admission: Option<Admission>,
    is_compressed: bool,
    is_draining: watch::Receiver<bool>,
    /// Of the call as a whole.
    deadline: Option<Instant>,
    closes_on_error: bool,
    /// Requests in work, in the order in which they came.
    running: VecDeque<Task<Answer>>,
    answers: mpsc::Sender<ModelStreamInferResponse>,
    tick: Interval,
    /// Since when the message that is awaited has begun.
    message_since: Option<Instant>,
}

/// What can happen to a stream.
enum Event {
    Request(Box<ModelInferRequest>),
    /// No more requests are read: the client is done, or this is why.
    LastRequest(Result<(), Status>),
    Answer(Box<Answer>),
    DeadlinePassed,
    Tick,
}

impl Driver {
    /// Moves the stream to its end; an error is the status to end with.
    async fn drive(mut self) -> Result<(), Status> {
        let mut end = None;
        loop {
            match self.next_event(end.is_none()).await {
                Event::Request(message) => self.start(*message)?,
                Event::LastRequest(result) => end = Some(result),
                Event::Answer(answer) => self.give(*answer).await?,
                Event::DeadlinePassed => {
                    return Err(refusal(ErrorCode::DeadlineExceeded, "the deadline passed"));
                }
                Event::Tick => self.look_after_message(end.is_none())?,
            }
            if self.running.is_empty()
                && let Some(end) = end.take()
            {
                return end;
            }
        }
    }

    async fn next_event(&mut self, is_reading: bool) -> Event {
        let has_room = is_reading && self.running.len() < CONCURRENT;
        let deadline = self.deadline.unwrap_or_else(Instant::now);
        tokio::select! {
            biased;
            answer = first(&mut self.running), if !self.running.is_empty() => Event::Answer(Box::new(answer)),
            message = self.requests.message(), if has_room => match message {
                Ok(Some(message)) => Event::Request(Box::new(message)),
                Ok(None) => Event::LastRequest(Ok(())),
                Err(status) => Event::LastRequest(Err(status::harmonised(status))),
            },
            _ = self.is_draining.wait_for(|is_draining| *is_draining), if is_reading => {
                Event::LastRequest(Err(refusal(ErrorCode::Unavailable, "the server is shutting down")))
            }
            () = sleep_until(deadline), if self.deadline.is_some() => Event::DeadlinePassed,
            _ = self.tick.tick() => Event::Tick,
        }
    }

    /// Starts on a request.
    fn start(&mut self, message: ModelInferRequest) -> Result<(), Status> {
        self.message_since = None;
        let admission = self.admission.as_ref().map(Admission::next_message).transpose();
        let admission = admission.map_err(|error| status::from_error(&error))?;
        let timeout = self
            .deadline
            .map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let (inference, is_compressed) = (self.inference.clone(), self.is_compressed);
        let limit = self.inference.config.limits.id_bytes;
        self.running.push_back(Task::start(async move {
            let echo = Echo::of(&message, limit);
            let decompressed = match &admission {
                Some(admission) if is_compressed => admission.grow_to(message.encoded_len() as u64),
                _ => Ok(()),
            };
            let result = match decompressed {
                Ok(()) => inference.infer(message, admission.as_ref(), timeout).await,
                Err(error) => Err(error),
            };
            Answer { echo, result }
        }));
        Ok(())
    }

    /// Gives an answer to the client, who has as long to take it as a request may last.
    async fn give(&mut self, answer: Answer) -> Result<(), Status> {
        let message = match answer.result {
            Ok(response) => answered(response),
            Err(error) => {
                let status = status::from_error(&error);
                if self.closes_on_error {
                    return Err(status);
                }
                failed(answer.echo, status.message())
            }
        };
        let limit = self.inference.config.time.default;
        match timeout(limit, self.answers.send(message)).await {
            Ok(Ok(())) => Ok(()),
            // Nobody listens any more, so nobody will see this either.
            Ok(Err(_)) => Err(refusal(ErrorCode::Cancelled, "the client is gone")),
            Err(_) => Err(refusal(
                ErrorCode::Cancelled,
                "the client did not take its answers",
            )),
        }
    }

    /// Ends streams whose next message has begun and does not come to its end.
    fn look_after_message(&mut self, is_reading: bool) -> Result<(), Status> {
        let is_awaited = is_reading && self.running.len() < CONCURRENT;
        let admission = self.admission.as_ref().filter(|_| is_awaited);
        if !admission.is_some_and(Admission::is_within_message) {
            self.message_since = None;
            return Ok(());
        }
        let since = *self.message_since.get_or_insert_with(Instant::now);
        match since.elapsed() > self.inference.config.time.max {
            true => Err(status::from_error(&too_slow())),
            false => Ok(()),
        }
    }
}

/// The answer to the first of the requests.
async fn first(running: &mut VecDeque<Task<Answer>>) -> Answer {
    let Some(first) = running.front_mut() else {
        return std::future::pending().await;
    };
    let answer = (&mut first.0).await.unwrap_or_else(|error| Answer {
        echo: Echo::default(),
        result: Err(ServiceError::internal("the request could not be answered").caused_by(error)),
    });
    running.pop_front();
    answer
}

fn refusal(code: ErrorCode, message: &str) -> Status {
    status::from_error(&ServiceError::new(code, message))
}

/// A task that ends with the one that waits for it.
struct Task<T>(JoinHandle<T>);

impl<T: Send + 'static> Task<T> {
    fn start(work: impl Future<Output = T> + Send + 'static) -> Self {
        Self(tokio::spawn(work))
    }
}

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

struct Answer {
    echo: Echo,
    result: Result<ModelInferResponse, ServiceError>,
}

/// What says to which request an error belongs.
#[derive(Default)]
struct Echo {
    id: String,
    model_name: String,
    model_version: String,
}

impl Echo {
    /// What is longer than `limit` belongs to no good request and is not sent back.
    fn of(message: &ModelInferRequest, limit: usize) -> Self {
        let short = |text: &String| match text.len() <= limit {
            true => text.clone(),
            false => String::new(),
        };
        Self {
            id: short(&message.id),
            model_name: short(&message.model_name),
            model_version: short(&message.model_version),
        }
    }
}

fn is_final() -> BTreeMap<String, crate::proto::InferParameter> {
    write_parameters(Parameters::from([(
        FINAL_RESPONSE.to_owned(),
        ParameterValue::Bool(true),
    )]))
}

fn answered(mut response: ModelInferResponse) -> ModelStreamInferResponse {
    response.parameters.extend(is_final());
    ModelStreamInferResponse {
        error_message: String::new(),
        infer_response: Some(response),
    }
}

fn failed(echo: Echo, message: &str) -> ModelStreamInferResponse {
    ModelStreamInferResponse {
        error_message: message.to_owned(),
        infer_response: Some(ModelInferResponse {
            model_name: echo.model_name,
            model_version: echo.model_version,
            id: echo.id,
            parameters: is_final(),
            ..ModelInferResponse::default()
        }),
    }
}
