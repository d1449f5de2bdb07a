//! Serves the API of text-embeddings-inference.

use axum::{
    extract::{Request, State},
    response::Response,
};
use oip_service::route::Action;
use oip_types::ServiceError;
use serde::{Deserialize, Serialize};

use crate::{
    app::App,
    response::respond_to,
    text::{
        ask::{TextOptions, TextRequest, TextResponse, answered},
        list::{self, Sequences, TextList, Texts},
        openai::unit,
        print::{Each, JsonText},
    },
};

#[derive(Deserialize)]
struct EmbedRequest {
    model: Option<String>,
    #[serde(deserialize_with = "list::inputs")]
    inputs: TextList,
    #[serde(default)]
    truncate: bool,
    #[serde(default = "yes")]
    normalize: bool,
    prompt_name: Option<String>,
}

fn yes() -> bool {
    true
}

/// Handles `POST /embed`.
pub(crate) async fn embed(State(app): State<App>, request: Request) -> Response {
    let read = |request: EmbedRequest| {
        if request.prompt_name.is_some() {
            return Err(ServiceError::invalid(
                "prompt_name: prompts are not supported, put the prompt before the text",
            ));
        }
        let options = TextOptions {
            model: request.model,
            outputs: &["embedding"],
            or_outputs: &[],
            flags: vec![("truncate", request.truncate)],
        };
        let texts = Texts::Single(request.inputs);
        Ok((TextRequest { texts, options }, request.normalize))
    };
    let print = |given: &TextResponse, normalize: bool, text: &mut JsonText| {
        let (values, width) = given.rows("embedding")?;
        let rows = values.chunks_exact(width);
        match normalize {
            true => text.print(&Each(rows.map(unit))),
            false => text.print(&Each(rows)),
        }
    };
    respond_to(Action::TeiEmbed, answered(app, request, read, print).await)
}

#[derive(Deserialize)]
struct RerankRequest {
    model: Option<String>,
    #[serde(deserialize_with = "list::query")]
    query: String,
    #[serde(deserialize_with = "list::texts")]
    texts: TextList,
    #[serde(default)]
    raw_scores: bool,
    #[serde(default)]
    return_text: bool,
    #[serde(default)]
    truncate: bool,
}

#[derive(Serialize)]
struct Rank<'a> {
    index: usize,
    score: f32,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<&'a str>,
}

/// Handles `POST /rerank`.
pub(crate) async fn rerank(State(app): State<App>, request: Request) -> Response {
    let read = |request: RerankRequest| {
        let flags = vec![("truncate", request.truncate), ("raw_scores", request.raw_scores)];
        let ask = pairs(request.model, request.query, request.texts, flags);
        Ok((ask, request.return_text))
    };
    let print = |given: &TextResponse, returns_text: bool, text: &mut JsonText| {
        let ranked = ranked(given)?;
        let texts = given.pairs();
        text.print(&Each(ranked.iter().map(|(index, score)| Rank {
            index: *index,
            score: *score,
            text: texts.get(*index).copied().filter(|_| returns_text),
        })))
    };
    respond_to(Action::TeiRerank, answered(app, request, read, print).await)
}

/// Creates a request of pairs: the query and each of the texts.
pub(super) fn pairs(
    model: Option<String>,
    query: String,
    texts: TextList,
    flags: Vec<(&'static str, bool)>,
) -> TextRequest {
    TextRequest {
        texts: Texts::Query(query, texts),
        options: TextOptions {
            model,
            outputs: &["score"],
            or_outputs: &[],
            flags,
        },
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
    #[serde(deserialize_with = "list::sequences")]
    inputs: Sequences,
    #[serde(default)]
    truncate: bool,
    #[serde(default)]
    raw_scores: bool,
}

#[derive(Serialize)]
struct Prediction<'a> {
    score: f32,
    label: &'a str,
}

/// Handles `POST /predict`.
pub(crate) async fn predict(State(app): State<App>, request: Request) -> Response {
    let read = |request: PredictRequest| {
        let options = TextOptions {
            model: request.model,
            outputs: &["scores", "labels"],
            or_outputs: &["score"],
            flags: vec![("truncate", request.truncate), ("raw_scores", request.raw_scores)],
        };
        let Sequences { texts, is_one } = request.inputs;
        Ok((TextRequest { texts, options }, is_one))
    };
    respond_to(
        Action::TeiPredict,
        answered(app, request, read, print_predictions).await,
    )
}

fn print_predictions(given: &TextResponse, is_one: bool, text: &mut JsonText) -> Result<(), ServiceError> {
    let (scores, width, labels) = match given.has("scores") {
        true => {
            let (scores, width) = given.rows("scores")?;
            (scores, width, given.strings("labels")?)
        }
        false => {
            let (scores, _) = given.rows("score")?;
            let labels = vec!["LABEL_0"; scores.len()];
            (scores, 1, labels)
        }
    };
    let rows = scores.chunks_exact(width).zip(labels.chunks_exact(width));
    let mut rows = rows.map(|(scores, labels)| {
        let pairs = scores.iter().zip(labels);
        let row = pairs.map(|(score, label)| Prediction { score: *score, label });
        let mut row: Vec<_> = row.collect();
        row.sort_by(|left, right| right.score.total_cmp(&left.score));
        row
    });
    match is_one.then(|| rows.next()).flatten() {
        Some(only) => text.print(&only),
        None => text.print(&Each(rows)),
    }
}
