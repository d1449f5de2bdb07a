//! A bare gRPC echo over tonic: the baseline for the overhead of an inference server
//! (`cargo xtask bench serve`). It returns each request's raw tensors, using tonic's generated messages and
//! none of this crate's server code.
#![allow(clippy::print_stdout, reason = "a program says where it listens")]

use std::convert::Infallible;

use http::Request;
use hyper::{body::Incoming, server::conn::http2, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use oip_grpc::proto::{ModelInferRequest, ModelInferResponse, model_infer_response::InferOutputTensor};
use tokio::net::TcpListener;
use tonic::{Response, Status, server::UnaryService};
use tonic_prost::ProstCodec;

fn main() -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        println!("listening on {}", listener.local_addr()?);
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            let connection = http2::Builder::new(TokioExecutor::new())
                .initial_stream_window_size(1 << 20)
                .initial_connection_window_size(1 << 20)
                .serve_connection(TokioIo::new(stream), service_fn(answer));
            // The task ends when the client disconnects.
            tokio::spawn(connection);
        }
    })
}

async fn answer(request: Request<Incoming>) -> Result<http::Response<tonic::body::Body>, Infallible> {
    let codec = ProstCodec::<ModelInferResponse, ModelInferRequest>::default();
    let mut grpc = tonic::server::Grpc::new(codec).max_decoding_message_size(1 << 30);
    Ok(grpc.unary(Echo, request).await)
}

struct Echo;

impl UnaryService<ModelInferRequest> for Echo {
    type Response = ModelInferResponse;
    type Future = std::future::Ready<Result<Response<ModelInferResponse>, Status>>;

    fn call(&mut self, request: tonic::Request<ModelInferRequest>) -> Self::Future {
        let request = request.into_inner();
        let outputs = request.inputs.into_iter().map(|input| InferOutputTensor {
            name: input.name,
            datatype: input.datatype,
            shape: input.shape,
            ..InferOutputTensor::default()
        });
        std::future::ready(Ok(Response::new(ModelInferResponse {
            model_name: request.model_name,
            model_version: "1".to_owned(),
            id: request.id,
            outputs: outputs.collect(),
            raw_output_contents: request.raw_input_contents,
            ..ModelInferResponse::default()
        })))
    }
}
