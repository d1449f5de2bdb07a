//! Files on servers: `https://` by ranges, and `hf://` as a spelling of it.

mod answer;
mod file;
mod hub;
mod options;
mod resume;
mod target;

use fmt_core::{Error, ErrorKind};

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

/// Opens a file on a server. One request is made, for the part that has the index by the file's name.
///
/// Locations are
/// - `https://HOST/PATH`; `http://` for this machine only, unless [`RemoteOptions::with_plain_http`] allows more;
/// - `hf://OWNER/REPO/FILE`, `hf://OWNER/REPO@REVISION/FILE` or `hf://OWNER/REPO/FILE@REVISION`, with `datasets/` or
///   `spaces/` before the owner for these; the environment variables `HF_ENDPOINT` and `HF_TOKEN` mean what they mean to
///   the Hub's own tools.
///
/// # Errors
/// [`ErrorKind::Unsupported`] for other locations and for servers that send whole files only; [`ErrorKind::Malformed`]
/// for answers that are not what was asked for; [`ErrorKind::Io`] when there is no answer, or a refusal. The source's
/// reads fail with the same kinds, inside an [`std::io::Error`], and with [`ErrorKind::Changed`].
pub fn open(location: &str, options: &RemoteOptions) -> Result<RemoteSource, Error> {
    let mut options = options.clone();
    let target = match location.strip_prefix("hf://") {
        Some(place) => hub::resolve(place, &mut options)?,
        None if location.starts_with("s3://") => {
            let error = Error::new(ErrorKind::Unsupported, "the location is in an object store");
            return Err(error.expected("an https:// address of the object, such as a presigned one"));
        }
        None => Target::parse(location)?,
    };
    target.check_scheme(&options)?;
    let name = target.name();
    let place = options.index_place.unwrap_or_else(|| IndexPlace::of_name(&name));
    let (file, first) = HttpFile::open(target, options, place)?;
    let len = file.len();
    Ok(RemoteSource::new(len, name, Box::new(file), Some(first)))
}
