//! Serves Cohere's rerank API.

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
        ask::{TextResponse, answered},
        list::{self, TextList},
        print::{Each, JsonText},
        tei::{pairs, ranked},
    },
};

/// The request body. Other members, such as `max_chunks_per_doc`, are ignored, because long documents are
/// truncated.
#[derive(Deserialize)]
struct RerankRequest {
    model: Option<String>,
    #[serde(deserialize_with = "list::query")]
    query: String,
    #[serde(deserialize_with = "list::documents")]
    documents: TextList,
    top_n: Option<usize>,
    #[serde(default)]
    return_documents: bool,
}

#[derive(Serialize)]
struct RerankResponse<'a, R> {
    id: &'a Option<String>,
    results: R,
    meta: Meta,
}

#[derive(Serialize)]
struct RerankResult<'a> {
    index: usize,
    relevance_score: f32,
    #[serde(skip_serializing_if = "Option::is_none")]
    document: Option<RerankEntry<'a>>,
}

#[derive(Serialize)]
struct RerankEntry<'a> {
    text: &'a str,
}

#[derive(Serialize)]
struct Meta {
    api_version: Version,
}

#[derive(Serialize)]
struct Version {
    version: &'static str,
}

/// Handles `POST /v1/rerank`.
pub(crate) async fn rerank(State(app): State<App>, request: Request) -> Response {
    let read = |request: RerankRequest| {
        let kept = (request.top_n, request.return_documents);
        let ask = pairs(
            request.model,
            request.query,
            request.documents,
            vec![("truncate", true)],
        );
        Ok((ask, kept))
    };
    respond_to(Action::Rerank, answered(app, request, read, print).await)
}

fn print(
    given: &TextResponse,
    (top, returns_documents): (Option<usize>, bool),
    text: &mut JsonText,
) -> Result<(), ServiceError> {
    let ranked = ranked(given)?;
    let documents = given.pairs();
    let results = ranked.iter().take(top.unwrap_or(usize::MAX));
    let results = results.map(|(index, relevance_score)| RerankResult {
        index: *index,
        relevance_score: *relevance_score,
        document: documents
            .get(*index)
            .filter(|_| returns_documents)
            .map(|text| RerankEntry { text }),
    });
    text.print(&RerankResponse {
        id: &given.response.id,
        results: Each(results),
        meta: Meta {
            api_version: Version { version: "1" },
        },
    })
}
