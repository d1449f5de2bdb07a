//! Tests workers that are another program. They receive the locations of tensors; large tensors are in shared
//! memory.

use std::{
    fs::File,
    io::{IoSliceMut, Read, Write},
    os::{
        fd::{AsFd, AsRawFd, RawFd},
        unix::net::UnixStream,
    },
    sync::Arc,
    time::Duration,
};

use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};
use oip_model::{Call, CancelToken, LoadContext, Model, ModelSource, Outcome, RequestPart};
use oip_types::{ErrorCode, InferRequest, ModelRef};
use rustix::io::{pread, pwrite};
use serde_json::{Value, json};

use crate::support::{isolation, until, vector};

/// Number of elements of a large input (200 KiB).
const MANY: usize = 50 << 10;

/// Plays a worker that implements the protocol without this crate. The worker returns its input plus the
/// number of input regions that it has received.
pub(crate) fn play(role: &str) -> ! {
    let mut data = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned().unwrap());
    let mut first = [0; 5];
    data.read_exact(&mut first).unwrap();
    assert_eq!(&first, b"first", "what is sent before the protocol");
    say(&mut data, 1, 0, &json!({"protocol": 6, "places": true}), b"");
    let order = listen(&mut data);
    assert_eq!((order.kind, order.json["backend"].as_str()), (2, Some("foreign")));
    let port = |name: &str| json!([{"name": name, "datatype": "INT32", "dims": [null]}]);
    let loaded = json!({"platform": "", "inputs": port("x"), "outputs": port("y"), "max_batch_size": 3});
    say(&mut data, 3, 0, &loaded, b"");
    let (mut inputs, mut outputs, mut room, mut given) = (None, None, 0, 0);
    loop {
        let frame = listen(&mut data);
        match frame.kind {
            10 if frame.json["is_for_inputs"] == true => {
                given += 1;
                inputs = frame.file;
            }
            7 => {
                let place = &frame.json["inputs"][0];
                let (offset, length) = (
                    place["offset"].as_u64().unwrap(),
                    place["length"].as_u64().unwrap(),
                );
                let mut x = frame.binary;
                if frame.json["region"].is_u64() {
                    assert!(x.is_empty());
                    x = vec![0; length as usize];
                    assert_eq!(
                        pread(inputs.as_ref().unwrap(), &mut x[..], offset).unwrap() as u64,
                        length
                    );
                }
                let mut output =
                    json!({"name": "y", "datatype": "INT32", "shape": place["shape"], "length": length});
                let mut keeps = false;
                let mut binary = Vec::new();
                match role {
                    "another program: hands back" => {
                        (output["place"], output["offset"]) = (json!("request"), json!(offset));
                    }
                    "another program: shares" => {
                        (output["place"], output["offset"]) = (json!("inputs"), json!(offset));
                    }
                    _ if length < 1000 => {
                        (output["place"], output["offset"]) = (json!("frame"), json!(0));
                        binary = x;
                    }
                    _ => {
                        keeps = role == "another program: keeps";
                        if room < length + 64 {
                            say(&mut data, 9, frame.number, &json!({"bytes": length + 64}), b"");
                            let region = listen(&mut data);
                            assert_eq!((region.kind, &region.json["is_for_inputs"]), (10, &json!(false)));
                            room = region.json["length"].as_u64().unwrap();
                            outputs = region.file;
                        }
                        x[..4].copy_from_slice(&i32::to_le_bytes(given));
                        let mut at = 64;
                        let mut rest = &x[..];
                        while !rest.is_empty() {
                            let written = pwrite(outputs.as_ref().unwrap(), rest, at).unwrap();
                            at += written as u64;
                            rest = &rest[written..];
                        }
                        (output["place"], output["offset"]) = (json!("region"), json!(64));
                    }
                }
                let mut results = json!({"outputs": [output], "keeps_inputs": keeps});
                if let (Some(parts), "another program: tells parts") = (frame.json["parts"].as_array(), role)
                {
                    assert!(frame.json["timeout"].as_u64().unwrap() <= 60_000_000);
                    let failed = parts
                        .iter()
                        .enumerate()
                        .filter(|(_, part)| part["id"] == "refused");
                    let failed = failed.map(|(number, part)| {
                        let message = format!("{} rows for {}", part["rows"], part["outputs"]);
                        json!({"part": number, "error": {"status": 404, "message": message, "details": "trace"}})
                    });
                    results["failed"] = failed.collect();
                }
                say(&mut data, 8, frame.number, &results, &binary);
            }
            // The server has closed its sending side and waits until the model is finalized.
            0 => std::process::exit(0),
            kind => panic!("a frame of kind {kind}"),
        }
    }
}

pub(crate) struct Frame {
    /// The kind of the frame; 0 if the connection has ended.
    pub(crate) kind: u32,
    pub(crate) number: u64,
    pub(crate) json: Value,
    pub(crate) binary: Vec<u8>,
    pub(crate) file: Option<File>,
}

pub(crate) fn listen(data: &mut UnixStream) -> Frame {
    let mut head = [0; 24];
    let mut space = nix::cmsg_space!(RawFd);
    let mut parts = [IoSliceMut::new(&mut head)];
    let received = recvmsg::<()>(data.as_raw_fd(), &mut parts, Some(&mut space), MsgFlags::empty()).unwrap();
    let count = received.bytes;
    let file = received.cmsgs().unwrap().find_map(|message| match message {
        // The descriptor is reopened by its path, which needs no unsafe code.
        ControlMessageOwned::ScmRights(files) => files.first().map(|file| {
            let path = format!("/proc/self/fd/{file}");
            File::options().read(true).write(true).open(path).unwrap()
        }),
        _ => None,
    });
    let mut frame = Frame {
        kind: 0,
        number: 0,
        json: Value::Null,
        binary: Vec::new(),
        file,
    };
    if count > 0 {
        data.read_exact(&mut head[count..]).unwrap();
        let word = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().unwrap());
        let long = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().unwrap());
        (frame.kind, frame.number) = (word(0), long(8));
        let mut json = vec![0; word(4) as usize];
        data.read_exact(&mut json).unwrap();
        frame.json = serde_json::from_slice(&json).unwrap();
        frame.binary = vec![0; long(16) as usize];
        data.read_exact(&mut frame.binary).unwrap();
    }
    frame
}

pub(crate) fn say(data: &mut UnixStream, kind: u32, number: u64, json: &Value, binary: &[u8]) {
    let json = json.to_string().into_bytes();
    let head = [
        &kind.to_le_bytes()[..],
        &(json.len() as u32).to_le_bytes(),
        &number.to_le_bytes(),
        &(binary.len() as u64).to_le_bytes(),
    ];
    data.write_all(&[&head.concat()[..], &json, binary].concat())
        .unwrap();
}

pub(crate) fn load(role: &'static str) -> Box<dyn Model> {
    let source = ModelSource::new("foreign", "1", "model.foreign", "".into());
    let isolation = isolation(role).first_bytes("first".into());
    isolation
        .load("foreign", &source, &LoadContext::default())
        .unwrap()
}

fn infer(model: &dyn Model, x: Vec<i32>) -> (InferRequest, Vec<i32>) {
    let request = InferRequest::new(ModelRef::new("foreign", None).unwrap()).with_input("x", vector(x));
    let outputs = model.infer(request.clone(), &CancelToken::new(None)).unwrap();
    let y = outputs[0].value.as_fixed().unwrap().to_vec().unwrap();
    (request, y)
}

#[test]
fn large_inputs_are_in_memory_that_is_used_again() {
    let model = load("another program: copies");
    assert_eq!(model.capabilities().max_batch_size, Some(3));
    for round in 1..5 {
        let (_, y) = infer(&*model, vec![round; MANY]);
        // All requests use the same region.
        assert_eq!((y[0], &y[1..]), (1, &vec![round; MANY - 1][..]));
        assert_eq!(infer(&*model, vec![round, 7]).1, [round, 7]);
    }
    let (_, y) = infer(&*model, vec![9; 8 * MANY]);
    assert_eq!(
        (y[0], y.len(), y[8 * MANY - 1]),
        (2, 8 * MANY, 9),
        "a larger one is another one"
    );
}

#[test]
fn memory_that_a_model_holds_on_to_is_not_written_to_again() {
    let model = load("another program: keeps");
    for round in 1..5 {
        let (_, y) = infer(&*model, vec![7; MANY]);
        assert_eq!(y[0], round);
    }
}

#[test]
fn outputs_that_are_inputs_are_the_same_memory() {
    let model = load("another program: hands back");
    for count in [3, MANY] {
        let x = vector((0..count as i32).collect());
        let request = InferRequest::new(ModelRef::new("foreign", None).unwrap()).with_input("x", x);
        let outputs = model.infer(request.clone(), &CancelToken::new(None)).unwrap();
        assert_eq!(
            outputs[0].value.raw().as_ptr(),
            request.inputs[0].value.raw().as_ptr()
        );
        assert_eq!(outputs[0].value, request.inputs[0].value);
    }
}

#[test]
fn what_a_model_has_written_to_its_inputs_is_read() {
    let model = load("another program: shares");
    let x: Vec<i32> = (0..MANY as i32).collect();
    assert_eq!(infer(&*model, x.clone()).1, x);
}

#[test]
fn requests_that_were_joined_fail_each_for_itself() {
    let model = load("another program: tells parts");
    let part = |id: Option<&str>, rows, outputs: &[&str]| RequestPart {
        id: id.map(str::to_owned),
        rows,
        outputs: outputs.iter().map(|name| (*name).to_owned()).collect(),
    };
    let request =
        InferRequest::new(ModelRef::new("foreign", None).unwrap()).with_input("x", vector(vec![1, 2, 3]));
    let parts = [part(None, 1, &[]), part(Some("refused"), 2, &["y"])];
    let cancel = CancelToken::new(Some(std::time::Instant::now() + Duration::from_secs(60)));
    let call = Call::new(request.clone(), &cancel).with_parts(&parts);
    let Outcome::Outputs(given) = model.run(call).unwrap() else {
        panic!("it is over at once");
    };
    assert_eq!(given.outputs[0].value, request.inputs[0].value);
    let [(1, error)] = &given.failed[..] else {
        panic!("{given:?}");
    };
    assert_eq!(
        (error.code(), error.message()),
        (ErrorCode::NotFound, r#"2 rows for ["y"]"#)
    );
    assert!(model.infer(request, &cancel).is_ok());
}

/// A worker that runs an external program is notified when its model is unloaded, and has time to finish.
#[test]
fn such_a_worker_may_finish() {
    let model: Arc<dyn Model> = load("another program: copies").into();
    assert_eq!(infer(&*model, vec![1]).1, [1]);
    let workers = crate::support::workers_of("foreign");
    model.end();
    until("the end of the worker", || {
        workers.iter().all(|pid| !crate::support::is_alive(*pid))
    });
    let error = model.infer(
        InferRequest::new(ModelRef::new("foreign", None).unwrap()).with_input("x", vector(vec![1])),
        &CancelToken::new(Some(std::time::Instant::now() + Duration::from_millis(50))),
    );
    assert!(error.is_err());
}
