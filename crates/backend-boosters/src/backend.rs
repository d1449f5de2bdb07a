//! The crate's entry point: recognizes the package that saved a file, and loads the model.

use oip_model::{Backend, LoadContext, Model, ModelSource, available_memory};
use oip_types::ServiceError;

use crate::{
    booster::Booster,
    error::Refusal,
    lightgbm,
    model::ForestModel,
    other_formats,
    prediction::{Prediction, Settings},
    xgboost::{self, Options},
};

/// Loads models of XGBoost and LightGBM; see the [crate's page](crate).
#[derive(Clone, Debug, Default)]
pub struct BoostersBackend(());

impl BoostersBackend {
    /// Creates the backend.
    #[must_use]
    pub fn new() -> Self {
        Self(())
    }
}

impl Backend for BoostersBackend {
    fn name(&self) -> &'static str {
        "forest"
    }

    fn other_names(&self) -> &'static [&'static str] {
        &["fil", "xgboost", "lightgbm"]
    }

    fn file_names(&self) -> &[&str] {
        &[
            "model.ubj",
            "xgboost.ubj",
            "model.json",
            "xgboost.json",
            "model.txt",
            "model.bst",
            "xgboost.model",
            // MLflow uses these names for models of any format.
            "model.xgb",
            "model.lgb",
        ]
    }

    fn load(&self, source: &ModelSource, cx: &LoadContext) -> Result<Box<dyn Model>, ServiceError> {
        let loaded = Settings::read(&cx.config).and_then(|settings| {
            let booster = read(&source.content, &settings)?;
            if let Some(early) = booster.early_stopping.filter(|_| !settings.says_best_iteration) {
                let file = source.path.file_name().unwrap_or_default().display();
                tracing::warn!(model = source.name, %file, best_iteration = early.best_iteration, "{}", early.warning());
            }
            let prediction = Prediction::new(&booster, &settings)?;
            Ok(ForestModel::new(source, booster, prediction))
        });
        let model = loaded.map_err(|refusal| {
            let file_name = source.path.file_name().unwrap_or_default().display();
            ServiceError::invalid(format!("{file_name}: {refusal}"))
        })?;
        Ok(Box::new(model))
    }
}

/// Memory for loading a model, as a multiple of its file size: lists with one byte per number become lists
/// with four bytes per number, and a node of a few bytes takes about a hundred bytes.
const GROWTH: u64 = 24;

/// Reads a file of either package, detected by its first bytes.
fn read(content: &[u8], settings: &Settings) -> Result<Booster, Refusal> {
    let options = Options {
        best_iteration: settings.best_iteration,
    };
    let needed = (content.len() as u64).saturating_mul(GROWTH);
    if let Some(free) = available_memory().filter(|free| *free < needed) {
        return Err(Refusal::new(format!(
            "a file of {} bytes can take up to {needed} bytes of memory while it is loaded, and {free} are free",
            content.len()
        )));
    }
    let text = content.trim_ascii_start();
    match text {
        // A key starts with a quotation mark in JSON, and with its length in UBJSON.
        [b'{', b'i' | b'U' | b'I' | b'l' | b'L' | b'$' | b'#', ..] => xgboost::read_ubj(content, options),
        [b'{', ..] => xgboost::read_json(content, options),
        _ if text.starts_with(b"tree\n") || text.starts_with(b"tree\r") => lightgbm::read(content),
        _ => Err(Refusal::new(other_formats::explain(content))),
    }
}
