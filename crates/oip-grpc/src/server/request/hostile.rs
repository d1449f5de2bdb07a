//! Tests messages that are small on the wire and large in memory: decoding takes a small multiple of the
//! message's size, or fails before the request is built.

use bytes::Bytes;
use oip_resources::{ByteBudget, Lease, TimeLimits};
use oip_types::{ErrorCode, NoSharedMemory, RequestLimits};
use prost::encoding;

use super::{Effort, Failure, ReadRequest, Reader};
use crate::server::GrpcOutput;

const SIZE: usize = 4 << 20;

fn read(message: &Bytes, lease: &Lease) -> Result<ReadRequest, Failure> {
    let reader = Reader {
        limits: &RequestLimits::default().with(|limits| limits.tensor_bytes = 8 * SIZE),
        output: GrpcOutput::Mirror,
        shared_memory: &NoSharedMemory,
        lease,
    };
    reader.read(message, Effort::Any).map_err(|(_, failure)| failure)
}

/// Decodes a message, and returns the peak allocation and the result.
fn peak(message: &Bytes) -> (usize, Result<ReadRequest, Failure>) {
    let lease = Lease::unlimited();
    let mut result = None;
    let allocated = allocation_counter::measure(|| result = Some(read(message, &lease)));
    (usize::try_from(allocated.bytes_max).unwrap(), result.unwrap())
}

fn code(result: Result<ReadRequest, Failure>) -> Option<ErrorCode> {
    match result {
        Ok(_) => None,
        Err(Failure::Refused(error)) => Some(error.code()),
        Err(failure) => panic!("{failure:?}"),
    }
}

/// Repeats bytes into a message of about [`SIZE`], after a model's name.
fn repeated(part: &[u8]) -> Bytes {
    let mut message = b"\x0a\x01m".to_vec();
    message.extend(part.repeat(SIZE / part.len()));
    message.into()
}

/// Returns an input `x` with this datatype and shape, followed by `rest`.
fn with_input(datatype: &str, shape: &[u64], rest: &[u8]) -> Bytes {
    let mut input = Vec::new();
    encoding::string::encode(1, &"x".to_owned(), &mut input);
    encoding::string::encode(2, &datatype.to_owned(), &mut input);
    for dim in shape {
        encoding::uint64::encode(3, dim, &mut input);
    }
    input.extend(rest);
    let mut message = b"\x0a\x01m".to_vec();
    encoding::bytes::encode(5, &input, &mut message);
    message.into()
}

fn contents(tag: u32, packed: &[u8]) -> Vec<u8> {
    let (mut field, mut contents) = (Vec::new(), Vec::new());
    encoding::bytes::encode(tag, &packed.to_vec(), &mut field);
    encoding::bytes::encode(5, &field, &mut contents);
    contents
}

/// A message with very many empty inputs, outputs or raw contents, of two bytes each, is rejected at the
/// limit, before anything but the outline is allocated.
#[test]
fn too_many_things_are_refused_before_they_are_built() {
    for (part, message) in [
        (
            &[0x2a, 0][..],
            "model 'm': too many inputs and outputs: the limit is 256, found 257 or more",
        ),
        (
            &[0x32, 0],
            "model 'm': too many inputs and outputs: the limit is 256, found 257 or more",
        ),
        (
            &[0x3a, 0],
            "model 'm': too many raw_input_contents: the limit is 256, found 257 or more",
        ),
    ] {
        let (allocated, result) = peak(&repeated(part));
        let Err(Failure::Refused(error)) = result else {
            panic!("{result:?}")
        };
        assert_eq!(
            (error.code(), error.message()),
            (ErrorCode::InvalidArgument, message)
        );
        assert!(allocated < 256 << 10, "{allocated} bytes for {part:02x?}");
    }
}

/// Parameters are kept only up to the limit, which also applies to each input.
#[test]
fn parameters_are_bounded() {
    let mut entries = Vec::new();
    for index in 0u32.. {
        if entries.len() > SIZE {
            break;
        }
        let mut entry = Vec::new();
        encoding::string::encode(1, &format!("{index:x}"), &mut entry);
        encoding::bytes::encode(2, &vec![8, 1], &mut entry);
        encoding::bytes::encode(4, &entry, &mut entries);
    }
    let of_request = [b"\x0a\x01m", &entries[..]].concat().into();
    let (allocated, result) = peak(&of_request);
    assert_eq!(code(result), Some(ErrorCode::InvalidArgument));
    assert!(allocated < 256 << 10, "{allocated} bytes");
    let (allocated, result) = peak(&with_input("FP32", &[1], &entries));
    assert_eq!(code(result), Some(ErrorCode::InvalidArgument));
    assert!(allocated < 256 << 10, "{allocated} bytes");

    // All lists have their maximum length.
    let mut message = b"\x0a\x01m".to_vec();
    for _ in 0..255 {
        let mut input = b"\x0a\x01x\x12\x04BOOL".to_vec();
        for index in 0u32..256 {
            let mut entry = Vec::new();
            encoding::string::encode(1, &format!("{index:x}"), &mut entry);
            encoding::bytes::encode(2, &vec![8, 1], &mut entry);
            encoding::bytes::encode(4, &entry, &mut input);
        }
        encoding::bytes::encode(3, &vec![0], &mut input);
        encoding::bytes::encode(5, &input, &mut message);
    }
    let message = Bytes::from(message);
    let lease = Lease::unlimited();
    let mut read_request = None;
    let allocated = allocation_counter::measure(|| read_request = read(&message, &lease).ok());
    let charged = read_request.expect("it is within all limits").charge.bytes();
    assert!(
        allocated.bytes_max <= charged + (64 << 10),
        "{} bytes, {charged} charged",
        allocated.bytes_max
    );
}

/// Dimensions are kept only up to the maximum rank.
#[test]
fn packed_shapes_are_bounded() {
    let mut shape = Vec::new();
    encoding::bytes::encode(3, &vec![1; SIZE], &mut shape);
    for rest in [shape, [0x18, 1].repeat(SIZE / 2)] {
        let (allocated, result) = peak(&with_input("FP32", &[], &rest));
        assert_eq!(code(result), Some(ErrorCode::InvalidArgument));
        assert!(allocated < 64 << 10, "{allocated} bytes");
    }
}

/// Decoding typed contents takes only the memory of the tensor.
#[test]
fn typed_contents_take_what_the_tensor_takes() {
    let strings = {
        let mut contents = Vec::new();
        encoding::bytes::encode(5, &[0x42, 0].repeat(SIZE / 2), &mut contents);
        contents
    };
    let numbers = SIZE as u64;
    for (datatype, count, contents, expected) in [
        ("INT64", numbers, contents(3, &vec![7; SIZE]), 8 * SIZE),
        ("UINT64", numbers, contents(5, &vec![7; SIZE]), 8 * SIZE),
        ("INT32", numbers, contents(2, &vec![7; SIZE]), 4 * SIZE),
        ("UINT8", numbers, contents(4, &vec![7; SIZE]), SIZE),
        ("BOOL", numbers, contents(1, &vec![1; SIZE]), SIZE),
        ("BYTES", numbers / 2, strings, 2 * SIZE),
        // These contents are not copied: the tensor is a slice of the message.
        ("FP32", numbers / 4, contents(6, &vec![7; SIZE]), 0),
        ("FP64", numbers / 8, contents(7, &vec![7; SIZE]), 0),
    ] {
        let (allocated, result) = peak(&with_input(datatype, &[count], &contents));
        assert_eq!(code(result), None, "{datatype}");
        assert!(allocated < expected + (16 << 10), "{datatype}: {allocated} bytes");
        // A mismatching shape is detected before decoding.
        let (allocated, result) = peak(&with_input(datatype, &[count + 1], &contents));
        assert_eq!(code(result), Some(ErrorCode::InvalidArgument), "{datatype}");
        assert!(allocated < 16 << 10, "{datatype}: {allocated} bytes");
    }
}

/// The size limit for decoded tensors applies to typed contents as it does to JSON.
#[test]
fn decoded_tensors_have_a_limit() {
    let one_more = SIZE as u64 + 1;
    let (allocated, result) = peak(&with_input(
        "INT64",
        &[one_more],
        &contents(3, &vec![7; SIZE + 1]),
    ));
    assert_eq!(code(result), Some(ErrorCode::TooLarge));
    assert!(allocated < 16 << 10, "{allocated} bytes");
}

/// Tensors are charged to the lease before they are decoded, whether the message can never fit into the
/// budget or merely does not fit now.
#[test]
fn decoded_tensors_are_charged() {
    let message = with_input("INT64", &[1 << 20], &contents(3, &vec![7; 1 << 20]));
    let budget = ByteBudget::new((8 << 20) - 1);
    let lease = Lease::new(&budget, &TimeLimits::default());
    assert_eq!(code(read(&message, &lease)), Some(ErrorCode::TooLarge));
    let budget = ByteBudget::new(8 << 20);
    let lease = Lease::new(&budget, &TimeLimits::default());
    let other = Lease::new(&budget, &TimeLimits::default()).charge(1).unwrap();
    assert_eq!(code(read(&message, &lease)), Some(ErrorCode::Overloaded));
    drop(other);
    let read = read(&message, &lease).unwrap();
    assert_eq!(budget.used(), 8 << 20);
    drop(read);
    assert_eq!(budget.used(), 0);
}

/// Long names and parameters are also charged to the lease.
#[test]
fn names_are_charged() {
    let mut input = Vec::new();
    encoding::string::encode(1, &"n".repeat(2 << 20), &mut input);
    let mut message = b"\x0a\x01m".to_vec();
    encoding::bytes::encode(6, &input, &mut message);
    let budget = ByteBudget::new(1 << 20);
    let lease = Lease::new(&budget, &TimeLimits::default());
    assert_eq!(code(read(&message.into(), &lease)), Some(ErrorCode::TooLarge));
}

/// Decoding ends when the client disconnects.
#[test]
fn long_walks_end_with_their_client() {
    let lease = Lease::unlimited();
    drop(lease.guard());
    // The message repeats an unknown field.
    let message = repeated(&[0x78, 1]);
    assert_eq!(code(read(&message, &lease)), Some(ErrorCode::Cancelled));
}
