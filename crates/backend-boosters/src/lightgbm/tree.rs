//! Reads a tree, which consists of lines with lists: some have one entry per branch, others one entry per
//! leaf.

use std::str::FromStr;

use tree_eval::{Leaf, Set, Test, TreeNode, TreesBuilder};

use crate::error::Refusal;

/// The lines of a tree that affect predictions.
#[derive(Default)]
pub(crate) struct Lines<'a> {
    num_leaves: &'a str,
    split_feature: &'a str,
    threshold: &'a str,
    decision_type: &'a str,
    left_child: &'a str,
    right_child: &'a str,
    leaf_value: &'a str,
    cat_boundaries: &'a str,
    cat_threshold: &'a str,
    is_linear: &'a str,
    leaf_const: &'a str,
    num_features: &'a str,
    leaf_features: &'a str,
    leaf_coeff: &'a str,
}

/// The bits of a branch's `decision_type`.
const IS_CATEGORICAL: u8 = 1;
const DEFAULT_LEFT: u8 = 2;

impl<'a> Lines<'a> {
    pub(crate) fn set(&mut self, key: &str, value: &'a str) {
        *match key {
            "num_leaves" => &mut self.num_leaves,
            "split_feature" => &mut self.split_feature,
            "threshold" => &mut self.threshold,
            "decision_type" => &mut self.decision_type,
            "left_child" => &mut self.left_child,
            "right_child" => &mut self.right_child,
            "leaf_value" => &mut self.leaf_value,
            "cat_boundaries" => &mut self.cat_boundaries,
            "cat_threshold" => &mut self.cat_threshold,
            "is_linear" => &mut self.is_linear,
            "leaf_const" => &mut self.leaf_const,
            "num_features" => &mut self.num_features,
            "leaf_features" => &mut self.leaf_features,
            "leaf_coeff" => &mut self.leaf_coeff,
            _ => return,
        } = value;
    }

    /// Checks the tree and adds it to `builder`.
    pub(crate) fn read(
        &self,
        builder: &mut TreesBuilder,
        score: u32,
        features: usize,
    ) -> Result<(), Refusal> {
        let leaves: usize = single("num_leaves", self.num_leaves)?;
        let branches = leaves
            .checked_sub(1)
            .ok_or_else(|| Refusal::new("num_leaves is 0".to_owned()))?;
        let values: Vec<f64> = list("leaf_value", self.leaf_value, leaves)?;
        let values = self.leaves(builder, score, features, &values)?;

        let splits: Vec<u32> = list("split_feature", self.split_feature, branches)?;
        let thresholds: Vec<f64> = list("threshold", self.threshold, branches)?;
        let decisions: Vec<u8> = list("decision_type", self.decision_type, branches)?;
        let left: Vec<i32> = list("left_child", self.left_child, branches)?;
        let right: Vec<i32> = list("right_child", self.right_child, branches)?;
        let sets = self.sets(builder)?;
        // `nodes` has the branches first, then the leaves. In the file, a child that is a leaf is the bitwise
        // complement of the leaf's index.
        let child = |child: i32| match u32::try_from(child) {
            Ok(branch) => branch,
            Err(_) => (branches as u32).saturating_add(!child as u32),
        };
        let mut nodes = Vec::with_capacity(branches + leaves);
        for node in 0..branches {
            let feature = splits[node];
            if feature as usize >= features {
                return Err(Refusal::new(format!(
                    "branch {node} uses feature {feature}, but there are {features}"
                )));
            }
            let threshold = thresholds[node];
            if threshold.is_nan() {
                return Err(Refusal::new(format!("branch {node} compares with NaN")));
            }
            if left[node].max(right[node]) >= branches as i32 {
                return Err(Refusal::new(format!(
                    "branch {node} has a child beyond {branches} branches"
                )));
            }
            let (test, missing_is_yes) = question(decisions[node], threshold, &sets)
                .map_err(|error| error.within(format_args!("branch {node}")))?;
            nodes.push(TreeNode::Branch {
                feature,
                test,
                missing_is_yes,
                yes: child(left[node]),
                no: child(right[node]),
            });
        }
        nodes.extend(values.into_iter().map(TreeNode::Leaf));
        builder.tree(&nodes, 0)?;
        Ok(())
    }

    fn sets(&self, builder: &mut TreesBuilder) -> Result<Vec<Set>, Refusal> {
        if self.cat_boundaries.trim().is_empty() {
            return Ok(Vec::new());
        }
        let words: Vec<u32> = any_list("cat_threshold", self.cat_threshold)?;
        let ends: Vec<usize> = any_list("cat_boundaries", self.cat_boundaries)?;
        let sets = ends.windows(2).map(|ends| {
            let own = words.get(ends[0]..ends[1]).ok_or_else(|| {
                Refusal::new(format!(
                    "cat_boundaries has {} and {}, cat_threshold {} entries",
                    ends[0],
                    ends[1],
                    words.len()
                ))
            })?;
            Ok(builder.set(own)?)
        });
        sets.collect()
    }

    fn leaves(
        &self,
        builder: &mut TreesBuilder,
        score: u32,
        features: usize,
        values: &[f64],
    ) -> Result<Vec<Leaf>, Refusal> {
        let is_linear = !matches!(self.is_linear.trim(), "" | "0");
        if !is_linear {
            let leaves = values.iter().map(|&value| Ok(builder.leaf(&[(score, value)])?));
            return leaves.collect();
        }
        let bases: Vec<f64> = list("leaf_const", self.leaf_const, values.len())?;
        let counts: Vec<usize> = list("num_features", self.num_features, values.len())?;
        let mut own_features = any_list::<u32>("leaf_features", self.leaf_features)?.into_iter();
        let mut factors = any_list::<f64>("leaf_coeff", self.leaf_coeff)?.into_iter();
        let mut leaves = Vec::with_capacity(values.len());
        for (leaf, &count) in counts.iter().enumerate() {
            let own: Vec<(u32, f64)> = own_features.by_ref().zip(factors.by_ref()).take(count).collect();
            if own.len() != count || own.iter().any(|(feature, _)| *feature as usize >= features) {
                return Err(Refusal::new(format!(
                    "leaf {leaf} lacks one of its {count} features or coefficients"
                )));
            }
            leaves.push(builder.linear_leaf(score, bases[leaf], &own, values[leaf])?);
        }
        Ok(leaves)
    }
}

/// Returns the test of a branch, and whether a missing feature goes left. If the test is true, the walk goes
/// left.
fn question(decision: u8, threshold: f64, sets: &[Set]) -> Result<(Test, bool), Refusal> {
    if decision & IS_CATEGORICAL != 0 {
        // The threshold is the index of a set.
        let set = (threshold >= 0.0 && threshold.fract() == 0.0).then_some(threshold as usize);
        let set = set
            .and_then(|set| sets.get(set))
            .ok_or_else(|| Refusal::new(format!("it uses category set {threshold} of {}", sets.len())))?;
        return Ok((Test::InTruncated(*set), false));
    }
    let default_left = decision & DEFAULT_LEFT != 0;
    match decision >> 2 & 3 {
        // Missing features count as zero.
        0 => Ok((Test::AtMost(threshold), 0.0 <= threshold)),
        // Zeros count as missing.
        1 => Ok((Test::AtMostZeroMissing(threshold), default_left)),
        2 => Ok((Test::AtMost(threshold), default_left)),
        other => Err(Refusal::new(format!("unknown type of missing values: {other}"))),
    }
}

fn single<T: FromStr>(key: &str, value: &str) -> Result<T, Refusal> {
    let value = value.trim();
    value.parse().map_err(|_| {
        Refusal::new(format!(
            "{key} is {}, expected a number",
            tensor_core::QuotedName(value)
        ))
    })
}

fn any_list<T: FromStr>(key: &str, value: &str) -> Result<Vec<T>, Refusal> {
    value
        .split_ascii_whitespace()
        .map(|value| single(key, value))
        .collect()
}

fn list<T: FromStr>(key: &str, value: &str, count: usize) -> Result<Vec<T>, Refusal> {
    let list = any_list(key, value)?;
    match list.len() == count {
        true => Ok(list),
        false => Err(Refusal::new(format!(
            "{key} has {} entries, expected {count}",
            list.len()
        ))),
    }
}
