//! The lines of an image under a line of windows, with their padding.

use crate::conv::geometry::Geometry;

/// Memory for lines that are partly outside of an image.
#[derive(Default)]
pub(super) struct ImageLines {
    padded: Vec<f32>,
    zeros: Vec<f32>,
}

impl ImageLines {
    /// Returns the elements under the windows of `count` output pixels of a line, from `pixel` on: a slice for each
    /// channel and each line of a window, of an image with the channels first. Elements outside of the image are 0.
    pub(super) fn under<'s>(
        &'s mut self,
        geometry: &Geometry,
        images: &'s [f32],
        pixel: usize,
        count: usize,
    ) -> Vec<&'s [f32]> {
        let ([height, width], [_, taps]) = (geometry.input, geometry.kernel);
        let (stride, before) = (geometry.strides[1], geometry.before[1]);
        let [batch, y, x] = geometry.place(pixel);
        let line = (count - 1) * stride + taps;
        let padding = before.saturating_sub(x * stride).min(line);
        let start = (x * stride).saturating_sub(before).min(width);
        let count = (line - padding).min(width - start);
        let planes = (0..geometry.channels).map(|channel| (batch * geometry.channels + channel) * height);
        // The elements of each line that are within the image.
        let lines = planes.flat_map(|plane| {
            let rows = geometry.taken(0, y);
            rows.map(move |row| {
                let row = row.filter(|&row| row < height)?;
                images[(plane + row) * width + start..].get(..count)
            })
        });
        if count == line {
            self.zeros.resize(line.max(self.zeros.len()), 0.0);
            return lines
                .map(|inside| inside.unwrap_or(&self.zeros[..line]))
                .collect();
        }
        self.padded.clear();
        for inside in lines {
            let end = self.padded.len() + line;
            if let Some(inside) = inside {
                self.padded.resize(self.padded.len() + padding, 0.0);
                self.padded.extend_from_slice(inside);
            }
            self.padded.resize(end, 0.0);
        }
        self.padded.chunks_exact(line).collect()
    }
}
