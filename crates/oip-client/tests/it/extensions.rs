//! Tests protocol extensions with responses in the form that Triton and MLServer send.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::Response;
use oip_client::InferenceClient;
use oip_grpc::proto;
use oip_types::{
    CudaMemoryRegion, DataType, ErrorCode, InferRequest, InferResponse, LoadOptions, LogSetting, LogSettings,
    ModelRef, ModelState, SharedMemoryRegion, SharedMemorySlice, StatisticDuration, TraceSettings,
    UnloadOptions,
    model_config::{DynamicBatching, InstanceKind, QueuePolicy, TimeoutAction, VersionPolicy, WarmupData},
};
use prost::Message;
use tensor_core::{Shape, Tensor};

use crate::support::{
    Frames, ScriptedServer, Step, answer, grpc_answer, grpc_client, grpc_status, ok, scripted_grpc, trailers,
};

fn matrix() -> ModelRef<'static> {
    ModelRef::new("matrix", Some("2")).unwrap()
}

fn region() -> SharedMemoryRegion {
    SharedMemoryRegion {
        name: "r 1".into(),
        key: "/key".into(),
        offset: 8,
        byte_size: 64,
    }
}

/// Path and message of each recorded call.
type Calls = Arc<Mutex<Vec<(String, Bytes)>>>;

/// Starts a gRPC server that always returns `message`, and records paths and messages.
fn grpc_server(message: &impl Message) -> (oip_client::GrpcClient, Calls) {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let noted = asked.clone();
    let encoded = message.encode_to_vec();
    let url = scripted_grpc(move |path, _, body| -> Response<Frames> {
        let path = path.rsplit('/').next().unwrap().to_owned();
        noted.lock().unwrap().push((path, body.slice(5..)));
        let frame = [&[0][..], &(encoded.len() as u32).to_be_bytes(), &encoded].concat();
        grpc_answer(vec![
            Ok(http_body::Frame::data(frame.into())),
            trailers(&[("grpc-status", "0")]),
        ])
    });
    (grpc_client(&url), asked)
}

/// Returns the only recorded call.
fn asked<M: Message + Default>(asked: &Mutex<Vec<(String, Bytes)>>, path: &str) -> M {
    let calls = asked.lock().unwrap();
    let [(found, message)] = &calls[..] else {
        panic!("{calls:?}")
    };
    assert_eq!(found, path);
    M::decode(message.clone()).unwrap()
}

/// Returns the method and path, and the body, of the only recorded request.
fn asked_http(server: &ScriptedServer) -> (String, String) {
    let requests = server.requests();
    let [request] = &requests[..] else {
        panic!("{requests:?}")
    };
    let (head, body) = request.split_once("\r\n\r\n").unwrap();
    let line = head.lines().next().unwrap().trim_end_matches(" HTTP/1.1");
    (line.to_owned(), body.to_owned())
}

#[tokio::test]
async fn the_repositorys_index() {
    let server = ScriptedServer::new(vec![ok(
        r#"[{"name":"a","version":"1","state":"READY"},{"name":"b","version":"","state":"UNAVAILABLE","reason":"failed"},{"name":"c"},{"name":"d","version":null,"state":null,"reason":null},{"name":"e","version":"1","state":"SLEEPING","reason":""}]"#,
    )]);
    let index = server.client().repository_index(false).await.unwrap();
    let states: Vec<_> = index.iter().map(|entry| entry.state).collect();
    assert_eq!(
        states,
        [
            Some(ModelState::Ready),
            Some(ModelState::Unavailable),
            None,
            None,
            Some(ModelState::Unknown)
        ]
    );
    assert_eq!(
        (index[0].version.as_deref(), &index[1].version, &*index[1].reason),
        (Some("1"), &None, "failed")
    );
    assert_eq!(
        asked_http(&server),
        ("POST /v2/repository/index".into(), "{}".into())
    );

    let model = |name: &str, state: &str| proto::repository_index_response::ModelIndex {
        name: name.into(),
        state: state.into(),
        ..Default::default()
    };
    let models = vec![model("a", "READY"), model("b", "State.READY"), model("c", "")];
    let (client, calls) = grpc_server(&proto::RepositoryIndexResponse { models });
    let index = client.repository_index(true).await.unwrap();
    let states: Vec<_> = index.iter().map(|entry| entry.state).collect();
    assert_eq!(states, [Some(ModelState::Ready), Some(ModelState::Ready), None]);
    assert!(asked::<proto::RepositoryIndexRequest>(&calls, "RepositoryIndex").ready);
}

#[tokio::test]
async fn loading_and_unloading() {
    let options =
        LoadOptions::default().with(|options| options.config = Some("{\"max_batch_size\":4}".into()));
    // Triton responds without a body.
    let server = ScriptedServer::answering("200 OK", &[], "");
    server.client().load_model("a b", &options).await.unwrap();
    let (line, body) = asked_http(&server);
    assert_eq!(line, "POST /v2/repository/models/a%20b/load");
    assert_eq!(body, r#"{"parameters":{"config":"{\"max_batch_size\":4}"}}"#);
    let server = ScriptedServer::answering("200 OK", &[], "");
    let dependents = UnloadOptions::default().with(|options| options.unload_dependents = true);
    server.client().unload_model("m", dependents).await.unwrap();
    let (line, body) = asked_http(&server);
    assert_eq!(line, "POST /v2/repository/models/m/unload");
    assert_eq!(body, r#"{"parameters":{"unload_dependents":true}}"#);

    let (client, calls) = grpc_server(&proto::RepositoryModelLoadResponse {});
    client.load_model("m", &options).await.unwrap();
    let request: proto::RepositoryModelLoadRequest = asked(&calls, "RepositoryModelLoad");
    assert_eq!((&*request.model_name, request.parameters.len()), ("m", 1));
    let (client, calls) = grpc_server(&proto::RepositoryModelUnloadResponse {});
    client.unload_model("m", UnloadOptions::default()).await.unwrap();
    let request: proto::RepositoryModelUnloadRequest = asked(&calls, "RepositoryModelUnload");
    assert_eq!((&*request.model_name, request.parameters.len()), ("m", 0));
}

/// A call with side effects is not retried when its outcome is unknown.
#[tokio::test]
async fn a_load_whose_answer_broke_is_not_tried_again() {
    let server = ScriptedServer::new(vec![Step::Cut(answer("200 OK", &[], "x")[..20].to_vec()), ok("")]);
    assert!(
        server
            .client()
            .load_model("m", &LoadOptions::default())
            .await
            .is_err()
    );
    assert_eq!(server.requests().len(), 1);
}

#[tokio::test]
async fn configurations_are_the_same_over_both_transports() {
    let json = r#"{"name":"m","platform":"onnx_onnxv1","backend":"onnx","runtime":"","unknown":[1],"version_policy":{"specific":{"versions":[1,3]}},
        "max_batch_size":8,"input":[{"name":"x","data_type":"TYPE_FP32","format":"FORMAT_NCHW","dims":[3,-1],"is_shape_tensor":false,"allow_ragged_batch":true,"optional":true,"reshape":{"shape":[3]}}],
        "output":[{"name":"y","data_type":"TYPE_STRING","dims":[2],"label_filename":"labels.txt"}],
        "instance_group":[{"name":"g","kind":"KIND_CPU","count":2,"gpus":[]}],"default_model_filename":"m.onnx",
        "dynamic_batching":{"preferred_batch_size":[4,8],"max_queue_delay_microseconds":100,"preserve_ordering":true,"priority_levels":2,"default_priority_level":1,"default_queue_policy":{"timeout_action":"DELAY","default_timeout_microseconds":5,"allow_timeout_override":true,"max_queue_size":7},"priority_queue_policy":{"2":{"max_queue_size":9}}},
        "parameters":{"k":{"string_value":"v"}},"model_warmup":[{"name":"w","batch_size":1,"inputs":{"x":{"data_type":"TYPE_FP32","dims":[3],"random_data":true}},"count":2}],
        "model_transaction_policy":{"decoupled":true},"response_cache":{"enable":true}}"#;
    let server = ScriptedServer::new(vec![ok(json)]);
    let http = server.client().model_config(matrix()).await.unwrap();
    assert_eq!(asked_http(&server).0, "GET /v2/models/matrix/versions/2/config");

    let queue = |action: i32, timeout, over, size| proto::ModelQueuePolicy {
        timeout_action: action,
        default_timeout_microseconds: timeout,
        allow_timeout_override: over,
        max_queue_size: size,
    };
    let warmup = proto::model_warmup::Input {
        data_type: proto::DataType::TypeFp32 as i32,
        dims: vec![3],
        input_data_type: Some(proto::model_warmup::input::InputDataType::RandomData(true)),
    };
    let config = proto::ModelConfig {
        name: "m".into(),
        platform: "onnx_onnxv1".into(),
        backend: "onnx".into(),
        version_policy: Some(proto::ModelVersionPolicy {
            policy_choice: Some(proto::model_version_policy::PolicyChoice::Specific(
                proto::model_version_policy::Specific { versions: vec![1, 3] },
            )),
        }),
        max_batch_size: 8,
        input: vec![proto::ModelInput {
            name: "x".into(),
            data_type: proto::DataType::TypeFp32 as i32,
            format: proto::model_input::Format::Nchw as i32,
            dims: vec![3, -1],
            reshape: Some(proto::ModelTensorReshape { shape: vec![3] }),
            allow_ragged_batch: true,
            optional: true,
            ..Default::default()
        }],
        output: vec![proto::ModelOutput {
            name: "y".into(),
            data_type: proto::DataType::TypeString as i32,
            dims: vec![2],
            label_filename: "labels.txt".into(),
            ..Default::default()
        }],
        instance_group: vec![proto::ModelInstanceGroup {
            name: "g".into(),
            count: 2,
            gpus: vec![],
            kind: proto::model_instance_group::Kind::Cpu as i32,
        }],
        default_model_filename: "m.onnx".into(),
        scheduling_choice: Some(proto::model_config::SchedulingChoice::DynamicBatching(
            proto::ModelDynamicBatching {
                preferred_batch_size: vec![4, 8],
                max_queue_delay_microseconds: 100,
                preserve_ordering: true,
                priority_levels: 2,
                default_priority_level: 1,
                default_queue_policy: Some(queue(1, 5, true, 7)),
                priority_queue_policy: [(2, queue(0, 0, false, 9))].into(),
            },
        )),
        parameters: [(
            "k".to_owned(),
            proto::ModelParameter {
                string_value: "v".into(),
            },
        )]
        .into(),
        model_warmup: vec![proto::ModelWarmup {
            name: "w".into(),
            batch_size: 1,
            inputs: [("x".to_owned(), warmup)].into(),
            count: 2,
        }],
        model_transaction_policy: Some(proto::ModelTransactionPolicy { decoupled: true }),
        response_cache: Some(proto::ModelResponseCache { enable: true }),
        ..Default::default()
    };
    let (client, calls) = grpc_server(&proto::ModelConfigResponse {
        config: Some(config.clone()),
    });
    let grpc = client.model_config(matrix()).await.unwrap();
    let request: proto::ModelConfigRequest = asked(&calls, "ModelConfig");
    assert_eq!((&*request.name, &*request.version), ("matrix", "2"));

    assert_eq!(http, grpc);
    assert_eq!(
        grpc.version_policy,
        VersionPolicy::Specific { versions: vec![1, 3] }
    );
    assert_eq!(grpc.output[0].data_type, DataType::BYTES);
    assert_eq!(grpc.instance_group[0].kind, InstanceKind::Cpu);
    assert_eq!(
        grpc.model_warmup[0].inputs["x"].data,
        WarmupData::RandomData(true)
    );
    let policy = QueuePolicy {
        timeout_action: TimeoutAction::Delay,
        default_timeout_microseconds: 5,
        allow_timeout_override: true,
        max_queue_size: 7,
    };
    let Some(DynamicBatching {
        default_queue_policy, ..
    }) = grpc.dynamic_batching
    else {
        panic!()
    };
    assert_eq!(default_queue_policy, Some(policy));

    // Metadata with only a name is accepted; Triton's perf analyzer also accepts it.
    let server = ScriptedServer::new(vec![ok(r#"{"name":"m"}"#)]);
    assert_eq!(
        server
            .client()
            .model_config(matrix())
            .await
            .unwrap()
            .max_batch_size,
        0
    );
    let negative = proto::ModelConfig {
        max_batch_size: -1,
        ..config.clone()
    };
    let mut unknown = config;
    unknown.input[0].data_type = 99;
    for (config, message) in [
        (
            Some(negative),
            "max_batch_size: expected a number from 0, found -1",
        ),
        (Some(unknown), "'x': expected the number of a datatype, found 99"),
        (None, "expected a configuration, found none"),
    ] {
        let (client, _) = grpc_server(&proto::ModelConfigResponse { config });
        let error = client.model_config(matrix()).await.unwrap_err();
        assert!(error.message().ends_with(message), "{error}");
    }
}

#[tokio::test]
async fn statistics_are_the_same_over_both_transports() {
    let json = r#"{"model_stats":[{"name":"m","version":"1","last_inference":1700000000000,"inference_count":7,"execution_count":3,
        "inference_stats":{"success":{"count":1,"ns":2},"fail":{"count":0,"ns":0},"queue":{"count":3,"ns":4},"compute_input":{"count":5,"ns":6},"compute_infer":{"count":7,"ns":8},"compute_output":{"count":9,"ns":10},"cache_hit":{"count":0,"ns":0},"cache_miss":{"count":0,"ns":0}},
        "response_stats":{},"batch_stats":[{"batch_size":4,"compute_input":{"count":1,"ns":1},"compute_infer":{"count":1,"ns":2},"compute_output":{"count":1,"ns":3}}],"memory_usage":[{"type":"CPU","id":0,"byte_size":99}]}]}"#;
    let server = ScriptedServer::new(vec![ok(json)]);
    let http = server.client().statistics(None).await.unwrap();
    assert_eq!(asked_http(&server).0, "GET /v2/models/stats");

    let duration = |count, ns| Some(proto::StatisticDuration { count, ns });
    let statistics = proto::ModelStatistics {
        name: "m".into(),
        version: "1".into(),
        last_inference: 1_700_000_000_000,
        inference_count: 7,
        execution_count: 3,
        inference_stats: Some(proto::InferStatistics {
            success: duration(1, 2),
            queue: duration(3, 4),
            compute_input: duration(5, 6),
            compute_infer: duration(7, 8),
            compute_output: duration(9, 10),
            ..Default::default()
        }),
        batch_stats: vec![proto::InferBatchStatistics {
            batch_size: 4,
            compute_input: duration(1, 1),
            compute_infer: duration(1, 2),
            compute_output: duration(1, 3),
        }],
        memory_usage: vec![proto::MemoryUsage {
            r#type: "CPU".into(),
            id: 0,
            byte_size: 99,
        }],
        ..Default::default()
    };
    let (client, calls) = grpc_server(&proto::ModelStatisticsResponse {
        model_stats: vec![statistics],
    });
    let grpc = client.statistics(Some(matrix())).await.unwrap();
    let request: proto::ModelStatisticsRequest = asked(&calls, "ModelStatistics");
    assert_eq!((&*request.name, &*request.version), ("matrix", "2"));
    assert_eq!(http, grpc);
    assert_eq!(
        grpc[0].inference_stats.queue,
        StatisticDuration { count: 3, ns: 4 }
    );
}

#[tokio::test]
async fn log_settings_are_asked_for_and_changed() {
    let expected = LogSettings::from([
        ("log_format".to_owned(), LogSetting::String("default".into())),
        ("log_info".to_owned(), LogSetting::Bool(true)),
        ("log_verbose_level".to_owned(), LogSetting::Uint32(2)),
    ]);
    let json = r#"{"log_format":"default","log_info":true,"log_verbose_level":2}"#;
    let server = ScriptedServer::new(vec![ok(json)]);
    assert_eq!(
        server.client().log_settings(&LogSettings::new()).await.unwrap(),
        expected
    );
    assert_eq!(asked_http(&server), ("GET /v2/logging".into(), String::new()));
    let server = ScriptedServer::new(vec![ok(json)]);
    let changes = LogSettings::from([("log_info".to_owned(), LogSetting::Bool(true))]);
    assert_eq!(server.client().log_settings(&changes).await.unwrap(), expected);
    assert_eq!(
        asked_http(&server),
        ("POST /v2/logging".into(), r#"{"log_info":true}"#.into())
    );

    use proto::log_settings_response::{SettingValue, setting_value::ParameterChoice::*};
    let setting = |name: &str, choice| {
        (
            name.to_owned(),
            SettingValue {
                parameter_choice: choice,
            },
        )
    };
    let settings = [
        setting("log_format", Some(StringParam("default".into()))),
        setting("log_info", Some(BoolParam(true))),
        setting("log_verbose_level", Some(Uint32Param(2))),
        setting("log_file", None),
    ];
    let (client, calls) = grpc_server(&proto::LogSettingsResponse {
        settings: settings.into(),
    });
    assert_eq!(client.log_settings(&changes).await.unwrap(), expected);
    assert_eq!(
        asked::<proto::LogSettingsRequest>(&calls, "LogSettings")
            .settings
            .len(),
        1
    );
}

#[tokio::test]
async fn shared_memory_is_registered_and_forgotten() {
    let server = ScriptedServer::new(vec![ok(
        r#"[{"name":"r 1","key":"/key","offset":8,"byte_size":64}]"#,
    )]);
    assert_eq!(
        server.client().shared_memory_status(Some("r 1")).await.unwrap(),
        [region()]
    );
    assert_eq!(
        asked_http(&server).0,
        "GET /v2/systemsharedmemory/region/r%201/status"
    );
    let server = ScriptedServer::answering("200 OK", &[], "");
    server.client().register_shared_memory(&region()).await.unwrap();
    let (line, body) = asked_http(&server);
    assert_eq!(line, "POST /v2/systemsharedmemory/region/r%201/register");
    assert_eq!(body, r#"{"byte_size":64,"key":"/key","offset":8}"#);
    let server = ScriptedServer::answering("200 OK", &[], "");
    server.client().unregister_shared_memory(None).await.unwrap();
    assert_eq!(asked_http(&server).0, "POST /v2/systemsharedmemory/unregister");

    let status = proto::system_shared_memory_status_response::RegionStatus {
        name: "r 1".into(),
        key: "/key".into(),
        offset: 8,
        byte_size: 64,
    };
    let regions = [("r 1".to_owned(), status)].into();
    let (client, _) = grpc_server(&proto::SystemSharedMemoryStatusResponse { regions });
    assert_eq!(client.shared_memory_status(None).await.unwrap(), [region()]);
    let (client, calls) = grpc_server(&proto::SystemSharedMemoryRegisterResponse {});
    client.register_shared_memory(&region()).await.unwrap();
    let request: proto::SystemSharedMemoryRegisterRequest = asked(&calls, "SystemSharedMemoryRegister");
    assert_eq!(
        (&*request.key, request.offset, request.byte_size),
        ("/key", 8, 64)
    );
    let (client, calls) = grpc_server(&proto::SystemSharedMemoryUnregisterResponse {});
    client.unregister_shared_memory(Some("r 1")).await.unwrap();
    assert_eq!(
        asked::<proto::SystemSharedMemoryUnregisterRequest>(&calls, "SystemSharedMemoryUnregister").name,
        "r 1"
    );
}

/// Checks the error codes for extensions that a server does not offer.
#[tokio::test]
async fn extensions_that_are_not_offered() {
    let server = ScriptedServer::answering("404 Not Found", &[], r#"{"error":"Not Found"}"#);
    let error = server.client().repository_index(false).await.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::NotFound));
    let server = ScriptedServer::answering(
        "501 Not Implemented",
        &[],
        r#"{"error":"this server does not offer logging"}"#,
    );
    let error = server
        .client()
        .log_settings(&LogSettings::new())
        .await
        .unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::Unimplemented));
    let url = scripted_grpc(|_, _, _| grpc_status(12, "this server does not offer ModelStatistics", &[]));
    let error = grpc_client(&url).statistics(None).await.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::Unimplemented));
}

#[tokio::test]
async fn traces_are_asked_for_and_changed() {
    let all = || {
        let setting = |name: &str, values: &[&str]| {
            let values = values.iter().map(|value| (*value).to_owned()).collect();
            (name.to_owned(), values)
        };
        TraceSettings::from([
            setting("trace_level", &["TIMESTAMPS", "TENSORS"]),
            setting("trace_rate", &["1000"]),
            setting("trace_count", &[]),
        ])
    };
    let changes = || {
        let mut changes = all();
        changes.insert("trace_level".into(), vec!["OFF".into()]);
        changes
    };
    let answer = r#"{"trace_level":["TIMESTAMPS","TENSORS"],"trace_rate":"1000","trace_count":null}"#;
    let server = ScriptedServer::new(vec![ok(answer)]);
    let found = server.client().trace_settings(None, &TraceSettings::new()).await;
    assert_eq!(found.unwrap(), all());
    assert_eq!(asked_http(&server).0, "GET /v2/trace/setting");
    let server = ScriptedServer::new(vec![ok(answer)]);
    let found = server.client().trace_settings(Some("m 1"), &changes()).await;
    assert_eq!(found.unwrap(), all());
    let (line, body) = asked_http(&server);
    assert_eq!(line, "POST /v2/models/m%201/trace/setting");
    // Trace levels are sent as a list even if there is only one.
    assert_eq!(
        body,
        r#"{"trace_count":null,"trace_level":["OFF"],"trace_rate":"1000"}"#
    );

    let settings = all()
        .into_iter()
        .map(|(name, value)| (name, proto::trace_setting_response::SettingValue { value }));
    let message = proto::TraceSettingResponse {
        settings: settings.collect(),
    };
    let (client, calls) = grpc_server(&message);
    assert_eq!(client.trace_settings(Some("m"), &changes()).await.unwrap(), all());
    let sent: proto::TraceSettingRequest = asked(&calls, "TraceSetting");
    assert_eq!(sent.model_name, "m");
    let sent: TraceSettings = sent
        .settings
        .into_iter()
        .map(|(name, setting)| (name, setting.value))
        .collect();
    assert_eq!(sent, changes());
}

#[tokio::test]
async fn memory_of_graphics_cards_is_registered_and_forgotten() {
    let region = CudaMemoryRegion {
        name: "r 1".into(),
        device_id: 2,
        byte_size: 64,
    };
    let handle = Bytes::from_static(&[0, 1, 2, 255]);
    let server = ScriptedServer::new(vec![ok(r#"[{"name":"r 1","device_id":2,"byte_size":64}]"#)]);
    assert_eq!(
        server.client().cuda_memory_status(None).await.unwrap(),
        std::slice::from_ref(&region)
    );
    assert_eq!(asked_http(&server).0, "GET /v2/cudasharedmemory/status");
    let server = ScriptedServer::new(vec![ok("")]);
    server
        .client()
        .register_cuda_memory(&region, &handle)
        .await
        .unwrap();
    let (line, body) = asked_http(&server);
    assert_eq!(line, "POST /v2/cudasharedmemory/region/r%201/register");
    assert_eq!(
        body,
        r#"{"byte_size":64,"device_id":2,"raw_handle":{"b64":"AAEC/w=="}}"#
    );
    let server = ScriptedServer::new(vec![ok("")]);
    server.client().unregister_cuda_memory(Some("r 1")).await.unwrap();
    assert_eq!(
        asked_http(&server).0,
        "POST /v2/cudasharedmemory/region/r%201/unregister"
    );

    let status = proto::cuda_shared_memory_status_response::RegionStatus {
        name: "r 1".into(),
        device_id: 2,
        byte_size: 64,
    };
    let (client, _) = grpc_server(&proto::CudaSharedMemoryStatusResponse {
        regions: [("r 1".to_owned(), status)].into(),
    });
    assert_eq!(
        client.cuda_memory_status(Some("r 1")).await.unwrap(),
        std::slice::from_ref(&region)
    );
    let (client, calls) = grpc_server(&proto::CudaSharedMemoryRegisterResponse {});
    client.register_cuda_memory(&region, &handle).await.unwrap();
    let sent: proto::CudaSharedMemoryRegisterRequest = asked(&calls, "CudaSharedMemoryRegister");
    assert_eq!((sent.raw_handle, sent.device_id, sent.byte_size), (handle, 2, 64));
    let (client, calls) = grpc_server(&proto::CudaSharedMemoryUnregisterResponse {});
    client.unregister_cuda_memory(None).await.unwrap();
    let sent: proto::CudaSharedMemoryUnregisterRequest = asked(&calls, "CudaSharedMemoryUnregister");
    assert_eq!(sent.name, "");
}

#[tokio::test]
async fn files_go_with_the_request_to_load() {
    let options = LoadOptions::default().with(|options| {
        options.config = Some("{}".into());
        options.files = [("1/model.onnx".to_owned(), Bytes::from_static(b"abc"))].into();
    });
    let server = ScriptedServer::new(vec![ok("")]);
    server.client().load_model("m", &options).await.unwrap();
    assert_eq!(
        asked_http(&server).1,
        r#"{"parameters":{"config":"{}","file:1/model.onnx":"YWJj"}}"#
    );
    let (client, calls) = grpc_server(&proto::RepositoryModelLoadResponse {});
    client.load_model("m", &options).await.unwrap();
    let sent: proto::RepositoryModelLoadRequest = asked(&calls, "RepositoryModelLoad");
    assert_eq!(
        sent.parameters["file:1/model.onnx"].parameter_choice,
        Some(proto::model_repository_parameter::ParameterChoice::BytesParam(
            Bytes::from_static(b"abc")
        ))
    );
}

/// Returns a request with two inputs and two outputs. One input and one output are in shared memory.
fn shared_request() -> InferRequest {
    let place = |offset| SharedMemorySlice {
        region: "r".into(),
        offset,
        byte_size: 8,
    };
    let shape = Shape::vector(2);
    let request = InferRequest::new(ModelRef::new("m", None).unwrap())
        .with_shared_input("there", DataType::FP32, shape.clone(), &place(0))
        .unwrap()
        .with_input("here", Tensor::from_vec(shape, vec![1i32, 2]).unwrap())
        .with_output("z");
    let mut request = request.with_output("y");
    request.outputs[1].parameters = place(16).to_parameters();
    request
}

/// Checks the response: the values of `z` and the location of `y`.
fn check_shared(response: &InferResponse) {
    let [z, y] = &response.outputs[..] else {
        panic!("{response:?}")
    };
    assert_eq!((&*z.name, z.shared_memory.as_ref()), ("z", None));
    assert_eq!(z.value.raw()[..], [7, 0, 0, 0]);
    let place = SharedMemorySlice {
        region: "r".into(),
        offset: 16,
        byte_size: 8,
    };
    assert_eq!((&*y.name, y.shared_memory.as_ref()), ("y", Some(&place)));
    assert_eq!(y.value.shape().dims(), [2]);
}

#[tokio::test]
async fn tensors_in_shared_memory_are_named_and_not_sent_over_http() {
    let answer = r#"{"model_name":"m","outputs":[{"name":"z","datatype":"INT32","shape":[1],"data":[7]},{"name":"y","datatype":"FP32","shape":[2],"parameters":{"shared_memory_region":"r","shared_memory_byte_size":8,"shared_memory_offset":16}}]}"#;
    let server = ScriptedServer::new(vec![ok(answer)]);
    check_shared(&server.client().infer(&shared_request()).await.unwrap());
    let (_, body) = asked_http(&server);
    let json = r#""inputs":[{"name":"there","datatype":"FP32","shape":[2],"parameters":{"shared_memory_byte_size":8,"shared_memory_region":"r"}},{"name":"here","datatype":"INT32","shape":[2],"parameters":{"binary_data_size":8}}],"outputs":[{"name":"z","parameters":{"binary_data":true}},{"name":"y","parameters":{"binary_data":false,"shared_memory_byte_size":8,"shared_memory_offset":16,"shared_memory_region":"r"}}]}"#;
    let rest = body.split_once(json).expect(&body).1;
    assert_eq!(rest.as_bytes(), [1, 0, 0, 0, 2, 0, 0, 0]);
    // A server may claim any shape.
    let huge = answer.replace("[2]", "[4611686018427387904]");
    let server = ScriptedServer::new(vec![ok(&huge)]);
    let error = server.client().infer(&shared_request()).await.unwrap_err();
    assert!(
        error.to_string().contains("the byte length") || error.to_string().contains("room"),
        "{error}"
    );
}

#[tokio::test]
async fn tensors_in_shared_memory_are_named_and_not_sent_over_grpc() {
    let output = |name: &str, datatype: &str, shape, parameters: oip_types::Parameters| {
        let parameters = parameters.into_iter().map(|(name, value)| {
            let choice = match value.as_u64() {
                Some(value) => proto::infer_parameter::ParameterChoice::Int64Param(value as i64),
                None => proto::infer_parameter::ParameterChoice::StringParam(value.as_str().unwrap().into()),
            };
            let parameter_choice = Some(choice);
            (name, proto::InferParameter { parameter_choice })
        });
        proto::model_infer_response::InferOutputTensor {
            name: name.into(),
            datatype: datatype.into(),
            shape,
            parameters: parameters.collect(),
            contents: None,
        }
    };
    let place = shared_request().outputs[1].parameters.clone();
    let message = proto::ModelInferResponse {
        model_name: "m".into(),
        outputs: vec![
            output("z", "INT32", vec![1], oip_types::Parameters::new()),
            output("y", "FP32", vec![2], place),
        ],
        raw_output_contents: vec![Bytes::from_static(&[7, 0, 0, 0])],
        ..Default::default()
    };
    // Servers may also send empty contents for outputs in shared memory.
    let mut with_empty = message.clone();
    with_empty.raw_output_contents.push(Bytes::new());
    for message in [message, with_empty] {
        let (client, calls) = grpc_server(&message);
        check_shared(&client.infer(&shared_request()).await.unwrap());
        let sent: proto::ModelInferRequest = asked(&calls, "ModelInfer");
        assert_eq!(
            sent.raw_input_contents,
            [Bytes::from_static(&[1, 0, 0, 0, 2, 0, 0, 0])]
        );
        assert_eq!(sent.inputs[0].parameters.len(), 2);
        assert_eq!(sent.outputs[1].parameters.len(), 3);
    }
}
