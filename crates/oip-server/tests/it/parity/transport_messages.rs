//! Inference failures that each transport detects in its own encoding and reports with its own message.

use oip_types::ErrorCode::{self, *};
use serde_json::json;

use super::neutral::{Data, Input, Neutral, input, with_input, with_values};

/// A failure with the messages of HTTP and gRPC.
pub(super) type InOwnWords = (&'static str, Neutral, ErrorCode, [&'static str; 2]);

/// Returns failures that HTTP locates by position and gRPC by field: the codes match, the messages differ.
pub(super) fn failures_in_own_words() -> Vec<InOwnWords> {
    let nothing = Input {
        data: Data::Elsewhere(vec![]),
        ..input("x", "FP32", &[2], &[])
    };
    vec![
        (
            "floats for integers",
            with_values("INT32", &[1], json!([1.5])),
            InvalidArgument,
            [
                "model 'identity_int32': input 'x': element 0: 1.5 does not fit INT32",
                "model 'identity_int32': input 'x': expected int_contents for INT32, found fp32_contents",
            ],
        ),
        (
            "strings for floats",
            with_values("FP32", &[1], json!(["1"])),
            InvalidArgument,
            [
                "model 'identity_fp32': input 'x': element 0: invalid JSON at byte 30: expected a number for FP32, found '\"'",
                "model 'identity_fp32': input 'x': expected fp32_contents for FP32, found bytes_contents",
            ],
        ),
        (
            "truth for integers",
            with_values("INT8", &[1], json!([true])),
            InvalidArgument,
            [
                "model 'identity_int8': input 'x': element 0: invalid JSON at byte 30: expected a number for INT8, found 't'",
                "model 'identity_int8': input 'x': expected int_contents for INT8, found bool_contents",
            ],
        ),
        (
            "numbers for truth",
            with_values("BOOL", &[1], json!([2])),
            InvalidArgument,
            [
                "model 'identity_bool': input 'x': element 0: 2 does not fit BOOL",
                "model 'identity_bool': input 'x': expected bool_contents for BOOL, found int_contents",
            ],
        ),
        (
            "no data at all",
            with_input("identity_fp32", nothing),
            InvalidArgument,
            [
                "model 'identity_fp32': input 'x': expected one of \"data\", \"binary_data_size\" and \"shared_memory_region\", found none of them",
                "model 'identity_fp32': input 'x': expected contents or raw_input_contents, found neither",
            ],
        ),
    ]
}
