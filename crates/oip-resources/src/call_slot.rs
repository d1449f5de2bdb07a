//! A slot for a long-lived call, on a server that limits the number of such calls.

use std::{
    fmt,
    future::poll_fn,
    sync::Arc,
    task::{Context, Poll},
};

/// The slot of a long-lived call, stored as an extension of the call's request. The service reports to the
/// slot when the call is waiting for its client, and ends the call if the slot is revoked meanwhile. Clones
/// share one slot.
///
/// ```
/// use std::{sync::Arc, task::{Context, Poll}};
/// use oip_resources::{CallSlot, RevocableSlot};
///
/// /// A slot that is never revoked.
/// struct Assured;
///
/// impl RevocableSlot for Assured {
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
/// let place = CallSlot::new(Arc::new(Assured));
/// place.rest();
/// assert!(place.work());
/// ```
#[derive(Clone)]
pub struct CallSlot(Arc<dyn RevocableSlot>);

/// The owner of a slot, which decides when to revoke it.
pub trait RevocableSlot: Send + Sync {
    /// Marks the call as waiting for its client. The slot may be given to another call meanwhile.
    fn rest(&self);

    /// Marks the call as working. Returns false if its slot was revoked; the call must then end.
    fn work(&self) -> bool;

    /// Returns `Ready` once the slot is revoked and the call must end. Only one task may poll it.
    fn poll_revoked(&self, cx: &mut Context<'_>) -> Poll<()>;
}

impl CallSlot {
    /// Creates a slot with this owner.
    #[must_use]
    pub fn new(place: Arc<dyn RevocableSlot>) -> Self {
        Self(place)
    }

    /// See [`RevocableSlot::rest`].
    pub fn rest(&self) {
        self.0.rest();
    }

    /// See [`RevocableSlot::work`].
    #[must_use]
    pub fn work(&self) -> bool {
        self.0.work()
    }

    /// See [`RevocableSlot::poll_revoked`].
    pub fn poll_revoked(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.0.poll_revoked(cx)
    }

    /// Waits until the slot is revoked and the call must end.
    pub async fn revoked(&self) {
        poll_fn(|cx| self.poll_revoked(cx)).await;
    }
}

impl fmt::Debug for CallSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallSlot").finish_non_exhaustive()
    }
}
