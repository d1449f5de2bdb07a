//! Tests workers whose models call other models while they run a request.

use std::{
    collections::BTreeMap,
    io::Read,
    os::{fd::AsFd, unix::net::UnixStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    task::{Poll, Waker},
    thread,
    time::{Duration, Instant},
};

use oip_model::{
    BoxFuture, Call, CancelToken, Model, ModelCall, OtherModels, Outcome, ResponseStream, Responses,
    StreamedResponse,
};
use oip_resources::{ByteBudget, Lease, TimeLimits};
use oip_types::{ErrorCode, InferOutput, InferRequest, InferResponse, Memory, ModelRef, ServiceError};
use rustix::io::{pread, pwrite};
use serde_json::{Value, json};

use crate::{
    support::{until, vector},
    tensor_locations::{Frame, listen, load, say},
};

const RUN: u32 = 7;
const RESULTS: u32 = 8;
const ROOM: u32 = 9;
const REGION: u32 = 10;
const TAKEN: u32 = 12;
const ASK: u32 = 13;
const ANSWER: u32 = 14;
const NEXT: u32 = 15;

/// Number of elements of a large input (200 KiB).
const MANY: usize = 50 << 10;

/// Plays a worker whose model calls another model, in the way that `role` selects, and responds with that
/// model's response.
pub(crate) fn play(role: &str) -> ! {
    let mut data = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned().unwrap());
    data.read_exact(&mut [0; 5]).unwrap();
    say(&mut data, 1, 0, &json!({"protocol": 6, "places": true}), b"");
    assert_eq!(listen(&mut data).kind, 2);
    let port = |name: &str| json!([{"name": name, "datatype": "INT32", "dims": [null]}]);
    let loaded = json!({"platform": "", "inputs": port("x"), "outputs": port("y")});
    say(&mut data, 3, 0, &loaded, b"");
    let mut inputs = None;
    loop {
        let frame = listen(&mut data);
        // Responses may arrive at any time and in any order.
        let mut early = BTreeMap::new();
        match frame.kind {
            0 => std::process::exit(0),
            REGION => {
                inputs = frame.file;
                continue;
            }
            RUN => {}
            kind => panic!("a frame of kind {kind}"),
        }
        let number = frame.number;
        let shape = frame.json["inputs"][0]["shape"].clone();
        let length = frame.json["inputs"][0]["length"].clone();
        let place = |place: &str| json!({"name": "x", "datatype": "INT32", "shape": shape, "length": length, "place": place, "offset": 0});
        let ask = |call: u64, place: Value| json!({"call": call, "model": "other", "inputs": [place], "parameters": {"p": 3}});
        let results = |data: &mut UnixStream, binary: &[u8]| {
            let y = json!({"name": "y", "datatype": "INT32", "shape": [binary.len() / 4], "place": "frame", "offset": 0, "length": binary.len()});
            say(data, RESULTS, number, &json!({"outputs": [y]}), binary);
        };
        match role {
            "asks: once" => {
                say(&mut data, ASK, number, &ask(1, place("frame")), &frame.binary);
                let (_, answer) = answer(&mut data, &mut early, 1);
                results(&mut data, &answer);
            }
            "asks: with what it was asked" => {
                say(&mut data, ASK, number, &ask(1, place("request")), b"");
                let (_, answer) = answer(&mut data, &mut early, 1);
                results(&mut data, &answer);
            }
            "asks: by memory" => {
                let x = vec![3; length.as_u64().unwrap() as usize];
                say(&mut data, ROOM, number, &json!({"bytes": x.len()}), b"");
                let region = listen(&mut data);
                assert_eq!(region.kind, REGION);
                let file = region.file.unwrap();
                for call in 1..4 {
                    assert_eq!(pwrite(&file, &x, 0).unwrap(), x.len());
                    say(&mut data, ASK, number, &ask(call, place("region")), b"");
                    let taken = hear(&mut data, &mut early, |frame| frame.kind != ANSWER);
                    assert_eq!(taken.kind, TAKEN, "the memory may be used again");
                    // If the server read the region only after its reply, it would read these bytes.
                    assert_eq!(pwrite(&file, &vec![9; x.len()], 0).unwrap(), x.len());
                }
                for call in 1..4 {
                    let (_, answer) = answer(&mut data, &mut early, call);
                    assert_eq!(answer, x.iter().map(|_| 6).collect::<Vec<u8>>());
                }
                results(&mut data, &[0; 4]);
            }
            "asks: with inputs that it changes" => {
                let file = inputs.as_ref().unwrap();
                let size = length.as_u64().unwrap() as usize;
                for call in 1..4 {
                    assert_eq!(pwrite(file, &vec![call as u8; size], 0).unwrap(), size);
                    say(&mut data, ASK, number, &ask(call, place("inputs")), b"");
                    let taken = listen(&mut data);
                    assert_eq!(taken.kind, TAKEN, "its inputs may be written to again");
                    assert_eq!(pwrite(file, &vec![9; size], 0).unwrap(), size);
                    let (_, answer) = answer(&mut data, &mut early, call);
                    assert_eq!(answer, vec![2 * call as u8; size]);
                }
                results(&mut data, &[0; 4]);
            }
            "asks: often" => {
                for call in 0..256 {
                    say(&mut data, ASK, number, &ask(call, place("frame")), &frame.binary);
                }
                for call in 0..256 {
                    answer(&mut data, &mut early, call);
                }
                results(&mut data, &frame.binary);
            }
            "asks: until two came" => {
                let mut several = ask(1, place("frame"));
                several["takes_several"] = true.into();
                say(&mut data, ASK, number, &several, &frame.binary);
                let (first, _) = answer(&mut data, &mut early, 1);
                assert_eq!(first["is_end"], false);
                say(
                    &mut data,
                    NEXT,
                    number,
                    &json!({"call": 1, "is_wanted": true}),
                    b"",
                );
                let (_, second) = answer(&mut data, &mut early, 1);
                say(
                    &mut data,
                    NEXT,
                    number,
                    &json!({"call": 1, "is_wanted": false}),
                    b"",
                );
                // This message refers to a call that has already ended, so the server ignores it.
                say(
                    &mut data,
                    NEXT,
                    number,
                    &json!({"call": 9, "is_wanted": true}),
                    b"",
                );
                thread::sleep(Duration::from_millis(20));
                results(&mut data, &second);
            }
            "asks: too often" | "asks: twice by one number" => {
                for call in 0..257 {
                    let call = if role.ends_with("often") { call } else { 7 };
                    say(&mut data, ASK, number, &ask(call, place("frame")), &frame.binary);
                }
                loop {
                    thread::park();
                }
            }
            "asks: and does not wait" => {
                say(&mut data, ASK, number, &ask(1, place("frame")), &frame.binary);
                results(&mut data, &frame.binary);
            }
            role => panic!("{role} is no role"),
        }
    }
}

/// Reads frames until `is_wanted` accepts one. Responses that arrive earlier are kept in `early`.
fn hear(
    data: &mut UnixStream,
    early: &mut BTreeMap<u64, Frame>,
    is_wanted: impl Fn(&Frame) -> bool,
) -> Frame {
    loop {
        let frame = listen(data);
        if is_wanted(&frame) {
            return frame;
        }
        assert_eq!(frame.kind, ANSWER);
        early.insert(frame.json["call"].as_u64().unwrap(), frame);
    }
}

/// Returns the JSON and the bytes of the next response to the call `call`. If the call failed, sends its
/// error as the response to the request.
fn answer(data: &mut UnixStream, early: &mut BTreeMap<u64, Frame>, call: u64) -> (Value, Vec<u8>) {
    let frame = early
        .remove(&call)
        .unwrap_or_else(|| hear(data, early, |frame| frame.json["call"] == call));
    assert_eq!((frame.kind, frame.number > 0), (ANSWER, true));
    if frame.json["failed"].is_object() {
        say(data, 6, frame.number, &frame.json["failed"], b"");
        // The process has nothing more to do and waits until the server kills it.
        loop {
            thread::park();
        }
    }
    let length = frame.json["outputs"][0]["length"].as_u64().unwrap_or(0);
    let mut bytes = frame.binary;
    if frame.json["region"].is_u64() {
        assert!(bytes.is_empty());
        bytes = vec![0; length as usize];
        assert_eq!(
            pread(frame.file.unwrap(), &mut bytes[..], 0).unwrap() as u64,
            length
        );
    }
    (frame.json, bytes)
}

/// Other models that double each element on a separate thread, after a delay.
struct Doubling {
    lease: Lease,
    seen: Arc<Seen>,
    answers: fn(InferResponse, Arc<Seen>) -> Responses,
    /// Whether the models never respond.
    hangs: bool,
}

#[derive(Default)]
struct Seen {
    asked: Mutex<Vec<ModelCall>>,
    /// Number of calls that have ended, in any way.
    ended: AtomicUsize,
    given: AtomicUsize,
}

/// Counts the end of a call when it is dropped.
struct Ending(Arc<Seen>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::SeqCst);
    }
}

impl OtherModels for Doubling {
    fn memory(&self) -> &dyn Memory {
        &self.lease
    }

    fn ask(&self, call: ModelCall) -> BoxFuture<'static, Result<Responses, ServiceError>> {
        let x = call
            .request
            .input("x")
            .unwrap()
            .as_fixed()
            .unwrap()
            .to_vec::<i32>()
            .unwrap();
        let y = vector(x.into_iter().map(|x| 2 * x).collect());
        let response = InferResponse::new("other", vec![InferOutput::new("y", y)]);
        let (sender, receiver) = mpsc::channel::<Waker>();
        let is_done = Arc::new(Mutex::new(false));
        let answer = (self.answers)(response, self.seen.clone());
        self.seen.asked.lock().unwrap().push(call);
        if !self.hangs {
            let is_done = is_done.clone();
            thread::spawn(move || {
                // Responds only once a waker is registered: without a wake-up the test would hang.
                let Ok(mut waker) = receiver.recv() else { return };
                thread::sleep(Duration::from_millis(5));
                while let Ok(later) = receiver.try_recv() {
                    waker = later;
                }
                *is_done.lock().unwrap() = true;
                waker.wake();
            });
        }
        let (ending, mut answer) = (Ending(self.seen.clone()), Some(answer));
        Box::pin(std::future::poll_fn(move |cx| {
            let _ending = &ending;
            let is_done = is_done.lock().unwrap();
            if *is_done {
                return Poll::Ready(Ok(answer.take().unwrap()));
            }
            let _ = sender.send(cx.waker().clone());
            Poll::Pending
        }))
    }
}

fn others(budget: &ByteBudget) -> Doubling {
    Doubling {
        lease: Lease::new(budget, &TimeLimits::default()),
        seen: Arc::default(),
        answers: |response, _| Responses::One(response),
        hangs: false,
    }
}

fn run(
    model: &dyn Model,
    request: InferRequest,
    cancel: &CancelToken,
    others: &Doubling,
) -> Result<Vec<InferOutput>, ServiceError> {
    model
        .run(Call::new(request, cancel).with_others(others))?
        .into_outputs()
}

fn infer(model: &dyn Model, x: Vec<i32>, others: &Doubling) -> Result<Vec<i32>, ServiceError> {
    let cancel = CancelToken::new(Some(Instant::now() + Duration::from_secs(60)));
    let request = InferRequest::new(ModelRef::new("foreign", None).unwrap()).with_input("x", vector(x));
    let outputs = run(model, request, &cancel, others)?;
    Ok(outputs[0].value.as_fixed().unwrap().to_vec().unwrap())
}

#[test]
fn a_model_asks_another_one_and_is_woken_for_the_answer() {
    let model = load("asks: once");
    let budget = ByteBudget::new(1 << 20);
    let others = others(&budget);
    for round in 1..4 {
        let start = Instant::now();
        assert_eq!(infer(&*model, vec![round, 7], &others).unwrap(), [2 * round, 14]);
        assert!(start.elapsed() < Duration::from_secs(10), "nobody was woken");
    }
    let asked = std::mem::take(&mut *others.seen.asked.lock().unwrap());
    assert_eq!((asked.len(), asked[0].request.model().name()), (3, "other"));
    assert_eq!(asked[0].request.parameters["p"].as_u64(), Some(3));
    // Each request holds eight bytes of inputs until it is dropped.
    assert_eq!(budget.used(), 24);
    drop(asked);
    assert_eq!((budget.used(), others.seen.ended.load(Ordering::SeqCst)), (0, 3));
}

/// A run is started on a thread with little time and finished by another thread. Calls that the first thread
/// has read ahead are answered, too.
#[test]
fn calls_that_were_read_ahead_are_not_waited_for() {
    let model = load("asks: often");
    let budget = ByteBudget::new(1 << 20);
    let others = others(&budget);
    let request =
        InferRequest::new(ModelRef::new("foreign", None).unwrap()).with_input("x", vector(vec![1, 7]));
    let cancel = CancelToken::new(Some(Instant::now() + Duration::from_secs(60)));
    let call = Call::new(request, &cancel).with_patience(Some(Duration::from_secs(60)));
    let Outcome::Unfinished(rest) = model.run(call).unwrap() else {
        panic!("nobody has answered its calls");
    };
    let outputs = rest.finish(&cancel, &others).unwrap();
    assert_eq!(
        outputs[0].value.as_fixed().unwrap().to_vec::<i32>().unwrap(),
        [1, 7]
    );
    assert_eq!(others.seen.asked.lock().unwrap().len(), 256);
}

#[test]
fn what_is_handed_on_is_not_copied() {
    let model = load("asks: with what it was asked");
    let budget = ByteBudget::new(1 << 10);
    let others = others(&budget);
    let request =
        InferRequest::new(ModelRef::new("foreign", None).unwrap()).with_input("x", vector(vec![1; MANY]));
    let outputs = run(&*model, request.clone(), &CancelToken::new(None), &others).unwrap();
    assert_eq!(outputs[0].value.raw().len(), 4 * MANY);
    assert_eq!(
        others.seen.asked.lock().unwrap()[0].request.inputs[0]
            .value
            .raw()
            .as_ptr(),
        request.inputs[0].value.raw().as_ptr()
    );
    assert_eq!(budget.used(), 0, "it is the request's own memory");
}

#[test]
fn large_tensors_go_by_memory_that_is_read_before_it_is_used_again() {
    let model = load("asks: by memory");
    let budget = ByteBudget::new(1 << 20);
    let others = others(&budget);
    infer(&*model, vec![0; MANY], &others).unwrap();
    assert_eq!(budget.used(), 3 * 4 * MANY as u64);
}

#[test]
fn inputs_that_a_model_has_written_to_are_read_before_it_goes_on() {
    let model = load("asks: with inputs that it changes");
    let budget = ByteBudget::new(1 << 20);
    let others = others(&budget);
    infer(&*model, vec![0; MANY], &others).unwrap();
    assert_eq!(budget.used(), 3 * 4 * MANY as u64);
}

#[test]
fn inputs_are_charged_before_they_are_read() {
    let model = load("asks: by memory");
    let budget = ByteBudget::new(1000);
    let others = others(&budget);
    let error = infer(&*model, vec![0; MANY], &others).unwrap_err();
    assert_eq!(error.code(), ErrorCode::TooLarge, "{error}");
    assert!(others.seen.asked.lock().unwrap().is_empty());
    assert_eq!(budget.used(), 0);
}

#[test]
fn many_are_asked_at_once() {
    let model = load("asks: often");
    let others = others(&ByteBudget::new(1 << 20));
    // All calls wait at the same time. One after another, they would take more than a second.
    assert_eq!(infer(&*model, vec![5], &others).unwrap(), [5]);
    assert_eq!(others.seen.ended.load(Ordering::SeqCst), 256);
}

#[test]
fn of_several_answers_so_many_come_as_are_wanted() {
    let model = load("asks: until two came");
    let mut others = others(&ByteBudget::new(1 << 20));
    others.answers = |response, seen| {
        let ending = Ending(seen.clone());
        Responses::Several(ResponseStream::new(move |_| {
            let _ending = &ending;
            let given = seen.given.fetch_add(1, Ordering::SeqCst);
            let mut response = response.clone();
            response.outputs = vec![InferOutput::new("y", vector(vec![given as i32]))];
            Poll::Ready(Some(Ok(StreamedResponse {
                response,
                is_last: false,
            })))
        }))
    };
    assert_eq!(infer(&*model, vec![5], &others).unwrap(), [1]);
    assert_eq!(
        others.seen.given.load(Ordering::SeqCst),
        2,
        "none is made that nobody wants"
    );
    assert!(others.seen.asked.lock().unwrap()[0].takes_several);
    // Both the future of the call and the stream of its responses are dropped.
    until("the end of the stream", || {
        others.seen.ended.load(Ordering::SeqCst) == 2
    });
}

#[test]
fn a_call_ends_with_the_request_that_it_is_for() {
    let model = load("asks: and does not wait");
    let mut others = others(&ByteBudget::new(1 << 20));
    others.hangs = true;
    assert_eq!(infer(&*model, vec![5], &others).unwrap(), [5]);
    assert_eq!(others.seen.ended.load(Ordering::SeqCst), 1);
}

#[test]
fn a_model_that_waits_for_another_one_is_told_when_nobody_waits_for_it() {
    let model = load("asks: once");
    let mut others = others(&ByteBudget::new(1 << 20));
    others.hangs = true;
    let cancel = CancelToken::new(None);
    let request = InferRequest::new(ModelRef::new("foreign", None).unwrap()).with_input("x", vector(vec![1]));
    let error = thread::scope(|scope| {
        scope.spawn(|| {
            until("the call", || !others.seen.asked.lock().unwrap().is_empty());
            cancel.cancel();
        });
        run(&*model, request, &cancel, &others).unwrap_err()
    });
    // The process was not killed: killing it would take longer, and the message would mention it.
    assert_eq!(
        (error.code(), error.message()),
        (ErrorCode::Cancelled, "the request was cancelled")
    );
    assert_eq!(others.seen.ended.load(Ordering::SeqCst), 1);
}

#[test]
fn a_worker_that_asks_for_what_it_knows_to_be_wrong_ends() {
    for (role, cause) in [
        (
            "asks: too often",
            "more than 256 requests to other models at once",
        ),
        (
            "asks: twice by one number",
            "two requests to other models with the number 7",
        ),
    ] {
        let model = load(role);
        let mut others = others(&ByteBudget::new(1 << 20));
        others.hangs = true;
        let error = infer(&*model, vec![5], &others).unwrap_err();
        assert!(error.message().contains(cause), "{error}");
        let asked = others.seen.asked.lock().unwrap().len();
        until("the end of all calls", || {
            others.seen.ended.load(Ordering::SeqCst) == asked
        });
    }
}
