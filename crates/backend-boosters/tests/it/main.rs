//! Tests of models as servers load them: the packages' files, configurations, malicious files.

mod configurations;
mod hostile;
mod packages;
mod support;
