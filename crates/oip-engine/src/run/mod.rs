//! Runs models on threads, from the queue to the response.

pub(crate) mod charging;
pub(crate) mod client;
pub(crate) mod delivery;
pub(crate) mod hang_watch;
pub(crate) mod in_place;
pub(crate) mod instances;
#[cfg(test)]
mod instances_tests;
pub(crate) mod job;
pub(crate) mod model_calls;
pub(crate) mod runner;
pub(crate) mod several;
pub(crate) mod threads;
