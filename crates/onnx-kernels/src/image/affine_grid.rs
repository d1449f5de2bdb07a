//! The operator `AffineGrid`, which computes the sampling coordinates of an affine transformation for
//! `GridSample`.

use std::sync::Arc;

use onnx_tensor::prelude::*;

use onnx_tensor::{
    cancelling::Pace,
    faults::{BadInput, Limit, Unsupported, ensure_input},
    node::Node,
    operator::Compute,
};
use onnx_tensor::{
    elements::{elements, tensor},
    node::Attributes,
    operator::{Fact, Kernel, kernel},
};

/// Builds the operator `AffineGrid`.
pub fn affine_grid(node: &Node) -> Result<Box<dyn Compute>> {
    Ok(kernel(AffineGrid {
        has_corners: Attributes(node).int("align_corners", 0) != 0,
    }))
}

#[derive(Debug)]
struct AffineGrid {
    /// `align_corners`: -1 and 1 are the centers of the outermost elements, instead of the edges of the
    /// image.
    has_corners: bool,
}

impl AffineGrid {
    /// Returns the coordinates of the `count` elements of an axis, from -1 to 1.
    fn places(&self, count: usize) -> Result<Vec<f32>> {
        let most = match self.has_corners {
            true => 1.0,
            false => (count as f32 - 1.0) / count as f32,
        };
        match count {
            1 => Ok(vec![0.0]),
            _ => {
                let place = |at: usize| (2.0 * at as f32 / (count as f32 - 1.0) - 1.0) * most;
                Pace::default().indices(count, place)
            }
        }
    }
}

impl Kernel for AffineGrid {
    fn outputs(&self, inputs: &[Fact]) -> Result<Vec<Fact>> {
        let [maps, size] = inputs else {
            bail!("expected 2 inputs, found {}", inputs.len());
        };
        if maps.element_type != ElementType::F32 {
            bail!(Unsupported::but_for_fp64(
                maps.element_type,
                "is supported for FP32 only"
            ));
        }
        let size = match (size.dims(), &*size.shape) {
            (Some(size), _) => size,
            (None, [count]) => {
                let count = count.to_usize();
                let count =
                    count.ok_or_else(|| Limit("needs a size of a known number of dimensions".to_owned()))?;
                (0..count).map(|_| Dim::unknown()).collect()
            }
            (None, shape) => bail!("a size of {} dimensions, expected a list", shape.len()),
        };
        ensure!(
            matches!(size.len(), 4 | 5) && maps.rank() == 3,
            "a size of {} dimensions",
            size.len()
        );
        // For an axis of size 1, ONNX's reference returns the first edge, and ONNX Runtime the last one, so
        // such sizes are refused.
        if self.has_corners && size[2..].iter().any(Dim::is_one) {
            bail!(Limit(
                "a size of 1 with 'align_corners' is not supported".to_owned()
            ));
        }
        let mut shape: ShortVec<Dim> = smallvec![size[0]];
        shape.extend(size[2..].iter().copied());
        shape.push((size.len() - 2).to_dim());
        Ok(vec![Fact::new(ElementType::F32, shape)])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> Result<ShortVec<Tensor>> {
        let size = inputs[1].cast_to::<i64>()?;
        let size: Vec<usize> = elements::<i64>(&size)?
            .iter()
            .map(|&size| {
                usize::try_from(size)
                    .map_err(|_| BadInput(format!("the size has {size}, expected 0 or more")).into())
            })
            .collect::<Result<_>>()?;
        ensure_input!(
            matches!(size.len(), 4 | 5),
            "the size has {} dimensions, expected 4 or 5",
            size.len()
        );
        let rank = size.len() - 2;
        ensure_input!(
            !self.has_corners || !size[2..].contains(&1),
            "a size of 1 with 'align_corners' is not supported"
        );
        ensure_input!(
            inputs[0].shape() == [size[0], rank, rank + 1],
            "theta has the shape {:?}, which does not fit a size of {size:?}",
            inputs[0].shape()
        );
        let mut shape = vec![size[0]];
        shape.extend(&size[2..]);
        shape.push(rank);
        let axes = size[2..].iter().map(|&count| self.places(count));
        let axes = axes.collect::<Result<Vec<Vec<f32>>>>()?;
        let mut pace = Pace::default();
        let count: usize = size[2..].iter().product();
        let mut made: Vec<f32> = Vec::with_capacity(shape.iter().product());
        for map in elements::<f32>(&inputs[0])?.chunks_exact(rank * (rank + 1)) {
            for at in 0..count {
                pace.spend(4)?;
                // Coordinates are in the order x, y, z, which is the reverse order of the axes.
                let mut rest = at;
                let place: ShortVec<f32> = axes
                    .iter()
                    .rev()
                    .map(|axis| {
                        let place = axis[rest % axis.len()];
                        rest /= axis.len();
                        place
                    })
                    .collect();
                made.extend(map.chunks_exact(rank + 1).map(|row| {
                    let sum: f32 = row.iter().zip(&place).map(|(a, x)| a * x).sum();
                    sum + row[rank]
                }));
            }
        }
        Ok(smallvec![tensor(&shape, made)?])
    }
}
