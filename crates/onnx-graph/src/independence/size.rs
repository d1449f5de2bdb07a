//! Symbolic sizes: products of a coefficient, of symbols, and at most once of the number of rows.
//!
//! A symbol is a number that is the same for all requests that may be joined, such as a free dimension other
//! than the batch's. Equal terms share a symbol, so sizes that are computed in two ways compare equal.

use std::collections::HashMap;

/// A size: `coefficient * symbols * rows^(0 or 1)`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Size {
    coefficient: i64,
    /// Sorted.
    symbols: Vec<Symbol>,
    rows: bool,
}

type Symbol = u32;

/// The most that integers of 64 bits are.
pub(super) const WIDE: u128 = i64::MAX as u128;

/// The same of 32 bits.
pub(super) const NARROW: u128 = i32::MAX as u128;

/// Rows of a batch, so that 32 bits hold the product with a dimension.
pub const MAX_ROWS: u64 = (1 << 11) - 1;

/// The largest dimension of requests that are joined.
pub const MAX_DIM: u64 = (1 << 20) - 1;

/// A small number of elements for each row.
const MAX_PER_ROW: i64 = 100_000;

/// Longer products become a symbol of their own.
const MAX_FACTORS: usize = 24;

impl Size {
    pub(super) fn number(number: i64) -> Self {
        Self {
            coefficient: number,
            symbols: Vec::new(),
            rows: false,
        }
    }

    /// The number of rows of the batch.
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

    /// Whether a batch of some thousand rows stays below 10^9: a fixed, small number of elements for each row.
    pub(super) fn is_short_of_rows(&self) -> bool {
        self.rows && self.symbols.is_empty() && self.coefficient <= MAX_PER_ROW
    }

    /// The exact quotient, if this is a multiple of `divisor` for all values of the symbols.
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

    /// Whether it stands for another dimension each time, so that two of it may differ.
    pub(super) fn is_any(&self) -> bool {
        self.symbols.contains(&ANY)
    }

    /// Whether literal numbers, dimensions and rows are all that it is made of, so that two sizes differ if they are written differently.
    pub(super) fn is_literal(&self) -> bool {
        self.symbols.is_empty()
    }

    /// Whether each of its symbols is one of these sizes': where one of them is 0, so is their product.
    pub(super) fn has_only_symbols_of_all(&self, sizes: &[Self]) -> bool {
        let is_known = |symbol: &Symbol| sizes.iter().any(|size| size.symbols.contains(symbol));
        self.symbols
            .iter()
            .all(|symbol| *symbol != ANY && is_known(symbol))
    }

    /// Nothing times anything is nothing.
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

/// Stands for any dimension, another one each time.
const ANY: Symbol = 0;

/// The symbols of a graph.
pub(super) struct Symbols {
    terms: HashMap<Term, Symbol>,
    kinds: Vec<Kind>,
    /// Symbols of floating-point numbers that are literal integers.
    floats: HashMap<Symbol, i64>,
}

/// What is known of a symbol's values.
#[derive(Clone, Copy)]
struct Kind {
    /// At least 1 in requests that are joined: none of these is empty.
    is_positive: bool,
    /// At least 0.
    is_natural: bool,
    is_integer: bool,
    /// The most that it can be, up or down.
    most: u128,
}

/// What is known of a dimension.
#[derive(Clone, Copy)]
pub(super) struct Bounds {
    /// Whether it is at least 1 in requests that are joined.
    pub(super) is_positive: bool,
    /// As [`Symbols::most`].
    pub(super) most: u128,
}

/// What a symbol stands for.
#[derive(PartialEq, Eq, Hash)]
enum Term {
    /// A dimension's name in the file.
    Name(String),
    /// A function of other sizes.
    Of(&'static str, Vec<Size>),
}

impl Default for Symbols {
    fn default() -> Self {
        Self {
            terms: HashMap::new(),
            // That of `ANY`.
            kinds: vec![Kind::DIM],
            floats: HashMap::new(),
        }
    }
}

impl Symbols {
    /// A dimension that is another one each time: of the elements of a sequence, or of what a loop carries.
    pub(super) fn any() -> Size {
        size(ANY)
    }

    /// The same for a value that is looked at, where the dimension is a certain one.
    pub(super) fn settled(&mut self, dim: &Size) -> Size {
        if *dim == Self::any() {
            self.dim()
        } else {
            dim.clone()
        }
    }

    /// A free dimension with this name in the file.
    pub(super) fn named(&mut self, name: &str) -> Size {
        self.of_term(Term::Name(name.to_owned()), Kind::POSITIVE)
    }

    /// A free dimension of an input.
    pub(super) fn of_input(&mut self) -> Size {
        self.symbol(Kind::POSITIVE)
    }

    /// Whether a size is at least 1 in requests that are joined.
    pub(super) fn is_positive(&self, size: &Size) -> bool {
        size.coefficient > 0 && self.kind_of(size).is_positive
    }

    /// A dimension of which nothing is known.
    pub(super) fn dim(&mut self) -> Size {
        self.symbol(Kind::DIM)
    }

    /// A number of any type, of which nothing is known but that it is the same for all requests.
    pub(super) fn real(&mut self) -> Size {
        self.symbol(Kind::REAL)
    }

    /// A floating-point number that is a literal integer. No arithmetic is done with it, which would have to round as the runtime does.
    pub(super) fn float(&mut self, number: i64) -> Size {
        let float = self.of_term(Term::Of("float", vec![Size::number(number)]), Kind::REAL);
        if let [symbol] = float.symbols[..] {
            self.floats.insert(symbol, number);
        }
        float
    }

    /// The number that such a symbol stands for.
    pub(super) fn as_float(&self, size: &Size) -> Option<i64> {
        match size.symbols[..] {
            [symbol] if size.coefficient == 1 && !size.rows => self.floats.get(&symbol).copied(),
            _ => None,
        }
    }

    /// Whether a size is known to be an integer, of a type that holds sizes.
    pub(super) fn is_integer(&self, size: &Size) -> bool {
        self.kind_of(size).is_integer
    }

    /// A dimension that is a function of sizes: one symbol for equal arguments, `None` if it depends on the number of rows.
    pub(super) fn dim_of(&mut self, function: &'static str, arguments: Vec<Size>) -> Option<Size> {
        self.of(function, arguments, Kind::DIM)
    }

    /// The same where more is known.
    pub(super) fn bounded_dim_of(
        &mut self,
        function: &'static str,
        arguments: Vec<Size>,
        bounds: Bounds,
    ) -> Option<Size> {
        self.of(function, arguments, Kind::within(bounds))
    }

    /// A dimension of which nothing else is known.
    pub(super) fn bounded_dim(&mut self, bounds: Bounds) -> Size {
        self.symbol(Kind::within(bounds))
    }

    fn of(&mut self, function: &'static str, arguments: Vec<Size>, kind: Kind) -> Option<Size> {
        let is_same = !arguments.iter().any(Size::has_rows);
        is_same.then(|| self.of_term(Term::Of(function, arguments), kind))
    }

    /// Whether a size is known to be at least 0.
    pub(super) fn is_natural(&self, size: &Size) -> bool {
        size.coefficient >= 0 && self.kind_of(size).is_natural
    }

    /// Whether a size is known to be an integer of at least 0.
    pub(super) fn is_dim(&self, size: &Size) -> bool {
        self.is_natural(size) && self.kind_of(size).is_integer
    }

    /// The size as an integer, which is another one if it may have a fraction.
    pub(super) fn as_integer(&mut self, size: &Size) -> Option<Size> {
        if let Some(number) = self.as_float(size) {
            return Some(Size::number(number));
        }
        match self.is_integer(size) {
            true => Some(size.clone()),
            false => self.of("integer", vec![size.clone()], Kind::INTEGER),
        }
    }

    /// The same in 32 bits, which need not hold the integer.
    pub(super) fn as_narrow(&mut self, size: &Size) -> Option<Size> {
        if let Some(number) = self.as_float(size) {
            return Some(Size::number(number));
        }
        match self.kind_of(size).is_dim() && self.most(size) <= NARROW {
            true => Some(size.clone()),
            false => self.of("narrow", vec![size.clone()], Kind::INTEGER),
        }
    }

    /// The same as a floating-point number, which is rounded.
    pub(super) fn as_real(&mut self, size: &Size) -> Option<Size> {
        let kind = Kind {
            is_positive: self.is_positive(size) && self.is_integer(size) && self.most(size) <= NARROW,
            ..Kind::REAL
        };
        self.of("real", vec![size.clone()], kind)
    }

    /// The most that a size can be, up or down, in requests that are joined: none has more rows than [`MAX_ROWS`], or larger dimensions
    /// than [`MAX_DIM`].
    pub(super) fn most(&self, size: &Size) -> u128 {
        let of_rows = if size.rows { MAX_ROWS } else { 1 };
        let factors = [size.coefficient.unsigned_abs(), of_rows].map(u128::from);
        factors
            .into_iter()
            .fold(self.kind_of(size).most, u128::saturating_mul)
    }

    /// What is known of a product of such symbols.
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

    /// What is known of the sum, the product or the quotient of two sizes.
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

    /// A quotient. An inexact one is a new symbol each time, since integers are truncated and floats are not.
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
    /// Of any tensor that memory holds.
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
