//! Loads a Hugging Face directory: its text files, and a network that another backend runs.

use std::sync::Arc;

use bytes::Bytes;
use oip_model::{Backend, LoadContext, Model, ModelFiles, ModelSource};
use oip_types::ServiceError;

use crate::{
    description::{
        CONFIG, MODULES, SENTENCE, SPECIAL_TOKENS, TOKENIZER_CONFIG, Task, TextDescription, is_network,
        pooling_file,
    },
    error::{TOKENIZER, TextError},
    graph::Graph,
    limits::TokenizerLimits,
    model::TextModel,
    texts::TextReader,
    tokenizer::TextTokenizer,
};

/// Loads text models: a `tokenizer.json` and a transformers `config.json` next to a network, `model.onnx` or
/// `onnx/model.onnx`. Another backend runs the network.
pub struct TextBackend {
    network: Arc<dyn Backend>,
    options: TextOptions,
}

/// Limits for text models.
///
/// ```
/// let options = oip_text::TextOptions::default().with(|options| options.max_batch_tokens = 4096);
/// assert_eq!(options.max_texts, 16384);
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TextOptions {
    /// Maximum number of tokens in one run of the network, including padding. A longer sequence runs alone.
    /// The default keeps a run's intermediate tensors in a core's cache.
    pub max_batch_tokens: usize,
    /// Maximum number of texts in one run.
    pub max_texts: usize,
    /// Maximum total size of the texts in one run, in bytes.
    pub max_request_bytes: usize,
    /// Limits for tokenizers.
    pub tokenizer: TokenizerLimits,
}

impl Default for TextOptions {
    fn default() -> Self {
        Self {
            max_batch_tokens: 256,
            max_texts: 16 << 10,
            max_request_bytes: 16 << 20,
            tokenizer: TokenizerLimits::default(),
        }
    }
}

impl TextOptions {
    /// Returns the options with `change` applied.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }
}

impl TextBackend {
    /// Creates a backend whose networks are loaded by `network`.
    #[must_use]
    pub fn new(network: Arc<dyn Backend>, options: TextOptions) -> Self {
        Self { network, options }
    }
}

impl Backend for TextBackend {
    fn name(&self) -> &'static str {
        "text"
    }

    fn file_names(&self) -> &[&str] {
        &["model.onnx", "onnx/model.onnx"]
    }

    fn accepts(&self, files: &dyn ModelFiles) -> bool {
        let is_there = files.has(TOKENIZER) && files.has(CONFIG);
        is_there && files.read(CONFIG).map_or(true, |config| is_network(&config))
    }

    /// Reads the files that describe the model, then the files that its network needs from the network's
    /// directory.
    fn gather(&self, content: &Bytes, files: &dyn ModelFiles) -> Result<Vec<(String, Bytes)>, ServiceError> {
        let mut gathered = Vec::new();
        for path in [TOKENIZER, CONFIG] {
            gathered.push((path.to_owned(), files.read(path)?));
        }
        for path in [SENTENCE, TOKENIZER_CONFIG, SPECIAL_TOKENS, MODULES] {
            if files.has(path) {
                gathered.push((path.to_owned(), files.read(path)?));
            }
        }
        let modules = gathered.iter().find(|(path, _)| path == MODULES);
        let pooling = modules
            .map(|(_, modules)| pooling_file(modules))
            .transpose()?
            .flatten();
        if let Some(path) = pooling.filter(|path| files.has(path)) {
            let content = files.read(&path)?;
            gathered.push((path, content));
        }
        for name in self.network.files_beside(content)? {
            let path = match files.has(&name) {
                true => name,
                false => format!("onnx/{name}"),
            };
            let content = files.read(&path)?;
            gathered.push((path, content));
        }
        Ok(gathered)
    }

    fn load(&self, source: &ModelSource, cx: &LoadContext) -> Result<Box<dyn Model>, ServiceError> {
        let described = TextDescription::read(&source.beside)?;
        let mut network = source.clone();
        for (path, _) in &mut network.beside {
            if let Some(name) = path.strip_prefix("onnx/") {
                *path = name.to_owned();
            }
        }
        let network = self.network.load(&network, cx)?;
        let graph = Graph::new(network, &described.task, cx.config.max_batch_size > 1)?;
        if matches!(described.task, Task::Embedding { .. })
            && graph.rank == 3
            && !described.other_steps.is_empty()
        {
            let steps = described.other_steps.join(", ");
            let reason =
                format!("it has the unknown step {steps}: export the model with it, as sentence_embedding");
            return Err(TextError::file(MODULES, reason).into());
        }
        let max_length = graph
            .fixed_length
            .unwrap_or(described.max_length)
            .min(described.max_length);
        let file = |wanted: &str| {
            let file = source.beside.iter().find(|(path, _)| path == wanted);
            file.map(|(_, content)| content)
        };
        let tokenizer = file(TOKENIZER).ok_or_else(|| TextError::file(TOKENIZER, "it is missing"))?;
        let tokenizer = TextTokenizer::read(tokenizer, max_length, &self.options.tokenizer)?;
        let tokenizer = match file(SPECIAL_TOKENS) {
            Some(special) => tokenizer.with_special_tokens(special)?,
            None => tokenizer,
        };
        let tokenizer = match described.task {
            Task::TokenClassification { .. } => tokenizer,
            _ => tokenizer.without_offsets(),
        };
        let texts = TextReader::new(tokenizer, self.options.max_texts, self.options.max_request_bytes);
        tracing::info!(
            model = source.name,
            task = ?described.task,
            max_length,
            one_at_a_time = graph.is_one_by_one,
            "prepared a text model"
        );
        Ok(Box::new(TextModel::new(
            &source.name,
            graph,
            texts,
            described.task,
            self.options.max_batch_tokens,
        )))
    }
}

/// Returns whether a file of a Hugging Face Hub directory is not needed to serve the text model: other
/// exports, weights of other frameworks, pictures. `has` returns whether the directory contains a path.
/// `named` is the network to serve, if it is named by its path. In a directory that is not a text model, only
/// a named network is needed, or else all files.
///
/// ```
/// let all = ["config.json", "tokenizer.json", "onnx/model.onnx", "pytorch_model.bin", "onnx/model_O3.onnx", "1_Pooling/config.json"];
/// let has = |path: &str| all.contains(&path);
/// let left_out = |named| {
///     let left = all.into_iter().filter(|path| oip_text::is_left_out(path, named, &has));
///     left.collect::<Vec<_>>()
/// };
/// assert_eq!(left_out(None), ["pytorch_model.bin", "onnx/model_O3.onnx"]);
/// assert_eq!(left_out(Some("onnx/model_O3.onnx")), ["onnx/model.onnx", "pytorch_model.bin"]);
/// ```
pub fn is_left_out(path: &str, named: Option<&str>, has: &dyn Fn(&str) -> bool) -> bool {
    let usual = || {
        let usual = ["model.onnx", "onnx/model.onnx"];
        usual.into_iter().find(|path| has(path))
    };
    let is_text = has(TOKENIZER) && has(CONFIG);
    let Some(network) = named.or_else(usual).filter(|_| is_text) else {
        return named.is_some_and(|named| named != path);
    };
    let is_network = path == network
        || path
            .strip_prefix(network)
            .is_some_and(|rest| rest.starts_with(['_', '.']));
    let is_description = [".json", ".txt", ".pbtxt", ".toml"]
        .iter()
        .any(|ending| path.ends_with(ending));
    !is_network && !is_description
}
