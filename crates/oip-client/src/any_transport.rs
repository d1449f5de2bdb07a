//! Creates a client whose transport depends on the URL.

use crate::{Builder, ClientError, ErrorKind, InferenceClient, endpoint::Transport};

impl Builder<Box<dyn InferenceClient>> {
    /// Creates the client for the URL's scheme: `http://`, `https://`, `grpc://` or `grpcs://`.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] when the URL has no scheme, when the URL, a header or a certificate is invalid,
    /// or when this build does not support the URL's transport.
    pub fn build(self) -> Result<Box<dyn InferenceClient>, ClientError> {
        let (endpoint, settings) = self.finish()?;
        let wrong = |message: &str| Err(ClientError::new(ErrorKind::Usage, message).at(&endpoint.url));
        match endpoint.transport {
            #[cfg(feature = "http")]
            Transport::Http => Ok(Box::new(crate::HttpClient::new(endpoint, settings)?)),
            #[cfg(feature = "grpc")]
            Transport::Grpc => Ok(Box::new(crate::GrpcClient::new(endpoint, settings)?)),
            Transport::Open => wrong("expected http://, https://, grpc:// or grpcs:// before the host"),
            #[cfg(not(all(feature = "http", feature = "grpc")))]
            _ => wrong("this program was built without that transport"),
        }
    }
}
