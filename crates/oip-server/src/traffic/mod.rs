//! What every request passes on its way in and its answer on its way out, on both transports: ids of requests go back to
//! their clients, sizes and failures are counted, and a line is written about each if the operator wants that.

mod access_log;
mod exchange;
mod ids;
mod load_report;
mod observed;
mod options;
mod route;
mod shared;
mod totals;
#[cfg_attr(not(feature = "otlp"), path = "no_traces.rs")]
mod traces;
mod transport;

pub(crate) use self::{
    access_log::AccessLog,
    load_report::Load,
    observed::{Observed, is_grpc},
    options::{AccessLogForm, TrafficOptions},
    shared::Traffic,
    totals::{BOUNDS, Sizes, Totals},
    traces::Traces,
    transport::Transport,
};
