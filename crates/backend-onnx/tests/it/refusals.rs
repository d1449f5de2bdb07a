//! Tests refused models and their error messages.

use oip_types::ErrorCode;

use crate::support::{Runtime, file, names, runtimes};

#[test]
fn what_cannot_be_computed_right_is_refused_with_the_reason() {
    let names = names(".refused");
    assert!(names.len() > 15);
    for name in names {
        let expected = String::from_utf8(file(&format!("{name}.refused"))).unwrap();
        let Err(error) = Runtime::BuiltIn.load(file(&format!("{name}.onnx"))) else {
            panic!("{name} was loaded");
        };
        let message = error.to_string();
        assert!(message.contains(expected.trim()), "{name}: {message}");
        assert_eq!(error.code(), ErrorCode::InvalidArgument, "{name}");
        assert!(
            !message.contains("node~") && message.len() < 900,
            "{name}: {message}"
        );
    }
}

/// Models that the built-in runtime refuses and ONNX Runtime runs.
const FOR_ONNX_RUNTIME: [&str; 8] = [
    "affine_grid_of_one_place",
    "bf16",
    "cast_to_bf16_of_any_size",
    "dropout_without_ratio",
    "fused_mat_mul_of_batches",
    "largest_in_regions",
    "pool_between_windows",
    "unknown_domain",
];

#[test]
fn a_refusal_says_when_onnx_runtime_can_run_the_model() {
    for name in names(".refused") {
        let message = Runtime::BuiltIn
            .load(file(&format!("{name}.onnx")))
            .err()
            .unwrap()
            .to_string();
        assert_eq!(
            message.contains("; ONNX Runtime can run this: start the server with --onnxruntime "),
            FOR_ONNX_RUNTIME.contains(&name.as_str()),
            "{name}: {message}"
        );
    }
}

/// Checks that a refusal does not suggest a runtime that refuses the model too.
#[test]
fn ways_out_that_lead_nowhere_are_not_named() {
    for name in names(".refused") {
        let message = Runtime::BuiltIn
            .load(file(&format!("{name}.onnx")))
            .err()
            .unwrap()
            .to_string();
        let either = message.contains("ONNX Runtime does not support");
        assert!(!either || !message.contains("--onnxruntime"), "{name}: {message}");
        assert!(!message.contains("zipmap"), "{name}: {message}");
    }
}

/// Checks that the message first suggests the other runtime, which only needs an option, and then a different
/// export.
#[test]
fn ways_out_come_in_order() {
    let message = |name: &str| {
        let loaded = Runtime::BuiltIn.load(file(&format!("{name}.onnx")));
        loaded.err().unwrap().to_string()
    };
    for (name, last) in [
        (
            "largest_in_regions",
            "; or export the model with other operators, or for an operator set from 11 to 25",
        ),
        (
            "unknown_domain",
            "; or export the model without ONNX Runtime's own operators, before its optimizer or quantizer rewrote it",
        ),
    ] {
        let message = message(name);
        let first = message.find("; ONNX Runtime can run this: start the server with --onnxruntime ");
        assert!(first.is_some() && message.ends_with(last), "{message}");
    }
}

/// Checks which of the models that the built-in runtime refuses are loaded by ONNX Runtime. It refuses
/// damaged models as well, but loads models whose values are unbounded or whose windows are larger than the
/// image.
#[test]
fn what_onnx_runtime_loads_of_it_is_known() {
    if !runtimes().contains(&Runtime::OnnxRuntime) {
        return;
    }
    let mut wrong = Vec::new();
    for name in names(".refused") {
        let loads = FOR_ONNX_RUNTIME.contains(&name.as_str())
            || [
                // ONNX Runtime loads this model, and then refuses every request.
                "einsum_without_its_dots",
                // ONNX Runtime loads this model, and ignores the base value.
                "forest_of_one_base_value",
                "gemm_of_less_than_is_added",
                "nothing_of_large_sizes",
                "rounded_to_4_bits",
                // ONNX Runtime loads this model, and reports only at run time that it has no CPU kernel for
                // the operator.
                "heads_packed",
                "huge_constant",
                "huge_expansion",
                "huge_pad",
                "huge_range",
                "huge_resize",
                "pool_beyond_its_image",
            ]
            .contains(&name.as_str());
        match Runtime::OnnxRuntime.load(file(&format!("{name}.onnx"))) {
            Ok(_) if loads => {}
            Ok(_) => wrong.push(format!("{name} was loaded")),
            Err(error) if loads => wrong.push(format!("{name}: {}", error.report())),
            Err(error) => assert_eq!(error.code(), ErrorCode::InvalidArgument, "{name}: {error}"),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Checks that a model that refers to external files is refused before the server checks whether they exist.
#[test]
fn external_data_is_refused_and_not_looked_for() {
    let content = file("external_data.onnx");
    let locations = ["../../secret", "/etc/passwd!", "a/../../bcde", "/dev/stdin!!"];
    for (location, &runtime) in locations
        .iter()
        .flat_map(|location| runtimes().iter().map(move |runtime| (location, runtime)))
    {
        let mut content = content.clone();
        let at = content
            .windows(12)
            .position(|window| window == b"../../secret")
            .unwrap();
        content[at..at + 12].copy_from_slice(location.as_bytes());
        let message = runtime.load(content).err().unwrap().to_string();
        assert!(
            message.contains("external") && message.contains("'w'"),
            "{message}"
        );
    }
}
