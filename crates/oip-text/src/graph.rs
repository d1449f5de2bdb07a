//! The network of a text model: finds its inputs and its output, and runs batches of sequences.

use oip_model::{Call, CancelToken, Model, RowIndependence};
use oip_types::{DataType, InferRequest, ModelMetadata, ModelRef, ServiceError, TensorMetadata};
use tensor_core::{QuotedName, Shape, Tensor};

use crate::{description::Task, error::TextError, padded::Aspect, tokenizer::Tokens};

/// A network whose inputs are token sequences.
pub(crate) struct Graph {
    model: Box<dyn Model>,
    inputs: Vec<(String, Aspect, DataType)>,
    /// Name of the output that is used.
    output: String,
    /// The rank of the output: 3 if each token has a vector.
    pub(crate) rank: usize,
    /// The last dimension of the output, if known.
    pub(crate) width: Option<u64>,
    /// The length of every sequence, if the network requires a fixed length.
    pub(crate) fixed_length: Option<usize>,
    /// Whether sequences run one at a time, because rows may affect each other or the batch size is fixed at
    /// one.
    pub(crate) is_one_by_one: bool,
}

/// The output of a batch.
pub(crate) struct BatchOutput {
    values: Vec<f32>,
    rows: usize,
    /// Number of positions per sequence; 1 if a row is one vector.
    positions: usize,
    pub(crate) width: usize,
}

impl BatchOutput {
    /// Returns the vectors of the first `count` tokens of a row, concatenated.
    pub(crate) fn tokens(&self, row: usize, count: usize) -> &[f32] {
        let each = self.positions * self.width;
        let begin = row.min(self.rows.saturating_sub(1)) * each;
        &self.values[begin..begin + count.min(self.positions) * self.width]
    }
}

impl Graph {
    /// Finds the inputs and the output of a network for a task. `may_join` lets sequences run together
    /// although the network's rows are not proven independent.
    pub(crate) fn new(model: Box<dyn Model>, task: &Task, may_join: bool) -> Result<Self, TextError> {
        let metadata = model.metadata();
        let inputs = inputs(metadata)?;
        let dims = metadata
            .inputs
            .first()
            .map_or(&[][..], |input| input.shape.dims());
        let rows = dims.first().copied().flatten();
        if let Some(rows) = rows.filter(|rows| *rows != 1) {
            let what =
                format!("the network takes batches of {rows} rows only, expected a free first dimension");
            return Err(TextError::file("model.onnx", what));
        }
        let output = output(metadata, task)?;
        let output_dims = output.shape.dims();
        let capabilities = model.capabilities();
        let is_independent = matches!(capabilities.row_independence, RowIndependence::Proven(rows) if rows.shared_inputs.is_empty());
        let may_join = may_join || is_independent || capabilities.max_batch_size.is_some_and(|rows| rows > 1);
        Ok(Self {
            inputs,
            output: output.name.clone(),
            rank: output_dims.len(),
            width: output_dims.last().copied().flatten(),
            fixed_length: dims
                .get(1)
                .copied()
                .flatten()
                .and_then(|dim| usize::try_from(dim).ok()),
            is_one_by_one: rows == Some(1) || !may_join,
            model,
        })
    }

    pub(crate) fn model(&self) -> &dyn Model {
        &*self.model
    }

    /// Runs sequences as one batch, padded to the longest of them.
    pub(crate) fn run(
        &self,
        batch: &[&Tokens],
        pad: u32,
        cancel: &CancelToken,
    ) -> Result<BatchOutput, ServiceError> {
        let longest = batch.iter().map(|tokens| tokens.ids.len()).max().unwrap_or(0);
        let length = self.fixed_length.unwrap_or(longest).max(1);
        let shape = Shape::new(&[batch.len() as u64, length as u64])?;
        let name = &self.model.metadata().name;
        let mut request = InferRequest::new(ModelRef::new(name, None)?).with_output(&self.output);
        for (name, aspect, datatype) in &self.inputs {
            let tensor = match *datatype {
                DataType::INT32 => {
                    let values = aspect.values(batch, length, pad, u32::cast_signed);
                    Tensor::from_vec(shape.clone(), values)
                }
                _ => Tensor::from_vec(shape.clone(), aspect.values(batch, length, pad, i64::from)),
            };
            request = request.with_input(name, tensor?);
        }
        let outputs = self.model.run(Call::new(request, cancel))?.into_outputs()?;
        let output = outputs.into_iter().find(|output| output.name == self.output);
        let value = output
            .ok_or_else(|| ServiceError::internal("the network did not return its output"))?
            .value;
        let dims: Vec<usize> = value.shape().dims().iter().map(|dim| *dim as usize).collect();
        let (rows, positions, width) = match (dims[..].as_ref(), self.rank) {
            ([rows, width], 2) => (*rows, 1, *width),
            ([rows, positions, width], 3) if *positions == length => (*rows, *positions, *width),
            _ => return Err(unexpected(&self.output, value.shape(), batch.len(), length)),
        };
        if rows != batch.len() || width == 0 {
            return Err(unexpected(&self.output, value.shape(), batch.len(), length));
        }
        let tensor = value
            .as_fixed()
            .ok_or_else(|| ServiceError::internal("the network returned strings"))?;
        Ok(BatchOutput {
            values: floats(tensor)?,
            rows,
            positions,
            width,
        })
    }
}

/// Returns the values of an output as single-precision floats.
fn floats(tensor: &Tensor) -> Result<Vec<f32>, ServiceError> {
    if let Ok(values) = tensor.to_vec::<f32>() {
        return Ok(values);
    }
    let halves = tensor.to_vec::<half::f16>()?;
    Ok(halves.into_iter().map(f32::from).collect())
}

/// Returns the inputs of the network, each with the kind of values that it takes.
fn inputs(metadata: &ModelMetadata) -> Result<Vec<(String, Aspect, DataType)>, TextError> {
    let known = |input: &TensorMetadata| {
        let kind = match input.name.as_str() {
            "input_ids" => Aspect::Ids,
            "attention_mask" => Aspect::Mask,
            "token_type_ids" => Aspect::Types,
            "position_ids" => Aspect::Positions,
            _ => return None,
        };
        let fits =
            input.shape.dims().len() == 2 && [DataType::INT64, DataType::INT32].contains(&input.datatype);
        fits.then(|| (input.name.clone(), kind, input.datatype))
    };
    let inputs = metadata.inputs.iter().map(|input| {
        known(input).ok_or_else(|| {
            let what = format!(
                "the network has the input {input}, expected input_ids, attention_mask, token_type_ids or position_ids, INT64 of rank 2"
            );
            TextError::file("model.onnx", what)
        })
    });
    let inputs: Vec<_> = inputs.collect::<Result<_, _>>()?;
    if inputs.iter().any(|(_, input, _)| matches!(input, Aspect::Ids)) {
        return Ok(inputs);
    }
    Err(TextError::file(
        "model.onnx",
        "the network has no input input_ids",
    ))
}

/// Returns the output to use for a task: the output with the usual name, or else the only output with a
/// suitable rank.
fn output<'m>(metadata: &'m ModelMetadata, task: &Task) -> Result<&'m TensorMetadata, TextError> {
    let (names, ranks): (&[&str], &[usize]) = match task {
        Task::Embedding { .. } => (
            &["sentence_embedding", "token_embeddings", "last_hidden_state"],
            &[3, 2],
        ),
        Task::Classification { .. } => (&["logits"], &[2]),
        Task::TokenClassification { .. } => (&["logits"], &[3]),
    };
    let is_float = |output: &&TensorMetadata| [DataType::FP32, DataType::FP16].contains(&output.datatype);
    let fits = |output: &&TensorMetadata| is_float(output) && ranks.contains(&output.shape.dims().len());
    let named = names.iter().find_map(|name| {
        let mut outputs = metadata.outputs.iter().filter(fits);
        outputs.find(|output| output.name == *name)
    });
    let by_rank = || {
        let of = |rank: usize| {
            let mut outputs = metadata.outputs.iter().filter(fits);
            outputs.find(|output| output.shape.dims().len() == rank)
        };
        ranks.iter().find_map(|rank| of(*rank))
    };
    named.or_else(by_rank).ok_or_else(|| {
        let found: Vec<String> = metadata.outputs.iter().map(ToString::to_string).collect();
        let what = format!(
            "the network has the outputs {}, expected {}",
            found.join(", "),
            names.join(" or ")
        );
        TextError::file("model.onnx", what)
    })
}

fn unexpected(name: &str, found: &Shape, rows: usize, length: usize) -> ServiceError {
    ServiceError::internal(format!(
        "output {} of the network: expected {rows} rows of sequences of {length} tokens, found the shape {found}",
        QuotedName(name)
    ))
}
