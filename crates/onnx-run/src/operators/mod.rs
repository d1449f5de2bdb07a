//! Connects the operators' table to the runtime: the kernel of each row, the conditions of each operator, and
//! the execution of a node.

#[cfg(test)]
mod cancellation;
#[cfg(test)]
mod cases;
mod conditions;
pub(crate) mod constants;
mod guard;
mod kernels;
pub(crate) mod node;
mod numbers;
#[cfg(test)]
mod refusals;
pub(crate) mod registry;
pub(crate) mod rule;
#[cfg(test)]
mod wrong_types;
