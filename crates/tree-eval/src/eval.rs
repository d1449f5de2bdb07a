//! Walks several rows through a tree, or one row through several trees, at the same time to hide memory
//! latency.

use crate::number::Number;

/// How the leaves that a row reaches are combined into its scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aggregate {
    /// The sum of the leaves.
    Sum,
    /// The sum of the leaves, which the caller divides by the number of trees.
    Average,
    /// The minimum of the leaves.
    Min,
    /// The maximum of the leaves.
    Max,
}

/// A node. A branch's two children are adjacent, so that one index is enough and the comparison's result
/// selects the child without a conditional jump. A leaf is its own child.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Node<T> {
    pub(crate) threshold: T,
    /// The index of the tested feature, with [`Node::MISSING_IS_YES`] as its highest bit.
    pub(crate) feature: u32,
    /// The index of the child for "yes"; the child for "no" follows it.
    pub(crate) next: u32,
}

impl<T> Node<T> {
    /// Bit of `feature` that is set if a missing feature counts as "yes".
    pub(crate) const MISSING_IS_YES: u32 = 1 << 31;
}

/// The test of a node that is not a plain comparison `feature <= threshold`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Special {
    None,
    Equal,
    NotEqual,
    /// A feature within [`ZERO`] of zero counts as missing.
    ZeroMissing,
    /// Whether the feature is in a set.
    In(Numbers),
    /// Whether the truncated feature is in a set.
    InTruncated(Numbers),
}

/// The range of a set's words in `Forest::words`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Numbers {
    pub(crate) start: u32,
    pub(crate) end: u32,
    /// Whether the words are a sorted list of numbers instead of a bit set.
    pub(crate) is_list: bool,
}

impl Numbers {
    fn contain(self, number: u32, words: &[u32]) -> bool {
        let words = &words[self.start as usize..self.end as usize];
        match self.is_list {
            true => words.binary_search(&number).is_ok(),
            false => {
                let word = words.get(number as usize / 32);
                word.is_some_and(|word| word >> (number % 32) & 1 == 1)
            }
        }
    }
}

/// LightGBM's bound: numbers of at most this magnitude count as zero.
const ZERO: f64 = 1e-35f32 as f64;

/// The value that a leaf adds, and the index of the score to which it is added.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weight<A> {
    pub(crate) score: u32,
    pub(crate) value: A,
}

/// The values that leaves add, by leaf index.
#[derive(Debug)]
pub(crate) enum Leaves<A> {
    /// Every leaf has one value, for the score of its tree.
    Single {
        scores: Vec<u32>,
        values: Vec<A>,
        linear: Option<Linear<A>>,
    },
    /// Every leaf adds to every score: there are as many values per leaf as scores.
    Dense(Vec<A>),
    /// Leaf `i` adds `weights[starts[i]..starts[i + 1]]`.
    Sparse {
        starts: Vec<u32>,
        weights: Vec<Weight<A>>,
    },
}

/// Leaves whose value is a linear function of the row.
#[derive(Debug)]
pub(crate) struct Linear<A> {
    /// The constant term; `None` for leaves that are not linear.
    pub(crate) bases: Vec<Option<A>>,
    pub(crate) starts: Vec<usize>,
    /// Feature indices and their coefficients.
    pub(crate) factors: Vec<(u32, A)>,
}

/// A row-major matrix of features.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a, T> {
    values: &'a [T],
    count: usize,
    width: usize,
}

impl<T> Default for Rows<'_, T> {
    fn default() -> Self {
        Self {
            values: &[],
            count: 0,
            width: 0,
        }
    }
}

impl<'a, T> Rows<'a, T> {
    /// Creates a view of `count` rows of `width` features; `None` if the number of values does not match.
    #[must_use]
    pub fn new(values: &'a [T], count: usize, width: usize) -> Option<Self> {
        (count.checked_mul(width) == Some(values.len())).then_some(Self { values, count, width })
    }
}

/// The error for rows that have fewer features than a forest needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{needed} features are needed, found {found}")]
#[non_exhaustive]
pub struct TooFewFeatures {
    /// The number of features that the forest needs.
    pub needed: usize,
    /// The number of features per row.
    pub found: usize,
}

/// A forest for rows of `T` whose scores are summed in `A`; see [`Trees::forest`](crate::Trees::forest).
#[derive(Debug)]
pub struct Forest<T, A = T> {
    pub(crate) nodes: Vec<Node<T>>,
    /// The special test of each node; empty if all are [`Special::None`].
    pub(crate) specials: Vec<Special>,
    /// The words of all sets.
    pub(crate) words: Vec<u32>,
    /// The leaf index, by node.
    pub(crate) leaf_at: Vec<u32>,
    /// Whether a missing feature counts as "yes" at any node.
    pub(crate) counts_missing: bool,
    pub(crate) roots: Vec<u32>,
    pub(crate) leaves: Leaves<A>,
    pub(crate) aggregate: Aggregate,
    pub(crate) features: usize,
    pub(crate) scores: usize,
}

/// Number of rows that walk through a tree together, so that the tree stays in the processor's cache.
const BLOCK: usize = 64;

/// Number of walks that are interleaved.
const LANES: usize = 8;

/// The kinds of nodes that a walk may encounter.
const PLAIN: u8 = 0;
const MISSING: u8 = 1;
const SPECIAL: u8 = 2;

impl<T: Number, A: Number> Forest<T, A> {
    /// Returns how many features a row must have.
    #[must_use]
    pub fn features(&self) -> usize {
        self.features
    }

    /// Returns how many scores a row has.
    #[must_use]
    pub fn scores(&self) -> usize {
        self.scores
    }

    /// Scores all rows. Calls `finish` for each row in order, with the row's scores and, for each score,
    /// whether any leaf added to it. Scores are summed from `start`, from the first tree to the last.
    ///
    /// # Errors
    /// Returns [`TooFewFeatures`] if rows have too few features.
    ///
    /// # Panics
    /// Panics if the length of `start` is not [`Forest::scores`]. An empty `start` means zeros.
    pub fn score(
        &self,
        rows: Rows<'_, T>,
        start: &[A],
        mut finish: impl FnMut(&mut [A], &mut [bool]),
    ) -> Result<(), TooFewFeatures> {
        assert!(
            start.is_empty() || start.len() == self.scores,
            "a start for each score"
        );
        if rows.width < self.features {
            return Err(TooFewFeatures {
                needed: self.features,
                found: rows.width,
            });
        }
        let mut block = Scores {
            values: Vec::new(),
            touched: Vec::new(),
        };
        for first in (0..rows.count).step_by(BLOCK) {
            let count = BLOCK.min(rows.count - first);
            let part = Rows {
                values: &rows.values[first * rows.width..(first + count) * rows.width],
                count,
                width: rows.width,
            };
            block.begin(count, self.scores, start);
            self.score_block(part, &mut block);
            for row in 0..count {
                let own = row * self.scores..(row + 1) * self.scores;
                finish(&mut block.values[own.clone()], &mut block.touched[own]);
            }
        }
        Ok(())
    }

    fn score_block(&self, rows: Rows<'_, T>, block: &mut Scores<A>) {
        let has_missing = || rows.values.iter().any(|value| value.is_missing());
        if !self.specials.is_empty() {
            self.walk_block::<SPECIAL>(rows, block);
        } else if self.counts_missing && has_missing() {
            self.walk_block::<MISSING>(rows, block);
        } else {
            self.walk_block::<PLAIN>(rows, block);
        }
    }

    fn walk_block<const MEETS: u8>(&self, rows: Rows<'_, T>, block: &mut Scores<A>) {
        let width = rows.width;
        let row = |row: usize| &rows.values[row * width..(row + 1) * width];
        let together = rows.count - rows.count % LANES;
        if together > 0 {
            for (tree, &root) in self.roots.iter().enumerate() {
                for first in (0..together).step_by(LANES) {
                    let lanes: [&[T]; LANES] = std::array::from_fn(|lane| row(first + lane));
                    let ends = self.walk::<MEETS, LANES>([root; LANES], lanes);
                    for (lane, end) in ends.into_iter().enumerate() {
                        self.add(tree, end, lanes[lane], block.row(first + lane, self.scores));
                    }
                }
            }
        }
        // There are too few rows left for all lanes, so the lanes walk several trees for one row.
        for last in together..rows.count {
            let row = row(last);
            let (roots, rest) = self.roots.as_chunks::<LANES>();
            for (chunk, roots) in roots.iter().enumerate() {
                let ends = self.walk::<MEETS, LANES>(*roots, [row; LANES]);
                for (lane, end) in ends.into_iter().enumerate() {
                    self.add(chunk * LANES + lane, end, row, block.row(last, self.scores));
                }
            }
            for (index, &root) in rest.iter().enumerate() {
                let [end] = self.walk::<MEETS, 1>([root], [row]);
                self.add(
                    roots.len() * LANES + index,
                    end,
                    row,
                    block.row(last, self.scores),
                );
            }
        }
    }

    /// Returns the leaf nodes that walks from several roots reach.
    #[inline(always)]
    fn walk<const MEETS: u8, const WALKS: usize>(
        &self,
        mut at: [u32; WALKS],
        rows: [&[T]; WALKS],
    ) -> [u32; WALKS] {
        // If all trees are single leaves, no feature is tested, and rows may have none.
        if self.features == 0 {
            return at;
        }
        loop {
            let mut moved = 0;
            for (at, row) in at.iter_mut().zip(rows) {
                let node = &self.nodes[*at as usize];
                let feature = node.feature & !Node::<T>::MISSING_IS_YES;
                let value = row[feature as usize];
                let is_yes = match MEETS {
                    PLAIN => value <= node.threshold,
                    MISSING => (value <= node.threshold) | (value.is_missing() & (node.feature != feature)),
                    _ => self.is_yes(*at as usize, node, value, node.feature != feature),
                };
                let next = node.next.wrapping_add(u32::from(!is_yes));
                moved |= next ^ *at;
                *at = next;
            }
            if moved == 0 {
                return at;
            }
        }
    }

    /// Returns the result of a node's test, which may be special.
    #[inline(always)]
    fn is_yes(&self, at: usize, node: &Node<T>, value: T, missing_is_yes: bool) -> bool {
        let missing = value.is_missing();
        let answer = match self.specials[at] {
            Special::Equal => value == node.threshold,
            Special::NotEqual => value != node.threshold,
            Special::ZeroMissing if value.to_f64().abs() <= ZERO => return missing_is_yes,
            Special::None | Special::ZeroMissing => value <= node.threshold,
            // The cast saturates at the largest number.
            Special::In(numbers) if value >= T::ZERO => numbers.contain(value.to_f64() as u32, &self.words),
            Special::InTruncated(numbers) if value.to_f64() > -1.0 => {
                numbers.contain(value.to_f64() as u32, &self.words)
            }
            Special::In(_) | Special::InTruncated(_) => false,
        };
        answer | (missing & missing_is_yes)
    }

    /// Adds the values of the leaf at node `end` to a row's scores.
    #[inline(always)]
    fn add(&self, tree: usize, end: u32, row: &[T], (values, touched): (&mut [A], &mut [bool])) {
        let leaf = self.leaf_at[end as usize] as usize;
        match &self.leaves {
            Leaves::Single {
                scores,
                values: weights,
                linear,
            } => {
                let score = scores[tree] as usize;
                let weight = match linear {
                    None => weights[leaf],
                    Some(linear) => linear.value(leaf, row).unwrap_or(weights[leaf]),
                };
                self.aggregate(&mut values[score], weight, &mut touched[score]);
            }
            Leaves::Dense(weights) => {
                let weights = &weights[leaf * self.scores..][..self.scores];
                for (score, &weight) in weights.iter().enumerate() {
                    self.aggregate(&mut values[score], weight, &mut touched[score]);
                }
            }
            Leaves::Sparse { starts, weights } => {
                for weight in &weights[starts[leaf] as usize..starts[leaf + 1] as usize] {
                    let score = weight.score as usize;
                    self.aggregate(&mut values[score], weight.value, &mut touched[score]);
                }
            }
        }
    }

    #[inline(always)]
    fn aggregate(&self, value: &mut A, weight: A, touched: &mut bool) {
        match self.aggregate {
            Aggregate::Sum | Aggregate::Average => *value += weight,
            _ if !*touched => *value = weight,
            Aggregate::Min if weight < *value => *value = weight,
            Aggregate::Max if weight > *value => *value = weight,
            Aggregate::Min | Aggregate::Max => {}
        }
        *touched = true;
    }
}

impl<A: Number> Linear<A> {
    /// Returns the value of a linear leaf for a row; `None` if the leaf is not linear or a feature that it
    /// needs is missing.
    fn value<T: Number>(&self, leaf: usize, row: &[T]) -> Option<A> {
        let mut value = self.bases[leaf]?;
        for &(feature, factor) in &self.factors[self.starts[leaf]..self.starts[leaf + 1]] {
            let feature = row[feature as usize];
            if feature.is_missing() {
                return None;
            }
            value += A::from_f64(factor.to_f64() * feature.to_f64());
        }
        Some(value)
    }
}

/// The scores of a block of rows.
struct Scores<A> {
    values: Vec<A>,
    /// Whether any leaf added to each score.
    touched: Vec<bool>,
}

impl<A: Number> Scores<A> {
    fn begin(&mut self, rows: usize, scores: usize, start: &[A]) {
        self.values.clear();
        match start {
            [] => self.values.resize(rows * scores, A::ZERO),
            start => (0..rows).for_each(|_| self.values.extend_from_slice(start)),
        }
        self.touched.clear();
        self.touched.resize(rows * scores, false);
    }

    #[inline(always)]
    fn row(&mut self, row: usize, scores: usize) -> (&mut [A], &mut [bool]) {
        let own = row * scores..(row + 1) * scores;
        (&mut self.values[own.clone()], &mut self.touched[own])
    }
}
