//! Memory layout of an 8-bit image for convolution without im2col.
//!
//! The padded image is copied once, tile by tile, into planes of [`Quad`]s: one plane per offset within a
//! stride and per four channels. A depthwise convolution has no four channels to sum, so its quads hold four
//! columns of a window instead.

use std::ops::Range;

use onnx_gemm::{Quad, Windows};
use onnx_tensor::prelude::*;

use crate::conv::geometry::Geometry;
use onnx_tensor::cancelling::Pace;

/// The number of terms in a quad.
const TERMS: usize = 4;

/// The number of quads of a tile's planes, so that they stay in the L2 cache.
const TILE: usize = if cfg!(test) { 1 << 6 } else { 1 << 17 };

/// The number of positions of a tile, so that the results of a few channels stay in the L1 cache.
const POSITIONS: usize = if cfg!(test) { 1 << 5 } else { 1 << 12 };

/// Minimum width of a tile, in addition to four times the distance from the first to the last column of a window.
const NARROWEST: usize = if cfg!(test) { 3 } else { 64 };

/// What the four terms of a quad are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Terms {
    /// Four channels of one pixel.
    Channels,
    /// Four adjacent columns of a window.
    Columns,
}

impl Terms {
    /// Returns the terms with fewer quads per window; columns for a single channel.
    fn of(channels: usize, [_, width]: [usize; 2]) -> Self {
        let of_channels = channels.div_ceil(TERMS).saturating_mul(width);
        match channels == 1 || channels.saturating_mul(width.div_ceil(TERMS)) < of_channels {
            true => Self::Columns,
            false => Self::Channels,
        }
    }

    /// Returns the number of planes per offset within a stride.
    fn units(self, channels: usize) -> usize {
        match self {
            Self::Channels => channels.div_ceil(TERMS),
            Self::Columns => channels,
        }
    }

    /// Returns the number of quads per line of a window.
    fn steps(self, width: usize) -> usize {
        match self {
            Self::Channels => width,
            Self::Columns => width.div_ceil(TERMS),
        }
    }

    /// Returns the column of a window where a quad starts.
    fn column(self, step: usize) -> usize {
        match self {
            Self::Channels => step,
            Self::Columns => step * TERMS,
        }
    }
}

/// Returns the number of quads of a filter.
pub(super) fn steps(channels: usize, kernel: [usize; 2]) -> usize {
    let terms = Terms::of(channels, kernel);
    let of_lines = kernel[0].saturating_mul(terms.steps(kernel[1]));
    terms.units(channels).saturating_mul(of_lines)
}

/// Returns filters as quads, in the order of [`ByteLayout`]'s offsets.
pub(super) fn quads(weights: &[i16], channels: usize, [height, width]: [usize; 2]) -> Vec<[i16; TERMS]> {
    let terms = Terms::of(channels, [height, width]);
    let window = height * width;
    let mut quads =
        Vec::with_capacity(weights.len() / (channels * window) * steps(channels, [height, width]));
    for filter in weights.chunks_exact(channels * window) {
        for unit in 0..terms.units(channels) {
            for line in 0..height {
                for step in 0..terms.steps(width) {
                    quads.push(std::array::from_fn(|term| {
                        let (channel, column) = match terms {
                            Terms::Channels => (unit * TERMS + term, step),
                            Terms::Columns => (unit, step * TERMS + term),
                        };
                        match channel < channels && column < width {
                            true => filter[channel * window + line * width + column],
                            false => 0,
                        }
                    }));
                }
            }
        }
    }
    quads
}

/// Memory layout of the image for one tile of the result.
#[derive(Debug)]
pub(super) struct ByteLayout {
    terms: Terms,
    /// The number of channels of the image whose planes are in memory at once: all, or a part of those of a
    /// depthwise convolution.
    pub(super) channels: usize,
    /// The distance of the planes of two filters; 0 if all filters read the same planes.
    pub(super) row_stride: usize,
    /// Maximum height and width of a tile of the result.
    pub(super) tile: [usize; 2],
    /// Height and width of a plane.
    plane: [usize; 2],
    /// The number of pixels that the quads of a line come from.
    padded: usize,
    /// The distance of two terms in a line of pixels.
    shift: usize,
    is_strided: bool,
    /// Offsets within a stride that any quad has.
    phases: [Vec<usize>; 2],
    /// For each quad of a filter, its distance from the position.
    pub(super) offsets: Vec<usize>,
}

impl Geometry {
    /// Returns the layout for parts of at most `lines` lines; `None` if it would take far more memory than
    /// the image and the result, or far more products than the result has. In a depthwise convolution, each channel of the image has one filter.
    pub(super) fn byte_layout(&self, lines: usize, is_depthwise: bool) -> Option<ByteLayout> {
        let channels = if is_depthwise { 1 } else { self.channels };
        let terms = Terms::of(channels, self.kernel);
        let counts = [self.kernel[0], terms.steps(self.kernel[1])];
        // Returns how far a quad of a window is from the window's first element.
        let ahead = |axis: usize, step: usize| {
            let step = if axis == 1 { terms.column(step) } else { step };
            step.checked_mul(self.dilations[axis])
        };
        let is_strided = self.strides != [1, 1];
        let reach = |axis: usize| match is_strided {
            true => Some(ahead(axis, counts[axis] - 1)? / self.strides[axis]),
            // The planes have the width of the padded image, so that all lines are copied at once.
            false => (self.kernel[axis] - 1).checked_mul(self.dilations[axis]),
        };
        let reach = [reach(0)?, reach(1)?];
        let phases = |axis: usize| {
            let steps = (0..counts[axis]).filter_map(|step| ahead(axis, step));
            let mut phases: Vec<usize> = steps.map(|ahead| ahead % self.strides[axis]).collect();
            phases.sort_unstable();
            phases.dedup();
            phases
        };
        let phases = [phases(0), phases(1)];
        let count = phases[0].len() * phases[1].len();
        let planes = count * terms.units(channels);
        let size = |[height, width]: [usize; 2], count: usize| height.checked_mul(width)?.checked_mul(count);
        let whole = [
            self.output[0].checked_add(reach[0])?,
            self.output[1].checked_add(reach[1])?,
        ];
        // A line of pixels is copied with its padding.
        let shift = match terms {
            Terms::Channels => 0,
            Terms::Columns => self.dilations[1],
        };
        let padded = |columns: usize| {
            let last = (columns - 1).checked_mul(self.strides[1])?;
            let term = (TERMS - 1).checked_mul(shift)?;
            last.checked_add(phases[1].last()?.checked_add(term)?)?
                .checked_add(1)
        };
        let all = size(whole, planes.checked_mul(self.channels / channels)?)?;
        let all = all.checked_add(padded(whole[1])?)?;
        let given = size(self.input, self.channels)?;
        let made = size(self.output, self.rows.max(self.channels))?;
        if all > given.checked_add(made)?.checked_mul(4)?.checked_add(1 << 16)? {
            return None;
        }
        // Positions between two lines are computed as well.
        if self.output[0] > 1 && whole[1] > self.output[1].saturating_mul(2).saturating_add(8) {
            return None;
        }
        let width = self.output[1].min(
            (TILE / planes)
                .saturating_sub(reach[1])
                .max(4 * reach[1] + NARROWEST),
        );
        let line = (width + reach[1]) * planes;
        let height = (TILE / line)
            .saturating_sub(reach[0])
            .min(POSITIONS / (width + reach[1]));
        let tile = [height.max(4 * reach[0] + 4).min(lines), width];
        let plane = [tile[0] + reach[0], tile[1] + reach[1]];
        let size = plane[0] * plane[1];
        let channels_at_once = match is_depthwise {
            // A multiple of all block heights of the filters.
            true => (TILE / (size * planes) / 8 * 8).max(8).min(self.channels),
            false => self.channels,
        };
        let mut offsets = Vec::with_capacity(steps(channels, self.kernel));
        for unit in 0..terms.units(channels) {
            for y in 0..counts[0] {
                for x in 0..counts[1] {
                    let (y, x) = (ahead(0, y)?, ahead(1, x)?);
                    let row = phases[0].binary_search(&(y % self.strides[0])).ok()?;
                    let column = phases[1].binary_search(&(x % self.strides[1])).ok()?;
                    let index = unit * count + row * phases[1].len() + column;
                    let place = y / self.strides[0] * plane[1] + x / self.strides[1];
                    offsets.push(index * size + place);
                }
            }
        }
        Some(ByteLayout {
            terms,
            channels: channels_at_once,
            row_stride: if is_depthwise { size * count } else { 0 },
            tile,
            plane,
            padded: padded(plane[1])?,
            shift,
            is_strided,
            phases,
            offsets,
        })
    }
}

/// Buffers for the planes of a tile.
pub(super) struct Planes {
    /// The quads as bytes, in memory that the values of a run reuse.
    quads: Option<Tensor>,
    /// Lines of pixels and their padding.
    pixels: Vec<u8>,
    /// The first line and column of the tile whose padding is in `pixels`, and its number of lines.
    padded: Option<([usize; 2], usize)>,
}

impl Planes {
    pub(super) fn new(layout: &ByteLayout) -> Result<Self> {
        let bytes = size_of::<Quad>() * layout.quads();
        // Similar sizes share memory.
        let bytes = bytes.checked_next_power_of_two().unwrap_or(bytes);
        Ok(Self {
            quads: Some(Tensor::unset_of(ElementType::U8, &[bytes])?),
            pixels: Vec::new(),
            padded: None,
        })
    }

    pub(super) fn quads(&self) -> &[Quad] {
        let bytes = self.quads.as_ref().and_then(|quads| quads.as_slice::<u8>().ok());
        bytes.unwrap_or_default().as_chunks().0
    }
}

impl Drop for Planes {
    fn drop(&mut self) {
        if let Some(quads) = self.quads.take() {
            quads.into_arc().release();
        }
    }
}

/// An 8-bit image whose planes are copied.
#[derive(Clone, Copy)]
pub(super) struct ByteImage<'i> {
    /// The pixels of one group.
    pub(super) pixels: &'i [u8],
    /// The bits that differ between pixels and their unsigned form.
    pub(super) flip: u8,
    /// The zero point in the unsigned form, which pads the image.
    pub(super) zero_point: u8,
}

impl ByteLayout {
    /// Returns the distance between the beginnings of two lines.
    pub(super) fn pitch(&self) -> usize {
        self.plane[1]
    }

    /// Returns the number of lines of pixels from which the four terms of a quad come.
    fn sources(&self) -> usize {
        if self.shift == 0 { TERMS } else { 1 }
    }

    /// Returns the number of quads in the planes of a tile.
    pub(super) fn quads(&self) -> usize {
        let planes = self.terms.units(self.channels) * self.phases[0].len() * self.phases[1].len();
        planes * self.plane[0] * self.plane[1] + Windows::slack()
    }

    /// Returns the bytes of memory of the planes of a tile, and of its pixels.
    pub(super) fn scratch_bytes(&self) -> u64 {
        let plane = self.plane[0] * self.plane[1] + (TERMS - 1) * self.shift;
        let bytes = TERMS.saturating_mul(self.padded.max(plane));
        let quads = size_of::<Quad>() * self.quads();
        let quads = quads.checked_next_power_of_two().unwrap_or(quads);
        quads.saturating_add(bytes) as u64
    }

    /// Writes the planes of `channels` for the tile that starts at `first` and has `lines` lines.
    ///
    /// # Errors
    /// Fails if the request is cancelled.
    pub(super) fn fill(
        &self,
        geometry: &Geometry,
        image: ByteImage<'_>,
        channels: Range<usize>,
        (first, lines): ([usize; 2], usize),
        planes: &mut Planes,
        pace: &mut Pace,
    ) -> Result<()> {
        let lines = self.plane[0] - (self.tile[0] - lines);
        let count = self.phases[0].len() * self.phases[1].len() * self.plane[0] * self.plane[1];
        let [height, width] = geometry.input;
        let Planes {
            quads,
            pixels,
            padded,
        } = planes;
        if *padded != Some((first, lines)) {
            // All units have the same padding, so that only pixels inside of the image are copied again.
            let length = match self.is_strided {
                true => self.padded,
                false => lines * self.plane[1] + (TERMS - 1) * self.shift,
            };
            pixels.clear();
            pixels.resize(TERMS * length, image.zero_point ^ image.flip);
            *padded = Some((first, lines));
        }
        let to = quads
            .as_mut()
            .context("planes have memory until they are dropped")?;
        let units = to.as_slice_mut::<u8>()?.as_chunks_mut().0.chunks_exact_mut(count);
        let (channel, end) = (channels.start, channels.end);
        for (unit, to) in (0..self.terms.units(end - channel)).zip(units) {
            pace.spend(1 + to.len() as u64)?;
            let channels = std::array::from_fn(|term| {
                let channel = match self.terms {
                    // The filters are 0 for channels that do not exist.
                    Terms::Channels if channel + unit * TERMS + term < end => channel + unit * TERMS + term,
                    Terms::Channels => channel + unit * TERMS,
                    Terms::Columns => channel + unit,
                };
                &image.pixels[channel * height * width..][..height * width]
            });
            pulp::Arch::new().dispatch(Unit {
                layout: self,
                geometry,
                image,
                channels,
                first,
                lines,
                pixels,
                to,
            });
        }
        Ok(())
    }
}

/// The planes for four channels, or for one.
struct Unit<'u> {
    layout: &'u ByteLayout,
    geometry: &'u Geometry,
    image: ByteImage<'u>,
    /// The channel that each of the four terms comes from.
    channels: [&'u [u8]; TERMS],
    /// The first line and column of the tile.
    first: [usize; 2],
    /// The number of lines of each plane.
    lines: usize,
    /// Four buffers for pixels, which contain the padding.
    pixels: &'u mut [u8],
    to: &'u mut [Quad],
}

impl pulp::WithSimd for Unit<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, _: S) {
        match self.layout.is_strided {
            true => self.write_strided(),
            false => self.write_at_once(),
        }
    }
}

impl Unit<'_> {
    /// Writes the only plane of a convolution without strides.
    #[inline(always)]
    fn write_at_once(self) {
        let (layout, geometry, channels, lines) = (self.layout, self.geometry, self.channels, self.lines);
        let (pitch, [height, width]) = (layout.plane[1], geometry.input);
        let to = &mut self.to[..lines * pitch];
        let is_whole = geometry.before == [0, 0]
            && pitch == width
            && self.first[1] == 0
            && self.first[0] + lines <= height;
        if is_whole && layout.shift == 0 {
            let sources = channels.map(|channel| &channel[self.first[0] * width..][..lines * width]);
            return interleave(to, sources, self.image.flip);
        }
        let length = self.pixels.len() / TERMS;
        let buffers = self.pixels.chunks_exact_mut(length);
        let inside = Inside::new(geometry, self.first[1], pitch);
        for (channel, buffer) in channels.iter().take(layout.sources()).zip(buffers) {
            for (line, buffer) in buffer.chunks_exact_mut(pitch).enumerate() {
                inside.copy(channel, self.first[0] + line, buffer);
            }
        }
        let pixels = &self.pixels;
        let sources: [&[u8]; TERMS] = std::array::from_fn(|term| match layout.shift {
            0 => &pixels[term * length..][..lines * pitch],
            shift => &pixels[term * shift..][..lines * pitch],
        });
        interleave(to, sources, self.image.flip);
    }

    #[inline(always)]
    fn write_strided(self) {
        let (layout, geometry, flip) = (self.layout, self.geometry, self.image.flip);
        let (size, pitch, stride) = (
            layout.plane[0] * layout.plane[1],
            layout.plane[1],
            geometry.strides[1],
        );
        let [rows, columns] = &layout.phases;
        let inside = Inside::new(geometry, self.first[1] * stride, layout.padded);
        for (row, planes) in rows.iter().zip(self.to.chunks_exact_mut(columns.len() * size)) {
            for line in 0..self.lines {
                let from = (self.first[0] + line) * geometry.strides[0] + row;
                let buffers = self.pixels.chunks_exact_mut(layout.padded);
                let mut is_inside = true;
                for (channel, buffer) in self.channels.iter().take(layout.sources()).zip(buffers) {
                    is_inside &= inside.copy(channel, from, buffer);
                }
                for (column, plane) in columns.iter().zip(planes.chunks_exact_mut(size)) {
                    let to = &mut plane[line * pitch..][..pitch];
                    if !is_inside {
                        to.fill([self.image.zero_point; TERMS]);
                        continue;
                    }
                    let sources: [&[u8]; TERMS] = std::array::from_fn(|term| {
                        let start = match layout.shift {
                            0 => term * layout.padded + column,
                            shift => term * shift + column,
                        };
                        &self.pixels[start..][..(pitch - 1) * stride + 1]
                    });
                    match stride {
                        1 => interleave(to, sources, flip),
                        2 => interleave_every_second(to, sources, flip),
                        stride => {
                            for (index, to) in to.iter_mut().enumerate() {
                                *to = sources.map(|source| source[index * stride] ^ flip);
                            }
                        }
                    }
                }
            }
        }
    }
}

/// The part of a line of the padded image that is inside of the image.
struct Inside<'g> {
    geometry: &'g Geometry,
    /// Where the part begins in the line's buffer, and in the line.
    start: usize,
    from: usize,
    count: usize,
}

impl<'g> Inside<'g> {
    /// Returns the part for buffers of `length` pixels from `column` of the padded image on.
    fn new(geometry: &'g Geometry, column: usize, length: usize) -> Self {
        let (before, width) = (geometry.before[1], geometry.input[1]);
        let start = before.saturating_sub(column).min(length);
        let from = (column + start).saturating_sub(before).min(width);
        Self {
            geometry,
            start,
            from,
            count: (length - start).min(width - from),
        }
    }

    /// Copies the part of a line of the padded image. Returns false if the line is outside of the image.
    #[inline(always)]
    fn copy(&self, channel: &[u8], line: usize, to: &mut [u8]) -> bool {
        let [height, width] = self.geometry.input;
        let line = line.checked_sub(self.geometry.before[0]);
        let Some(line) = line.filter(|&line| line < height) else {
            return false;
        };
        let from = &channel[line * width + self.from..][..self.count];
        copy_short(from, &mut to[self.start..][..self.count]);
        true
    }
}

/// Copies a slice. Short ones are copied without a call.
#[inline(always)]
pub(super) fn copy_short<T: Copy>(from: &[T], to: &mut [T]) {
    match (from.len(), to.len()) {
        (8..=16, 8..=16) => copy_ends::<T, 8>(from, to),
        (4..8, 4..8) => copy_ends::<T, 4>(from, to),
        _ => to.copy_from_slice(from),
    }
}

/// Copies a slice of `COUNT` to twice as many elements as two arrays, which may overlap.
#[inline(always)]
fn copy_ends<T: Copy, const COUNT: usize>(from: &[T], to: &mut [T]) {
    assert!(
        from.len() == to.len(),
        "slices of {} and {} elements",
        from.len(),
        to.len()
    );
    if let (Some(from), Some(to)) = (from.first_chunk::<COUNT>(), to.first_chunk_mut()) {
        *to = *from;
    }
    if let (Some(from), Some(to)) = (from.last_chunk::<COUNT>(), to.last_chunk_mut()) {
        *to = *from;
    }
}

/// Writes quads of elements of the four sources.
#[inline(always)]
fn interleave(to: &mut [Quad], [a, b, c, d]: [&[u8]; TERMS], flip: u8) {
    let (ab, cd) = (a.iter().zip(b), c.iter().zip(d));
    for (to, ((a, b), (c, d))) in to.iter_mut().zip(ab.zip(cd)) {
        let [a, b, c, d] = [*a, *b, *c, *d].map(|term| u32::from(term ^ flip));
        *to = (a | b << 8 | c << 16 | d << 24).to_le_bytes();
    }
}

/// Writes quads of every second element of the four sources.
#[inline(always)]
fn interleave_every_second(to: &mut [Quad], sources: [&[u8]; TERMS], flip: u8) {
    let [a, b, c, d] = sources.map(|source| source.as_chunks::<2>().0);
    let (ab, cd) = (a.iter().zip(b), c.iter().zip(d));
    for (to, ((a, b), (c, d))) in to.iter_mut().zip(ab.zip(cd)) {
        let [a, b, c, d] = [a[0], b[0], c[0], d[0]].map(|term| u32::from(term ^ flip));
        *to = (a | b << 8 | c << 16 | d << 24).to_le_bytes();
    }
    if let Some(to) = to.last_mut() {
        *to = sources.map(|source| source.last().map_or(0, |pixel| pixel ^ flip));
    }
}
