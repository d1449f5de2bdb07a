//! Tests copying inputs from shared memory, where small messages can cause much work.

use std::{
    collections::BTreeMap,
    sync::{Arc, Condvar, Mutex},
    time::Duration,
};

use bytes::Bytes;
use oip_grpc::{
    GrpcConfig,
    proto::{
        InferTensorContents, ModelInferRequest, grpc_inference_service_client::GrpcInferenceServiceClient,
        infer_parameter::ParameterChoice, model_infer_request::InferInputTensor,
    },
    service,
};
use oip_model::BoxFuture;
use oip_resources::CpuPool;
use oip_service::{InferenceService, Readiness, RequestContext, SystemSharedMemory, testing::TestService};
use oip_types::{
    InferRequest, InferResponse, ModelMetadata, ModelRef, ReadSharedMemory, ServerMetadata, ServiceError,
    SharedMemoryRegion, SharedMemorySlice,
};
use tokio::time::{sleep, timeout};

use crate::support::{input, parameter, typed_x};

/// Shared memory whose reads block until the gate opens, like a slow copy.
#[derive(Default)]
struct Gate {
    inner: TestService,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    is_open: bool,
    waiting: usize,
}

impl ReadSharedMemory for Gate {
    fn read(&self, slice: &SharedMemorySlice) -> Result<Bytes, ServiceError> {
        let mut state = self.state.lock().unwrap();
        state.waiting += 1;
        while !state.is_open {
            state = self.changed.wait(state).unwrap();
        }
        Ok(vec![1; slice.byte_size as usize].into())
    }
}

impl SystemSharedMemory for Gate {
    fn register(&self, _: SharedMemoryRegion) -> Result<(), ServiceError> {
        Ok(())
    }

    fn unregister(&self, _: Option<&str>) {}

    fn status(&self, _: Option<&str>) -> Result<Vec<SharedMemoryRegion>, ServiceError> {
        Ok(Vec::new())
    }

    fn write(&self, _: &SharedMemorySlice, _: &[u8]) -> Result<(), ServiceError> {
        Ok(())
    }
}

impl InferenceService for Gate {
    fn server_metadata(&self) -> ServerMetadata {
        self.inner.server_metadata()
    }

    fn readiness(&self) -> Readiness {
        self.inner.readiness()
    }

    fn model_metadata(&self, model: ModelRef<'_>) -> Result<Arc<ModelMetadata>, ServiceError> {
        self.inner.model_metadata(model)
    }

    fn infer(
        &self,
        request: InferRequest,
        cx: RequestContext,
    ) -> BoxFuture<'_, Result<InferResponse, ServiceError>> {
        self.inner.infer(request, cx)
    }

    fn shared_memory(&self) -> Option<&dyn SystemSharedMemory> {
        Some(self)
    }
}

/// Large copies never occupy all threads of the pool, however small their messages, so that other messages
/// are handled meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn large_copies_leave_a_thread_to_small_messages() {
    const BYTES: i64 = 2 << 20;
    let gate = Arc::new(Gate::default());
    let config = GrpcConfig::default().with(|config| config.cpu = CpuPool::new(2));
    let client = GrpcInferenceServiceClient::new(service(gate.clone(), config));
    let copy = ModelInferRequest {
        model_name: "identity_bool".into(),
        inputs: vec![InferInputTensor {
            parameters: BTreeMap::from([
                (
                    "shared_memory_region".to_owned(),
                    parameter(ParameterChoice::StringParam("r".into())),
                ),
                (
                    "shared_memory_byte_size".to_owned(),
                    parameter(ParameterChoice::Int64Param(BYTES)),
                ),
            ]),
            ..input("x", "BOOL", &[BYTES])
        }],
        ..Default::default()
    };
    let copies: Vec<_> = (0..4)
        .map(|_| {
            let (mut client, copy) = (client.clone(), copy.clone());
            tokio::spawn(async move { client.model_infer(copy).await })
        })
        .collect();
    while gate.state.lock().unwrap().waiting == 0 {
        sleep(Duration::from_millis(1)).await;
    }
    // This message is too large for the connection's thread, so the pool decodes it.
    let contents = InferTensorContents {
        int_contents: vec![7; 100_000],
        ..Default::default()
    };
    let mut other = client.clone();
    let message = typed_x("identity_int32", "INT32", &[100_000], contents);
    let answered = timeout(Duration::from_secs(5), other.model_infer(message)).await;
    let waiting = {
        let mut state = gate.state.lock().unwrap();
        state.is_open = true;
        state.waiting
    };
    gate.changed.notify_all();
    assert!(answered.expect("it is answered meanwhile").is_ok());
    assert_eq!(waiting, 1);
    for copy in copies {
        copy.await.unwrap().unwrap();
    }
}
