//! A bare echo over tonic: the floor that the costs of an inference server over gRPC are held against (`cargo xtask bench serve`).
//! It decodes each request with generated code, and gives its tensors back.
#![allow(clippy::print_stdout, reason = "a program says where it listens")]

use std::{
    convert::Infallible,
    future::{Ready, ready},
};

use http::{Request, Response};
use hyper::{body::Incoming, server::conn::http2, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use oip_grpc::proto::{ModelInferRequest, ModelInferResponse, model_infer_response::InferOutputTensor};
use tokio::net::TcpListener;
use tonic::server::{Grpc, UnaryService};

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
                .max_frame_size(64 << 10)
                .serve_connection(TokioIo::new(stream), service_fn(echo));
            // It ends when the client leaves.
            tokio::spawn(connection);
        }
    })
}

async fn echo(request: Request<Incoming>) -> Result<Response<tonic::body::Body>, Infallible> {
    const LIMIT: usize = 64 << 20;
    let mut calls = Grpc::new(tonic_prost::ProstCodec::default()).max_decoding_message_size(LIMIT);
    Ok(calls.unary(Echo, request).await)
}

struct Echo;

impl UnaryService<ModelInferRequest> for Echo {
    type Response = ModelInferResponse;
    type Future = Ready<Result<tonic::Response<ModelInferResponse>, tonic::Status>>;

    fn call(&mut self, request: tonic::Request<ModelInferRequest>) -> Self::Future {
        let request = request.into_inner();
        let outputs = request.inputs.into_iter().map(|input| InferOutputTensor {
            name: input.name,
            datatype: input.datatype,
            shape: input.shape,
            ..InferOutputTensor::default()
        });
        ready(Ok(tonic::Response::new(ModelInferResponse {
            model_name: request.model_name,
            outputs: outputs.collect(),
            raw_output_contents: request.raw_input_contents,
            ..ModelInferResponse::default()
        })))
    }
}
