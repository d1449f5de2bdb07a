//! Special sources and targets: standard input and output, pipes, links, permissions, and paths that cannot
//! be written.

use std::{
    fs,
    io::Write,
    os::unix::fs::{FileTypeExt, PermissionsExt, symlink},
    process::{Command, Stdio},
};

use tensor_core::{Shape, Tensor};

use crate::support::{TestDir, matrix, vector};

fn tensor(dir: &TestDir, arguments: &[&str], input: &[u8]) -> (i32, Vec<u8>, String) {
    let mut running = Command::new(env!("CARGO_BIN_EXE_tensor"))
        .args(arguments)
        .current_dir(dir.path(""))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = running.stdin.take().unwrap();
    let input = input.to_vec();
    let writing = std::thread::spawn(move || {
        // Writing fails if the program exits before it has read all input.
        let _ = stdin.write_all(&input);
    });
    let output = running.wait_with_output().unwrap();
    writing.join().unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    (output.status.code().unwrap(), output.stdout, err)
}

#[test]
fn a_dash_is_standard_input_and_output() {
    let dir = TestDir::new();
    dir.write("a.safetensors", &[], &[("w", &matrix()), ("steps", &vector())]);
    let mut file = fs::read(dir.path("a.safetensors")).unwrap();
    for format in ["ztensor", "tbuf", "npz", "safetensors"] {
        let (code, out, err) = tensor(&dir, &["convert", "-", "-", "--to", format], &file);
        assert_eq!((code, &*err), (0, ""), "{format}");
        file = out;
    }
    fs::write(dir.path("b.safetensors"), &file).unwrap();
    assert_eq!(dir.good(&["diff", "a.safetensors", "b.safetensors"]), "");
    let (code, out, _) = tensor(&dir, &["inspect", "--json", "-"], &file);
    assert_eq!(code, 0);
    assert!(String::from_utf8(out).unwrap().contains("steps"));
    assert_eq!(tensor(&dir, &["diff", "-", "a.safetensors"], &file).0, 0);
    assert!(!dir.path("-").exists());
    let (code, _, err) = tensor(&dir, &["convert", "a.safetensors", "-"], b"");
    assert!(code == 1 && err.contains("--to"), "{err}");
}

#[test]
fn standard_input_is_not_changed() {
    let dir = TestDir::new();
    dir.write("a.safetensors", &[], &[("m", &matrix())]);
    let file = fs::read(dir.path("a.safetensors")).unwrap();
    for command in [&["rename", "-", "m", "n"][..], &["set", "-", "a=b"]] {
        let (code, _, error) = tensor(&dir, command, &file);
        assert_eq!(code, 1);
        assert!(
            error.contains("-: standard input cannot be changed in place: expected a path"),
            "{error}"
        );
    }
    assert!(!dir.path("-").exists());
}

/// Read-only formats are not offered as targets, and the error names alternatives.
#[test]
fn formats_that_are_not_written() {
    let dir = TestDir::new();
    dir.write("a.safetensors", &[], &[("m", &matrix())]);
    let refused = dir.bad(&["convert", "a.safetensors", "b.xyz"]);
    assert!(
        refused.contains("name it with --to")
            && refused.contains("one of btf, gguf, npy, npz, safetensors, tbuf"),
        "{refused}"
    );
    for (id, words) in [
        ("torch", "safetensors, which PyTorch reads"),
        ("onnx", "read and not written"),
        ("ztensor1", "read, not written"),
    ] {
        let refused = dir.bad(&["convert", "a.safetensors", "b", "--to", id]);
        assert!(
            refused.starts_with("error[Unsupported]: b: ") && refused.contains(words),
            "{refused}"
        );
    }
}

#[test]
fn links_stay_and_pipes_are_written_through() {
    let dir = TestDir::new();
    dir.write("a.tbuf", &[], &[("w", &matrix())]);
    fs::write(dir.path("real.zt"), "old").unwrap();
    symlink("real.zt", dir.path("link.zt")).unwrap();
    dir.good(&["convert", "a.tbuf", "link.zt"]);
    assert!(fs::symlink_metadata(dir.path("link.zt")).unwrap().is_symlink());
    assert_eq!(dir.good(&["diff", "a.tbuf", "real.zt"]), "");

    let made = Command::new("mkfifo").arg(dir.path("pipe.zt")).status();
    assert!(made.unwrap().success());
    let reader = {
        let pipe = dir.path("pipe.zt");
        std::thread::spawn(move || fs::read(pipe).unwrap())
    };
    dir.good(&["convert", "a.tbuf", "pipe.zt"]);
    assert_eq!(reader.join().unwrap(), fs::read(dir.path("real.zt")).unwrap());
    let kind = fs::symlink_metadata(dir.path("pipe.zt")).unwrap().file_type();
    assert!(kind.is_fifo());
    // The command does not wait for a writer of the pipe.
    for arguments in [
        &["inspect", "pipe.zt"][..],
        &["set", "pipe.zt", "a=b"],
        &["rename", "pipe.zt", "a", "b"],
    ] {
        let refused = dir.bad(arguments);
        assert!(refused.contains("- reads standard input"), "{refused}");
    }
}

#[test]
fn what_is_made_of_a_private_file_is_private() {
    let dir = TestDir::new();
    dir.write("a.tbuf", &[], &[("w", &matrix())]);
    fs::set_permissions(dir.path("a.tbuf"), fs::Permissions::from_mode(0o600)).unwrap();
    dir.good(&["convert", "a.tbuf", "b.zt"]);
    dir.good(&["extract", "a.tbuf", "w", "-o", "w.npy"]);
    for name in ["b.zt", "w.npy"] {
        let mode = fs::metadata(dir.path(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
}

#[test]
fn a_file_in_the_way_stays_if_that_is_asked_for() {
    let dir = TestDir::new();
    dir.write("a.tbuf", &[], &[("w", &matrix())]);
    fs::write(dir.path("b.zt"), "precious").unwrap();
    let refused = dir.bad(&["convert", "--no-clobber", "a.tbuf", "b.zt"]);
    assert!(refused.starts_with("error[Exists]: b.zt: "), "{refused}");
    dir.bad(&["extract", "--no-clobber", "a.tbuf", "w", "-o", "b.zt"]);
    assert_eq!(fs::read(dir.path("b.zt")).unwrap(), b"precious");
    dir.good(&["convert", "--no-clobber", "a.tbuf", "c.zt"]);
}

/// If the system's limit on file size is exceeded, the program prints an error and leaves no file.
#[test]
fn the_limit_for_files_is_an_error_without_a_trap() {
    let dir = TestDir::new();
    let large = Tensor::from_vec(Shape::vector(100_000), vec![1u8; 100_000]).unwrap();
    dir.write("a.tbuf", &[], &[("w", &large)]);
    let script = format!(
        "ulimit -f 1; exec '{}' convert a.tbuf b.zt",
        env!("CARGO_BIN_EXE_tensor")
    );
    let run = Command::new("sh")
        .args(["-c", &script])
        .current_dir(dir.path(""))
        .output()
        .unwrap();
    let err = String::from_utf8(run.stderr).unwrap();
    assert_eq!(run.status.code(), Some(1), "{err}");
    assert!(err.contains("File too large"), "{err}");
    assert_eq!(fs::read_dir(dir.path("")).unwrap().count(), 1);
}

#[test]
fn settings_are_for_formats_that_have_them() {
    let dir = TestDir::new();
    dir.write("a.safetensors", &[], &[("w", &matrix())]);
    dir.good(&["convert", "--align", "4096", "a.safetensors", "a.zt"]);
    assert_eq!(dir.inspect("a.zt")["tensors"][0]["offset_bytes"], 4096);
    dir.good(&["convert", "--align", "1", "a.safetensors", "a.tbuf"]);
    assert_eq!(dir.inspect("a.tbuf")["tensors"][0]["offset_bytes"], 4);
    let refused = dir.bad(&["convert", "--align", "64", "a.safetensors", "a.npz"]);
    assert!(
        refused.contains("--align: expected ztensor or tbuf, found npz"),
        "{refused}"
    );
    dir.write_sparse("s.btf");
    dir.good(&["convert", "--btf-coo-tag", "1", "s.btf", "t.btf"]);
    assert_eq!(dir.good(&["diff", "s.btf", "t.btf"]), "");
    assert_ne!(
        fs::read(dir.path("s.btf")).unwrap(),
        fs::read(dir.path("t.btf")).unwrap()
    );
    let half = Tensor::from_vec(Shape::vector(2), vec![tensor_core::f16::ONE; 2]).unwrap();
    dir.write("h.safetensors", &[], &[("h", &half)]);
    let refused = dir.bad(&["convert", "h.safetensors", "h.btf"]);
    assert!(refused.contains("f16") && !refused.contains("names"), "{refused}");
    dir.good(&["convert", "--as-bits", "h.safetensors", "h.tbuf"]);
    let shown = dir.inspect("h.tbuf")["tensors"][0].clone();
    assert_eq!(shown["dtype"], "uint16");
    assert_eq!(
        shown["sha256"],
        dir.inspect("h.safetensors")["tensors"][0]["sha256"]
    );
}

/// A zip archive with other members is not an array file, so it must not compare equal to an array file
/// without arrays.
#[test]
fn a_checkpoint_in_a_zip_is_not_an_empty_file() {
    let dir = TestDir::new();
    let script = "import zipfile, sys\n\
         z = zipfile.ZipFile('m.keras', 'w')\n\
         z.writestr('config.json', '{}')\n\
         z.close()";
    let made = Command::new("python3")
        .args(["-c", script])
        .current_dir(dir.path(""))
        .status();
    if !made.is_ok_and(|made| made.success()) {
        // Without Python, builds the archive by hand, with one empty member called `a`.
        let mut zip = b"PK\x03\x04\x14\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x01\0\0\0a".to_vec();
        let directory = zip.len() as u32;
        zip.extend(b"PK\x01\x02\x14\0\x14\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x01\0");
        zip.extend([0; 12]);
        zip.extend([0, 0, 0, 0, b'a']);
        let len = zip.len() as u32 - directory;
        zip.extend(b"PK\x05\x06\0\0\0\0\x01\0\x01\0");
        zip.extend(len.to_le_bytes());
        zip.extend(directory.to_le_bytes());
        zip.extend([0, 0]);
        fs::write(dir.path("m.keras"), zip).unwrap();
    }
    for (arguments, code) in [
        (&["inspect", "m.keras"][..], 1),
        (&["convert", "m.keras", "m.zt"], 1),
        (&["diff", "m.keras", "m.keras"], 2),
    ] {
        let run = dir.run(arguments);
        assert_eq!(run.code, code);
        let refused = run.err;
        assert!(refused.contains("without NumPy's arrays"), "{refused}");
    }
    dir.write("a.zt", &[], &[]);
    let run = dir.run(&["diff", "a.zt", "a.zt"]);
    assert!(
        run.code == 2 && run.err.contains("nothing can be compared"),
        "{}",
        run.err
    );
}

#[test]
fn values_and_sums_of_large_tensors() {
    let dir = TestDir::new();
    let numbers: Vec<f32> = (0..3_000_000u32).map(|number| number as f32).collect();
    let large = Tensor::from_vec(Shape::new(&[3, 1000, 1000]).unwrap(), numbers).unwrap();
    dir.write("a.safetensors", &[], &[("w", &large)]);
    let shown = dir.good(&["inspect", "--values", "a.safetensors"]);
    assert!(shown.contains(&large.to_string()), "{shown}");
    let infinite = Tensor::from_vec(Shape::vector(2), vec![f32::INFINITY, 1.0]).unwrap();
    dir.write("b.npy", &[], &[("0", &infinite)]);
    let stats: serde_json::Value =
        serde_json::from_str(&dir.good(&["inspect", "--json", "--stats", "b.npy"])).unwrap();
    assert_eq!(stats["tensors"][0]["stats"]["max"], "inf");
}
