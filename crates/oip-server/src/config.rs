//! Resolves options to a complete and validated configuration.

#[cfg(target_os = "linux")]
use std::sync::Arc;
use std::{
    env,
    num::{NonZeroU32, NonZeroUsize},
    time::Duration,
};

use oip_console::LogTail;
use oip_engine::{EngineConfig, ModelControl};
use oip_grpc::{GrpcConfig, GrpcOutput};
use oip_http::{AllowedHosts, HttpConfig};
use oip_listen::{ConnectionCap, ConnectionLimits, TlsFiles};
use oip_service::{ByteBudget, CpuPool, TimeLimits};
use oip_shm::RegionsConfig;
use oip_types::{ByteSize, HumanDuration, rest::NonFinite};
use tensor_mmap::Promise;

#[cfg(target_os = "linux")]
use crate::connection_memory;
use crate::{
    access_options::Access,
    addresses::Addresses,
    allocator::{note_budget, note_model_thread},
    backends::BackendConfig,
    config_file::read_file,
    failure::Failure,
    file_options::{self, GrpcForm, JsonNonFinite},
    in_place,
    model_source::ModelSources,
    options::{ControlMode, DEFAULT_LOG, LogFormat, Options},
    otlp::{Exports, MetricsConfig},
    telemetry::LogConfig,
    traffic::{AccessLogForm, RecordConfig},
};

/// The complete and validated configuration.
pub(crate) struct Config {
    pub(crate) models: ModelSources,
    pub(crate) engine: EngineConfig,
    pub(crate) addresses: Addresses,
    /// The server's certificate; `None` without TLS.
    pub(crate) tls: Option<TlsFiles>,
    /// The access rules.
    pub(crate) access: Access,
    pub(crate) transports: TransportConfig,
    pub(crate) pages: PageConfig,
    pub(crate) log: LogConfig,
    pub(crate) records: RecordConfig,
    pub(crate) shutdown: ShutdownTimes,
    /// Warnings about ignored environment variables.
    pub(crate) warnings: Vec<String>,
}

/// The settings of both transports.
#[derive(Clone)]
pub(crate) struct TransportConfig {
    pub(crate) http: HttpConfig,
    /// Host names accepted at the admin address. A local admin address is protected against web pages even if
    /// the other addresses are not.
    pub(crate) admin_hosts: AllowedHosts,
    pub(crate) grpc: GrpcConfig,
    pub(crate) connections: ConnectionLimits,
    /// Settings of system shared memory; `None` unless clients may use it.
    pub(crate) shared_memory: Option<RegionsConfig>,
}

/// Which pages and pushes show the server's work.
pub(crate) struct PageConfig {
    /// Whether `/metrics` is served.
    pub(crate) metrics: bool,
    /// Whether the console is served at `/`.
    pub(crate) console: bool,
    /// Metrics export, if enabled.
    pub(crate) pushed_metrics: Option<MetricsConfig>,
}

/// How long the shutdown may take.
#[derive(Clone, Copy)]
pub(crate) struct ShutdownTimes {
    /// How long the server still accepts requests after a termination signal.
    pub(crate) delay: Duration,
    /// How long open requests may take after that.
    pub(crate) drain_timeout: Duration,
}

/// Number of log lines that the console can show.
const CONSOLE_LOG_LINES: usize = 500;

impl Config {
    /// Merges the options of the command line and the environment with those of the configuration file, and
    /// applies defaults.
    pub(crate) fn resolve(options: Options) -> Result<Self, Failure> {
        if let Some(answer) = file_options::in_environment(|name| env::var(name).ok()) {
            return Err(Failure::usage(answer));
        }
        let log_file = options.config.clone().filter(|_| options.log.is_none());
        let options = match &options.config {
            None => options,
            Some(path) => {
                let file = read_file(path)?;
                options.or(file)
            }
        };
        let addresses = Addresses::resolve(&options.addresses, &|name| env::var(name).ok())?;
        let budget = ByteBudget::new(options.memory_budget.map_or(512 << 20, |ByteSize(bytes)| bytes));
        note_budget(budget.clone());
        let backends = BackendConfig::new(&options, budget.clone());
        let cpu = options
            .file
            .cpu_threads
            .map_or_else(CpuPool::default, CpuPool::new);
        let digests = options.source.digests()?;
        let model_repositories = match options.path {
            Some(path) => vec![path],
            None => options.model_repository,
        };
        if model_repositories.is_empty() {
            return Err(Failure::usage(
                "no model repository: give a directory with models, or a model's file (--help shows all options)",
            ));
        }
        if model_repositories.len() > 1 && options.model_name.is_some() {
            return Err(Failure::usage(
                "--model-name is the name of the only model, and there are several repositories (--model-repository): leave \
                 one of both out",
            ));
        }
        let allow_console = options.allow_console.unwrap_or(true);
        let access_log = options.traffic.access_log.unwrap_or(AccessLogForm::Off);
        if access_log == AccessLogForm::Off && options.traffic.access_log_file.is_some() {
            return Err(Failure::usage(
                "--access-log-file needs --access-log=text or json",
            ));
        }
        if let Some(name) = &options.model_name {
            oip_types::check_name("--model-name", name).map_err(|error| Failure::usage(error.message()))?;
        }

        let deadlines = [
            ("--request-timeout", options.request_timeout),
            ("--max-request-timeout", options.max_request_timeout),
        ];
        for (name, limit) in deadlines {
            if limit.is_some_and(|limit| limit.0.is_zero()) {
                return Err(Failure::usage(format!(
                    "{name}: expected more than 0, or no request could be answered"
                )));
            }
        }
        let duration = |option: Option<HumanDuration>, default| option.map_or(default, |option| option.0);
        let time = TimeLimits::default().with(|time| {
            time.default = duration(options.request_timeout, TimeLimits::default().default);
            time.max = duration(options.max_request_timeout, TimeLimits::default().max);
        });
        let max_request_size = options.max_request_size.map_or(64 << 20, |ByteSize(bytes)| bytes);
        if budget.limit() < max_request_size {
            return Err(Failure::usage(format!(
                "--memory-budget ({} bytes) is less than --max-request-size ({max_request_size} bytes): the largest \
                 requests could never be read; raise one or lower the other",
                budget.limit()
            )));
        }
        let max_request_bytes = usize::try_from(max_request_size).unwrap_or(usize::MAX);
        let limits =
            oip_types::RequestLimits::default().with(|limits| limits.tensor_bytes = max_request_bytes);
        let control = control(
            options.model_control_mode,
            options.repository_poll_secs,
            options.load_model,
        )?;
        let allowed_hosts = allowed_hosts(&options.allowed_hosts, addresses.http_is_local())?;
        // Memory that a connection shares affects no other client, so it is enabled unless the operator
        // disables shared memory.
        #[cfg(target_os = "linux")]
        let allow_connection_memory = options.system_shared_memory != Some(false);
        #[cfg(target_os = "linux")]
        let connection_regions = Arc::new(oip_shm::ConnectionRegions::new(&budget, max_request_size));
        let connections = ConnectionLimits::default().with(|limits| {
            if let Some(cap) = options.max_connections {
                limits.connections = ConnectionCap::new(cap.max(1));
            }
            #[cfg(target_os = "linux")]
            if allow_connection_memory {
                limits.descriptors = Some(connection_memory::descriptors());
            }
        });
        let tls = options.tls.files()?;
        let knows_clients = tls.as_ref().is_some_and(|files| files.client_ca.is_some());
        let access = options.access.resolve(knows_clients)?;
        // With an admin address, the log is shown only there.
        let log_is_local = match &access.admin {
            Some(admin) => admin.at.is_local(),
            None => addresses.http_is_local(),
        };
        let allow_console_log = options.allow_console_log.unwrap_or(log_is_local);
        let admin_hosts = self::allowed_hosts(&options.allowed_hosts, log_is_local)?;
        let names = env::vars_os().filter_map(|(name, _)| name.into_string().ok());
        let mut warnings = Options::unknown_variables(names);
        let exports = Exports::resolve(&options.file, &mut warnings)?;
        Ok(Self {
            warnings,
            models: ModelSources {
                repositories: model_repositories,
                name: options.model_name,
                source: options.source,
                digests,
                backends,
            },
            addresses,
            engine: EngineConfig::default().with(|config| {
                config.server_name = "tensorferry".to_owned();
                config.server_version = env!("CARGO_PKG_VERSION").to_owned();
                let threads = options.threads.map_or(config.instances, NonZeroUsize::get);
                config.instances = options.instances.unwrap_or(threads).max(1);
                config.in_place = in_place::setting(options.file.in_place_time);
                config.on_model_thread = note_model_thread;
                config.control = control;
                config.queue_capacity = options.queue_size.unwrap_or(config.queue_capacity);
                config.mapping = options.allow_mapped_models.unwrap_or(false).then(operators_word);
                config.response_cache_bytes = options
                    .response_cache_byte_size
                    .map_or(0, |ByteSize(bytes)| bytes);
                config.load_timeout = duration(options.load_timeout, config.load_timeout);
                config.strict_readiness = options.strict_readiness.unwrap_or(config.strict_readiness);
            }),
            transports: TransportConfig {
                http: HttpConfig::default().with(|config| {
                    config.allowed_hosts = allowed_hosts;
                    config.max_body_bytes = max_request_bytes;
                    config.limits = limits.clone();
                    config.time = time;
                    config.budget = budget.clone();
                    config.cpu = cpu.clone();
                    #[cfg(target_os = "linux")]
                    if allow_connection_memory {
                        config.connection_memory = Some(connection_regions.clone());
                    }
                    config.non_finite = match options.file.json_nonfinite.unwrap_or(JsonNonFinite::Null) {
                        JsonNonFinite::Null => NonFinite::Null,
                        JsonNonFinite::Literal => NonFinite::Literal,
                        JsonNonFinite::String => NonFinite::String,
                        JsonNonFinite::Error => NonFinite::Error,
                    };
                }),
                grpc: GrpcConfig::default().with(|config| {
                    config.max_message_bytes = max_request_bytes;
                    #[cfg(target_os = "linux")]
                    if allow_connection_memory {
                        config.connection_memory = Some(connection_regions);
                    }
                    config.limits = limits;
                    config.time = time;
                    config.budget = budget;
                    config.cpu = cpu;
                    config.output = match options.file.grpc_output.unwrap_or(GrpcForm::Mirror) {
                        GrpcForm::Mirror => GrpcOutput::Mirror,
                        GrpcForm::Raw => GrpcOutput::Raw,
                        GrpcForm::Typed => GrpcOutput::Typed,
                    };
                }),
                admin_hosts,
                connections,
                shared_memory: options.system_shared_memory.unwrap_or(false).then(|| {
                    let mut regions = RegionsConfig::default();
                    regions.max_transfer_bytes = max_request_size;
                    regions
                }),
            },
            pages: PageConfig {
                metrics: options.allow_metrics.unwrap_or(true),
                console: allow_console,
                pushed_metrics: exports.metrics,
            },
            tls,
            access,
            shutdown: ShutdownTimes {
                delay: duration(options.addresses.shutdown_delay, Duration::ZERO),
                drain_timeout: duration(options.drain_timeout, Duration::from_secs(30)),
            },
            log: LogConfig {
                filter: options.log.unwrap_or_else(|| DEFAULT_LOG.to_owned()),
                format: options.log_format.unwrap_or(LogFormat::Text),
                file: log_file,
                tail: (allow_console && allow_console_log).then(|| LogTail::new(CONSOLE_LOG_LINES)),
            },
            records: RecordConfig {
                access_log,
                access_log_file: options.traffic.access_log_file,
                capture: options.file.capture.resolve()?,
                traces: exports.traces,
            },
        })
    }
}

/// Returns the accepted host names.
fn allowed_hosts(names: &[String], is_local: bool) -> Result<AllowedHosts, Failure> {
    if names.iter().any(|name| name == "*") {
        return Ok(AllowedHosts::any());
    }
    let is_name = |name: &&String| {
        !name.is_empty() && !name.contains(['/', ':', '*', '@']) && !name.contains(char::is_whitespace)
    };
    if let Some(wrong) = names.iter().find(|name| !is_name(name)) {
        let expected = "expected a host name without scheme and port, or * for all";
        return Err(Failure::usage(format!(
            "--allowed-hosts: {expected}, found '{wrong}'"
        )));
    }
    Ok(match names {
        [] if !is_local => AllowedHosts::any(),
        names => AllowedHosts::only(names),
    })
}

/// Returns which models are loaded, and when.
fn control(
    mode: Option<ControlMode>,
    poll_secs: Option<NonZeroU32>,
    load: Vec<String>,
) -> Result<ModelControl, Failure> {
    let mode = mode.unwrap_or(ControlMode::None);
    if !load.is_empty() && !matches!(mode, ControlMode::Explicit) {
        return Err(Failure::usage("--load-model needs --model-control-mode=explicit"));
    }
    if load.len() > 1 && load.iter().any(|name| name == "*") {
        return Err(Failure::usage(
            "--load-model=* stands for all models and must be the only one",
        ));
    }
    for name in load.iter().filter(|name| *name != "*") {
        oip_types::check_name("--load-model", name).map_err(|error| Failure::usage(error.message()))?;
    }
    Ok(match mode {
        ControlMode::None => ModelControl::None,
        ControlMode::Poll => ModelControl::Poll {
            interval: Duration::from_secs(poll_secs.map_or(15, |secs| secs.get().into())),
        },
        ControlMode::Explicit => ModelControl::Explicit { load },
    })
}

/// Returns the operator's promise, which `--allow-mapped-models` expresses.
#[expect(unsafe_code, reason = "files are the operator's")]
fn operators_word() -> Promise {
    // SAFETY: the operator guarantees that the models' files are not changed or truncated. This program does
    // not change them; other programs are the operator's responsibility.
    unsafe { Promise::new() }
}
