//! Tests who may access the console, and which part of the log it shows.

use std::{fs, io::Write, path::Path};

use serde_json::Value;

use crate::support::{Server, command, receive};

fn server(arguments: &[&str]) -> (Server, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let mut server = Server::start(folder.path(), arguments);
    server.wait_until_loaded();
    (server, folder)
}

#[test]
fn browsers_get_the_page_with_its_scripts_and_the_log() {
    let (server, _folder) = server(&[]);
    let page = server.request("GET", "/", &[("Accept", "text/html")], b"");
    assert_eq!(
        (page.status, page.header("content-type")),
        (200, Some("text/html; charset=utf-8"))
    );
    assert_eq!(server.get("/console/console.js").status, 200);
    assert_eq!(server.get("/console/other.js").status, 404);
    assert_eq!(server.request("POST", "/", &[], b"").status, 405);
    let log = server.get("/console/log?after=0").json();
    let lines = log["lines"].as_array().unwrap();
    assert!(
        lines
            .iter()
            .filter_map(Value::as_str)
            .any(|line| line.contains("listening")),
        "{log}"
    );
    assert_eq!(log["next"], lines.len());
    // A page whose host name resolves to this machine sends this request.
    let mut stream = server.connect();
    stream
        .write_all(b"GET /console/log HTTP/1.1\r\nHost: evil.example\r\n\r\n")
        .unwrap();
    assert_eq!(receive(&mut stream).status, 403);
}

#[test]
fn page_and_log_can_be_taken_away() {
    let (without_page, _folder) = server(&["--allow-console=false"]);
    assert_eq!(without_page.get("/").status, 404);
    assert_eq!(without_page.get("/console/log").status, 404);
    let (without_log, _folder) = server(&["--allow-console-log=false"]);
    assert_eq!(without_log.get("/").status, 200);
    let refused = without_log.get("/console/log");
    assert_eq!(refused.status, 403);
    assert!(
        refused.json()["error"]
            .as_str()
            .unwrap()
            .contains("--allow-console-log")
    );
}

/// Browsers send no token when they open a page. With an identity table, the static files are public, because
/// they contain no data; the requests that their scripts send need a token.
#[test]
fn pages_are_for_every_client_and_data_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let table = folder.path().join("auth.toml");
    // `printf %s s3cret | sha256sum`
    let digest = "1ec1c26b50d5d3c58d9583181af8076655fe00756bf7285940ba3670f99fcba0";
    let text = format!("[identities.ci]\ntoken-sha256 = [\"{digest}\"]\napis = [\"metadata\"]\n");
    std::fs::write(&table, text).unwrap();
    let mut server = Server::start(folder.path(), &["--auth", table.to_str().unwrap()]);
    server.wait_until_loaded();
    for path in ["/", "/docs", "/console/console.js", "/console/icon.svg"] {
        let answer = server.request("GET", path, &[("Accept", "text/html")], b"");
        assert_eq!(answer.status, 200, "{path}");
        let text = String::from_utf8(answer.body).unwrap();
        assert!(!text.contains(env!("CARGO_PKG_VERSION")), "{path}");
    }
    let plain = String::from_utf8(server.get("/").body).unwrap();
    assert!(
        plain.contains("/v2/models") && !plain.contains(env!("CARGO_PKG_VERSION")),
        "{plain}"
    );
    for path in [
        "/openapi.json",
        "/v2",
        "/v2/models",
        "/console/log",
        "/console/other",
        "/metrics",
    ] {
        assert_eq!(server.get(path).status, 401, "{path}");
    }
    let token = [("Authorization", "Bearer s3cret")];
    for (path, status) in [("/openapi.json", 200), ("/v2/models", 200), ("/console/log", 403)] {
        assert_eq!(server.request("GET", path, &token, b"").status, status, "{path}");
    }
}

/// Every example of `/openapi.json` succeeds with the example repository.
#[test]
fn the_described_examples_work() {
    let models = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/models");
    let mut server = Server::start(&models, &[]);
    server.wait_until_loaded();
    let description = server.get("/openapi.json").json();
    let mut ran = Vec::new();
    for (path, methods) in description["paths"].as_object().unwrap() {
        let operation = &methods["post"];
        let is_model = operation["tags"][0]
            .as_str()
            .is_some_and(|tag| tag.starts_with("model "));
        if is_model {
            let example = &operation["requestBody"]["content"]["application/json"]["example"];
            let answer = server.request("POST", path, &[], example.to_string().as_bytes());
            assert_eq!(
                answer.status,
                200,
                "{path} {example}: {}",
                String::from_utf8_lossy(&answer.body)
            );
            ran.push(path.as_str());
        }
    }
    assert!(
        ran.contains(&"/v2/models/digits/infer") && ran.contains(&"/v2/models/digit_means/infer"),
        "{ran:?}"
    );
    let parameters = &description["components"]["parameters"];
    let name = parameters["model"]["example"].as_str().unwrap();
    for path in ["/v2/models/{model}/infer", "/v1/models/{model}:predict"] {
        let example =
            &description["paths"][path]["post"]["requestBody"]["content"]["application/json"]["example"];
        let path = path.replace("{model}", name);
        let answer = server.request("POST", &path, &[], example.to_string().as_bytes());
        assert_eq!(
            answer.status,
            200,
            "{path} {example}: {}",
            String::from_utf8_lossy(&answer.body)
        );
    }
}

/// The console's form starts with the model's own example if the model accepts it; otherwise the log explains
/// why not.
#[cfg(feature = "tensors")]
#[test]
fn models_bring_their_example() {
    let folder = tempfile::tempdir().unwrap();
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/models");
    let file = "1/model.safetensors";
    let good = r#"{"inputs": [{"name": "mean.rows", "datatype": "INT64", "shape": [1], "data": [3]}]}"#;
    let wrong = good.replace("mean.rows", "mean.row");
    for (model, example) in [("good", good), ("wrong", &wrong)] {
        fs::create_dir_all(folder.path().join(model).join("1")).unwrap();
        fs::copy(
            models.join("digit_means").join(file),
            folder.path().join(model).join(file),
        )
        .unwrap();
        fs::write(folder.path().join(model).join("example.json"), example).unwrap();
    }
    let log = folder.path().join("server.log");
    let mut command = command(folder.path(), &[]);
    let mut server = Server::spawn(command.stderr(fs::File::create(&log).unwrap()));
    server.wait_until_loaded();
    for path in ["/v2/models/good/example", "/v2/models/good/versions/1/example"] {
        let answer = server.get(path);
        assert_eq!((answer.status, &*answer.body), (200, good.as_bytes()));
        assert_eq!(answer.header("content-type"), Some("application/json"));
    }
    let infer = server.request("POST", "/v2/models/good/infer", &[], good.as_bytes());
    assert_eq!(infer.status, 200);
    let none = server.get("/v2/models/wrong/example");
    assert_eq!(none.status, 404);
    assert_eq!(
        none.json()["error"],
        "model 'wrong' has no example.json with valid inputs"
    );
    assert_eq!(server.get("/v2/models/wrong/ready").status, 200);
    let log = fs::read_to_string(&log).unwrap();
    let line = log.lines().find(|line| line.contains("example.json")).unwrap();
    assert!(
        line.contains("WARN")
            && line.contains("model=\"wrong\"")
            && line.contains("unexpected input 'mean.row'"),
        "{line}"
    );
    assert_eq!(log.matches("the example is not used").count(), 1, "{log}");
}

/// The page checks by GET whether loading would be rejected, and why; nothing is loaded or audited.
#[cfg(feature = "tensors")]
#[test]
fn whether_models_are_loaded_by_request_is_told_beforehand() {
    let path = "/v2/repository/models/m/load";
    let (fixed, _folder) = server(&[]);
    let (asked, tried) = (fixed.get(path), fixed.request("POST", path, &[], b""));
    assert_eq!((asked.status, tried.status), (503, 503));
    assert_eq!(asked.json(), tried.json());
    assert!(
        asked.json()["error"]
            .as_str()
            .unwrap()
            .contains("--model-control-mode=explicit")
    );

    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    // SHA-256 of s3cret.
    let digest = "1ec1c26b50d5d3c58d9583181af8076655fe00756bf7285940ba3670f99fcba0";
    let table = format!(
        "[identities.operator]\ntoken-sha256 = [\"{digest}\"]\napis = [\"repository\"]\nmodels = [\"m*\"]\n\
         [anonymous]\napis = [\"metadata\"]\n"
    );
    fs::write(at("auth.toml"), table).unwrap();
    let auth = format!("--auth={}", at("auth.toml").display());
    let mut command = command(folder.path(), &["--model-control-mode=explicit", &auth]);
    let mut server = Server::spawn(command.stderr(fs::File::create(at("server.log")).unwrap()));
    server.wait_until_loaded();
    let status = |path: &str, token: &str| {
        let header = format!("Bearer {token}");
        let headers: &[(&str, &str)] = if token.is_empty() {
            &[]
        } else {
            &[("Authorization", &header)]
        };
        server.request("GET", path, headers, b"").status
    };
    for verb in ["load", "unload"] {
        let of = |model: &str| format!("/v2/repository/models/{model}/{verb}");
        assert_eq!(status(&of("m"), "s3cret"), 200);
        assert_eq!(status(&of("other"), "s3cret"), 403);
        assert_eq!(status(&of("m"), ""), 403);
    }
    let log = fs::read_to_string(at("server.log")).unwrap();
    assert!(!log.contains("audit"), "{log}");
    let tried = server.request("POST", path, &[("Authorization", "Bearer s3cret")], b"");
    assert_ne!(tried.status, 200);
    crate::metrics::until("the change is audited", || {
        fs::read_to_string(at("server.log")).unwrap().contains("audit")
    });
}
