//! Encoding and decoding round-trip for every datatype and form.

use bytes::Bytes;
use oip_types::{
    BytesTensor, DataType, InferRequest, ModelRef, ParameterValue, RequestLimits, TensorValue,
    rest::{self, NonFinite, RequestEncoding},
};
use proptest::prelude::*;
use tensor_core::{DType, Shape};

fn datatype() -> impl Strategy<Value = DataType> {
    prop_oneof![
        4 => prop::sample::select(DType::ALL.to_vec()).prop_map(DataType::Fixed),
        1 => Just(DataType::Bytes),
    ]
}

fn value() -> impl Strategy<Value = TensorValue> {
    let dims = prop::collection::vec(0u64..4, 0..4);
    (datatype(), dims).prop_flat_map(|(datatype, dims)| {
        let shape = Shape::new(&dims).unwrap();
        let count = shape.element_count() as usize;
        match datatype {
            DataType::Bytes => prop::collection::vec(".{0,5}", count)
                .prop_map(move |elements| {
                    BytesTensor::from_elements(shape.clone(), elements)
                        .unwrap()
                        .into()
                })
                .boxed(),
            DataType::Fixed(dtype) => prop::collection::vec(any::<u8>(), count * dtype.size())
                .prop_map(move |bytes| fixed(dtype, shape.clone(), bytes))
                .boxed(),
        }
    })
}

/// Returns random elements in canonical form: booleans as 0 or 1, and no NaN, because JSON does not preserve
/// its bits.
fn fixed(dtype: DType, shape: Shape, mut bytes: Vec<u8>) -> TensorValue {
    let exponent_byte_mask = match dtype {
        DType::Bool => {
            bytes.iter_mut().for_each(|byte| *byte &= 1);
            None
        }
        DType::F16 | DType::BF16 | DType::F32 | DType::F64 => Some(0xbf),
        _ => None,
    };
    if let Some(mask) = exponent_byte_mask {
        bytes
            .chunks_exact_mut(dtype.size())
            .for_each(|element| element[dtype.size() - 1] &= mask);
    }
    TensorValue::from_raw(dtype.into(), shape, bytes.into()).unwrap()
}

proptest! {
    #[test]
    fn requests_survive(
        values in prop::collection::vec(value(), 0..4), binary_inputs: bool, binary_outputs: bool, literal: bool,
    ) {
        let mut request = InferRequest::new(ModelRef::new("m", None).unwrap()).with_output("y");
        request.id = Some("id".into());
        for (index, value) in values.into_iter().enumerate() {
            request = request.with_input(format!("x{index}"), value);
        }
        let non_finite = if literal { NonFinite::Literal } else { NonFinite::String };
        let encoding = RequestEncoding::default().with(|encoding| {
encoding.binary_inputs = binary_inputs;
encoding.binary_outputs = binary_outputs;
encoding.non_finite = non_finite;
});
        let encoded = rest::encode_request(&request, encoding).unwrap();
        let header_length = encoded.header_length();
        let limits = RequestLimits::default();
        let decoded = rest::decode_request(request.model(), &encoded.into_bytes(), header_length, &limits).unwrap();
        prop_assert_eq!(decoded.binary_outputs.is_binary("y"), binary_outputs);
        prop_assert_eq!(decoded.request, request);
    }

    /// Decoding arbitrary bytes never causes a panic.
    #[test]
    fn any_body_is_answered(body in prop::collection::vec(any::<u8>(), 0..200), split in any::<prop::sample::Index>()) {
        let header_length = split.index(body.len() + 1);
        let model = ModelRef::new("m", None).unwrap();
        let _ = rest::decode_request(model, &Bytes::from(body), Some(header_length), &RequestLimits::default());
    }

    /// Decoding a valid body with one changed byte never causes a panic.
    #[test]
    fn any_mutant_is_answered(at in any::<prop::sample::Index>(), byte: u8) {
        let mut body = br#"{"id":"1","parameters":{"a":1.5e3},"inputs":[{"name":"x","shape":[2,2],"datatype":"FP32","data":[[1,2.5],[-3e2,null]]},{"data":["a\n","b"],"name":"y","shape":[2],"datatype":"BYTES"}]}"#.to_vec();
        let at = at.index(body.len());
        body[at] = byte;
        let model = ModelRef::new("m", None).unwrap();
        let _ = rest::decode_request(model, &Bytes::from(body), None, &RequestLimits::default());
    }
}

/// One tensor may be JSON while another is binary, so values without a JSON form can be sent next to readable
/// ones.
#[test]
fn tensors_have_forms_of_their_own() {
    let bytes = |element: &[u8]| -> TensorValue {
        let element = BytesTensor::from_elements(Shape::new(&[1]).unwrap(), [element.to_vec()]);
        element.unwrap().into()
    };
    let mut request = InferRequest::new(ModelRef::new("m", None).unwrap())
        .with_input("raw", bytes(b"\xff"))
        .with_input("text", bytes(b"a"))
        .with_output("raw")
        .with_output("text");
    let for_json = ParameterValue::Bool(false);
    let parameters = &mut request.inputs[1].parameters;
    parameters.insert(rest::BINARY_DATA.into(), for_json.clone());
    parameters.insert("own".into(), ParameterValue::Int64(1));
    request.outputs[1]
        .parameters
        .insert(rest::BINARY_DATA.into(), for_json);
    let encoding = RequestEncoding::default().with(|encoding| {
        encoding.binary_inputs = true;
        encoding.binary_outputs = true;
    });
    let encoded = rest::encode_request(&request, encoding).unwrap();
    let json = String::from_utf8(encoded.json.to_vec()).unwrap();
    assert!(
        json.contains(r#""data":["a"]"#) && !json.contains(r#""own":1,"binary_data""#),
        "{json}"
    );
    let header_length = encoded.header_length();
    let limits = RequestLimits::default();
    let decoded =
        rest::decode_request(request.model(), &encoded.into_bytes(), header_length, &limits).unwrap();
    assert!(decoded.binary_outputs.is_binary("raw") && !decoded.binary_outputs.is_binary("text"));
    request.inputs[1].parameters.remove(rest::BINARY_DATA);
    request.outputs[1].parameters.remove(rest::BINARY_DATA);
    assert_eq!(decoded.request, request);
}
