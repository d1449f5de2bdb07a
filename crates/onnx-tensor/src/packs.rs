//! Stores packed weights, which are created once for all nodes of a model that share a constant. Their memory
//! is limited relative to the size of the constants.

use std::{any::Any, collections::HashMap, sync::Arc};

use crate::prelude::*;

/// Bytes that packed copies may take in addition to twice the bytes of all constants. Copies of one constant
/// in the same layout count once.
const MORE_BYTES: u64 = 16 << 20;

/// The layout of packed weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// Matrices, packed in panels of columns.
    Panels {
        /// Whether the constant is the transpose of the matrix to pack.
        is_turned: bool,
    },
    /// Weights of convolutions.
    Windows {
        /// Number of groups.
        groups: usize,
    },
    /// Weights of convolutions whose results have the channels last.
    ChannelsLast {
        /// Number of groups.
        groups: usize,
        /// Whether the images have the channels first.
        from_first: bool,
    },
    /// Weights of transposed convolutions, packed group by group.
    Columns {
        /// Number of groups.
        groups: usize,
    },
}

/// The packed weights of a model.
pub struct Packs {
    /// Packed weights, keyed by the addresses of their source constants and by their layout.
    made: HashMap<(Vec<usize>, Order), PackedWeights>,
    left: u64,
}

struct PackedWeights {
    packed: Arc<dyn Any + Send + Sync>,
    /// The source constants, which are kept alive so that their addresses stay unique.
    _sources: Vec<Arc<Tensor>>,
}

impl Packs {
    /// Creates a store for a model whose constants take `bytes` bytes.
    pub fn beside(bytes: u64) -> Self {
        Self {
            made: HashMap::new(),
            left: bytes.saturating_mul(2).saturating_add(MORE_BYTES),
        }
    }

    /// Returns the constants packed in the layout `order`; `make` packs them on first use. Returns `None` if
    /// the copies would take too much memory.
    ///
    /// # Errors
    /// Returns the error of `make`.
    pub fn shared<T: Send + Sync + 'static>(
        &mut self,
        sources: &[&Arc<Tensor>],
        order: Order,
        bytes: u64,
        make: impl FnOnce() -> Result<T>,
    ) -> Result<Option<Arc<T>>> {
        let addresses = sources
            .iter()
            .map(|source| Arc::as_ptr(source) as usize)
            .collect();
        let key = (addresses, order);
        if let Some(made) = self.made.get(&key) {
            return Ok(made.packed.clone().downcast().ok());
        }
        if !self.admit(bytes) {
            return Ok(None);
        }
        let packed = Arc::new(make()?);
        let made = PackedWeights {
            packed: packed.clone(),
            _sources: sources.iter().map(|&source| source.clone()).collect(),
        };
        self.made.insert(key, made);
        Ok(Some(packed))
    }

    /// Reserves memory for another copy of `bytes` bytes. Returns whether the copy fits into the limit.
    pub fn admit(&mut self, bytes: u64) -> bool {
        match self.left.checked_sub(bytes) {
            Some(left) => {
                self.left = left;
                true
            }
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn what_was_made_is_shared_and_bounded() {
        let constant = || Tensor::zero::<f32>(&[4]).unwrap().into_arc();
        let (first, second) = (constant(), constant());
        let mut packs = Packs {
            made: HashMap::new(),
            left: 20,
        };
        let mut get = |source: &Arc<Tensor>, order| {
            let made = packs.shared(&[source], order, 8, || Ok(vec![0u8; 8]));
            made.unwrap()
        };
        let made = get(&first, Order::Panels { is_turned: false }).unwrap();
        assert!(Arc::ptr_eq(
            &made,
            &get(&first, Order::Panels { is_turned: false }).unwrap()
        ));
        let other = get(&second, Order::Panels { is_turned: false }).unwrap();
        assert!(!Arc::ptr_eq(&made, &other));
        // A third copy exceeds the limit; the first two remain available.
        assert!(get(&first, Order::Panels { is_turned: true }).is_none());
        assert!(Arc::ptr_eq(
            &other,
            &get(&second, Order::Panels { is_turned: false }).unwrap()
        ));
    }
}
