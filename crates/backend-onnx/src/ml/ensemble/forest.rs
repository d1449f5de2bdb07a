//! Decision trees in flat arrays.

use std::ops::AddAssign;

use tract_onnx::prelude::Datum;

use crate::ml::rows::Rows;

/// The numbers that features are compared in.
pub(crate) trait Number: Datum + Copy + PartialOrd + AddAssign {
    const ZERO: Self;

    fn from_double(value: f64) -> Self;
    fn to_single(self) -> f32;
    fn is_missing(self) -> bool;
    fn negated(self) -> Self;
    fn divided_by(self, divisor: Self) -> Self;
}

impl Number for f32 {
    const ZERO: Self = 0.0;

    fn from_double(value: f64) -> Self {
        value as Self
    }

    fn to_single(self) -> f32 {
        self
    }

    fn is_missing(self) -> bool {
        self.is_nan()
    }

    fn negated(self) -> Self {
        -self
    }

    fn divided_by(self, divisor: Self) -> Self {
        self / divisor
    }
}

impl Number for f64 {
    const ZERO: Self = 0.0;

    fn from_double(value: f64) -> Self {
        value
    }

    fn to_single(self) -> f32 {
        self as f32
    }

    fn is_missing(self) -> bool {
        self.is_nan()
    }

    fn negated(self) -> Self {
        -self
    }

    fn divided_by(self, divisor: Self) -> Self {
        self / divisor
    }
}

/// How a feature is held against a node's threshold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    LessOrEqual,
    Less,
    GreaterOrEqual,
    Greater,
    Equal,
    NotEqual,
}

/// How the leaves that an example reaches make up its score.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Aggregate {
    Sum,
    Average,
    Min,
    Max,
}

/// A node. The two children of a branch stand side by side, so that one index is enough and the comparison's outcome
/// selects the child without a jump.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Node<T> {
    pub(crate) threshold: T,
    /// The feature that is looked at, or [`Node::LEAF`].
    pub(crate) feature: u32,
    /// A branch's child for "yes", the one for "no" behind it; or the number of a leaf.
    pub(crate) next: u32,
}

impl<T> Node<T> {
    pub(crate) const LEAF: u32 = u32::MAX;
}

/// What a leaf adds to which score.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weight<T> {
    pub(crate) score: u32,
    pub(crate) value: T,
}

/// A forest.
#[derive(Debug)]
pub(crate) struct Forest<T> {
    pub(crate) nodes: Vec<Node<T>>,
    /// How each node compares, and whether a missing feature counts as "yes"; empty when all nodes compare by `<=` and
    /// none counts a missing one.
    pub(crate) modes: Vec<(Mode, bool)>,
    pub(crate) roots: Vec<u32>,
    pub(crate) leaves: Leaves<T>,
    pub(crate) aggregate: Aggregate,
    /// Features that an example must have.
    pub(crate) features: usize,
    /// Scores of an example.
    pub(crate) scores: usize,
}

/// What leaves add, by their number.
#[derive(Debug)]
pub(crate) enum Leaves<T> {
    /// Every leaf adds to every score: as many values for each leaf as there are scores.
    Dense(Vec<T>),
    /// Leaf `i` adds `weights[starts[i]..starts[i + 1]]`.
    Sparse {
        starts: Vec<u32>,
        weights: Vec<Weight<T>>,
    },
}

/// Scores of a block of examples.
pub(crate) struct Scores<T> {
    pub(crate) values: Vec<T>,
    /// Whether any leaf added to a score.
    pub(crate) touched: Vec<bool>,
}

impl<T: Number> Forest<T> {
    /// Examples that go through a tree together, so that it stays in the processor's cache.
    const BLOCK: usize = 64;

    /// Scores all examples, and gives each one's to `finish` in order.
    pub(crate) fn score(&self, rows: &Rows<'_, T>, mut finish: impl FnMut(&mut [T], &mut [bool])) {
        let (count, width) = (rows.count, rows.width);
        let mut scores = Scores {
            values: Vec::new(),
            touched: Vec::new(),
        };
        for start in (0..count).step_by(Self::BLOCK) {
            let end = (start + Self::BLOCK).min(count);
            self.score_block(
                &rows.values[start * width..end * width],
                width,
                end - start,
                &mut scores,
            );
            let values = scores.values.chunks_exact_mut(self.scores);
            for (values, touched) in values.zip(scores.touched.chunks_exact_mut(self.scores)) {
                finish(values, touched);
            }
        }
    }

    fn score_block(&self, rows: &[T], width: usize, count: usize, scores: &mut Scores<T>) {
        scores.values.clear();
        scores.values.resize(count * self.scores, T::ZERO);
        scores.touched.clear();
        scores
            .touched
            .resize(count * self.scores, matches!(self.leaves, Leaves::Dense(_)));
        let adds = matches!(self.aggregate, Aggregate::Sum | Aggregate::Average);
        for (tree, &root) in self.roots.iter().enumerate() {
            for index in 0..count {
                let row = &rows[index * width..(index + 1) * width];
                let leaf = self.leaf(root, row);
                let own = index * self.scores..(index + 1) * self.scores;
                let values = &mut scores.values[own.clone()];
                match &self.leaves {
                    Leaves::Dense(weights) => {
                        let weights = &weights[leaf * self.scores..][..self.scores];
                        for (value, &weight) in values.iter_mut().zip(weights) {
                            self.add(value, weight, adds || tree > 0);
                        }
                    }
                    Leaves::Sparse { starts, weights } => {
                        let touched = &mut scores.touched[own];
                        for weight in &weights[starts[leaf] as usize..starts[leaf + 1] as usize] {
                            let score = weight.score as usize;
                            self.add(&mut values[score], weight.value, adds || touched[score]);
                            touched[score] = true;
                        }
                    }
                }
            }
        }
    }

    #[inline(always)]
    fn add(&self, value: &mut T, weight: T, has_value: bool) {
        match self.aggregate {
            Aggregate::Sum | Aggregate::Average => *value += weight,
            _ if !has_value => *value = weight,
            Aggregate::Min if weight < *value => *value = weight,
            Aggregate::Max if weight > *value => *value = weight,
            Aggregate::Min | Aggregate::Max => {}
        }
    }

    /// The number of the leaf that an example reaches in a tree.
    fn leaf(&self, root: u32, row: &[T]) -> usize {
        let mut node = self.nodes[root as usize];
        if self.modes.is_empty() {
            while node.feature != Node::<T>::LEAF {
                let is_yes = row[node.feature as usize] <= node.threshold;
                node = self.nodes[node.next as usize + usize::from(!is_yes)];
            }
            return node.next as usize;
        }
        let mut at = root as usize;
        while node.feature != Node::<T>::LEAF {
            let (mode, missing_is_yes) = self.modes[at];
            let value = row[node.feature as usize];
            let is_yes = match mode {
                Mode::LessOrEqual => value <= node.threshold,
                Mode::Less => value < node.threshold,
                Mode::GreaterOrEqual => value >= node.threshold,
                Mode::Greater => value > node.threshold,
                Mode::Equal => value == node.threshold,
                Mode::NotEqual => value != node.threshold,
            } || (missing_is_yes && value.is_missing());
            at = node.next as usize + usize::from(!is_yes);
            node = self.nodes[at];
        }
        node.next as usize
    }
}
