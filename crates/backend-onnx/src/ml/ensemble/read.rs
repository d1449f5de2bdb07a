//! From the lists that ONNX has trees in to flat arrays.

use std::collections::HashMap;

use tract_onnx::{model::ParsingContext, tract_hir::internal::*};

use super::forest::{Aggregate, Forest, Leaves, Mode, Node, Number, Weight};
use crate::{
    faults::Refusal,
    ops::{Attributes, access},
};

/// Trees as the file has them, known to be trees: every child exists, and every node is reached on one way only.
#[derive(Debug)]
pub(crate) struct Trees {
    /// Nodes in the order in which they are laid out: the children of a branch side by side.
    nodes: Vec<Branch>,
    roots: Vec<u32>,
    /// What each leaf adds: the score and the value.
    leaves: Vec<Vec<(u32, f64)>>,
    pub(crate) scores: usize,
    pub(crate) features: usize,
    pub(crate) aggregate: Aggregate,
}

#[derive(Clone, Copy, Debug)]
struct Branch {
    threshold: f64,
    feature: u32,
    next: u32,
    mode: Mode,
    missing_is_yes: bool,
}

/// The most nodes that indices of 32 bits are enough for.
const MAX_NODES: usize = 1 << 31;

/// The largest position of a feature.
const MAX_FEATURE: i64 = 1 << 24;

impl Trees {
    /// Reads the attributes of a node; those of its leaves start with `prefix`.
    pub(crate) fn read(
        context: &ParsingContext<'_>,
        attributes: Attributes<'_>,
        prefix: &str,
        scores: usize,
        aggregate: Aggregate,
    ) -> TractResult<Self> {
        let lists = Lists::read(context, attributes)?;
        let leaves = Additions::read(context, attributes, prefix, scores)?;
        let mut layout = Layout::new(&lists)?;
        layout.place(&lists)?;
        let leaves = leaves.by_leaf(&lists, &layout)?;
        Ok(Self {
            features: layout
                .nodes
                .iter()
                .filter(|node| node.feature != Node::<f64>::LEAF)
                .map(|node| node.feature as usize + 1)
                .max()
                .unwrap_or(0),
            nodes: layout.nodes,
            roots: layout.roots,
            leaves,
            scores,
            aggregate,
        })
    }

    /// The scores that any leaf adds to, and whether nothing that is added is negative.
    pub(crate) fn additions(&self) -> (Vec<bool>, bool) {
        let mut scores = vec![false; self.scores];
        let mut is_positive = true;
        for &(score, value) in self.leaves.iter().flatten() {
            scores[score as usize] = true;
            is_positive &= value >= 0.0;
        }
        (scores, is_positive)
    }

    pub(crate) fn tree_count(&self) -> usize {
        self.roots.len()
    }

    /// The trees in the type that features are compared in.
    pub(crate) fn forest<T: Number>(&self) -> Forest<T> {
        let node = |branch: &Branch| Node {
            threshold: T::from_double(branch.threshold),
            feature: branch.feature,
            next: branch.next,
        };
        let is_plain = |branch: &Branch| branch.mode == Mode::LessOrEqual && !branch.missing_is_yes;
        let is_dense = |leaf: &Vec<(u32, f64)>| {
            leaf.len() == self.scores && leaf.iter().zip(0..).all(|(&(score, _), index)| score == index)
        };
        let leaves = if self.leaves.iter().all(is_dense) {
            Leaves::Dense(
                self.leaves
                    .iter()
                    .flatten()
                    .map(|&(_, value)| T::from_double(value))
                    .collect(),
            )
        } else {
            let mut starts = vec![0];
            let mut weights = Vec::new();
            for leaf in &self.leaves {
                weights.extend(leaf.iter().map(|&(score, value)| Weight {
                    score,
                    value: T::from_double(value),
                }));
                starts.push(weights.len() as u32);
            }
            Leaves::Sparse { starts, weights }
        };
        Forest {
            nodes: self.nodes.iter().map(node).collect(),
            modes: match self.nodes.iter().all(is_plain) {
                true => Vec::new(),
                false => self
                    .nodes
                    .iter()
                    .map(|branch| (branch.mode, branch.missing_is_yes))
                    .collect(),
            },
            roots: self.roots.clone(),
            leaves,
            aggregate: self.aggregate,
            features: self.features,
            scores: self.scores,
        }
    }
}

/// The lists with one entry for each node, all equally long.
struct Lists<'a> {
    trees: &'a [i64],
    nodes: &'a [i64],
    features: &'a [i64],
    modes: Vec<Option<Mode>>,
    thresholds: Vec<f64>,
    yes: &'a [i64],
    no: &'a [i64],
    missing_is_yes: &'a [i64],
    /// Where the node of a tree stands.
    places: HashMap<(i64, i64), usize>,
}

impl<'a> Lists<'a> {
    fn read(context: &ParsingContext<'_>, attributes: Attributes<'a>) -> TractResult<Self> {
        let modes = attributes
            .get("nodes_modes")
            .map_or(&[][..], |attribute| &attribute.strings);
        let mut lists = Self {
            trees: attributes.ints("nodes_treeids"),
            nodes: attributes.ints("nodes_nodeids"),
            features: attributes.ints("nodes_featureids"),
            modes: modes
                .iter()
                .map(|mode| read_mode(mode))
                .collect::<TractResult<_>>()?,
            thresholds: doubles(context, attributes, "nodes_values")?,
            yes: attributes.ints("nodes_truenodeids"),
            no: attributes.ints("nodes_falsenodeids"),
            missing_is_yes: attributes.ints("nodes_missing_value_tracks_true"),
            places: HashMap::new(),
        };
        let count = lists.modes.len();
        let lengths = [
            lists.trees.len(),
            lists.nodes.len(),
            lists.features.len(),
            lists.thresholds.len(),
            lists.yes.len(),
            lists.no.len(),
        ];
        let missing = lists.missing_is_yes.len();
        if lengths.iter().any(|&length| length != count) || (missing != 0 && missing != count) {
            bail!(Refusal("has lists of nodes of different lengths".to_owned()));
        }
        if count == 0 || count > MAX_NODES {
            bail!(Refusal(format!("has {count} nodes")));
        }
        lists.places.reserve(count);
        for (index, (&tree, &node)) in lists.trees.iter().zip(lists.nodes).enumerate() {
            if lists.places.insert((tree, node), index).is_some() {
                bail!(Refusal(format!("has node {node} of tree {tree} twice")));
            }
        }
        Ok(lists)
    }

    /// Where a child of a node stands.
    fn child(&self, parent: usize, node: i64) -> TractResult<usize> {
        let tree = self.trees[parent];
        let place = self.places.get(&(tree, node)).copied();
        Ok(place.ok_or_else(|| Refusal(format!("lacks node {node} of tree {tree}")))?)
    }
}

/// Nodes as they are laid out.
struct Layout {
    nodes: Vec<Branch>,
    roots: Vec<u32>,
    /// By the node's place in the lists, the number of a leaf.
    leaves: HashMap<usize, u32>,
    /// By the node's place in the lists, where it was laid out.
    placed: HashMap<usize, u32>,
    /// Nodes that are to be laid out: their place in the lists, and here.
    open: Vec<(usize, u32)>,
}

impl Layout {
    /// Finds the roots: the one node of each tree that is no other's child. A node may be the child of several, as
    /// `LightGBM`'s splits by categories are written: a chain of comparisons with one way out. Circles there must not be.
    fn new(lists: &Lists<'_>) -> TractResult<Self> {
        let count = lists.modes.len();
        let children = |parent: usize| -> TractResult<Option<[usize; 2]>> {
            if lists.modes[parent].is_none() {
                return Ok(None);
            }
            let child = |node: i64| lists.child(parent, node);
            Ok(Some([child(lists.yes[parent])?, child(lists.no[parent])?]))
        };
        let mut parents = vec![0u32; count];
        for parent in 0..count {
            for child in children(parent)?.into_iter().flatten() {
                parents[child] += 1;
            }
        }
        let is_child: Vec<bool> = parents.iter().map(|&parents| parents > 0).collect();
        let mut ready: Vec<usize> = (0..count).filter(|&node| !is_child[node]).collect();
        let mut reached = 0;
        while let Some(node) = ready.pop() {
            reached += 1;
            for child in children(node)?.into_iter().flatten() {
                parents[child] -= 1;
                if parents[child] == 0 {
                    ready.push(child);
                }
            }
        }
        if reached != count {
            bail!(Refusal("has nodes that go round in a circle".to_owned()));
        }
        let mut layout = Self {
            nodes: Vec::with_capacity(lists.modes.len()),
            roots: Vec::new(),
            leaves: HashMap::new(),
            placed: HashMap::new(),
            open: Vec::new(),
        };
        let mut rooted: HashMap<i64, usize> = HashMap::new();
        for (index, &tree) in lists.trees.iter().enumerate() {
            let roots = rooted.entry(tree).or_insert(0);
            if !is_child[index] {
                *roots += 1;
                layout.roots.push(index as u32);
            }
        }
        match rooted.iter().find(|(_, roots)| **roots != 1) {
            Some((tree, roots)) => bail!(Refusal(format!("has {roots} roots in tree {tree}"))),
            None => Ok(layout),
        }
    }

    /// Lays out all trees: each node once, and copies of it, with the same children, where it is another's child too.
    fn place(&mut self, lists: &Lists<'_>) -> TractResult<()> {
        for index in 0..self.roots.len() {
            let root = self.reserve(1);
            self.open.push((self.roots[index] as usize, root));
            self.roots[index] = root;
            while let Some((place, slot)) = self.open.pop() {
                self.place_node(lists, place, slot)?;
            }
        }
        Ok(())
    }

    fn place_node(&mut self, lists: &Lists<'_>, place: usize, slot: u32) -> TractResult<()> {
        if let Some(&first) = self.placed.get(&place) {
            self.nodes[slot as usize] = self.nodes[first as usize];
            return Ok(());
        }
        self.placed.insert(place, slot);
        let Some(mode) = lists.modes[place] else {
            let leaf = self.leaves.len() as u32;
            self.leaves.insert(place, leaf);
            self.nodes[slot as usize].next = leaf;
            return Ok(());
        };
        let feature = lists.features[place];
        if !(0..=MAX_FEATURE).contains(&feature) {
            bail!(Refusal(format!("looks at feature {feature}")));
        }
        let (yes, no) = (
            lists.child(place, lists.yes[place])?,
            lists.child(place, lists.no[place])?,
        );
        let next = self.reserve(2);
        self.open.push((no, next + 1));
        self.open.push((yes, next));
        self.nodes[slot as usize] = Branch {
            threshold: lists.thresholds[place],
            feature: feature as u32,
            next,
            mode,
            missing_is_yes: lists.missing_is_yes.get(place).is_some_and(|&track| track != 0),
        };
        Ok(())
    }

    /// Room for nodes side by side, which are leaves until they are placed.
    fn reserve(&mut self, count: usize) -> u32 {
        let first = self.nodes.len() as u32;
        let leaf = Branch {
            threshold: 0.0,
            feature: Node::<f64>::LEAF,
            next: 0,
            mode: Mode::LessOrEqual,
            missing_is_yes: false,
        };
        self.nodes.resize(self.nodes.len() + count, leaf);
        first
    }
}

/// What leaves add, as the lists have it.
struct Additions<'a> {
    trees: &'a [i64],
    nodes: &'a [i64],
    scores: &'a [i64],
    values: Vec<f64>,
}

impl<'a> Additions<'a> {
    fn read(
        context: &ParsingContext<'_>,
        attributes: Attributes<'a>,
        prefix: &str,
        scores: usize,
    ) -> TractResult<Self> {
        let ints = |name: &str| attributes.ints(&format!("{prefix}_{name}"));
        let additions = Self {
            trees: ints("treeids"),
            nodes: ints("nodeids"),
            scores: ints("ids"),
            values: doubles(context, attributes, &format!("{prefix}_weights"))?,
        };
        let lengths = [
            additions.trees.len(),
            additions.nodes.len(),
            additions.scores.len(),
        ];
        if lengths.iter().any(|&length| length != additions.values.len()) {
            bail!(Refusal("has lists of leaves of different lengths".to_owned()));
        }
        let is_known = |&score: &i64| usize::try_from(score).is_ok_and(|score| score < scores);
        if let Some(score) = additions.scores.iter().find(|score| !is_known(score)) {
            bail!(Refusal(format!("has a leaf for score {score} of {scores}")));
        }
        Ok(additions)
    }

    fn by_leaf(&self, lists: &Lists<'_>, layout: &Layout) -> TractResult<Vec<Vec<(u32, f64)>>> {
        let mut leaves = vec![Vec::new(); layout.leaves.len()];
        for (index, (&tree, &node)) in self.trees.iter().zip(self.nodes).enumerate() {
            let leaf = lists
                .places
                .get(&(tree, node))
                .and_then(|place| layout.leaves.get(place));
            let leaf = leaf.ok_or_else(|| Refusal(format!("has no leaf {node} in tree {tree}")))?;
            leaves[*leaf as usize].push((self.scores[index] as u32, self.values[index]));
        }
        Ok(leaves)
    }
}

fn read_mode(mode: &[u8]) -> TractResult<Option<Mode>> {
    Ok(Some(match mode {
        b"LEAF" => return Ok(None),
        b"BRANCH_LEQ" => Mode::LessOrEqual,
        b"BRANCH_LT" => Mode::Less,
        b"BRANCH_GTE" => Mode::GreaterOrEqual,
        b"BRANCH_GT" => Mode::Greater,
        b"BRANCH_EQ" => Mode::Equal,
        b"BRANCH_NEQ" => Mode::NotEqual,
        other => {
            let name = String::from_utf8_lossy(other).into_owned();
            bail!(Refusal(format!(
                "has nodes of the unknown mode {}",
                tensor_core::Quoted(&name)
            )))
        }
    }))
}

/// A list of floats, or the tensor that may stand in its place.
pub(crate) fn doubles(
    context: &ParsingContext<'_>,
    attributes: Attributes<'_>,
    name: &str,
) -> TractResult<Vec<f64>> {
    let floats = attributes.floats(name);
    let tensor = attributes
        .get(&format!("{name}_as_tensor"))
        .and_then(|attribute| attribute.t.as_ref());
    let Some(tensor) = tensor.filter(|_| floats.is_empty()) else {
        return Ok(floats.iter().map(|&value| value.into()).collect());
    };
    let tensor = context.load_tensor(tensor)?;
    let doubles = tensor.cast_to::<f64>()?;
    Ok(access::elements::<f64>(&doubles)?.to_vec())
}
