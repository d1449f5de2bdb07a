//! Options for TLS.

use std::path::PathBuf;

use clap::Args;
use oip_listen::{Tls, TlsError, TlsFile, TlsFiles};
use serde::Deserialize;

use super::merge::merged;
use crate::failure::Failure;

/// TLS options of both transports.
#[derive(Debug, Default, Args, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub(crate) struct TlsOptions {
    /// The server's certificate as PEM, followed by its intermediate certificates. Both transports then speak
    /// only TLS 1.2 and 1.3. This file and the two below are read again when they change
    #[arg(long, value_name = "FILE")]
    tls_certificate: Option<PathBuf>,

    /// The private key of --tls-certificate as PEM, without a password
    #[arg(long, value_name = "FILE")]
    tls_key: Option<PathBuf>,

    /// Certificates of authorities as PEM: clients must have a certificate signed by one of them
    #[arg(long, value_name = "FILE")]
    tls_client_ca: Option<PathBuf>,
}

merged!(TlsOptions: tls_certificate tls_key tls_client_ca);

impl TlsOptions {
    /// Returns the certificate files if TLS is enabled.
    pub(crate) fn files(&self) -> Result<Option<TlsFiles>, Failure> {
        let files = match (&self.tls_certificate, &self.tls_key) {
            (None, None) if self.tls_client_ca.is_some() => {
                return Err(Failure::usage(
                    "--tls-client-ca needs --tls-certificate and --tls-key",
                ));
            }
            (None, None) => return Ok(None),
            (Some(_), None) => return Err(Failure::usage("--tls-certificate needs --tls-key")),
            (None, Some(_)) => return Err(Failure::usage("--tls-key needs --tls-certificate")),
            (Some(certificate), Some(key)) => TlsFiles::new(certificate, key),
        };
        Ok(Some(match &self.tls_client_ca {
            None => files,
            Some(authorities) => files.with_client_ca(authorities),
        }))
    }
}

/// Reads the files and creates the TLS settings.
pub(crate) fn read_tls(files: Option<TlsFiles>) -> Result<Option<Tls>, Failure> {
    files.map(Tls::new).transpose().map_err(|error| wrong(&error))
}

fn wrong(error: &TlsError) -> Failure {
    let option = match error.file() {
        TlsFile::Certificate => "--tls-certificate",
        TlsFile::Key => "--tls-key",
        TlsFile::ClientCa => "--tls-client-ca",
    };
    Failure::usage(format!("{option}: {error}"))
}
