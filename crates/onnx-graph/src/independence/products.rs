//! Rules for matrix products: rows may lie along any axis except the contracted ones.

use super::{
    elementwise::{broadcast_of, joint, onto},
    node::{Node, RuleResult, like, one},
    size::Size,
    value::{Numbering, Origin, Reason, Value},
};

pub(super) fn mat_mul(node: &mut Node<'_>) -> RuleResult {
    one(product_of(node, 0, 1)?)
}

/// Propagates rows through an integer product. Zero points must be shared by all requests.
pub(super) fn integer_mat_mul(node: &mut Node<'_>) -> RuleResult {
    node.require_same(2)?;
    let has_scales = node.proto.op_type == "MatMulIntegerToFloat";
    let settings: [&[usize]; 2] = if has_scales {
        [&[2, 4], &[3, 5]]
    } else {
        [&[2], &[3]]
    };
    for (factor, settings) in settings.into_iter().enumerate() {
        one_for_all_rows(node, factor, settings)?;
    }
    let mut result = product_of(node, 0, 1)?;
    if let Some(bias) = node.optional(6)?.cloned() {
        result = onto(node, &result, &bias)?;
    }
    one(result)
}

pub(super) fn quantized_mat_mul(node: &mut Node<'_>) -> RuleResult {
    for index in [1, 2, 4, 5, 6, 7] {
        node.require_same_input(index)?;
    }
    for (factor, settings) in [(0, &[1, 2]), (3, &[4, 5]), (0, &[6, 7]), (3, &[6, 7])] {
        one_for_all_rows(node, factor, settings)?;
    }
    one(product_of(node, 0, 3)?)
}

/// Checks that the scale and the zero point of a factor with rows have a single element. With several
/// elements, there could be one per row.
fn one_for_all_rows(node: &Node<'_>, factor: usize, settings: &[usize]) -> Result<(), Reason> {
    if node.input(factor)?.row_axis().is_none() {
        return Ok(());
    }
    for &index in settings {
        let is_one = |value: &Value| {
            let dims = value.dims.as_ref();
            dims.is_some_and(|dims| dims.iter().all(|dim| dim.is(1)))
        };
        if node.optional(index)?.is_some_and(|value| !is_one(value)) {
            return node.refuse("has a scale or a zero point for each row");
        }
    }
    Ok(())
}

/// Propagates rows through `FusedMatMul`, whose factors may be transposed in the last two axes or with a
/// batch axis.
pub(super) fn fused_mat_mul(node: &mut Node<'_>) -> RuleResult {
    if node.int("transBatchA", 0) != 0 || node.int("transBatchB", 0) != 0 {
        return node.refuse("transposes a batch's axis");
    }
    let turned = |value: Value, is_turned: bool| if is_turned { turned(&value) } else { Some(value) };
    let a = turned(node.input(0)?.clone(), node.int("transA", 0) != 0);
    let b = turned(node.input(1)?.clone(), node.int("transB", 0) != 0);
    match (a, b) {
        (Some(a), Some(b)) => one(product(node, &a, &b)?),
        _ => node.refuse("transposes a vector"),
    }
}

/// Propagates rows through `QGemm`: two factors, each with a scale and a zero point, and a bias.
pub(super) fn quantized_gemm(node: &mut Node<'_>) -> RuleResult {
    for index in [1, 2, 4, 5, 6, 7, 8] {
        node.require_same_input(index)?;
    }
    for (factor, settings) in [(0, &[1, 2]), (3, &[4, 5])] {
        one_for_all_rows(node, factor, settings)?;
    }
    let mut result = product_of_matrices(node, 0, 3)?;
    if let Some(bias) = node.optional(6)?.cloned() {
        result = onto(node, &result, &bias)?;
    }
    one(result)
}

pub(super) fn gemm(node: &mut Node<'_>) -> RuleResult {
    let mut result = product_of_matrices(node, 0, 1)?;
    if let Some(bias) = node.optional(2)?.cloned() {
        result = onto(node, &result, &bias)?;
    }
    one(result)
}

fn product_of_matrices(node: &mut Node<'_>, a: usize, b: usize) -> Result<Value, Reason> {
    let factor = |node: &Node<'_>, index: usize, attribute: &str| -> Result<Value, Reason> {
        let value = node.input(index)?.clone();
        match (value.rank(), node.int(attribute, 0)) {
            (Some(2), 0) => Ok(value),
            (Some(2), _) => turned(&value).ok_or_else(|| node.refusal("transposes a vector")),
            _ => node.refuse("takes matrices only"),
        }
    };
    let (a, b) = (factor(node, a, "transA")?, factor(node, b, "transB")?);
    product(node, &a, &b)
}

/// Propagates rows through the product of the first input with packed weights of `N` columns.
pub(super) fn packed_mat_mul(node: &mut Node<'_>) -> RuleResult {
    by_packed(node, "N")
}

/// Propagates rows through the product with a packed matrix of `N` rows and `K` columns, or its transpose.
pub(super) fn four_bit_mat_mul(node: &mut Node<'_>) -> RuleResult {
    let is_transposed = node.int("transB", 1) != 0;
    by_packed(node, if is_transposed { "N" } else { "K" })
}

fn by_packed(node: &mut Node<'_>, columns: &str) -> RuleResult {
    node.require_same(1)?;
    let value = node.input(0)?.clone();
    let mut target = node.dims(0)?;
    let last = node.axis(-1, target.len())?;
    node.keep_off(&value, last)?;
    target[last] = Size::number(node.int(columns, 0));
    one(like(&value, target))
}

fn product_of(node: &mut Node<'_>, a: usize, b: usize) -> Result<Value, Reason> {
    let (a, b) = (node.input(a)?.clone(), node.input(b)?.clone());
    product(node, &a, &b)
}

/// Returns the abstract value of a matrix product: sets the contracted axes to 1, and broadcasts the others.
fn product(node: &mut Node<'_>, a: &Value, b: &Value) -> Result<Value, Reason> {
    let (Some(mut left), Some(mut right)) = (a.dims.clone(), b.dims.clone()) else {
        return match a.is_same() && b.is_same() {
            true => Ok(Value::same_of_any_rank()),
            false => node.refuse("has an input whose number of dimensions is not known"),
        };
    };
    let (is_row, is_column) = (left.len() == 1, right.len() == 1);
    if left.is_empty() || right.is_empty() {
        return node.refuse("multiplies a scalar");
    }
    let summed = left.len() - 1;
    node.keep_off(a, summed)?;
    left[summed] = Size::number(1);
    let summed = right.len().saturating_sub(2);
    node.keep_off(b, summed)?;
    right[summed] = Size::number(1);
    // A factor that is a vector is treated as a matrix: the first factor as a row, the second one as a
    // column.
    if is_row {
        left = vec![Size::number(1); 2];
    }
    if is_column {
        right = vec![Size::number(1); 2];
    }
    let pair = [like(a, left), like(b, right)];
    let mut result = broadcast_of(node, &pair)?;
    let Some(mut dims) = result.dims.take() else {
        return Ok(result);
    };
    let rank = dims.len();
    if is_column {
        dims.truncate(rank - 1);
    }
    if is_row {
        dims.remove(rank - 2);
        if let Origin::Rows(axis) = result.origin
            && axis > rank - 2
        {
            result.origin = Origin::Rows(axis - 1);
        }
    }
    result.dims = Some(dims);
    Ok(result)
}

/// Returns `value` with the last two axes swapped.
fn turned(value: &Value) -> Option<Value> {
    let mut dims = value.dims.clone()?;
    let last = dims.len().checked_sub(1)?;
    let before = last.checked_sub(1)?;
    dims.swap(last, before);
    let origin = match value.origin {
        Origin::Rows(axis) if axis == last => Origin::Rows(before),
        Origin::Rows(axis) if axis == before => Origin::Rows(last),
        origin => origin,
    };
    Some(Value {
        origin,
        ..like(value, dims)
    })
}

/// Propagates rows through `Einsum`. The letter of the row axis must occur in the output, and must not occur
/// in factors without rows.
pub(super) fn einsum(node: &mut Node<'_>) -> RuleResult {
    let equation: String = node
        .text("equation", "")
        .chars()
        .filter(|c| !c.is_whitespace())
        .collect();
    let values: Vec<Value> = node.values()?.into_iter().cloned().collect();
    if values.iter().any(|value| value.origin == Origin::Count) {
        return node.refuse_count();
    }
    let (factors, output) = match equation.split_once("->") {
        Some((factors, output)) => (factors.to_owned(), output.to_owned()),
        None => (equation.clone(), implicit_output(&equation)),
    };
    let factors: Vec<&str> = factors.split(',').collect();
    if factors.len() != values.len() {
        return node.refuse(format_args!(
            "has an equation '{equation}' for another number of inputs"
        ));
    }
    let mut indices = Indices::default();
    for (index, (factor, value)) in factors.iter().zip(&values).enumerate() {
        indices.add(node, index, factor, value)?;
    }
    let Some(output) = indices.of_output(&output) else {
        return node.refuse(format_args!(
            "has an equation '{equation}' that the analysis does not support"
        ));
    };
    indices.check_rows(node, &values, &output)?;
    let mut target = Vec::new();
    for letter in &output {
        match indices.sizes.iter().find(|(known, _)| known == letter) {
            Some((_, dim)) => target.push(dim.clone()),
            None => return node.refuse("has an output index that no factor has"),
        }
    }
    let origin = indices
        .rows
        .and_then(|rows| output.iter().position(|letter| *letter == rows));
    one(Value {
        dims: Some(target),
        origin: origin.map_or(Origin::Same, Origin::Rows),
        content: None,
        numbering: Numbering::None,
        outer: None,
    })
}

/// The letters of an equation's factors.
#[derive(Default)]
struct Indices {
    /// The size of each letter's axes.
    sizes: Vec<(char, Size)>,
    /// The letter of the row axis.
    rows: Option<char>,
    /// The letters and sizes of each factor's axes.
    factors: Vec<Vec<(char, Size)>>,
    /// The largest number of axes that an ellipsis represents.
    unnamed: usize,
}

impl Indices {
    /// Returns the letters of the output. Those that its ellipsis stands for are known once all factors are
    /// added.
    fn of_output(&self, output: &str) -> Option<Vec<char>> {
        let axes = match output.contains(ELLIPSIS) {
            true => output.len().saturating_sub(ELLIPSIS.len()) + self.unnamed,
            false => output.len(),
        };
        letters(output, axes)
    }

    /// Refuses equations that sum over the rows, or multiply them with the rows of a factor without rows.
    fn check_rows(&self, node: &Node<'_>, values: &[Value], output: &[char]) -> Result<(), Reason> {
        let Some(rows) = self.rows else {
            return Ok(());
        };
        if !output.contains(&rows) {
            return Err(node.refusal(format_args!("sums over '{rows}', the rows")));
        }
        let meets =
            |factor: &[(char, Size)]| factor.iter().any(|(letter, dim)| *letter == rows && !dim.is(1));
        let mut factors = self.factors.iter().zip(values);
        if factors.any(|(factor, value)| meets(factor) && value.row_axis().is_none()) {
            return Err(node.refusal("combines the axis of rows with another dimension"));
        }
        Ok(())
    }

    /// Adds a factor of the equation: input `index`, whose value is `value`.
    fn add(&mut self, node: &mut Node<'_>, index: usize, factor: &str, value: &Value) -> Result<(), Reason> {
        let dims = node.dims(index)?;
        let letters = letters(factor, dims.len());
        let Some(letters) = letters.filter(|letters| letters.len() == dims.len()) else {
            return node.refuse("has an index for another number of dimensions");
        };
        if factor.contains(ELLIPSIS) {
            let unnamed = (dims.len() + ELLIPSIS.len()).saturating_sub(factor.len());
            self.unnamed = self.unnamed.max(unnamed);
        }
        if let Some(axis) = value.row_axis() {
            let letter = letters[axis];
            let is_twice = letters.iter().filter(|other| **other == letter).count() > 1;
            if is_twice || self.rows.is_some_and(|rows| rows != letter) {
                return node.refuse("combines rows on different axes");
            }
            self.rows = Some(letter);
        }
        for (letter, dim) in letters.iter().zip(&dims) {
            match self.sizes.iter_mut().find(|(known, _)| known == letter) {
                Some((_, known)) => {
                    *known = joint(node.symbols, known, dim)
                        .ok_or_else(|| node.refusal("combines the axis of rows with another dimension"))?;
                }
                None => self.sizes.push((*letter, dim.clone())),
            }
        }
        self.factors.push(letters.into_iter().zip(dims).collect());
        Ok(())
    }
}

const ELLIPSIS: &str = "...";

/// Returns the letter of each of `rank` axes. The axes of an ellipsis are named by digits, counted from the
/// end as in broadcasting, at most ten.
fn letters(factor: &str, rank: usize) -> Option<Vec<char>> {
    let Some((before, after)) = factor.split_once(ELLIPSIS) else {
        return (!factor.contains('.')).then(|| factor.chars().collect());
    };
    let named = before.chars().count() + after.chars().count();
    let unnamed = u32::try_from(rank.checked_sub(named)?)
        .ok()
        .filter(|count| *count <= 10)?;
    let digits = (0..unnamed).rev().filter_map(|index| char::from_digit(index, 10));
    Some(before.chars().chain(digits).chain(after.chars()).collect())
}

/// Returns the letters that occur once, in alphabetical order.
fn implicit_output(equation: &str) -> String {
    let mut letters: Vec<char> = equation.chars().filter(|c| c.is_alphabetic()).collect();
    letters.sort_unstable();
    let count = |letter: char| equation.chars().filter(|other| *other == letter).count();
    let once = letters.iter().copied().filter(|letter| count(*letter) == 1);
    let ellipsis = if equation.contains(ELLIPSIS) { ELLIPSIS } else { "" };
    ellipsis.chars().chain(once).collect()
}
