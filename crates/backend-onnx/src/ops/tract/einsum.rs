//! `Einsum`: products of tensors by their indices.

use std::{cmp::Ordering, collections::HashMap, sync::Arc};

use tract_hir::{
    internal::*,
    tract_core::ops::{
        einsum::EinSum,
        math,
        nn::{Reduce, Reducer},
    },
};

use super::Built;
use crate::{
    building::BuildContext,
    cancelling::Pace,
    faults::{Limit, Misfit, Refusal, ensure_input},
    lowered::OnnxNode,
    ops::{
        attributes::Attributes,
        conditions,
        elements::{Element, elements, filled, with_number},
        kernel::{Fact, Kernel, typed},
        wiring::{Wiring, fact, wired},
    },
};

/// `Einsum`, whose equation has an output.
pub(in crate::ops) fn einsum(_: &BuildContext, node: &OnnxNode) -> Built {
    let equation = Attributes(node).text("equation", "").replace(' ', "");
    let output = conditions::einsum_output(&equation).context("an equation without an output")?;
    let inputs = equation.split("->").next().unwrap_or_default();
    Ok(wired(Einsum {
        inputs: inputs.split(',').map(str::to_owned).collect(),
        output,
    }))
}

#[derive(Debug)]
struct Einsum {
    /// A letter for each index; dots stand for those that are not named.
    inputs: Vec<String>,
    output: String,
}

const DOTS: &str = "...";

/// Factors of one product, as in NumPy.
const MAX_FACTORS: usize = 32;

/// Factors from which a pair is chosen.
const MAX_CHOICE: usize = 6;

impl Wiring for Einsum {
    fn name(&self) -> &'static str {
        "Einsum"
    }

    fn wire(&self, prefix: &str, model: &mut TypedModel, inputs: &[OutletId]) -> TractResult<TVec<OutletId>> {
        if inputs.len() != self.inputs.len() {
            bail!(Refusal(format!(
                "has {} inputs for an equation of {}",
                inputs.len(),
                self.inputs.len()
            )));
        }
        if inputs.len() > MAX_FACTORS {
            bail!(Refusal(format!(
                "multiplies {} tensors, expected at most {MAX_FACTORS}",
                inputs.len()
            )));
        }
        // How many indices the dots of each input stand for.
        let mut unnamed = Vec::with_capacity(inputs.len());
        for (&input, indices) in inputs.iter().zip(&self.inputs) {
            let rank = fact(model, input)?.rank();
            let named = indices.replace(DOTS, "").chars().count();
            match rank.checked_sub(named) {
                Some(rest) if rest == 0 || indices.contains(DOTS) => unnamed.push(rest),
                _ => bail!(Refusal(format!(
                    "has {rank} dimensions for the indices {indices}"
                ))),
            }
        }
        let is_free = |letter: &char| !self.inputs.iter().any(|indices| indices.contains(*letter));
        let most = unnamed.iter().copied().max().unwrap_or(0);
        let letters: Vec<char> = ('a'..='z').chain('A'..='Z').filter(is_free).take(most).collect();
        if letters.len() < most {
            bail!(Refusal("has more indices than there are letters".to_owned()));
        }
        // The last ones are common to all.
        let with_letters = |indices: &str, count: usize| {
            let letters: String = letters[most - count..].iter().collect();
            indices.replace(DOTS, &letters)
        };
        let terms = self.inputs.iter().zip(&unnamed);
        let mut terms: Vec<String> = terms
            .map(|(indices, &count)| with_letters(indices, count))
            .collect();
        let output = with_letters(&self.output, most);
        let mut inputs: TVec<OutletId> = inputs.into();
        for (place, (input, term)) in inputs.iter_mut().zip(&mut terms).enumerate() {
            while let Some((first, second)) = repeated(term) {
                let name = format!("{prefix}.{place}-diagonal-{second}");
                *input = model.wire_node(name, typed(Diagonal { first, second }), &[*input])?[0];
                term.remove(second);
            }
        }
        let mut sizes: HashMap<char, TDim> = HashMap::new();
        for (input, term) in inputs.iter().zip(&terms) {
            for (index, dim) in term.chars().zip(fact(model, *input)?.shape) {
                let known = sizes.entry(index).or_insert_with(|| dim.clone());
                same_sizes(known, &dim)?;
                if known.is_one() {
                    *known = dim;
                }
            }
        }
        // tract has no products of INT64.
        if matches!(
            fact(model, inputs[0])?.datum_type,
            DatumType::I64 | DatumType::TDim
        ) {
            return model.wire_node(prefix, typed(WholeProducts { terms, output }), &inputs);
        }
        // One that is summed over would not be repeated.
        for (place, (input, term)) in inputs.iter_mut().zip(&mut terms).enumerate() {
            for axis in (0..term.len()).rev() {
                let index = term.as_bytes()[axis] as char;
                let is_one = fact(model, *input)?.shape[axis].is_one();
                if is_one && !sizes[&index].is_one() && !output.contains(index) {
                    let name = format!("{prefix}.{place}-{axis}");
                    *input = model.wire_node(name, AxisOp::Rm(axis), &[*input])?[0];
                    term.remove(axis);
                }
            }
        }
        // An index that only one factor has is summed first: otherwise each of its numbers would be multiplied by all of the others'.
        let all = terms.concat();
        for (place, (input, term)) in inputs.iter_mut().zip(&terms).enumerate() {
            let is_alone = |index: char| !output.contains(index) && all.matches(index).count() == 1;
            let axes: TVec<usize> = (0..term.len())
                .filter(|&axis| is_alone(term.as_bytes()[axis] as char))
                .collect();
            for &axis in &axes {
                sizes.insert(term.as_bytes()[axis] as char, 1.to_dim());
            }
            if !axes.is_empty() {
                let sum = Reduce::new(axes, Reducer::Sum);
                *input = model.wire_node(format!("{prefix}.{place}-sum"), sum, &[*input])?[0];
            }
        }
        let mut factors: Vec<Factor> = inputs
            .into_iter()
            .zip(terms)
            .map(|(wire, term)| Factor { wire, term })
            .collect();
        // Two at a time: all at once, each number of the result would be a sum over all indices.
        let sizes = sizes.into_iter().map(|(index, dim)| (index, usual_size(&dim)));
        let sizes: HashMap<char, f64> = sizes.collect();
        while factors.len() > 2 {
            let (first, second) = cheapest_pair(&factors, &output, &sizes).context("no factors")?;
            let kept = kept_of_pair(&factors, first, second, &output);
            let pair = [factors[first].clone(), factors[second].clone()];
            let name = format!("{prefix}.pair-{}", factors.len());
            factors[first] = Factor {
                wire: multiplied(&name, model, &pair, &kept)?,
                term: kept,
            };
            factors.remove(second);
        }
        Ok(tvec![multiplied(prefix, model, &factors, &output)?])
    }
}

/// Two axes of a term that have the same index.
fn repeated(term: &str) -> Option<(usize, usize)> {
    let second = (0..term.len()).find(|&axis| term[..axis].contains(&term[axis..=axis]))?;
    Some((term.find(&term[second..=second])?, second))
}

/// What two axes have at the same place of both; the second one is gone.
#[derive(Debug)]
struct Diagonal {
    first: usize,
    second: usize,
}

impl Kernel for Diagonal {
    fn name(&self) -> &'static str {
        "Diagonal"
    }

    fn outputs(&self, inputs: &[Fact]) -> TractResult<Vec<Fact>> {
        let mut output = inputs[0].with(inputs[0].datum_type);
        let second = output.shape.remove(self.second);
        same_sizes(&output.shape[self.first], &second)?;
        if output.shape[self.first] != second {
            bail!(Refusal(format!(
                "has sizes of {} and {second} for one index",
                output.shape[self.first]
            )));
        }
        Ok(vec![output])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> TractResult<TVec<Tensor>> {
        let values = with_number!(inputs[0].datum_type(), T => self.values::<T>(&inputs[0]))?;
        Ok(tvec![values])
    }
}

impl Diagonal {
    fn values<T: Element + Copy>(&self, input: &Tensor) -> TractResult<Tensor> {
        let shape = input.shape();
        let size = shape[self.first];
        ensure_input!(
            size == shape[self.second],
            "sizes of {size} and {} for one index",
            shape[self.second]
        );
        let (between, inner): (usize, usize) = (
            shape[self.first + 1..self.second].iter().product(),
            shape[self.second + 1..].iter().product(),
        );
        let mut made: TVec<usize> = shape.into();
        made.remove(self.second);
        let values = elements::<T>(input)?;
        filled(&made, |to| {
            for (index, to) in to.chunks_exact_mut(inner.max(1)).enumerate() {
                // `index` counts places of what is outside, of the diagonal, and of what is between its axes.
                let place = index / between.max(1) % size;
                to.copy_from_slice(&values[(index * size + place) * inner..][..inner]);
            }
            Ok(())
        })
    }
}

/// Sums of products of INT64, which wrap, one after the other.
#[derive(Debug)]
struct WholeProducts {
    /// A letter for each dimension of each factor, none twice in one.
    terms: Vec<String>,
    output: String,
}

impl WholeProducts {
    /// The size of an index, which a factor may have as 1.
    fn size<D: DimLike>(&self, index: char, shapes: &[&[D]]) -> TractResult<D> {
        let mut size = D::one();
        for (term, shape) in self.terms.iter().zip(shapes) {
            for (_, dim) in term.chars().zip(*shape).filter(|(letter, _)| *letter == index) {
                if size.is_one() {
                    size = dim.clone();
                } else if let (Ok(one), Ok(other)) = (size.to_i64(), dim.to_i64())
                    && one != other
                    && other != 1
                {
                    bail!(Misfit::Sizes(one, other));
                }
            }
        }
        Ok(size)
    }
}

impl Kernel for WholeProducts {
    fn name(&self) -> &'static str {
        "Einsum"
    }

    fn outputs(&self, inputs: &[Fact]) -> TractResult<Vec<Fact>> {
        let shapes: Vec<&[TDim]> = inputs.iter().map(|input| &*input.shape).collect();
        let shape = self.output.chars().map(|index| self.size(index, &shapes));
        let shape: TVec<TDim> = shape.collect::<TractResult<_>>()?;
        Ok(vec![Fact::new(DatumType::I64, shape)])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> TractResult<TVec<Tensor>> {
        let shapes: Vec<&[usize]> = inputs.iter().map(|input| input.shape()).collect();
        let shape = self.output.chars().map(|index| self.size(index, &shapes));
        let shape: TVec<usize> = shape.collect::<TractResult<_>>()?;
        // The indices of the output, and behind them those that are summed over.
        let mut indices = self.output.clone();
        for index in self.terms.concat().chars() {
            if !indices.contains(index) {
                indices.push(index);
            }
        }
        let sizes = indices.chars().map(|index| self.size(index, &shapes));
        let sizes: Vec<usize> = sizes.collect::<TractResult<_>>()?;
        let summed: usize = sizes[shape.len()..].iter().product();
        // How far apart neighbours of an index are in each factor.
        let steps = self.terms.iter().zip(&shapes).map(|(term, shape)| {
            let step = |index: char| -> usize {
                match term.find(index) {
                    Some(axis) if shape[axis] != 1 => shape[axis + 1..].iter().product(),
                    _ => 0,
                }
            };
            indices.chars().map(step).collect()
        });
        let steps: Vec<Vec<usize>> = steps.collect();
        let factors = inputs.iter().map(|input| elements::<i64>(input));
        let factors: Vec<&[i64]> = factors.collect::<TractResult<_>>()?;
        let mut at = vec![0; sizes.len()];
        let mut pace = Pace::default();
        let made = filled(&shape, |sums: &mut [i64]| {
            for sum in sums {
                for _ in 0..summed {
                    let place =
                        |steps: &[usize]| -> usize { at.iter().zip(steps).map(|(at, step)| at * step).sum() };
                    let numbers = factors
                        .iter()
                        .zip(&steps)
                        .map(|(factor, steps)| factor[place(steps)]);
                    *sum = sum.wrapping_add(numbers.fold(1, i64::wrapping_mul));
                    for (at, &size) in at.iter_mut().zip(&sizes).rev() {
                        *at = (*at + 1) % size;
                        if *at > 0 {
                            break;
                        }
                    }
                }
                pace.spend((summed * factors.len() * sizes.len()) as u64)?;
            }
            Ok(())
        })?;
        Ok(tvec![made])
    }
}

/// What is multiplied, and a letter for each of its dimensions.
#[derive(Clone, Debug)]
struct Factor {
    wire: OutletId,
    term: String,
}

/// The sum of products over all indices that the output has not.
fn multiplied(
    prefix: &str,
    model: &mut TypedModel,
    factors: &[Factor],
    output: &str,
) -> TractResult<OutletId> {
    let terms: Vec<&str> = factors.iter().map(|factor| factor.term.as_str()).collect();
    if let [one, other] = factors
        && is_same_indices(&one.term, &other.term)
    {
        return multiplied_in_place(prefix, model, [one, other], output);
    }
    // tract takes an equation whose output has no index for one with all of the inputs' indices in it.
    let index = match output {
        "" => terms
            .iter()
            .find_map(|term| term.get(..1))
            .ok_or_else(|| Limit("has no index at all".to_owned()))?,
        _ => "",
    };
    let axes: AxesMapping = format!("{}->{output}{index}", terms.join(",")).parse()?;
    let wires: TVec<OutletId> = factors.iter().map(|factor| factor.wire).collect();
    let datum_type = fact(model, wires[0])?.datum_type;
    let product = EinSum::new(axes, datum_type);
    if index.is_empty() {
        return Ok(model.wire_node(prefix, product, &wires)?[0]);
    }
    let product = model.wire_node(format!("{prefix}.product"), product, &wires)?;
    let sum = Reduce::new(tvec![0], Reducer::Sum);
    let sum = model.wire_node(format!("{prefix}.sum"), sum, &product)?;
    Ok(model.wire_node(prefix, AxisOp::Rm(0), &sum)?[0])
}

/// Whether both have the same indices, each once.
fn is_same_indices(one: &str, other: &str) -> bool {
    one.len() == other.len()
        && one
            .chars()
            .all(|index| one.matches(index).count() == 1 && other.contains(index))
}

/// The same of two factors with the same indices. As products of matrices, each number of the result would be one of its own.
fn multiplied_in_place(
    prefix: &str,
    model: &mut TypedModel,
    [one, other]: [&Factor; 2],
    output: &str,
) -> TractResult<OutletId> {
    let other = in_order(&format!("{prefix}.other"), model, other, &one.term)?;
    let mut wire = model.wire_node(format!("{prefix}.products"), math::mul(), &[one.wire, other])?[0];
    let mut term = one.term.clone();
    let summed = (0..term.len()).filter(|&axis| !output.contains(term.as_bytes()[axis] as char));
    let summed: TVec<usize> = summed.collect();
    if !summed.is_empty() {
        let sum = Reduce::new(summed.clone(), Reducer::Sum);
        wire = model.wire_node(format!("{prefix}.sums"), sum, &[wire])?[0];
    }
    for axis in summed.into_iter().rev() {
        wire = model.wire_node(format!("{prefix}.without-{axis}"), AxisOp::Rm(axis), &[wire])?[0];
        term.remove(axis);
    }
    in_order(prefix, model, &Factor { wire, term }, output)
}

/// A factor with its dimensions in the order of these indices.
fn in_order(prefix: &str, model: &mut TypedModel, factor: &Factor, order: &str) -> TractResult<OutletId> {
    let Factor { mut wire, mut term } = factor.clone();
    for (to, index) in order.chars().enumerate() {
        let from = term.find(index).context("an index that the factor has not")?;
        if from != to {
            let moved = term.remove(from);
            term.insert(to, moved);
            let name = format!("{prefix}.to-{to}");
            wire = model.wire_node(name, AxisOp::Move(from, to), &[wire])?[0];
        }
    }
    Ok(wire)
}

/// The indices that two factors have and that are needed after their product: by the output, or by another factor.
fn kept_of_pair(factors: &[Factor], first: usize, second: usize, output: &str) -> String {
    let mut kept = String::new();
    for index in factors[first].term.chars().chain(factors[second].term.chars()) {
        let mut others = factors
            .iter()
            .enumerate()
            .filter(|(place, _)| ![first, second].contains(place));
        let is_needed = output.contains(index) || others.any(|(_, factor)| factor.term.contains(index));
        if is_needed && !kept.contains(index) {
            kept.push(index);
        }
    }
    kept
}

/// The two factors whose product takes the fewest multiplications, and of those with as many the one with the smallest result.
fn cheapest_pair(factors: &[Factor], output: &str, sizes: &HashMap<char, f64>) -> Option<(usize, usize)> {
    let size = |term: &str| -> f64 { term.chars().filter_map(|index| sizes.get(&index)).product() };
    let count = factors.len().min(MAX_CHOICE);
    let pairs = (0..count).flat_map(|first| (first + 1..count).map(move |second| (first, second)));
    let cost = |&(first, second): &(usize, usize)| {
        let kept = kept_of_pair(factors, first, second, output);
        let both = factors[first].term.chars().chain(factors[second].term.chars());
        let mut indices: Vec<char> = both.collect();
        indices.sort_unstable();
        indices.dedup();
        (size(&indices.into_iter().collect::<String>()), size(&kept))
    };
    pairs.min_by(|one, other| cost(one).partial_cmp(&cost(other)).unwrap_or(Ordering::Equal))
}

/// A dimension to reckon with; free ones are taken for one that many requests have.
fn usual_size(dim: &TDim) -> f64 {
    dim.to_i64().map_or(32.0, |dim| dim as f64)
}

/// Refuses sizes of one index that differ, but for 1: of two that are free tract takes the first.
fn same_sizes(one: &TDim, other: &TDim) -> TractResult<()> {
    match (one.to_i64(), other.to_i64()) {
        _ if one == other || one.is_one() || other.is_one() => Ok(()),
        (Ok(one), Ok(other)) => Err(Misfit::Sizes(one, other).into()),
        _ => Err(Limit(format!("has an index of the sizes {one} and {other}")).into()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    /// What an equation becomes for inputs of the given shapes.
    fn graph(equation: &str, shapes: &[&[usize]]) -> TypedModel {
        let (inputs, output) = equation.split_once("->").unwrap();
        let einsum = Einsum {
            inputs: inputs.split(',').map(str::to_owned).collect(),
            output: output.to_owned(),
        };
        let mut model = TypedModel::default();
        let source = |(place, shape): (usize, &&[usize])| {
            model.add_source(format!("x{place}"), f32::fact(*shape)).unwrap()
        };
        let inputs: Vec<OutletId> = shapes.iter().enumerate().map(source).collect();
        einsum.wire("z", &mut model, &inputs).unwrap();
        model
    }

    /// The equations of its products.
    fn products(equation: &str, shapes: &[&[usize]]) -> Vec<String> {
        let model = graph(equation, shapes);
        let products = model.nodes().iter().filter_map(|node| node.op_as::<EinSum>());
        products.map(|product| product.axes.to_string()).collect()
    }

    #[test]
    fn many_factors_are_multiplied_by_pairs_the_cheapest_first() {
        let biaffine = products("bxi,oij,byj->boxy", &[&[1, 9, 64], &[5, 64, 64], &[1, 9, 64]]);
        assert_eq!(biaffine, ["bxi,oij->bxoj", "bxoj,byj->boxy"]);
        let chain = products("ij,jk,kl->il", &[&[99, 99], &[99, 99], &[99, 1]]);
        assert_eq!(chain, ["jk,kl->jl", "ij,jl->il"]);
        // The product of the first two would have as many numbers as it takes.
        let sum = products("i,j,ij->", &[&[99], &[99], &[99, 99]]);
        assert_eq!(sum, ["i,ij->j"]);
        assert!(products("ijk,ikj->ki", &[&[9, 9, 9], &[9, 9, 9]]).is_empty());
    }

    #[test]
    fn what_one_factor_alone_has_is_summed_before_the_product() {
        let model = graph("i,j->i", &[&[1000], &[1000]]);
        let product = model.nodes().iter().find(|node| node.op_is::<EinSum>()).unwrap();
        let sizes = product
            .inputs
            .iter()
            .map(|&input| fact(&model, input).unwrap().shape);
        assert_eq!(
            sizes.collect::<Vec<_>>(),
            [tvec![1000.to_dim()], tvec![1.to_dim()]]
        );
    }
}
