//! The interpreter: runs a list of steps, including `If`, `Loop`, `Scan` and sequence operators.

use std::sync::Arc;

use onnx_tensor::prelude::*;

use crate::steps::{
    body::{Body, Control, ControlNode, Scan, Step},
    rows::Rows,
    values::{Failure, Slot, Value, Values},
};
use crate::{RunError, outcome};
use onnx_tensor::{
    axis,
    elements::scalar,
    faults::{BadInput, ensure_input},
    size,
};

/// Maximum iterations of a loop.
const MAX_ITERATIONS: usize = 1 << 20;

/// One run of a model: its current values, and the labels of nodes for errors.
pub(crate) struct Run<'s> {
    pub(crate) values: Values<'s>,
    pub(crate) labels: &'s [String],
}

impl Run<'_> {
    pub(crate) fn body(&mut self, body: &Body) -> Result<(), Failure> {
        for (step, dropped) in body.steps.iter().zip(&body.dropped) {
            if self.values.cancel.is_cancelled() {
                return Err(Failure::Failed(RunError::cancelled()));
            }
            match step {
                Step::Node(node) => node.run(&mut self.values, dropped, self.labels)?,
                Step::Control(node) => self.control(node).map_err(|failure| {
                    failure.within(outcome::label(&node.label, self.labels).unwrap_or(&node.label))
                })?,
            }
            dropped.iter().for_each(|&slot| self.values.remove(slot));
        }
        Ok(())
    }

    fn control(&mut self, node: &ControlNode) -> Result<(), Failure> {
        match &node.op {
            Control::Loop(body) => self.looped(node, body),
            Control::If { then, other } => {
                let condition = node.wires.input(0).context("an If without a condition")?;
                let body = if truth(&*self.values.tensor(condition)?)? {
                    then
                } else {
                    other
                };
                self.body(body)?;
                self.pass(&body.outputs, &node.wires.outputs)
            }
            Control::Scan(scan) => self.scan(node, scan),
            Control::Sequence(op) => op.run(&node.wires, &mut self.values),
        }
    }

    /// Copies the values `from` to `to`. Reads all values before writing, since targets may also be sources.
    fn pass(&mut self, from: &[Slot], to: &[Slot]) -> Result<(), Failure> {
        let values = from.iter().map(|&slot| self.values.value(slot));
        let values: Vec<Value> = values.collect::<Result<_, _>>()?;
        for (&slot, value) in to.iter().zip(values) {
            self.values.set(slot, value);
        }
        Ok(())
    }

    fn looped(&mut self, node: &ControlNode, body: &Body) -> Result<(), Failure> {
        let limit = match node.wires.input(0) {
            Some(slot) => Some(scalar::<i64>(&*self.values.tensor(slot)?)?),
            None => None,
        };
        let mut goes_on = match node.wires.input(1) {
            Some(slot) => truth(&*self.values.tensor(slot)?)?,
            None => true,
        };
        let carried = node.wires.inputs.len().saturating_sub(2);
        let mut states = Vec::with_capacity(carried);
        for slot in node.wires.inputs.iter().skip(2) {
            let slot = slot.context("a loop's value is not given")?;
            states.push(self.values.value(slot)?);
        }
        let mut rows = Rows::new(node.wires.outputs.len() - carried);
        let mut iteration = 0;
        while goes_on && limit.is_none_or(|limit| iteration < limit) {
            self.check(iteration)?;
            let [number, condition, inputs @ ..] = &*body.inputs else {
                return Err(BadInput(
                    "the body of a loop has no inputs, expected the iteration and the condition".to_owned(),
                )
                .into());
            };
            self.values
                .set(*number, Value::Tensor(Arc::new(Tensor::scalar(iteration))));
            self.values
                .set(*condition, Value::Tensor(Arc::new(Tensor::scalar(true))));
            for (&slot, state) in inputs.iter().zip(states.drain(..)) {
                self.values.set(slot, state);
            }
            self.body(body)?;
            goes_on = truth(&*self.values.tensor(body.outputs[0])?)?;
            for &slot in &body.outputs[1..=carried] {
                states.push(self.values.value(slot)?);
            }
            for (index, &slot) in body.outputs[1 + carried..].iter().enumerate() {
                let row = self.values.tensor(slot)?;
                rows.push(index, row, &mut self.values.room)?;
            }
            iteration += 1;
        }
        for (&slot, state) in node.wires.outputs.iter().zip(states) {
            self.values.set(slot, state);
        }
        for (index, &slot) in node.wires.outputs[carried..].iter().enumerate() {
            let declared = body.declared[1 + carried + index].as_ref();
            let stacked = rows.stacked(index, 0, declared, &mut self.values.room)?;
            self.values.set(slot, Value::Tensor(Arc::new(stacked)));
        }
        Ok(())
    }

    fn scan(&mut self, node: &ControlNode, scan: &Scan) -> Result<(), Failure> {
        let states = node.wires.inputs.len() - scan.inputs.len();
        let mut values = Vec::with_capacity(node.wires.inputs.len());
        for slot in &node.wires.inputs {
            values.push(self.values.tensor(slot.context("an input is not given")?)?);
        }
        let scanned = values.split_off(states);
        let mut steps = None;
        for (value, along) in scanned.iter().zip(&scan.inputs) {
            let size = value.shape()[axis::axis(along.axis, value.rank())?];
            if *steps.get_or_insert(size) != size {
                return Err(BadInput(format!(
                    "scan inputs have {} and {size} steps, expected equal numbers",
                    steps.unwrap_or(0)
                ))
                .into());
            }
        }
        let steps = steps.unwrap_or(0);
        let slices = scanned.iter().map(|value| size::of_value(value)).sum::<u64>() / steps.max(1) as u64;
        let mut rows = Rows::new(scan.outputs.len());
        for step in 0..steps {
            self.check(step as i64)?;
            for (&slot, state) in scan.body.inputs.iter().zip(values.drain(..)) {
                self.values.set(slot, Value::Tensor(state));
            }
            self.values.room.ask(slices)?;
            for ((value, along), &slot) in scanned.iter().zip(&scan.inputs).zip(&scan.body.inputs[states..]) {
                let axis = axis::axis(along.axis, value.rank())?;
                let at = if along.is_reverse { steps - 1 - step } else { step };
                let mut shape = value.shape().to_vec();
                shape.remove(axis);
                let slice = value.slice(axis, at, at + 1)?.into_shape(&shape)?;
                self.values.set(slot, Value::Tensor(Arc::new(slice)));
            }
            self.body(&scan.body)?;
            for &slot in &scan.body.outputs[..states] {
                values.push(self.values.tensor(slot)?);
            }
            for (index, &slot) in scan.body.outputs[states..].iter().enumerate() {
                let row = self.values.tensor(slot)?;
                rows.push(index, row, &mut self.values.room)?;
            }
        }
        for (&slot, state) in node.wires.outputs.iter().zip(values) {
            self.values.set(slot, Value::Tensor(state));
        }
        for (index, along) in scan.outputs.iter().enumerate() {
            if along.is_reverse {
                rows.made[index].reverse();
            }
            let declared = scan.body.declared[states + index].as_ref();
            let stacked = rows.stacked(index, along.axis, declared, &mut self.values.room)?;
            self.values.set(
                node.wires.outputs[states + index],
                Value::Tensor(Arc::new(stacked)),
            );
        }
        Ok(())
    }

    fn check(&self, iteration: i64) -> Result<(), Failure> {
        if self.values.cancel.is_cancelled() {
            return Err(Failure::Failed(RunError::cancelled()));
        }
        if iteration >= MAX_ITERATIONS as i64 {
            return Err(BadInput(format!("a loop takes more than {MAX_ITERATIONS} iterations")).into());
        }
        Ok(())
    }
}

fn truth(tensor: &Tensor) -> Result<bool> {
    ensure_input!(
        tensor.len() == 1,
        "a condition of {} elements, expected one",
        tensor.len()
    );
    tensor.clone().into_shape(&[])?.cast_to_scalar::<bool>()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use onnx_graph::proto::{NodeProto, TensorProto};

    use super::*;
    use crate::{
        RunErrorKind, Session,
        test_models::{integers, model, node},
    };

    fn run(nodes: Vec<NodeProto>, constants: Vec<TensorProto>) -> RunError {
        let model = model(nodes, &[-1], &[-1], constants);
        let session = Session::prepare(&model, |_| Ok(())).unwrap();
        session.run([Tensor::vector(&[1f32])]).unwrap_err()
    }

    /// Checks that high ranks are refused, since operators may recurse over axes and would exhaust the stack.
    #[test]
    fn values_of_many_dimensions_are_refused() {
        let nodes = vec![
            node("Reshape", &["x", "sizes"], "deep"),
            node("Pad", &["deep", "pads"], "y"),
        ];
        let error = run(
            nodes,
            vec![integers("sizes", &[1; 100_000]), integers("pads", &[0; 200_000])],
        );
        assert_eq!(error.kind(), RunErrorKind::InvalidInput);
        let expected = "a value would have 100000 dimensions, expected 64 at most";
        assert!(error.to_string().contains(expected), "{error}");
    }
}
