use std::{
    net::SocketAddr,
    pin::pin,
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant},
};

use axum::Router;
use oip_engine::{Engine, Repository};
use oip_listen::{Lanes, Protocol, Shutdown, listen, serve};
use oip_service::{ByteBudget, Extended, InferenceService};
use oip_shm::Regions;
use tokio::{
    net::TcpListener,
    runtime::{Builder, Handle, Runtime},
    task::{JoinHandle, spawn_blocking},
    time::{MissedTickBehavior, interval, timeout},
};

use crate::{
    config::Config,
    failure::Failure,
    metrics::Metrics,
    model_source,
    options::LogFormat,
    report,
    signals::Signals,
    telemetry::{self, Log, LogEnd},
};

/// The code a second signal ends the process with.
const INTERRUPTED: i32 = 130;

/// Serves until a signal, and returns the code to end with.
pub(crate) fn run(config: Config) -> Result<ExitCode, Failure> {
    let start = Instant::now();
    let log = telemetry::start(&config.log, config.log_format, config.log_tail.clone())?;
    let outcome = serve_until_signal(config, &log, start);
    log.end.write_out();
    outcome
}

fn serve_until_signal(mut config: Config, log: &Log, start: Instant) -> Result<ExitCode, Failure> {
    let repository = model_source::open(&mut config)?;
    // One thread accepts connections and answers who only asks whether the server is well.
    let runtime = threads(Builder::new_multi_thread().thread_name("front").worker_threads(1))?;
    let work = threads(Builder::new_multi_thread().thread_name("io"))?;
    let busy = threads(
        Builder::new_multi_thread()
            .thread_name("busy-io")
            .on_thread_start(give_way),
    )?;
    config.connections.lanes = Some(Lanes::new(work.handle().clone(), busy.handle().clone()));
    let http = {
        let _context = runtime.enter();
        bind("HTTP", "--http-address", config.http_address)?
    };
    let grpc = {
        let _context = work.enter();
        bind("gRPC", "--grpc-address", config.grpc_address)?
    };

    let drain_timeout = config.drain_timeout;
    let app = {
        let _context = runtime.enter();
        App::start(config, repository, log, http, grpc, work.handle(), start)?
    };
    let is_clean = runtime.block_on(app.run_until_signal(drain_timeout, &log.end));
    // A thread that hangs must not keep the process.
    for runtime in [runtime, work, busy] {
        runtime.shutdown_background();
    }
    Ok(if is_clean {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn threads(builder: &mut Builder) -> Result<Runtime, Failure> {
    let runtime = builder.enable_all().build();
    runtime.map_err(|error| Failure::run(format!("the system gives no threads: {error}")))
}

/// Lets other threads go first when processors are short. On Linux this is a thread's matter, elsewhere the whole process's.
fn give_way() {
    #[cfg(target_os = "linux")]
    let _ = rustix::process::nice(5);
}

/// A listening socket and where it really listens.
struct Bound {
    listener: TcpListener,
    address: SocketAddr,
}

fn bind(transport: &str, option: &str, address: SocketAddr) -> Result<Bound, Failure> {
    let bound = listen(address).and_then(|listener| {
        Ok(Bound {
            address: listener.local_addr()?,
            listener,
        })
    });
    bound.map_err(|error| {
        Failure::run(format!(
            "cannot listen on {address} for {transport}: {error} ({option} takes another address)"
        ))
    })
}

/// The running server.
struct App {
    engine: Arc<Engine>,
    shutdown: Shutdown,
    transports: Vec<JoinHandle<usize>>,
    signals: Signals,
}

impl App {
    /// Starts both transports, which answer at once, and loading models, which goes on in the background.
    fn start(
        config: Config,
        repository: Repository,
        log: &Log,
        http: Bound,
        grpc: Bound,
        work: &Handle,
        start: Instant,
    ) -> Result<Self, Failure> {
        let signals = Signals::catch().map_err(|error| {
            Failure::run(format!(
                "the system does not let the server catch signals: {error}"
            ))
        })?;
        let (http_address, grpc_address) = (http.address, grpc.address);
        let is_text = matches!(config.log_format, LogFormat::Text);
        if is_text {
            report::listening(http_address, grpc_address);
        }
        tracing::info!(http = %http_address, grpc = %grpc_address, "listening");

        let misplaced = repository.misplaced_files();
        let engine = Arc::new(Engine::start(repository, config.engine));
        let mut service = Extended::new(engine.clone()).with_logging(log.control.clone());
        if let Some(shared_memory) = config.shared_memory {
            service = service.with_shared_memory(Arc::new(Regions::new(shared_memory)));
        }
        let service: Arc<dyn InferenceService> = Arc::new(service);
        let shutdown = Shutdown::new();
        let mut beside = Router::new();
        if config.allow_metrics {
            let metrics = Metrics::new(
                engine.clone(),
                config.http.budget.clone(),
                config.http.cpu.clone(),
                log.dropped.clone(),
            );
            beside = beside.merge(metrics.router());
        }
        if config.allow_console {
            beside = beside.merge(oip_console::router(config.log_tail.clone()));
        }
        tokio::spawn(free_unused_buffers(config.http.budget.clone()));
        let rest = oip_http::router_with(service.clone(), config.http, beside);
        let calls = oip_grpc::service(service, config.grpc);
        tokio::spawn({
            let (calls, shutdown) = (calls.clone(), shutdown.clone());
            async move {
                shutdown.draining().await;
                calls.drain_streams();
            }
        });
        let limits = config.connections;
        let transports = vec![
            tokio::spawn(serve(
                http.listener,
                Protocol::Http1,
                rest,
                limits.clone(),
                shutdown.clone(),
            )),
            work.spawn(serve(
                grpc.listener,
                Protocol::Http2,
                calls,
                limits.with(|limits| limits.conversations = &[oip_grpc::MODEL_STREAM_INFER]),
                shutdown.clone(),
            )),
        ];

        let loading = engine.clone();
        spawn_blocking(move || {
            loading.wait_until_loaded();
            let elapsed = start.elapsed();
            if is_text {
                report::models(&loading.models(), &misplaced, http_address, elapsed);
            }
            tracing::info!(milliseconds = elapsed.as_millis() as u64, "loaded all models");
        });
        Ok(Self {
            engine,
            shutdown,
            transports,
            signals,
        })
    }

    /// Serves until the first signal, then drains; true when nothing had to be cut.
    async fn run_until_signal(mut self, drain_timeout: Duration, log_end: &LogEnd) -> bool {
        let signal = self.signals.next().await;
        tracing::info!(signal, "draining");
        self.engine.start_draining();
        self.shutdown.drain();
        tokio::select! {
            is_clean = drain(self.engine, self.shutdown, self.transports, drain_timeout) => is_clean,
            signal = self.signals.next() => {
                tracing::warn!(signal, "ending at once");
                log_end.write_out();
                std::process::exit(INTERRUPTED);
            }
        }
    }
}

/// Gives memory back to the system that requests have needed and no longer need.
async fn free_unused_buffers(budget: ByteBudget) {
    let mut ticks = interval(Duration::from_secs(5));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let budget = budget.clone();
        // Unmapping much memory takes milliseconds.
        if spawn_blocking(move || budget.trim()).await.is_err() {
            return;
        }
    }
}

/// Waits for the transports and then the models to finish; what has not when time is over is cut.
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
