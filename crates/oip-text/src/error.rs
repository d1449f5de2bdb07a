//! Why text cannot be worked on: by kind, with what a person can do about it.

use std::fmt;

use oip_types::{ErrorCode, ServiceError};

/// The file of a tokenizer, in messages too.
pub(crate) const TOKENIZER: &str = "tokenizer.json";

/// Why a file of a model or a text is refused.
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
    /// A file cannot be used.
    #[error("{file}: {reason}")]
    #[non_exhaustive]
    File {
        /// The file's path in the model's directory.
        file: String,
        /// What is wrong, what was expected, and what to do.
        reason: String,
    },
    /// A text of a request cannot be used.
    #[error("text {index}: {reason}")]
    #[non_exhaustive]
    Text {
        /// The text's index in the request.
        index: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// A text is longer than allowed.
    #[error("text {index}: {reason}")]
    #[non_exhaustive]
    TooLong {
        /// The text's index in the request.
        index: usize,
        /// Its length and the limit.
        reason: String,
    },
    /// Tokenizing was given up because its caller said so.
    #[error("tokenizing was interrupted")]
    Interrupted,
    /// What a model gave does not fit what its files say.
    #[error("{0}")]
    Output(String),
    /// A panic or another defect of a tokenizer.
    #[error("{0}")]
    Internal(String),
}

impl TextError {
    /// A file that cannot be used.
    pub fn file(file: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::File {
            file: file.into(),
            reason: reason.into(),
        }
    }

    /// A text that cannot be used.
    pub fn text(index: usize, reason: impl Into<String>) -> Self {
        Self::Text {
            index,
            reason: reason.into(),
        }
    }

    /// A text that is too long.
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

/// An error of a library about the tokenizer's file. The cause can quote the file, so it is cut.
pub(crate) fn refused_file(error: impl fmt::Display) -> TextError {
    let reason: String = error.to_string().chars().take(300).collect();
    TextError::file(TOKENIZER, reason)
}
