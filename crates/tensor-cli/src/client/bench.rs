//! `tensor bench`: measures latency and throughput of a model on a server.

use std::{io::Write, sync::Arc};

use oip_client::RetryPolicy;
use oip_types::{InferRequest, ModelMetadata};

use crate::{
    client::{check_outputs, generate, inputs, measure, options::Bench, report::Report, unless_interrupted},
    failure::{Failure, Outcome},
    progress::ProgressLine,
};

/// Number of requests with different values. They are sent in turn, so that a response cache needs more than
/// one entry.
const VARIANTS: u64 = 8;

pub(crate) fn run(options: &Bench, out: &mut impl Write) -> Outcome {
    let mut runtime = match options.threads {
        1 => tokio::runtime::Builder::new_current_thread(),
        threads => {
            let mut runtime = tokio::runtime::Builder::new_multi_thread();
            runtime.worker_threads(threads.into());
            runtime
        }
    };
    let runtime = runtime.enable_all().build()?;
    let report = runtime.block_on(bench(options))?;
    report.print(options.json, out)?;
    match report.is_clean() {
        true => Ok(()),
        false => Err(Failure::Found),
    }
}

async fn bench(options: &Bench) -> Outcome<Report> {
    let server = &options.server;
    let client = || -> Outcome<_> { Ok(server.client()?.retry(RetryPolicy::never()).build()?) };
    let requests = unless_interrupted(async {
        let client = client()?;
        let metadata = server.connection.metadata(&*client, server.model()?).await?;
        let requests = requests(options, &metadata)?;
        // A request that always fails is reported immediately, with the server's message.
        client.infer(&requests[0]).await?;
        Outcome::Ok(requests)
    });
    let requests: Arc<[InferRequest]> = requests.await??.into();
    let concurrency = options.concurrency.unwrap_or(match options.rate {
        None => 1,
        // In an open loop with 64 clients, a due request rarely has to wait for a free client.
        Some(_) => 64,
    });
    // One connection per client, over both transports.
    let clients = (0..concurrency)
        .map(|_| client())
        .collect::<Result<Vec<_>, _>>()?;
    let load = measure::Load {
        rate: options.rate,
        warm_up: options.warm_up,
        end: match options.requests {
            Some(count) => measure::End::After(count),
            None => measure::End::At(options.duration),
        },
    };
    let rows = rows(&requests[0]);
    let live = (!options.json).then(ProgressLine::new);
    let measured = measure::run(clients, requests, load, live).await;
    Ok(Report::new(options, concurrency, rows, measured))
}

fn requests(options: &Bench, metadata: &ModelMetadata) -> Outcome<Vec<InferRequest>> {
    let server = &options.server;
    check_outputs(metadata, &server.outputs)?;
    let given = inputs::read(server, metadata)?;
    let is_random = given.len() < metadata.inputs.len() && !options.zeros;
    let variants = if is_random { VARIANTS } else { 1 };
    (0..variants)
        .map(|variant| {
            let mut all = given.clone();
            all.extend(generate::missing(options, metadata, &given, variant)?);
            server.request(all, &server.outputs)
        })
        .collect()
}

/// Returns the batch size of a request: the first dimension of its first input.
fn rows(request: &InferRequest) -> u64 {
    let first = request.inputs.first();
    first
        .and_then(|input| input.value.shape().dims().first().copied())
        .unwrap_or(1)
}
