//! Tensor contractions over named indices, two factors at a time, as batched matrix products.

use std::{borrow::Cow, cmp::Ordering, collections::HashMap};

use onnx_tensor::prelude::*;

use onnx_tensor::elements::{Factor, tensor};
use onnx_tensor::{
    cancelling::{PART, Pace},
    size,
};

/// Maximum number of factors among which the next pair to multiply is chosen.
const MAX_CHOICE: usize = 6;

/// Maximum number of multiplications of a product that is computed by a loop here, instead of by the matrix
/// kernel.
const FEW_TERMS: usize = 1 << 6;

/// Writes a matrix product to sums. The arguments are both factors, `[rows, depth, columns]`, and the
/// sums.
pub(crate) type Multiply<T> = fn(&[T], &[T], [usize; 3], &mut [T], &mut Pace) -> Result<()>;

/// An index of a factor: its letter, size and stride.
#[derive(Clone, Copy, Debug)]
struct Index {
    letter: char,
    size: usize,
    /// Distance between two elements along the index, in elements.
    step: usize,
}

/// A tensor with one letter per dimension; no letter occurs twice. The tensor broadcasts along all other
/// letters.
#[derive(Clone, Debug)]
pub(crate) struct Operand<'f, T: Clone> {
    numbers: Cow<'f, [T]>,
    indices: Vec<Index>,
}

impl<'f, T: Factor> Operand<'f, T> {
    /// Creates an operand whose dimensions are labeled `letters`. A repeated letter selects the diagonal;
    /// dimensions of size 1 broadcast.
    pub(crate) fn new(numbers: &'f [T], shape: &[usize], letters: &[char]) -> Self {
        let mut indices: Vec<Index> = Vec::with_capacity(shape.len());
        let mut step = 1;
        for (&letter, &size) in letters.iter().zip(shape).rev() {
            match indices.iter_mut().find(|index| index.letter == letter) {
                Some(index) => index.step += step,
                None => indices.push(Index { letter, size, step }),
            }
            step *= size;
        }
        indices.reverse();
        indices.retain(|index| index.size != 1);
        Self {
            numbers: numbers.into(),
            indices,
        }
    }

    fn index(&self, letter: char) -> Option<Index> {
        self.indices.iter().copied().find(|index| index.letter == letter)
    }

    /// Returns whether the elements are contiguous in the order of `letters`, which are all letters of the
    /// operand.
    fn is_in_order(&self, letters: &[char]) -> bool {
        let mut step = self.numbers.len();
        let kept = letters.iter().filter_map(|&letter| self.index(letter));
        let are_all = self.indices.iter().all(|index| letters.contains(&index.letter));
        let mut in_order = kept.map(|index| {
            step = step.checked_div(index.size).unwrap_or(0);
            index.step == step
        });
        are_all && in_order.all(|in_order| in_order) && step <= 1
    }

    /// Returns the elements, contiguous in the order of `letters`, which must be letters of the operand. Sums
    /// over the operand's other indices.
    fn in_order(&self, letters: &[char], pace: &mut Pace) -> Result<Cow<'_, [T]>> {
        let kept = letters.iter().filter_map(|&letter| self.index(letter));
        let kept: Vec<Index> = kept.collect();
        let summed = self
            .indices
            .iter()
            .filter(|index| !letters.contains(&index.letter));
        let summed: Vec<Index> = summed.copied().collect();
        let count = kept.iter().map(|index| index.size).product();
        let mut step = count;
        let is_in_order = kept.iter().all(|index| {
            step /= index.size.max(1);
            index.step == step
        });
        if summed.is_empty() && is_in_order {
            return Ok(Cow::Borrowed(&self.numbers[..count]));
        }
        size::admit_shape(T::element_type(), &[count])?;
        let mut made = vec![T::default(); count];
        if self.numbers.is_empty() {
            return Ok(Cow::Owned(made));
        }
        // Copies elements if nothing is summed, since adding -0 to 0 would lose the sign of -0.
        let is_copied = summed.is_empty();
        each(&summed, 0, pace, &mut |from, pace| {
            let mut to = 0;
            lines(&kept, from, pace, &mut |from, last| {
                let line = &mut made[to..to + last.size];
                to += last.size;
                let numbers = self.numbers[from..].iter().step_by(last.step.max(1));
                let pairs = line.iter_mut().zip(numbers);
                match is_copied {
                    true => pairs.for_each(|(to, number)| *to = *number),
                    false => pairs.for_each(|(to, number)| *to = to.sum(*number)),
                }
            })
        })?;
        Ok(Cow::Owned(made))
    }
}

/// Calls `call` with the offset of each combination of `indices`.
fn each(
    indices: &[Index],
    from: usize,
    pace: &mut Pace,
    call: &mut impl FnMut(usize, &mut Pace) -> Result<()>,
) -> Result<()> {
    let Some((first, others)) = indices.split_first() else {
        return call(from, pace);
    };
    (0..first.size).try_for_each(|at| each(others, from + at * first.step, pace, call))
}

/// Calls `call` with the offset of each line along the last of `indices`, and with that last index.
fn lines(indices: &[Index], from: usize, pace: &mut Pace, call: &mut impl FnMut(usize, Index)) -> Result<()> {
    let one = Index {
        letter: ' ',
        size: 1,
        step: 1,
    };
    let (last, outer) = indices
        .split_last()
        .map_or((one, indices), |(last, outer)| (*last, outer));
    each(outer, from, pace, &mut |from, pace| {
        // Long lines are split to check for cancellation.
        for first in (0..last.size).step_by(PART) {
            let size = PART.min(last.size - first);
            pace.spend(size as u64 / 4 + 1)?;
            call(from + first * last.step, Index { size, ..last });
        }
        Ok(())
    })
}

/// Returns the product of all factors, with the shape and index order of `output`.
///
/// # Errors
/// Fails if intermediate results take too much memory, or if the request is cancelled.
pub(crate) fn contracted<T: Factor>(
    mut factors: Vec<Operand<'_, T>>,
    output: &[char],
    shape: &[usize],
    multiply: Multiply<T>,
) -> Result<Tensor> {
    let mut pace = Pace::default();
    while factors.len() > 1 {
        let (first, second) = cheapest_pair(&factors, output).context("no factors")?;
        let kept = kept_of_pair(&factors, first, second, output);
        let made = multiplied([&factors[first], &factors[second]], &kept, multiply, &mut pace)?;
        factors.remove(second);
        factors[first] = made;
    }
    let factor = factors.pop().context("no factors")?;
    let numbers = match (factor.is_in_order(output), factor.numbers) {
        (true, Cow::Owned(numbers)) => numbers,
        (_, numbers) => match (Operand { numbers, ..factor }).in_order(output, &mut pace)? {
            Cow::Borrowed(numbers) => pace.copy(numbers)?,
            Cow::Owned(numbers) => numbers,
        },
    };
    tensor(shape, numbers)
}

/// Multiplies two factors; the result has the letters `kept`.
fn multiplied<T: Factor>(
    [a, b]: [&Operand<'_, T>; 2],
    kept: &[char],
    multiply: Multiply<T>,
    pace: &mut Pace,
) -> Result<Operand<'static, T>> {
    // Sums out indices that occur in only one factor and not in the output.
    let letters = |of: &Operand<'_, T>, other: &Operand<'_, T>, is_shared: bool, is_kept: bool| {
        let all = of.indices.iter().map(|index| index.letter);
        let chosen = all.filter(|&letter| {
            other.index(letter).is_some() == is_shared && kept.contains(&letter) == is_kept
        });
        chosen.collect::<Vec<char>>()
    };
    let (both, terms) = (letters(a, b, true, true), letters(a, b, true, false));
    let (rows, columns) = (letters(a, b, false, true), letters(b, a, false, true));
    let a_order = [&both[..], &rows, &terms].concat();
    let b_order = [&both[..], &terms, &columns].concat();
    let result = [&both[..], &rows, &columns].concat();
    let size = |letters: &[char]| -> Result<usize> {
        let sizes = letters
            .iter()
            .filter_map(|&letter| a.index(letter).or_else(|| b.index(letter)));
        let count = sizes.map(|index| index.size).try_fold(1usize, usize::checked_mul);
        count.context("the sizes are too large")
    };
    let [batch, rows, depth, columns] = [size(&both)?, size(&rows)?, size(&terms)?, size(&columns)?];
    let sizes = [batch, rows, columns];
    size::admit_shape(T::element_type(), &sizes)?;
    let (a_numbers, b_numbers) = (a.in_order(&a_order, pace)?, b.in_order(&b_order, pace)?);
    let mut made = Tensor::unset_of(T::ELEMENT_TYPE, &sizes)?.into_vec::<T>()?;
    if depth == 0 {
        made.fill(T::default());
    }
    if !made.is_empty() && depth > 0 {
        let a = a_numbers.chunks_exact(rows * depth);
        let b = b_numbers.chunks_exact(depth * columns);
        let products = a.zip(b).zip(made.chunks_exact_mut(rows * columns));
        for ((a, b), made) in products {
            if rows * depth * columns > FEW_TERMS {
                multiply(a, b, [rows, depth, columns], made, pace)?;
                continue;
            }
            pace.spend((rows * depth * columns) as u64 / 2 + 1)?;
            made.fill(T::default());
            for (a, made) in a.chunks_exact(depth).zip(made.chunks_exact_mut(columns)) {
                for (&a, b) in a.iter().zip(b.chunks_exact(columns)) {
                    let pairs = made.iter_mut().zip(b);
                    pairs.for_each(|(sum, &b)| *sum = sum.add_product::<false>(a, b));
                }
            }
        }
    }
    let mut step = made.len();
    let indices = result.iter().filter_map(|&letter| {
        let index = a.index(letter).or_else(|| b.index(letter))?;
        step /= index.size.max(1);
        Some(Index { step, ..index })
    });
    let indices = indices.collect();
    Ok(Operand {
        numbers: made.into(),
        indices,
    })
}

/// Returns the letters of two factors that the output or another factor still needs.
fn kept_of_pair<T: Factor>(
    factors: &[Operand<'_, T>],
    first: usize,
    second: usize,
    output: &[char],
) -> Vec<char> {
    let of_both = factors[first].indices.iter().chain(&factors[second].indices);
    let mut kept = Vec::new();
    for Index { letter, .. } in of_both {
        let mut others = factors
            .iter()
            .enumerate()
            .filter(|(place, _)| ![first, second].contains(place));
        let is_needed = output.contains(letter) || others.any(|(_, factor)| factor.index(*letter).is_some());
        if is_needed && !kept.contains(letter) {
            kept.push(*letter);
        }
    }
    kept
}

/// Returns the pair whose product takes the fewest multiplications. Of several such pairs, returns the one
/// with the smallest result.
fn cheapest_pair<T: Factor>(factors: &[Operand<'_, T>], output: &[char]) -> Option<(usize, usize)> {
    let count = factors.len().min(MAX_CHOICE);
    let pairs = (0..count).flat_map(|first| (first + 1..count).map(move |second| (first, second)));
    let cost = |&(first, second): &(usize, usize)| {
        let of_both = factors[first].indices.iter().chain(&factors[second].indices);
        let sizes: HashMap<char, f64> = of_both.map(|index| (index.letter, index.size as f64)).collect();
        let kept = kept_of_pair(factors, first, second, output);
        let result: f64 = kept.iter().filter_map(|letter| sizes.get(letter)).product();
        (sizes.values().product::<f64>(), result)
    };
    pairs.min_by(|one, other| cost(one).partial_cmp(&cost(other)).unwrap_or(Ordering::Equal))
}
