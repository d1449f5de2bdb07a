//! Tokenizes the texts of a request. All limits are checked before the first text is tokenized.

use oip_model::CancelToken;
use oip_types::{DataType, ErrorCode, InferRequest, ParameterValue, ServiceError, TensorMetadata};

use crate::{
    error::TextError,
    tokenizer::{TextTokenizer, Tokens},
};

/// Names of the inputs: the texts, and the second text of each pair.
const TEXT: &str = "text";
const TEXT_PAIR: &str = "text_pair";
/// Names of request parameters.
const TRUNCATE: &str = "truncate";
const TOKEN_IDS: &str = "token_ids";

/// Reads and tokenizes the texts of requests.
pub(crate) struct TextReader {
    tokenizer: TextTokenizer,
    max_texts: usize,
    max_request_bytes: usize,
}

impl TextReader {
    /// Creates a reader for requests of at most `max_texts` texts and `max_request_bytes` bytes in total.
    pub(crate) fn new(tokenizer: TextTokenizer, max_texts: usize, max_request_bytes: usize) -> Self {
        Self {
            tokenizer,
            max_texts,
            max_request_bytes,
        }
    }

    pub(crate) fn tokenizer(&self) -> &TextTokenizer {
        &self.tokenizer
    }

    /// Returns the metadata of the inputs: the second texts only if the tokenizer has a template for pairs.
    pub(crate) fn inputs(&self) -> Vec<TensorMetadata> {
        let pairs = self.tokenizer.has_pairs();
        let pairs = pairs.then(|| TensorMetadata::new(TEXT_PAIR, DataType::BYTES, &[-1]).optional());
        let texts = TensorMetadata::new(TEXT, DataType::BYTES, &[-1]);
        [Some(texts), pairs].into_iter().flatten().collect()
    }

    /// Tokenizes all texts of a request.
    pub(crate) fn tokenize(
        &self,
        request: &InferRequest,
        cancel: &CancelToken,
    ) -> Result<Vec<Tokens>, ServiceError> {
        let texts =
            strings(request, TEXT)?.ok_or_else(|| ServiceError::invalid("input 'text' is missing"))?;
        let pairs = strings(request, TEXT_PAIR)?;
        self.check_all(&texts, pairs.as_deref())?;
        let has_ids = flag(request, TOKEN_IDS, false)?;
        if has_ids && pairs.is_some() {
            return Err(ServiceError::invalid(
                "the parameter 'token_ids' does not go with the input 'text_pair'",
            ));
        }
        let may_truncate = flag(request, TRUNCATE, true)?;
        let is_over = || cancel.is_expired() || cancel.is_cancelled();
        let mut tokens = Vec::with_capacity(texts.len());
        for (index, text) in texts.iter().enumerate() {
            check_time(cancel)?;
            let encoded = match has_ids {
                true => self.tokenizer.encode_ids(index, &ids(index, text)?)?,
                false => {
                    let pair = pairs.as_ref().map(|pairs| pairs[index]);
                    match self.tokenizer.encode_until(index, text, pair, &is_over) {
                        Err(TextError::Interrupted) => {
                            check_time(cancel).and(Err(TextError::Interrupted.into()))
                        }
                        encoded => encoded.map_err(ServiceError::from),
                    }?
                }
            };
            if encoded.is_truncated && !may_truncate {
                let most = self.tokenizer.max_length();
                let reason = format!("it has more than {most} tokens, and 'truncate' is false");
                return Err(TextError::too_long(index, reason).into());
            }
            tokens.push(encoded);
        }
        Ok(tokens)
    }

    /// Checks the number of texts, their total size, and each text's length and encoding.
    fn check_all(&self, texts: &[&[u8]], pairs: Option<&[&[u8]]>) -> Result<(), ServiceError> {
        if let Some(pairs) = pairs.filter(|pairs| pairs.len() != texts.len()) {
            let (found, expected) = (pairs.len(), texts.len());
            let message =
                format!("input 'text_pair' has {found} texts, expected {expected}, as many as 'text'");
            return Err(ServiceError::invalid(message));
        }
        let all = || [Some(texts), pairs].into_iter().flatten();
        let bytes: usize = all().flatten().map(|text| text.len()).sum();
        for (what, found, most) in [
            ("texts", texts.len(), self.max_texts),
            ("bytes of text", bytes, self.max_request_bytes),
        ] {
            if found > most {
                let message =
                    format!("the request has {found} {what}, expected at most {most}: send several requests");
                return Err(ServiceError::new(ErrorCode::TooLarge, message));
            }
        }
        for (index, text) in all().flat_map(|texts| texts.iter().enumerate()) {
            self.tokenizer.check(index, text)?;
        }
        Ok(())
    }
}

/// Returns the elements of the string input `name`; `None` if the request does not have this input.
fn strings<'r>(request: &'r InferRequest, name: &str) -> Result<Option<Vec<&'r [u8]>>, ServiceError> {
    let Some(value) = request.input(name) else {
        return Ok(None);
    };
    let strings = value
        .as_bytes()
        .ok_or_else(|| ServiceError::internal("a text input without strings"))?;
    Ok(Some(strings.iter().collect()))
}

/// Returns a boolean request parameter.
pub(crate) fn flag(request: &InferRequest, name: &str, default: bool) -> Result<bool, ServiceError> {
    match request.parameters.get(name) {
        None => Ok(default),
        Some(ParameterValue::Bool(flag)) => Ok(*flag),
        Some(_) => Err(ServiceError::invalid(format!(
            "parameter '{name}': expected true or false"
        ))),
    }
}

/// Parses token ids from a JSON array.
fn ids(index: usize, text: &[u8]) -> Result<Vec<u32>, TextError> {
    serde_json::from_slice(text).map_err(|_| TextError::text(index, "expected a JSON array of token ids"))
}

/// Fails once a request's deadline has passed or its client has disconnected.
pub(crate) fn check_time(cancel: &CancelToken) -> Result<(), ServiceError> {
    if cancel.is_expired() {
        return Err(ServiceError::new(
            ErrorCode::DeadlineExceeded,
            "the request's deadline passed",
        ));
    }
    match cancel.is_cancelled() {
        true => Err(ServiceError::new(
            ErrorCode::Cancelled,
            "the request was cancelled",
        )),
        false => Ok(()),
    }
}

/// Creates the error for a bug in this crate or in a network.
pub(crate) fn internal(error: impl Into<Box<dyn std::error::Error>>) -> ServiceError {
    ServiceError::internal(error.into().to_string())
}
