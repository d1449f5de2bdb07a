//! Groups sequences into batches: sorted by length, under a token budget.

/// The fixed cost of a run of the network, expressed as a number of tokens.
const RUN: usize = 4;
/// A sequence joins a batch if its padding is at most 1/`PADDING` of the batch's longest sequence plus
/// [`RUN`] tokens. More padding costs more than the run that it saves, because matrix products over a few
/// dozen tokens are about as fast per token as over thousands.
const PADDING: usize = 8;

/// Splits sequences into batches. Each batch is a list of indices into `lengths`, longest sequence first, and
/// has at most `budget` tokens when padded to its longest sequence. A sequence longer than the budget runs
/// alone. A sequence that is shorter than the batch's longest by more than an eighth plus 4 tokens starts the
/// next batch.
///
/// ```
/// // 3 x 4 tokens would exceed the budget of 10, so the shortest sequence runs alone.
/// assert_eq!(oip_text::batches(&[3, 1, 4], 10), [vec![2, 0], vec![1]]);
/// // Most of the short sequence's row would be padding.
/// assert_eq!(oip_text::batches(&[250, 20, 240], 8192), [vec![0, 2], vec![1]]);
/// ```
#[must_use]
pub fn batches(lengths: &[usize], budget: usize) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..lengths.len()).collect();
    order.sort_by_key(|index| std::cmp::Reverse(lengths[*index]));
    let mut batches: Vec<Vec<usize>> = Vec::new();
    for index in order {
        let fits = |batch: &Vec<usize>| {
            // The first sequence is the longest.
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
