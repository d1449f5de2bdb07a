//! Products of two factors of FP32 that both are computed, as attention has them, whatever the order of their axes. tract packs both
//! factors before it multiplies, which takes longer than the product where rows are few, or matrices small.

use std::sync::Arc;

use onnx_gemm::{BlockedGemm, copy_line, gemv, has_wide_vectors, indirect_gemv, pack_rows};
use tract_hir::{internal::*, tract_core::ops::einsum::EinSum};

use super::{
    elements::{elements, filled},
    kernel::{Fact, Kernel, typed},
};
use crate::{cancelling::Pace, faults::ensure_input, size};

/// Below so many rows nothing is packed.
const FEW_ROWS: usize = 4;

/// Nor for matrices whose product takes so few multiplications.
const FEW_TERMS: usize = 1 << 10;

/// Takes the place of tract's in a graph whose constants are known.
pub(super) fn pack(model: &mut TypedModel) -> TractResult<()> {
    if !has_wide_vectors() {
        return Ok(());
    }
    for id in 0..model.nodes().len() {
        let node = model.node(id);
        let Some(product) = node.op_as::<EinSum>() else {
            continue;
        };
        let &[a, b] = &*node.inputs else {
            continue;
        };
        let facts = [
            model.outlet_fact(a)?,
            model.outlet_fact(b)?,
            &node.outputs[0].fact,
        ];
        let are_floats = facts
            .iter()
            .all(|fact| fact.datum_type == DatumType::F32 && !fact.is_exotic());
        let are_computed = facts.iter().all(|fact| fact.konst.is_none());
        if !are_floats || !are_computed || product.q_params.is_some() {
            continue;
        }
        let rank = facts[2].rank();
        if let Some(product) = ComputedProduct::of(product, rank) {
            model.node_mut(id).op = Box::new(typed(product));
        }
    }
    Ok(())
}

/// The axes of two factors that meet, by their places in the first factor, the second factor and the product.
#[derive(Debug)]
struct ComputedProduct {
    /// All three have these.
    both: Vec<[usize; 3]>,
    /// Of the first factor and the product. The first of them are those of the product.
    rows: Vec<[usize; 2]>,
    /// Of the second factor and the product. The product's last axis is the last of these, if it has any.
    columns: Vec<[usize; 2]>,
    /// Of both factors: what is summed over.
    terms: Vec<[usize; 2]>,
    /// Whether the first factor is the node's second input.
    are_swapped: bool,
    /// Axes of the product.
    rank: usize,
}

impl ComputedProduct {
    fn of(product: &EinSum, rank: usize) -> Option<Self> {
        let last = rank.checked_sub(1);
        let mut found = Self {
            both: vec![],
            rows: vec![],
            columns: vec![],
            terms: vec![],
            are_swapped: false,
            rank,
        };
        for axis in product.axes.iter_all_axes() {
            match (&*axis.inputs[0], &*axis.inputs[1], &*axis.outputs[0]) {
                (&[a], &[b], &[c]) => found.both.push([a, b, c]),
                (&[a], &[], &[c]) => found.rows.push([a, c]),
                (&[], &[b], &[c]) => found.columns.push([b, c]),
                (&[a], &[b], &[]) => found.terms.push([a, b]),
                _ => return None,
            }
        }
        let is_last = |axes: &[[usize; 2]]| axes.iter().any(|&[_, place]| Some(place) == last);
        // The product is made row by row, so that its last axis is one of columns.
        if is_last(&found.rows) {
            found.are_swapped = true;
            std::mem::swap(&mut found.rows, &mut found.columns);
            found.both.iter_mut().for_each(|[a, b, _]| std::mem::swap(a, b));
            found.terms.iter_mut().for_each(|[a, b]| std::mem::swap(a, b));
        } else if !is_last(&found.columns) && rank > 0 {
            return None;
        }
        found.rows.sort_by_key(|&[_, place]| place);
        found.columns.sort_by_key(|&[_, place]| place);
        found.terms.sort_by_key(|&[_, place]| place);
        Some(found)
    }

    /// The sizes of the product.
    fn shape<D: DimLike>(&self, a: &[D], b: &[D]) -> TVec<D> {
        let mut shape = tvec![D::one(); self.rank];
        for &[first, second, place] in &self.both {
            // One of size 1 is repeated.
            shape[place] = match a[first] == D::one() {
                true => b[second].clone(),
                false => a[first].clone(),
            };
        }
        for &[axis, place] in &self.rows {
            shape[place] = a[axis].clone();
        }
        for &[axis, place] in &self.columns {
            shape[place] = b[axis].clone();
        }
        shape
    }

    fn factors<'t, T>(&self, inputs: &'t [T]) -> TractResult<[&'t T; 2]> {
        match (inputs, self.are_swapped) {
            ([a, b], false) | ([b, a], true) => Ok([a, b]),
            _ => bail!("expected 2 inputs, found {}", inputs.len()),
        }
    }
}

impl Kernel for ComputedProduct {
    fn name(&self) -> &'static str {
        "ComputedProduct"
    }

    fn outputs(&self, inputs: &[Fact]) -> TractResult<Vec<Fact>> {
        let [a, b] = self.factors(inputs)?;
        Ok(vec![Fact::new(DatumType::F32, self.shape(&a.shape, &b.shape))])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> TractResult<TVec<Tensor>> {
        let [a, b] = self.factors(inputs)?;
        let shape = self.shape(a.shape(), b.shape());
        let strides = [a.shape(), b.shape(), &shape].map(strides);
        let sizes = [a.shape(), b.shape()];
        let axis = |factor: usize, axis: usize| (sizes[factor][axis], strides[factor][axis]);
        // How far to go along an axis that may be repeated.
        let step = |(size, stride): (usize, usize)| if size == 1 { 0 } else { stride };
        let mut loops: Vec<(usize, [usize; 3])> = Vec::new();
        for &[first, second, place] in &self.both {
            let (one, other) = (axis(0, first), axis(1, second));
            ensure_input!(
                one.0 == other.0 || one.0 == 1 || other.0 == 1,
                "factors of {} and {} matrices",
                one.0,
                other.0
            );
            loops.push((shape[place], [step(one), step(other), strides[2][place]]));
        }
        let mut terms = Terms(tvec![]);
        for &[first, second] in &self.terms {
            let (one, other) = (axis(0, first), axis(1, second));
            ensure_input!(one.0 == other.0, "rows of {} and columns of {}", one.0, other.0);
            terms.push(one.0, [one.1, other.1]);
        }
        // One axis of each kind is the matrix's; more of them are matrices beside each other.
        let mut rows = (1, [0; 2]);
        for &[place, to] in &self.rows {
            let next = (shape[to], [strides[0][place], strides[2][to]]);
            let outer = if next.0 >= rows.0 {
                std::mem::replace(&mut rows, next)
            } else {
                next
            };
            loops.push((outer.0, [outer.1[0], 0, outer.1[1]]));
        }
        let mut columns = (1, [0; 2]);
        for &[place, to] in &self.columns {
            let next = (shape[to], [strides[1][place], strides[2][to]]);
            let outer = if to + 1 == self.rank {
                std::mem::replace(&mut columns, next)
            } else {
                next
            };
            loops.push((outer.0, [0, outer.1[0], outer.1[1]]));
        }
        loops.retain(|&(size, _)| size != 1);
        let [mut a, mut b] = [elements::<f32>(a)?, elements::<f32>(b)?];
        // One column, whose numbers stand beside each other as those of a row would.
        if columns.0 == 1 && rows.1[1] == 1 {
            std::mem::swap(&mut a, &mut b);
            terms.0.iter_mut().for_each(|(_, steps)| steps.reverse());
            loops.iter_mut().for_each(|(_, steps)| steps.swap(0, 1));
            columns = (rows.0, rows.1);
            rows = (1, [0; 2]);
        }
        let depth = terms.count();
        let (rows, row_steps) = rows;
        let mut matrices = Matrices {
            a,
            b,
            depth,
            are_together: [terms.are_together(0), terms.are_together(1)],
            offsets: [vec![], vec![]],
            rows,
            row_steps,
            columns: columns.0,
            column_step: columns.1[0],
            gathered: Vec::new(),
            turned: Turned::default(),
            pace: Pace::default(),
        };
        // The lists of terms, and both matrices in another order.
        let numbers = 2 * rows * depth + depth * columns.0;
        size::admit_now((4 * numbers + 16 * depth) as u64)?;
        matrices.offsets = [terms.offsets(0), terms.offsets(1)];
        let compute = |made: &mut [f32]| {
            if made.is_empty() || depth == 0 {
                return Ok(());
            }
            each(&loops, [0; 3], &mut |[a, b, c]| {
                matrices.multiply(a, b, &mut made[c..])
            })
        };
        Ok(tvec![filled(&shape, compute)?])
    }
}

/// The axes that are summed over: their sizes, and how far apart their elements are in both factors.
#[derive(Debug)]
struct Terms(TVec<(usize, [usize; 2])>);

impl Terms {
    /// Adds one within the others, as part of the last one where it goes on in both factors.
    fn push(&mut self, size: usize, steps: [usize; 2]) {
        match self.0.last_mut() {
            _ if size == 1 => {}
            Some((outer, apart)) if *apart == steps.map(|step| step * size) => {
                *outer *= size;
                *apart = steps;
            }
            _ => self.0.push((size, steps)),
        }
    }

    fn count(&self) -> usize {
        self.0.iter().map(|(size, _)| size).product()
    }

    /// Whether they stand beside each other in a factor.
    fn are_together(&self, factor: usize) -> bool {
        match &*self.0 {
            [] => true,
            [(_, steps)] => steps[factor] == 1,
            _ => false,
        }
    }

    /// How far from the start of its row or column each term is; an empty list where they stand beside each other.
    fn offsets(&self, factor: usize) -> Vec<usize> {
        if self.are_together(factor) {
            return vec![];
        }
        self.0.iter().fold(vec![0], |outer, &(size, steps)| {
            let inner = |from: usize| (0..size).map(move |at| from + at * steps[factor]);
            outer.into_iter().flat_map(inner).collect()
        })
    }
}

/// How far apart the next elements along each axis are.
fn strides(shape: &[usize]) -> TVec<usize> {
    let mut strides = tvec![1; shape.len()];
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis] * shape[axis];
    }
    strides
}

/// Calls something with the places of each pair of matrices and of their product.
fn each(
    loops: &[(usize, [usize; 3])],
    at: [usize; 3],
    call: &mut impl FnMut([usize; 3]) -> TractResult<()>,
) -> TractResult<()> {
    let Some((&(size, steps), inner)) = loops.split_first() else {
        return call(at);
    };
    for index in 0..size {
        let [a, b, c] = steps.map(|step| step * index);
        each(inner, [at[0] + a, at[1] + b, at[2] + c], call)?;
    }
    Ok(())
}

/// Matrices of the same sizes. The columns of a product stand beside each other.
struct Matrices<'m> {
    a: &'m [f32],
    b: &'m [f32],
    /// Terms of a sum, whether they stand beside each other in a factor, and where they are in one where they do not.
    depth: usize,
    are_together: [bool; 2],
    offsets: [Vec<usize>; 2],
    rows: usize,
    /// How far apart rows are, in the first factor and the product.
    row_steps: [usize; 2],
    columns: usize,
    /// How far apart columns are in the second factor.
    column_step: usize,
    /// Rows whose terms stand beside each other.
    gathered: Vec<f32>,
    turned: Turned,
    pace: Pace,
}

/// A matrix whose columns stand beside each other, made of one where they do not.
#[derive(Default)]
struct Turned {
    values: Vec<f32>,
    offsets: Vec<usize>,
    /// Where the other one begins.
    from: Option<usize>,
}

impl Matrices<'_> {
    /// One product, of the matrices that begin at these places.
    fn multiply(&mut self, a: usize, b: usize, to: &mut [f32]) -> TractResult<()> {
        let (depth, rows, columns) = (self.depth, self.rows, self.columns);
        let [row_step, row_step_of_product] = self.row_steps;
        let (a, b_from) = (&self.a[a..], b);
        let b = &self.b[b..];
        let left = if self.are_together[0] && (rows == 1 || row_step == depth) {
            &a[..rows * depth]
        } else {
            self.gathered.clear();
            for row in 0..rows {
                self.pace.spend(depth as u64)?;
                let row = &a[row * row_step..];
                match self.are_together[0] {
                    true => self.gathered.extend_from_slice(&row[..depth]),
                    false => self
                        .gathered
                        .extend(self.offsets[0].iter().map(|&term| row[term])),
                }
            }
            &self.gathered
        };
        let is_small = rows < FEW_ROWS || rows * columns * depth <= FEW_TERMS;
        if rows < FEW_ROWS && self.are_together[1] {
            for (at, row) in left.chunks_exact(depth).enumerate() {
                // So many columns at a time that a request that is cancelled ends soon.
                let width = (PART / depth).max(4);
                let product = to[at * row_step_of_product..][..columns].chunks_mut(width);
                for (part, product) in product.enumerate() {
                    self.pace.spend((product.len() * depth) as u64 / 8 + 1)?;
                    gemv(
                        row,
                        &b[part * width * self.column_step..],
                        self.column_step,
                        product,
                    );
                }
            }
            return Ok(());
        }
        let (values, offsets) = if self.column_step == 1 || columns == 1 {
            if self.are_together[1] && self.offsets[1].is_empty() {
                self.offsets[1] = (0..depth).collect();
            }
            (b, &self.offsets[1])
        } else {
            let terms = Places {
                offsets: &self.offsets[1],
                count: depth,
            };
            self.turned
                .turn(b, b_from, &terms, columns, self.column_step, &mut self.pace)?;
            (&self.turned.values[..], &self.turned.offsets)
        };
        if is_small {
            for (at, row) in left.chunks_exact(depth).enumerate() {
                let width = (PART / depth).max(64);
                let sums = to[at * row_step_of_product..][..columns].chunks_mut(width);
                for (part, sums) in sums.enumerate() {
                    self.pace.spend((sums.len() * depth) as u64 / 8 + 1)?;
                    let values = &values[part * width..];
                    indirect_gemv(row, values, offsets, sums);
                }
            }
            return Ok(());
        }
        let product = BlockedGemm {
            rows,
            weights: &pack_rows(rows, left),
            values,
            offsets,
            columns,
        };
        product.run(&mut self.pace, &mut |row, first, sums| {
            copy_line(sums, &mut to[row * row_step_of_product + first..][..sums.len()]);
        })
    }
}

/// Multiplications between two looks at whether the request is cancelled.
const PART: usize = 1 << 22;

/// Where terms are, one behind the other if there is no list.
struct Places<'p> {
    offsets: &'p [usize],
    count: usize,
}

impl Places<'_> {
    fn at(&self, term: usize) -> usize {
        self.offsets.get(term).copied().unwrap_or(term)
    }
}

impl Turned {
    fn turn(
        &mut self,
        b: &[f32],
        from: usize,
        terms: &Places<'_>,
        columns: usize,
        step: usize,
        pace: &mut Pace,
    ) -> TractResult<()> {
        /// Columns at a time: as many numbers as stand in what is read at once.
        const TOGETHER: usize = 16;
        if self.from == Some(from) {
            return Ok(());
        }
        self.from = Some(from);
        self.values.resize(terms.count * columns, 0.0);
        self.offsets = (0..terms.count).map(|at| at * columns).collect();
        for first in (0..columns).step_by(TOGETHER) {
            let end = columns.min(first + TOGETHER);
            pace.spend((terms.count * (end - first)) as u64)?;
            for (term, line) in self.values.chunks_exact_mut(columns).enumerate() {
                let from = &b[terms.at(term) + first * step..];
                let values = from.iter().step_by(step);
                line[first..end]
                    .iter_mut()
                    .zip(values)
                    .for_each(|(to, value)| *to = *value);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::ops::elements::tensor;

    /// Small whole numbers, so that sums are exact in any order.
    fn factor(shape: &[usize], seed: usize) -> Arc<Tensor> {
        let count = shape.iter().product();
        let numbers = (0..count).map(|index| ((index * 7919 + seed) % 17) as f32 - 8.0);
        tensor(shape, numbers.collect()).unwrap().into_arc_tensor()
    }

    fn check(axes: &str, a: &[usize], b: &[usize]) {
        let product = EinSum::new(axes.parse().unwrap(), DatumType::F32);
        let inputs = [factor(a, 1), factor(b, 5)];
        let rank = axes.split_once("->").unwrap().1.len();
        let ours = ComputedProduct::of(&product, rank).unwrap();
        let values = inputs.clone().map(IntoTValue::into_tvalue);
        let expected = product.eval(&EvalContext::out_of_plan(), values.into_iter().collect());
        let found = ours.run(&inputs).unwrap();
        assert_eq!(
            found[0],
            expected.unwrap()[0].clone().into_tensor(),
            "{axes} of {a:?} and {b:?}"
        );
        let facts = ours.outputs(&Fact::of_values(&inputs)).unwrap();
        let shape: Vec<usize> = facts[0].shape.iter().map(|dim| dim.to_usize().unwrap()).collect();
        assert_eq!(shape, found[0].shape());
    }

    #[test]
    fn products_are_those_of_tract() {
        for rows in [1, 3, 4, 7, 33] {
            for depth in [1, 5, 40] {
                for columns in [1, 2, 9, 70] {
                    let (m, k, n) = (rows, depth, columns);
                    check("mk,kn->mn", &[m, k], &[k, n]);
                    check("mk,kn->nm", &[m, k], &[k, n]);
                    check("km,nk->mn", &[k, m], &[n, k]);
                    check("bmk,bkn->bmn", &[3, m, k], &[3, k, n]);
                    check("bmk,bkn->bmn", &[3, m, k], &[1, k, n]);
                    check("bmk,bkn->bmn", &[1, m, k], &[3, k, n]);
                    // Heads of attention: queries and keys, weights and values.
                    check("bmhk,bnhk->bhmn", &[2, m, 3, k], &[2, n, 3, k]);
                    check("bhmk,bkhn->bmhn", &[2, 3, m, k], &[2, k, 3, n]);
                    // Several axes of a kind.
                    check("amkc,nck->nam", &[2, m, k, 3], &[n, 3, k]);
                    check("mk,akbn->ambn", &[m, k], &[2, k, 3, n]);
                    check("amk,bkn->ambn", &[2, m, k], &[3, k, n]);
                }
            }
        }
        check("k,k->", &[70], &[70]);
        check("mk,k->m", &[9, 70], &[70]);
        check("k,kn->n", &[70], &[70, 9]);
        check("mk,kn->mn", &[0, 3], &[3, 2]);
        check("bmk,bkn->bmn", &[2, 4, 0], &[2, 0, 5]);
    }

    #[test]
    fn what_is_not_made_row_by_row_is_left_to_tract() {
        for axes in ["bmk,bkn->mnb", "mkj,kn->mn", "mm,mn->n"] {
            let product = EinSum::new(axes.parse().unwrap(), DatumType::F32);
            assert!(
                ComputedProduct::of(&product, axes.split_once("->").unwrap().1.len()).is_none(),
                "{axes}"
            );
        }
    }
}
