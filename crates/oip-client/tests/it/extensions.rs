//! The protocol's extensions, with answers as Triton and MLServer send them.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::Response;
use oip_client::InferenceClient;
use oip_grpc::proto;
use oip_types::{
    DataType, ErrorCode, LoadOptions, LogSetting, LogSettings, ModelRef, ModelState, SharedMemoryRegion,
    StatisticDuration, UnloadOptions,
    model_config::{DynamicBatching, InstanceKind, QueuePolicy, TimeoutAction, VersionPolicy, WarmupData},
};
use prost::Message;

use crate::support::{
    Frames, Scripted, Step, answer, grpc_answer, grpc_client, grpc_status, ok, scripted_grpc, trailers,
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

/// Paths and messages of calls.
type Calls = Arc<Mutex<Vec<(String, Bytes)>>>;

/// A gRPC server that gives this answer to everything, and what it was asked: paths and messages.
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

/// The only call so far.
fn asked<M: Message + Default>(asked: &Mutex<Vec<(String, Bytes)>>, path: &str) -> M {
    let calls = asked.lock().unwrap();
    let [(found, message)] = &calls[..] else {
        panic!("{calls:?}")
    };
    assert_eq!(found, path);
    M::decode(message.clone()).unwrap()
}

/// Method and path of the only request so far, and its body.
fn asked_http(server: &Scripted) -> (String, String) {
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
    let server = Scripted::new(vec![ok(
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
    // Triton answers without a body.
    let server = Scripted::answering("200 OK", &[], "");
    server.client().load_model("a b", &options).await.unwrap();
    let (line, body) = asked_http(&server);
    assert_eq!(line, "POST /v2/repository/models/a%20b/load");
    assert_eq!(body, r#"{"parameters":{"config":"{\"max_batch_size\":4}"}}"#);
    let server = Scripted::answering("200 OK", &[], "");
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

/// A call that changes something is not repeated when its outcome is unknown.
#[tokio::test]
async fn a_load_whose_answer_broke_is_not_tried_again() {
    let server = Scripted::new(vec![Step::Cut(answer("200 OK", &[], "x")[..20].to_vec()), ok("")]);
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
    let server = Scripted::new(vec![ok(json)]);
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

    // Perf analyzer lives with no more than a name, and so does this.
    let server = Scripted::new(vec![ok(r#"{"name":"m"}"#)]);
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
    let server = Scripted::new(vec![ok(json)]);
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
    let server = Scripted::new(vec![ok(json)]);
    assert_eq!(
        server.client().log_settings(&LogSettings::new()).await.unwrap(),
        expected
    );
    assert_eq!(asked_http(&server), ("GET /v2/logging".into(), String::new()));
    let server = Scripted::new(vec![ok(json)]);
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
    let server = Scripted::new(vec![ok(
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
    let server = Scripted::answering("200 OK", &[], "");
    server.client().register_shared_memory(&region()).await.unwrap();
    let (line, body) = asked_http(&server);
    assert_eq!(line, "POST /v2/systemsharedmemory/region/r%201/register");
    assert_eq!(body, r#"{"byte_size":64,"key":"/key","offset":8}"#);
    let server = Scripted::answering("200 OK", &[], "");
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

/// Servers without an extension say so, each in its way.
#[tokio::test]
async fn extensions_that_are_not_offered() {
    let server = Scripted::answering("404 Not Found", &[], r#"{"error":"Not Found"}"#);
    let error = server.client().repository_index(false).await.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::NotFound));
    let server = Scripted::answering(
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
