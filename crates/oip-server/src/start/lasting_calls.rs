//! Connects the listener's stream slots with the gRPC services.

use std::{
    sync::Arc,
    task::{Context, Poll},
};

use axum::http::Extensions;
use oip_listen::{Lasting, StreamPlace};
use oip_service::{CallPlace, KeptPlace};

/// Returns the gRPC calls that stay open for a long time and are mostly idle.
pub(crate) fn lasting() -> Lasting {
    Lasting::new(oip_grpc::LASTING, |place| {
        let mut extensions = Extensions::new();
        extensions.insert(CallPlace::new(Arc::new(ListenerPlace(place))));
        extensions
    })
}

/// A stream slot that the listener manages.
struct ListenerPlace(StreamPlace);

impl KeptPlace for ListenerPlace {
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
