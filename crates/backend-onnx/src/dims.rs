//! Checks input dimensions that a model expects to be equal.

use std::collections::HashMap;

use oip_types::ServiceError;
use onnx_graph::{Dim, Port};
use tensor_core::{QuotedName, Shape};

/// The groups of input dimensions that must have equal sizes in a request.
#[derive(Debug)]
pub(crate) struct NamedDims {
    inputs: Vec<String>,
    dims: Vec<NamedDim>,
}

/// A symbolic dimension, which has the same size wherever its name occurs.
#[derive(Debug)]
struct NamedDim {
    name: String,
    /// Occurrences of the name, as pairs of input index and axis.
    places: Vec<(usize, usize)>,
}

impl NamedDims {
    /// Groups the inputs' dimensions by name.
    pub(crate) fn of(inputs: &[Port]) -> Self {
        let mut places: HashMap<&str, Vec<(usize, usize)>> = HashMap::new();
        for (index, port) in inputs.iter().enumerate() {
            for (axis, dim) in port.dims.iter().flatten().enumerate() {
                if let Dim::Named(name) = dim {
                    places.entry(name).or_default().push((index, axis));
                }
            }
        }
        let mut dims: Vec<NamedDim> = places
            .into_iter()
            .map(|(name, places)| NamedDim {
                name: name.to_owned(),
                places,
            })
            .collect();
        dims.retain(|dim| dim.places.len() > 1);
        dims.sort_by(|a, b| a.places.cmp(&b.places));
        Self {
            inputs: inputs.iter().map(|port| port.name.clone()).collect(),
            dims,
        }
    }

    /// Checks the shapes of a request's inputs, given in the model's order of inputs.
    pub(crate) fn check(&self, shapes: &[Shape]) -> Result<(), ServiceError> {
        for dim in &self.dims {
            let size = |&(input, axis): &(usize, usize)| shapes[input].dims().get(axis).copied();
            let Some((first, others)) = dim.places.split_first() else {
                continue;
            };
            if let Some(other) = others.iter().find(|place| size(place) != size(first)) {
                let place = |place: &(usize, usize)| {
                    format!(
                        "input {} has {} in dimension {}",
                        QuotedName(&self.inputs[place.0]),
                        size(place).unwrap_or(0),
                        place.1
                    )
                };
                return Err(ServiceError::invalid(format!(
                    "{} but {}; the model calls both {} and expects them to be equal",
                    place(first),
                    place(other),
                    QuotedName(&dim.name)
                )));
            }
        }
        Ok(())
    }
}
