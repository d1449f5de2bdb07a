//! The error type for rejected texts and model files.

use std::fmt;

use oip_types::{ErrorCode, ServiceError};

/// The tokenizer's file name, also used in error messages.
pub(crate) const TOKENIZER: &str = "tokenizer.json";

/// The error for a rejected model file or text.
///
/// ```
/// use oip_text::TextError;
///
/// let error = TextError::text(3, "not UTF-8: the first invalid byte is at offset 7");
/// assert_eq!(error.to_string(), "text 3: not UTF-8: the first invalid byte is at offset 7");
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TextError {
    /// A file of the model is damaged, exceeds a limit or needs an unsupported feature.
    #[error("{file}: {reason}")]
    #[non_exhaustive]
    File {
        /// The file's path in the model's directory.
        file: String,
        /// The problem, what was expected, and what to do.
        reason: String,
    },
    /// A text of a request cannot be tokenized.
    #[error("text {index}: {reason}")]
    #[non_exhaustive]
    Text {
        /// The text's index in the request.
        index: usize,
        /// The reason why the text is refused.
        reason: String,
    },
    /// A text is longer than allowed.
    #[error("text {index}: {reason}")]
    #[non_exhaustive]
    TooLong {
        /// The text's index in the request.
        index: usize,
        /// The length of the text and the limit.
        reason: String,
    },
    /// Tokenization was interrupted by its caller.
    #[error("tokenizing was interrupted")]
    Interrupted,
    /// A model's output does not match its files.
    #[error("{0}")]
    Output(String),
    /// A bug: the tokenizer panicked, for example.
    #[error("{0}")]
    Internal(String),
}

impl TextError {
    /// Creates a [`TextError::File`].
    pub fn file(file: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::File {
            file: file.into(),
            reason: reason.into(),
        }
    }

    /// Creates a [`TextError::Text`].
    pub fn text(index: usize, reason: impl Into<String>) -> Self {
        Self::Text {
            index,
            reason: reason.into(),
        }
    }

    /// Creates a [`TextError::TooLong`].
    pub fn too_long(index: usize, reason: impl Into<String>) -> Self {
        Self::TooLong {
            index,
            reason: reason.into(),
        }
    }
}

impl From<TextError> for ServiceError {
    fn from(error: TextError) -> Self {
        let code = match error {
            TextError::File { .. } | TextError::Text { .. } => ErrorCode::InvalidArgument,
            TextError::TooLong { .. } => ErrorCode::TooLarge,
            TextError::Interrupted => ErrorCode::Cancelled,
            TextError::Output(_) | TextError::Internal(_) => ErrorCode::Internal,
        };
        Self::new(code, error.to_string())
    }
}

/// Converts an error of the `tokenizers` crate about the tokenizer's file. The message may quote the file, so
/// it is truncated.
pub(crate) fn refused_file(error: impl fmt::Display) -> TextError {
    let reason: String = error.to_string().chars().take(300).collect();
    TextError::file(TOKENIZER, reason)
}
