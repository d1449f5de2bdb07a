//! The place of a call that lasts, where a server has only so many.

use std::{
    fmt,
    future::poll_fn,
    sync::Arc,
    task::{Context, Poll},
};

/// The place of a call that lasts while nothing is done for it: an extension of such a call's request. The service says when it
/// waits for its client, and ends it if its place is needed then. Clones are the same place.
///
/// ```
/// use std::{sync::Arc, task::{Context, Poll}};
/// use oip_service::{CallPlace, KeptPlace};
///
/// /// A place that nobody else needs.
/// struct Assured;
///
/// impl KeptPlace for Assured {
///     fn rest(&self) {}
///
///     fn work(&self) -> bool {
///         true
///     }
///
///     fn poll_revoked(&self, _: &mut Context<'_>) -> Poll<()> {
///         Poll::Pending
///     }
/// }
///
/// let place = CallPlace::new(Arc::new(Assured));
/// place.rest();
/// assert!(place.work());
/// ```
#[derive(Clone)]
pub struct CallPlace(Arc<dyn KeptPlace>);

/// What keeps a place.
pub trait KeptPlace: Send + Sync {
    /// The call waits for its client: its place may be given to another one.
    fn rest(&self);

    /// Something is in work for the call. False if its place was given away already: it is to end.
    fn work(&self) -> bool;

    /// Ready once the call is to end, because its place was given away. For one task.
    fn poll_revoked(&self, cx: &mut Context<'_>) -> Poll<()>;
}

impl CallPlace {
    /// A place that somebody keeps.
    #[must_use]
    pub fn new(place: Arc<dyn KeptPlace>) -> Self {
        Self(place)
    }

    /// As [`KeptPlace::rest`].
    pub fn rest(&self) {
        self.0.rest();
    }

    /// As [`KeptPlace::work`].
    #[must_use]
    pub fn work(&self) -> bool {
        self.0.work()
    }

    /// As [`KeptPlace::poll_revoked`].
    pub fn poll_revoked(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.0.poll_revoked(cx)
    }

    /// Waits until the call is to end.
    pub async fn revoked(&self) {
        poll_fn(|cx| self.poll_revoked(cx)).await;
    }
}

impl fmt::Debug for CallPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallPlace").finish_non_exhaustive()
    }
}
