//! Checks a node against the version of its operator: input and output counts, and attributes that were added
//! or removed.
//!
//! A runtime would ignore an attribute of another version, and thus compute something else. For example, the
//! `axes` of reductions became an input, and a `Clip` with its limits as attributes would not clip at all.

use onnx_operators::{ANY, schema_of};
use tensor_core::QuotedName;

use crate::proto::NodeProto;

/// The numbers of inputs and outputs of a node in the file, used or not.
#[derive(Clone, Copy, Debug)]
pub struct ArgumentCounts {
    inputs: usize,
    outputs: usize,
}

impl ArgumentCounts {
    /// Counts the inputs and outputs of `node`, without unnamed ones at the end.
    #[must_use]
    pub fn of(node: &NodeProto) -> Self {
        let count = |names: &[String]| {
            names
                .iter()
                .rposition(|name| !name.is_empty())
                .map_or(0, |last| last + 1)
        };
        Self {
            inputs: count(&node.input),
            outputs: count(&node.output),
        }
    }
}

/// Describes how a node deviates from version `opset` of its operator; `None` if the node conforms.
/// `attributes` are the names of the node's attributes.
///
/// ```
/// use onnx_graph::{operators, proto::NodeProto};
///
/// let node = NodeProto { input: vec!["x".into(), "axes".into()], output: vec!["y".into()], ..Default::default() };
/// let misfit = |opset| operators::misfit("", "Squeeze", opset, operators::ArgumentCounts::of(&node), std::iter::empty());
/// assert_eq!(misfit(13), None);
/// assert!(misfit(11).unwrap().starts_with("has 2 inputs, expected 1"));
/// ```
pub fn misfit<'n>(
    domain: &str,
    op_type: &str,
    opset: i64,
    given: ArgumentCounts,
    attributes: impl Iterator<Item = &'n str>,
) -> Option<String> {
    let schema = schema_of(domain, op_type)?;
    let set = match schema.domain {
        "" => "ONNX's operators",
        domain => domain,
    };
    let way_out = format!(
        "the node was written for another version of {set} than {opset}, which the file imports: export the model again, or \
         import the version that its nodes are of"
    );
    for attribute in attributes {
        let Some(&(_, first, last)) = schema.attributes.iter().find(|(name, ..)| *name == attribute) else {
            continue;
        };
        let when = match (opset < first, opset > last) {
            (true, _) => format!("only from version {first} on"),
            (_, true) => format!("only up to version {last}"),
            _ => continue,
        };
        return Some(format!(
            "has the attribute {}, which the operator has {when}; {way_out}",
            QuotedName(attribute)
        ));
    }
    let &(_, least, most) = current(schema.inputs, |&(since, ..)| since, opset)?;
    if !(least..=most).contains(&given.inputs) {
        let expected = match most {
            ANY => format!("{least} or more"),
            most if most == least => least.to_string(),
            most => format!("{least} to {most}"),
        };
        return Some(format!(
            "has {} inputs, expected {expected}; {way_out}",
            given.inputs
        ));
    }
    let &(_, most) = current(schema.outputs, |&(since, _)| since, opset)?;
    (given.outputs > most).then(|| {
        format!(
            "has {} outputs, expected {most} at most; {way_out}",
            given.outputs
        )
    })
}

/// Returns the entry that applies to `opset`. The list is ordered by the first operator set of each entry.
fn current<T>(entries: &[T], since: impl Fn(&T) -> i64, opset: i64) -> Option<&T> {
    entries
        .iter()
        .rev()
        .find(|entry| since(entry) <= opset)
        .or(entries.first())
}

/// Prefix of a node's field `overload`. It marks a node of a function whose operator set version differs from
/// the model's.
const OWN: &str = "opset~";

/// Records the operator set version of a node in the field `overload`, if it differs from that of the model.
/// Functions, which use that field, are already inlined.
pub fn set_own_opset(node: &mut NodeProto, opset: i64) {
    node.overload = format!("{OWN}{opset}");
}

/// Returns the version recorded by [`set_own_opset`].
#[must_use]
pub fn own_opset(node: &NodeProto) -> Option<i64> {
    node.overload.strip_prefix(OWN)?.parse().ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    fn given(inputs: usize, outputs: usize) -> ArgumentCounts {
        ArgumentCounts { inputs, outputs }
    }

    #[test]
    fn attributes_have_ranges_of_operator_sets() {
        for (name, inputs, attribute, first, last) in [
            ("Clip", 1, "max", 1, 10),
            ("ReduceMean", 1, "axes", 1, 17),
            ("ReduceSum", 1, "axes", 1, 12),
            ("Squeeze", 1, "axes", 1, 12),
            ("BatchNormalization", 5, "is_test", 1, 6),
            ("BatchNormalization", 5, "training_mode", 14, 25),
            ("Dropout", 1, "ratio", 1, 11),
            ("Add", 2, "broadcast", 1, 6),
            ("Reshape", 2, "allowzero", 14, 25),
            ("Relu", 1, "consumed_inputs", 1, 5),
            ("LabelEncoder", 1, "keys_int64s", 2, 5),
            ("TreeEnsembleRegressor", 1, "nodes_values_as_tensor", 3, 5),
        ] {
            let domain = if last == 5 && name != "Relu" {
                "ai.onnx.ml"
            } else {
                ""
            };
            for opset in 1..=if domain.is_empty() { 25 } else { 5 } {
                let misfit = misfit(domain, name, opset, given(inputs, 1), [attribute].into_iter());
                let of_attribute = misfit.filter(|reason| reason.contains("attribute"));
                assert_eq!(
                    of_attribute.is_none(),
                    (first..=last).contains(&opset),
                    "{name} {attribute} in {opset}"
                );
            }
        }
    }

    #[test]
    fn inputs_and_outputs_are_counted_by_version() {
        let reason = |name: &str, opset, inputs, outputs| {
            misfit("", name, opset, given(inputs, outputs), std::iter::empty())
        };
        for (name, since, inputs) in [
            ("Clip", 11, 3),
            ("Squeeze", 13, 2),
            ("Slice", 10, 3),
            ("Split", 13, 2),
            ("ReduceMax", 18, 2),
        ] {
            assert!(reason(name, since, inputs, 1).is_none(), "{name}");
            let reason = reason(name, since - 1, inputs, 1).unwrap();
            assert!(
                reason.contains(&format!("has {inputs} inputs, expected 1")),
                "{name}: {reason}"
            );
        }
        assert!(reason("MaxPool", 8, 1, 2).is_none());
        assert_eq!(
            reason("MaxPool", 7, 1, 2).unwrap(),
            "has 2 outputs, expected 1 at most; the node was written for another version of ONNX's operators than 7, which the \
             file imports: export the model again, or import the version that its nodes are of"
        );
        assert!(reason("Concat", 13, 200, 1).is_none());
        assert!(
            reason("Concat", 13, 0, 1)
                .unwrap()
                .contains("has 0 inputs, expected 1 or more")
        );
    }
}
