//! The dimensions that a model's configuration gives to inputs whose file leaves them free.

use std::collections::HashMap;

use oip_types::ModelConfig;
use tensor_core::Shape;

use crate::signature::{Dim, Port, Signature};

/// Fixes the free dimensions of a signature to which the configuration gives a size. A named one has that size wherever
/// its name stands.
pub(crate) fn fix(signature: &mut Signature, config: &ModelConfig) {
    let mut named: HashMap<String, u64> = HashMap::new();
    for port in &mut signature.inputs {
        let Some(input) = config.input.iter().find(|input| input.name == port.name) else {
            continue;
        };
        let skipped = usize::from(config.max_batch_size > 0);
        let Some(dims) = port.dims.as_mut() else {
            continue;
        };
        if input.reshape.is_some() || dims.len() != input.dims.len() + skipped {
            continue;
        }
        for (dim, &size) in dims.iter_mut().skip(skipped).zip(&input.dims) {
            let Ok(size) = u64::try_from(size) else {
                continue;
            };
            match dim {
                Dim::Free => *dim = Dim::Fixed(size),
                Dim::Named(name) => {
                    named.entry(name.clone()).or_insert(size);
                }
                Dim::Fixed(_) => {}
            }
        }
    }
    let ports = signature.inputs.iter_mut().chain(&mut signature.outputs);
    for dim in ports.flat_map(|port| port.dims.iter_mut().flatten()) {
        if let Dim::Named(name) = dim
            && let Some(&size) = named.get(name)
        {
            *dim = Dim::Fixed(size);
        }
    }
}

/// The most batch sizes that plans are made for before a model is ready.
const MAX_EXPECTED: usize = 8;

/// The shapes that the configuration says will come: the batch sizes that it prefers, if only the batch is free.
pub(crate) fn expected_shapes(inputs: &[Port], config: &ModelConfig) -> Vec<Vec<Shape>> {
    let Some(batching) = &config.dynamic_batching else {
        return Vec::new();
    };
    let sizes = batching.preferred_batch_size.iter().take(MAX_EXPECTED);
    let shapes = sizes.filter_map(|&size| {
        let shape = |port: &Port| {
            let dims = port.dims.as_ref()?.iter().enumerate();
            let sizes: Option<Vec<u64>> = dims
                .map(|(axis, dim)| match axis {
                    0 if dim.fixed().is_none() => Some(size.into()),
                    _ => dim.fixed(),
                })
                .collect();
            Shape::new(&sizes?).ok()
        };
        inputs.iter().map(shape).collect()
    });
    shapes.collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use oip_types::DataType;

    use super::*;

    #[test]
    fn preferred_batches_are_expected_where_nothing_else_is_free() {
        let port = |dims| Port {
            name: "x".to_owned(),
            datatype: DataType::FP32,
            dims: Some(dims),
        };
        let mut config = ModelConfig {
            dynamic_batching: Some(Default::default()),
            ..ModelConfig::default()
        };
        if let Some(batching) = &mut config.dynamic_batching {
            batching.preferred_batch_size = vec![4, 8];
        }
        let rows = port(vec![Dim::Free, Dim::Fixed(3)]);
        let shapes = expected_shapes(std::slice::from_ref(&rows), &config);
        assert_eq!(
            shapes,
            [[Shape::new(&[4, 3]).unwrap()], [Shape::new(&[8, 3]).unwrap()]]
        );
        let free = port(vec![Dim::Free, Dim::Named("w".to_owned())]);
        assert!(expected_shapes(&[free], &config).is_empty());
        assert!(expected_shapes(&[rows], &ModelConfig::default()).is_empty());
    }
}
