//! Models as servers load them: files of the packages, configurations, hostile files.

mod configurations;
mod hostile;
mod packages;
mod support;
