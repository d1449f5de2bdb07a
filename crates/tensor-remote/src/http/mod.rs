//! Remote files: range requests over `https://`, with `hf://` and `s3://` as shorthands.

mod aws_profile;
#[cfg(feature = "connector")]
mod connector;
mod file;
mod hub;
#[cfg(feature = "hub")]
mod hub_folder;
mod options;
mod response_check;
mod resume;
#[cfg(feature = "s3")]
mod s3;
#[cfg(feature = "s3")]
mod signer;
mod target;

use std::{
    fmt,
    io::{self, Read},
    ops::Range,
};

use fmt_core::Error;

#[cfg(feature = "connector")]
pub use self::connector::RemoteConnector;
#[cfg(feature = "hub")]
pub use self::hub_folder::{HubFile, HubFolder};
pub use self::{
    aws_profile::{AwsKeys, AwsProfile},
    options::RemoteOptions,
};
use self::{file::HttpFile, target::Target};
use crate::{IndexPlace, RemoteSource, source::Fetch};

/// URL schemes of locations that are not paths.
const SCHEMES: [&str; 4] = ["https://", "http://", "hf://", "s3://"];

/// Returns whether a string is a remote location rather than a path.
///
/// ```
/// assert!(tensor_remote::is_remote("https://example.org/model.safetensors"));
/// assert!(!tensor_remote::is_remote("models/https/model.safetensors"));
/// ```
#[must_use]
pub fn is_remote(location: &str) -> bool {
    SCHEMES.iter().any(|scheme| location.starts_with(scheme))
}

/// Opens a remote file. Makes one request for the beginning, and another for the end if the file's name
/// suggests that the index is there.
///
/// A location is one of:
/// - `https://HOST/PATH`; `http://` only for localhost, unless [`RemoteOptions::with_plain_http`] allows
///   more;
/// - `hf://OWNER/REPO/FILE`, `hf://OWNER/REPO@REVISION/FILE` or `hf://OWNER/REPO/FILE@REVISION`, with
///   `datasets/` or `spaces/` before the owner for those kinds; the environment variables `HF_ENDPOINT` and
///   `HF_TOKEN` have the same meaning as for the Hub's tools;
/// - with the feature `s3`: `s3://BUCKET/KEY`, signed with the keys in `AWS_ACCESS_KEY_ID`,
///   `AWS_SECRET_ACCESS_KEY` and `AWS_SESSION_TOKEN`, in `AWS_REGION`, at `AWS_ENDPOINT_URL` for other
///   stores; missing values come from an [`AwsProfile`]. Requests are not signed if there are no keys, or
///   with `AWS_SKIP_SIGNATURE=true`.
///
/// # Errors
/// [`ErrorKind::Unsupported`](fmt_core::ErrorKind::Unsupported) for other locations and for servers without
/// range support; [`ErrorKind::Malformed`](fmt_core::ErrorKind::Malformed) for responses that do not match
/// the request; [`ErrorKind::Io`](fmt_core::ErrorKind::Io) when the request fails. Reads of the source fail
/// with the same kinds, inside an [`std::io::Error`], and with
/// [`ErrorKind::Changed`](fmt_core::ErrorKind::Changed).
pub fn open(location: &str, options: &RemoteOptions) -> Result<RemoteSource, Error> {
    let (target, options) = locate(location, options)?;
    let name = target.name();
    let place = options.index_place.unwrap_or_else(|| IndexPlace::of_name(&name));
    let (file, parts) = HttpFile::open(target, options, place)?;
    let len = file.len();
    Ok(RemoteSource::new(len, name, Box::new(file), parts))
}

/// Resolves a location to a URL, with the options to access it.
fn locate(location: &str, options: &RemoteOptions) -> Result<(Target, RemoteOptions), Error> {
    let mut options = options.clone();
    let target = if let Some(place) = location.strip_prefix("hf://") {
        hub::resolve(place, &mut options)?
    } else if let Some(place) = location.strip_prefix("s3://") {
        in_store(place, &mut options)?
    } else {
        Target::parse(location)?
    };
    target.check_scheme(&options)?;
    Ok((target, options))
}

/// A remote file for callers that know which ranges they need: each read is one request, without caching or
/// read-ahead. For readers of tensor files use [`RemoteSource`].
///
/// ```no_run
/// use std::io::Read;
/// use tensor_remote::{RemoteFile, RemoteOptions};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let file = RemoteFile::open("https://example.org/model.onnx", &RemoteOptions::default())?;
/// let mut beginning = Vec::new();
/// file.read(0..file.len().min(1024))?.read_to_end(&mut beginning)?;
/// # Ok(())
/// # }
/// ```
pub struct RemoteFile {
    file: HttpFile,
    name: String,
}

impl RemoteFile {
    /// Requests the first byte to learn the file's length and version. Locations are those of [`open`].
    ///
    /// # Errors
    /// See [`open`].
    pub fn open(location: &str, options: &RemoteOptions) -> Result<Self, Error> {
        let (target, options) = locate(location, options)?;
        let name = target.name();
        let (file, _) = HttpFile::open(target, options, IndexPlace::Front(1))?;
        Ok(Self { file, name })
    }

    /// Returns the file's name: the part after the last slash.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the number of bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.file.len()
    }

    /// Returns whether the file is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the server's identifier of this version: its `ETag`, or else its `Last-Modified`.
    #[must_use]
    pub fn version(&self) -> Option<&str> {
        self.file.identity().version()
    }

    /// Reads a range of this version; a broken response is resumed where it stopped.
    ///
    /// # Errors
    /// The errors of [`open`], inside an [`io::Error`]; [`UnexpectedEof`](io::ErrorKind::UnexpectedEof) when
    /// the range exceeds the file.
    pub fn read(&self, range: Range<u64>) -> io::Result<Box<dyn Read + Send>> {
        if range.is_empty() {
            return Ok(Box::new(io::empty()));
        }
        if range.end > self.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.file.fetch(range)
    }
}

impl fmt::Debug for RemoteFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteFile")
            .field("name", &self.name)
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

#[cfg(feature = "s3")]
fn in_store(place: &str, options: &mut RemoteOptions) -> Result<Target, Error> {
    s3::resolve(place, &|name| std::env::var(name).ok(), options)
}

#[cfg(not(feature = "s3"))]
fn in_store(_: &str, _: &mut RemoteOptions) -> Result<Target, Error> {
    let error = Error::new(
        fmt_core::ErrorKind::Unsupported,
        "the location is in an object store, and this program was built without them",
    );
    Err(error.expected("an https:// address of the object, such as a presigned one"))
}
