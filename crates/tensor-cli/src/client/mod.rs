//! Client commands for inference servers.

pub(crate) mod bench;
mod cast;
mod chart;
mod generate;
pub(crate) mod infer;
mod inputs;
mod measure;
mod mismatch;
pub(crate) mod options;
mod outputs;
pub(crate) mod replay;
mod report;
pub(crate) mod servers;
mod texts;
mod values;

use std::{fs, path::Path, pin::pin, time::Duration};

use oip_client::{Builder, ClientError, InferenceClient, TensorForm};
use oip_types::{ErrorCode, InferRequest, ModelMetadata, ModelRef, RequestedOutput, TensorValue};
use tokio::time::timeout;

use crate::{
    client::{
        mismatch::mismatch,
        options::{Connection, Server},
    },
    failure::{Failure, Outcome},
    progress, table,
};

impl Failure {
    fn call(kind: impl Into<String>, message: impl Into<String>) -> Self {
        let (kind, message) = (kind.into(), message.into());
        Self::Call {
            kind,
            message,
            is_not_found: false,
        }
    }

    /// Returns whether the server responded with the error code `NotFound`.
    fn is_not_found(&self) -> bool {
        matches!(
            self,
            Self::Call {
                is_not_found: true,
                ..
            }
        )
    }

    /// Appends advice to the message of a failed call.
    fn add(&mut self, advice: &str) {
        if let Self::Call { message, .. } = self {
            message.push_str(advice);
        }
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        let is_not_found = error.code() == Some(ErrorCode::NotFound);
        Self::Call {
            kind: error.kind().to_string(),
            message: error.to_string(),
            is_not_found,
        }
    }
}

impl Server {
    fn model(&self) -> Outcome<ModelRef<'_>> {
        ModelRef::new(&self.model, self.version.as_deref())
            .map_err(|error| Failure::call("Usage", error.message()))
    }

    fn client(&self) -> Outcome<Builder<Box<dyn InferenceClient>>> {
        let form = match self.json_form {
            true => TensorForm::Typed,
            false => TensorForm::Raw,
        };
        Ok(self.connection.client()?.tensor_form(form))
    }

    /// Creates an inference request with the inputs `inputs`, which requests the outputs named in `outputs`.
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

impl Connection {
    fn client(&self) -> Outcome<Builder<Box<dyn InferenceClient>>> {
        let read = |option: &str, path: &Path| {
            fs::read(path).map_err(|error| {
                let path = path.display();
                Failure::call("Usage", format!("{option}: {path}: cannot be read: {error}"))
            })
        };
        let mut builder = oip_client::builder(&self.url)
            .request_timeout(self.timeout)
            .max_answer_bytes(self.max_answer_size);
        // `--ca` may be meant for files on servers, while the inference server uses no TLS.
        let is_encrypted = ["https://", "grpcs://"]
            .iter()
            .any(|scheme| self.url.to_ascii_lowercase().starts_with(scheme));
        if let Some(path) = self.ca.as_ref().filter(|_| is_encrypted) {
            builder = builder.authorities(read("--ca", path)?);
        }
        if let (Some(certificate), Some(key)) = (&self.cert, &self.key) {
            builder = builder.certificate(read("--cert", certificate)?, read("--key", key)?);
        }
        let headers = self.headers.iter();
        Ok(headers.fold(builder, |builder, (name, value)| builder.header(name, value)))
    }

    /// Returns a model's metadata. The error for an unknown model suggests a name.
    async fn metadata(&self, client: &dyn InferenceClient, model: ModelRef<'_>) -> Outcome<ModelMetadata> {
        let error = match client.model_metadata(model).await {
            Ok(metadata) => return Ok(metadata),
            Err(error) => error,
        };
        Err(with_suggestion(error.into(), client, model.name()).await)
    }
}

/// Suggests the most similar model name in the error for an unknown model.
async fn with_suggestion(mut failure: Failure, client: &dyn InferenceClient, model: &str) -> Failure {
    let is_missing = failure.is_not_found();
    if is_missing && let Ok(index) = client.repository_index(false).await {
        let names: Vec<&str> = index.iter().map(|entry| entry.name.as_str()).collect();
        if let Some(meant) = nearest(model, &names) {
            failure.add(&format!("; did you mean '{}'?", table::text(meant)));
        }
    }
    failure
}

/// Returns the name most similar to `name`, if one is similar enough.
fn nearest<'n>(name: &str, names: &[&'n str]) -> Option<&'n str> {
    let near = names
        .iter()
        .map(|known| (strsim::normalized_damerau_levenshtein(name, known), *known))
        .filter(|(likeness, known)| *likeness >= 0.6 && *known != name);
    near.max_by(|one, other| one.0.total_cmp(&other.0))
        .map(|(_, known)| known)
}

/// Rejects outputs that the model does not have, if its metadata lists outputs.
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

/// Awaits `work` unless the user interrupts.
async fn unless_interrupted<T>(work: impl Future<Output = T>) -> Outcome<T> {
    /// Polling interval for interrupts.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_spelt_nearly_so_is_meant() {
        let names = ["digits", "digits_forest", "iris"];
        assert_eq!(nearest("digit", &names), Some("digits"));
        assert_eq!(nearest("digits_froest", &names), Some("digits_forest"));
        assert_eq!(nearest("resnet", &names), None);
        assert_eq!(nearest("iris", &names), None);
    }
}
