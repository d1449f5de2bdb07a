//! Operators for Fourier transforms, windows and mel filters.

pub(crate) mod dft;
pub(crate) mod fourier;
pub(crate) mod mel;
pub(crate) mod stft;

pub use dft::dft;
pub use mel::{weights, window};
pub use stft::stft;
