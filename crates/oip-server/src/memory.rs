//! The program's allocator, and the limit of its cache.

use std::sync::OnceLock;

#[cfg(all(not(debug_assertions), not(feature = "count-allocations")))]
use caching_allocator::CachingAllocator as Allocator;
#[cfg(all(not(debug_assertions), feature = "count-allocations"))]
use caching_allocator::CountingAllocator as Allocator;
use oip_resources::ByteBudget;

/// Debug builds use the system's allocator: the workspace's tests link a counting allocator, and a program can
/// have only one.
#[cfg(not(debug_assertions))]
#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

/// Maximum size of the allocator's cache while requests use much memory, and while they use little. The larger
/// size suffices for the intermediate tensors of one run of a vision network.
const MAX_CACHES: [usize; 2] = [32 << 20, 128 << 20];

/// Requests use little memory while they hold at most 1/`LITTLE` of the budget.
const LITTLE: u64 = 8;

/// The memory budget that all requests share.
static BUDGET: OnceLock<ByteBudget> = OnceLock::new();

/// Limits the allocator's cache by what requests use of the budget. Later calls have no effect.
pub(crate) fn limit_cache(budget: ByteBudget) {
    let _ = BUDGET.set(budget);
    caching_allocator::set_cache_limit(|| BUDGET.get().map_or(MAX_CACHES[1], max_cache));
}

/// Returns the maximum size of the allocator's cache in bytes.
fn max_cache(budget: &ByteBudget) -> usize {
    let is_little = budget.used() <= budget.limit() / LITTLE;
    MAX_CACHES[usize::from(is_little)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_is_small_while_requests_use_much_memory() {
        let budget = ByteBudget::new(8 << 20);
        let little = budget.take(1 << 20).unwrap();
        assert_eq!(max_cache(&budget), 128 << 20);
        let more = budget.take(1).unwrap();
        assert_eq!(max_cache(&budget), 32 << 20);
        drop((little, more));
        assert_eq!(max_cache(&budget), 128 << 20);
    }
}
