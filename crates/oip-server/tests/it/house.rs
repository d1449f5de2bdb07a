//! What a person meets first: `init`, the banner, completions, manual pages, advice.

use std::{
    fs,
    process::{Command, Output},
};

use crate::support::{Server, failing};

fn run(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_oip-server"))
        .args(arguments)
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// What `init` writes is served as it stands, and what its page says works.
#[test]
fn an_example_repository_serves_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let shop = folder.path().join("shop");
    let path = shop.to_str().unwrap();
    let output = run(&["init", path]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains(&format!("  oip-server {path}\n")));
    let check = run(&["check", path]);
    assert!(check.status.success(), "{}", text(&check.stdout));
    // tract has nothing to say about it.
    assert_eq!(text(&check.stderr), "");

    let mut server = Server::start(&shop, &[]);
    server.wait_until_loaded();
    let request = fs::read(shop.join("one_digit.json")).unwrap();
    let answer = server.request("POST", "/v2/models/digit_portrait/infer", &[], &request);
    assert_eq!(answer.status, 200, "{}", text(&answer.body));

    // Nothing is overwritten.
    fs::write(shop.join("README.md"), "mine").unwrap();
    let (code, line) = failing(&["init", path]);
    assert!(
        code == 1 && line.contains("exists and is not an empty folder"),
        "{line}"
    );
    assert_eq!(fs::read(shop.join("README.md")).unwrap(), b"mine");
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    assert_eq!(failing(&["init", file.to_str().unwrap()]).0, 1);
    let empty = folder.path().join("empty");
    fs::create_dir(&empty).unwrap();
    assert!(run(&["init", empty.to_str().unwrap()]).status.success());
}

/// The command that the banner gives for `curl` is answered.
#[test]
fn the_banner_can_be_pasted() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("shop");
    assert!(run(&["init", path.to_str().unwrap()]).status.success());
    fs::create_dir_all(path.join("broken/1")).unwrap();
    fs::write(path.join("broken/1/model.onnx"), "no model").unwrap();
    let mut server = Server::start(&path, &["--log", "off"]);
    let http = format!("http://{}", server.http);
    let printed = server.wait_until_loaded();
    assert!(printed.contains(&format!("  console  {http}/\n")), "{printed}");
    assert!(printed.contains("1 of 4 models failed after "), "{printed}");
    let printed = server.read_until("curl");
    let curl = printed.lines().last().unwrap();
    let (start, body) = curl.trim().split_once(" -d '").unwrap();
    let path = start.strip_prefix(&format!("curl -s {http}")).unwrap();
    assert!(path.starts_with("/v2/models/digit"), "{curl}");
    let tensor = server.read_until("tensor infer");
    assert!(
        tensor.contains(&format!("  tensor infer --url {http} --model digit")),
        "{tensor}"
    );
    let answer = server.request("POST", path, &[], body.trim_end_matches('\'').as_bytes());
    assert_eq!(answer.status, 200, "{}", text(&answer.body));
}

#[test]
fn completions_and_manual_pages_have_all_commands() {
    for shell in ["bash", "zsh", "fish"] {
        let script = text(&run(&["completions", shell]).stdout);
        for word in ["oip-server", "check", "init", "memory-budget"] {
            assert!(script.contains(word), "{shell} lacks {word}");
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let pages = folder.path().join("man");
    assert!(run(&["man", pages.to_str().unwrap()]).status.success());
    for page in ["oip-server.1", "oip-server-check.1", "oip-server-init.1"] {
        assert!(
            fs::read_to_string(pages.join(page)).unwrap().contains(".TH"),
            "{page}"
        );
    }
    assert_eq!(failing(&["completions", "dos"]).0, 2);
}

#[test]
fn help_has_commands_and_examples() {
    let help = text(&run(&["--help"]).stdout);
    for expected in ["Commands:", "check", "init", "Examples:", "oip-server init shop"] {
        assert!(help.contains(expected), "{expected}: {help}");
    }
    assert!(!help.contains('\x1b'), "colours in a pipe");
    assert!(text(&run(&["check", "--help"]).stdout).contains("--json"));
}

#[test]
fn misspelt_commands_are_known() {
    for (arguments, meant) in [
        (&["chek", "/tmp"][..], "did you mean `oip-server check`?"),
        (
            &["chekc"],
            "there is no file or folder 'chekc'; did you mean `oip-server check`?",
        ),
        (&["nit"], "the model repository nit does not exist"),
    ] {
        let (code, line) = failing(arguments);
        assert!(code != 0 && line.starts_with(meant), "{line}");
    }
}

#[test]
fn two_paths_are_one_too_many() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["a.onnx", "b.onnx"] {
        fs::write(folder.path().join(name), "").unwrap();
    }
    let [a, b] = ["a.onnx", "b.onnx"].map(|name| folder.path().join(name));
    let (code, line) = failing(&[a.as_os_str(), b.as_os_str()]);
    assert!(
        code == 2 && line.contains("b.onnx, expected one folder or file;"),
        "{line}"
    );
    // A wrong option is still that.
    let (_, line) = failing(&[a.as_os_str(), "--http-adress".as_ref(), b.as_os_str()]);
    assert!(
        line.contains("similar argument exists: '--http-address'"),
        "{line}"
    );
}

/// A server that cannot run says so in JSON, too.
#[test]
fn failures_are_json_where_the_log_is() {
    let output = run(&["/nowhere", "--log-format", "json"]);
    assert_eq!(
        (output.status.code(), text(&output.stdout)),
        (Some(1), String::new())
    );
    let lines = text(&output.stderr);
    let events: Vec<serde_json::Value> = lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(
        events.last().unwrap()["reason"],
        "the model repository /nowhere does not exist"
    );
}
