//! Reads `TreeEnsemble` of operator set 5, whose attributes list the branches, the leaves, and the root of
//! each tree.

use std::collections::HashMap;

use onnx_tensor::prelude::*;
use tree_eval::{Aggregate, Test, TreeNode, Trees, TreesBuilder};

use crate::{
    ensemble::{read::targets, regressor::Regressor},
    post::PostTransform,
};
use onnx_tensor::{
    elements,
    faults::{Limit, Refusal},
    node::Attributes,
    node::Node,
    operator::{Compute, kernel},
};

/// Creates the operator `TreeEnsemble`.
pub fn ensemble(node: &Node) -> Result<Box<dyn Compute>> {
    let attributes = Attributes(node);
    let aggregate = match attributes.int("aggregate_function", 1) {
        0 => Aggregate::Average,
        1 => Aggregate::Sum,
        2 => Aggregate::Min,
        3 => Aggregate::Max,
        other => bail!(Refusal(format!("has an unknown aggregate_function {other}"))),
    };
    let targets = targets(attributes)?;
    let post = match attributes.int("post_transform", 0) {
        0 => PostTransform::None,
        // Refused, since the ONNX specification and ONNX Runtime disagree on which of the two numbers is
        // softmax and which is logistic.
        post @ (1 | 2) => bail!(Limit(format!(
            "has the post_transform {post}, about which implementations disagree"
        ))),
        3 => PostTransform::SoftmaxZero,
        4 => PostTransform::Probit,
        other => bail!(Refusal(format!("has an unknown post_transform {other}"))),
    };
    let trees = Lists::read(attributes, targets)?.trees(targets, aggregate)?;
    Ok(kernel(Regressor::of_type(trees, post)))
}

/// The comparison of a branch.
#[derive(Clone, Copy)]
enum Question {
    Plain(fn(f64) -> Test),
    /// A test for set membership. The value is the index of the set in `Lists::members`.
    Member(usize),
}

/// A child of a branch: an index in the list of branches or of leaves.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Child {
    Branch(usize),
    Leaf(usize),
}

/// Returns the elements of a tensor attribute; none if the node lacks it.
fn numbers(attributes: Attributes<'_>, name: &str) -> Result<Vec<f64>> {
    let tensor = attributes.get(name).and_then(|attribute| attribute.t.as_ref());
    let Some(tensor) = tensor else {
        return Ok(vec![]);
    };
    let doubles = tensor.cast_to::<f64>()?;
    Ok(elements::elements::<f64>(&doubles)?.to_vec())
}

/// Reads the questions of the branches.
fn questions(attributes: Attributes<'_>) -> Result<Vec<Question>> {
    let modes = numbers(attributes, "nodes_modes")?;
    let mut questions = Vec::with_capacity(modes.len());
    let mut sets = 0..;
    for mode in &modes {
        questions.push(match *mode as i64 {
            0 => Question::Plain(Test::AtMost),
            1 => Question::Plain(Test::Below),
            2 => Question::Plain(Test::AtLeast),
            3 => Question::Plain(Test::Above),
            4 => Question::Plain(Test::Equal),
            5 => Question::Plain(Test::NotEqual),
            6 => Question::Member(sets.next().unwrap_or_default()),
            other => bail!(Refusal(format!("has nodes of the unknown mode {other}"))),
        });
    }
    Ok(questions)
}

/// Reads the sets of the branches that test for membership, which the attribute separates by NaN.
fn members(attributes: Attributes<'_>, questions: &[Question]) -> Result<Vec<Vec<f64>>> {
    let sets = numbers(attributes, "membership_values")?;
    let mut sets: Vec<Vec<f64>> = sets
        .split(|number| number.is_nan())
        .map(<[f64]>::to_vec)
        .collect();
    if sets.last().is_some_and(Vec::is_empty) {
        sets.pop();
    }
    let is_member = |question: &&Question| matches!(question, Question::Member(_));
    let wanted = questions.iter().filter(is_member).count();
    if sets.len() != wanted || sets.iter().any(Vec::is_empty) {
        bail!(Refusal(format!(
            "has {} lists of numbers for {wanted} branches that ask for one",
            sets.len()
        )));
    }
    Ok(sets)
}

/// Reads a child of each of `nodes` branches from two attributes: its index, and whether it is one of the
/// `leaves` leaves.
fn children(
    attributes: Attributes<'_>,
    [ids, are_leaves]: [&str; 2],
    nodes: usize,
    leaves: usize,
) -> Result<Vec<Child>> {
    let (ids, are_leaves) = (attributes.ints(ids), attributes.ints(are_leaves));
    if ids.len() != nodes || are_leaves.len() != nodes {
        bail!(Refusal("has lists of nodes of different lengths".to_owned()));
    }
    let child = |(&id, &is_leaf): (&i64, &i64)| {
        let limit = if is_leaf == 0 { nodes } else { leaves };
        let index = usize::try_from(id).ok().filter(|&index| index < limit);
        let index = index.ok_or_else(|| Refusal(format!("refers to node {id}, which does not exist")))?;
        Ok(match is_leaf {
            0 => Child::Branch(index),
            _ => Child::Leaf(index),
        })
    };
    ids.iter().zip(are_leaves).map(child).collect()
}

/// The attributes of a node, as lists of equal lengths.
struct Lists<'a> {
    features: &'a [i64],
    questions: Vec<Question>,
    splits: Vec<f64>,
    yes: Vec<Child>,
    no: Vec<Child>,
    missing_is_yes: &'a [i64],
    members: Vec<Vec<f64>>,
    roots: &'a [i64],
    targets: &'a [i64],
    weights: Vec<f64>,
}

impl<'a> Lists<'a> {
    fn read(attributes: Attributes<'a>, targets: usize) -> Result<Self> {
        let weights = numbers(attributes, "leaf_weights")?;
        let questions = questions(attributes)?;
        let (nodes, leaves) = (questions.len(), weights.len());
        let lists = Self {
            features: attributes.ints("nodes_featureids"),
            splits: numbers(attributes, "nodes_splits")?,
            yes: children(
                attributes,
                ["nodes_truenodeids", "nodes_trueleafs"],
                nodes,
                leaves,
            )?,
            no: children(
                attributes,
                ["nodes_falsenodeids", "nodes_falseleafs"],
                nodes,
                leaves,
            )?,
            missing_is_yes: attributes.ints("nodes_missing_value_tracks_true"),
            members: members(attributes, &questions)?,
            roots: attributes.ints("tree_roots"),
            targets: attributes.ints("leaf_targetids"),
            weights,
            questions,
        };
        lists.check(targets)?;
        Ok(lists)
    }

    /// Checks the lengths of the lists, and that leaves belong to one of `targets` outputs.
    fn check(&self, targets: usize) -> Result<()> {
        let count = self.questions.len();
        let missing = self.missing_is_yes.len();
        let is_whole = self.features.len() == count
            && self.splits.len() == count
            && self.targets.len() == self.weights.len()
            && (missing == 0 || missing == count);
        if !is_whole {
            bail!(Refusal("has lists of nodes of different lengths".to_owned()));
        }
        let is_known = |&target: &i64| usize::try_from(target).is_ok_and(|target| target < targets);
        if let Some(target) = self.targets.iter().find(|target| !is_known(target)) {
            bail!(Refusal(format!("has a leaf for target {target} of {targets}")));
        }
        if count == 0 || self.roots.is_empty() {
            let trees = self.roots.len();
            bail!(Refusal(format!("has {count} nodes and {trees} trees")));
        }
        Ok(())
    }

    fn trees(&self, targets: usize, aggregate: Aggregate) -> Result<Trees> {
        let mut builder = TreesBuilder::new(targets, aggregate);
        // A node that several trees share is copied into each tree. The limit prevents an exponential
        // expansion.
        let listed: usize = self.members.iter().map(Vec::len).sum();
        let mut room = 2 * (self.questions.len() + self.weights.len() + listed) + self.roots.len();
        for &root in self.roots {
            let start = usize::try_from(root)
                .ok()
                .filter(|&root| root < self.questions.len());
            let start = start
                .ok_or_else(|| Refusal(format!("has a tree with the root {root}, which does not exist")))?;
            let nodes = self.nodes(Child::Branch(start), &mut builder, &mut room)?;
            let built = builder.tree(&nodes, 0);
            built.map_err(|error| Refusal(format!("has an invalid tree at node {root}: {error}")))?;
        }
        Ok(builder.finish())
    }

    /// Returns the nodes of the tree at `root`, in breadth-first order. `room` is the remaining number of
    /// nodes for all trees.
    fn nodes(&self, root: Child, builder: &mut TreesBuilder, room: &mut usize) -> Result<Vec<TreeNode>> {
        let mut numbers = HashMap::from([(root, 0u32)]);
        let mut order = vec![root];
        // The index for the next node. A membership test takes one node per number in its set, so the index
        // may advance by more than 1.
        let mut next = self.width(root);
        let mut nodes: Vec<TreeNode> = Vec::new();
        let mut at = 0;
        while let Some(&child) = order.get(at) {
            at += 1;
            *room = room
                .checked_sub(self.width(child) as usize)
                .ok_or_else(|| Refusal("has trees that share nodes".to_owned()))?;
            let Child::Branch(place) = child else {
                let Child::Leaf(leaf) = child else { continue };
                let weight = (self.targets[leaf] as u32, self.weights[leaf]);
                nodes.push(TreeNode::Leaf(builder.leaf(&[weight])?));
                continue;
            };
            let mut number = |child: Child| {
                *numbers.entry(child).or_insert_with(|| {
                    order.push(child);
                    next += self.width(child);
                    next - self.width(child)
                })
            };
            let (yes, no) = (number(self.yes[place]), number(self.no[place]));
            let feature = self.features[place];
            let feature = u32::try_from(feature)
                .map_err(|_| Refusal(format!("has a node for feature {feature}, expected 0 or more")))?;
            let mut ask = |test: Test, no: u32| {
                nodes.push(TreeNode::Branch {
                    feature,
                    test,
                    missing_is_yes: self.missing_is_yes.get(place).is_some_and(|&track| track != 0),
                    yes,
                    no,
                });
            };
            match self.questions[place] {
                Question::Plain(test) => ask(test(self.splits[place]), no),
                Question::Member(set) => {
                    let set = &self.members[set];
                    let first = numbers[&child];
                    for (index, &number) in set.iter().enumerate() {
                        let is_last = index + 1 == set.len();
                        ask(
                            Test::Equal(number),
                            if is_last { no } else { first + index as u32 + 1 },
                        );
                    }
                }
            }
        }
        Ok(nodes)
    }

    fn width(&self, child: Child) -> u32 {
        match child {
            Child::Leaf(_) => 1,
            Child::Branch(place) => match self.questions[place] {
                Question::Plain(_) => 1,
                Question::Member(set) => self.members[set].len() as u32,
            },
        }
    }
}
