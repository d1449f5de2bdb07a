//! The operator `RoiAlign`, which resamples regions of a feature map to one size.

use std::sync::Arc;

use onnx_tensor::prelude::*;

use onnx_tensor::{
    cancelling::Pace,
    faults::{BadInput, Unsupported},
    node::Node,
    operator::Compute,
};
use onnx_tensor::{
    elements::{elements, tensor},
    node::Attributes,
    operator::{Fact, Kernel, kernel},
};

/// Maximum number of samples of all regions. The number of samples per bin may depend on the corners of a
/// region, which a request chooses.
const MAX_SAMPLES: f64 = (1u64 << 30) as f64;

/// Maximum number of samples of one region along one axis.
const MAX_PLACES: f64 = (1u64 << 20) as f64;

/// Builds the operator `RoiAlign`.
pub fn roi_align(node: &Node) -> Result<Box<dyn Compute>> {
    let attributes = Attributes(node);
    let size = |name: &str| -> Result<usize> {
        let size = usize::try_from(attributes.int(name, 1)).ok();
        let size = size.filter(|size| (1..1 << 16).contains(size));
        size.with_context(|| format!("{name} must be a positive number"))
    };
    let is_old = node.opset < 16;
    let transformation = attributes.text("coordinate_transformation_mode", "half_pixel");
    Ok(kernel(RoiAlign {
        height: size("output_height")?,
        width: size("output_width")?,
        samples: attributes.int("sampling_ratio", 0),
        scale: attributes.float("spatial_scale", 1.0),
        is_shifted: match transformation {
            _ if is_old => false,
            "half_pixel" => true,
            "output_half_pixel" => false,
            other => bail!(Unsupported::Anywhere(format!(
                "the coordinate_transformation_mode is {other:?}, expected half_pixel or output_half_pixel"
            ))),
        },
        is_max: match attributes.text("mode", "avg") {
            "avg" => false,
            "max" => true,
            other => bail!(Unsupported::Anywhere(format!(
                "the attribute 'mode' is {other:?}, expected avg or max"
            ))),
        },
    }))
}

#[derive(Debug)]
struct RoiAlign {
    height: usize,
    width: usize,
    /// `sampling_ratio`: samples per bin and axis; 0 for one per covered element.
    samples: i64,
    scale: f32,
    /// `half_pixel`: whether coordinates are shifted by half an element.
    is_shifted: bool,
    is_max: bool,
}

impl Kernel for RoiAlign {
    fn outputs(&self, inputs: &[Fact]) -> Result<Vec<Fact>> {
        let [image, regions, indices] = inputs else {
            bail!("expected 3 inputs, found {}", inputs.len());
        };
        if let Some(other) = [image, regions]
            .into_iter()
            .find(|fact| fact.element_type != ElementType::F32)
        {
            bail!(Unsupported::but_for_fp64(
                other.element_type,
                "is supported for FP32 only"
            ));
        }
        ensure!(
            image.rank() == 4 && regions.rank() == 2 && indices.rank() == 1,
            "expected images, a row for each region and a list of which image each is in"
        );
        Ok(vec![Fact::new(
            ElementType::F32,
            [
                regions.shape[0],
                image.shape[1],
                self.height.to_dim(),
                self.width.to_dim(),
            ],
        )])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> Result<ShortVec<Tensor>> {
        let &[count, channels, height, width] = inputs[0].shape() else {
            bail!("expected images");
        };
        let images = elements::<f32>(&inputs[0])?;
        let (regions, rest) = elements::<f32>(&inputs[1])?.as_chunks::<4>();
        let indices = inputs[2].cast_to::<i64>()?;
        let indices = elements::<i64>(&indices)?;
        if indices.len() != regions.len() || !rest.is_empty() || inputs[1].shape()[1] != 4 {
            bail!(BadInput(format!(
                "rois has {} regions of {} numbers for {} batch_indices, expected as many of 4 numbers",
                inputs[1].shape()[0],
                inputs[1].shape()[1],
                indices.len()
            )));
        }
        let mut made = Vec::with_capacity(regions.len() * channels * self.height * self.width);
        let mut budget = MAX_SAMPLES;
        let mut pace = Pace::default();
        for (region, &index) in regions.iter().zip(indices) {
            let index = usize::try_from(index).ok().filter(|&index| index < count);
            let Some(index) = index else {
                bail!(BadInput(format!("a batch index is outside of {count} images")));
            };
            let [x, y, x_end, y_end] = region.map(|corner| corner * self.scale - self.shift());
            let columns = self.places(x, x_end, self.width, width);
            let lines = self.places(y, y_end, self.height, height);
            // The sample lists of both axes also count, since each is built even if the other one is empty.
            budget -= lines.total() * columns.total() * channels as f64 + lines.total() + columns.total();
            let most = lines.total().max(columns.total());
            if budget < 0.0 || budget.is_nan() || most > MAX_PLACES {
                bail!(BadInput("rois covers more samples than the limit".to_owned()));
            }
            let (lines, columns) = (lines.weights(&mut pace)?, columns.weights(&mut pace)?);
            let plane = height * width;
            for image in images[index * channels * plane..][..channels * plane].chunks_exact(plane.max(1)) {
                for lines in &lines {
                    for columns in &columns {
                        made.push(self.place((image, width), lines, columns, &mut pace)?);
                    }
                }
            }
        }
        let shape = [regions.len(), channels, self.height, self.width];
        Ok(smallvec![tensor(&shape, made)?])
    }
}

/// Two neighboring elements and their weights; `None` outside the image.
type Sample = Option<[(usize, f32); 2]>;

/// Sample positions of a region along one axis.
struct Places {
    start: f32,
    /// Size of a bin, in elements of the image.
    step: f32,
    count: usize,
    /// Number of samples per bin.
    samples: f32,
    /// Size of the image along the axis.
    size: usize,
}

impl Places {
    fn total(&self) -> f64 {
        self.count as f64 * f64::from(self.samples)
    }

    fn weights(&self, pace: &mut Pace) -> Result<Vec<Vec<Sample>>> {
        let place = |place: usize| -> Result<Vec<Sample>> {
            let samples = (0..self.samples as usize).map(move |sample| {
                let at =
                    self.start + place as f32 * self.step + (sample as f32 + 0.5) * self.step / self.samples;
                if at < -1.0 || at > self.size as f32 || self.size == 0 {
                    return None;
                }
                let at = at.max(0.0);
                let last = self.size - 1;
                let low = at as usize;
                Some(match low >= last {
                    true => [(last, 1.0), (last, 0.0)],
                    false => [(low, 1.0 - (at - low as f32)), (low + 1, at - low as f32)],
                })
            });
            pace.spend(1)?;
            pace.collect(samples)
        };
        (0..self.count).map(place).collect()
    }
}

impl RoiAlign {
    fn shift(&self) -> f32 {
        if self.is_shifted { 0.5 } else { 0.0 }
    }

    fn places(&self, start: f32, end: f32, count: usize, size: usize) -> Places {
        let length = end - start;
        let length = if self.is_shifted { length } else { length.max(1.0) };
        let step = length / count as f32;
        let samples = match self.samples {
            0 => step.ceil(),
            samples => samples as f32,
        };
        Places {
            start,
            step,
            count,
            samples: samples.max(0.0),
            size,
        }
    }

    /// Returns the mean or maximum of a bin's samples.
    fn place(
        &self,
        (image, width): (&[f32], usize),
        lines: &[Sample],
        columns: &[Sample],
        pace: &mut Pace,
    ) -> Result<f32> {
        let (mut sum, mut greatest) = (0.0, None::<f32>);
        // A bin without samples also counts as a step, since it is written.
        pace.spend(1)?;
        for line in lines {
            pace.spend(columns.len() as u64)?;
            for column in columns {
                let (Some(line), Some(column)) = (line, column) else {
                    greatest = Some(greatest.unwrap_or(0.0).max(0.0));
                    continue;
                };
                for (line, line_weight) in line {
                    for (column, weight) in column {
                        let value = line_weight * weight * image[line * width + column];
                        sum += value;
                        greatest = Some(greatest.map_or(value, |greatest| greatest.max(value)));
                    }
                }
            }
        }
        Ok(match self.is_max {
            true => greatest.unwrap_or(0.0),
            false => sum / (lines.len() * columns.len()).max(1) as f32,
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use onnx_tensor::{cancelling::Cancelled, testing::while_cancelled};

    #[test]
    fn regions_without_an_inside_end_with_their_request() {
        let align = RoiAlign {
            height: 1,
            width: 1,
            samples: 0,
            scale: 1.0,
            is_shifted: true,
            is_max: false,
        };
        let numbers = |shape: &[usize], numbers: Vec<f32>| tensor(shape, numbers).unwrap().into_arc();
        // The region has a million rows of samples, and no columns.
        let inputs = [
            numbers(&[1, 1, 1, 1], vec![1.0]),
            numbers(&[1, 4], vec![0.0, 0.0, -1.0, 1e6]),
            tensor(&[1], vec![0i64]).unwrap().into_arc(),
        ];
        assert!(align.run(&inputs).is_ok());
        let ended = while_cancelled(|| align.run(&inputs));
        assert!(ended.unwrap_err().is::<Cancelled>());
    }
}
