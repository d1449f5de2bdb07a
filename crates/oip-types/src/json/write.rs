use bytes::Bytes;
use tensor_core::{DType, Tensor, bf16, f16};

use super::{
    no_json_form,
    print::{JsonPrint, ROOM},
};

use crate::{BytesTensor, NonFinite, ParameterValue, Parameters, ServiceError, TensorValue};

/// Prints JSON onto the end of a buffer.
#[derive(Default)]
pub(crate) struct Writer {
    out: Vec<u8>,
}

impl Writer {
    pub(crate) fn with_capacity(capacity: usize) -> Self {
        Self {
            out: Vec::with_capacity(capacity),
        }
    }

    pub(crate) fn into_bytes(self) -> Bytes {
        self.out.into()
    }

    /// Punctuation and names that need no escapes.
    pub(crate) fn raw(&mut self, text: &str) {
        self.out.extend_from_slice(text.as_bytes());
    }

    pub(crate) fn string(&mut self, text: &str) {
        self.out.push(b'"');
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
        self.out.push(b'"');
    }

    pub(crate) fn integer(&mut self, value: impl itoa::Integer) {
        self.raw(itoa::Buffer::new().format(value));
    }

    /// Values of an iterator in brackets, separated by commas.
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

/// Prints the elements of a tensor as one flat array.
pub(crate) fn write_data(
    writer: &mut Writer,
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

fn write_strings(writer: &mut Writer, tensor: &BytesTensor) -> Result<(), ServiceError> {
    writer.out.reserve(tensor.raw().len());
    let mut not_text = None;
    writer.array(
        tensor.iter().enumerate(),
        |writer, (index, element)| match std::str::from_utf8(element) {
            Ok(text) => writer.string(text),
            Err(_) => not_text = not_text.or(Some(index)),
        },
    );
    match not_text {
        None => Ok(()),
        Some(index) => Err(ServiceError::invalid(format!(
            "element {index} is not UTF-8 and has no JSON form; request this output with \"binary_data\": true"
        ))),
    }
}

fn write_elements<T: JsonPrint>(
    writer: &mut Writer,
    tensor: &Tensor,
    non_finite: NonFinite,
) -> Result<(), ServiceError> {
    /// Elements that take each step of printing together; their text fits a buffer that stays in the cache.
    const BLOCK: usize = 64;
    let view = tensor.view();
    // The dtype was just matched, so the cast cannot refuse it.
    let elements = view
        .to_cow::<T>()
        .map_err(|error| ServiceError::internal(error.to_string()))?;
    writer.out.reserve(elements.len() * T::TYPICAL_LEN + 2);
    writer.out.push(b'[');
    let mut prepared = [T::Prepared::default(); BLOCK];
    let mut text = [0u8; BLOCK * ROOM];
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
                None => print_non_finite(&element.to_string(), non_finite, room)
                    .map_err(|error| error.within(format_args!("element {}", block * BLOCK + index)))?,
            };
            room[printed] = b',';
            len += printed + 1;
        }
        writer.out.extend_from_slice(&text[..len]);
    }
    // The comma after the last element closes the array.
    match writer.out.last_mut() {
        Some(last) if !elements.is_empty() => *last = b']',
        _ => writer.out.push(b']'),
    }
    Ok(())
}

/// Prints a float without a JSON number, which Rust shows as `NaN`, `inf` or `-inf`.
fn print_non_finite(shown: &str, non_finite: NonFinite, out: &mut [u8; ROOM]) -> Result<usize, ServiceError> {
    let word = shown.replace("inf", "Infinity");
    let text = match non_finite {
        NonFinite::Null => "null".to_owned(),
        NonFinite::Literal => word,
        NonFinite::String => format!("\"{word}\""),
        NonFinite::Error => {
            let message = format!("{word} has no JSON form; request this output with \"binary_data\": true");
            return Err(ServiceError::invalid(message));
        }
    };
    out[..text.len()].copy_from_slice(text.as_bytes());
    Ok(text.len())
}
