//! Options for remote repositories, and for restricting which files are loaded.

use std::{fs, path::PathBuf};

use clap::Args;
use model_repository::RequiredDigests;
use serde::Deserialize;

use super::merge::merged;
use crate::failure::Failure;
#[cfg(feature = "stores")]
use oip_types::ByteSize;

/// Options for remote repositories, and for restricting any repository.
#[derive(Clone, Debug, Default, Args, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub(crate) struct SourceOptions {
    /// The directory that caches models from URLs [default: tensorferry/models in the user's cache directory]
    #[cfg(feature = "stores")]
    #[arg(long, value_name = "DIR")]
    pub(crate) repository_cache: Option<PathBuf>,

    /// Largest size of that directory; the oldest unused models are removed first [default: as much as the
    /// disk has]
    #[cfg(feature = "stores")]
    #[arg(long, value_name = "SIZE")]
    pub(crate) repository_cache_limit: Option<ByteSize>,

    /// Certificates (PEM) of trusted authorities for servers with models, instead of the authorities that
    /// browsers trust
    #[cfg(feature = "stores")]
    #[arg(long, value_name = "FILE")]
    pub(crate) repository_ca: Option<PathBuf>,

    /// A directory outside of the repository to which its links may lead, such as the blobs of a Hugging Face
    /// cache. May be given several times
    #[arg(long, value_name = "DIR")]
    pub(crate) repository_also: Vec<PathBuf>,

    /// A list of the files that may be loaded, with their SHA-256, as sha256sum prints it in the repository's
    /// directory. A file with another digest, or that is not listed, is not loaded: models, configurations,
    /// weights, labels
    #[arg(long, value_name = "FILE")]
    pub(crate) require_digests: Option<PathBuf>,
}

merged!(SourceOptions:
    #[cfg(feature = "stores")] repository_cache
    #[cfg(feature = "stores")] repository_cache_limit
    #[cfg(feature = "stores")] repository_ca
    repository_also require_digests
);

impl SourceOptions {
    /// Returns the allowed files, or `None` if they are not restricted.
    pub(crate) fn digests(&self) -> Result<Option<RequiredDigests>, Failure> {
        /// Maximum size of the list in bytes, enough for a hundred thousand files with long names.
        const LONGEST: u64 = 64 << 20;
        let Some(path) = &self.require_digests else {
            return Ok(None);
        };
        let shown = path.display();
        let unreadable = |error: &dyn std::fmt::Display| {
            Failure::usage(format!("--require-digests: {shown} cannot be read: {error}"))
        };
        let length = fs::metadata(path).map_err(|error| unreadable(&error))?.len();
        if length > LONGEST {
            return Err(unreadable(&format!("it has {length} bytes, more than {LONGEST}")));
        }
        let text = fs::read_to_string(path).map_err(|error| unreadable(&error))?;
        let digests = RequiredDigests::parse(&shown.to_string(), &text);
        digests
            .map(Some)
            .map_err(|error| Failure::usage(format!("--require-digests: {error}")))
    }
}
