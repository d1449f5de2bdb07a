//! Writes JSON into one buffer, or into chunks whose memory is budgeted.

use bytes::Bytes;
use tensor_core::{DType, Shape, Tensor, TensorSpec, TensorView, bf16, f16};

use super::{
    no_json_form,
    print::{JsonPrint, ROOM},
};

use crate::{
    BytesTensor, Memory, NonFinite, ParameterValue, Parameters, Reservation, ServiceError, TensorValue,
};

/// Writes JSON to the end of one buffer, or into chunks of bounded size.
#[derive(Default)]
pub(crate) struct Writer<'m> {
    out: Vec<u8>,
    pieces: Option<Pieces<'m>>,
    is_of_request: bool,
}

/// The finished chunks, and the budget for more.
struct Pieces<'m> {
    memory: &'m dyn Memory,
    limit: usize,
    done: Vec<Bytes>,
    done_len: usize,
    /// The grant for the current buffer, and its size in bytes.
    grant: Option<(Box<dyn Reservation>, usize)>,
}

/// Maximum size of a chunk in bytes.
const PIECE: usize = 256 << 10;

impl Pieces<'_> {
    /// Extends the grant of the current buffer to `capacity` bytes.
    fn allow(&mut self, capacity: usize) -> Result<(), ServiceError> {
        match &mut self.grant {
            None => self.grant = Some((self.memory.reserve(capacity)?, capacity)),
            Some((grant, granted)) if capacity > *granted => {
                grant.grow(capacity - *granted)?;
                *granted = capacity;
            }
            Some(_) => {}
        }
        Ok(())
    }

    /// Moves the current buffer to the finished chunks.
    fn finish(&mut self, mut out: Vec<u8>) -> Result<(), ServiceError> {
        // Short strings are written without requesting memory, so the buffer may have outgrown its grant.
        self.allow(out.capacity())?;
        let wasted = out.capacity() - out.len();
        let is_worth_it = wasted > out.len() / 8 && wasted > 4096;
        if is_worth_it {
            out.shrink_to_fit();
        }
        self.done_len += out.len();
        if let Some((mut grant, _)) = self.grant.take() {
            grant.shrink_to(out.capacity());
            self.done.push(grant.own(out.into()));
        }
        Ok(())
    }
}

/// Creates the error for a response larger than the server allows.
pub(crate) fn answer_too_large(found: usize, limit: usize) -> ServiceError {
    ServiceError::internal(format!(
        "the response has at least {found} bytes, the limit is {limit}"
    ))
}

impl<'m> Writer<'m> {
    pub(crate) fn with_capacity(capacity: usize) -> Self {
        Self {
            out: Vec::with_capacity(capacity),
            pieces: None,
            is_of_request: false,
        }
    }

    /// Creates a writer for a request that a client sends.
    pub(crate) fn of_request() -> Self {
        Self {
            is_of_request: true,
            ..Self::default()
        }
    }

    /// Creates the error for a value without a JSON form, with advice.
    fn no_json_form(&self, what: &str) -> ServiceError {
        let advice = match self.is_of_request {
            true => "send this input as binary data",
            false => "request this output with \"binary_data\": true",
        };
        ServiceError::invalid(format!("{what} has no JSON form; {advice}"))
    }

    /// Creates a writer of chunks. `memory` must grant each chunk, and the output is limited to about `limit`
    /// bytes.
    pub(crate) fn in_pieces(memory: &'m dyn Memory, limit: usize) -> Self {
        Self {
            out: Vec::new(),
            pieces: Some(Pieces {
                memory,
                limit,
                done: Vec::new(),
                done_len: 0,
                grant: None,
            }),
            is_of_request: false,
        }
    }

    pub(crate) fn into_bytes(self) -> Bytes {
        self.out.into()
    }

    /// Returns the chunks of [`Writer::in_pieces`].
    pub(crate) fn into_pieces(self) -> Result<Vec<Bytes>, ServiceError> {
        let Some(mut pieces) = self.pieces else {
            return Ok(vec![self.out.into()]);
        };
        pieces.finish(self.out)?;
        Ok(pieces.done)
    }

    /// Reserves about `bytes` bytes, but at most half a chunk when the writer produces chunks.
    fn expect(&mut self, bytes: usize) -> Result<(), ServiceError> {
        match self.pieces {
            None => {
                self.out.reserve(bytes);
                Ok(())
            }
            Some(_) => self.room(bytes.min(PIECE / 2)),
        }
    }

    /// Reserves capacity for `bytes` bytes and the punctuation around them. Call this method before writing
    /// anything that may be long.
    ///
    /// # Errors
    /// When the output exceeds the limit; otherwise the errors of the memory budget.
    pub(crate) fn room(&mut self, bytes: usize) -> Result<(), ServiceError> {
        /// Number of extra bytes for the punctuation and names around a value.
        const MORE: usize = 256;
        let needed = self.out.len() + bytes + MORE;
        if needed <= self.out.capacity() {
            return Ok(());
        }
        let Some(pieces) = &mut self.pieces else {
            self.out.reserve(bytes);
            return Ok(());
        };
        pieces.memory.check()?;
        let found = pieces.done_len + self.out.len();
        if found > pieces.limit {
            return Err(answer_too_large(found, pieces.limit));
        }
        if needed <= PIECE {
            let capacity = needed.next_power_of_two();
            pieces.allow(capacity)?;
            self.out.reserve_exact(capacity - self.out.len());
        } else {
            if !self.out.is_empty() {
                pieces.finish(std::mem::take(&mut self.out))?;
            }
            let capacity = PIECE.max(bytes + MORE);
            pieces.allow(capacity)?;
            self.out = Vec::with_capacity(capacity);
        }
        Ok(())
    }

    /// Writes punctuation and names that need no escaping.
    pub(crate) fn raw(&mut self, text: &str) {
        self.out.extend_from_slice(text.as_bytes());
    }

    pub(crate) fn string(&mut self, text: &str) {
        self.out.push(b'"');
        self.characters(text);
        self.out.push(b'"');
    }

    /// Writes a string of any length.
    fn long_string(&mut self, text: &str) -> Result<(), ServiceError> {
        /// The number of bytes of a string that are written at once.
        const PART: usize = 4096;
        self.out.push(b'"');
        let mut rest = text;
        while !rest.is_empty() {
            let (part, after) = rest.split_at(rest.floor_char_boundary(PART));
            // An escaped character takes up to six bytes.
            self.room(6 * part.len())?;
            self.characters(part);
            rest = after;
        }
        self.out.push(b'"');
        Ok(())
    }

    /// Writes the contents of a string, escaped, without quotes.
    fn characters(&mut self, text: &str) {
        let mut rest = text.as_bytes();
        while let Some(special) = rest
            .iter()
            .position(|&byte| byte < b' ' || byte == b'"' || byte == b'\\')
        {
            self.out.extend_from_slice(&rest[..special]);
            match rest[special] {
                b'"' => self.raw("\\\""),
                b'\\' => self.raw("\\\\"),
                b'\n' => self.raw("\\n"),
                b'\r' => self.raw("\\r"),
                b'\t' => self.raw("\\t"),
                control => self.raw(&format!("\\u{control:04x}")),
            }
            rest = &rest[special + 1..];
        }
        self.out.extend_from_slice(rest);
    }

    pub(crate) fn integer(&mut self, value: impl itoa::Integer) {
        self.raw(itoa::Buffer::new().format(value));
    }

    /// Writes the items of an iterator in brackets, separated by commas.
    pub(crate) fn array<I: IntoIterator>(&mut self, items: I, mut item: impl FnMut(&mut Self, I::Item)) {
        self.out.push(b'[');
        for (index, value) in items.into_iter().enumerate() {
            if index > 0 {
                self.out.push(b',');
            }
            item(self, value);
        }
        self.out.push(b']');
    }

    pub(crate) fn parameters(&mut self, parameters: &Parameters) {
        self.out.push(b'{');
        for (index, (name, value)) in parameters.iter().enumerate() {
            if index > 0 {
                self.out.push(b',');
            }
            self.string(name);
            self.out.push(b':');
            match value {
                ParameterValue::Bool(value) => self.raw(if *value { "true" } else { "false" }),
                ParameterValue::Int64(value) => self.integer(*value),
                ParameterValue::Uint64(value) => self.integer(*value),
                ParameterValue::Double(value) if value.is_finite() => {
                    self.raw(zmij::Buffer::new().format_finite(*value));
                }
                ParameterValue::Double(_) => self.raw("null"),
                ParameterValue::String(value) => self.string(value),
            }
        }
        self.out.push(b'}');
    }
}

/// Writes the elements of a tensor as one flat array.
pub(crate) fn write_data(
    writer: &mut Writer<'_>,
    value: &TensorValue,
    non_finite: NonFinite,
) -> Result<(), ServiceError> {
    match value {
        TensorValue::Bytes(tensor) => write_strings(writer, tensor),
        TensorValue::Fixed(tensor) => match tensor.spec().dtype() {
            DType::Bool => write_elements::<bool>(writer, tensor, non_finite),
            DType::U8 => write_elements::<u8>(writer, tensor, non_finite),
            DType::U16 => write_elements::<u16>(writer, tensor, non_finite),
            DType::U32 => write_elements::<u32>(writer, tensor, non_finite),
            DType::U64 => write_elements::<u64>(writer, tensor, non_finite),
            DType::I8 => write_elements::<i8>(writer, tensor, non_finite),
            DType::I16 => write_elements::<i16>(writer, tensor, non_finite),
            DType::I32 => write_elements::<i32>(writer, tensor, non_finite),
            DType::I64 => write_elements::<i64>(writer, tensor, non_finite),
            DType::F16 => write_elements::<f16>(writer, tensor, non_finite),
            DType::BF16 => write_elements::<bf16>(writer, tensor, non_finite),
            DType::F32 => write_elements::<f32>(writer, tensor, non_finite),
            DType::F64 => write_elements::<f64>(writer, tensor, non_finite),
            _ => Err(no_json_form(value.datatype())),
        },
    }
}

fn write_strings(writer: &mut Writer<'_>, tensor: &BytesTensor) -> Result<(), ServiceError> {
    writer.expect(tensor.raw().len())?;
    write_texts(writer, tensor.iter())
}

/// Writes byte strings as an array of JSON strings.
pub(crate) fn write_texts<'t>(
    writer: &mut Writer<'_>,
    texts: impl Iterator<Item = &'t [u8]>,
) -> Result<(), ServiceError> {
    writer.room(0)?;
    writer.out.push(b'[');
    for (index, element) in texts.enumerate() {
        if index > 0 {
            writer.out.push(b',');
        }
        write_text(writer, element, index)?;
    }
    writer.room(0)?;
    writer.out.push(b']');
    Ok(())
}

/// Writes a byte string as a JSON string.
pub(crate) fn write_text(writer: &mut Writer<'_>, text: &[u8], index: usize) -> Result<(), ServiceError> {
    let text = std::str::from_utf8(text)
        .map_err(|_| writer.no_json_form(&format!("element {index} is not UTF-8 and")))?;
    writer.room(0)?;
    writer.long_string(text)
}

fn write_elements<T: JsonPrint>(
    writer: &mut Writer<'_>,
    tensor: &Tensor,
    non_finite: NonFinite,
) -> Result<(), ServiceError> {
    /// Number of elements processed at once; unaligned elements are copied first.
    const CHUNK: usize = 4096;
    /// Number of elements per printing step; their output fits a buffer that stays in the cache.
    const MANY: usize = 64;
    const FEW: usize = 8;
    const SOME: usize = 4 * FEW;
    let count = tensor.shape().element_count() as usize;
    writer.expect(count * T::TYPICAL_LEN + 2)?;
    writer.out.push(b'[');
    let chunks = tensor.bytes().chunks(CHUNK * size_of::<T>());
    for (chunk, bytes) in chunks.enumerate() {
        let internal = |error: &dyn std::fmt::Display| ServiceError::internal(error.to_string());
        let shape = Shape::vector((bytes.len() / size_of::<T>()) as u64);
        let spec = TensorSpec::new(T::DTYPE, shape).map_err(|error| internal(&error))?;
        let view = TensorView::new(spec, bytes).map_err(|error| internal(&error))?;
        // The dtype was just matched, so the cast cannot fail.
        let elements = view.to_cow::<T>().map_err(|error| internal(&error))?;
        let first = chunk * CHUNK;
        // Blocks are zeroed first, so a large block does not pay off for few elements.
        match elements.len() {
            ..=SOME => write_chunk::<T, FEW, { FEW * ROOM }>(writer, &elements, first, non_finite)?,
            _ => write_chunk::<T, MANY, { MANY * ROOM }>(writer, &elements, first, non_finite)?,
        }
    }
    // The comma after the last element becomes the closing bracket.
    match writer.out.last_mut() {
        Some(last) if count > 0 => *last = b']',
        _ => writer.out.push(b']'),
    }
    Ok(())
}

/// Prints elements in blocks, each followed by a comma; `first` is the index of the first one.
fn write_chunk<T: JsonPrint, const BLOCK: usize, const TEXT: usize>(
    writer: &mut Writer<'_>,
    elements: &[T],
    first: usize,
    non_finite: NonFinite,
) -> Result<(), ServiceError> {
    let mut prepared = [T::FirstStep::default(); BLOCK];
    let mut text = [0u8; TEXT];
    for (block, elements) in elements.chunks(BLOCK).enumerate() {
        for (prepared, element) in prepared.iter_mut().zip(elements) {
            *prepared = element.prepare();
        }
        let mut len = 0;
        for (index, (prepared, element)) in prepared.iter().zip(elements).enumerate() {
            let Some(room) = text[len..].first_chunk_mut::<ROOM>() else {
                unreachable!("each has its room")
            };
            let printed = match T::print(*prepared, room) {
                Some(printed) => printed,
                None => {
                    let word = element.to_string().replace("inf", "Infinity");
                    print_non_finite(&word, non_finite, room).ok_or_else(|| {
                        let index = first + block * BLOCK + index;
                        writer.no_json_form(&format!("element {index}: {word}"))
                    })?
                }
            };
            room[printed] = b',';
            len += printed + 1;
        }
        writer.room(len)?;
        writer.out.extend_from_slice(&text[..len]);
    }
    Ok(())
}

/// Prints a float that JSON cannot express as `NaN`, `Infinity` or `-Infinity`. Returns `None` if
/// `non_finite` makes it an error.
fn print_non_finite(word: &str, non_finite: NonFinite, out: &mut [u8; ROOM]) -> Option<usize> {
    let text = match non_finite {
        NonFinite::Null => "null".to_owned(),
        NonFinite::Literal => word.to_owned(),
        NonFinite::String => format!("\"{word}\""),
        NonFinite::Error => return None,
    };
    out[..text.len()].copy_from_slice(text.as_bytes());
    Some(text.len())
}
