//! Puts our own convolutions in the place of tract's, each together with what follows it: factors and biases of channels, a sum
//! with another value, and an activation.

use std::sync::Arc;

use tract_hir::{
    internal::*,
    tract_core::ops::{
        binary::TypedBinOp,
        cnn::{Conv, KernelFormat},
        einsum::EinSum,
        element_wise::ElementWiseOp,
        math::{Add, Mul, Sub},
        nn::DataFormat,
    },
};

use super::{
    activation::Activation,
    convolution::{Convolution, Geometry, packed},
    elements::elements,
    kernel::typed,
    matrix_product::{MatrixProduct, matrix},
    packs::{Order, Packs},
};
use crate::cancelling;

/// Places of the result from which on vectors are filled; fewer are left to tract.
const FEWEST_PLACES: usize = 12;

/// Rows from which on a product with a matrix is ours.
const FEWEST_ROWS: usize = 16;

/// Does it for all convolutions of a plan whose sizes are known.
pub(super) fn convolutions(model: &mut TypedModel, packs: &mut Packs) -> TractResult<()> {
    if !onnx_gemm::has_wide_vectors() {
        return Ok(());
    }
    for id in 0..model.nodes().len() {
        cancelling::check_all()?;
        let Some(mut found) = Found::at(model, id)? else {
            continue;
        };
        found.follow(model)?;
        found.replace(model, id, packs)?;
    }
    Ok(())
}

/// A convolution and what follows it.
struct Found {
    geometry: Geometry,
    input: OutletId,
    /// Of the result.
    shape: TVec<usize>,
    /// Which of its axes is that of the channels.
    axis: usize,
    weights: Weights,
    bias: Vec<f32>,
    added: Option<OutletId>,
    activation: Option<Activation>,
    /// What it stands for.
    last: OutletId,
}

/// The weights of all channels of the result. Nothing is made of them before it is certain that they are used.
struct Weights {
    constant: Arc<Tensor>,
    /// Whether those of a channel are a column of the constant.
    is_transposed: bool,
    /// The factors of the channels that follow, one after the other.
    factors: Vec<Vec<f32>>,
}

impl Weights {
    fn new(constant: Arc<Tensor>, is_transposed: bool) -> Self {
        Self {
            constant,
            is_transposed,
            factors: vec![],
        }
    }

    /// Channel by channel.
    fn rows(&self, channels: usize) -> TractResult<Vec<f32>> {
        let given = elements::<f32>(&self.constant)?;
        let depth = given.len() / channels.max(1);
        let mut rows = match self.is_transposed {
            false => given.to_vec(),
            true => (0..given.len())
                .map(|index| given[index % depth * channels + index / depth])
                .collect(),
        };
        for factors in &self.factors {
            for (row, factor) in rows.chunks_exact_mut(depth.max(1)).zip(factors) {
                row.iter_mut().for_each(|weight| *weight *= factor);
            }
        }
        Ok(rows)
    }

    /// In this order, which takes so many numbers. `None` if there are too many copies already.
    fn packed(
        &self,
        order: Order,
        numbers: usize,
        packs: &mut Packs,
        make: impl FnOnce() -> TractResult<Tensor>,
    ) -> TractResult<Option<Arc<Tensor>>> {
        let bytes = (numbers as u64).saturating_mul(4);
        match self.factors.is_empty() {
            true => packs.shared(&[&self.constant], order, bytes, make),
            false if packs.admit(bytes) => Ok(Some(Arc::new(make()?))),
            false => Ok(None),
        }
    }
}

impl Found {
    fn at(model: &TypedModel, id: usize) -> TractResult<Option<Self>> {
        let node = model.node(id);
        if let Some(conv) = node.op_as::<Conv>() {
            return Self::convolution(model, node, conv);
        }
        match node.op_as::<EinSum>() {
            Some(product) => Self::pointwise(model, node, product),
            None => Ok(None),
        }
    }

    fn convolution(model: &TypedModel, node: &TypedNode, conv: &Conv) -> TractResult<Option<Self>> {
        let &[input, weights, bias] = &*node.inputs else {
            return Ok(None);
        };
        let spec = &conv.pool_spec;
        let has_batch = match spec.data_format {
            DataFormat::NCHW => true,
            DataFormat::CHW => false,
            _ => return Ok(None),
        };
        let spatial = spec.rank();
        let groups = conv.group;
        if conv.q_params.is_some()
            || conv.kernel_fmt != KernelFormat::OIHW
            || !(1..=2).contains(&spatial)
            || groups == 0
            || !spec.input_channels.is_multiple_of(groups)
            || !spec.output_channels.is_multiple_of(groups)
        {
            return Ok(None);
        }
        let (Some(given), Some(shape)) = (floats(model, input)?, floats(model, node.id.into())?) else {
            return Ok(None);
        };
        let (Some(weights), Some(bias)) = (constant(model, weights)?, constant(model, bias)?) else {
            return Ok(None);
        };
        let axis = usize::from(has_batch);
        let padding = spec.computed_padding(&given[axis + 1..]);
        // Lines are images of one row.
        let plane = |sizes: &[usize], one: usize| match sizes {
            &[width] => [one, width],
            sizes => [sizes[0], sizes[1]],
        };
        let before: TVec<usize> = padding.iter().map(|axis| axis.pad_before).collect();
        let geometry = Geometry {
            batch: if has_batch { given[0] } else { 1 },
            groups,
            channels: spec.input_channels / groups,
            rows: spec.output_channels / groups,
            input: plane(&given[axis + 1..], 1),
            output: plane(&shape[axis + 1..], 1),
            kernel: plane(&spec.kernel_shape, 1),
            strides: plane(&spec.strides(), 1),
            dilations: plane(&spec.dilations(), 1),
            before: plane(&before, 0),
        };
        let weights = Weights::new(weights, false);
        let bias = elements::<f32>(&bias)?.to_vec();
        Ok(Self::new(geometry, input, node.id, axis, shape, weights, bias))
    }

    /// A convolution of single places, which tract writes as a product of matrices.
    fn pointwise(model: &TypedModel, node: &TypedNode, product: &EinSum) -> TractResult<Option<Self>> {
        if product.q_params.is_some() || node.inputs.len() != 2 {
            return Ok(None);
        }
        let Some(shape) = floats(model, node.id.into())? else {
            return Ok(None);
        };
        for (image, weights) in [(0, 1), (1, 0)] {
            let (Some(given), Some(matrix)) = (
                floats(model, node.inputs[image])?,
                constant(model, node.inputs[weights])?,
            ) else {
                continue;
            };
            let Some((axis, is_transposed)) = channels(product, image, weights) else {
                continue;
            };
            if matrix.rank() != 2 || given.len() != shape.len() {
                continue;
            }
            let (channels, rows) = (given[axis], shape[axis]);
            let places: usize = shape[axis + 1..].iter().product();
            let geometry = Geometry {
                batch: shape[..axis].iter().product(),
                groups: 1,
                channels,
                rows,
                input: [1, places],
                output: [1, places],
                kernel: [1, 1],
                strides: [1, 1],
                dilations: [1, 1],
                before: [0, 0],
            };
            let weights = Weights::new(matrix, is_transposed);
            let bias = vec![0.0; rows];
            return Ok(Self::new(
                geometry,
                node.inputs[image],
                node.id,
                axis,
                shape,
                weights,
                bias,
            ));
        }
        Ok(None)
    }

    fn new(
        geometry: Geometry,
        input: OutletId,
        id: usize,
        axis: usize,
        shape: TVec<usize>,
        weights: Weights,
        mut bias: Vec<f32>,
    ) -> Option<Self> {
        let channels = geometry.groups * geometry.rows;
        let [height, width] = geometry.output;
        if let &[one] = &*bias {
            bias = vec![one; channels];
        }
        let sizes = [
            geometry.input,
            geometry.output,
            geometry.kernel,
            geometry.strides,
            geometry.dilations,
        ];
        if sizes.as_flattened().contains(&0) {
            return None;
        }
        let is_known = bias.len() == channels && weights.constant.len() == channels * geometry.depth();
        // Of single places there are products of rows with a matrix, if nothing is behind the channels.
        let is_matrix = axis + 1 == shape.len() && geometry.batch >= FEWEST_ROWS;
        let is_worth = height * width >= FEWEST_PLACES || is_matrix;
        let is_worth = is_worth && geometry.depth() > 0 && channels > 0;
        (is_known && is_worth && geometry.batch > 0).then(|| Self {
            geometry,
            input,
            shape,
            axis,
            weights,
            bias,
            added: None,
            activation: None,
            last: id.into(),
        })
    }

    /// Takes in what can be computed with it.
    fn follow(&mut self, model: &TypedModel) -> TractResult<()> {
        while self.activation.is_none() && !model.outputs.contains(&self.last) {
            let successors = &model.outlet_successors(self.last);
            let is_taken = match **successors {
                [next] => self.take(model, next)?,
                [a, b] => self.take_gate(model, a, b)? || self.take_gate(model, b, a)?,
                _ => false,
            };
            if !is_taken {
                break;
            }
        }
        Ok(())
    }

    fn take(&mut self, model: &TypedModel, next: InletId) -> TractResult<bool> {
        let node = model.node(next.node);
        if let Some(activation) = activation(node) {
            self.activation = Some(activation);
            self.last = node.id.into();
            return Ok(true);
        }
        let Some(op) = node.op_as::<TypedBinOp>() else {
            return Ok(false);
        };
        let other = node.inputs[1 - next.slot];
        if floats(model, node.id.into())?.as_ref() != Some(&self.shape) {
            return Ok(false);
        }
        let op = &op.0;
        let values = self.of_channels(model, other)?;
        let is_taken = match (values, self.added) {
            (Some(values), None) if op.is::<Add>() => {
                let pairs = self.bias.iter_mut().zip(values);
                pairs.for_each(|(bias, value)| *bias += value);
                true
            }
            (Some(values), None) if op.is::<Sub>() && next.slot == 0 => {
                let pairs = self.bias.iter_mut().zip(values);
                pairs.for_each(|(bias, value)| *bias -= value);
                true
            }
            (Some(values), None) if op.is::<Mul>() && values.iter().all(|value| value.is_finite()) => {
                let pairs = self.bias.iter_mut().zip(&values);
                pairs.for_each(|(bias, value)| *bias *= value);
                self.weights.factors.push(values);
                true
            }
            (None, None) if op.is::<Add>() && other != self.last => {
                let is_same = floats(model, other)?.as_ref() == Some(&self.shape);
                if is_same {
                    self.added = Some(other);
                }
                is_same
            }
            _ => false,
        };
        if is_taken {
            self.last = node.id.into();
        }
        Ok(is_taken)
    }

    /// A value times a function of itself, such as `x * sigmoid(x)`.
    fn take_gate(&mut self, model: &TypedModel, function: InletId, product: InletId) -> TractResult<bool> {
        let (gate, node) = (model.node(function.node), model.node(product.node));
        let outlet = OutletId::from(gate.id);
        let is_gate = node.op_as::<TypedBinOp>().is_some_and(|op| op.0.is::<Mul>())
            && node.inputs[1 - product.slot] == outlet
            && model.outlet_successors(outlet).len() == 1
            && !model.outputs.contains(&outlet)
            && floats(model, node.id.into())?.as_ref() == Some(&self.shape);
        let gated = activation(gate).and_then(|function| function.gated());
        match gated.filter(|_| is_gate) {
            Some(gated) => {
                self.activation = Some(gated);
                self.last = node.id.into();
                Ok(true)
            }
            None => Ok(false),
        }
    }

    /// A constant for each channel, if that is what the value is.
    fn of_channels(&self, model: &TypedModel, value: OutletId) -> TractResult<Option<Vec<f32>>> {
        let Some(value) = constant(model, value)? else {
            return Ok(None);
        };
        let count = self.bias.len();
        let values = elements::<f32>(&value)?;
        let is_of_channels = value.rank() == self.shape.len() && value.shape()[self.axis] == values.len();
        Ok(match values {
            &[one] => Some(vec![one; count]),
            values if is_of_channels && values.len() == count => Some(values.to_vec()),
            _ => None,
        })
    }

    /// Leaves it to tract where there are too many copies of weights already.
    fn replace(self, model: &mut TypedModel, id: usize, packs: &mut Packs) -> TractResult<()> {
        let (weights, channels, depth) = (&self.weights, self.bias.len(), self.geometry.depth());
        if self.axis + 1 == self.shape.len() {
            let matrix = match weights.is_transposed && weights.factors.is_empty() {
                true => Some(weights.constant.clone()),
                false => weights.packed(Order::Matrix, channels * depth, packs, || {
                    matrix(channels, &weights.rows(channels)?)
                })?,
            };
            let Some(matrix) = matrix else {
                return Ok(());
            };
            let product = MatrixProduct {
                rows: self.geometry.batch,
                depth,
                bias: self.bias,
                activation: self.activation,
                shape: self.shape,
            };
            let inputs = (self.input, self.added);
            return put(model, id, typed(product), matrix, inputs, self.last);
        }
        let Some(layout) = self.geometry.layout() else {
            return Ok(());
        };
        let rows = self.geometry.rows;
        let numbers = self.geometry.groups * onnx_gemm::packed_len(rows, depth);
        let order = Order::Rows {
            rows,
            depth,
            is_transposed: weights.is_transposed,
        };
        let made = weights.packed(order, numbers, packs, || {
            packed(&self.geometry, &weights.rows(channels)?)
        })?;
        let Some(made) = made else {
            return Ok(());
        };
        let op = Convolution::new(self.geometry, layout, self.bias, self.activation, &self.shape);
        put(model, id, typed(op), made, (self.input, self.added), self.last)
    }
}

/// Puts an operator in the place of what gives the last value.
fn put(
    model: &mut TypedModel,
    id: usize,
    op: impl TypedOp,
    weights: Arc<Tensor>,
    (input, added): (OutletId, Option<OutletId>),
    last: OutletId,
) -> TractResult<()> {
    let name = &model.node(id).name;
    let mut patch = TypedModelPatch::default();
    let weights = patch.add_const(format!("{name}~weights"), weights)?;
    let mut inputs = tvec![patch.tap_model(model, input)?, weights];
    if let Some(added) = added {
        inputs.push(patch.tap_model(model, added)?);
    }
    let outlets = patch.wire_node(format!("{name}~ours"), op, &inputs)?;
    patch.shunt_outside(model, last, outlets[0])?;
    patch.apply(model)
}

/// The axis of an image along which a matrix of weights makes new channels of the old ones, and whether the matrix has the old
/// ones first.
fn channels(product: &EinSum, image: usize, weights: usize) -> Option<(usize, bool)> {
    let (mut old, mut new) = (None, None);
    for axis in product.axes.iter_all_axes() {
        match (&*axis.inputs[image], &*axis.inputs[weights], &*axis.outputs[0]) {
            (&[from], &[], &[to]) if from == to => {}
            (&[from], &[place], &[]) if old.is_none() => old = Some((from, place)),
            (&[], &[place], &[to]) if new.is_none() => new = Some((to, place)),
            _ => return None,
        }
    }
    let ((from, column), (to, row)) = (old?, new?);
    (from == to).then_some((from, column < row))
}

fn activation(node: &TypedNode) -> Option<Activation> {
    let op = node.op_as::<ElementWiseOp>()?;
    op.0.downcast_ref::<Activation>().cloned()
}

/// The sizes of a value of FP32, where they are known.
fn floats(model: &TypedModel, outlet: OutletId) -> TractResult<Option<TVec<usize>>> {
    let fact = model.outlet_fact(outlet)?;
    let is_float = fact.datum_type == DatumType::F32 && !fact.is_exotic();
    Ok(fact.shape.as_concrete().filter(|_| is_float).map(Into::into))
}

/// A value of FP32, where it is known.
fn constant(model: &TypedModel, outlet: OutletId) -> TractResult<Option<Arc<Tensor>>> {
    let fact = model.outlet_fact(outlet)?;
    let is_float = fact.datum_type == DatumType::F32 && !fact.is_exotic();
    Ok(fact.konst.clone().filter(|_| is_float))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use tract_hir::{
        prelude::IntoRunnable,
        tract_core::ops::{
            cnn::{PaddingSpec, PoolSpec},
            math::{add, mul, sub},
        },
    };

    use super::{
        super::{binary, elements::tensor},
        *,
    };

    /// Small whole numbers, so that sums are exact in any order.
    fn numbers(shape: &[usize], seed: usize) -> Tensor {
        let number = |index: usize| ((index + seed) * 7919 % 13) as f32 - 6.0;
        tensor(shape, (0..shape.iter().product()).map(number).collect()).unwrap()
    }

    fn convolve(model: &mut TypedModel) {
        let mut packs = Packs::of(model);
        convolutions(model, &mut packs).unwrap();
    }

    struct Case {
        shape: &'static [usize],
        rows: usize,
        kernel: &'static [usize],
        groups: usize,
        strides: &'static [usize],
        dilations: &'static [usize],
        pads: [&'static [usize]; 2],
    }

    impl Case {
        /// A convolution of the input, as an operator of tract.
        fn wire(&self, model: &mut TypedModel, name: &str, input: OutletId) -> OutletId {
            let channels = self.shape[1];
            let weights = [&[self.rows, channels / self.groups], self.kernel].concat();
            let weights = model.add_const(format!("{name}.w"), numbers(&weights, 3));
            let bias = model.add_const(format!("{name}.b"), numbers(&[self.rows], 5));
            let [before, after] = self.pads;
            let conv = Conv {
                pool_spec: PoolSpec {
                    data_format: DataFormat::NCHW,
                    kernel_shape: self.kernel.into(),
                    padding: PaddingSpec::Explicit(before.into(), after.into()),
                    dilations: Some(self.dilations.into()),
                    strides: Some(self.strides.into()),
                    input_channels: channels,
                    output_channels: self.rows,
                },
                kernel_fmt: KernelFormat::OIHW,
                group: self.groups,
                q_params: None,
            };
            model
                .wire_node(name, conv, &[input, weights.unwrap(), bias.unwrap()])
                .unwrap()[0]
        }

        /// What the model gives before and after its convolutions are replaced, and how many there are then.
        fn check(&self, follow: impl Fn(&mut TypedModel, OutletId, OutletId) -> OutletId) -> usize {
            let mut model = TypedModel::default();
            let input = model.add_source("x", f32::fact(self.shape)).unwrap();
            let made = self.wire(&mut model, "conv", input);
            let output = follow(&mut model, input, made);
            model.select_output_outlets(&[output]).unwrap();
            let input = numbers(self.shape, 1).into_tvalue();
            let run = |model: TypedModel| {
                let outputs = model.into_runnable().unwrap().run(tvec![input.clone()]);
                outputs.unwrap()[0].clone().into_tensor()
            };
            let wanted = run(model.clone());
            binary::keep_order(&mut model).unwrap();
            model.declutter().unwrap();
            convolve(&mut model);
            model.compact().unwrap();
            let is_ours = |node: &&TypedNode| node.op.name() == "Convolution";
            let count = model.nodes().iter().filter(is_ours).count();
            let operators = model.nodes().len();
            assert!(count > 0, "{model}");
            assert_eq!(run(model), wanted);
            operators
        }
    }

    const PLAIN: Case = Case {
        shape: &[2, 6, 9, 11],
        rows: 10,
        kernel: &[3, 3],
        groups: 1,
        strides: &[1, 1],
        dilations: &[1, 1],
        pads: [&[1, 1], &[1, 1]],
    };

    #[test]
    fn sums_are_those_of_tract() {
        let cases = [
            PLAIN,
            Case {
                pads: [&[0, 0], &[0, 0]],
                ..PLAIN
            },
            Case {
                pads: [&[2, 0], &[0, 1]],
                strides: &[2, 3],
                ..PLAIN
            },
            Case {
                strides: &[2, 2],
                ..PLAIN
            },
            Case {
                strides: &[3, 2],
                kernel: &[2, 5],
                pads: [&[1, 2], &[1, 2]],
                ..PLAIN
            },
            Case {
                dilations: &[2, 3],
                pads: [&[2, 3], &[2, 3]],
                ..PLAIN
            },
            Case {
                dilations: &[3, 2],
                strides: &[2, 3],
                pads: [&[3, 2], &[3, 2]],
                ..PLAIN
            },
            Case {
                kernel: &[1, 1],
                pads: [&[0, 0], &[0, 0]],
                ..PLAIN
            },
            Case {
                kernel: &[1, 1],
                strides: &[2, 2],
                pads: [&[1, 0], &[0, 0]],
                ..PLAIN
            },
            Case {
                kernel: &[7, 1],
                pads: [&[3, 0], &[3, 0]],
                ..PLAIN
            },
            Case { rows: 1, ..PLAIN },
            Case { rows: 35, ..PLAIN },
            Case { groups: 2, ..PLAIN },
            Case {
                rows: 6,
                groups: 6,
                ..PLAIN
            },
            Case {
                rows: 12,
                groups: 6,
                strides: &[2, 2],
                ..PLAIN
            },
            Case {
                rows: 6,
                groups: 6,
                shape: &[1, 6, 40, 70],
                kernel: &[5, 5],
                pads: [&[2, 2], &[2, 2]],
                ..PLAIN
            },
            // More than one band.
            Case {
                shape: &[1, 6, 300, 260],
                strides: &[2, 1],
                ..PLAIN
            },
            Case {
                shape: &[1, 4, 50],
                rows: 7,
                kernel: &[5],
                groups: 1,
                strides: &[2],
                dilations: &[2],
                pads: [&[4], &[4]],
            },
        ];
        for case in cases {
            case.check(|_, _, made| made);
        }
    }

    #[test]
    fn what_follows_is_taken_in() {
        let same = Case { rows: 6, ..PLAIN };
        for case in [
            &same,
            &Case {
                kernel: &[1, 1],
                pads: [&[0, 0], &[0, 0]],
                ..same
            },
        ] {
            let operators = case.check(|model, input, made| {
                let constant = |model: &mut TypedModel, name: &str, shape: &[usize], seed| {
                    model.add_const(name, numbers(shape, seed)).unwrap()
                };
                let factor = constant(model, "factor", &[1, 6, 1, 1], 2);
                let shift = constant(model, "shift", &[1, 6, 1, 1], 4);
                let less = constant(model, "less", &[1, 1, 1, 1], 8);
                let made = model.wire_node("mul", mul(), &[made, factor]).unwrap()[0];
                let made = model.wire_node("add", add(), &[shift, made]).unwrap()[0];
                let made = model.wire_node("sub", sub(), &[made, less]).unwrap()[0];
                let made = model.wire_node("residual", add(), &[input, made]).unwrap()[0];
                model.wire_node("relu", relu(), &[made]).unwrap()[0]
            });
            // The source, the weights and the convolution.
            assert_eq!(operators, 3);
        }
    }

    fn relu() -> ElementWiseOp {
        ElementWiseOp(Box::new(Activation::relu()), None)
    }

    #[test]
    fn what_others_need_stays() {
        // The sum before the activation is used a second time.
        PLAIN.check(|model, _, made| {
            let active = model.wire_node("relu", relu(), &[made]).unwrap()[0];
            model.wire_node("both", mul(), &[made, active]).unwrap()[0]
        });
        // Both sides of a sum are convolutions.
        PLAIN.check(|model, input, made| {
            let other = PLAIN.wire(model, "other", input);
            model.wire_node("sum", add(), &[made, other]).unwrap()[0]
        });
        // A sum that is larger than the convolution.
        let single = Case {
            shape: &[1, 6, 9, 11],
            ..PLAIN
        };
        single.check(|model, _, made| {
            let larger = model.add_const("larger", numbers(&[4, 10, 9, 11], 1)).unwrap();
            model.wire_node("sum", add(), &[made, larger]).unwrap()[0]
        });
        // A difference the other way round.
        PLAIN.check(|model, _, made| {
            let from = model.add_const("from", numbers(&[1, 10, 1, 1], 1)).unwrap();
            model.wire_node("sub", sub(), &[from, made]).unwrap()[0]
        });
        // A sum with itself.
        PLAIN.check(|model, _, made| model.wire_node("twice", add(), &[made, made]).unwrap()[0]);
    }

    #[test]
    fn products_of_rows_are_those_of_tract() {
        for (is_transposed, shape) in [(false, [3, 20, 7]), (true, [3, 20, 7]), (false, [1, 67, 600])] {
            let mut model = TypedModel::default();
            let input = model.add_source("x", f32::fact(shape)).unwrap();
            let (depth, columns) = (shape[2], 53);
            let sizes = if is_transposed {
                [columns, depth]
            } else {
                [depth, columns]
            };
            let weights = model.add_const("w", numbers(&sizes, 3)).unwrap();
            let axes = if is_transposed {
                "abk,nk->abn"
            } else {
                "abk,kn->abn"
            };
            let product = EinSum::new(axes.parse().unwrap(), DatumType::F32);
            let made = model.wire_node("product", product, &[input, weights]).unwrap()[0];
            let bias = model.add_const("bias", numbers(&[1, 1, columns], 5)).unwrap();
            let other = numbers(&[shape[0], shape[1], columns], 7);
            let other_fact = f32::fact(other.shape());
            let other_input = model.add_source("other", other_fact).unwrap();
            let made = model.wire_node("add", add(), &[made, bias]).unwrap()[0];
            let made = model.wire_node("sum", add(), &[made, other_input]).unwrap()[0];
            let output = model.wire_node("relu", relu(), &[made]).unwrap()[0];
            model.select_output_outlets(&[output]).unwrap();
            let run = |model: TypedModel| {
                let inputs = tvec![numbers(&shape, 1).into_tvalue(), other.clone().into_tvalue()];
                let outputs = model.into_runnable().unwrap().run(inputs);
                outputs.unwrap()[0].clone().into_tensor()
            };
            let wanted = run(model.clone());
            convolve(&mut model);
            model.compact().unwrap();
            // Two sources, the matrix and the product.
            assert_eq!(model.nodes().len(), 4, "{model}");
            assert_eq!(run(model), wanted);
        }
    }

    #[test]
    fn gates_are_taken_in() {
        let mut model = TypedModel::default();
        let input = model.add_source("x", f32::fact(PLAIN.shape)).unwrap();
        let made = PLAIN.wire(&mut model, "conv", input);
        let sigmoid = ElementWiseOp(Box::new(Activation::sigmoid()), None);
        let gate = model.wire_node("gate", sigmoid, &[made]).unwrap()[0];
        let output = model.wire_node("silu", mul(), &[gate, made]).unwrap()[0];
        model.select_output_outlets(&[output]).unwrap();
        let run = |model: TypedModel| {
            let input = numbers(PLAIN.shape, 1).into_tvalue();
            let outputs = model.into_runnable().unwrap().run(tvec![input]).unwrap();
            elements::<f32>(&outputs[0]).unwrap().to_vec()
        };
        let wanted = run(model.clone());
        convolve(&mut model);
        model.compact().unwrap();
        assert_eq!(model.nodes().len(), 3);
        for (found, wanted) in run(model).into_iter().zip(wanted) {
            assert!(
                (found - wanted).abs() <= 1e-5 * wanted.abs(),
                "{found}, not {wanted}"
            );
        }
    }
}
