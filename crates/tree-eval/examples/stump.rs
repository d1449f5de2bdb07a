//! Builds one tree with two leaves, and scores rows with it.
//!
//! ```sh
//! cargo run --package tree-eval --example stump
//! ```
#![allow(clippy::print_stdout, reason = "an example talks to its reader")]

use tree_eval::{Aggregate, Forest, Rows, Test, TreeNode, TreesBuilder};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut trees = TreesBuilder::new(1, Aggregate::Sum);
    let (small, large) = (trees.leaf(&[(0, -1.0)])?, trees.leaf(&[(0, 1.0)])?);
    let root = TreeNode::Branch {
        feature: 0,
        test: Test::Below(0.5),
        missing_is_yes: true,
        yes: 1,
        no: 2,
    };
    trees.tree(&[root, TreeNode::Leaf(small), TreeNode::Leaf(large)], 0)?;
    let forest: Forest<f32> = trees.finish().forest();
    let values = [0.4, 0.5, f32::NAN];
    let rows = Rows::new(&values, 3, 1).ok_or("three rows of one feature")?;
    forest.score(rows, &[], |row, _| println!("{row:?}"))?;
    Ok(())
}
