//! Parses URLs of model locations.

use std::fmt;

use sha2::{Digest, Sha256};

use crate::{
    error::StoreError,
    name::{ObjectName, hex},
};

/// The URL of remote models: a prefix of a bucket, a directory on the Hub, or a file on a web server.
///
/// ```
/// use model_store::Location;
///
/// let location = Location::parse("s3://models/production")?;
/// assert_eq!(location.to_string(), "s3://models/production");
/// assert!(Location::is_url("hf://owner/repo") && !Location::is_url("models/digits"));
/// assert!(Location::parse("ftp://example.org/models").is_err());
/// # Ok::<(), model_store::StoreError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    pub(crate) kind: LocationKind,
}

/// The kind of location.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LocationKind {
    /// A bucket or container and a prefix in it, without surrounding slashes.
    Cloud {
        cloud: Cloud,
        bucket: String,
        prefix: String,
    },
    /// `hf://OWNER/REPO[@REVISION][/FOLDER]`.
    Hub { location: String },
    /// The URL of one file.
    Web { url: String },
}

/// The provider of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cloud {
    S3,
    Google,
    Azure,
}

impl Cloud {
    pub(crate) fn scheme(self) -> &'static str {
        match self {
            Self::S3 => "s3",
            Self::Google => "gs",
            Self::Azure => "az",
        }
    }
}

const EXPECTED: &str = "s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX, hf://OWNER/REPO@REVISION/DIR or \
                        https://HOST/MODEL.onnx";

/// Returns the form of a URL that messages show, without a query or password, which may be secret.
fn shown(text: &str) -> String {
    let text = without_query(text);
    match (text.split_once("://"), text.rsplit_once('@')) {
        (Some(("https" | "http", _)), Some((_, rest))) => format!("...@{rest}"),
        _ => text.to_owned(),
    }
}

impl Location {
    /// Returns whether a string is a URL rather than a path.
    #[must_use]
    pub fn is_url(text: &str) -> bool {
        text.split_once("://").is_some_and(|(scheme, _)| {
            !scheme.is_empty()
                && scheme
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || byte == b'+')
        })
    }

    /// Parses a URL.
    ///
    /// # Errors
    /// [`StoreError::Location`] when the scheme is unknown or a part is missing.
    pub fn parse(text: &str) -> Result<Self, StoreError> {
        let wrong = |why: &str| StoreError::Location {
            found: shown(text),
            why: why.to_owned(),
            expected: EXPECTED,
        };
        let (scheme, rest) = text.split_once("://").ok_or_else(|| wrong("it has no scheme"))?;
        let cloud = match scheme {
            "s3" | "s3a" => Cloud::S3,
            "gs" | "gcs" => Cloud::Google,
            "az" | "azure" => Cloud::Azure,
            "hf" => {
                tensor_remote::HubFolder::parse(text, &tensor_remote::RemoteOptions::default())
                    .map_err(|error| wrong(&error.to_string()))?;
                return Ok(Self {
                    kind: LocationKind::Hub {
                        location: text.trim_end_matches('/').to_owned(),
                    },
                });
            }
            "https" | "http" => {
                let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
                let name = without_query(path).rsplit('/').next().unwrap_or_default();
                if host.is_empty() || host.contains('@') {
                    return Err(wrong(
                        "it needs a host, and no password, which would end up in logs",
                    ));
                }
                if name.is_empty() {
                    return Err(wrong(
                        "a web server cannot list its files, so the URL must name one model's file",
                    ));
                }
                return Ok(Self {
                    kind: LocationKind::Web { url: text.to_owned() },
                });
            }
            _ => return Err(wrong("its scheme is unknown")),
        };
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
        if bucket.is_empty() || !bucket.bytes().all(is_name) {
            return Err(wrong("it has no bucket, or an invalid bucket name"));
        }
        let prefix = prefix.trim_end_matches('/');
        if !prefix.is_empty() {
            ObjectName::parse(prefix).map_err(|why| wrong(&format!("its prefix {why}")))?;
        }
        Ok(Self {
            kind: LocationKind::Cloud {
                cloud,
                bucket: bucket.to_owned(),
                prefix: prefix.to_owned(),
            },
        })
    }

    /// Returns the default model name: the last part of the path.
    pub(crate) fn label(&self) -> String {
        let text = self.to_string();
        let path = text.split_once("://").map_or(text.as_str(), |(_, path)| path);
        let last = path.rsplit('/').next().unwrap_or(path);
        // The revision of a Hub repository is not part of the model name.
        let last = match &self.kind {
            LocationKind::Hub { .. } => last.split('@').next().unwrap_or(last),
            _ => last,
        };
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        let label: String = last.chars().map(|c| if is_plain(c) { c } else { '_' }).collect();
        match label.trim_start_matches('.') {
            "" => "model".to_owned(),
            label => label.chars().take(128).collect(),
        }
    }

    /// Returns a unique directory name for the location.
    pub(crate) fn id(&self) -> String {
        let digest = Sha256::digest(self.to_string());
        format!("{}-{}", self.label(), &hex(&digest)[..16])
    }
}

/// Displays the URL without its query, which may contain a signature.
impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            LocationKind::Cloud {
                cloud,
                bucket,
                prefix,
            } => {
                let slash = if prefix.is_empty() { "" } else { "/" };
                write!(f, "{}://{bucket}{slash}{prefix}", cloud.scheme())
            }
            LocationKind::Hub { location } => f.write_str(location),
            LocationKind::Web { url } => f.write_str(without_query(url)),
        }
    }
}

pub(crate) fn without_query(text: &str) -> &str {
    text.split(['?', '#']).next().unwrap_or(text)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn urls_name_places() {
        for (text, shown, label) in [
            ("s3://bucket", "s3://bucket", "bucket"),
            ("s3://bucket/a/b/", "s3://bucket/a/b", "b"),
            ("gs://bucket/x.onnx", "gs://bucket/x.onnx", "x.onnx"),
            ("azure://container/p", "az://container/p", "p"),
            ("hf://owner/repo@v1", "hf://owner/repo@v1", "repo"),
            ("hf://owner/repo@v1/onnx/", "hf://owner/repo@v1/onnx", "onnx"),
            (
                "https://h.example/m/iris.onnx?sig=secret",
                "https://h.example/m/iris.onnx",
                "iris.onnx",
            ),
        ] {
            let location = Location::parse(text).unwrap();
            assert_eq!(
                (location.to_string().as_str(), location.label().as_str()),
                (shown, label)
            );
            assert!(location.id().starts_with(label));
        }
    }

    #[test]
    fn what_cannot_be_is_refused_with_a_reason() {
        for (text, why) in [
            ("ftp://h/x", "its scheme is unknown"),
            ("s3:///x", "it has no bucket"),
            ("s3://b/../x", "its prefix has a part '..'"),
            ("https://h.example/", "cannot list its files"),
            ("https://user:word@h.example/x", "no password"),
            ("hf://owner", "hf://OWNER/REPO"),
        ] {
            let error = Location::parse(text).unwrap_err().to_string();
            assert!(error.contains(why) && error.contains("expected s3://"), "{error}");
        }
        // The error does not repeat the URL's signature, which is a secret.
        let error = Location::parse("ftp://h/x?sig=secret").unwrap_err().to_string();
        assert!(!error.contains("secret"), "{error}");
    }
}
