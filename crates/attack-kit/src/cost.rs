//! Measures the cost of a request: CPU time and context switches of the server, and client latency, compared
//! with bare echo servers as the baseline.
//!
//! Servers are pinned to the first CPU and this client to the second (with `taskset`, if available), so each
//! server uses one CPU, on any machine. The client is single-threaded: with many connections it is often the
//! bottleneck, and latencies are those of client and server together. CPU time covers all threads of the
//! server, as accounted by the system. The measurements of all servers are interleaved, in rounds; each row
//! shows the round with the least CPU time.

use std::{
    any::Any,
    fmt, fs,
    io::{BufRead, BufReader},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use attack_kit::{
    protobuf::{self, request},
    run as block_on,
};
use bytes::{BufMut, Bytes, BytesMut};
use rustix::process::{Pid, Signal};
use rustls::ClientConfig;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::spawn_local,
};

use crate::{
    callers::{Destination, Pace, call_grpc, call_http, idle, with_token},
    variants::{self, Variant},
};

#[derive(clap::Args)]
pub(crate) struct Options {
    /// A server to measure; may be given several times, for example to compare with an older build
    #[arg(long, value_name = "PROGRAM", required = true)]
    server: Vec<PathBuf>,
    /// A running server, given by its HTTP and gRPC addresses and its process id:
    /// 127.0.0.1:8000,127.0.0.1:8001,77. It needs the same models, and the caller pins it
    #[arg(long, value_name = "HTTP,GRPC,PID")]
    against: Vec<String>,
    /// A program that echoes HTTP bodies, and prints its address
    #[arg(long, value_name = "PROGRAM")]
    http_floor: Option<PathBuf>,
    /// A program that echoes gRPC tensors, and prints its address
    #[arg(long, value_name = "PROGRAM")]
    grpc_floor: Option<PathBuf>,
    /// A build of the server with the feature `count-allocations`, from which only the allocations are shown
    #[arg(long, value_name = "PROGRAM")]
    counting: Option<PathBuf>,
    /// An ONNX model with an input X of FP32[-1, 64], such as the server's example network
    #[arg(long, value_name = "FILE")]
    network: Option<PathBuf>,
    /// Also measure each server with TLS, with identities, with traces and so on, one option at a time
    #[arg(long)]
    with_options: bool,
    /// Duration of each measurement in seconds
    #[arg(long, default_value_t = 1.5)]
    seconds: f64,
    /// Number of rounds, in each of which every server is measured once
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Measure only rows whose names contain this
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
}

pub(crate) fn run(options: &Options) -> Result<bool> {
    if !pin(std::process::id(), 1) {
        println!("there is no taskset: nothing is pinned");
    }
    let repository = tempfile::tempdir()?;
    write_models(repository.path(), options.network.as_deref())?;
    let needed = tempfile::tempdir()?;
    let servers = servers(options, repository.path(), needed.path())?;
    let mut floors = [None, None];
    for (floor, program) in floors.iter_mut().zip([&options.http_floor, &options.grpc_floor]) {
        if let Some(program) = program {
            *floor = Some(MeasuredServer::floor(program)?);
        }
    }
    let counting = match &options.counting {
        Some(program) => Some(MeasuredServer::start(program, repository.path(), None)?),
        None => None,
    };
    let last = if options.with_options {
        "to the first"
    } else {
        "to floor"
    };
    let title = ["cpu us", "switches", "p50 us", "p99 us", "requests/s", last];
    println!("{:<44}{}", "", title.map(|title| format!("{title:>12}")).concat());
    for work in all_work(options.network.is_some()) {
        let wanted = options.only.as_deref().unwrap_or_default();
        if !work.name.contains(wanted) {
            continue;
        }
        for load in work.loads {
            println!("{}, {load}", work.name);
            let floor = floors[usize::from(work.is_grpc)].as_ref();
            let all: Vec<&MeasuredServer> = servers.iter().chain(floor).collect();
            let best = best_costs(options, &all, &work, *load)?;
            let of = |cost: Option<&Option<Cost>>| Some(cost?.as_ref()?.cpu);
            let floor = match options.with_options {
                true => of(best.first()),
                false => floor.and_then(|_| of(best.last())),
            };
            for (server, cost) in all.iter().zip(best.iter().flatten()) {
                let ratio = floor.map_or(String::new(), |floor| format!("{:.2}", cost.cpu / floor));
                println!(
                    "  {:<42}{:>12.1}{:>12.2}{:>12.0}{:>12.0}{:>12.0}{ratio:>12}",
                    server.name, cost.cpu, cost.switches, cost.p50, cost.p99, cost.rate
                );
            }
            if let Some(counting) = &counting {
                let (count, bytes) = counting.allocations(&work, *load, options.seconds)?;
                println!("  allocations of a request: {count:.1}, of {bytes:.0} bytes together");
            }
        }
    }
    Ok(true)
}

/// Starts or connects to the servers to compare. `needed` is a directory for the files of option variants.
fn servers(options: &Options, repository: &Path, needed: &Path) -> Result<Vec<MeasuredServer>> {
    let mut servers = Vec::new();
    for program in &options.server {
        if !options.with_options {
            servers.push(MeasuredServer::start(program, repository, None)?);
            continue;
        }
        for variant in variants::all(needed)? {
            servers.push(MeasuredServer::start(program, repository, Some(variant))?);
        }
    }
    for running in &options.against {
        servers.push(MeasuredServer::running(running)?);
    }
    Ok(servers)
}

/// Measures the servers in turn for several rounds, and returns the lowest cost of each.
fn best_costs(
    options: &Options,
    servers: &[&MeasuredServer],
    work: &Work,
    load: Load,
) -> Result<Vec<Option<Cost>>> {
    let mut best: Vec<Option<Cost>> = servers.iter().map(|_| None).collect();
    for round in 0..options.rounds {
        for turn in 0..servers.len() {
            let index = (turn + round) % servers.len();
            let cost = servers[index].measure(work, load, options.seconds)?;
            let best = &mut best[index];
            if best.as_ref().is_none_or(|best| cost.cpu < best.cpu) {
                *best = Some(cost);
            }
        }
    }
    Ok(best)
}

/// A way to send requests.
#[derive(Clone, Copy)]
enum Load {
    /// A closed loop with this number of connections.
    Callers(usize),
    /// A closed loop with this number of connections, and this number of idle connections in addition.
    BesideIdle(usize, usize),
    /// An open loop over this number of connections, at 70 % of the closed-loop rate.
    Paced(usize),
}

/// The load of a [paced](Load::Paced) measurement, as a fraction of the closed-loop rate.
const SHARE: f64 = 0.7;

/// How long a server has to exit by itself.
const EXIT_TIME: Duration = Duration::from_secs(10);

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Callers(callers) => write!(f, "{callers} callers"),
            Self::BesideIdle(callers, idle) => write!(f, "{callers} callers next to {idle} idle connections"),
            Self::Paced(callers) => write!(
                f,
                "{callers} connections at {:.0} % of what they can have",
                SHARE * 100.0
            ),
        }
    }
}

/// A kind of request, and its load.
struct Work {
    name: String,
    is_grpc: bool,
    /// The bytes of an HTTP/1 request, or a framed gRPC message.
    request: Bytes,
    loads: &'static [Load],
}

const FEW_AND_MANY: &[Load] = &[Load::Callers(1), Load::Callers(32)];
const EIGHT: &[Load] = &[Load::Callers(8)];
const ONE: &[Load] = &[Load::Callers(1)];
/// Loads for the smallest tensors, where connection overhead dominates.
const ALL: &[Load] = &[
    Load::Callers(1),
    Load::Callers(32),
    Load::Callers(8),
    Load::BesideIdle(8, 256),
    Load::Paced(32),
];

/// Identity models, each with the number of floats in a row and the loads to measure.
const IDENTITIES: [(&str, &str, usize, &[Load]); 3] = [
    ("identity_16", "identity 1x16", 16, ALL),
    ("identity_16k", "identity 64 KiB", 16 << 10, EIGHT),
    ("identity_4m", "identity 16 MiB", 4 << 20, ONE),
];

/// Maximum width of rows that are sent as JSON.
const MAX_JSON: usize = 64 << 10;

fn all_work(has_network: bool) -> Vec<Work> {
    let mut all = vec![Work {
        name: "GET /v2/health/live".to_owned(),
        is_grpc: false,
        request: Bytes::from_static(b"GET /v2/health/live HTTP/1.1\r\nHost: bench\r\n\r\n"),
        loads: FEW_AND_MANY,
    }];
    let network = has_network.then_some(("network", "network 1x64", 64, FEW_AND_MANY));
    for (model, label, width, loads) in IDENTITIES.into_iter().chain(network) {
        let input = if model == "network" { "X" } else { "x" };
        let row: Vec<f32> = (0..width).map(|index| (index % 1000) as f32 * 0.37).collect();
        let mut add = |form: &str, is_grpc, request| {
            all.push(Work {
                name: format!("{label}, {form}"),
                is_grpc,
                request,
                loads,
            });
        };
        if width <= MAX_JSON {
            add("JSON", false, json(model, input, &row));
        }
        add("binary", false, binary(model, input, &row));
        add("gRPC", true, grpc(model, input, &row));
    }
    all
}

fn json(model: &str, input: &str, row: &[f32]) -> Bytes {
    let numbers: Vec<String> = row.iter().map(ToString::to_string).collect();
    let body = format!(
        r#"{{"inputs": [{{"name": "{input}", "datatype": "FP32", "shape": [1, {}], "data": [{}]}}]}}"#,
        row.len(),
        numbers.join(", ")
    );
    post(model, body.as_bytes(), "")
}

fn binary(model: &str, input: &str, row: &[f32]) -> Bytes {
    let header = format!(
        r#"{{"inputs": [{{"name": "{input}", "datatype": "FP32", "shape": [1, {}], "parameters": {{"binary_data_size": {}}}}}], "parameters": {{"binary_data_output": true}}}}"#,
        row.len(),
        row.len() * 4
    );
    let length = format!("Inference-Header-Content-Length: {}\r\n", header.len());
    post(model, &[header.as_bytes(), &raw(row)].concat(), &length)
}

fn post(model: &str, body: &[u8], header: &str) -> Bytes {
    let length = body.len();
    let head = format!(
        "POST /v2/models/{model}/infer HTTP/1.1\r\nHost: bench\r\nContent-Length: {length}\r\n{header}\r\n"
    );
    [head.as_bytes(), body].concat().into()
}

fn grpc(model: &str, input: &str, row: &[f32]) -> Bytes {
    let mut tensor = Vec::new();
    protobuf::field(&mut tensor, request::NAME, input.as_bytes());
    protobuf::field(&mut tensor, request::DATATYPE, b"FP32");
    protobuf::number(&mut tensor, request::SHAPE, 1);
    protobuf::number(&mut tensor, request::SHAPE, row.len() as u64);
    let mut message = Vec::new();
    protobuf::field(&mut message, request::MODEL, model.as_bytes());
    protobuf::field(&mut message, request::INPUTS, &tensor);
    protobuf::field(&mut message, request::RAW, &raw(row));
    let mut framed = BytesMut::with_capacity(5 + message.len());
    framed.put_u8(0);
    framed.put_u32(message.len() as u32);
    framed.put_slice(&message);
    framed.freeze()
}

fn raw(row: &[f32]) -> Vec<u8> {
    row.iter().flat_map(|number| number.to_le_bytes()).collect()
}

fn write_models(repository: &Path, network: Option<&Path>) -> Result<()> {
    let place = |model: &str| -> Result<PathBuf> {
        let version = repository.join(model).join("1");
        fs::create_dir_all(&version)?;
        Ok(version.join("model.onnx"))
    };
    for (model, _, width, _) in IDENTITIES {
        fs::write(place(model)?, identity(width as u64))?;
    }
    if let Some(network) = network {
        fs::copy(network, place("network")?).with_context(|| network.display().to_string())?;
    }
    Ok(())
}

/// Returns an ONNX model with one `Identity` node, for rows of `width` floats.
fn identity(width: u64) -> Vec<u8> {
    let message = |fields: &[(u32, &[u8])]| {
        let mut message = Vec::new();
        fields
            .iter()
            .for_each(|(id, value)| protobuf::field(&mut message, *id, value));
        message
    };
    let count = |id, value| {
        let mut message = Vec::new();
        protobuf::number(&mut message, id, value);
        message
    };
    let shape = message(&[(1, &message(&[(2, b"rows")])), (1, &count(1, width))]);
    let tensor = [count(1, 1), message(&[(2, &shape)])].concat();
    let value = |name: &[u8]| message(&[(1, name), (2, &message(&[(1, &tensor)]))]);
    let node = message(&[(1, b"x"), (2, b"y"), (4, b"Identity")]);
    let graph = message(&[(1, &node), (2, b"g"), (11, &value(b"x")), (12, &value(b"y"))]);
    [count(1, 8), message(&[(7, &graph), (8, &count(2, 13))])].concat()
}

/// Pins a process, with all its threads, to a CPU.
fn pin(process: u32, processor: usize) -> bool {
    let mut taskset = Command::new("taskset");
    taskset.args(["-a", "-c", "-p", &processor.to_string(), &process.to_string()]);
    let status = taskset.stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

/// Returns a command that runs on the first CPU.
fn pinned(program: &Path) -> Command {
    let mut asked = Command::new("taskset");
    asked.arg("--version").stdout(Stdio::null());
    match asked.status() {
        Ok(_) => {
            let mut command = Command::new("taskset");
            command.args(["-c", "0"]).arg(program);
            command
        }
        Err(_) => Command::new(program),
    }
}

/// A server or baseline to measure.
struct MeasuredServer {
    name: String,
    /// The process; `None` if the server was already running.
    process: Option<Child>,
    pid: u32,
    http: SocketAddr,
    grpc: SocketAddr,
    tls: Option<Arc<ClientConfig>>,
    has_token: bool,
}

impl MeasuredServer {
    fn start(program: &Path, repository: &Path, variant: Option<Variant>) -> Result<Self> {
        let mut command = pinned(program);
        command
            .arg("--model-repository")
            .arg(repository)
            .args(["--http-address", "127.0.0.1:0", "--grpc-address", "127.0.0.1:0"])
            .args(["--log", "off"])
            .env_remove("ORT_DYLIB_PATH");
        let words = ["HTTP", "gRPC", " after "];
        let Some(variant) = variant else {
            return Self::spawn(command, program, &words);
        };
        command.args(&variant.options);
        let mut measured = Self::spawn(command, program, &words)?;
        measured.name = variant.name.to_owned();
        (measured.tls, measured.has_token) = (variant.tls, variant.has_token);
        Ok(measured)
    }

    fn floor(program: &Path) -> Result<Self> {
        Self::spawn(pinned(program), program, &["listening on"])
    }

    /// Starts a program and waits until its output contains each of `words`, on separate lines in this order.
    /// Addresses at the ends of these lines become the server's addresses.
    fn spawn(mut command: Command, program: &Path, words: &[&str]) -> Result<Self> {
        let name = program.display().to_string();
        let mut process = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("starting {name}"))?;
        let mut lines = BufReader::new(process.stdout.take().context("it has no output")?).lines();
        let mut addresses = Vec::new();
        for word in words {
            let line = lines.find(|line| line.as_ref().is_ok_and(|line| line.contains(word)));
            let line = line.with_context(|| format!("{name} ended while it started"))??;
            let address = line.trim().rsplit(' ').next().unwrap_or_default();
            let address = address.rsplit("://").next().unwrap_or_default();
            addresses.extend(address.parse::<SocketAddr>());
        }
        // Drains the later output, so that writing it does not block or fail.
        std::thread::spawn(move || lines.count());
        let (Some(http), Some(grpc)) = (addresses.first(), addresses.last()) else {
            bail!("{name} does not say where it listens");
        };
        Ok(Self {
            name,
            pid: process.id(),
            http: *http,
            grpc: *grpc,
            process: Some(process),
            tls: None,
            has_token: false,
        })
    }

    fn running(text: &str) -> Result<Self> {
        let parts: Vec<&str> = text.split(',').collect();
        let [http, grpc, pid] = parts[..] else {
            bail!("--against {text}: expected HTTP,GRPC,PID");
        };
        Ok(Self {
            name: text.to_owned(),
            process: None,
            pid: pid.parse().context("the process id")?,
            http: http.parse().context("the address for HTTP")?,
            grpc: grpc.parse().context("the address for gRPC")?,
            tls: None,
            has_token: false,
        })
    }

    /// Sends requests for some time and returns their cost.
    fn measure(&self, work: &Work, load: Load, seconds: f64) -> Result<Cost> {
        block_on(async {
            let (callers, idle) = match load {
                Load::Callers(callers) | Load::Paced(callers) => (callers, 0),
                Load::BesideIdle(callers, idle) => (callers, idle),
            };
            let _idle = self.idle(work, idle).await?;
            // The warm-up is long enough to load and warm up models.
            let warm_up = seconds / 5.0;
            let answered = self.drive(work, callers, None, warm_up).await?.len();
            let rate = match load {
                Load::Paced(_) => Some(SHARE * answered as f64 / warm_up),
                Load::Callers(_) | Load::BesideIdle(..) => None,
            };
            let before = self.used()?;
            let start = Instant::now();
            let mut times = self.drive(work, callers, rate, seconds).await?;
            let elapsed = start.elapsed();
            let after = self.used()?;
            ensure!(!times.is_empty(), "no request was answered in {seconds} s");
            times.sort();
            let count = times.len() as f64;
            let micros = |time: Duration| time.as_secs_f64() * 1e6;
            Ok(Cost {
                cpu: micros(after.0.saturating_sub(before.0)) / count,
                switches: after.1.saturating_sub(before.1) as f64 / count,
                p50: micros(times[times.len() / 2]),
                p99: micros(times[times.len() * 99 / 100]),
                rate: count / elapsed.as_secs_f64(),
            })
        })?
        .with_context(|| format!("{}: {}", self.name, work.name))
    }

    /// Returns allocations per request and their total size, from a server that counts them.
    fn allocations(&self, work: &Work, load: Load, seconds: f64) -> Result<(f64, f64)> {
        let (Load::Callers(callers) | Load::BesideIdle(callers, _) | Load::Paced(callers)) = load;
        block_on(async {
            self.drive(work, callers, None, seconds / 5.0).await?;
            let before = self.counted().await?;
            let requests = self.drive(work, callers, None, seconds / 5.0).await?.len() as f64;
            let after = self.counted().await?;
            Ok(((after.0 - before.0) / requests, (after.1 - before.1) / requests))
        })?
    }

    async fn counted(&self) -> Result<(f64, f64)> {
        let request = b"GET /metrics HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n";
        let mut stream = TcpStream::connect(self.http).await?;
        stream.write_all(request).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        let of = |name: &str| {
            let line = answer
                .lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            let counted = line.and_then(|value| value.trim().parse().ok());
            counted.with_context(|| {
                format!(
                    "{} does not show {name}: is it built with count-allocations?",
                    self.name
                )
            })
        };
        Ok((of("oip_allocations_total")?, of("oip_allocated_bytes_total")?))
    }

    fn to(&self, work: &Work) -> Destination {
        Destination {
            address: if work.is_grpc { self.grpc } else { self.http },
            tls: self.tls.clone(),
            protocol: if work.is_grpc { "h2" } else { "http/1.1" },
        }
    }

    /// Opens idle connections, which stay open until dropped.
    async fn idle(&self, work: &Work, count: usize) -> Result<Vec<Box<dyn Any>>> {
        let mut all = Vec::new();
        for _ in 0..count {
            all.push(idle(self.to(work), work.is_grpc).await?);
        }
        Ok(all)
    }

    /// Sends requests at a fixed rate, or in a closed loop.
    async fn drive(
        &self,
        work: &Work,
        callers: usize,
        rate: Option<f64>,
        seconds: f64,
    ) -> Result<Vec<Duration>> {
        let start = Instant::now();
        let end = start + Duration::from_secs_f64(seconds);
        let mut running = Vec::new();
        for caller in 0..callers {
            let mut request = work.request.clone();
            if self.has_token && !work.is_grpc {
                request = with_token(&request)?;
            }
            let to = self.to(work);
            let interval = rate.map(|rate| Duration::from_secs_f64(callers as f64 / rate.max(1.0)));
            let pace = Pace {
                // The clients' schedules are spread evenly over the interval.
                next: start
                    + interval
                        .unwrap_or_default()
                        .mul_f64(caller as f64 / callers as f64),
                interval,
                end,
            };
            running.push(match work.is_grpc {
                true => spawn_local(call_grpc(to, request, self.has_token, pace)),
                false => spawn_local(call_http(to, request, pace)),
            });
        }
        let mut times = Vec::new();
        for caller in running {
            times.extend(caller.await??);
        }
        Ok(times)
    }

    /// Returns CPU time and context switches of all threads so far.
    fn used(&self) -> Result<(Duration, u64)> {
        let mut used = (Duration::ZERO, 0);
        for thread in fs::read_dir(format!("/proc/{}/task", self.pid)).context("it has ended")? {
            let folder = thread?.path();
            // A thread may end while its files are read.
            let read = |file: &str| fs::read_to_string(folder.join(file)).unwrap_or_default();
            let nanos = read("schedstat")
                .split(' ')
                .next()
                .and_then(|text| text.parse().ok());
            used.0 += Duration::from_nanos(nanos.unwrap_or(0));
            let status = read("status");
            let lines = status.lines().filter(|line| line.contains("ctxt_switches"));
            let counts = lines.filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
            used.1 += counts.sum::<u64>();
        }
        Ok(used)
    }
}

impl Drop for MeasuredServer {
    fn drop(&mut self) {
        let Some(process) = &mut self.process else {
            return;
        };
        // Instrumented programs write their counts when they exit, so they are asked to exit first.
        let _ = rustix::process::kill_process(Pid::from_child(process), Signal::TERM);
        let asked = Instant::now();
        while asked.elapsed() < EXIT_TIME && matches!(process.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = process.kill();
        let _ = process.wait();
    }
}

/// The cost of a request; times in microseconds.
struct Cost {
    cpu: f64,
    switches: f64,
    p50: f64,
    p99: f64,
    rate: f64,
}
