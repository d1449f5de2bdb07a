//! Decides whether requests to a model have a batch dimension, and whether they are batched.

use oip_types::{Joining, ModelMetadata, TensorMetadata};

use crate::{Defaults, MismatchError, WrittenConfig};

/// Whether requests have a batch dimension, and whether they are batched.
pub(crate) struct Batching {
    /// Value of the configuration's field `max_batch_size`; 0 without a batch dimension.
    pub(crate) max_batch_size: u32,
    pub(crate) joining: Joining,
    pub(crate) written_rows: WrittenRows,
}

/// Whether the dimensions that are written in the configuration include the batch dimension.
#[derive(Clone, Copy)]
pub(crate) enum WrittenRows {
    Written,
    Omitted,
    /// The configuration has no `max_batch_size`, so for each tensor, the number of written dimensions shows
    /// whether they include the batch dimension.
    Either,
}

/// Why requests to a decoupled model run alone.
const SEVERAL_RESPONSES: &str = "it returns any number of responses to a request";

impl Batching {
    pub(crate) fn is_on(&self) -> bool {
        self.max_batch_size > 0
    }

    /// Returns settings for requests that run alone, without a batch dimension.
    fn alone(joining: Joining) -> Self {
        Self {
            max_batch_size: 0,
            joining,
            written_rows: WrittenRows::Written,
        }
    }

    /// Returns settings for a batch size that the configuration or a default declares.
    fn declared(max_batch_size: u32, is_decoupled: bool, needs_dynamic_batching: bool) -> Self {
        Self {
            max_batch_size,
            joining: match max_batch_size {
                _ if is_decoupled => Joining::alone(SEVERAL_RESPONSES),
                0 | 1 => Joining::alone(format!("max_batch_size is {max_batch_size}")),
                _ if needs_dynamic_batching => Joining::alone("its configuration has no dynamic_batching")
                    .advising("write dynamic_batching { }"),
                _ => Joining::Declared,
            },
            written_rows: match max_batch_size {
                0 => WrittenRows::Written,
                _ => WrittenRows::Omitted,
            },
        }
    }

    pub(crate) fn of(
        written: &WrittenConfig,
        model: &ModelMetadata,
        defaults: &Defaults,
        is_decoupled: bool,
    ) -> Result<Self, MismatchError> {
        let has_dynamic_batching = written.config.dynamic_batching.is_some();
        if let Some(size) = written.max_batch_size {
            let needs_dynamic_batching = defaults.joined_only_when_told && !has_dynamic_batching;
            return match batch_obstacle(model, &[]) {
                Some(tensor) if size > 0 => Err(MismatchError::FixedRows {
                    max_batch_size: size,
                    tensor: tensor.to_string(),
                }),
                _ => Ok(Self::declared(size, is_decoupled, needs_dynamic_batching)),
            };
        }
        // dynamic_batching implies that all inputs have a batch dimension, like max_batch_size.
        let shared = match has_dynamic_batching {
            true => &[][..],
            false => &defaults.shared_inputs,
        };
        if let Some(tensor) = batch_obstacle(model, shared) {
            return Ok(Self::alone(Joining::alone(match takes_rows(tensor) {
                true => format!("{tensor} is optional, and no input with rows is required"),
                false => format!("the first dimension of {tensor} is not free"),
            })));
        }
        if model.inputs.is_empty() {
            return Ok(Self::alone(Joining::alone("it has no inputs")));
        }
        // The configuration has no `max_batch_size`. The number of written dimensions shows whether they
        // include the batch dimension.
        if has_full_rank(written, model) {
            let joining = Joining::alone("the dims of its configuration have the first dimension");
            return Ok(Self::alone(
                joining.advising("remove it there and set max_batch_size: 8"),
            ));
        }
        Ok(Self {
            written_rows: WrittenRows::Either,
            ..Self::by_default(defaults, is_decoupled, has_dynamic_batching)
        })
    }

    /// Returns settings for a model that can be batched, and whose configuration has no `max_batch_size`.
    fn by_default(defaults: &Defaults, is_decoupled: bool, has_dynamic_batching: bool) -> Self {
        let size = defaults.max_batch_size;
        let needs_dynamic_batching = defaults.joined_only_when_told && !has_dynamic_batching;
        let declared = || Self::declared(size, is_decoupled, needs_dynamic_batching);
        match &defaults.joining {
            _ if is_decoupled => Self::alone(Joining::alone(SEVERAL_RESPONSES)),
            _ if has_dynamic_batching || defaults.joined_only_when_told => declared(),
            Joining::Declared => declared(),
            Joining::Proven if size < 2 => declared(),
            joining => Self {
                // A batch size would add a batch dimension to all inputs, so it is set only if every input
                // has rows.
                max_batch_size: match joining.is_joined() && defaults.shared_inputs.is_empty() {
                    true => size,
                    false => 0,
                },
                ..Self::alone(joining.clone())
            },
        }
    }
}

/// Returns the first tensor of `model` that prevents batches: its first dimension is fixed, or it is an
/// optional input and no required input shows the number of rows. Inputs in `shared` have no rows, and are
/// exempt.
///
/// ```
/// use model_config::batch_obstacle;
/// use oip_types::{DataType, ModelMetadata, TensorMetadata};
///
/// let inputs = vec![TensorMetadata::new("x", DataType::FP32, &[-1, 4])];
/// let outputs = vec![TensorMetadata::new("y", DataType::FP32, &[1, 4])];
/// let model = ModelMetadata::new("m", "test_test", inputs, outputs);
/// assert_eq!(batch_obstacle(&model, &[]).map(|tensor| tensor.name.as_str()), Some("y"));
/// ```
#[must_use]
pub fn batch_obstacle<'m>(model: &'m ModelMetadata, shared: &[String]) -> Option<&'m TensorMetadata> {
    let with_rows = || model.inputs.iter().filter(|input| !shared.contains(&input.name));
    let is_counted = with_rows().any(|input| !input.optional);
    let mut inputs = with_rows().filter(|input| !takes_rows(input) || input.optional && !is_counted);
    let mut outputs = model.outputs.iter().filter(|output| !takes_rows(output));
    inputs.next().or_else(|| outputs.next())
}

/// Returns whether the first dimension is free, so that it can be the batch dimension.
pub(crate) fn takes_rows(tensor: &TensorMetadata) -> bool {
    !tensor.shape.has_any_leading() && tensor.shape.dims().first() == Some(&None)
}

/// Returns whether the written dimensions of any tensor have the model's full rank, and thus include its
/// first dimension.
fn has_full_rank(written: &WrittenConfig, model: &ModelMetadata) -> bool {
    let pairs = [
        (&written.inputs, &model.inputs),
        (&written.outputs, &model.outputs),
    ];
    pairs.into_iter().any(|(written, model)| {
        written.iter().any(|written| {
            let known = model.iter().find(|known| known.name == written.name);
            let ranks = known.zip(written.model_dims());
            ranks.is_some_and(|(known, dims)| dims.len() == known.shape.dims().len())
        })
    })
}
