//! The minimum rate at which clients read responses.

use std::time::Duration;

use crate::ConnectionLimits;

/// Tracks how far a client has fallen behind the minimum read rate.
///
/// Faster reading earns no credit. Otherwise the megabytes that fit into the socket buffers would earn a
/// client minutes of credit, and the client could then stall.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SendPace {
    behind: Duration,
}

impl SendPace {
    /// Records that the client read `bytes` bytes after the server had waited for `waited`.
    pub(crate) fn taken(&mut self, bytes: usize, waited: Duration, limits: &ConnectionLimits) {
        if limits.min_send_rate > 0 {
            let worth = Duration::from_secs_f64(bytes as f64 / limits.min_send_rate as f64);
            self.behind = (self.behind + waited).saturating_sub(worth);
        }
    }

    /// Returns how long the client may take to read the next bytes.
    pub(crate) fn patience(&self, limits: &ConnectionLimits) -> Duration {
        limits
            .send_rate_grace
            .saturating_sub(self.behind)
            .min(limits.write_timeout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_readers_use_up_their_grace_and_fast_ones_earn_no_more() {
        let limits = ConnectionLimits::default().with(|limits| {
            limits.min_send_rate = 1000;
            limits.send_rate_grace = Duration::from_secs(10);
            limits.write_timeout = Duration::from_secs(30);
        });
        let second = Duration::from_secs(1);
        let mut pace = SendPace::default();
        pace.taken(1 << 30, second, &limits);
        assert_eq!(pace.patience(&limits), 10 * second);
        for _ in 0..9 {
            pace.taken(0, second, &limits);
        }
        assert_eq!(pace.patience(&limits), second);
        pace.taken(4000, second, &limits);
        assert_eq!(pace.patience(&limits), 4 * second);
        // The client reads exactly at the minimum rate.
        for _ in 0..100 {
            pace.taken(1000, second, &limits);
        }
        assert_eq!(pace.patience(&limits), 4 * second);
    }
}
