use oip_service::{Backend, CancelToken, LoadContext, Model, ModelSource};
use oip_types::{InferOutput, InferRequest, ModelMetadata, ServiceError};

use crate::{lower, plan::Plan, proto, signature::Signature};

/// Loads ONNX models.
#[derive(Clone, Debug, Default)]
pub struct OnnxBackend {}

impl OnnxBackend {
    /// A backend.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

impl Backend for OnnxBackend {
    fn name(&self) -> &'static str {
        "onnx"
    }

    fn other_names(&self) -> &'static [&'static str] {
        &["onnx_onnxv1", "onnxruntime", "onnxruntime_onnx"]
    }

    fn file_names(&self) -> &[&str] {
        &["model.onnx"]
    }

    fn load(&self, source: &ModelSource, _: &LoadContext) -> Result<Box<dyn Model>, ServiceError> {
        let model = proto::decode(&source.content)?;
        let graph = model
            .graph
            .as_ref()
            .ok_or_else(|| ServiceError::invalid(proto::DAMAGED))?;
        let signature = Signature::of(&model, graph)?;
        let lowered = lower::lower(graph, &signature.opsets)?;
        drop(model);
        let plan = Plan::new(&signature, lowered)?;
        let metadata = ModelMetadata {
            name: source.name.clone(),
            versions: vec![source.version.clone()],
            platform: "onnx_onnxv1".to_owned(),
            inputs: plan.inputs().to_vec(),
            outputs: plan.outputs().to_vec(),
        };
        Ok(Box::new(OnnxModel { metadata, plan }))
    }
}

struct OnnxModel {
    metadata: ModelMetadata,
    plan: Plan,
}

impl Model for OnnxModel {
    fn metadata(&self) -> &ModelMetadata {
        &self.metadata
    }

    fn infer(&self, request: InferRequest, cancel: &CancelToken) -> Result<Vec<InferOutput>, ServiceError> {
        self.plan.run(request, cancel)
    }
}
