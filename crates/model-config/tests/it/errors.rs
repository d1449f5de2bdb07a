//! Tests that errors are distinguishable by type, and have sources.

use std::error::Error;

use model_config::{ConfigError, MismatchError, PipelineError, Position, Role, Syntax, WrittenConfig};
use oip_types::DataType;

use crate::end_to_end::{digits, run};

fn refused(text: &str) -> ConfigError {
    WrittenConfig::read(text, Syntax::Pbtxt).unwrap_err()
}

#[test]
fn a_wrong_value_has_place_field_and_what_was_expected() {
    let ConfigError::Unexpected {
        place,
        field,
        expected,
        found,
        ..
    } = refused("name: \"m\"\nmax_batch_size: -1")
    else {
        panic!("a wrong value");
    };
    assert_eq!(place, Some(Position { line: 2, column: 17 }));
    assert_eq!(
        (field.as_str(), expected.as_str(), found.as_str()),
        ("max_batch_size", "an integer from 0 to 2147483647", "'-1'")
    );
}

#[test]
fn what_is_wrong_with_a_text_is_told_in_every_syntax() {
    for (syntax, text, expected, has_source) in [
        (
            Syntax::Pbtxt,
            "input {",
            "line 1, column 8: the file ends before '}'",
            false,
        ),
        (
            Syntax::Json,
            "{",
            "EOF while parsing an object at line 1 column 1",
            true,
        ),
        (Syntax::Toml, "a = ", "line 1, column 5: ", true),
    ] {
        let error = WrittenConfig::read(text, syntax).unwrap_err();
        assert!(matches!(error, ConfigError::Syntax { .. }), "{error:?}");
        assert!(error.to_string().starts_with(expected), "{error}");
        assert_eq!(error.source().is_some(), has_source, "{syntax:?}");
    }
}

#[test]
fn rules_between_fields_have_variants_of_their_own() {
    assert!(matches!(
        refused("output { name: \"y\" } output { name: \"y\" }"),
        ConfigError::SameName { role: Role::Output, name, .. } if name == "y"
    ));
    assert!(matches!(
        refused("dynamic_batching { } ensemble_scheduling { }"),
        ConfigError::Conflict { .. }
    ));
    assert!(matches!(
        refused("sequence_batching { }"),
        ConfigError::Unsupported { field, .. } if field == "sequence_batching"
    ));
    let error = refused("default_model_filename: \"../x\"");
    assert!(matches!(error, ConfigError::FileName { tensor: None, .. }));
    assert!(error.source().is_some());
}

#[test]
fn what_does_not_fit_a_model_is_another_error() {
    let error = run("input { name: \"x\" data_type: TYPE_INT64 }", &digits()).unwrap_err();
    assert!(matches!(
        error,
        MismatchError::Datatype {
            role: Role::Input,
            written: DataType::INT64,
            model: DataType::FP32,
            ..
        }
    ));
    let written = WrittenConfig::read("platform: \"ensemble\"", Syntax::Pbtxt).unwrap();
    let error = model_config::complete_pipeline(&written, "p", None).unwrap_err();
    assert!(matches!(error, PipelineError::NoSteps));
}
