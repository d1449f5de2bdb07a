//! `hf://`: files of the Hugging Face Hub.

use std::{env, fs, path::PathBuf};

use fmt_core::{Error, ErrorKind};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::{RemoteOptions, options::Token, target::Target};

/// Characters to percent-encode in a path segment, including the slash of a revision; existing percent signs
/// are kept.
pub(crate) const PART: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b'%');
/// Maximum size of a token file in bytes.
const LONGEST_TOKEN: u64 = 4096;

/// Resolves the part of a location after `hf://` to a URL. Sets the user's own token in `options`, unless a
/// token is already set.
pub(crate) fn resolve(place: &str, options: &mut RemoteOptions) -> Result<Target, Error> {
    let path = path(place).ok_or_else(|| {
        let error = Error::new(ErrorKind::Malformed, "the location on the Hub");
        error.expected("hf://OWNER/REPO/FILE, with @REVISION behind REPO or FILE if it is not main")
    })?;
    own(&path, options)
}

/// Returns the URL of `path` on the Hub. Sets the user's own token in `options`, unless a token is already
/// set.
pub(crate) fn own(path: &str, options: &mut RemoteOptions) -> Result<Target, Error> {
    let endpoint = env::var("HF_ENDPOINT")
        .ok()
        .filter(|endpoint| !endpoint.is_empty());
    let endpoint = endpoint.as_deref().unwrap_or("https://huggingface.co");
    let target = Target::parse(&format!("{}/{path}", endpoint.trim_end_matches('/')))?;
    if options.token.is_none() {
        options.token = own_token().map(Token);
    }
    Ok(target)
}

/// Returns `OWNER/REPO/resolve/REVISION/FILE`.
fn path(place: &str) -> Option<String> {
    let (kind, place) = match place.split_once('/') {
        Some((kind @ ("datasets" | "spaces"), rest)) => (format!("{kind}/"), rest),
        Some(("models", rest)) => (String::new(), rest),
        _ => (String::new(), place),
    };
    let (owner, rest) = place.split_once('/')?;
    let (repo, file) = rest.split_once('/')?;
    let (repo, file, revision) = match (repo.split_once('@'), file.rsplit_once('@')) {
        (Some((repo, revision)), _) => (repo, file, revision),
        (None, Some((file, revision))) => (repo, file, revision),
        (None, None) => (repo, file, "main"),
    };
    if [owner, repo, file, revision].contains(&"") || file.ends_with('/') {
        return None;
    }
    let encoded = |part: &str| utf8_percent_encode(part, PART).to_string();
    let file: Vec<_> = file.split('/').map(encoded).collect();
    let (owner, repo, revision, file) = (encoded(owner), encoded(repo), encoded(revision), file.join("/"));
    Some(format!("{kind}{owner}/{repo}/resolve/{revision}/{file}"))
}

/// Returns the user's token from where the Hub's tools store it.
fn own_token() -> Option<String> {
    let usable = |token: &str| {
        let token = token.trim();
        (!token.is_empty()).then(|| token.to_owned())
    };
    if let Some(token) = env::var("HF_TOKEN").ok().as_deref().and_then(usable) {
        return Some(token);
    }
    let is_off =
        env::var("HF_HUB_DISABLE_IMPLICIT_TOKEN").is_ok_and(|value| value != "0" && !value.is_empty());
    if is_off {
        return None;
    }
    let home = || env::home_dir().filter(|home| !home.as_os_str().is_empty());
    let cache = || match env::var_os("XDG_CACHE_HOME") {
        Some(cache) => Some(PathBuf::from(cache)),
        None => Some(home()?.join(".cache")),
    };
    let folder = || match env::var_os("HF_HOME") {
        Some(folder) => Some(PathBuf::from(folder)),
        None => Some(cache()?.join("huggingface")),
    };
    let path = match env::var_os("HF_TOKEN_PATH") {
        Some(path) => PathBuf::from(path),
        None => folder()?.join("token"),
    };
    let is_small = fs::metadata(&path).is_ok_and(|file| file.is_file() && file.len() <= LONGEST_TOKEN);
    let text = is_small.then(|| fs::read_to_string(&path).ok()).flatten();
    text.as_deref().and_then(usable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_of_a_file() {
        for (place, wanted) in [
            ("o/r/model.safetensors", "o/r/resolve/main/model.safetensors"),
            ("o/r/sub/a b.gguf@v1.0", "o/r/resolve/v1.0/sub/a%20b.gguf"),
            ("o/r@v1.0/sub/x.zt", "o/r/resolve/v1.0/sub/x.zt"),
            ("o/r@refs%2Fpr%2F1/x.zt", "o/r/resolve/refs%2Fpr%2F1/x.zt"),
            ("o/r/x.zt@refs/pr/1", "o/r/resolve/refs%2Fpr%2F1/x.zt"),
            ("datasets/o/r/x.npy", "datasets/o/r/resolve/main/x.npy"),
            ("models/o/r/x.npy", "o/r/resolve/main/x.npy"),
        ] {
            assert_eq!(path(place).as_deref(), Some(wanted), "{place}");
        }
        for wrong in [
            "",
            "o",
            "o/r",
            "o/r/",
            "/r/x",
            "o//x",
            "o/r@/x",
            "o/r/x@",
            "datasets/o/r",
        ] {
            assert_eq!(path(wrong), None, "{wrong}");
        }
    }
}
