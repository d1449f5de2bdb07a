//! Tests isolated models in the real program.

use std::{
    fs,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use serde_json::json;

use crate::support::Server;

fn examples() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples")
}

/// Returns the live child processes of a server with their command lines.
fn workers(server: &Server) -> Vec<(u32, String)> {
    let mut workers = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let read = |file: &str| fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
        let stat = read("stat");
        let mut fields = stat.rsplit(") ").next().unwrap_or_default().split(' ');
        if fields.next() != Some("Z") && fields.next() == Some(&server.child.id().to_string()) {
            workers.push((pid, read("cmdline").replace('\0', " ").trim().to_owned()));
        }
    }
    workers
}

fn is_alive(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let is_zombie = stat
        .rsplit(") ")
        .next()
        .is_none_or(|fields| fields.is_empty() || fields.starts_with('Z'));
    // While a process is being killed, its first thread may have exited while others still hold its socket.
    let threads = fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
    !is_zombie || threads > 1
}

fn kill(pid: u32) {
    let killed = std::process::Command::new("kill")
        .args(["-s", "KILL", &pid.to_string()])
        .status();
    assert!(killed.unwrap().success());
}

fn label(server: &Server, model: &str) -> serde_json::Value {
    let body = fs::read(examples().join("requests/one_digit.json")).unwrap();
    let answer = server.request("POST", &format!("/v2/models/{model}/infer"), &[], &body);
    assert_eq!(answer.status, 200, "{}", String::from_utf8_lossy(&answer.body));
    answer.json()["outputs"][0]["data"].clone()
}

/// Isolated models respond, survive an external kill, recover, and shut down cleanly.
#[test]
fn models_in_processes_of_their_own() {
    let mut server = Server::start(&examples().join("models"), &["--isolate-models"]);
    server.wait_until_loaded();
    let before = workers(&server);
    let of = |workers: &[(u32, String)], model: &str| {
        let label = format!(" {model}/1");
        workers
            .iter()
            .filter(|(_, command)| command.ends_with(&label))
            .map(|(pid, _)| *pid)
            .collect::<Vec<_>>()
    };
    // Tensor files contain no code and stay in the server's process.
    let counts = ["digits", "digits_forest", "digit_means"].map(|model| of(&before, model).len());
    assert_eq!(counts, [1, 1, 0], "{before:?}");
    for model in ["digits", "digits_forest"] {
        assert_eq!(label(&server, model), json!([7]), "{model}");
    }

    let victim = of(&before, "digits")[0];
    kill(victim);
    let start = Instant::now();
    while is_alive(victim) {
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(label(&server, "digits"), json!([7]));
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    let after = workers(&server);
    assert_ne!(of(&after, "digits"), [victim]);
    assert_eq!(of(&after, "digits_forest"), of(&before, "digits_forest"));
    assert_eq!(server.get("/v2/health/ready").status, 200);

    // A signal to all processes of a service does not end workers before the server.
    for (pid, _) in &after {
        let sent = std::process::Command::new("kill")
            .args(["-s", "TERM", &pid.to_string()])
            .status();
        assert!(sent.unwrap().success());
    }
    assert_eq!(label(&server, "digits"), json!([7]));
    assert_eq!(workers(&server), after);
    server.signal("TERM");
    assert_eq!(server.wait(Duration::from_secs(10)).code(), Some(0));
    assert!(after.iter().all(|(pid, _)| !is_alive(*pid)), "{after:?}");
}

/// A killed server leaves no workers behind.
#[test]
fn a_killed_server_leaves_no_worker() {
    let mut server = Server::start(&examples().join("models"), &["--isolate-models=true"]);
    server.wait_until_loaded();
    let workers = workers(&server);
    assert_eq!(workers.len(), 2);
    server.child.kill().unwrap();
    server.child.wait().unwrap();
    let start = Instant::now();
    while workers.iter().any(|(pid, _)| is_alive(*pid)) {
        assert!(start.elapsed() < Duration::from_secs(10), "{workers:?}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// A model that exceeds its memory limit is not loaded, and the reason is reported; the server and other
/// models continue.
#[test]
fn a_limit_that_is_too_small() {
    let folder = tempfile::tempdir().unwrap();
    for (model, config) in [
        (
            "small",
            "parameters { key: 'memory_limit' value { string_value: '64KiB' } }",
        ),
        (
            "tight",
            "parameters { key: 'memory_limit' value { string_value: '512KiB' } }",
        ),
        ("roomy", ""),
        (
            "inside",
            "parameters { key: 'isolation' value { string_value: 'none' } }",
        ),
    ] {
        let version = folder.path().join(model).join("1");
        fs::create_dir_all(&version).unwrap();
        let example = examples().join("models/digits_forest/1/model.onnx");
        fs::copy(example, version.join("model.onnx")).unwrap();
        fs::write(folder.path().join(model).join("config.pbtxt"), config).unwrap();
    }
    let arguments = [
        "--isolate-models",
        "--model-memory-limit=4GiB",
        "--strict-readiness=false",
    ];
    let mut server = Server::start(folder.path(), &arguments);
    let printed = server.wait_until_loaded();
    for model in ["roomy", "inside"] {
        assert_eq!(label(&server, model), json!([7]), "{printed}");
    }
    let reason = |model: &str| {
        let answer = server.get(&format!("/v2/models/{model}/ready"));
        assert_eq!(answer.status, 503, "{printed}");
        answer.json()["error"].as_str().unwrap().to_owned()
    };
    let small = reason("small");
    assert!(
        small.ends_with("and its process may use 64 KiB of memory"),
        "{small}"
    );
    let tight = reason("tight");
    assert!(tight.contains("may use 512 KiB of memory"), "{tight}");
    assert_eq!(server.get("/v2/health/live").status, 200);
    assert_eq!(workers(&server).len(), 1);
}

/// Checks the error of a worker that is started by hand.
#[test]
fn the_workers_command_is_not_for_people() {
    let (code, line) = crate::support::failing(&["worker", "digits/1"]);
    assert_eq!(code, 2);
    assert!(line.starts_with("a worker is started by a server"), "{line}");
}

/// Workers use the same runtime as the server, and their log lines appear in the server's log.
#[test]
fn workers_have_the_servers_backends_and_its_log() {
    let library = std::env::var_os("ORT_DYLIB_PATH").filter(|path| !path.is_empty());
    let runtime = if library.is_some() {
        "onnxruntime"
    } else {
        "built-in"
    };
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("server.toml");
    let setting = library.map_or_else(String::new, |path| format!("onnxruntime = {path:?}\n"));
    fs::write(&config, format!("{setting}isolate-models = true\n")).unwrap();
    let arguments = ["--config", config.to_str().unwrap(), "--log-format", "json"];
    let mut command = crate::support::command(&examples().join("models"), &arguments);
    let mut child = command
        .stderr(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let lines = std::io::BufRead::lines(std::io::BufReader::new(child.stderr.take().unwrap()));
    let mut said = std::collections::BTreeMap::new();
    for line in lines {
        let event: serde_json::Value = serde_json::from_str(&line.unwrap()).unwrap();
        if let Some(line) = event["line"]
            .as_str()
            .filter(|line| line.contains("prepared a model"))
        {
            said.insert(event["model"].as_str().unwrap().to_owned(), line.to_owned());
        }
        if said.len() == 2 {
            break;
        }
    }
    child.kill().unwrap();
    child.wait().unwrap();
    for model in ["digits/1", "digits_forest/1"] {
        assert!(
            said[model].contains(&format!("runtime=\"{runtime}\"")),
            "{said:?}"
        );
    }
}

/// The complete configuration names the runtime of a model, isolated or not; a backend with a single runtime
/// omits it.
#[test]
fn the_configuration_names_the_runtime_that_was_chosen() {
    for arguments in [&[][..], &["--isolate-models"]] {
        let mut server = Server::start(&examples().join("models"), arguments);
        server.wait_until_loaded();
        for (model, runtime) in [
            ("digits", "built-in"),
            ("digit_means", ""),
            ("digit_portrait", ""),
        ] {
            let config = server.get(&format!("/v2/models/{model}/config")).json();
            assert_eq!(
                config["runtime"].as_str().unwrap_or_default(),
                runtime,
                "{config}"
            );
        }
    }
}
