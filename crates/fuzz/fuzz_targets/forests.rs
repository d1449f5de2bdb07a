//! Loads arbitrary bytes as a model of XGBoost or LightGBM. If the bytes are a valid model, runs the model on
//! rows that reach every kind of branch.
#![no_main]

use backend_boosters::BoostersBackend;
use libfuzzer_sys::fuzz_target;
use oip_model::{Backend, CancelToken, LoadContext, ModelSource};
use oip_types::{InferRequest, ModelRef};
use tensor_core::{Shape, Tensor};

/// The beginning of a LightGBM model, up to its trees.
const HEAD: &[u8] = b"tree\nversion=v4\nnum_tree_per_iteration=1\nmax_feature_idx=3\nobjective=regression\n\nTree=0\n";

fuzz_target!(|data: &[u8]| {
    for content in [data.to_vec(), [HEAD, data, b"\n\nend of trees\n"].concat()] {
        let source = ModelSource::new("model", "1", "model.bst", content.into());
        let Ok(model) = BoostersBackend::new().load(&source, &LoadContext::default()) else {
            continue;
        };
        let metadata = model.metadata();
        let width = metadata.inputs[0].shape.dims()[1].expect("the number of features is known");
        if width > 1 << 12 {
            continue;
        }
        let values = [0.0, f32::NAN, 1e30, -2.5, f32::NEG_INFINITY, 7.0, 1e-36];
        let values: Vec<f32> = values.iter().copied().cycle().take(9 * width as usize).collect();
        let shape = Shape::new(&[9, width]).expect("a matrix");
        let rows = Tensor::from_vec(shape, values).expect("as many values");
        let model_ref = ModelRef::new("model", None).expect("a name");
        let request = InferRequest::new(model_ref).with_input(&metadata.inputs[0].name, rows);
        let outputs = model.infer(request, &CancelToken::new(None)).expect("a response");
        assert!(metadata.outputs[0].shape.matches(outputs[0].value.shape()));
    }
});
