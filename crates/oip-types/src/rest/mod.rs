//! Bodies of the REST transport: JSON, and JSON followed by binary tensors.
//!
//! These functions convert bodies to requests and responses and back, for servers and clients. The only HTTP
//! header that they use is [`HEADER_LENGTH`].
//!
//! ```
//! use bytes::Bytes;
//! use oip_types::{RequestLimits, ModelRef, rest};
//!
//! let body = Bytes::from_static(br#"{"inputs": [{"name": "x", "shape": [2], "datatype": "FP32", "data": [1, 2.5]}]}"#);
//! let model = ModelRef::new("m", None).unwrap();
//! let decoded = rest::decode_request(model, &body, None, &RequestLimits::default()).unwrap();
//! let x = decoded.request.input("x").unwrap().as_fixed().unwrap();
//! assert_eq!(x.to_vec::<f32>().unwrap(), [1.0, 2.5]);
//! ```
//!
//! Binary tensors are decoded without copying: they are slices of the body.
//!
//! ```
//! use bytes::Bytes;
//! use oip_types::{RequestLimits, ModelRef, rest};
//!
//! let json = r#"{"inputs": [{"name": "x", "shape": [2], "datatype": "UINT8", "parameters": {"binary_data_size": 2}}]}"#;
//! let body = Bytes::from([json.as_bytes(), &[7, 9]].concat());
//! let model = ModelRef::new("m", None).unwrap();
//! let decoded = rest::decode_request(model, &body, Some(json.len()), &RequestLimits::default()).unwrap();
//! let raw = decoded.request.input("x").unwrap().raw();
//! assert_eq!(raw[..], [7, 9]);
//! assert_eq!(raw.as_ptr(), body[json.len()..].as_ptr());
//! ```

mod body;
mod control;
mod metadata;
mod raw;
mod request;
mod response;
mod tensor;
mod v1;

pub use body::{EncodedBody, EncodedPieces, HEADER_LENGTH, NonFinite, parse_header_length};
pub use control::{decode_index_request, decode_log_settings, decode_parameters, decode_region};
pub(crate) use metadata::{config_datatype, datatype_name, pattern_dims};
pub use metadata::{error_body, json_body};
pub use raw::decode_raw_request;
pub use request::{
    BINARY_DATA, BinaryOutputs, DecodedRequest, RequestEncoding, decode_request, decode_request_with,
    encode_request,
};
pub use response::{
    decode_response, decode_response_with, decode_shared_response, encode_response, encode_response_within,
};
pub use v1::{DecodedV1Request, decode_v1_request, encode_v1_response};
