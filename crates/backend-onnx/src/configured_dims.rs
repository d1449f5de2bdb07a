//! Applies the dimensions of a model's configuration to inputs whose dimensions the file leaves free.

use std::collections::HashMap;

use oip_model::LoadContext;
use onnx_graph::{Dim, Error, Port, Signature};

/// Fixes the free dimensions of a signature whose size the configuration sets. A named dimension gets the
/// configured size wherever its name occurs. The size of an unnamed first dimension also applies to the first
/// dimension of inputs that the configuration does not list.
///
/// Ignores dimensions that do not fit the model's: the configuration is checked against the loaded model
/// later.
///
/// # Errors
/// Returns [`Invalid`](onnx_graph::ErrorKind::Invalid) when an input would be larger than a tensor may be.
pub(crate) fn fix(signature: &mut Signature, cx: &LoadContext) -> Result<(), Error> {
    let mut named: HashMap<String, u64> = HashMap::new();
    let mut batch = None;
    for port in &mut signature.inputs {
        let Some((written, dims)) = cx.input_dims.get(&port.name).zip(port.dims.as_mut()) else {
            continue;
        };
        // Without `max_batch_size`, the number of configured dimensions shows whether they include the first
        // dimension of the model.
        let skipped = match dims.len().checked_sub(written.len()) {
            Some(1) => 1,
            Some(0) if cx.config.max_batch_size == 0 => 0,
            _ => continue,
        };
        for (axis, (dim, &size)) in dims.iter_mut().skip(skipped).zip(written).enumerate() {
            let Ok(size) = u64::try_from(size) else {
                continue;
            };
            match dim {
                Dim::Free => {
                    *dim = Dim::Fixed(size);
                    if axis + skipped == 0 {
                        batch.get_or_insert(size);
                    }
                }
                Dim::Named(name) => {
                    named.entry(name.clone()).or_insert(size);
                }
                Dim::Fixed(_) => {}
            }
        }
    }
    for port in &mut signature.inputs {
        let first = port.dims.as_mut().and_then(|dims| dims.first_mut());
        if let (Some(first @ Dim::Free), Some(batch)) = (first, batch)
            && !cx.input_dims.contains_key(&port.name)
        {
            *first = Dim::Fixed(batch);
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
    signature.inputs.iter().try_for_each(Port::check)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::sync::Arc;

    use oip_types::ModelConfig;
    use onnx_graph::ElementType;
    use tensor_core::DType;

    use super::*;

    fn port(name: &str, dims: Vec<Dim>) -> Port {
        Port::new(name, ElementType::Fixed(DType::F32), Some(dims))
    }

    fn context(max_batch_size: u32, dims: &[(&str, &[i64])]) -> LoadContext {
        let config = ModelConfig {
            max_batch_size,
            ..ModelConfig::default()
        };
        let dims = dims
            .iter()
            .map(|(name, dims)| ((*name).to_owned(), dims.to_vec()));
        LoadContext::default()
            .with_config(Arc::new(config))
            .with_input_dims(Arc::new(dims.collect()))
    }

    fn fixed(inputs: Vec<Port>, cx: &LoadContext) -> Vec<Vec<Option<u64>>> {
        let mut signature = Signature::default();
        signature.inputs = inputs;
        fix(&mut signature, cx).unwrap();
        let ports = signature.inputs.iter();
        ports
            .map(|port| port.dims.iter().flatten().map(Dim::fixed).collect())
            .collect()
    }

    #[test]
    fn dims_are_understood_with_and_without_the_batch() {
        let image = || {
            vec![port(
                "x",
                vec![Dim::Free, Dim::Fixed(3), Dim::Free, Dim::Named("w".into())],
            )]
        };
        type Case<'c> = (u32, &'c [i64], [Option<u64>; 4]);
        let all: &[Case<'_>] = &[
            (0, &[1, 3, 48, 320], [Some(1), Some(3), Some(48), Some(320)]),
            (0, &[-1, 3, 48, -1], [None, Some(3), Some(48), None]),
            // With a `max_batch_size` of 0, the number of configured dimensions shows whether they include
            // the first one.
            (0, &[3, 48, 320], [None, Some(3), Some(48), Some(320)]),
            (8, &[3, 48, 320], [None, Some(3), Some(48), Some(320)]),
            (8, &[3, -1, 320], [None, Some(3), None, Some(320)]),
            // These dimensions do not match the model, and the later check refuses them.
            (8, &[1, 3, 48, 320], [None, Some(3), None, None]),
            (0, &[48, 320], [None, Some(3), None, None]),
            (0, &[1, 1, 3, 48, 320], [None, Some(3), None, None]),
        ];
        for (max_batch_size, written, expected) in all {
            let cx = context(*max_batch_size, &[("x", written)]);
            assert_eq!(fixed(image(), &cx), [expected], "{max_batch_size}: {written:?}");
        }
        assert_eq!(
            fixed(image(), &context(0, &[("y", &[1, 3, 48, 320])])),
            [[None, Some(3), None, None]]
        );
    }

    #[test]
    fn one_size_is_enough_for_dimensions_that_belong_together() {
        let ids = |name| port(name, vec![Dim::Free, Dim::Named("length".into())]);
        let inputs = vec![ids("ids"), ids("mask")];
        let cx = context(0, &[("ids", &[1, 128])]);
        assert_eq!(fixed(inputs, &cx), [[Some(1), Some(128)], [Some(1), Some(128)]]);
    }

    #[test]
    fn what_is_too_large_is_refused() {
        let mut signature = Signature::default();
        signature.inputs = vec![port("x", vec![Dim::Free, Dim::Free])];
        let error = fix(&mut signature, &context(0, &[("x", &[1 << 20, 1 << 20])])).unwrap_err();
        assert_eq!(
            error.to_string(),
            "input 'x' has dimensions beyond the limit of 4 GiB"
        );
    }
}
