//! Decision trees in flat arrays, for evaluating gradient boosting and random forests.
//!
//! [`TreesBuilder`] takes trees from an untrusted description, and checks that they are trees.
//! [`Trees::forest`] converts them into a [`Forest`] for rows of `f32` or `f64`. A forest scores rows with
//! eight concurrent walks and without conditional jumps, so that a tree costs a few nanoseconds per row.
//! Thresholds are rounded to the rows' type such that every comparison has the same result as with the
//! original threshold.
//!
//! ```
//! use tree_eval::{Aggregate, Forest, Rows, Test, TreeNode, TreesBuilder};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut trees = TreesBuilder::new(1, Aggregate::Sum);
//! let (small, large) = (trees.leaf(&[(0, -1.0)])?, trees.leaf(&[(0, 1.0)])?);
//! trees.tree(
//!     &[
//!         TreeNode::Branch { feature: 0, test: Test::Below(0.5), missing_is_yes: true, yes: 1, no: 2 },
//!         TreeNode::Leaf(small),
//!         TreeNode::Leaf(large),
//!     ],
//!     0,
//! )?;
//! let forest: Forest<f32> = trees.finish().forest();
//!
//! let mut scores = Vec::new();
//! let rows = Rows::new(&[0.4, 0.5, f32::NAN], 3, 1).ok_or("three rows of one feature")?;
//! forest.score(rows, &[], |row, _| scores.push(row[0]))?;
//! assert_eq!(scores, [-1.0, 1.0, -1.0]);
//! # Ok(())
//! # }
//! ```

mod eval;
mod number;
mod trees;

pub use eval::{Aggregate, Forest, Rows, TooFewFeatures};
pub use number::Number;
pub use trees::{Leaf, Set, Test, TreeError, TreeNode, Trees, TreesBuilder};
