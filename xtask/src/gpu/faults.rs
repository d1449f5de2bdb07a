//! Tests failures: a killed worker, a request that exceeds the available memory, memory occupied by other
//! processes, and invalid configurations. The server must still respond after each of them.

use std::{process::Command, thread, time::Duration};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::{
    bench::{Bench, best_column},
    client::{Client, Input, metric},
    measure::Request,
    server::{PATIENCE, Server},
};

/// Prints a row for each failure. Returns an error if the server has exited.
pub(super) fn run(bench: &Bench, has_cuda: bool) -> Result<()> {
    println!("\n| what goes wrong | answer |\n|---|---|");
    let row = |what: &str, answer: &str| -> Result<()> {
        let alive = if bench.server.is_live() {
            "the server lives"
        } else {
            "THE SERVER IS GONE"
        };
        println!(
            "| {what} | {}; {alive} |",
            answer.replace('|', "/").replace('\n', " ")
        );
        Ok(())
    };
    row("a worker is killed", &killed_worker(bench, has_cuda)?)?;
    row("a value beyond the memory", &beyond_memory(bench, has_cuda)?)?;
    for (what, config) in bad_configurations() {
        let answer = match bench.server.load_with("grow_cuda", &config)? {
            Ok(()) => format!("loaded on {}", bench.server.placement("grow_cuda")?),
            Err(reason) => reason,
        };
        row(what, &answer)?;
    }
    row("a file that is another library", &another_library(bench))?;
    let full = match has_cuda {
        true => full_gpu(bench)?,
        false => "missing: no GPU".to_owned(),
    };
    row("others use the GPU's memory", &full)?;
    println!(
        "| a driver that is too old | cannot be created here; its error's text is a test of backend-onnx |"
    );
    anyhow::ensure!(bench.server.is_live(), "the server is gone");
    Ok(())
}

/// Kills a model's worker process, and calls the model again.
fn killed_worker(bench: &Bench, has_cuda: bool) -> Result<String> {
    let name = format!("resnet50_{}_apart", best_column(has_cuda));
    if let Err(reason) = bench.server.load(&name)? {
        return Ok(format!("not loaded: {reason}"));
    }
    let ask = || -> Result<u16> {
        let inputs = Request::Images(1).inputs();
        Ok(bench.server.client()?.infer(&name, &inputs)?.status)
    };
    let before = ask()?;
    let workers = bench.server.workers();
    for worker in &workers {
        Command::new("kill")
            .args(["-KILL", &worker.to_string()])
            .status()?;
    }
    let mut answers = Vec::new();
    for _ in 0..100 {
        let status = ask()?;
        answers.push(status.to_string());
        if status == 200 {
            break;
        }
        thread::sleep(Duration::from_millis(200));
    }
    answers.dedup();
    bench.server.unload(&name)?;
    Ok(format!(
        "{before} before, {} workers killed, then {}",
        workers.len(),
        answers.join(", ")
    ))
}

/// Sends a request that makes the model allocate `count` numbers. Returns a description of the response.
fn grow(client: &mut Client, model: &str, count: i64) -> Result<String> {
    let inputs = [Input {
        name: "n",
        datatype: "INT64",
        shape: vec![1],
        bytes: count.to_le_bytes().to_vec(),
    }];
    let response = client.infer(model, &inputs)?;
    Ok(match response.status {
        200 => "200".to_owned(),
        status => format!("{status}: {}", response.reason()),
    })
}

fn beyond_memory(bench: &Bench, has_cuda: bool) -> Result<String> {
    let name = format!("grow_{}", best_column(has_cuda));
    if let Err(reason) = bench.server.load(&name)? {
        return Ok(format!("not loaded: {reason}"));
    }
    let mut client = bench.server.client()?;
    // The first request needs 400 GB, which exceeds every GPU's memory; the second one needs 4 KB.
    let large = grow(&mut client, &name, 100_000_000_000)?;
    let small = grow(&mut client, &name, 1000)?;
    bench.server.unload(&name)?;
    Ok(format!("{large}; then a small one {small}"))
}

/// Returns invalid configurations, each with a description of its error.
fn bad_configurations() -> Vec<(&'static str, Value)> {
    let gpu = |accelerators: Value, group: Value| {
        json!({"instance_group": [group],
               "optimization": {"execution_accelerators": {"gpu_execution_accelerator": accelerators}}})
    };
    vec![
        (
            "a provider that does not exist",
            gpu(json!([{"name": "cudda"}]), json!({"kind": "KIND_GPU"})),
        ),
        (
            "an option that it does not have",
            gpu(
                json!([{"name": "cuda", "parameters": {"no_such_option": "1"}}]),
                json!({"kind": "KIND_GPU"}),
            ),
        ),
        (
            "a GPU that is not there",
            gpu(json!([]), json!({"kind": "KIND_GPU", "gpus": [7]})),
        ),
        (
            "a GPU that is not there, KIND_AUTO",
            gpu(json!([]), json!({"kind": "KIND_AUTO", "gpus": [7]})),
        ),
        (
            "OpenVINO where the library has none",
            json!({"instance_group": [{"kind": "KIND_CPU"}],
                   "optimization": {"execution_accelerators": {"cpu_execution_accelerator": [{"name": "openvino"}]}}}),
        ),
        ("a GPU, by KIND_GPU", gpu(json!([]), json!({"kind": "KIND_GPU"}))),
        (
            "a GPU, by KIND_AUTO",
            gpu(json!([]), json!({"kind": "KIND_AUTO"})),
        ),
    ]
}

/// Starts a server with a library that is not ONNX Runtime, and returns the error message.
fn another_library(bench: &Bench) -> String {
    match Server::start(&bench.program, &bench.program, &bench.models, "other") {
        Ok(_) => "it started".to_owned(),
        Err(error) => format!("{error:#}"),
    }
}

/// Loads and runs models while another server occupies nearly all of the GPU's memory.
fn full_gpu(bench: &Bench) -> Result<String> {
    let text = bench.server.metrics()?;
    let of = |name| metric(&text, name).context("the metrics do not show the GPU's memory");
    let (total, used) = (of("nv_gpu_memory_total_bytes")?, of("nv_gpu_memory_used_bytes")?);
    if let Err(reason) = bench.server.load("grow_cuda")? {
        return Ok(format!("not loaded: {reason}"));
    }
    let other = Server::start(&bench.program, &bench.library, &bench.models, "hog")?;
    if let Err(reason) = other.load("grow_cuda")? {
        return Ok(format!("not loaded: {reason}"));
    }
    // The model holds two tensors of the requested size in memory at the same time. The arena keeps the
    // memory of a run until a later run frees it.
    let free = total - used;
    let count = (free - 2e9).max(0.0) / 2.0 / 4.0;
    let hog = grow(
        &mut Client::connect(&other.address, PATIENCE)?,
        "grow_cuda",
        count as i64,
    )?;
    let request = grow(&mut bench.server.client()?, "grow_cuda", (count / 2.0) as i64)?;
    let load = match bench.server.load("bert_cuda")? {
        Ok(()) => "loaded".to_owned(),
        Err(reason) => reason,
    };
    drop(other);
    thread::sleep(Duration::from_secs(1));
    let after = grow(&mut bench.server.client()?, "grow_cuda", 1000)?;
    Ok(format!(
        "another server takes {:.0} MB ({hog}); a request: {request}; a load: {load}; after the other has ended: {after}",
        count * 8.0 / 1e6
    ))
}
