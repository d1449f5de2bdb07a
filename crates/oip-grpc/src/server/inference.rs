//! Running models.

use std::{sync::Arc, time::Duration};

use oip_service::{InferenceService, Lease, RequestContext};
use oip_types::{ErrorCode, ServiceError};
use prost::Message;
use tokio::{sync::watch, time::timeout_at};

use super::{
    GrpcConfig,
    admission::Admission,
    convert::{self, ReadRequest},
    shared_memory::Inputs,
};
use crate::proto::{ModelInferRequest, ModelInferResponse};

/// What all calls share.
pub(crate) struct Inference {
    pub(crate) service: Arc<dyn InferenceService>,
    pub(crate) config: GrpcConfig,
    /// Whether streams are to come to their end.
    pub(crate) is_draining: watch::Sender<bool>,
}

impl Inference {
    pub(crate) fn new(service: Arc<dyn InferenceService>, config: GrpcConfig) -> Self {
        Self {
            service,
            config,
            is_draining: watch::Sender::new(false),
        }
    }

    /// Answers a request. `admission` has the bytes that its message has taken, and is to be kept by the caller until
    /// this returns; `timeout` is the time that the client gave the call.
    pub(crate) async fn infer(
        &self,
        message: ModelInferRequest,
        admission: Option<&Admission>,
        timeout: Option<Duration>,
    ) -> Result<ModelInferResponse, ServiceError> {
        let inputs = Inputs {
            memory: self.service.shared_memory(),
            admission,
        };
        let GrpcConfig {
            limits, time, output, ..
        } = &self.config;
        let ReadRequest { request, wants_raw } = convert::read_request(message, limits, *output, &inputs)?;
        let lease = Lease::new(&self.config.budget, time);
        let cx = RequestContext::for_request(&request, &lease, timeout, time)?;
        let model = request.model().to_string();
        let response = match cx.deadline() {
            None => oip_service::answer(&self.service, &self.config.cpu, request, cx).await,
            Some(deadline) => {
                let passed = |_| {
                    let passed = ServiceError::new(ErrorCode::DeadlineExceeded, "the deadline passed");
                    Err(passed.within(&model))
                };
                let inference = oip_service::answer(&self.service, &self.config.cpu, request, cx);
                timeout_at(deadline.into(), inference)
                    .await
                    .unwrap_or_else(passed)
            }
        }?;
        let response = convert::write_response(response, wants_raw);
        let (found, limit) = (response.encoded_len(), self.config.max_answer_bytes);
        if found > limit {
            let message = format!("the answer has {found} bytes, the limit is {limit}");
            return Err(ServiceError::internal(message).within(model));
        }
        Ok(response)
    }
}
