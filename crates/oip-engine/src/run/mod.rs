//! Running versions of models: their threads, statistics, and response cache.

pub(crate) mod cache;
pub(crate) mod call_order;
pub(crate) mod charging;
pub(crate) mod client;
pub(crate) mod delivery;
pub(crate) mod hang_watch;
pub(crate) mod in_place;
pub(crate) mod instances;
#[cfg(test)]
mod instances_tests;
pub(crate) mod job;
pub(crate) mod others;
pub(crate) mod runner;
pub(crate) mod served_version;
pub(crate) mod several;
pub(crate) mod statistics;
pub(crate) mod threads;
