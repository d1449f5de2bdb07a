//! Text in, vectors out: tokenization before a network and pooling or labels after it, with Hugging Face
//! directories as models.
//!
//! The steps can be used separately. [`TextTokenizer`] tokenizes texts and limits what a `tokenizer.json` may
//! declare; [`batches`] groups sequences by length under a token budget; [`Pooling`] and [`normalize`] reduce
//! the tokens' vectors to one; [`Activation`] turns logits into scores. [`TextBackend`] combines them with
//! any backend that runs the network. [`TextStepBackend`] serves each step as a model, for pipelines.
//!
//! ```
//! use oip_text::{Pooling, normalize};
//!
//! // Two tokens with two values each.
//! let mut vector = Pooling::Mean.pool(&[0.0, 2.0, 6.0, 6.0], 2);
//! normalize(&mut vector);
//! assert_eq!(vector, [0.6, 0.8]);
//! ```

mod backend;
mod batches;
mod classes;
mod description;
mod error;
mod graph;
mod inspect;
mod labels;
mod limits;
mod model;
mod padded;
mod pooling;
mod steps;
mod texts;
mod tokenizer;

pub use backend::{TextBackend, TextOptions, is_left_out};
pub use batches::batches;
pub use description::{Task, TextDescription};
pub use error::TextError;
pub use labels::{Activation, best};
pub use limits::TokenizerLimits;
pub use pooling::{Pooling, normalize};
pub use steps::TextStepBackend;
pub use tokenizer::{TextTokenizer, Tokens};
