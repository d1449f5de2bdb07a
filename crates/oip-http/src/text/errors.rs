//! Bodies of error responses, in the form that clients of each API read.

use bytes::Bytes;
use oip_service::route::Action;
use oip_types::{
    ErrorCode, ServiceError,
    rest::{error_body, json_body},
};
use serde_json::json;

/// Returns the body of the response to a failed request for an action.
pub(crate) fn body(error: &ServiceError, action: Action) -> Bytes {
    let message = error.message();
    match action {
        // The package `openai` reads these four members of an object.
        Action::Embeddings | Action::ModelsV1 => json_body(&json!({
            "error": { "message": message, "type": openai_type(error.code()), "param": null, "code": openai_code(error.code()) },
        })),
        Action::TeiEmbed | Action::TeiRerank | Action::TeiPredict => {
            json_body(&json!({ "error": message, "error_type": tei_type(error.code()) }))
        }
        // The package `cohere` shows the whole body; Cohere's own has the member `message`.
        Action::Rerank => json_body(&json!({ "message": message, "error": message })),
        _ => error_body(error),
    }
}

/// Returns the type of an error in `OpenAI`'s API.
fn openai_type(code: ErrorCode) -> &'static str {
    match code {
        ErrorCode::Unauthenticated => "authentication_error",
        ErrorCode::PermissionDenied => "permission_error",
        ErrorCode::Overloaded => "rate_limit_error",
        code if code.http_status() < 500 => "invalid_request_error",
        _ => "server_error",
    }
}

/// Returns the code of an error in `OpenAI`'s API; most errors have none.
fn openai_code(code: ErrorCode) -> Option<&'static str> {
    match code {
        ErrorCode::Unauthenticated => Some("invalid_api_key"),
        ErrorCode::NotFound => Some("model_not_found"),
        ErrorCode::Overloaded => Some("rate_limit_exceeded"),
        _ => None,
    }
}

/// Returns the type of an error in text-embeddings-inference.
fn tei_type(code: ErrorCode) -> &'static str {
    match code {
        ErrorCode::Overloaded => "Overloaded",
        ErrorCode::Unavailable => "Unhealthy",
        code if code.http_status() < 500 => "Validation",
        _ => "Backend",
    }
}
