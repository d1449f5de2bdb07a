//! Checks trees that a file describes, and lays them out in arrays. Every walk through a checked tree ends at
//! a leaf.

use std::collections::HashMap;

use crate::{
    eval::{Aggregate, Forest, Leaves, Linear, Node, Numbers, Special, Weight},
    number::Number,
};

/// An error in the description of a tree.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TreeError {
    /// A child, or the root, does not exist.
    #[error("node {node} does not exist, there are {count}")]
    NoSuchNode {
        /// The index of the missing node.
        node: u32,
        /// The number of nodes in the tree.
        count: usize,
    },
    /// A path leads from a node back to itself.
    #[error("its nodes form a cycle")]
    Cycle,
    /// A feature index exceeds [`Trees::MAX_FEATURES`].
    #[error("node {node} uses feature {feature}, expected at most {last}")]
    Feature {
        /// The node that tests the feature.
        node: usize,
        /// The feature index, which is too large.
        feature: u32,
        /// The largest supported index.
        last: u32,
    },
    /// A leaf adds to a score that rows do not have.
    #[error("a leaf adds to score {score}, but there are {count}")]
    Score {
        /// The index of the score, which is out of range.
        score: u32,
        /// The number of scores of a row.
        count: usize,
    },
    /// A node refers to a leaf or a set that was not added to the builder.
    #[error("node {node} refers to a leaf or a set that does not exist")]
    Unknown {
        /// The index of the node that refers to the leaf or set.
        node: usize,
    },
    /// The trees have more nodes, leaf weights or set words than their indices can address.
    #[error("there are too many nodes")]
    TooLarge,
}

/// The test of a branch. Comparisons with NaN are false, except [`Test::NotEqual`].
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Test {
    /// `feature <= threshold`.
    AtMost(f64),
    /// `feature < threshold`.
    Below(f64),
    /// `feature >= threshold`.
    AtLeast(f64),
    /// `feature > threshold`.
    Above(f64),
    /// `feature == threshold`.
    Equal(f64),
    /// `feature != threshold`.
    NotEqual(f64),
    /// `feature <= threshold`, where features within 1e-35 of zero count as missing.
    AtMostZeroMissing(f64),
    /// Whether the feature is at least 0 and, truncated to an integer, in a set.
    In(Set),
    /// Whether the feature, truncated to an integer, is in a set: -0.5 counts as 0.
    InTruncated(Set),
}

/// A set of integers; see [`TreesBuilder::set`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Set(u32);

/// A leaf; see [`TreesBuilder::leaf`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leaf(u32);

/// A node of a tree. Children are indices of nodes in the same tree.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TreeNode {
    /// A test with two children.
    Branch {
        /// The index of the feature in a row.
        feature: u32,
        /// The test of the feature.
        test: Test,
        /// Whether a missing (NaN) feature counts as "yes".
        missing_is_yes: bool,
        /// The node for "yes".
        yes: u32,
        /// The node for "no".
        no: u32,
    },
    /// A leaf, which ends a walk.
    Leaf(Leaf),
}

/// Builds [`Trees`], one tree at a time.
#[derive(Debug)]
pub struct TreesBuilder {
    trees: Trees,
}

/// Trees that were checked: every child exists, and every walk ends at a leaf.
#[derive(Debug)]
pub struct Trees {
    /// The nodes of all trees. The two children of a branch are adjacent.
    nodes: Vec<FlatNode>,
    roots: Vec<u32>,
    /// Leaf `i` adds `weights[starts[i]..starts[i + 1]]`.
    starts: Vec<u32>,
    weights: Vec<(u32, f64)>,
    /// For linear leaves, the constant term and the coefficients, which replace the leaf's single weight
    /// unless a feature is missing.
    linear: HashMap<u32, (f64, Vec<(u32, f64)>)>,
    sets: Vec<Numbers>,
    words: Vec<u32>,
    scores: usize,
    features: usize,
    aggregate: Aggregate,
}

/// A node in the array of nodes.
#[derive(Clone, Copy, Debug)]
enum FlatNode {
    Leaf(u32),
    Branch {
        test: Test,
        feature: u32,
        missing_is_yes: bool,
        /// The index of the child for "yes"; the child for "no" follows it.
        next: u32,
    },
}

impl FlatNode {
    /// Returns the node at index `at` for rows of `T`.
    fn typed<T: Number>(&self, at: u32) -> Node<T> {
        match *self {
            // The test `feature <= NaN` is always false, so the walk continues at `next + 1`, which is the
            // leaf itself.
            Self::Leaf(_) => Node {
                threshold: T::NAN,
                feature: 0,
                next: at.wrapping_sub(1),
            },
            Self::Branch {
                test,
                feature,
                missing_is_yes,
                next,
            } => Node {
                threshold: match test {
                    Test::AtMost(threshold) | Test::AtMostZeroMissing(threshold) => T::at_most(threshold),
                    Test::Below(threshold) => T::below(threshold),
                    Test::Equal(threshold) | Test::NotEqual(threshold) => T::from_f64(threshold),
                    _ => T::NAN,
                },
                feature: if missing_is_yes {
                    feature | Node::<T>::MISSING_IS_YES
                } else {
                    feature
                },
                next,
            },
        }
    }
}

impl TreesBuilder {
    /// Creates a builder without trees, for rows with `scores` scores.
    #[must_use]
    pub fn new(scores: usize, aggregate: Aggregate) -> Self {
        Self {
            trees: Trees {
                nodes: Vec::new(),
                roots: Vec::new(),
                starts: vec![0],
                weights: Vec::new(),
                linear: HashMap::new(),
                sets: Vec::new(),
                words: Vec::new(),
                scores,
                features: 0,
                aggregate,
            },
        }
    }

    /// Adds a set of integers. The number `n` is in the set if bit `n % 32` of word `n / 32` is 1.
    ///
    /// # Errors
    /// Returns [`TreeError::TooLarge`] if there are too many words.
    pub fn set(&mut self, words: &[u32]) -> Result<Set, TreeError> {
        self.numbers(words.iter().copied(), false)
    }

    /// Adds a set of these numbers, in any order. The set takes at most 4 bytes per number, however large the
    /// numbers are.
    ///
    /// # Errors
    /// Returns [`TreeError::TooLarge`] if there are too many numbers.
    pub fn set_of(&mut self, numbers: &[u32]) -> Result<Set, TreeError> {
        let words = numbers.iter().max().map_or(0, |last| *last as usize / 32 + 1);
        if words > numbers.len() {
            let mut sorted = numbers.to_vec();
            sorted.sort_unstable();
            return self.numbers(sorted.into_iter(), true);
        }
        let mut bits = vec![0u32; words];
        for number in numbers {
            bits[*number as usize / 32] |= 1 << (number % 32);
        }
        self.set(&bits)
    }

    fn numbers(&mut self, words: impl Iterator<Item = u32>, is_list: bool) -> Result<Set, TreeError> {
        let trees = &mut self.trees;
        let start = index(trees.words.len())?;
        trees.words.extend(words);
        trees.sets.push(Numbers {
            start,
            end: index(trees.words.len())?,
            is_list,
        });
        Ok(Set(index(trees.sets.len() - 1)?))
    }

    /// Adds a leaf. `weights` are pairs of the index of a score and the value that the leaf adds to it.
    ///
    /// # Errors
    /// Returns [`TreeError::TooLarge`], or [`TreeError::Score`] for a score beyond those of
    /// [`TreesBuilder::new`].
    pub fn leaf(&mut self, weights: &[(u32, f64)]) -> Result<Leaf, TreeError> {
        let count = self.trees.scores;
        if let Some(&(score, _)) = weights.iter().find(|(score, _)| *score as usize >= count) {
            return Err(TreeError::Score { score, count });
        }
        self.trees.weights.extend_from_slice(weights);
        self.trees.starts.push(index(self.trees.weights.len())?);
        Ok(Leaf(index(self.trees.starts.len() - 2)?))
    }

    /// Adds a leaf whose weight is `base` plus each feature times its factor, or `otherwise` if one of the
    /// features is missing. In a forest with such leaves, every leaf has one weight, and all leaves of a tree
    /// add to the same score.
    ///
    /// # Errors
    /// Returns [`TreeError::TooLarge`], [`TreeError::Score`], or [`TreeError::Feature`] for a feature beyond
    /// [`Trees::MAX_FEATURES`].
    pub fn linear_leaf(
        &mut self,
        score: u32,
        base: f64,
        factors: &[(u32, f64)],
        otherwise: f64,
    ) -> Result<Leaf, TreeError> {
        let leaf = self.leaf(&[(score, otherwise)])?;
        for &(feature, _) in factors {
            self.trees.needs(feature, 0)?;
        }
        self.trees.linear.insert(leaf.0, (base, factors.to_vec()));
        Ok(leaf)
    }

    /// Adds a tree, and returns how many of its nodes are reachable from the root. Unreachable nodes are
    /// dropped.
    ///
    /// A node may have several parents, as long as there are no cycles.
    ///
    /// # Errors
    /// Returns what is wrong with the tree; the builder must not be used afterwards.
    pub fn tree(&mut self, nodes: &[TreeNode], root: u32) -> Result<usize, TreeError> {
        let reached = check(nodes, root)?;
        self.trees.place(nodes, root)?;
        Ok(reached)
    }

    /// Returns the trees.
    #[must_use]
    pub fn finish(self) -> Trees {
        self.trees
    }
}

/// Checks that all paths from the root end, and returns the number of nodes on them.
fn check(nodes: &[TreeNode], root: u32) -> Result<usize, TreeError> {
    let count = nodes.len();
    let no_such = |node: u32| TreeError::NoSuchNode { node, count };
    if root as usize >= count {
        return Err(no_such(root));
    }
    // The number of reachable parents of each node.
    let mut parents = vec![0u32; count];
    let mut is_reached = vec![false; count];
    let (mut open, mut reached) = (vec![root], 0);
    is_reached[root as usize] = true;
    while let Some(node) = open.pop() {
        reached += 1;
        for child in children(nodes[node as usize]).into_iter().flatten() {
            let at = child as usize;
            *parents.get_mut(at).ok_or_else(|| no_such(child))? += 1;
            if !is_reached[at] {
                is_reached[at] = true;
                open.push(child);
            }
        }
    }
    let (mut ready, mut ended) = (Vec::new(), 0);
    if parents[root as usize] == 0 {
        ready.push(root);
    }
    while let Some(node) = ready.pop() {
        ended += 1;
        for child in children(nodes[node as usize]).into_iter().flatten() {
            parents[child as usize] -= 1;
            if parents[child as usize] == 0 {
                ready.push(child);
            }
        }
    }
    match ended == reached {
        true => Ok(reached),
        false => Err(TreeError::Cycle),
    }
}

fn children(node: TreeNode) -> Option<[u32; 2]> {
    match node {
        TreeNode::Branch { yes, no, .. } => Some([yes, no]),
        TreeNode::Leaf(_) => None,
    }
}

fn index(count: usize) -> Result<u32, TreeError> {
    u32::try_from(count)
        .ok()
        .filter(|&index| index < 1 << 31)
        .ok_or(TreeError::TooLarge)
}

impl Trees {
    /// Maximum number of features per row.
    pub const MAX_FEATURES: usize = 1 << 24;

    /// Returns the number of trees.
    #[must_use]
    pub fn count(&self) -> usize {
        self.roots.len()
    }

    /// Returns how many scores a row has.
    #[must_use]
    pub fn scores(&self) -> usize {
        self.scores
    }

    /// Returns how many features a row must have.
    #[must_use]
    pub fn features(&self) -> usize {
        self.features
    }

    /// Returns how the leaves are combined into scores.
    #[must_use]
    pub fn aggregate(&self) -> Aggregate {
        self.aggregate
    }

    /// Returns the weights of all leaves, in any order: pairs of the index of a score and a value.
    #[must_use]
    pub fn weights(&self) -> &[(u32, f64)] {
        &self.weights
    }

    /// Records that rows must have the feature with the index `feature`.
    fn needs(&mut self, feature: u32, node: usize) -> Result<(), TreeError> {
        let last = Self::MAX_FEATURES as u32 - 1;
        if feature > last {
            return Err(TreeError::Feature { node, feature, last });
        }
        self.features = self.features.max(feature as usize + 1);
        Ok(())
    }

    /// Lays out a checked tree: each node once, plus one copy, with the same children, for each additional
    /// parent.
    fn place(&mut self, nodes: &[TreeNode], root: u32) -> Result<(), TreeError> {
        let mut placed: Vec<Option<u32>> = vec![None; nodes.len()];
        let first = self.reserve(1)?;
        self.roots.push(first);
        let mut open = vec![(root as usize, first)];
        while let Some((node, slot)) = open.pop() {
            if let Some(first) = placed[node] {
                self.nodes[slot as usize] = self.nodes[first as usize];
                continue;
            }
            placed[node] = Some(slot);
            self.nodes[slot as usize] = match nodes[node] {
                TreeNode::Leaf(leaf) if (leaf.0 as usize) < self.starts.len() - 1 => FlatNode::Leaf(leaf.0),
                TreeNode::Leaf(_) => return Err(TreeError::Unknown { node }),
                TreeNode::Branch {
                    feature,
                    test,
                    missing_is_yes,
                    yes,
                    no,
                } => {
                    self.needs(feature, node)?;
                    if let Test::In(Set(set)) | Test::InTruncated(Set(set)) = test
                        && set as usize >= self.sets.len()
                    {
                        return Err(TreeError::Unknown { node });
                    }
                    let next = self.reserve(2)?;
                    let (test, is_turned) = upwards(test);
                    let (first, second) = if is_turned { (no, yes) } else { (yes, no) };
                    open.push((second as usize, next + 1));
                    open.push((first as usize, next));
                    FlatNode::Branch {
                        test,
                        feature,
                        missing_is_yes: missing_is_yes != is_turned,
                        next,
                    }
                }
            };
        }
        Ok(())
    }

    /// Reserves `count` adjacent nodes, and returns the index of the first.
    fn reserve(&mut self, count: usize) -> Result<u32, TreeError> {
        let first = index(self.nodes.len())?;
        self.nodes.resize(self.nodes.len() + count, FlatNode::Leaf(0));
        Ok(first)
    }

    /// Creates the forest for rows of `T` whose scores are summed in `A`.
    ///
    /// Thresholds that `T` cannot represent are rounded so that every comparison with a `T` has the same
    /// result.
    #[must_use]
    pub fn forest<T: Number, A: Number>(&self) -> Forest<T, A> {
        let nodes = self.nodes.iter().zip(0u32..);
        let nodes = nodes.map(|(node, at)| node.typed(at));
        let specials = || self.nodes.iter().map(|node| self.special(node));
        Forest {
            nodes: nodes.collect(),
            specials: match specials().all(|special| special == Special::None) {
                true => Vec::new(),
                false => specials().collect(),
            },
            words: self.words.clone(),
            leaf_at: self
                .nodes
                .iter()
                .map(|node| match node {
                    FlatNode::Leaf(leaf) => *leaf,
                    FlatNode::Branch { .. } => 0,
                })
                .collect(),
            counts_missing: self.nodes.iter().any(|node| {
                matches!(
                    node,
                    FlatNode::Branch {
                        missing_is_yes: true,
                        ..
                    }
                )
            }),
            roots: self.roots.clone(),
            leaves: self.leaves(),
            aggregate: self.aggregate,
            features: self.features,
            scores: self.scores,
        }
    }

    fn special(&self, node: &FlatNode) -> Special {
        let FlatNode::Branch { test, .. } = node else {
            return Special::None;
        };
        match *test {
            Test::Equal(_) => Special::Equal,
            Test::NotEqual(_) => Special::NotEqual,
            Test::AtMostZeroMissing(_) => Special::ZeroMissing,
            Test::In(Set(set)) => Special::In(self.sets[set as usize]),
            Test::InTruncated(Set(set)) => Special::InTruncated(self.sets[set as usize]),
            _ => Special::None,
        }
    }

    fn leaves<A: Number>(&self) -> Leaves<A> {
        let values = || self.weights.iter().map(|&(_, value)| A::from_f64(value));
        if let Some(scores) = self.score_of_each_tree() {
            return Leaves::Single {
                scores,
                values: values().collect(),
                linear: (!self.linear.is_empty()).then(|| self.linear_leaves()),
            };
        }
        let is_dense = |ends: &[u32]| {
            let own = &self.weights[ends[0] as usize..ends[1] as usize];
            own.len() == self.scores && own.iter().zip(0..).all(|(&(score, _), index)| score == index)
        };
        if self.starts.windows(2).all(is_dense) {
            return Leaves::Dense(values().collect());
        }
        let weight = |&(score, value): &(u32, f64)| Weight {
            score,
            value: A::from_f64(value),
        };
        Leaves::Sparse {
            starts: self.starts.clone(),
            weights: self.weights.iter().map(weight).collect(),
        }
    }

    /// Returns the index of each tree's score. Returns `None` unless every leaf has one weight, and all
    /// leaves of a tree add to the same score.
    fn score_of_each_tree(&self) -> Option<Vec<u32>> {
        if !self.starts.windows(2).all(|ends| ends[1] - ends[0] == 1) {
            return None;
        }
        let ends = self.roots.iter().skip(1).map(|&root| root as usize);
        let ends = ends.chain([self.nodes.len()]);
        let trees = self.roots.iter().zip(ends);
        let scores = trees.map(|(&root, end)| {
            let own = self.nodes[root as usize..end]
                .iter()
                .filter_map(|node| match node {
                    FlatNode::Leaf(leaf) => Some(self.weights[*leaf as usize].0),
                    FlatNode::Branch { .. } => None,
                });
            let mut own = own;
            let first = own.next()?;
            own.all(|score| score == first).then_some(first)
        });
        scores.collect()
    }

    fn linear_leaves<A: Number>(&self) -> Linear<A> {
        let mut linear = Linear {
            bases: Vec::new(),
            starts: vec![0],
            factors: Vec::new(),
        };
        for leaf in 0..self.starts.len() as u32 - 1 {
            let own = self.linear.get(&leaf);
            linear.bases.push(own.map(|(base, _)| A::from_f64(*base)));
            let factors = own.map_or(&[][..], |(_, factors)| factors);
            linear.factors.extend(
                factors
                    .iter()
                    .map(|&(feature, factor)| (feature, A::from_f64(factor))),
            );
            linear.starts.push(linear.factors.len());
        }
        linear
    }
}

/// Rewrites a test as "at most" or "below", and returns whether its outcomes are swapped.
fn upwards(test: Test) -> (Test, bool) {
    match test {
        // Comparisons with NaN are always false.
        Test::AtLeast(threshold) | Test::Above(threshold) if threshold.is_nan() => {
            (Test::AtMost(threshold), false)
        }
        Test::AtLeast(threshold) => (Test::Below(threshold), true),
        Test::Above(threshold) => (Test::AtMost(threshold), true),
        other => (other, false),
    }
}
