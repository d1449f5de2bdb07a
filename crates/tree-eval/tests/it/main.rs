//! Compares forests of any shape with a simple reference implementation.

use proptest::prelude::*;
use tree_eval::{Aggregate, Forest, Rows, Test, TreeError, TreeNode, Trees, TreesBuilder};

/// A tree for the reference implementation, with branches as boxes instead of node indices.
#[derive(Clone, Debug)]
enum Tree {
    Branch {
        feature: u32,
        test: Question,
        missing_is_yes: bool,
        ways: Box<[Tree; 2]>,
    },
    Leaf(f64),
}

#[derive(Clone, Debug)]
enum Question {
    Compare(u8, f64),
    In(Vec<u32>, bool),
}

impl Question {
    fn is_yes(&self, value: f64, missing_is_yes: bool) -> bool {
        let answer = match self {
            Self::Compare(0, threshold) => value <= *threshold,
            Self::Compare(1, threshold) => value < *threshold,
            Self::Compare(2, threshold) => value >= *threshold,
            Self::Compare(3, threshold) => value > *threshold,
            Self::Compare(4, threshold) => value == *threshold,
            Self::Compare(5, threshold) => value != *threshold,
            Self::Compare(_, threshold) => match value.abs() <= f64::from(1e-35f32) {
                true => return missing_is_yes,
                false => value <= *threshold,
            },
            Self::In(numbers, truncates) => {
                let first = if *truncates { -1.0 } else { -f64::MIN_POSITIVE };
                value > first
                    && numbers
                        .iter()
                        .any(|&number| f64::from(number) == value.trunc().abs())
            }
        };
        answer || (value.is_nan() && missing_is_yes)
    }
}

impl Tree {
    fn value(&self, row: &[f64]) -> f64 {
        match self {
            Self::Leaf(value) => *value,
            Self::Branch {
                feature,
                test,
                missing_is_yes,
                ways,
            } => {
                let is_yes = test.is_yes(row[*feature as usize], *missing_is_yes);
                ways[usize::from(!is_yes)].value(row)
            }
        }
    }

    /// Adds the nodes of the tree to `nodes`, and returns the index of its root.
    fn describe(&self, builder: &mut TreesBuilder, score: u32, nodes: &mut Vec<TreeNode>) -> u32 {
        let node = match self {
            Self::Leaf(value) => TreeNode::Leaf(builder.leaf(&[(score, *value)]).expect("a leaf")),
            Self::Branch {
                feature,
                test,
                missing_is_yes,
                ways,
            } => TreeNode::Branch {
                feature: *feature,
                test: match test {
                    Question::Compare(kind, threshold) => {
                        let kinds = [
                            Test::AtMost,
                            Test::Below,
                            Test::AtLeast,
                            Test::Above,
                            Test::Equal,
                            Test::NotEqual,
                            Test::AtMostZeroMissing,
                        ];
                        kinds[usize::from(*kind).min(6)](*threshold)
                    }
                    Question::In(numbers, truncates) => {
                        let set = builder.set_of(numbers).expect("a set");
                        if *truncates {
                            Test::InTruncated(set)
                        } else {
                            Test::In(set)
                        }
                    }
                },
                missing_is_yes: *missing_is_yes,
                yes: ways[0].describe(builder, score, nodes),
                no: ways[1].describe(builder, score, nodes),
            },
        };
        nodes.push(node);
        nodes.len() as u32 - 1
    }
}

const FEATURES: u32 = 4;

/// Generates numbers that are often equal.
fn number() -> impl Strategy<Value = f64> {
    prop_oneof![
        4 => prop::sample::select(vec![-3.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 7.0, 40.0, 1e-36, -1e-36]),
        1 => (-3.0f32..3.0).prop_map(f64::from),
        1 => prop::sample::select(vec![f64::INFINITY, f64::NEG_INFINITY, 1e300, 0.1]),
    ]
}

fn any_tree(kinds: std::ops::Range<u8>, with_sets: bool) -> impl Strategy<Value = Tree> {
    let leaf = (-8i32..8).prop_map(|value| Tree::Leaf(value.into()));
    leaf.prop_recursive(5, 24, 2, move |inner| {
        let compare =
            (kinds.clone(), number()).prop_map(|(kind, threshold)| Question::Compare(kind, threshold));
        let set = (prop::collection::vec(0u32..45, 0..5), any::<bool>())
            .prop_map(|(numbers, truncates)| Question::In(numbers, truncates));
        let test = if with_sets {
            prop_oneof![compare, set].boxed()
        } else {
            compare.boxed()
        };
        (0..FEATURES, test, any::<bool>(), inner.clone(), inner).prop_map(
            |(feature, test, missing_is_yes, yes, no)| Tree::Branch {
                feature,
                test,
                missing_is_yes,
                ways: Box::new([yes, no]),
            },
        )
    })
}

fn any_rows() -> impl Strategy<Value = Vec<f64>> {
    let value = prop_oneof![9 => number(), 1 => Just(f64::NAN)];
    prop::collection::vec(prop::collection::vec(value, FEATURES as usize), 0..150)
        .prop_map(|rows| rows.concat())
}

fn trees_of(forest: &[Tree], scores: u32) -> Trees {
    let mut builder = TreesBuilder::new(scores as usize, Aggregate::Sum);
    for (index, tree) in forest.iter().enumerate() {
        let mut nodes = Vec::new();
        let root = tree.describe(&mut builder, index as u32 % scores, &mut nodes);
        assert_eq!(builder.tree(&nodes, root), Ok(nodes.len()));
    }
    builder.finish()
}

fn check(forest: &[Tree], rows: &[f64], scores: u32) {
    let trees = trees_of(forest, scores);
    let count = rows.len() / FEATURES as usize;
    let expected = |row: &[f64]| -> Vec<f64> {
        let of_score = |score: u32| {
            let own = forest
                .iter()
                .zip(0u32..)
                .filter(|(_, index)| index % scores == score);
            own.map(|(tree, _)| tree.value(row)).sum()
        };
        (0..scores).map(of_score).collect()
    };

    let double: Forest<f64> = trees.forest();
    let mut found = Vec::new();
    let given = Rows::new(rows, count, FEATURES as usize).expect("a matrix");
    double
        .score(given, &[], |row, _| found.push(row.to_vec()))
        .expect("enough features");
    let wanted: Vec<_> = rows.chunks_exact(FEATURES as usize).map(expected).collect();
    assert_eq!(found, wanted);

    // A forest for FP32 rows has the same results, although FP32 cannot represent all thresholds.
    let narrow: Vec<f32> = rows.iter().map(|&value| value as f32).collect();
    let wide: Vec<f64> = narrow.iter().map(|&value| value.into()).collect();
    let single: Forest<f32, f64> = trees.forest();
    let mut found = Vec::new();
    let given = Rows::new(&narrow, count, FEATURES as usize).expect("a matrix");
    single
        .score(given, &[], |row, _| found.push(row.to_vec()))
        .expect("enough features");
    let wanted: Vec<_> = wide.chunks_exact(FEATURES as usize).map(expected).collect();
    assert_eq!(found, wanted);
}

/// Returns whether FP32 can represent the thresholds of all equality tests. Otherwise, an FP32 feature could
/// equal the rounded threshold, although it cannot equal the threshold itself.
fn has_exact_equals(tree: &Tree) -> bool {
    match tree {
        Tree::Leaf(_) => true,
        Tree::Branch { test, ways, .. } => {
            let exact = match test {
                Question::Compare(4 | 5, threshold) => f64::from(*threshold as f32) == *threshold,
                _ => true,
            };
            exact && ways.iter().all(has_exact_equals)
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn comparisons_are_walked_as_they_are_described(
        forest in prop::collection::vec(any_tree(0..4, false), 1..20),
        rows in any_rows(),
        scores in 1u32..4,
    ) {
        check(&forest, &rows, scores);
    }

    #[test]
    fn questions_of_all_kinds_are_walked_as_they_are_described(
        forest in prop::collection::vec(any_tree(0..7, true), 1..20),
        rows in any_rows(),
        scores in 1u32..4,
    ) {
        prop_assume!(forest.iter().all(has_exact_equals));
        check(&forest, &rows, scores);
    }

    /// Checks that a tree with random children is either refused, or that every walk through it ends.
    #[test]
    fn what_is_described_at_random_is_refused_or_ends(
        children in prop::collection::vec((0u32..12, 0u32..12, any::<bool>()), 1..12),
        root in 0u32..12,
    ) {
        let mut builder = TreesBuilder::new(1, Aggregate::Sum);
        let leaf = builder.leaf(&[(0, 1.0)]).expect("a leaf");
        let nodes: Vec<TreeNode> = children
            .iter()
            .map(|&(yes, no, is_leaf)| match is_leaf {
                true => TreeNode::Leaf(leaf),
                false => TreeNode::Branch { feature: 0, test: Test::AtMost(0.0), missing_is_yes: false, yes, no },
            })
            .collect();
        match builder.tree(&nodes, root) {
            Err(TreeError::Cycle | TreeError::NoSuchNode { .. }) => {}
            Err(error) => return Err(TestCaseError::fail(error.to_string())),
            Ok(_) => {
                let forest: Forest<f32> = builder.finish().forest();
                let mut scores = 0.0;
                let rows = Rows::new(&[-1.0, 1.0, f32::NAN], 3, 1).expect("a matrix");
                forest.score(rows, &[], |row, _| scores += row[0]).expect("enough features");
                prop_assert_eq!(scores, 3.0);
            }
        }
    }
}

#[test]
fn a_node_may_have_several_parents() {
    let mut builder = TreesBuilder::new(1, Aggregate::Sum);
    let leaves = [1.0, 2.0].map(|value| TreeNode::Leaf(builder.leaf(&[(0, value)]).expect("a leaf")));
    let equal = |threshold: f64, yes: u32, no: u32| TreeNode::Branch {
        feature: 0,
        test: Test::Equal(threshold),
        missing_is_yes: false,
        yes,
        no,
    };
    // A chain of comparisons with one common child, which is how exporters write a test for several
    // categories.
    let nodes = [equal(3.0, 2, 1), equal(5.0, 2, 3), leaves[0], leaves[1]];
    assert_eq!(builder.tree(&nodes, 0), Ok(4));
    let forest: Forest<f32> = builder.finish().forest();
    let mut scores = Vec::new();
    let rows = Rows::new(&[3.0, 4.0, 5.0], 3, 1).expect("a matrix");
    forest
        .score(rows, &[], |row, _| scores.push(row[0]))
        .expect("enough features");
    assert_eq!(scores, [1.0, 2.0, 1.0]);
}

#[test]
fn rows_with_too_few_features_are_refused() {
    let tree = Tree::Branch {
        feature: 3,
        test: Question::Compare(0, 0.0),
        missing_is_yes: false,
        ways: Box::new([Tree::Leaf(0.0), Tree::Leaf(1.0)]),
    };
    let forest: Forest<f32> = trees_of(&[tree], 1).forest();
    let rows = Rows::new(&[0.0; 6], 2, 3).expect("a matrix");
    let error = forest
        .score(rows, &[], |_, _| ())
        .expect_err("a feature is missing");
    assert_eq!(error.to_string(), "4 features are needed, found 3");
}
