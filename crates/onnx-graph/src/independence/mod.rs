//! Proves that the rows of a model are independent: row i of every output is computed from row i of the
//! inputs.
//!
//! One forward pass propagates abstract values through the graph, with one rule per operator (`table.rs`).
//! Anything unknown counts as dependent: the requests are then not batched, which costs speed but never
//! correctness. An abstract value is shared by all requests, or computed from the row count alone, or the
//! concatenation of per-request values along an axis (`value.rs`). Sizes are products of symbols and of the
//! row count (`size.rs`).
//!
//! Rounding differences between batch sizes do not count as a dependence. A scale or statistic that is
//! computed over all rows does.

mod concatenation;
mod constants;
mod control;
mod elementwise;
mod indexing;
mod interleaving;
mod layers;
#[cfg(test)]
mod misleading;
mod ml;
mod node;
mod numbering;
mod pass;
mod products;
mod reduced;
mod shapes;
mod size;
mod table;
#[cfg(test)]
mod tests;
mod value;
mod windows;

use std::collections::{BTreeMap, HashSet};

use tensor_core::QuotedName;

pub use self::size::{MAX_DIM, MAX_ROWS};
use self::{
    pass::Pass,
    size::{Size, Symbols},
    value::{Item, Numbering, Origin, Reason, Value},
};
use crate::{
    expand,
    proto::{ModelProto, canonical_domain},
    signature::{Dim, Port},
};

/// The result of a successful proof: the conditions under which requests can be batched.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Independence {
    /// Inputs without rows. Requests can be batched only if these are equal.
    pub shared_inputs: Vec<String>,
    /// Groups of dimensions, by input and axis, that have the same name in the file and are assumed to be
    /// equal.
    pub equal_dims: Vec<Vec<(String, usize)>>,
}

/// Proves that the rows of `model` are independent, where the free first dimension of its inputs is a row
/// count of up to [`MAX_ROWS`].
///
/// # Errors
/// Returns the reason, such as "`CumSum` 'y' runs along axis 0".
pub fn prove(model: &ModelProto, inputs: &[Port]) -> Result<Independence, String> {
    // If a function has the name of an operator, ONNX Runtime runs its own operator and ignores the function.
    let of_operators = ["", "ai.onnx.ml", "com.microsoft"];
    let mut functions = model.functions.iter();
    if let Some(function) =
        functions.find(|function| of_operators.contains(&canonical_domain(&function.domain)))
    {
        let name = QuotedName(&function.name);
        return Err(format!(
            "the file's function {name} is in the domain of operators"
        ));
    }
    let written_out = expand::without_functions(model).map_err(|error| error.to_string())?;
    let model = written_out.as_ref().unwrap_or(model);
    let free = |port: &&Port| first(port).is_some_and(|dim| dim.fixed().is_none());
    let with_rows: Vec<&str> = inputs
        .iter()
        .filter(free)
        .map(|port| port.name.as_str())
        .collect();
    if with_rows.is_empty() {
        return Err("no input has a free first dimension".to_owned());
    }
    let reason = match attempt(model, inputs, &with_rows) {
        Ok(()) => return Ok(independence(inputs, &with_rows)),
        Err(reason) => reason,
    };
    // Perhaps only the inputs whose first dimension has a certain name contain rows, so each name is tried
    // separately.
    let mut by_name: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for port in inputs {
        if let Some(Dim::Named(name)) = first(port)
            && name != UNNAMED
        {
            by_name.entry(name).or_default().push(&port.name);
        }
    }
    let fewer = by_name
        .into_values()
        .filter(|names| names.len() < with_rows.len());
    for names in fewer.take(MAX_ATTEMPTS) {
        if attempt(model, inputs, &names).is_ok() {
            return Ok(independence(inputs, &names));
        }
    }
    Err(reason.to_string())
}

/// The name that some exporters write for an unnamed dimension.
const UNNAMED: &str = "?";

/// The maximum number of dimension names to try.
const MAX_ATTEMPTS: usize = 4;

fn first(port: &Port) -> Option<&Dim> {
    port.dims.as_ref()?.first()
}

/// Analyzes the graph with rows in the inputs `with_rows`.
fn attempt(model: &ModelProto, inputs: &[Port], with_rows: &[&str]) -> Result<(), Reason> {
    let mut symbols = Symbols::default();
    let mut values = Vec::with_capacity(inputs.len());
    let with_rows: HashSet<&str> = with_rows.iter().copied().collect();
    let row_names: HashSet<&str> = inputs
        .iter()
        .filter(|port| with_rows.contains(port.name.as_str()))
        .filter_map(|port| match first(port) {
            Some(Dim::Named(name)) if name != UNNAMED => Some(name.as_str()),
            _ => None,
        })
        .collect();
    for port in inputs {
        let has_rows = with_rows.contains(port.name.as_str());
        values.push((
            port.name.as_str(),
            input(port, has_rows, &row_names, &mut symbols)?,
        ));
    }
    for (name, result) in Pass::new(model)?.outputs(values, &mut symbols)? {
        let refuse = |what: &str| Err(format!("output {} {what}", QuotedName(name)).into());
        match result? {
            Item::Sequence(_) => return refuse("is a sequence"),
            Item::Tensor(value) if value.numbering != Numbering::None => {
                return refuse("depends on the index of a row");
            }
            Item::Tensor(value) => match (value.origin, &value.dims) {
                (Origin::Rows(0), Some(dims))
                    if dims.first() == Some(&Size::rows()) && value.outer.is_none() => {}
                (Origin::Rows(0), _) => return refuse("has another number of rows than the inputs"),
                (Origin::Rows(axis), _) => return refuse(&format!("has its rows on axis {axis}")),
                (Origin::Same | Origin::Count, _) => return refuse("has no rows"),
            },
        }
    }
    Ok(())
}

/// Returns the abstract value of an input.
fn input(
    port: &Port,
    has_rows: bool,
    row_names: &HashSet<&str>,
    symbols: &mut Symbols,
) -> Result<Item, Reason> {
    let Some(dims) = &port.dims else {
        return Err(format!("input {} has no shape in the file", QuotedName(&port.name)).into());
    };
    let mut sizes = Vec::with_capacity(dims.len());
    for (axis, dim) in dims.iter().enumerate() {
        sizes.push(match dim {
            _ if axis == 0 && has_rows => Size::rows(),
            Dim::Fixed(size) => match i64::try_from(*size) {
                Ok(size) => Size::number(size),
                Err(_) => symbols.dim(),
            },
            Dim::Named(name) if row_names.contains(name.as_str()) => {
                return Err(format!("input {} has its rows on axis {axis}", QuotedName(&port.name)).into());
            }
            Dim::Named(name) if name != UNNAMED => symbols.named(name),
            Dim::Named(_) | Dim::Free => symbols.of_input(),
        });
    }
    Ok(Item::Tensor(match has_rows {
        true => Value::rows(sizes, 0),
        false => Value::same(sizes),
    }))
}

fn independence(inputs: &[Port], with_rows: &[&str]) -> Independence {
    let with_rows: HashSet<&str> = with_rows.iter().copied().collect();
    let is_shared = |port: &&Port| !with_rows.contains(port.name.as_str());
    let mut named: BTreeMap<&str, Vec<(String, usize)>> = BTreeMap::new();
    for port in inputs {
        let has_rows = with_rows.contains(port.name.as_str());
        let dims = port.dims.iter().flatten().enumerate().skip(usize::from(has_rows));
        for (axis, dim) in dims {
            if let Dim::Named(name) = dim
                && name != UNNAMED
            {
                named.entry(name).or_default().push((port.name.clone(), axis));
            }
        }
    }
    Independence {
        shared_inputs: inputs
            .iter()
            .filter(is_shared)
            .map(|port| port.name.clone())
            .collect(),
        equal_dims: named.into_values().filter(|dims| dims.len() > 1).collect(),
    }
}
