//! Repositories at a URL, and digest lists, with the real program and local servers that imitate stores.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use model_store::testing::{FakeServer, Objects, Request, Response};
use serde_json::{Value, json};

use crate::support::{Server, failing};

/// Returns a safetensors file with one tensor of three bytes.
fn tensors(content: &[u8; 3]) -> Vec<u8> {
    let header = br#"{"w":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}}   "#;
    [&(header.len() as u64).to_le_bytes()[..], header, content].concat()
}

fn sha256(content: &[u8]) -> String {
    use sha2::{Digest, Sha256};
    Sha256::digest(content)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// Runs `check` on a repository; returns the exit code, the models as JSON, and the log or error.
fn check(url: &str, cache: &Path, environment: &[(&str, &str)], arguments: &[&str]) -> (i32, Value, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_oip-server"))
        .args(["check", "--json", url, "--log=info", "--repository-cache"])
        .arg(cache)
        .args(arguments)
        .env_clear()
        .envs(environment.iter().copied())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let mut report: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let models = report["models"].take();
    (
        output.status.code().unwrap(),
        models,
        String::from_utf8(output.stderr).unwrap(),
    )
}

fn s3(server: &FakeServer) -> [(&'static str, String); 4] {
    [
        ("AWS_ENDPOINT_URL", server.url()),
        ("AWS_ACCESS_KEY_ID", "the-key".to_owned()),
        ("AWS_SECRET_ACCESS_KEY", "the-secret".to_owned()),
        ("AWS_REGION", "eu-west-1".to_owned()),
    ]
}

fn borrowed<'e>(environment: &'e [(&'static str, String)]) -> Vec<(&'static str, &'e str)> {
    environment
        .iter()
        .map(|(name, value)| (*name, value.as_str()))
        .collect()
}

/// Returns a bucket called `models` with one model in the directory `production`.
fn bucket() -> (Objects, FakeServer) {
    let objects = Objects::default();
    objects.put("production/weights/1/model.safetensors", tensors(b"abc"));
    let served = objects.clone();
    let server = FakeServer::start(move |request| served.as_s3("models", 1000, request));
    (objects, server)
}

fn states(models: &Value) -> Vec<(String, String)> {
    let models = models.as_array().into_iter().flatten();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    models
        .map(|model| (text(&model["name"]), text(&model["state"])))
        .collect()
}

fn ready(name: &str) -> Vec<(String, String)> {
    vec![(name.to_owned(), "READY".to_owned())]
}

#[test]
fn models_of_a_bucket_are_served_also_when_it_is_gone() {
    let (objects, server) = bucket();
    let cache = tempfile::tempdir().unwrap();
    let environment = s3(&server);
    let environment = borrowed(&environment);
    let url = "s3://models/production";
    let (code, models, log) = check(url, cache.path(), &environment, &[]);
    assert_eq!((code, states(&models)), (0, ready("weights")), "{log}");
    assert!(
        log.contains("fetched the model repository") && !log.contains("the-secret"),
        "{log}"
    );

    objects.remove("production/weights/1/model.safetensors");
    let (code, models, log) = check(url, cache.path(), &environment, &[]);
    assert_eq!((code, states(&models)), (0, ready("weights")), "{log}");
    assert!(
        log.contains("cannot be reached; serving the models of the last synchronisation")
            && log.contains("there is nothing at"),
        "{log}"
    );

    let (code, _, error) = check(url, tempfile::tempdir().unwrap().path(), &environment, &[]);
    assert!(
        code == 1 && error.contains("error: there is nothing at s3://models/production"),
        "{error}"
    );
}

#[test]
fn one_model_and_one_file_have_the_name_of_their_place() {
    let objects = Objects::default();
    objects.put("digits/model.safetensors", tensors(b"abc"));
    objects.put("iris.safetensors", tensors(b"def"));
    let server = FakeServer::start(move |request| objects.as_s3("models", 1000, request));
    let cache = tempfile::tempdir().unwrap();
    let environment = s3(&server);
    for (url, name) in [
        ("s3://models/digits", "digits"),
        ("s3://models/iris.safetensors", "iris"),
    ] {
        let (code, models, log) = check(url, cache.path(), &borrowed(&environment), &[]);
        assert_eq!((code, states(&models)), (0, ready(name)), "{log}");
    }
}

#[test]
fn the_hub_is_read_at_one_commit() {
    let objects = Objects::default();
    objects.put("model.safetensors", tensors(b"abc"));
    for name in [
        "README.md",
        "config.json5",
        "a.txt",
        ".gitattributes",
        "onnx/b.txt",
    ] {
        objects.put(name, "text");
    }
    objects.put("sub/only.safetensors", tensors(b"def"));
    let served = objects.clone();
    let server = FakeServer::start(move |request| served.as_hub("owner/tiny", request));
    let cache = tempfile::tempdir().unwrap();
    let endpoint = server.url();
    let environment = [("HF_ENDPOINT", endpoint.as_str())];
    let (code, models, log) = check("hf://owner/tiny", cache.path(), &environment, &[]);
    assert_eq!((code, states(&models)), (0, ready("tiny")), "{log}");
    let requests = server.take_requests();
    assert!(
        requests[0].contains("/api/models/owner/tiny/revision/main"),
        "{requests:?}"
    );
    assert_eq!(
        requests
            .iter()
            .filter(|request| request.contains("/tree/"))
            .count(),
        4,
        "{requests:?}"
    );
    assert!(
        !requests.iter().any(|request| request.contains("gitattributes")),
        "{requests:?}"
    );

    // A single file of the repository is a model by itself.
    let (code, models, log) = check(
        "hf://owner/tiny/sub/only.safetensors",
        cache.path(),
        &environment,
        &[],
    );
    assert_eq!((code, states(&models)), (0, ready("only")), "{log}");
    let (code, _, error) = check("hf://owner/other", cache.path(), &environment, &[]);
    assert!(
        code == 1 && error.contains("hf://owner/other: access to the repository is refused; HF_TOKEN"),
        "{error}"
    );
}

#[test]
fn a_file_of_a_web_server_is_a_model() {
    let objects = Objects::default();
    objects.put("files/iris.safetensors", tensors(b"abc"));
    let server = FakeServer::start(move |request| objects.as_files(request));
    let cache = tempfile::tempdir().unwrap();
    let url = format!("{}/files/iris.safetensors", server.url());
    let (code, models, log) = check(&format!("{url}?signature=hidden"), cache.path(), &[], &[]);
    assert_eq!((code, states(&models)), (0, ready("iris")), "{log}");
    assert!(!log.contains("hidden"), "{log}");
    let (code, _, error) = check(&format!("{}/absent.onnx", server.url()), cache.path(), &[], &[]);
    assert!(
        code == 1 && error.contains("the file does not exist; check the URL"),
        "{error}"
    );
}

#[test]
fn wrong_urls_are_told_before_anything_is_asked() {
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().to_str().unwrap();
    for (url, code, message) in [
        (
            "ftp://h/models",
            2,
            "--model-repository: the location ftp://h/models: its scheme is unknown; expected s3://",
        ),
        ("s3://", 2, "it has no bucket"),
        (
            "https://h.example/models/",
            2,
            "a web server cannot list its files",
        ),
        ("http://192.0.2.1/x.onnx", 1, "plain HTTP"),
    ] {
        let (found, line) = failing(&["--log=error", "--repository-cache", cache, url]);
        assert!(found == code && line.contains(message), "{found} {line}");
    }
    let (code, line) = failing(&["--log=error", "s3://models"]);
    assert!(
        code == 2 && line.contains("name one by --repository-cache"),
        "{line}"
    );
    fs::write(folder.path().join("thesis.tex"), "years").unwrap();
    let other = tempfile::tempdir().unwrap();
    fs::write(other.path().join("thesis.tex"), "years").unwrap();
    let (code, line) = failing(&[
        "--log=error",
        "--repository-cache",
        other.path().to_str().unwrap(),
        "https://h.example/x.onnx",
    ]);
    assert!(
        code == 1 && line.contains("is not empty and not a cache of this program"),
        "{line}"
    );
}

#[test]
fn without_credentials_it_says_where_they_come_from() {
    let server = FakeServer::start(|_| Response::new(404, ""));
    let cache = tempfile::tempdir().unwrap();
    let metadata = server.url();
    let environment = [("AWS_METADATA_ENDPOINT", metadata.as_str())];
    let (code, _, error) = check("s3://models", cache.path(), &environment, &[]);
    assert!(
        code == 1
            && error.contains(
                "access to the list of objects is refused; AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            ),
        "{error}"
    );
    let (code, _, error) = check("az://container", cache.path(), &[], &[]);
    assert!(
        code == 1 && error.contains("AZURE_STORAGE_ACCOUNT_NAME"),
        "{error}"
    );
    let environment = [("GOOGLE_APPLICATION_CREDENTIALS", "/nowhere.json")];
    let (code, _, error) = check("gs://bucket", cache.path(), &environment, &[]);
    assert!(
        code == 1 && error.contains("GOOGLE_APPLICATION_CREDENTIALS"),
        "{error}"
    );
}

/// Keys and tokens for stores are not logged at the most verbose level.
#[test]
fn no_level_of_the_log_has_keys_of_stores() {
    let (files, _) = bucket();
    let objects = Objects::default();
    objects.put("1/model.safetensors", tensors(b"abc"));
    let seen = Arc::new(Mutex::new(String::new()));
    let (also, shown) = (seen.clone(), seen.clone());
    let note = |seen: &Mutex<String>, request: &Request| {
        for value in request.headers.values() {
            seen.lock().unwrap().push_str(value);
        }
    };
    let bucket = FakeServer::start(move |request| {
        note(&seen, request);
        files.as_s3("models", 1000, request)
    });
    let hub = FakeServer::start(move |request| {
        note(&also, request);
        objects.as_hub("owner/tiny", request)
    });
    let mut environment = s3(&bucket).to_vec();
    environment.extend([
        ("AWS_SESSION_TOKEN", "the-session".to_owned()),
        ("HF_ENDPOINT", hub.url()),
        ("HF_TOKEN", "hf_the-token".to_owned()),
    ]);
    for url in ["s3://models/production", "hf://owner/tiny"] {
        let cache = tempfile::tempdir().unwrap();
        let output = Command::new(env!("CARGO_BIN_EXE_oip-server"))
            .args(["check", url, "--log=trace", "--repository-cache"])
            .arg(cache.path())
            .env_clear()
            .envs(borrowed(&environment))
            .output()
            .unwrap();
        let log = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(0), "{log}");
        assert!(log.contains("TRACE"), "{log}");
        for secret in ["the-secret", "the-session", "the-token", "Signature="] {
            let line = log.lines().find(|line| line.contains(secret));
            assert_eq!(line, None, "{url}: {secret}");
        }
    }
    let shown = shown.lock().unwrap();
    for secret in ["the-session", "Signature=", "hf_the-token"] {
        assert!(shown.contains(secret), "{secret}");
    }
}

/// The files of `aws configure` are sufficient, with only HOME set.
#[test]
fn keys_come_from_the_files_of_aws() {
    let objects = Objects::default();
    objects.put("production/weights/1/model.safetensors", tensors(b"abc"));
    let server = FakeServer::start(move |request| {
        let header = |name: &str| request.headers.get(name).map_or("", String::as_str);
        let signed = header("authorization");
        // The profile's key, region and session token are used.
        let is_known = signed.contains("Credential=shop-id/") && signed.contains("/eu-west-1/s3/");
        match is_known && header("x-amz-security-token") == "shop-token" {
            true => objects.as_s3("models", 1000, request),
            false => Response::new(403, "<Error><Code>AccessDenied</Code></Error>"),
        }
    });
    let home = tempfile::tempdir().unwrap();
    let aws = home.path().join(".aws");
    fs::create_dir(&aws).unwrap();
    let credentials = "[default]\naws_access_key_id = other\naws_secret_access_key = the-secret\n\
                       [shop]\naws_access_key_id = shop-id\naws_secret_access_key = the-secret\n\
                       aws_session_token = shop-token\n";
    fs::write(aws.join("credentials"), credentials).unwrap();
    let endpoint = format!("region = eu-west-1\nendpoint_url = {}\n", server.url());
    let config =
        format!("[default]\n{endpoint}[profile shop]\n{endpoint}[profile corp]\nsso_session = corp\n");
    fs::write(aws.join("config"), config).unwrap();
    let home = home.path().to_str().unwrap();
    let check = |more: &[(&str, &str)]| {
        let cache = tempfile::tempdir().unwrap();
        let environment = [&[("HOME", home)], more].concat();
        let (code, models, log) = check("s3://models/production", cache.path(), &environment, &[]);
        assert!(
            !log.contains("the-secret") && !log.contains("shop-token"),
            "{log}"
        );
        (code, states(&models), log)
    };
    let (code, states, log) = check(&[("AWS_PROFILE", "shop")]);
    assert_eq!((code, states), (0, ready("weights")), "{log}");
    // Another profile has another key, and variables override everything.
    for environment in [
        &[][..],
        &[
            ("AWS_PROFILE", "shop"),
            ("AWS_ACCESS_KEY_ID", "mine"),
            ("AWS_SECRET_ACCESS_KEY", "the-secret"),
        ],
    ] {
        let (code, _, log) = check(environment);
        assert!(
            code == 1 && log.contains("a profile in ~/.aws (AWS_PROFILE)"),
            "{log}"
        );
    }
    for (name, expected) in [
        (
            "nobody",
            "the profile 'nobody' (AWS_PROFILE): expected a section of its name",
        ),
        ("corp", "found credentials by SSO, which are not followed"),
    ] {
        let (code, _, log) = check(&[("AWS_PROFILE", name)]);
        assert!(code == 1 && log.contains(expected), "{log}");
    }
}

fn serve(url: &str, cache: &Path, environment: &[(&str, &str)], arguments: &[&str]) -> Server {
    let mut command = Command::new(env!("CARGO_BIN_EXE_oip-server"));
    command
        .args([
            url,
            "--http-address=127.0.0.1:0",
            "--grpc-address=127.0.0.1:0",
            "--log=warn",
            "--repository-cache",
        ])
        .arg(cache)
        .args(arguments)
        .env_clear()
        .envs(environment.iter().copied());
    Server::spawn(&mut command)
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(
            start.elapsed() < Duration::from_secs(30),
            "it does not happen: {what}"
        );
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_poll_brings_what_has_come_to_the_bucket() {
    let (objects, server) = bucket();
    let cache = tempfile::tempdir().unwrap();
    let environment = s3(&server);
    let arguments = ["--model-control-mode=poll", "--repository-poll-secs=1"];
    let mut running = serve(
        "s3://models/production",
        cache.path(),
        &borrowed(&environment),
        &arguments,
    );
    running.wait_until_loaded();
    let status = |path: &str| running.get(path).status;
    assert_eq!(status("/v2/models/weights/versions/1/ready"), 200);
    objects.put("production/weights/2/model.safetensors", tensors(b"def"));
    objects.put("production/other/1/model.safetensors", tensors(b"ghi"));
    until("the new version and the new model are served", || {
        status("/v2/models/weights/versions/2/ready") == 200 && status("/v2/models/other/ready") == 200
    });
    objects.remove("production/other/1/model.safetensors");
    until("the model that is gone is not served", || {
        status("/v2/models/other/ready") != 200
    });
    assert_eq!(status("/v2/models/weights/ready"), 200);
}

#[test]
fn a_load_looks_at_the_bucket_first() {
    let (objects, server) = bucket();
    let cache = tempfile::tempdir().unwrap();
    let environment = s3(&server);
    let arguments = ["--model-control-mode=explicit"];
    let mut running = serve(
        "s3://models/production",
        cache.path(),
        &borrowed(&environment),
        &arguments,
    );
    running.wait_until_loaded();
    let index = || running.request("POST", "/v2/repository/index", &[], b"").json();
    assert_eq!(index(), json!([{"name": "weights"}]));
    let objects_fetched = || fs::read_dir(cache.path().join("objects")).unwrap().count();
    assert_eq!(objects_fetched(), 0);

    objects.put("production/weights/7/model.safetensors", tensors(b"def"));
    let load =
        |model: &str| running.request("POST", &format!("/v2/repository/models/{model}/load"), &[], b"");
    let answer = load("weights");
    assert_eq!(answer.status, 200, "{}", String::from_utf8_lossy(&answer.body));
    assert_eq!(
        index(),
        json!([{"name": "weights", "version": "7", "state": "READY"}])
    );
    assert_eq!(objects_fetched(), 2);

    // One model was added after startup, and the other does not exist.
    objects.put("production/late/1/model.safetensors", tensors(b"ghi"));
    assert_eq!(load("late").status, 200);
    let answer = load("absent");
    assert_eq!(answer.status, 404, "{}", String::from_utf8_lossy(&answer.body));
}

#[test]
fn a_model_that_cannot_be_fetched_says_why() {
    let (objects, server) = bucket();
    objects.put("production/large/1/model.safetensors", vec![0; 5000]);
    let cache = tempfile::tempdir().unwrap();
    let environment = s3(&server);
    let arguments = ["--repository-cache-limit=1KiB"];
    let (code, models, log) = check(
        "s3://models/production",
        cache.path(),
        &borrowed(&environment),
        &arguments,
    );
    assert_eq!(code, 1, "{log}");
    let reason = models[0]["reason"].as_str().unwrap();
    assert!(
        reason.starts_with(
            "it could not be fetched: the model 'large' at s3://models/production needs 5000 bytes"
        ) && reason.contains("may hold 1024"),
        "{reason}"
    );
    assert_eq!(states(&models)[1], ready("weights")[0]);
}

#[test]
fn only_listed_files_with_their_digests_are_loaded() {
    let folder = tempfile::tempdir().unwrap();
    let (models, cache) = (folder.path().join("models"), folder.path().join("cache"));
    for (name, content) in [
        ("good", b"abc"),
        ("changed", b"def"),
        ("unlisted", b"ghi"),
        ("configured", b"jkl"),
    ] {
        fs::create_dir_all(models.join(name).join("1")).unwrap();
        fs::write(models.join(name).join("1/model.safetensors"), tensors(content)).unwrap();
    }
    fs::write(models.join("configured/config.pbtxt"), "max_batch_size: 0").unwrap();
    let list = folder.path().join("digests.txt");
    let line = |name: &str, content: &[u8]| format!("{}  ./{name}/1/model.safetensors\n", sha256(content));
    let (good, before) = (tensors(b"abc"), tensors(b"xyz"));
    let text = line("good", &good) + &line("changed", &before) + &line("configured", &tensors(b"jkl"));
    fs::write(&list, text).unwrap();
    let argument = format!("--require-digests={}", list.display());
    let (code, found, log) = check(models.to_str().unwrap(), &cache, &[], &[&argument]);
    assert_eq!(code, 1, "{log}");
    let reason = |name: &str| {
        let model = found
            .as_array()
            .unwrap()
            .iter()
            .find(|model| model["name"] == name)
            .unwrap();
        model["reason"].as_str().unwrap_or_default().to_owned()
    };
    assert_eq!(reason("good"), "");
    assert_eq!(
        reason("changed"),
        format!(
            "model.safetensors has the SHA-256 {}, but {} demands {} for changed/1/model.safetensors",
            sha256(&tensors(b"def")),
            list.display(),
            sha256(&before)
        )
    );
    assert!(reason("unlisted").ends_with("does not list unlisted/1/model.safetensors, so it is not used"));
    // Configurations must be listed too, because they affect a model's behaviour.
    assert!(
        reason("configured").starts_with("config.pbtxt has the SHA-256 "),
        "{}",
        reason("configured")
    );

    // If the URL names a single file, the list contains its file name.
    let objects = Objects::default();
    objects.put("iris.safetensors", good.clone());
    let served = objects.clone();
    let server = FakeServer::start(move |request| served.as_files(request));
    let url = format!("{}/iris.safetensors", server.url());
    fs::write(&list, format!("{}  iris.safetensors\n", sha256(&good))).unwrap();
    assert_eq!(check(&url, &cache, &[], &[&argument]).0, 0);
    objects.put("iris.safetensors", tensors(b"bad"));
    let (code, found, _) = check(&url, &cache, &[], &[&argument]);
    assert!(
        code == 1 && found[0]["reason"].as_str().unwrap().contains("demands"),
        "{found}"
    );

    fs::write(&list, "not a digest").unwrap();
    let (code, line) = failing(&[argument.as_str(), models.to_str().unwrap()]);
    assert!(
        code == 2 && line.contains("line 1: expected 64 hexadecimal digits"),
        "{line}"
    );
    let (code, line) = failing(&["--require-digests=/nowhere", models.to_str().unwrap()]);
    assert!(
        code == 2 && line.starts_with("--require-digests: /nowhere cannot be read"),
        "{line}"
    );
}
