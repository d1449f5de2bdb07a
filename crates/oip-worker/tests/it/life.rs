//! Tests the lifecycle of a worker: its permissions, its signals, and its end.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    net::TcpListener,
    process::Stdio,
    time::Duration,
};

use oip_model::CancelToken;
use oip_types::{BytesTensor, InferRequest, ModelRef};
use rustix::process::{Pid, Signal, kill_process};
use tensor_core::{Shape, Tensor};

use crate::support::{
    ACT, children_of, infer, is_alive, isolated, isolation, load, pid_of, process, request, until, vector,
};

/// Plays a server with an idle worker and one that hangs. Prints their process ids and waits to be killed.
pub(crate) fn serve() -> ! {
    let idle = isolated("echo");
    let busy = isolated("hangs");
    let numbers = [pid_of(&*idle), pid_of(&*busy)];
    std::thread::spawn(move || busy.infer(request(ACT), &CancelToken::new(None)));
    std::thread::sleep(Duration::from_millis(100));
    let mut stdout = std::io::stdout();
    writeln!(stdout, "workers {} {}", numbers[0], numbers[1]).unwrap();
    stdout.flush().unwrap();
    loop {
        std::thread::park();
    }
}

/// A killed server leaves no worker behind, whether the worker is idle or hangs.
#[test]
fn workers_end_with_their_server() {
    let mut server = process("server").stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(server.stdout.take().unwrap()).lines();
    let line = lines
        .map(Result::unwrap)
        .find(|line| line.contains("workers "))
        .unwrap();
    let numbers = line.split_once("workers ").unwrap().1;
    let workers: Vec<u32> = numbers.split(' ').map(|number| number.parse().unwrap()).collect();
    assert!(workers.iter().all(|pid| is_alive(*pid)));
    server.kill().unwrap();
    server.wait().unwrap();
    until("the end of the workers", || {
        !workers.iter().any(|pid| is_alive(*pid))
    });
}

/// Dropping a model ends its processes.
#[test]
fn workers_end_with_their_model() {
    let model = isolated("echo");
    let pid = pid_of(&*model);
    assert!(children_of(std::process::id()).contains(&pid));
    drop(model);
    assert!(!is_alive(pid));
}

/// Signals that end a server must not reach its workers, which are needed until the server has drained.
#[test]
fn workers_do_not_hear_what_is_meant_for_the_server() {
    let model = isolated("echo");
    let pid = pid_of(&*model);
    for signal in [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT] {
        kill_process(Pid::from_raw(pid as i32).unwrap(), signal).unwrap();
    }
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(pid_of(&*model), pid);
    // A terminal sends signals to its foreground process group; a worker is in another group.
    let group = rustix::process::getpgid(Pid::from_raw(pid as i32)).unwrap();
    assert_eq!(group.as_raw_nonzero().get() as u32, pid);
}

/// A worker inherits no socket or file from the server.
#[test]
fn workers_inherit_nothing() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let file = fs::File::open("/dev/zero").unwrap();
    let (model, other) = (isolated("echo"), isolated("echo"));
    let of = |pid: u32| -> Vec<String> {
        let open = fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
        // This process may close a descriptor while the test lists them.
        let open = open.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
        open.map(|link| link.display().to_string()).collect()
    };
    for model in [&model, &other] {
        let pid = pid_of(&**model);
        let mut open = of(pid);
        open.sort();
        // Descriptors that every process of this test inherits, such as pipes of the test runner, are not
        // counted.
        let ours = |link: &String| link.starts_with("socket:") || link == "/dev/zero";
        let sockets: Vec<&String> = open.iter().filter(|link| ours(link)).collect();
        assert_eq!(sockets.len(), 2, "{open:?}");
        for socket in sockets {
            assert!(!of(std::process::id()).contains(socket), "{open:?}");
        }
        #[cfg(target_os = "linux")]
        {
            let score = fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).unwrap();
            assert_eq!(score.trim(), "800");
            let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap();
            assert_eq!(name.trim(), "oip-worker");
        }
    }
    drop((listener, file));
}

/// The output that a model prints is not mistaken for a response.
#[test]
fn a_model_that_prints_disturbs_nothing() {
    let model = isolated("prints");
    for _ in 0..20 {
        assert_eq!(infer(&*model, ACT).unwrap(), ACT);
    }
}

/// Tensors of all kinds and sizes are returned bit-identical, and all other fields of a request unchanged.
#[test]
fn tensors_travel_as_they_are() {
    let model = isolated("echo");
    let large: Vec<i32> = (0..3 << 20).collect();
    let long = vec![7; 100_000];
    let texts = BytesTensor::from_elements(Shape::vector(3), [b"".as_slice(), b"\0\xff", &long]).unwrap();
    for (x, text) in [
        (vector(large), Some(texts)),
        (vector(vec![]), None),
        (Tensor::from_vec(Shape::vector(1), vec![20]).unwrap(), None),
    ] {
        let mut request =
            InferRequest::new(ModelRef::new("m", Some("1")).unwrap()).with_input("x", x.clone());
        if let Some(text) = &text {
            request = request.with_input("text", text.clone());
        }
        let outputs = model.infer(request, &CancelToken::new(None)).unwrap();
        assert_eq!(outputs[0].value, x.into());
        assert_eq!(
            outputs.get(1).map(|output| output.value.clone()),
            text.map(Into::into)
        );
    }
}

/// Only a model that its backend refuses to load into a shared process gets a separate process. A model whose
/// configuration sets `isolation` to `none` stays in the server. In a worker, such a model is loaded as
/// usual.
#[test]
fn only_a_model_that_needs_a_process_gets_one() {
    let here = std::process::id();
    let pid = |deed: &str, parameters: &[(&str, &str)]| {
        let model = load(deed, isolation("worker"), parameters).unwrap();
        pid_of(&*model)
    };
    assert_ne!(pid("alone", &[]), here);
    assert_eq!(pid("echo", &[]), here);
    assert_eq!(pid("alone", &[("isolation", "none")]), here);
    assert_ne!(pid("alone", &[("isolation", "process")]), here);
}
