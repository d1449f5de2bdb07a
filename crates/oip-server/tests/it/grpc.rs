//! Tests gRPC over a real connection.

use std::{
    thread,
    time::{Duration, Instant},
};

use oip_grpc::proto::{
    ModelInferRequest, ServerLiveRequest, grpc_inference_service_client::GrpcInferenceServiceClient,
};
use tokio::sync::mpsc;
use tonic::{
    Code, Request, Status,
    codegen::tokio_stream::Stream,
    transport::{Channel, Endpoint},
};

use crate::support::{Server, connect};

type Client = GrpcInferenceServiceClient<Channel>;

async fn client(server: &Server) -> Client {
    let endpoint = Endpoint::from_shared(format!("http://{}", server.grpc)).unwrap();
    GrpcInferenceServiceClient::new(endpoint.connect().await.unwrap())
}

fn empty_server() -> (Server, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let mut server = Server::start(folder.path(), &[]);
    server.wait_until_loaded();
    (server, folder)
}

async fn is_live(client: &mut Client) -> Result<bool, Status> {
    let answer = client.server_live(ServerLiveRequest {}).await?;
    Ok(answer.into_inner().live)
}

/// Metadata beyond the limit is rejected, and the server continues.
#[tokio::test]
async fn metadata_beyond_the_limit() {
    let (server, _folder) = empty_server();
    let with = |bytes: usize| {
        let mut request = Request::new(ServerLiveRequest {});
        let value = "x".repeat(bytes).parse().unwrap();
        request.metadata_mut().insert("large", value);
        request
    };
    let mut good = client(&server).await;
    // Some large organisations' tokens exceed 8 KiB.
    assert!(good.server_live(with(31 << 10)).await.unwrap().get_ref().live);
    let status = good.server_live(with(33 << 10)).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert!(
        status.message().ends_with("bytes, the limit is 32768"),
        "{status:?}"
    );
    // The stream or the connection is rejected; in both cases only this call fails.
    let status = client(&server)
        .await
        .server_live(with(1 << 20))
        .await
        .unwrap_err();
    assert_ne!(status.code(), Code::Ok);
    assert!(is_live(&mut good).await.unwrap());
}

/// With all file descriptors used up, the gRPC port neither spins nor dies, and recovers.
#[test]
fn no_file_descriptors_left() {
    let (server, _folder) = Server::with_descriptors(64, 64, &[]);
    let crowd: Vec<_> = (0..200).map(|_| connect(server.grpc)).collect();
    thread::sleep(Duration::from_millis(300));
    let before = server.cpu_time();
    thread::sleep(Duration::from_secs(2));
    let used = server.cpu_time() - before;
    assert!(
        used <= Duration::from_millis(200),
        "{used:?} of CPU time in two seconds of nothing to do"
    );
    drop(crowd);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let start = Instant::now();
    let recovered = async {
        while !is_live(&mut client(&server).await).await.unwrap_or(false) {
            assert!(
                start.elapsed() < Duration::from_secs(10),
                "the server did not recover"
            );
        }
    };
    runtime.block_on(recovered);
}

/// Requests that are sent one at a time.
struct Requests(mpsc::Receiver<ModelInferRequest>);

impl Stream for Requests {
    type Item = ModelInferRequest;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<ModelInferRequest>> {
        self.0.poll_recv(cx)
    }
}

/// A stream that its client keeps open does not block the shutdown.
// The client must be able to respond to the server's GOAWAY while the test waits for the process.
#[tokio::test(flavor = "multi_thread")]
async fn open_streams_are_closed_by_a_drain() {
    let (mut server, _folder) = empty_server();
    let (requests, receiver) = mpsc::channel(1);
    let mut client = client(&server).await;
    let mut answers = client
        .model_stream_infer(Requests(receiver))
        .await
        .unwrap()
        .into_inner();
    let request = ModelInferRequest {
        model_name: "none".into(),
        id: "1".into(),
        ..Default::default()
    };
    requests.send(request).await.unwrap();
    let answer = answers.message().await.unwrap().unwrap();
    assert_eq!(answer.error_message, "model 'none' does not exist");
    let start = Instant::now();
    server.signal("TERM");
    let status = answers.message().await.unwrap_err();
    assert_eq!(
        (status.code(), status.message()),
        (Code::Unavailable, "the server is shutting down")
    );
    assert_eq!(server.wait(Duration::from_secs(5)).code(), Some(0));
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
}
