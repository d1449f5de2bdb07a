//! Announces on the console, in the log and to systemd where the server listens, and which models it serves.

use std::time::Instant;

use oip_listen::Address;
use oip_telemetry::logging::LogFormat;
use oip_types::ModelState;
use tokio::task::spawn_blocking;

use super::{models::Models, notify};
use crate::{
    banner::{self, urls::ReachableAddresses},
    telemetry::LIFE_CYCLE,
};

/// Announces the progress of startup.
pub(super) struct Announcer {
    addresses: ReachableAddresses,
    /// Whether the output is for people to read.
    is_text: bool,
    /// When the program started.
    begun: Instant,
}

impl Announcer {
    pub(super) fn new(addresses: ReachableAddresses, format: LogFormat, begun: Instant) -> Self {
        Self {
            addresses,
            is_text: matches!(format, LogFormat::Text),
            begun,
        }
    }

    /// Announces the addresses. `variable` is the environment variable that set the port.
    pub(super) fn listening(&self, variable: Option<&str>) {
        if self.is_text {
            banner::listening(&self.addresses);
        }
        let first_of = |addresses: &[Address]| addresses.first().map(ToString::to_string);
        tracing::info!(
            target: LIFE_CYCLE,
            http = first_of(&self.addresses.http),
            grpc = first_of(&self.addresses.grpc),
            variable,
            "listening"
        );
    }

    /// Announces the models in the background, once each is loaded or has failed.
    pub(super) fn loaded(self, models: Models) {
        let Models {
            engine, passed_over, ..
        } = models;
        spawn_blocking(move || {
            engine.wait_until_loaded();
            let elapsed = self.begun.elapsed();
            let models = engine.models();
            match self.is_text {
                true => banner::models(&models, &passed_over, &self.addresses, elapsed),
                false => banner::log_passed_over(&models, &passed_over),
            }
            tracing::info!(target: LIFE_CYCLE, milliseconds = elapsed.as_millis() as u64, "loaded all models");
            let ready = models.iter().filter(|model| model.state == ModelState::Ready);
            notify::tell(&format!(
                "READY=1\nSTATUS={} of {} model versions are ready",
                ready.count(),
                models.len()
            ));
        });
    }
}
