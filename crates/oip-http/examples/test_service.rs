//! Serves `oip_service::testing::TestService`, every model and extension of it, for tools that try a server from outside:
//!
//! ```sh
//! cargo run --package oip-http --example test_service -- 8080 9000
//! ```
//!
//! docs/reliability.md says which tools those are, and what they found.

use std::{net::SocketAddr, sync::Arc};

use oip_grpc::GrpcConfig;
use oip_http::HttpConfig;
use oip_listen::{Limits, Protocol, Shutdown, listen, serve};
use oip_service::testing::TestService;

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let port = |position: usize, default: u16| {
        let argument = std::env::args().nth(position);
        SocketAddr::from((
            [127, 0, 0, 1],
            argument.and_then(|port| port.parse().ok()).unwrap_or(default),
        ))
    };
    let service = Arc::new(TestService::default());
    service.share("/inputs", vec![0; 1 << 20]);
    let shutdown = Shutdown::new();
    let http = oip_http::router(service.clone(), HttpConfig::default());
    let grpc = oip_grpc::service(service, GrpcConfig::default());
    let http = serve(
        listen(port(1, 8080))?,
        Protocol::Http1,
        http,
        Limits::default(),
        shutdown.clone(),
    );
    let grpc = serve(
        listen(port(2, 9000))?,
        Protocol::Http2,
        grpc,
        Limits::default(),
        shutdown,
    );
    tokio::join!(http, grpc);
    Ok(())
}
