//! Inference failures common to both transports.

use oip_types::ErrorCode::{self, *};
use serde_json::json;

use super::neutral::{
    Data, Input, Neutral, Parameter, good, input, output, parameters, to_model, with_input, with_output,
    with_parameter, with_values,
};

/// Returns each failure with its code and message, which are the same in both transports.
pub(super) fn failures() -> Vec<(&'static str, Neutral, ErrorCode, &'static str)> {
    let x = |shape: &[i64], raw: &[u8]| with_input("identity_fp32", input("x", "FP32", shape, raw));
    let bytes = |raw: &[u8]| with_input("identity_bytes", input("x", "BYTES", &[1], raw));
    let many = Neutral {
        outputs: vec![output("y"); 256],
        ..good()
    };
    let two = Neutral {
        inputs: vec![good().inputs[0].clone(); 2],
        ..good()
    };
    vec![
        (
            "unknown model",
            to_model("zz"),
            NotFound,
            "model 'zz' does not exist",
        ),
        (
            "unknown version",
            Neutral {
                version: "99".into(),
                ..to_model("matrix")
            },
            NotFound,
            "model 'matrix' version '99' does not exist",
        ),
        (
            "model not ready",
            to_model("loading"),
            Unavailable,
            "model 'loading' is not ready: it is being loaded",
        ),
        (
            "model fails",
            to_model("failing"),
            Internal,
            "model 'failing': it failed",
        ),
        (
            "queue full",
            to_model("busy"),
            Overloaded,
            "model 'busy': its queue is full; try again later",
        ),
        (
            "deadline",
            Neutral {
                parameters: parameters(&[("timeout", Parameter::Int(1000))]),
                ..to_model("slow")
            },
            DeadlineExceeded,
            "model 'slow': the deadline passed",
        ),
        (
            "dots",
            to_model(".."),
            InvalidArgument,
            "model name '..' must not be a path or a hidden file's name",
        ),
        (
            "slash",
            to_model("a/b"),
            InvalidArgument,
            "model name 'a/b' must not contain a path separator",
        ),
        (
            "version",
            Neutral {
                version: "../1".into(),
                ..to_model("matrix")
            },
            InvalidArgument,
            "model version '../1' must not contain a path separator",
        ),
        (
            "overflow",
            x(&[16, (1 << 60) + 2], &[0; 4]),
            InvalidArgument,
            "model 'identity_fp32': input 'x': the element count of shape [16, 1152921504606846978] does not fit 64 bits",
        ),
        (
            "square",
            x(&[1 << 20, 1 << 20], &[0; 32]),
            InvalidArgument,
            "model 'identity_fp32': input 'x': expected 4398046511104 bytes for FP32[1048576, 1048576], found 32",
        ),
        (
            "byte overflow",
            x(&[4, (1 << 60) + 2], &[0; 4]),
            InvalidArgument,
            "model 'identity_fp32': input 'x': the byte length of FP32[4, 1152921504606846978] does not fit 64 bits",
        ),
        (
            "negative dimension",
            x(&[-5], &[0; 4]),
            InvalidArgument,
            "model 'identity_fp32': input 'x': shape [-5] has a negative dimension",
        ),
        (
            "rank",
            x(&[1; 33], &[0; 4]),
            InvalidArgument,
            "model 'identity_fp32': input 'x': shape has 33 dimensions, the limit is 32",
        ),
        (
            "wrong rank",
            x(&[1, 2], &[0; 8]),
            InvalidArgument,
            "model 'identity_fp32': input 'x': expected shape [-1], found [1, 2]",
        ),
        (
            "one byte short",
            x(&[2], &[0; 7]),
            InvalidArgument,
            "model 'identity_fp32': input 'x': expected 8 bytes for FP32[2], found 7",
        ),
        (
            "one byte more",
            x(&[2], &[0; 9]),
            InvalidArgument,
            "model 'identity_fp32': input 'x': expected 8 bytes for FP32[2], found 9",
        ),
        (
            "lying length",
            bytes(&[255, 255, 255, 255, 1]),
            InvalidArgument,
            "model 'identity_bytes': input 'x': BYTES element 0 is truncated at byte 4: expected 4294967295 \
             bytes of data, found 1",
        ),
        (
            "cut prefix",
            bytes(&[1, 0]),
            InvalidArgument,
            "model 'identity_bytes': input 'x': BYTES element 0 is truncated at byte 0: expected 4 bytes of \
             length, found 2",
        ),
        (
            "count",
            bytes(&[0; 8]),
            InvalidArgument,
            "model 'identity_bytes': input 'x': expected 1 BYTES elements for shape [1], found 2",
        ),
        (
            "spelling",
            with_input("identity_fp32", input("x", "fp32", &[2], &[0; 8])),
            InvalidArgument,
            "model 'identity_fp32': input 'x': unknown datatype 'fp32' (did you mean 'FP32'?)",
        ),
        (
            "unknown",
            with_input("identity_fp32", input("x", "FLOAT", &[2], &[0; 8])),
            InvalidArgument,
            "model 'identity_fp32': input 'x': unknown datatype 'FLOAT'",
        ),
        (
            "wrong datatype",
            with_input("identity_fp32", input("x", "FP64", &[1], &[0; 8])),
            InvalidArgument,
            "model 'identity_fp32': input 'x': expected datatype FP32, found FP64",
        ),
        (
            "missing input",
            Neutral {
                inputs: vec![],
                ..good()
            },
            InvalidArgument,
            "model 'identity_fp32': input 'x' (FP32[-1]) is missing: expected 1 inputs, found 0",
        ),
        (
            "unknown input",
            with_input("identity_fp32", input("qq", "FP32", &[2], &[0; 8])),
            InvalidArgument,
            "model 'identity_fp32': unexpected input 'qq'; the model takes 'x' (FP32[-1])",
        ),
        (
            "input twice",
            two,
            InvalidArgument,
            "model 'identity_fp32': input 'x' is given more than once",
        ),
        (
            "unknown output",
            Neutral {
                outputs: vec![output("nope")],
                ..good()
            },
            InvalidArgument,
            "model 'identity_fp32': unexpected output 'nope'; the model gives 'y' (FP32[-1])",
        ),
        (
            "output twice",
            Neutral {
                outputs: vec![output("y"); 2],
                ..good()
            },
            InvalidArgument,
            "model 'identity_fp32': output 'y' is requested more than once",
        ),
        (
            "too many tensors",
            many,
            InvalidArgument,
            "model 'identity_fp32': too many inputs and outputs: the limit is 256, found 257 or more",
        ),
        (
            "id",
            Neutral {
                id: "x".repeat(1025),
                ..good()
            },
            InvalidArgument,
            "model 'identity_fp32': too many bytes of id: the limit is 1024, found 1025 or more",
        ),
        (
            "reserved parameter",
            with_parameter("triton_x", Parameter::Bool(true)),
            InvalidArgument,
            "model 'identity_fp32': parameter 'triton_x': names that start with 'triton_' are reserved",
        ),
        (
            "timeout",
            with_parameter("timeout", Parameter::String("soon")),
            InvalidArgument,
            "parameter 'timeout': expected microseconds, found 'soon'",
        ),
        (
            "binary_data_output",
            with_parameter("binary_data_output", Parameter::Int(1)),
            InvalidArgument,
            "model 'identity_fp32': parameter 'binary_data_output': expected true or false, found 1",
        ),
        (
            "no inputs where two are needed",
            Neutral {
                inputs: vec![],
                ..to_model("matrix")
            },
            InvalidArgument,
            "model 'matrix': input 'a' (FP32[-1, 2]) is missing: expected 2 inputs, found 0",
        ),
        (
            "blank name",
            to_model(" "),
            InvalidArgument,
            "model name ' ' must not be empty",
        ),
        (
            "hidden name",
            to_model(".hidden"),
            InvalidArgument,
            "model name '.hidden' must not be a path or a hidden file's name",
        ),
        (
            "a version of a model without versions",
            Neutral {
                version: "1".into(),
                ..good()
            },
            NotFound,
            "model 'identity_fp32' version '1' does not exist",
        ),
        (
            "no elements, wrong rank",
            x(&[2, 0], &[]),
            InvalidArgument,
            "model 'identity_fp32': input 'x': expected shape [-1], found [2, 0]",
        ),
        (
            "a scalar, wrong rank",
            x(&[], &[0; 4]),
            InvalidArgument,
            "model 'identity_fp32': input 'x': expected shape [-1], found []",
        ),
        (
            "one value short",
            with_values("FP32", &[3], json!([1.0, 2.0])),
            InvalidArgument,
            "model 'identity_fp32': input 'x': expected 3 elements for shape [3], found 2",
        ),
        (
            "one value more",
            with_values("FP32", &[1], json!([1.0, 2.0])),
            InvalidArgument,
            "model 'identity_fp32': input 'x': expected 1 elements for shape [1], found 2",
        ),
        (
            "one string more",
            with_values("BYTES", &[1], json!(["a", "b"])),
            InvalidArgument,
            "model 'identity_bytes': input 'x': expected 1 elements for shape [1], found 2",
        ),
        (
            "the protocol's own example: three announced, one given",
            with_values("BOOL", &[3], json!([true])),
            InvalidArgument,
            "model 'identity_bool': input 'x': expected 3 elements for shape [3], found 1",
        ),
        (
            "UINT8",
            with_values("UINT8", &[2], json!([255, 256])),
            InvalidArgument,
            "model 'identity_uint8': input 'x': element 1: 256 does not fit UINT8",
        ),
        (
            "INT8",
            with_values("INT8", &[2], json!([-128, -129])),
            InvalidArgument,
            "model 'identity_int8': input 'x': element 1: -129 does not fit INT8",
        ),
        (
            "UINT16",
            with_values("UINT16", &[1], json!([65536])),
            InvalidArgument,
            "model 'identity_uint16': input 'x': element 0: 65536 does not fit UINT16",
        ),
        (
            "INT16",
            with_values("INT16", &[1], json!([40000])),
            InvalidArgument,
            "model 'identity_int16': input 'x': element 0: 40000 does not fit INT16",
        ),
        (
            "rows of another length",
            with_input("matrix", input("a", "FP32", &[1, 3], &[0; 12])),
            InvalidArgument,
            "model 'matrix': input 'a': expected shape [-1, 2], found [1, 3]",
        ),
        (
            "too many inputs",
            Neutral {
                inputs: vec![good().inputs[0].clone(); 257],
                ..good()
            },
            InvalidArgument,
            "model 'identity_fp32': too many inputs and outputs: the limit is 256, found 257 or more",
        ),
        (
            "too many parameters",
            Neutral {
                parameters: (0..257)
                    .map(|index| (format!("p{index}"), Parameter::Int(1)))
                    .collect(),
                ..good()
            },
            InvalidArgument,
            "model 'identity_fp32': too many parameters: the limit is 256, found 257 or more",
        ),
        (
            "priority",
            with_parameter("priority", Parameter::Int(-1)),
            InvalidArgument,
            "parameter 'priority': expected a priority of 0 or more, found -1",
        ),
        (
            "negative timeout",
            with_parameter("timeout", Parameter::Int(-1)),
            InvalidArgument,
            "parameter 'timeout': expected microseconds, found -1",
        ),
        (
            "classification of no classes",
            with_output(&[("classification", Parameter::Int(0))]),
            InvalidArgument,
            "model 'identity_fp32': output 'y': parameter 'classification': expected a number of classes above 0, found 0",
        ),
        (
            "classification by a word",
            with_output(&[("classification", Parameter::String("3"))]),
            InvalidArgument,
            "model 'identity_fp32': output 'y': parameter 'classification': expected a number of classes above 0, found '3'",
        ),
        (
            "classification of strings",
            Neutral {
                model: "identity_bytes".into(),
                inputs: vec![input("x", "BYTES", &[1], &[0; 4])],
                ..with_output(&[("classification", Parameter::Int(1))])
            },
            InvalidArgument,
            "model 'identity_bytes': output 'y': classification does not take BYTES outputs",
        ),
        (
            "classification into shared memory",
            with_output(&[
                ("classification", Parameter::Int(1)),
                ("shared_memory_region", Parameter::String("r")),
                ("shared_memory_byte_size", Parameter::Int(8)),
            ]),
            InvalidArgument,
            "model 'identity_fp32': output 'y': classification and shared memory cannot be requested together",
        ),
        (
            "an output into a region that is not there",
            with_output(&[
                ("shared_memory_region", Parameter::String("r")),
                ("shared_memory_byte_size", Parameter::Int(8)),
            ]),
            InvalidArgument,
            "model 'identity_fp32': output 'y': shared memory region 'r': it does not exist",
        ),
        (
            "an output into a region of no size",
            with_output(&[("shared_memory_region", Parameter::String("r"))]),
            InvalidArgument,
            "model 'identity_fp32': output 'y': parameter 'shared_memory_byte_size': expected a number of bytes, found nothing",
        ),
        (
            "an input from a region that is not there",
            elsewhere(&[
                ("shared_memory_region", Parameter::String("r")),
                ("shared_memory_byte_size", Parameter::Int(8)),
            ]),
            InvalidArgument,
            "model 'identity_fp32': input 'x': shared memory region 'r': it does not exist",
        ),
        (
            "an input of a negative size",
            elsewhere(&[
                ("shared_memory_region", Parameter::String("r")),
                ("shared_memory_byte_size", Parameter::Int(-8)),
            ]),
            InvalidArgument,
            "model 'identity_fp32': input 'x': parameter 'shared_memory_byte_size': expected a number of bytes, found -8",
        ),
        (
            "an offset into nothing",
            elsewhere(&[("shared_memory_offset", Parameter::Int(8))]),
            InvalidArgument,
            "model 'identity_fp32': input 'x': parameter 'shared_memory_offset' needs 'shared_memory_region'",
        ),
    ]
}

/// Returns an input whose elements are at the location that its parameters give.
fn elsewhere(values: &[(&str, Parameter)]) -> Neutral {
    let data = Data::Elsewhere(parameters(values));
    let input = Input {
        data,
        ..input("x", "FP32", &[2], &[])
    };
    with_input("identity_fp32", input)
}
