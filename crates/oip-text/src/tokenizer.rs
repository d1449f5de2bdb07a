//! Tokenizes texts with the crate `tokenizers`, within limits, and converts its panics to errors.

use std::{
    cell::Cell,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    thread,
};

use tokenizers::{
    AddedToken, Encoding, Model, NormalizedString, OffsetType, PostProcessor, PreTokenizer, Token, Tokenizer,
    TruncationDirection, TruncationParams, TruncationStrategy, truncate_encodings,
};

use crate::{
    description::{SPECIAL_TOKENS, SpecialToken, special_tokens},
    error::{TOKENIZER, TextError, refused_file},
    inspect::inspect,
    limits::TokenizerLimits,
};

/// Number of words between interrupt checks. A word takes at most a few milliseconds: it has up to 200
/// characters, and at each character substrings of all lengths are looked up.
const WORDS_BETWEEN_CHECKS: usize = 16;

/// A loaded tokenizer with a maximum sequence length. It can be shared between threads.
///
/// ```
/// use oip_text::{TextTokenizer, TokenizerLimits};
///
/// let file = r#"{"version": "1.0", "added_tokens": [], "normalizer": {"type": "Lowercase"},
///     "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null, "decoder": null,
///     "model": {"type": "WordLevel", "vocab": {"[UNK]": 0, "hello": 1, "world": 2}, "unk_token": "[UNK]"}}"#;
/// let tokenizer = TextTokenizer::read(file.as_bytes(), 2, &TokenizerLimits::default())?;
/// let tokens = tokenizer.encode(0, b"Hello world again", None)?;
/// assert_eq!(tokens.ids, [1, 2]);
/// assert!(tokens.is_truncated);
/// # Ok::<(), oip_text::TextError>(())
/// ```
pub struct TextTokenizer {
    inner: Tokenizer,
    max_length: usize,
    max_text_bytes: usize,
    max_added_tokens: usize,
    pad: u32,
    /// Whether `tokenizer.json` declares the padding token.
    has_padding: bool,
    has_pairs: bool,
    offsets: OffsetType,
}

/// The tokens of a text, or of a pair of texts, without padding.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tokens {
    /// The ids of the tokens, including special tokens.
    pub ids: Vec<u32>,
    /// 1 for tokens of the second text if the tokenizer distinguishes the two, otherwise 0.
    pub type_ids: Vec<u32>,
    /// Start and end of each token in its text, counted in characters; `(0, 0)` for special tokens.
    pub offsets: Vec<(usize, usize)>,
    /// Whether each token is a special token, which the post-processor added.
    pub is_special: Vec<bool>,
    /// Whether tokens were dropped at the end to fit the maximum length.
    pub is_truncated: bool,
}

impl TextTokenizer {
    /// Reads a `tokenizer.json`. `max_length` is the maximum number of tokens in a sequence, including
    /// special tokens; the file's own truncation and padding settings are ignored.
    ///
    /// # Errors
    /// [`TextError::File`] when the file is damaged, exceeds the limits, or adds at least as many special
    /// tokens as the maximum length.
    pub fn read(bytes: &[u8], max_length: usize, limits: &TokenizerLimits) -> Result<Self, TextError> {
        let has_pairs = inspect(bytes, limits)?;
        let read = catch_unwind(|| Tokenizer::from_bytes(bytes));
        let read = read.map_err(|_| TextError::file(TOKENIZER, "the tokenizer cannot be built from it"))?;
        let mut inner = read.map_err(refused_file)?;
        let added = |is_pair| {
            inner
                .get_post_processor()
                .map_or(0, |post| post.added_tokens(is_pair))
        };
        let added = added(false).max(added(true));
        if max_length <= added {
            return Err(TextError::file(
                TOKENIZER,
                format!("it adds {added} special tokens, and the longest sequence has {max_length} tokens"),
            ));
        }
        let padding = inner.get_padding().map(|padding| padding.pad_id);
        let named = ["[PAD]", "<pad>"]
            .iter()
            .find_map(|token| inner.token_to_id(token));
        inner.with_padding(None);
        inner.with_truncation(None).map_err(refused_file)?;
        Ok(Self {
            inner,
            max_length,
            max_text_bytes: limits.max_text_bytes,
            max_added_tokens: limits.max_added_tokens,
            has_padding: padding.is_some(),
            pad: padding.or(named).unwrap_or(0),
            has_pairs,
            offsets: OffsetType::Char,
        })
    }

    /// Adds declarations from a `special_tokens_map.json` that `tokenizer.json` lacks: which tokens of the
    /// vocabulary are special, so that they are recognized in texts, and which token is the padding token.
    ///
    /// # Errors
    /// [`TextError::File`] when the file is damaged or has more special tokens than
    /// [`TokenizerLimits::max_added_tokens`].
    pub fn with_special_tokens(mut self, map: &[u8]) -> Result<Self, TextError> {
        let special = special_tokens(map)?;
        let most = self.max_added_tokens;
        if special.len() > most {
            let found = special.len();
            let reason = format!("it has {found} tokens, expected at most {most}");
            return Err(TextError::file(SPECIAL_TOKENS, reason));
        }
        let mut missing = Vec::new();
        for (kind, token) in special {
            let token = match token {
                SpecialToken::Content(content) => AddedToken::from(content, true),
                SpecialToken::Token {
                    content,
                    single_word,
                    lstrip,
                    rstrip,
                    normalized,
                } => AddedToken::from(content, true)
                    .single_word(single_word)
                    .lstrip(lstrip)
                    .rstrip(rstrip)
                    .normalized(normalized),
            };
            // Skips tokens outside the vocabulary, which would get an id that is unknown to the network.
            let Some(id) = self.inner.token_to_id(&token.content) else {
                continue;
            };
            if kind == "pad_token" && !self.has_padding {
                self.pad = id;
            }
            if !self
                .inner
                .get_added_vocabulary()
                .get_vocab()
                .contains_key(&token.content)
            {
                missing.push(token);
            }
        }
        let added = catch_unwind(AssertUnwindSafe(|| self.inner.add_special_tokens(missing)));
        match added {
            Ok(Ok(_)) => Ok(self),
            Ok(Err(error)) => Err(TextError::file(SPECIAL_TOKENS, error.to_string())),
            Err(_) => Err(TextError::file(
                SPECIAL_TOKENS,
                "its tokens cannot be added to those of the tokenizer",
            )),
        }
    }

    /// Disables token offsets, which saves time; all offsets are then (0, 0).
    #[must_use]
    pub fn without_offsets(self) -> Self {
        Self {
            offsets: OffsetType::None,
            ..self
        }
    }

    /// Returns the maximum number of tokens in a sequence.
    #[must_use]
    pub fn max_length(&self) -> usize {
        self.max_length
    }

    /// Returns whether the tokenizer has a template for pairs of texts.
    #[must_use]
    pub fn has_pairs(&self) -> bool {
        self.has_pairs
    }

    /// Returns the id of the padding token.
    #[must_use]
    pub fn pad(&self) -> u32 {
        self.pad
    }

    /// Returns the number of different ids, including added tokens.
    #[must_use]
    pub fn vocabulary(&self) -> usize {
        self.inner.get_vocab_size(true)
    }

    /// Checks the length of a text before tokenization, and that the text is UTF-8. `index` is its index in
    /// the request, for the message.
    ///
    /// # Errors
    /// [`TextError::TooLong`] or [`TextError::Text`].
    pub fn check<'t>(&self, index: usize, text: &'t [u8]) -> Result<&'t str, TextError> {
        if text.len() > self.max_text_bytes {
            let (found, most) = (text.len(), self.max_text_bytes);
            return Err(TextError::too_long(
                index,
                format!("it has {found} bytes, expected at most {most}"),
            ));
        }
        std::str::from_utf8(text).map_err(|error| {
            let at = error.valid_up_to();
            TextError::text(
                index,
                format!("not UTF-8: the first invalid byte is at offset {at}"),
            )
        })
    }

    /// Tokenizes a text, or a pair of texts.
    ///
    /// # Errors
    /// The errors of [`Self::check`]; [`TextError::Text`] when the tokenizer cannot encode the text, for
    /// example because it has no token for unknown words.
    pub fn encode(&self, index: usize, text: &[u8], pair: Option<&[u8]>) -> Result<Tokens, TextError> {
        self.encode_until(index, text, pair, &|| false)
    }

    /// Tokenizes like [`Self::encode`], but stops when `is_over`, which is called every few words, returns
    /// true.
    ///
    /// # Errors
    /// The errors of [`Self::encode`]; [`TextError::Interrupted`] when `is_over` returned true.
    pub fn encode_until(
        &self,
        index: usize,
        text: &[u8],
        pair: Option<&[u8]>,
        is_over: &dyn Fn() -> bool,
    ) -> Result<Tokens, TextError> {
        let text = self.check(index, text)?;
        let pair = pair.map(|pair| self.check(index, pair)).transpose()?;
        let encoded = catch_unwind(AssertUnwindSafe(|| {
            // One token above the limit is enough to see that the text is too long. For a pair, truncation
            // depends on both lengths, so both texts are tokenized in full.
            let most = pair.map_or(self.max_length + 1, |_| usize::MAX);
            let first = self.tokenize(text, 0, most, is_over)?;
            let second = pair.map(|pair| self.tokenize(pair, 1, most, is_over));
            let second = second.transpose()?;
            self.finish(first, second)
        }));
        caught(index, encoded)
    }

    /// Prepares a sequence of token ids for the model: adds special tokens and truncates it to the maximum
    /// length.
    ///
    /// # Errors
    /// [`TextError::Text`] when an id is not in the vocabulary.
    pub fn encode_ids(&self, index: usize, ids: &[u32]) -> Result<Tokens, TextError> {
        if ids.len() > self.max_text_bytes {
            let (found, most) = (ids.len(), self.max_text_bytes);
            return Err(TextError::too_long(
                index,
                format!("it has {found} token ids, expected at most {most}"),
            ));
        }
        let known = ids.iter().map(|id| {
            let token = self.inner.id_to_token(*id);
            let token = token
                .ok_or_else(|| TextError::text(index, format!("{id} is not a token id of this model")))?;
            Ok(Token::new(*id, token, (0, 0)))
        });
        let encoding = Encoding::from_tokens(known.collect::<Result<_, TextError>>()?, 0);
        caught(
            index,
            catch_unwind(AssertUnwindSafe(|| self.finish(encoding, None))),
        )
    }

    /// Returns the tokens of a text without special tokens. Stops after about `most` tokens.
    fn tokenize(
        &self,
        text: &str,
        kind: u32,
        most: usize,
        is_over: &dyn Fn() -> bool,
    ) -> tokenizers::Result<Encoding> {
        let vocabulary = self.inner.get_added_vocabulary();
        let mut split = vocabulary.extract_and_normalize(self.inner.get_normalizer(), text);
        if let Some(pre_tokenizer) = self.inner.get_pre_tokenizer() {
            pre_tokenizer.pre_tokenize(&mut split)?;
        }
        let model = self.inner.get_model();
        let words = Cell::new(0_usize);
        let tokens = |word: &NormalizedString| {
            words.set(words.get() + 1);
            match words.get().is_multiple_of(WORDS_BETWEEN_CHECKS) && is_over() {
                true => Err(Box::new(TextError::Interrupted) as tokenizers::Error),
                false => model.tokenize(word.get()),
            }
        };
        split.tokenize_with_limit(tokens, most, TruncationDirection::Right)?;
        split.into_encoding(None, kind, self.offsets)
    }

    /// Truncates the sequence to the maximum length and adds special tokens.
    fn finish(&self, first: Encoding, second: Option<Encoding>) -> tokenizers::Result<Tokens> {
        let post = self.inner.get_post_processor();
        let added = post.map_or(0, |post| post.added_tokens(second.is_some()));
        let length = first.len() + second.as_ref().map_or(0, Encoding::len) + added;
        let params = TruncationParams {
            direction: TruncationDirection::Right,
            max_length: self.max_length.saturating_sub(added),
            strategy: TruncationStrategy::LongestFirst,
            stride: 0,
        };
        let (first, second) = truncate_encodings(first, second, &params)?;
        let encoded = self.inner.post_process(first, second, true)?;
        let is_special = encoded.get_special_tokens_mask().iter();
        Ok(Tokens {
            ids: encoded.get_ids().to_vec(),
            type_ids: encoded.get_type_ids().to_vec(),
            offsets: encoded.get_offsets().to_vec(),
            is_special: is_special.map(|special| *special != 0).collect(),
            is_truncated: length > self.max_length,
        })
    }
}

/// Returns the result of the `tokenizers` crate, or an error if it panicked.
fn caught(index: usize, encoded: thread::Result<tokenizers::Result<Tokens>>) -> Result<Tokens, TextError> {
    let encoded = encoded.map_err(|_| TextError::Internal("a panic in the tokenizer".to_owned()))?;
    encoded.map_err(|error| match error.downcast::<TextError>() {
        Ok(error) => *error,
        Err(error) => TextError::text(index, error.to_string()),
    })
}

impl fmt::Debug for TextTokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TextTokenizer")
            .field("max_length", &self.max_length)
            .field("vocabulary", &self.vocabulary())
            .finish_non_exhaustive()
    }
}
