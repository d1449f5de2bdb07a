//! Text APIs: `OpenAI`'s, text-embeddings-inference's, and Cohere's.
//!
//! Each decodes its own JSON, runs a text model like any protocol request, and prints the result in the form
//! its clients expect. A text model has the input `text`; its outputs show its purpose.

mod ask;
pub(crate) mod cohere;
pub(crate) mod openai;
pub(crate) mod tei;
