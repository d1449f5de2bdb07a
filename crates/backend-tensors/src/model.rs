//! A loaded file as a model: responds with whole tensors or with rows of them.

use std::collections::HashMap;

use oip_model::{Call, Capabilities, Model, ModelSource, Outcome};
use oip_resources::ByteBudget;
use oip_types::{
    DataType, InferInput, InferOutput, InferRequest, ModelMetadata, ServiceError, ShapePattern,
    TensorMetadata,
};
use tensor_core::{QuotedName, Shape, Tensor};

use crate::{
    load::ServedTensors,
    table::{GatherError, NoSuchRow, Table},
};

/// The suffix of an input's name, after the tensor's name.
const ROWS: &str = ".rows";

/// The tensors of a file, by name.
pub(crate) struct TensorsModel {
    metadata: ModelMetadata,
    tensors: Vec<ServedTensor>,
    /// The index in `tensors`, by name.
    positions: HashMap<String, usize>,
    max_answer_bytes: u64,
    budget: ByteBudget,
}

struct ServedTensor {
    tensor: Tensor,
    /// The rows that requests can gather; `None` if the tensor has no rows.
    table: Option<Table>,
}

impl TensorsModel {
    pub(crate) fn new(
        source: &ModelSource,
        loaded: ServedTensors,
        max_answer_bytes: u64,
        budget: ByteBudget,
    ) -> Self {
        let mut metadata = ModelMetadata::new(
            source.name.clone(),
            format!("tensorferry_{}", loaded.format),
            Vec::new(),
            Vec::new(),
        )
        .with_versions([source.version.clone()]);
        let (mut tensors, mut positions) = (Vec::new(), HashMap::new());
        for (name, tensor) in loaded.tensors {
            let table = Table::new(&tensor);
            let fixed = |shape: &Shape| shape.dims().iter().copied().map(Some).collect();
            let pattern = match &table {
                None => ShapePattern::new(fixed(tensor.shape())),
                Some(table) => ShapePattern::with_any_leading(fixed(table.row_shape())),
            };
            if table.is_some() {
                let any = ShapePattern::with_any_leading(Vec::new());
                let input = TensorMetadata::with_shape(format!("{name}{ROWS}"), DataType::INT64, any);
                metadata.inputs.push(input.optional());
            }
            let datatype = DataType::Fixed(tensor.spec().dtype());
            let output = TensorMetadata::with_shape(&name, datatype, pattern);
            metadata.outputs.push(output.optional());
            positions.insert(name, tensors.len());
            tensors.push(ServedTensor { tensor, table });
        }
        Self {
            metadata,
            tensors,
            positions,
            max_answer_bytes,
            budget,
        }
    }

    /// Returns the requested tensors by index, with the requested rows of each.
    fn wanted<'r>(&self, request: &'r InferRequest) -> Result<Vec<WantedTensor<'r>>, ServiceError> {
        let mut rows = HashMap::new();
        for input in &request.inputs {
            // Callers have checked that input names have this suffix.
            let name = input.name.strip_suffix(ROWS);
            let name = name.ok_or_else(|| ServiceError::invalid(format!("inputs end in '{ROWS}'")))?;
            rows.insert(self.position(name)?, input);
        }
        let mut positions: Vec<usize> = if !request.outputs.is_empty() {
            let outputs = request.outputs.iter();
            outputs
                .map(|output| self.position(&output.name))
                .collect::<Result<_, _>>()?
        } else if !rows.is_empty() {
            rows.keys().copied().collect()
        } else {
            (0..self.tensors.len()).collect()
        };
        if request.outputs.is_empty() {
            positions.sort_unstable();
        }
        let wanted = positions.into_iter().map(|position| WantedTensor {
            position,
            rows: rows.remove(&position),
        });
        let wanted: Vec<WantedTensor<'_>> = wanted.collect();
        // An unused input is a client error.
        if let Some(unused) = request
            .inputs
            .iter()
            .find(|input| rows.values().any(|left| left.name == input.name))
        {
            return Err(ServiceError::invalid(format!(
                "input {} is given, but its tensor is not among the requested outputs",
                QuotedName(&unused.name)
            )));
        }
        Ok(wanted)
    }

    fn position(&self, name: &str) -> Result<usize, ServiceError> {
        let position = self.positions.get(name).copied();
        // The name is unknown only if the caller did not check the request against the metadata.
        position.ok_or_else(|| ServiceError::invalid(format!("there is no tensor {}", QuotedName(name))))
    }

    /// Refuses a request whose response would be too large, before building the response.
    fn check_size(&self, wanted: &[WantedTensor<'_>]) -> Result<(), ServiceError> {
        let bytes = wanted.iter().map(|wanted| {
            let served = &self.tensors[wanted.position];
            match (wanted.rows, &served.table) {
                (Some(rows), Some(table)) => table.byte_len(rows.value.shape().element_count()),
                _ => served.tensor.spec().byte_len(),
            }
        });
        let (bytes, limit) = (bytes.fold(0, u64::saturating_add), self.max_answer_bytes);
        if bytes > limit {
            return Err(ServiceError::invalid(format!(
                "the response would have {bytes} bytes of tensors, the limit is {limit}: name fewer \
                 outputs, or give rows \
                 (an input '<tensor>{ROWS}')"
            )));
        }
        Ok(())
    }
}

/// A requested tensor, or rows of it.
struct WantedTensor<'r> {
    position: usize,
    rows: Option<&'r InferInput>,
}

impl Model for TensorsModel {
    fn metadata(&self) -> &ModelMetadata {
        &self.metadata
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::default().with(|capabilities| capabilities.lends_memory = true)
    }

    fn run(&self, call: Call<'_>) -> Result<Outcome, ServiceError> {
        let wanted = self.wanted(&call.request)?;
        self.check_size(&wanted)?;
        let outputs = wanted.iter().map(|wanted| {
            let served = &self.tensors[wanted.position];
            let tensor = match (wanted.rows, &served.table) {
                (Some(rows), Some(table)) => gather(table, rows, &self.budget)?,
                _ => served.tensor.clone(),
            };
            Ok(InferOutput::new(
                &self.metadata.outputs[wanted.position].name,
                tensor,
            ))
        });
        Ok(outputs.collect::<Result<Vec<_>, ServiceError>>()?.into())
    }
}

fn gather(table: &Table, rows: &InferInput, budget: &ByteBudget) -> Result<Tensor, ServiceError> {
    let numbers = rows.value.as_fixed();
    let numbers = numbers.ok_or_else(|| ServiceError::invalid("rows are INT64"))?;
    let gathered = table.gather(numbers, budget).map_err(|error| match error {
        GatherError::NoSuchRow(NoSuchRow { row, index }) => {
            let place = place_of(index, numbers.shape());
            let expected = match table.rows().checked_sub(1) {
                None => "the tensor has no rows".to_owned(),
                Some(last) => format!("expected 0 to {last}"),
            };
            ServiceError::invalid(format!("there is no row {row}{place}: {expected}"))
        }
        GatherError::Other(error) => error,
    });
    gathered.map_err(|error| error.within(format_args!("input {}", QuotedName(&rows.name))))
}

/// Formats the position of an element in a shape.
fn place_of(mut index: usize, shape: &Shape) -> String {
    if shape.rank() == 0 {
        return String::new();
    }
    let mut place: Vec<u64> = Vec::new();
    for dim in shape.dims().iter().rev() {
        // The element exists, so no dimension is 0.
        let dim = (*dim).max(1);
        place.push(index as u64 % dim);
        index = (index as u64 / dim) as usize;
    }
    place.reverse();
    format!(", at position {place:?}")
}
