//! Object names, validated before they are used as paths.

use std::{fmt, path::PathBuf};

/// An object's name below a location: a relative path that cannot escape, on any system.
///
/// ```
/// use model_store::ObjectName;
///
/// let name = ObjectName::parse("digits/1/model.onnx").unwrap();
/// assert_eq!(name.first(), "digits");
/// assert_eq!(ObjectName::parse("digits/../../x").unwrap_err().to_string(), "has a part '..'");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObjectName(String);

/// The reason why a name is not a valid path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameProblem(String);

/// Maximum length of a name in bytes, as in object stores.
const LONGEST: usize = 1024;
/// Maximum length of a path component in bytes, as in file systems.
const LONGEST_PART: usize = 255;
/// Maximum number of components of a name; the engine scans eight levels of directories.
const DEEPEST: usize = 16;

impl ObjectName {
    /// Parses a name whose components are separated by slashes.
    ///
    /// # Errors
    /// Returns why the name is not a valid path.
    pub fn parse(name: &str) -> Result<Self, NameProblem> {
        let problem = |text: String| Err(NameProblem(text));
        if name.len() > LONGEST {
            return problem(format!("has {} bytes, more than {LONGEST}", name.len()));
        }
        if name.starts_with('/') {
            return problem("begins with a slash".to_owned());
        }
        if let Some(odd) = name.chars().find(|c| *c == '\\' || c.is_control()) {
            return problem(format!("has a '{}'", odd.escape_default()));
        }
        let mut depth = 0;
        for part in name.split('/') {
            depth += 1;
            match part {
                "" => return problem("has an empty part".to_owned()),
                "." | ".." => return problem(format!("has a part '{part}'")),
                _ if part.len() > LONGEST_PART => {
                    return problem(format!(
                        "has a part of {} bytes, more than {LONGEST_PART}",
                        part.len()
                    ));
                }
                _ if depth > DEEPEST => return problem(format!("has more than {DEEPEST} parts")),
                _ => {}
            }
        }
        Ok(Self(name.to_owned()))
    }

    /// Returns the whole name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the first component, which is the model in a repository.
    #[must_use]
    pub fn first(&self) -> &str {
        self.0.split('/').next().unwrap_or(&self.0)
    }

    /// Returns whether the name has only one component.
    #[must_use]
    pub fn is_top(&self) -> bool {
        !self.0.contains('/')
    }

    /// Returns whether a component begins with a dot; model servers ignore such files.
    #[must_use]
    pub fn is_hidden(&self) -> bool {
        self.0.split('/').any(|part| part.starts_with('.'))
    }

    pub(crate) fn path(&self) -> PathBuf {
        PathBuf::from(&self.0)
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for NameProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NameProblem {}

/// Formats bytes as hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_lead_elsewhere_are_refused() {
        let long = "x".repeat(1025);
        let long_part = format!("a/{}", "x".repeat(256));
        let deep = "d/".repeat(16) + "x";
        for (name, why) in [
            ("../x", "has a part '..'"),
            ("a/../../x", "has a part '..'"),
            ("a/./x", "has a part '.'"),
            ("/etc/passwd", "begins with a slash"),
            ("a//x", "has an empty part"),
            ("a/", "has an empty part"),
            ("", "has an empty part"),
            ("a\\..\\x", "has a '\\\\'"),
            ("a\0x", "has a '\\u{0}'"),
            ("a\nx", "has a '\\n'"),
            (&long, "has 1025 bytes, more than 1024"),
            (&long_part, "has a part of 256 bytes, more than 255"),
            (&deep, "has more than 16 parts"),
        ] {
            assert_eq!(
                ObjectName::parse(name).map_err(|problem| problem.to_string()),
                Err(why.to_owned())
            );
        }
        assert!(ObjectName::parse("modèle/1/x y.onnx").is_ok());
        assert!(ObjectName::parse("a/.git/x").is_ok_and(|name| name.is_hidden()));
    }
}
