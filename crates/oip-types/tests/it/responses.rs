//! Tests the encoding and decoding of response bodies.

use bytes::Bytes;
use oip_types::{
    BytesTensor, DataType, InferOutput, InferResponse, ParameterValue, RequestLimits, SharedMemorySlice,
    TensorValue,
    rest::{self, BinaryOutputs, NonFinite},
};
use tensor_core::{Element, Shape, Tensor};

fn vector<T: Element>(elements: &[T]) -> Tensor {
    Tensor::from_vec(Shape::vector(elements.len() as u64), elements.to_vec()).unwrap()
}

fn response(outputs: Vec<InferOutput>) -> InferResponse {
    InferResponse::new("m", outputs)
        .with_version(Some("1".into()))
        .with_id(Some("a\"b".into()))
}

fn json(outputs: Vec<InferOutput>, non_finite: NonFinite) -> Result<String, String> {
    let encoded = rest::encode_response(&response(outputs), &BinaryOutputs::default(), non_finite);
    let encoded = encoded.map_err(|error| error.to_string())?;
    assert_eq!(encoded.header_length(), None);
    Ok(String::from_utf8(encoded.into_bytes().to_vec()).unwrap())
}

#[test]
fn json_is_flat_and_in_tritons_order() {
    let tensor = vector(&[0.1f32, -2.0, 1e-7])
        .reshape(Shape::new(&[3, 1]).unwrap())
        .unwrap();
    let mut output = InferOutput::new("y", tensor);
    // Triton's C++ client fails on JSON outputs with parameters.
    output
        .parameters
        .insert("content_type".into(), ParameterValue::String("np".into()));
    assert_eq!(
        json(
            vec![output, InferOutput::new("z", vector(&[true, false]))],
            NonFinite::Null
        )
        .unwrap(),
        r#"{"id":"a\"b","model_name":"m","model_version":"1","outputs":[{"name":"y","datatype":"FP32","shape":[3,1],"data":[0.1,-2.0,1e-7]},{"name":"z","datatype":"BOOL","shape":[2],"data":[true,false]}]}"#
    );
}

/// The setting [`NonFinite`] determines how NaN and the infinities are encoded.
#[test]
fn non_finite_floats_follow_the_rule() {
    let outputs = || {
        vec![InferOutput::new(
            "y",
            vector(&[f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.0]),
        )]
    };
    for (rule, data) in [
        (NonFinite::Null, "[null,null,null,-0.0]"),
        (NonFinite::Literal, "[NaN,Infinity,-Infinity,-0.0]"),
        (NonFinite::String, r#"["NaN","Infinity","-Infinity",-0.0]"#),
    ] {
        let text = json(outputs(), rule).unwrap();
        assert!(text.ends_with(&format!("\"data\":{data}}}]}}")), "{text}");
    }
    assert_eq!(
        json(outputs(), NonFinite::Error).unwrap_err(),
        "output 'y': element 0: NaN has no JSON form; request this output with \"binary_data\": true"
    );
}

#[test]
fn strings_are_escaped_and_must_be_text() {
    let strings = |elements: &[&[u8]]| {
        let tensor = BytesTensor::from_elements(Shape::vector(elements.len() as u64), elements).unwrap();
        json(vec![InferOutput::new("y", tensor)], NonFinite::Null)
    };
    let text = strings(&[b"a\"\\\n\x01", "é".as_bytes(), b""]).unwrap();
    assert!(text.ends_with(r#""data":["a\"\\\n\u0001","é",""]}]}"#), "{text}");
    let error = strings(&[b"ok", b"\xff\xfe"]).unwrap_err();
    assert_eq!(
        error,
        "output 'y': element 1 is not UTF-8 and has no JSON form; request this output with \"binary_data\": true"
    );
}

#[test]
fn binary_outputs_follow_the_json_without_a_copy() {
    let (a, b) = (vector(&[1i64, 2]), vector(&[3u8]));
    let outputs = vec![InferOutput::new("a", a.clone()), InferOutput::new("b", b.clone())];
    let encoded =
        rest::encode_response(&response(outputs), &BinaryOutputs::all(true), NonFinite::Null).unwrap();
    let expected = r#"{"id":"a\"b","model_name":"m","model_version":"1","outputs":[{"name":"a","datatype":"INT64","shape":[2],"parameters":{"binary_data_size":16}},{"name":"b","datatype":"UINT8","shape":[1],"parameters":{"binary_data_size":1}}]}"#;
    assert_eq!(encoded.json, expected);
    assert_eq!(encoded.header_length(), Some(expected.len()));
    let addresses: Vec<*const u8> = encoded.binary.iter().map(|part| part.as_ptr()).collect();
    assert_eq!(addresses, [a.bytes().as_ptr(), b.bytes().as_ptr()]);

    let header_length = encoded.header_length();
    let decoded =
        rest::decode_response(&encoded.into_bytes(), header_length, &RequestLimits::default()).unwrap();
    assert_eq!(decoded.output("a").unwrap().as_fixed(), Some(&a));
    assert_eq!(decoded.id.as_deref(), Some("a\"b"));
}

#[test]
fn binary_outputs_without_bytes_send_no_header() {
    let outputs = vec![InferOutput::new("y", vector::<f32>(&[]))];
    let encoded =
        rest::encode_response(&response(outputs), &BinaryOutputs::all(true), NonFinite::Null).unwrap();
    assert_eq!(encoded.header_length(), None);
    assert!(String::from_utf8_lossy(&encoded.json).contains("\"binary_data_size\":0"));
    let decoded = rest::decode_response(&encoded.into_bytes(), None, &RequestLimits::default()).unwrap();
    assert_eq!(decoded.output("y").unwrap().shape().dims(), [0]);
}

#[test]
fn other_servers_answers_are_understood() {
    let body = Bytes::from_static(
        br#"{"model_name":"m","model_version":null,"parameters":null,"id":null,"extra":1,
            "outputs":[{"name":"y","shape":[2,2],"datatype":"FP32","data":[[1,null],[NaN,4.5]]}]}"#,
    );
    let decoded = rest::decode_response(&body, None, &RequestLimits::default()).unwrap();
    let values = decoded
        .output("y")
        .unwrap()
        .as_fixed()
        .unwrap()
        .to_vec::<f32>()
        .unwrap();
    assert!(values[0] == 1.0 && values[1].is_nan() && values[2].is_nan() && values[3] == 4.5);
    assert_eq!((decoded.id, decoded.model_version), (None, None));
}

#[test]
fn outputs_in_shared_memory_are_for_clients_that_know_it() {
    let place = SharedMemorySlice {
        region: "r".into(),
        offset: 4,
        byte_size: 8,
    };
    let mut output = InferOutput::new("y", vector(&[1.5f32, 2.5]));
    output.shared_memory = Some(place.clone());
    let texts = BytesTensor::from_elements(Shape::vector(3), ["a", "b", "c"]).unwrap();
    let mut text = InferOutput::new("t", texts);
    text.shared_memory = Some(place.clone());
    let sent = vec![output, text, InferOutput::new("z", vector(&[7u8]))];
    let encoded = rest::encode_response(&response(sent), &BinaryOutputs::all(true), NonFinite::Null).unwrap();
    let header_length = encoded.header_length();
    let body = encoded.into_bytes();
    let refused = rest::decode_response(&body, header_length, &RequestLimits::default()).unwrap_err();
    assert!(
        refused.message().contains("shared memory is not offered"),
        "{refused}"
    );
    let decoded = rest::decode_shared_response(&body, header_length, &RequestLimits::default()).unwrap();
    let [y, t, z] = &decoded.outputs[..] else {
        panic!("{decoded:?}")
    };
    assert_eq!(y.shared_memory, Some(place.clone()));
    assert_eq!(y.value, vector(&[0.0f32, 0.0]).into());
    assert_eq!(
        (t.shared_memory.as_ref(), t.value.raw().len()),
        (Some(&place), 12)
    );
    assert_eq!(
        (z.shared_memory.as_ref(), &z.value),
        (None, &vector(&[7u8]).into())
    );
    // The placeholder for the elements counts towards the limit on tensors.
    let small = RequestLimits::default().with(|limits| limits.tensor_bytes = 11);
    let error = rest::decode_shared_response(&body, header_length, &small).unwrap_err();
    assert!(error.message().contains("take more than 11 bytes"), "{error}");
}

#[test]
fn zeros_stand_for_elements_within_a_limit() {
    let zeros = |datatype: DataType, dims: &[u64], most| {
        TensorValue::zeros(datatype, Shape::new(dims).unwrap(), most)
    };
    assert_eq!(
        zeros(DataType::INT16, &[2], 4).unwrap(),
        vector(&[0i16, 0]).into()
    );
    assert!(zeros(DataType::INT16, &[2], 3).is_err());
    let empty = BytesTensor::from_elements(Shape::vector(2), ["", ""]).unwrap();
    assert_eq!(zeros(DataType::Bytes, &[2], 8).unwrap(), empty.into());
    // These sizes exceed the memory of any machine, or overflow 64 bits.
    for dim in [1 << 60, 1 << 62] {
        let error = zeros(DataType::FP64, &[dim], usize::MAX).unwrap_err();
        assert!(error.message().contains("than there is room for"), "{error}");
    }
}
