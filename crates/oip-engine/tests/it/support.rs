//! A test backend. The word in a model file selects the model's behaviour.

use std::{
    fs,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use bytes::Bytes;
use oip_engine::{Engine, EngineConfig, Repository};
use oip_model::{Backend, Call, LoadContext, Model, ModelCall, ModelSource, Outcome, Outputs, Responses};
use oip_service::{InferenceService, RequestContext};
use oip_types::{
    DataType, InferRequest, InferResponse, ModelMetadata, ModelRef, ServiceError, TensorMetadata,
};
use tempfile::TempDir;
use tensor_core::{Shape, Tensor};

/// Loads `model.word` files.
#[derive(Default)]
pub(crate) struct WordBackend {
    pub(crate) runs: Arc<AtomicUsize>,
    /// The number of models in memory.
    pub(crate) living: Arc<AtomicUsize>,
}

impl Backend for WordBackend {
    fn name(&self) -> &'static str {
        "word"
    }

    fn other_names(&self) -> &'static [&'static str] {
        &["words_wordv1"]
    }

    fn file_names(&self) -> &[&str] {
        &["model.word", "model.text"]
    }

    fn files_beside(&self, content: &Bytes) -> Result<Vec<String>, ServiceError> {
        match &content[..] {
            b"cut off" => Err(ServiceError::invalid("the file is truncated")),
            _ => Ok(vec![]),
        }
    }

    fn load(&self, source: &ModelSource, cx: &LoadContext) -> Result<Box<dyn Model>, ServiceError> {
        let word = String::from_utf8(source.content.to_vec()).unwrap();
        match word.trim() {
            "broken" => return Err(ServiceError::invalid("it is broken")),
            "panics while loading" => panic!("loading at src/secret.rs"),
            "never loads" => thread::sleep(Duration::from_secs(3600)),
            word if word.starts_with("loads slowly") => thread::sleep(Duration::from_millis(500)),
            _ => {}
        }
        let tensor = TensorMetadata::new("x", DataType::INT32, &[-1]);
        let metadata = ModelMetadata::new(
            "",
            "test_word",
            vec![tensor],
            vec![TensorMetadata::new("y", DataType::INT32, &[-1])],
        );
        self.living.fetch_add(1, Ordering::SeqCst);
        Ok(Box::new(WordModel {
            word: word.trim().to_owned(),
            metadata,
            settings: format!(
                "runtime {}, dims {:?}, loudness {}",
                cx.config.runtime,
                cx.input_dims.get("x"),
                cx.config
                    .parameters
                    .get("loudness")
                    .map_or("", |parameter| &parameter.string_value)
            ),
            runs: self.runs.clone(),
            living: self.living.clone(),
        }))
    }
}

struct WordModel {
    word: String,
    metadata: ModelMetadata,
    /// The backend settings of the configuration.
    settings: String,
    runs: Arc<AtomicUsize>,
    living: Arc<AtomicUsize>,
}

impl Drop for WordModel {
    fn drop(&mut self) {
        self.living.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Model for WordModel {
    fn metadata(&self) -> &ModelMetadata {
        &self.metadata
    }

    fn run(&self, call: Call<'_>) -> Result<Outcome, ServiceError> {
        let (mut request, cancel, others) = (call.request, call.cancel, call.others);
        self.runs.fetch_add(1, Ordering::SeqCst);
        let x = request.take_input("x")?;
        if let Some(asked) = self.word.strip_prefix("asks ") {
            let request = InferRequest::new(ModelRef::new(asked.trim(), None)?).with_input("x", x);
            return match futures_executor::block_on(others.ask(ModelCall::new(request)))? {
                Responses::One(response) => Ok(response.outputs.into()),
                Responses::Several(_) => Err(ServiceError::internal("several responses")),
            };
        }
        let first = x.as_fixed().unwrap().to_vec::<i32>().unwrap()[0];
        match self.word.as_str() {
            "panics on 13" if first == 13 => panic!("13 at src/secret.rs"),
            "fails on 13" if first == 13 => return Err(ServiceError::invalid("13 is out of range")),
            "tells its settings" => return Err(ServiceError::invalid(self.settings.clone())),
            "gives another type" => return Ok(Outcome::output("y", Tensor::scalar(1u8))),
            "gives nothing" => return Ok(Outputs::new(vec![]).into()),
            "sleeps" => thread::sleep(Duration::from_millis(first as u64)),
            "waits to be cancelled" => {
                while !cancel.is_cancelled() {
                    thread::sleep(Duration::from_millis(1));
                }
            }
            word => {
                if let Some(number) = word.strip_prefix("adds ") {
                    let sum = vec![first + number.trim().parse::<i32>().unwrap()];
                    return Ok(Outcome::output("y", Tensor::from_vec(Shape::vector(1), sum)?));
                }
            }
        }
        Ok(Outcome::output("y", x))
    }
}

/// Creates a repository with files at the given relative paths.
pub(crate) fn repository(files: &[(&str, &str)]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (path, content) in files {
        write(folder.path(), path, content);
    }
    folder
}

pub(crate) fn write(root: &Path, path: &str, content: &str) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
}

/// Creates an engine and waits until it has loaded a repository. Also returns the run count of its models.
pub(crate) fn engine(root: &Path, config: EngineConfig) -> (Engine, Arc<AtomicUsize>) {
    let backend = WordBackend::default();
    let runs = backend.runs.clone();
    let engine = Engine::start(
        Repository::open(root, &[Arc::new(backend)], None).unwrap(),
        config,
    );
    engine.wait_until_loaded();
    (engine, runs)
}

/// Creates an engine with one thread per model and a short queue.
pub(crate) fn small_engine(files: &[(&str, &str)]) -> (Engine, Arc<AtomicUsize>, TempDir) {
    let folder = repository(files);
    let config = EngineConfig::default().with(|config| {
        config.instances = 1;
        config.queue_capacity = 2;
    });
    let (engine, runs) = engine(folder.path(), config);
    (engine, runs, folder)
}

pub(crate) fn request(model: &str, version: Option<&str>, x: i32) -> InferRequest {
    let x = Tensor::from_vec(Shape::vector(1), vec![x]).unwrap();
    InferRequest::new(ModelRef::new(model, version).unwrap()).with_input("x", x)
}

/// Runs a request and blocks until its response arrives.
pub(crate) fn infer(engine: &Engine, request: InferRequest) -> Result<InferResponse, ServiceError> {
    infer_within(engine, request, Duration::from_secs(60))
}

pub(crate) fn infer_within(
    engine: &Engine,
    request: InferRequest,
    timeout: Duration,
) -> Result<InferResponse, ServiceError> {
    futures_executor::block_on(engine.infer(request, RequestContext::new(Some(Instant::now() + timeout))))
}

/// Returns the only element of output `y`.
pub(crate) fn y(response: &InferResponse) -> i32 {
    response
        .output("y")
        .unwrap()
        .as_fixed()
        .unwrap()
        .to_vec::<i32>()
        .unwrap()[0]
}
