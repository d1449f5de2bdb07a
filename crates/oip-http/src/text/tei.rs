//! Serves the API of text-embeddings-inference.

use axum::{
    extract::{Request, State},
    response::Response,
};
use oip_types::ServiceError;
use serde::{Deserialize, Serialize};

use crate::{
    answer::respond,
    app::App,
    text::{
        ask::{TextRequest, TextResponse, answered},
        openai::unit,
    },
};

#[derive(Deserialize)]
struct EmbedRequest {
    model: Option<String>,
    inputs: Texts,
    #[serde(default)]
    truncate: bool,
    #[serde(default = "yes")]
    normalize: bool,
    prompt_name: Option<String>,
}

fn yes() -> bool {
    true
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "inputs: expected a string or a list of strings")]
enum Texts {
    One(String),
    Many(Vec<String>),
}

/// Handles `POST /embed`.
pub(crate) async fn embed(State(app): State<App>, request: Request) -> Response {
    let read = |request: EmbedRequest| {
        if request.prompt_name.is_some() {
            return Err(ServiceError::invalid(
                "prompt_name: prompts are not supported, put the prompt before the text",
            ));
        }
        let ask = TextRequest {
            model: request.model,
            texts: match request.inputs {
                Texts::One(text) => vec![text],
                Texts::Many(texts) => texts,
            },
            pairs: None,
            outputs: &["embedding"],
            or_outputs: &[],
            flags: vec![("truncate", request.truncate)],
        };
        Ok((ask, request.normalize))
    };
    let print = |given: &TextResponse, normalize: bool| {
        let (values, width) = given.rows("embedding")?;
        let rows = values.chunks_exact(width);
        let rows = rows.map(|row| if normalize { unit(row) } else { row.to_vec() });
        json(&rows.collect::<Vec<_>>())
    };
    respond(answered(app, request, read, print).await)
}

#[derive(Deserialize)]
struct RerankRequest {
    model: Option<String>,
    query: String,
    texts: Vec<String>,
    #[serde(default)]
    raw_scores: bool,
    #[serde(default)]
    return_text: bool,
    #[serde(default)]
    truncate: bool,
}

#[derive(Serialize)]
struct Rank {
    index: usize,
    score: f32,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
}

/// Handles `POST /rerank`.
pub(crate) async fn rerank(State(app): State<App>, request: Request) -> Response {
    let read = |request: RerankRequest| {
        let kept = request.return_text.then(|| request.texts.clone());
        let flags = vec![("truncate", request.truncate), ("raw_scores", request.raw_scores)];
        Ok((pairs(request.model, request.query, request.texts, flags), kept))
    };
    let print = |given: &TextResponse, mut texts: Option<Vec<String>>| {
        let ranked = ranked(given)?.into_iter();
        let ranked = ranked.map(|(index, score)| Rank {
            index,
            score,
            text: texts
                .as_mut()
                .and_then(|texts| texts.get_mut(index))
                .map(std::mem::take),
        });
        json(&ranked.collect::<Vec<_>>())
    };
    respond(answered(app, request, read, print).await)
}

/// Creates a request of pairs: the query and each of the texts.
pub(super) fn pairs(
    model: Option<String>,
    query: String,
    texts: Vec<String>,
    flags: Vec<(&'static str, bool)>,
) -> TextRequest {
    TextRequest {
        model,
        texts: vec![query; texts.len()],
        pairs: Some(texts),
        outputs: &["score"],
        or_outputs: &[],
        flags,
    }
}

/// Returns the indices of texts with their scores, best first.
pub(super) fn ranked(given: &TextResponse) -> Result<Vec<(usize, f32)>, ServiceError> {
    let (scores, _) = given.rows("score")?;
    let mut ranked: Vec<(usize, f32)> = scores.into_iter().enumerate().collect();
    ranked.sort_by(|(_, left), (_, right)| right.total_cmp(left));
    Ok(ranked)
}

#[derive(Deserialize)]
struct PredictRequest {
    model: Option<String>,
    inputs: Sequences,
    #[serde(default)]
    truncate: bool,
    #[serde(default)]
    raw_scores: bool,
}

#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "inputs: expected a string, a list of one string or a pair, or a list of such lists"
)]
enum Sequences {
    One(String),
    Pair(Vec<String>),
    Many(Vec<Vec<String>>),
}

#[derive(Serialize)]
struct Prediction {
    score: f32,
    label: String,
}

/// Handles `POST /predict`.
pub(crate) async fn predict(State(app): State<App>, request: Request) -> Response {
    let read = |request: PredictRequest| {
        let (sequences, is_one) = match request.inputs {
            Sequences::One(text) => (vec![vec![text]], true),
            Sequences::Pair(pair) => (vec![pair], true),
            Sequences::Many(sequences) => (sequences, false),
        };
        let length = sequences.first().map_or(0, Vec::len);
        if !(1..=2).contains(&length) || sequences.iter().any(|sequence| sequence.len() != length) {
            let message =
                "inputs: expected one text or a pair of texts in each list, and as many in all of them";
            return Err(ServiceError::invalid(message));
        }
        let (mut texts, mut seconds) = (Vec::new(), Vec::new());
        for mut sequence in sequences {
            seconds.extend((length == 2).then(|| sequence.pop()).flatten());
            texts.extend(sequence);
        }
        let ask = TextRequest {
            model: request.model,
            texts,
            pairs: (length == 2).then_some(seconds),
            outputs: &["scores", "labels"],
            or_outputs: &["score"],
            flags: vec![("truncate", request.truncate), ("raw_scores", request.raw_scores)],
        };
        Ok((ask, is_one))
    };
    respond(answered(app, request, read, print_predictions).await)
}

fn print_predictions(given: &TextResponse, is_one: bool) -> Result<Vec<u8>, ServiceError> {
    let (scores, width, labels) = match given.has("scores") {
        true => {
            let (scores, width) = given.rows("scores")?;
            (scores, width, given.strings("labels")?)
        }
        false => {
            let (scores, _) = given.rows("score")?;
            let labels = vec!["LABEL_0".to_owned(); scores.len()];
            (scores, 1, labels)
        }
    };
    let mut predictions: Vec<Vec<Prediction>> = Vec::new();
    for (scores, labels) in scores.chunks_exact(width).zip(labels.chunks_exact(width)) {
        let pairs = scores.iter().zip(labels);
        let mut row: Vec<_> = pairs
            .map(|(score, label)| Prediction {
                score: *score,
                label: label.clone(),
            })
            .collect();
        row.sort_by(|left, right| right.score.total_cmp(&left.score));
        predictions.push(row);
    }
    match (is_one, &predictions[..]) {
        (true, [only]) => json(only),
        _ => json(&predictions),
    }
}

pub(super) fn json(value: &impl Serialize) -> Result<Vec<u8>, ServiceError> {
    serde_json::to_vec(value).map_err(|error| ServiceError::internal(error.to_string()))
}
