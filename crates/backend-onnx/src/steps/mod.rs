//! A graph as a list of nodes, each computed for the shapes that a request brings.
//!
//! [`prepare`] makes the list once for a model, [`fuse`] finds nodes that are computed as one, and [`infer`] says what is known of the
//! values before a run. [`direct`] computes a node, [`control`] runs loops and branches, whose bodies are lists again, and
//! [`sequence`] works on sequences.

mod body;
mod control;
mod direct;
mod fuse;
mod infer;
mod prepare;
mod rows;
mod sequence;
mod values;

pub(crate) use values::Failure;

use oip_service::CancelToken;
use oip_types::{ErrorCode, ServiceError};
use onnx_graph::Signature;
use onnx_kernels::prelude::*;

use crate::{cancelling, lower::Lowered, ops::Fact, outcome};
use body::Body;
use control::Run;
use infer::Known;
use prepare::Prepared;
use values::{Constants, Value, Values};

/// A model that is run node by node.
#[derive(Debug)]
pub(crate) struct Steps {
    signature: Signature,
    body: Body,
    /// Constants of the file, inner graphs included.
    constants: Constants,
    labels: Vec<String>,
    /// What is known of the outputs.
    outputs: Vec<Option<Fact>>,
    is_bounded: bool,
}

impl Steps {
    /// Prepares a lowered model.
    ///
    /// # Errors
    /// Which node is not computed, and why.
    pub(crate) fn new(signature: Signature, lowered: Lowered) -> Result<Self, ServiceError> {
        outcome::refuse_bf16(&signature)?;
        let prepared = prepare::prepare(&lowered)?;
        let Prepared { body, constants, .. } = prepared;
        let known = Known::of(&body, &signature.inputs, &constants)
            .map_err(|error| outcome::unprepared(error, &lowered.labels))?;
        let outputs = body.outputs.iter().map(|&slot| known.fact(slot)).collect();
        Ok(Self {
            signature,
            body,
            constants: Constants::of(constants, prepared.slots),
            labels: lowered.labels,
            outputs,
            is_bounded: prepared.is_bounded,
        })
    }

    /// What is known of the outputs before a run.
    pub(crate) fn outputs(&self) -> impl Iterator<Item = Option<&Fact>> {
        self.outputs.iter().map(Option::as_ref)
    }

    /// Whether the time of a run follows from the shapes of its inputs.
    pub(crate) fn is_bounded(&self) -> bool {
        self.is_bounded
    }

    pub(crate) fn signature(&self) -> &Signature {
        &self.signature
    }

    /// Runs the model.
    pub(crate) fn run(
        &self,
        inputs: ShortVec<Arc<Tensor>>,
        cancel: &CancelToken,
    ) -> Result<ShortVec<Arc<Tensor>>, Failure> {
        let mut values = Values::new(&self.constants, cancel);
        for (&slot, input) in self.body.inputs.iter().zip(inputs) {
            values.set(slot, Value::Tensor(input));
        }
        let _run = cancelling::start(cancel);
        let labels = &self.labels;
        let mut run = Run { values, labels };
        run.body(&self.body).map_err(|failure| match failure {
            // Its deadline may be why.
            Failure::Failed(error) if error.code() == ErrorCode::Cancelled => {
                Failure::Failed(outcome::ended(cancel))
            }
            failure => failure,
        })?;
        let outputs = self.body.outputs.iter();
        outputs.map(|&slot| run.values.tensor(slot)).collect()
    }
}
