//! Encodes protobuf messages by hand, because generated code cannot write hostile ones.

/// Appends a length-delimited field: a string, a message or packed numbers.
pub fn field(message: &mut Vec<u8>, number: u32, value: &[u8]) {
    varint(message, u64::from(number << 3 | 2));
    varint(message, value.len() as u64);
    message.extend_from_slice(value);
}

/// Appends a varint field.
pub fn number(message: &mut Vec<u8>, field: u32, value: u64) {
    varint(message, u64::from(field << 3));
    varint(message, value);
}

fn varint(message: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        message.push(value as u8 | 0x80);
        value >>= 7;
    }
    message.push(value as u8);
}

/// Field numbers of `ModelInferRequest` and its submessages.
pub mod request {
    /// The model's name.
    pub const MODEL: u32 = 1;
    /// Parameters of the request, and of an input.
    pub const PARAMETERS: u32 = 4;
    /// Input tensors.
    pub const INPUTS: u32 = 5;
    /// Requested outputs.
    pub const OUTPUTS: u32 = 6;
    /// Raw contents of inputs.
    pub const RAW: u32 = 7;
    /// An input's name.
    pub const NAME: u32 = 1;
    /// An input's datatype.
    pub const DATATYPE: u32 = 2;
    /// An input's shape.
    pub const SHAPE: u32 = 3;
    /// An input's typed contents.
    pub const CONTENTS: u32 = 5;
    /// INT64 elements in typed contents.
    pub const INT64: u32 = 3;
    /// BYTES elements in typed contents.
    pub const BYTES: u32 = 8;
}

/// Returns a request for a model, optionally with one UINT8 input.
#[must_use]
pub fn infer(model: &str, input: Option<(&str, &[u8])>) -> Vec<u8> {
    let mut message = Vec::new();
    field(&mut message, request::MODEL, model.as_bytes());
    if let Some((name, data)) = input {
        let mut tensor = Vec::new();
        field(&mut tensor, request::NAME, name.as_bytes());
        field(&mut tensor, request::DATATYPE, b"UINT8");
        number(&mut tensor, request::SHAPE, data.len() as u64);
        field(&mut message, request::INPUTS, &tensor);
        field(&mut message, request::RAW, data);
    }
    message
}
