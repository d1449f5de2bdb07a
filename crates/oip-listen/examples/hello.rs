//! Says hello over HTTP, and stops gracefully after a while.
//!
//! ```sh
//! cargo run --package oip-listen --example hello & sleep 1; curl http://127.0.0.1:8080/
//! ```
#![allow(clippy::print_stdout, reason = "an example talks to its reader")]

use std::{convert::Infallible, time::Duration};

use bytes::Bytes;
use http_body_util::Full;
use oip_listen::{ConnectionLimits, Protocol, Shutdown, listen, serve};

#[tokio::main(flavor = "current_thread")]
async fn main() -> std::io::Result<()> {
    let listener = listen(([127, 0, 0, 1], 8080).into())?;
    let service = tower::service_fn(|_request| async {
        Ok::<_, Infallible>(http::Response::new(Full::new(Bytes::from("hello\n"))))
    });
    let shutdown = Shutdown::new();
    let server = tokio::spawn(serve(
        listener,
        Protocol::Http1,
        service,
        ConnectionLimits::default(),
        shutdown.clone(),
    ));
    tokio::time::sleep(Duration::from_secs(60)).await;
    // The server stops accepting connections; open requests still get responses.
    shutdown.drain();
    println!("{} connections had to be cut", server.await?);
    Ok(())
}
