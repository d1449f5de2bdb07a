//! Text APIs: `OpenAI`'s, text-embeddings-inference's, and Cohere's.
//!
//! Each API decodes its own JSON, runs a text model like any protocol request, and encodes the result in the
//! form that its clients expect. A text model has the input `text`; its outputs determine which APIs it can
//! serve.

mod ask;
pub(crate) mod cohere;
pub(crate) mod errors;
mod list;
pub(crate) mod openai;
mod print;
pub(crate) mod tei;
