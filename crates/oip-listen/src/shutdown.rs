use std::sync::Arc;

use tokio::sync::watch;

/// Tells servers to stop: where that helps first by leaving, then by draining, then by cutting. Clones are the same
/// shutdown.
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
    /// A shutdown that has not begun.
    #[must_use]
    pub fn new() -> Self {
        Self(Arc::new(watch::Sender::new(Phase::Serving)))
    }

    /// Everything goes on, but answers over HTTP/1 ask their clients to open another connection for the next request.
    /// It is for the time in which those who send requests here are told to send them elsewhere: clients that still
    /// have a connection when the drain begins could send a request just when it is closed.
    pub fn leave(&self) {
        self.advance(Phase::Leaving);
    }

    /// No new connections; open ones finish what they are doing.
    pub fn drain(&self) {
        self.advance(Phase::Draining);
    }

    /// Open connections are closed at once.
    pub fn cut(&self) {
        self.advance(Phase::Cutting);
    }

    /// Whether a drain has begun.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        *self.0.borrow() >= Phase::Draining
    }

    /// Whether clients are asked to open another connection.
    pub(crate) fn is_leaving(&self) -> bool {
        *self.0.borrow() >= Phase::Leaving
    }

    /// Waits until a drain begins.
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
