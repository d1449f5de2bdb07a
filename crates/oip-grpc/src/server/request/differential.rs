//! Differential tests against `prost`: both parsers accept the same messages with the same result, and reject
//! the same messages.

use std::{cell::RefCell, mem};

use bytes::Bytes;
use oip_resources::Lease;
use oip_types::{
    DataType, ErrorCode, InferInput, InferRequest, ModelRef, Parameters, ReadSharedMemory, RequestLimits,
    RequestedOutput, ServiceError, SharedMemorySlice, TensorValue, check_parameter_name, take_bool,
};
use proptest::{collection::vec, option, prelude::*};
use prost::{Message, encoding};
use tensor_core::QuotedName;

use super::{BINARY_DATA_OUTPUT, ENABLE_EMPTY_FINAL_RESPONSE, Effort, Failure, Reader};
use crate::{
    contents,
    parameters::read_parameters,
    proto::{
        InferParameter, InferTensorContents, ModelInferRequest,
        infer_parameter::ParameterChoice,
        model_infer_request::{InferInputTensor, InferRequestedOutputTensor},
    },
    server::GrpcOutput,
};

/// The result of decoding a message.
#[derive(Debug, PartialEq)]
enum Outcome {
    Read {
        request: Box<InferRequest>,
        parameters: String,
        wants_raw: bool,
    },
    Refused(ErrorCode, String),
    Malformed,
}

impl Outcome {
    fn of(mut request: InferRequest, wants_raw: bool) -> Self {
        // The values are compared as text, because NaN does not equal itself.
        let mut parameters = vec![mem::take(&mut request.parameters)];
        parameters.extend(
            request
                .inputs
                .iter_mut()
                .map(|input| mem::take(&mut input.parameters)),
        );
        parameters.extend(
            request
                .outputs
                .iter_mut()
                .map(|output| mem::take(&mut output.parameters)),
        );
        Self::Read {
            request: Box::new(request),
            parameters: format!("{parameters:?}"),
            wants_raw,
        }
    }

    fn refused(error: &ServiceError) -> Self {
        Self::Refused(error.code(), error.message().to_owned())
    }
}

/// Shared memory that contains every slice, and records which slices were read.
#[derive(Default)]
struct Memory(RefCell<Vec<SharedMemorySlice>>);

impl ReadSharedMemory for Memory {
    fn read(&self, slice: &SharedMemorySlice) -> Result<Bytes, ServiceError> {
        self.0.borrow_mut().push(slice.clone());
        Ok(vec![0; slice.byte_size.min(64) as usize].into())
    }
}

/// Decodes with the parser under test; the string explains why a message is malformed.
fn read(message: &Bytes, effort: Effort) -> (Outcome, String) {
    let reader = Reader {
        limits: &RequestLimits::default(),
        output: GrpcOutput::Mirror,
        shared_memory: &Memory::default(),
        lease: &Lease::unlimited(),
    };
    match reader.read(message, effort) {
        Ok(read) => (Outcome::of(read.request, read.wants_raw), String::new()),
        Err((_, Failure::Refused(error))) => (Outcome::refused(&error), String::new()),
        Err((_, Failure::Malformed(malformed))) => (Outcome::Malformed, malformed.to_string()),
        Err((_, Failure::TooMuchWork)) => panic!("there was no limit"),
    }
}

/// Decodes with `prost`.
fn reference(message: &Bytes) -> Outcome {
    let Ok(mut message) = ModelInferRequest::decode(message.clone()) else {
        return Outcome::Malformed;
    };
    let (name, version) = (
        mem::take(&mut message.model_name),
        mem::take(&mut message.model_version),
    );
    let read = ModelRef::new(&name, Some(&version))
        .and_then(|model| of_message(model, message).map_err(|error| error.within(model)));
    match read {
        Ok((request, wants_raw)) => Outcome::of(request, wants_raw),
        Err(error) => Outcome::refused(&error),
    }
}

fn of_message(model: ModelRef<'_>, message: ModelInferRequest) -> Result<(InferRequest, bool), ServiceError> {
    let limits = RequestLimits::default();
    limits.check_tensors(message.inputs.len() + message.outputs.len())?;
    let is_raw = message.inputs.iter().all(|input| input.contents.is_none());
    let mut request = InferRequest::new(model);
    request.id = limits.id(message.id)?;
    request.parameters = read_parameters(message.parameters, &limits)?;
    take_bool(&mut request.parameters, ENABLE_EMPTY_FINAL_RESPONSE)?;
    request
        .parameters
        .keys()
        .try_for_each(|name| check_parameter_name(name))?;
    let wants_raw = take_bool(&mut request.parameters, BINARY_DATA_OUTPUT)?.unwrap_or(is_raw);
    let mut inputs = Vec::new();
    for input in message.inputs {
        let split = || {
            let mut parameters = read_parameters(input.parameters.clone(), &limits)?;
            let slice = SharedMemorySlice::take(&mut parameters)?;
            Ok((parameters, slice))
        };
        let (parameters, slice) = split()
            .map_err(|error: ServiceError| error.within(format_args!("input {}", QuotedName(&input.name))))?;
        inputs.push((input, parameters, slice));
    }
    if !message.raw_input_contents.is_empty() {
        check_raw(&inputs, message.raw_input_contents.len())?;
    }
    let mut raw = message.raw_input_contents.into_iter();
    for (input, parameters, slice) in inputs {
        let raw = if slice.is_none() { raw.next() } else { None };
        let value = value(&input, slice, raw, &limits);
        request.inputs.push(InferInput {
            value: value.map_err(|error| error.within(format_args!("input {}", QuotedName(&input.name))))?,
            name: input.name,
            parameters,
        });
    }
    for output in message.outputs {
        let parameters = read_parameters(output.parameters, &limits)
            .map_err(|error| error.within(format_args!("output {}", QuotedName(&output.name))))?;
        request.outputs.push(RequestedOutput {
            name: output.name,
            parameters,
        });
    }
    Ok((request, wants_raw))
}

type Input = (InferInputTensor, Parameters, Option<SharedMemorySlice>);

fn check_raw(inputs: &[Input], found: usize) -> Result<(), ServiceError> {
    let expected = inputs.iter().filter(|(_, _, slice)| slice.is_none()).count();
    if expected != found {
        let one_per = match expected == inputs.len() {
            true => "input",
            false => "input that is not in shared memory",
        };
        let message = format!("expected {expected} raw_input_contents, one per {one_per}, found {found}");
        return Err(ServiceError::invalid(message));
    }
    match inputs.iter().find(|(input, ..)| input.contents.is_some()) {
        None => Ok(()),
        Some((input, ..)) => Err(ServiceError::invalid(format!(
            "input {}: expected no contents together with raw_input_contents",
            QuotedName(&input.name)
        ))),
    }
}

fn value(
    input: &InferInputTensor,
    slice: Option<SharedMemorySlice>,
    raw: Option<Bytes>,
    limits: &RequestLimits,
) -> Result<TensorValue, ServiceError> {
    let datatype = DataType::from_name(&input.datatype)?;
    let shape = limits.shape(&input.shape)?;
    match (slice, raw, input.contents.clone()) {
        (Some(_), _, Some(_)) => Err(ServiceError::invalid(
            "expected contents or shared_memory_region, found both",
        )),
        (Some(slice), ..) => TensorValue::from_raw(datatype, shape, Memory::default().read(&slice)?),
        (None, Some(raw), _) => TensorValue::from_raw(datatype, shape, raw),
        (None, None, Some(contents)) => contents::read(datatype, shape, contents),
        (None, None, None) if shape.element_count() == 0 => {
            TensorValue::from_raw(datatype, shape, Bytes::new())
        }
        (None, None, None) => Err(ServiceError::invalid(
            "expected contents or raw_input_contents, found neither",
        )),
    }
}

/// Asserts that both parsers agree on a message.
fn assert_same(message: &[u8]) -> Result<(), TestCaseError> {
    let message = Bytes::copy_from_slice(message);
    let (found, why) = read(&message, Effort::Any);
    // `prost` does not check the wire type of map entries: it interprets a varint as the length of an entry.
    if found == Outcome::Malformed
        && why.contains(".parameters: ")
        && why.contains("(expected LengthDelimited)")
    {
        return Ok(());
    }
    prop_assert_eq!(&found, &reference(&message), "{} {:02x?}", why, &message[..]);
    Ok(())
}

fn name() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("x"),
        Just("y"),
        Just(""),
        Just("größe"),
        Just("timeout"),
        Just(BINARY_DATA_OUTPUT),
        Just(ENABLE_EMPTY_FINAL_RESPONSE),
        Just("triton_x"),
        Just("shared_memory_region"),
        Just("shared_memory_byte_size"),
        Just("shared_memory_offset"),
    ]
    .prop_map(str::to_owned)
}

fn parameter() -> impl Strategy<Value = InferParameter> {
    let choice = prop_oneof![
        any::<bool>().prop_map(ParameterChoice::BoolParam),
        (0i64..9).prop_map(ParameterChoice::Int64Param),
        any::<i64>().prop_map(ParameterChoice::Int64Param),
        name().prop_map(ParameterChoice::StringParam),
        any::<f64>().prop_map(ParameterChoice::DoubleParam),
        any::<u64>().prop_map(ParameterChoice::Uint64Param),
    ];
    option::weighted(0.98, choice).prop_map(|parameter_choice| InferParameter { parameter_choice })
}

fn parameters() -> impl Strategy<Value = std::collections::BTreeMap<String, InferParameter>> {
    prop_oneof![
        3 => Just(std::collections::BTreeMap::new()),
        1 => proptest::collection::btree_map(name(), parameter(), 0..4),
    ]
}

/// Generates typed contents with `count` elements, which `set` puts into their field.
fn typed<S: Strategy + 'static>(
    element: S,
    count: usize,
    set: fn(&mut InferTensorContents, Vec<S::Value>),
) -> BoxedStrategy<InferTensorContents> {
    let filled = vec(element, count).prop_map(move |elements| {
        let mut contents = InferTensorContents::default();
        set(&mut contents, elements);
        contents
    });
    filled.boxed()
}

/// Generates typed contents: one field, possibly of the right length, or several fields, which is invalid.
fn contents_of(datatype: &str, count: usize) -> BoxedStrategy<InferTensorContents> {
    let small = prop_oneof![3 => -128i32..256, 1 => any::<i32>()];
    let small_unsigned = prop_oneof![3 => 0u32..256, 1 => any::<u32>()];
    let bytes = vec(any::<u8>(), 0..5).prop_map(Bytes::from);
    let fitting = match datatype {
        "BOOL" => typed(any::<bool>(), count, |to, elements| to.bool_contents = elements),
        "INT8" | "INT16" | "INT32" => typed(small, count, |to, elements| to.int_contents = elements),
        "INT64" => typed(any::<i64>(), count, |to, elements| to.int64_contents = elements),
        "UINT8" | "UINT16" | "UINT32" => {
            typed(small_unsigned, count, |to, elements| to.uint_contents = elements)
        }
        "UINT64" => typed(any::<u64>(), count, |to, elements| to.uint64_contents = elements),
        "FP64" => typed(any::<f64>(), count, |to, elements| to.fp64_contents = elements),
        "BYTES" => typed(bytes, count, |to, elements| to.bytes_contents = elements),
        _ => typed(any::<f32>(), count, |to, elements| to.fp32_contents = elements),
    };
    let other = (
        vec(any::<bool>(), 0..2),
        vec(any::<i32>(), 0..3),
        vec(any::<i64>(), 0..2),
    )
        .prop_map(
            move |(bool_contents, int_contents, int64_contents)| InferTensorContents {
                bool_contents,
                int_contents,
                int64_contents,
                ..InferTensorContents::default()
            },
        );
    prop_oneof![9 => fitting, 1 => other].boxed()
}

/// Generates an input, and raw contents that may fit it.
fn input() -> impl Strategy<Value = (InferInputTensor, Bytes)> {
    const DATATYPES: &[&str] = &[
        "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "BF16",
        "FP32", "FP64", "BYTES", "fp32",
    ];
    let head = (
        name(),
        proptest::sample::select(DATATYPES),
        prop_oneof![9 => vec(0i64..4, 0..3), 1 => vec(any::<i64>(), 0..40)],
        parameters(),
    );
    head.prop_flat_map(|(name, datatype, shape, parameters)| {
        let count = shape
            .iter()
            .fold(1i64, |count, &dim| count.saturating_mul(dim.max(0)));
        let count = usize::try_from(count).unwrap_or(0).min(64);
        let size = DataType::from_name(datatype)
            .ok()
            .and_then(DataType::dtype)
            .map_or(4, tensor_core::DType::size);
        let input = InferInputTensor {
            name,
            datatype: datatype.to_owned(),
            shape,
            parameters,
            contents: None,
        };
        let contents = option::of(contents_of(datatype, count));
        let raw = prop_oneof![
            4 => Just(vec![0u8; count * size]),
            1 => vec(any::<u8>(), 0..9),
        ];
        (Just(input), contents, raw)
            .prop_map(|(input, contents, raw)| (InferInputTensor { contents, ..input }, Bytes::from(raw)))
    })
}

fn request() -> impl Strategy<Value = ModelInferRequest> {
    let name_of_model = prop_oneof![9 => Just("m"), 1 => Just(""), 1 => Just("../x")];
    let outputs = vec(
        (name(), parameters()).prop_map(|(name, parameters)| InferRequestedOutputTensor { name, parameters }),
        0..3,
    );
    (
        name_of_model,
        prop_oneof![Just(""), Just("1")],
        prop_oneof![Just(String::new()), "[a-zß]{0,4}"],
        parameters(),
        vec(input(), 0..4),
        outputs,
        0u8..4,
    )
        .prop_map(
            |(model_name, model_version, id, parameters, inputs, outputs, form)| {
                let (mut inputs, raw): (Vec<_>, Vec<_>) = inputs.into_iter().unzip();
                // In most cases all inputs have the same form.
                if form < 2 {
                    inputs
                        .iter_mut()
                        .for_each(|input: &mut InferInputTensor| input.contents = None);
                }
                ModelInferRequest {
                    model_name: model_name.to_owned(),
                    model_version: model_version.to_owned(),
                    id,
                    parameters,
                    inputs,
                    outputs,
                    raw_input_contents: if form % 3 < 2 && form != 2 { raw } else { vec![] },
                }
            },
        )
}

/// Generates a field of any wire type, whose value may be a nested message.
fn field(depth: u32) -> BoxedStrategy<Vec<u8>> {
    let key = |tag: u32, wire_type: u8| {
        let mut bytes = Vec::new();
        encoding::encode_varint(u64::from(tag << 3) | u64::from(wire_type), &mut bytes);
        bytes
    };
    let delimited = move |tag: u32, value: Vec<u8>| {
        let mut bytes = key(tag, 2);
        encoding::encode_varint(value.len() as u64, &mut bytes);
        bytes.extend(value);
        bytes
    };
    let tag = 1u32..10;
    let varint =
        (tag.clone(), prop_oneof![3 => 0u64..300, 1 => any::<u64>()]).prop_map(move |(tag, value)| {
            let mut bytes = key(tag, 0);
            encoding::encode_varint(value, &mut bytes);
            bytes
        });
    let four =
        (tag.clone(), any::<[u8; 4]>()).prop_map(move |(tag, value)| [key(tag, 5), value.to_vec()].concat());
    let eight =
        (tag.clone(), any::<[u8; 8]>()).prop_map(move |(tag, value)| [key(tag, 1), value.to_vec()].concat());
    let text = (
        tag.clone(),
        prop_oneof![
            Just("x"),
            Just("m"),
            Just("INT64"),
            Just("FP32"),
            Just("BYTES"),
            Just("BOOL")
        ],
    )
        .prop_map(move |(tag, text)| delimited(tag, text.into()));
    let packed = (tag.clone(), vec(any::<u8>(), 0..9)).prop_map(move |(tag, bytes)| delimited(tag, bytes));
    let flat = prop_oneof![3 => varint, 1 => four, 1 => eight, 3 => text, 2 => packed];
    if depth == 0 {
        return flat.boxed();
    }
    let nested = (tag.clone(), vec(field(depth - 1), 0..5))
        .prop_map(move |(tag, fields)| delimited(tag, fields.concat()));
    let group = (10u32..12, vec(field(depth - 1), 0..3))
        .prop_map(move |(tag, fields)| [key(tag, 3), fields.concat(), key(tag, 4)].concat());
    prop_oneof![4 => flat, 5 => nested, 1 => group].boxed()
}

/// A mutation of a message's bytes.
#[derive(Clone, Debug)]
enum Change {
    Set(prop::sample::Index, u8),
    Remove(prop::sample::Index),
    Insert(prop::sample::Index, u8),
    Cut(prop::sample::Index),
}

impl Change {
    fn apply(&self, message: &mut Vec<u8>) {
        let len = message.len();
        match self {
            Self::Insert(at, byte) => message.insert(at.index(len + 1), *byte),
            _ if len == 0 => {}
            Self::Set(at, byte) => message[at.index(len)] = *byte,
            Self::Remove(at) => drop(message.remove(at.index(len))),
            Self::Cut(at) => message.truncate(at.index(len)),
        }
    }
}

fn change() -> impl Strategy<Value = Change> {
    let index = any::<prop::sample::Index>;
    prop_oneof![
        4 => (index(), any::<u8>()).prop_map(|(at, byte)| Change::Set(at, byte)),
        1 => index().prop_map(Change::Remove),
        2 => (index(), any::<u8>()).prop_map(|(at, byte)| Change::Insert(at, byte)),
        1 => index().prop_map(Change::Cut),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn messages_are_read_as_prost_reads_them(message in request()) {
        assert_same(&message.encode_to_vec())?;
    }

    /// Concatenated messages are merged as prost merges them.
    #[test]
    fn joined_messages_are_merged_as_prost_merges_them(first in request(), second in request()) {
        assert_same(&[first.encode_to_vec(), second.encode_to_vec()].concat())?;
    }

    #[test]
    fn damaged_messages_are_read_as_prost_reads_them(message in request(), changes in vec(change(), 1..4)) {
        let mut message = message.encode_to_vec();
        changes.iter().for_each(|change| change.apply(&mut message));
        assert_same(&message)?;
    }

    /// Decodes any fields in any order and form: packed or not, repeated, unknown, in groups.
    #[test]
    fn fields_are_read_as_prost_reads_them(fields in vec(field(3), 0..8), is_named in any::<bool>()) {
        let name = if is_named { b"\x0a\x01m".to_vec() } else { Vec::new() };
        assert_same(&[name, fields.concat()].concat())?;
    }

    /// Decodes the contents of one input like prost, split into parts and in any form.
    #[test]
    fn contents_are_read_as_prost_reads_them(
        datatype in prop_oneof![Just("INT64"), Just("INT8"), Just("UINT16"), Just("FP32"), Just("FP64"), Just("BOOL"), Just("BYTES")],
        parts in vec(vec(field(0), 0..5), 0..4),
        count in 0u8..9,
    ) {
        let mut input = InferInputTensor {
            name: "x".into(),
            datatype: datatype.into(),
            shape: vec![count.into()],
            ..Default::default()
        }
        .encode_to_vec();
        for part in parts {
            encoding::bytes::encode(5, &part.concat(), &mut input);
        }
        let mut message = b"\x0a\x01m".to_vec();
        encoding::bytes::encode(5, &input, &mut message);
        assert_same(&message)?;
    }

    /// A small work limit does not change the result; decoding may only stop early.
    #[test]
    fn effort_changes_no_result(message in request(), effort in 0u64..400) {
        let message = Bytes::from(message.encode_to_vec());
        let reader = Reader {
            limits: &RequestLimits::default(),
            output: GrpcOutput::Mirror,
            shared_memory: &Memory::default(),
            lease: &Lease::unlimited(),
        };
        let outcome = match reader.read(&message, Effort::Little(effort)) {
            Err((_, Failure::TooMuchWork)) => return Ok(()),
            Err((_, Failure::Malformed(_))) => Outcome::Malformed,
            Err((_, Failure::Refused(error))) => Outcome::refused(&error),
            Ok(read) => Outcome::of(read.request, read.wants_raw),
        };
        prop_assert_eq!(outcome, read(&message, Effort::Any).0);
    }
}
