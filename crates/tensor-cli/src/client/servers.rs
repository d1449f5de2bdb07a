//! Commands about a server and its models: `ls`, `show`, `status`, `load`, `unload`.

use std::io::Write;

use oip_types::{
    Joining, LoadOptions, ModelConfig, ModelIndexEntry, ModelMetadata, ModelRef, ModelState, ModelStatistics,
    Placement, TensorMetadata, UnloadOptions,
};
use serde_json::json;

use crate::{
    client::{
        options::{List, Load, Show, StatusOptions, Unload},
        unless_interrupted, with_suggestion,
    },
    failure::{Failure, Outcome},
    report,
    table::{self, TerminalStyle},
};

/// Runs a client call until it ends or the user interrupts.
fn block_on<T>(work: impl Future<Output = Outcome<T>>) -> Outcome<T> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(unless_interrupted(work))?
}

/// `tensor ls`: lists the models of a server's repository.
pub(crate) fn list(options: &List, out: &mut impl Write) -> Outcome {
    let client = options.connection.client()?.build()?;
    let mut models = block_on(async { Ok(client.repository_index(options.ready).await?) })?;
    models.sort_by(|one, other| (&one.name, &one.version).cmp(&(&other.name, &other.version)));
    if options.json {
        for model in &models {
            report::print(
                &json!({
                    "name": model.name,
                    "version": model.version,
                    "state": model.state.map(ModelState::name),
                    "reason": model.reason,
                }),
                out,
            )?;
        }
        return Ok(());
    }
    let header = ["NAME", "VERSION", "STATE", "REASON"].map(str::to_owned);
    let rows = models.iter().map(|model| {
        [
            table::text(&model.name),
            model.version.as_deref().map_or("-".to_owned(), table::text),
            state(model),
            table::text(&model.reason),
        ]
    });
    let rows: Vec<_> = std::iter::once(header).chain(rows).collect();
    table::print(out, &rows, &[])?;
    if models.is_empty() {
        writeln!(out, "{} has no models", options.connection.url)?;
    }
    Ok(())
}

/// Returns the state's name; `-` for a model that was never loaded.
fn state(model: &ModelIndexEntry) -> String {
    let state = model.state.map_or("not loaded", ModelState::name);
    TerminalStyle::of_stdout().state(state)
}

/// Prints what a server reports about a model, except its inputs and outputs.
fn print_model(metadata: &ModelMetadata, config: Option<&ModelConfig>, out: &mut impl Write) -> Outcome {
    let title = |name: &str| format!("{name:<10}");
    writeln!(out, "{}{}", title("model"), table::text(&metadata.name))?;
    if !metadata.versions.is_empty() {
        writeln!(
            out,
            "{}{}",
            title("versions"),
            table::text(&metadata.versions.join(", "))
        )?;
    }
    writeln!(out, "{}{}", title("platform"), table::text(&metadata.platform))?;
    if let Some(config) = config {
        for (what, value) in [("backend", &config.backend), ("runtime", &config.runtime)] {
            if !value.is_empty() {
                writeln!(out, "{}{}", title(what), table::text(value))?;
            }
        }
        let batches = match config.max_batch_size {
            0 => "are not made".to_owned(),
            rows => format!("of up to {rows} rows"),
        };
        writeln!(out, "{}{batches}", title("batches"))?;
        // Only this project's server reports whether it batches requests.
        if let Some(batched) = Joining::shown_in(config) {
            writeln!(out, "{}{}", title("batched"), table::text(batched))?;
        }
        if let Some(providers) = Placement::shown_in(config) {
            writeln!(out, "{}{}", title("runs on"), table::text(providers))?;
        }
    }
    Ok(())
}

/// `tensor show`: shows a model's inputs and outputs.
pub(crate) fn show(options: &Show, out: &mut impl Write) -> Outcome {
    let server = &options.connection;
    let client = server.client()?.build()?;
    let model = ModelRef::new(&options.model, options.version.as_deref())
        .map_err(|error| Failure::call("Usage", error.message()))?;
    let (metadata, config) = block_on(async {
        let metadata = server.metadata(&*client, model).await?;
        // The configuration is an extension; servers without it return an error.
        let config = client.model_config(model).await.ok();
        Ok((metadata, config))
    })?;
    if options.json {
        return Ok(report::print(
            &json!({"metadata": metadata, "config": config}),
            out,
        )?);
    }
    print_model(&metadata, config.as_ref(), out)?;
    writeln!(out)?;
    let header = ["", "NAME", "DATATYPE", "SHAPE"].map(str::to_owned);
    let row = |kind: &str, tensor: &TensorMetadata| {
        [
            kind.to_owned(),
            table::text(&tensor.name),
            tensor.datatype.to_string(),
            tensor.shape.to_string(),
        ]
    };
    let inputs = metadata.inputs.iter().map(|input| row("input", input));
    let outputs = metadata.outputs.iter().map(|output| row("output", output));
    let rows: Vec<_> = std::iter::once(header).chain(inputs).chain(outputs).collect();
    Ok(table::print(out, &rows, &[])?)
}

/// `tensor status`: shows health and statistics of a server. Fails if it is not ready.
pub(crate) fn status(options: &StatusOptions, out: &mut impl Write) -> Outcome {
    let client = options.connection.client()?.build()?;
    let (metadata, is_ready, statistics) = block_on(async {
        let metadata = client.server_metadata().await?;
        let is_ready = client.server_ready().await?;
        // Servers without the statistics extension return an error.
        let statistics = client.statistics(None).await.unwrap_or_default();
        Ok((metadata, is_ready, statistics))
    })?;
    if options.json {
        let models: Vec<_> = statistics.iter().map(model_json).collect();
        let status = json!({
            "url": options.connection.url,
            "name": metadata.name,
            "version": metadata.version,
            "extensions": metadata.extensions,
            "ready": is_ready,
            "models": models,
        });
        report::print(&status, out)?;
    } else {
        let ready = if is_ready { "ready" } else { "not ready" };
        let (name, version) = (table::text(&metadata.name), table::text(&metadata.version));
        writeln!(out, "{}: {name} {version}, {ready}", options.connection.url)?;
        let asked = statistics
            .iter()
            .filter(|model| answered(model) + failed(model) > 0);
        let rows = asked.map(|model| {
            [
                table::text(&model.name),
                table::text(&model.version),
                answered(model).to_string(),
                failed(model).to_string(),
                mean_micros(model).map_or("-".to_owned(), |micros| format!("{micros:.0} us")),
                mean_batch(model).map_or("-".to_owned(), |rows| format!("{rows:.1}")),
            ]
        });
        let header = [
            "MODEL",
            "VERSION",
            "ANSWERED",
            "FAILED",
            "MEAN TIME",
            "MEAN BATCH",
        ]
        .map(str::to_owned);
        let rows: Vec<_> = std::iter::once(header).chain(rows).collect();
        if rows.len() > 1 {
            writeln!(out)?;
            table::print(out, &rows, &[2, 3, 4, 5])?;
        }
    }
    match is_ready {
        true => Ok(()),
        false => Err(Failure::Found),
    }
}

fn model_json(model: &ModelStatistics) -> serde_json::Value {
    json!({
        "name": model.name,
        "version": model.version,
        "answered": answered(model),
        "failed": failed(model),
        "mean_us": mean_micros(model),
        "mean_batch": mean_batch(model),
    })
}

fn answered(model: &ModelStatistics) -> u64 {
    model.inference_stats.success.count
}

fn failed(model: &ModelStatistics) -> u64 {
    model.inference_stats.fail.count
}

fn mean_micros(model: &ModelStatistics) -> Option<f64> {
    let success = &model.inference_stats.success;
    (success.count > 0).then(|| success.ns as f64 / success.count as f64 / 1e3)
}

fn mean_batch(model: &ModelStatistics) -> Option<f64> {
    let has_answers = model.execution_count > 0 && model.inference_count > 0;
    has_answers.then(|| model.inference_count as f64 / model.execution_count as f64)
}

/// `tensor load`: loads models.
pub(crate) fn load(options: &Load, out: &mut impl Write) -> Outcome {
    let client = options.connection.client()?.build()?;
    let load = LoadOptions::default().with(|load| load.config.clone_from(&options.config));
    for model in &options.models {
        block_on(async {
            match client.load_model(model, &load).await {
                Ok(()) => Ok(()),
                Err(error) => Err(with_suggestion(error.into(), &*client, model).await),
            }
        })?;
        done(options.json, model, "loaded", out)?;
    }
    Ok(())
}

/// `tensor unload`: unloads models.
pub(crate) fn unload(options: &Unload, out: &mut impl Write) -> Outcome {
    let client = options.connection.client()?.build()?;
    for model in &options.models {
        let unload = UnloadOptions::default().with(|unload| unload.unload_dependents = options.dependents);
        block_on(async {
            match client.unload_model(model, unload).await {
                Ok(()) => Ok(()),
                Err(error) => Err(with_suggestion(error.into(), &*client, model).await),
            }
        })?;
        done(options.json, model, "unloaded", out)?;
    }
    Ok(())
}

fn done(as_json: bool, model: &str, what: &str, out: &mut impl Write) -> Outcome {
    match as_json {
        true => report::print(&json!({"model": model, "state": what}), out)?,
        false => writeln!(out, "{what} {}", table::text(model))?,
    }
    Ok(())
}
