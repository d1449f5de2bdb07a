//! Windows that move over an image: convolutions and pools.

use tract_hir::{
    infer::rules::*,
    internal::*,
    ops::{
        cnn::{Conv, HirMaxPool, HirSumPool, PaddingSpec, PoolSpec},
        nn::{DataFormat, GlobalAvgPool, GlobalMaxPool},
    },
};

use super::Built;
use crate::{
    building::BuildContext,
    faults::Refusal,
    lowered::OnnxNode,
    ops::{
        attributes::Attributes,
        average_pool,
        kernel::{Fact, Kernel, typed},
        max_pool,
        wiring::{Wiring, wired},
    },
};

/// What nodes with windows have in common.
struct Window {
    kernel: Option<TVec<usize>>,
    strides: Option<TVec<usize>>,
    dilations: Option<TVec<usize>>,
    padding: PaddingSpec,
}

/// Strides and the like beyond this make no sense, and their products stay far from overflowing.
const MAX_NUMBER: usize = 1 << 24;

/// A list of numbers, one for each axis.
fn numbers(attributes: Attributes<'_>, name: &str, least: usize) -> TractResult<Option<TVec<usize>>> {
    if !attributes.has(name) {
        return Ok(None);
    }
    let fits = |&number: &i64| {
        let number = usize::try_from(number).ok();
        number.filter(|number| (least..=MAX_NUMBER).contains(number))
    };
    let numbers: Option<TVec<usize>> = attributes.ints(name).iter().map(fits).collect();
    let numbers = numbers.ok_or_else(|| {
        Refusal(format!(
            "has {name} that are not all from {least} to {MAX_NUMBER}"
        ))
    })?;
    Ok(Some(numbers))
}

impl Window {
    fn of(attributes: Attributes<'_>, is_pool: bool) -> TractResult<Self> {
        let kernel = numbers(attributes, "kernel_shape", 1)?;
        let strides = numbers(attributes, "strides", 1)?;
        let dilations = numbers(attributes, "dilations", 1)?;
        let pads = numbers(attributes, "pads", 0)?;
        let lists = [&kernel, &strides, &dilations];
        let axes = lists.into_iter().flatten().map(|list| list[..].len());
        let axes: Vec<usize> = axes.chain(pads.iter().map(|pads| pads.len() / 2)).collect();
        if axes.iter().any(|&count| count != axes[0]) || pads.as_ref().is_some_and(|pads| pads.len() % 2 != 0)
        {
            bail!(Refusal(
                "has a kernel_shape, strides, dilations and pads for different numbers of axes".to_owned()
            ));
        }
        let around = |before: TVec<usize>, after: TVec<usize>| match is_pool {
            true => PaddingSpec::ExplicitOnnxPool(before, after, attributes.int("ceil_mode", 0) != 0),
            false => PaddingSpec::Explicit(before, after),
        };
        let automatic = attributes.text("auto_pad", "NOTSET");
        if automatic != "NOTSET" && pads.is_some() && !is_pool {
            bail!(Refusal("has both 'auto_pad' and 'pads'".to_owned()));
        }
        let padding = match (automatic, pads, &kernel) {
            ("VALID", _, _) | ("NOTSET", None, None) => PaddingSpec::Valid,
            ("SAME_UPPER", _, _) => PaddingSpec::SameUpper,
            ("SAME_LOWER", _, _) => PaddingSpec::SameLower,
            ("NOTSET", Some(pads), _) => {
                let (before, after) = pads.split_at(pads.len() / 2);
                around(before.into(), after.into())
            }
            ("NOTSET", None, Some(kernel)) => around(tvec![0; kernel.len()], tvec![0; kernel.len()]),
            (other, _, _) => bail!(Refusal(format!(
                "has the auto_pad {}",
                tensor_core::Quoted(other)
            ))),
        };
        Ok(Self {
            kernel,
            strides,
            dilations,
            padding,
        })
    }

    fn convolution(node: &OnnxNode) -> TractResult<Conv> {
        let attributes = Attributes(node);
        let window = Self::of(attributes, false)?;
        Ok(Conv {
            kernel_shape: window.kernel,
            strides: window.strides,
            dilations: window.dilations,
            padding: window.padding,
            group: Some(group(attributes)?),
            ..Conv::default()
        })
    }

    fn pool(node: &OnnxNode) -> TractResult<PoolSpec> {
        let window = Self::of(Attributes(node), true)?;
        let kernel = window
            .kernel
            .ok_or_else(|| Refusal("has no kernel_shape".to_owned()))?;
        // The channels are those of the input.
        let (inputs, outputs) = (0, 0);
        Ok(PoolSpec::new(
            DataFormat::NCHW,
            kernel,
            window.padding,
            window.dilations,
            window.strides,
            inputs,
            outputs,
        ))
    }
}

fn group(attributes: Attributes<'_>) -> TractResult<usize> {
    let group = usize::try_from(attributes.int("group", 1)).ok();
    let group = group.filter(|group| (1..=MAX_NUMBER).contains(group));
    Ok(group.ok_or_else(|| Refusal(format!("needs a 'group' from 1 to {MAX_NUMBER}")))?)
}

/// `Conv`.
pub(in crate::ops) fn convolution(_: &BuildContext, node: &OnnxNode) -> Built {
    let mut op = Window::convolution(node)?;
    op.bias_input = Attributes(node).position(2);
    Ok(expand(op))
}

/// `ConvInteger`.
pub(in crate::ops) fn integer_convolution(_: &BuildContext, node: &OnnxNode) -> Built {
    let attributes = Attributes(node);
    let mut op = Window::convolution(node)?;
    op.x_zero_point_input = attributes.position(2);
    op.k_zero_point_input = attributes.position(3);
    op.override_output_datum_type = Some(DatumType::I32);
    Ok(expand(op))
}

/// `QLinearConv`.
pub(in crate::ops) fn q_linear_convolution(_: &BuildContext, node: &OnnxNode) -> Built {
    let mut op = Window::convolution(node)?;
    op.x_scale_input = Some(1);
    op.x_zero_point_input = Some(2);
    op.k_input = Some(3);
    op.k_scale_input = Some(4);
    op.k_zero_point_input = Some(5);
    op.y_scale_input = Some(6);
    op.y_zero_point_input = Some(7);
    op.bias_input = Attributes(node).position(8);
    Ok(expand(op))
}

/// `AveragePool`.
pub(in crate::ops) fn average_pool(_: &BuildContext, node: &OnnxNode) -> Built {
    let counts_padding = Attributes(node).int("count_include_pad", 0) != 0;
    let pool = HirSumPool::new(Window::pool(node)?, counts_padding, true);
    Ok(expand(Pool::Average(pool)))
}

/// tract computes what follows from constants while a graph is made, and goes through windows element by element, without an end
/// in sight where they are large. So those of constants are ours from the beginning; others are while tract may move axes.
#[derive(Clone, Debug)]
enum Pool {
    Average(HirSumPool),
    Maximum(HirMaxPool),
}

impl Expansion for Pool {
    fn name(&self) -> StaticName {
        match self {
            Self::Average(_) => "AveragePool".into(),
            Self::Maximum(_) => "MaxPool".into(),
        }
    }

    fn rules<'r, 'p: 'r, 's: 'r>(
        &'s self,
        s: &mut Solver<'r>,
        inputs: &'p [TensorProxy],
        outputs: &'p [TensorProxy],
    ) -> InferenceResult {
        match self {
            Self::Average(pool) => pool.rules(s, inputs, outputs),
            Self::Maximum(pool) => pool.rules(s, inputs, outputs),
        }
    }

    fn wire(&self, prefix: &str, model: &mut TypedModel, inputs: &[OutletId]) -> TractResult<TVec<OutletId>> {
        let spec = match self {
            Self::Average(pool) => &pool.pool_spec,
            Self::Maximum(pool) => &pool.pool_spec,
        };
        match (self, constant_pool(spec, model, inputs)?) {
            (Self::Average(pool), Some(spec)) => {
                model.wire_node(prefix, average_pool::op(spec, pool.count_include_pad), inputs)
            }
            (Self::Maximum(pool), Some(spec)) => {
                model.wire_node(prefix, max_pool::op(spec, pool.with_index_outputs), inputs)
            }
            (Self::Average(pool), None) => pool.wire(prefix, model, inputs),
            (Self::Maximum(pool), None) => pool.wire(prefix, model, inputs),
        }
    }
}

/// A pool with the channels of its input, if that is a constant.
fn constant_pool(spec: &PoolSpec, model: &TypedModel, inputs: &[OutletId]) -> TractResult<Option<PoolSpec>> {
    let fact = model.outlet_fact(inputs[0])?;
    // tract takes a value without elements for a constant. Such an image is refused when the model runs.
    if fact.konst.as_ref().is_none_or(|constant| constant.len() == 0) {
        return Ok(None);
    }
    let channels = spec.data_format.shape(&fact.shape)?.c().to_usize()?;
    Ok(Some(PoolSpec {
        input_channels: channels,
        output_channels: channels,
        ..spec.clone()
    }))
}

/// `GlobalAveragePool` or `GlobalMaxPool`.
pub(in crate::ops) fn global_pool(_: &BuildContext, node: &OnnxNode) -> Built {
    Ok(match node.op_type.as_str() {
        "GlobalAveragePool" => expand(GlobalAvgPool),
        _ => expand(GlobalMaxPool),
    })
}

/// `MaxPool`.
pub(in crate::ops) fn max_pool(_: &BuildContext, node: &OnnxNode) -> Built {
    let pool = Window::pool(node)?;
    if node.output.len() < 2 {
        return Ok(expand(Pool::Maximum(HirMaxPool::new(pool, None))));
    }
    Ok(wired(MaxPoolWithPlaces {
        pool: Pool::Maximum(HirMaxPool::new(pool, Some(DatumType::I64))),
        by_columns: Attributes(node).int("storage_order", 0) != 0,
    }))
}

#[derive(Debug)]
struct MaxPoolWithPlaces {
    pool: Pool,
    by_columns: bool,
}

impl Wiring for MaxPoolWithPlaces {
    fn name(&self) -> &'static str {
        "MaxPool"
    }

    fn output_count(&self) -> usize {
        2
    }

    fn wire(&self, prefix: &str, model: &mut TypedModel, inputs: &[OutletId]) -> TractResult<TVec<OutletId>> {
        let pooled = self.pool.wire(prefix, model, inputs)?;
        let places = typed(Places {
            by_columns: self.by_columns,
        });
        let places = model.wire_node(format!("{prefix}.places"), places, &[pooled[1], inputs[0]])?;
        Ok(tvec![pooled[0], places[0]])
    }
}

/// From places within each image, row by row, to ONNX's: within all images, or column by column in each.
#[derive(Debug)]
struct Places {
    by_columns: bool,
}

impl Kernel for Places {
    fn name(&self) -> &'static str {
        "Places"
    }

    fn outputs(&self, inputs: &[Fact]) -> TractResult<Vec<Fact>> {
        let [places, image] = inputs else {
            bail!("expected 2 inputs, found {}", inputs.len());
        };
        ensure!(
            places.rank() == image.rank() && image.rank() > 2,
            "expected images"
        );
        Ok(vec![places.with(DatumType::I64)])
    }

    fn run(&self, inputs: &[std::sync::Arc<Tensor>]) -> TractResult<TVec<Tensor>> {
        let (shape, sizes) = (inputs[0].shape(), &inputs[1].shape()[2..]);
        let image: usize = sizes.iter().product();
        let mut places = crate::ops::elements::elements::<i64>(&inputs[0])?.to_vec();
        let windows: usize = shape[2..].iter().product();
        for (number, places) in places.chunks_exact_mut(windows.max(1)).enumerate() {
            for place in places {
                let mut within = usize::try_from(*place).unwrap_or(0);
                if self.by_columns {
                    within = max_pool::by_columns(within, sizes);
                }
                *place = (number * image + within) as i64;
            }
        }
        Ok(tvec![crate::ops::elements::tensor(shape, places)?])
    }
}
