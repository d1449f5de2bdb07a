//! Tests that connections with work move to other threads, and busy connections to a third group of threads.

use std::{
    io::{Read, Write},
    net::TcpStream,
    thread,
    time::Duration,
};

use bytes::Bytes;
use h2::client::SendRequest;
use http::Request;
use oip_listen::{ConnectionLimits, Lanes, Protocol};
use tokio::runtime::{Builder, Runtime};

use crate::{
    connection_limits::connect,
    support::{Server, limits, read_answer},
};

const LARGE: usize = 1 << 20;

/// A pause longer than the time for which a connection counts as busy.
const PAUSE: Duration = Duration::from_millis(1100);

/// Returns a runtime with one thread, called `name`.
fn thread(name: &str) -> Runtime {
    let mut builder = Builder::new_multi_thread();
    builder
        .worker_threads(1)
        .thread_name(name)
        .enable_all()
        .build()
        .unwrap()
}

fn lanes() -> ([Runtime; 2], ConnectionLimits) {
    let runtimes = [thread("work"), thread("busy")];
    let limits = limits().with(|limits| {
        let [work, busy] = &runtimes;
        limits.lanes = Some(Lanes::new(work.handle().clone(), busy.handle().clone()));
        limits.idle_timeout = 10 * PAUSE;
    });
    (runtimes, limits)
}

/// Sends a body and returns the name of the thread that read it.
fn thread_for(stream: &mut TcpStream, len: usize) -> String {
    let head = format!("POST /thread HTTP/1.1\r\nHost: x\r\nContent-Length: {len}\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(&vec![b'x'; len]).unwrap();
    name_in(&read_answer(stream, "!"))
}

/// Sends large bodies until the server has more to read than one turn allows. The number of bodies depends on
/// how fast client and server are.
fn make_busy(stream: &mut TcpStream) {
    let is_busy = (0..100).any(|_| thread_for(stream, LARGE) == "busy");
    assert!(is_busy, "never busy");
}

fn thread_for_get(stream: &mut TcpStream) -> String {
    stream
        .write_all(b"GET /thread HTTP/1.1\r\nHost: x\r\n\r\n")
        .unwrap();
    name_in(&read_answer(stream, "!"))
}

fn name_in(answer: &str) -> String {
    let (head, name) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200"), "{answer}");
    name.trim_end_matches('!').to_owned()
}

#[test]
fn connections_go_where_they_belong() {
    let (_runtimes, limits) = lanes();
    let server = Server::start(Protocol::Http1, limits);
    let (mut one, mut other) = (server.connect(), server.connect());
    let front = thread_for_get(&mut one);
    assert!(front != "work" && front != "busy", "{front}");
    assert_eq!(thread_for(&mut one, 10), "work");
    assert_eq!(
        thread_for_get(&mut one),
        "work",
        "its next request may be more work"
    );
    make_busy(&mut one);
    assert_eq!(thread_for(&mut one, 10), "busy", "it may send more");
    assert_eq!(thread_for_get(&mut other), front);
    assert_eq!(thread_for(&mut other, 10), "work");
    thread::sleep(PAUSE);
    thread_for(&mut one, 10);
    assert_eq!(thread_for(&mut one, 10), "work");
    make_busy(&mut one);
    drop((one, other));
    server.shutdown.drain();
    assert_eq!(server.join(), 0);
}

async fn thread_over_http2(client: &mut SendRequest<Bytes>, len: usize) -> String {
    let request = Request::post("http://x/thread").body(()).unwrap();
    let (answer, mut stream) = client.send_request(request, false).unwrap();
    let mut rest = vec![b'x'; len];
    while !rest.is_empty() {
        stream.reserve_capacity(rest.len());
        let room = std::future::poll_fn(|cx| stream.poll_capacity(cx)).await;
        let room = room.unwrap().unwrap().min(rest.len());
        let piece = rest.drain(..room).collect::<Vec<u8>>();
        stream.send_data(piece.into(), rest.is_empty()).unwrap();
    }
    let mut body = answer.await.unwrap().into_body();
    let name = body.data().await.unwrap().unwrap();
    String::from_utf8(name.to_vec()).unwrap()
}

#[test]
fn streams_go_where_their_connection_is() {
    let (_runtimes, limits) = lanes();
    let server = Server::start(Protocol::Http2, limits);
    let client = Builder::new_current_thread().enable_all().build().unwrap();
    client.block_on(async {
        let mut client = connect(&server).await;
        let first = thread_over_http2(&mut client, 10).await;
        assert!(first != "work!" && first != "busy!", "{first}");
        let mut tries = 0;
        while thread_over_http2(&mut client, LARGE).await != "busy!" {
            tries += 1;
            assert!(tries < 100, "never busy");
        }
        assert_eq!(thread_over_http2(&mut client, 10).await, "busy!");
        tokio::time::sleep(PAUSE).await;
        thread_over_http2(&mut client, 10).await;
        assert_eq!(thread_over_http2(&mut client, 10).await, "work!");
    });
    server.shutdown.drain();
    assert_eq!(server.join(), 0);
}

/// Blocked work threads do not delay health checks.
#[test]
fn the_front_answers_while_all_others_are_held_up() {
    let (runtimes, limits) = lanes();
    let server = Server::start(Protocol::Http1, limits);
    let mut worker = server.connect();
    assert_eq!(thread_for(&mut worker, 10), "work");
    let (held, hold) = std::sync::mpsc::channel::<()>();
    let hold = std::sync::Arc::new(std::sync::Mutex::new(hold));
    for runtime in &runtimes {
        let hold = hold.clone();
        runtime.spawn(async move {
            let _ = hold.lock().map(|hold| hold.recv());
        });
    }
    for _ in 0..100 {
        server.canary();
    }
    drop(held);
    assert_eq!(thread_for(&mut worker, 10), "work");
}

/// The connections of a lane end with its runtime. Connections of other lanes continue.
#[test]
fn a_lane_that_ends_takes_nobody_with_it() {
    let ([work, busy], limits) = lanes();
    let server = Server::start(Protocol::Http1, limits);
    let (mut large, mut small) = (server.connect(), server.connect());
    make_busy(&mut large);
    assert_eq!(thread_for(&mut small, 10), "work");
    busy.shutdown_background();
    assert!(!matches!(large.read(&mut [0]), Ok(1..)));
    assert_eq!(thread_for(&mut small, 10), "work");
    work.shutdown_background();
    assert!(!matches!(small.read(&mut [0]), Ok(1..)));
    server.canary();
}
