//! Loops and branches, run step by step.

use std::sync::Arc;

use tract_onnx::{
    pb::{GraphProto, NodeProto},
    prelude::{DatumType, Tensor, TractResult},
    tract_hir::internal::{TractErrorContext, bail, ensure},
};

use super::{
    Failure, Run, Slot, Value,
    sequence::SequenceOp,
    split::{Body, ControlNode, Splitter},
};
use crate::{
    faults::BadInput,
    ops::Attributes,
    plan,
    size::{self, MAX_BYTES},
};

/// Iterations of one loop; its time is limited by the request's deadline.
const MAX_ITERATIONS: i64 = 1 << 20;

/// What is run here.
#[derive(Debug)]
pub(super) enum Control {
    Loop(Body),
    If { then: Body, other: Body },
    Scan(Scan),
    Sequence(SequenceOp),
}

/// `Scan`: a body that runs for each slice of some of its inputs.
#[derive(Debug)]
pub(super) struct Scan {
    body: Body,
    inputs: Vec<Along>,
    outputs: Vec<Along>,
}

/// Which axis is gone along, and which way.
#[derive(Clone, Copy, Debug)]
struct Along {
    axis: i64,
    is_reverse: bool,
}

impl Control {
    /// A node as what is run here, if it is.
    pub(super) fn of(node: &NodeProto, splitter: &mut Splitter<'_>) -> TractResult<Option<Self>> {
        let attributes = Attributes(node);
        let graph = |name: &str| -> TractResult<&GraphProto> {
            let attribute = attributes.get(name).and_then(|attribute| attribute.g.as_ref());
            attribute.with_context(|| format!("{}: no graph {name}", node.name))
        };
        let control = match node.op_type.as_str() {
            "Loop" => {
                let body = splitter.graph(graph("body")?)?;
                let carried = node.input.len().saturating_sub(2);
                ensure!(
                    body.inputs.len() == carried + 2
                        && body.outputs.len() == node.output.len() + 1
                        && node.output.len() >= carried,
                    "{}: the body has {} inputs and {} outputs for a loop of {carried} values and {} outputs",
                    node.name,
                    body.inputs.len(),
                    body.outputs.len(),
                    node.output.len()
                );
                Self::Loop(body)
            }
            "If" => {
                let (then, other) = (
                    splitter.graph(graph("then_branch")?)?,
                    splitter.graph(graph("else_branch")?)?,
                );
                ensure!(
                    then.outputs.len() == node.output.len() && other.outputs.len() == node.output.len(),
                    "{}: branches with other numbers of outputs",
                    node.name
                );
                Self::If { then, other }
            }
            "Scan" => Self::Scan(Scan::of(node, splitter.graph(graph("body")?)?)?),
            _ => match SequenceOp::of(node)? {
                Some(op) => Self::Sequence(op),
                None => return Ok(None),
            },
        };
        Ok(Some(control))
    }

    pub(super) fn bodies(&self) -> Vec<&Body> {
        match self {
            Self::Loop(body) => vec![body],
            Self::If { then, other } => vec![then, other],
            Self::Scan(scan) => vec![&scan.body],
            Self::Sequence(_) => vec![],
        }
    }
}

impl Scan {
    fn of(node: &NodeProto, body: Body) -> TractResult<Self> {
        let attributes = Attributes(node);
        let scanned = usize::try_from(attributes.int("num_scan_inputs", 0))?;
        ensure!(
            scanned <= node.input.len() && body.inputs.len() == node.input.len(),
            "{}: {} inputs for a body of {}",
            node.name,
            node.input.len(),
            body.inputs.len()
        );
        let states = node.input.len() - scanned;
        ensure!(
            body.outputs.len() == node.output.len() && states <= node.output.len(),
            "{}: {} outputs for a body of {}",
            node.name,
            node.output.len(),
            body.outputs.len()
        );
        let along = |count: usize, axes: &str, directions: &str| -> Vec<Along> {
            let (axes, directions) = (attributes.ints(axes), attributes.ints(directions));
            let along = |index: usize| Along {
                axis: axes.get(index).copied().unwrap_or(0),
                is_reverse: directions.get(index).is_some_and(|&direction| direction == 1),
            };
            (0..count).map(along).collect()
        };
        Ok(Self {
            inputs: along(scanned, "scan_input_axes", "scan_input_directions"),
            outputs: along(
                node.output.len() - states,
                "scan_output_axes",
                "scan_output_directions",
            ),
            body,
        })
    }
}

impl Run<'_> {
    pub(super) fn control(&mut self, node: &ControlNode) -> Result<(), Failure> {
        match &node.op {
            Control::Loop(body) => self.looped(node, body),
            Control::If { then, other } => {
                let condition = self.given(node, 0)?.context("an If without a condition")?;
                let body = if truth(&*self.tensor(condition)?)? {
                    then
                } else {
                    other
                };
                self.body(body)?;
                self.pass(&body.outputs, &node.outputs)
            }
            Control::Scan(scan) => self.scan(node, scan),
            Control::Sequence(op) => self.sequences(node, op),
        }
    }

    /// Where an input is kept, if it is given.
    pub(super) fn given(&self, node: &ControlNode, index: usize) -> Result<Option<Slot>, Failure> {
        Ok(node.inputs.get(index).copied().flatten())
    }

    /// Copies values, all of them at once: one may be in another's old place.
    fn pass(&mut self, from: &[Slot], to: &[Slot]) -> Result<(), Failure> {
        let values = from.iter().map(|&slot| self.value(slot));
        let values: Vec<Value> = values.collect::<Result<_, _>>()?;
        for (&slot, value) in to.iter().zip(values) {
            self.set(slot, value);
        }
        Ok(())
    }

    fn looped(&mut self, node: &ControlNode, body: &Body) -> Result<(), Failure> {
        let limit = match self.given(node, 0)? {
            Some(slot) => Some(self.tensor(slot)?.cast_to_scalar::<i64>()?),
            None => None,
        };
        let mut goes_on = match self.given(node, 1)? {
            Some(slot) => truth(&*self.tensor(slot)?)?,
            None => true,
        };
        let carried = node.inputs.len().saturating_sub(2);
        let mut states = Vec::with_capacity(carried);
        for slot in node.inputs.iter().skip(2) {
            let slot = slot.context("a loop's value is not given")?;
            states.push(self.value(slot)?);
        }
        let mut rows = Rows::new(node.outputs.len() - carried);
        let mut iteration = 0;
        while goes_on && limit.is_none_or(|limit| iteration < limit) {
            self.check(iteration)?;
            let [number, condition, inputs @ ..] = &*body.inputs else {
                return Err(BadInput("a loop without inputs".to_owned()).into());
            };
            self.set(*number, Value::Tensor(Arc::new(Tensor::from(iteration))));
            self.set(*condition, Value::Tensor(Arc::new(Tensor::from(true))));
            for (&slot, state) in inputs.iter().zip(states.drain(..)) {
                self.set(slot, state);
            }
            self.body(body)?;
            goes_on = truth(&*self.tensor(body.outputs[0])?)?;
            for &slot in &body.outputs[1..=carried] {
                states.push(self.value(slot)?);
            }
            for (index, &slot) in body.outputs[1 + carried..].iter().enumerate() {
                rows.push(index, self.tensor(slot)?)?;
            }
            iteration += 1;
        }
        for (&slot, state) in node.outputs.iter().zip(states) {
            self.set(slot, state);
        }
        for (index, &slot) in node.outputs[carried..].iter().enumerate() {
            let declared = body.declared[1 + carried + index].as_ref();
            let stacked = rows.stacked(index, 0, declared)?;
            self.set(slot, Value::Tensor(Arc::new(stacked)));
        }
        Ok(())
    }

    fn scan(&mut self, node: &ControlNode, scan: &Scan) -> Result<(), Failure> {
        let states = node.inputs.len() - scan.inputs.len();
        let mut values = Vec::with_capacity(node.inputs.len());
        for slot in &node.inputs {
            values.push(self.tensor(slot.context("an input is not given")?)?);
        }
        let scanned = values.split_off(states);
        let mut steps = None;
        for (value, along) in scanned.iter().zip(&scan.inputs) {
            let size = value.shape()[place(along.axis, value.rank())?];
            if *steps.get_or_insert(size) != size {
                return Err(BadInput(format!("sequences of {} and {size} steps", steps.unwrap_or(0))).into());
            }
        }
        let steps = steps.unwrap_or(0);
        let mut rows = Rows::new(scan.outputs.len());
        for step in 0..steps {
            self.check(step as i64)?;
            for (&slot, state) in scan.body.inputs.iter().zip(values.drain(..)) {
                self.set(slot, Value::Tensor(state));
            }
            for ((value, along), &slot) in scanned.iter().zip(&scan.inputs).zip(&scan.body.inputs[states..]) {
                let axis = place(along.axis, value.rank())?;
                let at = if along.is_reverse { steps - 1 - step } else { step };
                let mut shape = value.shape().to_vec();
                shape.remove(axis);
                let slice = value.slice(axis, at, at + 1)?.into_shape(&shape)?;
                self.set(slot, Value::Tensor(Arc::new(slice)));
            }
            self.body(&scan.body)?;
            for &slot in &scan.body.outputs[..states] {
                values.push(self.tensor(slot)?);
            }
            for (index, &slot) in scan.body.outputs[states..].iter().enumerate() {
                rows.push(index, self.tensor(slot)?)?;
            }
        }
        for (&slot, state) in node.outputs.iter().zip(values) {
            self.set(slot, Value::Tensor(state));
        }
        for (index, along) in scan.outputs.iter().enumerate() {
            if along.is_reverse {
                rows.made[index].reverse();
            }
            let stacked = rows.stacked(index, along.axis, scan.body.declared[states + index].as_ref())?;
            self.set(node.outputs[states + index], Value::Tensor(Arc::new(stacked)));
        }
        Ok(())
    }

    fn check(&self, iteration: i64) -> Result<(), Failure> {
        if self.cancel.is_cancelled() {
            return Err(Failure::Failed(plan::ended(self.cancel)));
        }
        if iteration >= MAX_ITERATIONS {
            return Err(BadInput(format!("a loop takes more than {MAX_ITERATIONS} iterations")).into());
        }
        Ok(())
    }
}

/// What each iteration gives of some outputs.
struct Rows {
    made: Vec<Vec<Arc<Tensor>>>,
    bytes: u64,
}

impl Rows {
    fn new(count: usize) -> Self {
        Self {
            made: vec![Vec::new(); count],
            bytes: 0,
        }
    }

    fn push(&mut self, index: usize, row: Arc<Tensor>) -> Result<(), Failure> {
        // A row of nothing takes memory too.
        const ROW: u64 = 64;
        self.bytes += ROW + (row.len() * row.datum_type().size_of()) as u64;
        if self.bytes > MAX_BYTES {
            let limit = size::gib(MAX_BYTES);
            return Err(BadInput(format!("a loop gives more than the limit of {limit}")).into());
        }
        if let Some(first) = self.made[index].first()
            && (first.shape() != row.shape() || first.datum_type() != row.datum_type())
        {
            return Err(BadInput("iterations of a loop give values of different sizes".to_owned()).into());
        }
        self.made[index].push(row);
        Ok(())
    }

    /// All rows of an output in one, along a new axis.
    fn stacked(
        &mut self,
        index: usize,
        axis: i64,
        declared: Option<&tract_onnx::pb::type_proto::Tensor>,
    ) -> TractResult<Tensor> {
        let rows = std::mem::take(&mut self.made[index]);
        match rows.first() {
            Some(first) => {
                let axis = place(axis, first.rank() + 1)?;
                let mut shape = first.shape().to_vec();
                shape.insert(axis, 1);
                stacked(&rows, axis, &shape)
            }
            None => empty(declared),
        }
    }
}

/// Tensors in one, each with a shape that has the axis already.
pub(super) fn stacked(rows: &[Arc<Tensor>], axis: usize, shape: &[usize]) -> TractResult<Tensor> {
    let rows = rows.iter().map(|row| (**row).clone().into_shape(shape));
    Tensor::stack_tensors(axis, &rows.collect::<TractResult<Vec<Tensor>>>()?)
}

/// No rows of what the file declares; dimensions that it does not tell are 0, as in ONNX Runtime.
fn empty(declared: Option<&tract_onnx::pb::type_proto::Tensor>) -> TractResult<Tensor> {
    use tract_onnx::pb::tensor_shape_proto::dimension::Value;
    let declared = declared.context("a loop without iterations gives a value of unknown type")?;
    let datatype = crate::dtype::from_onnx(declared.elem_type).and_then(crate::dtype::to_tract);
    let datum_type: DatumType = datatype.context("a loop gives a value of a type that is not supported")?;
    let mut shape = vec![0];
    for dim in declared.shape.iter().flat_map(|shape| &shape.dim) {
        shape.push(match dim.value {
            Some(Value::DimValue(size)) => usize::try_from(size).unwrap_or(0),
            _ => 0,
        });
    }
    Tensor::zero_dt(datum_type, &shape)
}

fn truth(tensor: &Tensor) -> TractResult<bool> {
    ensure!(tensor.len() == 1, "a condition of {} elements", tensor.len());
    tensor.clone().into_shape(&[])?.cast_to_scalar::<bool>()
}

/// An axis, counted from the start.
pub(super) fn place(axis: i64, rank: usize) -> TractResult<usize> {
    let from_start = if axis < 0 { axis + rank as i64 } else { axis };
    match usize::try_from(from_start) {
        Ok(place) if place < rank => Ok(place),
        _ => bail!("axis {axis} of {rank} dimensions"),
    }
}
