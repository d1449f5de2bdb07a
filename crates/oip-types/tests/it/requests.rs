//! Tests which request bodies are accepted, which are rejected, and with what message.

use bytes::Bytes;
use oip_types::{
    BytesTensor, DataType, ErrorCode, InferRequest, ModelRef, ParameterValue, RequestLimits, ServiceError,
    TensorValue,
    rest::{self, DecodedRequest, NonFinite, RequestEncoding},
};
use tensor_core::{Shape, Tensor};

fn decode(json: &str, binary: &[u8], header_length: Option<usize>) -> Result<DecodedRequest, ServiceError> {
    let body = Bytes::from([json.as_bytes(), binary].concat());
    rest::decode_request(
        ModelRef::new("m", None).unwrap(),
        &body,
        header_length,
        &RequestLimits::default(),
    )
}

fn json(text: &str) -> Result<DecodedRequest, ServiceError> {
    decode(text, &[], None)
}

fn refusal(text: &str) -> String {
    match json(text) {
        Ok(_) => panic!("accepted: {text}"),
        Err(error) => {
            assert_eq!(error.code(), ErrorCode::InvalidArgument, "{text}: {error}");
            assert!(error.message().len() < 1024);
            error.to_string()
        }
    }
}

/// Returns a request with one input that has the JSON members `members`.
fn with_input(members: &str) -> String {
    format!(r#"{{"inputs":[{{{members}}}]}}"#)
}

#[test]
fn members_may_stand_in_any_order() {
    let members = [
        r#""name":"x""#,
        r#""datatype":"INT32""#,
        r#""shape":[2]"#,
        r#""data":[7,-8]"#,
        r#""extra":{"a":[1]}"#,
    ];
    for first in 0..members.len() {
        let mut rotated = members;
        rotated.rotate_left(first);
        for members in [rotated, {
            rotated.reverse();
            rotated
        }] {
            let decoded = json(&with_input(&members.join(","))).unwrap();
            let tensor = decoded.request.input("x").unwrap().as_fixed().unwrap().clone();
            assert_eq!(tensor.to_vec::<i32>().unwrap(), [7, -8]);
        }
    }
}

#[test]
fn ids_parameters_and_outputs() {
    let text = r#"{"model_name":"ignored","id":"42","parameters":{"a":true,"b":-3,"c":0.5,"d":"s","binary_data_output":true},
        "inputs":[],"outputs":[{"name":"y","parameters":{"binary_data":false}},{"name":"z"}]}"#;
    let DecodedRequest {
        request,
        binary_outputs,
        ..
    } = json(text).unwrap();
    assert_eq!(request.id.as_deref(), Some("42"));
    assert_eq!(request.parameters["a"], ParameterValue::Bool(true));
    assert_eq!(request.parameters["b"], ParameterValue::Int64(-3));
    assert_eq!(request.parameters["c"], ParameterValue::Double(0.5));
    assert_eq!(request.parameters["d"], ParameterValue::String("s".into()));
    // Parameters that concern only the encoding were removed.
    assert_eq!(request.parameters.len(), 4);
    assert!(request.outputs.iter().all(|output| output.parameters.is_empty()));
    // The specification's rule: the request's default applies to listed outputs without their own setting.
    assert_eq!(
        ["y", "z", "unlisted"].map(|name| binary_outputs.is_binary(name)),
        [false, true, true]
    );
}

#[test]
fn null_and_empty_members_count_as_absent() {
    for text in [
        r#"{"id":null,"parameters":null,"inputs":[],"outputs":null}"#,
        r#"{"id":"","parameters":{},"inputs":[],"outputs":[]}"#,
        "\u{feff}{\"inputs\":[]}",
        " \t\r\n{\"inputs\" : [ ] } \n",
    ] {
        let request = json(text).unwrap().request;
        assert_eq!(
            (request.id, request.parameters.len(), request.outputs.len()),
            (None, 0, 0)
        );
    }
}

/// Rejects bodies that are not inference requests.
#[test]
fn bodies_that_are_no_request() {
    for (text, message) in [
        ("", "invalid JSON at byte 0: expected an object, found the end"),
        ("null", "invalid JSON at byte 0: expected an object, found 'n'"),
        ("[]", "invalid JSON at byte 0: expected an object, found '['"),
        ("{}", "member \"inputs\" is missing"),
        (
            r#"{"inputs":null}"#,
            "invalid JSON at byte 10: expected an array, found 'n'",
        ),
        (
            r#"{"inputs":[]"#,
            "invalid JSON at byte 12: expected ',' or '}', found the end",
        ),
        (
            r#"{"inputs":[]}}"#,
            "invalid JSON at byte 13: expected the end, found '}'",
        ),
        (r#"{"inputs":[{}]}"#, "inputs[0]: member \"name\" is missing"),
        (
            r#"{"inputs":[5]}"#,
            "inputs[0]: invalid JSON at byte 11: expected an object, found '5'",
        ),
    ] {
        assert_eq!(refusal(text), message);
    }
    let not_utf8 = Bytes::from_static(b"{\"id\":\"\xff\"}");
    let model = ModelRef::new("m", None).unwrap();
    let error = rest::decode_request(model, &not_utf8, None, &RequestLimits::default()).unwrap_err();
    assert_eq!(error.to_string(), "invalid JSON at byte 7: not UTF-8");
}

/// Rejects invalid strings as names.
#[test]
fn hostile_strings() {
    assert!(refusal(&with_input(r#""name":"a\u0000b""#)).contains("NUL"));
    assert!(refusal(&with_input(r#""name":"\ud800""#)).contains("surrogate"));
    assert!(refusal(r#"{"inputs":[],"outputs":[{"name":"\u0000"}]}"#).contains("NUL"));
}

/// Rejects nesting that would overflow the stack, anywhere in the body.
#[test]
fn deep_nesting_is_refused_everywhere() {
    for depth in [65, 129, 250_000] {
        let deep = "[".repeat(depth);
        for text in [
            format!(r#"{{"inputs":[{{"name":"x","shape":[1],"datatype":"FP32","data":{deep}"#),
            format!(r#"{{"inputs":[{{"data":{deep},"name":"x","shape":[1],"datatype":"FP32"}}]}}"#),
            format!(r#"{{"parameters":{{"a":{deep}"#),
            format!(r#"{{"id":{deep}"#),
            format!(r#"{{"unknown":{deep}"#),
            format!(r#"{{"unknown":{}"#, r#"{"a":"#.repeat(depth)),
            deep.clone(),
        ] {
            refusal(&text);
        }
    }
    let deep = format!("{}{}", "[".repeat(64), "]".repeat(64));
    assert!(json(&format!(r#"{{"unknown":{deep},"inputs":[]}}"#)).is_ok());
}

/// Rejects duplicate members.
#[test]
fn duplicate_members() {
    for text in [
        r#"{"inputs":[],"inputs":[]}"#.to_owned(),
        r#"{"inputs":[],"id":"a","id":"b"}"#.to_owned(),
        with_input(r#""name":"x","shape":[1],"shape":[1],"datatype":"FP32","data":[1]"#),
        with_input(r#""name":"x","shape":[1],"datatype":"FP32","data":[1],"data":[1]"#),
        with_input(r#""name":"x","name":"x""#),
        with_input(r#""parameters":{"a":1,"a":1}"#),
    ] {
        assert!(refusal(&text).contains("more than once"), "{text}");
    }
}

/// Rejects shapes whose number of elements, or number of bytes, overflows.
#[test]
fn ht_23_shapes_that_overflow() {
    for (shape, data) in [
        ("[16,1152921504606846978]", "[1.0]"),
        ("[4,1152921504606846978]", "[1.0]"),
        ("[1099511627776,1099511627776]", "[1,2,3,4,5,6,7,8]"),
    ] {
        let text = with_input(&format!(
            r#""name":"x","shape":{shape},"datatype":"FP32","data":{data}"#
        ));
        assert!(refusal(&text).starts_with("input 'x': "), "{text}");
    }
}

/// Rejects invalid shapes.
#[test]
fn shapes_that_are_none() {
    let ones = format!("[{}]", ["1"; 33].join(","));
    let many = format!("[{}]", vec!["1"; 1_000_000].join(","));
    for shape in [
        "[-5]",
        "[1.5]",
        "[\"1\"]",
        "[1e400]",
        "[18446744073709551616]",
        "[9223372036854775808]",
        "null",
        "5",
        "[[1]]",
        "[15e-1]",
        &ones,
        &many,
    ] {
        refusal(&with_input(&format!(
            r#""name":"x","shape":{shape},"datatype":"FP32","data":[1]"#
        )));
    }
}

/// Accepts shapes without elements, and without dimensions.
#[test]
fn empty_and_scalar_shapes() {
    for (shape, data, count) in [
        ("[0]", "[]", 0),
        ("[2,0]", "[[],[]]", 0),
        ("[2,0]", "[]", 0),
        ("[]", "[3]", 1),
        ("[]", "3", 1),
    ] {
        let text = with_input(&format!(
            r#""name":"x","shape":{shape},"datatype":"FP32","data":{data}"#
        ));
        let decoded = json(&text).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(decoded.request.input("x").unwrap().shape().element_count(), count);
    }
}

/// Rejects unknown datatypes.
#[test]
fn unknown_datatypes() {
    for (datatype, message) in [
        (
            "\"fp32\"",
            "input 'x': unknown datatype 'fp32' (did you mean 'FP32'?)",
        ),
        ("\"FLOAT\"", "input 'x': unknown datatype 'FLOAT'"),
        ("\"\"", "input 'x': unknown datatype ''"),
        (
            "7",
            "input 'x': invalid JSON at byte 46: expected a string, found '7'",
        ),
    ] {
        let text = with_input(&format!(
            r#""name":"x","shape":[1],"datatype":{datatype},"data":[1]"#
        ));
        assert_eq!(refusal(&text), message);
    }
    for datatype in ["FP16", "BF16"] {
        let text = with_input(&format!(
            r#""name":"x","shape":[1],"datatype":"{datatype}","data":[1.5]"#
        ));
        assert_eq!(
            json(&text).unwrap().request.input("x").unwrap().datatype().name(),
            datatype
        );
    }
}

/// Rejects the specification's own example, whose shape has three elements and whose data has one. The single
/// element is not broadcast.
#[test]
fn the_example_of_the_specification_is_an_error() {
    let text = r#"{"id":"42","inputs":[{"name":"input0","shape":[2,2],"datatype":"UINT32","data":[1,2,3,4]},
        {"name":"input1","shape":[3],"datatype":"BOOL","data":[true]}],"outputs":[{"name":"output0"}]}"#;
    assert_eq!(
        refusal(text),
        "input 'input1': expected 3 elements for shape [3], found 1"
    );
    assert!(json(&text.replace("[true]", "[true,false,true]")).is_ok());
}

/// Limits the number of inputs, outputs and parameters.
#[test]
fn counts() {
    let input = r#"{"name":"x","shape":[1],"datatype":"UINT8","data":[1]}"#;
    let inputs = |count: usize| format!(r#"{{"inputs":[{}]}}"#, vec![input; count].join(","));
    assert_eq!(json(&inputs(256)).unwrap().request.inputs.len(), 256);
    for count in [257, 100_000] {
        assert!(refusal(&inputs(count)).contains("the limit is 256"));
    }
    let outputs = |count: usize| {
        format!(
            r#"{{"inputs":[],"outputs":[{}]}}"#,
            vec![r#"{"name":"y"}"#; count].join(",")
        )
    };
    assert!(refusal(&outputs(100_000)).contains("the limit is 256"));
    assert!(
        refusal(&format!(
            r#"{{"inputs":[{input}],"outputs":[{}]}}"#,
            vec![r#"{"name":"y"}"#; 256].join(",")
        ))
        .contains("the limit is 256")
    );
    let parameters: Vec<String> = (0..1_000_000).map(|index| format!("\"p{index}\":1")).collect();
    assert!(
        refusal(&format!(
            r#"{{"parameters":{{{}}},"inputs":[]}}"#,
            parameters.join(",")
        ))
        .contains("the limit is 256")
    );
}

/// Accepts string ids within the length limit, and rejects longer ids and ids of other types.
#[test]
fn ids() {
    assert!(
        refusal(&format!(r#"{{"id":"{}","inputs":[]}}"#, "x".repeat(1 << 20))).contains("the limit is 1024")
    );
    assert!(refusal(r#"{"id":42,"inputs":[]}"#).starts_with("id: "));
    let request = json(r#"{"id":"a\n\u0001","inputs":[]}"#).unwrap().request;
    assert_eq!(request.id.as_deref(), Some("a\n\u{1}"));
}

/// Rejects parameters whose value has the wrong type or is out of range, and reserved names.
#[test]
fn parameters() {
    for parameter in [
        r#""a":{}"#,
        r#""a":[1]"#,
        r#""a":null"#,
        r#""a":9223372036854775808"#,
        r#""a":1e999"#,
        r#""triton_x":1"#,
        r#""binary_data_output":1"#,
    ] {
        refusal(&format!(r#"{{"parameters":{{{parameter}}},"inputs":[]}}"#));
    }
    assert!(
        refusal(r#"{"inputs":[],"outputs":[{"name":"y","parameters":{"binary_data":"yes"}}]}"#)
            .starts_with("output 'y': ")
    );
}

fn binary_input(name: &str, size: impl std::fmt::Display) -> String {
    format!(
        r#"{{"name":"{name}","shape":[2],"datatype":"INT16","parameters":{{"binary_data_size":{size}}}}}"#
    )
}

#[test]
fn binary_inputs_are_slices_of_the_body_in_order() {
    let plain = r#"{"name":"j","shape":[1],"datatype":"UINT8","data":[9]}"#;
    let header = format!(
        r#"{{"inputs":[{},{plain},{}]}}"#,
        binary_input("a", 4),
        binary_input("b", 4)
    );
    let body = Bytes::from([header.as_bytes(), &[1, 0, 2, 0, 3, 0, 4, 0]].concat());
    let model = ModelRef::new("m", None).unwrap();
    let request = rest::decode_request(model, &body, Some(header.len()), &RequestLimits::default())
        .unwrap()
        .request;
    for (name, offset, values) in [("a", 0, [1i16, 2]), ("b", 4, [3, 4])] {
        let tensor = request.input(name).unwrap().as_fixed().unwrap();
        assert_eq!(tensor.to_vec::<i16>().unwrap(), values);
        assert_eq!(
            tensor.bytes().as_ptr(),
            body[header.len() + offset..].as_ptr(),
            "copied"
        );
    }
    assert!(request.inputs.iter().all(|input| input.parameters.is_empty()));
    assert_eq!(request.input("j").unwrap().datatype(), DataType::UINT8);
}

/// Rejects sizes of binary inputs that do not match their shapes or the body.
#[test]
fn binary_sizes() {
    let cases = [
        (
            binary_input("a", 4),
            3,
            "input 'a': expected 4 bytes of binary data, found 3",
        ),
        (
            binary_input("a", 4),
            5,
            "1 bytes of binary data are left over after all tensors with \"binary_data_size\"",
        ),
        (
            binary_input("a", 2),
            2,
            "input 'a': expected 4 bytes for INT16[2], found 2",
        ),
        (
            binary_input("a", -1),
            4,
            "input 'a': binary_data_size: expected a number of bytes, found -1",
        ),
        (
            binary_input("a", "\"4\""),
            4,
            "input 'a': binary_data_size: expected a number of bytes, found '4'",
        ),
        (
            binary_input("a", "true"),
            4,
            "input 'a': binary_data_size: expected a number of bytes, found true",
        ),
        (
            binary_input("a", u64::MAX),
            4,
            "input 'a': parameter 'binary_data_size': 18446744073709551615 does not fit 64 bits",
        ),
        (
            binary_input("a", 1u64 << 62),
            4,
            "input 'a': expected 4611686018427387904 bytes of binary data, found 4",
        ),
        (
            r#"{"name":"a","shape":[1],"datatype":"UINT8","data":[1],"parameters":{"binary_data_size":1}}"#
                .into(),
            1,
            "input 'a': expected only one of \"data\", \"binary_data_size\" and \"shared_memory_region\", found several",
        ),
        (
            r#"{"name":"a","shape":[1],"datatype":"UINT8"}"#.into(),
            0,
            "input 'a': expected one of \"data\", \"binary_data_size\" and \"shared_memory_region\", found none of them",
        ),
        (
            r#"{"name":"a","shape":[1],"datatype":"UINT8","parameters":{"shared_memory_region":"r","shared_memory_byte_size":1}}"#.into(),
            0,
            "input 'a': shared memory region 'r': shared memory is not offered by this server; send the data itself",
        ),
    ];
    for (input, tail, message) in cases {
        let header = format!(r#"{{"inputs":[{input}]}}"#);
        let error = decode(&header, &vec![0; tail], Some(header.len())).unwrap_err();
        assert_eq!(
            (error.code(), error.to_string()),
            (ErrorCode::InvalidArgument, message.to_owned())
        );
    }
    // Without the header the whole body is JSON.
    assert!(
        decode(
            &format!(r#"{{"inputs":[{}]}}"#, binary_input("a", 4)),
            &[1; 4],
            None
        )
        .is_err()
    );
}

/// Decodes BYTES from JSON and from binary data, and rejects malformed elements.
#[test]
fn bytes() {
    let big = "x".repeat(16 << 20);
    let text = with_input(&format!(
        r#""name":"x","shape":[2],"datatype":"BYTES","data":["","{big}"]"#
    ));
    let request = json(&text).unwrap().request;
    let lengths: Vec<usize> = request
        .input("x")
        .unwrap()
        .as_bytes()
        .unwrap()
        .iter()
        .map(<[u8]>::len)
        .collect();
    assert_eq!(lengths, [0, 16 << 20]);

    let empty = format!("[{}]", vec!["\"\""; 1_000_000].join(","));
    let text = with_input(&format!(
        r#""name":"x","shape":[1000000],"datatype":"BYTES","data":{empty}"#
    ));
    assert_eq!(
        json(&text).unwrap().request.input("x").unwrap().raw().len(),
        4_000_000
    );

    let header =
        r#"{"inputs":[{"name":"x","shape":[2],"datatype":"BYTES","parameters":{"binary_data_size":9}}]}"#;
    let request = decode(header, b"\x01\0\0\0a\0\0\0\0", Some(header.len()))
        .unwrap()
        .request;
    assert_eq!(
        request
            .input("x")
            .unwrap()
            .as_bytes()
            .unwrap()
            .iter()
            .collect::<Vec<_>>(),
        [&b"a"[..], b""]
    );
    let error = decode(header, b"\x01\0\0\0a\x05\0\0\0", Some(header.len())).unwrap_err();
    assert!(
        error.to_string().contains("BYTES element 1 is truncated"),
        "{error}"
    );
}

/// Limits the decoded size of JSON data to `tensor_bytes`.
#[test]
fn decoded_data_has_a_budget() {
    let count = 2_000_000;
    let data = vec!["1"; count].join(",");
    let text = with_input(&format!(
        r#""name":"x","shape":[{count}],"datatype":"FP64","data":[{data}]"#
    ));
    let model = ModelRef::new("m", None).unwrap();
    let decode = |tensor_bytes| {
        let limits = RequestLimits::default().with(|limits| limits.tensor_bytes = tensor_bytes);
        rest::decode_request(model, &Bytes::from(text.clone()), None, &limits)
    };
    assert!(decode(8 * count).is_ok());
    let error = decode(8 * count - 1).unwrap_err();
    assert_eq!(error.code(), ErrorCode::TooLarge);
    assert_eq!(
        error.to_string(),
        "input 'x': element 1999999: the data of FP64[2000000] is larger than the server accepts"
    );
}

#[test]
fn inputs_without_a_json_form_are_to_be_sent_as_binary_data() {
    let refused = |value: TensorValue| {
        let request = InferRequest::new(ModelRef::new("m", None).unwrap()).with_input("x", value);
        let encoding = RequestEncoding::default().with(|encoding| encoding.non_finite = NonFinite::Error);
        rest::encode_request(&request, encoding).unwrap_err().to_string()
    };
    let texts = BytesTensor::from_elements(Shape::vector(2), [&b"ok"[..], b"\xff"]).unwrap();
    let numbers = Tensor::from_vec(Shape::vector(2), vec![0.0, f64::NEG_INFINITY]).unwrap();
    assert_eq!(
        [refused(texts.into()), refused(numbers.into())],
        [
            "input 'x': element 1 is not UTF-8 and has no JSON form; send this input as binary data",
            "input 'x': element 1: -Infinity has no JSON form; send this input as binary data",
        ]
    );
}
