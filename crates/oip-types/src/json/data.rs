//! Decodes the `data` member of a tensor into a typed buffer.

use bytes::Bytes;
use tensor_core::{DType, Element, Shape, Tensor, bf16, f16};

use super::{Cursor, Number, no_json_form, run::Run};
use crate::{BytesTensor, DataType, Memory, Reservation, ServiceError, TensorValue};

/// The budget for the decoded tensors of a body.
pub(crate) struct Room<'m> {
    /// Number of bytes that further tensors of the body may take.
    pub(crate) left: usize,
    /// The memory budget, which must grant each allocation in advance.
    pub(crate) memory: &'m dyn Memory,
}

/// Parses a tensor's `data` member into a buffer of its datatype.
///
/// Data may be flat, or nested up to `max_depth` levels with equal lengths on each level. If there are as
/// many levels as the shape has dimensions, the lengths must equal the dimensions. The buffer never exceeds
/// `room.left`, and the capacity reserved up front never exceeds what the JSON can hold. Subtracts the
/// buffer's size from `room.left`.
pub(crate) fn read_data(
    cursor: &mut Cursor<'_>,
    datatype: DataType,
    shape: &Shape,
    max_depth: usize,
    room: &mut Room<'_>,
) -> Result<TensorValue, ServiceError> {
    let mut reader = Reader {
        cursor,
        shape,
        max_depth,
        room,
    };
    match datatype {
        DataType::Bytes => reader.strings(),
        DataType::Fixed(dtype) => match dtype {
            DType::Bool => reader.elements::<bool>(),
            DType::U8 => reader.elements::<u8>(),
            DType::U16 => reader.elements::<u16>(),
            DType::U32 => reader.elements::<u32>(),
            DType::U64 => reader.elements::<u64>(),
            DType::I8 => reader.elements::<i8>(),
            DType::I16 => reader.elements::<i16>(),
            DType::I32 => reader.elements::<i32>(),
            DType::I64 => reader.elements::<i64>(),
            DType::F16 => reader.elements::<f16>(),
            DType::BF16 => reader.elements::<bf16>(),
            DType::F32 => reader.elements::<f32>(),
            DType::F64 => reader.elements::<f64>(),
            _ => Err(no_json_form(datatype)),
        },
    }
}

struct Reader<'r, 'a, 'm> {
    cursor: &'r mut Cursor<'a>,
    shape: &'r Shape,
    max_depth: usize,
    room: &'r mut Room<'m>,
}

impl Reader<'_, '_, '_> {
    fn elements<T: JsonElement>(&mut self) -> Result<TensorValue, ServiceError> {
        let expected = self.shape.element_count();
        let mut sink = Elements {
            elements: Vec::<T>::new(),
            expected: usize::try_from(expected).unwrap_or(usize::MAX),
            allowed: self.room.left / size_of::<T>(),
            shape: self.shape,
        };
        // An element takes at least one character and a comma, so the length of the JSON bounds the count.
        let possible = expected.min(self.cursor.remaining() as u64 / 2 + 1) as usize;
        let possible = possible.min(sink.allowed);
        let grant = self.room.memory.reserve(possible * size_of::<T>())?;
        let reserved = sink.elements.try_reserve_exact(possible);
        reserved.map_err(|_| too_large(self.shape, T::DTYPE.into()))?;
        self.walk(&mut sink)?;
        self.room.left -= sink.elements.len() * size_of::<T>();
        let tensor = Tensor::from_vec(self.shape.clone(), sink.elements).and_then(|tensor| {
            let spec = tensor.spec().clone();
            Tensor::new(spec, grant.own(tensor.into_bytes()))
        });
        tensor
            .map(TensorValue::Fixed)
            .map_err(|error| ServiceError::invalid(error.to_string()))
    }

    fn strings(&mut self) -> Result<TensorValue, ServiceError> {
        let expected = self.shape.element_count();
        let mut sink = Strings {
            raw: Vec::new(),
            missing: expected,
            allowed: self.room.left,
            shape: self.shape,
            grant: self.room.memory.reserve(0)?,
        };
        self.walk(&mut sink)?;
        let Strings {
            mut raw, mut grant, ..
        } = sink;
        self.room.left -= raw.len();
        // Growth by doubling may leave much of the buffer unused.
        if raw.capacity() - raw.len() > raw.len() / 8 {
            raw.shrink_to_fit();
            grant.shrink_to(raw.capacity());
        }
        let raw = grant.own(Bytes::from(raw));
        BytesTensor::new(self.shape.clone(), raw).map(TensorValue::Bytes)
    }

    /// Walks the nested arrays, passes elements to `sink`, and checks nesting and count.
    fn walk(&mut self, sink: &mut impl Sink) -> Result<(), ServiceError> {
        let cursor = &mut *self.cursor;
        let mut nesting = Nesting {
            max_depth: self.max_depth,
            ..Nesting::default()
        };
        let mut count = 0u64;
        loop {
            // The cursor is at a value: an array or an element.
            if cursor.eat(b'[') {
                nesting.open(cursor)?;
                if !cursor.eat(b']') {
                    continue;
                }
                nesting.close(cursor)?;
            } else {
                let run = if nesting.depth() > 0 { sink.run(cursor) } else { 0 };
                nesting.elements(run.max(1), cursor)?;
                count += run.max(1);
                if run > 0 {
                    // After a comma, the cursor is at a value again.
                    continue;
                }
                sink.element(cursor)
                    .map_err(|error| error.within(format_args!("element {}", count - 1)))?;
            }
            // Closes the arrays that end after this value, until a comma.
            while nesting.depth() > 0 && !cursor.eat(b',') {
                if !cursor.eat(b']') {
                    return Err(cursor.unexpected("',' or ']'"));
                }
                nesting.close(cursor)?;
            }
            if nesting.depth() == 0 {
                break;
            }
        }
        let (expected, shape) = (self.shape.element_count(), self.shape);
        if count != expected {
            let message = format!("expected {expected} elements for shape {shape}, found {count}");
            return Err(ServiceError::invalid(message));
        }
        let nested = nesting.dims();
        if nested.len() > 1 && nested.len() == shape.rank() && nested != shape.dims() {
            let message = format!("the data is nested as {nested:?}, the shape says {shape}");
            return Err(ServiceError::invalid(message));
        }
        Ok(())
    }
}

/// Receives the elements of one `data` member.
trait Sink {
    /// Consumes the elements that the fast path can parse, each with the comma after it, and returns their
    /// number.
    fn run(&mut self, cursor: &mut Cursor<'_>) -> u64;

    /// Consumes one element.
    fn element(&mut self, cursor: &mut Cursor<'_>) -> Result<(), ServiceError>;
}

struct Elements<'s, T> {
    elements: Vec<T>,
    expected: usize,
    allowed: usize,
    shape: &'s Shape,
}

impl<T: JsonElement> Sink for Elements<'_, T> {
    fn run(&mut self, cursor: &mut Cursor<'_>) -> u64 {
        let before = self.elements.len();
        let limit = self.expected.min(self.allowed);
        cursor.advance(|bytes, at| T::read_run(bytes, at, &mut self.elements, limit));
        (self.elements.len() - before) as u64
    }

    fn element(&mut self, cursor: &mut Cursor<'_>) -> Result<(), ServiceError> {
        let element = T::read(cursor)?;
        // Elements beyond the shape's count are only counted, for the error message.
        if self.elements.len() < self.expected {
            if self.elements.len() == self.allowed {
                return Err(too_large(self.shape, T::DTYPE.into()));
            }
            self.elements.push(element);
        }
        Ok(())
    }
}

struct Strings<'s> {
    raw: Vec<u8>,
    missing: u64,
    allowed: usize,
    shape: &'s Shape,
    grant: Box<dyn Reservation>,
}

impl Strings<'_> {
    /// Reserves capacity for `bytes` more bytes, after the budget has granted the memory.
    fn reserve(&mut self, bytes: usize) -> Result<(), ServiceError> {
        let (needed, capacity) = (self.raw.len() + bytes, self.raw.capacity());
        if needed > capacity {
            let capacity = needed.max((2 * capacity).clamp(64, self.allowed.max(64)));
            self.grant.grow(capacity - self.raw.capacity())?;
            self.raw.reserve_exact(capacity - self.raw.len());
        }
        Ok(())
    }
}

impl Sink for Strings<'_> {
    fn run(&mut self, _: &mut Cursor<'_>) -> u64 {
        0
    }

    fn element(&mut self, cursor: &mut Cursor<'_>) -> Result<(), ServiceError> {
        let string = cursor.string()?;
        // Elements beyond the shape's count are only counted, for the error message.
        if self.missing > 0 {
            if self.raw.len() + BytesTensor::LENGTH_PREFIX + string.len() > self.allowed {
                return Err(too_large(self.shape, DataType::Bytes));
            }
            self.reserve(BytesTensor::LENGTH_PREFIX + string.len())?;
            BytesTensor::push_element(&mut self.raw, string.as_bytes())?;
            self.missing -= 1;
        }
        Ok(())
    }
}

/// Tracks how the arrays of one `data` member nest, and whether the nesting is regular.
#[derive(Default)]
struct Nesting {
    max_depth: usize,
    /// The number of values so far in each open array.
    open: Vec<u64>,
    /// The length of the arrays at each depth; `None` until an array of that depth has closed.
    lengths: Vec<Option<u64>>,
    /// The depth of the elements; `None` until the first element.
    element_depth: Option<usize>,
}

impl Nesting {
    fn depth(&self) -> usize {
        self.open.len()
    }

    fn open(&mut self, cursor: &Cursor<'_>) -> Result<(), ServiceError> {
        if self.depth() == self.max_depth {
            let (limit, at) = (self.max_depth, cursor.position());
            return Err(ServiceError::invalid(format!(
                "nested deeper than {limit} arrays at byte {at}"
            )));
        }
        if self.element_depth == Some(self.depth()) {
            return Err(ragged(cursor));
        }
        self.count_values(1);
        self.open.push(0);
        if self.lengths.len() < self.depth() {
            self.lengths.push(None);
        }
        Ok(())
    }

    /// Records `count` elements at the current depth.
    fn elements(&mut self, count: u64, cursor: &Cursor<'_>) -> Result<(), ServiceError> {
        if self.element_depth != Some(self.depth()) {
            if self.element_depth.is_some() || self.lengths.len() > self.depth() {
                return Err(ragged(cursor));
            }
            self.element_depth = Some(self.depth());
        }
        self.count_values(count);
        Ok(())
    }

    fn count_values(&mut self, more: u64) {
        if let Some(count) = self.open.last_mut() {
            *count += more;
        }
    }

    fn close(&mut self, cursor: &Cursor<'_>) -> Result<(), ServiceError> {
        let depth = self.depth();
        let length = self.open.pop();
        match &mut self.lengths[depth - 1] {
            known @ None => *known = length,
            known if *known != length => return Err(ragged(cursor)),
            _ => {}
        }
        Ok(())
    }

    fn dims(&self) -> Vec<u64> {
        self.lengths.iter().copied().flatten().collect()
    }
}

fn ragged(cursor: &Cursor<'_>) -> ServiceError {
    let at = cursor.position();
    ServiceError::invalid(format!(
        "the data's nested arrays have different lengths or depths at byte {at}"
    ))
}

fn too_large(shape: &Shape, datatype: DataType) -> ServiceError {
    let message = format!("the data of {datatype}{shape} is larger than the server accepts");
    ServiceError::new(crate::ErrorCode::TooLarge, message)
}

/// An element type that can be decoded from JSON.
trait JsonElement: Element + Run {
    fn read(cursor: &mut Cursor<'_>) -> Result<Self, ServiceError>;
}

macro_rules! integers {
    ($($type:ty)*) => {$(
        impl JsonElement for $type {
            fn read(cursor: &mut Cursor<'_>) -> Result<Self, ServiceError> {
                let number = read_number(cursor, DataType::Fixed(Self::DTYPE))?;
                match number.to_integer().map(Self::try_from) {
                    Some(Ok(value)) => Ok(value),
                    _ => Err(unfit(number, DataType::Fixed(Self::DTYPE))),
                }
            }
        }
    )*};
}

integers!(u8 u16 u32 u64 i8 i16 i32 i64);

macro_rules! floats {
    ($($type:ty, $convert:expr;)*) => {$(
        impl JsonElement for $type {
            fn read(cursor: &mut Cursor<'_>) -> Result<Self, ServiceError> {
                let is_number = match cursor.peek() {
                    Some(b'0'..=b'9') => true,
                    Some(b'-') => cursor.second_raw() != Some(b'I'),
                    _ => false,
                };
                if is_number {
                    let number = cursor.number()?;
                    let value: Self = $convert(number);
                    if value.is_finite() {
                        return Ok(value);
                    }
                    return Err(unfit(number, DataType::Fixed(Self::DTYPE)));
                }
                read_non_finite(cursor, DataType::Fixed(Self::DTYPE)).map(|value| <$type>::from_f32(value))
            }
        }
    )*};
}

floats! {
    f16, |number: Number<'_>| f16::from_f64(number.to_f64());
    bf16, |number: Number<'_>| bf16::from_f64(number.to_f64());
    f32, Number::to_f32;
    f64, Number::to_f64;
}

/// Provides `from_f32` for `f32` and `f64`, so that all float types share the code for NaN and the
/// infinities.
trait FromF32 {
    fn from_f32(value: f32) -> Self;
}

impl FromF32 for f32 {
    fn from_f32(value: f32) -> Self {
        value
    }
}

impl FromF32 for f64 {
    fn from_f32(value: f32) -> Self {
        value.into()
    }
}

impl JsonElement for bool {
    fn read(cursor: &mut Cursor<'_>) -> Result<Self, ServiceError> {
        if cursor.eat_word("true") {
            return Ok(true);
        }
        if cursor.eat_word("false") {
            return Ok(false);
        }
        let number = read_number(cursor, DataType::BOOL)?;
        match number.to_integer() {
            Some(0) => Ok(false),
            Some(1) => Ok(true),
            _ => Err(unfit(number, DataType::BOOL)),
        }
    }
}

#[inline]
fn read_number<'a>(cursor: &mut Cursor<'a>, datatype: DataType) -> Result<Number<'a>, ServiceError> {
    match cursor.peek() {
        Some(b'-' | b'0'..=b'9') => cursor.number(),
        _ => Err(wrong_kind(cursor, datatype)),
    }
}

/// Reads NaN and the infinities as bare words or strings, and null as NaN.
fn read_non_finite(cursor: &mut Cursor<'_>, datatype: DataType) -> Result<f32, ServiceError> {
    const WORDS: [(&str, f32); 7] = [
        ("null", f32::NAN),
        ("NaN", f32::NAN),
        ("Infinity", f32::INFINITY),
        ("-Infinity", f32::NEG_INFINITY),
        ("\"NaN\"", f32::NAN),
        ("\"Infinity\"", f32::INFINITY),
        ("\"-Infinity\"", f32::NEG_INFINITY),
    ];
    let known = WORDS.into_iter().find(|(word, _)| cursor.eat_word(word));
    known
        .map(|(_, value)| value)
        .ok_or_else(|| wrong_kind(cursor, datatype))
}

#[cold]
fn unfit(number: Number<'_>, datatype: DataType) -> ServiceError {
    let shown: String = number.text().chars().take(40).collect();
    let cut = if shown.len() < number.text().len() {
        "…"
    } else {
        ""
    };
    ServiceError::invalid(format!("{shown}{cut} does not fit {datatype}"))
}

#[cold]
fn wrong_kind(cursor: &Cursor<'_>, datatype: DataType) -> ServiceError {
    let expected = match datatype {
        DataType::BOOL => "true, false, 0 or 1",
        DataType::Bytes => "a string",
        DataType::Fixed(_) => "a number",
    };
    cursor.unexpected(&format!("{expected} for {datatype}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(datatype: &str, dims: &[u64], text: &str) -> Result<TensorValue, ServiceError> {
        let mut cursor = Cursor::new(text.as_bytes())?;
        let datatype = DataType::from_name(datatype)?;
        let value = read_data(
            &mut cursor,
            datatype,
            &Shape::new(dims).unwrap(),
            64,
            &mut Room {
                left: 1 << 20,
                memory: &crate::UnlimitedMemory,
            },
        )?;
        cursor.finish()?;
        Ok(value)
    }

    fn elements<T: Element>(datatype: &str, dims: &[u64], text: &str) -> Vec<T> {
        let value = read(datatype, dims, text).unwrap_or_else(|error| panic!("{text}: {error}"));
        value.as_fixed().unwrap().to_vec().unwrap()
    }

    fn message(datatype: &str, dims: &[u64], text: &str) -> String {
        match read(datatype, dims, text) {
            Ok(_) => panic!("{datatype} {dims:?} {text} was accepted"),
            Err(error) => {
                assert_eq!(error.code(), crate::ErrorCode::InvalidArgument);
                error.to_string()
            }
        }
    }

    #[test]
    fn flat_and_nested_data() {
        for text in [
            "[1,2,3,4,5,6]",
            "[[1,2,3],[4,5,6]]",
            " [ [ 1 , 2 , 3 ] , [4,5,6 ] ]",
            "[[[1],[2],[3],[4],[5],[6]]]",
        ] {
            assert_eq!(
                elements::<i32>("INT32", &[2, 3], text),
                [1, 2, 3, 4, 5, 6],
                "{text}"
            );
        }
        assert_eq!(elements::<f32>("FP32", &[], "1.5"), [1.5]);
        assert_eq!(elements::<f32>("FP32", &[], "[1.5]"), [1.5]);
        assert!(elements::<u8>("UINT8", &[0], "[]").is_empty());
        assert!(elements::<u8>("UINT8", &[2, 0], "[[], []]").is_empty());
        let deep = format!("{}7{}", "[".repeat(64), "]".repeat(64));
        assert_eq!(elements::<u8>("UINT8", &[1], &deep), [7]);
    }

    /// Rejects wrong counts, ragged nesting, and nesting that contradicts the shape.
    #[test]
    fn wrong_counts_and_ragged_nesting() {
        assert_eq!(
            message("INT32", &[3], "[1,2]"),
            "expected 3 elements for shape [3], found 2"
        );
        assert_eq!(
            message("INT32", &[1], "[1,2,3]"),
            "expected 1 elements for shape [1], found 3"
        );
        assert_eq!(
            message("BOOL", &[3], "[true]"),
            "expected 3 elements for shape [3], found 1"
        );
        assert_eq!(
            message("INT32", &[3, 2], "[[1,2,3],[4,5,6]]"),
            "the data is nested as [2, 3], the shape says [3, 2]"
        );
        for ragged in [
            "[[1,2],[3]]",
            "[1,[2],3]",
            "[[1],2,3]",
            "[[],[1,2,3]]",
            "[[[1]],[2],[3]]",
            "[[1,2],3]",
        ] {
            let found = message("INT32", &[3], ragged);
            assert!(found.contains("different lengths or depths"), "{ragged}: {found}");
        }
    }

    /// Rejects nesting that would overflow the stack.
    #[test]
    fn deep_nesting_is_refused() {
        for depth in [65, 129, 250_000] {
            let found = message("INT32", &[1], &"[".repeat(depth));
            assert!(
                found.starts_with("nested deeper than 64 arrays at byte"),
                "{found}"
            );
        }
    }

    /// Rejects numbers that do not fit the datatype, and decodes large integers exactly.
    #[test]
    fn ranges() {
        for (datatype, text, shown) in [
            ("UINT8", "256", "256 does not fit UINT8"),
            ("UINT64", "-1", "-1 does not fit UINT64"),
            ("INT32", "1.5", "1.5 does not fit INT32"),
            (
                "INT64",
                "9223372036854775808",
                "9223372036854775808 does not fit INT64",
            ),
            ("FP32", "1e39", "1e39 does not fit FP32"),
            ("FP64", "-1e309", "-1e309 does not fit FP64"),
            ("FP16", "65520", "65520 does not fit FP16"),
            ("BF16", "4e38", "4e38 does not fit BF16"),
            ("BOOL", "2", "2 does not fit BOOL"),
            ("INT8", "128", "128 does not fit INT8"),
        ] {
            assert_eq!(
                message(datatype, &[2], &format!("[0, {text}]")),
                format!("element 1: {shown}")
            );
        }
        assert_eq!(
            elements::<i64>("INT64", &[1], "[9007199254740993]"),
            [9_007_199_254_740_993]
        );
        assert_eq!(
            elements::<u64>("UINT64", &[1], "[18446744073709551615]"),
            [u64::MAX]
        );
        assert_eq!(elements::<i32>("INT32", &[2], "[3.0, 1e2]"), [3, 100]);
        assert_eq!(
            elements::<bool>("BOOL", &[4], "[0, 1, true, false]"),
            [false, true, true, false]
        );
        assert_eq!(
            elements::<f16>("FP16", &[2], "[0.1, 65504]"),
            [f16::from_f64(0.1), f16::MAX]
        );
    }

    /// Rejects values of the wrong kind.
    #[test]
    fn kinds() {
        for (datatype, text) in [
            ("FP32", "\"1\""),
            ("BOOL", "\"true\""),
            ("INT8", "true"),
            ("INT8", "null"),
            ("BYTES", "1"),
            ("BYTES", "null"),
            ("FP32", "true"),
            ("FP32", "{}"),
            ("INT8", "NaN"),
            ("FP64", "-Inf"),
        ] {
            let found = message(datatype, &[1], &format!("[{text}]"));
            assert!(
                found.contains("element 0: invalid JSON at byte") && found.contains("expected"),
                "{found}"
            );
        }
    }

    #[test]
    fn non_finite_floats_have_three_spellings() {
        let text = r#"[NaN, "NaN", null, Infinity, "Infinity", -Infinity, "-Infinity", -0.0]"#;
        let values = elements::<f32>("FP32", &[8], text);
        assert!(values[..3].iter().all(|value| value.is_nan()));
        assert_eq!(
            values[3..7],
            [f32::INFINITY, f32::INFINITY, f32::NEG_INFINITY, f32::NEG_INFINITY]
        );
        assert!(values[7].is_sign_negative());
        assert!(elements::<bf16>("BF16", &[1], "[null]")[0].is_nan());
    }

    #[test]
    fn strings_take_the_raw_form() {
        let value = read("BYTES", &[2, 2], r#"[["a", ""], ["\u00e9", "\u0000"]]"#).unwrap();
        let strings: Vec<&[u8]> = value.as_bytes().unwrap().iter().collect();
        assert_eq!(strings, [&b"a"[..], b"", "é".as_bytes(), b"\0"]);
    }

    #[test]
    fn malformed_arrays() {
        for text in [
            "[1,2", "[1 2]", "[1,,2]", "[,1]", "[1,2,]", "", "]", "[1,2}", "[[1,2]",
        ] {
            let found = message("INT32", &[2], text);
            assert!(found.contains("invalid JSON at byte"), "{text}: {found}");
        }
    }

    #[test]
    fn the_budget_and_the_text_bound_what_is_allocated() {
        let read = |dims: &[u64], text: &str, budget: usize| {
            let mut room = Room {
                left: budget,
                memory: &crate::UnlimitedMemory,
            };
            let mut cursor = Cursor::new(text.as_bytes()).unwrap();
            read_data(
                &mut cursor,
                DataType::INT64,
                &Shape::new(dims).unwrap(),
                64,
                &mut room,
            )
        };
        assert!(read(&[2], "[1,2]", 16).is_ok());
        assert_eq!(
            read(&[2], "[1,2]", 15).unwrap_err().code(),
            crate::ErrorCode::TooLarge
        );
        // The shape claims a terabyte; the body has five bytes.
        let error = read(&[1 << 37], "[1,2]", usize::MAX).unwrap_err();
        assert_eq!(
            error.to_string(),
            "expected 137438953472 elements for shape [137438953472], found 2"
        );
    }
}
