//! Each library's README.md is the front page of its documentation, so that both say the same. Crates with a README of their own keep it.

use std::{fs, path::PathBuf};

use anyhow::{Context, Result};

use crate::workspace;

/// The first line of a README that is made here.
const MARK: &str = "<!-- Made by `cargo xtask codegen` from the front of src/lib.rs. -->";

/// The files and what they should contain.
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
        files.push((readme, format!("{MARK}\n\n# {name}\n\n{}", page(&source))));
    }
    files.sort();
    Ok(files)
}

/// The page at the front of a library's source, as plain Markdown.
fn page(source: &str) -> String {
    let lines = source.lines().skip_while(|line| !line.starts_with("//!"));
    let lines = lines.take_while(|line| line.starts_with("//!"));
    let lines = lines
        .map(|line| line.trim_start_matches("//!"))
        .map(|line| line.strip_prefix(' ').unwrap_or(line));
    let mut page = String::new();
    let (mut is_code, mut is_rust) = (false, false);
    for line in lines {
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
            // What a reader need not see.
            if is_rust && (line == "#" || line.starts_with("# ")) {
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

/// Whether a line says where a link leads.
fn is_definition(line: &str) -> bool {
    line.starts_with('[') && line.contains("]: ")
}

/// A line whose links to items of Rust are their texts.
fn without_paths(line: &str) -> String {
    let (mut plain, mut rest) = (String::new(), line);
    while let Some(start) = rest.find('[') {
        let (before, link) = rest.split_at(start);
        plain += before;
        let Some(end) = link.find(']') else {
            rest = link;
            break;
        };
        let (text, after) = (&link[1..end], &link[end + 1..]);
        let target = after.strip_prefix('(').and_then(|target| target.split_once(')'));
        match target {
            Some((path, after)) if !path.contains("://") && !path.ends_with(".md") => {
                plain += text;
                rest = after;
            }
            None if text.starts_with('`') => {
                plain += text;
                rest = after;
            }
            Some(_) | None => {
                plain += &link[..=end];
                rest = after;
            }
        }
    }
    plain + rest
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
}
