//! Executes a graph as a list of nodes, which run for inputs of any shape.
//!
//! [`prepare`] builds the list once per model, [`folding`] bounds folded constants, [`layout`] cancels
//! Transposes, [`fuse`], [`attention`] and [`quantized`] fuse nodes, [`channels_last`] moves the channels of images
//! behind their pixels, and [`infer`] infers facts about the values before a run. [`direct`] runs a node, [`control`]
//! runs loops and branches, whose bodies are lists of nodes as well, and [`sequence`] operates on sequences.

mod attention;
mod body;
mod channels_last;
mod control;
mod dequantized;
mod direct;
mod folding;
mod fuse;
mod fusion_graph;
mod infer;
mod layout;
mod moved_axes;
mod prepare;
mod quantized;
mod quantized_products;
mod rows;
mod scales;
mod sequence;
mod values;

use std::fmt;

use onnx_graph::{
    Error as FileError, Signature, decode,
    expand::{self, Runtime},
    proto::{self, ModelProto},
    training,
};
use onnx_tensor::{
    cancelling::{self, Cancellation},
    operator::Fact,
    prelude::*,
    reuse,
    room::Room,
    threads,
};
use tensor_core::QuotedName;

use crate::{RunError, RunErrorKind, computed, lower, operators::registry, outcome};
use body::Body;
use control::Run;
use infer::KnownFacts;
use prepare::PreparedGraph;
use values::{Constants, Failure, Value, Values};

/// A model that is ready to run, from any number of threads at once, for inputs of any shape.
pub struct Session {
    signature: Signature,
    body: Body,
    /// Constants of the file and its subgraphs.
    constants: Constants,
    labels: Vec<String>,
    /// Inferred facts about the outputs of the model; `None` for an output of unknown rank.
    outputs: Vec<Option<Fact>>,
    is_bounded: bool,
    /// Maximum number of threads per run; 0 means all.
    threads: usize,
}

/// The [`Cancellation`] of runs without a deadline, which are never cancelled.
struct NeverCancelled;

impl Cancellation for NeverCancelled {
    fn is_cancelled(&self) -> bool {
        false
    }
}

impl Session {
    /// Decodes and prepares a model file. Refuses external tensor data; see [`onnx_graph::external`].
    ///
    /// # Errors
    /// Returns an error that says what is invalid or unsupported, and where.
    pub fn read(file: &Bytes) -> Result<Self, FileError> {
        Self::prepare(&decode(file)?, |_| Ok(()))
    }

    /// Prepares a model. `fix` may change the signature first, for example to give free dimensions the sizes
    /// that requests will have.
    ///
    /// Preparation folds constants, fuses nodes and packs weights.
    /// [`time_limit::until`](onnx_tensor::time_limit::until) limits the time that this takes.
    ///
    /// # Errors
    /// Returns the errors of [`Session::read`], and those of `fix`.
    pub fn prepare(
        model: &ModelProto,
        fix: impl FnOnce(&mut Signature) -> Result<(), FileError>,
    ) -> Result<Self, FileError> {
        training::refuse(model)?;
        let runtime = Runtime {
            has_attribute: registry::has_attribute,
        };
        let expanded = expand::expanded(model, &runtime)?;
        let model = expanded.as_ref().unwrap_or(model);
        // Checked after inlining: a function may have passed its attributes to a `BatchNormalization`.
        training::refuse(model)?;
        let graph = model
            .graph
            .as_ref()
            .ok_or_else(|| FileError::invalid(proto::DAMAGED))?;
        let mut signature = Signature::of(model)?;
        fix(&mut signature)?;
        outcome::refuse_types(&signature)?;
        let lowered = lower::lower(graph, &signature.opsets)?;
        let prepared = prepare::prepare(&lowered, &signature.inputs)?;
        let PreparedGraph { body, constants, .. } = prepared;
        let known = KnownFacts::of(&body, &signature.inputs, &constants)
            .map_err(|error| outcome::unprepared(error, &lowered.labels))?;
        let outputs = body.outputs.iter().map(|&slot| known.fact(slot)).collect();
        Ok(Self {
            signature,
            body,
            constants: Constants::of(constants, prepared.slots),
            labels: lowered.labels,
            outputs,
            is_bounded: prepared.is_bounded,
            threads: 0,
        })
    }

    /// Limits a run to `most` threads; the default is all idle threads of the process
    /// ([`threads::configure`]).
    #[must_use]
    pub fn with_threads(self, most: usize) -> Self {
        Self {
            threads: most,
            ..self
        }
    }

    /// Returns the names, types and dimensions of inputs and outputs, as the file declares them.
    #[must_use]
    pub fn signature(&self) -> &Signature {
        &self.signature
    }

    /// Returns the facts about each output that follow from the graph, regardless of the file's declarations;
    /// `None` for an output of unknown rank.
    pub fn outputs(&self) -> impl Iterator<Item = Option<&Fact>> {
        self.outputs.iter().map(Option::as_ref)
    }

    /// Returns whether the time of a run follows from the shapes of its inputs: no loops, and no sizes that
    /// depend on values.
    #[must_use]
    pub fn is_bounded(&self) -> bool {
        self.is_bounded
    }

    /// Runs the model with inputs in the order of its signature.
    ///
    /// # Errors
    /// Returns an error that names the node that does not fit the inputs, or that failed.
    pub fn run(&self, inputs: impl IntoIterator<Item = Tensor>) -> Result<Vec<Arc<Tensor>>, RunError> {
        self.run_until(inputs, &(Arc::new(NeverCancelled) as Arc<dyn Cancellation>))
    }

    /// Runs the model like [`Session::run`], and stops soon after `cancellation` is cancelled.
    ///
    /// # Errors
    /// Returns the errors of [`Session::run`], and [`RunErrorKind::Cancelled`].
    pub fn run_until(
        &self,
        inputs: impl IntoIterator<Item = Tensor>,
        cancellation: &Arc<dyn Cancellation>,
    ) -> Result<Vec<Arc<Tensor>>, RunError> {
        self.run_in(inputs, cancellation, Room::new())
    }

    /// Runs the model like [`Session::run_until`], with `room` as the limit on the memory of its values.
    pub(crate) fn run_in(
        &self,
        inputs: impl IntoIterator<Item = Tensor>,
        cancellation: &Arc<dyn Cancellation>,
        room: Room<'static>,
    ) -> Result<Vec<Arc<Tensor>>, RunError> {
        let mut values = Values::new(&self.constants, &**cancellation, room);
        let mut inputs = inputs.into_iter();
        for (&slot, port) in self.body.inputs.iter().zip(&self.signature.inputs) {
            let input = inputs.next().filter(|input| {
                // Without this check, an input of the wrong type would fail with an internal error of an
                // operator.
                computed(port.element_type) == Some(input.element_type())
            });
            let input = input.ok_or_else(|| {
                let (name, element_type) = (QuotedName(&port.name), port.element_type);
                let message = format!("the input {name} is missing, or not {element_type}");
                RunError::new(RunErrorKind::InvalidInput, message)
            })?;
            values.set(slot, Value::Tensor(Arc::new(input)));
        }
        if inputs.next().is_some() {
            let message = format!(
                "more inputs than the {} of the model",
                self.signature.inputs.len()
            );
            return Err(RunError::new(RunErrorKind::InvalidInput, message));
        }
        let _run = cancelling::start(cancellation.clone());
        let _threads = threads::start(self.threads);
        let _memory = reuse::start();
        let labels = &self.labels;
        let mut run = Run { values, labels };
        run.body(&self.body).map_err(Failure::into_error)?;
        let outputs = self.body.outputs.iter();
        let outputs = outputs.map(|&slot| run.values.tensor(slot).map_err(Failure::into_error));
        outputs.collect()
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("signature", &self.signature)
            .finish_non_exhaustive()
    }
}
