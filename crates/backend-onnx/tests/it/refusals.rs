//! What is refused, and with which words.

use oip_types::ErrorCode;

use crate::support::{file, load, names};

#[test]
fn what_cannot_be_computed_right_is_refused_with_the_reason() {
    let names = names(".refused");
    assert!(names.len() > 15);
    for name in names {
        let expected = String::from_utf8(file(&format!("{name}.refused"))).unwrap();
        let Err(error) = load(file(&format!("{name}.onnx"))) else {
            panic!("{name} was loaded");
        };
        let message = error.to_string();
        assert!(message.contains(expected.trim()), "{name}: {message}");
        assert_eq!(error.code(), ErrorCode::InvalidArgument, "{name}");
        assert!(
            !message.contains("node~") && message.len() < 400,
            "{name}: {message}"
        );
    }
}

/// MR-04: a model that points to other files is refused before anybody looks whether there are such files.
#[test]
fn mr_04_external_data_is_refused_and_not_looked_for() {
    let content = file("external_data.onnx");
    for location in ["../../secret", "/etc/passwd!", "a/../../bcde", "/dev/stdin!!"] {
        let mut content = content.clone();
        let at = content
            .windows(12)
            .position(|window| window == b"../../secret")
            .unwrap();
        content[at..at + 12].copy_from_slice(location.as_bytes());
        let message = load(content).err().unwrap().to_string();
        assert!(
            message.contains("external") && message.contains("'w'"),
            "{message}"
        );
    }
}
