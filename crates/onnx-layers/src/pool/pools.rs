//! The operators `AveragePool` and `MaxPool`.

use std::{ops::Range, sync::Arc};

use onnx_tensor::prelude::*;

use crate::{
    conv::window::Window,
    pool::{
        average_pool,
        axis::Axis,
        max_pool::{self, by_columns},
    },
};
use onnx_tensor::{
    cancelling::Pace,
    elements::tensor,
    node::Attributes,
    node::Node,
    operator::{Compute, Fact},
};

/// Builds the operator `AveragePool`.
pub fn averages(node: &Node) -> Result<Box<dyn Compute>> {
    Ok(Box::new(Pool::average(Attributes(node))?))
}

/// Builds the operator `ChannelsLastAveragePool`: `AveragePool` for images whose channels come last.
pub fn channels_last_averages(node: &Node) -> Result<Box<dyn Compute>> {
    let pool = Pool::average(Attributes(node))?;
    Ok(Box::new(Pool {
        are_channels_last: true,
        ..pool
    }))
}

/// Builds the operator `ChannelsLastMaxPool`: `MaxPool` for images whose channels come last, without the
/// indices of the maxima.
pub fn channels_last_maxima(node: &Node) -> Result<Box<dyn Compute>> {
    let pool = Pool::maximum(Attributes(node))?;
    Ok(Box::new(Pool {
        are_channels_last: true,
        ..pool
    }))
}

/// Builds the operator `MaxPool`.
pub fn maxima(node: &Node) -> Result<Box<dyn Compute>> {
    Ok(Box::new(Pool::maximum(Attributes(node))?))
}

/// A pool over all axes of images but the batch and the channels.
#[derive(Debug)]
pub(crate) struct Pool {
    window: Window,
    function: Function,
    /// Whether the channels are the last axis, not the second.
    are_channels_last: bool,
}

#[derive(Clone, Copy, Debug)]
enum Function {
    Average {
        /// Whether averages count the padding, as zeros (`count_include_pad`).
        counts_padding: bool,
    },
    Maximum {
        /// Whether the indices of the maxima are an output.
        wants_places: bool,
        /// Whether indices are column-major (`storage_order`).
        by_columns: bool,
    },
}

impl Pool {
    pub(crate) fn average(attributes: Attributes<'_>) -> Result<Self> {
        Ok(Self {
            window: Window::of_pool(attributes)?,
            function: Function::Average {
                counts_padding: attributes.int("count_include_pad", 0) != 0,
            },
            are_channels_last: false,
        })
    }

    pub(crate) fn maximum(attributes: Attributes<'_>) -> Result<Self> {
        Ok(Self {
            window: Window::of_pool(attributes)?,
            function: Function::Maximum {
                wants_places: attributes.0.output.len() > 1,
                by_columns: attributes.int("storage_order", 0) != 0,
            },
            are_channels_last: false,
        })
    }

    /// Returns the range of the pooled axes of an image of `rank` dimensions.
    fn pooled(&self, rank: usize) -> Range<usize> {
        match self.are_channels_last {
            true => 1..rank.saturating_sub(1),
            false => 2..rank,
        }
    }
}

impl Compute for Pool {
    fn outputs(&self, inputs: &[Fact]) -> Result<Option<Vec<Fact>>> {
        let [image] = inputs else {
            bail!("expected 1 input, found {}", inputs.len());
        };
        self.window.expect_axes(image.rank().saturating_sub(2))?;
        let (mut shape, pooled) = (image.shape.clone(), self.pooled(image.rank()));
        let dims = self
            .window
            .dims(&image.shape[pooled.clone()], &self.window.kernel)?;
        shape[pooled].copy_from_slice(&dims);
        let result = Fact::new(image.element_type, shape);
        Ok(Some(match self.function {
            Function::Maximum {
                wants_places: true, ..
            } => {
                let places = result.with(ElementType::I64);
                vec![result, places]
            }
            _ => vec![result],
        }))
    }

    fn run(&self, inputs: &mut ShortVec<Arc<Tensor>>) -> Result<ShortVec<Arc<Tensor>>> {
        let image = &inputs[0];
        let (mut shape, pooled) = (ShortVec::from(image.shape()), self.pooled(image.rank()));
        let sizes = &image.shape()[pooled.clone()];
        let axes = self.window.axes(sizes, &self.window.kernel)?;
        shape[pooled.clone()]
            .iter_mut()
            .zip(&axes)
            .for_each(|(dim, axis)| *dim = axis.count);
        let depth = image.shape()[pooled.end..].iter().product();
        Ok(match self.function {
            Function::Average { counts_padding } => {
                let counted = |index: usize, axis: &Axis, at: usize| match counts_padding {
                    true => self.window.counted(index, axis, at),
                    false => axis.taken(at).len(),
                };
                smallvec![Arc::new(average_pool::averages(
                    image, &axes, depth, &shape, counted
                )?)]
            }
            Function::Maximum {
                wants_places,
                by_columns,
            } => {
                let (greatest, places) = max_pool::pooled(image, &axes, depth, &shape, wants_places)?;
                let mut made = smallvec![Arc::new(greatest)];
                if let Some(mut places) = places {
                    count_all(&mut places, &shape[pooled], sizes, by_columns)?;
                    made.push(Arc::new(tensor(&shape, places)?));
                }
                made
            }
        })
    }
}

/// Converts per-image indices to ONNX's flat indices into the whole batch; column-major if `are_columns`.
fn count_all(places: &mut [i64], windows: &[usize], sizes: &[usize], are_columns: bool) -> Result<()> {
    let (windows, image): (usize, usize) = (windows.iter().product(), sizes.iter().product());
    let mut pace = Pace::default();
    for (number, places) in places.chunks_exact_mut(windows.max(1)).enumerate() {
        pace.spend(places.len() as u64)?;
        for place in places {
            let mut within = usize::try_from(*place).unwrap_or(0);
            if are_columns {
                within = by_columns(within, sizes);
            }
            *place = (number * image + within) as i64;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use onnx_tensor::testing::node;
    use onnx_tensor::{
        elements::elements,
        faults::{Misfit, Refusal},
    };

    fn run(pool: &Pool, image: Tensor) -> Result<ShortVec<Arc<Tensor>>> {
        let mut inputs = smallvec![Arc::new(image)];
        let facts = pool.outputs(&Fact::of_values(&inputs))?.unwrap();
        let made = pool.run(&mut inputs)?;
        assert_eq!(made.len(), facts.len());
        for (made, fact) in made.iter().zip(facts) {
            let shape: Vec<Dim> = made.shape().iter().map(ToDim::to_dim).collect();
            assert_eq!(
                (made.element_type(), &shape[..]),
                (fact.element_type, &fact.shape[..])
            );
        }
        Ok(made)
    }

    /// Reference implementation for images with one axis longer than 1: returns the image indices that each
    /// window covers.
    fn windows(
        image: &[f64],
        [kernel, stride, dilation, before]: [usize; 4],
        count: usize,
    ) -> Vec<Vec<usize>> {
        let taken = |at: usize| {
            let places = (0..kernel).map(move |element| at * stride + element * dilation);
            let inside = places.filter_map(|place| place.checked_sub(before));
            inside.filter(|&place| place < image.len()).collect()
        };
        (0..count).map(taken).collect()
    }

    #[test]
    fn pools_along_one_two_and_three_axes_are_those_of_plain_loops() {
        let numbers: Vec<f64> = (0..11).map(|at| (at * 67 % 23) as f64 - 9.0).collect();
        for axes in 1..4 {
            for axis in 0..axes {
                for [kernel, stride, dilation, pad] in
                    [[3, 1, 1, 0], [2, 2, 1, 1], [3, 3, 2, 1], [4, 2, 1, 2]]
                {
                    // Returns a list with `number` for that axis, and `other` for all other axes.
                    let along = |number: i64, other: i64| {
                        let list = (0..axes).map(|at| if at == axis { number } else { other });
                        list.collect::<Vec<i64>>()
                    };
                    let lists = [
                        ("kernel_shape", along(kernel, 1)),
                        ("strides", along(stride, 1)),
                        ("dilations", along(dilation, 1)),
                        ("pads", [along(pad, 0), along(pad, 0)].concat()),
                    ];
                    let mut shape = vec![1, 1];
                    shape.extend(along(11, 1).iter().map(|&dim| dim as usize));
                    let image = || Tensor::from_shape(&shape, &numbers).unwrap();
                    let numbers_of = [kernel, stride, dilation, pad].map(|number| number as usize);

                    let average = node("AveragePool", &lists, &[("count_include_pad", 0)], 1);
                    let found = run(&Pool::average(Attributes(&average)).unwrap(), image()).unwrap();
                    let windows = windows(&numbers, numbers_of, found[0].len());
                    let expected = windows
                        .iter()
                        .map(|taken| taken.iter().map(|&at| numbers[at]).sum::<f64>() / taken.len() as f64);
                    let pairs = elements::<f64>(&found[0]).unwrap().iter().zip(expected);
                    pairs.for_each(|(found, expected)| assert!((found - expected).abs() < 1e-12));

                    let maximum = node("MaxPool", &lists, &[], 2);
                    let found = run(&Pool::maximum(Attributes(&maximum)).unwrap(), image()).unwrap();
                    let expected = windows.iter().map(|taken| {
                        let greatest = taken.iter().map(|&at| numbers[at]).fold(f64::MIN, f64::max);
                        taken.iter().copied().find(|&at| numbers[at] == greatest).unwrap()
                    });
                    let expected: Vec<usize> = expected.collect();
                    let places = elements::<i64>(&found[1]).unwrap();
                    let greatest = elements::<f64>(&found[0]).unwrap();
                    for ((&place, &number), &expected) in places.iter().zip(greatest).zip(&expected) {
                        assert_eq!((place, number), (expected as i64, numbers[expected]));
                    }
                }
            }
        }
    }

    #[test]
    fn bytes_have_maxima_and_indices_by_columns() {
        let lists = [("kernel_shape", vec![2, 2])];
        let node = node("MaxPool", &lists, &[("storage_order", 1)], 2);
        let pool = Pool::maximum(Attributes(&node)).unwrap();
        let image =
            Tensor::from_shape(&[1, 2, 2, 3], &[1i8, -2, 9, 4, 5, 6, -1, -2, -3, -4, -5, -6]).unwrap();
        let found = run(&pool, image).unwrap();
        assert_eq!(elements::<i8>(&found[0]).unwrap(), [5, 9, -1, -2]);
        assert_eq!(elements::<i64>(&found[1]).unwrap(), [3, 4, 6, 8]);
    }

    #[test]
    fn images_that_do_not_fit_are_refused_and_empty_ones_give_nothing() {
        let lists = [("kernel_shape", vec![3, 3])];
        let node = node("AveragePool", &lists, &[], 1);
        let pool = Pool::average(Attributes(&node)).unwrap();
        let run = |shape: &[usize]| run(&pool, Tensor::zero::<f32>(shape).unwrap());
        assert!(run(&[1, 1, 3, 2]).unwrap_err().is::<Misfit>());
        assert!(run(&[1, 1, 3]).unwrap_err().is::<Refusal>());
        assert!(run(&[1, 1, 3, 3, 3]).unwrap_err().is::<Refusal>());
        assert!(run(&[3]).unwrap_err().is::<Refusal>());
        assert_eq!(run(&[0, 1, 3, 4]).unwrap()[0].shape(), [0, 1, 1, 2]);
    }
}
