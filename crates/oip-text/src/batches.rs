//! Which sequences run together: sorted by length, under a budget of tokens.

/// What a run costs beside its tokens, in tokens.
const RUN: usize = 4;
/// The part of a batch's longest sequence that another one may lack, beyond [`RUN`]. The product of a network's weights with a few dozen
/// tokens is about as quick by the token as with thousands, so padding costs more than another run saves.
const PADDING: usize = 8;

/// Splits sequences into batches: each batch is a list of indices into `lengths`, longest sequence first, and takes at most `budget` tokens
/// once it is padded to its longest. A sequence that is longer than the budget runs alone, and one that is an eighth and 4 tokens shorter
/// than a batch's longest begins another batch.
///
/// ```
/// // 3 x 4 tokens would pass the budget of 10, so the shortest runs by itself.
/// assert_eq!(oip_text::batches(&[3, 1, 4], 10), [vec![2, 0], vec![1]]);
/// // The short one would be padding for the most part.
/// assert_eq!(oip_text::batches(&[250, 20, 240], 8192), [vec![0, 2], vec![1]]);
/// ```
#[must_use]
pub fn batches(lengths: &[usize], budget: usize) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..lengths.len()).collect();
    order.sort_by_key(|index| std::cmp::Reverse(lengths[*index]));
    let mut batches: Vec<Vec<usize>> = Vec::new();
    for index in order {
        let fits = |batch: &Vec<usize>| {
            // The first is the longest.
            let longest = lengths[batch[0]];
            let is_close = longest - lengths[index] <= longest / PADDING + RUN;
            is_close && longest.saturating_mul(batch.len() + 1) <= budget
        };
        match batches.last_mut() {
            Some(batch) if fits(batch) => batch.push(index),
            _ => batches.push(vec![index]),
        }
    }
    batches
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_sequence_runs_once_and_each_batch_is_within_the_budget() {
        let lengths: Vec<usize> = (0..500).map(|index| index * 7919 % 251 + 1).collect();
        let batches = batches(&lengths, 1024);
        let mut seen: Vec<usize> = batches.iter().flatten().copied().collect();
        seen.sort_unstable();
        assert!(seen.into_iter().eq(0..500));
        for batch in batches {
            let longest = batch.iter().map(|index| lengths[*index]).max().unwrap();
            let shortest = batch.iter().map(|index| lengths[*index]).min().unwrap();
            assert!(longest * batch.len() <= 1024);
            assert!(longest - shortest <= longest / 8 + 4);
        }
    }

    #[test]
    fn a_sequence_above_the_budget_runs_alone() {
        assert_eq!(batches(&[9, 2, 9], 4), [vec![0], vec![2], vec![1]]);
        assert!(batches(&[], 4).is_empty());
    }
}
