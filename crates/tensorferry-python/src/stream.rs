//! Requests and responses over a bidirectional gRPC stream.

use std::{
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use oip_client::{ClientError, InferenceClient};
use oip_types::{InferRequest, InferResponse};
use parking_lot::{Mutex, MutexGuard};
use pyo3::prelude::*;
use tensor_core::SpareBuffers;
use tokio::{
    runtime::Runtime,
    sync::mpsc::{Receiver, Sender, channel},
    task::AbortHandle,
};

use crate::{
    call::{Callback, Failure, run},
    runtime::Process,
    wire::{InferArguments, ResponseParts, response_parts},
};

/// A gRPC stream. Unusable in a forked process: the thread that drives it exists only in the parent.
#[pyclass(frozen, module = "tensorferry._native")]
pub(crate) struct Stream {
    requests: Mutex<Option<Sender<InferRequest>>>,
    answers: Arc<ResponseQueue>,
    task: AbortHandle,
    runtime: &'static Runtime,
    spare: Arc<SpareBuffers>,
    process: Process,
}

impl Stream {
    /// Maximum number of requests that are waiting to be sent, and of responses that are waiting to be taken.
    const WAITING: usize = 16;

    pub(crate) fn open(
        client: Arc<dyn InferenceClient>,
        runtime: &'static Runtime,
        spare: Arc<SpareBuffers>,
    ) -> Self {
        let (requests, to_send) = channel(Self::WAITING);
        let (received, answers) = channel(Self::WAITING);
        let task = runtime.spawn(async move {
            let mut stream = match client.infer_stream(Box::pin(Requests(to_send))).await {
                Ok(stream) => stream,
                Err(error) => {
                    let _ = received.send(Err(error)).await;
                    return;
                }
            };
            while let Some(item) = std::future::poll_fn(|cx| stream.as_mut().poll_next(cx)).await {
                // The receiver was dropped, so the task ends and closes the stream.
                if received.send(item).await.is_err() {
                    return;
                }
            }
        });
        Self {
            requests: Mutex::new(Some(requests)),
            answers: Arc::new(ResponseQueue::new(answers)),
            task: task.abort_handle(),
            runtime,
            spare,
            process: Process::current(),
        }
    }

    fn check_process(&self) -> PyResult<()> {
        self.process.check("stream")
    }

    fn requests(&self) -> MutexGuard<'_, Option<Sender<InferRequest>>> {
        self.requests.lock()
    }
}

#[pymethods]
impl Stream {
    /// Sends a request as soon as the queue of requests has room. Returns whether the stream still accepts
    /// requests.
    #[pyo3(signature = (request, callback=None))]
    fn send(&self, py: Python<'_>, request: InferArguments<'_>, callback: Callback) -> PyResult<Py<PyAny>> {
        self.check_process()?;
        let request = request.into_request(&self.spare)?;
        let sender = self.requests().clone();
        let sending = async move {
            match sender {
                Some(sender) => Ok(sender.send(request).await.is_ok()),
                None => Ok(false),
            }
        };
        run(py, self.runtime, callback, sending)
    }

    /// Ends the requests of the stream. Responses still arrive.
    fn finish(&self) -> PyResult<()> {
        self.check_process()?;
        drop(self.requests().take());
        Ok(())
    }

    /// Waits until [`Stream::take`] has a response. A caller that abandons the wait loses no response.
    #[pyo3(signature = (callback=None))]
    fn wait(&self, py: Python<'_>, callback: Callback) -> PyResult<Py<PyAny>> {
        self.check_process()?;
        let answers = self.answers.clone();
        let waiting = async move {
            answers.wait().await;
            Ok(())
        };
        run(py, self.runtime, callback, waiting)
    }

    /// Takes the response that the caller waited for, in a tuple of one element, which is None at the end of
    /// the stream. Returns None instead of a tuple if another caller has taken the response.
    fn take(&self, py: Python<'_>) -> PyResult<Option<(Option<ResponseParts>,)>> {
        self.check_process()?;
        match self.answers.take() {
            None => Ok(None),
            Some(None) => Ok(Some((None,))),
            Some(Some(Ok(response))) => Ok(Some((Some(response_parts(response)),))),
            Some(Some(Err(error))) => Err(Failure::Call(error).into_py(py)),
        }
    }

    /// Raises the response that the caller waited for if it is an error; otherwise leaves it to
    /// [`Stream::take`].
    fn take_error(&self, py: Python<'_>) -> PyResult<()> {
        self.check_process()?;
        match self.answers.take_error() {
            Some(error) => Err(Failure::Call(error).into_py(py)),
            None => Ok(()),
        }
    }

    /// Cancels the stream at the server. Does nothing in a forked process, where the stream's memory is
    /// leaked.
    fn cancel(&self) {
        if self.process.is_current() {
            drop(self.requests().take());
            self.task.abort();
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.process.is_current() {
            self.task.abort();
            return;
        }
        // Dropping the channels would wake the task, whose locks a thread of the parent may have held at the
        // fork.
        let requests = self.requests.get_mut();
        mem::forget(requests.take());
        mem::forget(self.answers.clone());
    }
}

/// Responses in order of arrival. Waiting and taking are two steps, so that abandoning a wait loses no
/// response.
struct ResponseQueue {
    incoming: tokio::sync::Mutex<Receiver<Item>>,
    /// The next response, until it is taken; `Some(None)` at the end.
    next: Mutex<Option<Option<Item>>>,
}

/// A response, or an error.
type Item = oip_client::Result<InferResponse>;

impl ResponseQueue {
    fn new(incoming: Receiver<Item>) -> Self {
        Self {
            incoming: tokio::sync::Mutex::new(incoming),
            next: Mutex::default(),
        }
    }

    async fn wait(&self) {
        let mut incoming = self.incoming.lock().await;
        if self.next().is_none() {
            let item = incoming.recv().await;
            *self.next() = Some(item);
        }
    }

    fn take(&self) -> Option<Option<Item>> {
        self.next().take()
    }

    fn take_error(&self) -> Option<ClientError> {
        let mut next = self.next();
        match next.take() {
            Some(Some(Err(error))) => Some(error),
            other => {
                *next = other;
                None
            }
        }
    }

    fn next(&self) -> MutexGuard<'_, Option<Option<Item>>> {
        self.next.lock()
    }
}

/// Requests to be sent.
pub(crate) struct Requests(Receiver<InferRequest>);

impl Requests {
    /// Creates the stream of a single request.
    pub(crate) fn one(request: InferRequest) -> Self {
        let (sender, requests) = channel(1);
        // The channel has room for one request.
        let _ = sender.try_send(request);
        Self(requests)
    }
}

impl futures_core::Stream for Requests {
    type Item = InferRequest;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<InferRequest>> {
        self.0.poll_recv(cx)
    }
}
