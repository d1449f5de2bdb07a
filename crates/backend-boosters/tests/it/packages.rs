//! Compares outputs with the packages' own predictions from their saved files (`tests/fixtures/make.py`).

use oip_types::DataType;
use tensor_core::{Shape, Tensor};

use crate::support::{Case, case, cases, config, fixture, load, numbers, run, with_input};

fn answer(case: &Case) -> Vec<f64> {
    let mut config = config(&[(
        "best_iteration",
        if case.best_iteration { "true" } else { "false" },
    )]);
    if case.double {
        config = with_input(config, "input-0", DataType::FP64, &[-1, case.width as i64]);
    }
    let model = load(&case.file, fixture(&case.file), config).expect(&case.name);
    let output = run(&*model, case.input()).expect(&case.name);
    assert_eq!(output.shape().dims(), case.shape, "{}", case.name);
    numbers(&output)
}

/// Returns the difference between an output and the package's, in ULPs of the type that the package computes
/// with.
fn difference(case: &Case, found: f64, expected: f64) -> f64 {
    let (expected, epsilon) = match case.file.ends_with(".txt") {
        true => (expected, f64::EPSILON),
        // The expected value is a printed FP32 number.
        false => (f64::from(expected as f32), f64::from(f32::EPSILON)),
    };
    if found == expected || (found.is_nan() && expected.is_nan()) {
        return 0.0;
    }
    (found - expected).abs() / (expected.abs().max(f64::from(f32::MIN_POSITIVE)) * epsilon)
}

#[test]
fn answers_are_those_of_the_packages() {
    let mut wrong = Vec::new();
    for case in cases() {
        let found = answer(&case);
        let pairs = found.iter().zip(&case.native);
        let differences = pairs.map(|(&found, &expected)| difference(&case, found, expected));
        let worst = differences.fold(0.0, f64::max);
        // On the development machine the difference is zero. Another C library may round exponentials
        // differently.
        if worst > 2.0 {
            wrong.push(format!("{}: {worst} units", case.name));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Checks that a row's output does not depend on the number of rows in the request. The larger request has
/// enough rows for blocks, lanes and a remainder.
#[test]
fn rows_are_answered_alike_in_any_number() {
    for name in [
        "xgb_multi_softprob",
        "xgb_partitions_ubj",
        "lgb_zero_as_missing",
        "lgb_linear",
        "lgb_rf_multi",
    ] {
        let case = case(name);
        let model = load(&case.file, fixture(&case.file), config(&[])).expect(name);
        let rows = case.input().to_vec::<f32>().expect("floats");
        let many: Vec<f32> = rows.iter().cycle().take(rows.len() * 11).copied().collect();
        let matrix = |values: Vec<f32>| {
            let count = (values.len() / case.width) as u64;
            Tensor::from_vec(Shape::new(&[count, case.width as u64]).expect("a matrix"), values)
                .expect("as many")
        };
        let together = numbers(&run(&*model, matrix(many.clone())).expect(name));
        let alone: Vec<f64> = many
            .chunks(case.width)
            .flat_map(|row| numbers(&run(&*model, matrix(row.to_vec())).expect(name)))
            .collect();
        let bits = |numbers: Vec<f64>| numbers.into_iter().map(f64::to_bits).collect::<Vec<_>>();
        assert_eq!(bits(together), bits(alone), "{name}");
        assert_eq!(run(&*model, matrix(vec![])).expect(name).shape().dims()[0], 0);
    }
}
