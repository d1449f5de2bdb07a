//! Dimensions that may be unknown while a model is loaded.

use std::{
    fmt,
    iter::{Product, Sum},
    ops::{Add, AddAssign, Div, Mul, MulAssign, Sub},
    sync::atomic::{AtomicU64, Ordering},
};

use anyhow::{Context, Result, bail};
use smallvec::smallvec;

use crate::ShortVec;

/// A dimension that may be unknown until a model runs.
///
/// Arithmetic is exact: the result is a number if both operands are numbers and the result fits, and
/// otherwise an unknown dimension. Only `x + 0`, `x - 0`, `x * 1`, `x / 1`, `x * 0` and `x - x` are
/// simplified.
///
/// ```
/// use onnx_tensor::Dim;
///
/// let rows = Dim::unknown();
/// assert_eq!(rows, rows);
/// assert_ne!(rows, Dim::unknown());
/// assert_eq!(rows * 1 + 0, rows);
/// assert_eq!((Dim::Known(6) * 2 - 2).to_usize(), Some(10));
/// assert_eq!((rows + 1).to_i64(), None);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dim {
    /// A known number, which may be negative in intermediate results.
    Known(i64),
    /// An unknown number, which is equal only to itself.
    Unknown(Symbol),
}

/// The identity of an unknown dimension. [`Dim::unknown`] creates a new identity.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Symbol(u64);

impl Dim {
    /// Creates an unknown dimension that differs from all others.
    #[must_use]
    pub fn unknown() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self::Unknown(Symbol(NEXT.fetch_add(1, Ordering::Relaxed)))
    }

    /// Returns the number, if it is known.
    #[must_use]
    pub fn to_i64(self) -> Option<i64> {
        match self {
            Self::Known(number) => Some(number),
            Self::Unknown(_) => None,
        }
    }

    /// Returns the number, if it is known and not negative.
    #[must_use]
    pub fn to_usize(self) -> Option<usize> {
        self.to_i64().and_then(|number| usize::try_from(number).ok())
    }

    /// Returns whether the number is known.
    #[must_use]
    pub fn is_known(self) -> bool {
        self.to_i64().is_some()
    }

    /// Returns whether the dimension is known to be 0.
    #[must_use]
    pub fn is_zero(&self) -> bool {
        *self == Self::Known(0)
    }

    /// Returns whether the dimension is known to be 1.
    #[must_use]
    pub fn is_one(&self) -> bool {
        *self == Self::Known(1)
    }

    /// Returns the quotient, rounded up. The quotient is unknown unless the divisor is positive.
    #[must_use]
    pub fn div_ceil(self, divisor: impl ToDim) -> Self {
        match (self, divisor.to_dim()) {
            (dim, Self::Known(1)) => dim,
            (Self::Known(number), Self::Known(divisor)) if divisor > 0 => {
                let sum = number.checked_add(divisor - 1);
                known(sum.map(|sum| sum.div_euclid(divisor)))
            }
            _ => Self::unknown(),
        }
    }

    /// Returns the smaller of two dimensions.
    #[must_use]
    pub fn min(self, other: impl ToDim) -> Self {
        self.either(other.to_dim(), i64::min)
    }

    /// Returns the larger of two dimensions.
    #[must_use]
    pub fn max(self, other: impl ToDim) -> Self {
        self.either(other.to_dim(), i64::max)
    }

    fn either(self, other: Self, choose: fn(i64, i64) -> i64) -> Self {
        match (self, other) {
            (one, other) if one == other => one,
            (Self::Known(one), Self::Known(other)) => Self::Known(choose(one, other)),
            _ => Self::unknown(),
        }
    }
}

/// Converts a result of checked arithmetic. An overflow (`None`) becomes an unknown dimension.
fn known(number: Option<i64>) -> Dim {
    number.map_or_else(Dim::unknown, Dim::Known)
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Known(number) => number.fmt(f),
            Self::Unknown(_) => f.write_str("?"),
        }
    }
}

impl fmt::Debug for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Known(number) => number.fmt(f),
            Self::Unknown(Symbol(symbol)) => write!(f, "?{symbol}"),
        }
    }
}

/// Numbers and dimensions that convert to a dimension.
pub trait ToDim {
    /// Converts to a dimension. A number of more than 63 bits becomes an unknown dimension.
    fn to_dim(&self) -> Dim;
}

impl ToDim for Dim {
    fn to_dim(&self) -> Dim {
        *self
    }
}

impl<T: ToDim + ?Sized> ToDim for &T {
    fn to_dim(&self) -> Dim {
        (**self).to_dim()
    }
}

macro_rules! numbers_to_dims {
    ($($number:ty)*) => {
        $(impl ToDim for $number {
            fn to_dim(&self) -> Dim {
                known(i64::try_from(*self).ok())
            }
        }

        impl From<$number> for Dim {
            fn from(number: $number) -> Self {
                number.to_dim()
            }
        })*
    };
}
numbers_to_dims! { usize u64 i64 i32 }

/// Implements an arithmetic operator for dimensions. Applies the rules of `$simplified` before checked
/// arithmetic.
macro_rules! operators {
    ($($operator:ident $function:ident $checked:ident { $($simplified:tt)* })*) => {
        $(
            impl<D: ToDim> $operator<D> for Dim {
                type Output = Self;

                fn $function(self, other: D) -> Self {
                    match (self, other.to_dim()) {
                        $($simplified)*
                        (Self::Known(one), Self::Known(other)) => known(one.$checked(other)),
                        _ => Self::unknown(),
                    }
                }
            }

            impl<D: ToDim> $operator<D> for &Dim {
                type Output = Dim;

                fn $function(self, other: D) -> Dim {
                    (*self).$function(other)
                }
            }
        )*
    };
}
operators! {
    Add add checked_add {
        (dim, Self::Known(0)) | (Self::Known(0), dim) => dim,
    }
    Sub sub checked_sub {
        (dim, Self::Known(0)) => dim,
        (one, other) if one == other => Self::Known(0),
    }
    Mul mul checked_mul {
        (dim, Self::Known(1)) | (Self::Known(1), dim) => dim,
        (_, Self::Known(0)) | (Self::Known(0), _) => Self::Known(0),
    }
    Div div checked_div {
        (dim, Self::Known(1)) => dim,
    }
}

impl<D: ToDim> AddAssign<D> for Dim {
    fn add_assign(&mut self, other: D) {
        *self = *self + other;
    }
}

impl<D: ToDim> MulAssign<D> for Dim {
    fn mul_assign(&mut self, other: D) {
        *self = *self * other;
    }
}

impl<D: ToDim> Sum<D> for Dim {
    fn sum<I: Iterator<Item = D>>(dims: I) -> Self {
        dims.fold(Self::Known(0), |sum, dim| sum + dim)
    }
}

impl<D: ToDim> Product<D> for Dim {
    /// Returns the product of dimensions. The product is 0 if any dimension is 0, even if multiplying the
    /// others overflows.
    fn product<I: Iterator<Item = D>>(dims: I) -> Self {
        dims.fold(Self::Known(1), |product, dim| product * dim)
    }
}

/// A number of elements along an axis: `usize` during a run, [`Dim`] before a run. Shape rules are generic
/// over both types.
pub trait Size:
    ToDim
    + Clone
    + PartialEq
    + fmt::Debug
    + fmt::Display
    + Add<usize, Output = Self>
    + Sub<usize, Output = Self>
    + Mul<usize, Output = Self>
    + Div<usize, Output = Self>
{
    /// Creates the size of an axis of `count` elements.
    fn of(count: usize) -> Self;

    /// Converts a dimension; `None` if the dimension is unknown and this type only represents numbers.
    fn from_dim(dim: Dim) -> Option<Self>;

    /// Returns the number, if it is known.
    fn to_i64(&self) -> Option<i64> {
        self.to_dim().to_i64()
    }

    /// Returns the number, if it is known and not negative.
    fn to_usize(&self) -> Option<usize> {
        self.to_dim().to_usize()
    }

    /// Returns whether the size is known to be 1.
    fn is_one(&self) -> bool {
        self.to_dim() == Dim::Known(1)
    }
}

impl Size for usize {
    fn of(count: usize) -> Self {
        count
    }

    fn from_dim(dim: Dim) -> Option<Self> {
        dim.to_usize()
    }
}

impl Size for Dim {
    fn of(count: usize) -> Self {
        count.to_dim()
    }

    fn from_dim(dim: Dim) -> Option<Self> {
        Some(dim)
    }
}

/// Broadcasts shapes, aligned at the last axis.
///
/// Equal dimensions stay the same. A dimension of 1 becomes the other dimension. An unknown dimension becomes
/// the other dimension if that is known and not 1. Two different unknown dimensions become a new unknown one.
///
/// # Errors
/// Fails if two known dimensions of one axis differ, and neither is 1.
///
/// ```
/// use onnx_tensor::{Dim, broadcast};
///
/// let batch = Dim::unknown();
/// let shape = broadcast(&[&[batch, Dim::Known(1)], &[Dim::Known(3)]])?;
/// assert_eq!(shape[..], [batch, Dim::Known(3)]);
/// # Ok::<(), onnx_tensor::prelude::Error>(())
/// ```
pub fn broadcast<D: Size>(shapes: &[&[D]]) -> Result<ShortVec<D>> {
    let rank = shapes.iter().map(|shape| shape.len()).max().unwrap_or(0);
    let mut joined: ShortVec<Dim> = smallvec![Dim::Known(1); rank];
    for shape in shapes {
        for (dim, other) in joined[rank - shape.len()..].iter_mut().zip(*shape) {
            *dim = match (*dim, other.to_dim()) {
                (one, other) if one == other => one,
                (one, Dim::Known(1)) => one,
                (Dim::Known(1), other) => other,
                (Dim::Known(one), Dim::Known(other)) => {
                    bail!("cannot broadcast the shapes {shapes:?}: {one} and {other} elements along one axis")
                }
                (known @ Dim::Known(_), _) | (_, known @ Dim::Known(_)) => known,
                _ => Dim::unknown(),
            };
        }
    }
    let joined = joined.into_iter().map(D::from_dim);
    joined.collect::<Option<_>>().context("a size that overflows")
}
