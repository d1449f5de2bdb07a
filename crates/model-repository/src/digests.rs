//! An allow-list of files with their SHA-256 digests.

use std::{
    collections::BTreeMap,
    fmt,
    path::{Component, Path, PathBuf},
};

use sha2::{Digest, Sha256};

use crate::error::FileError;

/// The files of a repository that may be used, each with its SHA-256. All other files are refused, whether
/// they are models, configurations, weights or labels.
///
/// ```
/// use model_repository::RequiredDigests;
///
/// let sha256 = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
/// let list = RequiredDigests::parse("digests.txt", &format!("{sha256}  ./digits/1/model.onnx\n")).unwrap();
/// assert_eq!(list.len(), 1);
/// let error = RequiredDigests::parse("digests.txt", "digits/1/model.onnx").unwrap_err();
/// assert!(error.to_string().starts_with("digests.txt, line 1: expected 64 hexadecimal digits"));
/// ```
#[derive(Clone, Debug)]
pub struct RequiredDigests {
    /// Name of the list, used in messages.
    name: String,
    files: BTreeMap<PathBuf, String>,
}

/// The reason why a list of digests is invalid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DigestsError(String);

impl RequiredDigests {
    /// Parses a list in the format of `sha256sum` and `tensor manifest --files`: one line per file with a
    /// digest, two spaces (or a space and an asterisk) and a path relative to the repository. Empty lines and
    /// lines that begin with `#` are ignored. `name` identifies the list in messages.
    ///
    /// # Errors
    /// The first invalid line and the reason. An empty list is an error too, since it would forbid every
    /// file.
    pub fn parse(name: &str, text: &str) -> Result<Self, DigestsError> {
        let mut files = BTreeMap::new();
        for (index, line) in text.lines().enumerate() {
            if line.trim().is_empty() || line.starts_with('#') {
                continue;
            }
            let fail = |what: &str| {
                let number = index + 1;
                Err(DigestsError(format!("{name}, line {number}: {what}")))
            };
            if index == 0 && line.starts_with("tensor-manifest ") {
                return fail(
                    "this is a manifest of tensors, which does not list files; expected lines as sha256sum \
                     or \
                     tensor manifest --files writes them",
                );
            }
            let (path, digest) = match path_and_digest(line) {
                Ok(found) => found,
                Err(what) => return fail(what),
            };
            if files
                .insert(path, digest.clone())
                .is_some_and(|before| before != digest)
            {
                return fail("the file was listed before, with another digest");
            }
        }
        if files.is_empty() {
            return Err(DigestsError(format!(
                "{name} lists no file, so none could be used"
            )));
        }
        Ok(Self {
            name: name.to_owned(),
            files,
        })
    }

    /// Returns the number of files.
    #[must_use]
    pub fn len(&self) -> usize {
        self.files.len()
    }

    /// Returns whether the list is empty. Parsed lists never are.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Checks a file's bytes against the list.
    ///
    /// # Errors
    /// The file is not listed, or has a different digest.
    pub(crate) fn check(&self, path: &Path, content: &[u8]) -> Result<(), FileError> {
        let found: String = Sha256::digest(content)
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let (name, listed, list) = (
            FileError::name(path),
            path.display().to_string(),
            self.name.clone(),
        );
        match self.files.get(path) {
            Some(expected) if *expected == found => Ok(()),
            Some(expected) => Err(FileError::Digest {
                name,
                listed,
                expected: expected.clone(),
                found,
                list,
            }),
            None => Err(FileError::Unlisted {
                name,
                listed,
                found,
                list,
            }),
        }
    }
}

/// Parses a line of the list. Returns the path below the repository and the digest in lower case.
fn path_and_digest(line: &str) -> Result<(PathBuf, String), &'static str> {
    // sha256sum puts a backslash in front of a line if its file name contains escapes.
    let (line, is_escaped) = match line.strip_prefix('\\') {
        Some(line) => (line, true),
        None => (line, false),
    };
    let digest = line
        .get(..64)
        .filter(|digest| digest.bytes().all(|byte| byte.is_ascii_hexdigit()));
    let path = line
        .get(64..)
        .and_then(|rest| rest.strip_prefix("  ").or_else(|| rest.strip_prefix(" *")));
    let (Some(digest), Some(path)) = (digest, path) else {
        return Err(
            "expected 64 hexadecimal digits of a SHA-256, two spaces and a path, as sha256sum prints them",
        );
    };
    let path = match is_escaped {
        true => unescaped(path),
        false => path.to_owned(),
    };
    let mut below = PathBuf::new();
    for part in Path::new(&path).components() {
        match part {
            Component::CurDir => {}
            Component::Normal(part) => below.push(part),
            _ => {
                return Err("expected a path below the repository's directory, such as digits/1/model.onnx");
            }
        }
    }
    Ok((below, digest.to_ascii_lowercase()))
}

fn unescaped(path: &str) -> String {
    let mut text = String::with_capacity(path.len());
    let mut letters = path.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '\\' => match letters.next() {
                Some('n') => text.push('\n'),
                Some('r') => text.push('\r'),
                Some(other) => text.push(other),
                None => text.push('\\'),
            },
            letter => text.push(letter),
        }
    }
    text
}

impl fmt::Display for DigestsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for DigestsError {}

#[cfg(test)]
mod tests {
    use super::*;

    const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    #[test]
    fn lists_as_programs_write_them() {
        let upper = ABC.to_ascii_uppercase();
        let text = format!("# models\n{ABC}  ./a/1/x\n{upper} *a/1/y\n\n\\{ABC}  b/back\\\\slash\\nline\n");
        let list = RequiredDigests::parse("list", &text).unwrap();
        for path in ["a/1/x", "a/1/y", "b/back\\slash\nline"] {
            list.check(Path::new(path), b"abc").unwrap();
        }
        let error = list.check(Path::new("a/1/x"), b"abd").unwrap_err().to_string();
        let found = "a52d159f262b2c6ddb724a61840befc36eb30c88877a4030b65cbe86298449c9";
        assert_eq!(
            error,
            format!("x has the SHA-256 {found}, but list demands {ABC} for a/1/x")
        );
        let error = list.check(Path::new("a/2/x"), b"abc").unwrap_err().to_string();
        assert_eq!(
            error,
            format!("x has the SHA-256 {ABC}, but list does not list a/2/x, so it is not used")
        );
    }

    #[test]
    fn what_is_wrong_with_a_list_is_told() {
        let other = "0".repeat(64);
        for (text, why) in [
            (String::new(), "list lists no file"),
            ("abc  x".to_owned(), "line 1: expected 64 hexadecimal digits"),
            (format!("{ABC} x"), "line 1: expected 64 hexadecimal digits"),
            (
                format!("{ABC}  ok\n{ABC}  /models/x"),
                "line 2: expected a path below the repository's directory",
            ),
            (
                format!("{ABC}  ../x"),
                "line 1: expected a path below the repository's directory",
            ),
            (
                format!("{ABC}  x\n{other}  x"),
                "line 2: the file was listed before",
            ),
            (
                "tensor-manifest 1 sha256\n".to_owned(),
                "this is a manifest of tensors",
            ),
            // In this line, the end of the digest would be in the middle of a two-byte character.
            (
                format!("{}é  x", "0".repeat(63)),
                "line 1: expected 64 hexadecimal digits",
            ),
        ] {
            let error = RequiredDigests::parse("list", &text).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
