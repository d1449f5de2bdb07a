//! Sizes of the blocks of scores in which attention is computed, and of the packed keys and values.

use onnx_tensor::{prelude::*, room, threads};

/// With fewer rows, products read the keys in place instead of packing them.
pub(crate) const FEWEST_ROWS: usize = 4;

/// Maximum number of elements of the packed keys and values of a matrix.
pub(crate) const MOST_PACKED: usize = 1 << 22;

/// Maximum number of scores of a block, unless a row has more.
const MOST_SCORES: usize = 1 << 22;

/// Number of scores of a block, which should stay in the L2 cache.
const SCORES: usize = 1 << 16;

/// Minimum number of rows of a block, each of which reads all keys and values of a matrix.
const LEAST_BLOCK: usize = 32;

/// Returns the number of rows of a block, for `rows` rows of `total` scores; at least 1.
pub(crate) fn block_rows(rows: usize, total: usize) -> usize {
    let total = total.max(1);
    let most = rows.min(MOST_SCORES / total);
    (SCORES / total).max(LEAST_BLOCK).min(most).max(1)
}

/// Returns the number of elements of packed keys and values: columns are padded to whole vectors. `None` if they
/// are too many to be packed.
pub(crate) fn packed_len([depth, total, width]: [usize; 3]) -> Option<usize> {
    let padded = |columns: usize| columns.checked_next_multiple_of(16);
    let keys = padded(total)?.checked_mul(depth)?;
    let values = padded(width)?.checked_mul(total)?;
    keys.checked_add(values).filter(|&count| count <= MOST_PACKED)
}

/// Reserves memory for buffers of `elements` numbers in each of at most `parts` parts that run at a time.
pub(crate) fn ask_for_buffers(parts: usize, elements: usize) -> Result<()> {
    let parts = parts.clamp(1, threads::limit()) as u64;
    room::ask_for_more(parts.saturating_mul(size_of::<f32>() as u64 * elements as u64))
}
