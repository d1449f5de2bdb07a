//! Numbers the processes of a model, so that the model can tell its instances apart.

use std::{collections::BTreeSet, sync::Arc};

use parking_lot::{Mutex, MutexGuard};

/// The numbers in use by the processes of one model.
#[derive(Default)]
pub(crate) struct Numbers(Mutex<BTreeSet<usize>>);

/// The number of a process. Dropping the value frees the number for another process.
pub(crate) struct Number {
    number: usize,
    numbers: Arc<Numbers>,
}

impl Numbers {
    /// Takes the smallest free number.
    pub(crate) fn take(self: &Arc<Self>) -> Number {
        let mut taken = self.lock();
        let number = (0..).find(|number| !taken.contains(number)).unwrap_or_default();
        taken.insert(number);
        let numbers = self.clone();
        Number { number, numbers }
    }

    /// Locks the numbers.
    fn lock(&self) -> MutexGuard<'_, BTreeSet<usize>> {
        self.0.lock()
    }
}

impl Number {
    pub(crate) fn get(&self) -> usize {
        self.number
    }
}

impl Drop for Number {
    fn drop(&mut self) {
        self.numbers.lock().remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_the_smallest_number_that_no_other_one_has() {
        let numbers = Arc::new(Numbers::default());
        let mut taken: Vec<Number> = (0..3).map(|_| numbers.take()).collect();
        assert_eq!(taken.iter().map(Number::get).collect::<Vec<_>>(), [0, 1, 2]);
        taken.remove(1);
        let again = numbers.take();
        assert_eq!((again.get(), numbers.take().get()), (1, 3));
    }
}
