//! Pooling: reduces the vectors of all tokens to one vector for the text.

/// How the vectors of a text's tokens are reduced to one vector, as named in `1_Pooling/config.json` of
/// sentence-transformers.
///
/// ```
/// use oip_text::Pooling;
///
/// let tokens = [1.0, 5.0, 3.0, 1.0];
/// assert_eq!(Pooling::Mean.pool(&tokens, 2), [2.0, 3.0]);
/// assert_eq!(Pooling::Max.pool(&tokens, 2), [3.0, 5.0]);
/// assert_eq!(Pooling::Cls.pool(&tokens, 2), [1.0, 5.0]);
/// assert_eq!(Pooling::Last.pool(&tokens, 2), [3.0, 1.0]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Pooling {
    /// The mean of all tokens.
    Mean,
    /// The first token.
    Cls,
    /// The maximum over all tokens, per dimension.
    Max,
    /// The last token.
    Last,
    /// The sum of all tokens divided by the square root of their number.
    MeanSqrtLen,
    /// The mean of all tokens, weighted by their position from 1.
    WeightedMean,
}

impl Pooling {
    /// Pools the tokens of one text: `tokens` has `dim` values for each token, without padding. If `tokens`
    /// is empty, the result is zeros.
    ///
    /// # Panics
    /// When `dim` is 0.
    #[must_use]
    pub fn pool(self, tokens: &[f32], dim: usize) -> Vec<f32> {
        let rows = || tokens.chunks_exact(dim);
        let zeros = || vec![0.0; dim];
        let count = rows().len();
        let sum = |weight: &dyn Fn(usize) -> f32| {
            let mut sums = zeros();
            for (index, row) in rows().enumerate() {
                let weight = weight(index);
                for (sum, value) in sums.iter_mut().zip(row) {
                    *sum += weight * value;
                }
            }
            sums
        };
        let divided = |mut sums: Vec<f32>, by: f32| {
            for sum in &mut sums {
                *sum /= by.max(1e-9);
            }
            sums
        };
        match self {
            Self::Mean => divided(sum(&|_| 1.0), count as f32),
            Self::MeanSqrtLen => divided(sum(&|_| 1.0), (count as f32).sqrt()),
            Self::WeightedMean => {
                let weights = (count as f32) * (count as f32 + 1.0) / 2.0;
                divided(sum(&|index| index as f32 + 1.0), weights)
            }
            Self::Cls => rows().next().map_or_else(zeros, <[f32]>::to_vec),
            Self::Last => rows().next_back().map_or_else(zeros, <[f32]>::to_vec),
            Self::Max => {
                let largest = rows().map(<[f32]>::to_vec).reduce(|mut largest, row| {
                    for (largest, value) in largest.iter_mut().zip(row) {
                        *largest = largest.max(value);
                    }
                    largest
                });
                largest.unwrap_or_else(zeros)
            }
        }
    }
}

/// Divides a vector by its Euclidean length; a zero vector stays zero.
///
/// ```
/// let mut vector = [3.0, 4.0];
/// oip_text::normalize(&mut vector);
/// assert_eq!(vector, [0.6, 0.8]);
/// ```
pub fn normalize(vector: &mut [f32]) {
    let length = vector
        .iter()
        .map(|value| value * value)
        .sum::<f32>()
        .sqrt()
        .max(1e-12);
    for value in vector {
        *value /= length;
    }
}
