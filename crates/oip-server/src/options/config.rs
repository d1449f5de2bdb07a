//! Resolves options to a complete and validated configuration.

use std::{env, path::PathBuf};

use clap::CommandFactory;
use oip_engine::EngineConfig;
use oip_listen::TlsFiles;

use super::{
    Options,
    access_options::Access,
    addresses::{Addresses, ShutdownTimes},
    config_file::read_file,
    environment::unknown_variables,
    file_options,
    log_options::LogConfig,
    merge::Merge,
    otlp::Exports,
    page_options::PageConfig,
    transport_options::TransportConfig,
};
use crate::{
    backends::BackendConfig, failure::Failure, memory, model_source::ModelSources, traffic::RecordConfig,
};

/// The complete and validated configuration.
pub(crate) struct Config {
    pub(crate) models: ModelSources,
    pub(crate) engine: EngineConfig,
    pub(crate) addresses: Addresses,
    /// The server's certificate; `None` without TLS.
    pub(crate) tls: Option<TlsFiles>,
    /// The rules for who may call the server.
    pub(crate) access: Access,
    pub(crate) transports: TransportConfig,
    pub(crate) pages: PageConfig,
    pub(crate) log: LogConfig,
    pub(crate) records: RecordConfig,
    pub(crate) shutdown: ShutdownTimes,
    /// Warnings about ignored environment variables.
    pub(crate) warnings: Vec<String>,
}

impl Config {
    /// Merges the options of the command line and the environment with those of the configuration file, and
    /// applies defaults.
    pub(crate) fn resolve(options: Options) -> Result<Self, Failure> {
        if let Some(answer) = file_options::in_environment(|name| env::var(name).ok()) {
            return Err(Failure::usage(answer));
        }
        let (options, log_file) = with_file(options)?;
        let addresses = Addresses::resolve(&options.addresses, &|name| env::var(name).ok())?;
        let tls = options.tls.files()?;
        let knows_clients = tls.as_ref().is_some_and(|files| files.client_ca.is_some());
        let access = options.access.resolve(knows_clients)?;
        let is_local = addresses.http_is_local();
        // With an admin address, the log is shown only there.
        let admin_is_local = access
            .admin
            .as_ref()
            .map_or(is_local, |admin| admin.at.is_local());
        let transports = &options.transports;
        let transports = transports.resolve(&options.file, is_local, admin_is_local)?;
        memory::limit_cache(transports.http.budget.clone());
        let backends = BackendConfig::new(&options, transports.http.budget.clone());
        let names = env::vars_os().filter_map(|(name, _)| name.into_string().ok());
        let mut warnings = unknown_variables(&Options::command(), names);
        let exports = Exports::resolve(&options.file, &mut warnings)?;
        let log_tail = options.pages.log_tail(admin_is_local);
        Ok(Self {
            models: ModelSources {
                repositories: options.models.repositories(options.path)?,
                name: options.models.model_name.clone(),
                digests: options.source.digests()?,
                source: options.source,
                backends,
            },
            engine: options
                .models
                .engine(options.file.in_place_time, options.transports.queue_size)?,
            shutdown: options.addresses.shutdown(),
            addresses,
            tls,
            access,
            transports,
            pages: options.pages.resolve(exports.metrics),
            log: options.log.resolve(log_file, log_tail),
            records: RecordConfig {
                access_log: options.traffic.resolve()?,
                capture: options.file.capture.resolve()?,
                traces: exports.traces,
            },
            warnings,
        })
    }
}

/// Adds the options of the configuration file. Also returns the file's path if the file determines the log
/// levels.
fn with_file(options: Options) -> Result<(Options, Option<PathBuf>), Failure> {
    let Some(path) = options.config.clone() else {
        return Ok((options, None));
    };
    let file = read_file(&path)?;
    let sets_log = options.log.log.is_none();
    Ok((options.or(file), sets_log.then_some(path)))
}
