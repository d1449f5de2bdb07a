//! `tensor ls`, `show`, `status`, `load`, `unload`; values on the command line, CSV and JSON.

use std::{
    fs,
    process::Command,
    sync::{Arc, atomic::Ordering},
};

use oip_service::testing::TestService;
use serde_json::Value;
use tensor_core::{Shape, Tensor};

use crate::{server::Server, support::TestDir};

fn lines(text: &str) -> Vec<Value> {
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[test]
fn models_are_listed_loaded_and_unloaded() {
    let (dir, server) = (TestDir::new(), Server::new());
    for url in server.urls() {
        let table = dir.good(&["ls", "--url", url]);
        assert!(table.starts_with("NAME"), "{table}");
        let rows: Vec<Vec<&str>> = table
            .lines()
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert!(
            rows.contains(&vec!["matrix", "1", "UNAVAILABLE", "unloaded"]),
            "{table}"
        );
        assert!(rows.contains(&vec!["never", "-", "not", "loaded"]), "{table}");
        let ready = lines(&dir.good(&["ls", "--url", url, "--ready", "--json"]));
        assert!(ready.iter().all(|model| model["state"] == "READY"), "{ready:?}");

        assert_eq!(
            dir.good(&["load", "--url", url, "identity_fp32", "identity_bytes"]),
            "loaded identity_fp32\nloaded identity_bytes\n"
        );
        let unloaded = dir.good(&["unload", "--url", url, "--json", "identity_fp32"]);
        assert_eq!(lines(&unloaded)[0]["state"], "unloaded");
        let all = lines(&dir.good(&["ls", "--url", url, "--json"]));
        let state = |name: &str| all.iter().find(|model| model["name"] == name).unwrap()["state"].clone();
        assert_eq!(
            (state("identity_fp32"), state("identity_bytes")),
            ("UNAVAILABLE".into(), "READY".into())
        );
    }
}

#[test]
fn a_model_is_shown_and_a_server_has_a_status() {
    let service = Arc::new(TestService::default());
    let (dir, server) = (TestDir::new(), Server::of(service.clone()));
    for url in server.urls() {
        let shown = dir.good(&["show", "--url", url, "matrix"]);
        for expected in [
            "model     matrix\n",
            "backend   test\n",
            "input   a     FP32      [-1, 2]",
            "output  sum   FP32      [-1]",
        ] {
            assert!(shown.contains(expected), "{shown}");
        }
        let json: Value =
            serde_json::from_str(&dir.good(&["show", "--url", url, "matrix", "--json"])).unwrap();
        assert_eq!(json["metadata"]["inputs"][1]["datatype"], "INT64");
        let status = dir.good(&["status", "--url", url]);
        assert!(status.contains(": test 1.2.3, ready\n"), "{status}");
    }
    service.is_not_ready.store(true, Ordering::SeqCst);
    for url in server.urls() {
        let run = dir.run(&["status", "--url", url, "--json"]);
        assert_eq!(run.code, 1, "{}", run.err);
        assert_eq!(lines(&run.out)[0]["ready"], false);
    }
}

#[test]
fn a_model_is_shown_with_whether_its_requests_are_joined() {
    let (dir, server) = (TestDir::new(), Server::new());
    for url in server.urls() {
        let shown = dir.good(&["show", "--url", url, "matrix"]);
        assert!(
            shown.contains("batches   of up to 4 rows\nbatched   declared\n"),
            "{shown}"
        );
        // Other servers do not report whether they batch requests.
        assert!(!dir.good(&["show", "--url", url, "nan"]).contains("batched"));
    }
}

#[test]
fn the_environment_names_the_server() {
    let (dir, server) = (TestDir::new(), Server::new());
    let output = Command::new(env!("CARGO_BIN_EXE_tensor"))
        .args(["show", "nan"])
        .env("TENSOR_URL", &server.http)
        .output()
        .unwrap();
    assert!(output.status.success());
    assert!(dir.good(&["show", "--help"]).contains("[env: TENSOR_URL="));
}

#[test]
fn misspelt_models_are_known() {
    let (dir, server) = (TestDir::new(), Server::new());
    for url in server.urls() {
        let error = dir.bad(&["infer", "--url", url, "--model", "matirx"]);
        assert!(error.ends_with("did you mean 'matrix'?"), "{error}");
        for command in ["load", "unload"] {
            let error = dir.bad(&[command, "--url", url, "matirx"]);
            assert!(error.ends_with("did you mean 'matrix'?"), "{command}: {error}");
        }
        let error = dir.bad(&["show", "--url", url, "something_else"]);
        assert!(!error.contains("did you mean"), "{error}");
    }
}

#[test]
fn values_are_given_on_the_command_line() {
    let (dir, server) = (TestDir::new(), Server::new());
    for url in server.urls() {
        let both = ["-i", "a=[[1, 2], [3.5, 4]]", "-i", "b=[7]", "--json"];
        let json = dir.good(&[&["infer", "--url", url, "--model", "matrix"], &both[..]].concat());
        let answer: Value = serde_json::from_str(&json).unwrap();
        assert_eq!(answer["outputs"][0]["data"], serde_json::json!([3.0, 7.5]));
        assert_eq!(answer["outputs"][1]["data"], serde_json::json!([7]));
        // The row has no batch dimension.
        let flat = [
            "infer",
            "--url",
            url,
            "--model",
            "matrix",
            "-i",
            "a=[1, 2]",
            "-i",
            "b=[7]",
            "--outputs",
            "sum",
        ];
        assert!(dir.good(&flat).contains("sum   FP32      [1]    3."));
        let error = dir.bad(&[
            "infer",
            "--url",
            url,
            "--model",
            "matrix",
            "-i",
            "a=[[1, 2], [3]]",
            "-i",
            "b=[7]",
        ]);
        assert!(error.contains("input 'a': the value: "), "{error}");
        let texts = [
            "infer",
            "--url",
            url,
            "--model",
            "identity_bytes",
            "-i",
            r#"x=["ü", "b"]"#,
        ];
        assert!(dir.good(&texts).contains(r#""ü" "b""#));
    }
}

#[test]
fn rows_come_from_csv_and_go_into_it() {
    let (dir, server) = (TestDir::new(), Server::new());
    fs::write(dir.path("rows.csv"), "left,right\n1,2\n3.5,4\n").unwrap();
    fs::write(
        dir.path("b.json"),
        r#"{"inputs": [{"name": "b", "datatype": "INT64", "shape": [1], "data": [7]}]}"#,
    )
    .unwrap();
    for url in server.urls() {
        let asked = [
            "infer",
            "--url",
            url,
            "--model",
            "matrix",
            "-i",
            "a=rows.csv",
            "-i",
            "b=b.json",
        ];
        let with = |more: &[&str]| dir.good(&[&asked[..], more].concat());
        assert_eq!(with(&["-o", "sum=sum.csv", "-o", "b=b_again.json"]), "");
        assert_eq!(
            fs::read_to_string(dir.path("sum.csv")).unwrap(),
            "sum\n3.0\n7.5\n"
        );
        let json: Value = serde_json::from_slice(&fs::read(dir.path("b_again.json")).unwrap()).unwrap();
        assert_eq!(json["outputs"].as_array().unwrap().len(), 1);
        assert_eq!(json["outputs"][0]["data"], serde_json::json!([7]));
        // The written file can be read back.
        let again = [
            "infer",
            "--url",
            url,
            "--model",
            "identity_fp32",
            "-i",
            "x=sum.csv",
        ];
        assert!(dir.good(&again).contains("[2]    3. 7.5"), "{}", dir.good(&again));
        // Outputs with different numbers of rows do not form a table.
        let error = dir.bad(&[&asked[..], &["-o", "all.csv"]].concat());
        assert!(error.contains("output 'sum' has 2 and 'b' 1"), "{error}");
        assert!(!dir.path("all.csv").exists());
    }
    let square = [
        "infer",
        "--url",
        &server.http,
        "--model",
        "identity_fp32_matrix",
        "-i",
        "x=rows.csv",
        "-o",
        "y.csv",
    ];
    assert_eq!(dir.good(&square), "");
    assert_eq!(
        fs::read_to_string(dir.path("y.csv")).unwrap(),
        "y_0,y_1\n1.0,2.0\n3.5,4.0\n"
    );
}

#[test]
fn measurements_have_a_chart() {
    let (dir, server) = (TestDir::new(), Server::new());
    let bench = [
        "bench",
        "--url",
        &server.http,
        "--model",
        "identity_fp32",
        "--requests",
        "50",
        "--warm-up",
        "0",
        "--plot",
    ];
    let printed = dir.good(&bench);
    assert!(
        printed.contains("latency up to  responses\n") && printed.contains('█'),
        "{printed}"
    );
}

/// All client commands work over TLS, with and without a client certificate, wherever `--ca` is placed.
#[test]
fn servers_are_called_over_tls() {
    let dir = TestDir::new();
    dir.write(
        "x.npy",
        &[],
        &[(
            "0",
            &Tensor::from_vec(Shape::vector(2), vec![1.5_f32, -2.0]).unwrap(),
        )],
    );
    let other = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    fs::write(dir.path("other.pem"), other.cert.pem()).unwrap();
    for wants_certificates in [false, true] {
        let service = Arc::new(TestService::default());
        let server = Server::encrypted(&dir.path(""), service, wants_certificates);
        let own: &[&str] = match wants_certificates {
            true => &["--cert", "robot.pem", "--key", "robot-key.pem"],
            false => &[],
        };
        for url in server.urls() {
            assert!(
                ["https://", "grpcs://"]
                    .iter()
                    .any(|scheme| url.starts_with(scheme)),
                "{url}"
            );
            let to = [&["--url", url, "--ca", "ca.pem"], own].concat();
            let good = |command: &[&str]| dir.good(&[command, &to].concat());
            let answer = good(&["infer", "-m", "identity_fp32", "-i", "x=x.npy", "--json"]);
            assert_eq!(
                lines(&answer)[0]["outputs"][0]["data"],
                serde_json::json!([1.5, -2.0])
            );
            let report = good(&[
                "bench",
                "-m",
                "identity_fp32",
                "--warm-up",
                "0s",
                "--requests",
                "20",
                "--json",
            ]);
            let report: Value = serde_json::from_str(&report).unwrap();
            assert_eq!(
                (&report["requests"], &report["errors"]),
                (&20.into(), &serde_json::json!({})),
                "{report}"
            );
            assert!(good(&["status"]).contains(": test 1.2.3, ready\n"));
            assert!(good(&["ls"]).starts_with("NAME"));
            assert!(good(&["show", "matrix"]).contains("model     matrix\n"));
            assert_eq!(good(&["load", "identity_fp32"]), "loaded identity_fp32\n");
            // `--ca` may also precede the name of the command.
            let front = [&["--ca", "ca.pem", "status", "--url", url], own].concat();
            assert!(dir.good(&front).contains(": test 1.2.3, ready\n"));
            // The environment variable `SSL_CERT_FILE` has the same effect as `--ca`.
            let by_variable = Command::new(env!("CARGO_BIN_EXE_tensor"))
                .args(["status", "--url", url])
                .env("SSL_CERT_FILE", dir.path("ca.pem"))
                .output()
                .unwrap();
            assert_eq!(by_variable.status.success(), !wants_certificates);
            let stranger = dir.bad(&["infer", "--url", url, "--ca", "other.pem", "-m", "m"]);
            assert!(
                stranger.contains("signed by an authority that this client does not know"),
                "{stranger}"
            );
            if wants_certificates {
                let nobody = dir.bad(&["infer", "--url", url, "--ca", "ca.pem", "-m", "m"]);
                assert!(
                    nobody.contains("the server wants a certificate of the client"),
                    "{nobody}"
                );
            }
        }
        // `--ca` also applies to remote files, so it is not an error for a server without TLS.
        assert!(
            dir.good(&["status", "--url", &Server::new().http, "--ca", "ca.pem"])
                .contains("ready")
        );
    }
    let help = dir.good(&["infer", "--help"]);
    assert_eq!(help.matches("--ca ").count(), 1, "{help}");
}
