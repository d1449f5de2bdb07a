//! Tests models that the embedding program provides, next to those of a repository.

use futures_executor::block_on;
use oip_engine::{Engine, EngineConfig, ModelControl, Repository};
use oip_model::{Call, Model, Outcome};
use oip_service::InferenceService;
use oip_types::{
    DataType, ErrorCode, LoadOptions, ModelMetadata, ModelRef, ServiceError, TensorMetadata, UnloadOptions,
};

struct Echo(ModelMetadata);

impl Model for Echo {
    fn metadata(&self) -> &ModelMetadata {
        &self.0
    }

    fn run(&self, mut call: Call<'_>) -> Result<Outcome, ServiceError> {
        Ok(Outcome::output("y", call.request.take_input("x")?))
    }
}

#[test]
fn nobody_else_replaces_or_unloads_them() {
    let folder = tempfile::tempdir().unwrap();
    let tensor = |name| vec![TensorMetadata::new(name, DataType::FP32, &[-1])];
    let engine = Engine::builder()
        .model(Echo(ModelMetadata::new("echo", "test", tensor("x"), tensor("y"))))
        .repository(Repository::open(folder.path(), &[], None).unwrap())
        .config(EngineConfig::default().with(|config| {
            config.control = ModelControl::Explicit { load: vec![] };
        }))
        .build()
        .unwrap();
    engine.wait_until_loaded();
    let echo = ModelRef::new("echo", None).unwrap();
    // A directory with the same name as an embedded model.
    std::fs::create_dir_all(folder.path().join("echo/1")).unwrap();
    let repository = engine.repository().unwrap();
    let refused = [
        block_on(repository.load(echo, LoadOptions::default())).unwrap_err(),
        block_on(repository.unload(echo, UnloadOptions::default())).unwrap_err(),
    ];
    for error in refused {
        assert_eq!(error.code(), ErrorCode::InvalidArgument);
        assert!(
            error.message().contains("built into the server's program"),
            "{error}"
        );
    }
    assert!(engine.model_ready(echo).is_ok());
}
