//! The first-use experience: `init`, the banner, completions, manual pages, advice.

use std::{
    env, fs,
    path::Path,
    process::{Command, Output},
};

use rcgen::{CertificateParams, KeyPair};

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

/// The output of `init` can be served unchanged, and its README's commands work.
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
    // Checking the example repository logs nothing.
    assert_eq!(text(&check.stderr), "");

    let mut server = Server::start(&shop, &[]);
    server.wait_until_loaded();
    let request = fs::read(shop.join("one_digit.json")).unwrap();
    let answer = server.request("POST", "/v2/models/digit_portrait/infer", &[], &request);
    assert_eq!(answer.status, 200, "{}", text(&answer.body));

    // Existing files are not overwritten.
    fs::write(shop.join("README.md"), "mine").unwrap();
    let (code, line) = failing(&["init", path]);
    assert!(
        code == 1 && line.contains("exists and is not an empty directory"),
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

/// Runs a line of the banner in a shell, unless the line's program is missing: `curl` may not be installed,
/// and `tensor` is built only when the whole workspace is tested.
fn paste(line: &str, variables: &[(&str, &str)]) -> Option<String> {
    let folder = Path::new(env!("CARGO_BIN_EXE_oip-server")).parent().unwrap();
    let path = env::join_paths(
        [folder.to_owned()]
            .into_iter()
            .chain(env::split_paths(&env::var_os("PATH").unwrap())),
    )
    .unwrap();
    let shell = |line: &str| {
        let mut command = Command::new("sh");
        command
            .args(["-c", line])
            .env("PATH", &path)
            .env_remove("TENSOR_URL");
        command.envs(variables.iter().copied()).output().unwrap()
    };
    let program = line.trim().split(' ').next().unwrap();
    if !shell(&format!("command -v {program}")).status.success() {
        return None;
    }
    let output = shell(line);
    assert!(output.status.success(), "{line}: {}", text(&output.stderr));
    Some(text(&output.stdout))
}

/// Runs both lines of the banner, and expects a response from each.
fn paste_both(printed: &str, variables: &[(&str, &str)]) {
    let line = |program: &str| {
        printed
            .lines()
            .find(|line| line.trim().starts_with(program))
            .unwrap()
    };
    if let Some(answer) = paste(line("curl "), variables) {
        let answer: serde_json::Value = serde_json::from_str(&answer).unwrap();
        assert!(answer["outputs"][0]["data"].is_array(), "{answer}");
    }
    if let Some(answer) = paste(line("tensor infer "), variables) {
        assert!(!answer.is_empty());
    }
}

/// The banner's commands succeed.
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
    let printed = server.read_until("tensor infer");
    let curl = printed.lines().find(|line| line.contains("curl")).unwrap();
    let (start, body) = curl.trim().split_once(" -d '").unwrap();
    let path = start.strip_prefix(&format!("curl -s {http}")).unwrap();
    assert!(path.starts_with("/v2/models/digit"), "{curl}");
    assert!(
        printed.contains(&format!("  tensor infer --url {http} --model digit")),
        "{printed}"
    );
    let answer = server.request("POST", path, &[], body.trim_end_matches('\'').as_bytes());
    assert_eq!(answer.status, 200, "{}", text(&answer.body));
    paste_both(&printed, &[]);
}

/// The next command of docs/start.md sends all scans in one request, one per row.
#[test]
fn the_example_repository_takes_all_rows_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("shop");
    assert!(run(&["init", path.to_str().unwrap()]).status.success());
    let mut server = Server::start(&path, &["--log", "off"]);
    server.wait_until_loaded();
    let scans = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/requests/digits.json");
    for model in ["digits", "digit_portrait"] {
        let target = format!("/v2/models/{model}/infer");
        let answer = server.request("POST", &target, &[], &fs::read(&scans).unwrap());
        assert_eq!(answer.status, 200, "{model}: {}", text(&answer.body));
    }
}

/// The banner's commands also succeed with a self-signed certificate and an identity table.
#[test]
fn the_banner_can_be_pasted_with_tls_and_a_token() {
    let folder = tempfile::tempdir().unwrap();
    let place = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    assert!(run(&["init", &place("shop")]).status.success());
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    fs::write(place("its own.pem"), certificate.self_signed(&key).unwrap().pem()).unwrap();
    fs::write(place("key.pem"), key.serialize_pem()).unwrap();
    // `printf %s s3cret | sha256sum`
    let digest = "1ec1c26b50d5d3c58d9583181af8076655fe00756bf7285940ba3670f99fcba0";
    let table = format!(
        "[identities.ci]\ntoken-sha256 = [\"{digest}\"]\napis = [\"inference\", \"metadata\"]\n[anonymous]\napis = [\"health\"]\n"
    );
    fs::write(place("auth.toml"), table).unwrap();
    let (certificate, key, table) = (place("its own.pem"), place("key.pem"), place("auth.toml"));
    let encrypted = ["--tls-certificate", &certificate, "--tls-key", &key];
    let known = ["--auth", &table];
    for options in [&encrypted[..], &known[..], &[&encrypted[..], &known[..]].concat()] {
        let mut server = Server::start(Path::new(&place("shop")), &[options, &["--log", "off"]].concat());
        server.wait_until_loaded();
        let printed = server.read_until("tensor infer");
        let has_token = options.contains(&"--auth");
        assert_eq!(
            printed.contains("# TOKEN is one of an identity"),
            has_token,
            "{printed}"
        );
        if options.contains(&"--tls-key") {
            let url = format!("https://localhost:{}/v2", server.http.port());
            assert!(printed.contains(&url), "{printed}");
        }
        paste_both(&printed, &[("TOKEN", "s3cret")]);
    }
}

#[test]
fn completions_and_manual_pages_have_all_commands() {
    for shell in ["bash", "zsh", "fish"] {
        let script = text(&run(&["completions", shell]).stdout);
        for word in ["oip-server", "check", "init", "memory-budget"] {
            assert!(script.contains(word), "{shell} lacks {word}");
        }
    }
    // bash looks up a command's options by the word that the script sets for it.
    let script = text(&run(&["completions", "bash"]).stdout);
    let lines = || script.lines().map(str::trim);
    let set: Vec<&str> = lines()
        .filter_map(|line| line.strip_prefix("cmd=\"")?.strip_suffix('"'))
        .filter(|command| !command.is_empty())
        .collect();
    assert!(set.len() >= 5, "{set:?}");
    for command in set {
        let sought = format!("{command})");
        assert!(lines().any(|line| line == sought), "{command} has no options");
    }
    let folder = tempfile::tempdir().unwrap();
    let pages = folder.path().join("man");
    assert!(run(&["man", pages.to_str().unwrap()]).status.success());
    for page in ["oip-server.1", "oip-server-check.1", "oip-server-init.1"] {
        let page = fs::read_to_string(pages.join(page)).unwrap();
        let footer = concat!("\"oip-server ", env!("CARGO_PKG_VERSION"), "\"");
        let title = page.lines().find(|line| line.starts_with(".TH")).unwrap();
        assert!(title.contains(footer), "{title}");
    }
    assert_eq!(failing(&["completions", "dos"]).0, 2);
}

/// Checks that the script offers nothing for an empty word, because bash completes file names only then.
#[test]
fn options_do_not_hide_files_in_bash() {
    let script = text(&run(&["completions", "bash"]).stdout);
    let completed = |begun: &str, command: &str| {
        let line = format!(
            "{script}\nCOMP_WORDS=(oip-server {command} '{begun}'); COMP_CWORD=2\n_oip__server oip-server '{begun}' {command}\n\
             echo \"${{COMPREPLY[@]}}\""
        );
        let output = Command::new("bash").args(["-c", &line]).output().ok()?;
        assert!(output.status.success(), "{}", text(&output.stderr));
        Some(text(&output.stdout).trim().to_owned())
    };
    if completed("", "check").is_none() {
        println!("skipped: bash is not installed");
        return;
    }
    assert_eq!(completed("", "check").unwrap(), "");
    assert_eq!(completed("--js", "check").unwrap(), "--json");
    assert_eq!(completed("z", "completions").unwrap(), "zsh");
    assert!(completed("", "completions").unwrap().starts_with("bash "));
}

#[test]
fn help_has_commands_and_examples() {
    let help = text(&run(&["--help"]).stdout);
    for expected in ["Commands:", "check", "init", "Examples:", "oip-server init shop"] {
        assert!(help.contains(expected), "{expected}: {help}");
    }
    assert!(text(&run(&["check", "--help"]).stdout).contains("--json"));
}

/// Colours and line width follow the terminal, which environment variables simulate.
#[test]
fn help_has_the_terminals_colour_and_width() {
    let help = |arguments: &[&str], variables: &[(&str, &str)]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_oip-server"));
        command.args(arguments).arg("--help");
        for name in ["CLICOLOR", "CLICOLOR_FORCE", "NO_COLOR", "COLUMNS"] {
            command.env_remove(name);
        }
        text(&command.envs(variables.iter().copied()).output().unwrap().stdout)
    };
    for arguments in [&[][..], &["check"], &["init"], &["completions"], &["man"]] {
        assert!(
            !help(arguments, &[]).contains('\x1b'),
            "{arguments:?}: colours in a pipe"
        );
        assert!(
            help(arguments, &[("CLICOLOR_FORCE", "1")]).contains("\x1b["),
            "{arguments:?}"
        );
        let both = [("CLICOLOR_FORCE", "1"), ("NO_COLOR", "1")];
        assert!(!help(arguments, &both).contains('\x1b'), "{arguments:?}");
    }
    let widest = |columns: &str| {
        let help = help(&[], &[("COLUMNS", columns)]);
        // The text after the options is formatted by hand.
        let options = help.split("\nA repository holds").next().unwrap();
        options.lines().map(|line| line.chars().count()).max().unwrap()
    };
    assert!((41..=60).contains(&widest("60")), "{}", widest("60"));
    assert!((81..=110).contains(&widest("200")), "{}", widest("200"));
}

#[test]
fn misspelt_commands_are_known() {
    for (arguments, meant) in [
        (
            &["chek", "/tmp"][..],
            "there is no file or directory 'chek'; did you mean `oip-server check /tmp`?",
        ),
        (
            &["/tmp", "chek"],
            "there is no file or directory 'chek'; did you mean `oip-server check /tmp`?",
        ),
        (
            &["--onnxruntime", "auto", "check", "my models"],
            "the command 'check' comes before its arguments: did you mean `oip-server check --onnxruntime \
             auto 'my models'`?",
        ),
        (
            &["--onnxruntime", "auto", "check"],
            "the command 'check' comes before its arguments: did you mean `oip-server check --onnxruntime \
             auto`?",
        ),
        (
            &["--port", "1", "init", "shop"],
            "the command 'init' comes before its arguments: did you mean `oip-server init shop`?",
        ),
        (
            &["https://host/models?key=s3cret", "check"],
            "the command 'check' comes before its arguments: did you mean `oip-server check ...`?",
        ),
        (
            &["man"],
            "the following required arguments were not provided: <DIR> (--help",
        ),
        (
            &["init", "shop", "--force"],
            "unexpected argument '--force' found; `oip-server init` never overwrites files: name a new directory, or empty this one first",
        ),
        (
            &["init", "--quiet"],
            "unexpected argument '--quiet' found (--help",
        ),
        (
            &["chekc"],
            "there is no file or directory 'chekc'; did you mean `oip-server check`?",
        ),
        (
            &["nit"],
            "there is no file or directory 'nit'; did you mean `oip-server init`?",
        ),
    ] {
        let (code, line) = failing(arguments);
        assert!(code == 2 && line.starts_with(meant), "{line}");
    }
}

#[test]
fn help_is_a_command_too() {
    assert_eq!(text(&run(&["help"]).stdout), text(&run(&["--help"]).stdout));
    let of_check = text(&run(&["help", "check"]).stdout);
    assert!(of_check.contains("--json") && of_check == text(&run(&["check", "--help"]).stdout));
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
        code == 2 && line.contains("b.onnx, expected one directory or file;"),
        "{line}"
    );
    // An unknown option is still reported as such.
    let (_, line) = failing(&[a.as_os_str(), "--http-adress".as_ref(), b.as_os_str()]);
    assert!(
        line.contains("similar argument exists: '--http-address'"),
        "{line}"
    );
}

/// If the log is JSON, a fatal error is logged as JSON too.
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
        "there is no file or directory /nowhere"
    );
}
