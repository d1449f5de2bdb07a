//! Tests a repository that is updated from an upstream store.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use model_repository::Upstream;
use oip_engine::{Engine, EngineConfig, ModelControl, Repository};
use oip_service::ModelRepository;
use oip_types::{ErrorCode, LoadOptions, ModelRef, ServiceError};

use crate::{
    control::until,
    pipelines::chain,
    support::{WordBackend, infer, repository, request, write, y},
};

/// An upstream that writes the model `late` once it is requested, unless the upstream is unreachable.
struct Store {
    folder: PathBuf,
    is_unreachable: AtomicBool,
    asked: Mutex<Vec<Option<String>>>,
}

impl Upstream for Store {
    fn refresh(&self, model: Option<&str>) {
        self.asked.lock().unwrap().push(model.map(str::to_owned));
        let is_asked_for = model.is_none_or(|model| model == "late");
        // Rewriting the file would count as a change, and polling waits until files stop changing.
        let is_there = self.folder.join("late/1").exists();
        if is_asked_for && !is_there && !self.is_unreachable.load(Ordering::SeqCst) {
            write(&self.folder, "late/1/model.word", "adds 5");
        }
    }

    fn failure(&self, model: &str) -> Option<String> {
        let is_missing = model == "late" && !self.folder.join("late/1").exists();
        is_missing.then(|| "the store is on fire".to_owned())
    }
}

fn start(root: &Path, control: ModelControl) -> (Engine, Arc<Store>) {
    let store = Arc::new(Store {
        folder: root.to_owned(),
        is_unreachable: AtomicBool::new(false),
        asked: Mutex::default(),
    });
    let backend = Arc::new(WordBackend::default());
    let repository = Repository::open(root, &[backend], None)
        .unwrap()
        .with_upstream(store.clone());
    let config = EngineConfig::default().with(|config| config.control = control);
    let engine = Engine::start(repository, config);
    engine.wait_until_loaded();
    (engine, store)
}

fn load(engine: &Engine, model: &str) -> Result<(), ServiceError> {
    let model = ModelRef::new(model, None).unwrap();
    futures_executor::block_on(engine.load(model, LoadOptions::default()))
}

#[test]
fn a_load_asks_first() {
    let folder = repository(&[("m/1/model.word", "adds 1")]);
    let (engine, store) = start(
        folder.path(),
        ModelControl::Explicit {
            load: vec!["m".to_owned()],
        },
    );
    // The models that exist at start were fetched before the engine started, so starting it requests no model
    // from the store.
    assert!(store.asked.lock().unwrap().is_empty());
    store.is_unreachable.store(true, Ordering::SeqCst);
    for has_folder in [false, true] {
        if has_folder {
            std::fs::create_dir(folder.path().join("late")).unwrap();
        }
        let error = load(&engine, "late").unwrap_err();
        assert_eq!(error.code(), ErrorCode::Unavailable);
        assert_eq!(
            error.message(),
            "failed to load 'late', it could not be fetched: the store is on fire"
        );
    }
    store.is_unreachable.store(false, Ordering::SeqCst);
    load(&engine, "late").unwrap();
    assert_eq!(y(&infer(&engine, request("late", None, 1)).unwrap()), 6);
    assert_eq!(load(&engine, "absent").unwrap_err().code(), ErrorCode::NotFound);
    let asked = store.asked.lock().unwrap();
    let asked: Vec<_> = asked.iter().map(Option::as_deref).collect();
    assert_eq!(asked, [Some("late"), Some("late"), Some("late"), Some("absent")]);
}

#[test]
fn a_pipeline_is_fetched_before_its_steps_are_known() {
    let folder = repository(&[]);
    struct Pipeline(PathBuf);
    impl Upstream for Pipeline {
        fn refresh(&self, model: Option<&str>) {
            match model {
                Some("all") => write(&self.0, "all/config.pbtxt", &chain(&["step"])),
                Some("step") => write(&self.0, "step/1/model.word", "adds 7"),
                _ => {}
            }
        }

        fn failure(&self, _: &str) -> Option<String> {
            None
        }
    }
    let upstream = Arc::new(Pipeline(folder.path().to_owned()));
    let repository = Repository::open(folder.path(), &[Arc::new(WordBackend::default())], None).unwrap();
    let config =
        EngineConfig::default().with(|config| config.control = ModelControl::Explicit { load: Vec::new() });
    let engine = Engine::start(repository.with_upstream(upstream), config);
    load(&engine, "all").unwrap();
    assert_eq!(y(&infer(&engine, request("all", None, 1)).unwrap()), 8);
}

#[test]
fn a_poll_asks_first() {
    let folder = repository(&[]);
    let interval = Duration::from_millis(20);
    let (engine, _store) = start(folder.path(), ModelControl::Poll { interval });
    until("the model came and is served", || {
        infer(&engine, request("late", None, 1)).is_ok()
    });
}
