//! Selects and renames tensors by patterns over names.

use std::str::FromStr;

use fmt_core::{Entry, Error, ErrorKind, TensorReader};
use regex::{Captures, Regex};

use crate::composite::Composite;

/// A pattern for names: a glob that matches the whole name, or a regular expression after `re:` that matches
/// a part of the name.
///
/// In a glob `*` matches any string, `?` any character, `[a-c]` a character in the set, `[!a-c]` a character
/// outside the set, `{x,y}` one of several strings; `\` escapes the next character. Dots and slashes are
/// ordinary characters.
///
/// ```
/// let pattern: tensor_files::Pattern = "model.layers.{0,1}.*.weight".parse()?;
/// assert!(pattern.matches("model.layers.1.mlp.up_proj.weight"));
/// assert!(!pattern.matches("model.layers.10.mlp.up_proj.weight"));
/// assert!("re:layers\\.\\d+\\.".parse::<tensor_files::Pattern>()?.matches("model.layers.10.norm"));
/// # Ok::<(), fmt_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Pattern {
    text: String,
    regex: Regex,
    /// Number of the glob's stars, each of which is a group of `regex`. `None` for a regular expression.
    stars: Option<usize>,
}

impl Pattern {
    /// Returns whether a name matches.
    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        self.regex.is_match(name)
    }
}

fn bad_pattern(what: &str, text: &str, why: impl std::fmt::Display) -> Error {
    let error = Error::new(ErrorKind::Malformed, what);
    error.expected(why).found(format_args!("'{text}'"))
}

impl FromStr for Pattern {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let (expression, stars) = match text.strip_prefix("re:") {
            Some(expression) => (expression.to_owned(), None),
            None => {
                let (expression, stars) = of_glob(text)?;
                (expression, Some(stars))
            }
        };
        let regex = Regex::new(&expression).map_err(|error| {
            // The last line of the error has the message; the lines before it show the position.
            let why = error.to_string();
            let why = why
                .lines()
                .last()
                .unwrap_or_default()
                .trim_start_matches("error: ");
            bad_pattern(
                "the pattern cannot be read",
                text,
                format_args!("a regular expression: {why}"),
            )
        })?;
        Ok(Self {
            text: text.to_owned(),
            regex,
            stars,
        })
    }
}

/// Converts a glob to a regular expression with a group per star; also returns the number of stars.
fn of_glob(glob: &str) -> Result<(String, usize), Error> {
    let bad = |why: &str| bad_pattern("the pattern cannot be read", glob, why);
    let mut expression = "(?s)^".to_owned();
    let (mut stars, mut depth) = (0, 0);
    let mut chars = glob.chars();
    while let Some(char) = chars.next() {
        match char {
            '*' => {
                expression += "(.*)";
                stars += 1;
            }
            '?' => expression.push('.'),
            '{' => {
                expression += "(?:";
                depth += 1;
            }
            '}' if depth > 0 => {
                expression.push(')');
                depth -= 1;
            }
            ',' if depth > 0 => expression.push('|'),
            '[' => {
                let rest = chars.as_str();
                let (is_not, rest) = match rest.strip_prefix('!') {
                    Some(rest) => (true, rest),
                    None => (false, rest),
                };
                // A closing bracket at the start belongs to the set.
                let end = rest.char_indices().skip(1).find(|(_, char)| *char == ']');
                let (end, _) = end.ok_or_else(|| bad("a ] for each [, or \\["))?;
                expression += if is_not { "[^" } else { "[" };
                for char in rest[..end].chars() {
                    if char == '-' {
                        expression.push('-');
                    } else {
                        expression += &regex::escape(&char.to_string());
                    }
                }
                expression.push(']');
                chars = rest[end + 1..].chars();
            }
            '\\' => {
                let next = chars.next().ok_or_else(|| bad("a character after the last \\"))?;
                expression += &regex::escape(&next.to_string());
            }
            other => expression += &regex::escape(&other.to_string()),
        }
    }
    if depth > 0 {
        return Err(bad("a } for each {, or \\{"));
    }
    expression.push('$');
    Ok((expression, stars))
}

/// Renames the tensors that match a pattern: `FROM=>TO`.
///
/// With a glob, the n-th `*` of the new name is replaced by what the n-th `*` of the pattern matched. With a
/// regular expression the matching part of the name is replaced, and `$1` or `${name}` refer to its groups.
///
/// ```
/// let renaming: tensor_files::Renaming = "model.*=>*".parse()?;
/// assert_eq!(renaming.of("model.norm.weight").as_deref(), Some("norm.weight"));
/// let renaming: tensor_files::Renaming = "re:layers\\.(\\d+)=>h.$1".parse()?;
/// assert_eq!(renaming.of("model.layers.7.norm").as_deref(), Some("model.h.7.norm"));
/// assert_eq!(renaming.of("model.norm"), None);
/// # Ok::<(), fmt_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Renaming {
    from: Pattern,
    to: String,
}

impl Renaming {
    /// Returns the new name of the tensor `name`, if the pattern matches.
    #[must_use]
    pub fn of(&self, name: &str) -> Option<String> {
        if self.from.stars.is_none() {
            return self
                .from
                .regex
                .is_match(name)
                .then(|| self.from.regex.replace(name, self.to.as_str()).into_owned());
        }
        let found: Captures<'_> = self.from.regex.captures(name)?;
        let mut stars = 1..;
        let parts = self.to.split('*').map(str::to_owned);
        parts.reduce(|new, part| {
            let star = stars.next().and_then(|star| found.get(star));
            new + star.map_or("", |star| star.as_str()) + &part
        })
    }
}

impl FromStr for Renaming {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let bad = |why: &str| bad_pattern("the renaming cannot be read", text, why);
        let (from, to) = text.split_once("=>").ok_or_else(|| bad("FROM=>TO"))?;
        let from: Pattern = from.parse()?;
        if from.stars.is_some_and(|stars| to.matches('*').count() > stars) {
            return Err(bad("no more stars in the new name than in the old"));
        }
        let to = to.to_owned();
        Ok(Self { from, to })
    }
}

/// A selection of a file's tensors, and their new names.
///
/// All patterns are matched against original names. The first renaming that matches applies.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Selection {
    /// Patterns of the tensors to keep; empty for all.
    pub include: Vec<Pattern>,
    /// Patterns of the tensors to leave out.
    pub exclude: Vec<Pattern>,
    /// Renamings of the selected tensors, in order of precedence.
    pub rename: Vec<Renaming>,
}

impl Selection {
    /// Returns whether all tensors are kept, with their names.
    #[must_use]
    pub fn is_everything(&self) -> bool {
        self.include.is_empty() && self.exclude.is_empty() && self.rename.is_empty()
    }

    /// Applies the selection to files that belong together, such as two files to compare.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfBounds`] for a pattern that matches no tensor of any file, which is usually a typo;
    /// [`ErrorKind::Duplicate`] when two tensors of a file would get the same name.
    pub fn apply(&self, files: &mut [&mut Composite<'_>]) -> Result<(), Error> {
        let fits_some = |pattern: &Pattern, files: &[&mut Composite<'_>]| {
            let mut entries = files.iter().flat_map(|file| file.entries());
            entries.any(|entry| pattern.matches(&entry.name))
        };
        let renamed = self.rename.iter().map(|renaming| &renaming.from);
        for pattern in self.include.iter().chain(&self.exclude).chain(renamed) {
            if !fits_some(pattern, files) {
                let error = Error::new(ErrorKind::OutOfBounds, "the pattern matches no tensor");
                return Err(error.found(format_args!("'{}'", pattern.text)));
            }
        }
        let fits =
            |patterns: &[Pattern], entry: &Entry| patterns.iter().any(|pattern| pattern.matches(&entry.name));
        for file in files {
            file.retain(|entry| {
                (self.include.is_empty() || fits(&self.include, entry)) && !fits(&self.exclude, entry)
            });
            file.rename_all(|name| self.rename.iter().find_map(|renaming| renaming.of(name)))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs_fit_whole_names() {
        for (glob, yes, no) in [
            ("a.b", "a.b", "axb"),
            ("*", "", "-"),
            ("a/*/c", "a/b/b/c", "a/c"),
            ("?.w", "ä.w", "ab.w"),
            ("l[0-2]", "l1", "l3"),
            ("l[!0-2]", "l3", "l1"),
            ("[]]", "]", "["),
            ("[^x]", "^", "a"),
            ("{a,b*}c", "bxc", "c"),
            (r"\*\{", "*{", "a{"),
            ("a(b)+$", "a(b)+$", "abb"),
            ("a\nb*", "a\nb\nc", "a b"),
        ] {
            let pattern: Pattern = glob.parse().unwrap();
            assert!(pattern.matches(yes), "{glob} {yes}");
            assert!(no == "-" || !pattern.matches(no), "{glob} {no}");
        }
        for wrong in ["[a", "{a", "a\\", "re:("] {
            let error = wrong.parse::<Pattern>().unwrap_err();
            assert!(error.to_string().contains(wrong), "{error}");
        }
    }

    #[test]
    fn stars_stand_for_what_they_stood_for() {
        let renamed = |renaming: &str, name: &str| renaming.parse::<Renaming>().unwrap().of(name);
        assert_eq!(renamed("a.*.b.*=>*/x/*", "a.1.b.2").as_deref(), Some("1/x/2"));
        assert_eq!(renamed("*=>$1", "w").as_deref(), Some("$1"));
        assert_eq!(renamed("w=>v", "ww"), None);
        assert_eq!(renamed("re:^=>model.", "w").as_deref(), Some("model.w"));
        for wrong in ["a", "a=>*", "[=>b"] {
            assert!(wrong.parse::<Renaming>().is_err(), "{wrong}");
        }
    }
}
