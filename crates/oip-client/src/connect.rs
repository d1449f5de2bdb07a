//! Connections, and what it means when they fail.

use std::{error::Error, io, time::Duration};

use hyper_util::{
    client::legacy::{self, Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use oip_types::causes;

use crate::{ClientError, ErrorKind, builder::Settings};

/// Connections that nobody uses are closed after this long, before most servers would.
const IDLE: Duration = Duration::from_secs(30);

/// What a pool of connections is made with.
pub(crate) fn pool(settings: &Settings) -> (legacy::Builder, HttpConnector) {
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    connector.set_connect_timeout(Some(settings.connect_timeout));
    let mut builder = Client::builder(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(IDLE);
    (builder, connector)
}

/// What it means that a connection failed. `hint` says what else may speak there when the answer is of no protocol that
/// was expected.
pub(crate) fn failed(error: impl Into<Box<dyn Error + Send + Sync>>, hint: &str) -> ClientError {
    let error = error.into();
    let chain = || causes(&*error);
    let io_kind = chain().find_map(|cause| cause.downcast_ref::<io::Error>().map(io::Error::kind));
    let hyper = || chain().filter_map(|cause| cause.downcast_ref::<hyper::Error>());
    // What stands deepest knows best.
    let deepest = chain().last().map(ToString::to_string).unwrap_or_default();
    let is_connect = chain().any(|cause| {
        cause
            .downcast_ref::<legacy::Error>()
            .is_some_and(legacy::Error::is_connect)
    });
    let (kind, message) = if is_connect && hyper().next().is_none() {
        let message = match io_kind {
            Some(io::ErrorKind::ConnectionRefused) => "connection refused: nothing listens there".to_owned(),
            Some(io::ErrorKind::TimedOut) => "no connection in time".to_owned(),
            _ => format!("no connection: {deepest}"),
        };
        (ErrorKind::Connect, message)
    } else if hyper().any(hyper::Error::is_parse) {
        let message = format!("the answer cannot be read ({deepest}); {hint}");
        (ErrorKind::Protocol, message)
    } else if hyper().any(hyper::Error::is_canceled) {
        let message = "the connection was closed before the request was sent".to_owned();
        (ErrorKind::Connect, message)
    } else {
        let message = format!("the connection broke: {deepest}");
        (ErrorKind::Broken, message)
    };
    ClientError::new(kind, message).caused_by(error)
}
