//! Rules for the operators of `ai.onnx.ml` and for string operators: a row is a sample.

use super::{
    node::{Node, RuleResult, like, one},
    size::Size,
    value::{Item, Origin, Reason, Value},
};

/// Returns the first input. If it has rows, they must be samples along axis 0, with features along axis 1: a
/// vector would be a single sample.
fn samples(node: &Node<'_>) -> Result<(Value, Vec<Size>), Reason> {
    let (value, dims) = (node.input(0)?.clone(), node.dims(0)?);
    match (value.origin, dims.len()) {
        (Origin::Rows(0), 2) | (Origin::Same, _) => Ok((value, dims)),
        (Origin::Count, _) => node.refuse_count(),
        (Origin::Rows(_), _) => node.refuse("treats its rows as one sample"),
    }
}

/// Returns a value with `columns` columns per sample, or one element per sample without a second axis.
fn of_samples(value: &Value, dims: &[Size], columns: Option<Size>) -> Item {
    let samples = match dims {
        [_] => Size::number(1),
        [samples, _] => samples.clone(),
        // `samples` rejects other ranks unless the value does not depend on the rows.
        _ => return Item::Tensor(Value::same_of_any_rank()),
    };
    Item::Tensor(like(value, [samples].into_iter().chain(columns).collect()))
}

/// Propagates rows through a classifier, whose outputs are the label and the scores of all classes.
pub(super) fn classifier(node: &mut Node<'_>) -> RuleResult {
    let (value, dims) = samples(node)?;
    let lists = ["classlabels_ints", "classlabels_int64s", "classlabels_strings"];
    let labels = lists
        .into_iter()
        .map(|name| list_length(node, name))
        .max()
        .unwrap_or(0);
    let columns = match labels {
        // An SVM may have one score per pair of classes, so the number of columns is unknown.
        _ if node.proto.op_type == "SVMClassifier" => node.symbols.dim(),
        // There is one score per intercept, or two for a single intercept.
        _ if node.proto.op_type == "LinearClassifier" => node.symbols.dim(),
        0 | 1 => node.symbols.dim(),
        labels => Size::number(labels),
    };
    Ok(vec![
        of_samples(&value, &dims, None),
        of_samples(&value, &dims, Some(columns)),
    ])
}

pub(super) fn regressor(node: &mut Node<'_>) -> RuleResult {
    let (value, dims) = samples(node)?;
    let columns = node.int("n_targets", node.int("targets", 1));
    Ok(vec![of_samples(&value, &dims, Some(Size::number(columns)))])
}

/// Returns the length of a list attribute.
fn list_length(node: &Node<'_>, name: &str) -> i64 {
    let list = node.attribute(name);
    let length = list.map_or(0, |list| list.ints.len() + list.strings.len() + list.floats.len());
    i64::try_from(length).unwrap_or(i64::MAX)
}

/// Propagates rows through an operator with one parameter per feature.
pub(super) fn by_feature(node: &mut Node<'_>) -> RuleResult {
    let (value, dims) = samples(node)?;
    one(like(&value, dims))
}

/// Propagates rows through `ArrayFeatureExtractor`, which selects columns by index, or table elements by one
/// index per row.
pub(super) fn extractor(node: &mut Node<'_>) -> RuleResult {
    let (value, indices) = (node.input(0)?.clone(), node.input(1)?.clone());
    let (mut dims, indexed) = (node.dims(0)?, node.dims(1)?);
    let count = node.symbols.product_of(&indexed);
    let last = node.axis(-1, dims.len())?;
    if dims.len() == 1 {
        dims.insert(0, Size::number(1));
    }
    let (true, Some(count)) = (indices.is_same() || value.is_same(), count) else {
        return node.refuse("gathers from rows by indices of other rows");
    };
    let axis = dims.len() - 1;
    dims[axis] = count;
    let origin = match indices.origin {
        Origin::Same => {
            node.keep_off(&value, last)?;
            value.origin
        }
        // Indices are flattened; rows stay contiguous only if they are the outermost axis.
        Origin::Rows(rows) if indexed[..rows].iter().all(|dim| dim.is(1)) => Origin::Rows(axis),
        _ => return node.refuse("gathers by index along several axes"),
    };
    one(Value {
        origin,
        ..like(&value, dims)
    })
}

/// Propagates rows through one-hot encoding, which appends an axis of categories.
pub(super) fn one_hot_encoder(node: &mut Node<'_>) -> RuleResult {
    let (value, mut dims) = (node.input(0)?.clone(), node.dims(0)?);
    let categories = list_length(node, "cats_int64s").max(list_length(node, "cats_strings"));
    dims.push(Size::number(categories));
    one(like(&value, dims))
}

/// Propagates rows through the concatenation of the features of several inputs.
pub(super) fn vectorizer(node: &mut Node<'_>) -> RuleResult {
    let values: Vec<Value> = node.values()?.into_iter().cloned().collect();
    for value in &values {
        if value.origin != Origin::Rows(0) || value.rank() != Some(2) {
            return node.refuse("takes matrices with rows on axis 0");
        }
    }
    let mut joined = super::concatenation::concatenated(node, &values, 1)?;
    // `inputdimensions` may select fewer columns.
    if let Some(columns) = joined.dims.as_mut().and_then(|dims| dims.get_mut(1)) {
        *columns = node.symbols.dim();
    }
    one(joined)
}

pub(super) fn tf_idf(node: &mut Node<'_>) -> RuleResult {
    let (value, dims) = samples(node)?;
    let columns = node.symbols.dim();
    let rows = (dims.len() > 1).then_some(dims);
    match rows {
        Some(dims) => Ok(vec![of_samples(&value, &dims, Some(columns))]),
        None => one(like(&value, vec![columns])),
    }
}

/// Propagates rows through a string filter, which shifts later strings to the front.
pub(super) fn string_normalizer(node: &mut Node<'_>) -> RuleResult {
    let value = node.input(0)?.clone();
    let stop_words = node
        .attribute("stopwords")
        .is_some_and(|words| !words.strings.is_empty());
    if stop_words {
        return node.refuse("removes words for the whole batch");
    }
    one(value)
}

/// Refuses inputs with rows, since the operator pads all rows to the longest one in the batch.
pub(super) fn padded_to_longest(node: &mut Node<'_>) -> RuleResult {
    node.refuse("pads each row to the longest one of the batch")
}
