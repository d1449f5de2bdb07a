//! The worker's side of the protocol: the worker loads one model and runs one request at a time.

use std::{
    fs::File,
    io::{self, Read, Write, stderr},
    os::{fd::AsFd, unix::net::UnixStream},
    panic::{AssertUnwindSafe, catch_unwind},
    path::PathBuf,
    process::ExitCode,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use bytes::Bytes;
use oip_model::{Backend, Call, CancelToken, ConfiguredTensors, LoadContext, Model, ModelSource};
use oip_types::{
    ByteSize, ErrorCode, InferOutput, InferResponse, ModelRef, RequestLimits, ServiceError,
    rest::{self, BinaryOutputs, NonFinite},
};
use parking_lot::Mutex;
use rustix::process::{Resource, Rlimit, Signal, getpid, getrlimit, kill_process, setrlimit};
use tensor_core::QuotedName;

use crate::messages::{Failure, Hello, Load, LoadedModel};
use crate::protocol::{Broken, Connection, Kind, VERSION, read_json};

/// Stack size of the thread that runs the model, as in the server.
const STACK_SIZE: usize = 16 << 20;

/// Runs a worker process: loads the one model that the server sends and responds to requests until the server
/// exits. Must be called before the process starts other threads; it does not return unless it fails.
///
/// Standard input and output must be the sockets that [`IsolatedBackend`](crate::IsolatedBackend) starts
/// workers with. Output that the model prints goes to standard error, and thus to the server's log.
pub fn run(backends: &[Arc<dyn Backend>]) -> ExitCode {
    match start(backends) {
        Ok(never) => match never {},
        Err(error) => {
            // If standard error is closed, the message is lost.
            let _ = writeln!(
                stderr(),
                "error: a worker is started by a server, which communicates with it over sockets: {error}"
            );
            ExitCode::from(2)
        }
    }
}

enum Never {}

fn start(backends: &[Arc<dyn Backend>]) -> io::Result<Never> {
    let data = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let control = UnixStream::from(io::stdout().as_fd().try_clone_to_owned()?);
    // Fails unless standard input is a socket, since only sockets have an address.
    data.local_addr()?;
    control.local_addr()?;
    rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
    rustix::stdio::dup2_stdout(stderr())?;
    settle();

    let connection = Connection::new(data, None)?;
    let running = Arc::new(Running::default());
    let serving = {
        let (backends, running) = (backends.to_vec(), running.clone());
        move || {
            if let Err(Broken::Wrong(what)) = serve(&connection, &backends, &running) {
                let _ = writeln!(stderr(), "the server sent {what}");
            }
            end();
        }
    };
    let builder = thread::Builder::new()
        .name("model".to_owned())
        .stack_size(STACK_SIZE);
    builder.spawn(serving)?;
    // A failed read means that the server has exited. The worker then ends, however busy the model is.
    let mut number = [0; 8];
    while (&control).read_exact(&mut number).is_ok() {
        running.cancel(u64::from_le_bytes(number));
    }
    end()
}

/// Kills this process. There is no state to save, and exit handlers of libraries can hang.
fn end() -> ! {
    let _ = kill_process(getpid(), Signal::KILL);
    std::process::abort()
}

/// Sets process options that protect the server. Errors are ignored, because the worker also runs without
/// these options.
fn settle() {
    #[cfg(target_os = "linux")]
    {
        // The signal is sent when the server's thread that started this process ends, and that thread lives
        // as long as the model.
        let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
        // When memory runs out, the kernel should kill the worker rather than the server.
        let _ = std::fs::write("/proc/self/oom_score_adj", "800");
        let _ = std::fs::write("/proc/self/comm", "oip-worker");
    }
}

/// The numbers of the running request and of the last cancelled request. A request and its cancellation can
/// arrive in either order.
#[derive(Default)]
struct Running(Mutex<State>);

#[derive(Default)]
struct State {
    current: Option<(u64, CancelToken)>,
    cancelled: u64,
}

impl Running {
    fn begin(&self, number: u64) -> CancelToken {
        let token = CancelToken::new(None);
        let mut state = self.0.lock();
        if state.cancelled >= number {
            token.cancel();
        }
        state.current = Some((number, token.clone()));
        token
    }

    fn cancel(&self, number: u64) {
        let mut state = self.0.lock();
        state.cancelled = state.cancelled.max(number);
        if let Some((_, token)) = state.current.as_ref().filter(|(current, _)| *current <= number) {
            token.cancel();
        }
    }
}

/// Loads the model and responds to requests until the connection closes.
fn serve(connection: &Connection, backends: &[Arc<dyn Backend>], running: &Running) -> Result<(), Broken> {
    let forever = &mut || true;
    connection.send_json(
        Kind::Hello,
        0,
        &Hello {
            protocol: VERSION,
            places: false,
        },
        forever,
    )?;
    let head = connection.head(forever)?;
    if head.kind != Kind::Load {
        return Err(Broken::wrong("no model to load"));
    }
    let order: Load = read_json(&connection.bytes(head.json.into(), forever)?)?;
    if let Some(limit) = order.memory_limit {
        limit_memory(limit).map_err(Broken::System)?;
    }
    let content = receive_content(connection, head.binary, order.memory_limit)?;
    let model = match content.and_then(|content| load(&order, content, backends)) {
        Ok(model) => model,
        Err(error) => return refuse(connection, 0, &error),
    };
    connection.send_json(Kind::Loaded, 0, &LoadedModel::of(&*model), forever)?;

    loop {
        let head = connection.head(forever)?;
        if head.kind != Kind::Infer {
            return Err(Broken::wrong("an unexpected frame"));
        }
        let body = match connection.bytes(u64::from(head.json) + head.binary, forever) {
            Err(Broken::System(error)) if error.kind() == io::ErrorKind::OutOfMemory => {
                connection.skip(u64::from(head.json) + head.binary)?;
                let message = format!(
                    "its {} bytes do not fit the memory of the model's process",
                    head.binary
                );
                refuse(
                    connection,
                    head.number,
                    &ServiceError::new(ErrorCode::TooLarge, message),
                )?;
                continue;
            }
            body => Bytes::from(body?),
        };
        let token = running.begin(head.number);
        let answer = infer(&*model, &order, &body, head.json as usize, &token);
        drop(body);
        match answer {
            Ok(body) => connection.send(Kind::Outputs, head.number, &body.json, &body.binary, forever)?,
            Err(error) => refuse(connection, head.number, &error)?,
        }
    }
}

fn refuse(connection: &Connection, number: u64, error: &ServiceError) -> Result<(), Broken> {
    connection.send_json(Kind::Failed, number, &Failure::new(error), &mut || true)
}

/// Receives the content of the model file. Fails if there is not enough memory.
fn receive_content(
    connection: &Connection,
    count: u64,
    limit: Option<u64>,
) -> Result<Result<Bytes, ServiceError>, Broken> {
    match connection.bytes(count, &mut || true) {
        Ok(content) => Ok(Ok(content.into())),
        Err(Broken::System(error)) if error.kind() == io::ErrorKind::OutOfMemory => {
            connection.skip(count)?;
            let limit = limit.map_or_else(String::new, |limit| {
                format!(", which may use {:#} of memory", ByteSize(limit))
            });
            Ok(Err(ServiceError::invalid(format!(
                "its file of {count} bytes does not fit the memory of its process{limit}"
            ))))
        }
        Err(broken) => Err(broken),
    }
}

/// Limits the memory of the process apart from its main stack: on Linux by `RLIMIT_DATA`, which does not
/// count read-only or merely reserved mappings, such as an allocator's 64 MiB reservations; elsewhere by
/// `RLIMIT_AS`, which counts everything.
fn limit_memory(limit: u64) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    let kind = Resource::Data;
    #[cfg(not(target_os = "linux"))]
    let kind = Resource::As;
    // The stack of this thread is not part of the model's memory, but counts in full towards the limit.
    let limit = limit.saturating_add(STACK_SIZE as u64);
    let maximum = getrlimit(kind).maximum;
    let limit = Some(maximum.map_or(limit, |maximum| maximum.min(limit)));
    setrlimit(
        kind,
        Rlimit {
            current: limit,
            maximum: limit,
        },
    )?;
    Ok(())
}

fn load(order: &Load, content: Bytes, backends: &[Arc<dyn Backend>]) -> Result<Box<dyn Model>, ServiceError> {
    let backend = backends
        .iter()
        .find(|backend| backend.name() == order.backend)
        .ok_or_else(|| {
            let message = format!("the worker program has no backend {}", QuotedName(&order.backend));
            ServiceError::internal(message)
        })?;
    let mut content = content;
    let all: u64 = order.beside.iter().map(|(_, length)| length).sum();
    let own = (content.len() as u64).checked_sub(all);
    let own = own.ok_or_else(|| ServiceError::internal("the files are shorter than declared"))?;
    let mut rest = content.split_off(own as usize);
    let beside = order.beside.iter();
    let beside = beside
        .map(|(name, length)| (name.clone(), rest.split_to(*length as usize)))
        .collect();
    let source = ModelSource::new(
        order.name.clone(),
        order.version.clone(),
        PathBuf::from(&order.path),
        content,
    )
    .with_beside(beside);
    let patience = order.patience.map(Duration::from_millis);
    let cx = LoadContext::default()
        .with_deadline(patience.map(|patience| Instant::now() + patience))
        .with_config(Arc::new(order.config.clone()))
        .with_input_dims(Arc::new(order.input_dims.clone()))
        .with_tensors(Arc::new(ConfiguredTensors {
            inputs: order.tensors.inputs.clone(),
            outputs: order.tensors.outputs.clone(),
        }));
    let model = catch_unwind(AssertUnwindSafe(|| backend.load(&source, &cx)))
        .unwrap_or_else(|_| Err(ServiceError::internal("the backend panicked while loading it")))?;
    if model.capabilities().decoupled {
        return Err(ServiceError::invalid(
            "it returns several responses to a request, which a model of this kind cannot do from a \
             separate process",
        ));
    }
    Ok(model)
}

/// Runs one request. The message of a panic has already been printed and is in the log. The model continues
/// after a panic, as in the server.
fn infer(
    model: &dyn Model,
    order: &Load,
    body: &Bytes,
    json: usize,
    token: &CancelToken,
) -> Result<rest::EncodedBody, ServiceError> {
    let version = Some(order.version.as_str()).filter(|version| !version.is_empty());
    let request = rest::decode_request(
        ModelRef::new(&order.name, version)?,
        body,
        Some(json),
        &no_limits(),
    )?
    .request;
    let run = AssertUnwindSafe(|| model.run(Call::new(request, token)));
    let outcome = catch_unwind(run).unwrap_or_else(|_| {
        Err(ServiceError::internal(
            "it panicked; this request is lost, the next one will be tried",
        ))
    })?;
    encode(outcome.into_outputs()?, order.max_answer_bytes)
}

fn encode(outputs: Vec<InferOutput>, max_bytes: u64) -> Result<rest::EncodedBody, ServiceError> {
    let response = InferResponse::new("", outputs);
    let body = rest::encode_response(&response, &BinaryOutputs::all(true), NonFinite::Error)?;
    match body.len() as u64 {
        length if length <= max_bytes => Ok(body),
        length => Err(ServiceError::internal(format!(
            "its response has {length} bytes, more than the {max_bytes} that a worker may send"
        ))),
    }
}

/// Returns limits that allow all messages: the server has already checked them against its own limits.
fn no_limits() -> RequestLimits {
    RequestLimits::default().with(|limits| {
        limits.tensors = usize::MAX;
        limits.rank = usize::MAX;
        limits.parameters = usize::MAX;
        limits.id_bytes = usize::MAX;
        limits.tensor_bytes = usize::MAX;
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_cancelled_before_it_begins_is_cancelled_when_it_does() {
        let running = Running::default();
        running.cancel(3);
        assert!(running.begin(3).is_cancelled());
        let token = running.begin(4);
        running.cancel(3);
        assert!(!token.is_cancelled());
        running.cancel(4);
        assert!(token.is_cancelled());
    }
}
