//! Talking to inference servers.

pub(crate) mod bench;
mod cast;
mod generate;
pub(crate) mod infer;
mod inputs;
mod measure;
mod mismatch;
pub(crate) mod options;
mod outputs;
mod report;
mod texts;

use std::{fs, path::Path, pin::pin, time::Duration};

use oip_client::{Builder, ClientError, InferenceClient, TensorForm};
use oip_types::{InferRequest, ModelMetadata, ModelRef, RequestedOutput, TensorValue};
use tokio::time::timeout;

use crate::{
    client::{mismatch::mismatch, options::Server},
    failure::{Failure, Outcome},
    progress,
};

impl Failure {
    fn call(kind: impl Into<String>, message: impl Into<String>) -> Self {
        let (kind, message) = (kind.into(), message.into());
        Self::Call { kind, message }
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        Self::call(error.kind().to_string(), error.to_string())
    }
}

impl Server {
    fn model(&self) -> Outcome<ModelRef<'_>> {
        ModelRef::new(&self.model, self.version.as_deref())
            .map_err(|error| Failure::call("Usage", error.message()))
    }

    fn client(&self) -> Outcome<Builder<Box<dyn InferenceClient>>> {
        let read = |option: &str, path: &Path| {
            fs::read(path).map_err(|error| {
                let path = path.display();
                Failure::call("Usage", format!("{option}: {path}: cannot be read: {error}"))
            })
        };
        let form = match self.json_form {
            true => TensorForm::Typed,
            false => TensorForm::Raw,
        };
        let mut builder = oip_client::builder(&self.url)
            .request_timeout(self.timeout)
            .tensor_form(form)
            .max_answer_bytes(self.max_answer_size);
        if let Some(path) = &self.ca {
            builder = builder.authorities(read("--ca", path)?);
        }
        if let (Some(certificate), Some(key)) = (&self.cert, &self.key) {
            builder = builder.certificate(read("--cert", certificate)?, read("--key", key)?);
        }
        let headers = self.headers.iter();
        Ok(headers.fold(builder, |builder, (name, value)| builder.header(name, value)))
    }

    /// A request for these inputs, and for the outputs that are wanted.
    fn request(&self, inputs: Vec<(String, TensorValue)>, outputs: &[String]) -> Outcome<InferRequest> {
        let mut request = InferRequest::new(self.model()?);
        request.parameters.extend(self.parameters.iter().cloned());
        for (name, value) in inputs {
            request = request.with_input(name, value);
        }
        request.outputs.extend(outputs.iter().map(|name| RequestedOutput {
            name: name.clone(),
            parameters: Default::default(),
        }));
        Ok(request)
    }
}

/// Refuses outputs that the model does not have, if it says which it has.
fn check_outputs(metadata: &ModelMetadata, wanted: &[String]) -> Outcome {
    let is_known = |name: &String| metadata.outputs.iter().any(|output| output.name == *name);
    match wanted
        .iter()
        .find(|name| !metadata.outputs.is_empty() && !is_known(name))
    {
        None => Ok(()),
        Some(name) => {
            let known: Vec<String> = metadata.outputs.iter().map(ToString::to_string).collect();
            let message = format!(
                "model '{}' has no output '{name}'; it gives {}",
                metadata.name,
                known.join(", ")
            );
            Err(mismatch(message))
        }
    }
}

/// Awaits something unless the user wants to end it.
async fn unless_interrupted<T>(work: impl Future<Output = T>) -> Outcome<T> {
    /// How soon Ctrl-C is heard.
    const TICK: Duration = Duration::from_millis(50);
    let mut work = pin!(work);
    loop {
        match timeout(TICK, work.as_mut()).await {
            Ok(done) => return Ok(done),
            Err(_) if progress::is_interrupted() => return Err(Failure::Interrupted),
            Err(_) => {}
        }
    }
}
