//! The operators `TreeEnsemble`, `TreeEnsembleClassifier` and `TreeEnsembleRegressor`.

mod classifier;
mod newer;
mod read;
mod regressor;

pub use classifier::classifier;
pub use newer::ensemble;
pub use regressor::regressor;
