//! The steps of text models as separate models, which a pipeline can combine with any network.

use bytes::Bytes;
use oip_model::{
    Backend, Call, CancelToken, Capabilities, IndependentRows, LoadContext, Model, ModelFiles, ModelSource,
    Outcome, RowIndependence,
};
use oip_types::{
    DataType, ErrorCode, InferOutput, InferRequest, ModelMetadata, ServiceError, TensorMetadata,
};
use tensor_core::{QuotedName, Shape, Tensor};

use crate::{
    backend::TextOptions,
    classes,
    description::{CONFIG, SENTENCE, SPECIAL_TOKENS, TOKENIZER_CONFIG, classes_of, max_length, read_pooling},
    labels::Activation,
    padded::Aspect,
    pooling::{Pooling, normalize},
    texts::{TextReader, check_time, internal},
    tokenizer::{TextTokenizer, Tokens},
};

/// The configuration parameter that names the step.
const STEP: &str = "step";
/// Maximum number of tokens, including padding, of one run of `tokenize`: 32 MiB per output.
const MAX_TOKENS: usize = 4 << 20;

const INPUT_IDS: &str = "input_ids";
const ATTENTION_MASK: &str = "attention_mask";
const TOKEN_TYPE_IDS: &str = "token_type_ids";
const TOKEN_EMBEDDINGS: &str = "token_embeddings";
const EMBEDDING: &str = "embedding";
const LOGITS: &str = "logits";

/// Loads steps of text models. The configuration has `backend: "text-step"`, the parameter `step`, and as
/// `default_model_filename` the file that describes the step.
///
/// | step | file | inputs | outputs |
/// |---|---|---|---|
/// | `tokenize` | `tokenizer.json` | `text`, `text_pair` BYTES `[n]` | `input_ids`, `attention_mask`, `token_type_ids` INT64 `[n, length]` |
/// | `pool` | a sentence model's pooling `config.json` | `token_embeddings` FP32 `[n, length, d]`, `attention_mask` INT64 `[n, length]` | `embedding` FP32 `[n, d]` |
/// | `normalize` | any | `embedding` FP32 `[n, d]` | `embedding` FP32 `[n, d]` |
/// | `labels` | a classifier's `config.json` | `logits` FP32 `[n, classes]` | `scores` FP32 `[n, classes]`, `label` BYTES `[n]`, `labels` BYTES `[n, classes]` |
///
/// ```
/// use oip_model::Backend;
/// use oip_text::{TextOptions, TextStepBackend};
///
/// // A directory is never detected as a step: its configuration names the backend and the file.
/// assert!(TextStepBackend::new(TextOptions::default()).file_names().is_empty());
/// ```
pub struct TextStepBackend {
    options: TextOptions,
}

impl TextStepBackend {
    /// Creates a backend with these limits for texts and tokenizers.
    #[must_use]
    pub fn new(options: TextOptions) -> Self {
        Self { options }
    }
}

impl Backend for TextStepBackend {
    fn name(&self) -> &'static str {
        "text-step"
    }

    fn file_names(&self) -> &[&str] {
        &[]
    }

    /// Reads the files with a tokenizer's maximum length and special tokens, if they exist.
    fn gather(&self, _: &Bytes, files: &dyn ModelFiles) -> Result<Vec<(String, Bytes)>, ServiceError> {
        let paths = [CONFIG, SENTENCE, TOKENIZER_CONFIG, SPECIAL_TOKENS];
        let there = paths.into_iter().filter(|path| files.has(path));
        let read = there.map(|path| Ok((path.to_owned(), files.read(path)?)));
        read.collect()
    }

    fn load(&self, source: &ModelSource, cx: &LoadContext) -> Result<Box<dyn Model>, ServiceError> {
        let step = cx.config.parameters.get(STEP);
        let step = step.map_or("", |parameter| &parameter.string_value);
        let step = match step {
            "tokenize" => {
                let length = max_length(&source.beside)?;
                let special = source.beside.iter().find(|(path, _)| path == SPECIAL_TOKENS);
                let tokenizer = TextTokenizer::read(&source.content, length, &self.options.tokenizer)?;
                let tokenizer = match special {
                    Some((_, special)) => tokenizer.with_special_tokens(special)?,
                    None => tokenizer,
                };
                let (texts, bytes) = (self.options.max_texts, self.options.max_request_bytes);
                let texts = TextReader::new(tokenizer.without_offsets(), texts, bytes);
                Step::Tokenize(Box::new(texts))
            }
            "pool" => Step::Pool(read_pooling(&source.content)?),
            "normalize" => Step::Normalize,
            "labels" => {
                let (labels, activation) = classes_of(&source.content)?;
                Step::Labels { labels, activation }
            }
            other => {
                let found = if other.is_empty() {
                    "nothing".to_owned()
                } else {
                    QuotedName(other).to_string()
                };
                let message = format!(
                    "parameter '{STEP}' of its configuration: expected tokenize, pool, normalize or labels, found {found}"
                );
                return Err(ServiceError::invalid(message));
            }
        };
        let metadata = ModelMetadata::new(&source.name, "text-step", step.inputs(), step.outputs());
        Ok(Box::new(StepModel { metadata, step }))
    }
}

/// A loaded step.
enum Step {
    Tokenize(Box<TextReader>),
    Pool(Pooling),
    Normalize,
    Labels {
        labels: Vec<String>,
        activation: Activation,
    },
}

impl Step {
    fn inputs(&self) -> Vec<TensorMetadata> {
        match self {
            Self::Tokenize(texts) => texts.inputs(),
            Self::Pool(_) => vec![
                TensorMetadata::new(TOKEN_EMBEDDINGS, DataType::FP32, &[-1, -1, -1]),
                TensorMetadata::new(ATTENTION_MASK, DataType::INT64, &[-1, -1]),
            ],
            Self::Normalize => vec![TensorMetadata::new(EMBEDDING, DataType::FP32, &[-1, -1])],
            Self::Labels { .. } => vec![TensorMetadata::new(LOGITS, DataType::FP32, &[-1, -1])],
        }
    }

    fn outputs(&self) -> Vec<TensorMetadata> {
        match self {
            Self::Tokenize(_) => [INPUT_IDS, ATTENTION_MASK, TOKEN_TYPE_IDS]
                .map(|name| TensorMetadata::new(name, DataType::INT64, &[-1, -1]))
                .to_vec(),
            Self::Pool(_) | Self::Normalize => {
                vec![TensorMetadata::new(EMBEDDING, DataType::FP32, &[-1, -1])]
            }
            Self::Labels { .. } => classes::metadata(-1),
        }
    }
}

/// A step that is served as a model.
struct StepModel {
    metadata: ModelMetadata,
    step: Step,
}

impl Model for StepModel {
    fn metadata(&self) -> &ModelMetadata {
        &self.metadata
    }

    fn run(&self, call: Call<'_>) -> Result<Outcome, ServiceError> {
        let wants_labels = classes::wants_labels(&call);
        let (request, cancel) = (call.request, call.cancel);
        let outputs = match &self.step {
            Step::Tokenize(texts) => tokenize(texts, &request, cancel),
            Step::Pool(pooling) => pool(*pooling, &request, cancel),
            Step::Normalize => {
                let (mut values, shape) = floats(&request, EMBEDDING)?;
                if let Some(width) = shape.last().copied().filter(|width| *width > 0) {
                    values.chunks_exact_mut(width).for_each(normalize);
                }
                embedding(values, &shape)
            }
            Step::Labels { labels, activation } => {
                let (mut values, shape) = floats(&request, LOGITS)?;
                let (rows, width) = (shape[0], shape[1]);
                // A tensor with an empty dimension can claim any number of rows without sending data, so it
                // is rejected.
                if width == 0 {
                    return Err(ServiceError::invalid(
                        "input 'logits' has no classes, expected at least one",
                    ));
                }
                let each_row = values.chunks_exact_mut(width);
                each_row.for_each(|logits| activation.apply(logits));
                classes::outputs(values, rows, width, labels, wants_labels)
            }
        };
        Ok(outputs?.into())
    }

    fn capabilities(&self) -> Capabilities {
        let rows = match self.step {
            Step::Tokenize(_) => {
                RowIndependence::Unproven("texts are padded to the longest of their request".to_owned())
            }
            _ => RowIndependence::Proven(IndependentRows::default()),
        };
        Capabilities::default().with(|capabilities| capabilities.row_independence = rows)
    }
}

/// Returns the token ids of all texts, padded to the longest of them.
fn tokenize(
    texts: &TextReader,
    request: &InferRequest,
    cancel: &CancelToken,
) -> Result<Vec<InferOutput>, ServiceError> {
    let tokens = texts.tokenize(request, cancel)?;
    let tokens: Vec<&Tokens> = tokens.iter().collect();
    let length = tokens.iter().map(|tokens| tokens.ids.len()).max().unwrap_or(0);
    if length.saturating_mul(tokens.len()) > MAX_TOKENS {
        let (rows, most) = (tokens.len(), MAX_TOKENS);
        let message = format!(
            "{rows} texts padded to {length} tokens are more than {most} tokens: send several requests"
        );
        return Err(ServiceError::new(ErrorCode::TooLarge, message));
    }
    let shape = Shape::new(&[tokens.len() as u64, length as u64]).map_err(internal)?;
    let aspects = [
        (INPUT_IDS, Aspect::Ids),
        (ATTENTION_MASK, Aspect::Mask),
        (TOKEN_TYPE_IDS, Aspect::Types),
    ];
    let wanted =
        |name: &str| request.outputs.is_empty() || request.outputs.iter().any(|output| output.name == name);
    let outputs = aspects.into_iter().filter(|(name, _)| wanted(name));
    let outputs = outputs.map(|(name, aspect)| {
        let values = aspect.values(&tokens, length, texts.tokenizer().pad(), i64::from);
        let tensor = Tensor::from_vec(shape.clone(), values).map_err(internal)?;
        Ok(InferOutput::new(name, tensor))
    });
    outputs.collect()
}

/// Returns one vector for each row, pooled from its unmasked tokens.
fn pool(
    pooling: Pooling,
    request: &InferRequest,
    cancel: &CancelToken,
) -> Result<Vec<InferOutput>, ServiceError> {
    let (values, shape) = floats(request, TOKEN_EMBEDDINGS)?;
    let (rows, length, width) = (shape[0], shape[1], shape[2]);
    let mask = request.input(ATTENTION_MASK).and_then(|value| value.as_fixed());
    let mask = mask.ok_or_else(|| ServiceError::invalid("input 'attention_mask' is missing"))?;
    if mask.shape().dims() != [rows as u64, length as u64] {
        let found = mask.shape();
        let message = format!("input 'attention_mask' has the shape {found}, expected [{rows}, {length}]");
        return Err(ServiceError::invalid(message));
    }
    // A tensor with an empty dimension can claim any number of rows without sending data, so it is rejected.
    if length == 0 || width == 0 {
        let message =
            "input 'token_embeddings' has no values, expected at least one token with one value in each row";
        return Err(ServiceError::invalid(message));
    }
    let mask = mask.to_vec::<i64>().map_err(internal)?;
    let mut pooled = Vec::with_capacity(rows * width);
    for row in 0..rows {
        check_time(cancel)?;
        let mask = &mask[row * length..(row + 1) * length];
        let tokens = &values[row * length * width..(row + 1) * length * width];
        let count = mask.iter().filter(|mask| **mask != 0).count();
        // Fast path: if padding is only at the end of the row, as nearly always, the vectors need not be
        // copied.
        if mask[..count].iter().all(|mask| *mask != 0) {
            pooled.extend(pooling.pool(&tokens[..count * width], width));
            continue;
        }
        let kept = tokens
            .chunks_exact(width)
            .zip(mask)
            .filter(|(_, mask)| **mask != 0);
        let kept: Vec<f32> = kept.flat_map(|(token, _)| token).copied().collect();
        pooled.extend(pooling.pool(&kept, width));
    }
    embedding(pooled, &[rows, width])
}

/// Returns the values of an FP32 input and its dimensions.
fn floats(request: &InferRequest, name: &str) -> Result<(Vec<f32>, Vec<usize>), ServiceError> {
    let value = request.input(name).and_then(|value| value.as_fixed());
    let value = value.ok_or_else(|| ServiceError::invalid(format!("input '{name}' is missing")))?;
    let dims = value.shape().dims().iter().map(|dim| *dim as usize);
    Ok((value.to_vec().map_err(internal)?, dims.collect()))
}

fn embedding(values: Vec<f32>, dims: &[usize]) -> Result<Vec<InferOutput>, ServiceError> {
    let dims: Vec<u64> = dims.iter().map(|dim| *dim as u64).collect();
    let tensor = Tensor::from_vec(Shape::new(&dims).map_err(internal)?, values).map_err(internal)?;
    Ok(vec![InferOutput::new(EMBEDDING, tensor)])
}
