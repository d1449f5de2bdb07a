//! `TreeEnsemble`, `TreeEnsembleClassifier` and `TreeEnsembleRegressor`.

mod classifier;
mod newer;
mod read;
mod regressor;

pub(crate) use classifier::classifier;
pub(crate) use newer::ensemble;
pub(crate) use regressor::regressor;
