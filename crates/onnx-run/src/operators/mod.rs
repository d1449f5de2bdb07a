//! Which operators there are, for which types and attributes, and what computes a node.

mod conditions;
pub(crate) mod constants;
mod guard;
pub(crate) mod node;
mod numbers;
#[cfg(test)]
mod paced;
pub(crate) mod registry;
pub(crate) mod rule;
pub(crate) mod sizes;
pub(crate) mod table;
mod types;
