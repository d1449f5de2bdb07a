//! `TreeEnsembleClassifier` and `TreeEnsembleRegressor`.

mod classifier;
mod forest;
mod read;
mod regressor;

pub(crate) use classifier::classifier;
pub(crate) use regressor::regressor;
