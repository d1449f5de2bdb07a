//! The operators `DepthToSpace` and `SpaceToDepth`.

use std::sync::Arc;

use onnx_tensor::prelude::*;

use crate::shape::moves::reordered;
use onnx_tensor::{
    faults::{Refusal, ensure_input},
    node::Attributes,
    node::Node,
    operator::{Compute, Fact},
};

/// Builds the operator `DepthToSpace` or `SpaceToDepth`.
pub fn blocks(node: &Node) -> Result<Box<dyn Compute>> {
    Ok(Box::new(Blocks::of(node)?))
}

/// The parameters of `DepthToSpace` or `SpaceToDepth`.
#[derive(Debug)]
pub(crate) struct Blocks {
    size: usize,
    order: Order,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// Depth to space, in column-row-depth order (`CRD`).
    DepthFirst,
    /// Depth to space, in depth-column-row order (`DCR`).
    BlocksFirst,
    ToDepth,
}

impl Blocks {
    pub(crate) fn of(node: &Node) -> Result<Self> {
        let attributes = Attributes(node);
        let size = usize::try_from(attributes.int("blocksize", 0)).ok();
        let size = size.filter(|size| (1..=1 << 16).contains(size));
        Ok(Self {
            size: size.ok_or_else(|| Refusal("needs a 'blocksize' from 1 to 65536".to_owned()))?,
            order: match (node.op_type.as_str(), attributes.text("mode", "DCR")) {
                ("SpaceToDepth", _) => Order::ToDepth,
                (_, "DCR") => Order::BlocksFirst,
                (_, "CRD") => Order::DepthFirst,
                (_, other) => bail!(Refusal(format!(
                    "has the mode {}",
                    tensor_core::QuotedName(other)
                ))),
            },
        })
    }
}

/// Divides a dimension into `count` parts.
fn part(dim: &Dim, count: usize) -> Result<Dim> {
    if let Some(dim) = dim.to_i64() {
        ensure_input!(
            dim % count as i64 == 0,
            "a dimension of {dim} is cut into blocks of {count}, expected a multiple"
        );
    }
    Ok(*dim / count)
}

impl Compute for Blocks {
    fn outputs(&self, inputs: &[Fact]) -> Result<Option<Vec<Fact>>> {
        let input = inputs.first().context("expected an input")?;
        let [batch, channels, height, width] = &input.shape[..] else {
            bail!(Refusal(format!(
                "has an input of {} dimensions, expected 4",
                input.rank()
            )));
        };
        let size = self.size;
        let shape = match self.order {
            Order::ToDepth => [
                *batch,
                *channels * (size * size),
                part(height, size)?,
                part(width, size)?,
            ],
            _ => [
                *batch,
                part(channels, size * size)?,
                *height * size,
                *width * size,
            ],
        };
        Ok(Some(vec![Fact::new(input.element_type, shape)]))
    }

    fn run(&self, inputs: &mut ShortVec<Arc<Tensor>>) -> Result<ShortVec<Arc<Tensor>>> {
        let [batch, channels, height, width] = *inputs[0].shape() else {
            bail!("expected images");
        };
        let size = self.size;
        let depth = channels / (size * size);
        let (split, order) = match self.order {
            Order::BlocksFirst => ([batch, size, size, depth, height, width], [0, 3, 4, 1, 5, 2]),
            Order::DepthFirst => ([batch, depth, size, size, height, width], [0, 1, 4, 2, 5, 3]),
            Order::ToDepth => {
                let (rows, columns) = (height / size, width / size);
                ([batch, channels, rows, size, columns, size], [0, 3, 5, 1, 2, 4])
            }
        };
        let shape = match self.order {
            Order::ToDepth => [batch, channels * size * size, height / size, width / size],
            _ => [batch, depth, height * size, width * size],
        };
        let moved = reordered(&inputs[0], &split, &order)?;
        Ok(smallvec![Arc::new(moved.into_shape(&shape)?)])
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::shape::texts::tests::run;
    use onnx_tensor::faults::BadInput;

    fn image(shape: &[usize]) -> Tensor {
        let count: usize = shape.iter().product();
        let numbers: Vec<i16> = (0..count as i16).collect();
        Tensor::vector(&numbers).into_shape(shape).unwrap()
    }

    fn of(order: Order, input: Tensor) -> Result<Tensor> {
        Ok(run(&Blocks { size: 2, order }, &[input])?.remove(0))
    }

    #[test]
    fn channels_become_blocks_and_blocks_channels() {
        let channels = image(&[1, 8, 1, 1]);
        let found = of(Order::BlocksFirst, channels.clone()).unwrap();
        let expected = Tensor::vector(&[0i16, 2, 4, 6, 1, 3, 5, 7]);
        assert_eq!(found, expected.into_shape(&[1, 2, 2, 2]).unwrap());
        let found = of(Order::DepthFirst, channels.clone()).unwrap();
        let expected = Tensor::vector(&[0i16, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(found, expected.into_shape(&[1, 2, 2, 2]).unwrap());
        let wide = of(Order::BlocksFirst, image(&[2, 4, 2, 3])).unwrap();
        assert_eq!(of(Order::ToDepth, wide).unwrap(), image(&[2, 4, 2, 3]));
        let nothing = image(&[0, 4, 2, 2]);
        assert_eq!(of(Order::ToDepth, nothing).unwrap().shape(), [0, 16, 1, 1]);
    }

    #[test]
    fn images_that_are_no_blocks_are_refused() {
        for (order, shape) in [
            (Order::BlocksFirst, &[1, 6, 1, 1][..]),
            (Order::ToDepth, &[1, 1, 3, 2]),
            (Order::ToDepth, &[1, 1, 2, 3]),
        ] {
            assert!(of(order, image(shape)).unwrap_err().is::<BadInput>(), "{shape:?}");
        }
        assert!(of(Order::ToDepth, image(&[2, 2])).unwrap_err().is::<Refusal>());
    }
}
