//! Lists the files of a Hub repository at a commit.

use std::ops::ControlFlow;

use fmt_core::{Error, ErrorKind};
use percent_encoding::utf8_percent_encode;
use serde::Deserialize;

use super::{RemoteOptions, file::Server, hub};

/// A directory of a Hub repository whose files can be listed.
///
/// All files are listed at one commit, so concurrent changes of the repository cannot mix versions.
///
/// ```no_run
/// use std::ops::ControlFlow;
/// use tensor_remote::{HubFolder, RemoteFile, RemoteOptions};
///
/// # fn main() -> Result<(), fmt_core::Error> {
/// let options = RemoteOptions::default();
/// let folder = HubFolder::parse("hf://openai-community/gpt2@main/onnx", &options)?;
/// let commit = folder.commit()?;
/// let mut locations = Vec::new();
/// folder.files(&commit, &mut |file| {
///     locations.push(folder.location(&commit, &file.path));
///     ControlFlow::Continue(())
/// })?;
/// let first = RemoteFile::open(&locations[0], &options)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct HubFolder {
    /// `models`, `datasets` or `spaces`.
    kind: &'static str,
    owner: String,
    repo: String,
    revision: String,
    /// The directory, without surrounding slashes; empty for the whole repository.
    folder: String,
    options: RemoteOptions,
}

/// A file of a Hub repository.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HubFile {
    /// The file's path in the repository.
    pub path: String,
    /// Size of the file in bytes.
    pub size: u64,
    /// Git's object id of the file's content.
    pub oid: String,
    /// The SHA-256 of the file's bytes in hexadecimal, if the Hub provides it (for large files).
    pub sha256: Option<String>,
}

/// Maximum response size in bytes. A page lists 1000 files, with about 300 bytes per file.
const LARGEST_PAGE: u64 = 8 << 20;
/// Maximum number of pages.
const MOST_PAGES: usize = 1000;

impl HubFolder {
    /// Parses `hf://OWNER/REPO[@REVISION][/FOLDER]`, with `datasets/` or `spaces/` before the owner for those
    /// kinds. Makes no request.
    ///
    /// # Errors
    /// [`ErrorKind::Malformed`] for any other form.
    pub fn parse(location: &str, options: &RemoteOptions) -> Result<Self, Error> {
        let malformed = || {
            Error::new(ErrorKind::Malformed, "the location on the Hub")
                .expected("hf://OWNER/REPO, then @REVISION if it is not main, then /DIR if it is not the whole repository")
        };
        let place = location.strip_prefix("hf://").ok_or_else(malformed)?;
        let (kind, place) = match place.split_once('/') {
            Some(("datasets", rest)) => ("datasets", rest),
            Some(("spaces", rest)) => ("spaces", rest),
            Some(("models", rest)) => ("models", rest),
            _ => ("models", place),
        };
        let (owner, rest) = place.split_once('/').ok_or_else(malformed)?;
        let (repo, folder) = rest.split_once('/').unwrap_or((rest, ""));
        let (repo, revision) = repo.split_once('@').unwrap_or((repo, "main"));
        let folder = folder.trim_end_matches('/');
        let has_odd_part = folder.split('/').any(|part| matches!(part, "." | ".."));
        if [owner, repo, revision].contains(&"") || has_odd_part || folder.contains("//") {
            return Err(malformed());
        }
        Ok(Self {
            kind,
            owner: owner.to_owned(),
            repo: repo.to_owned(),
            // A slash in the revision must be written %2F, because a plain one starts the directory.
            revision: revision.replace("%2F", "/").replace("%2f", "/"),
            folder: folder.to_owned(),
            options: options.clone(),
        })
    }

    /// Returns the repository's name without its owner.
    #[must_use]
    pub fn repo(&self) -> &str {
        &self.repo
    }

    /// Returns the directory in the repository, without surrounding slashes; empty for the whole repository.
    #[must_use]
    pub fn folder(&self) -> &str {
        &self.folder
    }

    /// Returns the commit that the revision currently names. Makes one request.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] when the request fails, for example because the repository or the revision does not
    /// exist.
    pub fn commit(&self) -> Result<String, Error> {
        #[derive(Deserialize)]
        struct Info {
            sha: String,
        }
        let revision = encoded(&self.revision);
        let (_, document) = self
            .server(&format!("{}/revision/{revision}", self.api()))?
            .document(LARGEST_PAGE)?;
        let info: Info = parsed(&document)?;
        let is_commit = (7..=64).contains(&info.sha.len()) && info.sha.bytes().all(|b| b.is_ascii_hexdigit());
        match is_commit {
            true => Ok(info.sha),
            false => Err(no_listing("an invalid commit")),
        }
    }

    /// Calls `each` with all files in the directory at a commit, until `each` returns `Break`. Makes about
    /// one request per 1000 files. If the directory is missing or is a file, the error is [`ErrorKind::Io`].
    ///
    /// # Errors
    /// [`ErrorKind::Io`] when a request fails; [`ErrorKind::Malformed`] when a response is not a list of
    /// files; [`ErrorKind::TooLarge`] when there are too many pages.
    pub fn files(&self, commit: &str, each: &mut dyn FnMut(HubFile) -> ControlFlow<()>) -> Result<(), Error> {
        let folder: Vec<String> = self.folder.split('/').map(encoded).collect();
        let folder = folder.join("/");
        let slash = if folder.is_empty() { "" } else { "/" };
        let path = format!("{}/tree/{commit}{slash}{folder}?recursive=true", self.api());
        let mut server = self.server(&path)?;
        let first = server.target().clone();
        for _ in 0..MOST_PAGES {
            let (headers, page) = server.document(LARGEST_PAGE)?;
            for item in parsed::<Vec<Item>>(&page)? {
                if item.kind == "file" && each(item.into_file()).is_break() {
                    return Ok(());
                }
            }
            let link = headers.get("link").and_then(|link| link.to_str().ok());
            let Some(next) = link.and_then(next_page) else {
                return Ok(());
            };
            let next = first.join(next)?;
            if !next.has_origin_of(&first) {
                return Err(no_listing("a next page on another host").found(next.host()));
            }
            server = Server::new(next, self.options_with_token()?)?;
        }
        let error = Error::new(ErrorKind::TooLarge, "the Hub's list of files");
        Err(error.expected(format_args!("at most {MOST_PAGES} pages")))
    }

    /// Returns the location of a file at a commit, for [`RemoteFile::open`](crate::RemoteFile::open).
    #[must_use]
    pub fn location(&self, commit: &str, path: &str) -> String {
        // Encodes percent signs, because locations may already be encoded.
        let path = path.replace('%', "%25");
        format!("hf://{}/{}/{}@{commit}/{path}", self.kind, self.owner, self.repo)
    }

    fn api(&self) -> String {
        format!(
            "api/{}/{}/{}",
            self.kind,
            encoded(&self.owner),
            encoded(&self.repo)
        )
    }

    fn server(&self, path: &str) -> Result<Server, Error> {
        let mut options = self.options.clone();
        let target = hub::own(path, &mut options)?;
        target.check_scheme(&options)?;
        Server::new(target, options)
    }

    fn options_with_token(&self) -> Result<RemoteOptions, Error> {
        let mut options = self.options.clone();
        hub::own("", &mut options)?;
        Ok(options)
    }
}

/// An entry of the Hub's tree: a file or a directory.
#[derive(Deserialize)]
struct Item {
    #[serde(rename = "type")]
    kind: String,
    path: String,
    #[serde(default)]
    size: u64,
    #[serde(default)]
    oid: String,
    lfs: Option<Lfs>,
}

/// Entry of a large file, for which Git stores only a pointer.
#[derive(Deserialize)]
struct Lfs {
    oid: String,
    size: Option<u64>,
}

impl Item {
    fn into_file(self) -> HubFile {
        let size = self.lfs.as_ref().and_then(|lfs| lfs.size).unwrap_or(self.size);
        let sha256 = self
            .lfs
            .map(|lfs| lfs.oid.trim_start_matches("sha256:").to_owned());
        let is_digest = |text: &String| text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        HubFile {
            path: self.path,
            size,
            oid: self.oid,
            sha256: sha256.filter(is_digest).map(|text| text.to_ascii_lowercase()),
        }
    }
}

fn encoded(part: impl AsRef<str>) -> String {
    utf8_percent_encode(part.as_ref(), hub::PART).to_string()
}

fn parsed<T: serde::de::DeserializeOwned>(document: &[u8]) -> Result<T, Error> {
    serde_json::from_slice(document).map_err(|error| no_listing(&format!("{error}")))
}

fn no_listing(found: &str) -> Error {
    let error = Error::new(
        ErrorKind::Malformed,
        "the response of the Hub (HF_ENDPOINT names another one)",
    );
    error.expected("JSON as the Hub's API has it").found(found)
}

/// Returns the URL of the next page in a `Link` header.
fn next_page(link: &str) -> Option<&str> {
    let next = link.split(',').find(|link| link.contains("rel=\"next\""))?;
    let (_, next) = next.split_once('<')?;
    Some(next.split_once('>')?.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_of_a_folder() {
        let parsed = |text| HubFolder::parse(text, &RemoteOptions::default());
        for (text, kind, repo, revision, folder) in [
            ("hf://o/r", "models", "r", "main", ""),
            ("hf://o/r/", "models", "r", "main", ""),
            ("hf://o/r@v1/sub/folder/", "models", "r", "v1", "sub/folder"),
            (
                "hf://datasets/o/r@refs%2Fpr%2F1/x",
                "datasets",
                "r",
                "refs/pr/1",
                "x",
            ),
        ] {
            let found = parsed(text).unwrap();
            assert_eq!(
                (found.kind, found.repo(), found.revision.as_str(), found.folder()),
                (kind, repo, revision, folder),
                "{text}"
            );
        }
        for wrong in [
            "hf://",
            "hf://o",
            "hf://o/",
            "hf:///r",
            "hf://o/r@",
            "hf://o/r/../x",
            "hf://o/r/a//b",
            "s3://o/r",
        ] {
            assert_eq!(parsed(wrong).unwrap_err().kind(), ErrorKind::Malformed, "{wrong}");
        }
        let folder = parsed("hf://o/r@v1/sub").unwrap();
        assert_eq!(
            folder.location("abc", "sub/a%b.onnx"),
            "hf://models/o/r@abc/sub/a%25b.onnx"
        );
    }

    #[test]
    fn the_next_page_stands_in_a_header() {
        let link = "<https://h/api?cursor=a>; rel=\"first\", <https://h/api?cursor=b>; rel=\"next\"";
        assert_eq!(next_page(link), Some("https://h/api?cursor=b"));
        assert_eq!(next_page("<https://h/api>; rel=\"last\""), None);
        assert_eq!(next_page("rel=\"next\""), None);
    }
}
