//! Prints tensors as NumPy prints arrays.

use std::fmt::{self, Write};

use half::{bf16, f16};

use crate::{
    TensorView,
    element::{iter, with_element},
};

/// Formats a tensor's elements for users, laid out and summarised as NumPy prints arrays.
///
/// Tensors of more than [`threshold`](Self::threshold) elements show [`edge_items`](Self::edge_items) at each
/// end of each axis, and floats share one format. Work and output are bounded for any size and rank: only
/// displayed elements are read.
///
/// ```
/// use tensor_core::{Shape, Tensor};
///
/// let tensor = Tensor::from_vec(Shape::new(&[2, 2])?, vec![1.5f32, -0.25, 3.0, f32::NAN])?;
/// assert_eq!(tensor.to_string(), "[[ 1.5  -0.25]\n [ 3.     nan]]");
///
/// let long = Tensor::from_vec(Shape::vector(5000), (0..5000i32).collect())?;
/// assert_eq!(long.to_string(), "[   0    1    2 ... 4997 4998 4999]");
/// assert_eq!(long.view().display().edge_items(1).to_string(), "[   0 ... 4999]");
/// # Ok::<(), tensor_core::SpecError>(())
/// ```
#[derive(Clone)]
pub struct TensorDisplay<'a> {
    view: TensorView<'a>,
    threshold: u64,
    edge_items: u64,
    precision: usize,
    line_width: usize,
}

impl<'a> TensorView<'a> {
    /// Returns a printer whose settings can be changed; [`fmt::Display`] uses NumPy's defaults.
    #[must_use]
    pub fn display(&self) -> TensorDisplay<'a> {
        TensorDisplay::new(self.clone())
    }
}

impl fmt::Display for TensorView<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.display().fmt(f)
    }
}

impl<'a> TensorDisplay<'a> {
    /// Maximum number of elements shown, however many axes are summarised.
    const MAX_CELLS: u64 = 10_000;

    fn new(view: TensorView<'a>) -> Self {
        Self {
            view,
            threshold: 1000,
            edge_items: 3,
            precision: 8,
            line_width: 75,
        }
    }

    /// Sets the element count above which the middle is omitted (default 1000).
    #[must_use]
    pub fn threshold(self, threshold: u64) -> Self {
        Self { threshold, ..self }
    }

    /// Sets the number of entries shown at each end of a summarised axis (default 3, at least 1).
    #[must_use]
    pub fn edge_items(self, edge_items: u64) -> Self {
        Self {
            edge_items: edge_items.max(1),
            ..self
        }
    }

    /// Sets the maximum number of digits after the decimal point (default 8).
    #[must_use]
    pub fn precision(self, precision: usize) -> Self {
        Self { precision, ..self }
    }

    /// Sets the number of characters per line before elements wrap (default 75).
    #[must_use]
    pub fn line_width(self, line_width: usize) -> Self {
        Self { line_width, ..self }
    }

    /// Returns the number of entries that each axis shows at its head and tail.
    fn axes(&self) -> Vec<Axis> {
        let dims = self.view.shape().dims();
        let summarise = self.view.spec().element_count() > self.threshold;
        let mut axes: Vec<Axis> = dims
            .iter()
            .map(
                |&dim| match summarise && dim > self.edge_items.saturating_mul(2) {
                    true => Axis {
                        dim,
                        head: self.edge_items,
                        tail: self.edge_items,
                    },
                    false => Axis {
                        dim,
                        head: dim,
                        tail: 0,
                    },
                },
            )
            .collect();
        // Many short axes can still multiply to too many elements; then outer axes show only their first
        // entry.
        let cells = |axes: &[Axis]| {
            axes.iter()
                .map(Axis::shown)
                .try_fold(1u64, u64::checked_mul)
                .unwrap_or(u64::MAX)
        };
        for outer in 0..axes.len() {
            if cells(&axes) <= Self::MAX_CELLS.max(self.threshold) {
                break;
            }
            axes[outer] = Axis {
                head: 1,
                tail: 0,
                ..axes[outer]
            };
        }
        axes
    }

    /// Returns the indices of the displayed elements, in row-major order.
    fn positions(axes: &[Axis]) -> Vec<usize> {
        axes.iter().fold(vec![0], |outer, axis| {
            let entries = (0..axis.head).chain(axis.dim - axis.tail..axis.dim);
            outer
                .into_iter()
                .flat_map(|base| {
                    entries
                        .clone()
                        .map(move |entry| base * axis.dim as usize + entry as usize)
                })
                .collect()
        })
    }

    fn write_axis(&self, out: &mut Lines<'_, '_>, axes: &[Axis], cells: &mut Cells) -> fmt::Result {
        let Some((axis, inner)) = axes.split_first() else {
            return out.word(&cells.next().unwrap_or_default(), 0);
        };
        out.open()?;
        let gap = axis.head + axis.tail < axis.dim;
        let items = axis.shown() + u64::from(gap);
        for item in 0..items {
            let is_gap = gap && item == axis.head;
            match (is_gap, inner.is_empty()) {
                (true, true) => out.word("...", usize::from(item > 0))?,
                (true, false) => out.text("...")?,
                (false, true) => out.word(&cells.next().unwrap_or_default(), usize::from(item > 0))?,
                (false, false) => self.write_axis(out, inner, cells)?,
            }
            if !inner.is_empty() && item + 1 < items {
                out.break_line(inner.len())?;
            }
        }
        out.close()
    }
}

impl fmt::Display for TensorDisplay<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.view.spec().element_count() == 0 {
            return write!(f, "[]");
        }
        let axes = self.axes();
        let positions = Self::positions(&axes);
        let (dtype, bytes) = (self.view.spec().dtype(), self.view.bytes());
        let width = dtype.size();
        let shown: Vec<u8> = positions
            .iter()
            .flat_map(|at| &bytes[at * width..][..width])
            .copied()
            .collect();
        let cells =
            with_element!(dtype, T => T::format(&iter::<T>(&shown).collect::<Vec<_>>(), self.precision));
        if let ([], [only]) = (&axes[..], &cells[..]) {
            let zero = if only.ends_with('.') { "0" } else { "" };
            return write!(f, "{only}{zero}");
        }
        let mut out = Lines {
            f,
            column: 0,
            indent: 0,
            line_width: self.line_width,
            blanks: 0,
        };
        self.write_axis(&mut out, &axes, &mut cells.into_iter())
    }
}

type Cells = std::vec::IntoIter<String>;

/// The number of entries that an axis shows at its head and tail.
#[derive(Clone, Copy)]
struct Axis {
    dim: u64,
    head: u64,
    tail: u64,
}

impl Axis {
    fn shown(&self) -> u64 {
        self.head + self.tail
    }
}

/// Writes output lines, and tracks the column to wrap them.
struct Lines<'f, 'a> {
    f: &'f mut fmt::Formatter<'a>,
    column: usize,
    indent: usize,
    line_width: usize,
    /// Spaces before the next word; a line break drops them.
    blanks: usize,
}

impl Lines<'_, '_> {
    fn text(&mut self, text: &str) -> fmt::Result {
        let trimmed = text.trim_end_matches(' ');
        if !trimmed.is_empty() {
            write!(self.f, "{:1$}{trimmed}", "", self.blanks)?;
            self.blanks = 0;
        }
        self.blanks += text.len() - trimmed.len();
        self.column += text.chars().count();
        Ok(())
    }

    fn open(&mut self) -> fmt::Result {
        self.indent += 1;
        self.text("[")
    }

    fn close(&mut self) -> fmt::Result {
        self.indent -= 1;
        self.text("]")
    }

    /// Writes an element after `space` columns, or on a new line if the element and the closing brackets do
    /// not fit.
    fn word(&mut self, word: &str, space: usize) -> fmt::Result {
        let fits = self.column + space + word.chars().count() + self.indent <= self.line_width;
        if space > 0 && !fits && self.column > self.indent {
            self.break_line(1)?;
        } else if space > 0 {
            self.text(" ")?;
        }
        self.text(word)
    }

    fn break_line(&mut self, newlines: usize) -> fmt::Result {
        self.blanks = 0;
        for _ in 0..newlines {
            self.f.write_char('\n')?;
        }
        self.column = self.indent;
        write!(self.f, "{:1$}", "", self.indent)
    }
}

/// Formats elements of one type in columns of equal width.
trait Cell: Sized {
    fn format(elements: &[Self], precision: usize) -> Vec<String>;
}

macro_rules! plain_cells {
    ($($type:ty)*) => {$(
        impl Cell for $type {
            fn format(elements: &[Self], _precision: usize) -> Vec<String> {
                pad_left(elements.iter().map(ToString::to_string).collect())
            }
        }
    )*};
}

plain_cells!(u8 u16 u32 u64 i8 i16 i32 i64);

impl Cell for bool {
    fn format(elements: &[Self], _precision: usize) -> Vec<String> {
        pad_left(
            elements
                .iter()
                .map(|&element| if element { "True" } else { "False" }.to_owned())
                .collect(),
        )
    }
}

macro_rules! float_cells {
    ($($type:ty, $decimal_digits:literal, $shortest:expr;)*) => {$(
        impl Cell for $type {
            fn format(elements: &[Self], precision: usize) -> Vec<String> {
                let floats: Vec<Float> = elements
                    .iter()
                    .map(|&element| Float { value: f64::from(element), shortest: $shortest(element) })
                    .collect();
                format_floats(&floats, precision, $decimal_digits)
            }
        }
    )*};
}

// For each type: its decimal precision, and its shortest form that parses back to the same value.
float_cells! {
    f16, 3, |x: f16| shortest_narrow(x.to_f32(), |y| f16::from_f32(y) == x);
    bf16, 2, |x: bf16| shortest_narrow(x.to_f32(), |y| bf16::from_f32(y) == x);
    f32, 6, |x: f32| format!("{x:e}");
    f64, 15, |x: f64| format!("{x:e}");
}

/// Returns the shortest scientific form of a 16-bit float; 8 digits after the point always suffice.
fn shortest_narrow(value: f32, same: impl Fn(f32) -> bool) -> String {
    let forms = (0..8).map(|digits| format!("{value:.digits$e}"));
    forms
        .into_iter()
        .find(|form| form.parse().is_ok_and(&same))
        .unwrap_or_else(|| format!("{value:e}"))
}

/// A float and its shortest scientific form, such as `-1.25e-3`.
struct Float {
    value: f64,
    shortest: String,
}

impl Float {
    fn significant_digits(&self) -> usize {
        self.shortest
            .bytes()
            .take_while(|&byte| byte != b'e')
            .filter(u8::is_ascii_digit)
            .count()
    }

    /// Returns the digits before and after the decimal point.
    fn positional(&self, precision: usize) -> (String, String) {
        let exponent: i32 = self
            .shortest
            .split_once('e')
            .and_then(|(_, exp)| exp.parse().ok())
            .unwrap_or(0);
        let fraction_digits = (self.significant_digits() as i32 - 1 - exponent).max(0) as usize;
        let text = format!("{:.1$}", self.value, fraction_digits.min(precision));
        split_at(&text, '.')
    }

    /// Returns the integer part, the fraction, and the sign and digits of the exponent.
    fn scientific(&self, precision: usize) -> (String, String, char, String) {
        let fraction_digits = self.significant_digits() - 1;
        let text = format!("{:.1$e}", self.value, fraction_digits.min(precision));
        let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let (sign, digits) = exponent
            .strip_prefix('-')
            .map_or(('+', exponent), |digits| ('-', digits));
        let (integer, fraction) = split_at(mantissa, '.');
        (integer, fraction, sign, digits.to_owned())
    }
}

/// Splits `number` at the decimal point `point`, without trailing zeros in the fraction.
fn split_at(number: &str, point: char) -> (String, String) {
    let (integer, fraction) = number.split_once(point).unwrap_or((number, ""));
    (integer.to_owned(), fraction.trim_end_matches('0').to_owned())
}

/// Formats all floats alike: with exponents if magnitudes are large, tiny or far apart, otherwise with
/// aligned decimal points.
fn format_floats(floats: &[Float], precision: usize, decimal_digits: i32) -> Vec<String> {
    let magnitudes = floats
        .iter()
        .map(|float| float.value.abs())
        .filter(|x| x.is_finite() && *x != 0.0);
    let (smallest, largest) = magnitudes.fold((f64::INFINITY, 0.0f64), |(low, high), x| {
        (low.min(x), high.max(x))
    });
    let with_exponent = largest >= 10f64.powi(decimal_digits.min(8))
        || (largest > 0.0 && (smallest < 1e-4 || largest / smallest > 1000.0));

    let finite = || floats.iter().filter(|float| float.value.is_finite());
    let mut cells: Vec<Option<String>> = if with_exponent {
        let parts: Vec<_> = finite().map(|float| float.scientific(precision)).collect();
        let integers = parts.iter().map(|part| part.0.len()).max().unwrap_or(0);
        let fractions = parts.iter().map(|part| part.1.len()).max().unwrap_or(0);
        let exponents = parts.iter().map(|part| part.3.len()).max().unwrap_or(0).max(2);
        parts
            .iter()
            .map(|(integer, fraction, sign, exponent)| {
                Some(format!(
                    "{integer:>integers$}.{fraction:0<fractions$}e{sign}{exponent:0>exponents$}"
                ))
            })
            .collect()
    } else {
        let parts: Vec<_> = finite().map(|float| float.positional(precision)).collect();
        let integers = parts.iter().map(|part| part.0.len()).max().unwrap_or(0);
        let fractions = parts.iter().map(|part| part.1.len()).max().unwrap_or(0);
        parts
            .iter()
            .map(|(integer, fraction)| Some(format!("{integer:>integers$}.{fraction:<fractions$}")))
            .collect()
    };
    let mut formatted = cells.iter_mut();
    let all = floats.iter().map(|float| match float.value {
        value if value.is_nan() => "nan".to_owned(),
        f64::INFINITY => "inf".to_owned(),
        f64::NEG_INFINITY => "-inf".to_owned(),
        _ => formatted.next().and_then(Option::take).unwrap_or_default(),
    });
    pad_left(all.collect())
}

/// Right-aligns all cells to the width of the widest cell.
fn pad_left(cells: Vec<String>) -> Vec<String> {
    let width = cells.iter().map(String::len).max().unwrap_or(0);
    cells.into_iter().map(|cell| format!("{cell:>width$}")).collect()
}

#[cfg(test)]
mod tests {
    use crate::{Element, Shape, Tensor, bf16, f16};

    fn show<T: Element>(dims: &[u64], elements: &[T]) -> String {
        Tensor::from_vec(Shape::new(dims).unwrap(), elements.to_vec())
            .unwrap()
            .to_string()
    }

    /// The expected output is what NumPy 2.4 prints for the same arrays.
    #[test]
    fn prints_like_numpy() {
        assert_eq!(show(&[3], &[0.5f32, 1.0, 0.1]), "[0.5 1.  0.1]");
        assert_eq!(show(&[2], &[1e-5f64, 1.0]), "[1.e-05 1.e+00]");
        assert_eq!(
            show(&[3], &[1.25e10f64, -3.5, 1e-300]),
            "[ 1.25e+010 -3.50e+000  1.00e-300]"
        );
        assert_eq!(
            show(&[3], &[f32::NAN, f32::NEG_INFINITY, 1.0]),
            "[ nan -inf   1.]"
        );
        assert_eq!(show(&[2], &[f64::NAN, f64::INFINITY]), "[nan inf]");
        assert_eq!(show(&[2, 2], &[1i64, -20, 300, 4]), "[[  1 -20]\n [300   4]]");
        assert_eq!(show(&[3], &[true, false, true]), "[ True False  True]");
        assert_eq!(show(&[1, 2, 2], &[1u8, 2, 3, 4]), "[[[1 2]\n  [3 4]]]");
        assert_eq!(show(&[2, 1, 2], &[1u8, 2, 3, 4]), "[[[1 2]]\n\n [[3 4]]]");
        assert_eq!(
            show(&[2], &[f16::from_f32(0.1), f16::from_f32(65504.0)]),
            "[1.00e-01 6.55e+04]"
        );
        assert_eq!(show(&[2], &[0.1f64, 1.0 / 3.0]), "[0.1        0.33333333]");
        assert_eq!(show::<f32>(&[0, 3], &[]), "[]");
        assert_eq!(show(&[], &[2.5f32]), "2.5");
        assert_eq!(show(&[], &[2f32]), "2.0");
        assert_eq!(show(&[3], &[0.0f32, -0.0, 1.5]), "[ 0.  -0.   1.5]");
        assert_eq!(
            show(&[2], &[bf16::from_f32(1.5), bf16::from_f32(0.1)]),
            "[1.5 0.1]"
        );
    }

    #[test]
    fn long_lines_wrap_at_the_width() {
        let text = show(&[30], &(1000..1030i32).collect::<Vec<_>>());
        assert_eq!(
            text,
            "[1000 1001 1002 1003 1004 1005 1006 1007 1008 1009 1010 1011 1012 1013\n \
             1014 1015 1016 1017 1018 1019 1020 1021 1022 1023 1024 1025 1026 1027\n \
             1028 1029]"
        );
    }

    #[test]
    fn large_tensors_show_their_corners() {
        let text = show(&[100, 100], &(0..10_000u32).collect::<Vec<_>>());
        assert_eq!(
            text,
            "[[   0    1    2 ...   97   98   99]\n \
             [ 100  101  102 ...  197  198  199]\n \
             [ 200  201  202 ...  297  298  299]\n \
             ...\n \
             [9700 9701 9702 ... 9797 9798 9799]\n \
             [9800 9801 9802 ... 9897 9898 9899]\n \
             [9900 9901 9902 ... 9997 9998 9999]]"
        );
    }

    #[test]
    fn many_short_axes_cannot_flood_the_page() {
        let dims = [2u64; 22];
        let text = show(&dims, &vec![7u8; 1 << 22]);
        assert!(text.len() < 200_000, "{} bytes", text.len());
        assert!(text.starts_with("[[[[") && text.contains("..."));
    }
}
