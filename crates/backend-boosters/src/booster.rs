//! A model of either package, ready to score rows.

use tree_eval::{Forest, Rows, TooFewFeatures};

use crate::{lightgbm, meaning::Meaning, xgboost};

/// Maximum number of scores per row, which limits the memory of a response.
pub(crate) const MAX_SCORES: usize = 1 << 16;

/// A model that was read and validated.
#[derive(Debug)]
pub(crate) struct Booster {
    /// `xgboost` or `lightgbm`.
    pub(crate) package: &'static str,
    /// The objective, as the file names it.
    pub(crate) objective: String,
    /// Number of features per row.
    pub(crate) features: usize,
    /// Number of scores per row.
    pub(crate) scores: usize,
    pub(crate) meaning: Meaning,
    pub(crate) scorer: Scorer,
    /// Set if training was stopped early and all trees are used.
    pub(crate) early_stopping: Option<EarlyStopping>,
}

/// The number of trees in all, and up to the best iteration that early stopping found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EarlyStopping {
    /// The index of the best iteration.
    pub(crate) best_iteration: usize,
    /// Number of trees up to and including the best iteration.
    pub(crate) best: usize,
    /// Total number of trees.
    pub(crate) all: usize,
}

impl EarlyStopping {
    /// Formats the warning for the operator that all trees are used.
    pub(crate) fn warning(&self) -> String {
        format!(
            "all {} trees are used, as Booster.predict does; scikit-learn's wrapper uses only the {} up to \
             the best iteration: set the parameter best_iteration to true or false to choose",
            self.all, self.best
        )
    }
}

/// The trees or the linear model that computes the scores.
#[derive(Debug)]
pub(crate) enum Scorer {
    /// XGBoost's trees.
    Xgboost {
        forest: Box<Forest<f32>>,
        link: xgboost::Link,
        start: Vec<f32>,
    },
    /// XGBoost's linear models.
    Linear {
        model: xgboost::Linear,
        link: xgboost::Link,
    },
    Lightgbm(Box<LightgbmTrees>),
}

/// LightGBM's trees, for rows of FP32 and of FP64.
#[derive(Debug)]
pub(crate) struct LightgbmTrees {
    pub(crate) single: Forest<f32, f64>,
    pub(crate) double: Forest<f64, f64>,
    pub(crate) link: lightgbm::Link,
    /// The divisor of the scores.
    pub(crate) divisor: f64,
}

/// Features in their original type.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Features<'a> {
    Single(&'a [f32]),
    Double(&'a [f64]),
}

impl Booster {
    /// Computes the scores of each row as the package does, and passes them to `row`. With `margins`, passes
    /// the untransformed scores.
    ///
    /// # Errors
    /// Fails if rows have too few features.
    pub(crate) fn predict(
        &self,
        features: Features<'_>,
        margins: bool,
        mut row: impl FnMut(&[f64]),
    ) -> Result<(), TooFewFeatures> {
        let width = self.features;
        // XGBoost computes in FP32 only.
        let narrowed: Vec<f32>;
        let single = match (features, &self.scorer) {
            (Features::Double(_), Scorer::Lightgbm(_)) => &[],
            (Features::Single(values), _) => values,
            (Features::Double(values), _) => {
                narrowed = values.iter().map(|&value| value as f32).collect();
                &narrowed
            }
        };
        let mut wide = vec![0.0; self.scores];
        let mut widen = |scores: &[f32]| {
            for (wide, score) in wide.iter_mut().zip(scores) {
                *wide = (*score).into();
            }
            row(&wide);
        };
        match &self.scorer {
            Scorer::Xgboost { forest, link, start } => {
                forest.score(rows(single, width), start, |scores, _| {
                    if !margins {
                        link.apply(scores);
                    }
                    widen(scores);
                })
            }
            Scorer::Linear { model, link } => {
                let mut scores = vec![0.0; self.scores];
                for features in single.chunks_exact(width) {
                    model.score(features, &mut scores);
                    if !margins {
                        link.apply(&mut scores);
                    }
                    widen(&scores);
                }
                Ok(())
            }
            Scorer::Lightgbm(trees) => {
                let finish = |scores: &mut [f64], _: &mut [bool]| {
                    scores.iter_mut().for_each(|score| *score /= trees.divisor);
                    if !margins {
                        trees.link.apply(scores);
                    }
                    row(scores);
                };
                match features {
                    Features::Single(values) => trees.single.score(rows(values, width), &[], finish),
                    Features::Double(values) => trees.double.score(rows(values, width), &[], finish),
                }
            }
        }
    }
}

/// Views values as rows of `width` features, where `width` is at least 1.
fn rows<T>(values: &[T], width: usize) -> Rows<'_, T> {
    Rows::new(values, values.len() / width, width).unwrap_or_default()
}
