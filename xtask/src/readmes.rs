//! Generates each library's README.md from the crate-level documentation, so that both have the same text.
//! Handwritten READMEs are left unchanged.

use std::{fs, path::PathBuf};

use anyhow::{Context, Result, bail};

use crate::workspace;

/// The first line of a generated README.
const MARK: &str = "<!-- Made by `cargo xtask codegen` from the front of src/lib.rs. -->";

/// Returns the paths and the expected contents of the generated READMEs.
pub(crate) fn generate() -> Result<Vec<(PathBuf, String)>> {
    let mut files = Vec::new();
    for folder in fs::read_dir(workspace::root().join("crates"))? {
        let folder = folder?.path();
        let (library, readme) = (folder.join("src/lib.rs"), folder.join("README.md"));
        let is_own = fs::read_to_string(&readme).is_ok_and(|text| !text.starts_with(MARK));
        if is_own || !library.exists() {
            continue;
        }
        let name = folder
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let source =
            fs::read_to_string(&library).with_context(|| format!("reading {}", library.display()))?;
        if let Some(missing) = missing_names(&source).first() {
            bail!(
                "{}: the example uses `{missing}`, which only a hidden line defines, so that README.md lacks it",
                library.display()
            );
        }
        let page = page(&source);
        files.push((
            readme,
            format!("{MARK}\n\n# {name}\n\n{page}\n{}", dependency(&name)),
        ));
    }
    files.sort();
    Ok(files)
}

/// Returns the section about depending on a crate.
fn dependency(name: &str) -> String {
    format!(
        "## As a dependency\n\nIt is not on crates.io yet: clone the repository of Tensorferry next to your program.\n\n\
         ```toml\n[dependencies]\n{name} = {{ path = \"../tensorferry/crates/{name}\" }}\n```\n"
    )
}

/// Returns the lines of the crate-level documentation in `source`.
fn front(source: &str) -> impl Iterator<Item = &str> {
    let lines = source.lines().skip_while(|line| !line.starts_with("//!"));
    let lines = lines.take_while(|line| line.starts_with("//!"));
    lines
        .map(|line| line.trim_start_matches("//!"))
        .map(|line| line.strip_prefix(' ').unwrap_or(line))
}

/// Returns whether a line of an example is compiled but not shown.
fn is_hidden(line: &str) -> bool {
    line == "#" || line.starts_with("# ")
}

/// Returns the crate-level documentation as plain Markdown.
fn page(source: &str) -> String {
    let mut page = String::new();
    let (mut is_code, mut is_rust) = (false, false);
    for line in front(source) {
        if let Some(language) = line.trim_start().strip_prefix("```") {
            if !is_code {
                let first = language.split(',').next().unwrap_or_default();
                is_rust = matches!(
                    first,
                    "" | "rust" | "no_run" | "ignore" | "should_panic" | "compile_fail"
                );
            }
            is_code = !is_code;
            page += if is_code && is_rust { "```rust" } else { line };
        } else if is_code {
            if is_rust && is_hidden(line) {
                continue;
            }
            page += line;
        } else if is_definition(line) {
            continue;
        } else {
            if line.starts_with('#') {
                page.push('#');
            }
            page += &without_paths(line);
        }
        page.push('\n');
    }
    page.trim_end().to_owned() + "\n"
}

/// Returns the first Rust example of the crate-level documentation, without hidden lines.
pub(crate) fn example(source: &str) -> String {
    let page = page(source);
    let (_, code) = page.split_once("```rust\n").unwrap_or_default();
    code.split("```").next().unwrap_or_default().to_owned()
}

/// Returns the names that examples use but only hidden lines define. Such an example compiles, but a reader
/// cannot run the visible part.
fn missing_names(source: &str) -> Vec<&str> {
    let mut missing = Vec::new();
    let (mut is_code, mut defined, mut shown) = (false, Vec::new(), Vec::new());
    for line in front(source) {
        if line.trim_start().starts_with("```") {
            let here: Vec<&str> = shown.iter().copied().flat_map(names_defined).collect();
            let is_used = |name: &&str| shown.iter().any(|line| is_named(line, name));
            missing.extend(
                defined
                    .drain(..)
                    .filter(|name| !here.contains(name))
                    .filter(is_used),
            );
            shown.clear();
            is_code = !is_code;
        } else if is_code && is_hidden(line) {
            defined.extend(names_defined(line));
        } else if is_code {
            shown.push(line);
        }
    }
    missing
}

/// Returns the names that a line of Rust brings into scope, by `let`, `struct`, `fn` and the last segments of
/// `use`.
fn names_defined(line: &str) -> Vec<&str> {
    let line = line.trim_start_matches(['#', ' ']);
    if let Some(path) = line.strip_prefix("use ") {
        let leaves = path
            .split([',', '{', '}', ';'])
            .map(|part| part.rsplit("::").next());
        return leaves.flatten().flat_map(words).collect();
    }
    let after = |keyword| line.strip_prefix(keyword);
    let defined = after("let ")
        .map(|rest| rest.split(['=', ':']).next().unwrap_or_default())
        .or_else(|| after("struct "))
        .or_else(|| after("fn ").filter(|rest| !rest.starts_with("main")));
    match defined {
        Some(part) => words(part.split('{').next().unwrap_or_default())
            .filter(|word| *word != "mut")
            .collect(),
        None => Vec::new(),
    }
}

/// Returns whether the code on a line uses `name` other than as a method or field.
fn is_named(line: &str, name: &str) -> bool {
    // Comments and strings may contain the same words, so they are skipped.
    let code: Vec<&str> = line.split('"').step_by(2).collect();
    let code = code.join("\"");
    let code = code.split("//").next().unwrap_or_default();
    let is_part = |char: char| char.is_alphanumeric() || char == '_';
    code.match_indices(name).any(|(at, _)| {
        let (before, after) = (&code[..at], &code[at + name.len()..]);
        !before.ends_with(is_part) && !before.ends_with('.') && !after.starts_with(is_part)
    })
}

/// Returns the identifiers of a line.
fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(|char: char| !char.is_alphanumeric() && char != '_')
        .filter(|word| word.starts_with(|first: char| first.is_alphabetic() || first == '_'))
}

/// Returns whether a line is only a link definition: `[text]: target`.
fn is_definition(line: &str) -> bool {
    let parts = line.strip_prefix('[').and_then(|line| line.split_once("]: "));
    parts.is_some_and(|(text, target)| {
        !text.is_empty() && !text.contains(']') && !target.is_empty() && !target.contains(char::is_whitespace)
    })
}

/// Prefixes of link texts that tell rustdoc the kind of an item. rustdoc does not show these prefixes.
const KINDS: [&str; 9] = [
    "struct@", "enum@", "trait@", "fn@", "mod@", "macro@", "type@", "const@", "derive@",
];

/// Returns the text of a link as rustdoc shows it.
fn text_of_link(text: &str) -> String {
    let kind = text
        .strip_prefix('`')
        .and_then(|name| KINDS.iter().find_map(|kind| name.strip_prefix(kind)));
    kind.map_or_else(|| text.to_owned(), |name| format!("`{name}"))
}

/// Appends a piece of a line. Merges adjacent pieces of inline code.
fn join(line: &mut String, part: &str) {
    match part.strip_prefix('`').filter(|_| line.ends_with('`')) {
        Some(rest) => {
            line.pop();
            line.push_str(rest);
        }
        None => line.push_str(part),
    }
}

/// Replaces links to Rust items in a line with their text.
fn without_paths(line: &str) -> String {
    let (mut plain, mut rest) = (String::new(), line);
    while let Some(start) = rest.find('[') {
        let (before, link) = rest.split_at(start);
        join(&mut plain, before);
        let Some(end) = link.find(']') else {
            rest = link;
            break;
        };
        let (text, after) = (&link[1..end], &link[end + 1..]);
        let target = after.strip_prefix('(').and_then(|target| target.split_once(')'));
        match target {
            Some((path, after)) if !path.contains("://") && !path.ends_with(".md") => {
                join(&mut plain, &text_of_link(text));
                rest = after;
            }
            None if text.starts_with('`') => {
                join(&mut plain, &text_of_link(text));
                rest = after;
            }
            Some(_) | None => {
                plain += &link[..=end];
                rest = after;
            }
        }
    }
    join(&mut plain, rest);
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_to_items_become_their_texts() {
        for (line, plain) in [
            (
                "see [`A`] and [`B`](crate::B), [all](c::all)",
                "see `A` and `B`, all",
            ),
            (
                "[Rust](https://rustup.rs) and [x] of [1, 2]",
                "[Rust](https://rustup.rs) and [x] of [1, 2]",
            ),
            (
                "an `Arc<dyn `[`Service`]`>` of [`struct@f16`]s",
                "an `Arc<dyn Service>` of `f16`s",
            ),
            (
                "[`Model`]: plain code. A [`Backend`] makes it",
                "`Model`: plain code. A `Backend` makes it",
            ),
            ("nothing", "nothing"),
            ("an [open one", "an [open one"),
        ] {
            assert_eq!(without_paths(line), plain);
        }
    }

    #[test]
    fn examples_show_what_a_reader_needs() {
        let source = "// No.\n//! Front.\n//!\n//! # Part\n//! ```no_run\n//! # fn main() {\n//! let x = [`1`];\n//! # }\n//! ```\n//!\n//! [`x`]: y\nmod a;\n//! no\n";
        assert_eq!(page(source), "Front.\n\n## Part\n```rust\nlet x = [`1`];\n```\n");
    }

    #[test]
    fn only_lines_that_say_where_a_link_leads_are_left_out() {
        assert!(is_definition("[`Model`]: crate::Model") && is_definition("[a b]: https://a.example/"));
        for text in [
            "[`Model`]: plain blocking code. A [`Backend`] makes it",
            "[1]: ",
            "[]: x",
            "see [`x`]: y",
            "[a] and [b]: c",
        ] {
            assert!(!is_definition(text), "{text}");
        }
        let source =
            "//! Inside, a model is a\n//! [`Model`]: plain code.\n//!\n//! [`Model`]: crate::Model\n";
        assert_eq!(page(source), "Inside, a model is a\n`Model`: plain code.\n");
    }

    #[test]
    fn examples_are_complete_as_shown() {
        let example = |lines: &[&str]| {
            let lines: Vec<String> = lines.iter().map(|line| format!("//! {line}\n")).collect();
            let source = format!("//! ```\n{}//! ```\n", lines.concat());
            let missing = missing_names(&source);
            missing.into_iter().map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(example(&["# let (mut path, b) = f();", "open(path)?;"]), ["path"]);
        assert_eq!(
            example(&["# use std::{io, sync::Arc};", "Arc::new(io)"]),
            ["io", "Arc"]
        );
        assert_eq!(example(&["# struct Nothing;", "f(Nothing)"]), ["Nothing"]);
        assert_eq!(
            example(&["# let rows = 1;", "table.rows(2).expect(\"no rows\"); // rows"]),
            [""; 0]
        );
        assert_eq!(
            example(&["let path = 1;", "# let path = 2;", "open(path)?;"]),
            [""; 0]
        );
        assert_eq!(
            example(&["# fn main() {", "# let x = 1;", "let mine = 1;", "# }"]),
            [""; 0]
        );
    }
}
