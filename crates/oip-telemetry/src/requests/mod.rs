//! Observes every request and response of both transports, as a layer around all others: repeats request ids,
//! counts sizes and failures, writes the access log and creates spans.
//!
//! ```
//! use std::sync::Arc;
//!
//! use oip_telemetry::{
//!     prometheus,
//!     requests::{ObservedService, Totals, Traffic, Transport},
//! };
//! # use std::convert::Infallible;
//! # let service = tower::service_fn(|_: http::Request<_>| async {
//! #     Ok::<_, Infallible>(http::Response::new(String::new()))
//! # });
//!
//! let totals = Arc::new(Totals::default());
//! let traffic = Traffic::default().with(|traffic| traffic.totals = Some(totals.clone()));
//! // `service` is a transport's service, such as that of `oip-http`. Each connection has its own.
//! let observed = ObservedService::new(service, Arc::new(traffic), Some(Transport::Http), None);
//! # let mut observed = observed;
//! # let request = http::Request::post("/v2/models/m/infer").body(String::new()).unwrap();
//! # drop(tower::Service::call(&mut observed, request));
//! assert!(prometheus::page(|families| totals.write(families)).contains("oip_requests_running"));
//! ```

mod access_log;
mod exchange;
mod finished;
mod load_report;
mod observed;
mod request_headers;
mod spans;
mod totals;
mod traffic;
mod transport;

pub use self::{
    access_log::{AccessLog, AccessLogFormat},
    exchange::CountedBody,
    load_report::Load,
    observed::{ObservedService, ResponseFuture},
    spans::Traces,
    totals::Totals,
    traffic::Traffic,
    transport::Transport,
};
