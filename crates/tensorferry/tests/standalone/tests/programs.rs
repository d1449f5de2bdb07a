//! Runs the three programs: a server, a client that calls it over both transports, and a conversion.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
};

/// Runs a program to its end and returns what it prints.
fn output(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// A program that is killed if the test fails.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.0.kill());
    }
}

#[test]
fn a_server_answers_over_both_transports_and_drains() {
    let mut serve = Command::new(env!("CARGO_BIN_EXE_serve"));
    let mut server = Server(serve.stdout(Stdio::piped()).spawn().unwrap());
    let mut line = String::new();
    BufReader::new(server.0.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    let urls: Vec<&str> = line.split_whitespace().collect();
    assert!(
        urls[0].starts_with("http://") && urls[1].starts_with("grpc://"),
        "{line}"
    );

    let answers = output(env!("CARGO_BIN_EXE_ask"), &urls);
    assert_eq!(answers, "[2.0, -4.0, 7.0]\n".repeat(2));

    output("kill", &["-INT", &server.0.id().to_string()]);
    assert!(server.0.wait().unwrap().success());
}

#[test]
fn a_safetensors_file_becomes_ztensor() {
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (from, to) = (folder.join("model.safetensors"), folder.join("model.zt"));
    let header = r#"{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}  "#;
    let length = (header.len() as u64).to_le_bytes();
    let numbers = [1.5f32, -2.0].map(f32::to_le_bytes);
    std::fs::write(
        &from,
        [&length, header.as_bytes(), numbers.as_flattened()].concat(),
    )
    .unwrap();

    let paths = [&from, &to].map(|path| path.to_str().unwrap());
    assert_eq!(
        output(env!("CARGO_BIN_EXE_convert"), &paths),
        "ztensor w [ 1.5 -2. ]\n"
    );
    assert!(std::fs::read(&to).unwrap().starts_with(b"ZTEN0001"));
}
