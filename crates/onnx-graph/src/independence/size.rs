//! Symbolic sizes: products of a coefficient, symbols, and at most one factor for the row count.
//!
//! A symbol is a number that is shared by all requests of a batch, such as a free dimension other than the
//! batch dimension. Equal terms share a symbol, so sizes that are computed in two ways compare equal.

use std::collections::HashMap;

/// A size: `coefficient * symbols * rows^(0 or 1)`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Size {
    coefficient: i64,
    /// The symbols that are multiplied, in ascending order.
    symbols: Vec<Symbol>,
    rows: bool,
}

type Symbol = u32;

/// The maximum of 64-bit integers.
pub(super) const WIDE: u128 = i64::MAX as u128;

/// The maximum of 32-bit integers.
pub(super) const NARROW: u128 = i32::MAX as u128;

/// The maximum row count of a batch, chosen so that its product with a dimension fits in 32 bits.
pub const MAX_ROWS: u64 = (1 << 11) - 1;

/// The maximum dimension of batched requests.
pub const MAX_DIM: u64 = (1 << 20) - 1;

/// The maximum number of elements per row that counts as small.
const MAX_PER_ROW: i64 = 100_000;

/// The maximum number of factors; longer products become a new symbol.
const MAX_FACTORS: usize = 24;

impl Size {
    pub(super) fn number(number: i64) -> Self {
        Self {
            coefficient: number,
            symbols: Vec::new(),
            rows: false,
        }
    }

    /// Returns the row count of the batch.
    pub(super) fn rows() -> Self {
        Self {
            rows: true,
            ..Self::number(1)
        }
    }

    pub(super) fn as_number(&self) -> Option<i64> {
        (self.symbols.is_empty() && !self.rows).then_some(self.coefficient)
    }

    pub(super) fn is(&self, number: i64) -> bool {
        self.as_number() == Some(number)
    }

    pub(super) fn has_rows(&self) -> bool {
        self.rows
    }

    /// Returns whether the size is a small constant times the row count, so that it stays below 10^9 for a
    /// few thousand rows.
    pub(super) fn is_short_of_rows(&self) -> bool {
        self.rows && self.symbols.is_empty() && self.coefficient <= MAX_PER_ROW
    }

    /// Returns the quotient if `divisor` divides the size for all values of the symbols.
    pub(super) fn over(&self, divisor: &Self) -> Option<Self> {
        if divisor.rows && !self.rows || divisor.coefficient == 0 || divisor.is_any() {
            return None;
        }
        let mut symbols = self.symbols.clone();
        for symbol in &divisor.symbols {
            let at = symbols.iter().position(|own| own == symbol)?;
            symbols.remove(at);
        }
        let rest = self.coefficient.checked_rem(divisor.coefficient)?;
        let coefficient = self.coefficient.checked_div(divisor.coefficient)?;
        (rest == 0).then(|| {
            Self {
                coefficient,
                symbols,
                rows: self.rows && !divisor.rows,
            }
            .normal()
        })
    }

    /// Returns whether the size may differ at each use. Such a size is not equal even to itself.
    pub(super) fn is_any(&self) -> bool {
        self.symbols.contains(&ANY)
    }

    /// Returns whether the size has no symbols. Two literal sizes are equal only if they are identical.
    pub(super) fn is_literal(&self) -> bool {
        self.symbols.is_empty()
    }

    /// Returns whether each symbol of this size also occurs in one of `sizes`. Then the product of `sizes` is
    /// 0 if this size is 0.
    pub(super) fn has_only_symbols_of_all(&self, sizes: &[Self]) -> bool {
        let is_known = |symbol: &Symbol| sizes.iter().any(|size| size.symbols.contains(symbol));
        self.symbols
            .iter()
            .all(|symbol| *symbol != ANY && is_known(symbol))
    }

    /// Normalizes the size: drops all factors if the coefficient is 0.
    fn normal(self) -> Self {
        match self.coefficient {
            0 => Self::number(0),
            _ => self,
        }
    }

    fn with_coefficient(&self, coefficient: i64) -> Self {
        Self {
            coefficient,
            ..self.clone()
        }
        .normal()
    }

    fn is_like(&self, other: &Self) -> bool {
        self.symbols == other.symbols && self.rows == other.rows
    }
}

/// The symbol for dimensions that may differ at each use.
const ANY: Symbol = 0;

/// The symbols of a graph, with their meanings and ranges.
pub(super) struct Symbols {
    terms: HashMap<Term, Symbol>,
    kinds: Vec<Kind>,
    /// Symbols of floating-point literals with an integer value.
    floats: HashMap<Symbol, i64>,
}

/// The properties of a symbol: its known range, and whether it is an integer.
#[derive(Clone, Copy)]
struct Kind {
    /// Whether the symbol is at least 1 in batched requests, which are never empty.
    is_positive: bool,
    /// Whether the symbol is at least 0.
    is_natural: bool,
    is_integer: bool,
    /// The maximum magnitude.
    most: u128,
}

/// The known range of a dimension.
#[derive(Clone, Copy)]
pub(super) struct Bounds {
    /// Whether the dimension is at least 1 in batched requests.
    pub(super) is_positive: bool,
    /// The maximum magnitude; see [`Symbols::most`].
    pub(super) most: u128,
}

/// The meaning of a symbol, by which equal symbols are recognized.
#[derive(PartialEq, Eq, Hash)]
enum Term {
    /// The name of a dimension in the file.
    Name(String),
    /// A function of other sizes, by name and arguments.
    Of(&'static str, Vec<Size>),
}

impl Default for Symbols {
    fn default() -> Self {
        Self {
            terms: HashMap::new(),
            // The range of the symbol `ANY`, whose index is 0.
            kinds: vec![Kind::DIM],
            floats: HashMap::new(),
        }
    }
}

impl Symbols {
    /// Returns a dimension that may differ at each use, such as a dimension of the elements of a sequence, or
    /// of a loop-carried value.
    pub(super) fn any() -> Size {
        size(ANY)
    }

    /// Returns `dim`, or a new symbol if `dim` may differ at each use, for a value whose dimension is fixed
    /// from there on.
    pub(super) fn settled(&mut self, dim: &Size) -> Size {
        if *dim == Self::any() {
            self.dim()
        } else {
            dim.clone()
        }
    }

    /// Returns the free dimension called `name` in the file.
    pub(super) fn named(&mut self, name: &str) -> Size {
        self.of_term(Term::Name(name.to_owned()), Kind::POSITIVE)
    }

    /// Returns an unnamed free dimension of an input.
    pub(super) fn of_input(&mut self) -> Size {
        self.symbol(Kind::POSITIVE)
    }

    /// Returns whether a size is at least 1 in batched requests.
    pub(super) fn is_positive(&self, size: &Size) -> bool {
        size.coefficient > 0 && self.kind_of(size).is_positive
    }

    /// Returns an unknown dimension.
    pub(super) fn dim(&mut self) -> Size {
        self.symbol(Kind::DIM)
    }

    /// Returns an unknown number of any type that is shared by all requests.
    pub(super) fn real(&mut self) -> Size {
        self.symbol(Kind::REAL)
    }

    /// Returns the floating-point literal `number`. No arithmetic is done with the literal, since that would
    /// have to round like the runtime.
    pub(super) fn float(&mut self, number: i64) -> Size {
        let float = self.of_term(Term::Of("float", vec![Size::number(number)]), Kind::REAL);
        if let [symbol] = float.symbols[..] {
            self.floats.insert(symbol, number);
        }
        float
    }

    /// Returns the value of a floating-point literal.
    pub(super) fn as_float(&self, size: &Size) -> Option<i64> {
        match size.symbols[..] {
            [symbol] if size.coefficient == 1 && !size.rows => self.floats.get(&symbol).copied(),
            _ => None,
        }
    }

    /// Returns whether a size is known to be an integer.
    pub(super) fn is_integer(&self, size: &Size) -> bool {
        self.kind_of(size).is_integer
    }

    /// Returns a dimension that is a function of `arguments`. Equal arguments share a symbol. Returns `None`
    /// if an argument depends on the row count.
    pub(super) fn dim_of(&mut self, function: &'static str, arguments: Vec<Size>) -> Option<Size> {
        self.of(function, arguments, Kind::DIM)
    }

    /// Returns a dimension like [`Self::dim_of`], with known bounds.
    pub(super) fn bounded_dim_of(
        &mut self,
        function: &'static str,
        arguments: Vec<Size>,
        bounds: Bounds,
    ) -> Option<Size> {
        self.of(function, arguments, Kind::within(bounds))
    }

    /// Returns an unknown dimension with bounds.
    pub(super) fn bounded_dim(&mut self, bounds: Bounds) -> Size {
        self.symbol(Kind::within(bounds))
    }

    fn of(&mut self, function: &'static str, arguments: Vec<Size>, kind: Kind) -> Option<Size> {
        let is_same = !arguments.iter().any(Size::has_rows);
        is_same.then(|| self.of_term(Term::Of(function, arguments), kind))
    }

    /// Returns whether a size is at least 0.
    pub(super) fn is_natural(&self, size: &Size) -> bool {
        size.coefficient >= 0 && self.kind_of(size).is_natural
    }

    /// Returns whether a size is an integer of at least 0.
    pub(super) fn is_dim(&self, size: &Size) -> bool {
        self.is_natural(size) && self.kind_of(size).is_integer
    }

    /// Converts `size` to an integer; returns a new symbol if it may have a fraction.
    pub(super) fn as_integer(&mut self, size: &Size) -> Option<Size> {
        if let Some(number) = self.as_float(size) {
            return Some(Size::number(number));
        }
        match self.is_integer(size) {
            true => Some(size.clone()),
            false => self.of("integer", vec![size.clone()], Kind::INTEGER),
        }
    }

    /// Converts `size` to 32 bits; returns a new symbol if it may be out of range.
    pub(super) fn as_narrow(&mut self, size: &Size) -> Option<Size> {
        if let Some(number) = self.as_float(size) {
            return Some(Size::number(number));
        }
        match self.kind_of(size).is_dim() && self.most(size) <= NARROW {
            true => Some(size.clone()),
            false => self.of("narrow", vec![size.clone()], Kind::INTEGER),
        }
    }

    /// Converts `size` to floating point, which may round.
    pub(super) fn as_real(&mut self, size: &Size) -> Option<Size> {
        let kind = Kind {
            is_positive: self.is_positive(size) && self.is_integer(size) && self.most(size) <= NARROW,
            ..Kind::REAL
        };
        self.of("real", vec![size.clone()], kind)
    }

    /// Returns the maximum magnitude of a size in batched requests, which have at most [`MAX_ROWS`] rows and
    /// no dimension above [`MAX_DIM`].
    pub(super) fn most(&self, size: &Size) -> u128 {
        let of_rows = if size.rows { MAX_ROWS } else { 1 };
        let factors = [size.coefficient.unsigned_abs(), of_rows].map(u128::from);
        factors
            .into_iter()
            .fold(self.kind_of(size).most, u128::saturating_mul)
    }

    /// Returns the range of the product of the symbols in `size`.
    fn kind_of(&self, size: &Size) -> Kind {
        let kinds = size
            .symbols
            .iter()
            .filter_map(|symbol| self.kinds.get(*symbol as usize));
        let nothing = Kind {
            most: 1,
            ..Kind::POSITIVE
        };
        kinds.fold(nothing, |all, kind| all.and(*kind))
    }

    /// Returns a range that is valid for the sum, the product and the quotient of two sizes.
    fn kind_of_both(&self, a: &Size, b: &Size) -> Kind {
        let is_natural = self.is_natural(a) && self.is_natural(b);
        Kind {
            is_positive: self.is_positive(a) && self.is_positive(b),
            is_natural,
            is_integer: self.is_integer(a) && self.is_integer(b),
            most: self.most(a).saturating_add(self.most(b)),
        }
    }

    pub(super) fn product(&mut self, a: &Size, b: &Size) -> Option<Size> {
        let coefficient = a.coefficient.checked_mul(b.coefficient);
        let too_long = a.symbols.len() + b.symbols.len() > MAX_FACTORS;
        match coefficient {
            Some(0) => return Some(Size::number(0)),
            Some(coefficient) if !(too_long || a.rows && b.rows) => {
                let mut symbols = [a.symbols.as_slice(), b.symbols.as_slice()].concat();
                symbols.sort_unstable();
                return Some(Size {
                    coefficient,
                    symbols,
                    rows: a.rows || b.rows,
                });
            }
            _ => {}
        }
        let most = self.most(a).saturating_mul(self.most(b));
        self.commutative("*", a, b, most)
    }

    pub(super) fn product_of(&mut self, sizes: &[Size]) -> Option<Size> {
        sizes
            .iter()
            .try_fold(Size::number(1), |product, size| self.product(&product, size))
    }

    pub(super) fn sum(&mut self, a: &Size, b: &Size) -> Option<Size> {
        if a.is(0) {
            return Some(b.clone());
        }
        if b.is(0) {
            return Some(a.clone());
        }
        if a.is_like(b)
            && let Some(coefficient) = a.coefficient.checked_add(b.coefficient)
        {
            return Some(a.with_coefficient(coefficient));
        }
        let most = self.kind_of_both(a, b).most;
        self.commutative("+", a, b, most)
    }

    pub(super) fn difference(&mut self, a: &Size, b: &Size) -> Option<Size> {
        if b.is(0) {
            return Some(a.clone());
        }
        if a.is_like(b)
            && let Some(coefficient) = a.coefficient.checked_sub(b.coefficient)
        {
            return Some(a.with_coefficient(coefficient));
        }
        let kind = Kind {
            is_positive: false,
            is_natural: false,
            ..self.kind_of_both(a, b)
        };
        self.of("-", vec![a.clone(), b.clone()], kind)
    }

    /// Returns a quotient. An inexact quotient is a new symbol, since integers are truncated and
    /// floating-point numbers are not.
    pub(super) fn quotient(&mut self, a: &Size, b: &Size) -> Option<Size> {
        if let Some(exact) = a.over(b) {
            return Some(exact);
        }
        let kind = Kind {
            is_positive: false,
            is_integer: false,
            ..self.kind_of_both(a, b)
        };
        (!a.has_rows() && !b.has_rows()).then(|| self.symbol(kind))
    }

    fn commutative(&mut self, function: &'static str, a: &Size, b: &Size, most: u128) -> Option<Size> {
        let mut arguments = vec![a.clone(), b.clone()];
        arguments.sort();
        let kind = Kind {
            most,
            ..self.kind_of_both(a, b)
        };
        self.of(function, arguments, kind)
    }

    fn of_term(&mut self, term: Term, kind: Kind) -> Size {
        if let Some(symbol) = self.terms.get(&term) {
            return size(*symbol);
        }
        let new = self.symbol(kind);
        if let [symbol] = new.symbols[..] {
            self.terms.insert(term, symbol);
        }
        new
    }

    fn symbol(&mut self, kind: Kind) -> Size {
        let symbol = u32::try_from(self.kinds.len()).unwrap_or(u32::MAX);
        self.kinds.push(kind);
        size(symbol)
    }
}

impl Kind {
    const POSITIVE: Self = Self {
        is_positive: true,
        is_natural: true,
        is_integer: true,
        most: MAX_DIM as u128,
    };
    /// The range of a dimension of any tensor that fits into memory.
    const DIM: Self = Self {
        is_positive: false,
        most: 1 << 40,
        ..Self::POSITIVE
    };
    const INTEGER: Self = Self {
        is_natural: false,
        most: u128::MAX,
        ..Self::DIM
    };
    const REAL: Self = Self {
        is_integer: false,
        ..Self::INTEGER
    };

    fn within(bounds: Bounds) -> Self {
        Self {
            is_positive: bounds.is_positive,
            most: bounds.most,
            ..Self::DIM
        }
    }

    fn is_dim(self) -> bool {
        self.is_natural && self.is_integer
    }

    fn and(self, other: Self) -> Self {
        Self {
            is_positive: self.is_positive && other.is_positive,
            is_natural: self.is_natural && other.is_natural,
            is_integer: self.is_integer && other.is_integer,
            most: self.most.saturating_mul(other.most),
        }
    }
}

fn size(symbol: Symbol) -> Size {
    Size {
        symbols: vec![symbol],
        ..Size::number(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_terms_have_one_symbol() {
        let mut symbols = Symbols::default();
        let [a, b] = ["a", "b"].map(|name| symbols.named(name));
        assert_eq!(symbols.sum(&a, &b), symbols.sum(&b, &a));
        assert_ne!(symbols.difference(&a, &b), symbols.difference(&b, &a));
        assert_eq!(symbols.named("a"), a);
        assert_ne!(symbols.dim(), symbols.dim());
    }

    #[test]
    fn products_divide_exactly_or_not_at_all() {
        let mut symbols = Symbols::default();
        let (n, s) = (Size::rows(), symbols.named("s"));
        let total = symbols
            .product_of(&[n.clone(), s.clone(), Size::number(64)])
            .unwrap();
        assert_eq!(total.over(&Size::number(64)), symbols.product(&n, &s));
        assert_eq!(total.over(&Size::number(3)), None);
        assert_eq!(total.over(&n), symbols.product(&s, &Size::number(64)));
        assert_eq!(s.over(&n), None);
        assert_eq!(symbols.product(&n, &n), None);
    }

    #[test]
    fn what_depends_on_the_number_of_rows_otherwise_is_not_known() {
        let mut symbols = Symbols::default();
        let n = Size::rows();
        assert_eq!(symbols.sum(&n, &Size::number(1)), None);
        assert_eq!(symbols.quotient(&n, &Size::number(2)), None);
        assert_eq!(symbols.sum(&n, &n).unwrap().over(&n), Some(Size::number(2)));
        assert!(symbols.dim_of("half", vec![n]).is_none());
    }

    #[test]
    fn numbers_at_the_end_of_their_range_do_not_wrap_around() {
        let mut symbols = Symbols::default();
        let (far, two) = (Size::number(i64::MIN), Size::number(2));
        assert_eq!(symbols.product(&far, &two).unwrap().as_number(), None);
        assert_eq!(symbols.sum(&far, &far).unwrap().as_number(), None);
        assert_eq!(far.over(&Size::number(-1)), None);
        assert!(!symbols.is_natural(&far));
    }
}
