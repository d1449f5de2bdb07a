//! Tests Unix sockets: they are served like ports, have permissions, and survive restarts.

use std::{
    fs,
    io::{self, Read, Write},
    os::unix::{fs::PermissionsExt, net::UnixStream},
    path::Path,
};

use oip_listen::{Address, Listener, Protocol, listen_unix};

use crate::support::{Server, limits};

fn start(path: &Path) -> Server {
    Server::start_on(Protocol::Either, limits(), || {
        let listener = listen_unix(path, 0o600).unwrap();
        assert_eq!(listener.address().unwrap(), Address::Unix(path.to_owned()));
        listener
    })
}

fn ask(path: &Path) -> io::Result<String> {
    let mut stream = UnixStream::connect(path)?;
    stream.write_all(b"GET /hello HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// Opens a listener and drops it.
fn try_to_listen(path: &Path) -> io::Result<()> {
    let runtime = tokio::runtime::Runtime::new()?;
    let _context = runtime.enter();
    let listener: Listener = listen_unix(path, 0o600)?;
    drop(listener);
    Ok(())
}

#[test]
fn requests_are_answered_and_the_file_goes_with_the_server() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("server.sock");
    for _ in 0..2 {
        let server = start(&path);
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let answer = ask(&path).unwrap();
        assert!(
            answer.starts_with("HTTP/1.1 200") && answer.ends_with("hello"),
            "{answer}"
        );
        server.shutdown.drain();
        assert_eq!(server.join(), 0);
        assert!(!path.exists());
    }
}

/// One server takes over from another without a gap in listening.
#[test]
fn a_shared_socket_stays_until_its_last_listener_goes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("server.sock");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let listener = {
        let _context = runtime.enter();
        listen_unix(&path, 0o600).unwrap()
    };
    for is_last in [false, true] {
        let server = Server::start_on(Protocol::Either, limits(), || listener.share().unwrap());
        assert!(ask(&path).unwrap().ends_with("hello"));
        server.shutdown.drain();
        assert_eq!(server.join(), 0);
        assert!(path.exists(), "{is_last}");
    }
    drop(listener);
    assert!(!path.exists());
}

#[test]
fn only_sockets_that_nobody_listens_on_are_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("server.sock");
    // The standard library does not remove the file, so this leaves a stale socket.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    let server = start(&path);
    assert!(ask(&path).unwrap().ends_with("hello"));

    let error = try_to_listen(&path).unwrap_err();
    assert_eq!(error.to_string(), "another process listens there");
    assert!(ask(&path).unwrap().ends_with("hello"));
    // If another socket took over the path, its file stays when this server ends.
    fs::remove_file(&path).unwrap();
    let _other = std::os::unix::net::UnixListener::bind(&path).unwrap();
    server.shutdown.drain();
    server.join();
    assert!(path.exists());

    let file = folder.path().join("file");
    fs::write(&file, "precious").unwrap();
    let error = try_to_listen(&file).unwrap_err();
    assert_eq!(error.to_string(), "a file that is not a socket has this path");
    assert_eq!(fs::read_to_string(&file).unwrap(), "precious");
    let error = try_to_listen(&folder.path().join("nowhere/server.sock")).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::NotFound);
}
