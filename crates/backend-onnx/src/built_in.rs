//! Models that run on the built-in runtime, without ONNX Runtime.

use oip_model::{Call, Capabilities, LoadContext, Model, ModelSource, Outcome, RowIndependence};
use oip_types::{InferOutput, ModelMetadata, ServiceError};
use onnx_graph::proto::ModelProto;
use onnx_run::Session;
use onnx_tensor::time_limit;
use tensor_core::QuotedName;

use crate::{
    cancelled_runs::{cancellation, failed},
    configured_dims,
    convert::{self, admit_input},
    dims::NamedDims,
    dtype,
    file_error::refusal,
    output_metadata::{self, Comparison},
    thread_count::thread_count,
};

/// The name of the built-in runtime in configurations and metadata.
pub(crate) const BUILT_IN: &str = "built-in";

/// A model that runs on the built-in runtime.
pub(crate) struct OnnxModel {
    metadata: ModelMetadata,
    named_dims: NamedDims,
    session: Session,
    comparison: Comparison,
    rows: RowIndependence,
}

impl OnnxModel {
    pub(crate) fn load(
        source: &ModelSource,
        model: &ModelProto,
        cx: &LoadContext,
    ) -> Result<Self, ServiceError> {
        let _limit = time_limit::until(cx.deadline);
        let session = Session::prepare(model, |signature| configured_dims::fix(signature, cx));
        let session = session.map_err(refusal)?;
        let session = session.with_threads(thread_count(&cx.config)?.unwrap_or(0));
        let signature = session.signature();
        let named_dims = NamedDims::of(&signature.inputs);
        let inputs = signature.inputs.iter().map(output_metadata::of_input);
        let inputs = inputs.collect::<Result<_, _>>()?;
        let outputs = signature.outputs.iter().zip(session.outputs());
        let outputs = outputs.map(|(port, fact)| output_metadata::of_known(port, fact));
        let outputs = outputs.collect::<Result<_, _>>()?;
        let metadata = ModelMetadata::new(source.name.clone(), "onnx_onnxv1", inputs, outputs)
            .with_versions([source.version.clone()]);
        Ok(Self {
            metadata,
            named_dims,
            session,
            comparison: Comparison::default(),
            rows: RowIndependence::default(),
        })
    }

    /// Adds the result of the row independence analysis.
    pub(crate) fn with_row_independence(self, rows: RowIndependence) -> Self {
        Self { rows, ..self }
    }
}

impl Model for OnnxModel {
    fn metadata(&self) -> &ModelMetadata {
        &self.metadata
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::default().with(|capabilities| {
            capabilities.runtime = Some(BUILT_IN.to_owned());
            capabilities.row_independence = self.rows.clone();
            // Models with loops, or with sizes that depend on values, have no bound on their run time.
            capabilities.bounded = self.session.is_bounded();
        })
    }

    fn run(&self, call: Call<'_>) -> Result<Outcome, ServiceError> {
        let (mut request, cancel) = (call.request, call.cancel);
        let mut inputs = Vec::with_capacity(self.metadata.inputs.len());
        let mut shapes = Vec::with_capacity(self.metadata.inputs.len());
        for input in &self.metadata.inputs {
            let value = request.take_input(&input.name)?;
            shapes.push(value.shape().clone());
            let tensor = admit_input(&value)
                .and_then(|()| convert::to_input(&value))
                .map_err(|error| error.within(format!("input {}", QuotedName(&input.name))))?;
            inputs.push(tensor);
        }
        self.named_dims.check(&shapes)?;
        let outputs = self.session.run_until(inputs, &cancellation(cancel));
        let outputs = outputs.map_err(|error| failed(error, cancel))?;
        let named = self.metadata.outputs.iter().zip(outputs);
        let outputs = named.map(|(output, value)| {
            output_metadata::check_type(&output.name, output.datatype, dtype::served(value.element_type()))?;
            let value = convert::to_output(&value)?;
            Ok(InferOutput::new(output.name.as_str(), value))
        });
        let outputs = outputs.collect::<Result<Vec<_>, ServiceError>>()?;
        self.comparison.note(&self.metadata, &outputs);
        Ok(outputs.into())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::sync::Arc;

    use bytes::Bytes;
    use oip_model::CancelToken;
    use oip_types::{ErrorCode, InferRequest, ModelConfig, ModelRef, model_config::ConfigParameter};
    use onnx_graph::proto::{AttributeProto, NodeProto};
    use tensor_core::{Shape, Tensor};

    use super::*;
    use crate::test_models::{constant, model, node};

    #[test]
    fn the_threads_of_a_request_are_a_number() {
        let nodes = vec![node("Add", &["x", "w"], "y")];
        let model = model(nodes, &[1], &[1], vec![constant("w", &[1])]);
        let source = ModelSource::new("m", "1", "m/1/model.onnx", Bytes::new());
        for (threads, is_number) in [("0", true), ("3", true), ("-1", false), ("many", false)] {
            let mut cx = LoadContext::default();
            let parameter = ConfigParameter {
                string_value: threads.to_owned(),
            };
            let mut config = ModelConfig::default();
            config
                .parameters
                .insert("intra_op_thread_count".to_owned(), parameter);
            cx.config = Arc::new(config);
            let loaded = OnnxModel::load(&source, &model, &cx);
            assert_eq!(loaded.is_ok(), is_number, "{threads}");
            let reason = loaded.err().map(|error| error.to_string());
            assert!(reason.is_none_or(|reason| reason.contains("expected a number from 0 to 1024")));
        }
    }

    /// Checks the error for an output whose declared type is wrong, which only a run reveals.
    #[test]
    fn an_output_of_another_type_than_the_file_declares_is_refused() {
        let cast = NodeProto {
            attribute: vec![AttributeProto {
                name: "to".to_owned(),
                i: 7,
                r#type: 2,
                ..AttributeProto::default()
            }],
            ..node("Cast", &["x"], "sizes")
        };
        let nodes = vec![
            cast,
            node("Greater", &["x", "w"], "truth"),
            node("Reshape", &["truth", "sizes"], "y"),
        ];
        let model = model(nodes, &[-1], &[-1], vec![constant("w", &[1])]);
        let cx = LoadContext::default();
        let source = ModelSource::new("m", "1", "m/1/model.onnx", Bytes::new());
        let model = OnnxModel::load(&source, &model, &cx).unwrap();
        let one = Tensor::from_vec(Shape::new(&[1]).unwrap(), vec![1f32]).unwrap();
        let request = InferRequest::new(ModelRef::new("m", None).unwrap()).with_input("x", one);
        let error = model
            .run(Call::new(request, &CancelToken::new(None)))
            .unwrap_err();
        let message = "output 'y' is declared as FP32, but would be BOOL";
        assert_eq!(
            (error.code(), error.message()),
            (ErrorCode::InvalidArgument, message)
        );
    }
}
