//! Decides which requests are traced.

use crate::ids::{Parent, TraceId};

/// Decides which requests are traced: by the caller's `traceparent` if there is one, and otherwise by a
/// sampling ratio.
#[derive(Clone, Copy, Debug)]
pub struct Sampler {
    /// The sampling threshold, scaled to 2^63.
    bound: u64,
}

impl Sampler {
    /// Creates a sampler. `ratio` applies to requests without a caller's decision: 0 traces none, 1 traces
    /// all.
    #[must_use]
    pub fn new(ratio: f64) -> Self {
        // The ratio may be rounded, and the cast saturates.
        let bound = (ratio.clamp(0.0, 1.0) * (1_u64 << 63) as f64) as u64;
        Self { bound }
    }

    /// Returns the trace id of a request, if it is traced.
    #[must_use]
    pub fn decide(&self, parent: Option<&Parent>) -> Option<TraceId> {
        match parent {
            Some(parent) => parent.is_sampled.then_some(parent.trace),
            None if self.bound == 0 => None,
            None => {
                let trace = TraceId::random();
                // Decides by the trace id, like other samplers.
                ((trace.0 as u64) >> 1 < self.bound).then_some(trace)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_kept_and_parents_followed() {
        let part = |ratio| {
            let sampler = Sampler::new(ratio);
            (0..20_000).filter(|_| sampler.decide(None).is_some()).count()
        };
        assert_eq!(
            (part(0.0), part(1.0), part(7.0), part(-1.0)),
            (0, 20_000, 20_000, 0)
        );
        // The tolerance is more than ten standard deviations.
        assert!((4_000..6_000).contains(&part(0.25)));
        let parent = |is_sampled| Parent {
            is_sampled,
            ..Parent::parse("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
                .expect("it is well-formed")
        };
        assert_eq!(
            Sampler::new(0.0).decide(Some(&parent(true))),
            Some(parent(true).trace)
        );
        assert_eq!(Sampler::new(1.0).decide(Some(&parent(false))), None);
    }
}
