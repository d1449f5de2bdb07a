//! `ModelStreamInfer`: a stream of requests, with responses in the same order. Models with any number of
//! responses per request are an exception: their responses are sent as they come, and clients match them by
//! id.
//!
//! A task drives each stream: it reads requests until the maximum number is running, runs each in its own
//! task, and passes responses on as the client takes them. Memory is bounded by [`CONCURRENT`] requests, and
//! by [`CONCURRENT_AT_FIRST`] until the client takes responses.

use std::{
    collections::VecDeque,
    convert::Infallible,
    error::Error,
    future::{pending, poll_fn},
    pin::Pin,
    sync::{Arc, OnceLock},
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response, header};
use http_body::{Body, Frame};
use oip_resources::{CallSlot, RequestNotes};
use oip_service::Grant;
use oip_types::{ErrorCode, ServiceError};
use tokio::{
    sync::{mpsc, watch},
    task::{JoinHandle, JoinSet},
    time::{Instant, sleep_until, timeout_at},
};
use tonic::Status;

use super::{
    encoding,
    inference::{EncodedResponses, Inference, RequestFailure, ResponseOptions, SeveralResponses},
    messages::{Message, Messages},
    request::Echo,
    response::{self, Envelope},
    status,
};

/// Maximum number of requests of a stream that are running, or whose response the client has not taken yet.
///
/// The limit is high enough to fill batches, and low enough that a client which never reads costs little.
/// Responses are in request order, as in Triton, where clients match them by counting. A slow request
/// therefore delays the single responses to later requests; clients that cannot accept the delay open several
/// streams.
const CONCURRENT: usize = 16;

/// Initial limit on running requests. Each response that the client takes raises the limit by one.
const CONCURRENT_AT_FIRST: usize = 4;

/// Metadata key: whether errors close the stream with their status.
const GRPC_ERROR: &str = "triton_grpc_error";

/// Opens a stream for a `ModelStreamInfer` call.
pub(crate) fn open<B>(inference: Arc<Inference>, request: Request<B>) -> Response<tonic::body::Body>
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    match answers(inference, request) {
        Err(status) => status.into_http(),
        Ok(answers) => {
            let mut response = Response::new(tonic::body::Body::new(answers));
            let headers = response.headers_mut();
            headers.insert(header::CONTENT_TYPE, status::CONTENT_TYPE);
            response
        }
    }
}

fn answers<B>(inference: Arc<Inference>, request: Request<B>) -> Result<StreamBody, Status>
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let (head, body) = request.into_parts();
    let compression = encoding::of_request(&head.headers)?;
    let timeout = status::timeout(&head.headers).map_err(|error| status::from_error(&error))?;
    let (sender, answers) = mpsc::channel(1);
    let end = Arc::new(OnceLock::new());
    let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    let driver = Driver {
        is_draining: inference.is_draining.subscribe(),
        messages: Messages::new(body, compression, &inference.config),
        out: Outgoing {
            answers: sender,
            deadline,
            patience: inference.config.time.default,
        },
        inference,
        deadline,
        grant: head.extensions.get::<Grant>().cloned(),
        notes: head.extensions.get().cloned(),
        place: head.extensions.get().cloned(),
        is_resting: false,
        closes_on_error: head.headers.get(GRPC_ERROR).is_some_and(|value| value == "true"),
        running: VecDeque::new(),
        streaming: JoinSet::new(),
        most_running: CONCURRENT_AT_FIRST,
    };
    let driver = Task::start({
        let end = end.clone();
        async move {
            // Moves the driver into the task, so that it is dropped after the status is set: dropping it ends
            // the responses.
            let mut driver = driver;
            if let Err(status) = driver.drive().await {
                let _ = end.set(status);
            }
        }
    });
    Ok(StreamBody {
        pieces: VecDeque::new(),
        answers,
        end,
        is_over: false,
        _driver: driver,
    })
}

/// A framed message in buffers that hold their charges.
type Frames = Vec<Bytes>;

/// The response body of a stream. Dropping it, when the client disconnects, cancels all work.
struct StreamBody {
    /// The buffers of the response being sent.
    pieces: VecDeque<Bytes>,
    answers: mpsc::Receiver<Frames>,
    /// The final status of the stream, if it is an error.
    end: Arc<OnceLock<Status>>,
    is_over: bool,
    _driver: Task<()>,
}

impl Body for StreamBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        loop {
            if let Some(piece) = self.pieces.pop_front() {
                return Poll::Ready(Some(Ok(Frame::data(piece))));
            }
            if self.is_over {
                return Poll::Ready(None);
            }
            match ready!(self.answers.poll_recv(cx)) {
                Some(answer) => self.pieces = answer.into(),
                None => {
                    // The driver has ended, so the final status, if any, is already set.
                    self.is_over = true;
                    let trailers = match self.end.get() {
                        None => status::trailers(&Status::ok("")),
                        Some(status) => status::trailers(status),
                    };
                    return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.is_over
    }
}

/// Reads the requests of a stream, runs them and sends the responses.
struct Driver<B> {
    inference: Arc<Inference>,
    messages: Messages<B>,
    is_draining: watch::Receiver<bool>,
    /// The deadline of the whole call.
    deadline: Option<Instant>,
    /// The client's rights; `None` if they are unlimited.
    grant: Option<Grant>,
    closes_on_error: bool,
    /// The record of the phases of all requests of the stream.
    notes: Option<Arc<RequestNotes>>,
    /// The stream's slot, if concurrent streams are limited.
    place: Option<CallSlot>,
    /// Whether the slot may be revoked.
    is_resting: bool,
    /// Running requests, in order of arrival.
    running: VecDeque<InWork>,
    /// Requests with any number of responses. Each task sends the responses to its own request.
    streaming: JoinSet<Result<SendOutcome, Status>>,
    /// Maximum number of running and streaming requests together.
    most_running: usize,
    out: Outgoing,
}

/// A request without a delivered response.
struct InWork {
    task: Task<Result<EncodedResponses, RequestFailure>>,
    /// The response, while it waits for the responses to earlier requests.
    answer: Option<Result<EncodedResponses, RequestFailure>>,
}

/// The outcome of sending a sequence of responses.
enum SendOutcome {
    /// All responses were sent. Contains the number of responses that the client took.
    Responses(usize),
    /// Failed with an error that closes the stream instead of being sent as a message.
    Failed(Status),
}

/// An event in the driver of a stream.
enum Event {
    Request(Message),
    /// No more requests are read, because the client has finished, or because of the error.
    LastRequest(Result<(), Status>),
    Response(Result<EncodedResponses, RequestFailure>),
    LastOfSeveral(Result<SendOutcome, Status>),
    DeadlinePassed,
}

impl<B> Driver<B>
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    /// Drives the stream to its end; an error is the final status.
    async fn drive(&mut self) -> Result<(), Status> {
        let mut end = None;
        loop {
            match self.next_event(end.is_none()).await {
                Event::Request(message) => self.start(message)?,
                Event::LastRequest(result) => end = Some(result),
                Event::Response(answer) => self.give(answer).await?,
                Event::LastOfSeveral(sent) => match sent? {
                    SendOutcome::Responses(count) => self.took(count),
                    SendOutcome::Failed(status) => {
                        self.pass_over_requests().await;
                        return Err(status);
                    }
                },
                Event::DeadlinePassed => return Err(deadline_passed()),
            }
            if self.running.is_empty()
                && self.streaming.is_empty()
                && let Some(end) = end.take()
            {
                return end;
            }
        }
    }

    async fn next_event(&mut self, is_reading: bool) -> Event {
        if self.running.is_empty() && self.streaming.is_empty() && !self.is_resting {
            self.is_resting = true;
            self.place.iter().for_each(CallSlot::rest);
            self.messages.set_resting_place(self.place.clone());
        }
        let place = self.place.as_ref();
        let revoked = async {
            match place {
                Some(place) => place.revoked().await,
                None => pending().await,
            }
        };
        let has_room = is_reading && self.running.len() + self.streaming.len() < self.most_running;
        let deadline = self.deadline.unwrap_or_else(Instant::now);
        tokio::select! {
            biased;
            answer = next_answer(&mut self.running), if !self.running.is_empty() => Event::Response(answer),
            Some(sent) = self.streaming.join_next(), if !self.streaming.is_empty() => {
                Event::LastOfSeveral(sent.unwrap_or_else(|_| Err(lost())))
            }
            message = self.messages.next(), if has_room => match message {
                Ok(Some(message)) => Event::Request(message),
                Ok(None) => Event::LastRequest(Ok(())),
                Err(status) => Event::LastRequest(Err(status)),
            },
            _ = self.is_draining.wait_for(|is_draining| *is_draining), if is_reading => {
                Event::LastRequest(Err(refusal(ErrorCode::Unavailable, "the server is shutting down")))
            }
            () = revoked, if is_reading && self.is_resting => Event::LastRequest(Err(gave_way())),
            () = sleep_until(deadline), if self.deadline.is_some() => Event::DeadlinePassed,
        }
    }

    /// Starts a request, unless the stream has just lost its slot.
    fn start(&mut self, message: Message) -> Result<(), Status> {
        self.messages.set_resting_place(None);
        if std::mem::take(&mut self.is_resting) && !self.place.as_ref().is_none_or(CallSlot::work) {
            return Err(gave_way());
        }
        if let Some(notes) = &self.notes {
            message.lease.set_notes(notes.clone());
        }
        let wanted = ResponseOptions {
            timeout: self.deadline.map(|deadline| {
                deadline.saturating_duration_since(Instant::now()) + message.lease.received().elapsed()
            }),
            envelope: Envelope::Stream,
            compression: None,
        };
        let (inference, grant) = (self.inference.clone(), self.grant.clone());
        let task = Task::start(async move {
            // If the stream ends, this future is dropped, which cancels the request's work.
            let guard = message.lease.guard();
            if let Some(Err(error)) = grant.as_ref().map(Grant::take_turn) {
                guard.disarm();
                return Err(RequestFailure::Request(Echo::default(), error));
            }
            let answer = inference.infer(message, wanted, grant.as_ref()).await;
            guard.disarm();
            answer
        });
        self.running.push_back(InWork { task, answer: None });
        Ok(())
    }

    /// Reads and drops requests in transit before the stream is closed with an error.
    ///
    /// Otherwise, gRPC's Python asyncio client would report the failed write to the closed stream instead of
    /// the stream's status.
    async fn pass_over_requests(&mut self) {
        const LINGER: Duration = Duration::from_millis(25);
        let end = Instant::now() + LINGER;
        while let Ok(Ok(Some(_))) = timeout_at(end, self.messages.next()).await {}
    }

    /// Sends a response, or spawns a task for a sequence of responses.
    async fn give(&mut self, answer: Result<EncodedResponses, RequestFailure>) -> Result<(), Status> {
        let message = match answer {
            Ok(EncodedResponses::Once(message)) => message,
            Ok(EncodedResponses::Several(answers)) => {
                let (out, closes_on_error) = (self.out.clone(), self.closes_on_error);
                self.streaming.spawn(send_several(*answers, out, closes_on_error));
                return Ok(());
            }
            Err(RequestFailure::Unreadable(status)) => return Err(status),
            Err(RequestFailure::Request(echo, error)) => {
                let status = status::from_error(&error);
                if self.closes_on_error {
                    self.pass_over_requests().await;
                    return Err(status);
                }
                failed(echo, status.message())?
            }
        };
        self.out.give(message).await?;
        self.took(1);
        Ok(())
    }

    /// Records that the client took `count` responses.
    fn took(&mut self, count: usize) {
        self.most_running = self.most_running.saturating_add(count).min(CONCURRENT);
    }
}

/// Sends the responses to one request as they come. Dropping the future cancels the model's work.
async fn send_several(
    mut answers: SeveralResponses,
    out: Outgoing,
    closes_on_error: bool,
) -> Result<SendOutcome, Status> {
    let mut count = 0;
    while let Some(answer) = answers.next().await {
        let message = match answer {
            Ok(message) => message,
            Err(RequestFailure::Unreadable(status)) => return Err(status),
            Err(RequestFailure::Request(echo, error)) => {
                let status = status::from_error(&error);
                if closes_on_error {
                    return Ok(SendOutcome::Failed(status));
                }
                failed(echo, status.message())?
            }
        };
        out.give(message).await?;
        count += 1;
    }
    Ok(SendOutcome::Responses(count))
}

/// The channel to the client.
#[derive(Clone)]
struct Outgoing {
    answers: mpsc::Sender<Frames>,
    /// The deadline of the whole call.
    deadline: Option<Instant>,
    /// How long a client may take to accept a response.
    patience: Duration,
}

impl Outgoing {
    /// Sends a response; the client must take it within the request time limit and the call's deadline.
    async fn give(&self, message: Frames) -> Result<(), Status> {
        let patience = Instant::now().checked_add(self.patience);
        let end = [patience, self.deadline].into_iter().flatten().min();
        let sent = match end {
            None => Ok(self.answers.send(message).await),
            Some(end) => timeout_at(end, self.answers.send(message)).await,
        };
        match sent {
            Ok(Ok(())) => Ok(()),
            // The client disconnected and will not see this error.
            Ok(Err(_)) => Err(refusal(ErrorCode::Cancelled, "the client disconnected")),
            Err(_) if end == self.deadline => Err(deadline_passed()),
            Err(_) => Err(refusal(
                ErrorCode::Cancelled,
                "the client did not read its responses",
            )),
        }
    }
}

/// Returns the response to the oldest request, or a sequence of responses to any request, because sequences
/// are sent in no particular order.
async fn next_answer(running: &mut VecDeque<InWork>) -> Result<EncodedResponses, RequestFailure> {
    poll_fn(|cx| {
        for at in 0..running.len() {
            let Some(InWork { task, answer }) = running.get_mut(at) else {
                break;
            };
            if answer.is_none()
                && let Poll::Ready(done) = Pin::new(&mut task.0).poll(cx)
            {
                *answer = Some(done.unwrap_or_else(|error| {
                    let error = ServiceError::internal("the request could not be answered").caused_by(error);
                    Err(RequestFailure::Request(Echo::default(), error))
                }));
            }
            let may_leave = at == 0 || matches!(answer, Some(Ok(EncodedResponses::Several(_))));
            if may_leave && let Some(answer) = answer.take() {
                running.remove(at);
                return Poll::Ready(answer);
            }
        }
        Poll::Pending
    })
    .await
}

fn lost() -> Status {
    status::from_error(&ServiceError::internal("the request could not be answered"))
}

fn gave_way() -> Status {
    refusal(
        ErrorCode::Unavailable,
        "the idle stream was closed to make room for another; open it again for the next request",
    )
}

fn deadline_passed() -> Status {
    refusal(ErrorCode::DeadlineExceeded, "the deadline passed")
}

fn refusal(code: ErrorCode, message: &str) -> Status {
    status::from_error(&ServiceError::new(code, message))
}

/// A task that is aborted when its handle is dropped.
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

/// Creates a message that reports a request's error.
fn failed(echo: Echo, error: &str) -> Result<Frames, Status> {
    response::without_outputs(error, echo.into_final()).map_err(|error| status::from_error(&error))
}
