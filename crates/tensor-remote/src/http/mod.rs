//! Files on servers: `https://` by ranges, `hf://` and `s3://` as spellings of it.

mod answer;
mod file;
mod hub;
mod options;
mod resume;
#[cfg(feature = "s3")]
mod s3;
#[cfg(feature = "s3")]
mod signer;
mod target;

use fmt_core::Error;

pub use self::options::RemoteOptions;
use self::{file::HttpFile, target::Target};
use crate::{IndexPlace, RemoteSource};

/// Schemes of locations that are not paths.
const SCHEMES: [&str; 4] = ["https://", "http://", "hf://", "s3://"];

/// Whether a text is the location of a file on a server rather than a path.
///
/// ```
/// assert!(tensor_remote::is_remote("https://example.org/model.safetensors"));
/// assert!(!tensor_remote::is_remote("models/https/model.safetensors"));
/// ```
#[must_use]
pub fn is_remote(location: &str) -> bool {
    SCHEMES.iter().any(|scheme| location.starts_with(scheme))
}

/// Opens a file on a server. One request is made, for the beginning, and another one for the end of a file that has its
/// index there by its name.
///
/// Locations are
/// - `https://HOST/PATH`; `http://` for this machine only, unless [`RemoteOptions::with_plain_http`] allows more;
/// - `hf://OWNER/REPO/FILE`, `hf://OWNER/REPO@REVISION/FILE` or `hf://OWNER/REPO/FILE@REVISION`, with `datasets/` or
///   `spaces/` before the owner for these; the environment variables `HF_ENDPOINT` and `HF_TOKEN` mean what they mean to
///   the Hub's own tools;
/// - with the feature `s3`: `s3://BUCKET/KEY`, signed by the keys in `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY` and
///   `AWS_SESSION_TOKEN`, or not signed without them; in `AWS_REGION`, at `AWS_ENDPOINT_URL` if it is another store.
///
/// # Errors
/// [`ErrorKind::Unsupported`](fmt_core::ErrorKind::Unsupported) for other locations and for servers that send whole files only; [`ErrorKind::Malformed`](fmt_core::ErrorKind::Malformed)
/// for answers that are not what was asked for; [`ErrorKind::Io`](fmt_core::ErrorKind::Io) when there is no answer, or a refusal. The source's
/// reads fail with the same kinds, inside an [`std::io::Error`], and with [`ErrorKind::Changed`](fmt_core::ErrorKind::Changed).
pub fn open(location: &str, options: &RemoteOptions) -> Result<RemoteSource, Error> {
    let mut options = options.clone();
    let target = if let Some(place) = location.strip_prefix("hf://") {
        hub::resolve(place, &mut options)?
    } else if let Some(place) = location.strip_prefix("s3://") {
        in_store(place, &mut options)?
    } else {
        Target::parse(location)?
    };
    target.check_scheme(&options)?;
    let name = target.name();
    let place = options.index_place.unwrap_or_else(|| IndexPlace::of_name(&name));
    let (file, parts) = HttpFile::open(target, options, place)?;
    let len = file.len();
    Ok(RemoteSource::new(len, name, Box::new(file), parts))
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
