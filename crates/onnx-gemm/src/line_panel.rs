//! Panels of columns that are pixels of lines, and their contiguous copies.

use std::ops::Range;

use crate::pack::aligned;

/// The column count of the widest panel: with AVX-512, tiles of four vectors take the last columns, so that the
/// weights are not read once more for some columns that are left.
pub(crate) const WIDEST: usize = 64;

/// Columns that are multiplied by all rows before the next ones.
pub(crate) struct Panel {
    pub(crate) segments: Segments,
    /// The number of columns, padded to whole vectors.
    pub(crate) width: usize,
    /// The index in the values of the first column, if the panel is not copied.
    pub(crate) start: usize,
    pub(crate) is_copied: bool,
}

/// A contiguous, aligned copy of a panel.
pub(crate) struct CopiedPanel {
    numbers: Vec<f32>,
    /// The index of the first number.
    start: usize,
    /// The index of each term's columns.
    offsets: Vec<usize>,
}

impl CopiedPanel {
    /// Reserves memory for `terms` terms and `widest` columns.
    pub(crate) fn new(terms: usize, widest: usize) -> Self {
        let (numbers, start) = aligned(terms * widest + OVERSHOOT);
        Self {
            numbers,
            start,
            offsets: Vec::with_capacity(terms),
        }
    }

    /// Copies the columns of the terms at `offsets`. Returns them, and the index of each term's columns.
    pub(crate) fn fill(
        &mut self,
        arch: pulp::Arch,
        panel: &Panel,
        values: &[f32],
        offsets: &[usize],
    ) -> (&[f32], &[usize]) {
        self.offsets.clear();
        self.offsets
            .extend((0..offsets.len()).map(|term| term * panel.width));
        let copy = &mut self.numbers[self.start..];
        panel.segments.copy(arch, values, offsets, copy, panel.width);
        (copy, &self.offsets)
    }
}

/// The number of elements that copying a panel may write after its end.
const OVERSHOOT: usize = 16;

/// A range of columns, which are pixels of one or more lines.
pub(crate) struct Segments {
    pub(crate) columns: Range<usize>,
    pub(crate) width: usize,
    pub(crate) pitch: usize,
}

impl Segments {
    /// Copies the columns of all terms to `panel`, whose rows are `panel_width` elements apart. Elements
    /// between the last column and the end of a row are unspecified.
    fn copy(
        &self,
        arch: pulp::Arch,
        values: &[f32],
        offsets: &[usize],
        panel: &mut [f32],
        panel_width: usize,
    ) {
        arch.dispatch(CopySegments {
            segments: self,
            values,
            offsets,
            panel,
            panel_width,
        });
    }

    /// Calls `found` for each run of columns of one line, with its index in the lines, its index in the
    /// panel, and its length.
    #[inline(always)]
    fn each(&self, mut found: impl FnMut(usize, usize, usize)) {
        let mut column = self.columns.start;
        let (mut y, mut x) = (column / self.width, column % self.width);
        while column < self.columns.end {
            let count = (self.width - x).min(self.columns.end - column);
            found(y * self.pitch + x, column - self.columns.start, count);
            column += count;
            (y, x) = (y + 1, 0);
        }
    }
}

struct CopySegments<'c> {
    segments: &'c Segments,
    values: &'c [f32],
    offsets: &'c [usize],
    panel: &'c mut [f32],
    panel_width: usize,
}

impl pulp::WithSimd for CopySegments<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, _: S) {
        match S::F32_LANES {
            16.. => self.copy::<16>(),
            _ => self.copy::<8>(),
        }
    }
}

impl CopySegments<'_> {
    /// Copies `LANES` elements at a time. Those past the end of a segment are overwritten by the next
    /// segment, or by the next row.
    #[inline(always)]
    fn copy<const LANES: usize>(self) {
        let mut moves = [[0; 2]; 2 * WIDEST];
        let (mut count, mut reach) = (0, 0);
        self.segments.each(|from, at, length| {
            for first in (0..length).step_by(LANES) {
                moves[count] = [from + first, at + first];
                // If the pitch is less than the width, an earlier line can extend farther than the last one.
                reach = reach.max(from + first + LANES);
                count += 1;
            }
        });
        let moves = &moves[..count];
        for (term, &offset) in self.offsets.iter().enumerate() {
            let to = &mut self.panel[term * self.panel_width..][..self.panel_width + OVERSHOOT];
            let Some(from) = self.values[offset..].get(..reach) else {
                let from = &self.values[offset..];
                self.segments.each(|first, at, length| {
                    to[at..][..length].copy_from_slice(&from[first..][..length]);
                });
                continue;
            };
            for &[first, at] in moves {
                to[at..][..LANES].copy_from_slice(&from[first..][..LANES]);
            }
        }
    }
}
