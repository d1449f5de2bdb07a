//! Tests of requests and their results.

use backend_tensors::TensorsBackend;
use oip_types::{ErrorCode, InferRequest, rest::json_body};
use tensor_core::{Shape, Tensor};

use crate::support::{embed, model, model_with, request, run, tensors, vector};

fn error(request: InferRequest) -> String {
    let error = run(&*model(), request).unwrap_err();
    assert_eq!(error.code(), ErrorCode::InvalidArgument);
    error.to_string()
}

fn names(request: InferRequest) -> Vec<String> {
    let outputs = run(&*model(), request).unwrap();
    outputs.into_iter().map(|output| output.name).collect()
}

#[test]
fn metadata_shows_one_leading_dimension() {
    let mut metadata = model().metadata().clone();
    metadata.name = "m".to_owned();
    assert_eq!(
        json_body(&metadata),
        concat!(
            r#"{"name":"m","versions":["1"],"platform":"tensorferry_safetensors","#,
            r#""inputs":[{"name":"embed.rows","datatype":"INT64","shape":[-1]},{"name":"ids.rows","datatype":"INT64","shape":[-1]}],"#,
            r#""outputs":[{"name":"embed","datatype":"FP32","shape":[-1,2]},{"name":"ids","datatype":"INT64","shape":[-1]},"#,
            r#"{"name":"scale","datatype":"FP64","shape":[]}]}"#
        )
    );
}

#[test]
fn whole_tensors_by_name() {
    let model = model();
    let answer = tensors(run(&*model, request().with_output("scale").with_output("embed")).unwrap());
    assert_eq!(
        answer,
        [
            ("scale".to_owned(), Tensor::scalar(0.5f64)),
            ("embed".to_owned(), embed())
        ]
    );
}

#[test]
fn rows_by_number() {
    let model = model();
    let rows = Tensor::from_vec(Shape::new(&[2, 2]).unwrap(), vec![3i64, 0, 0, 1]).unwrap();
    let answer = tensors(run(&*model, request().with_input("embed.rows", rows)).unwrap());
    let [(name, gathered)] = &answer[..] else {
        panic!("{answer:?}")
    };
    assert_eq!(
        (name.as_str(), gathered.shape().dims()),
        ("embed", &[2, 2, 2][..])
    );
    assert_eq!(
        gathered.to_vec::<f32>().unwrap(),
        [3.0, 3.5, 0.0, 0.5, 0.0, 0.5, 1.0, 1.5]
    );
    // For a vector, each element is a row; a scalar index selects one row.
    let answer = run(&*model, request().with_input("ids.rows", Tensor::scalar(2i64)));
    assert_eq!(tensors(answer.unwrap())[0].1, Tensor::scalar(9i64));
}

#[test]
fn rows_of_one_and_the_whole_of_another() {
    let rows = request().with_input("ids.rows", vector(&[1]));
    let answer = run(&*model(), rows.with_output("embed").with_output("ids"));
    let answer = tensors(answer.unwrap());
    assert_eq!(answer[0], ("embed".to_owned(), embed()));
    assert_eq!(answer[1], ("ids".to_owned(), vector(&[8])));
}

#[test]
fn without_outputs_what_has_rows_or_else_everything() {
    assert_eq!(names(request()), ["embed", "ids", "scale"]);
    assert_eq!(names(request().with_input("ids.rows", vector(&[0]))), ["ids"]);
    let both = request()
        .with_input("ids.rows", vector(&[0]))
        .with_input("embed.rows", vector(&[0]));
    assert_eq!(names(both), ["embed", "ids"], "in the model's order");
}

#[test]
fn rows_that_do_not_exist_are_named() {
    let table = |dims: &[u64], rows: &[i64]| {
        let rows = Tensor::from_vec(Shape::new(dims).unwrap(), rows.to_vec()).unwrap();
        request().with_input("embed.rows", rows)
    };
    for (dims, rows, message) in [
        (
            &[3][..],
            &[0, 4, 9][..],
            "input 'embed.rows': there is no row 4, at position [1]: expected 0 to 3",
        ),
        (
            &[2, 2],
            &[0, 3, -1, 0],
            "input 'embed.rows': there is no row -1, at position [1, 0]: expected 0 to 3",
        ),
        (
            &[],
            &[i64::MAX],
            "input 'embed.rows': there is no row 9223372036854775807: expected 0 to 3",
        ),
    ] {
        assert_eq!(error(table(dims, rows)), message);
    }
}

#[test]
fn requests_that_make_no_sense_are_refused() {
    assert_eq!(
        error(request().with_input("embed.rows", Tensor::scalar(1i32))),
        "input 'embed.rows': expected datatype INT64, found INT32"
    );
    assert_eq!(
        error(request().with_input("scale.rows", vector(&[0]))),
        "unexpected input 'scale.rows'; the model takes 'embed.rows' (INT64[...]), 'ids.rows' (INT64[...])"
    );
    assert!(
        error(request().with_output("embd")).starts_with("unexpected output 'embd'; the model gives 'embed'")
    );
    assert_eq!(
        error(
            request()
                .with_input("ids.rows", vector(&[0]))
                .with_output("embed")
        ),
        "input 'ids.rows' is given, but its tensor is not among the requested outputs"
    );
}

/// Row indices are small and rows are large, so the size of a response is limited.
#[test]
fn answers_are_bounded() {
    let model = model_with(&TensorsBackend::new().with_max_answer_bytes(64));
    let message = |request| {
        let error = run(&*model, request).unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidArgument);
        error.to_string()
    };
    // The limit is the total size of all tensors, 32 + 24 + 8 bytes.
    assert_eq!(run(&*model, request()).unwrap().len(), 3);
    assert_eq!(
        message(request().with_input("embed.rows", vector(&[0; 9]))),
        "the response would have 72 bytes of tensors, the limit is 64: name fewer outputs, or give rows (an \
         input \
         '<tensor>.rows')"
    );
    let request = request().with_input("embed.rows", vector(&[0; 5]));
    assert!(
        message(
            request
                .with_output("embed")
                .with_output("ids")
                .with_output("scale")
        )
        .contains("72 bytes")
    );
}

/// The input for the rows of a tensor has the tensor's name with `.rows`, even if another tensor has the same
/// name as this input.
#[test]
fn tensors_that_are_called_like_inputs() {
    let (a, b) = (vector(&[1, 2]), vector(&[3, 4]));
    let content = crate::support::file("model.safetensors", &[("a", &a), ("a.rows", &b), ("", &b)]);
    let model = crate::support::load("model.safetensors", content).unwrap();
    let answer = |input: &str| {
        let outputs = run(&*model, request().with_input(input, vector(&[1]))).unwrap();
        let (name, tensor) = tensors(outputs).remove(0);
        (name, tensor.to_vec::<i64>().unwrap()[0])
    };
    assert_eq!(answer("a.rows"), ("a".to_owned(), 2));
    assert_eq!(answer("a.rows.rows"), ("a.rows".to_owned(), 4));
    assert_eq!(answer(".rows"), (String::new(), 4));
}
