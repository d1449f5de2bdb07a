//! Reads and checks XGBoost's trees.

use std::fmt;

use serde::{Deserialize, Deserializer, de};
use tree_eval::{Aggregate, Leaf, Test, TreeNode, Trees, TreesBuilder};

use crate::error::Refusal;

/// All trees, or the weights of a linear model.
#[derive(Deserialize)]
pub(crate) struct TreeModel {
    gbtree_model_param: Option<TreeParameters>,
    /// The index of the first tree of each iteration, followed by the number of trees. XGBoost has written
    /// this list since version 2.
    #[serde(default)]
    iteration_indptr: Vec<u32>,
    /// The index of the score that each tree adds to.
    #[serde(default)]
    tree_info: Vec<u32>,
    #[serde(default)]
    trees: Vec<Tree>,
    #[serde(default)]
    pub(crate) weights: Vec<f32>,
}

#[derive(Deserialize)]
struct TreeParameters {
    num_parallel_tree: Option<String>,
}

/// A tree, as lists with one entry per node.
#[derive(Deserialize)]
struct Tree {
    /// -1 for leaves.
    left_children: Vec<i32>,
    right_children: Vec<i32>,
    split_indices: Vec<u32>,
    /// Thresholds of branches, and values of leaves.
    split_conditions: Vec<f32>,
    default_left: Vec<Flag>,
    /// 1 for categorical splits.
    #[serde(default)]
    split_type: Vec<u8>,
    /// The nodes with categorical splits, and for each the start and number of its categories in the list of
    /// all categories.
    #[serde(default)]
    categories_nodes: Vec<i32>,
    #[serde(default)]
    categories_segments: Vec<u64>,
    #[serde(default)]
    categories_sizes: Vec<u64>,
    #[serde(default)]
    categories: Vec<i32>,
    /// The leaf values for several targets, by leaf index (since version 3.1), or by node.
    #[serde(default)]
    leaf_weights: Vec<f32>,
    #[serde(default)]
    base_weights: Vec<f32>,
    tree_param: Option<NodeParameters>,
}

#[derive(Deserialize)]
struct NodeParameters {
    size_leaf_vector: Option<String>,
}

/// A boolean, which files contain as a boolean or as a number.
#[derive(Clone, Copy)]
struct Flag(bool);

impl<'de> Deserialize<'de> for Flag {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Flag;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a boolean, 0 or 1")
            }

            fn visit_bool<E>(self, value: bool) -> Result<Flag, E> {
                Ok(Flag(value))
            }

            fn visit_i64<E>(self, value: i64) -> Result<Flag, E> {
                Ok(Flag(value != 0))
            }

            fn visit_u64<E>(self, value: u64) -> Result<Flag, E> {
                Ok(Flag(value != 0))
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

/// Checks and lays out the trees. `drops` are the tree weights of `dart`. Trees after iteration `last` are
/// dropped.
pub(crate) fn read(
    model: TreeModel,
    drops: Option<&[f32]>,
    features: usize,
    scores: usize,
    last: Option<usize>,
) -> Result<Trees, Refusal> {
    let count = model.trees.len();
    if model.tree_info.len() != count {
        return Err(Refusal::new(format!(
            "tree_info has {} entries for {count} trees",
            model.tree_info.len()
        )));
    }
    if let Some(drops) = drops.filter(|drops| drops.len() != count) {
        return Err(Refusal::new(format!(
            "weight_drop has {} entries for {count} trees",
            drops.len()
        )));
    }
    let end = match last {
        None => count,
        Some(last) => end_of_iteration(&model, scores, last)?.min(count),
    };
    let mut builder = TreesBuilder::new(scores, Aggregate::Sum);
    for (index, tree) in model.trees.into_iter().enumerate().take(end) {
        let reader = Reader {
            tree: &tree,
            features,
            scores,
            score: model.tree_info[index],
            drop: drops.map_or(1.0, |drops| drops[index]),
        };
        reader
            .read(&mut builder)
            .map_err(|error| error.within(format_args!("tree {index}")))?;
    }
    Ok(builder.finish())
}

/// Returns the number of trees up to and including iteration `last`.
pub(crate) fn end_of_iteration(model: &TreeModel, scores: usize, last: usize) -> Result<usize, Refusal> {
    if !model.iteration_indptr.is_empty() {
        let end = model.iteration_indptr.get(last + 1).map(|&end| end as usize);
        return end.ok_or_else(|| {
            Refusal::new(format!(
                "best_iteration is {last}, there are {} iterations",
                model.iteration_indptr.len() - 1
            ))
        });
    }
    let parallel = model.gbtree_model_param.as_ref();
    let parallel = parallel.and_then(|parameters| parameters.num_parallel_tree.as_deref());
    let parallel: usize = parallel.unwrap_or("1").parse().unwrap_or(1);
    Ok(scores.saturating_mul(parallel.max(1)).saturating_mul(last + 1))
}

impl TreeModel {
    /// Returns the number of trees.
    pub(crate) fn count(&self) -> usize {
        self.trees.len()
    }
}

struct Reader<'a> {
    tree: &'a Tree,
    features: usize,
    scores: usize,
    score: u32,
    drop: f32,
}

impl Reader<'_> {
    fn read(&self, builder: &mut TreesBuilder) -> Result<(), Refusal> {
        let tree = self.tree;
        let count = tree.left_children.len();
        let lists = [
            ("right_children", tree.right_children.len()),
            ("split_indices", tree.split_indices.len()),
            ("split_conditions", tree.split_conditions.len()),
            ("default_left", tree.default_left.len()),
            (
                "split_type",
                if tree.split_type.is_empty() {
                    count
                } else {
                    tree.split_type.len()
                },
            ),
        ];
        if let Some((name, found)) = lists.iter().find(|(_, found)| *found != count) {
            return Err(Refusal::new(format!(
                "{name} has {found} entries for {count} nodes"
            )));
        }
        let sets = self.sets()?;
        let mut sets = sets.into_iter().peekable();
        let values = self.leaf_size()?;
        self.check_leaves(values)?;
        let mut nodes = Vec::with_capacity(count);
        for node in 0..count {
            let categories = sets
                .next_if(|(own, _)| *own == node)
                .map(|(_, categories)| categories);
            if tree.left_children[node] == -1 {
                nodes.push(TreeNode::Leaf(self.leaf(builder, node, values)?));
                continue;
            }
            nodes.push(self.branch(builder, node, categories)?);
        }
        builder.tree(&nodes, 0)?;
        Ok(())
    }

    fn branch(
        &self,
        builder: &mut TreesBuilder,
        node: usize,
        categories: Option<&[i32]>,
    ) -> Result<TreeNode, Refusal> {
        let tree = self.tree;
        let (feature, features) = (tree.split_indices[node], self.features);
        if feature as usize >= features {
            return Err(Refusal::new(format!(
                "node {node} uses feature {feature}, but there are {features}"
            )));
        }
        let child = |children: &[i32]| {
            u32::try_from(children[node])
                .map_err(|_| Refusal::new(format!("node {node} has the child {}", children[node])))
        };
        let (left, right) = (child(&tree.left_children)?, child(&tree.right_children)?);
        let default_left = tree.default_left[node].0;
        if tree.split_type.get(node) == Some(&1) {
            let categories = categories.ok_or_else(|| {
                Refusal::new(format!("node {node} splits by category but has no categories"))
            })?;
            // A negative category becomes a number larger than any feature value.
            let numbers: Vec<u32> = categories.iter().map(|&category| category as u32).collect();
            return Ok(TreeNode::Branch {
                feature,
                test: Test::In(builder.set_of(&numbers)?),
                missing_is_yes: !default_left,
                yes: right,
                no: left,
            });
        }
        let threshold = tree.split_conditions[node];
        if threshold.is_nan() {
            return Err(Refusal::new(format!("node {node} compares with NaN")));
        }
        Ok(TreeNode::Branch {
            feature,
            test: Test::Below(threshold.into()),
            missing_is_yes: default_left,
            yes: left,
            no: right,
        })
    }

    /// Returns the number of values per leaf.
    fn leaf_size(&self) -> Result<usize, Refusal> {
        let size = self.tree.tree_param.as_ref();
        let size = size.and_then(|parameters| parameters.size_leaf_vector.as_deref());
        // Older versions write 0 for one value.
        let size = size.map_or(Some(1), |size| size.parse().ok());
        match size {
            Some(0 | 1) => Ok(1),
            Some(size) if size == self.scores => Ok(size),
            _ => Err(Refusal::new(format!(
                "the number of values in its leaves differs from the model's number of scores ({})",
                self.scores
            ))),
        }
    }

    /// Checks that leaves do not share values: shared values would take more memory here than in the file.
    fn check_leaves(&self, size: usize) -> Result<(), Refusal> {
        let tree = self.tree;
        let leaves = tree.left_children.iter().filter(|&&left| left == -1).count();
        let values = match tree.leaf_weights.is_empty() {
            true => tree.base_weights.len(),
            false => tree.leaf_weights.len(),
        };
        match size == 1 || leaves.saturating_mul(size) <= values {
            true => Ok(()),
            false => Err(Refusal::new(format!(
                "{leaves} leaves of {size} values exceed the file's {values} values"
            ))),
        }
    }

    fn leaf(&self, builder: &mut TreesBuilder, node: usize, size: usize) -> Result<Leaf, Refusal> {
        let tree = self.tree;
        if size == 1 {
            let value = tree.split_conditions[node] * self.drop;
            return Ok(builder.leaf(&[(self.score, value.into())])?);
        }
        // For a leaf, `right_children` contains the index of the leaf's values.
        let (values, place) = match tree.leaf_weights.is_empty() {
            true => (&tree.base_weights, Some(node)),
            false => (
                &tree.leaf_weights,
                usize::try_from(tree.right_children[node]).ok(),
            ),
        };
        let start = place.and_then(|place| place.checked_mul(size));
        let own = start.and_then(|start| values.get(start..)?.get(..size));
        let own = own.ok_or_else(|| Refusal::new(format!("leaf {node} lacks its {size} values")))?;
        let weights = (0u32..).zip(own.iter().map(|value| f64::from(value * self.drop)));
        Ok(builder.leaf(&weights.collect::<Vec<_>>())?)
    }

    /// Returns the nodes with categorical splits, in order, with their categories.
    fn sets(&self) -> Result<Vec<(usize, &[i32])>, Refusal> {
        let tree = self.tree;
        let count = tree.categories_nodes.len();
        if [tree.categories_segments.len(), tree.categories_sizes.len()] != [count, count] {
            return Err(Refusal::new(
                "the lists of its categories have different lengths".to_owned(),
            ));
        }
        // Lists that share categories would take more memory here than in the file.
        let sizes = tree
            .categories_sizes
            .iter()
            .try_fold(0u64, |sum, size| sum.checked_add(*size));
        if sizes.is_none_or(|sizes| sizes > tree.categories.len() as u64) {
            return Err(Refusal::new(
                "its nodes use more categories than the list has".to_owned(),
            ));
        }
        let mut sets = Vec::with_capacity(count);
        for (index, &node) in tree.categories_nodes.iter().enumerate() {
            let start = usize::try_from(tree.categories_segments[index]).ok();
            let size = usize::try_from(tree.categories_sizes[index]).ok();
            let own = start.zip(size);
            let own = own.and_then(|(start, size)| tree.categories.get(start..)?.get(..size));
            let node = usize::try_from(node).ok();
            let (Some(node), Some(own)) = (node, own) else {
                return Err(Refusal::new("its categories are out of range".to_owned()));
            };
            sets.push((node, own));
        }
        sets.sort_unstable_by_key(|(node, _)| *node);
        Ok(sets)
    }
}
