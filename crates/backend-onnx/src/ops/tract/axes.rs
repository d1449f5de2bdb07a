//! Axes: taken away, added, exchanged, split, reduced.

use std::sync::Arc;

use tract_hir::{
    internal::*,
    ops::{array, nn::Reducer},
    tract_core::ops::{array::Slice, cast::cast, change_axes::AxisOp},
};

use super::{
    Built,
    rewired::Rewired,
    sizes::{Alike, sizes},
    texts::OfTexts,
};
use crate::{
    building::BuildContext,
    cancelling,
    faults::{Limit, Misfit, Refusal},
    lowered::OnnxNode,
    ops::{
        attributes::Attributes,
        axis,
        elements::tensor,
        kernel::{Fact, Kernel, typed},
        wiring::{Wiring, fact, facts, wired},
    },
};

/// Axes as a file has them, counted from the end where they are negative, in order.
fn places(axes: &[i64], rank: usize) -> TractResult<Vec<usize>> {
    let places = axes.iter().map(|&axis| axis::axis(axis, rank));
    let mut places: Vec<usize> = places.collect::<TractResult<_>>()?;
    places.sort_unstable();
    Ok(places)
}

/// A list of numbers that older operator sets have as an attribute, and newer ones as the second input.
#[derive(Clone, Debug)]
enum List {
    Given(Option<Vec<i64>>),
    Input,
}

impl List {
    fn of(attributes: Attributes<'_>, name: &str) -> Self {
        match attributes.position(1) {
            Some(_) => Self::Input,
            None => Self::Given(attributes.has(name).then(|| attributes.ints(name).to_vec())),
        }
    }

    fn needs(&self) -> &[usize] {
        match self {
            Self::Given(_) => &[],
            Self::Input => &[1],
        }
    }

    /// The list, if there is one.
    fn get(&self, inputs: &[Fact]) -> TractResult<Option<Vec<i64>>> {
        match self {
            Self::Given(list) => Ok(list.clone()),
            Self::Input => {
                let list = inputs.get(1).context("an input is missing")?.integers();
                Ok(Some(list.context("a list that is not known yet")?))
            }
        }
    }
}

/// `Squeeze`.
pub(in crate::ops) fn squeeze(_: &BuildContext, node: &OnnxNode) -> Built {
    Ok(wired(Squeeze(List::of(Attributes(node), "axes"))))
}

#[derive(Debug)]
struct Squeeze(List);

impl Wiring for Squeeze {
    fn name(&self) -> &'static str {
        "Squeeze"
    }

    fn needs_values(&self) -> &[usize] {
        self.0.needs()
    }

    fn wire(&self, prefix: &str, model: &mut TypedModel, inputs: &[OutletId]) -> TractResult<TVec<OutletId>> {
        let shape = fact(model, inputs[0])?.shape;
        let is_one = |&axis: &usize| shape[axis].is_one();
        let given = self.0.get(&facts(model, inputs)?)?;
        let mut axes = match given.filter(|axes| !axes.is_empty()) {
            Some(axes) => places(&axes, shape.len())?,
            None if shape.iter().any(|dim| dim.to_i64().is_err()) => {
                bail!(Limit("needs its axes where dimensions are free".to_owned()))
            }
            None => (0..shape.len()).filter(is_one).collect(),
        };
        axes.dedup();
        if let Some(axis) = axes.iter().find(|axis| !is_one(axis)) {
            bail!(Limit(format!(
                "squeezes a dimension of {}, expected 1",
                shape[*axis]
            )));
        }
        remove(prefix, model, inputs[0], &axes)
    }
}

/// Takes axes of one away.
fn remove(
    prefix: &str,
    model: &mut TypedModel,
    input: OutletId,
    axes: &[usize],
) -> TractResult<TVec<OutletId>> {
    let mut wire = tvec![input];
    for &axis in axes.iter().rev() {
        wire = model.wire_node(format!("{prefix}.without-{axis}"), AxisOp::Rm(axis), &wire)?;
    }
    Ok(wire)
}

/// `Unsqueeze`.
pub(in crate::ops) fn unsqueeze(_: &BuildContext, node: &OnnxNode) -> Built {
    Ok(wired(Unsqueeze(List::of(Attributes(node), "axes"))))
}

/// Dimensions of a tensor that is given more of them.
const MAX_RANK: usize = 64;

#[derive(Debug)]
struct Unsqueeze(List);

impl Wiring for Unsqueeze {
    fn name(&self) -> &'static str {
        "Unsqueeze"
    }

    fn needs_values(&self) -> &[usize] {
        self.0.needs()
    }

    fn wire(&self, prefix: &str, model: &mut TypedModel, inputs: &[OutletId]) -> TractResult<TVec<OutletId>> {
        let axes = self.0.get(&facts(model, inputs)?)?;
        let axes = axes.ok_or_else(|| Refusal("has no axes".to_owned()))?;
        let rank = fact(model, inputs[0])?.rank() + axes.len();
        if rank > MAX_RANK {
            bail!(Refusal(format!(
                "gives {rank} dimensions, expected {MAX_RANK} at most"
            )));
        }
        let axes = places(&axes, rank)?;
        if axes.windows(2).any(|pair| pair[0] == pair[1]) {
            bail!(Refusal("adds an axis twice".to_owned()));
        }
        let mut wire = tvec![inputs[0]];
        for axis in axes {
            wire = model.wire_node(format!("{prefix}.with-{axis}"), AxisOp::Add(axis), &wire)?;
        }
        Ok(wire)
    }
}

/// `Split`.
pub(in crate::ops) fn split(_: &BuildContext, node: &OnnxNode) -> Built {
    let attributes = Attributes(node);
    let count = node.output.len();
    if count > MAX_PARTS {
        bail!(Limit(format!(
            "has {count} outputs, expected {MAX_PARTS} at most"
        )));
    }
    let rounds_up = attributes.has("num_outputs");
    if rounds_up && attributes.int("num_outputs", 0) != count as i64 {
        bail!(Refusal(format!(
            "has {count} outputs, and another number in 'num_outputs'"
        )));
    }
    Ok(wired(Split {
        axis: attributes.int("axis", 0),
        count,
        rounds_up,
        // The numbers may be sizes that are free.
        is_input: attributes.has_input(1),
        lengths: attributes.has("split").then(|| attributes.ints("split").to_vec()),
    }))
}

/// Outputs of one node.
const MAX_PARTS: usize = 4096;

#[derive(Debug)]
struct Split {
    axis: i64,
    count: usize,
    /// The last part may be shorter than the others.
    rounds_up: bool,
    is_input: bool,
    lengths: Option<Vec<i64>>,
}

impl Split {
    /// The axis, and how long its parts are. Together they are as long as the axis.
    fn parts(&self, inputs: &[Fact]) -> TractResult<(usize, Vec<TDim>)> {
        let input = &inputs[0];
        let axis = places(&[self.axis], input.rank())?[0];
        let dim = &input.shape[axis];
        let lengths = self.lengths(inputs, dim)?;
        let sum: TDim = lengths.iter().sum();
        if lengths.len() != self.count
            || lengths
                .iter()
                .any(|length| length.to_i64().is_ok_and(|length| length < 0))
        {
            bail!(Refusal(format!(
                "has {} outputs for {} parts, none of which may be negative",
                self.count,
                lengths.len()
            )));
        }
        match (sum.to_i64(), dim.to_i64()) {
            (Ok(sum), Ok(dim)) if sum != dim => bail!(Misfit::Sizes(sum, dim)),
            (Ok(_), Ok(_)) => {}
            _ if sum == *dim => {}
            _ => bail!(Limit(format!(
                "splits a dimension of {dim} into parts of {sum} together"
            ))),
        }
        Ok((axis, lengths))
    }

    fn lengths(&self, inputs: &[Fact], dim: &TDim) -> TractResult<Vec<TDim>> {
        if self.is_input {
            let lengths = inputs.get(1).context("an input is missing")?.dims();
            return lengths.context("lengths that are not known yet");
        }
        if let Some(lengths) = &self.lengths {
            return Ok(lengths.iter().map(ToDim::to_dim).collect());
        }
        let count = self.count.max(1);
        if !self.rounds_up {
            if let Ok(dim) = dim.to_i64()
                && dim % count as i64 != 0
            {
                bail!(Misfit::Multiple {
                    dim,
                    of: count as i64
                });
            }
            return Ok(vec![dim.clone() / count; count]);
        }
        let length = (dim.clone() + (count - 1)) / count;
        let mut lengths = vec![length.clone(); count];
        lengths[count - 1] = dim.clone() - length * (count - 1);
        Ok(lengths)
    }
}

impl Wiring for Split {
    fn name(&self) -> &'static str {
        "Split"
    }

    fn output_count(&self) -> usize {
        self.count
    }

    fn needs_values(&self) -> &[usize] {
        if self.is_input { &[1] } else { &[] }
    }

    fn told(&self, inputs: &[Fact]) -> TractResult<Option<Vec<Fact>>> {
        let (axis, lengths) = self.parts(inputs)?;
        let part = |length: TDim| {
            let mut part = inputs[0].with(inputs[0].datum_type);
            part.shape[axis] = length;
            part
        };
        Ok(Some(lengths.into_iter().map(part).collect()))
    }

    fn wire(&self, prefix: &str, model: &mut TypedModel, inputs: &[OutletId]) -> TractResult<TVec<OutletId>> {
        let (axis, lengths) = self.parts(&facts(model, inputs)?)?;
        let mut outputs = tvec![];
        let mut start = 0.to_dim();
        for (index, length) in lengths.into_iter().enumerate() {
            cancelling::check_all()?;
            let end = start.clone() + length;
            let part = Slice::new(axis, start, end.clone());
            outputs.push(model.wire_node(format!("{prefix}.part-{index}"), part, &inputs[..1])?[0]);
            start = end;
        }
        Ok(outputs)
    }
}

/// `Transpose`; the order names each axis once.
pub(in crate::ops) fn transpose(_: &BuildContext, node: &OnnxNode) -> Built {
    let attributes = Attributes(node);
    let order = attributes.ints("perm").iter().map(|&axis| usize::try_from(axis));
    let order: TVec<usize> = order.collect::<Result<_, _>>()?;
    Ok(expand(array::PermuteAxes::new(
        attributes.has("perm").then_some(order),
    )))
}

/// `Flatten`.
pub(in crate::ops) fn flatten(_: &BuildContext, node: &OnnxNode) -> Built {
    let flatten = array::Flatten::new(Attributes(node).int("axis", 1));
    Ok(expand(Shaped::Flatten(flatten)))
}

/// `Reshape`.
pub(in crate::ops) fn reshape(_: &BuildContext, node: &OnnxNode) -> Built {
    let reshape = array::Reshape::new(Attributes(node).int("allowzero", 0) != 0);
    Ok(expand(Shaped::Reshape(reshape)))
}

/// What gives a value another shape. tract takes it apart into steps, some of which it gets wrong where there are no elements.
#[derive(Clone, Debug)]
enum Shaped {
    Flatten(array::Flatten),
    Reshape(array::Reshape),
}

impl Shaped {
    fn op(&self) -> &dyn Expansion {
        match self {
            Self::Flatten(flatten) => flatten,
            Self::Reshape(reshape) => reshape,
        }
    }

    /// The shape that a value gets, if it is known.
    fn shape(
        &self,
        model: &TypedModel,
        inputs: &[OutletId],
        shape: &[TDim],
    ) -> TractResult<Option<TVec<TDim>>> {
        match self {
            Self::Flatten(flatten) => Ok(Some(flatten.compute_shape(shape)?.into_iter().collect())),
            Self::Reshape(reshape) => {
                let wanted = inputs.get(1).map(|&wanted| fact(model, wanted)).transpose()?;
                let Some(wanted) = wanted.and_then(|wanted| wanted.dims()) else {
                    return Ok(None);
                };
                compute_shape_with_onnx_rules(shape, &wanted, reshape.allowzero).map(Some)
            }
        }
    }
}

impl Expansion for Shaped {
    fn name(&self) -> StaticName {
        self.op().name()
    }

    fn rules<'r, 'p: 'r, 's: 'r>(
        &'s self,
        s: &mut Solver<'r>,
        inputs: &'p [TensorProxy],
        outputs: &'p [TensorProxy],
    ) -> InferenceResult {
        self.op().rules(s, inputs, outputs)
    }

    fn wire(&self, prefix: &str, model: &mut TypedModel, inputs: &[OutletId]) -> TractResult<TVec<OutletId>> {
        let from = fact(model, inputs[0])?.shape;
        if from.contains(&TDim::Val(0))
            && let Some(to) = self.shape(model, inputs, &from)?
        {
            return model.wire_node(prefix, AxisOp::Reshape(0, from, to), &inputs[..1]);
        }
        self.op().wire(prefix, model, inputs)
    }
}

/// `Shape`: dimensions, which may be free, as a constant.
pub(in crate::ops) fn shape(_: &BuildContext, node: &OnnxNode) -> Built {
    let attributes = Attributes(node);
    Ok(wired(Shape {
        start: attributes.int("start", 0),
        end: attributes.has("end").then(|| attributes.int("end", 0)),
    }))
}

#[derive(Debug)]
struct Shape {
    start: i64,
    end: Option<i64>,
}

impl Wiring for Shape {
    fn name(&self) -> &'static str {
        "Shape"
    }

    fn wire(&self, prefix: &str, model: &mut TypedModel, inputs: &[OutletId]) -> TractResult<TVec<OutletId>> {
        let shape = fact(model, inputs[0])?.shape;
        let rank = shape.len() as i64;
        // Positions beyond the ends are clamped.
        let place = |axis: i64| {
            let from_start = if axis < 0 { axis.saturating_add(rank) } else { axis };
            from_start.clamp(0, rank) as usize
        };
        let start = place(self.start);
        let end = self.end.map_or(shape.len(), place).max(start);
        Ok(tvec![model.add_const(prefix, tensor1(&shape[start..end]))?])
    }
}

/// `Size`: the number of elements, which may be free, as a constant.
pub(in crate::ops) fn size(_: &BuildContext, _: &OnnxNode) -> Built {
    Ok(wired(Size))
}

#[derive(Debug)]
struct Size;

impl Wiring for Size {
    fn name(&self) -> &'static str {
        "Size"
    }

    fn wire(&self, prefix: &str, model: &mut TypedModel, inputs: &[OutletId]) -> TractResult<TVec<OutletId>> {
        let size: TDim = fact(model, inputs[0])?.shape.iter().product();
        Ok(tvec![model.add_const(prefix, tensor0(size))?])
    }
}

/// `ReduceSum` and the like of floats.
pub(in crate::ops) fn reduce(_: &BuildContext, node: &OnnxNode) -> Built {
    let attributes = Attributes(node);
    let reducer = match node.op_type.as_str() {
        "ReduceL1" => Reducer::L1,
        "ReduceL2" => Reducer::L2,
        "ReduceLogSum" => Reducer::LogSum,
        "ReduceMean" => Reducer::Mean,
        "ReduceProd" => Reducer::Prod,
        "ReduceSum" => Reducer::Sum,
        "ReduceSumSquare" => Reducer::SumSquare,
        other => bail!("{other} is not a reduction of tract's"),
    };
    Ok(wired(Reduce {
        axes: List::of(attributes, "axes"),
        keeps_axes: attributes.int("keepdims", 1) != 0,
        does_nothing_without: attributes.int("noop_with_empty_axes", 0) != 0,
        reducer,
    }))
}

/// `ArgMax` or `ArgMin`.
pub(in crate::ops) fn argument(_: &BuildContext, node: &OnnxNode) -> Built {
    let attributes = Attributes(node);
    let takes_last = attributes.int("select_last_index", 0) != 0;
    Ok(wired(Reduce {
        axes: List::Given(Some(vec![attributes.int("axis", 0)])),
        keeps_axes: attributes.int("keepdims", 1) != 0,
        does_nothing_without: false,
        reducer: match node.op_type.as_str() {
            "ArgMax" => Reducer::ArgMax(takes_last),
            _ => Reducer::ArgMin(takes_last),
        },
    }))
}

#[derive(Debug)]
struct Reduce {
    axes: List,
    keeps_axes: bool,
    /// Without axes nothing is reduced, instead of everything.
    does_nothing_without: bool,
    reducer: Reducer,
}

impl Reduce {
    /// The axes that are reduced, in order.
    fn axes(&self, inputs: &[Fact]) -> TractResult<Vec<usize>> {
        let rank = inputs[0].rank();
        let given = self.axes.get(inputs)?.unwrap_or_default();
        let mut axes = match given.is_empty() && !self.does_nothing_without {
            true => (0..rank).collect(),
            false => places(&given, rank)?,
        };
        axes.dedup();
        Ok(axes)
    }
}

impl Wiring for Reduce {
    fn name(&self) -> &'static str {
        "Reduce"
    }

    fn needs_values(&self) -> &[usize] {
        self.axes.needs()
    }

    /// tract would divide by the number of elements to find out.
    fn told(&self, inputs: &[Fact]) -> TractResult<Option<Vec<Fact>>> {
        let axes = self.axes(inputs)?;
        let dims = inputs[0].shape.iter().enumerate();
        let dims = dims.filter_map(|(axis, dim)| match (axes.contains(&axis), self.keeps_axes) {
            (false, _) => Some(dim.clone()),
            (true, true) => Some(1.to_dim()),
            (true, false) => None,
        });
        let datum_type = match self.reducer {
            Reducer::ArgMax(_) | Reducer::ArgMin(_) => DatumType::I64,
            _ => inputs[0].datum_type,
        };
        Ok(Some(vec![Fact::new(datum_type, dims)]))
    }

    fn wire(&self, prefix: &str, model: &mut TypedModel, inputs: &[OutletId]) -> TractResult<TVec<OutletId>> {
        let axes = self.axes(&facts(model, inputs)?)?;
        // Sizes are numbers to a reduction.
        let is_size = model.outlet_fact(inputs[0])?.datum_type == DatumType::TDim;
        let mut wire = inputs[0];
        if is_size {
            wire = model.wire_node(format!("{prefix}.numbers"), cast(DatumType::I64), &[wire])?[0];
        }
        wire = self
            .reducer
            .wire(axes.iter().copied().collect(), prefix, model, wire)?;
        if is_size && !matches!(self.reducer, Reducer::ArgMax(_) | Reducer::ArgMin(_)) {
            wire = sizes(prefix, model, wire)?;
        }
        match self.keeps_axes {
            true => Ok(tvec![wire]),
            false => remove(prefix, model, wire, &axes),
        }
    }
}

/// `Concat`.
pub(in crate::ops) fn concat(_: &BuildContext, node: &OnnxNode) -> Built {
    let axis = Attributes(node).int("axis", 0);
    Ok(expand(Rewired(
        Rewired(array::Concat::new(axis), Alike),
        OfTexts::Concat { axis },
    )))
}

/// `Dropout` outside of training: nothing is dropped.
pub(in crate::ops) fn dropout(_: &BuildContext, node: &OnnxNode) -> Built {
    Ok(wired(Dropout {
        count: node.output.len(),
    }))
}

#[derive(Debug)]
struct Dropout {
    count: usize,
}

impl Wiring for Dropout {
    fn name(&self) -> &'static str {
        "Dropout"
    }

    fn output_count(&self) -> usize {
        self.count
    }

    fn wire(&self, prefix: &str, model: &mut TypedModel, inputs: &[OutletId]) -> TractResult<TVec<OutletId>> {
        let mut outputs = tvec![inputs[0]];
        if self.count > 1 {
            outputs.extend(model.wire_node(format!("{prefix}.mask"), typed(Kept), inputs)?);
        }
        Ok(outputs)
    }
}

/// The mask of a `Dropout` that keeps everything.
#[derive(Debug)]
struct Kept;

impl Kernel for Kept {
    fn name(&self) -> &'static str {
        "Kept"
    }

    fn outputs(&self, inputs: &[Fact]) -> TractResult<Vec<Fact>> {
        Ok(vec![inputs[0].with(DatumType::Bool)])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> TractResult<TVec<Tensor>> {
        Ok(tvec![tensor(inputs[0].shape(), vec![true; inputs[0].len()])?])
    }
}

/// `DepthToSpace`.
pub(in crate::ops) fn depth_to_space(_: &BuildContext, node: &OnnxNode) -> Built {
    let attributes = Attributes(node);
    let order = match attributes.text("mode", "DCR") {
        "DCR" => Order::BlocksFirst,
        "CRD" => Order::DepthFirst,
        other => bail!(Refusal(format!("has the mode {}", tensor_core::Quoted(other)))),
    };
    Ok(wired(Blocks {
        size: block_size(attributes)?,
        order,
    }))
}

/// `SpaceToDepth`.
pub(in crate::ops) fn space_to_depth(_: &BuildContext, node: &OnnxNode) -> Built {
    Ok(wired(Blocks {
        size: block_size(Attributes(node))?,
        order: Order::ToDepth,
    }))
}

fn block_size(attributes: Attributes<'_>) -> TractResult<usize> {
    let size = usize::try_from(attributes.int("blocksize", 0)).ok();
    let size = size.filter(|size| (1..=1 << 16).contains(size));
    Ok(size.ok_or_else(|| Refusal("needs a 'blocksize' from 1 to 65536".to_owned()))?)
}

#[derive(Clone, Copy, Debug)]
enum Order {
    /// Channels become blocks; those of a block are side by side.
    DepthFirst,
    /// Channels become blocks; the places in a block stand first.
    BlocksFirst,
    ToDepth,
}

/// Blocks of an image that are channels.
#[derive(Debug)]
struct Blocks {
    size: usize,
    order: Order,
}

impl Wiring for Blocks {
    fn name(&self) -> &'static str {
        match self.order {
            Order::ToDepth => "SpaceToDepth",
            Order::DepthFirst | Order::BlocksFirst => "DepthToSpace",
        }
    }

    fn wire(&self, prefix: &str, model: &mut TypedModel, inputs: &[OutletId]) -> TractResult<TVec<OutletId>> {
        let shape = fact(model, inputs[0])?.shape;
        let [_, channels, height, width] = &shape[..] else {
            bail!(Refusal(format!(
                "has an input of {} dimensions, expected 4",
                shape.len()
            )));
        };
        let size = self.size;
        let block = size.to_dim();
        let parts = |dim: &TDim, count: usize| -> TractResult<TDim> {
            match dim.to_usize() {
                Ok(dim) if dim % count != 0 => bail!(Misfit::Multiple {
                    dim: dim as i64,
                    of: count as i64,
                }),
                Err(_) => bail!(Limit("needs sizes that are known".to_owned())),
                Ok(dim) => Ok((dim / count).to_dim()),
            }
        };
        let ops = match self.order {
            Order::ToDepth => {
                let (rows, columns) = (parts(height, size)?, parts(width, size)?);
                let (high, wide) = (height.clone(), width.clone());
                vec![
                    AxisOp::Reshape(2, tvec![high], tvec![rows, block.clone()]),
                    AxisOp::Reshape(4, tvec![wide], tvec![columns, block.clone()]),
                    // Batch, block's row, block's column, channel, row, column.
                    AxisOp::Move(3, 1),
                    AxisOp::Move(5, 2),
                    AxisOp::Reshape(
                        1,
                        tvec![block.clone(), block, channels.clone()],
                        tvec![channels.clone() * (size * size)],
                    ),
                ]
            }
            Order::BlocksFirst | Order::DepthFirst => {
                let depth = parts(channels, size * size)?;
                let (split, moves) = match self.order {
                    Order::BlocksFirst => (
                        tvec![block.clone(), block.clone(), depth],
                        [AxisOp::Move(2, 5), AxisOp::Move(1, 3)],
                    ),
                    _ => (
                        tvec![depth, block.clone(), block.clone()],
                        [AxisOp::Move(3, 5), AxisOp::Move(2, 3)],
                    ),
                };
                let [first, second] = moves;
                vec![
                    AxisOp::Reshape(1, tvec![channels.clone()], split),
                    first,
                    second,
                    // Batch, channel, row, block's row, column, block's column.
                    AxisOp::Reshape(
                        2,
                        tvec![height.clone(), block.clone(), width.clone(), block],
                        tvec![height.clone() * size, width.clone() * size],
                    ),
                ]
            }
        };
        let mut wire = tvec![inputs[0]];
        for (index, op) in ops.into_iter().enumerate() {
            wire = model.wire_node(format!("{prefix}.{index}"), op, &wire)?;
        }
        Ok(wire)
    }
}
