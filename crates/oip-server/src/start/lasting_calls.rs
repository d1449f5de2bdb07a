//! Connects the listener's stream slots with the gRPC services.
//!
//! The crate `tensorferry` has the same adapter: `oip-listen` and `oip-resources` do not depend on each
//! other, and no library below both programs depends on both.

use std::{
    sync::Arc,
    task::{Context, Poll},
};

use axum::http::Extensions;
use oip_listen::{Lasting, StreamSlot};
use oip_resources::{CallSlot, RevocableSlot};

/// Returns the gRPC calls that stay open for a long time and are mostly idle.
pub(crate) fn lasting() -> Lasting {
    Lasting::new(oip_grpc::LASTING, |place| {
        let mut extensions = Extensions::new();
        extensions.insert(CallSlot::new(Arc::new(ListenerSlot(place))));
        extensions
    })
}

/// A stream slot that the listener manages.
struct ListenerSlot(StreamSlot);

impl RevocableSlot for ListenerSlot {
    fn rest(&self) {
        self.0.rest();
    }

    fn work(&self) -> bool {
        self.0.work()
    }

    fn poll_revoked(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.0.poll_revoked(cx)
    }
}
