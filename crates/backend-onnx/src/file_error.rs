//! Errors in a model's file, as clients see them.

use oip_types::ServiceError;
use onnx_graph::{Error, ErrorKind};

use crate::runtime_limit::RuntimeLimit;

/// Converts a file error for clients: keeps the message, and sets [`RuntimeLimit`] as the cause if the file
/// is valid and not supported.
pub(crate) fn refusal(error: Error) -> ServiceError {
    let refusal = ServiceError::invalid(error.to_string());
    match error.kind() {
        ErrorKind::Invalid => match error.into_source() {
            Some(source) => refusal.caused_by(source),
            None => refusal,
        },
        ErrorKind::Unsupported => refusal.caused_by(match error.into_source() {
            Some(source) => RuntimeLimit::Unexplained(source),
            None => RuntimeLimit::Unsupported,
        }),
        ErrorKind::UnsupportedAnywhere => refusal.caused_by(RuntimeLimit::Everybodys),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use onnx_graph::{decode, expand, proto::AttributeProto};

    use super::*;
    use crate::test_models;

    #[test]
    fn the_log_has_the_cause_and_clients_the_message() {
        // The field `graph` has the wire type of an integer.
        let error = refusal(decode(&b"\x08\x08\x38\x01".as_slice().into()).unwrap_err());
        let message =
            "the file is not an ONNX model, or it is damaged or cut off: export, copy or download it again";
        assert_eq!(error.to_string(), message);
        let report = error.report();
        assert!(report.starts_with(&format!("{message}: ")), "{report}");
        assert_eq!(report.matches(message).count(), 1, "{report}");
    }

    #[test]
    fn what_is_not_supported_is_a_limit_of_the_runtime() {
        let runtime = expand::Runtime {
            has_attribute: |_, _, _| true,
        };
        let limit = |op_type: &str, inputs: &[&str], attribute: Option<(&str, i64)>| {
            let mut node = test_models::node(op_type, inputs, "y");
            node.domain = "com.microsoft".to_owned();
            node.attribute.extend(attribute.map(|(name, i)| AttributeProto {
                name: name.to_owned(),
                r#type: 2,
                i,
                ..AttributeProto::default()
            }));
            let model = test_models::model(vec![node], &[-1, 4], &[-1, 4], vec![]);
            let error = refusal(expand::expanded(&model, &runtime).unwrap_err());
            let source = std::error::Error::source(&error).unwrap();
            format!("{:?}", source.downcast_ref::<RuntimeLimit>().unwrap())
        };
        let transposed = limit("FusedMatMul", &["x", "x"], Some(("transBatchA", 1)));
        let packed = limit("MultiHeadAttention", &["x"], None);
        assert_eq!([&*transposed, &*packed], ["Unsupported", "Everybodys"]);
    }
}
