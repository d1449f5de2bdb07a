//! Operators on strings.

mod pieces_of_text;
mod terms;
mod tokenizer;

pub use pieces_of_text::{regex_full_match, string_concat, string_split};
pub use terms::{string_normalizer, tf_idf};
pub use tokenizer::tokenizer;
