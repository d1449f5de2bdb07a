//! Benchmarks decoding and encoding JSON bodies of one million numbers against other libraries.
//!
//! All data is in memory, and each benchmark is warmed up first. Decoders read a complete inference request;
//! encoders write a complete response.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a benchmark fails by panicking and prints its figures"
)]

use bench_kit::Comparison;
use bytes::Bytes;
use oip_types::{
    InferOutput, InferResponse, ModelRef, RequestLimits,
    rest::{self, BinaryOutputs, NonFinite},
};
use peak_alloc::PeakAlloc;
use serde::{Deserialize, Serialize};
use tensor_core::{Shape, Tensor};

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

const COUNT: usize = 1_000_000;

/// The request as a typed structure, for libraries that deserialize into one.
#[derive(Serialize, Deserialize)]
struct Request<T> {
    inputs: Vec<Input<T>>,
}

#[derive(Serialize, Deserialize)]
struct Input<T> {
    name: String,
    shape: Vec<u64>,
    datatype: String,
    data: Vec<T>,
}

/// Returns numbers between -1 and 1 with all their digits, like activations and embeddings.
fn floats() -> Vec<f32> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    std::iter::repeat_with(next).take(COUNT).collect()
}

fn body<T: Serialize>(datatype: &str, data: Vec<T>) -> Bytes {
    let input = Input {
        name: "x".into(),
        shape: vec![data.len() as u64],
        datatype: datatype.into(),
        data,
    };
    serde_json::to_vec(&Request { inputs: vec![input] })
        .unwrap()
        .into()
}

fn decode(body: &Bytes) -> Tensor {
    let model = ModelRef::new("m", None).unwrap();
    let limits = RequestLimits::default();
    let mut decoded = rest::decode_request(model, body, None, &limits).unwrap();
    decoded
        .request
        .take_input("x")
        .unwrap()
        .as_fixed()
        .unwrap()
        .clone()
}

fn read<T>(title: &str, datatype: &str, data: Vec<T>, from_value: fn(&serde_json::Value) -> T)
where
    T: Serialize + for<'de> Deserialize<'de>,
{
    let body = body(datatype, data);
    let mut comparison = Comparison::new(format!("read {title}, {:.1} MB", body.len() as f64 / 1e6));
    comparison.add("oip-types", || decode(&body));
    comparison.add("sonic-rs, typed", || {
        sonic_rs::from_slice::<Request<T>>(&body).unwrap().inputs.len()
    });
    comparison.add("simd-json, typed (copies the body)", || {
        let mut copy = body.to_vec();
        simd_json::serde::from_slice::<Request<T>>(&mut copy)
            .unwrap()
            .inputs
            .len()
    });
    comparison.add("serde_json, typed", || {
        serde_json::from_slice::<Request<T>>(&body).unwrap().inputs.len()
    });
    comparison.add("serde_json::Value, then typed", || {
        let value: serde_json::Value = serde_json::from_slice(&body).unwrap();
        let data = value["inputs"][0]["data"].as_array().unwrap();
        data.iter().map(from_value).collect::<Vec<T>>()
    });
    comparison.run();
}

fn response(tensor: Tensor) -> InferResponse {
    InferResponse::new("m", vec![InferOutput::new("y", tensor)])
}

fn write<T: tensor_core::Element + Serialize>(title: &str, data: &[T]) {
    let response = response(Tensor::from_vec(Shape::vector(data.len() as u64), data.to_vec()).unwrap());
    let encode = || rest::encode_response(&response, &BinaryOutputs::all(false), NonFinite::Null).unwrap();
    let mut comparison = Comparison::new(format!("write {title}, {:.1} MB", encode().len() as f64 / 1e6));
    comparison.add("oip-types", encode);
    comparison.add("serde_json", || serde_json::to_vec(&data).unwrap());
    comparison.add("sonic-rs", || sonic_rs::to_vec(&data).unwrap());
    comparison.run();
}

fn main() {
    let floats = floats();
    let widened: Vec<f64> = floats.iter().map(|&value| value.into()).collect();
    let pixels: Vec<f32> = floats.iter().map(|value| (value.abs() * 255.0).round()).collect();
    let ids: Vec<i64> = floats
        .iter()
        .map(|value| (value.abs() * 50_000.0) as i64)
        .collect();

    let to_f32 = |value: &serde_json::Value| value.as_f64().unwrap() as f32;
    let to_f64 = |value: &serde_json::Value| value.as_f64().unwrap();
    let to_i64 = |value: &serde_json::Value| value.as_i64().unwrap();
    read("1M FP32, shortest form", "FP32", floats.clone(), to_f32);
    read(
        "1M FP32, as Python prints them (f64)",
        "FP32",
        widened.clone(),
        to_f64,
    );
    read("1M FP32, integers up to 255", "FP32", pixels.clone(), to_f32);
    read("1M INT64 up to 50,000", "INT64", ids.clone(), to_i64);

    write("1M FP32, shortest form", &floats);
    write("1M FP32, integers up to 255", &pixels);
    write("1M FP64", &widened);
    write("1M INT64 up to 50,000", &ids);

    let body = body("FP32", floats);
    ALLOCATOR.reset_peak_usage();
    let before = ALLOCATOR.current_usage();
    let tensor = decode(&body);
    let peak = ALLOCATOR.peak_usage() - before;
    println!(
        "\npeak memory of reading 1M FP32: {:.2}x the body of {:.1} MB on top of it; the tensor alone is {:.2}x",
        peak as f64 / body.len() as f64,
        body.len() as f64 / 1e6,
        tensor.bytes().len() as f64 / body.len() as f64,
    );
}
