//! Tests operators at the ends of their ranges (NaN, infinities, denormals, intermediate overflow), and for
//! all types and operator sets. `make_extremes.py` and `make_cases.py` next to the fixtures generate and
//! describe them.

use std::panic::{AssertUnwindSafe, catch_unwind};

use bytes::{Buf, Bytes};
use oip_types::{
    InferOutput, ModelRef, RequestLimits, TensorValue,
    rest::{decode_request, decode_response},
};
use tensor_core::{DType, Tensor};

use crate::support::{Runtime, file, infer};

/// Operators that are refused for a type. Every other case of the file must run.
const REFUSED: &[&str] = &[];

struct Record {
    name: String,
    model: Bytes,
    request: Bytes,
    answer: Bytes,
}

/// Reads the records of a file, whose format `make_extremes.py` describes.
fn records(name: &str) -> Vec<Record> {
    let mut rest = Bytes::from(file(name));
    let mut part = || {
        (!rest.is_empty()).then(|| {
            let length = rest.get_u32_le() as usize;
            rest.split_to(length)
        })
    };
    let mut records = Vec::new();
    while let Some(name) = part() {
        let [model, request, answer] = [(); 3].map(|()| part().unwrap());
        let name = String::from_utf8(name.to_vec()).unwrap();
        records.push(Record {
            name,
            model,
            request,
            answer,
        });
    }
    records
}

/// Splits a record into a body and the length of its JSON.
fn body(mut part: Bytes) -> (Bytes, Option<usize>) {
    let length = part.get_u32_le() as usize;
    (part, Some(length))
}

#[test]
fn ends_of_ranges_are_answered_as_by_onnx_runtime() {
    let records = records("extremes.bin");
    assert!(records.len() > 300, "{}", records.len());
    let wrong = wrong(records);
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

/// Compares with ONNX Runtime in the cases of `make_cases.py`, which vary types, attributes and operator
/// sets.
#[test]
fn operators_of_all_types_and_sets_are_answered_as_by_onnx_runtime() {
    let records = records("cases.bin");
    assert!(records.len() > 100, "{}", records.len());
    let wrong = wrong(records);
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

/// Lists the results that differ from the recorded ones.
fn wrong(records: Vec<Record>) -> Vec<String> {
    let mut wrong = Vec::new();
    for record in records {
        let name = record.name;
        let model = match Runtime::BuiltIn.load(record.model) {
            Ok(model) => model,
            Err(_) if REFUSED.contains(&name.as_str()) => continue,
            Err(error) => {
                wrong.push(format!("{name} is refused: {error}"));
                continue;
            }
        };
        let (request, length) = body(record.request);
        let request = decode_request(
            ModelRef::new("m", None).unwrap(),
            &request,
            length,
            &RequestLimits::default(),
        );
        let (answer, length) = body(record.answer);
        let answer = decode_response(&answer, length, &RequestLimits::default()).unwrap();
        let request = request.unwrap().request;
        let outcome = catch_unwind(AssertUnwindSafe(|| infer(&*model, request)));
        let Ok(outcome) = outcome else {
            wrong.push(format!("{name} panics"));
            continue;
        };
        match outcome {
            Ok(found) => {
                for (found, wanted) in found.iter().zip(&answer.outputs) {
                    wrong.extend(difference(found, wanted).map(|reason| format!("{name}: {reason}")));
                }
            }
            Err(error) => wrong.push(format!("{name} fails: {}", error.report())),
        }
    }
    wrong
}

fn difference(found: &InferOutput, wanted: &InferOutput) -> Option<String> {
    if found.value.datatype() != wanted.value.datatype() || found.value.shape() != wanted.value.shape() {
        return Some(format!("expected {wanted:?}, found {found:?}"));
    }
    let (TensorValue::Fixed(a), TensorValue::Fixed(b)) = (&found.value, &wanted.value) else {
        let is_same = found.value.raw() == wanted.value.raw();
        return (!is_same).then(|| format!("expected {wanted:?}, found {found:?}"));
    };
    let relative = match a.spec().dtype() {
        DType::F16 => 3e-3,
        DType::F32 => 2e-5,
        DType::F64 => 1e-9,
        _ => return (a.bytes() != b.bytes()).then(|| format!("expected {b:?}, found {a:?}")),
    };
    let (a, b) = (numbers(a), numbers(b));
    let differ: Vec<String> = a
        .iter()
        .zip(&b)
        .enumerate()
        .filter(|(_, (a, b))| {
            let is_close = (*a - *b).abs() <= relative * b.abs() + relative / 100.0;
            !(is_close || a == b || a.is_nan() && b.is_nan())
        })
        .map(|(index, (a, b))| format!("[{index}] {a:e}, not {b:e}"))
        .collect();
    (!differ.is_empty()).then(|| {
        format!(
            "{} differ: {}",
            differ.len(),
            differ[..differ.len().min(8)].join("; ")
        )
    })
}

fn numbers(tensor: &Tensor) -> Vec<f64> {
    match tensor.spec().dtype() {
        DType::F16 => tensor
            .to_vec::<tensor_core::f16>()
            .unwrap()
            .iter()
            .map(|x| f64::from(*x))
            .collect(),
        DType::F32 => tensor
            .to_vec::<f32>()
            .unwrap()
            .iter()
            .map(|&x| f64::from(x))
            .collect(),
        _ => tensor.to_vec::<f64>().unwrap(),
    }
}
