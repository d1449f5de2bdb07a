//! The sizes of a convolution in one or two dimensions.

/// Sizes, strides, dilations and padding of a convolution.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    pub(crate) batch: usize,
    pub(crate) groups: usize,
    /// Input channels of one group.
    pub(crate) channels: usize,
    /// Output channels of one group.
    pub(crate) rows: usize,
    /// Height and width of the image.
    pub(crate) input: [usize; 2],
    pub(crate) output: [usize; 2],
    pub(crate) kernel: [usize; 2],
    pub(crate) strides: [usize; 2],
    pub(crate) dilations: [usize; 2],
    /// Padding above and on the left. Rows below the image and columns on its right also count as padding.
    pub(crate) before: [usize; 2],
}

impl Geometry {
    /// Returns the number of terms of each sum: the channels of a group times the size of the kernel.
    pub(crate) fn depth(&self) -> usize {
        self.channels * self.kernel[0] * self.kernel[1]
    }

    /// Returns the number of elements of one group of an image.
    pub(crate) fn image(&self) -> usize {
        self.channels * self.input[0] * self.input[1]
    }

    /// Returns the number of elements of one output channel.
    pub(crate) fn positions(&self) -> usize {
        self.output[0] * self.output[1]
    }
}
