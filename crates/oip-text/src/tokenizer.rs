//! Text to tokens: the crate `tokenizers` behind limits, with its panics caught.

use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    thread,
};

use tokenizers::{
    Encoding, Model, OffsetType, PostProcessor, PreTokenizer, Token, Tokenizer, TruncationDirection,
    TruncationParams, TruncationStrategy, truncate_encodings,
};

use crate::{
    error::{TOKENIZER, TextError, refused_file},
    inspect::inspect,
    limits::TokenizerLimits,
};

/// A tokenizer that is ready, with a longest sequence. Many threads may use it at once.
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
    pad: u32,
    offsets: OffsetType,
}

/// The tokens of a text, or of a pair of texts, without padding.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tokens {
    /// Their ids, special tokens included.
    pub ids: Vec<u32>,
    /// 1 for tokens of the second text where the tokenizer tells the two apart, else 0.
    pub type_ids: Vec<u32>,
    /// Where each begins and ends in its text, in characters; `(0, 0)` for special tokens.
    pub offsets: Vec<(usize, usize)>,
    /// Whether each is a special token, which the post-processor added.
    pub is_special: Vec<bool>,
    /// Whether tokens were left out at the end, so that the rest fits the longest sequence.
    pub is_truncated: bool,
}

impl TextTokenizer {
    /// Reads a `tokenizer.json`. `max_length` is the longest sequence of tokens, special ones included; what the file says of
    /// truncation and padding does not count.
    ///
    /// # Errors
    /// [`TextError::File`] when the file is damaged, has more than the limits allow, or adds as many special tokens as the longest
    /// sequence has.
    pub fn read(bytes: &[u8], max_length: usize, limits: &TokenizerLimits) -> Result<Self, TextError> {
        inspect(bytes, limits)?;
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
        let pad = inner.get_padding().map(|padding| padding.pad_id);
        let named = ["[PAD]", "<pad>"]
            .iter()
            .find_map(|token| inner.token_to_id(token));
        let pad = pad.or(named).unwrap_or(0);
        inner.with_padding(None);
        inner.with_truncation(None).map_err(refused_file)?;
        Ok(Self {
            inner,
            max_length,
            max_text_bytes: limits.max_text_bytes,
            pad,
            offsets: OffsetType::Char,
        })
    }

    /// The same without the offsets of tokens, which are (0, 0) then and take no time.
    #[must_use]
    pub fn without_offsets(self) -> Self {
        Self {
            offsets: OffsetType::None,
            ..self
        }
    }

    /// The longest sequence, in tokens.
    #[must_use]
    pub fn max_length(&self) -> usize {
        self.max_length
    }

    /// The id of the token that pads sequences.
    #[must_use]
    pub fn pad(&self) -> u32 {
        self.pad
    }

    /// The number of different ids, added tokens included.
    #[must_use]
    pub fn vocabulary(&self) -> usize {
        self.inner.get_vocab_size(true)
    }

    /// Checks a text before any work: its length, and that it is UTF-8. `index` is its index in the request, for the message.
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
    /// As [`Self::check`]; [`TextError::Text`] when the tokenizer cannot take the text, as without a token for unknown words.
    pub fn encode(&self, index: usize, text: &[u8], pair: Option<&[u8]>) -> Result<Tokens, TextError> {
        let text = self.check(index, text)?;
        let pair = pair.map(|pair| self.check(index, pair)).transpose()?;
        let encoded = catch_unwind(AssertUnwindSafe(|| {
            // One token more than fits shows that there are more. Of a pair both lengths count.
            let most = pair.is_none().then_some(self.max_length + 1);
            let first = self.tokenize(text, 0, most)?;
            let second = pair.map(|pair| self.tokenize(pair, 1, None)).transpose()?;
            self.finish(first, second)
        }));
        caught(index, encoded)
    }

    /// Makes a sequence of token ids into one that the model takes: with special tokens, cut to the longest sequence.
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
            let token =
                token.ok_or_else(|| TextError::text(index, format!("{id} is no token id of this model")))?;
            Ok(Token::new(*id, token, (0, 0)))
        });
        let encoding = Encoding::from_tokens(known.collect::<Result<_, TextError>>()?, 0);
        caught(
            index,
            catch_unwind(AssertUnwindSafe(|| self.finish(encoding, None))),
        )
    }

    /// Tokens of a text without special ones, not many more than `most`.
    fn tokenize(&self, text: &str, kind: u32, most: Option<usize>) -> tokenizers::Result<Encoding> {
        let vocabulary = self.inner.get_added_vocabulary();
        let mut split = vocabulary.extract_and_normalize(self.inner.get_normalizer(), text);
        if let Some(pre_tokenizer) = self.inner.get_pre_tokenizer() {
            pre_tokenizer.pre_tokenize(&mut split)?;
        }
        let most = most.map(|most| (most, TruncationDirection::Right));
        self.inner
            .get_model()
            .tokenize_in_pretokenized(&mut split, most)?;
        split.into_encoding(None, kind, self.offsets)
    }

    /// Cuts what is too long and adds special tokens.
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

/// What the crate gave for a text, unless it panicked.
fn caught(index: usize, encoded: thread::Result<tokenizers::Result<Tokens>>) -> Result<Tokens, TextError> {
    let encoded = encoded.map_err(|_| TextError::Internal("a panic in the tokenizer".to_owned()))?;
    encoded.map_err(|error| TextError::text(index, error.to_string()))
}

impl fmt::Debug for TextTokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TextTokenizer")
            .field("max_length", &self.max_length)
            .field("vocabulary", &self.vocabulary())
            .finish_non_exhaustive()
    }
}
