//! The running server: starts everything that the configuration enables, serves until a signal, and shuts
//! down in order.

use std::{
    env,
    path::Path,
    pin::pin,
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant},
};

use axum::Router;
use model_repository::Repositories;
use oip_auth::{Gate, Guard};
use oip_capture::{CapturingService, Recorder};
use oip_engine::Engine;
use oip_listen::{
    Address, ConnectionCap, ConnectionLimits, Lanes, Peer, Protocol, Shutdown, Tls, serve_each,
};
use oip_service::{ByteBudget, ExtendedService, InferenceService, RequestIds, route::Api};
use oip_shm::Regions;
use oip_types::ModelState;
use tokio::{
    runtime::{Builder, Handle, Runtime},
    task::{JoinHandle, spawn_blocking},
    time::{MissedTickBehavior, interval, sleep, timeout},
};
use tower::{Layer, util::Either};

#[cfg(feature = "otlp")]
use crate::pushed::{self, MetricsPush};
use crate::{
    access_options,
    addresses::AddressProtocol,
    bound::{ADMIN_CONNECTIONS, BoundSocket, bind},
    capture_options,
    config::Config,
    failure::Failure,
    in_place::transport_threads,
    lasting_calls::lasting,
    metrics::{ConnectionCaps, Counts, Metrics},
    notify,
    one_port::OnePort,
    opening::{self, Sources, StartupOutcome},
    options::LogFormat,
    platforms::Aliases,
    reach,
    reload::Reloads,
    report,
    signals::{INTERRUPTED, SignalAction, Signals},
    telemetry::{self, Log, LogEnd},
    tls_options,
    traffic::{AccessLog, Load, ObservedService, Totals, Traces, Traffic, Transport},
};

/// Interval at which certificate and identity files are checked for changes.
const FILES_PERIOD: Duration = Duration::from_secs(5);

/// Serves until a signal, and returns the exit code.
pub(crate) fn run(config: Config) -> Result<ExitCode, Failure> {
    let start = Instant::now();
    let log = telemetry::start(&config.log, config.log_format, config.log_tail.clone())?;
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    let is_json = matches!(config.log_format, LogFormat::Json);
    let mut outcome = serve_until_signal(config, &log, start);
    if is_json && let Err(failure) = &outcome {
        // Programs that start the server may read only the log.
        tracing::error!(reason = failure.message, "the server cannot run");
        outcome = Ok(ExitCode::from(failure.exit_code));
    }
    log.end.write_out();
    outcome
}

fn serve_until_signal(config: Config, log: &Log, start: Instant) -> Result<ExitCode, Failure> {
    // One thread accepts connections and responds to health checks.
    let runtime = threads(Builder::new_multi_thread().thread_name("front").worker_threads(1))?;
    // Models with short runs also run on the threads of these two runtimes.
    let work = threads(lane().thread_name("io"))?;
    let busy = threads(lane().thread_name("busy-io").on_thread_start(give_way))?;
    let served = serve_on([&runtime, &work, &busy], config, log, start);
    // A hanging thread, or an idle spare one, must not keep the process alive, even after a startup failure.
    for runtime in [runtime, work, busy] {
        runtime.shutdown_background();
    }
    Ok(match served? {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

/// Serves until a signal. Returns true if no connection or model had to be cut.
fn serve_on(
    [runtime, work, busy]: [&Runtime; 3],
    mut config: Config,
    log: &Log,
    start: Instant,
) -> Result<bool, Failure> {
    // Set up before anything slow, because a process with id 1 receives only the signals that it handles.
    let mut signals = {
        let _context = runtime.enter();
        Signals::catch().map_err(|error| {
            Failure::run(format!(
                "the system does not let the server catch signals: {error}"
            ))
        })?
    };
    let lanes = Lanes::new(work.handle().clone(), busy.handle().clone());
    runtime.spawn(lanes.clone().keep_awake());
    config.connections.lanes = Some(lanes);
    let tls = tls_options::read(config.tls.take())?;
    let mut bound = Vec::new();
    let admin = config.access.admin.iter().map(|place| (place, true));
    for (place, is_admin) in config
        .addresses
        .places
        .iter()
        .map(|place| (place, false))
        .chain(admin)
    {
        // gRPC connections are accepted on the lane on which they stay.
        let at = match place.speaks {
            AddressProtocol::Grpc => work.handle(),
            AddressProtocol::Http | AddressProtocol::Both => runtime.handle(),
        };
        let _context = at.enter();
        bound.push(bind(place, is_admin, config.addresses.unix_socket_mode)?);
    }
    let reading = opening::read(config, &bound, tls.as_ref(), work.handle(), &mut signals);
    let Sources {
        config,
        repository,
        guard,
    } = match runtime.block_on(reading)? {
        StartupOutcome::Read(sources) => *sources,
        StartupOutcome::Ended { is_clean } => return Ok(is_clean),
    };
    let doors = Listeners { bound, tls, guard };

    let (shutdown_delay, drain_timeout) = (config.shutdown_delay, config.drain_timeout);
    let app = {
        let _context = runtime.enter();
        App::start(config, doors, repository, signals, log, work.handle(), start)?
    };
    Ok(runtime.block_on(app.run_until_signal(shutdown_delay, drain_timeout, &log.end)))
}

/// Creates the runtime of a lane for connections with requests.
fn lane() -> Builder {
    let mut builder = Builder::new_multi_thread();
    builder
        .worker_threads(transport_threads())
        .thread_stack_size(MODEL_STACK);
    builder
}

/// Stack size of threads that run models, as for the engine's threads. Only pages that are touched take
/// memory.
const MODEL_STACK: usize = 16 << 20;

fn threads(builder: &mut Builder) -> Result<Runtime, Failure> {
    let runtime = builder.enable_all().build();
    runtime.map_err(|error| Failure::run(format!("the system gives no threads: {error}")))
}

/// Lowers the priority of the current thread (on Linux; elsewhere of the process).
fn give_way() {
    #[cfg(target_os = "linux")]
    let _ = rustix::process::nice(5);
}

/// The listening sockets and their TLS settings.
struct Listeners {
    bound: Vec<BoundSocket>,
    tls: Option<Tls>,
    guard: Guard,
}

/// The running server, with everything that it stops on a signal.
struct App {
    engine: Arc<Engine>,
    shutdown: Shutdown,
    transports: Vec<JoinHandle<usize>>,
    signals: Signals,
    reloads: Reloads,
    access_log: Option<AccessLog>,
    recorder: Option<Recorder>,
    #[cfg_attr(not(feature = "otlp"), expect(dead_code, reason = "there are none"))]
    traces: Option<Arc<Traces>>,
    #[cfg(feature = "otlp")]
    pushed: Option<MetricsPush>,
}

impl App {
    /// Starts the transports, which respond immediately, and loads the models in the background.
    fn start(
        config: Config,
        doors: Listeners,
        repository: Repositories,
        signals: Signals,
        log: &Log,
        work: &Handle,
        start: Instant,
    ) -> Result<Self, Failure> {
        let Listeners { bound, tls, guard } = doors;
        let access_log =
            AccessLog::start(config.access_log, config.access_log_file.clone()).map_err(|error| {
                let file = config
                    .access_log_file
                    .as_deref()
                    .unwrap_or(Path::new("standard error"));
                Failure::run(format!(
                    "the access log cannot be written to {}: {error} (--access-log-file takes another file)",
                    file.display()
                ))
            })?;
        let recorder = config.capture.map(capture_options::start).transpose()?;
        let answering = |other: AddressProtocol| -> Vec<Address> {
            let bound = bound
                .iter()
                .filter(|bound| bound.speaks != other && !bound.is_admin);
            bound.map(|bound| bound.address.clone()).collect()
        };
        let (http, grpc) = (answering(AddressProtocol::Grpc), answering(AddressProtocol::Http));
        let is_text = matches!(config.log_format, LogFormat::Text);
        let addresses = reach::Addresses {
            http: http.clone(),
            grpc: grpc.clone(),
            admin: bound
                .iter()
                .find(|bound| bound.is_admin)
                .map(|bound| bound.address.clone()),
            encryption: tls.as_ref().map(|tls| {
                let files = tls.files();
                reach::Encryption {
                    certificate: tls.certificate().unwrap_or_default(),
                    file: files.certificate.clone(),
                    knows_clients: files.client_ca.is_some(),
                }
            }),
            wants_token: !guard.is_open_to_all(Api::Inference),
            has_console: config.allow_console,
        };
        if is_text {
            report::listening(&addresses);
        }
        let first_of = |addresses: &[Address]| addresses.first().map(ToString::to_string);
        tracing::info!(
            http = first_of(&http),
            grpc = first_of(&grpc),
            variable = config.addresses.from_variable,
            "listening"
        );
        let mut reloads = Reloads::default();
        if let (Some(access_log), Some(file)) = (access_log.clone(), config.access_log_file) {
            reloads.add("access log", move || {
                let opened = access_log.reopen();
                opened
                    .map(|()| file.display().to_string())
                    .map_err(|error| error.to_string())
            });
        }
        if let Some(file) = config.log_file {
            let control = log.control.clone();
            reloads.add("log", move || telemetry::reload(&control, &file));
        }
        if let Some(tls) = tls.clone() {
            reloads.add("certificates", move || match tls.reload_on_request() {
                Ok(true) => Ok("new connections are shown the changed certificate".to_owned()),
                Ok(false) => Ok("nothing has changed".to_owned()),
                Err(error) => Err(error.to_string()),
            });
        }
        if let Some(path) = guard.path().map(|path| path.display().to_string()) {
            let guard = guard.clone();
            reloads.add("identities", move || match guard.reload_on_request() {
                Ok(true) => Ok(format!("{path} is in use")),
                Ok(false) => Ok("nothing has changed".to_owned()),
                Err(error) => Err(error.to_string()),
            });
        }

        let passed_over = repository.passed_over();
        let only_model = repository.only_model();
        let engine = Arc::new(Engine::start(repository, config.engine));
        let mut service = ExtendedService::new(engine.clone()).with_logging(log.control.clone());
        if let Some(shared_memory) = config.shared_memory {
            service = service.with_shared_memory(Arc::new(Regions::new(shared_memory)));
        }
        let mut service: Arc<dyn InferenceService> = Arc::new(service);
        if let Some(recorder) = &recorder {
            service = Arc::new(CapturingService::new(service, recorder.clone()));
        }
        #[cfg(feature = "otlp")]
        let traces = config
            .traces
            .map(|traces| traces.start().map(Arc::new))
            .transpose()?;
        #[cfg(not(feature = "otlp"))]
        let traces: Option<Arc<Traces>> = None;
        let shutdown = Shutdown::new();
        let mut beside = Router::new();
        let totals = Arc::new(Totals::default());
        let admin_connections = ConnectionCap::new(ADMIN_CONNECTIONS);
        #[cfg(feature = "otlp")]
        let counts = config.allow_metrics || config.pushed_metrics.is_some();
        #[cfg(not(feature = "otlp"))]
        let counts = config.allow_metrics;
        let metrics = counts.then(|| {
            Arc::new(Metrics::new(
                engine.clone(),
                config.http.budget.clone(),
                config.http.cpu.clone(),
                Counts {
                    dropped: log.dropped.clone(),
                    totals: totals.clone(),
                    crowds: ConnectionCaps {
                        connections: vec![config.connections.connections.clone(), admin_connections.clone()],
                        streams: vec![config.connections.streams.clone()],
                    },
                    access_log: access_log.clone(),
                    recorder: recorder.clone(),
                    guard: guard.clone(),
                    traces: traces.clone(),
                },
            ))
        });
        #[cfg(feature = "otlp")]
        let pushed = match (&metrics, config.pushed_metrics) {
            (Some(metrics), Some(config)) => Some(pushed::start(metrics, config)?),
            _ => None,
        };
        if let Some(metrics) = metrics.filter(|_| config.allow_metrics) {
            beside = beside.merge(metrics.router());
        }
        let load = {
            let (engine, budget) = (engine.clone(), config.http.budget.clone());
            let totals = counts.then(|| totals.clone());
            move || Load {
                memory: budget.used() as f64 / budget.limit().max(1) as f64,
                running: totals
                    .as_ref()
                    .map(|totals| totals.running(Transport::Http) + totals.running(Transport::Grpc)),
                waiting: engine.waiting(),
            }
        };
        let traffic = Arc::new(Traffic {
            totals: counts.then_some(totals),
            log: access_log.clone(),
            traces: traces.clone(),
            request_ids: RequestIds::new(),
            aliases: Aliases::new(only_model.as_deref(), &|name| env::var(name).ok()),
            load: Box::new(load),
        });
        if config.allow_console {
            beside = beside.merge(oip_console::router(config.log_tail.clone()));
        }
        tokio::spawn(free_unused_buffers(config.http.budget.clone()));
        let admin_config = config
            .http
            .clone()
            .with(|http| http.allowed_hosts = config.admin_hosts);
        let admin_rest = oip_http::service_with(service.clone(), admin_config, beside.clone());
        let rest = oip_http::service_with(service.clone(), config.http, beside);
        let calls = oip_grpc::service(service, config.grpc);
        tokio::spawn({
            let (calls, shutdown) = (calls.clone(), shutdown.clone());
            async move {
                shutdown.draining().await;
                calls.drain_streams();
            }
        });
        let limits = config.connections;
        let conversing = limits.clone().with(|limits| {
            limits.conversations = &[oip_grpc::MODEL_STREAM_INFER];
            limits.lasting = Some(lasting());
        });
        work.spawn(guard.clone().watch(FILES_PERIOD));
        if let Some(tls) = &tls {
            work.spawn(tls.clone().watch(FILES_PERIOD));
        }
        let access = config.access;
        let serving = bound.into_iter().map(|bound| {
            let BoundSocket {
                listener,
                speaks,
                is_admin,
                is_local,
                ..
            } = bound;
            let (tls, traffic, shutdown) = (tls.clone(), traffic.clone(), shutdown.clone());
            let rest = {
                let door = access.door(false, is_admin, is_local);
                let rest = if is_admin { &admin_rest } else { &rest };
                let gate = Gate::new(rest.clone(), guard.clone(), door, access_options::HTTP);
                match &access.cors {
                    // The CORS layer is outside the gate, because browsers send preflight requests without a
                    // token.
                    Some(cors) => Either::Left(cors.layer(gate)),
                    None => Either::Right(gate),
                }
            };
            let of_address = |limits: &ConnectionLimits| {
                limits.clone().with(|limits| {
                    if is_admin {
                        limits.connections = admin_connections.clone();
                    }
                })
            };
            let door = access.door(true, is_admin, is_local);
            let calls = Gate::new(calls.clone(), guard.clone(), door, access_options::GRPC);
            match speaks {
                AddressProtocol::Http => {
                    let make =
                        move |peer: &Peer| ObservedService::new(rest.clone(), traffic.clone(), speaks, peer);
                    let limits = of_address(&limits);
                    tokio::spawn(serve_each(listener, Protocol::Http1, tls, make, limits, shutdown))
                }
                AddressProtocol::Grpc => {
                    let make =
                        move |peer: &Peer| ObservedService::new(calls.clone(), traffic.clone(), speaks, peer);
                    let limits = of_address(&conversing);
                    work.spawn(serve_each(listener, Protocol::Http2, tls, make, limits, shutdown))
                }
                AddressProtocol::Both => {
                    let both = OnePort::new(rest, calls);
                    let make =
                        move |peer: &Peer| ObservedService::new(both.clone(), traffic.clone(), speaks, peer);
                    let limits = of_address(&conversing);
                    tokio::spawn(serve_each(
                        listener,
                        Protocol::Either,
                        tls,
                        make,
                        limits,
                        shutdown,
                    ))
                }
            }
        });
        let transports = serving.collect();

        let loading = engine.clone();
        spawn_blocking(move || {
            loading.wait_until_loaded();
            let elapsed = start.elapsed();
            let models = loading.models();
            match is_text {
                true => report::models(&models, &passed_over, &addresses, elapsed),
                false => report::log_passed_over(&models, &passed_over),
            }
            tracing::info!(milliseconds = elapsed.as_millis() as u64, "loaded all models");
            let ready = models.iter().filter(|model| model.state == ModelState::Ready);
            notify::tell(&format!(
                "READY=1\nSTATUS={} of {} model versions are ready",
                ready.count(),
                models.len()
            ));
        });
        Ok(Self {
            engine,
            shutdown,
            transports,
            signals,
            reloads,
            access_log,
            recorder,
            traces,
            #[cfg(feature = "otlp")]
            pushed,
        })
    }

    /// Serves until the first termination signal. Then reports not ready for the shutdown delay, and drains.
    /// Returns true if no connection or model had to be cut.
    async fn run_until_signal(
        mut self,
        shutdown_delay: Duration,
        drain_timeout: Duration,
        log_end: &LogEnd,
    ) -> bool {
        let signal = loop {
            match self.signals.next().await {
                SignalAction::End(signal) => break signal,
                SignalAction::Reload => self.reloads = self.reloads.run().await,
            }
        };
        notify::tell("STOPPING=1");
        self.engine.start_draining();
        let ending = async {
            if !shutdown_delay.is_zero() {
                let milliseconds = shutdown_delay.as_millis() as u64;
                tracing::info!(
                    signal,
                    milliseconds,
                    "leaving: not ready, requests are still taken"
                );
                self.shutdown.leave();
                sleep(shutdown_delay).await;
            }
            tracing::info!(signal, "draining");
            self.shutdown.drain();
            drain(self.engine, self.shutdown, self.transports, drain_timeout).await
        };
        let write_out = || {
            if let Some(access_log) = &self.access_log {
                access_log.flush(Duration::from_millis(500));
            }
            if let Some(recorder) = &self.recorder {
                recorder.finish(Duration::from_secs(1));
            }
            #[cfg(feature = "otlp")]
            if let Some(traces) = &self.traces {
                traces.exporter.finish(Duration::from_secs(1));
            }
            #[cfg(feature = "otlp")]
            if let Some(pushed) = &self.pushed {
                pushed.finish(Duration::from_secs(1));
            }
        };
        tokio::select! {
            is_clean = ending => {
                write_out();
                is_clean
            }
            signal = self.signals.next_end() => {
                tracing::warn!(signal, "ending at once");
                write_out();
                log_end.write_out();
                std::process::exit(INTERRUPTED);
            }
        }
    }
}

/// Returns memory that requests no longer need to the system.
async fn free_unused_buffers(budget: ByteBudget) {
    let mut ticks = interval(Duration::from_secs(5));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let budget = budget.clone();
        // Unmapping large amounts of memory takes milliseconds.
        if spawn_blocking(move || budget.trim()).await.is_err() {
            return;
        }
    }
}

/// Waits for the transports and then for the models to finish, and cuts off unfinished connections and models
/// at the deadline. Returns true if nothing was cut off.
async fn drain(
    engine: Arc<Engine>,
    shutdown: Shutdown,
    transports: Vec<JoinHandle<usize>>,
    drain_timeout: Duration,
) -> bool {
    let start = Instant::now();
    let finishing = async {
        let mut cut = 0;
        for transport in transports {
            cut += transport.await.unwrap_or(1);
        }
        cut
    };
    let mut finishing = pin!(finishing);
    let cut = match timeout(drain_timeout, &mut finishing).await {
        Ok(cut) => cut,
        Err(_) => {
            shutdown.cut();
            finishing.await
        }
    };
    let stopping = spawn_blocking(move || engine.stop(start + drain_timeout));
    let is_stopped = stopping.await.unwrap_or(false);
    let milliseconds = start.elapsed().as_millis() as u64;
    tracing::info!(
        milliseconds,
        connections_cut = cut,
        models_stopped = is_stopped,
        "ended"
    );
    cut == 0 && is_stopped
}
