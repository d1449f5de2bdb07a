//! Ctrl-C and SIGTERM.

use std::{
    fs,
    process::{Child, Command},
    time::{Duration, Instant},
};

use crate::support::TestDir;

/// Writes a sparse file of 8 GiB, which takes a long time to read.
pub(crate) fn write_big(dir: &TestDir, name: &str) {
    let header = r#"{"w":{"dtype":"U8","shape":[8192,1048576],"data_offsets":[0,8589934592]}}"#;
    let head = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat();
    fs::write(dir.path(name), &head).unwrap();
    let file = fs::OpenOptions::new().write(true).open(dir.path(name)).unwrap();
    file.set_len(head.len() as u64 + (8 << 30)).unwrap();
}

/// Waits until the program `child` has `files` files of the directory open, including unnamed files, and
/// sends it a signal.
pub(crate) fn send_when_open(dir: &TestDir, child: &mut Child, files: usize, signal: &str) {
    let id = child.id();
    let open_files = || {
        let open = fs::read_dir(format!("/proc/{id}/fd")).into_iter().flatten();
        let paths = open.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
        paths.filter(|path| path.starts_with(dir.path(""))).count()
    };
    while open_files() < files {
        assert!(child.try_wait().unwrap().is_none(), "it ended by itself");
        std::thread::sleep(Duration::from_millis(1));
    }
    // Gives the program time to start reading.
    std::thread::sleep(Duration::from_millis(50));
    let sent = Command::new("kill")
        .args(["-s", signal, &id.to_string()])
        .status();
    assert!(sent.unwrap().success());
}

/// The first signal ends read-only commands at any point.
#[test]
fn a_signal_ends_commands_that_read() {
    let dir = TestDir::new();
    write_big(&dir, "big.safetensors");
    let commands: [&[&str]; 6] = [
        &["inspect", "--stats", "big.safetensors"],
        &["inspect", "--values", "big.safetensors"],
        &["inspect", "--json", "--sha256", "big.safetensors"],
        &["diff", "big.safetensors", "big.safetensors"],
        &["manifest", "big.safetensors"],
        &["manifest", "--files", "big.safetensors"],
    ];
    for (arguments, signal) in commands.iter().zip(["TERM", "INT"].into_iter().cycle()) {
        let mut running = dir.spawn(arguments);
        send_when_open(&dir, &mut running, 1, signal);
        let sent = Instant::now();
        let ended = loop {
            match running.try_wait().unwrap() {
                Some(status) => break Some(status),
                None if sent.elapsed() > Duration::from_secs(10) => break None,
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        if ended.is_none() {
            running.kill().unwrap();
            running.wait().unwrap();
        }
        assert_eq!(
            ended.and_then(|status| status.code()),
            Some(130),
            "{arguments:?} after {signal}"
        );
    }
}
