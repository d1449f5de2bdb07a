//! Refused models, and the messages.

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

/// Models that tract is not used for and ONNX Runtime runs.
const FOR_ONNX_RUNTIME: [&str; 11] = [
    "affine_grid_of_one_place",
    "bf16",
    "cast_to_bf16_of_any_size",
    "center_of_an_image",
    "dropout_without_ratio",
    // This one it loads, and then refuses every request.
    "einsum_without_its_dots",
    "fused_mat_mul_of_batches",
    "never_fits",
    "one_width",
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

/// A refusal names no sizes to fix, and no other runtime, that would not help.
#[test]
fn ways_out_that_lead_nowhere_are_not_named() {
    for name in names(".refused") {
        let message = Runtime::BuiltIn
            .load(file(&format!("{name}.onnx")))
            .err()
            .unwrap()
            .to_string();
        let either = message.contains("ONNX Runtime does not have");
        assert!(!either || !message.contains("--onnxruntime"), "{name}: {message}");
        if matches!(
            name.as_str(),
            "cast_to_bf16_of_any_size" | "root_of_whole_numbers" | "center_of_an_image"
        ) {
            assert!(!message.contains("config.pbtxt"), "{name}: {message}");
        }
        assert!(!message.contains("zipmap"), "{name}: {message}");
    }
}

/// Sizes first, since they need nothing but a line of configuration; then the other runtime, then another export.
#[test]
fn ways_out_come_in_order() {
    let message = |name: &str| {
        let loaded = Runtime::BuiltIn.load(file(&format!("{name}.onnx")));
        loaded.err().unwrap().to_string()
    };
    let message_of_sizes = message("never_fits");
    let places: Vec<Option<usize>> = [
        "; if requests always have the same sizes, fix the free dimensions of 'x' [",
        "in config.pbtxt, as in: input { name: \"x\" data_type: TYPE_FP32 dims: [ 1, ",
        "; ONNX Runtime can run this: start the server with --onnxruntime ",
        "; or export the model with fixed sizes",
    ]
    .iter()
    .map(|part| message_of_sizes.find(part))
    .collect();
    assert!(
        places.is_sorted() && places.iter().all(Option::is_some),
        "{places:?}: {message_of_sizes}"
    );
    // Sizes make no difference to an operator that is not there.
    let message = message("unknown_domain");
    assert!(!message.contains("config.pbtxt"), "{message}");
    assert!(
        message.ends_with("; or export the model without ONNX Runtime's own operators, before its optimizer or quantizer rewrote it"),
        "{message}"
    );
}

/// Damaged models, and those that nobody can serve, are refused by both runtimes; values without bound, and windows beyond their images, fail
/// when they are computed.
#[test]
fn what_onnx_runtime_loads_of_it_is_known() {
    if !runtimes().contains(&Runtime::OnnxRuntime) {
        return;
    }
    let mut wrong = Vec::new();
    for name in names(".refused") {
        let loads = FOR_ONNX_RUNTIME.contains(&name.as_str())
            || [
                // Each request computes the chain.
                "chain_on_a_constant",
                // It loses the base value.
                "forest_of_one_base_value",
                "gemm_of_less_than_is_added",
                "nothing_of_large_sizes",
                "rounded_to_4_bits",
                // It has no kernel for this one on CPUs, which it finds at a run.
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

/// What one plan cannot serve may be served node by node. What no node computes is refused there too.
#[test]
fn what_is_loaded_node_by_node_is_known() {
    let loaded: Vec<String> = names(".refused")
        .into_iter()
        .filter(|name| Runtime::BuiltIn.load(file(&format!("{name}.onnx"))).is_ok())
        .collect();
    assert_eq!(loaded, BUILT_IN_LOADS);
}

/// Whether sizes fit is known when a request brings some.
const BUILT_IN_LOADS: [&str; 15] = [
    "affine_grid_of_one_place",
    "chain_on_a_constant",
    "dropout_without_ratio",
    "gather_nd_of_a_scalar",
    "gemm_of_less_than_is_added",
    "huge_constant",
    "huge_expansion",
    "huge_pad",
    "huge_range",
    "huge_resize",
    "never_fits",
    "nothing_of_large_sizes",
    "one_width",
    "pool_beyond_its_image",
    "split_unevenly_old",
];

/// MR-04: a model that points to other files is refused before anybody looks whether there are such files.
#[test]
fn mr_04_external_data_is_refused_and_not_looked_for() {
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
