//! A text model: tokenization, batching by length, the network, then pooling or labels.

use oip_model::{Call, CancelToken, Capabilities, IndependentRows, Model, Outcome, RowIndependence};
use oip_types::{BytesTensor, DataType, InferOutput, ModelMetadata, ServiceError, TensorMetadata};
use serde_json::json;
use tensor_core::{Shape, Tensor};

use crate::{
    batches::batches,
    classes::{self, label},
    description::Task,
    graph::{BatchOutput, Graph},
    labels::{Activation, best},
    pooling::normalize,
    texts::{TextReader, check_time, flag, internal},
    tokenizer::Tokens,
};

/// Names of the model's outputs.
const EMBEDDING: &str = "embedding";
const SCORE: &str = "score";
const ENTITIES: &str = "entities";
const TOKEN_COUNT: &str = "token_count";
/// Names of request parameters.
const RAW_SCORES: &str = "raw_scores";

/// Maximum number of rows when requests from different callers are batched. Applies only if rows are
/// independent.
const JOINED_ROWS: u32 = 32;

/// A model whose inputs are texts.
pub(crate) struct TextModel {
    metadata: ModelMetadata,
    graph: Graph,
    texts: TextReader,
    task: Task,
    max_batch_tokens: usize,
}

impl TextModel {
    pub(crate) fn new(
        name: &str,
        graph: Graph,
        texts: TextReader,
        task: Task,
        max_batch_tokens: usize,
    ) -> Self {
        let width = graph
            .width
            .and_then(|width| i64::try_from(width).ok())
            .unwrap_or(-1);
        let mut outputs = match &task {
            Task::Embedding { .. } => vec![TensorMetadata::new(EMBEDDING, DataType::FP32, &[-1, width])],
            Task::Classification { .. } if width == 1 => {
                vec![TensorMetadata::new(SCORE, DataType::FP32, &[-1])]
            }
            Task::Classification { .. } => classes::metadata(width),
            Task::TokenClassification { .. } => vec![TensorMetadata::new(ENTITIES, DataType::BYTES, &[-1])],
        };
        outputs.push(TensorMetadata::new(TOKEN_COUNT, DataType::INT64, &[-1]));
        let metadata = ModelMetadata::new(name, "text", texts.inputs(), outputs);
        Self {
            metadata,
            graph,
            texts,
            task,
            max_batch_tokens,
        }
    }

    /// Runs all sequences in batches by length. `finish` receives a row's index, its tokens, their output
    /// values and the number of values per token.
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
            check_time(cancel)?;
            let sequences: Vec<&Tokens> = batch.iter().map(|index| &tokens[*index]).collect();
            let output: BatchOutput = self.graph.run(&sequences, self.texts.tokenizer().pad(), cancel)?;
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
                // The output has one vector per text: the graph contains the pooling.
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
        if self.metadata.outputs[0].name == SCORE {
            let shape = Shape::vector(tokens.len() as u64);
            let tensor = Tensor::from_vec(shape, scores.concat()).map_err(internal)?;
            return Ok(vec![InferOutput::new(SCORE, tensor)]);
        }
        let width = usize::try_from(width).map_err(internal)?;
        classes::outputs(scores.concat(), tokens.len(), width, labels, wants_labels)
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
        let wants_labels = classes::wants_labels(&call);
        let (request, cancel) = (call.request, call.cancel);
        let tokens = self.texts.tokenize(&request, cancel)?;
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
            // Rows are independent if the network's rows are: padding is masked, so it does not affect
            // results.
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
