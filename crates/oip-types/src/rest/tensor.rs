//! The JSON object shared by request inputs and response outputs: name, datatype, shape, parameters, data.

use std::borrow::Cow;

use bytes::Bytes;
use tensor_core::{QuotedName, Shape};

use crate::{
    DataType, Memory, NonFinite, ParameterValue, Parameters, ReadSharedMemory, RequestLimits, ServiceError,
    SharedMemorySlice, TensorValue,
    json::{Cursor, Room, Writer, read_data, write_data},
};

/// Parameter: the size of a tensor in the binary part, in bytes.
const BINARY_DATA_SIZE: &str = "binary_data_size";

/// The ways to provide an input's elements.
const FORMS: &str = "\"data\", \"binary_data_size\" and \"shared_memory_region\"";

/// Reads the tensors of one body: first from the JSON, in order, then from the binary part after it.
pub(super) struct TensorReader<'l> {
    limits: &'l RequestLimits,
    /// The budget for JSON data that is still to be decoded.
    room: Room<'l>,
    /// The bytes of the binary part that no tensor has consumed yet.
    binary: Bytes,
    shared_memory: Option<&'l dyn ReadSharedMemory>,
}

/// A tensor that was read from its JSON object.
pub(super) struct NamedTensor {
    pub(super) name: String,
    pub(super) value: TensorValue,
    pub(super) parameters: Parameters,
    /// The tensor's location in shared memory, if it has one. The value was then read from that location, or
    /// consists of zeros.
    pub(super) place: Option<SharedMemorySlice>,
}

impl<'l> TensorReader<'l> {
    /// Creates a reader. Without `shared_memory`, tensors in shared memory are not read.
    pub(super) fn new(
        limits: &'l RequestLimits,
        binary: Bytes,
        shared_memory: Option<&'l dyn ReadSharedMemory>,
        memory: &'l dyn Memory,
    ) -> Self {
        Self {
            limits,
            room: Room {
                left: limits.tensor_bytes,
                memory,
            },
            binary,
            shared_memory,
        }
    }

    /// Reads the tensor object at the cursor. `kind` ("input") and `index` identify the tensor in error
    /// messages.
    pub(super) fn read(
        &mut self,
        cursor: &mut Cursor<'_>,
        kind: &str,
        index: usize,
    ) -> Result<NamedTensor, ServiceError> {
        let start = cursor.clone();
        let mut fields = Fields::default();
        let read = cursor.object(|cursor, member| fields.read_member(cursor, &member, self));
        let finished = read.and_then(|()| fields.finish(cursor, self));
        let value = finished.map_err(|error| {
            // The error may be at a member before the name, so the rest of the object is searched for the
            // name.
            let place = match fields.name.take().or_else(|| find_name(start, self.limits)) {
                Some(name) => format!("{kind} {}", QuotedName(&name)),
                None => format!("{kind}s[{index}]"),
            };
            error.within(place)
        })?;
        let name = fields.name.map(Cow::into_owned).unwrap_or_default();
        Ok(NamedTensor {
            name,
            value,
            parameters: fields.parameters.unwrap_or_default(),
            place: fields.place,
        })
    }

    /// Checks that the tensors have consumed the whole binary part.
    pub(super) fn finish(self) -> Result<(), ServiceError> {
        match self.binary.len() {
            0 => Ok(()),
            left => Err(ServiceError::invalid(format!(
                "{left} bytes of binary data are left over after all tensors with \"{BINARY_DATA_SIZE}\""
            ))),
        }
    }

    fn take_binary(&mut self, size: u64) -> Result<Bytes, ServiceError> {
        let left = self.binary.len();
        if size > left as u64 {
            let message = format!("expected {size} bytes of binary data, found {left}");
            return Err(ServiceError::invalid(message));
        }
        Ok(self.binary.split_to(size as usize))
    }
}

#[derive(Default)]
struct Fields<'a> {
    name: Option<Cow<'a, str>>,
    datatype: Option<DataType>,
    shape: Option<Shape>,
    parameters: Option<Parameters>,
    data: Option<Data>,
    place: Option<SharedMemorySlice>,
}

enum Data {
    Read(TensorValue),
    /// The position of data that was skipped, because datatype and shape come after it.
    Later(usize),
}

impl<'a> Fields<'a> {
    fn read_member(
        &mut self,
        cursor: &mut Cursor<'a>,
        member: &str,
        tensors: &mut TensorReader<'_>,
    ) -> Result<(), ServiceError> {
        let limits = tensors.limits;
        match member {
            "name" => set_once(&mut self.name, member, read_name(cursor)?),
            "datatype" => {
                let name = cursor.string()?;
                set_once(&mut self.datatype, member, DataType::from_name(&name)?)
            }
            "shape" => set_once(&mut self.shape, member, read_shape(cursor, limits)?),
            "parameters" => set_once(&mut self.parameters, member, read_parameters(cursor, limits)?),
            "data" => {
                let data = match (self.datatype, &self.shape) {
                    (Some(datatype), Some(shape)) => {
                        let room = &mut tensors.room;
                        Data::Read(read_data(cursor, datatype, shape, limits.json_depth, room)?)
                    }
                    _ => {
                        let start = cursor.position();
                        cursor.skip_data()?;
                        Data::Later(start)
                    }
                };
                set_once(&mut self.data, member, data)
            }
            _ => cursor.skip(limits.json_depth),
        }
    }

    fn finish(
        &mut self,
        cursor: &Cursor<'a>,
        tensors: &mut TensorReader<'_>,
    ) -> Result<TensorValue, ServiceError> {
        if self.name.is_none() {
            return Err(missing("name"));
        }
        let datatype = self.datatype.ok_or_else(|| missing("datatype"))?;
        let shape = self.shape.take().ok_or_else(|| missing("shape"))?;
        let parameters = self.parameters.get_or_insert_default();
        let slice = SharedMemorySlice::take(parameters)?;
        let binary_size = parameters.remove(BINARY_DATA_SIZE);
        match (self.data.take(), binary_size, slice) {
            (None, None, None) => Err(ServiceError::invalid(format!(
                "expected one of {FORMS}, found none of them"
            ))),
            (None, None, Some(slice)) => {
                let value = match tensors.shared_memory {
                    Some(memory) => TensorValue::from_raw(datatype, shape, memory.read(&slice)?),
                    None => TensorValue::zeros(datatype, shape, tensors.limits.tensor_bytes),
                };
                self.place = Some(slice);
                value
            }
            (None, Some(size), None) => {
                let size = size.as_u64().ok_or_else(|| {
                    ServiceError::invalid(format!(
                        "{BINARY_DATA_SIZE}: expected a number of bytes, found {size}"
                    ))
                })?;
                let raw = tensors.take_binary(size)?;
                TensorValue::from_raw(datatype, shape, raw)
            }
            (Some(Data::Read(value)), None, None) => Ok(value),
            (Some(Data::Later(start)), None, None) => {
                let (depth, room) = (tensors.limits.json_depth, &mut tensors.room);
                read_data(&mut cursor.at(start), datatype, &shape, depth, room)
            }
            _ => Err(ServiceError::invalid(format!(
                "expected only one of {FORMS}, found several"
            ))),
        }
    }
}

/// Stores a member's value; a duplicate is an error.
pub(super) fn set_once<T>(slot: &mut Option<T>, member: &str, value: T) -> Result<(), ServiceError> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(ServiceError::invalid(format!(
            "member \"{member}\" is given more than once"
        ))),
    }
}

pub(super) fn missing(member: &str) -> ServiceError {
    ServiceError::invalid(format!("member \"{member}\" is missing"))
}

/// Reads the name of a tensor.
pub(super) fn read_name<'a>(cursor: &mut Cursor<'a>) -> Result<Cow<'a, str>, ServiceError> {
    let start = cursor.position();
    let name = cursor.string()?;
    if name.contains('\0') {
        let message = format!("the name at byte {start} contains a NUL character");
        return Err(ServiceError::invalid(message));
    }
    Ok(name)
}

/// Looks for the name in a tensor object that could not be read.
fn find_name<'a>(mut cursor: Cursor<'a>, limits: &RequestLimits) -> Option<Cow<'a, str>> {
    let mut name = None;
    // The object may be malformed later on; a name before that point still counts.
    let _ = cursor.object(|cursor, member| match &*member {
        "name" => read_name(cursor).map(|found| name = Some(found)),
        "data" => cursor.skip_data(),
        _ => cursor.skip(limits.json_depth),
    });
    name
}

fn read_shape(cursor: &mut Cursor<'_>, limits: &RequestLimits) -> Result<Shape, ServiceError> {
    let mut dims = Vec::new();
    cursor.array(|cursor| {
        let dim = match cursor.peek() {
            Some(b'-' | b'0'..=b'9') => cursor.number()?,
            _ => return Err(cursor.unexpected("a dimension")),
        };
        let value = dim.to_integer().and_then(|value| i64::try_from(value).ok());
        let value = value.ok_or_else(|| {
            let shown: String = dim.text().chars().take(40).collect();
            ServiceError::invalid(format!("shape: {shown} is not a dimension of at most 63 bits"))
        })?;
        // Dimensions beyond the limit are only counted.
        if dims.len() <= limits.rank {
            dims.push(value);
        }
        Ok(())
    })?;
    limits.shape(&dims)
}

/// Reads an object of parameters; null counts as an empty one.
pub(super) fn read_parameters(
    cursor: &mut Cursor<'_>,
    limits: &RequestLimits,
) -> Result<Parameters, ServiceError> {
    let mut parameters = Parameters::new();
    if cursor.eat_word("null") {
        return Ok(parameters);
    }
    cursor.object(|cursor, name| {
        limits.check_parameters(parameters.len() + 1)?;
        let value = read_parameter(cursor)
            .map_err(|error| error.within(format_args!("parameter {}", QuotedName(&name))))?;
        match parameters.insert(name.clone().into_owned(), value) {
            None => Ok(()),
            Some(_) => Err(ServiceError::invalid(format!(
                "parameter {} is given more than once",
                QuotedName(&name)
            ))),
        }
    })?;
    Ok(parameters)
}

fn read_parameter(cursor: &mut Cursor<'_>) -> Result<ParameterValue, ServiceError> {
    Ok(match cursor.peek() {
        Some(b'"') => ParameterValue::String(cursor.string()?.into_owned()),
        Some(b'-' | b'0'..=b'9') => {
            let number = cursor.number()?;
            let value = if number.is_plain() {
                let integer = number.to_integer().and_then(|value| i64::try_from(value).ok());
                integer.map(ParameterValue::Int64)
            } else {
                Some(number.to_f64())
                    .filter(|value| value.is_finite())
                    .map(ParameterValue::Double)
            };
            value.ok_or_else(|| {
                let shown: String = number.text().chars().take(40).collect();
                ServiceError::invalid(format!("{shown} does not fit 64 bits"))
            })?
        }
        _ if cursor.eat_word("true") => ParameterValue::Bool(true),
        _ if cursor.eat_word("false") => ParameterValue::Bool(false),
        _ => return Err(cursor.unexpected("a boolean, a number or a string")),
    })
}

/// The destination of a tensor's elements.
pub(super) enum Destination<'d> {
    /// The elements are written into the object, as JSON.
    Json(NonFinite),
    /// The elements follow the JSON part.
    Binary(&'d mut Vec<Bytes>),
    /// The elements are not sent, because the peer reads them from shared memory.
    SharedMemory(Option<&'d SharedMemorySlice>),
}

/// Writes a tensor as a JSON object.
pub(super) fn write_tensor(
    writer: &mut Writer<'_>,
    destination: Destination<'_>,
    name: &str,
    value: &TensorValue,
    parameters: &Parameters,
) -> Result<(), ServiceError> {
    writer.room(0)?;
    writer.raw("{\"name\":");
    writer.string(name);
    writer.raw(",\"datatype\":\"");
    writer.raw(value.datatype().name());
    writer.raw("\",\"shape\":");
    writer.array(value.shape().dims(), |writer, dim| writer.integer(*dim));
    let mut parameters = Cow::Borrowed(parameters);
    match &destination {
        // The parameters are written unchanged. They may already name a slice of shared memory.
        Destination::Json(_) | Destination::SharedMemory(None) => {}
        // The most common case: without parameters, no map is built.
        Destination::Binary(_) if parameters.is_empty() => {
            writer.raw(",\"parameters\":{");
            writer.string(BINARY_DATA_SIZE);
            writer.raw(":");
            writer.integer(value.raw().len());
            writer.raw("}");
        }
        Destination::Binary(_) => {
            let size = i64::try_from(value.raw().len()).unwrap_or(i64::MAX);
            parameters
                .to_mut()
                .insert(BINARY_DATA_SIZE.to_owned(), ParameterValue::Int64(size));
        }
        Destination::SharedMemory(Some(slice)) => parameters.to_mut().extend(slice.to_parameters()),
    }
    if !parameters.is_empty() {
        writer.raw(",\"parameters\":");
        writer.parameters(&parameters);
    }
    match destination {
        Destination::Json(non_finite) => {
            writer.raw(",\"data\":");
            write_data(writer, value, non_finite)?;
        }
        Destination::Binary(binary) => binary.push(value.raw().clone()),
        Destination::SharedMemory(_) => {}
    }
    writer.raw("}");
    Ok(())
}
