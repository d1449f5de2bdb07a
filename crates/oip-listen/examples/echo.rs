//! A bare HTTP echo server on hyper, without the limits of this crate: the baseline for the overhead of an
//! inference server (`cargo xtask bench serve`). The server returns the body of each request.
#![allow(clippy::print_stdout, reason = "a program says where it listens")]

use bytes::{Buf, Bytes};
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

fn main() -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        println!("listening on {}", listener.local_addr()?);
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service_fn(echo));
            // The task ends when the client disconnects.
            tokio::spawn(connection);
        }
    })
}

async fn echo(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, hyper::Error> {
    let mut body = request.into_body().collect().await?.aggregate();
    Ok(Response::new(Full::new(body.copy_to_bytes(body.remaining()))))
}
