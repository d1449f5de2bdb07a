//! Computes the outputs: the package's own prediction, classes, or probabilities, as configured.

use std::collections::BTreeMap;

use oip_types::{DataType, ModelConfig, TensorMetadata, model_config::ConfigParameter};
use tensor_core::{DType, QuotedName};

use crate::{booster::Booster, error::Refusal, meaning::Meaning};

/// A model's configuration, in the terms of Triton's FIL backend.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) best_iteration: bool,
    /// Whether the configuration sets the parameter `best_iteration`.
    pub(crate) says_best_iteration: bool,
    /// `xgboost` or `lightgbm`, if the configuration names the package.
    package: Option<&'static str>,
    kind: Kind,
    /// Probability above which the predicted class is "yes".
    threshold: f64,
    /// Whether to use the names and shapes of the FIL backend.
    is_fil: bool,
    input: Tensor,
    output: Tensor,
}

/// The kind of output that the configuration asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The result of the package's `predict`.
    Native,
    /// The index of a class.
    Class,
    /// The probabilities of all classes.
    Probabilities,
}

/// The configured name, type and dimensions of the input or the output, as far as the configuration sets
/// them.
#[derive(Clone, Debug, Default)]
struct Tensor {
    name: Option<String>,
    dtype: Option<DType>,
    dims: Vec<i64>,
}

impl Settings {
    pub(crate) fn read(config: &ModelConfig) -> Result<Self, Refusal> {
        let parameters = &config.parameters;
        let is_class = flag(parameters, "output_class")? || flag(parameters, "is_classifier")?;
        let threshold = parameters
            .get("threshold")
            .map_or("0.5", |own| own.string_value.trim());
        let threshold = threshold
            .parse()
            .ok()
            .filter(|own: &f64| !own.is_nan())
            .ok_or_else(|| {
                Refusal::new(format!(
                    "the parameter threshold is {}, expected a number",
                    QuotedName(threshold)
                ))
            })?;
        Ok(Self {
            best_iteration: flag(parameters, "best_iteration")?,
            says_best_iteration: parameters.contains_key("best_iteration"),
            package: package(parameters)?,
            kind: match (flag(parameters, "predict_proba")?, is_class) {
                (true, _) => Kind::Probabilities,
                (false, true) => Kind::Class,
                (false, false) => Kind::Native,
            },
            threshold,
            is_fil: [&config.backend, &config.platform]
                .into_iter()
                .any(|name| name == "fil"),
            input: config.input.first().map_or_else(Default::default, |own| Tensor {
                name: Some(own.name.clone()).filter(|name| !name.is_empty()),
                dtype: fixed(own.data_type),
                dims: own.dims.clone(),
            }),
            output: config.output.first().map_or_else(Default::default, |own| Tensor {
                name: Some(own.name.clone()).filter(|name| !name.is_empty()),
                dtype: fixed(own.data_type),
                dims: own.dims.clone(),
            }),
        })
    }
}

fn fixed(datatype: DataType) -> Option<DType> {
    match datatype {
        DataType::Fixed(dtype) => Some(dtype),
        _ => None,
    }
}

fn flag(parameters: &BTreeMap<String, ConfigParameter>, name: &str) -> Result<bool, Refusal> {
    let text = parameters
        .get(name)
        .map_or("false", |own| own.string_value.trim());
    match text {
        "true" | "True" | "TRUE" | "1" => Ok(true),
        "false" | "False" | "FALSE" | "0" | "" => Ok(false),
        other => Err(Refusal::new(format!(
            "the parameter {name} is {}, expected true or false",
            QuotedName(other)
        ))),
    }
}

/// Returns the package that FIL's parameter `model_type` names.
fn package(parameters: &BTreeMap<String, ConfigParameter>) -> Result<Option<&'static str>, Refusal> {
    let Some(own) = parameters.get("model_type") else {
        return Ok(None);
    };
    match own.string_value.trim() {
        "xgboost" | "xgboost_json" | "xgboost_ubj" => Ok(Some("xgboost")),
        "lightgbm" => Ok(Some("lightgbm")),
        other => Err(Refusal::new(format!(
            "the parameter model_type is {}, supported are xgboost, xgboost_json, xgboost_ubj and lightgbm",
            QuotedName(other)
        ))),
    }
}

/// Converts a model's scores into its output.
#[derive(Clone, Debug)]
pub(crate) struct Prediction {
    kind: Kind,
    threshold: f64,
    form: Form,
    /// The element type of the output.
    pub(crate) dtype: DType,
    /// The output's dimensions after the first.
    pub(crate) trailing: Vec<u64>,
    pub(crate) input: TensorMetadata,
    pub(crate) output: TensorMetadata,
}

/// The conversion of a row's scores into output elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// The scores themselves.
    Scores,
    /// The index of the greatest score.
    Greatest,
    /// For each score, whether it exceeds the threshold.
    Above,
    /// `1 - score`, and the score.
    Both,
}

impl Form {
    /// Returns the form of the output, and the number of values per row.
    fn of(kind: Kind, booster: &Booster) -> Result<(Self, usize), Refusal> {
        Ok(match (kind, booster.meaning) {
            (Kind::Native | Kind::Class, Meaning::Classes { is_picked: true })
            | (Kind::Class, Meaning::Classes { .. }) => (Self::Greatest, 1),
            (Kind::Class, Meaning::YesOrNo) => (Self::Above, booster.scores),
            (Kind::Probabilities, Meaning::YesOrNo) if booster.scores == 1 => (Self::Both, 2),
            (Kind::Class | Kind::Probabilities, Meaning::Values) => {
                return Err(Refusal::new(format!(
                    "the objective {} has no classes: leave the parameters output_class and predict_proba out",
                    QuotedName(&booster.objective)
                )));
            }
            _ => (Self::Scores, booster.scores),
        })
    }

    /// Checks that the output can have the dtype.
    fn check_dtype(self, dtype: DType) -> Result<(), Refusal> {
        let is_class = matches!(self, Self::Greatest | Self::Above);
        match dtype {
            DType::F32 | DType::F64 => Ok(()),
            DType::I32 | DType::I64 if is_class => Ok(()),
            _ => Err(Refusal::new(format!(
                "its output can be FP32 or FP64, and INT32 or INT64 for classes; the configuration says {dtype}"
            ))),
        }
    }
}

impl Prediction {
    pub(crate) fn new(booster: &Booster, settings: &Settings) -> Result<Self, Refusal> {
        if let Some(package) = settings.package.filter(|package| *package != booster.package) {
            return Err(Refusal::new(format!(
                "the file is a model of {}, the parameter model_type says {package}",
                booster.package
            )));
        }
        let (form, width) = Form::of(settings.kind, booster)?;
        let dtype = settings.output.dtype.unwrap_or(match booster.package {
            "lightgbm" if !settings.is_fil => DType::F64,
            _ => DType::F32,
        });
        form.check_dtype(dtype)?;
        let input = settings.input.dtype.unwrap_or(DType::F32);
        if !matches!(input, DType::F32 | DType::F64) {
            return Err(Refusal::new(format!(
                "its input can be FP32 or FP64; the configuration says {input}"
            )));
        }
        // With one value per row, the output is a column, `[rows, 1]`, if the configured dimensions have this
        // form, or if the configuration is for the FIL backend and omits the output's name and dimensions.
        let dims = &settings.output.dims;
        let is_column = match dims[..] {
            [] => settings.is_fil && settings.output.name.is_none(),
            [1] | [_, 1] => true,
            _ => false,
        };
        let trailing = match width {
            1 if !is_column => vec![],
            width => vec![width as u64],
        };
        let (own_input, own_output) = match settings.is_fil {
            true => ("input__0", "output__0"),
            false => ("input-0", "output-0"),
        };
        let name = |tensor: &Tensor, own: &str| tensor.name.clone().unwrap_or_else(|| own.to_owned());
        let output_dims: Vec<i64> = [-1]
            .into_iter()
            .chain(trailing.iter().map(|&dim| dim as i64))
            .collect();
        Ok(Self {
            kind: settings.kind,
            threshold: settings.threshold,
            form,
            dtype,
            trailing,
            input: TensorMetadata::new(
                name(&settings.input, own_input),
                DataType::Fixed(input),
                &[-1, booster.features as i64],
            ),
            output: TensorMetadata::new(
                name(&settings.output, own_output),
                DataType::Fixed(dtype),
                &output_dims,
            ),
        })
    }

    /// Returns whether the output can be computed from margins, the scores before their transformation to
    /// probabilities: the greatest score and the greatest probability have the same index, except where
    /// rounding makes probabilities equal.
    pub(crate) fn wants_margins(&self, meaning: Meaning) -> bool {
        self.form == Form::Greatest && self.kind == Kind::Native && matches!(meaning, Meaning::Classes { .. })
    }

    /// Appends the output elements of a row.
    pub(crate) fn append(&self, scores: &[f64], out: &mut Vec<f64>) {
        match self.form {
            Form::Scores => out.extend_from_slice(scores),
            Form::Greatest => {
                let mut best = 0;
                for (index, score) in scores.iter().enumerate() {
                    if *score > scores[best] {
                        best = index;
                    }
                }
                out.push(best as f64);
            }
            Form::Above => out.extend(
                scores
                    .iter()
                    .map(|&score| f64::from(u8::from(score > self.threshold))),
            ),
            // XGBoost's wrapper for scikit-learn subtracts in FP32, which has the same result after rounding.
            Form::Both => out.extend(scores.iter().flat_map(|&score| [1.0 - score, score])),
        }
    }
}
