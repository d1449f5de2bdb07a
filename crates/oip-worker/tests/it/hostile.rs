//! Tests processes that are not workers, or are malicious: whatever they send fails only their own requests.

use std::{
    io::{Read, Write},
    os::{fd::AsFd, unix::net::UnixStream},
    time::{Duration, Instant},
};

use oip_model::{Call, CancelToken, ResponseSink};
use oip_types::{ErrorCode, InferOutput, ServiceError};

use crate::support::{infer, isolation, load, load_within, request};

const HELLO: u32 = 1;
const LOADED: u32 = 3;
const OUTPUTS: u32 = 5;
const FAILED: u32 = 6;
const RESULTS: u32 = 8;
const ROOM: u32 = 9;
const PART: u32 = 11;
const ASK: u32 = 13;
const NEXT: u32 = 15;
const FREE: u32 = 16;

/// What a faulty process does before, or instead of, sending the hello frame.
const AT_START: &[&str] = &[
    "silent end",
    "text",
    "kind 0",
    "endless json",
    "other version",
    "no hello",
    "binary hello",
];
/// What a faulty process sends instead of metadata.
const AT_LOAD: &[&str] = &[
    "load: text",
    "load: half",
    "load: no metadata",
    "load: outputs",
    "load: other type",
];
/// What a faulty process sends instead of a response.
const AT_INFER: &[&str] = &[
    "half a head",
    "half a body",
    "huge binary",
    "huge json",
    "other number",
    "hello again",
    "no json",
    "json of something else",
    "too few bytes",
    "too many bytes",
    "negative shape",
    "overflowing shape",
    "unknown datatype",
    "shared memory",
    "broken strings",
    "failed with binary",
    "failed without code",
    "end with code 0",
];

/// Misbehaviors in place of a response, for workers that use regions.
const AT_RUN: &[&str] = &[
    "places: outside of the frame",
    "places: outside of the request",
    "places: in no region",
    "places: beyond everything",
    "places: of another size",
    "places: nowhere",
    "places: rest",
    "places: without room for it",
    "places: repeated requests for memory",
    "places: room with binary",
    "places: other number",
    "places: one of several",
    "places: fails a part that is not there",
    "places: asks from nowhere",
    "places: asks with text",
    "places: a word too early",
    "places: free for another",
];

/// Misbehaviors in place of the first of several responses.
const AT_SEVERAL: &[&str] = &["places: free twice", "places: free with binary"];

/// Plays the misbehavior `role`.
pub(crate) fn pretend(role: &str) -> ! {
    let mut data = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned().unwrap());
    let hello = br#"{"protocol":6}"#;
    match role {
        "silent end" => std::process::exit(0),
        "text" => say(
            &mut data,
            b"Usage: worker [OPTIONS] and more text than a head has\n",
        ),
        "kind 0" => say(&mut data, &[0; 24]),
        "endless json" => say(&mut data, &head(HELLO, u32::MAX, 0, 0)),
        "other version" => frame(&mut data, HELLO, 0, br#"{"protocol":1}"#, b""),
        "no hello" => frame(&mut data, LOADED, 0, b"{}", b""),
        "binary hello" => frame(&mut data, HELLO, 0, hello, b"x"),
        _ => {}
    }
    let wants_places = role.starts_with("places: ");
    let hello_places = br#"{"protocol":6,"places":true}"#;
    frame(
        &mut data,
        HELLO,
        0,
        if wants_places { hello_places } else { hello },
        b"",
    );
    receive(&mut data);
    match role {
        "load: text" => say(&mut data, &[b'x'; 100]),
        "load: half" => {
            say(&mut data, &head(LOADED, 1000, 0, 0));
            std::process::exit(0);
        }
        "load: no metadata" => frame(&mut data, LOADED, 0, b"[1, 2", b""),
        "load: outputs" => frame(&mut data, OUTPUTS, 0, b"{}", b""),
        "load: other type" => {
            let metadata =
                br#"{"platform":"","inputs":[],"outputs":[{"name":"y","datatype":"FP128","dims":[]}]}"#;
            frame(&mut data, LOADED, 0, metadata, b"");
        }
        "load: trickle" => trickle(&mut data, &head(LOADED, 1 << 20, 0, 0)),
        _ => {}
    }
    let metadata = br#"{"platform":"","inputs":[{"name":"x","datatype":"INT32","dims":[null]}],
        "outputs":[{"name":"y","datatype":"INT32","dims":[null]}]}"#;
    frame(&mut data, LOADED, 0, metadata, b"");
    let number = receive(&mut data);
    let y = |datatype: &str, shape: &str, rest: &str| {
        format!(
            r#"{{"model_name":"","outputs":[{{"name":"y","datatype":"{datatype}","shape":{shape},"parameters":{{{rest}}}}}]}}"#
        )
    };
    let mut outputs = |datatype: &str, shape: &str, parameters: &str, binary: &[u8]| {
        frame(
            &mut data,
            OUTPUTS,
            number,
            y(datatype, shape, parameters).as_bytes(),
            binary,
        );
    };
    match role {
        "too few bytes" => outputs("INT32", "[2]", r#""binary_data_size":8"#, &[0; 4]),
        "too many bytes" => outputs("INT32", "[1]", r#""binary_data_size":4"#, &[0; 9]),
        "negative shape" => outputs("INT32", "[-1]", r#""binary_data_size":4"#, &[0; 4]),
        "overflowing shape" => {
            outputs(
                "INT32",
                "[4611686018427387904,8]",
                r#""binary_data_size":4"#,
                &[0; 4],
            );
        }
        "unknown datatype" => outputs("INT31", "[1]", r#""binary_data_size":4"#, &[0; 4]),
        "shared memory" => outputs(
            "INT32",
            "[1]",
            r#""shared_memory_region":"r","shared_memory_byte_size":4"#,
            b"",
        ),
        "broken strings" => outputs("BYTES", "[1]", r#""binary_data_size":4"#, &[0xff; 4]),
        "half a head" => say(&mut data, &head(OUTPUTS, 0, number, 0)[..11]),
        "half a body" => say(&mut data, &head(OUTPUTS, 10, number, 10)),
        "huge binary" => say(&mut data, &head(OUTPUTS, 10, number, u64::MAX - 3)),
        "huge json" => say(&mut data, &head(OUTPUTS, u32::MAX, number, 0)),
        "other number" => frame(
            &mut data,
            OUTPUTS,
            number + 1,
            y("INT32", "[0]", "").as_bytes(),
            b"",
        ),
        "hello again" => frame(&mut data, HELLO, number, hello, b""),
        "no json" => frame(&mut data, OUTPUTS, number, b"", b""),
        "json of something else" => frame(&mut data, OUTPUTS, number, br#"{"outputs":7}"#, b""),
        "failed with binary" => frame(
            &mut data,
            FAILED,
            number,
            br#"{"status":400,"message":"x"}"#,
            b"x",
        ),
        "failed without code" => frame(&mut data, FAILED, number, b"{}", b""),
        "failed oddly" => {
            let message = "x".repeat(1 << 20);
            let failed = format!(r#"{{"status":200,"message":"{message}"}}"#);
            frame(&mut data, FAILED, number, failed.as_bytes(), b"");
            receive(&mut data);
        }
        _ if wants_places => {
            let place = |place: &str, offset: u64, length: u64| {
                format!(
                    r#"{{"outputs":[{{"name":"y","datatype":"INT32","shape":[1],"place":"{place}","offset":{offset},"length":{length}}}]}}"#
                )
            };
            let (kind, json, binary) = match role {
                "places: outside of the frame" => (RESULTS, place("frame", 1, 4), &b"xxxx"[..]),
                "places: outside of the request" => (RESULTS, place("request", 0, 5), &b""[..]),
                "places: in no region" => (RESULTS, place("region", 0, 4), &b""[..]),
                "places: beyond everything" => (RESULTS, place("inputs", u64::MAX, u64::MAX), &b""[..]),
                "places: of another size" => (RESULTS, place("request", 0, 3), &b""[..]),
                "places: fails a part that is not there" => {
                    let failed = r#"{"failed":[{"part":0,"error":{"status":400,"message":"x"}}],"#;
                    let results = place("request", 0, 4).replacen('{', failed, 1);
                    (RESULTS, results, &b""[..])
                }
                "places: nowhere" => (RESULTS, place("elsewhere", 0, 4), &b""[..]),
                "places: rest" => (OUTPUTS, place("frame", 0, 4), &b"xxxx"[..]),
                "places: without room for it" => {
                    (ROOM, r#"{"bytes":18446744073709551615}"#.to_owned(), &b""[..])
                }
                "places: asks from nowhere" => {
                    let ask = br#"{"call":1,"model":"o","inputs":[{"name":"x","datatype":"INT32","shape":[1],"place":"region","offset":0,"length":4}]}"#;
                    (ASK, String::from_utf8(ask.to_vec()).unwrap(), &b""[..])
                }
                "places: asks with text" => (ASK, r#"{"call":"one"}"#.to_owned(), &b""[..]),
                "places: one of several" => {
                    let part = place("request", 0, 4).replacen('{', r#"{"is_last":false,"#, 1);
                    (PART, part, &b""[..])
                }
                "places: free for another" => (FREE, "{}".to_owned(), &b""[..]),
                "places: free twice" => {
                    frame(&mut data, FREE, number, b"{}", b"");
                    (FREE, "{}".to_owned(), &b""[..])
                }
                "places: free with binary" => (FREE, "{}".to_owned(), &b"x"[..]),
                "places: parts for ever" => {
                    let part = place("request", 0, 4).replacen('{', r#"{"is_last":false,"#, 1);
                    let part = [&head(PART, part.len() as u32, number, 0)[..], part.as_bytes()].concat();
                    while data.write_all(&part).is_ok() {}
                    std::process::exit(0);
                }
                "places: a late word" => {
                    let next = br#"{"call":1,"is_wanted":false}"#;
                    frame(&mut data, NEXT, number - 1, next, b"");
                    (RESULTS, place("request", 0, 4), &b""[..])
                }
                "places: a word too early" => {
                    frame(
                        &mut data,
                        NEXT,
                        number + 1,
                        br#"{"call":1,"is_wanted":false}"#,
                        b"",
                    );
                    (RESULTS, place("request", 0, 4), &b""[..])
                }
                "places: room with binary" => (ROOM, r#"{"bytes":1}"#.to_owned(), &b"x"[..]),
                "places: repeated requests for memory" => {
                    frame(&mut data, ROOM, number, br#"{"bytes":1}"#, b"");
                    receive(&mut data);
                    (ROOM, r#"{"bytes":1}"#.to_owned(), &b""[..])
                }
                _ => (RESULTS, place("request", 0, 4), &b""[..]),
            };
            let number = number + u64::from(role == "places: other number");
            frame(&mut data, kind, number, json.as_bytes(), binary);
        }
        "trickle" => trickle(&mut data, &head(OUTPUTS, 1 << 20, number, 0)),
        "shout" => {
            // Writes many bytes to the control socket and to standard error, and none to the data socket.
            let mut control = UnixStream::from(std::io::stdout().as_fd().try_clone_to_owned().unwrap());
            control.set_nonblocking(true).unwrap();
            while control.write(&[b'x'; 4096]).is_ok() {}
            (0..100_000)
                .for_each(|_| drop(std::io::stderr().write_all(b"nothing but noise, again and again\n")));
        }
        _ => {}
    }
    match role {
        "half a head" | "half a body" | "silent end" | "end with code 0" => std::process::exit(0),
        // In all other roles, the process waits to be killed.
        _ => loop {
            std::thread::park();
        },
    }
}

fn head(kind: u32, json: u32, number: u64, binary: u64) -> [u8; 24] {
    let parts = [
        &kind.to_le_bytes()[..],
        &json.to_le_bytes(),
        &number.to_le_bytes(),
        &binary.to_le_bytes(),
    ];
    parts.concat().try_into().unwrap()
}

fn frame(data: &mut UnixStream, kind: u32, number: u64, json: &[u8], binary: &[u8]) {
    let head = head(kind, json.len() as u32, number, binary.len() as u64);
    say(data, &[&head, json, binary].concat());
}

/// Sends `bytes`. Ignores errors, because the other side may have disconnected.
fn say(data: &mut UnixStream, bytes: &[u8]) {
    let _ = data.write_all(bytes);
}

/// Sends single bytes without end and never completes the frame.
fn trickle(data: &mut UnixStream, head: &[u8]) {
    say(data, head);
    while data.write_all(b" ").is_ok() {
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Reads a frame and returns the number in its header.
fn receive(data: &mut UnixStream) -> u64 {
    let mut head = [0; 24];
    if data.read_exact(&mut head).is_err() {
        std::process::exit(0);
    }
    let json = u32::from_le_bytes(head[4..8].try_into().unwrap());
    let binary = u64::from_le_bytes(head[16..].try_into().unwrap());
    let mut rest = vec![0; json as usize + binary as usize];
    data.read_exact(&mut rest).unwrap();
    u64::from_le_bytes(head[8..16].try_into().unwrap())
}

const PROCESS: [(&str, &str); 1] = [("isolation", "process")];

#[test]
fn a_process_that_is_no_worker_is_told_apart() {
    for role in AT_START.iter().chain(AT_LOAD) {
        let start = Instant::now();
        let error = load("echo", isolation(role), &PROCESS).err().unwrap();
        assert_eq!(error.code(), ErrorCode::Internal, "{role}");
        let what = "a separate process was started, but while it loaded the model it ";
        assert!(error.message().starts_with(what), "{role}: {error}");
        assert!(start.elapsed() < Duration::from_secs(20), "{role}");
    }
}

#[test]
fn answers_that_are_none_fail_one_request_each() {
    for role in AT_INFER.iter().chain(AT_RUN) {
        let model = load("echo", isolation(role), &PROCESS).unwrap();
        for _ in 0..2 {
            let error = infer(&*model, 7).unwrap_err();
            assert_eq!(error.code(), ErrorCode::Internal, "{role}: {error}");
            assert!(
                error.message().starts_with("its process died: it "),
                "{role}: {error}"
            );
        }
    }
}

/// A late message of a model's thread about the previous request does not fail the next one.
#[test]
fn a_word_about_the_request_before_is_passed_over() {
    let model = load("echo", isolation("places: a late word"), &PROCESS).unwrap();
    infer(&*model, 7).unwrap();
}

/// Malformed errors of a worker fail the request, whatever they contain.
#[test]
fn odd_errors_are_errors() {
    let model = load("echo", isolation("failed oddly"), &PROCESS).unwrap();
    let error = infer(&*model, 7).unwrap_err();
    assert_eq!(error.code(), ErrorCode::Internal);
    assert!(error.message().len() <= 700);
}

/// A response that arrives one byte at a time does not extend the deadline.
#[test]
fn trickles_end_with_the_deadline() {
    let model = load(
        "echo",
        isolation("trickle").grace(Duration::from_millis(100)),
        &PROCESS,
    )
    .unwrap();
    let start = Instant::now();
    let token = CancelToken::new(Some(start + Duration::from_millis(200)));
    let error = model.infer(request(7), &token).unwrap_err();
    assert_eq!(error.code(), ErrorCode::DeadlineExceeded);
    assert!(start.elapsed() < Duration::from_secs(10));

    let start = Instant::now();
    let patience = Duration::from_millis(300);
    assert!(load_within("echo", isolation("load: trickle"), &PROCESS, patience).is_err());
    assert!(start.elapsed() < Duration::from_secs(10));
}

/// A sink that accepts three responses and rejects all further ones.
struct Three(usize);

impl ResponseSink for Three {
    fn send(&mut self, outputs: Vec<InferOutput>) -> Result<(), ServiceError> {
        self.0 += 1;
        assert_eq!(outputs[0].value.as_fixed().unwrap().to_vec::<i32>().unwrap(), [7]);
        match self.0 {
            0..=3 => Ok(()),
            _ => Err(ServiceError::new(ErrorCode::Cancelled, "three are enough")),
        }
    }

    fn send_last(&mut self, outputs: Vec<InferOutput>) -> Result<(), ServiceError> {
        self.send(outputs)
    }
}

/// The deadline also ends a worker that keeps sending responses although no further ones are wanted.
#[test]
fn parts_for_ever_end_with_the_deadline() {
    let isolation = isolation("places: parts for ever").grace(Duration::from_millis(100));
    let model = load("echo", isolation, &PROCESS).unwrap();
    let start = Instant::now();
    let token = CancelToken::new(Some(start + Duration::from_millis(200)));
    let mut three = Three(0);
    let call = Call::new(request(7), &token).with_responses(Some(&mut three));
    let error = model.run(call).unwrap_err();
    assert_eq!(error.code(), ErrorCode::DeadlineExceeded);
    assert_eq!(three.0, 4, "it is asked again after it has refused one");
    assert!(start.elapsed() < Duration::from_secs(10));
}

/// A worker may send `free` only once per request, and only for a model that sends several responses.
#[test]
fn workers_that_are_free_at_the_wrong_time_end() {
    for role in AT_SEVERAL {
        let model = load("echo", isolation(role), &PROCESS).unwrap();
        for _ in 0..2 {
            let (cancel, mut three) = (CancelToken::new(None), Three(0));
            let call = Call::new(request(7), &cancel).with_responses(Some(&mut three));
            let error = model.run(call).unwrap_err();
            assert!(
                error.message().starts_with("its process died: it "),
                "{role}: {error}"
            );
        }
    }
}

/// Unexpected bytes on the control socket and on standard error do not break the worker.
#[test]
fn noise_is_passed_over() {
    let model = load(
        "echo",
        isolation("shout").grace(Duration::from_millis(100)),
        &PROCESS,
    )
    .unwrap();
    let token = CancelToken::new(Some(Instant::now() + Duration::from_millis(500)));
    assert_eq!(
        model.infer(request(7), &token).unwrap_err().code(),
        ErrorCode::DeadlineExceeded
    );
}

/// Responses have the same size limit as in the server's own process.
#[test]
fn answers_have_a_limit() {
    let isolation = isolation("worker").max_answer_bytes(1 << 20);
    let model = load("large 2097152", isolation, &PROCESS).unwrap();
    let error = infer(&*model, crate::support::ACT).unwrap_err();
    assert!(
        error.message().starts_with("its response has 2097")
            && error.message().ends_with("that a worker may send"),
        "{error}"
    );
    assert_eq!(infer(&*model, 7).unwrap(), 7);
}

/// An output may have more dimensions than requests may have, as in the server's own process.
#[test]
fn outputs_of_many_dimensions_come_back() {
    let model = load("gives rank 40", isolation("worker"), &PROCESS).unwrap();
    let before = crate::support::pid_of(&*model);
    let cancel = CancelToken::new(None);
    let outcome = model.run(Call::new(request(crate::support::ACT), &cancel));
    let outputs = outcome.unwrap().into_outputs().unwrap();
    assert_eq!(outputs[0].value.shape().dims(), [1; 40]);
    assert_eq!(crate::support::pid_of(&*model), before, "the worker was replaced");
}
