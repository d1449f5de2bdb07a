//! Options for Python models.

use std::path::PathBuf;

use clap::Args;
use serde::Deserialize;

#[derive(Clone, Debug, Default, Args, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub(crate) struct PythonOptions {
    /// Whether models may be Python programs (model.py), which run with this server's rights, in processes of
    /// their own. Use it only if you trust everybody who can write to the repository [default: false]
    #[arg(long, env = "OIP_ALLOW_PYTHON", hide_env = true, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub(crate) allow_python: Option<bool>,

    /// Whether models may be pickled estimators of scikit-learn (model.joblib, model.pkl), which can run any
    /// code when they are read [default: false]
    #[arg(long, env = "OIP_ALLOW_PICKLE", hide_env = true, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub(crate) allow_pickle: Option<bool>,

    /// The interpreter that runs them: a program, or the directory of a venv or conda environment. It needs
    /// numpy. A model's configuration can name another with the parameter `python` [default: python3]
    #[arg(long, env = "OIP_PYTHON", hide_env = true, value_name = "PATH")]
    pub(crate) python: Option<PathBuf>,
}

impl PythonOptions {
    /// Merges these options with `other`. Options set in `self` take precedence.
    pub(crate) fn or(self, other: Self) -> Self {
        Self {
            allow_python: self.allow_python.or(other.allow_python),
            allow_pickle: self.allow_pickle.or(other.allow_pickle),
            python: self.python.or(other.python),
        }
    }
}
