//! Checks the links between pages: each must lead to an existing file and heading, and the book must contain
//! each page of docs/.

use std::{
    collections::BTreeSet,
    fs,
    path::{Component, Path, PathBuf},
};

use anyhow::Result;

use crate::workspace;

/// Returns the broken links of these pages, and the pages of docs/ that the book does not contain.
pub(crate) fn check(pages: &[PathBuf]) -> Result<Vec<String>> {
    let mut broken = Vec::new();
    for page in pages {
        let text = fs::read_to_string(page)?;
        let name = workspace::display(page);
        for link in links(&text) {
            if let Some(wrong) = wrong(page, link)? {
                broken.push(format!("{name}: the link `{link}` leads {wrong}"));
            }
        }
    }
    let contents = workspace::root().join("docs/SUMMARY.md");
    let text = fs::read_to_string(&contents)?;
    let listed: BTreeSet<PathBuf> = links(&text)
        .into_iter()
        .map(|link| resolve(&contents, link))
        .collect();
    let docs = workspace::root().join("docs");
    for page in pages
        .iter()
        .filter(|page| page.starts_with(&docs) && **page != contents)
    {
        if !listed.contains(page) {
            let name = workspace::display(page);
            broken.push(format!(
                "{name}: docs/SUMMARY.md, the book's contents, has no line for it"
            ));
        }
    }
    Ok(broken)
}

/// Returns a description of what is wrong with a link; `None` if the link is correct.
fn wrong(page: &Path, link: &str) -> Result<Option<String>> {
    if link.contains("://") || link.starts_with("mailto:") {
        return Ok(None);
    }
    let (file, heading) = link.split_once('#').unwrap_or((link, ""));
    let target = match file {
        "" => page.to_owned(),
        file => resolve(page, file),
    };
    if !target.exists() {
        return Ok(Some(format!("to no file ({})", workspace::display(&target))));
    }
    let docs = workspace::root().join("docs");
    if page.starts_with(&docs) && !target.starts_with(&docs) {
        return Ok(Some(
            "out of docs/, which the book ends with; name the path as code".to_owned(),
        ));
    }
    if page.starts_with(&docs) && target.is_dir() {
        return Ok(Some(
            "to a directory, which is not a page of the book; link a file in it".to_owned(),
        ));
    }
    if heading.is_empty() || target.extension().is_none_or(|extension| extension != "md") {
        return Ok(None);
    }
    let text = fs::read_to_string(&target)?;
    let is_there = headings(&text).any(|found| found == heading);
    Ok((!is_there).then(|| format!("to no heading of {}", workspace::display(&target))))
}

/// Resolves a link's path relative to its page, without `..`.
pub(crate) fn resolve(page: &Path, link: &str) -> PathBuf {
    let mut path = page.parent().unwrap_or(Path::new("")).to_owned();
    for part in Path::new(link.split('#').next().unwrap_or_default()).components() {
        match part {
            Component::ParentDir => drop(path.pop()),
            Component::CurDir => {}
            part => path.push(part),
        }
    }
    path
}

/// Returns the lines of a page outside code blocks.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut is_code = false;
    text.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    })
}

/// Returns the targets of `[text](target)` in prose outside backticks.
pub(crate) fn links(text: &str) -> Vec<&str> {
    let mut links = Vec::new();
    for line in prose(text) {
        // Inline code may look like a link. Backticks inside a link's brackets are allowed.
        let mut rest = line;
        while let Some(start) = rest.find("](") {
            let is_code = rest[..start].matches('`').count() % 2 == 1;
            let link = &rest[start + 2..];
            let Some(end) = link.find(')') else { break };
            if !is_code {
                links.push(&link[..end]);
            }
            rest = &rest[start + 2..];
        }
    }
    links
}

/// Returns the anchors of a page's headings, as GitHub and mdBook generate them.
fn headings(text: &str) -> impl Iterator<Item = String> {
    let lines = prose(text).filter(|line| line.starts_with('#'));
    lines.map(|line| {
        let title = line.trim_start_matches('#').trim().to_lowercase();
        let kept = title
            .chars()
            .filter(|char| char.is_alphanumeric() || matches!(char, ' ' | '-' | '_'));
        kept.map(|char| if char == ' ' { '-' } else { char }).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_stand_in_prose() {
        let page = "see [a](x.md) and [`b`](y.md#z), `[c](no.md)`\n```sh\n[d](no.md)\n```\n[open](\n";
        assert_eq!(links(page), ["x.md", "y.md#z"]);
    }

    #[test]
    fn headings_are_named_as_on_github() {
        let page = "# The program `tensor`\n## 6. Other servers\n```\n# no\n```\n";
        assert_eq!(
            headings(page).collect::<Vec<_>>(),
            ["the-program-tensor", "6-other-servers"]
        );
    }

    #[test]
    fn what_leads_nowhere_is_named() {
        let readme = workspace::root().join("README.md");
        let wrong = |link: &str| wrong(&readme, link).unwrap();
        assert_eq!(wrong("docs/oip.md#1-http"), None);
        assert_eq!(wrong("https://rustup.rs"), None);
        assert_eq!(
            wrong("docs/none.md"),
            Some("to no file (docs/none.md)".to_owned())
        );
        assert_eq!(
            wrong("docs/../docs/oip.md#nothing"),
            Some("to no heading of docs/oip.md".to_owned())
        );
    }

    #[test]
    fn pages_of_the_book_link_pages_of_the_book() {
        let page = workspace::root().join("docs/start.md");
        let wrong = |link: &str| super::wrong(&page, link).unwrap();
        assert_eq!(wrong("formats/index.md"), None);
        assert_eq!(wrong("deploy/Dockerfile"), None);
        for outside in ["../README.md", "../crates/oip-http/README.md", "../schemas"] {
            assert!(wrong(outside).unwrap().starts_with("out of docs/"), "{outside}");
        }
        assert!(wrong("formats").unwrap().starts_with("to a directory"));
        // The repository's README may link to a directory.
        assert_eq!(
            super::wrong(&workspace::root().join("README.md"), "docs").unwrap(),
            None
        );
    }
}
