//! The places of calls that last, on their way from the listener to gRPC's services.

use std::{
    sync::Arc,
    task::{Context, Poll},
};

use axum::http::Extensions;
use oip_listen::{Lasting, StreamPlace};
use oip_service::{CallPlace, KeptPlace};

/// Calls of gRPC that last while nothing is done for them.
pub(crate) fn lasting() -> Lasting {
    Lasting::new(oip_grpc::LASTING, |place| {
        let mut extensions = Extensions::new();
        extensions.insert(CallPlace::new(Arc::new(Kept(place))));
        extensions
    })
}

/// A place that the listener keeps.
struct Kept(StreamPlace);

impl KeptPlace for Kept {
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
