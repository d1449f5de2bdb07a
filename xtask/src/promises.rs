//! Checks that docs/promises.md names the test of each promise.

use std::fs;

use crate::workspace;

/// Checks that each row of a page's tables names its tests: existing files with tests, and functions in them; a suite; or that it is
/// done by hand.
pub(crate) fn check(page: &str, text: &str, broken: &mut Vec<String>) {
    for (promise, holder) in invariants(text) {
        let mut file: Option<(&str, String)> = None;
        let mut words = holder.split(|char: char| !char.is_alphanumeric());
        let mut is_held = words.any(|word| word == "read")
            || ["cargo xtask", "by hand", "not tested", "`ci`"]
                .iter()
                .any(|way| holder.contains(way));
        for name in holder.split('`').skip(1).step_by(2) {
            let is_name = |name: &str| {
                name.bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
            };
            if name.ends_with(".rs") || name.ends_with(".py") {
                let folder = if name.starts_with("xtask/") { "" } else { "crates" };
                match fs::read_to_string(workspace::root().join(folder).join(name)) {
                    Ok(text) => {
                        is_held |= name.ends_with(".py") || has_tests(&text);
                        file = Some((name, text));
                    }
                    Err(_) => broken.push(format!("{page}: `{name}` is no file, for \"{promise}\"")),
                }
            } else if let Some((of, text)) = file.as_ref().filter(|_| is_name(name) && name != "ci") {
                let is_there = ["fn ", "def "]
                    .iter()
                    .any(|keyword| text.contains(&format!("{keyword}{name}(")));
                if !is_there && name != "tensor" {
                    broken.push(format!(
                        "{page}: {of} has no function `{name}`, for \"{promise}\""
                    ));
                }
            }
        }
        if !is_held {
            broken.push(format!("{page}: nothing tests \"{promise}\""));
        }
    }
}

/// Whether a Rust file has tests.
fn has_tests(text: &str) -> bool {
    ["#[test]", "#[tokio::test", "proptest!"]
        .iter()
        .any(|mark| text.contains(mark))
}

/// The first and the last column of the tables that name tests.
fn invariants(text: &str) -> Vec<(&str, &str)> {
    let mut rows = Vec::new();
    let mut is_inside = false;
    for line in text.lines() {
        is_inside = line.ends_with("| tested by |") || is_inside && line.starts_with('|');
        if is_inside && !line.ends_with("| tested by |") && !line.starts_with("|---") {
            rows.push(line.trim_matches(['|', ' ']));
        }
    }
    let cells = rows.into_iter();
    cells
        .filter_map(|row| Some((row.split_once(" | ")?.0, row.rsplit_once(" | ")?.1)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn promises_name_functions_that_are_there() {
        let broken = |holder: &str| {
            let page =
                format!("| promise | where | tested by |\n|---|---|---|\n| it holds | `x` | {holder} |\n");
            let mut broken = Vec::new();
            check("page.md", &page, &mut broken);
            broken
        };
        let none: [&str; 0] = [];
        assert_eq!(broken("`xtask/src/tidy.rs`: `the_house_is_tidy`, `run`"), none);
        assert_eq!(
            broken("`xtask/browser/console.py`: `overview`; `cargo xtask browser`"),
            none
        );
        assert_eq!(broken("measured by hand"), none);
        assert_eq!(
            broken("`xtask/src/tidy.rs`: `the_house_is_clean`"),
            ["page.md: xtask/src/tidy.rs has no function `the_house_is_clean`, for \"it holds\""]
        );
        assert_eq!(
            broken("`xtask/src/clean.rs`, by hand"),
            ["page.md: `xtask/src/clean.rs` is no file, for \"it holds\""]
        );
        for untested in ["somebody", "`xtask/src/workspace.rs`"] {
            assert_eq!(broken(untested), ["page.md: nothing tests \"it holds\""]);
        }
    }
}
