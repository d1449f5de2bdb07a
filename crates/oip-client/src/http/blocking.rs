//! Blocking calls: the calling thread does the I/O.

use std::{
    pin::pin,
    task::{Context, Poll, Waker},
};

use super::HttpClient;
use crate::{Builder, ClientError, ErrorKind, Patience, Result};

/// A blocking HTTP/1.1 client that needs no runtime: the calling thread sends the request and waits for the
/// response, which saves switching to an I/O thread. Clones share connections. Supports `http://`, and
/// `http+unix://` on Unix.
///
/// Nothing monitors idle connections. A connection that the server has closed is detected when it is about to
/// be reused, and replaced before anything is sent.
///
/// ```no_run
/// use oip_client::{HttpClient, InferRequest, InferenceClient, ModelRef, Patience, Shape, Tensor};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let client = HttpClient::builder("http://localhost:8080").build_blocking()?;
/// let pixels = Tensor::from_vec(Shape::new(&[1, 64])?, vec![0.0f32; 64])?;
/// let request = InferRequest::new(ModelRef::new("digits", None)?).with_input("X", pixels);
/// let response = client.call(Patience::default(), |client| async move { client.infer(&request).await })?;
/// println!("{:?}", response.output("label"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct BlockingClient(HttpClient);

impl BlockingClient {
    /// Runs `call` with a client whose futures block and are ready at the first poll.
    ///
    /// # Errors
    /// The errors of the call; [`ErrorKind::Usage`] when the future waits for anything but the calls of the
    /// client it was given.
    pub fn call<T, F>(&self, patience: Patience, call: impl FnOnce(HttpClient) -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let call = pin!(call(self.0.with_patience(patience)));
        match call.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(outcome) => outcome,
            Poll::Pending => Err(ClientError::new(
                ErrorKind::Usage,
                "expected a future of the given client only: nothing drives others",
            )),
        }
    }

    /// Returns a client that sends additional headers with every call over the same connections.
    ///
    /// # Errors
    /// See [`HttpClient::with_headers`].
    pub fn with_headers<'h>(&self, headers: impl IntoIterator<Item = (&'h str, &'h str)>) -> Result<Self> {
        self.0.with_headers(headers).map(Self)
    }
}

impl<C> Builder<C> {
    /// Creates a client that needs no runtime, for `http://` and `http+unix://`.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] for URLs of other schemes; otherwise the errors of [`Builder::build`].
    pub fn build_blocking(self) -> Result<BlockingClient> {
        let (endpoint, settings) = self.finish()?;
        HttpClient::blocking(endpoint, settings).map(BlockingClient)
    }
}
