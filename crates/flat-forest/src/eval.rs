//! Walking through trees: several rows, or several trees, at once, so that the processor waits for none of them.

use crate::number::Number;

/// How the leaves that a row reaches make up its scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aggregate {
    /// Their sum; [`Aggregate::Average`] is for the caller to divide.
    Sum,
    /// The same; the caller divides by the number of trees.
    Average,
    /// The least.
    Min,
    /// The greatest.
    Max,
}

/// A node. The two children of a branch stand side by side, so that one index is enough and the comparison's outcome
/// selects the child without a jump. A leaf leads to itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Node<T> {
    pub(crate) threshold: T,
    /// The feature that is looked at, and [`Node::MISSING_IS_YES`].
    pub(crate) feature: u32,
    /// The child for "yes", the one for "no" behind it.
    pub(crate) next: u32,
}

impl<T> Node<T> {
    /// Set when a missing feature counts as "yes".
    pub(crate) const MISSING_IS_YES: u32 = 1 << 31;
}

/// What a node asks beyond "at most".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Special {
    None,
    Equal,
    NotEqual,
    /// A feature within [`ZERO`] of zero counts as missing.
    ZeroMissing,
    /// In a set.
    In(Numbers),
    /// In a set, without the feature's fraction.
    InTruncated(Numbers),
}

/// Where a set stands among the words of all sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Numbers {
    pub(crate) start: u32,
    pub(crate) end: u32,
    /// Whether the words are the numbers themselves, in order, and not bits.
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

/// LightGBM's zero.
const ZERO: f64 = 1e-35f32 as f64;

/// What a leaf adds to which score.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weight<A> {
    pub(crate) score: u32,
    pub(crate) value: A,
}

/// What leaves add, by their number.
#[derive(Debug)]
pub(crate) enum Leaves<A> {
    /// Every leaf has one value, for the score of its tree.
    Single {
        scores: Vec<u32>,
        values: Vec<A>,
        linear: Option<Linear<A>>,
    },
    /// Every leaf adds to every score: as many values for each leaf as there are scores.
    Dense(Vec<A>),
    /// Leaf `i` adds `weights[starts[i]..starts[i + 1]]`.
    Sparse {
        starts: Vec<u32>,
        weights: Vec<Weight<A>>,
    },
}

/// Leaves whose value depends on the row.
#[derive(Debug)]
pub(crate) struct Linear<A> {
    /// `None` for leaves that are not linear.
    pub(crate) bases: Vec<Option<A>>,
    pub(crate) starts: Vec<usize>,
    /// Features and what they are multiplied with.
    pub(crate) factors: Vec<(u32, A)>,
}

/// Rows of features, one behind the other.
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
    /// So many rows of so many features, if those are as many as there are values.
    #[must_use]
    pub fn new(values: &'a [T], count: usize, width: usize) -> Option<Self> {
        (count.checked_mul(width) == Some(values.len())).then_some(Self { values, count, width })
    }
}

/// Rows that have fewer features than a forest asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{needed} features are needed, found {found}")]
#[non_exhaustive]
pub struct TooFewFeatures {
    /// What the forest asks for.
    pub needed: usize,
    /// The number of features of a row.
    pub found: usize,
}

/// A forest for rows of `T` whose scores are added up in `A`; see [`Trees::forest`](crate::Trees::forest).
#[derive(Debug)]
pub struct Forest<T, A = T> {
    pub(crate) nodes: Vec<Node<T>>,
    /// By node; empty when there are none but [`Special::None`].
    pub(crate) specials: Vec<Special>,
    /// The words of all sets.
    pub(crate) words: Vec<u32>,
    /// By node, the number of the leaf.
    pub(crate) leaf_at: Vec<u32>,
    /// Whether a missing feature counts as "yes" anywhere.
    pub(crate) counts_missing: bool,
    pub(crate) roots: Vec<u32>,
    pub(crate) leaves: Leaves<A>,
    pub(crate) aggregate: Aggregate,
    pub(crate) features: usize,
    pub(crate) scores: usize,
}

/// Rows that go through a tree together, so that it stays in the processor's cache.
const BLOCK: usize = 64;

/// Walks at once.
const LANES: usize = 8;

/// Which nodes a walk may meet.
const PLAIN: u8 = 0;
const MISSING: u8 = 1;
const SPECIAL: u8 = 2;

impl<T: Number, A: Number> Forest<T, A> {
    /// How many features a row must have.
    #[must_use]
    pub fn features(&self) -> usize {
        self.features
    }

    /// How many scores a row has.
    #[must_use]
    pub fn scores(&self) -> usize {
        self.scores
    }

    /// Scores all rows, and gives each one's scores to `finish`, in order, and whether any leaf added to them. Each score
    /// is added up from `start`, from the first tree to the last.
    ///
    /// # Errors
    /// [`TooFewFeatures`].
    ///
    /// # Panics
    /// If `start` has another length than [`Forest::scores`], unless it is empty, which stands for zeros.
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
        // Too few rows for all lanes: trees take their place.
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

    /// The nodes at which walks from some roots end.
    #[inline(always)]
    fn walk<const MEETS: u8, const WALKS: usize>(
        &self,
        mut at: [u32; WALKS],
        rows: [&[T]; WALKS],
    ) -> [u32; WALKS] {
        // Trees that are but a leaf ask for no feature, and there may be none.
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

    /// The answer of a node that may be special.
    #[inline(always)]
    fn is_yes(&self, at: usize, node: &Node<T>, value: T, missing_is_yes: bool) -> bool {
        let missing = value.is_missing();
        let answer = match self.specials[at] {
            Special::Equal => value == node.threshold,
            Special::NotEqual => value != node.threshold,
            Special::ZeroMissing if value.to_f64().abs() <= ZERO => return missing_is_yes,
            Special::None | Special::ZeroMissing => value <= node.threshold,
            // Numbers that are too large become the largest one.
            Special::In(numbers) if value >= T::ZERO => numbers.contain(value.to_f64() as u32, &self.words),
            Special::InTruncated(numbers) if value.to_f64() > -1.0 => {
                numbers.contain(value.to_f64() as u32, &self.words)
            }
            Special::In(_) | Special::InTruncated(_) => false,
        };
        answer | (missing & missing_is_yes)
    }

    /// Adds what the leaf at a node has to a row's scores.
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
    /// The value of a leaf for a row, unless it is not linear or a feature that it needs is missing.
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

/// Scores of a block of rows.
struct Scores<A> {
    values: Vec<A>,
    /// Whether any leaf added to a score.
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
