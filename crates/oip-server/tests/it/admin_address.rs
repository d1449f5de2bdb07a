//! Tests public addresses, which accept no changes to the server, and the admin address.

use std::{
    io::{BufRead, BufReader, Write},
    net::SocketAddr,
    process::{Command, Stdio},
};

use oip_grpc::proto::{LogSettingsRequest, RepositoryModelUnloadRequest};
use tonic::Code;

use crate::{
    access::{UNLOAD, ask, client, client_at, code, error, two_models},
    support::{Server, connect, receive, send},
    tls::{Certificates, encrypted},
};

#[tokio::test]
async fn addresses_for_everybody_answer_no_changes_unless_that_is_wanted() {
    let everywhere = [
        "--http-address",
        "0.0.0.0:0",
        "--grpc-address",
        "0.0.0.0:0",
        "--model-control-mode=explicit",
        "--load-model=*",
    ];
    let start = |more: &[&str]| {
        let folder = two_models();
        let mut command = Command::new(env!("CARGO_BIN_EXE_oip-server"));
        command
            .arg("--model-repository")
            .arg(folder.path())
            .args(everywhere)
            .args(more);
        let mut server = Server::spawn(&mut command);
        server.wait_until_loaded();
        (server, folder)
    };
    let (server, _folder) = start(&[]);
    let answer = ask(&server, "POST", UNLOAD, None);
    assert_eq!(answer.status, 403);
    let message = error(&answer);
    for option in [
        "'unload' is refused on this address",
        "--admin-address",
        "--auth",
        "--allow-public-admin",
    ] {
        assert!(message.contains(option), "{message}");
    }
    for (method, path) in [
        ("POST", "/v2/logging"),
        ("POST", "/v2/systemsharedmemory/unregister"),
        ("POST", "/v2/repository/models/open/load"),
    ] {
        assert_eq!(ask(&server, method, path, None).status, 403, "{path}");
    }
    for (method, path) in [
        ("GET", "/v2/logging"),
        ("GET", "/metrics"),
        ("GET", "/v2/models/open/ready"),
        ("POST", "/v2/repository/index"),
    ] {
        assert_eq!(ask(&server, method, path, None).status, 200, "{path}");
    }
    let unload = RepositoryModelUnloadRequest {
        model_name: "open".into(),
        ..Default::default()
    };
    let mut grpc = client(&server).await;
    assert_eq!(
        code(grpc.repository_model_unload(unload.clone()).await),
        Code::PermissionDenied
    );
    assert_eq!(
        code(grpc.log_settings(LogSettingsRequest::default()).await),
        Code::PermissionDenied
    );

    let (server, _folder) = start(&["--allow-public-admin"]);
    assert_eq!(ask(&server, "POST", UNLOAD, None).status, 200);
    // An API that requires a header is not public.
    let (server, _folder) = start(&["--http-restricted-api=model-repository:admin-key=s3cret"]);
    assert_eq!(ask(&server, "POST", UNLOAD, None).status, 403);
    assert_eq!(
        server
            .request("POST", UNLOAD, &[("admin-key", "s3cret")], b"")
            .status,
        200
    );
    assert_eq!(
        code(client(&server).await.repository_model_unload(unload).await),
        Code::PermissionDenied
    );
}

#[tokio::test]
async fn the_admin_address_has_what_changes_the_server() {
    let folder = two_models();
    let options = [
        "--admin-address",
        "127.0.0.1:0",
        "--model-control-mode=explicit",
        "--load-model=*",
    ];
    let mut server = Server::start(folder.path(), &options);
    let admin = server.wait_for_line("admin").parse().unwrap();
    server.wait_until_loaded();
    let ask_admin = |method: &str, path: &str| {
        let mut stream = connect(admin);
        send(&mut stream, method, path, &[], b"");
        receive(&mut stream)
    };
    for (method, path) in [
        ("GET", "/metrics"),
        ("GET", "/metrics/"),
        ("GET", "/v2/logging"),
        ("POST", UNLOAD),
    ] {
        let answer = ask(&server, method, path, None);
        assert!(
            answer.status == 403 && error(&answer).contains("--admin-address"),
            "{path}"
        );
        assert_eq!(ask_admin(method, path).status, 200, "{path}");
    }
    // Shared memory is not supported, which only the admin address reveals.
    assert_eq!(
        ask(&server, "GET", "/v2/systemsharedmemory/status", None).status,
        403
    );
    assert_eq!(ask_admin("GET", "/v2/systemsharedmemory/status").status, 501);
    assert_eq!(ask(&server, "GET", "/v2/models/closed/ready", None).status, 200);
    assert_eq!(ask_admin("GET", "/v2/models/closed/ready").status, 200);
    assert_eq!(ask(&server, "GET", "/console/log", None).status, 403);
    assert_eq!(ask_admin("GET", "/console/log").status, 200);
    let unload = RepositoryModelUnloadRequest {
        model_name: "closed".into(),
        ..Default::default()
    };
    let mut on_admin = client_at(format!("http://{admin}")).await;
    assert_eq!(
        code(on_admin.log_settings(LogSettingsRequest::default()).await),
        Code::Ok
    );
    for (mut client, expected) in [
        (client(&server).await, Code::PermissionDenied),
        (on_admin, Code::Ok),
    ] {
        assert_eq!(
            code(client.repository_model_unload(unload.clone()).await),
            expected
        );
    }
    assert_ne!(ask(&server, "GET", "/v2/models/closed/ready", None).status, 200);
}

/// If other machines can reach the admin address and clients are not authenticated, the address rejects the
/// same calls as other public addresses, unless an option allows them.
#[tokio::test]
async fn a_public_admin_address_needs_identities_too() {
    let folder = two_models();
    let options = |more: &[&'static str]| {
        let control = ["--model-control-mode=explicit", "--load-model=*"];
        [&["--admin-address", "0.0.0.0:0"], &control[..], more].concat()
    };
    let start = |more: &[&'static str]| {
        let mut server = Server::start(folder.path(), &options(more));
        let address: std::net::SocketAddr = server.wait_for_line("admin").parse().unwrap();
        server.wait_until_loaded();
        let admin = std::net::SocketAddr::from(([127, 0, 0, 1], address.port()));
        (server, admin)
    };
    let ask_admin = |admin, method: &str, path: &str, headers: &[(&str, &str)]| {
        let mut stream = connect(admin);
        send(&mut stream, method, path, headers, b"");
        receive(&mut stream)
    };
    let unload = RepositoryModelUnloadRequest {
        model_name: "open".into(),
        ..Default::default()
    };
    let (_server, admin) = start(&[]);
    let answer = ask_admin(admin, "POST", UNLOAD, &[]);
    let message = error(&answer);
    assert_eq!(answer.status, 403, "{message}");
    for advice in [
        "'unload' is refused",
        "only this machine reaches",
        "--auth",
        "--allow-public-admin",
    ] {
        assert!(message.contains(advice), "{message}");
    }
    let mut grpc = client_at(format!("http://{admin}")).await;
    assert_eq!(
        code(grpc.repository_model_unload(unload).await),
        Code::PermissionDenied
    );
    for path in ["/metrics", "/v2/logging", "/v2/models/open/ready"] {
        assert_eq!(ask_admin(admin, "GET", path, &[]).status, 200, "{path}");
    }
    let (_server, admin) = start(&["--allow-public-admin"]);
    assert_eq!(ask_admin(admin, "POST", UNLOAD, &[]).status, 200);
    let (_server, admin) = start(&["--http-restricted-api=model-repository:admin-key=s3cret"]);
    assert_eq!(ask_admin(admin, "POST", UNLOAD, &[]).status, 403);
    assert_eq!(
        ask_admin(admin, "POST", UNLOAD, &[("admin-key", "s3cret")]).status,
        200
    );
}

/// A web page whose host name resolves to this machine cannot reach a local admin address, even if the other
/// addresses accept all host names.
#[test]
fn web_pages_do_not_reach_a_local_admin_address() {
    let folder = two_models();
    let mut command = Command::new(env!("CARGO_BIN_EXE_oip-server"));
    command.arg("--model-repository").arg(folder.path()).args([
        "--http-address=0.0.0.0:0",
        "--grpc-address=none",
        "--admin-address=127.0.0.1:0",
    ]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut address = |name: &str| -> SocketAddr {
        loop {
            let line = lines.next().unwrap().unwrap();
            if let Some(url) = line.trim().strip_prefix(name) {
                return url.trim().rsplit("://").next().unwrap().parse().unwrap();
            }
        }
    };
    let (public, admin) = (address("HTTP"), address("admin"));
    let status = |to: SocketAddr, host: &str, path: &str| {
        let mut stream = connect(to);
        write!(stream, "GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n").unwrap();
        receive(&mut stream).status
    };
    assert_eq!(status(public, "evil.example.com", "/v2"), 200);
    for path in ["/v2", "/console/log", "/metrics", "/v2/logging"] {
        assert_eq!(status(admin, "evil.example.com", path), 403, "{path}");
        assert_eq!(status(admin, "127.0.0.1", path), 200, "{path}");
    }
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Checks a Unix socket as the admin address next to public addresses with TLS: the socket has no TLS, and
/// its console shows the log.
#[cfg(unix)]
#[tokio::test]
async fn the_admin_address_may_be_a_unix_socket() {
    use std::os::unix::net::UnixStream;

    let folder = two_models();
    let certificates = Certificates::new();
    let socket = folder.path().join("admin.sock");
    let address = format!("unix:{}", socket.display());
    let options = certificates.options();
    let more = [
        "--http-address=0.0.0.0:0",
        "--grpc-address=0.0.0.0:0",
        "--admin-address",
        &address,
        "--model-control-mode=explicit",
        "--load-model=*",
    ];
    let mut command = Command::new(env!("CARGO_BIN_EXE_oip-server"));
    command
        .arg("--model-repository")
        .arg(folder.path())
        .args(options.iter().map(String::as_str).chain(more));
    let mut server = Server::spawn(&mut command);
    assert_eq!(server.wait_for_line("admin"), address);
    server.wait_until_loaded();
    let ask_admin = |method: &str, path: &str| {
        let mut stream = UnixStream::connect(&socket).unwrap();
        send(&mut stream, method, path, &[], b"");
        receive(&mut stream)
    };
    for (method, path) in [
        ("GET", "/metrics"),
        ("GET", "/metrics/"),
        ("GET", "/console/log"),
        ("POST", UNLOAD),
    ] {
        let mut stream = encrypted(server.http, &certificates.client(None, b"http/1.1"));
        send(&mut stream, method, path, &[], b"");
        assert_eq!(receive(&mut stream).status, 403, "{path}");
        assert_eq!(ask_admin(method, path).status, 200, "{path}");
    }
    assert_ne!(ask_admin("GET", "/v2/models/open/ready").status, 200);
    let unload = RepositoryModelUnloadRequest {
        model_name: "closed".into(),
        ..Default::default()
    };
    let mut client = client_at(address).await;
    assert_eq!(code(client.repository_model_unload(unload).await), Code::Ok);
    assert_ne!(ask_admin("GET", "/v2/models/closed/ready").status, 200);
}

/// An admin address over TCP uses TLS if the other addresses do.
#[test]
fn the_admin_address_speaks_tls_as_the_others_do() {
    let folder = two_models();
    let certificates = Certificates::new();
    let options = certificates.options();
    let more = ["--admin-address", "127.0.0.1:0"];
    let options: Vec<&str> = options.iter().map(String::as_str).chain(more).collect();
    let mut server = Server::start(folder.path(), &options);
    let admin = server.wait_for_line("admin").parse().unwrap();
    server.wait_until_loaded();
    let mut stream = encrypted(admin, &certificates.client(None, b"http/1.1"));
    send(&mut stream, "GET", "/metrics", &[], b"");
    assert_eq!(receive(&mut stream).status, 200);
    let mut stream = connect(admin);
    send(&mut stream, "GET", "/metrics", &[], b"");
    assert_eq!(receive(&mut stream).status, 400);
}
