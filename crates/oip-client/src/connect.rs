//! Creates connection pools and translates connection errors into client errors.

use std::{error::Error, io, time::Duration};

use hyper_util::{
    client::legacy::{self, Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use oip_types::causes;

use crate::{ClientError, ErrorKind, connector::Connector, endpoint::Endpoint, settings::Settings, tls};

/// Idle connections are closed after this time, which is shorter than the idle timeout of most servers.
pub(crate) const IDLE: Duration = Duration::from_secs(30);

/// TCP keepalive: idle time before the first probe, and interval between probes.
pub(crate) const SILENCE: Duration = Duration::from_secs(15);

/// TCP keepalive: the number of unanswered probes after which a connection is broken.
pub(crate) const PROBES: u32 = 2;

/// Creates the builder of a connection pool.
///
/// # Errors
/// When certificates or keys are invalid.
pub(crate) fn pool(
    endpoint: &Endpoint,
    settings: &Settings,
    protocol: &[u8],
) -> Result<(legacy::Builder, Connector), ClientError> {
    let tls = endpoint
        .is_encrypted
        .then(|| settings.tls.config(protocol))
        .transpose();
    let tls = tls.map_err(|error| error.at(&endpoint.url))?;
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    connector.set_connect_timeout(Some(settings.connect_timeout));
    // Keepalive detects a dead host while the client waits for its response. If the request was not
    // acknowledged, the system's retransmission limit applies, about 15 minutes on Linux. HTTP/2 pings would
    // detect a dead host too, but some servers close connections that ping more often than every five
    // minutes. The socket option TCP_USER_TIMEOUT would also end connections to live servers that pause
    // reading.
    connector.set_keepalive(Some(SILENCE));
    connector.set_keepalive_interval(Some(SILENCE));
    connector.set_keepalive_retries(Some(PROBES));
    let mut builder = Client::builder(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(IDLE);
    let connector = Connector::new(connector, tls, settings.connect_timeout, endpoint.socket.clone());
    Ok((builder, connector))
}

/// Creates the error for a request without a response. `hint` names another protocol that the port may speak.
/// The hint is appended to the message when the response violates the protocol or the connection breaks.
pub(crate) fn failed(error: impl Into<Box<dyn Error + Send + Sync>>, hint: &str) -> ClientError {
    let error = error.into();
    let chain = || causes(&*error);
    let io_kind = chain().find_map(|cause| cause.downcast_ref::<io::Error>().map(io::Error::kind));
    let hyper = || chain().filter_map(|cause| cause.downcast_ref::<hyper::Error>());
    // The innermost error is the most specific.
    let deepest = chain().last().map(ToString::to_string).unwrap_or_default();
    let is_connect = chain().any(|cause| {
        cause
            .downcast_ref::<legacy::Error>()
            .is_some_and(legacy::Error::is_connect)
    });
    let (kind, message) = if let Some(reason) = of_tls(&*error) {
        // A TLS alert can arrive when the request has already been sent; the connection then counts as
        // broken.
        let kind = if is_connect {
            ErrorKind::Connect
        } else {
            ErrorKind::Broken
        };
        (kind, format!("TLS: {reason}"))
    } else if is_connect && hyper().next().is_none() {
        (ErrorKind::Connect, no_connection(io_kind, &deepest))
    } else if hyper().any(hyper::Error::is_parse) || speaks_first(&deepest) || is_no_http2(&*error) {
        (ErrorKind::Protocol, unreadable(&deepest, hint))
    } else if is_refused_stream(&*error) {
        let message = "the server did not accept the request".to_owned();
        (ErrorKind::Connect, message)
    } else if hyper().any(hyper::Error::is_canceled) {
        let message = "the connection was closed before the request was sent".to_owned();
        (ErrorKind::Connect, message)
    } else {
        (ErrorKind::Broken, broke(&deepest, hint))
    };
    ClientError::new(kind, message).caused_by(error)
}

/// Explains why a connection could not be established.
pub(crate) fn no_connection(kind: Option<io::ErrorKind>, deepest: &str) -> String {
    match kind {
        Some(io::ErrorKind::ConnectionRefused) => "connection refused: nothing listens there".to_owned(),
        Some(io::ErrorKind::TimedOut) => "connecting timed out".to_owned(),
        _ => format!("no connection: {deepest}"),
    }
}

pub(crate) fn unreadable(what: &str, hint: &str) -> String {
    format!("the response cannot be read ({what}); {hint}")
}

pub(crate) fn broke(why: &str, hint: &str) -> String {
    format!("the connection broke ({why}); {hint}")
}

pub(crate) fn incomplete(place: &str, why: &str) -> String {
    format!("the response is incomplete: it ended early{place} ({why})")
}

/// Returns a description of the TLS failure, if TLS caused the error.
fn of_tls(error: &(dyn Error + Send + Sync + 'static)) -> Option<String> {
    let found = causes(error).find_map(|cause| {
        let inner = cause.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        let inner = inner.and_then(|inner| inner.downcast_ref::<rustls::Error>());
        inner.or_else(|| cause.downcast_ref::<rustls::Error>())
    });
    // Over HTTP/2 the rustls error is only available as a string, so the string is parsed.
    found
        .map(tls::explain)
        .or_else(|| causes(error).find_map(|cause| tls::explain_alert(&cause.to_string())))
}

/// Creates the error for a truncated response. `place` describes how much of the response had arrived.
pub(crate) fn broken_off(error: hyper::Error, place: &str) -> ClientError {
    let kind = match error.is_parse() || is_no_http2(&error) {
        true => ErrorKind::Protocol,
        false => ErrorKind::Broken,
    };
    let why = causes(&error).last().map(ToString::to_string).unwrap_or_default();
    ClientError::new(kind, incomplete(place, &why)).caused_by(error)
}

/// Returns whether the peer sent data before the client did. HTTP servers wait for a request, but gRPC
/// servers do not. hyper reports early data only in the text of its error.
fn speaks_first(message: &str) -> bool {
    message == "received unexpected message from connection"
}

/// Returns whether the error means that the peer does not speak HTTP/2.
#[cfg(feature = "grpc")]
fn is_no_http2(error: &(dyn Error + 'static)) -> bool {
    let mut of_http2 = causes(error).filter_map(|cause| cause.downcast_ref::<h2::Error>());
    // Matches errors that this side detects in frames, not errors that the peer reported.
    of_http2.any(|error| error.is_library() && error.is_go_away())
}

/// Returns whether the server reports that it did not process the request.
#[cfg(feature = "grpc")]
fn is_refused_stream(error: &(dyn Error + 'static)) -> bool {
    let mut of_http2 = causes(error).filter_map(|cause| cause.downcast_ref::<h2::Error>());
    of_http2.any(|error| error.reason() == Some(h2::Reason::REFUSED_STREAM))
}

#[cfg(not(feature = "grpc"))]
fn is_no_http2(_: &(dyn Error + 'static)) -> bool {
    false
}

#[cfg(not(feature = "grpc"))]
fn is_refused_stream(_: &(dyn Error + 'static)) -> bool {
    false
}
