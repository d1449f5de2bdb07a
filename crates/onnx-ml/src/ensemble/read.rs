//! Reads trees from the parallel lists in the attributes of `ai.onnx.ml`.

use std::collections::HashMap;

use onnx_tensor::prelude::*;
use tree_eval::{Aggregate, Test, TreeNode, Trees, TreesBuilder};

use onnx_tensor::{elements, faults::Refusal, node::Attributes};

/// Reads the trees of a node. `prefix` is the prefix of the leaf attributes.
pub(crate) fn trees(
    attributes: Attributes<'_>,
    prefix: &str,
    scores: usize,
    aggregate: Aggregate,
) -> Result<Trees> {
    let lists = Lists::read(attributes)?;
    let mut weights = Additions::read(attributes, prefix, scores)?.by_place(&lists)?;
    let mut builder = TreesBuilder::new(scores, aggregate);
    for tree in lists.by_tree()? {
        let nodes = tree.places.iter().map(|&place| {
            let Some(test) = lists.test(place) else {
                let weights = weights.remove(&place).unwrap_or_default();
                return Ok(TreeNode::Leaf(builder.leaf(&weights)?));
            };
            let feature = lists.features[place];
            Ok(TreeNode::Branch {
                feature: u32::try_from(feature)
                    .map_err(|_| Refusal(format!("has a node for feature {feature}, expected 0 or more")))?,
                test,
                missing_is_yes: lists.missing_is_yes.get(place).is_some_and(|&track| track != 0),
                yes: tree.number(lists.child(place, lists.yes[place])?),
                no: tree.number(lists.child(place, lists.no[place])?),
            })
        });
        let nodes: Vec<TreeNode> = nodes.collect::<Result<_>>()?;
        let reached = builder.tree(&nodes, tree.number(tree.root));
        let reached =
            reached.map_err(|error| Refusal(format!("has an invalid tree {}: {error}", tree.id)))?;
        // Every node but the root has a parent, so nodes that are unreachable from the root contain a cycle.
        if reached != nodes.len() {
            bail!(Refusal(format!(
                "has an invalid tree {}: its nodes form a cycle",
                tree.id
            )));
        }
    }
    Ok(builder.finish())
}

/// Returns for each score whether any leaf adds to it, and whether all weights are at least 0.
pub(crate) fn additions(trees: &Trees) -> (Vec<bool>, bool) {
    let mut scores = vec![false; trees.scores()];
    let mut is_positive = true;
    for &(score, value) in trees.weights() {
        scores[score as usize] = true;
        is_positive &= value >= 0.0;
    }
    (scores, is_positive)
}

/// The maximum node count that 32-bit indices can address.
const MAX_NODES: usize = 1 << 30;

/// The parallel lists with one entry per node.
struct Lists<'a> {
    trees: &'a [i64],
    nodes: &'a [i64],
    features: &'a [i64],
    /// The kind of comparison of each branch; `None` for leaves.
    modes: Vec<Option<Mode>>,
    thresholds: Vec<f64>,
    yes: &'a [i64],
    no: &'a [i64],
    missing_is_yes: &'a [i64],
    /// The list index of each node, by tree id and node id.
    places: HashMap<(i64, i64), usize>,
}

impl<'a> Lists<'a> {
    fn read(attributes: Attributes<'a>) -> Result<Self> {
        let modes = attributes
            .get("nodes_modes")
            .map_or(&[][..], |attribute| &attribute.strings);
        let mut lists = Self {
            trees: attributes.ints("nodes_treeids"),
            nodes: attributes.ints("nodes_nodeids"),
            features: attributes.ints("nodes_featureids"),
            modes: modes.iter().map(|mode| read_mode(mode)).collect::<Result<_>>()?,
            thresholds: doubles(attributes, "nodes_values")?,
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

    /// Returns the list index of the child `node` of `parent`.
    fn child(&self, parent: usize, node: i64) -> Result<usize> {
        let tree = self.trees[parent];
        let place = self.places.get(&(tree, node)).copied();
        Ok(place.ok_or_else(|| {
            Refusal(format!(
                "refers to node {node} of tree {tree}, which does not exist"
            ))
        })?)
    }
    /// Returns the comparison of a branch, or `None` for a leaf.
    fn test(&self, place: usize) -> Option<Test> {
        self.modes[place].map(|mode| mode(self.thresholds[place]))
    }

    /// Returns the trees, ordered by the list index of their roots. The root of a tree is the only node that
    /// is not a child. A node may have several parents: LightGBM writes a categorical split as a chain of
    /// comparisons with one common child.
    fn by_tree(&self) -> Result<Vec<TreePlaces>> {
        let mut is_child = vec![false; self.modes.len()];
        for parent in (0..self.modes.len()).filter(|&place| self.modes[place].is_some()) {
            is_child[self.child(parent, self.yes[parent])?] = true;
            is_child[self.child(parent, self.no[parent])?] = true;
        }
        let mut trees: HashMap<i64, (Vec<usize>, Vec<usize>)> = HashMap::new();
        for (place, &id) in self.trees.iter().enumerate() {
            let (places, roots) = trees.entry(id).or_default();
            places.push(place);
            if !is_child[place] {
                roots.push(place);
            }
        }
        let trees = trees.into_iter().map(|(id, (places, roots))| match roots[..] {
            [root] => Ok(TreePlaces { id, places, root }),
            _ => bail!(Refusal(format!("has {} roots in tree {id}", roots.len()))),
        });
        let mut trees: Vec<_> = trees.collect::<Result<_>>()?;
        trees.sort_unstable_by_key(|tree| tree.root);
        Ok(trees)
    }
}

/// The list indices of a tree's nodes, in ascending order.
struct TreePlaces {
    id: i64,
    places: Vec<usize>,
    root: usize,
}

impl TreePlaces {
    /// Returns the index within the tree of the node with list index `place`.
    fn number(&self, place: usize) -> u32 {
        self.places.binary_search(&place).unwrap_or(usize::MAX) as u32
    }
}

/// A function that creates the comparison with a given threshold.
type Mode = fn(f64) -> Test;

/// The weights of the leaves, as parallel lists with one entry per weight.
struct Additions<'a> {
    trees: &'a [i64],
    nodes: &'a [i64],
    scores: &'a [i64],
    values: Vec<f64>,
}

impl<'a> Additions<'a> {
    fn read(attributes: Attributes<'a>, prefix: &str, scores: usize) -> Result<Self> {
        let ints = |name: &str| attributes.ints(&format!("{prefix}_{name}"));
        let additions = Self {
            trees: ints("treeids"),
            nodes: ints("nodeids"),
            scores: ints("ids"),
            values: doubles(attributes, &format!("{prefix}_weights"))?,
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

    /// Returns the weights of each leaf by its list index.
    fn by_place(&self, lists: &Lists<'_>) -> Result<HashMap<usize, Vec<(u32, f64)>>> {
        let mut weights: HashMap<usize, Vec<(u32, f64)>> = HashMap::new();
        for (index, (&tree, &node)) in self.trees.iter().zip(self.nodes).enumerate() {
            let place = lists.places.get(&(tree, node)).copied();
            let leaf = place.filter(|&place| lists.modes[place].is_none());
            let leaf = leaf.ok_or_else(|| Refusal(format!("has no leaf {node} in tree {tree}")))?;
            let weight = (self.scores[index] as u32, self.values[index]);
            weights.entry(leaf).or_default().push(weight);
        }
        Ok(weights)
    }
}

fn read_mode(mode: &[u8]) -> Result<Option<Mode>> {
    Ok(Some(match mode {
        b"LEAF" => return Ok(None),
        b"BRANCH_LEQ" => Test::AtMost,
        b"BRANCH_LT" => Test::Below,
        b"BRANCH_GTE" => Test::AtLeast,
        b"BRANCH_GT" => Test::Above,
        b"BRANCH_EQ" => Test::Equal,
        b"BRANCH_NEQ" => Test::NotEqual,
        other => {
            let name = String::from_utf8_lossy(other).into_owned();
            bail!(Refusal(format!(
                "has nodes of the unknown mode {}",
                tensor_core::QuotedName(&name)
            )))
        }
    }))
}

/// The maximum number of scores per row. The number is limited, since rows are scored in batches and each
/// score takes memory.
const MAX_TARGETS: i64 = 1 << 20;

/// Returns a regressor's number of scores per row.
pub(crate) fn targets(attributes: Attributes<'_>) -> Result<usize> {
    match attributes.int("n_targets", 1) {
        targets @ 1..=MAX_TARGETS => Ok(targets as usize),
        // ONNX Runtime allocates memory for all targets of each row, so models with more targets are also
        // refused for ONNX Runtime.
        targets => bail!(Refusal(format!(
            "the attribute 'n_targets' is {targets}, expected 1 to {MAX_TARGETS}"
        ))),
    }
}

/// Returns the list of floats in the attribute `name`, or in its alternative `<name>_as_tensor`.
pub(crate) fn doubles(attributes: Attributes<'_>, name: &str) -> Result<Vec<f64>> {
    let floats = attributes.floats(name);
    let tensor = attributes
        .get(&format!("{name}_as_tensor"))
        .and_then(|attribute| attribute.t.as_ref());
    let Some(tensor) = tensor.filter(|_| floats.is_empty()) else {
        return Ok(floats.iter().map(|&value| value.into()).collect());
    };
    let doubles = tensor.cast_to::<f64>()?;
    Ok(elements::elements::<f64>(&doubles)?.to_vec())
}
