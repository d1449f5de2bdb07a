//! Runs a server as a user would: starts the program, sends HTTP requests, and stops the program.

use std::{
    ffi::OsString,
    fs,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};

/// A running server. Dropping this value kills the server.
pub(crate) struct Running(pub(crate) Child);

impl Running {
    /// Sends the signal to terminate, and waits until the server has ended.
    fn end(mut self) -> Result<ExitStatus> {
        let id = self.0.id().to_string();
        Command::new("kill").args(["-TERM", &id]).status()?;
        Ok(self.0.wait()?)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns a local address on which no program listens.
pub(crate) fn free_address() -> Result<String> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string())
}

/// Sends one request on a new connection. Returns the whole response, including its head.
pub(crate) fn ask(address: &str, method: &str, path: &str, body: &[u8]) -> Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// Writes the example repository, starts a server for it, sends the image of a digit to the server, and stops
/// the server. Returns the time from the start to the response. `command` is the program, which may be
/// preceded by a command that runs it, such as an emulator.
pub(crate) fn first_answer(command: &[OsString], folder: &Path) -> Result<Duration> {
    let [program, arguments @ ..] = command else {
        bail!("no program");
    };
    let start = |more: &[&str]| {
        let mut start = Command::new(program);
        start.args(arguments).args(more).stdin(Stdio::null());
        start
    };
    let models = folder.join("models");
    let name = models.to_str().context("the directory's name is not UTF-8")?;
    let written = start(&["init", name]).output().context("starting the server")?;
    ensure!(
        written.status.success(),
        "`oip-server init` ended with {}: {}",
        written.status,
        String::from_utf8_lossy(&written.stderr)
    );
    let request = fs::read(models.join("one_digit.json"))?;
    let address = free_address()?;
    let begun = Instant::now();
    let mut serve = start(&["--address", &address, name]);
    let mut server = Running(serve.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?);
    let answer = loop {
        if let Some(status) = server.0.try_wait()? {
            bail!("the server ended before it answered: {status}");
        }
        match ask(&address, "POST", "/v2/models/digits/infer", &request) {
            Ok(answer) if answer.starts_with("HTTP/1.1 200") => break answer,
            _ if begun.elapsed() > PATIENCE => bail!("the server does not answer after {PATIENCE:?}"),
            _ => thread::sleep(Duration::from_millis(5)),
        }
    };
    let taken = begun.elapsed();
    ensure!(
        answer.contains("\"outputs\""),
        "a response without outputs: {answer}"
    );
    let status = server.end()?;
    ensure!(status.success(), "the server ended with {status} after SIGTERM");
    Ok(taken)
}

/// Timeout for the first response. Under an emulator the server is about twenty times slower.
const PATIENCE: Duration = Duration::from_secs(120);
