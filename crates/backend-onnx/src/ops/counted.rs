//! Names for sizes that are counted while a model runs, such as that of `NonZero`.

use std::collections::{HashMap, HashSet};

use tract_hir::internal::*;

use super::elements::elements;

/// What such names begin with. A dimension of an input that has such a name in the file is taken for one, which costs no more than a
/// plan that knows less.
const COUNTED: &str = "counted_";

/// A new name.
pub(crate) fn counted(scope: &SymbolScope, what: &str) -> Symbol {
    scope.new_with_prefix(&format!("{COUNTED}{what}"))
}

/// Whether a dimension depends on what is counted while the model runs, rather than on the shapes of inputs alone.
pub(crate) fn is_counted(dim: &TDim) -> bool {
    dim.symbols().iter().any(is_name)
}

fn is_name(symbol: &Symbol) -> bool {
    symbol.to_string().starts_with(COUNTED)
}

/// Adds outputs to a graph until all that is counted for it is counted, although only sizes are used of it: those are constants to
/// tract, made of names, and what would give the names a number is not needed for anything else.
pub(crate) fn count_all(model: &mut TypedModel) -> TractResult<()> {
    let mut counting: HashMap<Symbol, usize> = HashMap::new();
    for id in 0..model.nodes().len() {
        for name in named_by(model, id)? {
            counting.entry(name).or_insert(id);
        }
    }
    if counting.is_empty() {
        return Ok(());
    }
    let (mut needed, mut wanted) = (HashSet::new(), Vec::new());
    let mut next: Vec<usize> = model.outputs.iter().map(|output| output.node).collect();
    loop {
        while let Some(id) = next.pop() {
            if needed.insert(id) {
                next.extend(model.node(id).inputs.iter().map(|input| input.node));
                wanted.extend(names(model, id)?);
            }
        }
        // Names that have no node are counted by a graph around this one.
        let Some(name) = wanted.pop() else {
            return Ok(());
        };
        if let Some(&id) = counting.get(&name)
            && !needed.contains(&id)
        {
            model.outputs.push(OutletId::new(id, 0));
            next.push(id);
        }
    }
}

/// The names in what a node gives.
fn names(model: &TypedModel, id: usize) -> TractResult<HashSet<Symbol>> {
    let mut names = HashSet::new();
    for output in &model.node(id).outputs {
        let fact = &output.fact;
        names.extend(fact.shape.iter().flat_map(TDim::symbols));
        if let Some(sizes) = fact
            .konst
            .as_ref()
            .filter(|value| value.datum_type() == DatumType::TDim)
        {
            names.extend(elements::<TDim>(sizes)?.iter().flat_map(TDim::symbols));
        }
    }
    names.retain(is_name);
    Ok(names)
}

/// The names in the shape of what a node gives and in no shape of what it takes.
fn named_by(model: &TypedModel, id: usize) -> TractResult<HashSet<Symbol>> {
    let names_of =
        |fact: &TypedFact| -> HashSet<Symbol> { fact.shape.iter().flat_map(TDim::symbols).collect() };
    let node = model.node(id);
    let mut names: HashSet<Symbol> = node
        .outputs
        .iter()
        .flat_map(|output| names_of(&output.fact))
        .collect();
    names.retain(is_name);
    if node.inputs.is_empty() && !node.op_is::<tract_core::ops::source::TypedSource>() {
        return Ok(HashSet::new());
    }
    for &input in &node.inputs {
        let fact = model.outlet_fact(input)?;
        names.retain(|name| !names_of(fact).contains(name));
    }
    Ok(names)
}
