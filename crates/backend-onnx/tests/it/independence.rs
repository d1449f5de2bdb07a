//! Tests that proven row independence holds: a request gets the same outputs alone and in a batch with
//! another request.

use bytes::Bytes;
use oip_model::{IndependentRows, Model, RowIndependence};
use oip_types::{BytesTensor, DataType, InferRequest, ModelMetadata, ModelRef, TensorValue};
use tensor_core::{DType, Shape, Tensor, TensorSpec};

use crate::support::{Runtime, file, infer, names, runtimes};

/// Sizes to try for free dimensions; the first that a model accepts is used.
const SIZES: [u64; 5] = [4, 8, 3, 16, 1];

#[test]
fn requests_that_are_joined_are_answered_as_each_alone() {
    for &runtime in runtimes() {
        let mut wrong = Vec::new();
        let (mut proven, mut tried) = (0, 0);
        for name in names(".onnx") {
            let Some(model) = loaded(runtime, &name) else {
                continue;
            };
            let RowIndependence::Proven(rows) = model.capabilities().row_independence else {
                continue;
            };
            proven += 1;
            match SIZES.iter().find_map(|size| compared(&*model, &rows, *size)) {
                Some(Ok(())) => tried += 1,
                Some(Err(difference)) => wrong.push(format!("{name} with {runtime:?}: {difference}")),
                None => {}
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        assert!(
            proven > 250 && tried * 10 > proven * 8,
            "{tried} of {proven} proven models took a request"
        );
    }
}

fn loaded(runtime: Runtime, name: &str) -> Option<Box<dyn Model>> {
    runtime.load(file(&format!("{name}.onnx"))).ok()
}

/// Compares the outputs of two separate requests with those of one batch of both; `None` if the model does
/// not accept the requests.
fn compared(model: &dyn Model, rows: &IndependentRows, size: u64) -> Option<Result<(), String>> {
    let metadata = model.metadata();
    let requests = [2, 3].map(|count| request(metadata, rows, count, size, count));
    let [first, second] = requests.map(Option::unwrap);
    let mut joined = first.clone();
    for (input, other) in joined.inputs.iter_mut().zip(&second.inputs) {
        if !rows.shared_inputs.contains(&input.name) {
            input.value = concatenated(&input.value, &other.value)?;
        }
    }
    let alone = [infer(model, first).ok()?, infer(model, second).ok()?];
    let together = match infer(model, joined) {
        Ok(together) => together,
        Err(error) => return Some(Err(format!("joined requests fail: {}", error.report()))),
    };
    let [first, second] = alone;
    for ((a, b), both) in first.iter().zip(&second).zip(&together) {
        if a.value.rows() != Some(2) || b.value.rows() != Some(3) {
            return Some(Err(format!("{} has no row for each of the inputs", a.name)));
        }
        let Some(expected) = concatenated(&a.value, &b.value) else {
            return Some(Err(format!("{} has other shapes in each request", a.name)));
        };
        if !is_close(&expected, &both.value) {
            return Some(Err(format!(
                "{}: {expected:?} alone, {:?} joined",
                a.name, both.value
            )));
        }
    }
    Some(Ok(()))
}

/// Builds a request with made-up values. Shared inputs do not depend on the seed.
fn request(
    metadata: &ModelMetadata,
    rows: &IndependentRows,
    count: u64,
    size: u64,
    seed: u64,
) -> Option<InferRequest> {
    let mut request = InferRequest::new(ModelRef::new("m", None).ok()?);
    for input in &metadata.inputs {
        let is_shared = rows.shared_inputs.contains(&input.name);
        let dims: Vec<u64> = input
            .shape
            .dims()
            .iter()
            .enumerate()
            .map(|(axis, dim)| match dim {
                None if axis == 0 && !is_shared => count,
                dim => dim.unwrap_or(size),
            })
            .collect();
        let seed = if is_shared { 1 } else { seed };
        let value = made_up(input.datatype, &dims, seed)?;
        request = request.with_input(input.name.clone(), value);
    }
    Some(request)
}

fn made_up(datatype: DataType, dims: &[u64], seed: u64) -> Option<TensorValue> {
    let shape = Shape::new(dims).ok()?;
    let count = shape.element_count();
    let numbers = (0..count).map(|index| (index * 7 + seed * 5) % 11);
    let Some(dtype) = datatype.dtype() else {
        let words = numbers.map(|number| ["a", "bc", "d e", ""][number as usize % 4]);
        return Some(BytesTensor::from_elements(shape, words).ok()?.into());
    };
    let bytes: Vec<u8> = numbers
        .flat_map(|number| {
            let (small, real) = (number % 3, number as f32 / 4.0 - 1.0);
            match dtype {
                DType::F32 => real.to_le_bytes().to_vec(),
                DType::F64 => f64::from(real).to_le_bytes().to_vec(),
                DType::F16 => half::f16::from_f32(real).to_le_bytes().to_vec(),
                DType::BF16 => half::bf16::from_f32(real).to_le_bytes().to_vec(),
                DType::Bool => vec![(number % 2) as u8],
                dtype => small.to_le_bytes()[..dtype.size()].to_vec(),
            }
        })
        .collect();
    Some(
        Tensor::new(TensorSpec::new(dtype, shape).ok()?, Bytes::from(bytes))
            .ok()?
            .into(),
    )
}

/// Concatenates the rows of two tensors; `None` if their other dimensions differ.
fn concatenated(a: &TensorValue, b: &TensorValue) -> Option<TensorValue> {
    let (these, those) = (a.shape().dims(), b.shape().dims());
    if these.get(1..)? != those.get(1..)? {
        return None;
    }
    let mut dims = these.to_vec();
    dims[0] += those[0];
    let shape = Shape::new(&dims).ok()?;
    let bytes = Bytes::from([a.raw().as_ref(), b.raw().as_ref()].concat());
    match a.datatype().dtype() {
        Some(dtype) => Some(
            Tensor::new(TensorSpec::new(dtype, shape).ok()?, bytes)
                .ok()?
                .into(),
        ),
        None => Some(BytesTensor::new(shape, bytes).ok()?.into()),
    }
}

/// Compares with a tolerance, since rounding may depend on the number of rows.
fn is_close(expected: &TensorValue, found: &TensorValue) -> bool {
    // A fast path, since some responses are gigabytes in size.
    if expected.shape() == found.shape() && expected.raw() == found.raw() {
        return true;
    }
    let (Some(wanted), Some(got)) = (floats(expected), floats(found)) else {
        return false;
    };
    let finite = wanted.iter().filter(|number| number.is_finite());
    let noise = 1e-4 * finite.fold(1f64, |most, number| most.max(number.abs()));
    let close = |(a, b): (&f64, &f64)| a == b || a.is_nan() && b.is_nan() || (a - b).abs() <= noise;
    expected.shape() == found.shape() && wanted.iter().zip(&got).all(close)
}

fn floats(value: &TensorValue) -> Option<Vec<f64>> {
    let tensor = value.as_fixed()?;
    match tensor.spec().dtype() {
        DType::F32 => Some(tensor.to_vec::<f32>().ok()?.into_iter().map(f64::from).collect()),
        DType::F64 => tensor.to_vec().ok(),
        _ => None,
    }
}

/// Checks the reason for each way in which rows can depend on each other.
#[test]
fn the_reason_names_the_operator() {
    let reason = |name: &str| match Runtime::BuiltIn.model(name).capabilities().row_independence {
        RowIndependence::Unproven(reason) => reason,
        proven => format!("{proven:?}"),
    };
    assert_eq!(reason("loop_rows"), "Gather 'row' runs along axis 0");
    assert_eq!(reason("scan_of_counts"), "Scan 'last' runs along axis 0");
    assert_eq!(
        reason("dynamic_quantize_lstm"),
        "DynamicQuantizeLSTM 'y' takes a scale over all rows"
    );
    assert_eq!(reason("branch_by_chance"), "RandomUniformLike 'r' is random");
    assert_eq!(reason("lstm_free_batch"), "input 'x' has its rows on axis 1");
}
