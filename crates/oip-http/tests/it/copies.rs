//! Tests copying inputs from shared memory, where small bodies can cause much work.
#![cfg(unix)]

use std::{
    os::fd::OwnedFd,
    sync::{Arc, Condvar, Mutex},
    time::Duration,
};

use axum::{
    body::Body,
    http::{Request, StatusCode},
};
use oip_http::{HttpConfig, HttpService};
use oip_resources::{ConnectionMemory, ConnectionRegion, CpuPool, OpenConnectionMemory};
use oip_service::oip_types::ServiceError;
use tokio::{task::JoinHandle, time::sleep};

use crate::support::{app_with, call, infer, x};

/// A region whose last bytes are unreadable until the gate opens, like a slow copy.
#[derive(Clone, Debug, Default)]
struct Gate(Arc<(Mutex<State>, Condvar)>);

#[derive(Debug, Default)]
struct State {
    is_open: bool,
    waiting: usize,
}

const REGION: u64 = 2 << 20;

impl Gate {
    fn waiting(&self) -> usize {
        self.0.0.lock().unwrap().waiting
    }

    fn open(&self) {
        self.0.0.lock().unwrap().is_open = true;
        self.0.1.notify_all();
    }
}

impl ConnectionMemory for Gate {
    fn byte_size(&self) -> u64 {
        REGION
    }

    fn append_to(&self, offset: u64, byte_size: u64, buffer: &mut Vec<u8>) -> Result<(), ServiceError> {
        let (state, changed) = &*self.0;
        if offset + byte_size == REGION {
            let mut state = state.lock().unwrap();
            state.waiting += 1;
            while !state.is_open {
                state = changed.wait(state).unwrap();
            }
        }
        buffer.resize(buffer.len() + byte_size as usize, 1);
        Ok(())
    }

    fn write(&self, _: u64, _: &[u8]) -> Result<(), ServiceError> {
        Ok(())
    }
}

impl OpenConnectionMemory for Gate {
    fn open(&self, _: OwnedFd) -> Result<Arc<dyn ConnectionMemory>, ServiceError> {
        Ok(Arc::new(self.clone()))
    }
}

/// Sends a request with `inputs` inputs, which divide the connection's shared region among them.
fn ask(app: &HttpService, gate: &Gate, inputs: u64) -> JoinHandle<StatusCode> {
    let region = ConnectionRegion::new(std::io::pipe().unwrap().0.into());
    region.open(gate).unwrap();
    let bytes = REGION / inputs;
    let inputs = (0..inputs).map(|input| {
        let (name, offset) = (if input == 0 { "x".to_owned() } else { format!("x{input}") }, input * bytes);
        format!(
            r#"{{"name":"{name}","datatype":"BOOL","shape":[{bytes}],"parameters":{{"shared_memory_region":"$connection",
               "shared_memory_offset":{offset},"shared_memory_byte_size":{bytes}}}}}"#
        )
    });
    let inputs: Vec<String> = inputs.collect();
    let mut request = Request::post("/v2/models/identity_bool/infer")
        .header("host", "x")
        .body(Body::from(format!(r#"{{"inputs":[{}]}}"#, inputs.join(","))))
        .unwrap();
    request.extensions_mut().insert(region);
    let app = app.clone();
    tokio::spawn(async move { call(&app, request).await.status })
}

/// Large copies never occupy all threads of the pool, even if their requests are small, so other bodies are
/// handled meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn large_copies_leave_a_thread_to_small_bodies() {
    for inputs in [1, 16] {
        let (app, _) = app_with(HttpConfig::default().with(|config| config.cpu = CpuPool::new(2)));
        let gate = Gate::default();
        let copies: Vec<_> = (0..4).map(|_| ask(&app, &gate, inputs)).collect();
        while gate.waiting() == 0 {
            sleep(Duration::from_millis(1)).await;
        }
        // The body is too large for the connection's thread, so the pool decodes it.
        let body = x("BOOL", "[20000]", &format!("[{}true]", "true,".repeat(19_999)));
        let answered =
            tokio::time::timeout(Duration::from_secs(5), infer(&app, "identity_bool", &body)).await;
        let waiting = gate.waiting();
        gate.open();
        assert_eq!(
            answered.map(|answer| answer.status).ok(),
            Some(StatusCode::OK),
            "{inputs}"
        );
        assert_eq!(waiting, 1, "{inputs}");
        for copy in copies {
            let expected = if inputs == 1 {
                StatusCode::OK
            } else {
                StatusCode::BAD_REQUEST
            };
            assert_eq!(copy.await.unwrap(), expected);
        }
    }
}
