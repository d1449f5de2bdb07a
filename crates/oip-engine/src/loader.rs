use std::{
    fs, io,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

use bytes::Bytes;
use oip_service::{LoadContext, Model, ModelSource};

use crate::{
    EngineConfig,
    instances::{Instances, STACK_SIZE, panic_message, thread_name},
    registry::Registry,
    repository::{FoundFile, FoundModel},
};

/// Loads models into the registry, several at a time, each on a thread of its own.
///
/// A backend may panic or never come back: the first is caught, the second is waited for until the time for loading
/// is over. Either way it is that model's reason for being unavailable and nobody else's business.
pub(crate) fn load_all(models: Vec<FoundModel>, registry: &Arc<Registry>, config: &EngineConfig) {
    let mut waiting = models.into_iter();
    let mut running: Vec<Running> = Vec::new();
    let (finished, results) = mpsc::channel();
    loop {
        while running.len() < config.parallel_loads.max(1)
            && let Some(model) = waiting.next()
        {
            match start(model, config, finished.clone()) {
                Ok(started) => running.push(started),
                Err((model, reason)) => note(registry, &model, Err(reason), Duration::ZERO, config),
            }
        }
        let Some(next_deadline) = running.iter().map(|load| load.deadline).min() else {
            return;
        };
        // The sender lives in this function, so the channel cannot be closed: no result means that time is over.
        let patience = next_deadline.saturating_duration_since(Instant::now());
        if let Ok((identity, result)) = results.recv_timeout(patience) {
            if let Some(index) = running.iter().position(|load| load.identity == identity) {
                let load = running.swap_remove(index);
                note(registry, &load.identity, result, load.started.elapsed(), config);
            }
            continue;
        }
        let now = Instant::now();
        while let Some(index) = running.iter().position(|load| load.deadline <= now) {
            let load = running.swap_remove(index);
            let reason = format!("loading it took longer than {} s", config.load_timeout.as_secs());
            note(
                registry,
                &load.identity,
                Err(reason),
                load.started.elapsed(),
                config,
            );
        }
    }
}

/// A model that is being loaded.
struct Running {
    identity: Identity,
    started: Instant,
    deadline: Instant,
}

/// Name and version.
type Identity = (String, Option<String>);

type Loaded = Result<Box<dyn Model>, String>;

/// Starts loading on a thread; fails at once when there is nothing to load.
fn start(
    model: FoundModel,
    config: &EngineConfig,
    finished: mpsc::Sender<(Identity, Loaded)>,
) -> Result<Running, (Identity, String)> {
    let identity = (model.name, model.version);
    let file = match model.source {
        Ok(file) => file,
        Err(reason) => return Err((identity, reason)),
    };
    let started = Instant::now();
    let deadline = started + config.load_timeout;
    let builder = thread::Builder::new()
        .name(thread_name("load", &identity.0, 0))
        .stack_size(STACK_SIZE);
    let spawned = builder.spawn({
        let identity = identity.clone();
        move || {
            let loaded = load(
                &identity,
                &file,
                &LoadContext {
                    deadline: Some(deadline),
                },
            );
            // When nobody listens any more, time was over.
            let _ = finished.send((identity, loaded));
        }
    });
    match spawned {
        Ok(_) => Ok(Running {
            identity,
            started,
            deadline,
        }),
        Err(error) => Err((
            identity,
            format!("the system gave no thread to load it: {}", error.kind()),
        )),
    }
}

fn load((name, version): &Identity, file: &FoundFile, cx: &LoadContext) -> Loaded {
    let content = read(&file.path).map_err(|error| {
        let name = file.path.file_name().unwrap_or_default().display();
        format!("{name} cannot be read: {}", error.kind())
    })?;
    let source = ModelSource {
        name: name.clone(),
        version: version.clone().unwrap_or_default(),
        path: file.path.clone(),
        content,
    };
    let loading = catch_unwind(AssertUnwindSafe(|| file.backend.load(&source, cx)));
    match loading {
        Ok(Ok(model)) => Ok(model),
        Ok(Err(error)) => {
            tracing::debug!(model = name, error = error.report(), "a backend refused a model");
            Err(error.message().to_owned())
        }
        Err(panic) => {
            let cause = panic_message(&*panic);
            tracing::error!(model = name, cause, "a backend panicked while loading a model");
            Err(format!(
                "the backend '{}' panicked while loading it",
                file.backend.name()
            ))
        }
    }
}

/// Reads a file that was a regular one when it was found; should it have become a pipe or a link since, this fails
/// rather than hangs or follows.
fn read(path: &Path) -> io::Result<Bytes> {
    let mut options = fs::OpenOptions::new();
    options.read(true);
    #[cfg(target_os = "linux")]
    {
        use std::os::unix::fs::OpenOptionsExt;
        const O_NONBLOCK: i32 = 0o4000;
        const O_NOFOLLOW: i32 = 0o400_000;
        options.custom_flags(O_NONBLOCK | O_NOFOLLOW);
    }
    let mut file = options.open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    let mut content = Vec::new();
    content.try_reserve_exact(usize::try_from(metadata.len()).unwrap_or(usize::MAX))?;
    io::Read::read_to_end(&mut file, &mut content)?;
    Ok(content.into())
}

/// Puts what came of it into the registry and the log.
fn note(
    registry: &Registry,
    (name, version): &Identity,
    loaded: Loaded,
    took: Duration,
    config: &EngineConfig,
) {
    let result = loaded.and_then(|model| {
        let mut metadata = model.metadata().clone();
        metadata.name.clone_from(name);
        metadata.versions = version.iter().cloned().collect();
        Instances::start(
            model,
            metadata,
            version.clone(),
            config.instances,
            config.queue_capacity,
        )
        .map(Arc::new)
        .map_err(|error| format!("the system gave no threads to run it: {}", error.kind()))
    });
    let version = version.as_deref();
    match &result {
        Ok(_) => tracing::info!(
            model = name,
            version,
            milliseconds = took.as_millis() as u64,
            "loaded a model"
        ),
        Err(reason) => tracing::warn!(model = name, version, reason, "a model is unavailable"),
    }
    registry.finish_loading(name, version, result, took);
}
