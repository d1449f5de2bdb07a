//! Tests of configured outputs, names and types, with the parameters of Triton's FIL backend.

use oip_types::{DataType, ModelConfig};

use crate::support::{case, config, fixture, load, numbers, run, with_input, with_output};

/// Returns the output for the rows of a case, its shape, and the names of input and output.
fn answer(name: &str, config: ModelConfig) -> (Vec<f64>, Vec<u64>, [String; 2]) {
    let case = case(name);
    let model = load(&case.file, fixture(&case.file), config).expect(name);
    let output = run(&*model, case.input()).expect(name);
    let metadata = model.metadata();
    let names = [&metadata.inputs[0].name, &metadata.outputs[0].name].map(Clone::clone);
    (numbers(&output), output.shape().dims().to_vec(), names)
}

fn native(name: &str) -> Vec<f64> {
    case(name).native
}

#[test]
fn classes_and_probabilities_of_yes_and_no() {
    let yes = native("xgb_binary_logistic");
    let rows = yes.len() as u64;
    let (classes, shape, _) = answer("xgb_binary_logistic", config(&[("output_class", "true")]));
    assert_eq!(shape, [rows]);
    assert_eq!(
        classes,
        yes.iter()
            .map(|&yes| f64::from(u8::from(yes > 0.5)))
            .collect::<Vec<_>>()
    );
    let (classes, ..) = answer(
        "xgb_binary_logistic",
        config(&[("output_class", "true"), ("threshold", "0.6")]),
    );
    assert_eq!(
        classes,
        yes.iter()
            .map(|&yes| f64::from(u8::from(yes > 0.6)))
            .collect::<Vec<_>>()
    );
    let (both, shape, _) = answer("xgb_binary_logistic", config(&[("predict_proba", "true")]));
    assert_eq!(shape, [rows, 2]);
    for (pair, yes) in both.chunks(2).zip(yes) {
        assert_eq!(pair[1], f64::from(yes as f32));
        assert_eq!(pair[0], f64::from((1.0 - f64::from(yes as f32)) as f32));
    }
}

#[test]
fn classes_and_probabilities_of_several_classes() {
    let (probabilities, shape, _) = answer("xgb_multi_softmax", config(&[("predict_proba", "true")]));
    assert_eq!(shape[1], 3);
    let picked: Vec<f64> = probabilities
        .chunks(3)
        .map(|row| (0..3).fold(0, |best, class| if row[class] > row[best] { class } else { best }) as f64)
        .collect();
    assert_eq!(picked, native("xgb_multi_softmax"));
    let to_int = with_output(
        config(&[("output_class", "true")]),
        "class",
        DataType::INT64,
        &[-1],
    );
    let (classes, shape, names) = answer("xgb_multi_softmax", to_int);
    assert_eq!(classes, picked);
    assert_eq!((shape.len(), names[1].as_str()), (1, "class"));
    let (classes, ..) = answer("lgb_multiclass", config(&[("is_classifier", "true")]));
    let expected: Vec<f64> = native("lgb_multiclass")
        .chunks(3)
        .map(|row| (0..3).fold(0, |best, class| if row[class] > row[best] { class } else { best }) as f64)
        .collect();
    assert_eq!(classes, expected);
}

#[test]
fn names_types_and_shapes_are_kserves_or_fils() {
    let (_, shape, names) = answer("lgb_regression", config(&[]));
    assert_eq!(names, ["input-0", "output-0"]);
    assert_eq!(shape.len(), 1);

    let fil = || ModelConfig {
        backend: "fil".to_owned(),
        ..config(&[("model_type", "lightgbm"), ("storage_type", "AUTO")])
    };
    let (_, shape, names) = answer("lgb_regression", fil());
    assert_eq!(names, ["input__0", "output__0"]);
    assert_eq!(shape[1..], [1]);

    let mut written = with_input(fil(), "input__0", DataType::FP32, &[5]);
    written = with_output(written, "output__0", DataType::FP32, &[1]);
    written.max_batch_size = 32;
    let case = case("lgb_regression");
    let model = load(&case.file, fixture(&case.file), written).expect("a model");
    let metadata = model.metadata();
    assert_eq!(metadata.inputs[0].to_string(), "'input__0' (FP32[-1, 5])");
    assert_eq!(metadata.outputs[0].to_string(), "'output__0' (FP32[-1, 1])");
    assert_eq!(metadata.platform, "tensorferry_lightgbm");
}

#[test]
fn doubles_are_compared_as_doubles() {
    // Rows that differ from thresholds by less than FP32 can represent.
    let own = case("lgb_double");
    let wide = with_input(config(&[]), "input-0", DataType::FP64, &[-1, 5]);
    let model = load(&own.file, fixture(&own.file), wide).expect("a model");
    let found = numbers(&run(&*model, own.input()).expect("a response"));
    assert_eq!(found.len(), own.native.len());
    let wrong = config(&[]);
    let narrow = load(&own.file, fixture(&own.file), wrong).expect("a model");
    let refused = run(&*narrow, own.input()).expect_err("FP32 is the default");
    assert!(refused.message().contains("FP32"), "{}", refused.message());
}

#[test]
fn what_makes_no_sense_is_refused_by_name() {
    let refuse = |name: &str, config: ModelConfig| {
        let case = case(name);
        let error = load(&case.file, fixture(&case.file), config)
            .err()
            .expect("it is refused");
        error.message().to_owned()
    };
    assert_eq!(
        refuse("lgb_regression", config(&[("output_class", "true")])),
        "lgb_regression.txt: the objective 'regression' has no classes: leave the parameters output_class and predict_proba \
         out"
    );
    assert_eq!(
        refuse("lgb_regression", config(&[("model_type", "xgboost_json")])),
        "lgb_regression.txt: the file is a model of lightgbm, the parameter model_type says xgboost"
    );
    assert_eq!(
        refuse("lgb_regression", config(&[("model_type", "treelite_checkpoint")])),
        "lgb_regression.txt: the parameter model_type is 'treelite_checkpoint', supported are xgboost, xgboost_json, \
         xgboost_ubj and lightgbm"
    );
    assert_eq!(
        refuse("lgb_binary", config(&[("threshold", "high")])),
        "lgb_binary.txt: the parameter threshold is 'high', expected a number"
    );
    assert_eq!(
        refuse("lgb_binary", config(&[("predict_proba", "maybe")])),
        "lgb_binary.txt: the parameter predict_proba is 'maybe', expected true or false"
    );
    let half = with_input(config(&[]), "x", DataType::FP16, &[-1, 5]);
    assert!(refuse("lgb_binary", half).contains("its input can be FP32 or FP64"));
    let text = with_output(config(&[]), "y", DataType::INT64, &[-1]);
    assert!(refuse("lgb_binary", text).contains("its output can be FP32 or FP64"));
}
