//! The phases of a graceful shutdown.

use std::sync::Arc;

use tokio::sync::watch;

/// Tells servers to stop in phases: leave (optional), drain, cut. Clones share state.
#[derive(Clone, Debug)]
pub struct Shutdown(Arc<watch::Sender<Phase>>);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Serving,
    Leaving,
    Draining,
    Cutting,
}

impl Shutdown {
    /// Creates a shutdown that has not started.
    #[must_use]
    pub fn new() -> Self {
        Self(Arc::new(watch::Sender::new(Phase::Serving)))
    }

    /// Keeps serving, but HTTP/1 responses ask clients to reconnect for the next request. Call this method
    /// while load balancers redirect traffic: a client whose connection is still open when the drain starts
    /// could send a request just as the connection is closed.
    pub fn leave(&self) {
        self.advance(Phase::Leaving);
    }

    /// Stops accepting connections. Open connections finish their requests.
    pub fn drain(&self) {
        self.advance(Phase::Draining);
    }

    /// Closes open connections immediately.
    pub fn cut(&self) {
        self.advance(Phase::Cutting);
    }

    /// Returns whether a drain has begun.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        *self.0.borrow() >= Phase::Draining
    }

    /// Returns whether clients are asked to reconnect.
    pub(crate) fn is_leaving(&self) -> bool {
        *self.0.borrow() >= Phase::Leaving
    }

    /// Waits until the drain starts.
    pub async fn draining(&self) {
        self.reached(Phase::Draining).await;
    }

    /// Waits until connections are cut.
    pub async fn cutting(&self) {
        self.reached(Phase::Cutting).await;
    }

    async fn reached(&self, phase: Phase) {
        // The sender outlives this borrow, so the channel cannot be closed.
        let _ = self.0.subscribe().wait_for(|current| *current >= phase).await;
    }

    fn advance(&self, phase: Phase) {
        self.0.send_if_modified(|current| {
            let is_later = phase > *current;
            *current = phase.max(*current);
            is_later
        });
    }
}

impl Default for Shutdown {
    fn default() -> Self {
        Self::new()
    }
}
