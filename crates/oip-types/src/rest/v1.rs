//! KServe's V1 protocol, which Vertex AI also uses. Requests contain rows or columns without datatypes, and
//! responses contain predictions.

use bytes::Bytes;
use tensor_core::QuotedName;

use super::{
    EncodedPieces, NonFinite,
    tensor::{read_parameters, set_once},
};
use crate::{
    DataType, ErrorCode, InferInput, InferRequest, InferResponse, Memory, ModelMetadata, ModelRef,
    Parameters, RequestLimits, ServiceError, TensorMetadata, TensorValue,
    json::{Cursor, Room, Writer, answer_too_large, read_data, write_data, write_text, write_texts},
};

/// A decoded request of the V1 protocol.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DecodedV1Request {
    /// The equivalent request of the V2 protocol.
    pub request: InferRequest,
    /// Whether the request's inputs are rows; if so, the response also has rows.
    pub has_rows: bool,
}

/// Decodes a V1 request body: `{"instances": [...]}` or `{"inputs": ...}`.
///
/// Datatypes come from the model's metadata. `instances` lists the rows of the model's only input, or objects
/// with one row per input name. `inputs` may be such a list, or an object with one whole tensor per input
/// name. Other members except `parameters` are ignored.
///
/// # Errors
/// [`InvalidArgument`](crate::ErrorCode::InvalidArgument) with the position and the problem;
/// [`TooLarge`](crate::ErrorCode::TooLarge) when decoded data exceeds [`RequestLimits::tensor_bytes`];
/// otherwise the errors of `memory`.
pub fn decode_v1_request(
    model: ModelRef<'_>,
    metadata: &ModelMetadata,
    body: &Bytes,
    limits: &RequestLimits,
    memory: &dyn Memory,
) -> Result<DecodedV1Request, ServiceError> {
    let mut cursor = Cursor::new(body)?;
    let (mut instances, mut inputs, mut parameters) = (None, None, None);
    cursor.object(|cursor, member| match &*member {
        "instances" => set_once(&mut instances, &member, pass(cursor, limits)?),
        "inputs" => set_once(&mut inputs, &member, pass(cursor, limits)?),
        "parameters" => set_once(&mut parameters, &member, read_parameters(cursor, limits)?),
        _ => cursor.skip(limits.json_depth),
    })?;
    let values = cursor.clone();
    cursor.finish()?;
    let mut reader = Reader {
        metadata,
        limits,
        room: Room {
            left: limits.tensor_bytes,
            memory,
        },
        request: InferRequest::new(model),
    };
    reader.request.parameters = parameters.unwrap_or_default();
    let has_rows = match (instances, inputs) {
        (Some(start), None) => {
            reader
                .rows(&mut values.at(start))
                .map_err(|error| error.within("instances"))?;
            true
        }
        (None, Some(start)) => {
            let mut cursor = values.at(start);
            let is_list = cursor.peek() == Some(b'[');
            let read = match is_list {
                true => reader.rows(&mut cursor),
                false => reader.columns(&mut cursor),
            };
            read.map_err(|error| error.within("inputs"))?;
            is_list
        }
        (None, None) => {
            return Err(ServiceError::invalid(
                "expected \"instances\" or \"inputs\", found neither",
            ));
        }
        (Some(_), Some(_)) => {
            return Err(ServiceError::invalid(
                "expected \"instances\" or \"inputs\", found both",
            ));
        }
    };
    Ok(DecodedV1Request {
        request: reader.request,
        has_rows,
    })
}

/// Skips a value and returns the position where it starts.
fn pass(cursor: &mut Cursor<'_>, limits: &RequestLimits) -> Result<usize, ServiceError> {
    let start = cursor.position();
    cursor.skip(limits.json_depth)?;
    Ok(start)
}

/// Returns the dimensions of nested lists: for each level, the length of its first list. The JSON was already
/// skipped once, so it is valid and not too deep.
fn nesting(cursor: &Cursor<'_>, limits: &RequestLimits) -> Result<Vec<i64>, ServiceError> {
    let mut dims = Vec::new();
    measure(&mut cursor.clone(), &mut dims, limits.json_depth)?;
    Ok(dims)
}

/// Skips a value and records the lengths of the first list on each level.
fn measure(cursor: &mut Cursor<'_>, dims: &mut Vec<i64>, depth: usize) -> Result<(), ServiceError> {
    let level = dims.len();
    if cursor.peek() != Some(b'[') || level >= depth {
        return cursor.skip_data();
    }
    dims.push(0);
    cursor.array(|cursor| {
        dims[level] += 1;
        match dims[level] {
            1 => measure(cursor, dims, depth),
            _ => cursor.skip_data(),
        }
    })
}

/// Number of rows read between two checks for cancellation.
const CHECKED_ROWS: usize = 4096;

struct Reader<'r> {
    metadata: &'r ModelMetadata,
    limits: &'r RequestLimits,
    room: Room<'r>,
    request: InferRequest,
}

impl<'r> Reader<'r> {
    /// Reads a list of rows, or of objects with rows by input name.
    fn rows(&mut self, cursor: &mut Cursor<'_>) -> Result<(), ServiceError> {
        if cursor.peek() != Some(b'[') {
            return Err(cursor.unexpected("a list"));
        }
        let mut first = None;
        cursor.clone().array(|cursor| {
            first.get_or_insert(cursor.peek());
            cursor.skip(self.limits.json_depth)
        })?;
        match first.flatten() {
            None => Err(ServiceError::invalid(
                "expected at least one instance, found none",
            )),
            Some(b'{') => self.named_rows(cursor),
            Some(_) => {
                let [input] = &self.metadata.inputs[..] else {
                    let names: Vec<&str> = self.inputs().map(|input| &*input.name).collect();
                    let message = format!("expected objects with the inputs {}", names.join(", "));
                    return Err(ServiceError::invalid(message));
                };
                self.whole(cursor, input)
            }
        }
    }

    /// Reads an object with one whole tensor per input.
    fn columns(&mut self, cursor: &mut Cursor<'_>) -> Result<(), ServiceError> {
        if cursor.peek() != Some(b'{') {
            return Err(cursor.unexpected("a list or an object"));
        }
        let limits = self.limits;
        cursor.object(|cursor, name| {
            let input = self.input(&name)?;
            if self.request.input(&name).is_some() {
                let message = format!("input {} is given more than once", QuotedName(&name));
                return Err(ServiceError::invalid(message));
            }
            self.whole(&mut cursor.clone(), input)?;
            cursor.skip(limits.json_depth)
        })
    }

    /// Reads a whole input tensor.
    fn whole(&mut self, cursor: &mut Cursor<'_>, input: &TensorMetadata) -> Result<(), ServiceError> {
        let shape = self.limits.shape(&nesting(cursor, self.limits)?)?;
        let read = read_data(
            cursor,
            input.datatype,
            &shape,
            self.limits.json_depth,
            &mut self.room,
        );
        let value = read.map_err(|error| error.within(format_args!("input {}", QuotedName(&input.name))))?;
        self.add(input, value);
        Ok(())
    }

    /// Reads objects that map input names to rows. First records the position of every row, and then reads
    /// the rows input by input.
    fn named_rows(&mut self, cursor: &mut Cursor<'_>) -> Result<(), ServiceError> {
        let inputs: Vec<&TensorMetadata> = self.inputs().collect();
        let mut places: Vec<Vec<usize>> = vec![Vec::new(); inputs.len()];
        let mut count = 0;
        let depth = self.limits.json_depth;
        // The memory is granted before the list of positions grows.
        let memory = self.room.memory;
        let mut grant = memory.reserve(0)?;
        cursor.array(|cursor| {
            let row = count;
            let read = cursor.object(|cursor, name| {
                let place = inputs.iter().position(|input| *input.name == *name);
                let places = &mut places[place.ok_or_else(|| self.unknown(&name))?];
                if places.len() != row {
                    let what = if places.len() > row {
                        "is given more than once"
                    } else {
                        "is missing in the instances before"
                    };
                    return Err(ServiceError::invalid(format!(
                        "input {} {what}",
                        QuotedName(&name)
                    )));
                }
                if places.len() == places.capacity() {
                    let more = places.capacity().max(16);
                    grant.grow(more * size_of::<usize>())?;
                    places.reserve_exact(more);
                }
                places.push(cursor.position());
                cursor.skip(depth)
            });
            count += 1;
            let read = read.and_then(|()| {
                let lacks = |places: &Vec<usize>| !places.is_empty() && places.len() != count;
                match places.iter().position(lacks) {
                    None => Ok(()),
                    Some(place) => {
                        let name = QuotedName(&inputs[place].name);
                        Err(ServiceError::invalid(format!("input {name} is missing")))
                    }
                }
            });
            read.map_err(|error| error.within(format_args!("[{row}]")))
        })?;
        for (input, places) in inputs.into_iter().zip(&places) {
            // An input that is missing from every row may be optional. The request is checked against the
            // model later.
            if !places.is_empty() {
                let value = self.joined(cursor, input, places)?;
                self.add(input, value);
            }
        }
        Ok(())
    }

    /// Reads and concatenates the rows of one input.
    fn joined(
        &mut self,
        cursor: &Cursor<'_>,
        input: &TensorMetadata,
        places: &[usize],
    ) -> Result<TensorValue, ServiceError> {
        let within = |row: usize, error: ServiceError| {
            error.within(format_args!("[{row}]: input {}", QuotedName(&input.name)))
        };
        let mut dims = match places.first() {
            Some(first) => nesting(&cursor.at(*first), self.limits)?,
            None => Vec::new(),
        };
        let row = self.limits.shape(&dims)?;
        dims.insert(0, places.len() as i64);
        let shape = self.limits.shape(&dims)?;
        // Estimates the memory by assuming that all rows are like the first one, bounded by what the JSON can
        // hold.
        let element = match input.datatype {
            DataType::Fixed(dtype) => dtype.size() as u64,
            DataType::Bytes => 4,
        };
        let first = places.first().copied().unwrap_or(0);
        let possible = cursor.at(first).remaining() as u64 / 2 + 1;
        let bytes = shape.element_count().min(possible).saturating_mul(element);
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX).min(self.room.left);
        let mut grant = self.room.memory.reserve(bytes)?;
        let mut raw: Vec<u8> = Vec::new();
        raw.try_reserve_exact(bytes).map_err(|_| no_memory())?;
        for (number, place) in places.iter().enumerate() {
            if number % CHECKED_ROWS == 0 {
                self.room.memory.check()?;
            }
            let mut cursor = cursor.at(*place);
            let depth = self.limits.json_depth;
            let read = read_data(&mut cursor, input.datatype, &row, depth, &mut self.room);
            let read = read.map_err(|error| within(number, error))?;
            let missing = (raw.len() + read.raw().len()).saturating_sub(raw.capacity());
            if missing > 0 {
                // The estimate counts only the length prefixes of strings, so strings outgrow it. The
                // capacity is at least doubled.
                let more = missing.max(raw.capacity());
                grant.grow(more)?;
                raw.try_reserve_exact(raw.capacity() + more - raw.len())
                    .map_err(|_| no_memory())?;
            }
            raw.extend_from_slice(read.raw());
        }
        TensorValue::from_raw(input.datatype, shape, grant.own(Bytes::from(raw)))
    }

    fn add(&mut self, input: &TensorMetadata, value: TensorValue) {
        self.request.inputs.push(InferInput {
            name: input.name.clone(),
            value,
            parameters: Parameters::new(),
        });
    }

    fn inputs(&self) -> impl Iterator<Item = &'r TensorMetadata> + use<'r> {
        self.metadata.inputs.iter()
    }

    fn input(&self, name: &str) -> Result<&'r TensorMetadata, ServiceError> {
        let found = self.inputs().find(|input| *input.name == *name);
        found.ok_or_else(|| self.unknown(name))
    }

    fn unknown(&self, name: &str) -> ServiceError {
        let names: Vec<&str> = self.inputs().map(|input| &*input.name).collect();
        let hint = match name {
            "name" | "datatype" | "shape" | "data" => {
                "; requests of the second version go to /v2/models/{model}/infer"
            }
            _ => "",
        };
        ServiceError::invalid(format!(
            "expected the inputs {}, found {}{hint}",
            names.join(", "),
            QuotedName(name)
        ))
    }
}

/// Encodes a V1 response, `{"predictions": ...}`, with a size limit and a memory budget.
///
/// For one output, predictions are nested lists. For several outputs they are a list of objects with one row
/// per output name if the request had rows and all outputs have the same number of rows; otherwise an object
/// with one whole tensor per output name.
///
/// # Errors
/// [`InvalidArgument`](crate::ErrorCode::InvalidArgument) when a value has no JSON form: a byte string that
/// is not UTF-8, or a non-finite float under [`NonFinite::Error`]; [`Internal`](crate::ErrorCode::Internal)
/// when the response exceeds `limit` bytes; otherwise the errors of `memory`.
pub fn encode_v1_response(
    response: &InferResponse,
    has_rows: bool,
    non_finite: NonFinite,
    memory: &dyn Memory,
    limit: usize,
) -> Result<EncodedPieces, ServiceError> {
    let mut writer = Writer::in_pieces(memory, limit);
    writer.raw("{\"predictions\":");
    let mut outputs = Vec::with_capacity(response.outputs.len());
    for output in &response.outputs {
        outputs.push((
            output.name.as_str(),
            TensorPrinter::new(&output.value, non_finite)?,
        ));
    }
    let rows = response.outputs.first().and_then(|output| output.value.rows());
    let are_rows = rows.filter(|_| has_rows && outputs.len() > 1);
    let are_rows = are_rows.filter(|rows| {
        let mut outputs = response.outputs.iter();
        outputs.all(|output| output.value.rows() == Some(*rows))
    });
    match (&mut outputs[..], are_rows) {
        ([(name, output)], _) => output
            .write(&mut writer, 0)
            .map_err(|error| within(name, error))?,
        (outputs, Some(rows)) => {
            writer.raw("[");
            for row in 0..rows {
                writer.raw(if row == 0 { "{" } else { ",{" });
                write_members(&mut writer, outputs, 1)?;
                writer.raw("}");
            }
            writer.raw("]");
        }
        (outputs, None) => {
            writer.raw("{");
            write_members(&mut writer, outputs, 0)?;
            writer.raw("}");
        }
    }
    writer.raw("}");
    let pieces = EncodedPieces {
        json: writer.into_pieces()?,
        binary: Vec::new(),
    };
    match pieces.len() {
        found if found > limit => Err(answer_too_large(found, limit)),
        _ => Ok(pieces),
    }
}

/// Writes the members of an object: the name of each output with its next elements, nested like the
/// dimensions from `axis`.
fn write_members(
    writer: &mut Writer<'_>,
    outputs: &mut [(&str, TensorPrinter<'_>)],
    axis: usize,
) -> Result<(), ServiceError> {
    for (index, (name, output)) in outputs.iter_mut().enumerate() {
        writer.room(0)?;
        if index > 0 {
            writer.raw(",");
        }
        writer.string(name);
        writer.raw(":");
        output.write(writer, axis).map_err(|error| within(name, error))?;
    }
    Ok(())
}

fn within(name: &str, error: ServiceError) -> ServiceError {
    error.within(format_args!("output {}", QuotedName(name)))
}

/// Prints the elements of a tensor in order, in one or more calls.
struct TensorPrinter<'v> {
    dims: &'v [u64],
    non_finite: NonFinite,
    elements: Elements<'v>,
}

enum Elements<'v> {
    /// The tensor flattened to one dimension, and the number of elements printed so far.
    Fixed(tensor_core::Tensor, u64),
    Texts(Box<dyn Iterator<Item = &'v [u8]> + 'v>),
}

impl<'v> TensorPrinter<'v> {
    fn new(value: &'v TensorValue, non_finite: NonFinite) -> Result<Self, ServiceError> {
        let elements = match value {
            TensorValue::Bytes(tensor) => Elements::Texts(Box::new(tensor.iter())),
            TensorValue::Fixed(tensor) => {
                let flat = tensor_core::Shape::vector(tensor.shape().element_count());
                let flat = tensor.reshape(flat).map_err(|error| internal(&error))?;
                Elements::Fixed(flat, 0)
            }
        };
        Ok(Self {
            dims: value.shape().dims(),
            non_finite,
            elements,
        })
    }

    /// Writes the next elements, nested like the dimensions from `axis`.
    fn write(&mut self, writer: &mut Writer<'_>, axis: usize) -> Result<(), ServiceError> {
        let dims = self.dims;
        match dims.get(axis..).unwrap_or_default() {
            [] => self.write_one(writer),
            [len] => self.write_list(writer, *len),
            [len, ..] => {
                writer.raw("[");
                for index in 0..*len {
                    writer.room(0)?;
                    if index > 0 {
                        writer.raw(",");
                    }
                    self.write(writer, axis + 1)?;
                }
                writer.raw("]");
                Ok(())
            }
        }
    }

    fn write_list(&mut self, writer: &mut Writer<'_>, len: u64) -> Result<(), ServiceError> {
        match &mut self.elements {
            Elements::Texts(texts) => write_texts(writer, texts.take(len as usize)),
            Elements::Fixed(tensor, start) => {
                let part = tensor
                    .rows(*start..*start + len)
                    .map_err(|error| internal(&error))?;
                *start += len;
                write_data(writer, &TensorValue::Fixed(part), self.non_finite)
            }
        }
    }

    fn write_one(&mut self, writer: &mut Writer<'_>) -> Result<(), ServiceError> {
        match &mut self.elements {
            Elements::Texts(texts) => match texts.next() {
                Some(text) => write_text(writer, text, 0),
                None => Err(internal(&"a tensor has fewer elements than its shape says")),
            },
            Elements::Fixed(tensor, start) => {
                let part = tensor
                    .rows(*start..*start + 1)
                    .map_err(|error| internal(&error))?;
                *start += 1;
                let mut single = Writer::with_capacity(64);
                write_data(&mut single, &TensorValue::Fixed(part), self.non_finite)?;
                let text = single.into_bytes();
                let text = text.get(1..text.len().saturating_sub(1)).unwrap_or_default();
                writer.room(text.len())?;
                // Removes the brackets, because the element was printed as a list of one element.
                writer.raw(&String::from_utf8_lossy(text));
                Ok(())
            }
        }
    }
}

fn no_memory() -> ServiceError {
    ServiceError::new(
        ErrorCode::Overloaded,
        "not enough memory for the instances; try again later",
    )
}

fn internal(error: &dyn std::fmt::Display) -> ServiceError {
    ServiceError::internal(error.to_string())
}

#[cfg(test)]
mod tests {
    use tensor_core::{DType, Shape, Tensor};

    use super::*;
    use crate::{BytesTensor, InferOutput, UnlimitedMemory};

    fn tensor(name: &str, datatype: DataType, rank: usize) -> TensorMetadata {
        TensorMetadata::new(name, datatype, &vec![-1; rank])
    }

    const F32: DataType = DataType::Fixed(DType::F32);

    fn model(inputs: Vec<TensorMetadata>) -> ModelMetadata {
        ModelMetadata::new("m", "p", inputs, vec![])
    }

    fn decode(inputs: &[TensorMetadata], body: &str) -> Result<DecodedV1Request, String> {
        let body = Bytes::copy_from_slice(body.as_bytes());
        let name = ModelRef::new("m", None).unwrap();
        let limits = RequestLimits::default();
        decode_v1_request(name, &model(inputs.to_vec()), &body, &limits, &UnlimitedMemory)
            .map_err(|error| error.message().to_owned())
    }

    fn floats(decoded: &DecodedV1Request, name: &str) -> (Vec<u64>, Vec<f32>) {
        let value = decoded.request.input(name).unwrap();
        let values = value.as_fixed().unwrap().to_vec().unwrap();
        (value.shape().dims().to_vec(), values)
    }

    #[test]
    fn rows_and_columns_become_tensors_of_the_models_datatypes() {
        let x = [tensor("x", F32, 2)];
        for body in [
            r#"{"instances": [[1, 2], [3, 4.5], [5, 6]]}"#,
            r#"{"signature_name": "s", "instances": [{"x": [1, 2]}, {"x": [3, 4.5]}, {"x": [5, 6]}]}"#,
            r#"{"inputs": [[1, 2], [3, 4.5], [5, 6]]}"#,
            r#"{"inputs": {"x": [[1, 2], [3, 4.5], [5, 6]]}, "unknown": {"deep": [1]}}"#,
        ] {
            let decoded = decode(&x, body).unwrap();
            assert_eq!(
                floats(&decoded, "x"),
                (vec![3, 2], vec![1., 2., 3., 4.5, 5., 6.]),
                "{body}"
            );
            assert_eq!(decoded.has_rows, !body.contains(r#""inputs": {"#), "{body}");
        }
        let decoded = decode(&x, r#"{"instances": [7, 8], "parameters": {"timeout": 5}}"#).unwrap();
        assert_eq!(floats(&decoded, "x"), (vec![2], vec![7., 8.]));
        assert_eq!(decoded.request.parameters["timeout"].as_u64(), Some(5));

        let both = [tensor("x", F32, 1), tensor("text", DataType::Bytes, 2)];
        for body in [
            r#"{"instances": [{"x": 1, "text": ["a", "long"]}, {"text": ["", "b"], "x": 2}]}"#,
            r#"{"inputs": {"text": [["a", "long"], ["", "b"]], "x": [1, 2]}}"#,
        ] {
            let decoded = decode(&both, body).unwrap();
            assert_eq!(floats(&decoded, "x"), (vec![2], vec![1., 2.]));
            let text = decoded.request.input("text").unwrap().as_bytes().unwrap().clone();
            assert_eq!(text.shape().dims(), [2, 2]);
            assert_eq!(text.iter().collect::<Vec<_>>(), [&b"a"[..], b"long", b"", b"b"]);
        }
    }

    /// When long strings follow short ones, the buffer grows without losing data.
    #[test]
    fn rows_of_texts_may_be_of_any_length() {
        let text = [tensor("t", DataType::Bytes, 1)];
        let rows: Vec<String> = (0..200).map(|row| "x".repeat(row * row % 977)).collect();
        let shown: Vec<String> = rows.iter().map(|row| format!(r#"{{"t": "{row}"}}"#)).collect();
        let decoded = decode(&text, &format!(r#"{{"instances": [{}]}}"#, shown.join(","))).unwrap();
        let read = decoded.request.input("t").unwrap().as_bytes().unwrap();
        assert!(read.iter().eq(rows.iter().map(String::as_bytes)));
    }

    #[test]
    fn what_is_wrong_is_said() {
        let x = [tensor("x", F32, 2)];
        let both = [tensor("x", F32, 1), tensor("y", F32, 1)];
        for (inputs, body, expected) in [
            (
                &x[..],
                "{}",
                "expected \"instances\" or \"inputs\", found neither",
            ),
            (
                &x,
                r#"{"instances": [], "inputs": []}"#,
                "expected \"instances\" or \"inputs\", found both",
            ),
            (
                &x,
                r#"{"instances": []}"#,
                "instances: expected at least one instance, found none",
            ),
            (
                &x,
                r#"{"instances": 5}"#,
                "instances: invalid JSON at byte 14: expected a list, found '5'",
            ),
            (
                &x,
                r#"{"inputs": 5}"#,
                "inputs: invalid JSON at byte 11: expected a list or an object, found '5'",
            ),
            (&x, r#"{"instances": [[1, 2], [3]]}"#, "instances: input 'x': "),
            (
                &x,
                r#"{"instances": [["a"]]}"#,
                "instances: input 'x': element 0: ",
            ),
            (
                &both,
                r#"{"instances": [[1]]}"#,
                "instances: expected objects with the inputs x, y",
            ),
            (
                &both,
                r#"{"instances": [{"x": 1, "y": 1}, {"x": 2}]}"#,
                "instances: [1]: input 'y' is missing",
            ),
            (
                &both,
                r#"{"instances": [{"x": 1}, {"x": 2, "y": 2}]}"#,
                "instances: [1]: input 'y' is missing in the instances before",
            ),
            (
                &both,
                r#"{"instances": [{"x": 1, "x": 1}]}"#,
                "instances: [0]: input 'x' is given more than once",
            ),
            (
                &both,
                r#"{"instances": [{"x": 1, "z": 1}]}"#,
                "instances: [0]: expected the inputs x, y, found 'z'",
            ),
            (
                &both,
                r#"{"instances": [{"x": 1, "y": 1}, {"x": [1, 2], "y": 1}]}"#,
                "instances: [1]: input 'x': expected 1 elements",
            ),
            (
                &x,
                r#"{"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [1]}]}"#,
                "inputs: [0]: expected the inputs x, found 'name'; requests of the second version go to",
            ),
            (
                &x,
                r#"{"inputs": {"x": [[1]], "x": [[1]]}}"#,
                "inputs: input 'x' is given more than once",
            ),
            (&x, r#"{"instances": [[1, 2]"#, "invalid JSON at byte 21: "),
            (
                &x,
                r#"{"instances": [[1]]} x"#,
                "invalid JSON at byte 21: expected the end",
            ),
        ] {
            let error = decode(inputs, body).unwrap_err();
            assert!(error.starts_with(expected), "{body}: {error}");
        }
        let deep = format!(
            r#"{{"instances": {}1{}}}"#,
            "[".repeat(100_000),
            "]".repeat(100_000)
        );
        assert!(decode(&x, &deep).unwrap_err().contains("nested too deep"));
        // The first row is much larger than all later rows.
        let wide = vec!["0"; 10_000].join(",");
        let rows = vec![r#"{"x":[0]}"#; 10_000].join(",");
        let body = format!(r#"{{"instances": [{{"x":[{wide}]}},{rows}]}}"#);
        let error = decode(&x, &body).unwrap_err();
        assert!(error.starts_with("instances: [1]: input 'x': "), "{error}");
    }

    fn encode(outputs: Vec<(&str, TensorValue)>, has_rows: bool) -> String {
        let outputs = outputs.into_iter();
        let response = InferResponse {
            model_name: "m".to_owned(),
            model_version: None,
            id: None,
            parameters: Parameters::new(),
            outputs: outputs
                .map(|(name, value)| InferOutput::new(name, value))
                .collect(),
        };
        let encoded =
            encode_v1_response(&response, has_rows, NonFinite::Null, &UnlimitedMemory, 1 << 20).unwrap();
        let parts: Vec<u8> = encoded.into_parts().flat_map(|part| part.to_vec()).collect();
        String::from_utf8(parts).unwrap()
    }

    #[test]
    fn predictions_are_nested_as_their_shapes() {
        let fixed = |dims: &[u64], values: Vec<f32>| {
            TensorValue::from(Tensor::from_vec(Shape::new(dims).unwrap(), values).unwrap())
        };
        let texts = |dims: &[u64], values: &[&str]| {
            TensorValue::from(BytesTensor::from_elements(Shape::new(dims).unwrap(), values).unwrap())
        };
        for (dims, expected) in [
            (&[][..], "1.0"),
            (&[1], "[1.0]"),
            (&[1, 1], "[[1.0]]"),
            (&[1, 1, 1], "[[[1.0]]]"),
        ] {
            let shown = encode(vec![("y", fixed(dims, vec![1.]))], true);
            assert_eq!(shown, format!(r#"{{"predictions":{expected}}}"#));
        }
        let square = fixed(&[2, 2], vec![1., 2.5, f32::NAN, 4.]);
        assert_eq!(
            encode(vec![("y", square.clone())], true),
            r#"{"predictions":[[1.0,2.5],[null,4.0]]}"#
        );
        let label = texts(&[2], &["a", "b\""]);
        assert_eq!(
            encode(vec![("label", label.clone()), ("p", square.clone())], true),
            r#"{"predictions":[{"label":"a","p":[1.0,2.5]},{"label":"b\"","p":[null,4.0]}]}"#
        );
        let columns = r#"{"predictions":{"label":["a","b\""],"p":[[1.0,2.5],[null,4.0]]}}"#;
        assert_eq!(
            encode(vec![("label", label.clone()), ("p", square)], false),
            columns
        );
        let other = fixed(&[3], vec![1., 2., 3.]);
        assert_eq!(
            encode(vec![("label", label), ("p", other)], true),
            r#"{"predictions":{"label":["a","b\""],"p":[1.0,2.0,3.0]}}"#
        );
        assert_eq!(
            encode(vec![("t", texts(&[2, 1], &["x", "y"]))], true),
            r#"{"predictions":[["x"],["y"]]}"#
        );
        assert_eq!(
            encode(vec![("y", fixed(&[0, 2], vec![]))], true),
            r#"{"predictions":[]}"#
        );
    }
}
