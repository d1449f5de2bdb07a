//! Requests over connections with shared memory regions.

pub(super) mod connections;
mod driven;
mod here;
mod register;

use std::sync::Arc;

use http::header::CONTENT_ENCODING;
use oip_types::{InferRequest, InferResponse, rest::decode_response_with};

use super::{
    HttpClient, Way, model_path,
    response::{self, Response},
};
use crate::{
    Result,
    retry::Call,
    shared_memory::{output_bytes, pool, region::Region},
};

impl HttpClient {
    /// Runs a request with its tensors in shared memory. Returns `None` without sending the request if shared
    /// memory does not pay off or the server does not support it.
    pub(super) async fn run_shared(&self, request: &InferRequest) -> Result<Option<InferResponse>> {
        let Some(memory) = &self.memory else {
            return Ok(None);
        };
        let settings = self.settings();
        let planned = match &self.way {
            Way::Driven(_) => memory.driven.plan(request, settings),
            Way::Direct(..) => memory.here.plan(request, settings),
        };
        let Some(plan) = planned else {
            return Ok(None);
        };
        let request = Arc::new(self.prepared(request));
        let call = |timeout| Call {
            policy: &settings.retry,
            timeout,
            is_read: false,
        };
        let timeout = settings.request_timeout;
        let outcome = match &self.way {
            Way::Driven(_) => {
                let attempt = |_| self.attempt(memory, &request, plan);
                call(timeout).run(attempt).await
            }
            Way::Direct(_, patience) => {
                let shorter = [timeout, patience.timeout].into_iter().flatten().min();
                call(shorter).run_here(patience, |wait| {
                    self.attempt_here(memory, &request, plan, patience, wait)
                })
            }
        };
        outcome.map_err(|error| error.at(self.url()))
    }

    /// Records the size of a response received without shared memory. It becomes the estimate for the next
    /// responses of the model.
    pub(super) fn note_outputs(&self, request: &InferRequest, response: &InferResponse) {
        let bytes = output_bytes(response);
        match (&self.memory, &self.way) {
            // Most responses are small and are not recorded.
            (Some(_), _) if bytes < pool::PAYS => {}
            (Some(memory), Way::Driven(_)) => memory.driven.note_outputs(request, bytes),
            (Some(memory), Way::Direct(..)) => memory.here.note_outputs(request, bytes),
            (None, _) => {}
        }
    }

    /// Returns the path of an inference request.
    fn infer_path(request: &InferRequest) -> String {
        format!("{}/infer", model_path(request.model()))
    }

    /// Decodes a response body from a connection with a region.
    fn decode_from(&self, answer: Response, region: &Region) -> Result<InferResponse> {
        let settings = self.settings();
        let answer = answer.success()?.decompressed(settings.max_answer_bytes)?;
        let header_length = answer.header_length()?;
        answer.expect_json()?;
        let outputs = region.outputs(settings);
        let decoded = decode_response_with(&answer.body, header_length, &settings.limits, &outputs);
        let mut response = outputs.checked(decoded.map_err(response::broken))?;
        for output in &mut response.outputs {
            output.shared_memory = None;
        }
        Ok(response)
    }
}

/// Returns whether a response must be decoded off the reactor thread, because it is compressed or contains a
/// lot of JSON.
fn is_long(answer: &Response) -> bool {
    let json = answer.header_length().ok().flatten().unwrap_or(answer.body.len());
    json > super::LARGE || answer.headers.contains_key(CONTENT_ENCODING)
}
