//! The gate for a file's integers: sizes, axes, positions and counts are looked at here before anything is computed with them.
//!
//! tract computes sizes as expressions of symbols, in 64 bits and without a look at whether a result fits, and its rules for
//! expressions do not end where their numbers are large. What passes has 32 bits, or 48 within an expression, so that sums and
//! products of a few of them fit.

use oip_types::ServiceError;
use tensor_core::Quoted;
use tract_hir::internal::*;

use super::elements::elements;
use crate::{faults::Limit, lowered::OnnxNode};

/// What an operator does with the integers that its inputs hold.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Integers {
    /// The inputs with sizes, axes, positions or counts, as the file numbers inputs.
    pub(super) sizing: &'static [usize],
    /// Whether those of one input are the sizes of one value, which are multiplied.
    pub(super) is_shape: bool,
    /// Whether it computes with the numbers of all inputs, which may be sizes.
    pub(super) arithmetic: Option<Arithmetic>,
}

/// Arithmetic that sizes take part in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arithmetic {
    Sum,
    Product,
    /// Comparisons, which tract decides by differences. Only numbers far below zero leave their range.
    Order,
}

/// Numbers within the expression of a size, at most. Real models have some thousands.
const MAX_IN_SIZES: u64 = 1 << 48;

/// Products of such numbers, at most: one more factor of a few bits fits.
const MAX_PRODUCT: u64 = 1 << 62;

/// Numbers that are compared with sizes, at least: a difference to any size fits.
const LOWEST: i64 = 1 << 62;

/// Further than any axis is long.
pub(super) const FARTHEST: i64 = 1 << 40;

/// A bound or a step of a slice, which may be as large as it likes: beyond the end is the end.
pub(super) fn clamped(number: i64) -> i64 {
    number.clamp(-FARTHEST, FARTHEST)
}

/// Refuses constants whose numbers are too large for what an operator does with them.
///
/// `sizing` are the inputs of [`Integers::sizing`], counted among those that are given; inputs that are no constants are `None`.
/// `has_sizes` says whether an input that is no constant holds sizes.
pub(super) fn admit(
    integers: Integers,
    sizing: &[usize],
    inputs: &[Option<&Tensor>],
    mut has_sizes: bool,
) -> TractResult<()> {
    let constants = inputs.iter().copied().flatten();
    for sizes in constants
        .clone()
        .filter(|constant| constant.datum_type() == DatumType::TDim)
    {
        has_sizes = true;
        let sizes = elements::<TDim>(sizes)?.iter();
        // A number by itself may be the end of a slice that takes everything.
        let mut expressions = sizes.filter(|size| !matches!(size, TDim::Val(_)));
        if expressions.any(|size| largest(size) > MAX_IN_SIZES) {
            return Err(too_large());
        }
    }
    for &place in sizing {
        if let Some(Some(numbers)) = inputs.get(place) {
            admit_sizes(numbers, integers.is_shape)?;
        }
    }
    let Some(arithmetic) = integers.arithmetic.filter(|_| has_sizes) else {
        return Ok(());
    };
    let mut product = 1u64;
    for constant in constants {
        if arithmetic == Arithmetic::Order {
            if least_of(constant)? < -LOWEST {
                return Err(too_large());
            }
            continue;
        }
        let most = largest_of(constant)?;
        product = product.saturating_mul(most.max(1));
        if most > MAX_IN_SIZES || (arithmetic == Arithmetic::Product && product > MAX_PRODUCT) {
            return Err(too_large());
        }
    }
    Ok(())
}

fn too_large() -> TractError {
    Limit("computes a size with numbers that are too large".to_owned()).into()
}

/// Refuses sizes, axes, positions and counts of more than 32 bits, and sizes whose product has more than 62.
fn admit_sizes(numbers: &Tensor, is_shape: bool) -> TractResult<()> {
    let mut product = 1u64;
    let mut admit = |number: i64| {
        if i32::try_from(number).is_err() {
            bail!(Limit(format!(
                "has a size, an axis or a position of {number}, expected at most {} and at least {}",
                i32::MAX,
                i32::MIN
            )));
        }
        product = product.saturating_mul(number.unsigned_abs().max(1));
        if is_shape && product > MAX_PRODUCT {
            bail!(Limit(
                "has sizes whose product is more than can be counted".to_owned()
            ));
        }
        Ok(())
    };
    if numbers.datum_type() == DatumType::TDim {
        let sizes = elements::<TDim>(numbers)?.iter();
        let mut alone = sizes.filter_map(|size| match size {
            TDim::Val(number) => Some(*number),
            _ => None,
        });
        return alone.try_for_each(admit);
    }
    if !numbers.datum_type().is_integer() {
        return Ok(());
    }
    let numbers = numbers.cast_to::<i64>()?;
    elements::<i64>(&numbers)?
        .iter()
        .try_for_each(|&number| admit(number))
}

/// The largest number of a constant, by its distance from zero; 0 for what are no integers.
fn largest_of(constant: &Tensor) -> TractResult<u64> {
    let most = match constant.datum_type() {
        DatumType::TDim => elements::<TDim>(constant)?.iter().map(largest).max(),
        DatumType::I64 => elements::<i64>(constant)?
            .iter()
            .map(|number| number.unsigned_abs())
            .max(),
        _ => None,
    };
    Ok(most.unwrap_or(0))
}

/// The least number of a constant that is no expression; 0 for what are no integers.
fn least_of(constant: &Tensor) -> TractResult<i64> {
    let number = |dim: &TDim| match dim {
        TDim::Val(number) => *number,
        _ => 0,
    };
    let least = match constant.datum_type() {
        DatumType::TDim => elements::<TDim>(constant)?.iter().map(number).min(),
        DatumType::I64 => elements::<i64>(constant)?.iter().copied().min(),
        _ => None,
    };
    Ok(least.unwrap_or(0))
}

/// The largest number in the expression of a size.
fn largest(dim: &TDim) -> u64 {
    let all = |dims: &[TDim]| dims.iter().map(largest).max().unwrap_or(0);
    match dim {
        TDim::Val(number) => number.unsigned_abs(),
        TDim::Sym(_) => 1,
        TDim::Add(dims) | TDim::Mul(dims) | TDim::Broadcast(dims) | TDim::Min(dims) | TDim::Max(dims) => {
            all(dims)
        }
        TDim::MulInt(factor, dim) => factor.unsigned_abs().max(largest(dim)),
        TDim::Div(dim, divisor) => (*divisor).max(largest(dim)),
        TDim::Ge(a, b) | TDim::Eq(a, b) => largest(a).max(largest(b)),
    }
}

/// Refuses a node with a number of more than 32 bits in an attribute that is a size, an axis, a position or a count.
pub(super) fn admit_attributes(node: &OnnxNode) -> Result<(), ServiceError> {
    for attribute in node
        .attribute
        .iter()
        .filter(|attribute| !is_any_number(&attribute.name))
    {
        let mut numbers = attribute.ints.iter().chain([&attribute.i]);
        if let Some(number) = numbers.find(|&&number| i32::try_from(number).is_err()) {
            let reason = format!(
                "the attribute {} has the number {number}, expected at most {} and at least {}",
                Quoted(&attribute.name),
                i32::MAX,
                i32::MIN
            );
            return Err(ServiceError::invalid(reason));
        }
    }
    Ok(())
}

/// Whether an attribute holds numbers that nothing is computed with, or bounds that are clamped.
fn is_any_number(attribute: &str) -> bool {
    let is_bound = matches!(attribute, "start" | "starts" | "end" | "ends");
    let is_data = matches!(
        attribute,
        "value_int" | "value_ints" | "seed" | "classlabels_ints"
    );
    is_bound || is_data || attribute.contains("int64") || attribute.ends_with("ids")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    fn height() -> TDim {
        SymbolScope::default().sym("h").to_dim()
    }

    #[test]
    fn sizes_of_too_large_numbers_are_refused() {
        let admits = |dim: TDim| {
            admit(
                Integers::default(),
                &[],
                &[Some(&tensor1(&[1.to_dim(), dim]))],
                false,
            )
            .is_ok()
        };
        let large = 1i64 << 50;
        for dim in [
            height(),
            (height() + 3) / 2,
            height() * 1024 - 7,
            i64::MAX.to_dim(),
        ] {
            assert!(admits(dim.clone()), "{dim}");
        }
        for dim in [
            height() + large,
            height() * large,
            height() / large,
            (height() + large).maxi(2.to_dim()),
            (height() - large) / 2 + height(),
        ] {
            assert!(!admits(dim.clone()), "{dim}");
        }
    }

    #[test]
    fn sizes_are_computed_with_small_numbers_only() {
        let admits = |arithmetic, a: TDim, b: i64| {
            let integers = Integers {
                arithmetic: Some(arithmetic),
                ..Integers::default()
            };
            let (a, b) = (tensor1(&[a]), tensor1(&[b]));
            admit(integers, &[], &[Some(&a), Some(&b)], false).is_ok()
        };
        for number in [i64::MAX, i64::MIN, 1 << 50] {
            assert!(!admits(Arithmetic::Sum, height(), number), "{number}");
            assert!(!admits(Arithmetic::Product, height(), number), "{number}");
            assert!(!admits(Arithmetic::Sum, number.to_dim(), 1), "{number}");
        }
        assert!(admits(Arithmetic::Sum, height(), -(1 << 40)));
        assert!(admits(Arithmetic::Sum, (1i64 << 40).to_dim(), 1 << 40));
        assert!(!admits(Arithmetic::Product, (1i64 << 40).to_dim(), 1 << 40));
    }

    #[test]
    fn sizes_are_compared_with_large_numbers_but_not_with_the_smallest() {
        let order = Integers {
            arithmetic: Some(Arithmetic::Order),
            ..Integers::default()
        };
        let admits =
            |number: i64, has_sizes| admit(order, &[], &[None, Some(&tensor0(number))], has_sizes).is_ok();
        assert!(admits(i64::MAX, true) && admits(-(1 << 40), true));
        assert!(!admits(i64::MIN, true));
        assert!(admits(i64::MIN, false));
    }

    #[test]
    fn numbers_that_no_size_is_computed_with_may_be_large() {
        let any = tensor1(&[i64::MAX, i64::MIN]);
        let integers = Integers {
            arithmetic: Some(Arithmetic::Sum),
            ..Integers::default()
        };
        assert!(admit(integers, &[], &[Some(&any), Some(&any), None], false).is_ok());
        let error = admit(integers, &[1], &[None, Some(&any)], false).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("of 9223372036854775807, expected at most 2147483647"),
            "{error}"
        );
        let shape = Integers {
            is_shape: true,
            ..Integers::default()
        };
        let sizes = tensor1(&[i64::from(i32::MAX); 3]);
        assert!(admit(shape, &[0], &[Some(&sizes)], false).is_err());
        assert!(admit(Integers::default(), &[0], &[Some(&sizes)], false).is_ok());
    }
}
