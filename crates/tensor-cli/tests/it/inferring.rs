//! `tensor infer` over both transports.

use std::{fs, sync::Arc};

use oip_service::testing::TestService;
use tensor_core::{Shape, Tensor};

use crate::{
    server::{Server, TripleService, interrupt, wait_for},
    support::{TestDir, matrix},
};

fn infer<'a>(url: &'a str, model: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&["infer", "--url", url, "--model", model], more].concat()
}

fn vector(values: &[f32]) -> Tensor {
    Tensor::from_vec(Shape::vector(values.len() as u64), values.to_vec()).unwrap()
}

/// Splits the table's rows into fields at blanks.
fn rows(table: &str) -> Vec<Vec<&str>> {
    table
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect()
}

#[test]
fn outputs_are_printed_as_a_table() {
    let (dir, server) = (TestDir::new(), Server::new());
    dir.write(
        "x.npy",
        &[],
        &[("0", &vector(&[1.5, -2.0, 0.1, 4.0, 5.0, 6.0, 7.0]))],
    );
    dir.write(
        "one.npy",
        &[],
        &[("0", &Tensor::from_vec(Shape::vector(1), vec![7i64]).unwrap())],
    );
    dir.write("ab.zt", &[], &[("a", &matrix()), ("other", &vector(&[1.0]))]);
    for url in server.urls() {
        for form in ["--binary", "--json-form"] {
            let table = dir.good(&infer(url, "identity_fp32", &["--input", "x=x.npy", form]));
            assert_eq!(
                rows(&table),
                [
                    vec!["NAME", "DATATYPE", "SHAPE", "VALUES"],
                    vec!["y", "FP32", "[7]", "1.5", "-2.", "0.1", "4.", "5.", "6.", "..."],
                ]
            );
        }
        let json = dir.good(&infer(url, "identity_fp32", &["--input", "x=x.npy", "--json"]));
        let answer: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(answer["outputs"][0]["data"][1], -2.0);
        let into_file = ["--input", "x=x.npy", "--json", "-o", "y.npy"];
        let told: serde_json::Value =
            serde_json::from_str(&dir.good(&infer(url, "identity_fp32", &into_file))).unwrap();
        assert_eq!(told["files"][0]["file"], "y.npy");
        let both = ["-i", "a=ab.zt#a", "-i", "b=one.npy", "--version", "1"];
        let table = dir.good(&infer(url, "matrix", &both));
        assert_eq!(
            rows(&table)[1..],
            [
                vec!["sum", "FP32", "[3]", "1.", "-2.5", "4."],
                vec!["b", "INT64", "[1]", "7"]
            ]
        );
        let only = [&both[..], &["--outputs", "b"]].concat();
        assert_eq!(rows(&dir.good(&infer(url, "matrix", &only))).len(), 2);
    }
}

#[test]
fn outputs_go_into_files_of_every_format() {
    let (dir, server) = (TestDir::new(), Server::new());
    dir.write("x.npy", &[], &[("0", &vector(&[1.5, -2.0]))]);
    let sha256 = dir.inspect("x.npy")["tensors"][0]["sha256"].clone();
    for url in server.urls() {
        for file in ["y.zt", "y.tbuf", "y.safetensors", "y.npz", "y.npy", "y.btf"] {
            for output in [file.to_owned(), format!("y={file}")] {
                let out = dir.good(&infer(url, "identity_fp32", &["-i", "x=x.npy", "-o", &output]));
                assert_eq!(out, "");
                let tensor = dir.inspect(file)["tensors"][0].clone();
                assert_eq!(tensor["sha256"], sha256, "{output}");
                let has_names = !file.ends_with(".npy") && !file.ends_with(".btf");
                assert!(!has_names || tensor["name"] == "y", "{tensor}");
                fs::remove_file(dir.path(file)).unwrap();
            }
        }
    }
    // Requests only some of the model's outputs.
    dir.write("a.npy", &[], &[("0", &matrix())]);
    dir.write(
        "b.npy",
        &[],
        &[("0", &Tensor::from_vec(Shape::vector(1), vec![7i64]).unwrap())],
    );
    let inputs = ["-i", "a=a.npy", "-i", "b=b.npy"];
    let all = [&inputs[..], &["-o", "all.zt", "-o", "b=only.npy"]].concat();
    dir.good(&infer(&server.http, "matrix", &all));
    assert_eq!(dir.inspect("all.zt")["tensors"].as_array().unwrap().len(), 2);
    assert_eq!(dir.inspect("only.npy")["tensors"][0]["dtype"], "int64");
    let two = [&inputs[..], &["-o", "both.npy"]].concat();
    let refused = dir.bad(&infer(&server.http, "matrix", &two));
    assert!(
        refused.starts_with("error[Unsupported]: both.npy: the number of tensors: expected 1"),
        "{refused}"
    );
}

#[test]
fn byte_strings_come_from_lines_and_become_lines() {
    let (dir, server) = (TestDir::new(), Server::new());
    fs::write(dir.path("words.txt"), "größe\r\n\nlast").unwrap();
    for url in server.urls() {
        dir.good(&infer(
            url,
            "identity_bytes",
            &["-i", "x=@words.txt", "-o", "y=@out.txt"],
        ));
        assert_eq!(
            fs::read_to_string(dir.path("out.txt")).unwrap(),
            "größe\n\nlast\n"
        );
        let table = dir.good(&infer(url, "identity_bytes", &["-i", "x=@words.txt"]));
        assert_eq!(
            rows(&table)[1],
            ["y", "BYTES", "[3]", "\"größe\"", "\"\"", "\"last\""]
        );
        let refused = dir.bad(&infer(
            url,
            "identity_bytes",
            &["-i", "x=@words.txt", "-o", "y.zt"],
        ));
        assert!(
            refused.contains("output 'y' is BYTES, which only .npy and .npz can hold of the files of tensors; --output y=@FILE"),
            "{refused}"
        );
        let refused = dir.bad(&infer(url, "identity_fp32", &["-i", "x=@words.txt"]));
        assert!(refused.contains("takes FP32, words.txt holds BYTES"), "{refused}");
        dir.write("x.npy", &[], &[("0", &vector(&[1.0]))]);
        let refused = dir.bad(&infer(url, "identity_fp32", &["-i", "x=x.npy", "-o", "y=@y.txt"]));
        assert!(
            refused.contains("output 'y' is FP32, and only BYTES become lines"),
            "{refused}"
        );
    }
}

/// Returns a file as `numpy.save` writes it for an array of strings.
fn npy(descr: &str, shape: &str, elements: &[u8]) -> Vec<u8> {
    let mut header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}");
    header.extend(std::iter::repeat_n(' ', 117 - header.len()));
    header.push('\n');
    [b"\x93NUMPY\x01\0\x76\0", header.as_bytes(), elements].concat()
}

#[test]
fn byte_strings_come_from_arrays_of_texts_and_become_arrays() {
    let (dir, server) = (TestDir::new(), Server::new());
    let utf32 = |text: &str, big: bool| -> Vec<u8> {
        let points = text.chars().map(u32::from);
        let bytes = |point: u32| {
            if big {
                point.to_be_bytes()
            } else {
                point.to_le_bytes()
            }
        };
        points.flat_map(bytes).collect()
    };
    let words = "gr\u{f6}\u{df}e\0\0\0\0\0a\u{1f600}\0\0\0";
    fs::write(dir.path("little.npy"), npy("<U5", "(3,)", &utf32(words, false))).unwrap();
    fs::write(dir.path("big.npy"), npy(">U5", "(3,)", &utf32(words, true))).unwrap();
    fs::write(dir.path("bytes.npy"), npy("|S3", "(2,)", b"ab\0\0\xff\x01")).unwrap();
    fs::write(dir.path("wrong.npy"), npy("<U1", "(1,)", &[0, 0xD8, 0, 0])).unwrap();
    for url in server.urls() {
        for file in ["little.npy", "big.npy"] {
            let input = format!("x={file}");
            dir.good(&infer(
                url,
                "identity_bytes",
                &["-i", &input, "-o", "y=@out.txt", "-o", "out.npz"],
            ));
            assert_eq!(
                fs::read_to_string(dir.path("out.txt")).unwrap(),
                "gr\u{f6}\u{df}e\n\na\u{1f600}\n"
            );
            let tensor = dir.inspect("out.npz")["tensors"][0].clone();
            assert_eq!((&tensor["name"], &tensor["dtype"]), (&"y".into(), &"S7".into()));
        }
        dir.good(&infer(
            url,
            "identity_bytes",
            &["-i", "x=bytes.npy", "-o", "same.npy"],
        ));
        let [before, after] = ["bytes.npy", "same.npy"].map(|file| fs::read(dir.path(file)).unwrap());
        assert_eq!(before[128..], after[128..]);
        assert_eq!(dir.inspect("same.npy")["tensors"][0]["dtype"], "S3");

        let refused = dir.bad(&infer(url, "identity_bytes", &["-i", "x=wrong.npy"]));
        assert!(
            refused.contains("wrong.npy: tensor '0'") && refused.contains("0xd800"),
            "{refused}"
        );
        let refused = dir.bad(&infer(url, "identity_fp32", &["-i", "x=bytes.npy"]));
        assert!(
            refused.contains("takes FP32, bytes.npy holds BYTES; strings are not converted"),
            "{refused}"
        );
    }
}

#[test]
fn what_does_not_fit_is_told_before_anything_is_sent() {
    let (dir, server) = (TestDir::new(), Server::new());
    let doubles = Tensor::from_vec(Shape::vector(2), vec![1.0f64, 1e300]).unwrap();
    dir.write("d.npy", &[], &[("0", &doubles)]);
    dir.write("two.zt", &[], &[("a", &matrix()), ("b", &doubles)]);
    dir.write("x.npy", &[], &[("0", &vector(&[1.0]))]);
    let x = |file: &str| format!("x={file}");
    for (model, input, message) in [
        (
            "identity_fp32",
            "d.npy",
            "error[Mismatch]: input 'x' of model 'identity_fp32' takes FP32, d.npy holds FP64; --cast converts it",
        ),
        (
            "identity_fp32",
            "two.zt#a",
            "error[Mismatch]: input 'x' of model 'identity_fp32' takes shape [-1], two.zt#a holds [3, 2]",
        ),
        (
            "identity_fp32",
            "two.zt",
            "error[OutOfBounds]: two.zt: the file holds 2 tensors: expected one, or its name after a #, \
             found a, b",
        ),
        (
            "identity_fp32",
            "two.zt#c",
            "error[OutOfBounds]: two.zt: tensor 'c': there is no such tensor",
        ),
        (
            "identity_fp32",
            "none.npy",
            "error[Io]: none.npy: the file cannot be opened",
        ),
        (
            "identity_bytes",
            "x.npy",
            "error[Mismatch]: input 'x' of model 'identity_bytes' takes BYTES, x.npy holds FP32; a text file of its elements is given as NAME=@FILE",
        ),
    ] {
        let refused = dir.bad(&infer(&server.http, model, &["-i", &x(input)]));
        assert!(refused.starts_with(message), "{refused}");
    }
    let refused = dir.bad(&infer(&server.grpc, "identity_fp32", &["-i", "q=x.npy"]));
    assert_eq!(
        refused,
        "error[Mismatch]: model 'identity_fp32' has no input 'q'; it takes 'x' (FP32[-1])"
    );
    let refused = dir.bad(&infer(
        &server.grpc,
        "identity_fp32",
        &["-i", "x=x.npy", "--outputs", "y,z"],
    ));
    assert_eq!(
        refused,
        "error[Mismatch]: model 'identity_fp32' has no output 'z'; it gives 'y' (FP32[-1])"
    );
    let refused = dir.bad(&infer(
        &server.grpc,
        "identity_fp32",
        &["-i", "x=x.npy", "-i", "x=x.npy"],
    ));
    assert_eq!(refused, "error[Mismatch]: input 'x' is given more than once");
    let refused = dir.bad(&infer(&server.grpc, "identity_bool", &["-o", "y.tbuf"]));
    assert!(
        refused.starts_with("error[Unsupported]: y.tbuf: tbuf cannot hold tensor 'y'"),
        "{refused}"
    );
    let refused = dir.bad(&infer(&server.grpc, "identity_bool", &["-o", "y.xyz"]));
    assert!(
        refused.starts_with("error[Unsupported]: y.xyz: the extension is not that of a known format"),
        "{refused}"
    );

    let cast = dir.bad(&infer(
        &server.http,
        "identity_fp32",
        &["-i", "x=d.npy", "--cast"],
    ));
    assert!(cast.contains("input 'x': d.npy: element 1: 1000000"), "{cast}");
    assert!(cast.ends_with(" does not fit FP32"), "{cast}");
    let table = dir.good(&infer(
        &server.http,
        "identity_int64",
        &["-i", "x=x.npy", "--cast"],
    ));
    assert_eq!(rows(&table)[1], ["y", "INT64", "[1]", "1"]);
}

#[test]
fn failures_of_servers_are_told_and_leave_the_target_alone() {
    let (dir, server) = (TestDir::new(), Server::new());
    dir.write("x.npy", &[], &[("0", &vector(&[1.0]))]);
    fs::write(dir.path("y.zt"), "precious").unwrap();
    for (url, status) in server.urls().into_iter().zip(["HTTP 404", "gRPC NOT_FOUND"]) {
        let refused = dir.bad(&infer(url, "zz", &["-i", "x=x.npy", "-o", "y.zt"]));
        let names = match status {
            "HTTP 404" => "; there are 'loading', 'matrix', 'never'",
            _ => "",
        };
        assert_eq!(
            refused,
            format!("error[Refused]: {url}: model 'zz' does not exist{names} ({status})")
        );
        let refused = dir.bad(&infer(url, "failing", &["-i", "x=x.npy", "-o", "y.zt"]));
        assert!(refused.contains("model 'failing': it failed"), "{refused}");
        let late = dir.bad(&infer(
            url,
            "slow",
            &["-i", "x=x.npy", "-o", "y.zt", "--parameter", "timeout=50000"],
        ));
        assert!(late.contains("the deadline passed"), "{late}");
        let late = dir.bad(&infer(
            url,
            "slow",
            &["-i", "x=x.npy", "-o", "y.zt", "--timeout", "50ms"],
        ));
        assert!(late.starts_with("error["), "{late}");
    }
    let closed = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let refused = dir.bad(&infer(&format!("http://{closed}"), "m", &[]));
    assert_eq!(
        refused,
        format!("error[Connect]: http://{closed}: connection refused: nothing listens there")
    );
    let refused = dir.bad(&infer("https://localhost", "m", &["--ca", "nowhere.pem"]));
    assert!(
        refused.starts_with("error[Usage]: --ca: nowhere.pem: cannot be read: No such file"),
        "{refused}"
    );
    // The server does not use TLS.
    fs::write(
        dir.path("ca.pem"),
        rcgen::generate_simple_self_signed(["localhost".to_owned()])
            .unwrap()
            .cert
            .pem(),
    )
    .unwrap();
    let refused = dir.bad(&infer(
        &server.http.replace("http", "https"),
        "m",
        &["--ca", "ca.pem"],
    ));
    assert!(
        refused.contains("TLS: the server does not speak TLS there"),
        "{refused}"
    );
    let refused = dir.bad(&infer(&server.http, "../etc", &[]));
    assert!(
        refused.starts_with("error[Usage]: model name '../etc' must not contain"),
        "{refused}"
    );
    assert_eq!(fs::read(dir.path("y.zt")).unwrap(), b"precious");
    // The directory contains only the output, the input, and the CA certificate.
    assert_eq!(fs::read_dir(dir.path("")).unwrap().count(), 3);
}

#[test]
fn ctrl_c_ends_a_request_and_leaves_the_target_alone() {
    let service = Arc::new(TestService::default());
    let (dir, server) = (TestDir::new(), Server::of(service.clone()));
    dir.write("x.npy", &[], &[("0", &vector(&[1.0]))]);
    fs::write(dir.path("y.zt"), "precious").unwrap();
    for url in server.urls() {
        let mut child = dir.spawn(&infer(url, "slow", &["-i", "x=x.npy", "-o", "y.zt"]));
        wait_for("it is sent", || service.waiting() == 1);
        interrupt(&child);
        assert_eq!(child.wait().unwrap().code(), Some(130));
        wait_for("the server gives up as well", || service.waiting() == 0);
    }
    assert_eq!(fs::read(dir.path("y.zt")).unwrap(), b"precious");
    assert_eq!(fs::read_dir(dir.path("")).unwrap().count(), 2);
}

#[test]
fn several_answers_are_printed_one_by_one() {
    let (dir, server) = (TestDir::new(), Server::of(Arc::new(TripleService::default())));
    let input = ["--input", "x=[1.5]", "--stream"];
    let told = dir.good(&infer(
        &server.grpc,
        "identity_fp32",
        &[&input[..], &["--json"]].concat(),
    ));
    let answers: Vec<serde_json::Value> = told
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let data = |answer: &serde_json::Value| answer["outputs"][0]["data"].clone();
    assert_eq!(
        answers.iter().map(data).collect::<Vec<_>>(),
        vec![serde_json::json!([1.5]); 3]
    );
    let told = dir.good(&infer(&server.grpc, "identity_fp32", &input));
    assert_eq!(told.matches("FP32").count(), 3);
    let refused = dir.bad(&infer(&server.http, "identity_fp32", &input));
    assert!(refused.contains("expected grpc://"), "{refused}");
}
