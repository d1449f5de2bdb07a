//! Checks that docs/promises.md names the tests of each promise.

use std::fs;

use crate::workspace;

/// Sections in which each promise must be tested by a test or a suite, not by a person.
const ALWAYS_TESTED: [&str; 2] = ["Invariants", "Limits and attacks"];

/// Checks that each row of a page's tables names how it is tested: files with their test functions, a suite,
/// or a person.
pub(crate) fn check(page: &str, text: &str, broken: &mut Vec<String>) {
    let rows = rows(text);
    for section in ALWAYS_TESTED {
        if !rows.iter().any(|row| row.section == section) {
            broken.push(format!("{page}: the section \"{section}\" has no promises"));
        }
    }
    for row in &rows {
        let promise = row.promise;
        let mut is_tested = row.tested_by.contains("cargo xtask");
        for file in files(row.tested_by) {
            match check_file(&file) {
                Ok(()) => is_tested = true,
                Err(reason) => broken.push(format!("{page}: {reason}, for \"{promise}\"")),
            }
        }
        let by_person = is_by_person(row.tested_by) && !ALWAYS_TESTED.contains(&row.section);
        if !is_tested && !by_person {
            broken.push(format!("{page}: nothing tests \"{promise}\""));
        }
    }
}

/// Checks that a file contains the functions that a row names, and that they are tests.
fn check_file(file: &File<'_>) -> Result<(), String> {
    let name = file.name;
    let folder = if name.starts_with("xtask/") { "" } else { "crates" };
    let path = workspace::root().join(folder).join(name);
    let text = fs::read_to_string(path).map_err(|_| format!("`{name}` is not a file"))?;
    if file.functions.is_empty() && !(file.is_whole && has_tests(&text)) {
        return Err(format!("no test of `{name}` is named"));
    }
    for function in &file.functions {
        let keyword = if is_python(name) { "def" } else { "fn" };
        let Some((before, _)) = text.split_once(&format!("{keyword} {function}(")) else {
            return Err(format!("{name} has no function `{function}`"));
        };
        if !is_python(name) && !has_test_attribute(before) {
            return Err(format!("`{function}` of {name} is not a test"));
        }
    }
    Ok(())
}

/// Returns whether `before`, the text right before a function, ends with attributes that make the function a
/// test.
fn has_test_attribute(before: &str) -> bool {
    let lines = before.rsplit('\n').skip(1).map(str::trim);
    lines
        .take_while(|line| line.starts_with("#[") || line.starts_with("//"))
        .any(has_tests)
}

fn has_tests(text: &str) -> bool {
    text.contains("#[test]") || text.contains("#[tokio::test")
}

/// Returns whether a row is checked by a person, or by `cargo xtask ci` itself.
fn is_by_person(tested_by: &str) -> bool {
    let mut words = tested_by.split(|character: char| !character.is_alphanumeric());
    words.any(|word| word == "read")
        || ["by hand", "not tested", "`ci`"]
            .iter()
            .any(|way| tested_by.contains(way))
}

fn is_python(file: &str) -> bool {
    file.ends_with(".py")
}

struct Row<'a> {
    /// The heading above the row's table.
    section: &'a str,
    promise: &'a str,
    tested_by: &'a str,
}

/// A test file that a row names.
struct File<'a> {
    name: &'a str,
    functions: Vec<&'a str>,
    /// Whether the row names all tests of the file.
    is_whole: bool,
}

/// Returns the rows of the tables that have a column of tests.
fn rows(text: &str) -> Vec<Row<'_>> {
    let mut rows = Vec::new();
    let mut section = "";
    let mut is_inside = false;
    for line in text.lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            section = heading;
        }
        let is_head = line.ends_with("| tested by |");
        is_inside = is_head || is_inside && line.starts_with('|');
        if !is_inside || is_head || line.starts_with("|---") {
            continue;
        }
        let line = line.trim_matches(['|', ' ']);
        if let (Some((promise, _)), Some((_, tested_by))) = (line.split_once(" | "), line.rsplit_once(" | "))
        {
            rows.push(Row {
                section,
                promise,
                tested_by,
            });
        }
    }
    rows
}

/// Returns the files in a cell, each with the functions that follow it.
fn files(tested_by: &str) -> Vec<File<'_>> {
    let mut files: Vec<File<'_>> = Vec::new();
    let pieces: Vec<&str> = tested_by.split('`').collect();
    // Each chunk consists of a text in backticks and the text after it.
    for piece in pieces[1..].chunks(2) {
        let (code, behind) = (piece[0], piece.get(1).unwrap_or(&""));
        let is_function = code
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_');
        if code.ends_with(".rs") || is_python(code) {
            files.push(File {
                name: code,
                functions: Vec::new(),
                is_whole: behind.starts_with(": all tests"),
            });
        } else if let Some(file) = files.last_mut().filter(|_| is_function && code != "ci") {
            file.functions.push(code);
        }
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the broken rules of a page that has one promise in `section`, and a tested promise in each
    /// other section that needs one.
    fn broken(section: &str, tested_by: &str) -> Vec<String> {
        let table = |heading: &str, tested_by: &str| {
            format!(
                "## {heading}\n\n| promise | where | tested by |\n|---|---|---|\n| it holds | `x` | {tested_by} |\n\n"
            )
        };
        let mut page = table(section, tested_by);
        for always in ALWAYS_TESTED {
            page += &table(always, "`cargo xtask tidy`");
        }
        let mut broken = Vec::new();
        check("page.md", &page, &mut broken);
        broken
    }

    const NONE: [&str; 0] = [];

    #[test]
    fn promises_name_tests_that_are_there() {
        for tested_by in [
            "`xtask/src/tidy.rs`: `the_house_is_tidy`, `files_say_what_they_are`",
            "`xtask/src/tidy.rs`: all tests",
            "`xtask/src/tidy.rs`: `the_house_is_tidy`; `ci` runs it",
            "`xtask/browser/console.py`: `overview`; `cargo xtask browser`",
            "`oip-resources/src/lease.rs`: `the_budget_counts_what_is_alive` (any order of events)",
            "measured by hand",
            "read",
        ] {
            assert_eq!(broken("Starting", tested_by), NONE, "{tested_by}");
        }
        for (tested_by, reason) in [
            (
                "`xtask/src/tidy.rs`: `the_house_is_clean`, by hand",
                "xtask/src/tidy.rs has no function `the_house_is_clean`, for \"it holds\"",
            ),
            (
                "`xtask/src/clean.rs`, by hand",
                "`xtask/src/clean.rs` is not a file, for \"it holds\"",
            ),
            (
                "`xtask/src/tidy.rs`, by hand",
                "no test of `xtask/src/tidy.rs` is named, for \"it holds\"",
            ),
            (
                "`xtask/src/workspace.rs`: all tests, by hand",
                "no test of `xtask/src/workspace.rs` is named, for \"it holds\"",
            ),
            (
                "`xtask/src/tidy.rs`: `run`; `cargo xtask tidy`",
                "`run` of xtask/src/tidy.rs is not a test, for \"it holds\"",
            ),
            (
                "`xtask/browser/console.py`: `the_view`, by hand",
                "xtask/browser/console.py has no function `the_view`, for \"it holds\"",
            ),
            ("somebody", "nothing tests \"it holds\""),
        ] {
            assert_eq!(
                broken("Starting", tested_by),
                [format!("page.md: {reason}")],
                "{tested_by}"
            );
        }
    }

    /// A row that names a missing test causes two errors: the test does not exist, and the promise has no
    /// other test.
    #[test]
    fn a_wrong_name_is_no_test() {
        assert_eq!(
            broken("Starting", "`xtask/src/tidy.rs`: `the_house_is_clean`"),
            [
                "page.md: xtask/src/tidy.rs has no function `the_house_is_clean`, for \"it holds\"",
                "page.md: nothing tests \"it holds\""
            ]
        );
    }

    #[test]
    fn invariants_and_limits_need_more_than_a_person() {
        for section in ALWAYS_TESTED {
            for tested_by in ["read", "measured by hand", "not tested", "`ci`"] {
                assert_eq!(
                    broken(section, tested_by),
                    ["page.md: nothing tests \"it holds\""],
                    "{tested_by}"
                );
            }
            for tested_by in ["`cargo xtask soak`, by hand", "`xtask/src/tidy.rs`: all tests"] {
                assert_eq!(broken(section, tested_by), NONE, "{tested_by}");
            }
        }
    }

    #[test]
    fn a_page_without_these_sections_is_told() {
        let mut broken = Vec::new();
        check("page.md", "## Invariants\n\nNone.\n", &mut broken);
        assert_eq!(
            broken,
            [
                "page.md: the section \"Invariants\" has no promises",
                "page.md: the section \"Limits and attacks\" has no promises"
            ]
        );
    }
}
