use std::collections::BTreeMap;

/// Lets answers out in the order in which their requests came, whatever the order in which they are ready.
pub(crate) struct Turnstile<A> {
    /// By arrival: the answers that are ready, and places for those that are not.
    line: BTreeMap<u64, Option<A>>,
}

impl<A> Turnstile<A> {
    pub(crate) fn new() -> Self {
        Self {
            line: BTreeMap::new(),
        }
    }

    /// A request has come.
    pub(crate) fn enter(&mut self, arrival: u64) {
        self.line.insert(arrival, None);
    }

    /// An answer is ready. Gives those that may leave now, in order.
    pub(crate) fn finish(&mut self, arrival: u64, answer: A) -> Vec<A> {
        self.line.insert(arrival, Some(answer));
        self.released()
    }

    /// Nobody waits for this answer any more. Gives those that waited for it.
    pub(crate) fn leave(&mut self, arrival: u64) -> Vec<A> {
        self.line.remove(&arrival);
        self.released()
    }

    fn released(&mut self) -> Vec<A> {
        let mut released = Vec::new();
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
        assert!(line.line.is_empty());
    }
}
