//! The first pass over a request's message: validates it and records counts and sizes before anything is
//! built.
//!
//! Follows protobuf's rules: fields in any order; the last value of a singular field wins; split embedded
//! messages are merged; the last entry of a map key wins; unknown fields are skipped. [`Limits`] bounds what
//! the outline keeps.

use std::collections::BTreeMap;

use oip_types::{RequestLimits, ServiceError};

use super::{
    account::Account,
    cursor::{At, Cursor, Failure, MAX_DEPTH, WireType, text},
    elements::{Elements, Field},
};

const REQUEST: &str = "ModelInferRequest";
const INPUT: &str = "InferInputTensor";
const OUTPUT: &str = "InferRequestedOutputTensor";
const PARAMETER: &str = "InferParameter";

/// Memory of an input in the outline and in the decoded request, in bytes, without the input's name.
const INPUT_COST: usize = 512;
/// Memory of a requested output, in bytes.
const OUTPUT_COST: usize = 256;
/// Memory of a parameter: a map entry in the outline and one in the request, with allocation overhead of
/// strings.
const PARAMETER_COST: usize = 320;
/// Memory of an entry of raw contents, in bytes.
const RAW_COST: usize = 64;

/// The fields of a message, as slices of the message.
#[derive(Default)]
pub(super) struct Outline<'m> {
    pub(super) model_name: &'m str,
    pub(super) model_version: &'m str,
    pub(super) id: &'m str,
    pub(super) parameters: Entries<'m>,
    pub(super) inputs: Vec<InputOutline<'m>>,
    pub(super) outputs: Vec<OutputOutline<'m>>,
    pub(super) raw: Vec<&'m [u8]>,
}

#[derive(Default)]
pub(super) struct InputOutline<'m> {
    pub(super) name: &'m str,
    pub(super) datatype: &'m str,
    /// The dimensions of the tensor, up to the limit.
    pub(super) shape: Vec<i64>,
    /// The number of dimensions in the message.
    pub(super) rank: usize,
    pub(super) parameters: Entries<'m>,
    pub(super) contents: Option<Elements<'m>>,
}

#[derive(Default)]
pub(super) struct OutputOutline<'m> {
    pub(super) name: &'m str,
    pub(super) parameters: Entries<'m>,
}

/// Parameters by name, up to one beyond the limit.
pub(super) type Entries<'m> = BTreeMap<&'m str, Value<'m>>;

/// The value of a parameter.
#[derive(Clone, Copy, Default)]
pub(super) enum Value<'m> {
    #[default]
    Missing,
    Bool(bool),
    Int64(i64),
    Uint64(u64),
    Double(f64),
    String(&'m str),
}

/// Walks messages and records their contents.
pub(super) struct Walk<'w, 'l> {
    pub(super) limits: &'w RequestLimits,
    pub(super) account: &'w mut Account<'l>,
}

impl Walk<'_, '_> {
    /// Walks a request's message. After an error, `outline` contains the fields before the error.
    pub(super) fn request<'m>(
        &mut self,
        message: &'m [u8],
        outline: &mut Outline<'m>,
    ) -> Result<(), Failure> {
        let mut cursor = Cursor::new(message);
        while !cursor.is_empty() {
            let (tag, wire_type) = self.key(&mut cursor)?;
            match tag {
                1 => outline.model_name = self.string(&mut cursor, wire_type).at(REQUEST, "model_name")?,
                2 => {
                    outline.model_version =
                        self.string(&mut cursor, wire_type).at(REQUEST, "model_version")?;
                }
                3 => outline.id = self.string(&mut cursor, wire_type).at(REQUEST, "id")?,
                4 => self
                    .entry(&mut cursor, wire_type, MAX_DEPTH, &mut outline.parameters)
                    .at(REQUEST, "parameters")?,
                5 => {
                    let message = cursor.bytes(wire_type).at(REQUEST, "inputs")?;
                    self.limits
                        .check_tensors(outline.inputs.len() + outline.outputs.len() + 1)?;
                    self.account.take(INPUT_COST as u64)?;
                    outline.inputs.push(self.input(message).at(REQUEST, "inputs")?);
                }
                6 => {
                    let message = cursor.bytes(wire_type).at(REQUEST, "outputs")?;
                    self.limits
                        .check_tensors(outline.inputs.len() + outline.outputs.len() + 1)?;
                    self.account.take(OUTPUT_COST as u64)?;
                    outline.outputs.push(self.output(message).at(REQUEST, "outputs")?);
                }
                7 => {
                    let raw = cursor.bytes(wire_type).at(REQUEST, "raw_input_contents")?;
                    check_raw(outline.raw.len() + 1, self.limits)?;
                    self.account.take(RAW_COST as u64)?;
                    outline.raw.push(raw);
                }
                _ => self.skip(&mut cursor, wire_type, tag, MAX_DEPTH)?,
            }
        }
        Ok(())
    }

    fn input<'m>(&mut self, message: &'m [u8]) -> Result<InputOutline<'m>, Failure> {
        const DEPTH: u32 = MAX_DEPTH - 1;
        let mut input = InputOutline::default();
        let mut cursor = Cursor::new(message);
        while !cursor.is_empty() {
            let (tag, wire_type) = self.key(&mut cursor)?;
            match tag {
                1 => {
                    input.name = self.string(&mut cursor, wire_type).at(INPUT, "name")?;
                    self.account.take(input.name.len() as u64)?;
                }
                2 => input.datatype = self.string(&mut cursor, wire_type).at(INPUT, "datatype")?,
                3 => self
                    .dimensions(&mut cursor, wire_type, &mut input)
                    .at(INPUT, "shape")?,
                4 => self
                    .entry(&mut cursor, wire_type, DEPTH, &mut input.parameters)
                    .at(INPUT, "parameters")?,
                5 => {
                    let contents = cursor.bytes(wire_type).at(INPUT, "contents")?;
                    let elements = input.contents.get_or_insert_with(|| Elements::of(message));
                    self.contents(contents, elements).at(INPUT, "contents")?;
                }
                _ => self.skip(&mut cursor, wire_type, tag, DEPTH)?,
            }
        }
        Ok(input)
    }

    fn output<'m>(&mut self, message: &'m [u8]) -> Result<OutputOutline<'m>, Failure> {
        const DEPTH: u32 = MAX_DEPTH - 1;
        let mut output = OutputOutline::default();
        let mut cursor = Cursor::new(message);
        while !cursor.is_empty() {
            let (tag, wire_type) = self.key(&mut cursor)?;
            match tag {
                1 => {
                    output.name = self.string(&mut cursor, wire_type).at(OUTPUT, "name")?;
                    self.account.take(output.name.len() as u64)?;
                }
                2 => self
                    .entry(&mut cursor, wire_type, DEPTH, &mut output.parameters)
                    .at(OUTPUT, "parameters")?,
                _ => self.skip(&mut cursor, wire_type, tag, DEPTH)?,
            }
        }
        Ok(output)
    }

    /// Records a dimension, or several packed ones.
    fn dimensions(
        &mut self,
        cursor: &mut Cursor<'_>,
        wire_type: WireType,
        input: &mut InputOutline<'_>,
    ) -> Result<(), Failure> {
        let mut note = |dim: u64| {
            input.rank += 1;
            if input.rank <= self.limits.rank {
                input.shape.push(dim.cast_signed());
            }
        };
        if wire_type != WireType::LengthDelimited {
            wire_type.expect(WireType::Varint)?;
            note(cursor.varint()?);
            return Ok(());
        }
        let packed = cursor.delimited()?;
        self.account.work(packed.len())?;
        let mut packed = Cursor::new(packed);
        while !packed.is_empty() {
            note(packed.varint()?);
        }
        Ok(())
    }

    /// Counts the elements of typed contents, or of a part of them.
    fn contents<'m>(&mut self, message: &'m [u8], elements: &mut Elements<'m>) -> Result<(), Failure> {
        const DEPTH: u32 = MAX_DEPTH - 2;
        let mut cursor = Cursor::new(message);
        while !cursor.is_empty() {
            let (tag, wire_type) = self.key(&mut cursor)?;
            match Field::of(tag) {
                Some(field) => {
                    let looked_at = elements
                        .count(field, &mut cursor, wire_type)
                        .at("InferTensorContents", field.name())?;
                    self.account.work(looked_at)?;
                }
                None => self.skip(&mut cursor, wire_type, tag, DEPTH)?,
            }
        }
        Ok(())
    }

    /// Records a parameter map entry. `depth` is the remaining depth at the map.
    fn entry<'m>(
        &mut self,
        cursor: &mut Cursor<'m>,
        wire_type: WireType,
        depth: u32,
        entries: &mut Entries<'m>,
    ) -> Result<(), Failure> {
        let mut cursor = Cursor::new(cursor.bytes(wire_type)?);
        let (mut name, mut value) = ("", Value::Missing);
        while !cursor.is_empty() {
            let (tag, wire_type) = self.key(&mut cursor)?;
            match tag {
                1 => name = self.string(&mut cursor, wire_type)?,
                2 => self.value(cursor.bytes(wire_type)?, depth - 2, &mut value)?,
                _ => self.skip(&mut cursor, wire_type, tag, depth - 1)?,
            }
        }
        let is_new = !entries.contains_key(name);
        if is_new && entries.len() > self.limits.parameters {
            return Ok(());
        }
        let text = if let Value::String(text) = value {
            text.len()
        } else {
            0
        };
        let place = if is_new { PARAMETER_COST + name.len() } else { 0 };
        self.account.take((place + text) as u64)?;
        entries.insert(name, value);
        Ok(())
    }

    /// Decodes a parameter's value, or a part of the value; the last field wins.
    fn value<'m>(&mut self, message: &'m [u8], depth: u32, value: &mut Value<'m>) -> Result<(), Failure> {
        let mut cursor = Cursor::new(message);
        while !cursor.is_empty() {
            let (tag, wire_type) = self.key(&mut cursor)?;
            let mut choice = || {
                Ok(match tag {
                    1 => Value::Bool(varint(&mut cursor, wire_type)? != 0),
                    2 => Value::Int64(varint(&mut cursor, wire_type)?.cast_signed()),
                    3 => Value::String(self.string(&mut cursor, wire_type)?),
                    4 => {
                        wire_type.expect(WireType::SixtyFourBit)?;
                        Value::Double(f64::from_le_bytes(cursor.fixed()?))
                    }
                    _ => Value::Uint64(varint(&mut cursor, wire_type)?),
                })
            };
            match tag {
                1..=5 => *value = choice().at(PARAMETER, "parameter_choice")?,
                _ => self.skip(&mut cursor, wire_type, tag, depth)?,
            }
        }
        Ok(())
    }

    fn key(&mut self, cursor: &mut Cursor<'_>) -> Result<(u32, WireType), Failure> {
        self.account.work(2)?;
        cursor.key()
    }

    fn string<'m>(&mut self, cursor: &mut Cursor<'m>, wire_type: WireType) -> Result<&'m str, Failure> {
        let bytes = cursor.bytes(wire_type)?;
        self.account.work(bytes.len())?;
        text(bytes)
    }

    fn skip(
        &mut self,
        cursor: &mut Cursor<'_>,
        wire_type: WireType,
        tag: u32,
        depth: u32,
    ) -> Result<(), Failure> {
        // Only groups need to be walked to find their end.
        if wire_type == WireType::StartGroup {
            self.account.work(cursor.len())?;
        }
        cursor.skip(wire_type, tag, depth)
    }
}

fn varint(cursor: &mut Cursor<'_>, wire_type: WireType) -> Result<u64, Failure> {
    wire_type.expect(WireType::Varint)?;
    cursor.varint()
}

/// Checks the number of raw contents. Each belongs to an input, so the limit on tensors applies even before
/// the number of inputs is known.
fn check_raw(found: usize, limits: &RequestLimits) -> Result<(), ServiceError> {
    if found <= limits.tensors {
        return Ok(());
    }
    let limit = limits.tensors;
    Err(ServiceError::invalid(format!(
        "too many raw_input_contents: the limit is {limit}, found {found} or more"
    )))
}
