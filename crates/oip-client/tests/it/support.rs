//! Test servers: this workspace's HTTP and gRPC servers over an in-memory service, and scripted servers.

use std::{
    convert::Infallible,
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, StreamBody, combinators::UnsyncBoxBody};
use oip_client::{Builder, GrpcClient, HttpClient, InferenceClient};
use oip_grpc::GrpcConfig;
use oip_http::HttpConfig;
use oip_listen::{ConnectionLimits, Protocol, RequestBody, Shutdown, listen, serve};
use oip_service::testing::{TestService, identity};
use oip_types::{BytesTensor, DataType, InferRequest, ModelRef, TensorValue};
use prost::Message;
use tensor_core::Shape;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

/// A service with both transports on localhost.
pub(crate) struct TestServers {
    pub(crate) http: String,
    pub(crate) grpc: String,
    pub(crate) service: Arc<TestService>,
}

impl TestServers {
    pub(crate) fn new() -> Self {
        let service = Arc::new(TestService::default());
        let http = oip_http::router(service.clone(), HttpConfig::default());
        let grpc = oip_grpc::service(service.clone(), GrpcConfig::default());
        let (http_listener, http_at) = listener();
        let (grpc_listener, grpc_at) = listener();
        let (limits, shutdown) = (ConnectionLimits::default(), Shutdown::new());
        tokio::spawn(serve(
            http_listener,
            Protocol::Http1,
            http,
            limits.clone(),
            shutdown.clone(),
        ));
        tokio::spawn(serve(grpc_listener, Protocol::Http2, grpc, limits, shutdown));
        Self {
            http: format!("http://{http_at}"),
            grpc: format!("grpc://{grpc_at}"),
            service,
        }
    }

    /// Returns a client for each transport with the same options.
    pub(crate) fn clients(
        &self,
        configure: impl Fn(Builder<Box<dyn InferenceClient>>) -> Builder<Box<dyn InferenceClient>>,
    ) -> [Box<dyn InferenceClient>; 2] {
        [&self.http, &self.grpc].map(|url| configure(oip_client::builder(url)).build().unwrap())
    }
}

fn listener() -> (TcpListener, std::net::SocketAddr) {
    let listener = listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// Returns a request to the identity model.
pub(crate) fn identity_request(value: TensorValue) -> InferRequest {
    let name = identity(value.datatype());
    InferRequest::new(ModelRef::new(&name, None).unwrap()).with_input("x", value)
}

pub(crate) fn to_model(name: &str) -> InferRequest {
    let request = InferRequest::new(ModelRef::new(name, None).unwrap());
    request.with_input("x", some_values(DataType::FP32, 2))
}

/// Returns values of a datatype that reveal wrong widths, byte orders and signs.
pub(crate) fn some_values(datatype: DataType, count: u64) -> TensorValue {
    let shape = Shape::vector(count);
    let Some(dtype) = datatype.dtype() else {
        let elements = (0..count).map(|index| format!("{index}: größe \u{1F600} \"\\\n"));
        return BytesTensor::from_elements(shape, elements).unwrap().into();
    };
    let width = dtype.size();
    let byte = |index: usize| {
        let (element, place) = (index / width, index % width);
        match datatype {
            DataType::BOOL => element.is_multiple_of(3) as u8,
            // The most significant byte stays below 64, so that no float is NaN or infinite.
            _ if place + 1 == width => (element % 64) as u8,
            _ => (element * 7 + place * 31) as u8,
        }
    };
    let raw: Vec<u8> = (0..width * count as usize).map(byte).collect();
    TensorValue::from_raw(datatype, shape, raw.into()).unwrap()
}

/// A scripted HTTP server's reaction to a request.
#[derive(Clone)]
pub(crate) enum Step {
    /// Sends these bytes and keeps the connection open.
    Send(Vec<u8>),
    /// Sends these bytes and closes the connection.
    Cut(Vec<u8>),
    /// Does not respond.
    Hang,
}

/// A scripted HTTP server that repeats the last step and records requests.
pub(crate) struct ScriptedServer {
    pub(crate) url: String,
    requests: Arc<Mutex<Vec<String>>>,
}

impl ScriptedServer {
    pub(crate) fn new(steps: Vec<Step>) -> Self {
        let (listener, address) = listener();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let seen = requests.clone();
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                tokio::spawn(answer_all(stream, steps.clone(), seen.clone()));
            }
        });
        Self {
            url: format!("http://{address}"),
            requests,
        }
    }

    /// Starts a server that always gives this response.
    pub(crate) fn answering(status: &str, headers: &[(&str, &str)], body: impl AsRef<[u8]>) -> Self {
        Self::new(vec![Step::Send(answer(status, headers, body))])
    }

    pub(crate) fn client(&self) -> HttpClient {
        HttpClient::builder(&self.url).build().unwrap()
    }

    /// Returns the recorded requests: heads and bodies, as strings.
    pub(crate) fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }
}

pub(crate) fn answer(status: &str, headers: &[(&str, &str)], body: impl AsRef<[u8]>) -> Vec<u8> {
    let body = body.as_ref();
    let mut head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n", body.len());
    for (name, value) in headers {
        head += &format!("{name}: {value}\r\n");
    }
    [(head + "\r\n").as_bytes(), body].concat()
}

pub(crate) fn ok(body: &str) -> Step {
    Step::Send(answer("200 OK", &[("Content-Type", "application/json")], body))
}

async fn answer_all(mut stream: TcpStream, steps: Vec<Step>, seen: Arc<Mutex<Vec<String>>>) {
    loop {
        let mut received = Vec::new();
        let mut chunk = [0; 4096];
        let text = loop {
            let text = String::from_utf8_lossy(&received).into_owned();
            if let Some((head, _)) = text.split_once("\r\n\r\n") {
                let head = head.to_ascii_lowercase();
                let length = head
                    .lines()
                    .find_map(|line| line.strip_prefix("content-length: "));
                let length = length.map_or(0, |length| length.parse().unwrap());
                if received.len() >= head.len() + 4 + length {
                    break text;
                }
            }
            match stream.read(&mut chunk).await {
                Ok(read @ 1..) => received.extend_from_slice(&chunk[..read]),
                _ => return,
            }
        };
        let number = {
            let mut seen = seen.lock().unwrap();
            seen.push(text);
            seen.len() - 1
        };
        match steps.get(number).or(steps.last()).unwrap() {
            Step::Send(bytes) => stream.write_all(bytes).await.unwrap(),
            Step::Cut(bytes) => {
                stream.write_all(bytes).await.unwrap();
                return;
            }
            Step::Hang => tokio::time::sleep(Duration::from_secs(60)).await,
        }
    }
}

/// The frames of a scripted gRPC response.
pub(crate) type Frames = Vec<Result<http_body::Frame<Bytes>, std::io::Error>>;

/// Starts an HTTP/2 server whose responses `answer` computes from path, headers and body.
pub(crate) fn scripted_grpc(
    answer: impl Fn(&str, &HeaderMap, Bytes) -> Response<Frames> + Clone + Send + Sync + 'static,
) -> String {
    let (listener, address) = listener();
    let service = tower::service_fn(move |request: Request<RequestBody>| {
        let answer = answer.clone();
        async move {
            let (head, body) = request.into_parts();
            let body = body
                .collect()
                .await
                .map_or(Bytes::new(), http_body_util::Collected::to_bytes);
            let response = answer(head.uri.path(), &head.headers, body);
            let (head, frames) = response.into_parts();
            let body = StreamBody::new(Iter(frames.into_iter()));
            Ok::<_, Infallible>(Response::from_parts(head, UnsyncBoxBody::new(body)))
        }
    });
    tokio::spawn(serve(
        listener,
        Protocol::Http2,
        service,
        ConnectionLimits::default(),
        Shutdown::new(),
    ));
    format!("grpc://{address}")
}

/// Adapts an iterator to a stream.
struct Iter<I>(I);

impl<I: Iterator + Unpin> futures_core::Stream for Iter<I> {
    type Item = I::Item;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<I::Item>> {
        std::task::Poll::Ready(self.0.next())
    }
}

/// Returns a stream of these requests.
pub(crate) fn stream_of(requests: Vec<InferRequest>) -> oip_client::BoxStream<InferRequest> {
    Box::pin(Iter(requests.into_iter()))
}

pub(crate) fn grpc_client(url: &str) -> GrpcClient {
    GrpcClient::builder(url).build().unwrap()
}

/// Returns a gRPC response with these frames.
pub(crate) fn grpc_answer(frames: Frames) -> Response<Frames> {
    Response::builder()
        .header("content-type", "application/grpc")
        .body(frames)
        .unwrap()
}

/// Frames a message for gRPC.
pub(crate) fn data(message: &impl Message) -> Result<http_body::Frame<Bytes>, std::io::Error> {
    let bytes = message.encode_to_vec();
    let length = u32::try_from(bytes.len()).unwrap().to_be_bytes();
    Ok(http_body::Frame::data(
        [&[0][..], &length, &bytes].concat().into(),
    ))
}

/// Returns the trailers of a response.
pub(crate) fn trailers(headers: &[(&'static str, &str)]) -> Result<http_body::Frame<Bytes>, std::io::Error> {
    let mut map = HeaderMap::new();
    headers.iter().for_each(|(name, value)| {
        map.insert(*name, value.parse().unwrap());
    });
    Ok(http_body::Frame::trailers(map))
}

/// Returns a response with only a status.
pub(crate) fn grpc_status(code: i32, message: &str, more: &[(&'static str, &str)]) -> Response<Frames> {
    let mut response = grpc_answer(vec![]);
    let headers = response.headers_mut();
    headers.insert("grpc-status", code.into());
    headers.insert("grpc-message", message.parse().unwrap());
    more.iter().for_each(|(name, value)| {
        headers.insert(*name, value.parse().unwrap());
    });
    response
}
