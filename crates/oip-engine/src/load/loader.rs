//! Loads a version of a model: reads its file, calls the backend and checks the loaded model.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

use model_config::{Axes, CompletedConfig, WrittenConfig, complete, complete_pipeline};
use model_repository::{FileError, ModelDirectory, ModelFile, VersionContent};
use oip_model::{
    Call, CancelToken, Capabilities, ConfiguredTensors, LoadContext, Model, ModelSource, Outcome,
    ResponseSink,
};
use oip_types::{
    InferOutput, InferRequest, ModelMetadata, ServiceError, TensorValue, check_name,
    model_config::{InstanceGroup, InstanceKind},
};
use tensor_core::{QuotedName, Shape};
use tensor_mmap::Promise;

use crate::{
    batching::scheduler::BatchPolicy,
    config::EngineConfig,
    load::{error::LoadError, example, row_settings::RowSettings, warm_up::warm_up},
    pipeline::Pipeline,
    run::{
        instances::{InstanceSettings, Instances},
        model_calls::Others,
        runner::panic_message,
        threads::{STACK_SIZE, thread_name},
    },
    versions::{
        cache::ResponseCache,
        labels::Labels,
        served_version::{Configs, Runs, ServedVersion},
    },
};

/// A model version to load.
#[derive(Clone)]
pub(crate) struct Job {
    pub(crate) name: String,
    pub(crate) version: Option<String>,
    pub(crate) directory: ModelDirectory,
    pub(crate) written: Arc<WrittenConfig>,
}

/// Loads a version of a model. The caller plans pipelines afterwards.
///
/// # Errors
/// The reason why the model is unavailable, for the operator.
pub(crate) fn load(
    job: Job,
    content: VersionContent,
    config: &EngineConfig,
    cache: Option<&Arc<ResponseCache>>,
    others: Others,
) -> Result<ServedVersion, LoadError> {
    let version = job.version.clone();
    let directory = job.directory.clone();
    let (runs, configs, labels) = match content {
        VersionContent::File(file) => start(job, file, config, others)?,
        VersionContent::Pipeline => {
            let completed = complete_pipeline(&job.written, &job.name, version.as_deref());
            let completed = completed.map_err(LoadError::NoPipeline)?;
            let labels = Labels::read(&job.directory, job.version.as_deref(), &completed.config)?;
            let config = Arc::new(completed.config);
            let pipeline = Pipeline::new(Arc::new(completed.metadata), config.clone());
            let configs = Configs {
                usual: config,
                joining: None,
                placement: None,
                counts_rows: completed.counts_rows,
                without_batches: None,
            };
            (Runs::Pipeline(Box::new(pipeline)), configs, labels)
        }
    };
    let cache = match (configs.usual.response_cache.enable, cache) {
        (true, Some(cache)) => Some(cache.clone()),
        (true, None) => {
            tracing::warn!(
                model = configs.usual.name,
                "its configuration enables the response cache, but the server has none"
            );
            None
        }
        (false, _) => None,
    };
    let mut served = ServedVersion::new(version, runs, configs, labels, cache);
    let example = example::read(&directory, served.version(), served.metadata());
    served.bring_example(example);
    Ok(served)
}

/// Returns the name in the model's own metadata.
///
/// # Errors
/// The model panicked, or its name is not valid in requests.
pub(crate) fn name_of(model: &dyn Model) -> Result<String, LoadError> {
    guarded("embedded", "asking for its name", || {
        let name = &model.metadata().name;
        check_name("model name", name).map_err(LoadError::Name)?;
        Ok(name.clone())
    })
}

/// Creates a version of a model of the embedding program, without files or a version number. Its
/// configuration is derived from the model's metadata.
///
/// # Errors
/// The reason why the model cannot be served.
pub(crate) fn embed(
    model: Box<dyn Model>,
    config: &EngineConfig,
    others: Others,
) -> Result<ServedVersion, LoadError> {
    let prepared = guarded("embedded", "asking for its metadata", || {
        let metadata = model.metadata().clone().with_versions(&None::<String>);
        let written = WrittenConfig::default();
        let capabilities = model.capabilities();
        let settings = RowSettings::of(&capabilities, config, "set its max_batch_size");
        let mut completed = complete(
            &written,
            &metadata,
            "embedded",
            &settings.defaults(&capabilities, config),
        )
        .map_err(|error| LoadError::Mismatch(error.into()))?;
        note_runtime(&mut completed, &capabilities);
        let policy = settings.policy(&mut completed)?;
        Ok(PreparedModel {
            model,
            capabilities,
            completed,
            policy,
            labels: Labels::default(),
            warmed_up: Vec::new(),
        })
    })?;
    let (runs, configs, labels) = run(prepared, config, others)?;
    Ok(ServedVersion::new(None, runs, configs, labels, None))
}

/// Loads a model's file, warms the model up and starts its threads.
///
/// Runs on a separate thread, since a backend may panic or never return. Panics are caught. After the load
/// timeout the thread is abandoned.
///
/// # Errors
/// The reason why the model is unavailable, for the operator.
fn start(
    job: Job,
    file: ModelFile,
    config: &EngineConfig,
    others: Others,
) -> Result<(Runs, Configs, Labels), LoadError> {
    let deadline = Instant::now() + config.load_timeout;
    let defaults = config.clone();
    let mapping = config.mapping;
    if job.written.is_mapped && mapping.is_none() {
        return Err(LoadError::MappingNotAllowed);
    }
    let builder = thread::Builder::new()
        .name(thread_name("load", &job.name, 0))
        .stack_size(STACK_SIZE);
    let (sender, receiver) = mpsc::sync_channel(1);
    let on_model_thread = config.on_model_thread;
    let spawned = builder.spawn(move || {
        on_model_thread();
        // If the receiver is dropped, the load has timed out.
        let _ = sender.send(prepare(&job, &file, mapping, deadline, &defaults));
    });
    spawned.map_err(LoadError::NoThread)?;
    let patience = deadline.saturating_duration_since(Instant::now());
    let prepared = receiver.recv_timeout(patience).map_err(|error| match error {
        mpsc::RecvTimeoutError::Timeout => LoadError::Timeout {
            limit: config.load_timeout,
        },
        mpsc::RecvTimeoutError::Disconnected => LoadError::Died,
    })??;
    run(prepared, config, others)
}

/// Starts a model's threads.
fn run(
    prepared: PreparedModel,
    config: &EngineConfig,
    others: Others,
) -> Result<(Runs, Configs, Labels), LoadError> {
    let PreparedModel {
        model,
        capabilities,
        completed:
            CompletedConfig {
                config: model_config,
                metadata,
                joining,
                counts_rows,
                without_batches,
                ..
            },
        policy,
        labels,
        warmed_up,
    } = prepared;
    let placement = capabilities.placement.clone();
    let is_decoupled = model_config.model_transaction_policy.decoupled;
    let groups = model_config.instance_group.iter();
    let threads: u64 = groups.map(InstanceGroup::instances).sum();
    let settings = InstanceSettings {
        capabilities,
        threads: usize::try_from(threads).unwrap_or(usize::MAX),
        queue_capacity: config.queue_capacity,
        policy,
        hang_timeout: config.hang_timeout,
        on_thread: config.on_model_thread,
        in_place: config.in_place.clone(),
        warmed_up,
        is_decoupled,
        others,
    };
    let instances = Instances::new(model, metadata, settings);
    let configs = Configs {
        usual: Arc::new(model_config),
        joining: Some(joining),
        placement,
        counts_rows,
        without_batches: without_batches.map(Arc::new),
    };
    Ok((Runs::Instances(instances), configs, labels))
}

/// A loaded model, ready to run.
struct PreparedModel {
    model: Box<dyn Model>,
    capabilities: Capabilities,
    completed: CompletedConfig,
    policy: BatchPolicy,
    labels: Labels,
    /// Rows and duration of each warm-up run.
    warmed_up: Vec<(u64, Duration)>,
}

/// Opens the model's files, loads the model with its backend, and runs the warm-up requests.
fn prepare(
    job: &Job,
    file: &ModelFile,
    mapping: Option<Promise>,
    deadline: Instant,
    config: &EngineConfig,
) -> Result<PreparedModel, LoadError> {
    let backend = &file.backend;
    let source = open_files(job, file, mapping.filter(|_| job.written.is_mapped))?;
    let (model, capabilities) = load_with_backend(job, file, &source, deadline)?;
    drop(source);

    let mut metadata = model.metadata().clone().with_versions(&job.version);
    metadata.name.clone_from(&job.name);
    let settings = RowSettings::of(&capabilities, config, "write max_batch_size: 8");
    let mut completed = complete(
        &job.written,
        &metadata,
        backend.name(),
        &settings.defaults(&capabilities, config),
    )
    .map_err(|error| LoadError::Mismatch(error.into()))?;
    note_runtime(&mut completed, &capabilities);
    if capabilities.placement.is_none() {
        warn_of_gpus(job, backend.name());
    }
    let policy = settings.policy(&mut completed)?;
    let labels = Labels::read(&job.directory, job.version.as_deref(), &completed.config)?;
    let model = match completed.is_narrowed {
        true => Box::new(ModelView::new(model, &completed)),
        false => model,
    };
    let warmed_up = guarded(&job.name, "warming it up", || {
        let cancel = CancelToken::new(Some(deadline));
        warm_up(
            &*model,
            &completed.metadata,
            &completed.config,
            &job.directory,
            &cancel,
        )
    })?;
    Ok(PreparedModel {
        model,
        capabilities,
        completed,
        policy,
        labels,
        warmed_up,
    })
}

/// Opens the model file and the files that its backend needs next to it.
fn open_files(job: &Job, file: &ModelFile, mapping: Option<Promise>) -> Result<ModelSource, LoadError> {
    let content = job.directory.open_model(file, mapping)?;
    let beside = guarded(&job.name, "looking for the files it needs", || {
        let files = job.directory.sibling_files(file, mapping);
        let gathered = file.backend.gather(&content, &files);
        gathered.map_err(|error| match files.into_failure() {
            Some(failure) => LoadError::File(failure),
            None => LoadError::Unreadable {
                file: FileError::name(&file.path),
                source: error,
            },
        })
    })?;
    let version = job.version.clone().unwrap_or_default();
    let source = ModelSource::new(job.name.clone(), version, file.path.clone(), content);
    Ok(source.with_beside(beside))
}

/// Calls the backend of `file` to load the model from `source`.
fn load_with_backend(
    job: &Job,
    file: &ModelFile,
    source: &ModelSource,
    deadline: Instant,
) -> Result<(Box<dyn Model>, Capabilities), LoadError> {
    let cx = LoadContext::default()
        .with_deadline(Some(deadline))
        .with_config(Arc::new(job.written.config.clone()))
        .with_input_dims(Arc::new(job.written.input_dims()))
        .with_tensors(configured_tensors(&job.written));
    guarded(&job.name, "loading it", || {
        let model = file.backend.load(source, &cx).map_err(|error| {
            tracing::debug!(
                model = job.name,
                error = error.report(),
                "a backend refused a model"
            );
            LoadError::Backend(error)
        })?;
        let capabilities = model.capabilities();
        Ok((model, capabilities))
    })
}

fn configured_tensors(written: &WrittenConfig) -> Arc<ConfiguredTensors> {
    let (inputs, outputs) = written.complete_tensors();
    Arc::new(ConfiguredTensors { inputs, outputs })
}

/// Adds the selected runtime and placement to the completed configuration, since the written configuration
/// may leave the choice to the backend.
fn note_runtime(completed: &mut CompletedConfig, capabilities: &Capabilities) {
    for config in [Some(&mut completed.config), completed.without_batches.as_mut()]
        .into_iter()
        .flatten()
    {
        if let Some(runtime) = &capabilities.runtime {
            config.runtime.clone_from(runtime);
        }
        if let Some(placement) = &capabilities.placement {
            placement.show_in(config);
        }
    }
}

/// Warns if the configuration requests a GPU for a backend that does not support device selection.
fn warn_of_gpus(job: &Job, backend: &str) {
    let mut groups = job.written.config.instance_group.iter();
    if groups.any(|group| group.kind == InstanceKind::Gpu) {
        tracing::warn!(
            model = job.name,
            backend,
            "configuration: fields without effect here: instance_group.kind KIND_GPU (only ONNX models run on GPUs)"
        );
    }
}

/// Calls code of a backend or model, and catches panics. The panic is logged; its message is not returned,
/// because it contains source locations.
fn guarded<T>(
    model: &str,
    doing: &'static str,
    run: impl FnOnce() -> Result<T, LoadError>,
) -> Result<T, LoadError> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let cause = panic_message(&*panic);
        tracing::error!(model, cause, "a panic while {doing}");
        Err(LoadError::Panicked { doing })
    })
}

/// A model whose configuration exposes fewer outputs than the model has, or different shapes.
struct ModelView {
    model: Box<dyn Model>,
    offered: Arc<ViewMetadata>,
}

impl ModelView {
    fn new(model: Box<dyn Model>, completed: &CompletedConfig) -> Self {
        Self {
            model,
            offered: Arc::new(ViewMetadata {
                metadata: completed.metadata.clone(),
                inputs: completed.reshaped_inputs.clone(),
                outputs: completed.reshaped_outputs.clone(),
            }),
        }
    }
}

/// The metadata that clients see.
struct ViewMetadata {
    metadata: ModelMetadata,
    /// Inputs whose axes of size 1 differ between the shape that clients see and the model's own shape.
    inputs: Vec<(String, Axes)>,
    outputs: Vec<(String, Axes)>,
}

/// Reshapes `value` to `dims`. `None` means that the axes do not fit, which an earlier check rules out.
fn in_shape(value: &TensorValue, dims: Option<Vec<u64>>) -> Result<TensorValue, ServiceError> {
    let dims = dims.ok_or_else(|| ServiceError::internal("a shape that was checked has other axes"))?;
    let shape = Shape::new(&dims)?;
    TensorValue::from_raw(value.datatype(), shape, value.raw().clone())
}

impl ViewMetadata {
    /// Converts a request from the clients' shapes to the model's.
    fn to_model(&self, mut request: InferRequest) -> Result<InferRequest, ServiceError> {
        for (name, axes) in &self.inputs {
            if let Some(input) = request.inputs.iter_mut().find(|input| input.name == *name) {
                input.value = in_shape(&input.value, axes.to_model(input.value.shape().dims()))?;
            }
        }
        Ok(request)
    }

    /// Converts outputs from the model's shapes to the clients'.
    fn to_client(&self, mut outputs: Vec<InferOutput>) -> Result<Vec<InferOutput>, ServiceError> {
        for (name, axes) in &self.outputs {
            if let Some(output) = outputs.iter_mut().find(|output| output.name == *name) {
                let dims = axes.to_client(output.value.shape().dims());
                let dims = dims.ok_or_else(|| {
                    ServiceError::internal(format!(
                        "output {}: expected the shape of reshape, found {}",
                        QuotedName(name),
                        output.value.shape()
                    ))
                })?;
                output.value = in_shape(&output.value, Some(dims))?;
            }
        }
        outputs.retain(|output| {
            self.metadata
                .outputs
                .iter()
                .any(|offered| offered.name == output.name)
        });
        Ok(outputs)
    }
}

/// Converts the responses of a decoupled model to the clients' shapes.
struct NarrowedSink<'s> {
    offered: &'s ViewMetadata,
    responses: &'s mut dyn ResponseSink,
}

impl ResponseSink for NarrowedSink<'_> {
    fn send(&mut self, outputs: Vec<InferOutput>) -> Result<(), ServiceError> {
        self.responses.send(self.offered.to_client(outputs)?)
    }

    fn send_last(&mut self, outputs: Vec<InferOutput>) -> Result<(), ServiceError> {
        self.responses.send_last(self.offered.to_client(outputs)?)
    }

    fn free_instance(&mut self) {
        self.responses.free_instance();
    }
}

impl Model for ModelView {
    fn metadata(&self) -> &ModelMetadata {
        &self.offered.metadata
    }

    fn run(&self, mut call: Call<'_>) -> Result<Outcome, ServiceError> {
        call.request = self.offered.to_model(call.request)?;
        let responses = call.responses.take();
        let mut narrowed = responses.map(|responses| NarrowedSink {
            offered: &self.offered,
            responses,
        });
        let narrowed = narrowed
            .as_mut()
            .map(|narrowed| narrowed as &mut dyn ResponseSink);
        let outcome = self.model.run(call.with_responses(narrowed))?;
        let offered = self.offered.clone();
        outcome.map(move |outputs| offered.to_client(outputs))
    }

    /// Returns the inner model's capabilities. They apply to the view too, because only axes of size 1
    /// differ.
    fn capabilities(&self) -> Capabilities {
        self.model.capabilities()
    }

    fn end(&self) {
        self.model.end();
    }
}
