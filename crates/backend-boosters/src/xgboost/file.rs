//! Reads a model file and builds the booster from it.

use std::collections::HashMap;

use serde::Deserialize;

use super::{Linear, Link, trees, ubj};
use crate::{
    booster::{Booster, EarlyStopping, MAX_SCORES, Scorer},
    error::Refusal,
    meaning::Meaning,
};

/// Options for reading a file.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Options {
    /// Whether to drop the trees after the best iteration.
    pub(crate) best_iteration: bool,
}

/// Reads a model from UBJSON.
pub(crate) fn read_ubj(bytes: &[u8], options: Options) -> Result<Booster, Refusal> {
    let file = ubj::from_slice(bytes).map_err(|error| unreadable(&error))?;
    booster(file, options)
}

/// Reads a model from JSON.
pub(crate) fn read_json(bytes: &[u8], options: Options) -> Result<Booster, Refusal> {
    let file = serde_json::from_slice(bytes).map_err(|error| unreadable(&error))?;
    booster(file, options)
}

fn unreadable(error: &dyn std::fmt::Display) -> Refusal {
    Refusal::new(format!(
        "not a model as XGBoost's save_model writes it: {error} (the output of dump_model and of other \
         packages is not supported)"
    ))
}

#[derive(Deserialize)]
struct File {
    learner: Learner,
}

#[derive(Deserialize)]
struct Learner {
    #[serde(default)]
    attributes: HashMap<String, String>,
    gradient_booster: GradientBooster,
    learner_model_param: Parameters,
    objective: Objective,
}

#[derive(Deserialize)]
struct Objective {
    name: String,
}

/// The parameters of a model. The file contains the numbers as strings.
#[derive(Deserialize)]
struct Parameters {
    base_score: String,
    num_class: String,
    num_feature: String,
    num_target: Option<String>,
}

/// The member `gradient_booster`: trees, trees with weights, or a linear model.
#[derive(Deserialize)]
struct GradientBooster {
    name: String,
    /// Trees, or the weights of `gblinear`.
    model: Option<trees::TreeModel>,
    /// The trees of `dart`.
    gbtree: Option<DartTrees>,
    #[serde(default)]
    weight_drop: Vec<f32>,
}

#[derive(Deserialize)]
struct DartTrees {
    model: trees::TreeModel,
}

/// The sizes of a model.
struct Counts {
    /// Features of a row.
    features: usize,
    classes: usize,
    /// Scores of a row.
    scores: usize,
}

impl Counts {
    fn of(parameters: &Parameters) -> Result<Self, Refusal> {
        let features = number("num_feature", &parameters.num_feature)?;
        let classes = number("num_class", &parameters.num_class)?;
        let targets = parameters.num_target.as_deref().unwrap_or("1");
        let scores = classes.max(number("num_target", targets)?).max(1);
        if features == 0 || features > tree_eval::Trees::MAX_FEATURES {
            return Err(Refusal::new(format!(
                "num_feature is {features}, expected 1 to {}",
                tree_eval::Trees::MAX_FEATURES
            )));
        }
        if scores > MAX_SCORES {
            return Err(Refusal::new(format!(
                "a row has {scores} scores, expected at most {MAX_SCORES}"
            )));
        }
        Ok(Self {
            features,
            classes,
            scores,
        })
    }
}

impl GradientBooster {
    fn lacks(&self, what: &str) -> Refusal {
        Refusal::new(format!("the {} has no {what}", self.name))
    }

    fn model(mut self) -> Result<trees::TreeModel, Refusal> {
        self.model.take().ok_or_else(|| self.lacks("model"))
    }

    /// Returns the trees; for `dart`, with their weights.
    fn trees(mut self) -> Result<(trees::TreeModel, Option<Vec<f32>>), Refusal> {
        match self.name.as_str() {
            "gbtree" => Ok((self.model()?, None)),
            "dart" => {
                let trees = self.gbtree.take().ok_or_else(|| self.lacks("gbtree"))?;
                Ok((trees.model, Some(self.weight_drop)))
            }
            other => Err(Refusal::new(format!(
                "the booster {} is not supported",
                tensor_core::QuotedName(other)
            ))),
        }
    }
}

fn booster(file: File, options: Options) -> Result<Booster, Refusal> {
    let learner = file.learner;
    let parameters = &learner.learner_model_param;
    let Counts {
        features,
        classes,
        scores,
    } = Counts::of(parameters)?;
    let (link, meaning) = Link::of_objective(&learner.objective.name)?;
    if matches!(meaning, Meaning::Classes { .. }) && classes < 2 {
        return Err(Refusal::new(format!(
            "the objective {} needs 2 classes or more, num_class is {classes}",
            learner.objective.name
        )));
    }
    let start = start(&parameters.base_score, scores, link)?;
    let last = match options.best_iteration {
        true => best_iteration(&learner.attributes)?,
        false => None,
    };
    let mut early_stopping = None;
    let scorer = match learner.gradient_booster.name.as_str() {
        "gblinear" => Scorer::Linear {
            model: Linear::new(learner.gradient_booster.model()?.weights, features, &start)?,
            link,
        },
        _ => {
            let (model, drops) = learner.gradient_booster.trees()?;
            if !options.best_iteration {
                early_stopping = unused(&model, scores, &learner.attributes);
            }
            let trees = trees::read(model, drops.as_deref(), features, scores, last)?;
            Scorer::Xgboost {
                forest: Box::new(trees.forest()),
                link,
                start,
            }
        }
    };
    Ok(Booster {
        package: "xgboost",
        objective: learner.objective.name,
        features,
        scores,
        meaning,
        scorer,
        early_stopping,
    })
}

/// Returns the trees after the best iteration, if the file has a valid record of early stopping.
fn unused(
    model: &trees::TreeModel,
    scores: usize,
    attributes: &HashMap<String, String>,
) -> Option<EarlyStopping> {
    let best_iteration = best_iteration(attributes).ok()??;
    let best = trees::end_of_iteration(model, scores, best_iteration).ok()?;
    let all = model.count();
    (best < all).then_some(EarlyStopping {
        best_iteration,
        best,
        all,
    })
}

fn number(name: &str, text: &str) -> Result<usize, Refusal> {
    let number = text.trim().parse::<u32>().ok();
    let number = number.and_then(|number| usize::try_from(number).ok());
    number.ok_or_else(|| {
        Refusal::new(format!(
            "{name} is {}, expected an integer",
            tensor_core::QuotedName(text)
        ))
    })
}

/// Returns the initial value of each score. The file contains one number for all scores or, since version
/// 3.1, a list with one number per score.
fn start(text: &str, scores: usize, link: Link) -> Result<Vec<f32>, Refusal> {
    let list = text
        .trim()
        .strip_prefix('[')
        .and_then(|list| list.strip_suffix(']'));
    let numbers = list.unwrap_or(text).split(',').map(|number| {
        let number = number.trim().parse::<f32>().ok();
        let base = number.ok_or_else(|| {
            Refusal::new(format!(
                "base_score is {}, expected numbers",
                tensor_core::QuotedName(text)
            ))
        })?;
        link.margin(base)
    });
    let numbers: Vec<f32> = numbers.collect::<Result<_, _>>()?;
    match numbers[..] {
        [one] => Ok(vec![one; scores]),
        _ if numbers.len() == scores => Ok(numbers),
        _ => Err(Refusal::new(format!(
            "base_score has {} numbers for {scores} scores",
            numbers.len()
        ))),
    }
}

/// Returns the best iteration, if early stopping recorded one.
fn best_iteration(attributes: &HashMap<String, String>) -> Result<Option<usize>, Refusal> {
    let noted = attributes.get("best_iteration");
    noted.map(|text| number("best_iteration", text)).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trees_behind_the_best_iteration_are_counted() {
        let bytes = include_bytes!("../../tests/fixtures/xgb_best_iteration.ubj");
        let read = |best_iteration| read_ubj(bytes, Options { best_iteration }).unwrap();
        let early = read(false).early_stopping.unwrap();
        assert!(
            early.best > early.best_iteration && early.best < early.all,
            "{early:?}"
        );
        let warning = early.warning();
        let expected = format!("all {} trees are used", early.all);
        assert!(warning.starts_with(&expected), "{warning}");
        assert!(read(true).early_stopping.is_none());
        let bytes = include_bytes!("../../tests/fixtures/xgb_binary_logistic.ubj");
        assert!(
            read_ubj(bytes, Options::default())
                .unwrap()
                .early_stopping
                .is_none()
        );
    }
}
