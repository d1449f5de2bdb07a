//! Reads the contents of constants: checks them against type and dimensions, and converts them to one
//! representation.

use std::fmt;

use bytes::Bytes;
use tensor_core::{DType, QuotedName, Shape, SpecError};

use crate::{
    ElementType, Error,
    proto::{TensorProto, tensor_proto::DataLocation},
};

/// Contents of a constant, checked against its type and dimensions.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Payload {
    /// Type of the elements in `data`.
    pub element_type: ElementType,
    /// Dimensions; their product is the number of elements in `data`.
    pub shape: Shape,
    /// Elements of the constant.
    pub data: Data,
}

/// The elements of a constant, in row-major order.
#[derive(Clone, Debug)]
pub enum Data {
    /// Little-endian bytes, exactly the size that type and dimensions require.
    Fixed(Bytes),
    /// One string per element.
    Strings(Vec<String>),
}

impl Payload {
    /// Reads a tensor of the file. Raw data is not copied.
    ///
    /// # Errors
    /// Returns an error for an unsupported type, external data, data in several fields, and too little or too
    /// much data.
    pub fn read(tensor: &TensorProto) -> Result<Self, Error> {
        refuse_external(tensor)?;
        let element_type = ElementType::from_code(tensor.data_type).ok_or_else(|| {
            let name = ElementType::name_of_code(tensor.data_type);
            invalid(tensor, format!("is {name}, which is not supported"))
        })?;
        if tensor.segment.is_some() {
            return Err(invalid(
                tensor,
                "comes in several segments, which is not supported",
            ));
        }
        let shape = shape(&tensor.dims).map_err(|flaw| invalid(tensor, flaw))?;
        let data = match element_type {
            ElementType::String => Data::Strings(strings(tensor)?),
            ElementType::Fixed(dtype) => Data::Fixed(fixed(tensor, dtype)?),
        };
        let payload = Self {
            element_type,
            shape,
            data,
        };
        payload.check_length().map_err(|flaw| invalid(tensor, flaw))?;
        Ok(payload)
    }

    fn check_length(&self) -> Result<(), Flaw> {
        let (found, size, unit) = match (&self.data, self.element_type.dtype()) {
            (Data::Fixed(bytes), Some(dtype)) => (bytes.len(), dtype.size(), "bytes"),
            (Data::Fixed(_), None) | (Data::Strings(_), Some(_)) => (0, 0, "elements"),
            (Data::Strings(strings), None) => (strings.len(), 1, "strings"),
        };
        match self.shape.element_count().checked_mul(size as u64) {
            Some(expected) if expected == found as u64 => Ok(()),
            Some(expected) => Err(Flaw::Length {
                found,
                expected,
                unit,
                tensor: format!("{}{}", self.element_type, self.shape),
            }),
            None => Err(Flaw::TooLarge(self.shape.clone())),
        }
    }
}

/// Checks the dimensions and the data of a tensor. Skips the data if the type is unsupported.
pub(crate) fn check(tensor: &TensorProto) -> Result<(), Error> {
    match ElementType::from_code(tensor.data_type) {
        Some(_) => Payload::read(tensor).map(drop),
        None => shape(&tensor.dims)
            .map(drop)
            .map_err(|flaw| invalid(tensor, flaw)),
    }
}

/// Returns an error if the tensor has external data.
pub(crate) fn refuse_external(tensor: &TensorProto) -> Result<(), Error> {
    if tensor.data_location() == DataLocation::Default && tensor.external_data.is_empty() {
        return Ok(());
    }
    Err(invalid(
        tensor,
        "has its data in another file, which is not opened; save the model as one file (in Python: \
         onnx.save(model, path, save_as_external_data=False))",
    ))
}

/// The reason why a tensor's dimensions or data are invalid.
#[derive(Debug)]
pub(crate) enum Flaw {
    Negative,
    Shape(SpecError),
    TooLarge(Shape),
    Length {
        found: usize,
        expected: u64,
        unit: &'static str,
        /// Type and shape of the tensor, for the message.
        tensor: String,
    },
}

impl fmt::Display for Flaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Negative => f.write_str("has a negative dimension"),
            Self::Shape(error) => write!(f, "has impossible dimensions: {error}"),
            Self::TooLarge(shape) => write!(f, "has dimensions {shape} that are too large"),
            Self::Length {
                found,
                expected,
                unit,
                tensor,
            } => write!(f, "has {found} {unit} of data where {tensor} takes {expected}"),
        }
    }
}

/// Converts dimensions to a shape.
pub(crate) fn shape(dims: &[i64]) -> Result<Shape, Flaw> {
    let unsigned = dims
        .iter()
        .map(|&dim| u64::try_from(dim))
        .collect::<Result<Vec<u64>, _>>();
    let unsigned = unsigned.map_err(|_| Flaw::Negative)?;
    Shape::new(&unsigned).map_err(Flaw::Shape)
}

fn fixed(tensor: &TensorProto, dtype: DType) -> Result<Bytes, Error> {
    let typed = tensor.float_data.len()
        + tensor.int32_data.len()
        + tensor.int64_data.len()
        + tensor.double_data.len()
        + tensor.uint64_data.len();
    let out_of_range = || invalid(tensor, format!("has a value out of the range of {dtype}"));
    // Each arm reads one field and converts its numbers to the target type. Narrow integers are checked for
    // range.
    macro_rules! narrow {
        ($field:ident as $T:ty) => {{
            let narrow = |&value| <$T>::try_from(value).map(<$T>::to_le_bytes);
            let narrowed = tensor.$field.iter().map(narrow).collect::<Result<Vec<_>, _>>();
            (
                narrowed.map_err(|_| out_of_range())?.concat(),
                tensor.$field.len(),
            )
        }};
    }
    macro_rules! same {
        ($field:ident) => {{
            let bytes: Vec<_> = tensor.$field.iter().map(|value| value.to_le_bytes()).collect();
            (bytes.concat(), tensor.$field.len())
        }};
    }
    if typed == 0 && tensor.string_data.is_empty() {
        return Ok(tensor.raw_data.clone());
    }
    let (bytes, used) = match dtype {
        DType::F32 => same!(float_data),
        DType::F64 => same!(double_data),
        DType::I64 => same!(int64_data),
        DType::U64 => same!(uint64_data),
        DType::U32 => narrow!(uint64_data as u32),
        DType::I32 => same!(int32_data),
        DType::I16 => narrow!(int32_data as i16),
        DType::I8 => narrow!(int32_data as i8),
        DType::U16 | DType::F16 | DType::BF16 => narrow!(int32_data as u16),
        DType::U8 => narrow!(int32_data as u8),
        DType::Bool => {
            let bools: Vec<u8> = tensor
                .int32_data
                .iter()
                .map(|&value| u8::from(value != 0))
                .collect();
            (bools, tensor.int32_data.len())
        }
        _ => return Err(invalid(tensor, format!("has {dtype} elements in a typed field"))),
    };
    if used != typed || !tensor.raw_data.is_empty() || !tensor.string_data.is_empty() {
        return Err(invalid(
            tensor,
            format!("has data of several kinds; for {dtype} only one is expected"),
        ));
    }
    Ok(bytes.into())
}

fn strings(tensor: &TensorProto) -> Result<Vec<String>, Error> {
    if !tensor.raw_data.is_empty() {
        return Err(invalid(
            tensor,
            "has strings as raw data, which ONNX does not allow",
        ));
    }
    let utf8 = |bytes: &Bytes| String::from_utf8(bytes.to_vec());
    let strings = tensor.string_data.iter().map(utf8).collect::<Result<Vec<_>, _>>();
    strings.map_err(|_| invalid(tensor, "has a string that is not UTF-8"))
}

fn invalid(tensor: &TensorProto, reason: impl fmt::Display) -> Error {
    Error::invalid(match tensor.name.as_str() {
        "" => format!("a tensor {reason}"),
        name => format!("tensor {} {reason}", QuotedName(name)),
    })
}
