//! `tensor replay`: sends recorded requests again and compares the responses with the recorded ones.

use std::{
    fs,
    io::{self, Write},
    path::Path,
};

use fmt_core::{Error, ErrorKind};
use fmt_safetensors::SafetensorsReader;
use oip_capture::{CaptureError, Entry, Recording, answer_file};
use oip_client::InferenceClient;
use oip_types::{InferRequest, ModelRef};
use serde::Serialize;
use tensor_core::QuotedName;
use tensor_files::{Difference, DifferenceKind, Tolerance};

use crate::{
    client::{options::Replay, unless_interrupted},
    failure::{About, Failure, Outcome},
    report,
};

/// The report of `tensor replay --json`.
#[derive(Default, Serialize)]
struct Report {
    requests: usize,
    same: usize,
    different: usize,
    failed: usize,
    differences: Vec<ReplayDifference>,
}

#[derive(Serialize)]
struct ReplayDifference {
    name: String,
    model: String,
    message: String,
}

impl Report {
    fn write_summary(&self, out: &mut impl Write) -> io::Result<()> {
        let Self {
            requests,
            same,
            different,
            failed,
            ..
        } = self;
        writeln!(
            out,
            "{requests} requests: {same} answered as recorded, {different} differently, {failed} failed"
        )
    }
}

pub(crate) fn run(options: &Replay, out: &mut impl Write) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(unless_interrupted(replay(options, out)))?
}

async fn replay(options: &Replay, out: &mut impl Write) -> Outcome {
    let recording = Recording::open(&options.folder).map_err(|error| unreadable(&error))?;
    let entries = wanted(options, &recording).about(&options.folder)?;
    if let Some(folder) = &options.into {
        fs::create_dir_all(folder).map_err(|error| at(folder, error))?;
    }
    let client = options.connection.client()?.build()?;
    let mut told = Report::default();
    for entry in entries {
        told.requests += 1;
        let request = addressed(
            options,
            recording.request(entry).map_err(|error| unreadable(&error))?,
        )?;
        let messages = match send(options, &*client, &recording, entry, &request).await? {
            Ok(messages) => {
                match messages.is_empty() {
                    true => told.same += 1,
                    false => told.different += 1,
                }
                messages
            }
            Err(message) => {
                told.failed += 1;
                vec![message]
            }
        };
        for message in messages {
            if !options.json {
                writeln!(out, "{} {}: {message}", entry.name(), request.model())?;
            }
            told.differences.push(ReplayDifference {
                name: entry.name().to_owned(),
                model: request.model().to_string(),
                message,
            });
        }
    }
    let is_same = told.same == told.requests;
    match options.json {
        true => report::print(&told, out)?,
        false => told.write_summary(out)?,
    }
    if is_same { Ok(()) } else { Err(Failure::Found) }
}

/// Returns the recorded requests that `options` select.
fn wanted<'r>(options: &Replay, recording: &'r Recording) -> Result<Vec<&'r Entry>, Error> {
    let is_wanted = |entry: &&Entry| options.only.as_deref().is_none_or(|only| only == entry.model());
    let entries: Vec<&Entry> = recording.entries().iter().filter(is_wanted).collect();
    if entries.is_empty() {
        let what = match &options.only {
            Some(model) => format!("no recorded request is for the model '{model}'"),
            None => "no request was recorded".to_owned(),
        };
        return Err(Error::new(ErrorKind::Unsupported, what));
    }
    Ok(entries)
}

/// Addresses a recorded request to the chosen model.
fn addressed(options: &Replay, recorded: InferRequest) -> Outcome<InferRequest> {
    if options.model.is_none() && options.version.is_none() {
        return Ok(recorded);
    }
    let (name, version) = {
        let model = recorded.model();
        let name = options.model.clone().unwrap_or_else(|| model.name().to_owned());
        // The recorded version is meaningless for another model.
        let kept = model
            .version()
            .filter(|_| options.model.is_none())
            .map(str::to_owned);
        (name, options.version.clone().or(kept))
    };
    let model =
        ModelRef::new(&name, version.as_deref()).map_err(|error| Failure::call("Usage", error.message()))?;
    let mut request = InferRequest::new(model);
    (request.id, request.parameters) = (recorded.id, recorded.parameters);
    (request.inputs, request.outputs) = (recorded.inputs, recorded.outputs);
    Ok(request)
}

/// Sends a request and returns the differences in the response, or the error.
async fn send(
    options: &Replay,
    client: &dyn InferenceClient,
    recording: &Recording,
    entry: &Entry,
    request: &InferRequest,
) -> Outcome<Result<Vec<String>, String>> {
    let response = match client.infer(request).await {
        Ok(response) => response,
        Err(error) => return Ok(Err(error.to_string())),
    };
    let path = recording.answer_path(entry);
    let recorded = SafetensorsReader::from_path(&path).about(&path)?;
    let answer = answer_file(&response).about(Path::new(&options.connection.url))?;
    if let (Some(folder), Some(name)) = (&options.into, path.file_name()) {
        let target = folder.join(name);
        fs::write(&target, &answer).map_err(|error| at(&target, error))?;
    }
    let answer = SafetensorsReader::from_bytes(answer).about(Path::new(&options.connection.url))?;
    let tolerance = Tolerance {
        absolute: options.atol,
        relative: options.rtol,
    };
    // The tolerance is relative to the recorded element.
    let differences = tensor_files::diff(&answer, &recorded, tolerance);
    let real = differences
        .iter()
        .filter(|difference| difference.kind != DifferenceKind::Metadata);
    // Replaces the wording of `tensor diff`, which names a first and a second file: here, a response is
    // compared with a recording.
    let text = |difference: &Difference| match difference.kind {
        DifferenceKind::OnlyInFirst => format!("output {} was not recorded", QuotedName(&difference.name)),
        DifferenceKind::OnlyInSecond => format!("output {} is missing", QuotedName(&difference.name)),
        _ => difference.to_string(),
    };
    Ok(Ok(real.map(text).collect()))
}

fn at(path: &Path, error: std::io::Error) -> Failure {
    Failure::File {
        path: path.display().to_string(),
        error: Error::io("writing it", error),
    }
}

fn unreadable(error: &CaptureError) -> Failure {
    let message = error.to_string();
    Failure::call("Recording", message)
}
