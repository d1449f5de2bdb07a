//! Two products with a softmax between them, computed in blocks of rows, so that the scores between the products
//! are never in memory as a whole. Types and shapes that this does not suit are computed operator by operator.

use std::{ops::Range, sync::Arc};

use onnx_gemm::{Order, PackedMatrix};
use onnx_kernels::elementwise;
use onnx_tensor::prelude::*;

use crate::{
    attention::{
        block_sizes::{FEWEST_ROWS, MOST_PACKED, ask_for_buffers, block_rows, packed_len},
        heads::TransposeLast,
    },
    least_work::PRODUCTS,
    matmul::{
        matrices::matrices,
        products::{MatMul, fitting},
    },
    norm::softmax::{self, softmax},
    split_products::{LEAST_ROWS, products},
};
use onnx_tensor::{
    cancelling::Pace,
    elements::{elements, written},
    faults::Refusal,
    node::{Attributes, Node},
    operator::{Compute, Fact},
    room, shapes, size,
    split::lines,
    threads,
};

/// Builds the operator `FusedAttention`: `softmax(queries x keys) x values`.
///
/// Its inputs are queries (`[.., rows, depth]`), keys (`[.., depth, total]`), values (`[.., total, width]`),
/// and one operand for each of the functions that the attribute `stages` names: `Add`, `Div` or `Mul`, which
/// are applied to the scores in this order, before the softmax. The attribute `axis` and the operator set are
/// those of the softmax. With `transposes`, the result is `values x transpose(softmax(..))`.
///
/// FP32 results have the bits that the separate operators compute, except that subnormal keys and values count as
/// zeros. FP16 inputs are computed in FP32, and rounded once at the end.
pub fn fused_attention(node: &Node) -> Result<Box<dyn Compute>> {
    let attributes = Attributes(node);
    let stages = attributes.text("stages", "").split_whitespace();
    let stages = stages.map(|name| {
        let function = match name {
            "Add" => Function::Sum,
            "Div" => Function::Quotient,
            "Mul" => Function::Product,
            other => bail!(Refusal(format!("has an unknown stage '{other}'"))),
        };
        let operator = elementwise::pair(&Node {
            op_type: name.to_owned(),
            attribute: vec![],
            ..node.clone()
        })?;
        Ok(Stage { function, operator })
    });
    Ok(Box::new(FusedAttention {
        scores: MatMul::default(),
        stages: stages.collect::<Result<_>>()?,
        axis: attributes.int("axis", if node.opset < 13 { 1 } else { -1 }),
        softmax: softmax(&Node {
            op_type: "Softmax".to_owned(),
            ..node.clone()
        })?,
        transposes: attributes.int("transposes", 0) != 0,
        result: MatMul::default(),
    }))
}

#[derive(Debug)]
struct FusedAttention {
    scores: MatMul,
    stages: Vec<Stage>,
    softmax: Box<dyn Compute>,
    axis: i64,
    /// Whether the second product is that of the values and the transposed weights.
    transposes: bool,
    result: MatMul,
}

/// A function of the scores and an operand.
#[derive(Debug)]
struct Stage {
    function: Function,
    operator: Box<dyn Compute>,
}

#[derive(Clone, Copy, Debug)]
enum Function {
    Sum,
    Quotient,
    Product,
}

impl FusedAttention {
    /// Returns the inputs of the second product.
    fn factors<T>(&self, values: T, weights: T) -> [T; 2] {
        match self.transposes {
            true => [values, weights],
            false => [weights, values],
        }
    }

    /// Computes each operator for the whole tensor. This supports all types, shapes and axes.
    fn whole(&self, inputs: &mut ShortVec<Arc<Tensor>>) -> Result<ShortVec<Arc<Tensor>>> {
        let mut inputs = std::mem::take(inputs).into_iter();
        let mut next = || inputs.next().context("expected an input");
        let (queries, keys, values) = (next()?, next()?, next()?);
        let asked = &mut 0;
        let mut scores = computed(&self.scores, smallvec![queries, keys], asked)?;
        for stage in &self.stages {
            scores = computed(&*stage.operator, smallvec![scores, next()?], asked)?;
        }
        scores = computed(&*self.softmax, smallvec![scores], asked)?;
        if self.transposes {
            scores = computed(&TransposeLast, smallvec![scores], asked)?;
        }
        self.result
            .run(&mut self.factors(values, scores).into_iter().collect())
    }
}

/// Runs an operator whose result is only an intermediate value of this node. Reserves memory for two such values,
/// an operator's input and its result, unless `asked` bytes suffice.
fn computed(
    operator: &dyn Compute,
    mut inputs: ShortVec<Arc<Tensor>>,
    asked: &mut u64,
) -> Result<Arc<Tensor>> {
    for output in operator.outputs(&Fact::of_values(&inputs))?.unwrap_or_default() {
        if let Some(shape) = shapes::known(&output.shape) {
            let bytes = 2 * size::admit_size(output.element_type, &shape)?;
            size::admit_shape(output.element_type, &shape)?;
            room::ask_for_more(bytes.saturating_sub(*asked))?;
            *asked = bytes.max(*asked);
        }
    }
    operator.run(&mut inputs)?.pop().context("expected an output")
}

impl Compute for FusedAttention {
    fn outputs(&self, inputs: &[Fact]) -> Result<Option<Vec<Fact>>> {
        let [queries, keys, values, operands @ ..] = inputs else {
            bail!("expected 3 inputs or more, found {}", inputs.len());
        };
        let only = |outputs: Option<Vec<Fact>>| outputs.and_then(|mut outputs| outputs.pop());
        let Some(mut scores) = only(self.scores.outputs(&[queries.clone(), keys.clone()])?) else {
            return Ok(None);
        };
        let stages = self.stages.iter().map(|stage| &*stage.operator).zip(operands);
        for (operator, operand) in stages {
            match only(operator.outputs(&[scores, operand.clone()])?) {
                Some(made) => scores = made,
                None => return Ok(None),
            }
        }
        self.softmax.outputs(std::slice::from_ref(&scores))?;
        if self.transposes {
            match only(TransposeLast.outputs(&[scores])?) {
                Some(made) => scores = made,
                None => return Ok(None),
            }
        }
        self.result.outputs(&self.factors(values.clone(), scores))
    }

    fn run(&self, inputs: &mut ShortVec<Arc<Tensor>>) -> Result<ShortVec<Arc<Tensor>>> {
        match Blocks::of(self, inputs)? {
            Some(blocks) => Ok(smallvec![Arc::new(blocks.run()?)]),
            None => self.whole(inputs),
        }
    }
}

/// A run in blocks of rows.
struct Blocks<'i> {
    queries: &'i [f32],
    keys: &'i [f32],
    values: &'i [f32],
    stages: Vec<(Function, Operand<'i>)>,
    /// Dimensions of the result before those of its matrices.
    outer: ShortVec<usize>,
    /// The matrix of queries, keys and values for each matrix of the result.
    matrices: Vec<[usize; 3]>,
    rows: usize,
    depth: usize,
    total: usize,
    width: usize,
    transposes: bool,
}

/// The memory that the matrices of a part share.
#[derive(Default)]
struct Buffers {
    keys: PackedMatrix,
    values: PackedMatrix,
    /// The scores of a block, and its result.
    block: Vec<f32>,
}

/// The second operand of a stage, which broadcasts to the scores.
struct Operand<'i> {
    numbers: &'i [f32],
    rows: usize,
    columns: usize,
    /// The operand's matrix for each matrix of the result.
    matrices: Vec<usize>,
}

impl<'i> Operand<'i> {
    /// Returns `None` if the operand would enlarge the scores.
    fn of(given: &'i Tensor, outer: &ShortVec<usize>, [rows, columns]: [usize; 2]) -> Result<Option<Self>> {
        let given_dims = given.shape();
        let rank = outer.len() + 2;
        let Some(missing) = rank.checked_sub(given_dims.len()) else {
            return Ok(None);
        };
        let mut dims: ShortVec<usize> = smallvec![1; missing];
        dims.extend(given_dims.iter().copied());
        let scores = outer.iter().chain([&rows, &columns]);
        if !dims
            .iter()
            .zip(scores)
            .all(|(&dim, &size)| dim == size || dim == 1)
        {
            return Ok(None);
        }
        let (before, last) = dims.split_at(rank - 2);
        let pairs = [outer.clone(), before.into()];
        Ok(Some(Self {
            numbers: elements(given)?,
            rows: last[0],
            columns: last[1],
            matrices: matrices(&pairs, outer.iter().product())
                .map(|[_, own]| own)
                .collect(),
        }))
    }

    /// Calls `combine` for rows of scores, starting at row `first` of the matrix `matrix`, with the
    /// operand's elements for each row: one for each score, or one for all.
    #[inline(always)]
    fn combine(
        &self,
        [matrix, first]: [usize; 2],
        scores: &mut [f32],
        total: usize,
        combine: impl Fn(&mut f32, f32),
    ) {
        let numbers = &self.numbers[self.matrices[matrix] * self.rows * self.columns..];
        for (row, scores) in (first..).zip(scores.chunks_exact_mut(total)) {
            let row = if self.rows == 1 { 0 } else { row };
            match &numbers[row * self.columns..][..self.columns] {
                &[number] => scores.iter_mut().for_each(|score| combine(score, number)),
                numbers => {
                    let pairs = scores.iter_mut().zip(numbers);
                    pairs.for_each(|(score, &number)| combine(score, number));
                }
            }
        }
    }
}

impl<'i> Blocks<'i> {
    /// Returns `None` if the inputs are not suitable for blocks.
    fn of(node: &FusedAttention, inputs: &'i [Arc<Tensor>]) -> Result<Option<Self>> {
        let [queries, keys, values, operands @ ..] = inputs else {
            return Ok(None);
        };
        let is_float = |input: &Arc<Tensor>| input.element_type() == ElementType::F32;
        let are_matrices = [queries, keys, values].into_iter().all(|input| input.rank() >= 2);
        if !inputs.iter().all(is_float) || !are_matrices {
            return Ok(None);
        }
        let sizes = fitting(queries.shape(), keys.shape())?;
        let (rows, [depth, _], total) = (sizes.rows, sizes.depth, sizes.columns);
        let rank = sizes.shape.len();
        let outer: ShortVec<usize> = sizes.shape[..rank - 2].into();
        let (before, last) = values.shape().split_at(values.rank() - 2);
        let width = if node.transposes { last[0] } else { last[1] };
        let values_fit = shapes::broadcast(&[&outer[..], before])? == outer;
        let from_end = if node.axis < 0 { rank as i64 } else { 0 };
        if node.axis + from_end != rank as i64 - 1
            || !values_fit
            || rows < FEWEST_ROWS
            || [depth, total, width].contains(&0)
            // Separate products of one column have another order of their terms.
            || total == 1
            || (width == 1 && !node.transposes)
            || packed_len([depth, total, width]).is_none()
        {
            return Ok(None);
        }
        let mut stages = Vec::with_capacity(operands.len());
        for (stage, operand) in node.stages.iter().zip(operands) {
            match Operand::of(operand, &outer, [rows, total])? {
                Some(operand) => stages.push((stage.function, operand)),
                None => return Ok(None),
            }
        }
        let count = outer.iter().product();
        let pairs = matrices(&sizes.outer, count);
        let values_pairs = matrices(&[outer.clone(), before.into()], count);
        Ok(Some(Self {
            queries: elements(queries)?,
            keys: elements(keys)?,
            values: elements(values)?,
            stages,
            matrices: pairs
                .zip(values_pairs)
                .map(|([queries, keys], [_, values])| [queries, keys, values])
                .collect(),
            outer,
            rows,
            depth,
            total,
            width,
            transposes: node.transposes,
        }))
    }

    fn run(&self) -> Result<Tensor> {
        let (rows, width) = (self.rows, self.width);
        let mut shape = self.outer.clone();
        // A transposed result is split into whole matrices, since its columns belong to the rows of scores.
        let unit = match self.transposes {
            true => {
                shape.extend([width, rows]);
                rows
            }
            false => {
                shape.extend([rows, width]);
                LEAST_ROWS
            }
        };
        let multiplications = products([self.matrices.len() * rows, self.total, self.depth + width]);
        let work = [multiplications, PRODUCTS];
        let packed = packed_len([self.depth, self.total, width]).unwrap_or(MOST_PACKED);
        let all_rows = self.matrices.len() * rows;
        let parts = threads::parts(work[0], work[1]).min(all_rows.div_ceil(unit));
        // A part has whole units of rows, and a block has rows of one part.
        let part_rows = all_rows.div_ceil(unit).div_ceil(parts.max(1)) * unit;
        let block = block_rows(rows.min(part_rows), self.total);
        ask_for_buffers(parts, packed + block * (self.total + width))?;
        written(&shape, |made: &mut [f32]| {
            lines(made, unit * width, work, |first, made, pace| {
                let mut row = first * unit;
                let mut made = made;
                let mut buffers = Buffers::default();
                while !made.is_empty() {
                    let start = row % rows;
                    let count = (rows - start).min(made.len() / width);
                    let (part, rest) = std::mem::take(&mut made).split_at_mut(count * width);
                    self.matrix(row / rows, start..start + count, part, &mut buffers, pace)?;
                    row += count;
                    made = rest;
                }
                Ok(())
            })
        })
    }

    /// Computes rows of a matrix of the result, or all its columns if it is transposed.
    fn matrix(
        &self,
        index: usize,
        rows: Range<usize>,
        made: &mut [f32],
        buffers: &mut Buffers,
        pace: &mut Pace,
    ) -> Result<()> {
        let &Self {
            depth, total, width, ..
        } = self;
        let [queries, keys, values] = self.matrices[index];
        let keys = &self.keys[keys * depth * total..][..depth * total];
        let values = &self.values[values * total * width..][..total * width];
        pace.spend(packed_len([depth, total, width]).unwrap_or(MOST_PACKED) as u64)?;
        let order = if self.transposes {
            Order::ColumnMajor
        } else {
            Order::RowMajor
        };
        buffers.keys.pack(keys, [depth, total], Order::RowMajor);
        buffers.values.pack(values, [total, width], order);
        let (keys, values) = (&buffers.keys, &buffers.values);
        let block = block_rows(rows.len(), total);
        if buffers.block.len() < block * (total + width) {
            buffers.block.resize(block * (total + width), 0.0);
        }
        let (scores, result) = buffers.block.split_at_mut(block * total);
        for first in rows.clone().step_by(block) {
            let count = block.min(rows.end - first);
            let scores = &mut scores[..count * total];
            let queries = &self.queries[(queries * self.rows + first) * depth..][..count * depth];
            keys.multiply(queries, scores, pace)?;
            for (function, operand) in &self.stages {
                pace.spend(scores.len() as u64)?;
                pulp::Arch::new().dispatch(Combination {
                    function: *function,
                    operand,
                    place: [index, first],
                    scores,
                    total,
                });
            }
            softmax::rows(scores, total)?;
            if !self.transposes {
                let made = &mut made[(first - rows.start) * width..][..count * width];
                values.multiply(scores, made, pace)?;
                continue;
            }
            let result = &mut result[..count * width];
            values.multiply(scores, result, pace)?;
            pace.spend(result.len() as u64)?;
            for (column, made) in made.chunks_exact_mut(self.rows).enumerate() {
                let column = result[column..].iter().step_by(width);
                made[first..]
                    .iter_mut()
                    .zip(column)
                    .for_each(|(made, x)| *made = *x);
            }
        }
        Ok(())
    }
}

/// A stage for a block of scores.
struct Combination<'c> {
    function: Function,
    operand: &'c Operand<'c>,
    /// The matrix, and the first of its rows.
    place: [usize; 2],
    scores: &'c mut [f32],
    total: usize,
}

impl pulp::WithSimd for Combination<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, _: S) {
        let Self {
            function,
            operand,
            place,
            scores,
            total,
        } = self;
        match function {
            Function::Sum => operand.combine(place, scores, total, |score, x| *score += x),
            Function::Quotient => operand.combine(place, scores, total, |score, x| *score /= x),
            Function::Product => operand.combine(place, scores, total, |score, x| *score *= x),
        }
    }
}

#[cfg(test)]
mod tests {
    use onnx_tensor::{node::Attribute, testing::node};

    use super::*;

    fn floats(shape: &[usize], seed: usize) -> Arc<Tensor> {
        let count: usize = shape.iter().product();
        let numbers: Vec<f32> = (0..count)
            .map(|at| ((at * 7919 + seed) % 1009) as f32 / 251.0 - 2.0)
            .collect();
        Arc::new(Tensor::from_shape(shape, &numbers).unwrap())
    }

    fn operator(stages: &str, transposes: bool, opset: i64, axis: i64) -> FusedAttention {
        let integers = [("transposes", transposes.into()), ("axis", axis)];
        let mut node = node("FusedAttention", &[], &integers, 1);
        node.opset = opset;
        node.attribute.push(Attribute {
            name: "stages".to_owned(),
            s: stages.as_bytes().to_vec(),
            ..Attribute::default()
        });
        let made = fused_attention(&node).unwrap() as Box<dyn std::any::Any>;
        *made.downcast().unwrap()
    }

    fn bits(tensor: &Tensor) -> Vec<u32> {
        let numbers = elements::<f32>(tensor).unwrap();
        numbers.iter().map(|number| number.to_bits()).collect()
    }

    /// Checks that blocks give the bits of the separate operators.
    #[track_caller]
    fn expect_blocks(operator: &FusedAttention, inputs: &[Arc<Tensor>]) {
        let blocks = Blocks::of(operator, inputs).unwrap().expect("suitable inputs");
        let made = blocks.run().unwrap();
        let whole = operator.whole(&mut inputs.into()).unwrap();
        assert_eq!(made.shape(), whole[0].shape());
        assert_eq!(bits(&made), bits(&whole[0]));
        let facts = operator.outputs(&Fact::of_values(inputs)).unwrap().unwrap();
        assert_eq!(shapes::known(&facts[0].shape).unwrap()[..], *made.shape());
    }

    #[test]
    fn blocks_have_the_bits_of_separate_operators() {
        for [rows, depth, total, width] in [[4, 1, 2, 2], [5, 3, 7, 2], [33, 8, 2100, 5], [70, 16, 70, 33]] {
            let (queries, keys) = (floats(&[2, 3, rows, depth], 1), floats(&[2, 3, depth, total], 2));
            for (stages, operands) in [
                ("", vec![]),
                ("Mul", vec![floats(&[], 3)]),
                ("Div Add", vec![floats(&[1], 3), floats(&[2, 1, 1, total], 4)]),
                (
                    "Add Add",
                    vec![floats(&[3, rows, total], 5), floats(&[rows, 1], 6)],
                ),
            ] {
                for transposes in [false, true] {
                    let shape = if transposes {
                        [width, total]
                    } else {
                        [total, width]
                    };
                    for values in [floats(&shape, 7), floats(&[2, 3, shape[0], shape[1]], 7)] {
                        let operator = operator(stages, transposes, 17, -1);
                        let mut inputs = vec![queries.clone(), keys.clone(), values];
                        inputs.extend(operands.iter().cloned());
                        expect_blocks(&operator, &inputs);
                    }
                }
            }
        }
        // One matrix of keys and values for all queries.
        let inputs = [
            floats(&[2, 3, 9, 4], 1),
            floats(&[3, 4, 20], 2),
            floats(&[1, 20, 6], 3),
        ];
        expect_blocks(&operator("", false, 17, 3), &inputs);
        expect_blocks(&operator("", false, 11, 3), &inputs);
    }

    #[test]
    fn other_inputs_are_computed_as_a_whole() {
        let (queries, keys, values) = (
            floats(&[2, 9, 4], 1),
            floats(&[2, 4, 20], 2),
            floats(&[2, 20, 6], 3),
        );
        let cases = [
            // The softmax goes over both axes, over another axis, or the mask enlarges the scores.
            (operator("", false, 11, 1), vec![]),
            (operator("", false, 13, 1), vec![]),
            (operator("Add", false, 13, -1), vec![floats(&[3, 1, 1, 1], 4)]),
            (operator("Add", false, 13, -1), vec![floats(&[3, 2, 9, 20], 4)]),
        ];
        for (operator, operands) in cases {
            let mut inputs: ShortVec<_> = smallvec![queries.clone(), keys.clone(), values.clone()];
            inputs.extend(operands);
            assert!(Blocks::of(&operator, &inputs).unwrap().is_none());
            let facts = operator.outputs(&Fact::of_values(&inputs)).unwrap().unwrap();
            let made = operator.run(&mut inputs).unwrap();
            assert_eq!(shapes::known(&facts[0].shape).unwrap()[..], *made[0].shape());
        }
        // Columns of one element are summed in another order.
        for [total, width] in [[1, 6], [20, 1]] {
            let mut inputs: ShortVec<_> = smallvec![
                queries.clone(),
                floats(&[2, 4, total], 2),
                floats(&[2, total, width], 3)
            ];
            let operator = operator("", false, 13, -1);
            assert!(Blocks::of(&operator, &inputs).unwrap().is_none());
            assert_eq!(operator.run(&mut inputs).unwrap()[0].shape(), [2, 9, width]);
        }
        let doubles =
            [&queries, &keys, &values].map(|input| input.cast_to::<f64>().unwrap().into_owned().into_arc());
        let operator = operator("", false, 13, -1);
        let made = operator.run(&mut doubles.to_vec().into()).unwrap();
        assert_eq!(made[0].element_type(), ElementType::F64);
    }

    #[test]
    fn factors_that_do_not_fit_are_refused() {
        let operator = operator("Add", false, 13, -1);
        let outputs = |shapes: [&[usize]; 4]| {
            let inputs = shapes.map(|shape| floats(shape, 1));
            operator.outputs(&Fact::of_values(&inputs))
        };
        assert!(outputs([&[9, 4], &[4, 20], &[20, 6], &[20]]).is_ok());
        assert!(outputs([&[9, 4], &[5, 20], &[20, 6], &[20]]).is_err());
        assert!(outputs([&[9, 4], &[4, 20], &[19, 6], &[20]]).is_err());
        assert!(outputs([&[9, 4], &[4, 20], &[20, 6], &[19]]).is_err());
    }
}
