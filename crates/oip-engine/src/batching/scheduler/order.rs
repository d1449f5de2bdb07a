//! Keeps responses in the order of their requests, for models configured to preserve it.

use std::collections::BTreeMap;

/// Releases responses in the order in which their requests arrived.
pub(crate) struct Turnstile<A> {
    /// Responses, keyed by the sequence numbers of their requests; `None` while a response is not ready.
    line: BTreeMap<u64, Option<A>>,
}

impl<A> Turnstile<A> {
    pub(crate) fn new() -> Self {
        Self {
            line: BTreeMap::new(),
        }
    }

    /// Adds the request with the sequence number `arrival`, whose response is not ready yet.
    pub(crate) fn enter(&mut self, arrival: u64) {
        self.line.insert(arrival, None);
    }

    /// Records a response, and returns the responses that may be sent now, in order. If the request was
    /// removed, returns its response alone.
    pub(crate) fn finish(&mut self, arrival: u64, answer: A) -> Vec<A> {
        match self.line.get_mut(&arrival) {
            Some(place) => *place = Some(answer),
            None => return vec![answer],
        }
        self.released(Vec::new())
    }

    /// Removes a request whose client disconnected. Returns the response to this request if it is ready, and
    /// the responses that were waiting for it.
    pub(crate) fn leave(&mut self, arrival: u64) -> Vec<A> {
        let left = self.line.remove(&arrival).flatten();
        self.released(left.into_iter().collect())
    }

    fn released(&mut self, mut released: Vec<A>) -> Vec<A> {
        while let Some(first) = self.line.first_entry()
            && first.get().is_some()
        {
            released.extend(first.remove());
        }
        released
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_leave_in_the_order_of_requests() {
        let mut line = Turnstile::new();
        (0..4).for_each(|arrival| line.enter(arrival));
        assert_eq!(line.finish(2, "c"), [""; 0]);
        assert_eq!(line.finish(0, "a"), ["a"]);
        assert_eq!(line.leave(1), ["c"]);
        assert_eq!(line.finish(3, "d"), ["d"]);
        // A request whose client disconnected delays no other request. A late response to it is returned
        // alone.
        (4..7).for_each(|arrival| line.enter(arrival));
        assert_eq!(line.finish(5, "f"), [""; 0]);
        assert_eq!(line.leave(4), ["f"]);
        assert_eq!(line.finish(4, "e"), ["e"]);
        line.enter(7);
        assert_eq!(line.finish(7, "h"), [""; 0]);
        assert_eq!(line.leave(7), ["h"]);
        assert_eq!(line.finish(6, "g"), ["g"]);
        assert!(line.line.is_empty());
    }
}
