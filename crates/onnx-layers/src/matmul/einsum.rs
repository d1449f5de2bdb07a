//! The operator `Einsum`: products of tensors by index notation.

use std::sync::Arc;

use onnx_gemm::{add_gemm, gemm};
use onnx_tensor::prelude::*;

use crate::matmul::contraction::{Multiply, Operand, contracted};
use onnx_tensor::{
    cancelling::Pace,
    elements::{Factor, elements},
    faults::{Limit, Misfit, Refusal, unsupported},
    node::Attributes,
    node::Node,
    operator::{Compute, Fact},
};

/// Returns the output indices of an equation. An implicit output has the letters that occur once, in
/// alphabetical order. Returns `None` for an implicit output with capital letters, on whose order
/// implementations disagree.
pub fn einsum_output(equation: &str) -> Option<String> {
    let equation = equation.replace(' ', "");
    if let Some((_, output)) = equation.split_once("->") {
        return Some(output.to_owned());
    }
    if equation.contains(|letter: char| letter.is_ascii_uppercase()) {
        return None;
    }
    let once = ('a'..='z').filter(|letter| equation.matches(*letter).count() == 1);
    let others = if equation.contains("...") { "..." } else { "" };
    Some(others.chars().chain(once).collect())
}

/// Builds the operator `Einsum`.
pub fn einsum(node: &Node) -> Result<Box<dyn Compute>> {
    Ok(Box::new(Einsum::of(Attributes(node))?))
}

const DOTS: &str = "...";

/// Maximum number of factors of a product, as in NumPy.
const MAX_FACTORS: usize = 32;

#[derive(Debug)]
pub(crate) struct Einsum {
    /// The indices of each input: one letter per index, and dots for an ellipsis.
    inputs: Vec<String>,
    output: String,
}

/// The letters of all dimensions of each input and of the output.
struct Letters {
    inputs: Vec<Vec<char>>,
    output: Vec<char>,
}

impl Einsum {
    pub(crate) fn of(attributes: Attributes<'_>) -> Result<Self> {
        let equation = attributes.text("equation", "").replace(' ', "");
        let output = einsum_output(&equation)
            .ok_or_else(|| Refusal("has an equation without an output".to_owned()))?;
        let inputs = equation.split("->").next().unwrap_or_default();
        Ok(Self {
            inputs: inputs.split(',').map(str::to_owned).collect(),
            output,
        })
    }

    /// Assigns letters to the dimensions of inputs with these ranks.
    fn letters(&self, ranks: &[usize]) -> Result<Letters> {
        if ranks.len() != self.inputs.len() {
            bail!(Refusal(format!(
                "has {} inputs for an equation of {}, expected as many",
                ranks.len(),
                self.inputs.len()
            )));
        }
        if ranks.len() > MAX_FACTORS {
            bail!(Limit(format!(
                "has {} inputs, beyond the limit of {MAX_FACTORS}",
                ranks.len()
            )));
        }
        // The number of indices that the ellipsis of each input represents.
        let mut unnamed = Vec::with_capacity(ranks.len());
        for (&rank, indices) in ranks.iter().zip(&self.inputs) {
            let named = indices.replace(DOTS, "").chars().count();
            match rank.checked_sub(named) {
                Some(rest) if rest == 0 || indices.contains(DOTS) => unnamed.push(rest),
                _ => bail!(Refusal(format!(
                    "has {rank} dimensions for the indices {indices}"
                ))),
            }
        }
        let most = unnamed.iter().copied().max().unwrap_or(0);
        // Indices of an ellipsis get private-use characters as letters. The ellipses of several inputs are
        // aligned at their last index.
        let with_letters = |indices: &str, count: usize| -> Vec<char> {
            let mut letters: Vec<char> = Vec::new();
            let (before, after) = indices.split_once(DOTS).unwrap_or((indices, ""));
            letters.extend(before.chars());
            if indices.contains(DOTS) {
                letters.extend(
                    (most - count..most).filter_map(|at| char::from_u32(u32::from('\u{e000}') + at as u32)),
                );
            }
            letters.extend(after.chars());
            letters
        };
        let inputs = self.inputs.iter().zip(&unnamed);
        Ok(Letters {
            inputs: inputs
                .map(|(indices, &count)| with_letters(indices, count))
                .collect(),
            output: with_letters(&self.output, most),
        })
    }

    fn computed<T: Factor>(&self, inputs: &[Arc<Tensor>], multiply: Multiply<T>) -> Result<Tensor> {
        let ranks: Vec<usize> = inputs.iter().map(|input| input.rank()).collect();
        let letters = self.letters(&ranks)?;
        let shapes: Vec<&[usize]> = inputs.iter().map(|input| input.shape()).collect();
        let shape = letters.shape(&shapes)?;
        let factors = inputs.iter().zip(&letters.inputs).map(|(input, letters)| {
            let numbers = elements::<T>(input)?;
            Ok(Operand::new(numbers, input.shape(), letters))
        });
        let factors = factors.collect::<Result<Vec<_>>>()?;
        contracted(factors, &letters.output, &shape, multiply)
    }
}

impl Letters {
    /// Returns the shape of the output. All sizes for one letter must be equal, or 1.
    fn shape<D: Size>(&self, shapes: &[&[D]]) -> Result<ShortVec<D>> {
        let mut sizes: Vec<(char, D)> = Vec::new();
        for (letters, shape) in self.inputs.iter().zip(shapes) {
            for (axis, (&letter, dim)) in letters.iter().zip(*shape).enumerate() {
                // A letter that occurs twice in an input selects the diagonal, which requires equal sizes.
                let first = letters.iter().position(|other| *other == letter).unwrap_or(axis);
                if let (Some(one), Some(other)) = (shape[first].to_i64(), dim.to_i64())
                    && one != other
                {
                    bail!(Refusal(format!("has sizes of {one} and {other} for one index")));
                }
                match sizes.iter_mut().find(|(other, _)| *other == letter) {
                    None => sizes.push((letter, dim.clone())),
                    Some((_, known)) if known.is_one() => *known = dim.clone(),
                    Some((_, known)) => {
                        if let (Some(one), Some(other)) = (known.to_i64(), dim.to_i64())
                            && one != other
                            && other != 1
                        {
                            bail!(Misfit::Sizes(one, other));
                        }
                    }
                }
            }
        }
        let output = self.output.iter().map(|letter| {
            let size = sizes.iter().find(|(other, _)| other == letter);
            let (_, size) = size.ok_or_else(|| Refusal("has an index in its output only".to_owned()))?;
            Ok(size.clone())
        });
        output.collect()
    }
}

/// Calls the FP32 kernel.
fn of_floats(a: &[f32], b: &[f32], sizes: [usize; 3], sums: &mut [f32], pace: &mut Pace) -> Result<()> {
    gemm(a, b, sizes, sums, pace)
}

/// Calls the kernel of other types, which adds to the sums.
fn of_others<T: Factor>(a: &[T], b: &[T], sizes: [usize; 3], sums: &mut [T], pace: &mut Pace) -> Result<()> {
    pace.over(sums, |sums| sums.fill(T::default()))?;
    add_gemm(a, b, sizes, sums, pace)
}

impl Compute for Einsum {
    fn outputs(&self, inputs: &[Fact]) -> Result<Option<Vec<Fact>>> {
        let ranks: Vec<usize> = inputs.iter().map(Fact::rank).collect();
        let letters = self.letters(&ranks)?;
        if inputs
            .iter()
            .any(|input| input.element_type != inputs[0].element_type)
        {
            bail!(Refusal("multiplies factors of different types".to_owned()));
        }
        let shapes: Vec<&[Dim]> = inputs.iter().map(|input| &*input.shape).collect();
        let shape = letters.shape(&shapes)?;
        Ok(Some(vec![Fact::new(inputs[0].element_type, shape)]))
    }

    fn run(&self, inputs: &mut ShortVec<Arc<Tensor>>) -> Result<ShortVec<Arc<Tensor>>> {
        let made = match inputs[0].element_type() {
            ElementType::F32 => self.computed::<f32>(inputs, of_floats),
            ElementType::F64 => self.computed::<f64>(inputs, of_others),
            ElementType::I32 => self.computed::<i32>(inputs, of_others),
            ElementType::I64 => self.computed::<i64>(inputs, of_others),
            other => return Err(unsupported(other)),
        };
        Ok(smallvec![Arc::new(made?)])
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::collections::BTreeMap;

    use super::*;
    use onnx_tensor::elements::tensor;
    use onnx_tensor::testing::{node, with_text};

    fn einsum(equation: &str) -> Einsum {
        let node = with_text(node("Einsum", &[], &[], 1), "equation", equation);
        Einsum::of(Attributes(&node)).unwrap()
    }

    /// Returns small integers, so that sums are exact in any order.
    fn factor(element_type: ElementType, shape: &[usize], seed: usize) -> Arc<Tensor> {
        let count = shape.iter().product();
        let numbers = (0..count).map(|at| ((at * 7919 + seed) % 11) as f64 - 5.0);
        let made = tensor(shape, numbers.collect::<Vec<f64>>()).unwrap();
        made.cast_to_type(element_type).unwrap().into_owned().into_arc()
    }

    fn floats(tensor: &Tensor) -> Vec<f64> {
        elements::<f64>(&tensor.cast_to::<f64>().unwrap())
            .unwrap()
            .to_vec()
    }

    fn run(equation: &str, inputs: &[Arc<Tensor>]) -> Result<Arc<Tensor>> {
        let op = einsum(equation);
        let facts = op.outputs(&Fact::of_values(inputs))?.unwrap();
        let made = op.run(&mut inputs.into())?;
        let shape: ShortVec<Dim> = made[0].shape().iter().map(ToDim::to_dim).collect();
        assert_eq!(shape, facts[0].shape);
        Ok(made[0].clone())
    }

    /// Reference implementation, which loops over all combinations of all indices.
    fn plainly(equation: &str, inputs: &[Arc<Tensor>]) -> Vec<f64> {
        let op = einsum(equation);
        let ranks: Vec<usize> = inputs.iter().map(|input| input.rank()).collect();
        let letters = op.letters(&ranks).unwrap();
        let mut sizes: BTreeMap<char, usize> = BTreeMap::new();
        for (letters, input) in letters.inputs.iter().zip(inputs) {
            for (&letter, &size) in letters.iter().zip(input.shape()) {
                let known = sizes.entry(letter).or_insert(size);
                *known = if *known == 1 { size } else { *known };
            }
        }
        let place = |letters: &[char], shape: &[usize], at: &BTreeMap<char, usize>| {
            let axes = letters.iter().zip(shape);
            axes.fold(0, |place, (letter, &size)| {
                place * size + if size == 1 { 0 } else { at[letter] }
            })
        };
        let shape: Vec<usize> = letters.output.iter().map(|letter| sizes[letter]).collect();
        let mut sums = vec![0.0; shape.iter().product()];
        let numbers: Vec<Vec<f64>> = inputs.iter().map(|input| floats(input)).collect();
        let count: usize = sizes.values().product();
        for index in 0..count {
            let mut rest = index;
            let at: BTreeMap<char, usize> = sizes
                .iter()
                .map(|(&letter, &size)| {
                    let at = rest % size;
                    rest /= size;
                    (letter, at)
                })
                .collect();
            let factors = numbers.iter().zip(&letters.inputs).zip(inputs);
            let product: f64 = factors
                .map(|((numbers, letters), input)| numbers[place(letters, input.shape(), &at)])
                .product();
            sums[place(&letters.output, &shape, &at)] += product;
        }
        sums
    }

    #[test]
    fn equations_of_all_kinds_are_those_of_plain_loops() {
        let cases: [(&str, &[&[usize]]); 34] = [
            ("ij->ji", &[&[2, 3]]),
            ("ij->", &[&[2, 3]]),
            ("ii->i", &[&[3, 3]]),
            ("ii->", &[&[3, 3]]),
            ("iji->j", &[&[3, 2, 3]]),
            ("...ii->...i", &[&[2, 2, 3, 3]]),
            ("...->...", &[&[2, 3]]),
            ("...->", &[&[2, 3]]),
            ("ijk->ki", &[&[2, 3, 4]]),
            ("ba", &[&[2, 3]]),
            ("ij,jk->ik", &[&[3, 4], &[4, 5]]),
            ("ij,jk->ki", &[&[30, 14], &[14, 25]]),
            ("ij,jk", &[&[3, 4], &[4, 5]]),
            ("bij,bjk->bik", &[&[2, 9, 14], &[2, 14, 25]]),
            ("bij,bjk->bik", &[&[1, 3, 4], &[2, 4, 5]]),
            ("bhqd,bhkd->bhqk", &[&[2, 3, 4, 5], &[2, 3, 6, 5]]),
            ("bqhd,bkhd->bhqk", &[&[2, 4, 3, 5], &[2, 6, 3, 5]]),
            ("i,i->", &[&[7], &[7]]),
            ("i,i->i", &[&[7], &[7]]),
            ("i,j->ij", &[&[7], &[3]]),
            ("i,j->i", &[&[7], &[3]]),
            ("ij,ij->i", &[&[3, 4], &[3, 4]]),
            ("ijk,ikj->ki", &[&[3, 4, 5], &[3, 5, 4]]),
            ("i,i->", &[&[1], &[7]]),
            ("ij,jk->ik", &[&[3, 1], &[4, 5]]),
            ("...ij,...jk->...ik", &[&[2, 1, 3, 4], &[5, 4, 2]]),
            ("i...,...i->...", &[&[3, 2], &[2, 3]]),
            ("ii,ij->j", &[&[3, 3], &[3, 4]]),
            (",i->i", &[&[], &[3]]),
            ("ij,jk,kl->il", &[&[3, 4], &[4, 5], &[5, 2]]),
            ("bxi,oij,byj->boxy", &[&[2, 3, 4], &[5, 4, 4], &[2, 3, 4]]),
            ("i,j,ij->", &[&[3], &[4], &[3, 4]]),
            ("i,i,i->i", &[&[3], &[1], &[3]]),
            ("a,b,c,d->dcba", &[&[2], &[3], &[2], &[3]]),
        ];
        for (equation, shapes) in cases {
            for element_type in [
                ElementType::F32,
                ElementType::F64,
                ElementType::I32,
                ElementType::I64,
            ] {
                let inputs = shapes.iter().enumerate();
                let inputs: Vec<Arc<Tensor>> = inputs
                    .map(|(seed, shape)| factor(element_type, shape, 3 * seed + 1))
                    .collect();
                let found = run(equation, &inputs).unwrap();
                assert_eq!(found.element_type(), element_type);
                assert_eq!(
                    floats(&found),
                    plainly(equation, &inputs),
                    "{equation} of {shapes:?}"
                );
            }
        }
    }

    #[test]
    fn products_of_nothing_are_zero() {
        let nothing = |shape: &[usize]| factor(ElementType::F32, shape, 0);
        let found = run("ij,jk->ik", &[nothing(&[2, 0]), nothing(&[0, 3])]).unwrap();
        assert_eq!(floats(&found), [0.0; 6]);
        assert_eq!(
            run("ij,jk->ik", &[nothing(&[0, 2]), nothing(&[2, 3])])
                .unwrap()
                .shape(),
            [0, 3]
        );
        assert_eq!(floats(&run("ij->j", &[nothing(&[0, 2])]).unwrap()), [0.0; 2]);
    }

    #[test]
    fn factors_that_do_not_fit_are_refused() {
        let run = |equation: &str, shapes: &[&[usize]]| {
            let inputs: Vec<_> = shapes
                .iter()
                .map(|shape| factor(ElementType::F32, shape, 0))
                .collect();
            run(equation, &inputs).unwrap_err()
        };
        assert!(run("ij,jk->ik", &[&[2, 3], &[4, 5]]).is::<Misfit>());
        assert!(run("...i,...i->...", &[&[2, 3], &[3, 3]]).is::<Misfit>());
        assert!(run("ii->i", &[&[2, 3]]).is::<Refusal>());
        assert!(run("ij->i", &[&[2, 3, 4]]).is::<Refusal>());
        assert!(run("ij,jk->ik", &[&[2, 3]]).is::<Refusal>());
        assert!(run("ij->i", &[&[2]]).is::<Refusal>());
    }
}
