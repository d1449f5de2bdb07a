//! The server's side of a worker process: starts the process, communicates with it, and ends it.

use std::{
    io::{self, Write},
    os::{
        fd::OwnedFd,
        unix::{net::UnixStream, process::CommandExt},
    },
    process::{Child, Command},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use bytes::Bytes;
use oip_model::{CancelToken, ConfiguredTensors, InputDims, ModelSource, Outputs, RequestPart, ResponseSink};
use oip_types::{
    InferRequest, ModelConfig, RequestLimits, ServiceError,
    rest::{self, RequestEncoding},
};
use parking_lot::Mutex;

use crate::{
    calls::Work,
    exit_cause::Death,
    isolation::Isolation,
    messages::{About, Failure, Hello, Load, LoadedModel, Tensors},
    numbers::{Number, Numbers},
    protocol::{ALIGNMENT, Broken, Connection, Head, Kind, TICK, VERSION, read_json},
    request_channels::{RequestChannel, RequestChannels},
    tensor_locations::{Several, SharedRegions},
    worker_log::WorkerLog,
};

/// Everything needed to start a worker.
pub(crate) struct Recipe {
    pub(crate) isolation: Arc<Isolation>,
    pub(crate) backend: &'static str,
    pub(crate) source: ModelSource,
    pub(crate) config: ModelConfig,
    pub(crate) input_dims: Arc<InputDims>,
    pub(crate) tensors: Arc<ConfiguredTensors>,
    pub(crate) memory_limit: Option<u64>,
    /// Time limit for loading.
    pub(crate) patience: Option<Duration>,
    pub(crate) numbers: Arc<Numbers>,
}

/// A connection to a process that has loaded the model, for one request at a time. Dropping the connection
/// kills the process, unless the process runs other requests too.
pub(crate) struct Worker {
    process: Arc<Process>,
    channel: RequestChannel,
    /// The number of the last request on this connection.
    number: u64,
    /// Whether the process accepts other requests while it continues with the current one.
    is_beside: bool,
}

/// A worker process. Dropping the value kills the process.
struct Process {
    child: Mutex<Child>,
    control: UnixStream,
    instance: Number,
    log: WorkerLog,
    /// The number of the last request to this process, on any connection.
    last: AtomicU64,
    channels: RequestChannels,
    memory_limit: Option<u64>,
    max_answer_bytes: u64,
    grace: Duration,
    /// Time by which the process should exit by itself; `None` while it is in use.
    farewell: Mutex<Option<Instant>>,
    /// Whether the pool has counted the end of the process.
    is_counted: AtomicBool,
    /// How the process ended.
    cause: OnceLock<String>,
}

/// Receives the responses if the model sends several to one request.
pub(crate) struct Taker<'t> {
    pub(crate) answers: &'t mut dyn ResponseSink,
    /// Receives a second connection to the process, for other requests, while this request continues.
    pub(crate) others: &'t mut dyn FnMut(Worker),
}

/// The offsets of a sent request's inputs, for workers that use regions.
pub(crate) struct InputOffsets(Vec<u64>);

/// Returns a function that decides whether to continue with a request. When the request is abandoned, the
/// function notifies the worker and grants it `grace` more time.
fn patience<'w>(
    mut control: &'w UnixStream,
    number: u64,
    grace: Duration,
    cancel: &'w CancelToken,
) -> impl FnMut() -> bool + use<'w> {
    let mut given_up: Option<Instant> = None;
    move || match given_up {
        Some(since) => since.elapsed() < grace,
        None => {
            if cancel.is_cancelled() {
                given_up = Some(Instant::now());
                // A worker whose control socket is full will not react anyway.
                let _ = control.write(&number.to_le_bytes());
            }
            true
        }
    }
}

/// The reason why a worker could not be started.
pub(crate) enum StartError {
    /// The model cannot be loaded, and a retry would fail too.
    Refused(ServiceError),
    /// The worker exited or could not be started.
    Died(String),
    /// The worker is no longer needed, or took too long.
    GivenUp,
}

impl Worker {
    /// Starts a process that loads the model. The worker's description of the model is not trusted: the
    /// caller has to check it.
    pub(crate) fn start(
        recipe: &Recipe,
        on_end: impl Fn() + Send + 'static,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<(Self, About), StartError> {
        let system = |error: io::Error| StartError::Died(format!("it could not be started: {error}"));
        let mut worker = Self::spawn(recipe, on_end).map_err(system)?;
        match worker.load(recipe, go_on) {
            Ok(Ok(about)) => Ok((worker, about)),
            Ok(Err(refusal)) => Err(StartError::Refused(refusal)),
            Err(Broken::GivenUp) => Err(StartError::GivenUp),
            Err(broken) => {
                let cause = worker.bury(broken);
                Err(StartError::Died(format!("while it loaded the model {cause}")))
            }
        }
    }

    fn spawn(recipe: &Recipe, on_end: impl Fn() + Send + 'static) -> io::Result<Self> {
        let (data, theirs) = UnixStream::pair()?;
        let (control, their_control) = UnixStream::pair()?;
        let (said, their_voice) = io::pipe()?;
        // A worker that does not read must not block the server.
        control.set_nonblocking(true)?;
        let mut command: Command = (recipe.isolation.command)();
        let source = &recipe.source;
        let label = match source.version.as_str() {
            "" => source.name.clone(),
            version => format!("{}/{version}", source.name),
        };
        command
            .arg(&label)
            .stdin(OwnedFd::from(theirs))
            .stdout(OwnedFd::from(their_control))
            .stderr(their_voice)
            // Ctrl-C must reach only the server, which ends its workers after draining.
            .process_group(0);
        let child = command.spawn()?;
        // Dropping the command closes the server's copies of the worker's socket ends. From here on, only the
        // worker has them.
        drop(command);
        let log = WorkerLog::listen(said, &label, child.id(), on_end);
        tracing::debug!(model = label, pid = child.id(), "started a worker");
        let process = Process {
            child: Mutex::new(child),
            control,
            instance: recipe.numbers.take(),
            log,
            last: AtomicU64::new(0),
            channels: RequestChannels::default(),
            memory_limit: recipe.memory_limit,
            max_answer_bytes: recipe.isolation.max_answer_bytes,
            grace: recipe.isolation.grace,
            farewell: Mutex::default(),
            is_counted: AtomicBool::new(false),
            cause: OnceLock::new(),
        };
        let channel = RequestChannel {
            connection: Connection::new(data, Some(TICK))?,
            regions: None,
        };
        Ok(Self::new(process.into(), channel))
    }

    fn new(process: Arc<Process>, channel: RequestChannel) -> Self {
        Self {
            process,
            channel,
            number: 0,
            is_beside: false,
        }
    }

    fn load(
        &mut self,
        recipe: &Recipe,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<Result<About, ServiceError>, Broken> {
        let connection = &self.channel.connection;
        connection.send_bytes(&recipe.isolation.first_bytes, go_on)?;
        let head = connection.head(go_on)?;
        if head.kind != Kind::Hello {
            return Err(Broken::wrong("no greeting"));
        }
        let hello: Hello = read_json(&self.json(head, go_on)?)?;
        if hello.protocol != VERSION {
            return Err(Broken::wrong(format!(
                "version {} of the protocol, expected {VERSION}",
                hello.protocol
            )));
        }
        self.channel.regions = hello.places.then(SharedRegions::default);
        let source = &recipe.source;
        let order = Load {
            backend: recipe.backend.to_owned(),
            name: source.name.clone(),
            version: source.version.clone(),
            path: source.path.to_string_lossy().into_owned(),
            beside: source
                .beside
                .iter()
                .map(|(name, content)| (name.clone(), content.len() as u64))
                .collect(),
            config: recipe.config.clone(),
            input_dims: InputDims::clone(&recipe.input_dims),
            tensors: Tensors {
                inputs: recipe.tensors.inputs.clone(),
                outputs: recipe.tensors.outputs.clone(),
            },
            memory_limit: recipe.memory_limit,
            max_answer_bytes: recipe.isolation.max_answer_bytes,
            patience: recipe.patience.map(|patience| patience.as_millis() as u64),
            instance: self.process.instance.get(),
        };
        let beside = source.beside.iter().map(|(_, content)| content.clone());
        let content: Vec<Bytes> = [source.content.clone()].into_iter().chain(beside).collect();
        connection.send(Kind::Load, 0, &rest::json_body(&order), &content, go_on)?;
        let head = connection.head(go_on)?;
        let json = self.json(head, go_on)?;
        match head.kind {
            Kind::Loaded => {
                let loaded: LoadedModel = read_json(&json)?;
                let about = loaded.into_about(&source.name);
                Ok(Ok(about.map_err(|error| Broken::wrong(error.message()))?))
            }
            Kind::Failed => {
                let mut failed: Failure = read_json(&json)?;
                self.process.log.failed(&mut failed);
                Ok(Err(failed.into_error()))
            }
            _ => Err(Broken::wrong("an unexpected frame")),
        }
    }

    /// Reads a frame that consists only of JSON.
    fn json(&self, head: Head, go_on: &mut dyn FnMut() -> bool) -> Result<Vec<u8>, Broken> {
        match head.binary {
            0 => self.channel.connection.bytes(head.json.into(), go_on),
            _ => Err(Broken::wrong("unexpected binary data")),
        }
    }

    /// Runs one request. After a connection error, the worker can no longer be used.
    ///
    /// When the request is abandoned, the model is notified. If it does not stop, the worker is dropped after
    /// the grace period. If the model sends several responses, they are passed to `taker`, and `None` is
    /// returned.
    pub(crate) fn infer(
        &mut self,
        work: Work<'_>,
        taker: Option<Taker<'_>>,
    ) -> Result<Result<Option<Outputs>, ServiceError>, Broken> {
        match self.send(work.request, work.parts, work.cancel)? {
            Ok(sent) => self.receive(work, sent, taker),
            Err(error) => Ok(Err(error)),
        }
    }

    /// Sends a request: the first half of [`Worker::infer`].
    pub(crate) fn send(
        &mut self,
        request: &InferRequest,
        parts: &[RequestPart],
        cancel: &CancelToken,
    ) -> Result<Result<InputOffsets, ServiceError>, Broken> {
        self.number = self.process.last.fetch_add(1, Ordering::Relaxed) + 1;
        let (number, connection, process) = (self.number, &self.channel.connection, &*self.process);
        let mut go_on = patience(&process.control, number, process.grace, cancel);
        if let Some(regions) = &mut self.channel.regions {
            let timeout = cancel
                .deadline()
                .map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let offsets = regions.send(connection, number, (request, parts, timeout), &mut go_on)?;
            return Ok(offsets.map(InputOffsets));
        }
        let encoding = RequestEncoding::default().with(|encoding| encoding.binary_inputs = true);
        let body = match rest::encode_request(request, encoding) {
            Ok(body) => body,
            Err(error) => return Ok(Err(error)),
        };
        connection.send(Kind::Infer, number, &body.json, &body.binary, &mut go_on)?;
        Ok(Ok(InputOffsets(Vec::new())))
    }

    /// Waits until `until` for a response that can be received without blocking. Returns whether such a
    /// response has arrived.
    #[cfg(target_os = "linux")]
    pub(crate) fn has_answer_by(&self, until: Instant) -> bool {
        self.channel.connection.has_answer_by(until)
    }

    /// Receives the response: the second half of [`Worker::infer`].
    pub(crate) fn receive(
        &mut self,
        work: Work<'_>,
        sent: InputOffsets,
        taker: Option<Taker<'_>>,
    ) -> Result<Result<Option<Outputs>, ServiceError>, Broken> {
        let (number, connection, process) = (self.number, &self.channel.connection, &*self.process);
        let max_answer_bytes = process.max_answer_bytes;
        let go_on = &mut patience(&process.control, number, process.grace, work.cancel);
        if let Some(regions) = &mut self.channel.regions {
            let answer = (max_answer_bytes, &process.log);
            let Some(Taker { answers, others }) = taker else {
                return regions.receive(connection, number, (work, sent.0), answer, None, go_on);
            };
            let mut free = || match process.channels.take(&process.control) {
                Ok(channel) => {
                    self.is_beside = true;
                    others(Self::new(self.process.clone(), channel));
                    true
                }
                Err(error) => {
                    let error = error.to_string();
                    tracing::debug!(error, "a worker cannot be given a connection for another request");
                    false
                }
            };
            let several = Several {
                answers,
                free: &mut free,
            };
            return regions.receive(connection, number, (work, sent.0), answer, Some(several), go_on);
        }
        let head = connection.head(go_on)?;
        if head.number != number {
            return Err(Broken::wrong("a response to another request"));
        }
        match head.kind {
            Kind::Outputs => {
                let outputs = rest_outputs(connection, &head, max_answer_bytes, go_on)?;
                Ok(Ok(Some(outputs)))
            }
            Kind::Failed => {
                let mut failed: Failure = read_json(&self.json(head, go_on)?)?;
                self.process.log.failed(&mut failed);
                Ok(Err(failed.into_error()))
            }
            _ => Err(Broken::wrong("an unexpected frame")),
        }
    }

    /// Returns whether the process accepts other requests while it continues with the current one.
    pub(crate) fn is_beside(&self) -> bool {
        self.is_beside
    }

    /// Keeps the connection for a later request. Called when this request is finished and the process runs
    /// other requests.
    pub(crate) fn put_aside(self) {
        self.process.channels.keep(self.channel);
    }

    /// Abandons the current request without killing the process, if the process runs other requests. Returns
    /// whether that is possible. If so, dropping `self` closes the connection, which notifies the process.
    pub(crate) fn can_leave(&self) -> bool {
        let Process {
            channels, control, ..
        } = &*self.process;
        self.is_beside && channels.give_up(self.number, control)
    }

    /// Gives a worker that is another program time to finalize its model. Dropping `self` waits until the
    /// worker exits, at most for the grace period.
    pub(crate) fn dismiss(&mut self) {
        let Process {
            channels,
            farewell,
            grace,
            ..
        } = &*self.process;
        if self.channel.regions.is_some() && self.channel.connection.finish_sending().is_ok() {
            channels.finish_sending();
            *farewell.lock() = Some(Instant::now() + *grace);
        }
    }

    /// Returns whether the process has exited.
    pub(crate) fn has_ended(&self) -> bool {
        self.process.has_ended()
    }

    /// Returns whether the process seems about to exit: it has closed its standard error.
    pub(crate) fn is_ending(&self) -> bool {
        self.process.log.have_ended()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.child.lock().id()
    }

    /// Returns true for the first caller, which must count the process's exit.
    pub(crate) fn is_first_to_count(&self) -> bool {
        !self.process.is_counted.swap(true, Ordering::Relaxed)
    }

    /// Ends the process, and returns how it ended as a clause, such as "it was terminated by SIGSEGV".
    pub(crate) fn bury(self, broken: Broken) -> String {
        let cause = || self.process.end(broken).to_string();
        self.process.cause.get_or_init(cause).clone()
    }
}

/// Reads the outputs that follow `head` as a REST body, at most `max` bytes.
fn rest_outputs(
    connection: &Connection,
    head: &Head,
    max: u64,
    go_on: &mut dyn FnMut() -> bool,
) -> Result<Outputs, Broken> {
    let length = u64::from(head.json).saturating_add(head.binary);
    if length.saturating_sub(ALIGNMENT as u64) > max {
        return Err(Broken::wrong(format!(
            "a response of {length} bytes, more than {max}"
        )));
    }
    let body = Bytes::from(connection.bytes(length, go_on)?);
    // Only the tensors are limited here; the length of the frame bounds all other fields.
    let limits = RequestLimits::default().with(|limits| {
        limits.tensors = usize::MAX;
        limits.rank = usize::MAX;
        limits.tensor_bytes = usize::try_from(max).unwrap_or(usize::MAX);
    });
    let response = rest::decode_response(&body, Some(head.json as usize), &limits)
        .map_err(|error| Broken::wrong(format!("a malformed answer: {}", error.message())))?;
    Ok(Outputs::new(response.outputs))
}

impl Process {
    fn has_ended(&self) -> bool {
        !matches!(self.child.lock().try_wait(), Ok(None))
    }

    fn end(&self, broken: Broken) -> Death {
        // An exiting process closes its socket shortly before its exit status is available.
        if matches!(broken, Broken::Ended) {
            let start = Instant::now();
            while !self.has_ended() && start.elapsed() < Self::LAST_BREATH {
                thread::sleep(Duration::from_millis(1));
            }
        }
        let ended = self.child.lock().try_wait().ok().flatten();
        self.log.wait_for_the_last(if ended.is_some() {
            Self::LAST_BREATH
        } else {
            Duration::ZERO
        });
        let death = Death {
            broken,
            status: ended,
            hint: self.log.hint(),
            memory_limit: self.memory_limit,
        };
        self.kill();
        death
    }

    fn kill(&self) {
        let mut child = self.child.lock();
        // The process may have exited already, but must still be reaped.
        let _ = child.kill();
        let _ = child.wait();
    }

    const LAST_BREATH: Duration = Duration::from_millis(500);
}

impl Drop for Process {
    fn drop(&mut self) {
        let farewell = *self.farewell.lock();
        while let Some(farewell) = farewell
            && Instant::now() < farewell
            && !self.has_ended()
        {
            thread::sleep(Duration::from_millis(2));
        }
        if farewell.is_some() && self.has_ended() {
            self.log.wait_for_the_last(Self::LAST_BREATH);
        }
        self.kill();
    }
}
