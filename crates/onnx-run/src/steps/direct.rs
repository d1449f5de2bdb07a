//! Nodes that a kernel computes.

use std::{
    collections::{HashMap, HashSet},
    fmt,
    sync::{Arc, LazyLock},
};

use onnx_tensor::prelude::*;

use crate::steps::values::{Failure, Slot, Value, Values, Wires};
use crate::{
    operators::node::{Direct, Stop},
    outcome,
};
use onnx_tensor::{
    node::Node,
    operator::{Fact, Wiring},
    packs::Packs,
    room::Room,
    size, time_limit,
};

/// Bytes that folded constants may take in addition to twice the bytes of the node's inputs.
const LEAST: u64 = 1 << 16;

/// Size of the widest numeric type in bytes.
const WIDEST: u64 = 8;

/// Values that are known before a run, by slot.
pub(crate) type Constants = Vec<(Slot, Arc<Tensor>)>;

/// A node, and the slots of its values.
pub(crate) struct DirectNode {
    label: String,
    direct: Direct,
    pub(crate) wires: Wires,
    /// Slots of the present inputs; `None` for an input that the operator has absorbed.
    given: Vec<Option<Slot>>,
    /// For each present input, whether no later input has the same slot.
    is_last: Vec<bool>,
    /// Whether the operator is the gated form of its own.
    is_gated: bool,
}

/// An empty tensor, passed in place of an absorbed input.
static NOTHING: LazyLock<Arc<Tensor>> = LazyLock::new(|| Arc::new(Tensor::vector::<f32>(&[])));

/// Returns for each element of `values` whether it is the last occurrence of its slot.
fn last(values: &[Option<Slot>]) -> Vec<bool> {
    let mut later = HashSet::new();
    let mut is_last: Vec<bool> = values.iter().rev().map(|slot| later.insert(slot)).collect();
    is_last.reverse();
    is_last
}

/// Returns the values of the present inputs that are constants.
fn known(wires: &Wires, constants: &HashMap<Slot, Arc<Tensor>>) -> Vec<Option<Arc<Tensor>>> {
    let given = wires.inputs.iter().flatten();
    given.map(|slot| constants.get(slot).cloned()).collect()
}

impl DirectNode {
    pub(crate) fn new(node: &Node, wires: Wires, constants: &HashMap<Slot, Arc<Tensor>>) -> Result<Self> {
        let given: Vec<Option<Slot>> = wires
            .inputs
            .iter()
            .filter(|slot| slot.is_some())
            .copied()
            .collect();
        Ok(Self {
            label: node.name.clone(),
            direct: Direct::new(node, &known(&wires, constants))?,
            is_last: last(&given),
            given,
            wires,
            is_gated: false,
        })
    }

    /// Replaces the operator with its gated form, which multiplies its input by its result.
    pub(crate) fn gate(&mut self) {
        self.direct.gate();
        self.is_gated = true;
    }

    /// Returns whether [`gate`](Self::gate) has replaced the operator.
    pub(crate) fn is_gated(&self) -> bool {
        self.is_gated
    }

    /// Fuses the node `next`, the only reader of the result, into this one if the operator supports it.
    /// Returns whether the nodes were fused.
    pub(crate) fn follow(&mut self, next: &Self) -> bool {
        let is_read = next.given.first() == self.wires.outputs.first().map(|slot| Some(*slot)).as_ref();
        let follows = is_read && self.direct.follow(&next.direct);
        if follows {
            self.wires.outputs.clone_from(&next.wires.outputs);
        }
        follows
    }

    /// Fuses the node `next`, the only reader of the result, into this one if the operator can compute both
    /// together, and `is_known` says that the other inputs of `next` exist before this node runs. Returns whether
    /// the nodes were fused.
    pub(crate) fn chain(&mut self, next: &mut Self, is_known: impl Fn(Slot) -> bool) -> bool {
        // Of the nodes that are fused, none has more inputs. Others are not searched.
        const MOST_INPUTS: usize = 3;
        let [made] = *self.wires.outputs else {
            return false;
        };
        if next.given.len() > MOST_INPUTS {
            return false;
        }
        let Some(place) = next.given.iter().position(|&slot| slot == Some(made)) else {
            return false;
        };
        let mut others = next.given.clone();
        others.remove(place);
        let wiring = Wiring {
            inputs: self.given.len(),
            place,
            others: others.len(),
            label: &next.label,
        };
        let is_known = others.iter().flatten().all(|&slot| is_known(slot));
        if !is_known || !self.direct.chain(&mut next.direct, wiring) {
            return false;
        }
        self.wires
            .inputs
            .extend(others.iter().flatten().copied().map(Some));
        self.wires.outputs.clone_from(&next.wires.outputs);
        self.given.extend(others);
        self.is_last = last(&self.given);
        true
    }

    /// Lets the operator absorb constant inputs, such as weights to be packed.
    pub(crate) fn take_over(
        &mut self,
        constants: &HashMap<Slot, Arc<Tensor>>,
        packs: &mut Packs,
    ) -> Result<()> {
        self.direct.take_over(&known(&self.wires, constants), packs)?;
        if let [(place, _)] = *self.direct.taken() {
            self.given[place] = None;
            let mut given = self.wires.inputs.iter_mut().filter(|input| input.is_some());
            if let Some(input) = given.nth(place) {
                *input = None;
            }
        }
        Ok(())
    }

    /// Returns the facts of the present inputs, if all are known.
    pub(crate) fn facts(&self, fact: impl Fn(Slot) -> Option<Fact>) -> Option<Vec<Fact>> {
        let facts = self.given.iter().enumerate().map(|(at, slot)| match slot {
            Some(slot) => fact(*slot),
            None => {
                let mut taken = self.direct.taken().iter();
                taken
                    .find(|(place, _)| *place == at)
                    .map(|(_, fact)| fact.clone())
            }
        });
        facts.collect()
    }

    pub(crate) fn label(&self) -> &str {
        &self.label
    }

    pub(crate) fn direct(&self) -> &Direct {
        &self.direct
    }

    /// Computes the outputs of the node if all inputs are constants. Returns `None` otherwise, or if the
    /// outputs are much larger than the inputs or take more than `limit` bytes.
    pub(crate) fn folded(
        &self,
        constants: &HashMap<Slot, Arc<Tensor>>,
        limit: u64,
    ) -> Result<Option<Constants>> {
        let given = self.wires.inputs.iter().flatten();
        let inputs: Option<ShortVec<Arc<Tensor>>> = given.map(|slot| constants.get(slot).cloned()).collect();
        let Some(mut inputs) = inputs.filter(|inputs| !inputs.is_empty() && self.direct.is_pure()) else {
            return Ok(None);
        };
        let most = inputs.iter().map(|input| input.len()).max().unwrap_or(0);
        // An input that is given several times counts once.
        let distinct = self
            .given
            .iter()
            .zip(&self.is_last)
            .filter(|(_, is_last)| **is_last);
        let given = distinct.filter_map(|(slot, _)| constants.get(slot.as_ref()?));
        let little = 2 * given.map(|input| size::of_value(input)).sum::<u64>() + LEAST;
        // Dequantized weights have more bytes than the packed input, but the same number of elements. The
        // limit allows this growth.
        let limit = limit.min(little.max(WIDEST * most as u64));
        time_limit::check()?;
        // An operator that fails here is not folded, and reports the error in a run.
        let Ok(outputs) = size::limited(limit, || self.direct.run(&mut inputs, &mut Room::new())) else {
            return Ok(None);
        };
        let count: usize = outputs.iter().map(|output| output.len()).sum();
        let bytes = outputs.iter().map(|output| size::of_value(output)).sum::<u64>();
        let is_kept = bytes <= limit && (bytes <= little || count <= most);
        Ok(is_kept.then(|| self.wires.outputs.iter().copied().zip(outputs).collect()))
    }

    /// Runs the node. It may overwrite the values in the sorted slots `dropped`, since no later step reads
    /// them.
    pub(crate) fn run(
        &self,
        values: &mut Values<'_>,
        dropped: &[Slot],
        labels: &[String],
    ) -> Result<(), Failure> {
        let mut inputs: ShortVec<Arc<Tensor>> = ShortVec::new();
        for (slot, &is_last) in self.given.iter().zip(&self.is_last) {
            let Some(slot) = slot else {
                inputs.push(NOTHING.clone());
                continue;
            };
            inputs.push(match is_last && dropped.binary_search(slot).is_ok() {
                true => values.take(*slot)?,
                false => values.tensor(*slot)?,
            });
        }
        let outputs = self.direct.run(&mut inputs, &mut values.room);
        let outputs = outputs.map_err(|stop| match stop {
            Stop::Refused(error) => {
                Failure::Refused(outcome::refused(error.context(self.label.clone()), labels).to_string())
            }
            Stop::Failed(error) => {
                Failure::from(error).within(outcome::label(&self.label, labels).unwrap_or(&self.label))
            }
        })?;
        inputs.into_iter().for_each(Tensor::release);
        for (&slot, output) in self.wires.outputs.iter().zip(outputs) {
            values.set(slot, Value::Tensor(output));
        }
        Ok(())
    }
}

impl fmt::Debug for DirectNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DirectNode")
            .field("label", &self.label)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use onnx_tensor::{cancelling::Flag, prelude::*};

    use super::*;
    use crate::{RunErrorKind, Session, test_models};
    use onnx_tensor::testing;

    /// Checks that a run that is cancelled within a kernel ends as cancelled, not as failed.
    #[test]
    fn a_node_that_is_cancelled_half_way_does_not_fail() {
        let model = test_models::model(vec![test_models::node("Sin", &["x"], "y")], &[-1], &[-1], vec![]);
        let steps = Session::prepare(&model, |_| Ok(())).unwrap();
        let input = || Tensor::zero::<f32>(&[1 << 20]).unwrap();
        let token = Flag::default();
        assert!(steps.run([input()]).is_ok());
        let (node, mut values) = match &*steps.body.steps {
            [super::super::body::Step::Node(node)] => {
                (node, Values::new(&steps.constants, &token, Room::new()))
            }
            _ => unreachable!("one node"),
        };
        values.set(steps.body.inputs[0], Value::Tensor(Arc::new(input())));
        let failure = testing::while_cancelled(|| node.run(&mut values, &[], &[])).unwrap_err();
        assert_eq!(failure.into_error().kind(), RunErrorKind::Cancelled);
    }
}
