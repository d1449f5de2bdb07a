//! An `object_store` connector that uses this crate's HTTP client, so that a program has one client and one
//! list of CAs.

use std::io;

use async_trait::async_trait;
use fmt_core::{Error, ErrorKind};
use http_body_util::{BodyExt, Full};
use object_store::{
    ClientConfigKey, ClientOptions,
    client::{
        HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody,
        HttpService,
    },
};
use ureq::Agent;

use super::{RemoteOptions, file::agent, target::Target};

/// Creates HTTP clients for the builders of the crate `object_store` (`with_http_connector`), with the CAs,
/// timeouts and plain-HTTP rule of [`RemoteOptions`]. Retries follow `object_store`'s own rules.
///
/// A response is buffered and limited to 32 MiB, so larger objects must be read by ranges. Requests run on
/// the blocking threads of the current tokio runtime.
///
/// ```
/// use tensor_remote::{RemoteConnector, RemoteOptions};
///
/// let connector = RemoteConnector::new(RemoteOptions::default());
/// // object_store::aws::AmazonS3Builder::from_env().with_http_connector(connector)
/// # drop(connector);
/// ```
#[derive(Clone, Debug)]
pub struct RemoteConnector {
    options: RemoteOptions,
}

/// Maximum response size in bytes. A page of a listing is about 1 MiB in size; a part of an object has the
/// requested size.
const LARGEST_ANSWER: u64 = 32 << 20;

impl RemoteConnector {
    /// Creates a connector. A token in the options is not sent.
    #[must_use]
    pub fn new(options: RemoteOptions) -> Self {
        Self { options }
    }
}

impl HttpConnector for RemoteConnector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let allows_plain = options.get_config_value(&ClientConfigKey::AllowHttp);
        let mut own = self.options.clone();
        own.plain_http |= allows_plain.is_some_and(|value| value == "true");
        // `object_store` sets a short timeout for the metadata service: outside a cloud the service does not
        // exist, and requests to it should fail quickly.
        let connect = options.get_config_value(&ClientConfigKey::ConnectTimeout);
        own.connect_patience = connect.and_then(|text| humantime::parse_duration(&text).ok());
        let agent = agent(&own).map_err(|error| object_store::Error::Generic {
            store: "HTTP",
            source: Box::new(error),
        })?;
        Ok(HttpClient::new(Client { agent, options: own }))
    }
}

#[derive(Debug)]
struct Client {
    agent: Agent,
    options: RemoteOptions,
}

#[async_trait]
impl HttpService for Client {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let (head, body) = request.into_parts();
        let target = Target::parse(&head.uri.to_string());
        let allowed = target.and_then(|target| target.check_scheme(&self.options));
        allowed.map_err(|error| HttpError::new(HttpErrorKind::Unknown, error))?;
        let body = body.collect().await?.to_bytes();
        let agent = self.agent.clone();
        let exchange = tokio::task::spawn_blocking(move || {
            let answer = match body.is_empty() {
                true => agent.run(ureq::http::Request::from_parts(head, ())),
                false => agent.run(ureq::http::Request::from_parts(head, &body[..])),
            };
            let (head, mut body) = answer.map_err(failed)?.into_parts();
            let body = body.with_config().limit(LARGEST_ANSWER).read_to_vec();
            Ok::<_, HttpError>((head, body.map_err(failed)?))
        });
        let (head, body) = match exchange.await {
            Ok(answer) => answer?,
            Err(error) => return Err(HttpError::new(HttpErrorKind::Interrupted, error)),
        };
        let body = Full::new(body.into()).map_err(|never| match never {});
        Ok(HttpResponse::from_parts(head, HttpResponseBody::new(body)))
    }
}

/// Converts an error. `object_store` retries depending on its kind.
fn failed(error: ureq::Error) -> HttpError {
    let kind = match &error {
        ureq::Error::Timeout(_) => HttpErrorKind::Timeout,
        // I/O errors of this kind include TLS errors, for which a retry fails in the same way.
        ureq::Error::Io(error) if error.kind() == io::ErrorKind::InvalidData => HttpErrorKind::Unknown,
        ureq::Error::Io(error) if error.kind() == io::ErrorKind::ConnectionRefused => HttpErrorKind::Connect,
        ureq::Error::ConnectionFailed => HttpErrorKind::Connect,
        ureq::Error::Io(_) => HttpErrorKind::Interrupted,
        _ => HttpErrorKind::Unknown,
    };
    if error.to_string().contains("certificate") {
        let error = Error::io("the server's certificate", error.into_io());
        return HttpError::new(
            HttpErrorKind::Unknown,
            error.expected("one from an authority that browsers trust, or from one of the file given"),
        );
    }
    if let ureq::Error::BodyExceedsLimit(_) = error {
        let error = Error::new(ErrorKind::TooLarge, "the server's answer");
        return HttpError::new(
            HttpErrorKind::Unknown,
            error.expected(format_args!("at most {LARGEST_ANSWER} bytes")),
        );
    }
    HttpError::new(kind, error)
}
