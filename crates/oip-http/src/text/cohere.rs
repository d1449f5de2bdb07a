//! Serves Cohere's rerank API.

use axum::{
    extract::{Request, State},
    response::Response,
};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::{
    answer::respond,
    app::App,
    text::{
        ask::{TextResponse, answered},
        tei::{json, pairs, ranked},
    },
};

/// The request body. Other members, such as `max_chunks_per_doc`, are ignored, because long documents are
/// truncated.
#[derive(Deserialize)]
struct RerankRequest {
    model: Option<String>,
    query: String,
    documents: Vec<Document>,
    top_n: Option<usize>,
    #[serde(default)]
    return_documents: bool,
}

#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "documents: expected strings, or objects with a string text"
)]
enum Document {
    Text(String),
    Object { text: String },
}

#[derive(Serialize)]
struct RerankResult {
    index: usize,
    relevance_score: f32,
    #[serde(skip_serializing_if = "Option::is_none")]
    document: Option<RerankEntry>,
}

#[derive(Serialize)]
struct RerankEntry {
    text: String,
}

/// Handles `POST /v1/rerank`.
pub(crate) async fn rerank(State(app): State<App>, request: Request) -> Response {
    let read = |request: RerankRequest| {
        let documents = request.documents.into_iter().map(|document| match document {
            Document::Text(text) | Document::Object { text } => text,
        });
        let documents: Vec<String> = documents.collect();
        let kept = request.return_documents.then(|| documents.clone());
        let ask = pairs(request.model, request.query, documents, vec![("truncate", true)]);
        Ok((ask, (request.top_n, kept)))
    };
    let print = |given: &TextResponse, (top, mut documents): (Option<usize>, Option<Vec<String>>)| {
        let ranked = ranked(given)?.into_iter().take(top.unwrap_or(usize::MAX));
        let results = ranked.map(|(index, relevance_score)| RerankResult {
            index,
            relevance_score,
            document: documents
                .as_mut()
                .and_then(|documents| documents.get_mut(index))
                .map(|text| RerankEntry {
                    text: std::mem::take(text),
                }),
        });
        json(&json!({
            "id": given.response.id,
            "results": results.collect::<Vec<_>>(),
            "meta": {"api_version": {"version": "1"}},
        }))
    };
    respond(answered(app, request, read, print).await)
}
