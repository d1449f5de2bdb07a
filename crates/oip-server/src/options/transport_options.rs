//! Options of requests over both transports: their limits, and the forms of their tensors.

use clap::Args;
use oip_grpc::GrpcConfig;
use oip_http::{AllowedHosts, HttpConfig};
use oip_listen::{ConnectionCap, ConnectionLimits};
use oip_resources::{ByteBudget, CpuPool, TimeLimits};
use oip_shm::RegionsConfig;
use oip_types::{ByteSize, HumanDuration, RequestLimits};
use serde::Deserialize;

use super::{
    connection_memory,
    file_options::{FileOptions, GrpcForm, JsonNonFinite},
    merge::merged,
};
use crate::failure::Failure;

/// Options of requests over both transports.
#[derive(Debug, Default, Args, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub(crate) struct TransportOptions {
    /// Largest request, as sent and again once decompressed [default: 64MiB]
    #[arg(long, value_name = "SIZE")]
    pub(crate) max_request_size: Option<ByteSize>,

    /// Memory for requests and their responses, over both transports; beyond it new ones are refused. At
    /// least --max-request-size [default: 512MiB]
    #[arg(long, value_name = "SIZE")]
    pub(crate) memory_budget: Option<ByteSize>,

    /// Requests that may wait for one model version [default: 256]
    #[arg(long, value_name = "N")]
    pub(crate) queue_size: Option<usize>,

    /// Open connections over both transports; further ones wait [default: 10240]
    #[arg(long, value_name = "N")]
    pub(crate) max_connections: Option<usize>,

    /// Deadline of requests that set none [default: 30s]
    #[arg(long, value_name = "TIME")]
    pub(crate) request_timeout: Option<HumanDuration>,

    /// Longest deadline that a request may set [default: 5m]
    #[arg(long, value_name = "TIME")]
    pub(crate) max_request_timeout: Option<HumanDuration>,

    /// Host names of this server, besides IP addresses and names without a dot. On a loopback address, and on
    /// any address if this is given, requests with other names in the header Host are refused, since a web
    /// page could have resolved them to this server. Web pages of these hosts may change the server. May be
    /// given several times, or with commas; * for all
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(crate) allowed_hosts: Vec<String>,

    /// Whether clients may pass tensors in system shared memory. They can then read and write all shared
    /// memory that this server can [default: false]. An explicit `false` also refuses memory that a client
    /// shares over its Unix socket
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub(crate) system_shared_memory: Option<bool>,
}

merged!(TransportOptions:
    max_request_size memory_budget queue_size max_connections request_timeout max_request_timeout allowed_hosts
    system_shared_memory
);

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

impl TransportOptions {
    /// Returns the transports' configuration. `http_is_local` and `admin_is_local` specify whether only this
    /// machine can reach the addresses for HTTP and for administration.
    pub(super) fn resolve(
        &self,
        file: &FileOptions,
        http_is_local: bool,
        admin_is_local: bool,
    ) -> Result<TransportConfig, Failure> {
        let (budget, max_request) = self.memory()?;
        let max_bytes = usize::try_from(max_request).unwrap_or(usize::MAX);
        let time = self.time()?;
        let limits = RequestLimits::default().with(|limits| limits.tensor_bytes = max_bytes);
        let cpu = file.cpu_threads.map_or_else(CpuPool::default, CpuPool::new);
        let allowed_hosts = |is_local| allowed_hosts(&self.allowed_hosts, is_local);
        let (hosts, admin_hosts) = (allowed_hosts(http_is_local)?, allowed_hosts(admin_is_local)?);
        let mut http = HttpConfig::default().with(|config| {
            config.allowed_hosts = hosts;
            config.max_body_bytes = max_bytes;
            config.limits = limits.clone();
            config.time = time;
            config.budget = budget.clone();
            config.cpu = cpu.clone();
            config.non_finite = file.json_nonfinite.unwrap_or(JsonNonFinite::Null).into();
        });
        let mut grpc = GrpcConfig::default().with(|config| {
            config.max_message_bytes = max_bytes;
            config.limits = limits;
            config.time = time;
            config.budget = budget;
            config.cpu = cpu;
            config.output = file.grpc_output.unwrap_or(GrpcForm::Mirror).into();
        });
        let mut connections = ConnectionLimits::default();
        if let Some(cap) = self.max_connections {
            connections.connections = ConnectionCap::new(cap.max(1));
        }
        // Memory that a connection shares affects no other client, so it is allowed unless the operator
        // disables shared memory.
        if self.system_shared_memory != Some(false) {
            connection_memory::allow(&mut http, &mut grpc, &mut connections, max_request);
        }
        Ok(TransportConfig {
            http,
            admin_hosts,
            grpc,
            connections,
            shared_memory: self.shared_memory(max_request),
        })
    }

    /// Returns the settings of system shared memory, if clients may use it.
    fn shared_memory(&self, max_request: u64) -> Option<RegionsConfig> {
        let mut regions = RegionsConfig::default();
        regions.max_transfer_bytes = max_request;
        self.system_shared_memory.unwrap_or(false).then_some(regions)
    }

    /// Returns the memory budget, and the largest size of a request.
    fn memory(&self) -> Result<(ByteBudget, u64), Failure> {
        let budget = self.memory_budget.map_or(512 << 20, |ByteSize(bytes)| bytes);
        let max_request = self.max_request_size.map_or(64 << 20, |ByteSize(bytes)| bytes);
        if budget < max_request {
            return Err(Failure::usage(format!(
                "--memory-budget ({budget} bytes) is less than --max-request-size ({max_request} bytes): the largest \
                 requests could never be read; raise one or lower the other"
            )));
        }
        Ok((ByteBudget::new(budget), max_request))
    }

    /// Returns the deadlines of requests.
    fn time(&self) -> Result<TimeLimits, Failure> {
        let mut time = TimeLimits::default();
        for (name, option, limit) in [
            ("--request-timeout", self.request_timeout, &mut time.default),
            ("--max-request-timeout", self.max_request_timeout, &mut time.max),
        ] {
            let Some(HumanDuration(option)) = option else {
                continue;
            };
            if option.is_zero() {
                return Err(Failure::usage(format!(
                    "{name}: expected more than 0, or no request could be answered"
                )));
            }
            *limit = option;
        }
        Ok(time)
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
