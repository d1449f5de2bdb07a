//! A depthwise convolution as the first factor of the product of its pixels.

use std::ops::Range;

use onnx_gemm::ChannelFilter;
use onnx_tensor::{cancelling::Pace, prelude::*};

use crate::conv::{geometry::Geometry, pixel_products::Convolution, pixel_segments::Image};

/// The result of a depthwise convolution, whose pixels a convolution of single pixels computes when it needs them.
pub(super) struct Filtered<'i> {
    pub(super) convolution: Convolution<'i>,
    pub(super) filter: &'i ChannelFilter,
    pub(super) images: &'i [f32],
}

impl Image for Filtered<'_> {
    fn segments<'s>(
        &'s self,
        geometry: &Geometry,
        pixels: Range<usize>,
        starts: &mut Vec<usize>,
        copies: &'s mut Vec<f32>,
        pace: &mut Pace,
    ) -> Result<[&'s [f32]; 2]> {
        let channels = geometry.channels;
        starts.clear();
        starts.extend((0..pixels.len()).map(|pixel| pixel * channels));
        copies.resize(pixels.len() * channels, 0.0);
        self.convolution
            .filter(self.filter, self.images, pixels.start, copies, pace)?;
        Ok([copies, &[]])
    }

    fn taps(&self, geometry: &Geometry) -> [usize; 2] {
        [1, geometry.channels]
    }

    fn whole(&self) -> Result<Option<Tensor>> {
        self.convolution.filtered(self.filter, self.images).map(Some)
    }

    /// Whole lines, or equal parts of a line: short parts do not fill tiles.
    fn together(&self, geometry: &Geometry, most: usize) -> usize {
        match geometry.output[1] {
            width if width <= most => most / width * width,
            width => width.div_ceil(width.div_ceil(most)),
        }
    }
}
