//! Requests that a model in a worker makes to other models while it runs its own request.
//!
//! The server's thread that waits for the worker's response also drives these calls: it waits for the worker
//! and the other models at the same time.

use std::{
    io::{self, Read, Write},
    os::{fd::AsFd, unix::net::UnixStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    time::{Duration, Instant},
};

use bytes::Bytes;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use oip_model::{
    BoxFuture, Call, CancelToken, ModelCall, OtherModels, RequestPart, ResponseStream, Responses,
};
use oip_types::{
    ErrorCode, InferInput, InferOutput, InferRequest, InferResponse, ModelRef, ParameterValue, Parameters,
    RequestedOutput, Reservation, ServiceError,
};
use tensor_core::QuotedName;

use crate::messages::{Ask, CallResponse, Failure, InputLocation, Next};
use crate::protocol::{Broken, Connection, Kind};
#[cfg(target_os = "linux")]
use crate::region::{LEAST_IN_REGION, REGION_ALIGNMENT, Region};

/// Maximum number of open calls of one request. A worker that exceeds this number violates the protocol.
const MOST_CALLS: usize = 256;

/// Interval in milliseconds at which waiting code checks whether to continue.
const TICK: u16 = 10;

/// Work for a worker: a request, its deadline, and the models that it may call.
#[derive(Clone, Copy)]
pub(crate) struct Work<'w> {
    pub(crate) request: &'w InferRequest,
    /// The requests that were batched together into `request`.
    pub(crate) parts: &'w [RequestPart],
    pub(crate) cancel: &'w CancelToken,
    pub(crate) others: &'w dyn OtherModels,
}

impl<'w> Work<'w> {
    pub(crate) fn of(call: &'w Call<'_>) -> Self {
        Self {
            request: &call.request,
            parts: call.parts,
            cancel: call.cancel,
            others: call.others,
        }
    }

    /// Creates the work for a single request.
    #[cfg(target_os = "linux")]
    pub(crate) fn alone(
        request: &'w InferRequest,
        cancel: &'w CancelToken,
        others: &'w dyn OtherModels,
    ) -> Self {
        Self {
            request,
            parts: &[],
            cancel,
            others,
        }
    }
}

/// The calls of one request. Dropping the value cancels the open calls.
pub(crate) struct Calls<'w> {
    work: Work<'w>,
    open: Vec<Open>,
}

/// A call whose last response has not arrived.
struct Open {
    call: u64,
    /// The deadline of this call, if the worker set a timeout.
    until: Option<Instant>,
    state: State,
}

enum State {
    Asked(BoxFuture<'static, Result<Responses, ServiceError>>),
    /// The worker has received one of several responses and has not yet requested the next one.
    Held(ResponseStream),
    Next(ResponseStream),
}

/// A message to the worker about a call.
enum CallMessage {
    Response { response: InferResponse, is_end: bool },
    End,
    Failed(ServiceError),
}

impl<'w> Calls<'w> {
    pub(crate) fn new(work: Work<'w>) -> Self {
        Self {
            work,
            open: Vec::new(),
        }
    }

    /// Reserves `bytes` bytes of the running request's memory for inputs of a call.
    pub(crate) fn reserve(&self, bytes: u64) -> Result<Box<dyn Reservation>, ServiceError> {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        self.work.others.memory().reserve(bytes)
    }

    /// Starts a call. `inputs` are its inputs, or the reason why they could not be read.
    ///
    /// # Errors
    /// When the worker violates the protocol: too many open calls, or a number that is in use.
    pub(crate) fn begin(
        &mut self,
        ask: &Ask,
        inputs: Result<Vec<InferOutput>, ServiceError>,
    ) -> Result<(), Broken> {
        let call = ask.call;
        if self.open.len() >= MOST_CALLS {
            return Err(Broken::wrong(format!(
                "more than {MOST_CALLS} requests to other models at once"
            )));
        }
        if self.open.iter().any(|open| open.call == call) {
            return Err(Broken::wrong(format!(
                "two requests to other models with the number {call}"
            )));
        }
        let timeout = ask.timeout.map(Duration::from_micros);
        let state = match inputs.and_then(|inputs| request(ask, inputs)) {
            Ok(request) => {
                let asked = ModelCall::new(request)
                    .with_timeout(timeout)
                    .with_several(ask.takes_several);
                State::Asked(self.work.others.ask(asked))
            }
            Err(error) => State::Asked(Box::pin(async { Err(error) })),
        };
        self.open.push(Open {
            call,
            until: timeout.and_then(|timeout| Instant::now().checked_add(timeout)),
            state,
        });
        Ok(())
    }

    /// Handles the worker's reply to a response: requests the next response of the call, or ends the call.
    /// The call may already have ended.
    pub(crate) fn next(&mut self, next: &Next) {
        let Some(at) = self.open.iter().position(|open| open.call == next.call) else {
            return;
        };
        let open = self.open.swap_remove(at);
        let state = match (next.is_wanted, open.state) {
            (false, _) => return,
            (true, State::Held(answers)) => State::Next(answers),
            (true, state) => state,
        };
        self.open.push(Open { state, ..open });
    }

    /// Drives the calls until the worker sends a frame. Returns immediately if there are no open calls.
    pub(crate) fn drive_until_heard(
        &mut self,
        bell: &mut Option<Arc<Bell>>,
        connection: &Connection,
        number: u64,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<(), Broken> {
        while self.open.iter().any(Open::is_awaited) && !connection.has_read_ahead() {
            let bell = match bell {
                Some(bell) => bell,
                None => bell.insert(Bell::new().map_err(Broken::System)?),
            };
            self.advance(bell, connection, number, go_on)?;
            if !self.open.iter().any(Open::is_awaited) {
                break;
            }
            let mut files = [
                PollFd::new(connection.socket(), PollFlags::POLLIN),
                PollFd::new(bell.heard.as_fd(), PollFlags::POLLIN),
            ];
            match poll(&mut files, PollTimeout::from(TICK)) {
                Ok(_) | Err(nix::errno::Errno::EINTR) => {}
                Err(error) => return Err(Broken::System(error.into())),
            }
            let [has_word, is_rung] = files.map(|file| file.any().unwrap_or(true));
            if is_rung {
                bell.quiet();
            }
            if has_word {
                break;
            }
            if !go_on() {
                return Err(Broken::GivenUp);
            }
        }
        Ok(())
    }

    /// Sends the worker all messages about its calls that are ready.
    fn advance(
        &mut self,
        bell: &Arc<Bell>,
        connection: &Connection,
        number: u64,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<(), Broken> {
        let waker = Waker::from(bell.clone());
        let mut cx = Context::from_waker(&waker);
        let mut at = 0;
        while let Some(open) = self.open.get_mut(at) {
            let call = open.call;
            let Poll::Ready(said) = open.poll(&mut cx, self.work.cancel) else {
                at += 1;
                continue;
            };
            match said {
                CallMessage::Response { is_end: false, .. } => at += 1,
                _ => drop(self.open.swap_remove(at)),
            }
            tell(connection, number, call, &said, go_on)?;
        }
        Ok(())
    }
}

impl Open {
    /// Returns whether the worker is waiting for a response.
    fn is_awaited(&self) -> bool {
        !matches!(self.state, State::Held(_))
    }

    fn poll(&mut self, cx: &mut Context<'_>, cancel: &CancelToken) -> Poll<CallMessage> {
        if !self.is_awaited() {
            return Poll::Pending;
        }
        if cancel.is_cancelled() || self.until.is_some_and(|until| until <= Instant::now()) {
            return Poll::Ready(CallMessage::Failed(
                match cancel.is_cancelled() && !cancel.is_expired() {
                    true => ServiceError::new(ErrorCode::Cancelled, "the request was cancelled"),
                    false => ServiceError::new(
                        ErrorCode::DeadlineExceeded,
                        "the deadline passed before the other model answered",
                    ),
                },
            ));
        }
        if let State::Asked(asked) = &mut self.state {
            match std::task::ready!(asked.as_mut().poll(cx)) {
                Ok(Responses::One(response)) => {
                    return Poll::Ready(CallMessage::Response {
                        response,
                        is_end: true,
                    });
                }
                Ok(Responses::Several(answers)) => self.state = State::Next(answers),
                Err(error) => return Poll::Ready(CallMessage::Failed(error)),
            }
        }
        let State::Next(answers) = &mut self.state else {
            return Poll::Pending;
        };
        Poll::Ready(match std::task::ready!(answers.poll_next(cx)) {
            None => CallMessage::End,
            Some(Err(error)) => CallMessage::Failed(error),
            Some(Ok(answer)) => {
                let taken = std::mem::replace(answers, ResponseStream::new(|_| Poll::Ready(None)));
                self.state = State::Held(taken);
                CallMessage::Response {
                    response: answer.response,
                    is_end: answer.is_last,
                }
            }
        })
    }
}

/// Builds the request that a model makes.
fn request(ask: &Ask, inputs: Vec<InferOutput>) -> Result<InferRequest, ServiceError> {
    let mut request = InferRequest::new(ModelRef::new(&ask.model, ask.version.as_deref())?);
    request.id.clone_from(&ask.id);
    for (name, value) in &ask.parameters {
        request.parameters.insert(name.clone(), parameter(name, value)?);
    }
    request.inputs = inputs
        .into_iter()
        .map(|input| InferInput {
            name: input.name,
            value: input.value,
            parameters: Parameters::new(),
        })
        .collect();
    request.outputs = ask
        .outputs
        .iter()
        .map(|name| RequestedOutput {
            name: name.clone(),
            parameters: Parameters::new(),
        })
        .collect();
    Ok(request)
}

fn parameter(name: &str, value: &serde_json::Value) -> Result<ParameterValue, ServiceError> {
    let number = |number: &serde_json::Number| {
        let whole = number.as_i64().map(ParameterValue::Int64);
        let large = || number.as_u64().map(ParameterValue::Uint64);
        whole
            .or_else(large)
            .or_else(|| number.as_f64().map(ParameterValue::Double))
    };
    let known = match value {
        serde_json::Value::Bool(value) => Some(ParameterValue::Bool(*value)),
        serde_json::Value::Number(value) => number(value),
        serde_json::Value::String(value) => Some(ParameterValue::String(value.clone())),
        _ => None,
    };
    known.ok_or_else(|| {
        ServiceError::invalid(format!(
            "the parameter {} is {value}, expected text, a number or a bool",
            QuotedName(name)
        ))
    })
}

/// Sends the worker a message about the call `call`.
fn tell(
    connection: &Connection,
    number: u64,
    call: u64,
    said: &CallMessage,
    go_on: &mut dyn FnMut() -> bool,
) -> Result<(), Broken> {
    let short = |failed: Option<&ServiceError>| CallResponse {
        call,
        failed: failed.map(Failure::new),
        is_end: true,
        ..CallResponse::default()
    };
    let (response, is_end) = match said {
        CallMessage::Response { response, is_end } => (response, *is_end),
        CallMessage::End => return connection.send_json(Kind::CallResponse, number, &short(None), go_on),
        CallMessage::Failed(error) => {
            return connection.send_json(Kind::CallResponse, number, &short(Some(error)), go_on);
        }
    };
    let outputs = &response.outputs;
    #[cfg(target_os = "linux")]
    let whole: u64 = outputs.iter().map(|output| output.value.raw().len() as u64).sum();
    #[cfg(target_os = "linux")]
    if whole >= LEAST_IN_REGION {
        let (places, room) = places(outputs, REGION_ALIGNMENT);
        let region = Region::exactly(room).and_then(|region| {
            let mut written = outputs.iter().zip(&places);
            written.try_for_each(|(output, place)| region.write(output.value.raw(), place.offset))?;
            Ok(region)
        });
        return match region {
            Ok(region) => {
                let answer = CallResponse {
                    call,
                    outputs: Some(places),
                    region: Some(region.len()),
                    is_end,
                    ..CallResponse::default()
                };
                connection.send_file(Kind::CallResponse, number, &answer, region.as_fd(), go_on)
            }
            Err(error) => {
                let message = format!("there is no shared memory for its {whole} bytes of outputs: {error}");
                let error = ServiceError::new(ErrorCode::Overloaded, message);
                connection.send_json(Kind::CallResponse, number, &short(Some(&error)), go_on)
            }
        };
    }
    let answer = CallResponse {
        call,
        outputs: Some(places(outputs, 1).0),
        is_end,
        ..CallResponse::default()
    };
    let binary: Vec<Bytes> = outputs.iter().map(|output| output.value.raw().clone()).collect();
    let json = oip_types::rest::json_body(&answer);
    connection.send(Kind::CallResponse, number, &json, &binary, go_on)
}

/// Lays out the outputs one after another, aligned to `alignment`. Returns their locations and the total
/// length.
fn places(outputs: &[InferOutput], alignment: u64) -> (Vec<InputLocation<'_>>, u64) {
    let mut end = 0u64;
    let places = outputs.iter().map(|output| {
        let offset = end.next_multiple_of(alignment);
        let length = output.value.raw().len() as u64;
        end = offset + length;
        InputLocation {
            name: &output.name,
            datatype: output.value.datatype().name(),
            shape: output.value.shape().dims(),
            offset,
            length,
        }
    });
    (places.collect(), end)
}

/// Wakes the thread that is waiting for a worker and other models, by sending a byte on a socket.
pub(crate) struct Bell {
    ring: UnixStream,
    heard: UnixStream,
    is_rung: AtomicBool,
}

impl Bell {
    fn new() -> io::Result<Arc<Self>> {
        let (ring, heard) = UnixStream::pair()?;
        ring.set_nonblocking(true)?;
        heard.set_nonblocking(true)?;
        Ok(Arc::new(Self {
            ring,
            heard,
            is_rung: AtomicBool::new(false),
        }))
    }

    /// Rearms the bell. The caller must check for work after this call.
    fn quiet(&self) {
        let _ = (&self.heard).read(&mut [0; 8]);
        self.is_rung.store(false, Ordering::SeqCst);
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.is_rung.swap(true, Ordering::SeqCst) {
            // The byte always fits into the socket buffer.
            let _ = (&self.ring).write(&[1]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bell_is_heard_once_however_often_it_is_rung() {
        let bell = Bell::new().unwrap();
        for _ in 0..2 {
            let waker = Waker::from(bell.clone());
            (0..1000).for_each(|_| waker.wake_by_ref());
            assert_eq!((&bell.heard).read(&mut [0; 8]).unwrap(), 1);
            bell.quiet();
            assert!((&bell.heard).read(&mut [0; 8]).is_err());
        }
    }

    #[test]
    fn parameters_are_values() {
        let value = |json: &str| parameter("p", &serde_json::from_str(json).unwrap());
        assert_eq!(value("true").unwrap(), ParameterValue::Bool(true));
        assert_eq!(value("-3").unwrap(), ParameterValue::Int64(-3));
        assert_eq!(
            value("18446744073709551615").unwrap(),
            ParameterValue::Uint64(u64::MAX)
        );
        assert_eq!(value("0.5").unwrap(), ParameterValue::Double(0.5));
        assert_eq!(value("\"a\"").unwrap(), ParameterValue::String("a".to_owned()));
        assert!(value("[1]").unwrap_err().message().contains("'p'"));
    }
}
