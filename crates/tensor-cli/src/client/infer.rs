//! `tensor infer`: sends one request, with inputs from files or the command line, and writes the outputs to
//! files or prints them.

use std::{
    future::poll_fn,
    io::Write,
    pin::Pin,
    task::{Context, Poll},
    time::Instant,
};

use futures_core::Stream;
use oip_client::InferenceClient;
use oip_types::InferRequest;

use serde::Serialize;

use crate::{
    client::{check_outputs, inputs, options::Infer, outputs, unless_interrupted},
    failure::Outcome,
    report,
};

/// The JSON report when outputs are written to files.
#[derive(Serialize)]
struct InferReport {
    files: Vec<report::WrittenFile>,
    /// Time from sending the request to receiving the response.
    elapsed_ms: f64,
}

pub(crate) fn run(options: &Infer, out: &mut impl Write) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(unless_interrupted(infer(options, out)))?
}

async fn infer(options: &Infer, out: &mut impl Write) -> Outcome {
    let (server, targets) = (&options.server, &options.targets);
    let model = server.model()?;
    let client = server.client()?.build()?;
    let metadata = server.connection.metadata(&*client, model).await?;
    let wanted = match server.outputs.is_empty() {
        true => outputs::named(targets),
        false => server.outputs.clone(),
    };
    check_outputs(&metadata, &wanted)?;
    outputs::check(targets, &metadata, &wanted)?;
    let request = server.request(inputs::read(server, &metadata)?, &wanted)?;
    if options.stream {
        return print_all(&*client, request, options.json, out).await;
    }
    let start = Instant::now();
    let response = client.infer(&request).await?;
    let elapsed_ms = start.elapsed().as_secs_f64() * 1e3;
    match (targets.is_empty(), options.json) {
        (true, true) => outputs::print_json(&response, out),
        (true, false) => outputs::print(&response, out),
        (false, is_json) => {
            outputs::write(targets, &response)?;
            let files = || {
                targets
                    .iter()
                    .map(|target| report::WrittenFile::at(target.path()))
            };
            if is_json {
                let files = files().collect();
                report::print(&InferReport { files, elapsed_ms }, out)?;
            }
            Ok(())
        }
    }
}

/// Prints any number of responses as they arrive.
async fn print_all(
    client: &dyn InferenceClient,
    request: InferRequest,
    is_json: bool,
    out: &mut impl Write,
) -> Outcome {
    let mut answers = client.infer_stream(Box::pin(One(Some(request)))).await?;
    while let Some(answer) = poll_fn(|cx| answers.as_mut().poll_next(cx)).await {
        let answer = answer?;
        match is_json {
            true => outputs::print_json(&answer, out)?,
            false => outputs::print(&answer, out)?,
        }
        out.flush()?;
    }
    Ok(())
}

/// A stream with one request.
struct One(Option<InferRequest>);

impl Stream for One {
    type Item = InferRequest;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<InferRequest>> {
        Poll::Ready(self.0.take())
    }
}
