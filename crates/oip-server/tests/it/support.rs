//! Starts the server as a process, and connects clients over plain sockets.

use std::{
    ffi::OsStr,
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    path::Path,
    process::{Child, ChildStdout, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

/// A running server; killed on drop.
pub(crate) struct Server {
    pub(crate) child: Child,
    pub(crate) http: SocketAddr,
    pub(crate) grpc: SocketAddr,
    stdout: BufReader<ChildStdout>,
}

/// A configuration file, removed on drop.
pub(crate) struct ConfigFile {
    /// The option `--config` with the path of the file.
    pub(crate) option: String,
    _file: tempfile::NamedTempFile,
}

impl ConfigFile {
    pub(crate) fn new(text: &str) -> Self {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        Self {
            option: format!("--config={}", file.path().display()),
            _file: file,
        }
    }
}

/// Returns the command that starts the server on free ports.
pub(crate) fn command(repository: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_oip-server"));
    command.arg("--model-repository").arg(repository);
    // This variable is meant only for tests with ONNX Runtime.
    command
        .env_remove("ORT_DYLIB_PATH")
        .args(["--http-address", "127.0.0.1:0", "--grpc-address", "127.0.0.1:0"])
        .args(arguments);
    command
}

impl Server {
    pub(crate) fn start(repository: &Path, arguments: &[&str]) -> Self {
        Self::spawn(&mut command(repository, arguments))
    }

    /// Starts a command that prints its addresses.
    pub(crate) fn spawn(command: &mut Command) -> Self {
        let mut child = command
            .stdout(Stdio::piped())
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut address = |transport: &str| loop {
            let mut line = String::new();
            assert!(
                stdout.read_line(&mut line).unwrap() > 0,
                "the server ended before it listened"
            );
            if let Some(address) = line.trim().strip_prefix(transport) {
                let address = address.trim().rsplit("://").next();
                return address.unwrap().parse().unwrap();
            }
        };
        let (http, grpc) = (address("HTTP"), address("gRPC"));
        Self {
            child,
            http,
            grpc,
            stdout,
        }
    }

    /// Starts a server without models, with the soft limit `now` and the hard limit `most` on descriptors.
    pub(crate) fn with_descriptors(now: u32, most: u32, arguments: &[&str]) -> (Self, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let mut shell = Command::new("sh");
        let script = format!("ulimit -Sn {now}; ulimit -Hn {most}; exec \"$0\" \"$@\"");
        shell
            .args([
                "-c",
                &script,
                env!("CARGO_BIN_EXE_oip-server"),
                "--model-repository",
            ])
            .arg(folder.path())
            .args([
                "--http-address",
                "127.0.0.1:0",
                "--grpc-address",
                "127.0.0.1:0",
                "--log",
                "off",
            ])
            .args(arguments);
        let mut server = Self::spawn(&mut shell);
        server.wait_until_loaded();
        (server, folder)
    }

    /// Waits until all models are loaded; returns the output so far.
    pub(crate) fn wait_until_loaded(&mut self) -> String {
        self.read_until(" after ")
    }

    /// Returns the output up to the line that contains `text`.
    pub(crate) fn read_until(&mut self, text: &str) -> String {
        let mut printed = String::new();
        loop {
            let mut line = String::new();
            assert!(
                self.stdout.read_line(&mut line).unwrap() > 0,
                "the server ended: {printed}"
            );
            printed += &line;
            if line.contains(text) {
                return printed;
            }
        }
    }

    /// Waits for the line that starts with `name`, and returns its address.
    pub(crate) fn wait_for_line(&mut self, name: &str) -> String {
        loop {
            let mut line = String::new();
            assert!(
                self.stdout.read_line(&mut line).unwrap() > 0,
                "the server ended before it printed {name}"
            );
            if let Some(address) = line.trim().strip_prefix(name) {
                return address.trim().rsplit("://").next().unwrap().to_owned();
            }
        }
    }

    pub(crate) fn signal(&self, name: &str) {
        let killed = Command::new("kill")
            .args(["-s", name, &self.child.id().to_string()])
            .status();
        assert!(killed.unwrap().success());
    }

    /// Waits until the process exits without a signal.
    pub(crate) fn wait(&mut self, patience: Duration) -> ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(start.elapsed() < patience, "the server did not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn connect(&self) -> TcpStream {
        connect(self.http)
    }

    /// Sends one request on a new connection.
    pub(crate) fn get(&self, path: &str) -> TestResponse {
        self.request("GET", path, &[], b"")
    }

    pub(crate) fn request(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> TestResponse {
        let mut stream = self.connect();
        send(&mut stream, method, path, headers, body);
        receive(&mut stream)
    }

    /// Returns the CPU time used by the process.
    pub(crate) fn cpu_time(&self) -> Duration {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
        let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
        Duration::from_millis(ticks * 10)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

pub(crate) struct TestResponse {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl TestResponse {
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&self.body)))
    }

    /// Returns a header's value by its lower-case name.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines
            .find(|(found, _)| found.eq_ignore_ascii_case(name))
            .map(|(_, value)| value)
    }
}

pub(crate) fn send(stream: &mut impl Write, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) {
    let mut request = format!("{method} {path} HTTP/1.1\r\nHost: test\r\n");
    if !body.is_empty() {
        request += &format!("Content-Length: {}\r\n", body.len());
    }
    for (name, value) in headers {
        request += &format!("{name}: {value}\r\n");
    }
    let mut bytes = (request + "\r\n").into_bytes();
    bytes.extend_from_slice(body);
    stream.write_all(&bytes).unwrap();
}

pub(crate) fn receive(stream: &mut impl Read) -> TestResponse {
    try_receive(stream).unwrap()
}

/// Reads a response, if one arrives.
pub(crate) fn try_receive(stream: &mut impl Read) -> std::io::Result<TestResponse> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let answer = TestResponse {
        status,
        head,
        body: Vec::new(),
    };
    let length = answer
        .header("content-length")
        .map_or(0, |length| length.parse().unwrap());
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    Ok(TestResponse { body, ..answer })
}

/// Runs a server that must fail, and returns its exit code and the single line on standard error.
pub(crate) fn failing<S: AsRef<OsStr>>(arguments: &[S]) -> (i32, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_oip-server"));
    command
        .args(arguments)
        .env_clear()
        // Without an address option, the server uses any free port, because tests run concurrently.
        .env("PORT", "0")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let start = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if start.elapsed() > Duration::from_secs(10) {
            child.kill().unwrap();
            panic!("the server runs with these options");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let output = child.wait_with_output().unwrap();
    assert!(
        output.stdout.is_empty(),
        "{}",
        String::from_utf8_lossy(&output.stdout)
    );
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(text.lines().count(), 1, "{text}");
    (
        output.status.code().unwrap(),
        text.trim_end().trim_start_matches("error: ").to_owned(),
    )
}
