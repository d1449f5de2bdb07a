//! The operators' table at work: a kernel for each row, the conditions under which it runs, and what computes a node.

mod conditions;
pub(crate) mod constants;
mod guard;
mod kernels;
pub(crate) mod node;
mod numbers;
#[cfg(test)]
mod paced;
pub(crate) mod registry;
pub(crate) mod rule;
#[cfg(test)]
mod wrong_types;
