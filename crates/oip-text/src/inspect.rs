//! Checks a `tokenizer.json` before the crate `tokenizers` builds anything from the file: sizes, nesting,
//! patterns, growth of texts.

use std::fmt;

use regex::RegexBuilder;
use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::{Value as Json, value::RawValue};

use crate::{
    error::{TOKENIZER, TextError, refused_file},
    limits::TokenizerLimits,
};

/// Maximum nesting of `Sequence`s. The deserializer of the `tokenizers` crate tries several forms at each
/// level, so its time grows exponentially with the depth.
const MAX_DEPTH: usize = 8;

/// Maximum size of a component's JSON in bytes. The largest known component is a character map of 420 KB.
const MAX_PART: usize = 4 << 20;

/// Maximum size of a compiled pattern in bytes.
const MAX_PATTERN: usize = 4 << 20;

/// Maximum number of pieces in a template, and of token ids in each of its special tokens.
const MAX_PIECES: usize = 64;

/// Maximum length in bytes of prefixes and suffixes, which are added to every word.
const MAX_AFFIX: usize = 64;

/// The only patterns with a look-ahead that are allowed. They need backtracking, but only at one position
/// after a run of white space. All other patterns must be accepted by the crate `regex`, which matches in
/// linear time.
const BACKTRACKING: &[&str] = &[
    // GPT-2, RoBERTa, BART.
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    // cl100k, Llama 3.
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    // Qwen 2 and 3.
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    // o200k.
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
];

/// The members of `tokenizer.json` that are inspected. All other members are ignored.
#[derive(Deserialize)]
struct File<'a> {
    #[serde(default)]
    added_tokens: Count,
    #[serde(borrow, default)]
    normalizer: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pre_tokenizer: Option<&'a RawValue>,
    #[serde(borrow, default)]
    post_processor: Option<&'a RawValue>,
    model: Model,
}

#[derive(Deserialize)]
struct Model {
    #[serde(default)]
    vocab: Count,
    #[serde(default)]
    merges: Count,
    #[serde(default)]
    max_input_chars_per_word: Option<u64>,
    #[serde(default)]
    dropout: Option<f64>,
    #[serde(default)]
    continuing_subword_prefix: Option<String>,
    #[serde(default)]
    end_of_word_suffix: Option<String>,
}

/// Counts the entries of an object or an array without keeping them.
#[derive(Default)]
struct Count(usize);

impl<'de> Deserialize<'de> for Count {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;

        impl<'de> Visitor<'de> for Entries {
            type Value = Count;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object, an array or null")
            }

            fn visit_unit<E>(self) -> Result<Count, E> {
                Ok(Count(0))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Count, A::Error> {
                let mut count = 0;
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {
                    count += 1;
                }
                Ok(Count(count))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Count, A::Error> {
                let mut count = 0;
                while seq.next_element::<IgnoredAny>()?.is_some() {
                    count += 1;
                }
                Ok(Count(count))
            }
        }
        deserializer.deserialize_any(Entries)
    }
}

/// Checks that a tokenizer of `entries` tokens and merges, from a file of `bytes` bytes, fits into `left`
/// bytes of memory.
fn memory_fits(entries: usize, bytes: usize, left: Option<u64>) -> Result<(), TextError> {
    // Estimates the memory: the vocabulary is stored in two maps and the merges in one, in addition to the
    // strings.
    let memory = entries
        .saturating_mul(200)
        .saturating_add(bytes.saturating_mul(4)) as u64;
    match left {
        Some(left) if memory > left => Err(refused(format!(
            "the tokenizer takes about {memory} bytes of memory, and {left} are left"
        ))),
        _ => Ok(()),
    }
}

/// Checks a tokenizer's file against the limits. Returns whether the file has a template for pairs of texts.
///
/// # Errors
/// Returns an error that names the limit that the file exceeds.
pub(crate) fn inspect(bytes: &[u8], limits: &TokenizerLimits) -> Result<bool, TextError> {
    if bytes.len() > limits.max_file_bytes {
        return Err(over("bytes", bytes.len(), limits.max_file_bytes));
    }
    let file: File<'_> = serde_json::from_slice(bytes).map_err(refused_file)?;
    let model = &file.model;
    let counts = [
        ("tokens in model.vocab", model.vocab.0, limits.max_vocabulary),
        ("merges", model.merges.0, limits.max_vocabulary.saturating_mul(4)),
        ("added tokens", file.added_tokens.0, limits.max_added_tokens),
    ];
    for (what, found, most) in counts {
        if found > most {
            return Err(over(what, found, most));
        }
    }
    let entries = model.vocab.0 + model.merges.0 + file.added_tokens.0;
    memory_fits(entries, bytes.len(), machine_memory::available_memory())?;
    if let Some(chars) = model
        .max_input_chars_per_word
        .filter(|chars| *chars > limits.max_word_chars)
    {
        let what = "model.max_input_chars_per_word is";
        return Err(refused(format!(
            "{what} {chars}, expected at most {}",
            limits.max_word_chars
        )));
    }
    if model.dropout.is_some_and(|dropout| dropout != 0.0) {
        return Err(refused(
            "model.dropout makes tokens random: set it to null".to_owned(),
        ));
    }
    for affix in [&model.continuing_subword_prefix, &model.end_of_word_suffix]
        .into_iter()
        .flatten()
    {
        affix_fits(affix)?;
    }
    let mut growth = 1;
    if let Some(part) = part("normalizer", file.normalizer)? {
        normalizer(&part, 0, &mut growth)?;
        if growth > limits.max_growth {
            return Err(refused(format!(
                "its normalizers can make a text {growth} times as long, expected at most {} times",
                limits.max_growth
            )));
        }
    }
    if let Some(part) = part("pre_tokenizer", file.pre_tokenizer)? {
        pre_tokenizer(&part, 0)?;
    }
    match part("post_processor", file.post_processor)? {
        Some(part) => post_processor(&part, 0),
        None => Ok(false),
    }
}

fn refused(reason: String) -> TextError {
    TextError::file(TOKENIZER, reason)
}

fn over(what: &str, found: usize, most: usize) -> TextError {
    refused(format!("it has {found} {what}, expected at most {most}"))
}

fn part(name: &str, raw: Option<&RawValue>) -> Result<Option<Json>, TextError> {
    let Some(raw) = raw.map(RawValue::get) else {
        return Ok(None);
    };
    if raw.len() > MAX_PART {
        return Err(over(&format!("bytes in {name}"), raw.len(), MAX_PART));
    }
    let json: Json = serde_json::from_str(raw).map_err(refused_file)?;
    Ok(Some(json).filter(|json| !json.is_null()))
}

fn text<'j>(json: &'j Json, field: &str) -> &'j str {
    json.get(field).and_then(Json::as_str).unwrap_or_default()
}

/// Returns the members of a `Sequence`. Fails if `depth`, the number of sequences around it, reaches
/// [`MAX_DEPTH`].
fn members<'j>(json: &'j Json, field: &str, depth: usize) -> Result<&'j [Json], TextError> {
    if depth >= MAX_DEPTH {
        return Err(over("levels of Sequence in each other", depth + 1, MAX_DEPTH));
    }
    let members = json.get(field).and_then(Json::as_array);
    Ok(members.map_or(&[], Vec::as_slice))
}

fn normalizer(json: &Json, depth: usize, growth: &mut usize) -> Result<(), TextError> {
    let mut grow = |factor: usize| *growth = growth.saturating_mul(factor.max(1));
    match text(json, "type") {
        "Sequence" => {
            for member in members(json, "normalizers", depth)? {
                normalizer(member, depth + 1, growth)?;
            }
        }
        "Replace" => {
            let content = text(json, "content").len();
            let pattern = json.get("pattern");
            let literal = pattern
                .and_then(|pattern| pattern.get("String"))
                .and_then(Json::as_str);
            let regex = pattern
                .and_then(|pattern| pattern.get("Regex"))
                .and_then(Json::as_str);
            match (literal, regex) {
                (Some(literal), _) => grow(content.div_ceil(literal.len().max(1))),
                (None, Some(regex)) => grow(match is_linear(regex)? {
                    Some(regex) if !regex.is_match("") => content,
                    // An empty match inserts the content between any two characters.
                    _ => content.saturating_add(1),
                }),
                (None, None) => {}
            }
        }
        "Prepend" => affix_fits(text(json, "prepend"))?,
        "Precompiled" => grow(longest_replacement(text(json, "precompiled_charsmap"))),
        _ => {}
    }
    Ok(())
}

fn pre_tokenizer(json: &Json, depth: usize) -> Result<(), TextError> {
    match text(json, "type") {
        "Sequence" => {
            for member in members(json, "pretokenizers", depth)? {
                pre_tokenizer(member, depth + 1)?;
            }
        }
        "Split" => {
            let pattern = json.get("pattern").and_then(|pattern| pattern.get("Regex"));
            if let Some(pattern) = pattern.and_then(Json::as_str) {
                is_linear(pattern)?;
            }
        }
        "Metaspace" => affix_fits(text(json, "replacement"))?,
        _ => {}
    }
    Ok(())
}

/// Checks a post-processor. Returns whether it has a template for pairs of texts.
fn post_processor(json: &Json, depth: usize) -> Result<bool, TextError> {
    match text(json, "type") {
        "Sequence" => {
            let mut has_pairs = false;
            for member in members(json, "processors", depth)? {
                has_pairs |= post_processor(member, depth + 1)?;
            }
            return Ok(has_pairs);
        }
        "BertProcessing" | "RobertaProcessing" => return Ok(true),
        "TemplateProcessing" => {
            for field in ["single", "pair"] {
                let pieces = json.get(field).and_then(Json::as_array).map_or(0, Vec::len);
                if pieces > MAX_PIECES {
                    return Err(over(
                        &format!("pieces in the template {field}"),
                        pieces,
                        MAX_PIECES,
                    ));
                }
            }
            let tokens = json.get("special_tokens").and_then(Json::as_object);
            let ids = tokens.into_iter().flat_map(|tokens| tokens.values());
            let ids = ids.filter_map(|token| token.get("ids")?.as_array());
            if let Some(ids) = ids.map(Vec::len).find(|ids| *ids > MAX_PIECES) {
                return Err(over("ids in a special token of the template", ids, MAX_PIECES));
            }
            let pieces = json.get("pair").and_then(Json::as_array).into_iter().flatten();
            let sequences = pieces.filter_map(|piece| piece.get("Sequence"));
            return Ok(sequences.map(|sequence| text(sequence, "id")).any(|id| id == "B"));
        }
        _ => {}
    }
    Ok(false)
}

/// Compiles a pattern with the crate `regex`, which matches in linear time. Returns `None` for a pattern in
/// [`BACKTRACKING`].
fn is_linear(pattern: &str) -> Result<Option<regex::Regex>, TextError> {
    if BACKTRACKING.contains(&pattern) {
        return Ok(None);
    }
    let compiled = RegexBuilder::new(pattern).size_limit(MAX_PATTERN).build();
    compiled.map(Some).map_err(|_| {
        let shown: String = pattern.chars().take(80).collect();
        refused(format!(
            "the pattern {shown:?} may need backtracking, which takes unbounded time; expected a pattern without look-around and \
             back-references, or one of GPT-2, Llama 3, Qwen or o200k"
        ))
    })
}

fn affix_fits(affix: &str) -> Result<(), TextError> {
    match affix.len() {
        0..=MAX_AFFIX => Ok(()),
        length => Err(over("bytes in a prefix or suffix", length, MAX_AFFIX)),
    }
}

/// Returns the length in bytes of the longest replacement in a `SentencePiece` character map. The map encodes
/// in base64 the length of a trie, the trie, and NUL-terminated strings. Damaged maps are not reported here,
/// since the `tokenizers` crate refuses them.
fn longest_replacement(map: &str) -> usize {
    let bytes = base64(map);
    let trie = bytes
        .first_chunk()
        .map_or(0, |size| u32::from_le_bytes(*size) as usize);
    let strings = bytes.get(trie.saturating_add(4)..).unwrap_or_default();
    strings
        .split(|byte| *byte == 0)
        .map(<[u8]>::len)
        .max()
        .unwrap_or(1)
}

fn base64(text: &str) -> Vec<u8> {
    use base64::{Engine, engine::general_purpose::STANDARD};
    STANDARD.decode(text).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tokenizer_that_does_not_fit_into_memory_is_refused() {
        let refusal = memory_fits(1000, 10_000, Some(239_999)).unwrap_err();
        assert_eq!(
            refusal.to_string(),
            "tokenizer.json: the tokenizer takes about 240000 bytes of memory, and 239999 are left"
        );
        assert!(memory_fits(1000, 10_000, Some(240_000)).is_ok());
        assert!(memory_fits(1000, 10_000, None).is_ok());
        assert!(memory_fits(usize::MAX, usize::MAX, Some(u64::MAX - 1)).is_err());
    }
}
