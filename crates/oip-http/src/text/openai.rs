//! Serves `OpenAI`'s embeddings API.

use axum::{
    extract::{Request, State},
    response::Response,
};
use base64::{Engine, engine::general_purpose::STANDARD};
use oip_service::route::Action;
use oip_types::ServiceError;
use serde::{Deserialize, Serialize};

use crate::{
    app::App,
    response::respond_to,
    text::{
        ask::{TextOptions, TextRequest, TextResponse, answered},
        list::{self, Input, Texts},
        print::{Each, JsonText},
    },
};

/// The request body. Other members, such as `user`, are ignored.
#[derive(Deserialize)]
struct EmbeddingsRequest {
    model: Option<String>,
    #[serde(deserialize_with = "list::input")]
    input: Input,
    #[serde(default)]
    encoding_format: Format,
    dimensions: Option<usize>,
    /// An addition to `OpenAI`'s API: false rejects texts that are too long, which are otherwise truncated.
    truncate: Option<bool>,
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Format {
    #[default]
    Float,
    Base64,
}

#[derive(Serialize)]
struct EmbeddingsResponse<'a, D> {
    object: &'static str,
    data: D,
    model: &'a str,
    usage: Usage,
}

#[derive(Serialize)]
struct Embedding {
    object: &'static str,
    index: usize,
    embedding: Vector,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Vector {
    Floats(Vec<f32>),
    Base64(String),
}

#[derive(Serialize)]
struct Usage {
    prompt_tokens: i64,
    total_tokens: i64,
}

/// Handles `POST /v1/embeddings`.
pub(crate) async fn embeddings(State(app): State<App>, request: Request) -> Response {
    respond_to(Action::Embeddings, answered(app, request, read, print).await)
}

fn read(request: EmbeddingsRequest) -> Result<(TextRequest, (Format, Option<usize>)), ServiceError> {
    if request.dimensions == Some(0) {
        return Err(ServiceError::invalid("dimensions: expected at least 1, found 0"));
    }
    let mut flags = vec![("truncate", request.truncate.unwrap_or(true))];
    if request.input.are_ids {
        flags.push(("token_ids", true));
    }
    let options = TextOptions {
        model: request.model,
        outputs: &["embedding", "token_count"],
        or_outputs: &[],
        flags,
    };
    let texts = Texts::Single(request.input.texts);
    Ok((
        TextRequest { texts, options },
        (request.encoding_format, request.dimensions),
    ))
}

fn print(
    given: &TextResponse,
    (format, dimensions): (Format, Option<usize>),
    text: &mut JsonText,
) -> Result<(), ServiceError> {
    let (values, width) = given.rows("embedding")?;
    if let Some(dimensions) = dimensions.filter(|dimensions| *dimensions > width) {
        let message = format!("dimensions: expected at most {width}, found {dimensions}");
        return Err(ServiceError::invalid(message));
    }
    let data = values.chunks_exact(width).enumerate().map(|(index, row)| {
        let row = match dimensions {
            Some(dimensions) if dimensions < width => unit(row.get(..dimensions).unwrap_or(row)),
            _ => row.to_vec(),
        };
        Embedding {
            object: "embedding",
            index,
            embedding: match format {
                Format::Float => Vector::Floats(row),
                Format::Base64 => {
                    let bytes: Vec<u8> = row.iter().flat_map(|value| value.to_le_bytes()).collect();
                    Vector::Base64(STANDARD.encode(bytes))
                }
            },
        }
    });
    let tokens = given.tokens();
    text.print(&EmbeddingsResponse {
        object: "list",
        data: Each(data),
        model: &given.response.model_name,
        usage: Usage {
            prompt_tokens: tokens,
            total_tokens: tokens,
        },
    })
}

/// Normalizes a vector to unit length; zero vectors are left unchanged.
pub(super) fn unit(row: &[f32]) -> Vec<f32> {
    let length = row
        .iter()
        .map(|value| value * value)
        .sum::<f32>()
        .sqrt()
        .max(1e-12);
    row.iter().map(|value| value / length).collect()
}
