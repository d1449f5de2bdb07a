//! Tests the calls of the protocol's extensions.

use std::collections::BTreeMap;

use oip_grpc::proto::{
    CudaSharedMemoryRegisterRequest, CudaSharedMemoryStatusRequest, CudaSharedMemoryUnregisterRequest,
    LogSettingsRequest, ModelConfigRequest, ModelRepositoryParameter, ModelStatisticsRequest,
    RepositoryIndexRequest, RepositoryModelLoadRequest, RepositoryModelUnloadRequest, ServerMetadataRequest,
    StatisticDuration, SystemSharedMemoryRegisterRequest, SystemSharedMemoryStatusRequest,
    SystemSharedMemoryUnregisterRequest, TraceSettingRequest,
    log_settings_request::{self, setting_value::ParameterChoice as LogChoice},
    log_settings_response, model_config,
    model_repository_parameter::ParameterChoice,
};
use tonic::{Code, Status};

use crate::support::{client, client_with, plain_client};

fn said(status: &Status) -> (Code, &str) {
    (status.code(), status.message())
}

#[tokio::test]
async fn what_is_not_offered_is_said_and_not_advertised() {
    macro_rules! refusal {
        ($client:ident.$call:ident($request:ident)) => {
            $client.$call($request::default()).await.unwrap_err()
        };
    }
    let mut plain = plain_client();
    let mut full = client();
    for (status, extension) in [
        (
            refusal!(plain.model_config(ModelConfigRequest)),
            "model_configuration",
        ),
        (
            refusal!(plain.model_statistics(ModelStatisticsRequest)),
            "statistics",
        ),
        (
            refusal!(plain.repository_index(RepositoryIndexRequest)),
            "model_repository",
        ),
        (
            refusal!(plain.repository_model_load(RepositoryModelLoadRequest)),
            "model_repository",
        ),
        (
            refusal!(plain.repository_model_unload(RepositoryModelUnloadRequest)),
            "model_repository",
        ),
        (refusal!(plain.log_settings(LogSettingsRequest)), "logging"),
        (
            refusal!(plain.system_shared_memory_status(SystemSharedMemoryStatusRequest)),
            "system_shared_memory",
        ),
        (
            refusal!(plain.system_shared_memory_register(SystemSharedMemoryRegisterRequest)),
            "system_shared_memory",
        ),
        (
            refusal!(plain.system_shared_memory_unregister(SystemSharedMemoryUnregisterRequest)),
            "system_shared_memory",
        ),
        (
            refusal!(full.cuda_shared_memory_status(CudaSharedMemoryStatusRequest)),
            "cuda_shared_memory",
        ),
        (
            refusal!(full.cuda_shared_memory_register(CudaSharedMemoryRegisterRequest)),
            "cuda_shared_memory",
        ),
        (
            refusal!(full.cuda_shared_memory_unregister(CudaSharedMemoryUnregisterRequest)),
            "cuda_shared_memory",
        ),
        (refusal!(full.trace_setting(TraceSettingRequest)), "trace"),
    ] {
        let message = format!("the extension '{extension}' is not offered by this server");
        assert_eq!(said(&status), (Code::Unimplemented, &*message));
    }
    let metadata = plain.server_metadata(ServerMetadataRequest {}).await.unwrap();
    assert_eq!(
        metadata.get_ref().extensions,
        ["binary_tensor_data", "parameters"]
    );
}

#[tokio::test]
async fn the_index_lists_versions_and_states() {
    let mut client = client();
    let mut index = async |ready: bool| {
        let request = RepositoryIndexRequest {
            ready,
            ..Default::default()
        };
        let models = client
            .repository_index(request)
            .await
            .unwrap()
            .into_inner()
            .models;
        let entry = |model: oip_grpc::proto::repository_index_response::ModelIndex| {
            [model.name, model.version, model.state, model.reason]
        };
        models.into_iter().map(entry).collect::<Vec<_>>()
    };
    assert_eq!(
        index(false).await,
        [
            ["loading", "", "LOADING", ""],
            ["matrix", "1", "UNAVAILABLE", "unloaded"],
            ["matrix", "2", "READY", ""],
            ["never", "", "", ""],
        ]
    );
    assert_eq!(index(true).await, [["matrix", "2", "READY", ""]]);
    let request = RepositoryIndexRequest {
        repository_name: "r".into(),
        ready: false,
    };
    let status = client.repository_index(request).await.unwrap_err();
    assert_eq!(
        said(&status),
        (
            Code::Unimplemented,
            "'repository_name' specification is not supported"
        )
    );
}

fn repository_parameter(choice: ParameterChoice) -> ModelRepositoryParameter {
    ModelRepositoryParameter {
        parameter_choice: Some(choice),
    }
}

/// Returns the index entry of a model that was loaded or unloaded by request.
async fn entry(client: &mut crate::support::Client, name: &str) -> Option<(String, String)> {
    let index = client
        .repository_index(RepositoryIndexRequest::default())
        .await
        .unwrap();
    let mut models = index.into_inner().models.into_iter();
    models
        .find(|model| model.name == name)
        .map(|model| (model.state, model.reason))
}

#[tokio::test]
async fn models_are_loaded_and_unloaded() {
    let mut client = client();
    let load =
        |repository: &str, model: &str, parameters: &[(&str, ParameterChoice)]| RepositoryModelLoadRequest {
            repository_name: repository.into(),
            model_name: model.into(),
            parameters: parameters
                .iter()
                .map(|(name, choice)| ((*name).to_owned(), repository_parameter(choice.clone())))
                .collect(),
        };
    let config = ParameterChoice::StringParam("{}".into());
    client
        .repository_model_load(load("", "nan", &[("config", config)]))
        .await
        .unwrap();
    assert_eq!(
        entry(&mut client, "nan").await,
        Some(("READY".into(), "{}".into()))
    );
    // KServe's clients set the model's name in the field that is the repository's name in Triton.
    client
        .repository_model_load(load("matrix", "", &[]))
        .await
        .unwrap();
    assert!(entry(&mut client, "matrix").await.is_some());

    let unload = |dependents| RepositoryModelUnloadRequest {
        repository_name: String::new(),
        model_name: "nan".into(),
        parameters: BTreeMap::from([(
            "unload_dependents".to_owned(),
            repository_parameter(ParameterChoice::BoolParam(dependents)),
        )]),
    };
    for (dependents, reason) in [(false, "unloaded"), (true, "unloaded with dependents")] {
        client.repository_model_unload(unload(dependents)).await.unwrap();
        let expected = ("UNAVAILABLE".to_owned(), reason.to_owned());
        assert_eq!(entry(&mut client, "nan").await, Some(expected));
    }
    let kserve = RepositoryModelUnloadRequest {
        repository_name: "failing".into(),
        ..Default::default()
    };
    client.repository_model_unload(kserve).await.unwrap();
    assert!(entry(&mut client, "failing").await.is_some());

    let bytes = || ParameterChoice::BytesParam(vec![1, 2, 3].into());
    for (request, code, message) in [
        (
            load("r", "nan", &[]),
            Code::Unimplemented,
            "'repository_name' specification is not supported",
        ),
        (
            load("", "", &[]),
            Code::InvalidArgument,
            "model name '' must not be empty",
        ),
        (
            load("", "../m", &[]),
            Code::InvalidArgument,
            "model name '../m' must not contain a path separator",
        ),
        (load("", "zz", &[]), Code::NotFound, "model 'zz' does not exist"),
        (
            load("", "locked", &[]),
            Code::Unavailable,
            "loading and unloading by request is not allowed",
        ),
        (
            load("", "nan", &[("file:1/model.onnx", bytes())]),
            Code::InvalidArgument,
            "model 'nan': parameter 'file:1/model.onnx': models cannot be uploaded in requests; put the \
             file into the repository",
        ),
        (
            load("", "nan", &[("config", bytes())]),
            Code::InvalidArgument,
            "parameter 'config': expected a boolean, an integer or a string, found 3 bytes",
        ),
        (
            load("", "nan", &[("else", ParameterChoice::Int64Param(1))]),
            Code::InvalidArgument,
            "model 'nan': unexpected parameter 'else'; expected config or none",
        ),
    ] {
        let status = client.repository_model_load(request).await.unwrap_err();
        assert_eq!(said(&status), (code, message));
    }
    let mut empty = load("", "nan", &[]);
    empty
        .parameters
        .insert("config".into(), ModelRepositoryParameter::default());
    let status = client.repository_model_load(empty).await.unwrap_err();
    assert_eq!(
        said(&status),
        (Code::InvalidArgument, "parameter 'config' has no value")
    );
}

#[tokio::test]
async fn configurations() {
    let mut client = client();
    let request = |name: &str| ModelConfigRequest {
        name: name.into(),
        version: String::new(),
    };
    let config = client
        .model_config(request("matrix"))
        .await
        .unwrap()
        .into_inner()
        .config
        .unwrap();
    assert_eq!(
        (&*config.name, &*config.backend, config.max_batch_size),
        ("matrix", "test", 4)
    );
    assert_eq!(
        (&*config.input[0].name, &config.input[0].dims[..]),
        ("a", &[2][..])
    );
    assert!(matches!(
        config.scheduling_choice,
        Some(model_config::SchedulingChoice::DynamicBatching(_))
    ));
    let status = client.model_config(request("zz")).await.unwrap_err();
    assert_eq!(said(&status), (Code::NotFound, "model 'zz' does not exist"));
    let status = client.model_config(request("")).await.unwrap_err();
    assert_eq!(
        said(&status),
        (Code::InvalidArgument, "model name '' must not be empty")
    );
}

#[tokio::test]
async fn statistics_have_every_number_in_its_place() {
    let mut client = client();
    let request = |name: &str, version: &str| ModelStatisticsRequest {
        name: name.into(),
        version: version.into(),
    };
    let all = client
        .model_statistics(request("", ""))
        .await
        .unwrap()
        .into_inner()
        .model_stats;
    let versions: Vec<_> = all.iter().map(|model| (&*model.name, &*model.version)).collect();
    assert_eq!(versions, [("matrix", "1"), ("matrix", "2")]);
    let one = client
        .model_statistics(request("matrix", "1"))
        .await
        .unwrap()
        .into_inner();
    let [model] = &one.model_stats[..] else {
        panic!("{one:?}")
    };
    assert_eq!(
        (
            &*model.version,
            model.last_inference,
            model.inference_count,
            model.execution_count
        ),
        ("1", 1_700_000_000_000, 101, 102)
    );
    let duration = |number: u64| {
        Some(StatisticDuration {
            count: number,
            ns: number * 1_000_000_000,
        })
    };
    let requests = model.inference_stats.unwrap();
    let found = [
        requests.success,
        requests.fail,
        requests.queue,
        requests.compute_input,
        requests.compute_infer,
        requests.compute_output,
        requests.cache_hit,
        requests.cache_miss,
    ];
    assert_eq!(found, [1, 2, 3, 4, 5, 6, 7, 8].map(duration));
    let batch = &model.batch_stats[0];
    assert_eq!(
        (
            batch.batch_size,
            batch.compute_input,
            batch.compute_infer,
            batch.compute_output
        ),
        (9, duration(10), duration(11), duration(12))
    );
    let memory = &model.memory_usage[0];
    assert_eq!((&*memory.r#type, memory.id, memory.byte_size), ("CPU", 13, 14));
    assert!(model.response_stats.is_empty());

    let status = client.model_statistics(request("zz", "")).await.unwrap_err();
    assert_eq!(said(&status), (Code::NotFound, "model 'zz' does not exist"));
    // This request has a version without a model.
    let status = client.model_statistics(request("", "1")).await.unwrap_err();
    assert_eq!(
        said(&status),
        (Code::InvalidArgument, "model name '' must not be empty")
    );
}

#[tokio::test]
async fn log_settings_are_read_and_changed() {
    use log_settings_response::setting_value::ParameterChoice as Found;
    let mut client = client();
    let request = |settings: &[(&str, Option<LogChoice>)]| LogSettingsRequest {
        settings: settings
            .iter()
            .map(|(name, choice)| {
                let parameter_choice = choice.clone();
                let value = log_settings_request::SettingValue { parameter_choice };
                ((*name).to_owned(), value)
            })
            .collect(),
    };
    let found = |response: tonic::Response<oip_grpc::proto::LogSettingsResponse>| {
        let settings = response.into_inner().settings.into_iter();
        settings
            .map(|(name, value)| (name, value.parameter_choice.unwrap()))
            .collect::<Vec<_>>()
    };
    let settings = |info, level, format: &str| {
        vec![
            ("log_error".to_owned(), Found::BoolParam(true)),
            ("log_format".to_owned(), Found::StringParam(format.into())),
            ("log_info".to_owned(), Found::BoolParam(info)),
            ("log_verbose_level".to_owned(), Found::Uint32Param(level)),
            ("log_warning".to_owned(), Found::BoolParam(true)),
        ]
    };
    let read = client.log_settings(request(&[])).await.unwrap();
    assert_eq!(found(read), settings(true, 0, "default"));
    let changes = request(&[
        ("log_info", Some(LogChoice::BoolParam(false))),
        ("log_verbose_level", Some(LogChoice::Uint32Param(2))),
        ("log_format", Some(LogChoice::StringParam("ISO8601".into()))),
    ]);
    let changed = client.log_settings(changes).await.unwrap();
    assert_eq!(found(changed), settings(false, 2, "ISO8601"));
    for (name, choice, message) in [
        (
            "log_x",
            Some(LogChoice::BoolParam(true)),
            "log setting 'log_x': unexpected value true",
        ),
        ("log_info", None, "log setting 'log_info' has no value"),
    ] {
        let status = client.log_settings(request(&[(name, choice)])).await.unwrap_err();
        assert_eq!(said(&status), (Code::InvalidArgument, message));
    }
    let read = client.log_settings(request(&[])).await.unwrap();
    assert_eq!(
        found(read),
        settings(false, 2, "ISO8601"),
        "changed in spite of the error"
    );
}

#[tokio::test]
async fn shared_memory_regions() {
    let (mut client, test) = client_with(oip_grpc::GrpcConfig::default());
    test.share("/k", vec![0; 64]);
    let register = |name: &str, key: &str| SystemSharedMemoryRegisterRequest {
        name: name.into(),
        key: key.into(),
        offset: 8,
        byte_size: 16,
    };
    for name in ["a", "b"] {
        client
            .system_shared_memory_register(register(name, "/k"))
            .await
            .unwrap();
    }
    let names = async |client: &mut crate::support::Client, name: &str| {
        let request = SystemSharedMemoryStatusRequest { name: name.into() };
        let status = client.system_shared_memory_status(request).await?;
        let regions = status.into_inner().regions.into_iter();
        let region = |(name, region): (
            String,
            oip_grpc::proto::system_shared_memory_status_response::RegionStatus,
        )| {
            assert_eq!(name, region.name);
            (name, region.key, region.offset, region.byte_size)
        };
        Ok::<_, Status>(regions.map(region).collect::<Vec<_>>())
    };
    let region = |name: &str| (name.to_owned(), "/k".to_owned(), 8, 16);
    assert_eq!(names(&mut client, "").await.unwrap(), [region("a"), region("b")]);
    assert_eq!(names(&mut client, "b").await.unwrap(), [region("b")]);
    let status = names(&mut client, "c").await.unwrap_err();
    assert_eq!(
        said(&status),
        (Code::NotFound, "shared memory region 'c' does not exist")
    );

    for (name, key, message) in [
        ("", "/k", "shared memory region '' must have a name"),
        ("a", "/k", "shared memory region 'a' is registered already"),
        ("c", "/none", "shared memory region 'c': there is no such memory"),
    ] {
        let status = client
            .system_shared_memory_register(register(name, key))
            .await
            .unwrap_err();
        assert_eq!(said(&status), (Code::InvalidArgument, message));
    }
    let unregister = |name: &str| SystemSharedMemoryUnregisterRequest { name: name.into() };
    client
        .system_shared_memory_unregister(unregister("a"))
        .await
        .unwrap();
    assert_eq!(names(&mut client, "").await.unwrap(), [region("b")]);
    client
        .system_shared_memory_unregister(unregister(""))
        .await
        .unwrap();
    assert!(names(&mut client, "").await.unwrap().is_empty());
}
