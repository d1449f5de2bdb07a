//! The complete server: starts its parts, serves until a signal arrives, and shuts down in order.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use oip_auth::Guard;
use oip_engine::Engine;
use oip_listen::Tls;
use oip_resources::ByteBudget;
use tokio::{
    runtime::Runtime,
    task::spawn_blocking,
    time::{MissedTickBehavior, interval, sleep},
};

use super::{
    announcer::Announcer,
    context::StartContext,
    gates::Gates,
    listening::Listening,
    models::Models,
    notify,
    observability::Observability,
    opening::Sources,
    reloads::Reloads,
    services::Services,
    signals::{SignalAction, Signals},
    transports::{Acceptor, Transports},
};
use crate::{
    failure::Failure,
    metrics::Counts,
    options::ShutdownTimes,
    telemetry::{LIFE_CYCLE, Log},
};

/// Interval at which certificate and identity files are checked for changes.
const FILES_PERIOD: Duration = Duration::from_secs(5);

/// The running server, with everything that it stops on a signal.
pub(super) struct Server {
    engine: Arc<Engine>,
    transports: Transports,
    signals: Signals,
    reloads: Reloads,
    observability: Observability,
    times: ShutdownTimes,
}

impl Server {
    /// Starts the transports, which respond immediately, and loads the models in the background.
    pub(super) fn start(
        sources: Sources,
        listening: Listening,
        signals: Signals,
        context: &StartContext<'_>,
    ) -> Result<Self, Failure> {
        let Sources {
            config,
            repository,
            guard,
        } = sources;
        let (log, runtimes, tls) = (context.log, context.runtimes, listening.tls.as_ref());
        let records = config.records.start()?;
        let addresses = listening.reachable(&guard, config.pages.console);
        let announcer = Announcer::new(addresses, log.config.format, context.begun);
        announcer.listening(config.addresses.from_variable);
        let reloads = Reloads::new(records.access_log.as_ref(), log, tls, &guard);
        let models = Models::start(repository, config.engine);
        let mut transports = config.transports;
        let shared_memory = transports.shared_memory.take();
        let service = models.service(log, shared_memory, records.recorder.as_ref());
        let acceptor = Acceptor::new(runtimes, tls, &transports.connections);
        let counts = Counts {
            dropped: log.writer.dropped(),
            totals: Arc::default(),
            caps: acceptor.caps(),
            records,
            guard: guard.clone(),
        };
        let (observability, pages) =
            Observability::start(&models, &transports.http, counts, &config.pages, log)?;
        tokio::spawn(free_unused_buffers(transports.http.budget.clone()));
        watch_files(&runtimes.work, &guard, tls);
        let gates = Gates {
            access: config.access,
            guard,
        };
        let services = Services::new(service, transports, pages, gates, observability.traffic.clone());
        let transports = services.serve(listening.sockets, acceptor);
        let engine = models.engine.clone();
        announcer.loaded(models);
        Ok(Self {
            engine,
            transports,
            signals,
            reloads,
            observability,
            times: config.shutdown,
        })
    }

    /// Serves until the first termination signal. Then reports for the shutdown delay that the server is not
    /// ready, and drains. Returns true if all connections were closed and all models stopped in time.
    pub(super) async fn run_until_signal(mut self, log: &Log) -> bool {
        let signal = loop {
            match self.signals.next().await {
                SignalAction::End(signal) => break signal,
                SignalAction::Reload => self.reloads = self.reloads.run().await,
            }
        };
        notify::tell("STOPPING=1");
        self.engine.start_draining();
        let ending = end(self.engine, self.transports, self.times, signal);
        let finish = || self.observability.finish();
        let is_clean = self.signals.or_exit(ending, log, finish).await;
        finish();
        is_clean
    }
}

/// Serves for the shutdown delay, and drains. Returns true if all connections were closed and all models
/// stopped in time.
async fn end(
    engine: Arc<Engine>,
    transports: Transports,
    times: ShutdownTimes,
    signal: &'static str,
) -> bool {
    if !times.delay.is_zero() {
        let milliseconds = times.delay.as_millis() as u64;
        tracing::info!(
            target: LIFE_CYCLE,
            signal,
            milliseconds,
            "shutting down: not ready, requests are still accepted"
        );
        transports.leave();
        sleep(times.delay).await;
    }
    tracing::info!(target: LIFE_CYCLE, signal, "draining");
    transports.drain();
    let start = Instant::now();
    let cut = transports.finish(times.drain_timeout).await;
    let stopping = spawn_blocking(move || engine.stop(start + times.drain_timeout));
    let is_stopped = stopping.await.unwrap_or(false);
    let milliseconds = start.elapsed().as_millis() as u64;
    tracing::info!(
        target: LIFE_CYCLE,
        milliseconds,
        connections_cut = cut,
        models_stopped = is_stopped,
        "ended"
    );
    cut == 0 && is_stopped
}

/// Reloads the files of identities and certificates when they change.
fn watch_files(runtime: &Runtime, guard: &Guard, tls: Option<&Tls>) {
    runtime.spawn(guard.clone().watch(FILES_PERIOD));
    if let Some(tls) = tls {
        runtime.spawn(tls.clone().watch(FILES_PERIOD));
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
