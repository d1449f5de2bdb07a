use std::sync::Arc;

use tokio::sync::watch;

/// Tells servers to stop: first by draining, then by cutting. Clones are the same shutdown.
#[derive(Clone, Debug)]
pub struct Shutdown(Arc<watch::Sender<Phase>>);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Serving,
    Draining,
    Cutting,
}

impl Shutdown {
    /// A shutdown that has not begun.
    #[must_use]
    pub fn new() -> Self {
        Self(Arc::new(watch::Sender::new(Phase::Serving)))
    }

    /// No new connections; open ones finish what they are doing.
    pub fn drain(&self) {
        self.advance(Phase::Draining);
    }

    /// What is still open is closed at once.
    pub fn cut(&self) {
        self.advance(Phase::Cutting);
    }

    /// Whether it has begun.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        *self.0.borrow() >= Phase::Draining
    }

    /// Waits until it begins.
    pub async fn draining(&self) {
        self.reached(Phase::Draining).await;
    }

    /// Waits until connections are to be cut.
    pub async fn cutting(&self) {
        self.reached(Phase::Cutting).await;
    }

    async fn reached(&self, phase: Phase) {
        // The sender lives as long as this borrow, so the channel cannot be closed.
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
