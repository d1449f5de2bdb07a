//! Reads what a Hugging Face directory declares about its model: its task, its maximum length, its labels.

use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Map, Value as Json};

use crate::{error::TextError, labels, labels::Activation, pooling::Pooling};

/// The network's description, written by transformers.
pub(crate) const CONFIG: &str = "config.json";
/// The steps of a sentence model, written by sentence-transformers.
pub(crate) const MODULES: &str = "modules.json";
/// The file with the maximum length of a sentence model.
pub(crate) const SENTENCE: &str = "sentence_bert_config.json";
/// The file with the maximum length of models that are not sentence models.
pub(crate) const TOKENIZER_CONFIG: &str = "tokenizer_config.json";

/// The file with the special tokens, for tokenizers whose own file does not mark them.
pub(crate) const SPECIAL_TOKENS: &str = "special_tokens_map.json";

/// The maximum sequence length in tokens if no file declares a maximum.
const DEFAULT_LENGTH: u64 = 512;
/// Upper limit for the maximum sequence length that files may declare, in tokens.
const MAX_LENGTH: u64 = 32_768;
/// Maximum size of a description file in bytes.
const MAX_FILE: usize = 16 << 20;

/// The kind of output that a model computes for a text.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Task {
    /// One vector for the text.
    Embedding {
        /// How the tokens' vectors are reduced to one.
        pooling: Pooling,
        /// Whether the vector is normalized to Euclidean length 1.
        is_normalized: bool,
    },
    /// A score for each class, or one score for the text.
    Classification {
        /// The labels of the classes; empty if the files have none.
        labels: Vec<String>,
        /// How logits become scores.
        activation: Activation,
    },
    /// A class for each token.
    TokenClassification {
        /// The labels of the classes; empty if the files have none.
        labels: Vec<String>,
    },
}

/// The settings that a model's files declare, such as its task and maximum sequence length.
///
/// ```
/// use bytes::Bytes;
/// use oip_text::{Pooling, Task, TextDescription};
///
/// let config = Bytes::from(r#"{"model_type": "bert", "max_position_embeddings": 128}"#);
/// let described = TextDescription::read(&[("config.json".to_owned(), config)])?;
/// assert_eq!(described.max_length, 128);
/// assert_eq!(described.task, Task::Embedding { pooling: Pooling::Mean, is_normalized: false });
/// # Ok::<(), oip_text::TextError>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TextDescription {
    /// The model's task.
    pub task: Task,
    /// The maximum sequence length in tokens.
    pub max_length: usize,
    /// Steps after the pooling that this crate does not implement, such as `Dense`; the exported graph may
    /// contain them.
    pub other_steps: Vec<String>,
}

/// Returns whether a `config.json` was written by transformers: it has `model_type` or `architectures`. Returns
/// true for a damaged file, so that loading the model reports the fault.
pub(crate) fn is_network(config: &[u8]) -> bool {
    object(CONFIG, config).map_or(true, |config| {
        config.contains_key("model_type") || config.contains_key("architectures")
    })
}

/// Returns the path of the pooling configuration, which `modules.json` names.
pub(crate) fn pooling_file(modules: &[u8]) -> Result<Option<String>, TextError> {
    let modules = array(MODULES, modules)?;
    let pooling = modules.iter().find(|module| kind(module) == "Pooling");
    let path = pooling
        .and_then(|module| module.get("path"))
        .and_then(Json::as_str);
    Ok(path.map(|path| format!("{}/{CONFIG}", path.trim_end_matches('/'))))
}

impl TextDescription {
    /// Reads the description from `files`, pairs of a path in the model's directory and the content. All
    /// files but `config.json` are optional.
    ///
    /// # Errors
    /// [`TextError::File`] when a file is damaged or needs an unsupported feature.
    pub fn read(files: &[(String, Bytes)]) -> Result<Self, TextError> {
        let content = |path: &str| {
            let file = files.iter().find(|(name, _)| name == path);
            file.map(|(_, content)| &content[..])
        };
        let optional = |path: &str| content(path).map(|content| object(path, content)).transpose();
        let config = optional(CONFIG)?.ok_or_else(|| TextError::file(CONFIG, "it is missing"))?;
        let modules = content(MODULES)
            .map(|content| array(MODULES, content))
            .transpose()?;
        let sentence = optional(SENTENCE)?.unwrap_or_default();
        let tokenizer = optional(TOKENIZER_CONFIG)?.unwrap_or_default();
        let pooling = match content(MODULES).map(pooling_file).transpose()?.flatten() {
            Some(path) => optional(&path)?
                .map(|content| pooling(&path, &content))
                .transpose()?,
            None => None,
        };
        let steps = modules.iter().flatten().map(kind);
        let known = ["Transformer", "Pooling", "Normalize"];
        let other_steps: Vec<String> = steps
            .filter(|step| !known.contains(step))
            .map(str::to_owned)
            .collect();
        let is_sentence_model = modules.is_some();
        let modules = modules.unwrap_or_default();
        Ok(Self {
            task: match task_of(&config)? {
                task if !is_sentence_model && !matches!(task, Task::Embedding { .. }) => task,
                _ => Task::Embedding {
                    pooling: pooling.unwrap_or(Pooling::Mean),
                    is_normalized: modules.iter().any(|module| kind(module) == "Normalize"),
                },
            },
            max_length: longest(&config, &sentence, &tokenizer),
            other_steps,
        })
    }
}

/// Returns the maximum sequence length for a tokenizer that is served without a neural network. Each of the
/// files is optional.
pub(crate) fn max_length(files: &[(String, Bytes)]) -> Result<usize, TextError> {
    let read = |path: &str| {
        let file = files.iter().find(|(name, _)| name == path);
        file.map_or(Ok(Map::new()), |(_, content)| object(path, content))
    };
    Ok(longest(
        &read(CONFIG)?,
        &read(SENTENCE)?,
        &read(TOKENIZER_CONFIG)?,
    ))
}

/// Reads the pooling of a sentence model from its configuration.
pub(crate) fn read_pooling(content: &[u8]) -> Result<Pooling, TextError> {
    pooling(CONFIG, &object(CONFIG, content)?)
}

/// Returns the labels of a classifier and its activation.
pub(crate) fn classes_of(config: &[u8]) -> Result<(Vec<String>, Activation), TextError> {
    let config = object(CONFIG, config)?;
    let labels = labels_of(&config)?;
    let classes = if labels.is_empty() { 2 } else { labels.len() };
    Ok((labels, activation(&config, classes)))
}

/// Returns the special tokens keyed by role, such as `pad_token`.
pub(crate) fn special_tokens(content: &[u8]) -> Result<Vec<(String, SpecialToken)>, TextError> {
    let map = object(SPECIAL_TOKENS, content)?;
    let read = |value: &Json| serde_json::from_value::<SpecialToken>(value.clone());
    let mut tokens = Vec::new();
    for (kind, value) in &map {
        let values = match value {
            Json::Array(values) => values.as_slice(),
            Json::Null => continue,
            value => std::slice::from_ref(value),
        };
        for value in values {
            let token = read(value).map_err(|_| {
                let what =
                    format!("{kind}: expected a token, as a string or as an object with the string content");
                TextError::file(SPECIAL_TOKENS, what)
            })?;
            tokens.push((kind.clone(), token));
        }
    }
    Ok(tokens)
}

/// A special token: only its content, or the content with its matching options.
#[derive(Deserialize)]
#[serde(untagged)]
pub(crate) enum SpecialToken {
    Content(String),
    Token {
        content: String,
        #[serde(default)]
        single_word: bool,
        #[serde(default)]
        lstrip: bool,
        #[serde(default)]
        rstrip: bool,
        #[serde(default)]
        normalized: bool,
    },
}

fn object(path: &str, content: &[u8]) -> Result<Map<String, Json>, TextError> {
    match json(path, content)? {
        Json::Object(object) => Ok(object),
        _ => Err(TextError::file(path, "expected a JSON object")),
    }
}

fn array(path: &str, content: &[u8]) -> Result<Vec<Json>, TextError> {
    match json(path, content)? {
        Json::Array(array) => Ok(array),
        _ => Err(TextError::file(path, "expected a JSON array")),
    }
}

fn json(path: &str, content: &[u8]) -> Result<Json, TextError> {
    if content.len() > MAX_FILE {
        let found = content.len();
        return Err(TextError::file(
            path,
            format!("it has {found} bytes, expected at most {MAX_FILE}"),
        ));
    }
    serde_json::from_slice(content).map_err(|error| TextError::file(path, error.to_string()))
}

/// Returns the last part of a module's type, such as `Pooling` of `sentence_transformers.models.Pooling`.
fn kind(module: &Json) -> &str {
    let name = module.get("type").and_then(Json::as_str).unwrap_or_default();
    name.rsplit('.').next().unwrap_or_default()
}

/// Returns the pooling that the file enables: with a flag, or in newer files by name.
fn pooling(path: &str, config: &Map<String, Json>) -> Result<Pooling, TextError> {
    const KINDS: &[(&str, &str, Pooling)] = &[
        ("pooling_mode_cls_token", "cls", Pooling::Cls),
        ("pooling_mode_mean_tokens", "mean", Pooling::Mean),
        ("pooling_mode_max_tokens", "max", Pooling::Max),
        ("pooling_mode_lasttoken", "lasttoken", Pooling::Last),
        (
            "pooling_mode_mean_sqrt_len_tokens",
            "mean_sqrt_len_tokens",
            Pooling::MeanSqrtLen,
        ),
        (
            "pooling_mode_weightedmean_tokens",
            "weightedmean",
            Pooling::WeightedMean,
        ),
    ];
    let is_on = |(flag, name, _): &&(&str, &str, Pooling)| {
        let is_flagged = config.get(*flag).and_then(Json::as_bool).unwrap_or(false);
        is_flagged || config.get("pooling_mode").and_then(Json::as_str) == Some(name)
    };
    match KINDS.iter().filter(is_on).collect::<Vec<_>>()[..] {
        [(_, _, pooling)] => Ok(*pooling),
        [] => Err(TextError::file(
            path,
            "it enables no known pooling, such as pooling_mode_mean_tokens",
        )),
        [(first, ..), (second, ..), ..] => {
            let what =
                format!("it enables {first} and {second}, expected one: their vectors would be concatenated");
            Err(TextError::file(path, what))
        }
    }
}

/// Derives the task from the suffix of the network's class name in `architectures`.
fn task_of(config: &Map<String, Json>) -> Result<Task, TextError> {
    let architecture = config
        .get("architectures")
        .and_then(|names| names.get(0))
        .and_then(Json::as_str);
    let architecture = architecture.unwrap_or_default();
    let classes = config
        .get("id2label")
        .and_then(Json::as_object)
        .map_or(2, Map::len);
    Ok(if architecture.ends_with("ForSequenceClassification") {
        Task::Classification {
            activation: activation(config, classes),
            labels: labels_of(config)?,
        }
    } else if architecture.ends_with("ForTokenClassification") {
        Task::TokenClassification {
            labels: labels_of(config)?,
        }
    } else {
        Task::Embedding {
            pooling: Pooling::Mean,
            is_normalized: false,
        }
    })
}

/// Returns the labels of all classes. The list is empty if the file has no labels.
fn labels_of(config: &Map<String, Json>) -> Result<Vec<String>, TextError> {
    match config.get("id2label").and_then(Json::as_object) {
        None => Ok(Vec::new()),
        Some(named) => labels::of_config(named)
            .ok_or_else(|| TextError::file(CONFIG, "id2label: expected a label for each class from 0 on")),
    }
}

/// Returns the activation: from its name in the sentence-transformers section, from the problem type, or from
/// the number of classes.
fn activation(config: &Map<String, Json>, classes: usize) -> Activation {
    let part = config
        .get("sentence_transformers")
        .and_then(|part| part.get("activation_fn"));
    let named = part.or_else(|| config.get("sbert_ce_default_activation_function"));
    let named = named.and_then(Json::as_str).unwrap_or_default();
    match (
        named.rsplit('.').next(),
        config.get("problem_type").and_then(Json::as_str),
    ) {
        (Some("Identity"), _) | (_, Some("regression")) => Activation::Identity,
        (Some("Sigmoid"), _) | (_, Some("multi_label_classification")) => Activation::Sigmoid,
        _ if classes == 1 => Activation::Sigmoid,
        _ => Activation::Softmax,
    }
}

/// Returns the maximum sequence length: the length that the sentence model declares, or else the smaller of
/// the limits that the tokenizer and the position embeddings impose.
fn longest(config: &Map<String, Json>, sentence: &Map<String, Json>, tokenizer: &Map<String, Json>) -> usize {
    let number = |from: &Map<String, Json>, name: &str| {
        from.get(name).and_then(Json::as_u64).filter(|number| *number > 0)
    };
    let kind = config
        .get("model_type")
        .and_then(Json::as_str)
        .unwrap_or_default();
    // RoBERTa and related models number positions starting after the padding id.
    let skipped = match kind {
        "roberta" | "xlm-roberta" | "camembert" | "mpnet" | "longformer" => config
            .get("pad_token_id")
            .and_then(Json::as_u64)
            .unwrap_or(1)
            .saturating_add(1),
        _ => 0,
    };
    let positions =
        number(config, "max_position_embeddings").map(|positions| positions.saturating_sub(skipped));
    // A tokenizer without a limit declares a maximum of 1e30.
    let tokens = number(tokenizer, "model_max_length");
    let most = positions.unwrap_or(DEFAULT_LENGTH.max(tokens.unwrap_or(0).min(MAX_LENGTH)));
    let wished = number(sentence, "max_seq_length").or(tokens).unwrap_or(most);
    usize::try_from(wished.min(most).min(MAX_LENGTH)).unwrap_or(usize::MAX)
}
