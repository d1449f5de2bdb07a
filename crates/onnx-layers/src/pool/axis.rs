//! The windows of a pool or a convolution along one axis.

/// The windows along one axis.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Axis {
    /// Size of the image along the axis.
    pub(crate) size: usize,
    /// Number of windows along the axis.
    pub(crate) count: usize,
    /// Number of elements in a window.
    pub(crate) kernel: usize,
    pub(crate) stride: usize,
    pub(crate) dilation: usize,
    /// Number of elements by which the first window starts before the image.
    pub(crate) pad: usize,
}

/// The windows `first..end` for which one element of the window is inside the image. For window `first`, the
/// image index of the element is `start`.
pub(crate) struct Span {
    pub(crate) first: usize,
    pub(crate) end: usize,
    pub(crate) start: usize,
}

impl Axis {
    /// An axis of size 1 with one window.
    pub(crate) const ONE: Self = Self {
        size: 1,
        count: 1,
        kernel: 1,
        stride: 1,
        dilation: 1,
        pad: 0,
    };

    /// Returns the image indices that window `at` covers.
    pub(crate) fn taken(&self, at: usize) -> impl ExactSizeIterator<Item = usize> {
        let Self {
            size, dilation, pad, ..
        } = *self;
        let start = at * self.stride;
        let first = pad.saturating_sub(start).div_ceil(dilation);
        let end = (size + pad)
            .saturating_sub(start)
            .div_ceil(dilation)
            .min(self.kernel);
        (first..end.max(first)).map(move |element| start + element * dilation - pad)
    }

    /// Returns, for each window element, the windows in which it is inside the image.
    pub(crate) fn spans(&self) -> Vec<Span> {
        let furthest = self.count.saturating_sub(1) * self.stride;
        let first = self.pad.saturating_sub(furthest).div_ceil(self.dilation);
        let end = (self.size + self.pad).div_ceil(self.dilation).min(self.kernel);
        let spans = (first..end).map(|element| {
            let ahead = element * self.dilation;
            let first = self.pad.saturating_sub(ahead).div_ceil(self.stride);
            let end = (self.size + self.pad - ahead)
                .div_ceil(self.stride)
                .min(self.count);
            Span {
                first,
                end,
                start: (first * self.stride + ahead).saturating_sub(self.pad),
            }
        });
        spans.filter(|span| span.first < span.end).collect()
    }

    /// Returns the number of windows divided by the size of the image: the factor by which folding enlarges
    /// the axis.
    pub(crate) fn growth(&self) -> f64 {
        self.count as f64 / self.size as f64
    }

    /// Returns whether there is one window, which covers the image.
    pub(crate) fn is_covered(&self) -> bool {
        self.count == 1 && self.pad == 0 && self.dilation == 1 && self.kernel >= self.size
    }

    /// Returns whether each window is exactly one element.
    pub(crate) fn is_identity(&self) -> bool {
        self.kernel == 1 && self.stride == 1 && self.pad == 0 && self.count == self.size
    }
}
