//! Remote files over HTTPS with a private CA.

use std::{
    process::Command,
    sync::{Arc, Mutex},
};

use crate::{
    support::{Run, TestDir, matrix, vector},
    web::{Server, serve, throwaway_tls},
};

/// A file server that imitates the Hugging Face Hub and records the tokens it receives.
struct Hub {
    dir: TestDir,
    server: Server,
    tokens: Arc<Mutex<Vec<Option<String>>>>,
}

impl Hub {
    fn new() -> Self {
        let dir = TestDir::new();
        dir.write(
            "a.safetensors",
            &[("made by", "hand")],
            &[("m", &matrix()), ("v", &vector())],
        );
        dir.write("a.zt", &[], &[("m", &matrix()), ("v", &vector())]);
        dir.write("b.zt", &[], &[("m", &matrix())]);
        let folder = dir.path("");
        let tls = throwaway_tls(&folder);
        let tokens = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&tokens);
        let server = Server::start_with(
            move |request, out| {
                seen.lock()
                    .unwrap()
                    .push(request.header("authorization").map(str::to_owned));
                let name = request.path.strip_prefix("/owner/repo/resolve/main/");
                match name.map(|name| std::fs::read(folder.join(name))) {
                    Some(Ok(file)) => serve(request, &tensor_core::Bytes::from(file), "\"one\"", out),
                    _ => out.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"),
                }
            },
            Some(tls),
        );
        Self { dir, server, tokens }
    }

    fn endpoint(&self) -> String {
        format!("https://localhost:{}", self.server.address.port())
    }

    fn run(&self, arguments: &[&str]) -> Run {
        let output = Command::new(env!("CARGO_BIN_EXE_tensor"))
            .args(arguments)
            .args(["--ca", "ca.pem"])
            .current_dir(self.dir.path(""))
            .env("HF_ENDPOINT", self.endpoint())
            .env("HF_TOKEN", "secret")
            .env("NO_PROXY", "localhost")
            .output()
            .unwrap();
        Run {
            code: output.status.code().unwrap(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }

    #[track_caller]
    fn good(&self, arguments: &[&str]) -> String {
        let run = self.run(arguments);
        assert_eq!((run.code, &*run.err), (0, ""), "{arguments:?}: {}", run.out);
        run.out
    }

    #[track_caller]
    fn bad(&self, arguments: &[&str]) -> String {
        let run = self.run(arguments);
        assert_eq!(
            (run.code, run.err.lines().count()),
            (1, 1),
            "{arguments:?}: {}",
            run.err
        );
        run.err
    }
}

#[test]
fn every_command_that_reads() {
    let hub = Hub::new();
    let (tensors, zt) = ("hf://owner/repo/a.safetensors", "hf://owner/repo/a.zt");
    let shown = hub.good(&["inspect", tensors]);
    assert!(
        shown.contains("safetensors") && shown.contains("made by: hand"),
        "{shown}"
    );
    assert_eq!(hub.server.count(), 1);
    let tokens = std::mem::take(&mut *hub.tokens.lock().unwrap());
    assert_eq!(tokens, [Some("Bearer secret".to_owned())]);

    assert!(
        hub.good(&["verify", "--index", zt])
            .contains("good index: ztensor, 2 tensors")
    );
    assert!(hub.good(&["verify", zt]).contains("2 checked against checksums"));
    hub.good(&["diff", tensors, zt]);
    hub.good(&["diff", tensors, "a.zt"]);
    assert_eq!(hub.run(&["diff", tensors, "hf://owner/repo/b.zt"]).code, 1);

    hub.good(&["extract", zt, "v", "-o", "v.npy"]);
    hub.good(&["extract", tensors, "m", "--rows", "1:2", "-o", "row.npy"]);
    hub.good(&["convert", tensors, "copy.safetensors"]);
    hub.dir
        .good(&["diff", "--metadata", "copy.safetensors", "a.safetensors"]);
    assert!(hub.good(&["inspect", "v.npy"]).contains("[4]"));

    // A sharded checkpoint is read through its index.
    hub.dir.good(&[
        "split",
        "a.safetensors",
        "model.safetensors",
        "--max-shard-size",
        "24",
    ]);
    let index = "hf://owner/repo/model.safetensors.index.json";
    assert!(hub.good(&["inspect", index]).contains("2 files"));
    hub.good(&["diff", index, tensors]);

    // The user's token is sent only for `hf://` locations, not for the same file's `https://` URL.
    hub.tokens.lock().unwrap().clear();
    hub.good(&[
        "inspect",
        &format!("{}/owner/repo/resolve/main/a.zt", hub.endpoint()),
    ]);
    assert!(hub.tokens.lock().unwrap().iter().all(Option::is_none));
}

#[test]
fn what_cannot_be() {
    let hub = Hub::new();
    let error = hub.bad(&["inspect", "hf://owner/repo/none.zt"]);
    assert!(
        error.contains("hf://owner/repo/none.zt") && error.contains("no such file"),
        "{error}"
    );
    let error = hub.bad(&["rename", "hf://owner/repo/a.zt", "m", "n"]);
    assert!(error.contains("not written"), "{error}");
    let error = hub.bad(&["convert", "a.zt", "https://localhost/b.zt"]);
    assert!(error.contains("not written"), "{error}");
    let error = hub.bad(&["extract", "a.zt", "v", "-o", "https://localhost/v.npy"]);
    assert!(error.contains("not written"), "{error}");
    let error = hub.bad(&["inspect", "http://example.org/a.zt"]);
    assert!(error.contains("--allow-http"), "{error}");
    let error = hub.bad(&["inspect", "hf://owner/repo"]);
    assert!(error.contains("hf://OWNER/REPO/FILE"), "{error}");
    // Without the CA, the certificate is not trusted.
    let address = format!("{}/a.zt", hub.endpoint());
    let error = hub.dir.bad(&["inspect", &address]);
    assert!(error.contains("certificate") && error.contains("--ca"), "{error}");
}

/// Starts a store that imitates S3 for the bucket `models`: signed requests, XML errors.
fn store(folder: std::path::PathBuf) -> Server {
    fn refuse(status: &str, code: &str, out: &mut dyn std::io::Write) -> std::io::Result<()> {
        let body = format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code></Error>");
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: application/xml\r\nContent-Length: {}\r\n",
            body.len()
        );
        out.write_all(format!("{head}x-amz-bucket-region: eu-west-1\r\n\r\n{body}").as_bytes())
    }
    Server::start(move |request, out| {
        let header = |name| request.header(name).unwrap_or_default();
        let authorization = header("authorization");
        let Some(signed) = authorization.strip_prefix("AWS4-HMAC-SHA256 Credential=id/") else {
            return refuse("403 Forbidden", "AccessDenied", out);
        };
        let time = header("x-amz-date");
        let (scope, rest) = signed.split_once(",SignedHeaders=").unwrap();
        let (names, signature) = rest.split_once(",Signature=").unwrap();
        if scope != format!("{}/eu-west-1/s3/aws4_request", &time[..8]) {
            return refuse("301 Moved Permanently", "PermanentRedirect", out);
        }
        assert_eq!(
            names,
            "host;range;x-amz-content-sha256;x-amz-date;x-amz-security-token"
        );
        assert_eq!(
            (signature.len(), time.len(), header("x-amz-security-token")),
            (64, 16, "session")
        );
        assert!(header("host").starts_with("127.0.0.1:"));
        let name = request.path.strip_prefix("/models/sub%20folder/");
        match name.map(|name| std::fs::read(folder.join(name))) {
            Some(Ok(file)) => serve(request, &tensor_core::Bytes::from(file), "\"one\"", out),
            _ => refuse("404 Not Found", "NoSuchKey", out),
        }
    })
}

#[test]
fn objects_of_a_store() {
    let dir = TestDir::new();
    dir.write("a.zt", &[], &[("m", &matrix()), ("v", &vector())]);
    let server = store(dir.path(""));
    let run = |arguments: &[&str], variables: &[(&str, &str)]| {
        let output = Command::new(env!("CARGO_BIN_EXE_tensor"))
            .args(arguments)
            .current_dir(dir.path(""))
            .env_remove("AWS_ACCESS_KEY_ID")
            .env_remove("AWS_SECRET_ACCESS_KEY")
            .env("AWS_SESSION_TOKEN", "session")
            .env("AWS_REGION", "eu-west-1")
            .env("AWS_ENDPOINT_URL", format!("http://{}", server.address))
            .env("NO_PROXY", "127.0.0.1")
            .envs(variables.iter().copied())
            .output()
            .unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (
            output.status.code().unwrap(),
            text(output.stdout),
            text(output.stderr),
        )
    };
    let keys = [("AWS_ACCESS_KEY_ID", "id"), ("AWS_SECRET_ACCESS_KEY", "secret")];
    let object = "s3://models/sub folder/a.zt";
    let (code, out, err) = run(&["inspect", object], &keys);
    assert_eq!((code, &*err), (0, ""));
    assert!(out.contains("2 tensors"), "{out}");
    assert_eq!(
        run(&["diff", object, "a.zt"], &keys),
        (0, String::new(), String::new())
    );
    assert_eq!(run(&["extract", object, "v", "-o", "v.npy"], &keys).0, 0);

    for (location, variables, words) in [
        (object, &[][..], "access to the file is denied"),
        (object, &keys[..1], "AWS_SECRET_ACCESS_KEY is not set"),
        (
            object,
            &[keys[0], keys[1], ("AWS_REGION", "us-east-2")],
            "a bucket in eu-west-1",
        ),
        ("s3://models/none.zt", &keys, "no such file"),
        ("s3://models", &keys, "s3://BUCKET/KEY"),
    ] {
        let (code, _, err) = run(&["inspect", location], variables);
        assert_eq!((code, err.lines().count()), (1, 1), "{err}");
        assert!(err.contains(location) && err.contains(words), "{err}");
        assert!(!err.contains("session"), "{err}");
    }
}
