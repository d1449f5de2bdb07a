//! Options for access control.

use std::{path::PathBuf, sync::Arc, time::Duration};

use axum::http::{
    HeaderName, HeaderValue, Method,
    header::{CONTENT_ENCODING, RETRY_AFTER, WWW_AUTHENTICATE},
};
use clap::Args;
use oip_auth::{Guard, RestrictedApis, check_restricted};
use oip_resources::CpuPool;
use serde::Deserialize;
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

use super::{
    addresses::{Addresses, Place},
    merge::merged,
};
use crate::failure::Failure;

/// Access options: identities and addresses.
#[derive(Debug, Default, Args, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub(crate) struct AccessOptions {
    /// A TOML file with identities: how they are known (tokens, JSON Web Tokens, certificates) and what they
    /// may do. It is read again when it changes
    #[arg(long, value_name = "FILE")]
    auth: Option<PathBuf>,

    /// APIs that require a header with a certain value over HTTP, as `API,API,...:key=value`: health,
    /// metadata, inference, shared-memory, model-config, model-repository, statistics, trace, logging,
    /// metrics. May be given several times
    #[arg(long, value_name = "APIS:KEY=VALUE")]
    http_restricted_api: Vec<String>,

    /// The same for gRPC, with the header `triton-grpc-protocol-` followed by the key
    #[arg(long, value_name = "APIS:KEY=VALUE")]
    grpc_restricted_protocol: Vec<String>,

    /// Origins of web pages whose scripts may call the server over HTTP and read its responses, such as
    /// `https://app.example.com`; * for all. May be given several times, or with commas. Calls that change
    /// the server also need --allowed-hosts
    #[arg(long, value_name = "ORIGIN", value_delimiter = ',')]
    cors_origin: Vec<String>,

    /// A separate address for calls that change the server, over HTTP and gRPC: loading and unloading,
    /// logging, shared memory and metrics are then answered there and not on the other addresses. HOST:PORT,
    /// :PORT or unix:PATH
    #[arg(long, value_name = "ADDRESS")]
    admin_address: Option<String>,

    /// Whether calls that change the server are answered on addresses that other machines reach, that of
    /// --admin-address among them, though neither --auth nor --tls-client-ca says who may make them [default:
    /// false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    allow_public_admin: Option<bool>,
}

merged!(AccessOptions:
    auth http_restricted_api grpc_restricted_protocol cors_origin admin_address allow_public_admin
);

/// The resolved access rules.
pub(crate) struct Access {
    auth: Option<PathBuf>,
    /// The APIs that require a header over HTTP.
    pub(crate) restricted_in_http: Arc<[RestrictedApis]>,
    /// The APIs that require a header over gRPC.
    pub(crate) restricted_in_grpc: Arc<[RestrictedApis]>,
    /// Whether every client may change the server, or all clients are authenticated.
    pub(crate) allows_all: bool,
    /// The CORS layer; `None` if no origin is configured.
    pub(crate) cors: Option<CorsLayer>,
    /// The separate address for calls that change the server, if any.
    pub(crate) admin: Option<Place>,
}

impl Access {
    /// Loads the identity table, if configured. Token signatures are verified on the threads of `cpu`.
    pub(crate) fn guard(&self, cpu: &CpuPool) -> Result<Guard, Failure> {
        let Some(path) = &self.auth else {
            return Ok(Guard::open());
        };
        Guard::with_table(path, cpu.clone()).map_err(|error| Failure::usage(format!("--auth: {error}")))
    }
}

impl AccessOptions {
    /// Validates the options. `knows_clients` specifies whether all clients need a certificate.
    pub(crate) fn resolve(&self, knows_clients: bool) -> Result<Access, Failure> {
        let restricted = |option: &str,
                          texts: &[String],
                          parse: fn(&str) -> Result<RestrictedApis, String>| {
            let wrong = |error: String| Failure::usage(format!("{option}: {error}"));
            let groups: Result<Vec<RestrictedApis>, String> = texts.iter().map(|text| parse(text)).collect();
            let groups = groups.map_err(wrong)?;
            check_restricted(&groups).map_err(wrong)?;
            Ok(groups.into())
        };
        let admin = self.admin_address.as_deref();
        let admin = admin
            .map(|address| Addresses::read_one("--admin-address", address))
            .transpose()?;
        let protocols = &self.grpc_restricted_protocol;
        Ok(Access {
            auth: self.auth.clone(),
            restricted_in_http: restricted(
                "--http-restricted-api",
                &self.http_restricted_api,
                RestrictedApis::of_http,
            )?,
            restricted_in_grpc: restricted("--grpc-restricted-protocol", protocols, RestrictedApis::of_grpc)?,
            allows_all: self.allow_public_admin.unwrap_or(false) || knows_clients,
            cors: cors(&self.cors_origin)?,
            admin: admin.flatten(),
        })
    }
}

/// Returns the CORS layer for `origins`; `None` if the list is empty.
fn cors(origins: &[String]) -> Result<Option<CorsLayer>, Failure> {
    let allowed = match origins {
        [] => return Ok(None),
        [all] if all == "*" => AllowOrigin::any(),
        origins => {
            let origins: Result<Vec<HeaderValue>, Failure> =
                origins.iter().map(|origin| self::origin(origin)).collect();
            AllowOrigin::list(origins?)
        }
    };
    let exposed = [
        HeaderName::from_static("inference-header-content-length"),
        HeaderName::from_static("x-request-id"),
        CONTENT_ENCODING,
        RETRY_AFTER,
        WWW_AUTHENTICATE,
    ];
    Ok(Some(
        CorsLayer::new()
            .allow_origin(allowed)
            .allow_methods([Method::GET, Method::HEAD, Method::POST])
            .allow_headers(AllowHeaders::mirror_request())
            .expose_headers(exposed)
            .max_age(Duration::from_secs(600)),
    ))
}

/// Normalizes an origin to the form that browsers send: scheme, host, and the port if it is not the default.
fn origin(text: &str) -> Result<HeaderValue, Failure> {
    let wrong = || {
        let expected = "expected an origin such as https://app.example.com, or * alone";
        Failure::usage(format!(
            "--cors-origin: {expected}, found '{}'",
            text.escape_debug()
        ))
    };
    let (scheme, host) = text.split_once("://").ok_or_else(wrong)?;
    let is_origin = ["http", "https"].contains(&scheme)
        && !host.is_empty()
        && !host.contains(['/', '?', '#', '@', '*'])
        && text
            .bytes()
            .all(|byte| byte.is_ascii_graphic() && !byte.is_ascii_uppercase());
    if !is_origin {
        return Err(wrong());
    }
    HeaderValue::from_str(text).map_err(|_| wrong())
}
