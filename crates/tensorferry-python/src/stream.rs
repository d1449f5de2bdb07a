//! Requests and answers over one stream of gRPC.

use std::{
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
};

use oip_client::InferenceClient;
use oip_types::{InferRequest, InferResponse};
use pyo3::prelude::*;
use tensor_core::SpareBuffers;
use tokio::{
    runtime::Runtime,
    sync::mpsc::{Receiver, Sender, channel},
    task::AbortHandle,
};

use crate::{
    call::{Callback, Failure, run},
    wire::{Given, answer},
};

/// Requests and answers over one stream of gRPC.
#[pyclass(frozen, module = "tensorferry._native")]
pub(crate) struct Stream {
    requests: Mutex<Option<Sender<InferRequest>>>,
    answers: Arc<tokio::sync::Mutex<Receiver<oip_client::Result<InferResponse>>>>,
    task: AbortHandle,
    runtime: &'static Runtime,
    spare: Arc<SpareBuffers>,
}

impl Stream {
    /// Requests that wait to be sent, and answers that wait to be taken.
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
                // The last one who takes answers is gone: the stream ends with this task.
                if received.send(item).await.is_err() {
                    return;
                }
            }
        });
        Self {
            requests: Mutex::new(Some(requests)),
            answers: Arc::new(tokio::sync::Mutex::new(answers)),
            task: task.abort_handle(),
            runtime,
            spare,
        }
    }

    fn requests(&self) -> MutexGuard<'_, Option<Sender<InferRequest>>> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Stream {
    /// Sends a request, as soon as there is room; whether the stream still takes any.
    #[pyo3(signature = (request, callback=None))]
    fn send(&self, py: Python<'_>, request: Given<'_>, callback: Callback) -> PyResult<Py<PyAny>> {
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

    /// Sends no more requests; those that were sent are answered.
    fn finish(&self) {
        drop(self.requests().take());
    }

    /// The next answer, or None at the end of the stream.
    #[pyo3(signature = (callback=None))]
    fn receive(&self, py: Python<'_>, callback: Callback) -> PyResult<Py<PyAny>> {
        let answers = self.answers.clone();
        let receiving = async move {
            match answers.lock().await.recv().await {
                Some(item) => item.map(|response| Some(answer(response))).map_err(Failure::Call),
                None => Ok(None),
            }
        };
        run(py, self.runtime, callback, receiving)
    }

    /// Ends the stream at once: the server is told that nobody waits for answers.
    fn cancel(&self) {
        self.finish();
        self.task.abort();
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Requests as they are sent.
struct Requests(Receiver<InferRequest>);

impl futures_core::Stream for Requests {
    type Item = InferRequest;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<InferRequest>> {
        self.0.poll_recv(cx)
    }
}
