//! Middleware for every request and response of both transports: repeats request ids, counts sizes and
//! failures, and writes the access log.

mod access_log;
mod exchange;
mod finished;
mod ids;
mod load_report;
mod observed;
mod platforms;
mod records;
mod shared;
mod totals;
#[cfg_attr(not(feature = "otlp"), path = "no_traces.rs")]
mod traces;
mod transport;

pub(crate) use self::{
    access_log::AccessLog,
    load_report::Load,
    observed::{ObservedService, is_grpc},
    platforms::Aliases,
    records::{RecordConfig, Records},
    shared::Traffic,
    totals::{BOUNDS, Sizes, Totals},
    traces::Traces,
    transport::Transport,
};
