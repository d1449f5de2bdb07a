//! The routes of clients for texts: `OpenAI`'s, those of text-embeddings-inference, and Cohere's.
//!
//! Each reads its JSON, asks a text model as any client does over the protocol, and prints what the model gave in the form that its
//! clients know. A text model has the input `text`; its outputs say what it is for.

mod ask;
pub(crate) mod cohere;
pub(crate) mod openai;
pub(crate) mod tei;
