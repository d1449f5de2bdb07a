//! `TreeEnsembleClassifier` and `TreeEnsembleRegressor`.

mod classifier;
mod read;
mod regressor;

pub(crate) use classifier::classifier;
pub(crate) use regressor::regressor;
