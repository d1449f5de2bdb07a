//! A server of simple models for tests with clients of other projects: identities of every datatype and rank,
//! failing models, and every extension, including real shared memory. `cargo xtask interop` drives it.
//!
//! The server prints its addresses and runs until it is killed.
#![allow(clippy::print_stdout, reason = "a program says where it listens")]

use std::sync::Arc;

use oip_listen::{ConnectionLimits, Protocol, Shutdown, listen, serve};
use oip_service::{ExtendedService, InferenceService, testing::TestService};
use oip_shm::{Regions, RegionsConfig};

fn main() -> std::io::Result<()> {
    let service = ExtendedService::new(Arc::new(TestService::default()))
        .with_shared_memory(Arc::new(Regions::new(RegionsConfig::default())));
    let service: Arc<dyn InferenceService> = Arc::new(service);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let anywhere = "127.0.0.1:0".parse().map_err(std::io::Error::other)?;
        let (http, grpc) = (listen(anywhere)?, listen(anywhere)?);
        println!("HTTP  http://{}", http.local_addr()?);
        println!("gRPC  {}", grpc.local_addr()?);
        let router = oip_http::router(service.clone(), oip_http::HttpConfig::default());
        let calls = oip_grpc::service(service, oip_grpc::GrpcConfig::default());
        let shutdown = Shutdown::new();
        let http = serve(
            http,
            Protocol::Http1,
            router,
            ConnectionLimits::default(),
            shutdown.clone(),
        );
        let limits =
            ConnectionLimits::default().with(|limits| limits.conversations = &[oip_grpc::MODEL_STREAM_INFER]);
        tokio::spawn(http);
        serve(grpc, Protocol::Http2, calls, limits, shutdown).await;
        Ok(())
    })
}
