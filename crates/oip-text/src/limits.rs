//! Bounds of what a tokenizer's file may declare and of what a text may cost.

/// Bounds of a tokenizer's file and of its texts. The defaults admit the tokenizers in use.
///
/// ```
/// use oip_text::TokenizerLimits;
///
/// let limits = TokenizerLimits::default().with(|limits| limits.max_text_bytes = 4096);
/// assert_eq!(limits.max_text_bytes, 4096);
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TokenizerLimits {
    /// Bytes of `tokenizer.json`.
    pub max_file_bytes: usize,
    /// Tokens of the vocabulary, and a quarter of the merges.
    pub max_vocabulary: usize,
    /// Tokens in `added_tokens`.
    pub max_added_tokens: usize,
    /// The factor by which all `Replace` and `Precompiled` normalizers together may lengthen a text.
    pub max_growth: usize,
    /// Characters of a word that `WordPiece` looks up, which takes time with its cube.
    pub max_word_chars: u64,
    /// Bytes of one text. Longer texts are refused before they are tokenized, since tokenizing cannot be interrupted.
    pub max_text_bytes: usize,
}

impl Default for TokenizerLimits {
    fn default() -> Self {
        Self {
            max_file_bytes: 64 << 20,
            max_vocabulary: 2_000_000,
            max_added_tokens: 100_000,
            max_growth: 128,
            max_word_chars: 200,
            max_text_bytes: 128 << 10,
        }
    }
}

impl TokenizerLimits {
    /// The same after some changes.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }
}
