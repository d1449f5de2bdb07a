//! The distance between two tensors as vectors.

use std::fmt;

/// The distance between two numeric tensors, each flattened to one vector.
///
/// ```
/// use tensor_files::Distance;
/// let distance = Distance { l2: 0.5, relative_l2: 0.01, cosine: 0.99995 };
/// assert_eq!(distance.to_string(), "L2 0.5, relative 0.01, cosine 0.99995");
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Distance {
    /// The L2 norm of the difference.
    pub l2: f64,
    /// `l2` divided by the L2 norm of the second tensor; infinite if that norm is 0.
    pub relative_l2: f64,
    /// Cosine similarity of the tensors; NaN if either tensor is all zeros.
    pub cosine: f64,
}

impl fmt::Display for Distance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            l2,
            relative_l2,
            cosine,
        } = self;
        write!(f, "L2 {}", Short(*l2))?;
        if relative_l2.is_finite() {
            write!(f, ", relative {}", Short(*relative_l2))?;
        }
        if cosine.is_finite() {
            // Seven digits distinguish vectors that are nearly equal.
            write!(f, ", cosine {}", (cosine * 1e7).round() / 1e7)?;
        }
        Ok(())
    }
}

/// Displays a number with six significant digits.
struct Short(f64);

impl fmt::Display for Short {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let short: f64 = format!("{:.5e}", self.0).parse().unwrap_or(self.0);
        match short {
            0.0 => f.write_str("0"),
            short if (1e-4..1e9).contains(&short.abs()) => write!(f, "{short}"),
            short => write!(f, "{short:e}"),
        }
    }
}

/// The sums from which a distance is computed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sums {
    difference: f64,
    first: f64,
    second: f64,
    product: f64,
}

impl Sums {
    /// Adds two elements and their difference, which is separate because doubles cannot represent large
    /// integers exactly.
    pub(crate) fn add(&mut self, x: f64, y: f64, difference: f64) {
        self.difference += difference * difference;
        self.first += x * x;
        self.second += y * y;
        self.product += x * y;
    }

    /// Returns the distance; `None` if a number is not finite, or its square overflows.
    pub(crate) fn distance(&self) -> Option<Distance> {
        let (l2, first, second) = (self.difference.sqrt(), self.first.sqrt(), self.second.sqrt());
        let is_known = [l2, first, second, self.product]
            .iter()
            .all(|sum| sum.is_finite());
        is_known.then(|| Distance {
            l2,
            relative_l2: if second == 0.0 { f64::INFINITY } else { l2 / second },
            cosine: (self.product / (first * second)).clamp(-1.0, 1.0),
        })
    }
}
