//! Looks up operators in the table, checks a file's nodes, and builds their kernels.
//!
//! An operator without a row is refused by its name, and an unlisted attribute by the attribute's name.

use std::{collections::HashMap, sync::LazyLock};

use onnx_graph::{
    Error as FileError, ErrorKind,
    operators::{self, ArgumentCounts},
    other_runtime,
};
use onnx_operators::{ML_VERSIONS, NEWEST, ONNX_VERSIONS, Operator, Outputs, Runs};
use onnx_tensor::prelude::*;
use tensor_core::QuotedName;

use crate::{
    invalid_node::{has_cause, invalid},
    operators::{
        conditions::{self, CONDITIONS},
        guard::NodeGuard,
        kernels::KERNELS,
        numbers,
        rule::{Build, Constants, Rule},
    },
};
use onnx_tensor::{
    faults::Refusal,
    node::{Attributes, Node},
    operator::Compute,
};

/// Returns the rows of the operators that this crate runs itself.
pub(crate) fn rows() -> impl Iterator<Item = &'static Operator> {
    onnx_operators::operators().filter(|row| matches!(row.runs, Runs::Kernel | Runs::Steps))
}

/// The supported operators, by registered name.
static BY_NAME: LazyLock<HashMap<String, Rule>> = LazyLock::new(|| {
    let (kernels, conditions) = (by_operator(KERNELS), by_operator(CONDITIONS));
    rows()
        .map(|row| {
            let name = row.full_name();
            let rule = Rule {
                row,
                build: kernels.get(name.as_str()).copied(),
                condition: conditions.get(name.as_str()).copied(),
            };
            (name, rule)
        })
        .collect()
});

/// Inverts lists of operators into a map by operator name.
fn by_operator<T: Copy>(bound: &[(T, &[&'static str])]) -> HashMap<&'static str, T> {
    bound
        .iter()
        .flat_map(|(value, names)| names.iter().map(move |name| (*name, *value)))
        .collect()
}

/// Returns the name under which an operator is registered.
pub(crate) fn registered_name(domain: &str, op_type: &str) -> String {
    match domain {
        "" => op_type.to_owned(),
        domain => format!("{domain}/{op_type}"),
    }
}

/// Returns the domain and version of an operator. Resolves [`NEWEST`] to the newest version of the operator.
pub(crate) fn resolved<'d>(domain: &'d str, op_type: &str, opset: Option<i64>) -> (&'d str, Option<i64>) {
    match domain {
        NEWEST if BY_NAME.contains_key(&registered_name(NEWEST, op_type)) => (NEWEST, Some(1)),
        NEWEST => ("", Some(*ONNX_VERSIONS.end())),
        _ => (domain, opset),
    }
}

/// The registered name of the node that copies a value to an output of the model.
pub(crate) const OUTPUT: &str = "Output";

/// Returns how many outputs an operator has, or `None` if it is unknown.
pub(crate) fn outputs(domain: &str, op_type: &str) -> Option<Outputs> {
    BY_NAME
        .get(&registered_name(domain, op_type))
        .map(|rule| rule.row.outputs)
}

/// Returns whether an operator may have an attribute according to the table. ONNX Runtime's own operators may
/// also have the attributes that ONNX Runtime defines.
pub(crate) fn has_attribute(domain: &str, op_type: &str, attribute: &str) -> bool {
    // Some of ONNX Runtime's own operators are not in the table, since other nodes replace them before a
    // model runs.
    match attributes_of(domain, op_type) {
        Some(attributes) => attributes.contains(&attribute),
        None => domain == "com.microsoft" && other_runtime::has(domain, op_type, 1),
    }
}

/// Returns the attributes that an operator may have, or `None` if it is unknown.
fn attributes_of(domain: &str, op_type: &str) -> Option<&'static [&'static str]> {
    BY_NAME
        .get(&registered_name(domain, op_type))
        .map(|rule| rule.row.attributes)
}

/// Checks a single node. `opset` is the version of its operator set, if the file imports it.
pub(crate) fn check(
    node: &Node,
    domain: &str,
    op_type: &str,
    opset: Option<i64>,
    given: ArgumentCounts,
) -> Result<(), FileError> {
    let opset = supported_opset(domain, op_type, opset)?;
    let rule = rule_since(domain, op_type, opset)?;
    let names = node.attribute.iter().map(|attribute| attribute.name.as_str());
    if let Some(reason) = operators::misfit(domain, op_type, opset, given, names) {
        return Err(FileError::invalid(reason));
    }
    for attribute in &node.attribute {
        if !rule.row.attributes.contains(&attribute.name.as_str()) {
            let name = QuotedName(&attribute.name);
            let reason = format!("the attribute {name} is not supported");
            return Err(
                match other_runtime::has_attribute(domain, op_type, &attribute.name) {
                    true => unsupported(reason),
                    false => FileError::new(ErrorKind::UnsupportedAnywhere, reason),
                },
            );
        }
    }
    // Nodes of this domain come from `expand`, so their attributes need no check.
    if node.domain != NEWEST {
        numbers::admit_attributes(node)?;
    }
    let perm = Attributes(node).ints("perm");
    if rule.row.name == "Transpose" && !conditions::is_order(perm) {
        let reason = format!("the attribute 'perm' is {perm:?}, expected each axis once");
        return Err(invalid(reason));
    }
    rule.condition
        .map_or(Ok(()), |condition| condition(Attributes(node), opset))
}

/// Returns an error about a file that only ONNX Runtime can run.
fn unsupported(reason: String) -> FileError {
    FileError::new(ErrorKind::Unsupported, reason)
}

/// Returns the name of a domain's operators in errors.
fn set_name(domain: &str) -> &str {
    if domain.is_empty() { "ONNX" } else { domain }
}

/// Checks the domain and the version of an operator set, which the file imports as `opset`, and returns the
/// version.
fn supported_opset(domain: &str, op_type: &str, opset: Option<i64>) -> Result<i64, FileError> {
    let set = set_name(domain);
    let versions = match domain {
        "" => ONNX_VERSIONS,
        "ai.onnx.ml" => ML_VERSIONS,
        "com.microsoft" if BY_NAME.contains_key(&registered_name(domain, op_type)) => 1..=1,
        NEWEST => 1..=1,
        "com.microsoft" => {
            return Err(unsupported(
                "of com.microsoft's operators this one is not supported".to_owned(),
            ));
        }
        _ => {
            let reason = format!("operators of the domain {} are not supported", QuotedName(domain));
            return Err(unsupported(reason));
        }
    };
    let opset = opset.ok_or_else(|| {
        invalid(format!(
            "the file does not import the operators of {set}, which the node needs"
        ))
    })?;
    if versions.contains(&opset) {
        return Ok(opset);
    }
    let (first, last) = versions.into_inner();
    let reason = format!(
        "version {opset} of the {set} operators is not supported; export with a version from {first} to {last}"
    );
    Err(match other_runtime::reads(domain, opset) {
        true => unsupported(reason),
        false => FileError::invalid(reason),
    })
}

/// Returns the rule of an operator, if the version `opset` of its operator set has it.
fn rule_since(domain: &str, op_type: &str, opset: i64) -> Result<&'static Rule, FileError> {
    let rule = BY_NAME.get(&registered_name(domain, op_type));
    let rule =
        rule.ok_or_else(|| unsupported(format!("the operator is not supported in version {opset}")))?;
    let since = rule.row.since;
    if since > opset {
        let set = set_name(domain);
        return Err(unsupported(format!(
            "the operator is not supported in version {opset} of the {set} operators, which the file imports, but from version \
             {since} on"
        )));
    }
    Ok(rule)
}

/// Builds the kernel and the input checks of a node. `constants` are its constant inputs.
pub(crate) fn build(node: &Node, constants: Constants<'_>) -> Result<(Box<dyn Compute>, NodeGuard)> {
    let rule = BY_NAME.get(&node.op_type).context("no rule")?;
    let compute = match rule.build {
        Some(Build::Node(build)) => build(node),
        Some(Build::Constants(build)) => build(node, constants),
        None => bail!("{} has no kernel", node.op_type),
    };
    let compute = compute.map_err(|error| match has_cause(&error) {
        true => error,
        // An error without a typed cause comes from the attributes or the list of inputs. ONNX Runtime checks
        // both as well, so the node is invalid everywhere.
        false => Refusal(error.to_string()).into(),
    })?;
    Ok((compute, NodeGuard::new(rule.row, node)))
}

/// Returns the inputs whose values determine the sizes of an operator's outputs.
pub(crate) fn shaping_inputs(registered_name: &str) -> std::ops::Range<usize> {
    let rule = BY_NAME.get(registered_name);
    let (first, end) = rule.map_or((0, 0), |rule| rule.row.shaping_inputs);
    first..end
}

/// Returns whether the sizes of an operator's outputs depend on the elements of any input.
pub(crate) fn has_unknown_sizes(registered_name: &str) -> bool {
    BY_NAME
        .get(registered_name)
        .is_some_and(|rule| rule.row.has_unknown_sizes)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use onnx_operators::{LATEST, schema_of};

    use super::*;

    #[test]
    fn each_row_has_one_kernel_or_is_run_by_the_steps() {
        let names: Vec<&str> = KERNELS
            .iter()
            .flat_map(|(_, names)| names.iter().copied())
            .collect();
        for (at, name) in names.iter().enumerate() {
            assert!(BY_NAME.contains_key(*name), "{name} has a kernel, and no row");
            assert!(!names[..at].contains(name), "{name} has two kernels");
        }
        for (name, rule) in &*BY_NAME {
            assert_eq!(rule.build.is_some(), rule.row.runs == Runs::Kernel, "{name}");
        }
        let conditions = by_operator(CONDITIONS);
        for name in conditions.keys() {
            assert!(BY_NAME.contains_key(*name), "{name} has a condition, and no row");
        }
    }

    /// Checks which attributes are known: [`onnx_graph::expand`] only checks the types of these, and a node
    /// with any other attribute is refused by the attribute's name.
    #[test]
    fn attributes_are_known_of_operators_that_are_there() {
        assert!(has_attribute("", "LRN", "bias"));
        assert!(!has_attribute("", "ImageScaler", "bias"));
        assert!(!has_attribute("", "Relu", "alpha"));
        assert!(has_attribute(
            "com.microsoft",
            "DynamicQuantizeLSTM",
            "activation_alpha"
        ));
    }

    /// Describes the operator sets in which an operator has an attribute; `None` if all its versions have it.
    fn range(domain: &str, op_type: &str, attribute: &str) -> Option<String> {
        let schema = schema_of(domain, op_type)?;
        let mut attributes = schema.attributes.iter();
        let &(_, first, last) = attributes.find(|(name, ..)| *name == attribute)?;
        let since = schema.inputs[0].0;
        Some(match (first > since, last < LATEST) {
            (true, true) => format!("{first} to {last}"),
            (true, false) => format!("from {first}"),
            _ => format!("to {last}"),
        })
    }

    #[test]
    fn operators_are_documented() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/onnx.md");
        let page = std::fs::read_to_string(&path).unwrap();
        let (before, rest) = page.split_once("<!-- operators").unwrap();
        let (mark, rest) = rest.split_once("-->\n").unwrap();
        let (_, after) = rest.split_once("<!-- end of operators").unwrap();
        let mut table = "| operator | since | types | attributes |\n|---|---|---|---|\n".to_owned();
        for row in rows().filter(|row| row.domain != NEWEST) {
            let name = row.full_name();
            let schema = schema_of(row.domain, row.name);
            let has_no_input =
                schema.is_some_and(|schema| schema.inputs.iter().all(|&(_, _, most)| most == 0));
            let types = match row.types {
                Some(types) => types.to_string(),
                None if has_no_input => "no input".to_owned(),
                None => "own check".to_owned(),
            };
            let attribute = |attribute: &&str| match range(row.domain, row.name, attribute) {
                Some(range) => format!("{attribute} ({range})"),
                None => (*attribute).to_owned(),
            };
            let attributes: Vec<String> = row.attributes.iter().map(attribute).collect();
            let attributes = attributes.join(", ");
            table += &format!("| {name} | {} | {types} | {attributes} |\n", row.since);
        }
        let wanted = format!("{before}<!-- operators{mark}-->\n{table}<!-- end of operators{after}");
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(&path, &wanted).unwrap();
            return;
        }
        let hint = "run `UPDATE_DOCS=1 cargo test -p onnx-run operators_are_documented`";
        assert!(
            page == wanted,
            "the table in docs/onnx.md is not that of the code; {hint}"
        );
    }
}
