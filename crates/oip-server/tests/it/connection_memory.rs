//! Tests for memory that a client shares over a plain Unix socket, including hostile clients.

use std::{
    fs::{self, File},
    io::{self, IoSlice, Read, Write},
    mem::MaybeUninit,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
    path::PathBuf,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use attack_kit::models;
use oip_client::{GrpcClient, InferenceClient};
use oip_types::{InferRequest, ModelRef, SharedMemoryRegion, SharedMemorySlice};
use rustix::{
    fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create},
    net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg},
};
use tempfile::TempDir;
use tensor_core::{Shape, Tensor};

use crate::support::Server;

/// A server with an identity model. Its admin address is a Unix socket.
struct TestServer {
    server: Server,
    path: PathBuf,
    _folder: TempDir,
}

impl TestServer {
    fn start(options: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let repository = folder.path().join("models");
        models::write(&repository, 1 << 10).unwrap();
        let path = folder.path().join("s");
        let address = format!("unix:{}", path.display());
        let mut arguments = vec!["--log", "off", "--admin-address", &address];
        arguments.extend(options);
        let mut server = Server::start(&repository, &arguments);
        server.wait_until_loaded();
        Self {
            server,
            path,
            _folder: folder,
        }
    }

    fn connect(&self) -> Client {
        let stream = UnixStream::connect(&self.path).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        Client(stream)
    }

    /// Opens a connection with a region of `bytes`; returns the connection and the client's view of the
    /// region.
    fn with_region(&self, bytes: u64) -> (Client, File) {
        let memory = memory(bytes, SIZE);
        let mut client = self.connect();
        client.pass(REGISTER, &[memory.as_fd()]);
        let (status, body) = client.answer();
        assert_eq!(
            (status, body),
            (200, format!(r#"{{"byte_size":{bytes},"region":"$connection"}}"#))
        );
        (client, File::from(memory))
    }

    fn descriptors(&self) -> usize {
        let folder = format!("/proc/{}/fd", self.server.child.id());
        fs::read_dir(folder).unwrap().count()
    }

    /// Returns the number of descriptors that the server has open without clients. Some descriptors stay open
    /// after the first clients, so clients connect and disconnect before the count.
    fn idle(&self) -> usize {
        self.with_region(4096);
        self.connect().ask(&echo("$connection", 0, 1));
        self.settles(usize::MAX - 1);
        thread::sleep(Duration::from_millis(50));
        self.descriptors()
    }

    /// Returns the number of mappings of passed memory.
    fn mappings(&self) -> usize {
        let maps = fs::read_to_string(format!("/proc/{}/maps", self.server.child.id())).unwrap();
        let is_passed = |line: &&str| {
            ["/memfd:passed", "/memfd:tensor-mmap"]
                .iter()
                .any(|name| line.contains(name))
        };
        maps.lines().filter(is_passed).count()
    }

    /// Waits until connections are closed and all their resources are released.
    fn settles(&self, descriptors: usize) {
        let start = Instant::now();
        loop {
            let (_, metrics) = self.connect().get("/metrics");
            let mut lines = metrics.lines();
            let used = lines
                .find_map(|line| line.strip_prefix("oip_memory_budget_used_bytes "))
                .unwrap()
                .to_owned();
            let found = (self.mappings(), used, self.descriptors());
            // The connection that queries the budget may still be open.
            if found.0 == 0 && found.1 == "0" && found.2 <= descriptors + 1 {
                return;
            }
            assert!(
                start.elapsed() < Duration::from_secs(20),
                "{found:?}, of {descriptors}"
            );
            thread::sleep(Duration::from_millis(10));
        }
    }
}

struct Client(UnixStream);

impl Client {
    /// Sends bytes with descriptors attached.
    fn pass(&mut self, bytes: &str, descriptors: &[BorrowedFd<'_>]) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(descriptors)));
        }
        let parts = [IoSlice::new(bytes.as_bytes())];
        let sent = sendmsg(&self.0, &parts, &mut control, SendFlags::NOSIGNAL).unwrap();
        assert_eq!(sent, bytes.len());
    }

    fn answer(&mut self) -> (u16, String) {
        self.try_answer().unwrap()
    }

    fn try_answer(&mut self) -> io::Result<(u16, String)> {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            self.0.read_exact(&mut byte)?;
            head.push(byte[0]);
        }
        let head = String::from_utf8(head).unwrap().to_ascii_lowercase();
        let length = head
            .split("content-length: ")
            .nth(1)
            .and_then(|rest| rest.lines().next());
        let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
        self.0.read_exact(&mut body)?;
        Ok((
            head[9..12].parse().unwrap(),
            String::from_utf8_lossy(&body).into_owned(),
        ))
    }

    fn get(&mut self, path: &str) -> (u16, String) {
        write!(self.0, "GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        self.answer()
    }

    fn ask(&mut self, json: &str) -> (u16, String) {
        self.0.write_all(infer(json).as_bytes()).unwrap();
        self.answer()
    }
}

const SIZE: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

const REGISTER: &str =
    "POST /v2/connectionsharedmemory/register HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n";

const HEALTH: &str = "GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n";

fn memory(bytes: u64, seals: SealFlags) -> OwnedFd {
    let file = memfd_create("passed", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&file, bytes).unwrap();
    fcntl_add_seals(&file, seals).unwrap();
    file
}

fn infer(json: &str) -> String {
    let head = "POST /v2/models/echo/infer HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n";
    format!("{head}Content-Length: {}\r\n\r\n{json}", json.len())
}

/// Returns a request for a slice of a region, with a JSON response.
fn echo(region: &str, offset: u64, bytes: u64) -> String {
    let slice = slice(region, offset, bytes);
    format!(r#"{{"inputs":[{{"name":"x","datatype":"UINT8","shape":[{bytes}],"parameters":{{{slice}}}}}]}}"#)
}

fn slice(region: &str, offset: u64, bytes: u64) -> String {
    format!(
        r#""shared_memory_region":"{region}","shared_memory_offset":{offset},"shared_memory_byte_size":{bytes}"#
    )
}

fn write_at(file: &File, offset: u64, bytes: &[u8]) {
    std::os::unix::fs::FileExt::write_all_at(file, bytes, offset).unwrap();
}

fn read_at(file: &File, offset: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    std::os::unix::fs::FileExt::read_exact_at(file, &mut bytes, offset).unwrap();
    bytes
}

#[test]
fn tensors_go_in_and_out_and_only_over_their_connection() {
    let served = TestServer::start(&[]);
    let idle = served.idle();
    let (mut client, memory) = served.with_region(1 << 20);
    write_at(&memory, 1000, &[1, 2, 3]);
    let (status, body) = client.ask(&echo("$connection", 1000, 3));
    assert!(status == 200 && body.contains("[1,2,3]"), "{status} {body}");

    // An output is written into its own slice, or into an area that large outputs share.
    let large = vec![7; 20_000];
    write_at(&memory, 0, &large);
    let input = echo("$connection", 0, 20_000);
    let input = input.strip_suffix('}').unwrap();
    let output = slice("$connection", 50_001, 20_000);
    let (status, body) = client.ask(&format!(
        r#"{input},"outputs":[{{"name":"y","parameters":{{{output}}}}}]}}"#
    ));
    assert!(
        status == 200 && body.contains(r#""shared_memory_offset":50001"#),
        "{status} {body}"
    );
    assert_eq!(
        read_at(&memory, 50_000, 20_002),
        [&[0][..], &large, &[0]].concat()
    );
    let area = slice("$connection", 100_001, 30_000);
    let (status, body) = client.ask(&format!(r#"{input},"parameters":{{{area}}}}}"#));
    assert!(
        status == 200 && body.contains(r#""shared_memory_offset":100032"#),
        "{status} {body}"
    );
    assert_eq!(read_at(&memory, 100_032, 20_000), large);
    // An output too large for the area is returned normally.
    let area = slice("$connection", 200_000, 19_000);
    let (status, body) = client.ask(&format!(r#"{input},"parameters":{{{area}}}}}"#));
    assert!(status == 200 && body.contains("[7,7,7"), "{status}");

    // Other connections cannot use the region under any name.
    for mut other in [served.connect(), served.with_region(4096).0] {
        let (status, body) = other.ask(&echo("$connection", 50_000, 20_000));
        assert_eq!(status, 400, "{body}");
    }
    assert_eq!(served.connect().ask(&echo("", 0, 3)).0, 400);
    let by_port = served.server.request(
        "POST",
        "/v2/models/echo/infer",
        &[],
        echo("$connection", 0, 3).as_bytes(),
    );
    let message = by_port.json()["error"].as_str().unwrap().to_owned();
    assert!(
        message
            .ends_with("shared memory region '$connection': this connection has no shared memory of its own"),
        "{message}"
    );

    // Slices outside the region are rejected.
    for (offset, bytes) in [
        (1 << 20, 1),
        (0, (1 << 20) + 1),
        (u64::MAX, 2),
        (i64::MAX as u64, 1),
        (2, u64::MAX),
    ] {
        let (status, body) = client.ask(&echo("$connection", offset, bytes));
        assert_eq!(status, 400, "{offset} {bytes}: {body}");
        for place in [
            format!(
                r#""outputs":[{{"name":"y","parameters":{{{}}}}}]"#,
                slice("$connection", offset, bytes)
            ),
            format!(r#""parameters":{{{}}}"#, slice("$connection", offset, bytes)),
        ] {
            let (status, body) = client.ask(&format!("{input},{place}}}"));
            assert_eq!(status, 400, "{place}: {body}");
        }
    }
    // The connection stays usable, and a second region is rejected.
    assert_eq!(client.ask(&echo("$connection", 1000, 3)).0, 200);
    client.pass(REGISTER, &[memory.as_fd()]);
    assert_eq!(client.answer().0, 400);
    assert_eq!(served.mappings(), 1);
    drop(client);
    served.settles(idle);
}

/// Descriptors of other objects are rejected and closed.
#[test]
fn other_descriptors_are_refused() {
    let served = TestServer::start(&["--memory-budget", "64MiB"]);
    let idle = served.idle();
    let (reader, writer) = io::pipe().unwrap();
    let file = tempfile::tempfile().unwrap();
    file.set_len(4096).unwrap();
    let read_only = {
        let writable = memory(4096, SIZE);
        File::open(format!("/proc/self/fd/{}", writable.as_raw_fd())).unwrap()
    };
    let mut passed: Vec<(OwnedFd, u16)> = vec![
        (writer.into(), 400),
        (file.into(), 400),
        (UnixStream::pair().unwrap().0.into(), 400),
        (memory(4096, SealFlags::empty()), 400),
        (memory(4096, SealFlags::SHRINK | SealFlags::SEAL), 400),
        (memory(4096, SealFlags::GROW | SealFlags::SEAL), 400),
        (memory(4096, SealFlags::SHRINK | SealFlags::GROW), 400),
        (memory(4096, SIZE | SealFlags::WRITE), 400),
        (read_only.into(), 400),
        (memory(0, SIZE), 400),
        // All regions together may use a quarter of the budget.
        (memory((16 << 20) + 1, SIZE), 413),
        (memory(1 << 50, SIZE), 413),
    ];
    let huge = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
    if let Ok(file) = memfd_create("passed", huge)
        && ftruncate(&file, 2 << 20).is_ok()
    {
        fcntl_add_seals(&file, SIZE).unwrap();
        passed.push((file, 400));
    }
    let mut clients = Vec::new();
    for (descriptor, expected) in passed {
        let mut client = served.connect();
        client.pass(REGISTER, &[descriptor.as_fd()]);
        let (status, body) = client.answer();
        assert_eq!(status, expected, "{body}");
        assert!(
            body.contains("shared memory region '$connection': expected "),
            "{body}"
        );
        // From then on, the connection has no region.
        assert_eq!(client.ask(&echo("$connection", 0, 1)).0, 400);
        clients.push(client);
    }
    assert_eq!(served.mappings(), 0);
    let found = served.descriptors();
    assert!(
        found <= idle + clients.len(),
        "{found}, of {idle} and {}",
        clients.len()
    );
    // The server has closed its end of the pipe, and no other process holds that end.
    let mut rest = Vec::new();
    (&reader).read_to_end(&mut rest).unwrap();
    drop(clients);

    // As many regions as fit into a quarter of the budget, and one more.
    let full: Vec<_> = (0..4).map(|_| served.with_region(4 << 20)).collect();
    let mut client = served.connect();
    client.pass(REGISTER, &[memory(4096, SIZE).as_fd()]);
    assert_eq!(client.answer().0, 429);
    drop(full);
    drop(client);
    served.settles(idle);
    served.with_region(16 << 20);
}

/// Checks that unsolicited descriptors are closed: several in one message, descriptors with other or later
/// requests, and large numbers of them.
#[test]
fn surplus_descriptors_do_not_accumulate() {
    let served = TestServer::start(&[]);
    let idle = served.idle();
    let good = memory(4096, SIZE);
    let mut clients = Vec::new();
    for count in [0, 2, 3, 253] {
        let mut client = served.connect();
        client.pass(REGISTER, &vec![good.as_fd(); count]);
        let (status, body) = client.answer();
        assert_eq!(status, 400, "{count} {body}");
        assert!(body.contains("expected one descriptor"), "{body}");
        clients.push(client);
    }
    // Descriptors are sent with a request that does not register a region, and with all later ones.
    let mut client = served.connect();
    for _ in 0..100 {
        client.pass(HEALTH, &[good.as_fd(); 50]);
        assert_eq!(client.answer().0, 200);
    }
    client.pass(REGISTER, &[good.as_fd()]);
    assert_eq!(client.answer().0, 400);
    clients.push(client);
    // The registration is sent in pieces, with one descriptor at first and several at the end; many later
    // requests also have descriptors.
    let mut client = served.connect();
    let (start, end) = REGISTER.split_at(20);
    client.pass(start, &[good.as_fd()]);
    thread::sleep(Duration::from_millis(50));
    client.pass(end, &[good.as_fd(); 7]);
    assert_eq!(client.answer().0, 200);
    for _ in 0..100 {
        client.pass(HEALTH, &[good.as_fd(); 50]);
        assert_eq!(client.answer().0, 200);
    }
    assert_eq!(client.ask(&echo("$connection", 0, 1)).0, 200);
    assert_eq!(served.mappings(), 1);
    clients.push(client);
    // Descriptors are sent with half a request, and with pipelined requests.
    let mut client = served.connect();
    client.pass("POST /v2/conn", &[good.as_fd(); 200]);
    clients.push(client);
    let mut client = served.connect();
    client.pass(&format!("{REGISTER}{REGISTER}{HEALTH}"), &[good.as_fd()]);
    let statuses = [client.answer().0, client.answer().0, client.answer().0];
    assert_eq!(statuses, [200, 400, 200]);
    clients.push(client);
    thread::sleep(Duration::from_millis(100));
    let found = served.descriptors();
    assert!(
        found <= idle + clients.len() + 1,
        "{found}, of {idle} and {}",
        clients.len()
    );
    drop(clients);
    served.settles(idle);
}

/// A client that changes its memory concurrently gets a response with arbitrary bytes; one that is killed
/// leaves nothing behind.
#[test]
fn what_the_client_does_meanwhile_harms_nobody() {
    const BYTES: u64 = 4 << 20;
    let served = TestServer::start(&[]);
    let idle = served.idle();
    let (mut client, memory) = served.with_region(2 * BYTES);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let (ones, zeros) = (vec![1; 1 << 20], vec![0; 1 << 20]);
            while !is_over.load(Ordering::Relaxed) {
                write_at(&memory, 0, &ones);
                write_at(&memory, 2 << 20, &zeros);
                let holes = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
                rustix::fs::fallocate(&memory, holes, 0, 2 * BYTES).unwrap();
            }
        });
        let input = echo("$connection", 0, BYTES);
        let input = input.strip_suffix('}').unwrap();
        let area = slice("$connection", BYTES, BYTES);
        for _ in 0..20 {
            let (status, body) = client.ask(&format!(r#"{input},"parameters":{{{area}}}}}"#));
            assert!(
                status == 200 && body.contains(r#""shared_memory_offset":4194304"#),
                "{status} {body}"
            );
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert!(ftruncate(&memory, 0).is_err());
    drop(client);
    served.settles(idle);

    // The client is killed in the middle of a request: its sockets are closed without a response.
    for round in 0..30 {
        let (mut client, memory) = served.with_region(2 * BYTES);
        let input = echo("$connection", 0, BYTES);
        let input = input.strip_suffix('}').unwrap();
        let area = slice("$connection", BYTES, BYTES);
        client.pass(&infer(&format!(r#"{input},"parameters":{{{area}}}}}"#)), &[]);
        thread::sleep(Duration::from_micros(300 * round));
        drop((client, memory));
    }
    served.settles(idle);
    assert_eq!(served.server.get("/v2/health/live").status, 200);
}

/// The operator can disable shared memory; by default, only the memory of connections is enabled.
#[test]
fn the_switch_of_system_shared_memory_turns_it_off() {
    for (options, expected) in [
        (&[][..], [200, 501]),
        (&["--system-shared-memory"], [200, 200]),
        (&["--system-shared-memory=false"], [501, 501]),
    ] {
        let served = TestServer::start(options);
        let mut client = served.connect();
        let memory = memory(4096, SIZE);
        client.pass(REGISTER, &[memory.as_fd()]);
        let status = client.answer().0;
        let system = served.connect().get("/v2/systemsharedmemory/status").0;
        assert_eq!([status, system], expected, "{options:?}");
        let name = "POST /v2/systemsharedmemory/region/$connection/register HTTP/1.1\r\nHost: x\r\n";
        let body = r#"{"key":"/k","offset":0,"byte_size":8}"#;
        let mut other = served.connect();
        other.pass(
            &format!("{name}Content-Length: {}\r\n\r\n{body}", body.len()),
            &[],
        );
        let (named, message) = other.answer();
        assert_eq!(named, if expected[1] == 200 { 400 } else { 501 });
        if expected[1] == 200 {
            assert!(message.contains("the name '$connection' stands for"), "{message}");
        }
        // If shared memory is disabled, no passed memory is kept.
        assert_eq!(served.mappings(), usize::from(status == 200));
    }
}

/// gRPC clients use the connection's memory automatically; descriptors that register no memory are closed.
#[tokio::test(flavor = "multi_thread")]
async fn calls_of_grpc_have_regions_of_their_connections() {
    let served = TestServer::start(&[]);
    let idle = served.idle();
    let url = format!("grpc+unix://{}", served.path.display());
    let client = GrpcClient::builder(url).build().unwrap();
    let model = ModelRef::new("echo", None).unwrap();
    let request = |bytes: u64| {
        let x = Tensor::from_vec(Shape::vector(bytes), vec![7u8; bytes as usize]).unwrap();
        InferRequest::new(model).with_input("x", x)
    };
    for bytes in [1_000, 200_000, 100_000] {
        let request = request(bytes);
        let response = client.infer(&request).await.unwrap();
        assert_eq!(response.outputs[0].value, request.inputs[0].value);
        assert_eq!(served.mappings(), usize::from(bytes > 1_000));
    }
    // Other connections cannot use the region, and cannot register it later or as a system region.
    let mut elsewhere = request(1_000);
    let slice = SharedMemorySlice {
        region: "$connection".to_owned(),
        offset: 0,
        byte_size: 1_000,
    };
    elsewhere.inputs[0].parameters.extend(slice.to_parameters());
    let error = client.infer(&elsewhere).await.unwrap_err();
    let expected = "shared memory region '$connection': this connection has no shared memory of its own";
    assert!(error.message().ends_with(expected), "{error}");
    let region = SharedMemoryRegion {
        name: "$connection".to_owned(),
        key: "/k".to_owned(),
        offset: 0,
        byte_size: 8,
    };
    assert!(client.register_shared_memory(&region).await.is_err());
    drop(client);
    served.settles(idle);
    // Descriptors are sent with the connection preface and with pings.
    const PREFACE: &str = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    const PING: &str = "\0\0\x08\x06\0\0\0\0\0abcdefgh";
    for _ in 0..3 {
        let mut client = served.connect();
        let memory = memory(4096, SIZE);
        client.pass(PREFACE, &[memory.as_fd()]);
        for _ in 0..20 {
            client.pass(PING, &[memory.as_fd(); 3]);
        }
        let mut answer = [0; 64];
        assert!(client.0.read(&mut answer).unwrap() > 0);
        // Connections closed by the client may still be open on the server; 61 descriptors were passed each
        // time.
        assert!(served.descriptors() <= idle + 10);
        assert_eq!(served.mappings(), 0);
    }
    served.settles(idle);
    assert_eq!(served.server.get("/v2/health/live").status, 200);
}
