//! Tests values that a model does not accept.

use oip_types::{ErrorCode, InferRequest, TensorValue};
use tensor_core::Tensor;

use crate::support::{Runtime, infer, names, recorded_request, request, runtimes};

#[track_caller]
fn refuses(name: &str, json: &'static str, expected: &str, by_onnx_runtime: &str) {
    for &runtime in runtimes() {
        let error = infer(&*runtime.model(name), request(json)).unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidArgument, "{runtime:?}: {error}");
        let expected = match runtime {
            Runtime::BuiltIn => expected,
            Runtime::OnnxRuntime => by_onnx_runtime,
        };
        assert!(error.to_string().contains(expected), "{runtime:?}: {error}");
    }
}

#[test]
fn an_index_outside_of_the_table_is_the_clients_mistake() {
    for index in ["3", "-4", "4294967296", "-9223372036854775808"] {
        let json = format!(
            r#"{{"inputs": [{{"name": "i", "shape": [2], "datatype": "INT64", "data": [0, {index}]}}]}}"#
        );
        for &runtime in runtimes() {
            let error = infer(&*runtime.model("gather"), request(json.clone())).unwrap_err();
            assert_eq!(error.code(), ErrorCode::InvalidArgument, "{runtime:?}: {error}");
            let expected = match runtime {
                Runtime::BuiltIn => {
                    format!("the index {index} is outside of a dimension of 3")
                }
                Runtime::OnnxRuntime => format!("idx={index} must be within the inclusive range [-3,2]"),
            };
            assert!(error.to_string().contains(&expected), "{runtime:?}: {error}");
        }
    }
}

#[test]
fn dividing_an_integer_by_zero_is_the_clients_mistake() {
    refuses(
        "integer_division",
        r#"{"inputs": [{"name": "a", "shape": [1], "datatype": "INT64", "data": [1]},
                       {"name": "b", "shape": [1], "datatype": "INT64", "data": [0]}]}"#,
        "divided by zero",
        "divided by zero",
    );
    // The model divides by the square of `b`. The square of 2^32 is 2^64, which wraps around to 0.
    for divisor in ["0", "4294967296"] {
        let json = format!(
            r#"{{"inputs": [{{"name": "x", "shape": [3], "datatype": "FP32", "data": [1, 2, 3]}},
                            {{"name": "b", "shape": [], "datatype": "INT64", "data": [{divisor}]}}]}}"#
        );
        let error = infer(&*Runtime::BuiltIn.model("size_division"), request(json)).unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidArgument, "{}", error.report());
        assert!(error.to_string().contains("divided by zero"), "{error}");
    }
}

/// Checks that sizes of 2^32 plus a small number, which would be valid if truncated to 32 bits, are refused.
#[test]
fn sizes_beyond_32_bits_are_the_clients_mistake() {
    for name in [
        "expand_to_numbers",
        "reshape_to_numbers",
        "tile_to_numbers",
        "zeros_of_numbers",
    ] {
        let x = match name {
            "zeros_of_numbers" => "",
            _ => r#"{"name": "x", "shape": [3], "datatype": "FP32", "data": [1, 2, 3]},"#,
        };
        let json = format!(
            r#"{{"inputs": [{x}{{"name": "k", "shape": [1], "datatype": "INT64", "data": [4294967299]}}]}}"#
        );
        let error = infer(&*Runtime::BuiltIn.model(name), request(json)).unwrap_err();
        assert_eq!(
            error.code(),
            ErrorCode::InvalidArgument,
            "{name}: {}",
            error.report()
        );
        assert!(
            error
                .to_string()
                .contains("of 4294967299, expected at most 2147483647"),
            "{name}: {error}"
        );
    }
}

#[test]
fn a_negative_count_of_elements_is_the_clients_mistake() {
    for (count, expected) in [
        ("-1", "a K of -1"),
        (
            "-4611686018427387904",
            "a position of -4611686018427387904, expected at most",
        ),
    ] {
        let json = format!(
            r#"{{"inputs": [{{"name": "x", "shape": [3], "datatype": "FP32", "data": [1, 2, 3]}},
                            {{"name": "k", "shape": [1], "datatype": "INT64", "data": [{count}]}}]}}"#
        );
        let error = infer(&*Runtime::BuiltIn.model("top_k_of_chosen"), request(json)).unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidArgument, "{}", error.report());
        assert!(error.to_string().contains(expected), "{error}");
    }
}

/// Checks that a request of a few megabytes is refused if it needs a product of 335 GiB.
#[test]
fn sizes_without_bound_are_the_clients_mistake() {
    let column = |dims: [u64; 2]| {
        let shape = tensor_core::Shape::new(&dims).unwrap();
        tensor_core::Tensor::from_vec(shape, vec![1.0f32; 300_000]).unwrap()
    };
    let mut large = recorded_request("outer_product");
    large.inputs[0].value = column([300_000, 1]).into();
    large.inputs[1].value = column([1, 300_000]).into();
    for &runtime in runtimes() {
        let error = infer(&*runtime.model("outer_product"), large.clone()).unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidArgument, "{runtime:?}: {error}");
        let expected = "takes 335 GiB, which is beyond the limit of 4 GiB";
        assert!(error.to_string().contains(expected), "{runtime:?}: {error}");
    }

    refuses(
        "range",
        r#"{"inputs": [{"name": "a", "shape": [], "datatype": "INT64", "data": [0]},
                       {"name": "b", "shape": [], "datatype": "INT64", "data": [1099511627776]},
                       {"name": "c", "shape": [], "datatype": "INT64", "data": [1]}]}"#,
        "a range of 1099511627776 numbers is beyond the limit",
        "takes 8192 GiB, which is beyond the limit of 4 GiB",
    );
}

/// Replaces the sizes, axes, depths and steps in requests with absurd numbers. Checks that none of them
/// causes a server error or a huge allocation.
#[test]
fn absurd_sizes_that_are_asked_for_are_the_clients_mistake() {
    let names = names("_asked_for.request.json");
    assert!(names.len() > 12);
    for name in names.iter().map(|name| format!("{name}_asked_for")) {
        let model = Runtime::BuiltIn.model(&name);
        let request = recorded_request(&name);
        for (place, input) in request.inputs.iter().enumerate() {
            let TensorValue::Fixed(tensor) = &input.value else {
                continue;
            };
            let Ok(numbers) = tensor.to_vec::<i64>() else {
                continue;
            };
            for number in [0, -1, 3, 1 << 31, 1 << 40, i64::MAX, i64::MIN] {
                for at in 0..numbers.len() {
                    let mut numbers = numbers.clone();
                    numbers[at] = number;
                    let mut request = request.clone();
                    let shape = input.value.shape().clone();
                    request.inputs[place].value = Tensor::from_vec(shape, numbers).unwrap().into();
                    if let Err(error) = infer(&*model, request) {
                        let expected = ErrorCode::InvalidArgument;
                        assert_eq!(error.code(), expected, "{name} with {number}: {}", error.report());
                    }
                }
            }
        }
    }
}

#[test]
fn dimensions_of_the_same_name_must_be_equal() {
    refuses(
        "two_inputs",
        r#"{"inputs": [{"name": "a", "shape": [2, 2], "datatype": "FP32", "data": [1, 2, 3, 4]},
                       {"name": "b", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}]}"#,
        "input 'a' has 2 in dimension 0 but input 'b' has 1 in dimension 0; the model calls both 'rows'",
        "input 'a' has 2 in dimension 0 but input 'b' has 1 in dimension 0; the model calls both 'rows'",
    );
}

#[test]
fn strings_that_are_not_utf8_are_refused() {
    for &runtime in runtimes() {
        let error = infer(&*runtime.model("strings"), strings([b"fine", b"\xff"])).unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidArgument);
        assert!(error.to_string().contains("element 1 is not UTF-8"), "{error}");
    }
}

/// Checks that strings with a zero byte are refused rather than truncated with ONNX Runtime, which takes
/// null-terminated strings.
#[test]
fn strings_with_a_zero_byte_are_whole_or_refused() {
    for &runtime in runtimes() {
        let outcome = infer(&*runtime.model("strings"), strings([b"a\0b", b"c"]));
        match runtime {
            Runtime::BuiltIn => assert!(outcome.is_ok()),
            Runtime::OnnxRuntime => {
                let error = outcome.unwrap_err();
                assert_eq!(error.code(), ErrorCode::InvalidArgument);
                assert!(error.to_string().contains("element 0 has a zero byte"), "{error}");
            }
        }
    }
}

fn strings(elements: [&[u8]; 2]) -> InferRequest {
    let mut request = recorded_request("strings");
    let shape = tensor_core::Shape::new(&[2]).unwrap();
    let strings = oip_types::BytesTensor::from_elements(shape, elements).unwrap();
    request.inputs[0].value = strings.into();
    request
}

#[test]
fn batches_that_are_neither_the_same_nor_one_are_refused() {
    for name in ["batches_same", "batches_same_of_bytes", "batches_same_quantized"] {
        let model = Runtime::BuiltIn.model(name);
        let mut request = recorded_request(name);
        let shape = tensor_core::Shape::new(&[3, 3, 4]).unwrap();
        let left = &mut request.inputs[0].value;
        *left = match name {
            "batches_same" => tensor_core::Tensor::from_vec(shape, vec![0f32; 36])
                .unwrap()
                .into(),
            _ => tensor_core::Tensor::from_vec(shape, vec![0u8; 36])
                .unwrap()
                .into(),
        };
        let error = infer(&*model, request.clone()).unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidArgument, "{}", error.report());
        let expected = "cannot broadcast the shapes [[3], [2]]";
        assert!(error.to_string().contains(expected), "{name}: {error}");
    }
}

/// Checks that multiplying or adding values of mismatched sizes is a client error, also in branches and
/// loops.
#[test]
fn values_that_do_not_fit_together_are_the_clients_mistake() {
    for name in [
        "gemm_of_a_request",
        "integers_of_a_request",
        "product_of_a_request",
        "product_in_a_branch",
        "product_in_a_branch_by_chance",
        "product_in_a_branch_by_size",
        "product_in_a_loop",
        "product_in_a_scan",
        "product_with_a_row",
        "sum_of_a_request",
    ] {
        let model = Runtime::BuiltIn.model(name);
        let mut request = recorded_request(name);
        let left = request.inputs.iter_mut().find(|input| input.name == "a").unwrap();
        left.value = match name {
            "gemm_of_a_request" => matrix([2, 5], vec![1f64; 10]).into(),
            "integers_of_a_request" => matrix([2, 5], vec![1u8; 10]).into(),
            _ => matrix([2, 5], vec![1f32; 10]).into(),
        };
        let error = infer(&*model, request).unwrap_err();
        let report = error.report();
        assert_eq!(error.code(), ErrorCode::InvalidArgument, "{name}: {report}");
        assert!(!report.contains("is not supported"), "{name}: {report}");
        infer(&*model, recorded_request(name)).unwrap();
    }
}

#[test]
fn a_branch_that_gives_no_factor_is_the_clients_mistake() {
    let model = Runtime::BuiltIn.model("branch_as_a_factor");
    let mut request = recorded_request("branch_as_a_factor");
    infer(&*model, request.clone()).unwrap();
    request.inputs[0].value = matrix([2, 3], vec![1f32; 6]).into();
    let error = infer(&*model, request).unwrap_err();
    assert_eq!(error.code(), ErrorCode::InvalidArgument, "{}", error.report());
    let expected = "two factors of a product differ by 2 in a dimension that they share";
    assert!(error.to_string().contains(expected), "{error}");
}

/// Checks that an empty condition of an `If`, whose size depends on the request, is a client error.
#[test]
fn a_branch_without_a_condition_is_the_clients_mistake() {
    let model = Runtime::BuiltIn.model("branch_by_chance");
    infer(&*model, recorded_request("branch_by_chance")).unwrap();
    let mut request = recorded_request("branch_by_chance");
    let nothing = tensor_core::Tensor::from_vec(tensor_core::Shape::new(&[0]).unwrap(), Vec::<f32>::new());
    request.inputs[0].value = nothing.unwrap().into();
    let error = infer(&*model, request).unwrap_err();
    assert_eq!(error.code(), ErrorCode::InvalidArgument, "{}", error.report());
    let expected =
        "node 'y' (If): the model cannot take these values: a condition of 0 elements, expected one";
    assert!(error.to_string().contains(expected), "{error}");
}

fn matrix<T: tensor_core::Element>(dims: [u64; 2], elements: Vec<T>) -> tensor_core::Tensor {
    tensor_core::Tensor::from_vec(tensor_core::Shape::new(&dims).unwrap(), elements).unwrap()
}

/// Checks that the length of an INT64 range is not computed in FP64, which cannot represent 2^53 + 1.
#[test]
fn ranges_of_large_integers_are_counted_exactly() {
    let model = Runtime::BuiltIn.model("range");
    for (start, limit, step) in [
        ((1i64 << 53), (1 << 53) + 3, 1),
        (i64::MAX - 2, i64::MAX, 1),
        (i64::MIN, i64::MIN + 5, 2),
        (1_700_000_000_000_000_001, 1_700_000_000_000_000_000, -1),
        (3, 3, 1),
    ] {
        let number = |number: i64| -> oip_types::TensorValue {
            let shape = tensor_core::Shape::new(&[]).unwrap();
            tensor_core::Tensor::from_vec(shape, vec![number]).unwrap().into()
        };
        let mut request = recorded_request("range");
        for (input, value) in request.inputs.iter_mut().zip([start, limit, step]) {
            input.value = number(value);
        }
        let outputs = infer(&*model, request).unwrap();
        let oip_types::TensorValue::Fixed(found) = &outputs[0].value else {
            panic!("not numbers");
        };
        let count = (i128::from(limit) - i128::from(start))
            .unsigned_abs()
            .div_ceil(u128::from(step.unsigned_abs()));
        let expected: Vec<i64> = (0..count as i64).map(|index| start + index * step).collect();
        assert_eq!(found.to_vec::<i64>().unwrap(), expected);
    }
}

/// Checks that a step of 0 is an error even for an empty range, as in ONNX Runtime.
#[test]
fn a_range_has_a_step() {
    let model = Runtime::BuiltIn.model("range");
    for limit in [-5i64, 3, 5] {
        let mut request = recorded_request("range");
        for (input, number) in request.inputs.iter_mut().zip([3, limit, 0]) {
            let shape = tensor_core::Shape::new(&[]).unwrap();
            input.value = tensor_core::Tensor::from_vec(shape, vec![number]).unwrap().into();
        }
        let error = infer(&*model, request).unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidArgument, "{}", error.report());
        assert!(error.to_string().contains("a range has a step of 0"), "{error}");
    }
}

/// Checks that requests with mismatched values are refused. Each item has a model and the inputs to replace.
#[track_caller]
fn refuses_each(requests: Vec<(&str, Vec<(&str, oip_types::TensorValue)>)>) {
    for (name, values) in requests {
        let model = Runtime::BuiltIn.model(name);
        let mut request = recorded_request(name);
        for (input, value) in values {
            let mut inputs = request.inputs.iter_mut();
            inputs.find(|given| given.name == input).unwrap().value = value;
        }
        let shapes: Vec<String> = request
            .inputs
            .iter()
            .map(|input| input.value.shape().to_string())
            .collect();
        match infer(&*model, request.clone()) {
            Ok(outputs) => panic!("{name} of {shapes:?} gives {outputs:?}"),
            Err(error) => {
                let report = error.report();
                assert_eq!(
                    error.code(),
                    ErrorCode::InvalidArgument,
                    "{name} of {shapes:?}: {report}"
                );
                assert!(
                    !report.contains("is not supported"),
                    "{name} of {shapes:?}: {report}"
                );
            }
        }
        infer(&*model, recorded_request(name)).unwrap();
    }
}

fn floats<const N: usize>(dims: [u64; N]) -> oip_types::TensorValue {
    let count = dims.iter().product::<u64>() as usize;
    let shape = tensor_core::Shape::new(&dims).unwrap();
    let tensor = tensor_core::Tensor::from_vec(shape, vec![1f32; count]);
    tensor.unwrap().into()
}

/// Checks that inputs of an elementwise operator whose sizes differ are refused.
#[test]
fn sizes_that_must_be_equal_are_the_clients_mistake() {
    refuses_each(vec![
        ("sum_and_product_of_a_request", vec![("b", floats([1, 5]))]),
        ("sum_and_product_of_a_request", vec![("b", floats([2, 4]))]),
        ("choice_of_a_request", vec![("b", floats([1, 3]))]),
        (
            "choice_of_a_request",
            vec![("c", matrix([2, 1], vec![true; 2]).into())],
        ),
        ("mask_of_a_request", vec![("mask", floats([3, 3]))]),
        ("mask_of_a_request", vec![("mask", floats([2, 2]))]),
    ]);
}

/// Checks that requests with too few scales, indices or updates, or with indices out of range, are refused.
#[test]
fn sizes_that_are_too_small_are_the_clients_mistake() {
    let scales = |size: u64| vec![("scale", floats([size])), ("bias", floats([size]))];
    refuses_each(vec![
        ("layer_of_a_request", scales(3)),
        ("layer_of_a_request", scales(5)),
        ("instance_of_a_request", scales(2)),
        ("instance_of_a_request", scales(1)),
        (
            "elements_of_a_request",
            vec![("places", matrix([4, 2], vec![0i64; 8]).into())],
        ),
        ("updates_of_a_request", vec![("new", floats([1, 4]))]),
        ("updates_of_a_request", vec![("new", floats([2, 3]))]),
    ]);
}

/// Checks that too many scales or updates are an error, as in ONNX Runtime.
#[test]
fn sizes_that_are_too_large_are_the_clients_mistake() {
    refuses_each(vec![
        (
            "instance_of_a_request",
            vec![("scale", floats([4])), ("bias", floats([4]))],
        ),
        ("updates_of_a_request", vec![("new", floats([3, 4]))]),
    ]);
}

/// Checks that requests are refused in which indices, a shape or a condition repeat a string of one megabyte
/// thousands of times.
#[test]
fn texts_that_take_too_much_memory_together_are_the_clients_mistake() {
    let shape = |dims: &[u64]| tensor_core::Shape::new(dims).unwrap();
    let long = "x".repeat(1 << 20);
    let texts = || oip_types::BytesTensor::from_elements(shape(&[1]), [long.as_bytes()]).unwrap();
    let numbers = |numbers: Vec<i64>| {
        let shape = shape(&[numbers.len() as u64]);
        oip_types::TensorValue::from(tensor_core::Tensor::from_vec(shape, numbers).unwrap())
    };
    let many = || numbers(vec![0; 4200]);
    refuses_each(vec![
        ("texts_gather", vec![("t", texts().into()), ("n", many())]),
        ("texts_gather_nd", vec![("t", texts().into()), ("n", many())]),
        (
            "texts_gather_elements",
            vec![("t", texts().into()), ("n", many())],
        ),
        ("texts_features", vec![("t", texts().into()), ("n", many())]),
        ("texts_where", vec![("t", texts().into()), ("n", many())]),
        (
            "texts_expand",
            vec![("t", texts().into()), ("n", numbers(vec![4200, 1]))],
        ),
        ("texts_labels", vec![("n", numbers(vec![1; 1 << 18]))]),
    ]);
    let pair = [long.as_bytes(), b""];
    let pair = oip_types::BytesTensor::from_elements(shape(&[2]), pair).unwrap();
    refuses_each(vec![("texts_one_hot", vec![("t", pair.into()), ("n", many())])]);
}

/// Checks that `Gemm` with an infinite product gives NaN if `alpha` is 0, and does not add the bias if `beta`
/// is 0.
#[test]
fn infinities_times_nothing_are_no_numbers() {
    for &runtime in runtimes() {
        for (name, expected) in [
            ("gemm_of_nothing", [f64::NAN, f64::NAN, 5.0, f64::NAN]),
            ("gemm_with_nothing", [f64::INFINITY, f64::INFINITY, 14.0, 20.0]),
        ] {
            for (suffix, is_double) in [("", false), ("_double", true)] {
                let name = format!("{name}{suffix}");
                let mut request = recorded_request(&name);
                let numbers = |shape: &[u64], numbers: &[f64]| {
                    let shape = tensor_core::Shape::new(shape).unwrap();
                    match is_double {
                        true => tensor_core::Tensor::from_vec(shape, numbers.to_vec()),
                        false => {
                            tensor_core::Tensor::from_vec(shape, numbers.iter().map(|&x| x as f32).collect())
                        }
                    }
                    .unwrap()
                };
                request.inputs[0].value = numbers(&[2, 2], &[f64::INFINITY, 1.0, 1.0, 2.0]).into();
                request.inputs[1].value = numbers(&[2], &[5.0, f64::NAN]).into();
                let outputs = infer(&*runtime.model(&name), request).unwrap();
                let found = outputs[0].value.as_fixed().unwrap();
                let found: Vec<f64> = match is_double {
                    true => found.to_vec::<f64>().unwrap(),
                    false => found
                        .to_vec::<f32>()
                        .unwrap()
                        .into_iter()
                        .map(f64::from)
                        .collect(),
                };
                let is_same = |(found, expected): (&f64, &f64)| {
                    found == expected || (found.is_nan() && expected.is_nan())
                };
                assert!(
                    found.iter().zip(&expected).all(is_same),
                    "{name} with {runtime:?}: {found:?}"
                );
            }
        }
    }
}

/// Checks that integer division rounds towards zero, as ONNX requires.
#[test]
fn sizes_are_divided_as_numbers_are() {
    let model = Runtime::BuiltIn.model("sizes_divided");
    for size in (0..24u64).chain([4; 6]) {
        let mut request = recorded_request("sizes_divided");
        request.inputs[0].value = zeros(size).into();
        let outputs = infer(&*model, request).unwrap();
        let oip_types::TensorValue::Fixed(found) = &outputs[0].value else {
            panic!("not numbers");
        };
        assert_eq!(found.to_vec::<i64>().unwrap(), [(size as i64 - 9) / 2], "{size}");
    }
}

fn zeros(rows: u64) -> tensor_core::Tensor {
    let shape = tensor_core::Shape::new(&[rows, 1]).unwrap();
    tensor_core::Tensor::from_vec(shape, vec![0f32; rows as usize]).unwrap()
}

/// Checks that a function's operators have the version that the function imports: here a softmax over all
/// axes from `axis` to the end.
#[test]
fn a_function_has_a_version_of_its_own() {
    let model = Runtime::BuiltIn.model("function_of_an_older_set");
    let json = r#"{"inputs": [{"name": "x", "shape": [1, 2, 2], "datatype": "FP32", "data": [1, 2, 3, 4]}]}"#;
    let outputs = infer(&*model, request(json)).unwrap();
    let oip_types::TensorValue::Fixed(found) = &outputs[0].value else {
        panic!("not numbers");
    };
    for (found, expected) in found
        .to_vec::<f32>()
        .unwrap()
        .iter()
        .zip([0.032_058, 0.087_144, 0.236_882, 0.643_914])
    {
        assert!((found - expected).abs() < 1e-5, "{found} {expected}");
    }
}
