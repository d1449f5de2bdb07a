//! Products of floats with 8-bit weights. The floats are quantized with one scale, the products are exact,
//! and the result is scaled once, as in ONNX Runtime.

use std::sync::Arc;

use onnx_gemm::PackedIntegers;
use onnx_tensor::prelude::*;

use crate::quant::quantize;
use onnx_tensor::elements::elements;
use onnx_tensor::{
    cancelling::{PART, Pace},
    faults::Limit,
};

/// Maximum depth of a product: 32-bit sums of more terms could overflow.
const MAX_DEPTH: usize = 1 << 15;

/// The weight matrix of one direction of a recurrent layer.
#[derive(Debug)]
pub(crate) struct IntegerFactors {
    /// The weights with their zero points subtracted.
    values: PackedIntegers,
    /// One scale for all columns, or one for each column.
    scales: Vec<f32>,
}

impl IntegerFactors {
    /// Packs the `depth` x `columns` matrices of a weight tensor, one per direction of the layer.
    pub(crate) fn of_directions(
        weights: &Tensor,
        scales: &Tensor,
        zero_points: Option<&Arc<Tensor>>,
    ) -> Result<Vec<Self>> {
        let [directions, depth, columns] = *weights.shape() else {
            bail!("expected weights of three dimensions");
        };
        if depth > MAX_DEPTH {
            bail!(Limit(format!(
                "is supported for at most {MAX_DEPTH} factors of 8 bits"
            )));
        }
        let (values, given) = (quantize::integers(weights)?, elements::<f32>(scales)?);
        let zero_points = quantize::zero_points(zero_points, given.len())?;
        let each = if scales.rank() == 2 { columns } else { 1 };
        ensure!(
            given.len() == directions * each,
            "{} scales for {directions} directions of {columns} columns",
            given.len()
        );
        let matrices = (0..directions).map(|direction| {
            let values = &values[direction * depth * columns..][..depth * columns];
            let zero_points = &zero_points[direction * each..][..each];
            let numbers = values.iter().enumerate().map(|(at, value)| {
                let zero_point = zero_points[if each == 1 { 0 } else { at % columns }];
                // `value` and `zero_point` have 8 bits, so the difference fits an `i16`.
                (value - zero_point) as i16
            });
            let mut pace = Pace::default();
            let numbers = pace.collect(numbers)?;
            Ok(Self {
                values: PackedIntegers::new(&numbers, [depth, columns]),
                scales: pace.copy(&given[direction * each..][..each])?,
            })
        });
        matrices.collect()
    }

    /// Writes the product of rows of floats and this matrix to `product`.
    ///
    /// # Errors
    /// Fails if the request is cancelled.
    pub(crate) fn multiply(&self, a: &[f32], product: &mut [f32], pace: &mut Pace) -> Result<()> {
        if product.is_empty() {
            return Ok(());
        }
        let mut rounded = vec![0i16; a.len()];
        let scale = quantize::rounded_to_bytes(a, &mut rounded, pace)?;
        let mut sums = vec![0; product.len()];
        self.values.multiply(&rounded, &mut sums, pace)?;
        let scales = match &self.scales[..] {
            [scale] => &pace.repeat(scale, self.values.columns())?,
            scales => scales,
        };
        let rows = product.chunks_exact_mut(scales.len());
        for (product, sums) in rows.zip(sums.chunks_exact(scales.len())) {
            let parts = sums.chunks(PART).zip(scales.chunks(PART));
            for (product, (sums, scales)) in product.chunks_mut(PART).zip(parts) {
                pace.spend(product.len() as u64)?;
                for ((product, &sum), of_column) in product.iter_mut().zip(sums).zip(scales) {
                    *product = sum as f32 * (scale * of_column);
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn products_are_exact_and_scaled_once() {
        // The weights of one direction, of depth 3, and with 2 columns that have different scales and zero
        // points.
        let weights = Tensor::from_shape(&[1, 3, 2], &[1u8, 255, 0, 128, 255, 3]).unwrap();
        let scales = Tensor::from_shape(&[1, 2], &[0.5f32, 2.0]).unwrap();
        let zero_points = Tensor::from_shape(&[1, 2], &[0u8, 128]).unwrap().into_arc();
        let factors = IntegerFactors::of_directions(&weights, &scales, Some(&zero_points)).unwrap();
        let mut product = [f32::NAN; 4];
        // If the range of `a` is 255, quantization is exact for integers.
        let mut multiply = |a: &[f32]| {
            let pace = &mut Pace::default();
            factors[0].multiply(a, &mut product, pace).unwrap();
            product
        };
        let made = multiply(&[0.0, 1.0, 2.0, 255.0, 10.0, 0.0]);
        assert_eq!(made, [255.0, -500.0, 127.5, 64770.0]);
        let product = multiply(&[0.0; 6]);
        assert_eq!(product, [0.0; 4], "a range of nothing");
    }

    #[test]
    fn scales_must_be_as_many_as_directions_or_columns() {
        let weights = Tensor::zero::<u8>(&[2, 3, 4]).unwrap();
        let made = |shape: &[usize]| {
            IntegerFactors::of_directions(&weights, &Tensor::zero::<f32>(shape).unwrap(), None)
        };
        assert_eq!(made(&[2]).unwrap().len(), 2);
        assert_eq!(made(&[2, 4]).unwrap().len(), 2);
        assert!(made(&[1]).is_err());
        assert!(made(&[2, 3]).is_err());
    }
}
