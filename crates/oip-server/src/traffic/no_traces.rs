//! Replaces traces in builds without the feature `otlp`.

use std::{convert::Infallible, time::Duration};

use super::finished::FinishedExchange;

/// Traces that cannot exist: the type has no values.
pub(crate) struct Traces(Infallible);

pub(super) struct TraceContext(Infallible);

impl Traces {
    pub(super) fn decide(&self, _: Option<&str>) -> Option<TraceContext> {
        match self.0 {}
    }

    pub(super) fn finish(&self, _: Duration) {
        match self.0 {}
    }

    pub(super) fn export(&self, _: &TraceContext, _: &FinishedExchange<'_>) {
        match self.0 {}
    }
}

impl TraceContext {
    pub(super) fn id(&self) -> String {
        match self.0 {}
    }
}
