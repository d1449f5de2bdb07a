//! Checks pages against the repository: tables of crates, file names, links, and examples.

use std::{collections::BTreeSet, fs};

use anyhow::Result;

use crate::{images, links, promises, readmes, standalone, workspace, zoo};

/// Checks all pages.
pub(crate) fn check(broken: &mut Vec<String>) -> Result<()> {
    let crates = crates()?;
    for document in ["docs/crates.md", "docs/ARCHITECTURE.md"] {
        check_crates_named(document, &read(document), &crates, broken);
    }
    let promises = "docs/promises.md";
    for page in [
        "docs/ARCHITECTURE.md",
        "docs/decisions.md",
        "docs/threat-model.md",
        promises,
    ] {
        check_files_named(page, &read(page), broken)?;
    }
    promises::check(promises, &read(promises), broken);
    let pages = workspace::pages()?;
    for path in &pages {
        // A page contains this text if a test failed while its output was written into the page.
        if fs::read_to_string(path)?.contains("rust_begin_unwind") {
            broken.push(format!(
                "{}: contains a panic's stack trace",
                workspace::display(path)
            ));
        }
    }
    broken.extend(links::check(&pages)?);
    broken.extend(images::invented()?);
    check_figures(broken)?;
    check_examples(&crates, broken);
    check_lengths(broken);
    Ok(())
}

/// Returns the text of a file in the repository. The text is empty if the file does not exist.
fn read(name: &str) -> String {
    fs::read_to_string(workspace::root().join(name)).unwrap_or_default()
}

/// Returns the directories of all crates, and `xtask`.
fn crates() -> Result<BTreeSet<String>> {
    let mut crates = BTreeSet::from(["xtask".to_owned()]);
    for entry in fs::read_dir(workspace::root().join("crates"))? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            crates.insert(entry.file_name().to_string_lossy().into_owned());
        }
    }
    Ok(crates)
}

/// Checks that a document's table or list of crates has each crate exactly once.
fn check_crates_named(document: &str, text: &str, crates: &BTreeSet<String>, broken: &mut Vec<String>) {
    let rows = rows_of_crates(text);
    for name in crates {
        let found = rows.iter().filter(|row| *row == name).count();
        if found != 1 {
            broken.push(format!(
                "{document}: expected one entry for the crate `{name}`, found {found}"
            ));
        }
    }
    for row in rows.iter().filter(|row| !crates.contains(**row)) {
        broken.push(format!(
            "{document}: has an entry for `{row}`, which is not a crate"
        ));
    }
}

/// Checks that README.md contains the figures of the latest zoo run.
fn check_figures(broken: &mut Vec<String>) -> Result<()> {
    let said = zoo::summary(&read("docs/measured/zoo.md"))?;
    // Line breaks in README.md are ignored.
    let readme = read("README.md");
    let words: Vec<&str> = readme.split_whitespace().collect();
    if !words.join(" ").contains(&said) {
        broken.push(format!(
            "README.md: does not say \"{said}\", as docs/measured/zoo.md's figures are"
        ));
    }
    Ok(())
}

/// Checks that the tests compile the code in docs/crates.md, with all of its dependencies.
fn check_examples(crates: &BTreeSet<String>, broken: &mut Vec<String>) {
    let page = read("docs/crates.md");
    let example = read("crates/tensorferry/examples/echo.rs");
    let code = example.split_once("\n\n").map_or("", |(_, code)| code);
    if code.is_empty() || !page.contains(code) {
        broken.push("docs/crates.md: does not show crates/tensorferry/examples/echo.rs as it is".to_owned());
    }
    let front = readmes::example(&read("crates/tensorferry/src/lib.rs"));
    if front.is_empty() || !page.contains(&front) {
        broken.push(
            "docs/crates.md: does not show the example of crates/tensorferry/src/lib.rs as it is".to_owned(),
        );
    }
    let mut shown = vec![code.to_owned()];
    for program in ["ask", "convert"] {
        let path = format!("{}/src/bin/{program}.rs", standalone::FOLDER);
        let text = read(&path);
        let code = text.split_once("\n\n").map_or("", |(_, code)| code);
        if code.is_empty() || !page.contains(code) {
            broken.push(format!("docs/crates.md: does not show {path} as it is"));
        }
        shown.push(code.to_owned());
    }
    let is_used = |name: &&String| shown.iter().any(|code| uses(code, name));
    for name in crates.iter().filter(is_used) {
        if !page.contains(&format!("\n{name} = {{ path = ")) {
            broken.push(format!(
                "docs/crates.md: shows no dependency on {name}, which its code uses"
            ));
        }
    }
}

/// Checks that the first pages are not too long, and that docs/ARCHITECTURE.md reads well as text.
fn check_lengths(broken: &mut Vec<String>) {
    let lines = read("README.md").lines().count();
    if lines > 100 {
        broken.push(format!(
            "README.md: {lines} lines; at most 100, the rest belongs into docs/"
        ));
    }
    let architecture = read("docs/ARCHITECTURE.md");
    let lines = architecture.lines().count();
    if lines > 300 {
        broken.push(format!(
            "docs/ARCHITECTURE.md: {lines} lines; at most 300, so that it is read in one sitting"
        ));
    }
    for line in wide_lines(&architecture) {
        broken.push(format!(
            "docs/ARCHITECTURE.md:{line}: longer than {MAX_WIDTH} characters"
        ));
    }
}

/// Returns whether code imports from a crate or names an item in it.
fn uses(code: &str, name: &str) -> bool {
    code.contains(&format!("{}::", name.replace('-', "_")))
}

/// Checks that a page names only files that exist.
fn check_files_named(page: &str, text: &str, broken: &mut Vec<String>) -> Result<()> {
    let sources = workspace::sources()?;
    for name in quoted_files(text) {
        if !sources.iter().any(|source| source.ends_with(name)) {
            broken.push(format!("{page}: names `{name}`, which is not a file"));
        }
    }
    Ok(())
}

/// Returns the names of Rust files in backticks.
fn quoted_files(text: &str) -> impl Iterator<Item = &str> {
    let quoted = text.split('`').skip(1).step_by(2);
    quoted.filter(|name| name.ends_with(".rs") && !name.contains(char::is_whitespace))
}

/// Returns the names in the first column of a document's table of crates, or in bold at the start of the items
/// of its lists.
fn rows_of_crates(text: &str) -> Vec<&str> {
    let table = text.lines().skip_while(|line| !line.starts_with("| crate |"));
    let rows = table.skip(2).take_while(|line| line.starts_with('|'));
    let rows = rows.filter_map(|row| row.strip_prefix("| `")?.split('`').next());
    let items = text.lines().filter_map(|line| {
        let (name, rest) = line.strip_prefix("- **`")?.split_once('`')?;
        rest.starts_with("**:").then_some(name)
    });
    rows.chain(items).collect()
}

/// The maximum number of characters in a line of docs/ARCHITECTURE.md.
const MAX_WIDTH: usize = 120;

/// Returns the numbers of the lines that are longer than [`MAX_WIDTH`].
fn wide_lines(text: &str) -> Vec<usize> {
    let lines = (1..).zip(text.lines());
    let wide = lines.filter(|(_, line)| line.chars().count() > MAX_WIDTH);
    wide.map(|(number, _)| number).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_pages_name_exist() {
        let mut broken = Vec::new();
        check_files_named("page.md", "`none.rs` and `xtask/src/tidy.rs`", &mut broken).unwrap();
        assert_eq!(broken, ["page.md: names `none.rs`, which is not a file"]);
    }

    #[test]
    fn every_row_of_a_crate_counts() {
        let text = "| crate | knows |\n|---|---|\n| `a` | `b` |\n| `c` | |\n| `a` | again |\n\n| `d` | elsewhere |\n";
        assert_eq!(rows_of_crates(text), ["a", "c", "a"]);
        assert!(rows_of_crates("| format | crate |\n").is_empty());
        let list = "- **`a`**: files\n- **`unsafe`** is forbidden\n  - `b`: not a crate\n- **`c`**: `d`\n";
        assert_eq!(rows_of_crates(list), ["a", "c"]);
    }

    #[test]
    fn wide_lines_are_counted_in_characters() {
        let text = format!("{}\n{}\n{}\n", "x".repeat(121), "→".repeat(120), "→".repeat(121));
        assert_eq!(wide_lines(&text), [1, 3]);
    }
}
