//! A text model: tokens, batches by length, the network, pooling or labels.

use oip_service::{Call, CancelToken, Capabilities, IndependentRows, Model, Outcome, RowIndependence};
use oip_types::{
    BytesTensor, DataType, ErrorCode, InferOutput, InferRequest, ModelMetadata, ParameterValue, ServiceError,
    TensorMetadata,
};
use serde_json::json;
use tensor_core::{Shape, Tensor};

use crate::{
    batches::batches,
    description::Task,
    error::TextError,
    graph::{BatchOutput, Graph},
    labels::{Activation, best},
    pooling::normalize,
    tokenizer::{TextTokenizer, Tokens},
};

/// The input of texts, and the one of second texts.
pub(crate) const TEXT: &str = "text";
const TEXT_PAIR: &str = "text_pair";
/// Outputs.
const EMBEDDING: &str = "embedding";
const SCORES: &str = "scores";
const SCORE: &str = "score";
const LABEL: &str = "label";
const LABELS: &str = "labels";
const ENTITIES: &str = "entities";
const TOKEN_COUNT: &str = "token_count";
/// Request parameters.
const TRUNCATE: &str = "truncate";
const TOKEN_IDS: &str = "token_ids";
const RAW_SCORES: &str = "raw_scores";

/// Rows of different callers in one run, where rows are independent.
const JOINED_ROWS: u32 = 32;

/// A model that takes texts.
pub(crate) struct TextModel {
    metadata: ModelMetadata,
    graph: Graph,
    tokenizer: TextTokenizer,
    task: Task,
    max_batch_tokens: usize,
    max_texts: usize,
    max_request_bytes: usize,
}

/// Bounds of a run.
pub(crate) struct Bounds {
    pub(crate) max_batch_tokens: usize,
    pub(crate) max_texts: usize,
    pub(crate) max_request_bytes: usize,
}

impl TextModel {
    pub(crate) fn new(
        name: &str,
        graph: Graph,
        tokenizer: TextTokenizer,
        task: Task,
        bounds: &Bounds,
    ) -> Self {
        let inputs = vec![
            TensorMetadata::new(TEXT, DataType::BYTES, &[-1]),
            TensorMetadata::new(TEXT_PAIR, DataType::BYTES, &[-1]).optional(),
        ];
        let width = graph
            .width
            .and_then(|width| i64::try_from(width).ok())
            .unwrap_or(-1);
        let mut outputs = match &task {
            Task::Embedding { .. } => vec![TensorMetadata::new(EMBEDDING, DataType::FP32, &[-1, width])],
            Task::Classification { .. } if width == 1 => {
                vec![TensorMetadata::new(SCORE, DataType::FP32, &[-1])]
            }
            Task::Classification { .. } => vec![
                TensorMetadata::new(SCORES, DataType::FP32, &[-1, width]),
                TensorMetadata::new(LABEL, DataType::BYTES, &[-1]),
                TensorMetadata::new(LABELS, DataType::BYTES, &[-1, width]).optional(),
            ],
            Task::TokenClassification { .. } => vec![TensorMetadata::new(ENTITIES, DataType::BYTES, &[-1])],
        };
        outputs.push(TensorMetadata::new(TOKEN_COUNT, DataType::INT64, &[-1]));
        let metadata = ModelMetadata::new(name, "text", inputs, outputs);
        Self {
            metadata,
            graph,
            tokenizer,
            task,
            max_batch_tokens: bounds.max_batch_tokens,
            max_texts: bounds.max_texts,
            max_request_bytes: bounds.max_request_bytes,
        }
    }

    /// Tokens of all texts. Lengths and encodings of all texts are checked before the first is tokenized.
    fn tokenize(&self, request: &InferRequest, cancel: &CancelToken) -> Result<Vec<Tokens>, ServiceError> {
        let texts =
            strings(request, TEXT)?.ok_or_else(|| ServiceError::invalid("input 'text' is missing"))?;
        let pairs = strings(request, TEXT_PAIR)?;
        if let Some(pairs) = pairs.as_ref().filter(|pairs| pairs.len() != texts.len()) {
            let (found, expected) = (pairs.len(), texts.len());
            let message =
                format!("input 'text_pair' has {found} texts, expected {expected}, as many as 'text'");
            return Err(ServiceError::invalid(message));
        }
        let bytes: usize = [Some(&texts), pairs.as_ref()]
            .into_iter()
            .flatten()
            .flatten()
            .map(|text| text.len())
            .sum();
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
        for texts in [Some(&texts), pairs.as_ref()].into_iter().flatten() {
            for (index, text) in texts.iter().enumerate() {
                self.tokenizer.check(index, text)?;
            }
        }
        let has_ids = flag(request, TOKEN_IDS, false)?;
        if has_ids && pairs.is_some() {
            return Err(ServiceError::invalid(
                "the parameter 'token_ids' does not go with the input 'text_pair'",
            ));
        }
        let may_truncate = flag(request, TRUNCATE, true)?;
        let mut tokens = Vec::with_capacity(texts.len());
        for (index, text) in texts.iter().enumerate() {
            check(cancel)?;
            let encoded = match has_ids {
                true => self.tokenizer.encode_ids(index, &ids(index, text)?)?,
                false => self
                    .tokenizer
                    .encode(index, text, pairs.as_ref().map(|pairs| pairs[index]))?,
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

    /// Runs all sequences in batches by their lengths; `finish` takes a row's index, its tokens and the values of those.
    fn run(
        &self,
        tokens: &[Tokens],
        cancel: &CancelToken,
        mut finish: impl FnMut(usize, &Tokens, &[f32], usize) -> Result<(), ServiceError>,
    ) -> Result<(), ServiceError> {
        let length = |tokens: &Tokens| self.graph.fixed_length.unwrap_or(tokens.ids.len());
        let lengths: Vec<usize> = tokens.iter().map(length).collect();
        let budget = if self.graph.is_one_by_one {
            0
        } else {
            self.max_batch_tokens
        };
        for batch in batches(&lengths, budget) {
            check(cancel)?;
            let sequences: Vec<&Tokens> = batch.iter().map(|index| &tokens[*index]).collect();
            let output: BatchOutput = self.graph.run(&sequences, self.tokenizer.pad(), cancel)?;
            for (row, index) in batch.into_iter().enumerate() {
                let tokens = &tokens[index];
                finish(index, tokens, output.tokens(row, tokens.ids.len()), output.width)?;
            }
        }
        Ok(())
    }

    fn embed(&self, tokens: &[Tokens], cancel: &CancelToken) -> Result<Vec<InferOutput>, ServiceError> {
        let Task::Embedding {
            pooling,
            is_normalized,
        } = self.task
        else {
            return Err(ServiceError::internal("the model has another task"));
        };
        let mut vectors = vec![Vec::new(); tokens.len()];
        let mut width = self.graph.width.unwrap_or(0);
        self.run(tokens, cancel, |index, _, values, found| {
            width = found as u64;
            vectors[index] = match self.graph.rank {
                // The graph has pooled.
                2 => values.to_vec(),
                _ => pooling.pool(values, found),
            };
            if is_normalized {
                normalize(&mut vectors[index]);
            }
            Ok(())
        })?;
        let shape = Shape::new(&[tokens.len() as u64, width])?;
        let tensor = Tensor::from_vec(shape, vectors.concat())?;
        Ok(vec![InferOutput::new(EMBEDDING, tensor)])
    }

    fn classify(
        &self,
        tokens: &[Tokens],
        labels: &[String],
        activation: Activation,
        wants_labels: bool,
        cancel: &CancelToken,
    ) -> Result<Vec<InferOutput>, ServiceError> {
        let mut scores = vec![Vec::new(); tokens.len()];
        let mut width = self.graph.width.unwrap_or(0);
        self.run(tokens, cancel, |index, _, values, found| {
            width = found as u64;
            scores[index] = values.to_vec();
            activation.apply(&mut scores[index]);
            Ok(())
        })?;
        let rows = tokens.len() as u64;
        if self.metadata.outputs[0].name == SCORE {
            let tensor = Tensor::from_vec(Shape::vector(rows), scores.concat())?;
            return Ok(vec![InferOutput::new(SCORE, tensor)]);
        }
        let named = scores
            .iter()
            .map(|scores| best(scores).map_or_else(String::new, |class| label(labels, class)));
        let named = BytesTensor::from_elements(Shape::vector(rows), named)?;
        let shape = Shape::new(&[rows, width])?;
        let tensor = Tensor::from_vec(shape.clone(), scores.concat())?;
        let mut outputs = vec![InferOutput::new(SCORES, tensor), InferOutput::new(LABEL, named)];
        if wants_labels {
            let each = scores
                .iter()
                .flat_map(|scores| (0..scores.len()).map(|class| label(labels, class)));
            outputs.push(InferOutput::new(LABELS, BytesTensor::from_elements(shape, each)?));
        }
        Ok(outputs)
    }

    fn classify_tokens(
        &self,
        tokens: &[Tokens],
        labels: &[String],
        cancel: &CancelToken,
    ) -> Result<Vec<InferOutput>, ServiceError> {
        let mut entities = vec![String::new(); tokens.len()];
        self.run(tokens, cancel, |index, tokens, values, width| {
            let rows = values.chunks_exact(width).enumerate();
            let rows = rows.filter(|(at, _)| !tokens.is_special[*at]);
            let found = rows.map(|(at, logits)| {
                let mut scores = logits.to_vec();
                Activation::Softmax.apply(&mut scores);
                let class = best(&scores).unwrap_or(0);
                let (start, end) = tokens.offsets[at];
                json!({"label": label(labels, class), "score": scores[class], "start": start, "end": end})
            });
            entities[index] = serde_json::Value::Array(found.collect()).to_string();
            Ok(())
        })?;
        let entities = BytesTensor::from_elements(Shape::vector(tokens.len() as u64), entities)?;
        Ok(vec![InferOutput::new(ENTITIES, entities)])
    }
}

impl Model for TextModel {
    fn metadata(&self) -> &ModelMetadata {
        &self.metadata
    }

    fn run(&self, call: Call<'_>) -> Result<Outcome, ServiceError> {
        let wants_labels = is_named(&call, LABELS);
        let (request, cancel) = (call.request, call.cancel);
        let tokens = self.tokenize(&request, cancel)?;
        let is_raw = flag(&request, RAW_SCORES, false)?;
        drop(request);
        let mut outputs = match &self.task {
            Task::Embedding { .. } => self.embed(&tokens, cancel)?,
            Task::Classification { labels, activation } => {
                let activation = if is_raw { Activation::Identity } else { *activation };
                self.classify(&tokens, labels, activation, wants_labels, cancel)?
            }
            Task::TokenClassification { labels } => self.classify_tokens(&tokens, labels, cancel)?,
        };
        let counts: Vec<i64> = tokens.iter().map(|tokens| tokens.ids.len() as i64).collect();
        let counts = Tensor::from_vec(Shape::vector(counts.len() as u64), counts)?;
        outputs.push(InferOutput::new(TOKEN_COUNT, counts));
        Ok(outputs.into())
    }

    fn capabilities(&self) -> Capabilities {
        let network = self.graph.model().capabilities();
        let is_one_by_one = self.graph.is_one_by_one;
        Capabilities::default().with(|capabilities| {
            capabilities.runtime = network.runtime;
            capabilities.instances = network.instances;
            capabilities.placement = network.placement;
            capabilities.max_batch_size = (!is_one_by_one).then_some(JOINED_ROWS);
            // As of the network: sequences are padded, and the mask keeps the padding out.
            capabilities.row_independence = match network.row_independence {
                RowIndependence::Proven(_) if !is_one_by_one => {
                    RowIndependence::Proven(IndependentRows::default())
                }
                RowIndependence::Proven(_) => {
                    RowIndependence::Unproven("the network takes one sequence at a time".to_owned())
                }
                unproven => unproven,
            };
        })
    }

    fn end(&self) {
        self.graph.model().end();
    }
}

/// The elements of an input of strings; `None` where it is left out.
fn strings<'r>(request: &'r InferRequest, name: &str) -> Result<Option<Vec<&'r [u8]>>, ServiceError> {
    let Some(value) = request.input(name) else {
        return Ok(None);
    };
    let strings = value
        .as_bytes()
        .ok_or_else(|| ServiceError::internal("a text input without strings"))?;
    Ok(Some(strings.iter().collect()))
}

fn flag(request: &InferRequest, name: &str, default: bool) -> Result<bool, ServiceError> {
    match request.parameters.get(name) {
        None => Ok(default),
        Some(ParameterValue::Bool(flag)) => Ok(*flag),
        Some(_) => Err(ServiceError::invalid(format!(
            "parameter '{name}': expected true or false"
        ))),
    }
}

/// Whether a request, or one of those that were joined into it, names an output.
fn is_named(call: &Call<'_>, output: &str) -> bool {
    let parts = call.parts.iter().flat_map(|part| &part.outputs);
    let names = call
        .request
        .outputs
        .iter()
        .map(|output| &output.name)
        .chain(parts);
    names.into_iter().any(|name| name == output)
}

/// Token ids as a JSON array.
fn ids(index: usize, text: &[u8]) -> Result<Vec<u32>, TextError> {
    serde_json::from_slice(text).map_err(|_| TextError::text(index, "expected a JSON array of token ids"))
}

fn label(labels: &[String], class: usize) -> String {
    labels
        .get(class)
        .cloned()
        .unwrap_or_else(|| format!("LABEL_{class}"))
}

fn check(cancel: &CancelToken) -> Result<(), ServiceError> {
    if cancel.is_expired() {
        return Err(ServiceError::new(
            ErrorCode::DeadlineExceeded,
            "the request's time is over",
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
